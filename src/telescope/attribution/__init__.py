"""Attribution: who wrote what an attention reads, and what becomes of what it writes.

Imports anatomy and the rooms below. log.py is what hooks note while a model runs; following.py
splits a state of the residual stream into what each author wrote; projections.py takes the parts
through the projections of an attention.
"""

from .following import LostError
from .labels import Labels
from .log import Event, StreamLog
from .streams import CallColumns, Streams
from .why import Cell, Term, Why, split_score

__all__ = [
    "CallColumns",
    "Cell",
    "Event",
    "Labels",
    "LostError",
    "StreamLog",
    "Streams",
    "Term",
    "Why",
    "split_score",
]
