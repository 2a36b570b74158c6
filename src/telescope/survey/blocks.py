"""How a matrix is cut into blocks: what a mask hides is left out, and it is known where nothing is hidden."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Attention, Pairs, softmax
from ..attention.spans import Spans

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
