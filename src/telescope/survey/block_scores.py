"""The masked scores of a block, in as few passes over it as can be."""

from math import frexp

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, dot
from .blocks import GROUP, Block
from .summary import precision


class Scores:
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
