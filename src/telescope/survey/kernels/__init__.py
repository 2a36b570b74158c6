"""The survey's kernels, in triton: they are imported only where they run."""

from .pool import pool, stretches
from .sums import log_sum_exp, statistics
from .tiles import HeadTensor, Rule, TileSpans
from .top import candidates, enlist, mark, rank, search, sharpen

__all__ = [
    "HeadTensor",
    "Rule",
    "TileSpans",
    "candidates",
    "enlist",
    "log_sum_exp",
    "mark",
    "pool",
    "rank",
    "search",
    "sharpen",
    "statistics",
    "stretches",
]
