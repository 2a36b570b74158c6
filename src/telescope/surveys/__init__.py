"""`survey`: exact statistics of every query and every key of an attention, in memory that grows
with n, not with n².

May import attention/, engines/, files/ and words.py. Read survey.py first; then reference.py, the
definition of all numbers, and requests.py and summary.py, what goes in and comes out. chunked.py
computes the same block by block on any device, fused.py with cpu_kernels.py on a CPU, triton.py
with kernels/ on a GPU. dispatch.py says which of them runs; shares.py sums single parts of the
matrix. blocks.py and device.py serve all engines.
"""

from .blocks import Block, BlockScores, pairs_of_rows, sink_of
from .blocks import blocks as score_blocks
from .device import (
    StreamEvent,
    record_event,
    record_use,
    run_within_memory,
    side_stream,
    to_host,
)
from .dispatch import ENGINES, choose, plan, plan_survey, weigh
from .reference import KEYS, check_sums, masked_rows
from .requests import HOW, Cells, Listing, Marks
from .shares import ListedWeights, check_rules, key_scores, listed_weights, share_within
from .summary import (
    Peak,
    Size,
    Summary,
    Top,
    can_reuse_rows,
    columns_of_summaries,
    compute_dtype,
    summary_columns,
)
from .survey import Survey, survey, survey_unchecked

__all__ = [
    "ENGINES",
    "HOW",
    "KEYS",
    "Block",
    "BlockScores",
    "Cells",
    "ListedWeights",
    "Listing",
    "Marks",
    "Peak",
    "Size",
    "StreamEvent",
    "Summary",
    "Survey",
    "Top",
    "can_reuse_rows",
    "check_rules",
    "check_sums",
    "choose",
    "columns_of_summaries",
    "compute_dtype",
    "key_scores",
    "listed_weights",
    "masked_rows",
    "pairs_of_rows",
    "plan",
    "plan_survey",
    "record_event",
    "record_use",
    "run_within_memory",
    "score_blocks",
    "share_within",
    "side_stream",
    "sink_of",
    "summary_columns",
    "survey",
    "survey_unchecked",
    "to_host",
    "weigh",
]
