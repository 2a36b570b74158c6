"""The authors of a residual stream: who wrote what an attention reads, and what follows from what a
head writes.

Imports anatomy and the rooms below. log.py is what hooks note while a model runs; following.py
splits a state of the residual stream into what each author wrote; projections.py takes the parts
through the projections of an attention; why.py, writes.py and lens.py ask. streams.py finds the
tokens of recorded calls in the log.
"""

from .following import Author, SplitHead
from .labels import Labels
from .lens import Lens, read_states
from .log import Event, StreamLog
from .norms import LostError
from .readers import LaterCall, Reader, Readers, find_readers
from .streams import CallColumns, Streams
from .why import Cell, Term, Why, less, split_score
from .writes import Push, Pushes, SplitKeys, Writes, Wrote, push_logits, split_logits

__all__ = [
    "Author",
    "CallColumns",
    "Cell",
    "Event",
    "Labels",
    "LaterCall",
    "Lens",
    "LostError",
    "Push",
    "Pushes",
    "Reader",
    "Readers",
    "SplitHead",
    "SplitKeys",
    "StreamLog",
    "Streams",
    "Term",
    "Why",
    "Writes",
    "Wrote",
    "find_readers",
    "less",
    "push_logits",
    "read_states",
    "split_logits",
    "split_score",
]
