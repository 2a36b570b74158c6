"""The survey on a GPU. From queries, keys and lse, q·k is computed once more, a tile at a time, and read in passing.

First every block of keys sums up what it receives, and notes the largest weight of each row in it. These bound what
the `top` of a row can be, so only the blocks that reach the bound are looked into again, for the keys themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from math import log
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Bias, Mask, Pairs, dot, softmax
from ..attention.biases import Alibi, Relative
from ..attention.values import has_numbers, tensors
from .cells import Cells
from .device import StreamEvent, as_it_fits, moment
from .launch import BM, BN, notes, run, survey_lse, survey_map, survey_rows, tiles
from .summary import Summary

MEMORY = 2**29  # bytes that a band of rows may take for its notes, or for a mask or bias that has no shorter form
LEAST = 2**22  # with less there is hardly a tile of rows at a time
MOST = 64  # the longest top a row is searched for
LOG2_E = 1.0 / log(2.0)
INSTALLED = find_spec("triton") is not None  # asked once, not with every survey


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Why this engine cannot run it, or None."""
    if queries.device.type != "cuda":
        return f"it needs a GPU, and the queries are on {queries.device}"
    if not INSTALLED:
        return "it needs triton: pip install triton"
    if queries.dtype == torch.float64:
        return "it computes in float32, and these are float64"
    if not attention.score.is_dot_product:
        return f"the score {attention.score.formula} is no dot product"
    if attention.normalize is not softmax:
        return f"it normalises by softmax, not by {getattr(attention.normalize, '__name__', attention.normalize)}"
    if keys.shape[-1] > 256:
        return f"a head of {keys.shape[-1]} features does not fit; 256 do"
    if top > MOST:
        return f"top={top} is more than the {MOST} it keeps in order"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    return None


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
) -> Summary:
    run = partial(_summarize, queries, keys, attention, lse, top, cells)
    return as_it_fits(run, MEMORY, LEAST, queries, keys)


def _summarize(
    queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int, cells: Cells | None, memory: int
) -> Summary:
    matrix = Matrix.of(queries, keys, attention, memory)
    lse = _lse(matrix, attention) if lse is None else lse.float().contiguous()
    (batch, heads, rows), columns = lse.shape, keys.shape[-2]
    tiled = cells is not None and cells.how == "share" and cells.row_size % BM == 0 == cells.key_size % BN
    map_size = (cells.rows, cells.columns) if tiled and cells else (0, 0)
    zeros = lse.new_zeros(batch * heads * (columns + rows + map_size[0] * map_size[1]))
    parts = torch.split(zeros, [batch * heads * count for count in (columns, rows, map_size[0] * map_size[1])])
    received, entropy, pooled = (
        part.view(batch, heads, *size) for part, size in zip(parts, ((columns,), (rows,), map_size), strict=True)
    )
    weights, found = lse.new_empty(*lse.shape, top), lse.new_empty(*lse.shape, top, dtype=torch.int32)
    overfull = lse.new_empty(lse.shape if top else (0,), dtype=torch.bool)
    sizes = (cells.row_size, cells.key_size) if tiled and cells else (1, 1)
    for band in matrix.bands(top=top):
        run(survey_rows, *band, lse, received, entropy, weights, found, overfull, pooled, *sizes)
    if cells is not None:
        pooled = cells.averaged(pooled) if tiled else _pool(matrix, lse, cells)
    return Summary(lse, received, entropy, weights, found, None if cells is None else pooled)


def pool(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    cells: Cells,
) -> Float[Tensor, "batch heads rows columns"]:
    def run(memory: int) -> Tensor:
        matrix = Matrix.of(queries, keys, attention, memory)
        return _pool(matrix, _lse(matrix, attention) if lse is None else lse.float().contiguous(), cells)

    return as_it_fits(run, MEMORY, LEAST, queries, keys)


def _lse(matrix: "Matrix", attention: Attention) -> Float[Tensor, "batch heads query"]:
    """ln Σ exp(score), the sink included."""
    lse = matrix.start.new_empty(matrix.queries.shape[:3], dtype=torch.float32)
    heads = lse.shape[1]
    sinks = None
    if attention.sink is not None:
        sinks = torch.as_tensor(attention.sink, dtype=torch.float32, device=lse.device).expand(heads) * LOG2_E
    for band in matrix.bands():
        run(survey_lse, *band, sinks, lse)
    return lse


def _pool(matrix: "Matrix", lse: Tensor, cells: Cells) -> Float[Tensor, "batch heads rows columns"]:
    pooled = lse.new_zeros(*lse.shape[:2], cells.rows, cells.columns)
    numbered = max(len(cells.of_queries), len(cells.of_keys))  # where each sequence has cells of its own: one by one
    for b in range(numbered):
        own = slice(None) if numbered == 1 else slice(b, b + 1)
        columns, item = _stretches(cells.of_keys[b % len(cells.of_keys)], BN)
        of_queries = cells.of_queries[b % len(cells.of_queries)]
        for band in matrix.bands(own):
            (height, first) = band[0].shape[-2], band[-1]
            rows, _ = _stretches(of_queries[first : first + height], BM)
            run(survey_map, *band, lse[own], rows, columns, item, pooled[own], cells.how)
    return cells.averaged(pooled) if cells.how == "share" else pooled


def _stretches(cell: Int[Tensor, " position"], most: int) -> tuple[Int[Tensor, "3 stretch"], Int[Tensor, " position"]]:
    """Neighbours that fall into one cell, at most so many: (first, stop, cell); and in which stretch a position is."""
    positions = torch.arange(len(cell), device=cell.device)
    run = torch.ones_like(cell, dtype=torch.bool)
    run[1:] = cell[1:] != cell[:-1]
    since = positions - torch.where(run, positions, 0).cummax(0).values
    first = (since % most == 0).nonzero().flatten()
    stop = torch.cat([first[1:], first.new_tensor([len(cell)])])
    item = torch.searchsorted(first, positions, right=True) - 1
    return torch.stack([first, stop, cell[first]]).int(), item.int()


@dataclass(frozen=True, eq=False)
class Matrix:
    """An attention matrix as the kernels take it: what can be said of it in short, and what has to be written out."""

    queries: Float[Tensor, "batch heads query d"]
    keys: Float[Tensor, "batch key_heads key d"]
    scale: float
    softcap: float | None
    slopes: Float[Tensor, " heads"] | None
    relative: Float[Tensor, "#heads distances"] | None
    bias: Bias | None
    mask: Mask | None
    start: Int[Tensor, "#batch query"]
    stop: Int[Tensor, "#batch query"]
    tiles: Int[Tensor, "4 #batch tile"]
    memory: int

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, attention: Attention, memory: int) -> "Matrix":
        scale, bias = attention.scale_for(keys.shape[-1]), attention.bias
        if attention.score != dot:  # what is multiplied into the queries should not be rounded to half precision
            queries, keys = attention.score.as_dot(queries.float(), keys.float())
        (batch, heads, rows, _), columns = queries.shape, keys.shape[-2]
        known = has_numbers(queries) and type(queries) is Tensor and not any(True for _ in tensors(attention.mask))
        spans = _remembered if known else _spans
        start, stop, of_tiles, whole = spans(attention.mask, batch, heads, rows, columns, queries.device)
        named = bias.slopes if isinstance(bias, Alibi) else bias.table if isinstance(bias, Relative) else None
        named = None if named is None else (named.detach().to(queries.device, torch.float32) * LOG2_E).contiguous()
        assert bias is None or isinstance(bias, Bias)
        return cls(
            queries if queries.stride(-1) == 1 else queries.contiguous(),
            keys if keys.stride(-1) == 1 else keys.contiguous(),
            scale,
            attention.softcap,
            slopes=named if isinstance(bias, Alibi) else None,
            relative=named if isinstance(bias, Relative) else None,
            bias=None if named is not None else bias,
            mask=None if whole else attention.mask,
            start=start,
            stop=stop,
            tiles=of_tiles,
            memory=memory,
        )

    def bands(self, batch: slice = slice(None), *, top: int = 0) -> Iterator[tuple[Any, ...]]:
        """The arguments of the kernels, for as many rows at a time as memory has room for, notes included."""
        some, rows = range(len(self.queries))[batch], self.queries.shape[-2]
        height = max(self.memory // max(self._row_bytes(some, top), 1) // BM * BM, BM)
        for first in range(0, rows, height):
            band = range(first, min(first + height, rows))
            yield (
                *self._part(batch, band),
                self.slopes,
                self.relative,
                None if self.bias is None else self._table(self.bias, band, some).float(),
                None if self.mask is None else self._table(self.mask.sees, band, some).view(torch.uint8),
                self.scale,
                self.softcap,
                self.keys.shape[-2] - rows + first,
                first,
            )

    def _part(self, batch: slice, band: range) -> tuple[Tensor, ...]:
        """Queries, keys and spans of these sequences and rows."""
        if batch == slice(None) and len(band) == self.queries.shape[-2]:
            return self.queries, self.keys, self.start, self.stop, self.tiles
        own, of_tiles = slice(band.start, band.stop), slice(band.start // BM, -(-band.stop // BM))
        start, stop = (spans[batch if len(spans) > 1 else slice(None), own] for spans in (self.start, self.stop))
        tiles = self.tiles[:, batch if self.tiles.shape[1] > 1 else slice(None), of_tiles]
        return self.queries[batch, :, own], self.keys[batch], start, stop, tiles

    def _row_bytes(self, batch: range, top: int) -> int:
        """What a row of a band takes: the notes of each head, and its part of a mask and a bias."""
        probe = (rule for rule in (self.bias, self.mask and self.mask.sees) if rule is not None)
        tables = sum(row.numel() * row.element_size() for row in (self._table(rule, range(1), batch) for rule in probe))
        searched = notes(self.keys.shape[-2], top) if top else 0
        return len(batch) * self.queries.shape[1] * searched + tables

    def _table(self, rule: object, rows: range, batch: range) -> Tensor:
        size = (self.queries.shape[-2], self.keys.shape[-2])
        at = Pairs.block(
            rows, range(size[1]), of=size, batch=batch, heads=self.queries.shape[1], device=self.queries.device
        )
        assert callable(rule)
        table: Tensor = rule(at)
        return table.detach().expand(*table.shape[:3], size[1]).contiguous()


def _spans(
    mask: Mask, batch: int, heads: int, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The first key that each row sees and the one past the last; the same of tiles of rows; whether that says all."""
    at = Pairs.block(range(rows), range(1), of=(rows, columns), batch=batch, heads=heads, device=device)
    spans = mask.spans(at, columns)
    start, stop = (
        spread.squeeze(-1).expand(-1, rows).int().contiguous() for spread in (spans.start.amin(1), spans.stop.amax(1))
    )
    return start, stop, tiles(start, stop, columns, written=not spans.whole), spans.whole


@lru_cache(maxsize=16)  # masks of positions alone come again with every layer
def _once(*asked: Any) -> tuple[tuple[Tensor, Tensor, Tensor, bool], StreamEvent | None]:
    return _spans(*asked), moment(asked[-1])


def _remembered(*asked: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
    spans, made = _once(*asked)
    if made is not None:
        made.wait(*spans[:3])
    return spans
