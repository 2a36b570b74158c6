"""The survey's kernels in Triton. Imported only where they run, since Triton may be missing.

Read tiles.py first: the steps from q·k to a weight. Then sums.py, top.py, pool.py and weigh.py,
which read the weights. They import nothing but Triton.
"""

from .pool import pool, sum_listed
from .sums import check_rows, find_largest_rows, log_sum_exp, statistics
from .tiles import HeadTensor, Rule, TileSpans
from .top import collect_keys, find_blocks, group_rows, raise_thresholds, rank_keys, search_all_keys
from .weigh import weigh, weigh_once

__all__ = [
    "HeadTensor",
    "Rule",
    "TileSpans",
    "check_rows",
    "collect_keys",
    "find_blocks",
    "find_largest_rows",
    "group_rows",
    "log_sum_exp",
    "pool",
    "raise_thresholds",
    "rank_keys",
    "search_all_keys",
    "statistics",
    "sum_listed",
    "weigh",
    "weigh_once",
]
