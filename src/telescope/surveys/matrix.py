"""An attention matrix as the survey's Triton kernels take it: cut into bands of rows, with the
spans of keys that each row and each tile of rows may see.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Alibi, Attention, Bias, Mask, Pairs, Relative, has_data, tensors
from .blocks import as_dot
from .device import StreamEvent, layout, record_event

# Rows and keys of a tile.
BM = 64
BN = 128
# Keys whose largest weight is written down; with more than MANY_KEYS keys a whole tile's, to read
# less.
BLOCK = 64
MANY_KEYS = 2**14
# Type of these largest weights, precise enough to choose the blocks to search.
MAXIMA = torch.float16
LOG2_E = 1.0 / log(2.0)


class Band(NamedTuple):
    """Some rows of an attention matrix, with all of its keys: the arguments that all launchers
    share.

    The schemas of the torch operators are made from these fields, so the fields are written out
    here alone.
    """

    queries: Tensor
    """(batch, heads, row, d): those of the band. The features of each query are contiguous."""
    keys: Tensor
    """(batch, key heads, key, d): all keys. The features of each key are contiguous."""
    start: Tensor
    """(batch or 1, row), int32: the first key that each row may see."""
    stop: Tensor
    """(batch or 1, row), int32: one past the last key that each row may see."""
    tiles: Sequence[Tensor]
    """Four of (batch or 1, tile), int32: `tile_spans` of these rows."""
    slopes: Tensor | None
    """(heads,), float32: the slopes of ALiBi · log2(e)."""
    relative: Tensor | None
    """(heads, distances), float32: a bias for each distance · log2(e)."""
    bias: Tensor | None
    """(batch or 1, heads or 1, row or 1, key), float32: any other bias, written out for the band in
    `aligned_rows`.
    """
    mask: Tensor | None
    """(batch or 1, heads or 1, row or 1, key), uint8: 1 where a row sees a key, if start and stop
    do not suffice.
    """
    scale: float
    softcap: float | None
    shift: int
    """The position of the band's first row, counted in keys."""
    first: int
    """The number of the band's first row in the whole matrix."""

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Rows, keys, heads, heads per key head and features, in the order in which the kernels
        take them.
        """
        _, heads, rows, width = self.queries.shape
        _, key_heads, keys, _ = self.keys.shape
        return rows, keys, heads, heads // key_heads, width

    @property
    def row_tiles(self) -> int:
        """How many tiles of BM rows the band has."""
        return self.tiles[0].shape[-1]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the kernels are compiled for: dtypes, strides, alignments, and what is None."""
        # Spans are int32 and come from `aligned_rows`: those of all tiles are alike, so that one
        # stands for them.
        like = (self.queries, self.keys, self.start, self.tiles[0], self.bias, self.mask)
        relative = None if self.relative is None else self.relative.shape
        return (
            self.queries.device,
            *[layout(part) for part in like],
            self.slopes is None,
            relative,
            self.softcap is None,
            self.shift,
            self.first,
        )

    @property
    def matrices(self) -> int:
        """Batch size · heads: how many matrices the kernels run over."""
        return self.queries.shape[0] * self.queries.shape[1]

    def kernel_arguments(self) -> tuple[Any, Any, Any, Any]:
        """Return queries, keys, rule and tile spans as the kernels take them."""
        from . import kernels

        structures: Any = kernels  # triton's types, which mypy does not know
        relative = self.relative
        start = self.start
        first, *other_tiles = self.tiles
        # Only these two biases read the shift: any other number would compile the kernels anew.
        distances = None if relative is None else relative.shape[-1]
        is_relative = self.slopes is not None or relative is not None
        rule = structures.Rule(
            self.scale, self.softcap, self.slopes, relative, distances,
            self.bias, *strides(self.bias), self.mask, *strides(self.mask),
            start, self.stop, start.stride(0) if len(start) > 1 else 0,
            self.shift if is_relative else 0,
        )  # fmt: skip
        return (
            structures.HeadTensor(self.queries, *strides(self.queries)),
            structures.HeadTensor(self.keys, *strides(self.keys)),
            rule,
            structures.TileSpans(first, *other_tiles, first.stride(0) if len(first) > 1 else 0),
        )

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return (batch, heads, row, ...) of all rows from the band's first row on."""
        return tensor[:, :, self.first :] if self.first else tensor


def tile_spans(start: Tensor, stop: Tensor, keys: int, *, has_mask: bool) -> tuple[Tensor, ...]:
    """Return the spans of keys of each tile of BM rows, (batch or 1, tile): first, stop, inner
    first, inner stop.

    From first to stop some row of the tile sees a key, from inner first to inner stop all rows see
    all keys. With has_mask, a mask is written out as a table, and no tile has inner keys. Rows
    beyond the last change no span.
    """
    missing = (0, -start.shape[-1] % BM)

    def by_tile(spans: Tensor, fill: int) -> Tensor:
        return pad(spans, missing, value=fill).reshape(len(spans), -1, BM)

    # A row that sees nothing must not widen the span of its tile.
    first = by_tile(torch.where(start < stop, start, keys), keys).amin(-1)
    last = by_tile(stop, 0).amax(-1)
    if has_mask:
        inner_first = torch.full_like(first, keys)
        inner_last = torch.zeros_like(first)
    else:
        inner_first = by_tile(start, 0).amax(-1)
        inner_last = by_tile(stop, keys).amin(-1)
    return aligned_rows(torch.stack([first, last, inner_first, inner_last])).unbind()


def aligned_rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose strides, but the last, are multiples of 16: for any others, Triton
    compiles anew.
    """
    # A view of a wider tensor: the numbers stay where they are.
    size = tensor.shape[-1]
    return pad(tensor, (0, -size % 16))[..., :size] if size % 16 else tensor.contiguous()


def strides(tensor: Tensor | None) -> tuple[int, ...]:
    """Return the strides of batch, head and position; 0 for an axis of size one, which all
    share.
    """
    if tensor is None:
        return (0, 0, 0)
    axes = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return tuple([0 if size == 1 else step for size, step in axes])


@dataclass(frozen=True, eq=False)
class Matrix:
    """An attention matrix as the kernels take it.

    Common masks and biases are given by their parameters. `bias` and `mask` are the others: they
    are written out as tables, for a band of rows at a time.
    """

    queries: Float[Tensor, "batch heads query d"]
    keys: Float[Tensor, "batch key_heads key d"]
    scale: float
    softcap: float | None
    slopes: Float[Tensor, " heads"] | None
    relative: Float[Tensor, "heads distances"] | None
    bias: Bias | None
    mask: Mask | None
    start: Int[Tensor, "#batch query"]
    stop: Int[Tensor, "#batch query"]
    tiles: tuple[Int[Tensor, "#batch tile"], ...]
    memory: int
    """Bytes that a band may take."""

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, attention: Attention, memory: int) -> "Matrix":
        """Return the matrix of an attention that `triton.cannot` has nothing against."""
        # Floats, so that kernels are not compiled anew for whole numbers.
        scale = float(attention.scale_for(keys.shape[-1]))
        softcap = None if attention.softcap is None else float(attention.softcap)
        bias = attention.bias
        # In float32: the queries, once multiplied, should not be rounded to half precision.
        queries, keys = as_dot(attention, queries, keys, torch.float32)
        spans = _cached_spans(attention, queries, keys)

        # ALiBi and relative biases are given by their numbers.
        # Kernels compute in powers of two, so that these are multiplied by log2(e).
        slopes = _in_bits(bias.slopes, queries) if isinstance(bias, Alibi) else None
        relative = None
        if isinstance(bias, Relative):
            relative = _in_bits(bias.table, queries).expand(queries.shape[1], -1).contiguous()
        assert bias is None or isinstance(bias, Bias)
        return cls(
            queries if queries.stride(-1) == 1 else queries.contiguous(),
            keys if keys.stride(-1) == 1 else keys.contiguous(),
            scale,
            softcap,
            slopes=slopes,
            relative=relative,
            bias=bias if slopes is None and relative is None else None,
            mask=None if spans.whole else attention.mask,
            start=spans.start,
            stop=spans.stop,
            tiles=spans.tiles,
            memory=memory,
        )

    @property
    def has_tables(self) -> bool:
        """Whether a mask or bias has to be written out as a table."""
        return self.bias is not None or self.mask is not None

    def bands(self, batch: slice = slice(None), *, top: int = 0) -> Iterator[Band]:
        """Yield bands of as many rows as fit into `memory`, with the scratch memory of a search for
        `top`.
        """
        sequences = range(len(self.queries))[batch]
        rows = self.queries.shape[-2]
        height = self.memory // max(self._row_bytes(sequences, top), 1)
        # Whole tiles, and four at a time if possible: their spans then begin at 16 bytes.
        height = next((height // step * step for step in (4 * BM, BM) if height >= step), BM)
        for first in range(0, rows, height):
            part = range(first, min(first + height, rows))
            # Write out what has no parameters, for the rows of this band alone.
            bias = mask = None
            if self.bias is not None:
                bias = aligned_rows(self._table(self.bias, part, sequences).float())
            if self.mask is not None:
                seen = aligned_rows(self._table(self.mask.sees, part, sequences))
                mask = seen.view(torch.uint8)
            yield Band(
                *self._part(batch, part),
                slopes=self.slopes,
                relative=self.relative,
                bias=bias,
                mask=mask,
                scale=self.scale,
                softcap=self.softcap,
                shift=self.keys.shape[-2] - rows + first,
                first=first,
            )

    def _part(
        self, batch: slice, rows: range
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Sequence[Tensor]]:
        """Return queries, keys, start, stop and tiles of these sequences and rows."""
        if batch == slice(None) and len(rows) == self.queries.shape[-2]:
            return self.queries, self.keys, self.start, self.stop, self.tiles
        # Spans that all sequences share have a batch axis of size one, and keep it.
        part = slice(rows.start, rows.stop)
        of_tiles = slice(rows.start // BM, -(-rows.stop // BM))
        own = batch if len(self.start) > 1 else slice(None)
        start = self.start[own, part]
        stop = self.stop[own, part]
        tiles = [spans[own, of_tiles] for spans in self.tiles]
        return self.queries[batch, :, part], self.keys[batch], start, stop, tiles

    def _row_bytes(self, batch: range, top: int) -> int:
        """Return the bytes of one row of a band: scratch memory of all heads, and its part of a
        mask and a bias.
        """
        # One row is written out to see how large it is: a table may lack batch or heads.
        sees = None if self.mask is None else self.mask.sees
        rules = (rule for rule in (self.bias, sees) if rule is not None)
        tables = sum(self._table(rule, range(1), batch).nbytes for rule in rules)
        searched = scratch_bytes_per_row(self.keys.shape[-2], top) if top else 0
        return len(batch) * self.queries.shape[1] * searched + tables

    def _table(self, rule: object, rows: range, batch: range) -> Tensor:
        """Return a bias or mask written out for these rows and all keys."""
        _, heads, count, _ = self.queries.shape
        size = (count, self.keys.shape[-2])
        device = self.queries.device
        at = Pairs.block(rows, range(size[1]), of=size, batch=batch, heads=heads, device=device)
        assert callable(rule)
        table: Tensor = rule(at)
        return table.detach().expand(*table.shape[:3], size[1])


def _in_bits(numbers: Tensor, queries: Tensor) -> Tensor:
    return (numbers.detach().to(queries.device, torch.float32) * LOG2_E).contiguous()


# ---------------------------------------------------------------------------------- spans of a mask


class BandSpans(NamedTuple):
    """The spans of keys that the rows of a matrix see, int32."""

    start: Tensor
    """(batch or 1, row): the first key that each row sees."""
    stop: Tensor
    """(batch or 1, row): one past the last."""
    tiles: tuple[Tensor, ...]
    """`tile_spans` of them."""
    whole: bool
    """Whether a row sees all keys between."""


def _spans(
    mask: Mask, batch: int, heads: int, rows: int, columns: int, device: torch.device
) -> BandSpans:
    size = (rows, columns)
    at = Pairs.block(range(rows), range(1), of=size, batch=batch, heads=heads, device=device)
    # One span for all heads; a mask that differs by head is a table too.
    spans = mask.spans(at, columns)
    start, stop = (
        aligned_rows(ends.squeeze(-1).expand(-1, rows).int())
        for ends in (spans.start.amin(1), spans.stop.amax(1))
    )
    tiles = tile_spans(start, stop, columns, has_mask=not spans.whole)
    return BandSpans(start, stop, tiles, spans.whole)


def _cached_spans(attention: Attention, queries: Tensor, keys: Tensor) -> BandSpans:
    """Return `_spans`, made once for all layers of a model; the current stream waits for the one
    that made them.
    """
    mask = attention.mask
    held = () if attention._has_no_tensors else tuple(tensors(mask))
    sizes = (*queries.shape[:3], keys.shape[-2], queries.device)
    # Tensors of a trace must not be kept, and those of inference mode do not count versions.
    is_fake = not has_data(queries) or type(queries) is not Tensor
    if is_fake or any(one.is_inference() for one in held):
        return _spans(mask, *sizes)
    known = SameMask(mask, tuple(one._version for one in held)) if held else mask
    spans, made = _spans_and_event(known, *sizes)
    if made is not None:
        made.wait(spans.start, spans.stop, *spans.tiles)
    return spans


@dataclass(frozen=True, eq=False)
class SameMask:
    """A mask with tensors, equal to itself alone, and only until one of its tensors is written to.

    Comparing numbers would wait for the GPU.
    """

    mask: Mask
    versions: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameMask):
            return NotImplemented
        return self.mask is other.mask and self.versions == other.versions

    def __hash__(self) -> int:
        return hash((id(self.mask), self.versions))


# The process owns the spans of the last 16 masks and sizes, since the layers of a model share them
# and know nothing of one another. An entry keeps its mask alive, so that its id stays its own.
@lru_cache(maxsize=16)
def _spans_and_event(mask: Mask | SameMask, *sizes: Any) -> tuple[BandSpans, StreamEvent | None]:
    spans = _spans(mask.mask if isinstance(mask, SameMask) else mask, *sizes)
    return spans, record_event(sizes[-1])


# -------------------------------------------------------------------------------- sizes of a search


def search_capacity(top: int) -> tuple[int, int]:
    """Return in how many blocks the top of a row is searched, and among how many of their keys.

    A row that needs more is overfull, and is searched from its first key to its last.
    """
    return 4 * padded(top), max(64, 4 * padded(top))


def scratch_bytes_per_row(keys: int, top: int) -> int:
    """Return the bytes that the search for one row's top takes: maxima, later candidate keys; and
    blocks twice.
    """
    sizes = search_sizes(keys, top)
    maxima = max(sizes.key_blocks * MAXIMA.itemsize, sizes.key_capacity * 8)
    return maxima + sizes.block_capacity * (8 + 4)


class SearchSizes(NamedTuple):
    """Sizes of a search for the top of each row: keys per block, blocks in all tiles of keys, and
    the two numbers of `search_capacity`.
    """

    block: int
    key_blocks: int
    block_capacity: int
    key_capacity: int


def search_sizes(keys: int, top: int) -> SearchSizes:
    """Return the sizes of a search."""
    block = BN if keys > MANY_KEYS else min(BN, max(BLOCK, 2 * padded(top)))
    return SearchSizes(block, -(-keys // BN) * (BN // block), *search_capacity(top))


def padded(top: int) -> int:
    """Return the smallest of 8, 16, 32, 64, ... that is not below top: kernels are compiled for
    these alone.
    """
    return max(8, next_power(top))


def next_power(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
