"""Cut the attention matrix into blocks, leaving out what a mask hides, and compute the masked
scores of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Pairs, Spans, dot, softmax
from .summary import compute_dtype

ROWS = 512  # most rows of one head in a block: of a taller block, a causal mask would hide much
GROUP = 16  # blocks begin and end at multiples of this number of keys, or at the last key


@dataclass(frozen=True)
class Block:
    """Some sequences, heads, rows and columns. Every row sees all columns from `inner.start` to
    `inner.stop`.
    """

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
    most = most // attention.score.numbers_per_score(queries, keys)
    start, stop, complete = row_spans(queries, keys, attention)
    for sequences, heads in _matrices(queries, keys, attention, most):
        first = start[sequences, heads].amin((0, 1))
        last = stop[sequences, heads].amax((0, 1))
        matrices = (sequences.stop - sequences.start) * (heads.stop - heads.start)
        row = 0
        while row < rows:
            count = min(ROWS, rows - row)
            while True:
                taken = slice(row, row + count)
                columns = slice(int(first[taken].min()) // GROUP * GROUP, int(last[taken].max()))
                if count == 1 or matrices * count * (columns.stop - columns.start) <= most:
                    break
                count = -(-count // 2)
            if columns.start < columns.stop:
                inner = slice(columns.start, columns.start)
                if complete:
                    left = int(start[sequences, heads, taken].max())
                    right = int(stop[sequences, heads, taken].min())
                    inner = slice(left, right) if left < right else inner
                yield Block(sequences, heads, taken, columns, inner)
            row += count


def row_spans(queries: Tensor, keys: Tensor, attention: Attention) -> tuple[Tensor, Tensor, bool]:
    """Return the first key each row sees and one past the last, (batch, heads, query), and whether
    it sees all between.

    A row that sees nothing starts at the last key and stops at the first, so that no block grows by
    it.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    at = Pairs.block(
        range(rows), range(0), of=(rows, columns), batch=batch, heads=heads, device=queries.device
    )
    is_softmax = attention.normalize is softmax  # other normalisers need whole rows
    spans = attention.mask.spans(at, columns) if is_softmax else Spans.unknown(at, columns)
    start = spans.start.masked_fill(spans.empty, columns)
    stop = spans.stop.masked_fill(spans.empty, 0)
    start, stop = (ends.cpu()[..., 0].expand(batch, heads, rows) for ends in (start, stop))
    return start, stop, spans.whole


def _matrices(
    queries: Tensor, keys: Tensor, attention: Attention, most: int
) -> Iterator[tuple[slice, slice]]:
    """Yield sequences and heads to compute together: many small matrices at a time, and heads that
    share keys.
    """
    batch, heads, rows, _ = queries.shape
    _, key_heads, columns, _ = keys.shape
    group = max(1, heads // (key_heads or 1))
    at_once = most // max(1, min(rows, ROWS) * columns)
    if not attention.score.is_dot_product:
        at_once = max(
            at_once, heads
        )  # such a score may have parameters for each head, so it is given all heads
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
        if self.fused and attention.score != dot:
            queries, keys = attention.score.as_dot(queries.to(self.dtype), keys.to(self.dtype))
        self.folds_scale = (
            self.fused and abs(frexp(self.scale)[0]) == 0.5
        )  # a power of two: no rounding of queries
        self.queries = queries
        self.keys = keys
        self.group = queries.shape[1] // (keys.shape[1] or 1)
        self.memory = queries.new_empty(2, 0, dtype=self.dtype)
        self._converted_for: tuple[slice, slice] | None = None
        self._converted_keys = self.memory

    def __call__(self, block: Block) -> Float[Tensor, "batch heads query key"]:
        queries = self.queries[block.index].to(self.dtype)
        keys = self._keys(block)
        scores = self.buffer((*queries.shape[:3], keys.shape[-2]))
        if self.fused:
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
        return self._converted_keys[
            :, :, block.columns.start : -(-block.columns.stop // GROUP) * GROUP
        ]

    def _finish(self, scores: Tensor, block: Block) -> None:
        """Apply softcap, bias and mask to the scores of a block, in place."""
        attention = self.attention
        start = block.columns.start
        real = scores[..., : block.width]
        if attention.softcap is not None:
            real.div_(attention.softcap).tanh_().mul_(attention.softcap)
        if attention.bias is not None:
            real.copy_(attention.biased(real, block.pairs(block.columns, self.of, scores.device)))
        for edge in block.edges:
            seen = attention.mask.sees(block.pairs(edge, self.of, scores.device))
            scores[..., edge.start - start : edge.stop - start].masked_fill_(~seen, -torch.inf)
        scores[..., real.shape[-1] :] = -torch.inf
