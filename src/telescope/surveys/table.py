"""The numbers of a survey as columns of a long table: a row for each query, each key, or each
largest weight.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..words import hint
from .summary import Summary

TABLES = ("queries", "keys", "top")


def summary_columns(
    summary: Summary, of: str, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """Return the columns of one table; `heads` and `rows` are the numbers of heads and queries, if
    not from 0 on.

    of   "queries": batch, head, query, then lse, entropy, peak, peak_key, largest_logit, and
         carried, within, lost and share_0, share_1, ... where the survey has them "keys": batch,
         head, key, received, and largest, largest_query, weighted_0, ... where the survey has them
         "top": batch, head, query, rank, key, weight
    """
    if of not in TABLES:
        raise ValueError(f'a survey has no table of "{of}"; {hint(str(of), TABLES)}')
    entropy = summary.entropy
    batch, count, queries = entropy.shape
    own_heads = torch.arange(count) if heads is None else torch.tensor(heads)
    own_rows = torch.arange(queries) if rows is None else torch.tensor(rows)
    if of == "keys":
        sizes = (torch.arange(batch), own_heads, torch.arange(summary.received.shape[-1]))
        columns = _indices(("batch", "head", "key"), sizes) | {"received": summary.received}
        if summary.largest_weight is not None and summary.largest_query is not None:
            columns |= {"largest": summary.largest_weight, "largest_query": summary.largest_query}
        columns |= _numbered("weighted", None if summary.weighted is None else summary.weighted.mT)
        return _flat(columns)
    if of == "top":
        keys = summary.top_keys
        ranks = (torch.arange(batch), own_heads, own_rows, torch.arange(keys.shape[-1]))
        columns = _indices(("batch", "head", "query", "rank"), ranks) | {
            "key": keys,
            "weight": summary.top_weights,
        }
        flat = _flat(columns)
        there = keys.reshape(-1).cpu() >= 0
        return {name: column[there] for name, column in flat.items()}
    columns = _indices(("batch", "head", "query"), (torch.arange(batch), own_heads, own_rows))
    lse = torch.full_like(entropy, torch.nan) if summary.lse is None else summary.lse
    columns |= {"lse": lse, "entropy": entropy}
    if summary.top_keys.shape[-1]:
        peak = summary.top_weights[..., 0]
        columns |= {
            "peak": peak,
            "peak_key": summary.top_keys[..., 0],
            "largest_logit": lse + peak.log(),
        }
    for name in ("carried", "within", "lost"):
        column = getattr(summary, name)
        columns |= {} if column is None else {name: column}
    return _flat(columns | _numbered("share", summary.shares))


def _indices(names: Sequence[str], sizes: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return index columns, int32, each with all axes."""
    return dict(
        zip(names, torch.meshgrid(*(size.int() for size in sizes), indexing="ij"), strict=True)
    )


def _numbered(name: str, columns: Any) -> dict[str, Tensor]:
    return (
        {}
        if columns is None
        else {f"{name}_{i}": part for i, part in enumerate(columns.unbind(-1))}
    )


def _flat(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: column.reshape(-1).cpu() for name, column in columns.items()}
