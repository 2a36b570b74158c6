"""What is known of a recorded call besides its tensors: what to keep of it, its facts, and the
columns of its texts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Attention
from ..measures import Written
from ..surveys import Size
from .attention_call import QuerySelection, all_queries
from .storage import Store, on_device

# How many keys of the largest weight are kept of each query, unless the caller says.
TOP = 8
MapSize = tuple[int, int]
ALSO = ("norms", "gradients", "streaming")
"""What ts.watch(also=...) keeps besides. norms: ‖W_O v‖ of each key. gradients: weight times
gradient of each key, once a backward pass has run. streaming: with keep="summaries", the share of
each query's weight on the first and the last keys.
"""


@dataclass(frozen=True)
class KeepOptions:
    """What a recording keeps of each call, and where; see `ts.watch`."""

    top: int = TOP
    map: MapSize | None = None
    queries: QuerySelection = all_queries
    store: Store = on_device
    also: frozenset[str] = frozenset()
    """Of ALSO."""
    sample: bool = False
    """Whether to keep the pooled rows of a few queries of each sequence, with "summaries"; see
    measures/row_sample.py.
    """


@dataclass
class CallFacts:
    """Everything known about a call besides its tensors."""

    name: str
    heads: tuple[int, ...]
    """The number of each head in the model."""
    dropout: float
    attention: Attention
    size: Size
    """The number of queries and of keys."""
    rows: list[int] | None
    """The queries that were kept; None is all."""
    shape: tuple[int, int, int, int]
    """batch, key heads, d_q, d_k"""
    dtype: torch.dtype
    device: torch.device
    """The device on which the model ran."""
    engine: str | None = None
    recorded: MapSize | None = None
    """The size of the map that was kept."""
    across: bool | None = None
    """Whether queries and keys come from two sequences; None in a recording that does not say."""
    prompt: int | None = None
    """How many queries the prompt had; those after it were generated. None in a recording that does
    not say.
    """
    written: Written = Written((), ())
    """Which queries the model wrote, and what ends a text; empty in a recording that does not say.
    """


class TextColumns(NamedTuple):
    """The columns of a batch, indices into its tensors, in which one sequence has its own
    tokens.
    """

    queries: range
    keys: range


def range_of(real: Bool[Tensor, " token"]) -> range:
    """Return the range from the first to the last token that counts."""
    which = real.nonzero().flatten().tolist()
    return range(which[0], which[-1] + 1) if which else range(0)
