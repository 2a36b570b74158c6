"""Cut the attention matrix into blocks, leaving out what a mask hides, and compute the masked
scores of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import frexp
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Pairs, Spans, dot, softmax
from .summary import PerPair, compute_dtype

ROWS = 512  # most rows of one head in a block: of a taller block, a causal mask would hide much
GROUP = 16  # blocks begin and end at multiples of this number of keys, or at the last key


# ---------------------------------------------------------------------- what the engines have alike


def obstacle(
    queries: Tensor, keys: Tensor, attention: Attention, top: int, most: int
) -> str | None:
    """Return why a compiled engine, which keeps at most so many of a row's top, cannot survey."""
    if attention.normalize is not softmax:
        name = getattr(attention.normalize, "__name__", attention.normalize)
        return f"it normalises by softmax, not by {name}"
    if top > most:
        return f"top={top} is more than the {most} it keeps in order"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    return None


def row_pairs(queries: Tensor, keys: Tensor, columns: int = 0) -> Pairs:
    """Return the pairs of all queries with the first `columns` keys; without any, a mask's spans
    can be computed from them.
    """
    batch, heads, rows, _ = queries.shape
    size = (rows, keys.shape[-2])
    return Pairs.block(
        range(rows), range(columns), of=size, batch=batch, heads=heads, device=queries.device
    )


def pairs_of_rows(
    rows: Tensor,
    columns: range,
    of: tuple[int, int],
    batch: int | range = 1,
    heads: int | range = 1,
) -> Pairs:
    """Return the pairs of these rows, in any order, with a range of columns, in a matrix `of`
    (queries, keys).
    """
    at = Pairs.block(range(0), columns, of=of, batch=batch, heads=heads, device=rows.device)
    row = rows[None, None, :, None]
    return replace(at, row=row, query=row + (of[1] - of[0]))


def as_dot(
    attention: Attention, queries: Tensor, keys: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return queries and keys whose dot product is the score, computed in this dtype."""
    if attention.score == dot:
        return queries, keys
    return attention.score.as_dot(queries.to(dtype), keys.to(dtype))


def is_power_of_two(scale: float) -> bool:
    """Return whether queries can be multiplied with the scale without rounding them."""
    return abs(frexp(scale)[0]) == 0.5


def sink_of(attention: Attention, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the sink, one number or one for each head; -inf if the attention has none."""
    sink = -torch.inf if attention.sink is None else attention.sink
    return torch.as_tensor(sink, dtype=dtype, device=device).detach()


# ------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Block:
    """Some sequences, heads, rows and columns. Every row sees all columns of `inner`."""

    sequences: slice
    heads: slice
    rows: slice
    columns: slice
    inner: slice

    @property
    def index(self) -> tuple[slice, slice, slice]:
        """The index of the block's rows in a tensor (batch, heads, query, ...)."""
        return self.sequences, self.heads, self.rows

    @property
    def width(self) -> int:
        """How many columns the block has."""
        return int(self.columns.stop - self.columns.start)

    @property
    def edges(self) -> list[slice]:
        """The columns outside of `inner`, which some rows may not see."""
        edges = (
            slice(self.columns.start, self.inner.start),
            slice(self.inner.stop, self.columns.stop),
        )
        return [edge for edge in edges if edge.start < edge.stop]

    def pairs(self, columns: slice, of: tuple[int, int], device: torch.device) -> Pairs:
        """Return the pairs of the block's rows with these columns, in a matrix `of` (queries,
        keys).
        """
        sequences, heads, rows, keys = (
            range(part.start, part.stop)
            for part in (self.sequences, self.heads, self.rows, columns)
        )
        return Pairs.block(rows, keys, of=of, batch=sequences, heads=heads, device=device)


def blocks(queries: Tensor, keys: Tensor, attention: Attention, most: int) -> Iterator[Block]:
    """Yield every block in which a key is seen, of at most `most` scores, or of one row if a row
    has more.
    """
    rows = queries.shape[-2]
    # A score such as the additive one holds several numbers for each pair.
    most = most // attention.score.numbers_per_score(queries, keys)
    start, stop, whole = row_spans(queries, keys, attention)
    for sequences, heads in _matrices(queries, keys, attention, most):
        # One span of keys for each row, wide enough for all of these matrices.
        first = start[sequences, heads].amin((0, 1))
        last = stop[sequences, heads].amax((0, 1))
        matrices = (sequences.stop - sequences.start) * (heads.stop - heads.start)
        row = 0
        while row < rows:
            # Halve the number of rows until the block is small enough.
            count = min(ROWS, rows - row)
            while True:
                taken = slice(row, row + count)
                columns = slice(int(first[taken].min()) // GROUP * GROUP, int(last[taken].max()))
                if count == 1 or matrices * count * (columns.stop - columns.start) <= most:
                    break
                count = -(-count // 2)
            if columns.start < columns.stop:
                # Where every row sees every key, no mask has to be applied.
                inner = slice(columns.start, columns.start)
                if whole:
                    left = int(start[sequences, heads, taken].max())
                    right = int(stop[sequences, heads, taken].min())
                    inner = slice(left, right) if left < right else inner
                yield Block(sequences, heads, taken, columns, inner)
            row += count


class RowSpans(NamedTuple):
    """The first key each row sees and one past the last, (batch, heads, query), on the CPU; and
    whether each row sees all between.
    """

    start: Tensor
    stop: Tensor
    whole: bool


def row_spans(queries: Tensor, keys: Tensor, attention: Attention) -> RowSpans:
    """Return the spans of keys that the rows see.

    A row that sees nothing starts at the last key and stops at the first, so that no block grows by
    it.
    """
    columns = keys.shape[-2]
    at = row_pairs(queries, keys)
    is_softmax = attention.normalize is softmax  # other normalisers need whole rows
    spans = attention.mask.spans(at, columns) if is_softmax else Spans.unknown(at, columns)
    # On the CPU: blocks are cut by Python, which would wait for a GPU at every step.
    start = spans.start.masked_fill(spans.empty, columns)
    stop = spans.stop.masked_fill(spans.empty, 0)
    start, stop = (ends.cpu()[..., 0].expand(queries.shape[:3]) for ends in (start, stop))
    return RowSpans(start, stop, spans.whole)


def _matrices(
    queries: Tensor, keys: Tensor, attention: Attention, most: int
) -> Iterator[tuple[slice, slice]]:
    """Yield sequences and heads to compute together: many small matrices at a time, and heads that
    share keys.
    """
    batch, heads, rows, _ = queries.shape
    _, key_heads, columns, _ = keys.shape
    group = max(1, heads // (key_heads or 1))
    # As many matrices as make one block, in whole groups of heads that share keys.
    at_once = most // max(1, min(rows, ROWS) * columns)
    if not attention.score.is_dot_product:
        # Such a score may have parameters for each head, so it is given all heads.
        at_once = max(at_once, heads)
    by_heads = min(heads, at_once // group * group) if at_once >= group else 1
    by_batch = max(1, at_once // max(heads, 1)) if by_heads == heads else 1
    for b in range(0, batch, by_batch):
        for h in range(0, heads, max(by_heads, 1)):
            yield slice(b, min(b + by_batch, batch)), slice(h, min(h + by_heads, heads))


class BlockScores:
    """Compute the masked scores of one block after the other, in memory that every block uses
    again.

    scores(block) is (batch, heads, row, column), -inf after the last column up to a whole GROUP. It
    is valid until the next call.
    """

    def __init__(self, queries: Tensor, keys: Tensor, attention: Attention) -> None:
        self.attention = attention
        self.of = (queries.shape[-2], keys.shape[-2])
        self.dtype = compute_dtype(queries)
        self.scale = attention.scale_for(keys.shape[-1])
        self.fused = attention.score.is_dot_product
        self.folds_scale = self.fused and is_power_of_two(self.scale)
        if self.fused:
            queries, keys = as_dot(attention, queries, keys, self.dtype)
        self.queries = queries
        self.keys = keys
        self.group = queries.shape[1] // (keys.shape[1] or 1)
        # Scores and exponentials of the largest block so far.
        self.memory = queries.new_empty(2, 0, dtype=self.dtype)
        self._converted_for: tuple[slice, slice] | None = None
        self._converted_keys = self.memory

    def __call__(self, block: Block) -> PerPair:
        queries = self.queries[block.index].to(self.dtype)
        keys = self._keys(block)
        scores = self.buffer((*queries.shape[:3], keys.shape[-2]))
        if self.fused:
            # The heads that share keys are the rows of one product.
            queries = queries * self.scale if self.folds_scale else queries
            grouped = (
                keys.shape[0] * keys.shape[1],
                scores.shape[1] // keys.shape[1] * scores.shape[2],
            )
            queries = queries.reshape(*grouped, queries.shape[-1])
            out = scores.view(*grouped, keys.shape[-2])
            torch.bmm(queries, keys.flatten(0, 1).mT, out=out)
        else:
            scores.copy_(self.attention.score(queries, keys))
        if not self.folds_scale:
            scores *= self.scale
        self._finish(scores, block)
        return scores

    def buffer(self, shape: tuple[int, ...], which: int = 0) -> Tensor:
        """Return memory that is used again with every block: 0 is for the scores, 1 for their
        exponentials.
        """
        size = torch.Size(shape).numel()
        if self.memory.shape[1] < size:
            self.memory = self.memory.new_empty(2, size)
        return self.memory[which, :size].view(shape)

    def maybe_hidden(self, block: Block) -> list[slice]:
        """Return the columns of a block's scores that may have -inf in them."""
        if self.attention.bias is not None:
            return [slice(None)]
        # Between the edges of the mask every key is seen.
        start = block.columns.start
        return [slice(0, block.inner.start - start), slice(block.inner.stop - start, None)]

    def _keys(self, block: Block) -> Tensor:
        """Return the keys of a block in the dtype of the scores, padded to whole groups.

        The keys of the last sequences and heads are kept, since the next block often has the same.
        """
        if self._converted_for != (block.sequences, block.heads):
            key_heads = slice(block.heads.start // self.group, -(-block.heads.stop // self.group))
            keys = self.keys[block.sequences, key_heads].to(self.dtype)
            self._converted_keys = pad(keys, (0, 0, 0, -self.of[1] % GROUP))
            self._converted_for = (block.sequences, block.heads)
        end = -(-block.columns.stop // GROUP) * GROUP
        return self._converted_keys[:, :, block.columns.start : end]

    def _finish(self, scores: Tensor, block: Block) -> None:
        """Apply softcap, bias and mask to the scores of a block, in place."""
        attention = self.attention
        start = block.columns.start
        real = scores[..., : block.width]
        # In place: a pass that allocates costs more than the arithmetic.
        if attention.softcap is not None:
            real.div_(attention.softcap).tanh_().mul_(attention.softcap)
        if attention.bias is not None:
            real.copy_(attention.biased(real, block.pairs(block.columns, self.of, scores.device)))
        for edge in block.edges:  # between them, every row sees every key
            seen = attention.mask.sees(block.pairs(edge, self.of, scores.device))
            scores[..., edge.start - start : edge.stop - start].masked_fill_(~seen, -torch.inf)
        scores[..., real.shape[-1] :] = -torch.inf  # the padding of the last group of keys
