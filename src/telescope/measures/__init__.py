"""One table of measures: name, meaning, how it is summed over a survey's rows and keys, how it is
shown; and the sums of the habits of heads while a model runs.

Imports attention and surveys. Read table.py first, then places.py and habits.py.
"""

from .habits import counted, habit_sums, head_sums, streaming_share
from .places import NO_TOKEN, BatchTokens, Places, Written, is_causal
from .row_sample import BACK, BUCKETS, ROWS, RowSample, bucket_limits, sample_rows
from .table import (
    CLEAR,
    COLUMNS,
    HABIT_KEYS,
    HABITS,
    IN_SPACE,
    MEASURES,
    OF_QUERIES,
    OF_TEXTS,
    OFFSETS,
    SUMS,
    Decode,
    Head,
    HeadRows,
    IsMark,
    Measure,
    kinds_of,
    punctuation_test,
)

__all__ = [
    "BACK",
    "BUCKETS",
    "CLEAR",
    "COLUMNS",
    "HABITS",
    "HABIT_KEYS",
    "IN_SPACE",
    "MEASURES",
    "NO_TOKEN",
    "OFFSETS",
    "OF_QUERIES",
    "OF_TEXTS",
    "ROWS",
    "SUMS",
    "BatchTokens",
    "Decode",
    "Head",
    "HeadRows",
    "IsMark",
    "Measure",
    "Places",
    "RowSample",
    "Written",
    "bucket_limits",
    "counted",
    "habit_sums",
    "head_sums",
    "is_causal",
    "kinds_of",
    "punctuation_test",
    "sample_rows",
    "streaming_share",
]
