"""Whole tasks, one for each command: explaining/, learning/ (recipes), writing.py, look.py (watch),
doctor.py.

May import every room but explorer and cli. Read the file with the command's task first: what the
command line prints is made there, so that it can be used from Python as well.
"""

from .explaining.examples import EXAMPLES, Example, ExampleScene
from .explaining.sentence import control_text, even_weights, which_is_read
from .explaining.sentence_views import (
    HeadPerspective,
    SentenceAttention,
    head_perspectives,
    most_different,
    most_telling,
    source_words,
    translate_whole,
    watch_translation,
    written_words,
)
from .explaining.tables import (
    ENCODINGS,
    MOST_FEATURES,
    POSITIONS,
    ScoreStatistics,
    encoding_curves,
    encoding_table,
    random_scores,
)
from .writing import encode_text, max_source_tokens

__all__ = [
    "ENCODINGS",
    "EXAMPLES",
    "MOST_FEATURES",
    "POSITIONS",
    "Example",
    "ExampleScene",
    "HeadPerspective",
    "ScoreStatistics",
    "SentenceAttention",
    "control_text",
    "encode_text",
    "encoding_curves",
    "encoding_table",
    "even_weights",
    "head_perspectives",
    "max_source_tokens",
    "most_different",
    "most_telling",
    "random_scores",
    "source_words",
    "translate_whole",
    "watch_translation",
    "which_is_read",
    "written_words",
]
