"""How a matrix is cut into blocks: what a mask hides is left out, and it is known where nothing is hidden."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Pairs, dot, softmax
from ..attention.pairs import Spans
from .summary import precision

ROWS = 512  # of one head in a block: of a taller one, a causal mask would hide much
GROUP = 16  # blocks begin and end at multiples of it, or at the last key


@dataclass(frozen=True)
class Block:
    """Some sequences, heads, rows and columns. Every row sees all of the columns from `inner.start` to `inner.stop`."""

    sequences: slice
    heads: slice
    rows: slice
    columns: slice
    inner: slice

    @property
    def here(self) -> tuple[slice, slice, slice]:
        return self.sequences, self.heads, self.rows

    @property
    def edges(self) -> list[slice]:
        """The columns in which a row may not see."""
        edges = slice(self.columns.start, self.inner.start), slice(self.inner.stop, self.columns.stop)
        return [edge for edge in edges if edge.start < edge.stop]

    def pairs(self, columns: slice, of: tuple[int, int], device: torch.device) -> Pairs:
        sequences, heads, rows, some = (
            range(part.start, part.stop) for part in (self.sequences, self.heads, self.rows, columns)
        )
        return Pairs.block(rows, some, of=of, batch=sequences, heads=heads, device=device)


def blocks(queries: Tensor, keys: Tensor, attention: Attention, most: int) -> Iterator[Block]:
    """Every block in which something is seen, of at most so many scores; of one row, if a row has more."""
    rows = queries.shape[-2]
    most = most // attention.score.size(queries, keys)
    start, stop, whole = _spans(queries, keys, attention)
    for sequences, some in _matrices(queries, keys, attention, most):
        first, last = start[sequences, some].amin((0, 1)), stop[sequences, some].amax((0, 1))
        matrices = (sequences.stop - sequences.start) * (some.stop - some.start)
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
                if whole:
                    left, right = int(start[sequences, some, taken].max()), int(stop[sequences, some, taken].min())
                    inner = slice(left, right) if left < right else inner
                yield Block(sequences, some, taken, columns, inner)
            row += count


def _spans(queries: Tensor, keys: Tensor, attention: Attention) -> tuple[Tensor, Tensor, bool]:
    """Where each row begins to see and where it ends, (batch, heads, query), and whether it sees all between.

    A row that sees nothing begins at the end and ends at the beginning, so that it widens no block.
    """
    (batch, heads, rows, _), columns = queries.shape, keys.shape[-2]
    at = Pairs.block(range(rows), range(0), of=(rows, columns), batch=batch, heads=heads, device=queries.device)
    normal = attention.normalize is softmax  # other normalisers are shown whole rows
    spans = attention.mask.spans(at, columns) if normal else Spans.unknown(at, columns)
    start, stop = spans.start.masked_fill(spans.empty, columns), spans.stop.masked_fill(spans.empty, 0)
    start, stop = (part.cpu()[..., 0].expand(batch, heads, rows) for part in (start, stop))
    return start, stop, spans.whole


def _matrices(queries: Tensor, keys: Tensor, attention: Attention, most: int) -> Iterator[tuple[slice, slice]]:
    """As many sequences and heads as go together: small ones many at a time, and heads that share their keys."""
    (batch, heads, rows, _), (_, key_heads, columns, _) = queries.shape, keys.shape
    group = max(1, heads // (key_heads or 1))
    together = most // max(1, min(rows, ROWS) * columns)
    if not attention.score.is_dot_product:
        together = max(together, heads)  # its numbers may differ from head to head, so that it wants all of them
    by_heads = min(heads, together // group * group) if together >= group else 1
    by_batch = max(1, together // max(heads, 1)) if by_heads == heads else 1
    for b in range(0, batch, by_batch):
        for h in range(0, heads, max(by_heads, 1)):
            yield slice(b, min(b + by_batch, batch)), slice(h, min(h + by_heads, heads))


class BlockScores:
    """scores(block): masked, and -inf after the last column up to a whole group. The next block's take their place."""

    def __init__(self, queries: Tensor, keys: Tensor, attention: Attention) -> None:
        self.attention, self.of, self.kind = attention, (queries.shape[-2], keys.shape[-2]), precision(queries)
        self.scale = attention.scale_for(keys.shape[-1])
        self.fused = attention.score.is_dot_product
        if self.fused and attention.score != dot:
            queries, keys = attention.score.as_dot(queries.to(self.kind), keys.to(self.kind))
        self.folds = self.fused and abs(frexp(self.scale)[0]) == 0.5  # a power of two scales queries without rounding
        self.queries, self.keys, self.group = queries, keys, queries.shape[1] // (keys.shape[1] or 1)
        self.memory = queries.new_empty(2, 0, dtype=self.kind)
        self.shared: tuple[slice, slice] | None = None
        self.asked = self.memory

    def __call__(self, block: Block) -> Float[Tensor, "batch heads query key"]:
        queries, keys = self.queries[block.here].to(self.kind), self._keys(block)
        scores = self.room((*queries.shape[:3], keys.shape[-2]))
        if self.fused:
            queries = queries * self.scale if self.folds else queries
            grouped = (keys.shape[0] * keys.shape[1], scores.shape[1] // keys.shape[1] * scores.shape[2])
            queries, room = queries.reshape(*grouped, queries.shape[-1]), scores.view(*grouped, keys.shape[-2])
            torch.bmm(queries, keys.flatten(0, 1).mT, out=room)
        else:
            scores.copy_(self.attention.score(queries, keys))
        if not self.folds:
            scores *= self.scale
        self._finish(scores, block)
        return scores

    def room(self, shape: tuple[int, ...], which: int = 0) -> Tensor:
        """Memory that is used again: for the scores (0), and for what is made of them (1)."""
        size = torch.Size(shape).numel()
        if self.memory.shape[1] < size:
            self.memory = self.memory.new_empty(2, size)
        return self.memory[which, :size].view(shape)

    def hidden(self, block: Block) -> list[slice]:
        """The columns of the scores among which there may be -inf."""
        if self.attention.bias is not None:
            return [slice(None)]
        start = block.columns.start
        return [slice(0, block.inner.start - start), slice(block.inner.stop - start, None)]

    def _keys(self, block: Block) -> Tensor:
        """The keys of these heads, in the dtype of the scores, filled up to whole groups."""
        if self.shared != (block.sequences, block.heads):
            some = slice(block.heads.start // self.group, -(-block.heads.stop // self.group))
            asked = self.keys[block.sequences, some].to(self.kind)
            self.asked, self.shared = pad(asked, (0, 0, 0, -self.of[1] % GROUP)), (block.sequences, block.heads)
        return self.asked[:, :, block.columns.start : -(-block.columns.stop // GROUP) * GROUP]

    def _finish(self, scores: Tensor, block: Block) -> None:
        """softcap → bias → mask, in place."""
        attention, start = self.attention, block.columns.start
        real = scores[..., : block.columns.stop - start]
        if attention.softcap is not None:
            real.div_(attention.softcap).tanh_().mul_(attention.softcap)
        if attention.bias is not None:
            real.copy_(attention.biased(real, block.pairs(block.columns, self.of, scores.device)))
        for edge in block.edges:
            seen = attention.mask.sees(block.pairs(edge, self.of, scores.device))
            scores[..., edge.start - start : edge.stop - start].masked_fill_(~seen, -torch.inf)
        scores[..., real.shape[-1] :] = -torch.inf
