"""Multi-head attention: several perspectives at once, within a sequence or from one sequence on another."""

from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Attention, Mask
from ..attention.positions import Rotary
from . import check_sizes
from .attend import Attend, DefinedLayer, join_heads, split_heads
from .cache import CachePosition, LayerCache


class Affine(NamedTuple):
    """The part of a stack that is one matrix: views, so whoever writes into them writes into the stack."""

    weight: Float[Tensor, "d_out d_in"]
    bias: Float[Tensor, " d_out"] | None


class StackedLinear(nn.Linear):
    """x W for every W of a stack: Stack(64, {"W_q": 64, "W_k": 16, "W_v": 16}) has 96 rows, W_q's first."""

    def __init__(self, d_in: int, widths: dict[str, int], bias: bool = True) -> None:
        super().__init__(d_in, sum(widths.values()), bias)
        self.widths = widths

    def __getitem__(self, name: str) -> Affine:
        return self.rows(name)

    def rows(self, *names: str) -> Affine:
        """The rows of these matrices, which stand below each other."""
        ends = dict(zip(self.widths, accumulate(self.widths.values()), strict=True))
        stop = ends[names[-1]]
        start = ends[names[0]] - self.widths[names[0]]
        return Affine(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])

    def only(self, x: Float[Tensor, "batch n d_in"], *names: str) -> Float[Tensor, "batch n d_some"]:
        """x W for some of the stack."""
        return self(x) if len(names) == len(self.widths) else linear(x, *self.rows(*names))


KeysAndValues = tuple[Float[Tensor, "sources key_heads key d_k"], Float[Tensor, "sources key_heads key d_v"]]


class MultiHeadAttention(DefinedLayer):
    """Y = [Y_1 … Y_T] W_O, Y_s = softmax(Q_s K_sᵀ / √d_k) V_s, with Q_s = X W_q, K_s = M W_k, V_s = M W_v of head s.

    The memory M is X itself (self-attention), or another sequence of width d_memory (encoder-decoder attention).
    d_k is d_model / heads, and d_v is d_k, unless given. Fewer key_heads are grouped queries: each serves heads /
    key_heads of the queries' heads. `rotary` turns the queries and keys of self-attention by their positions.
    W_q, W_k and W_v stand below each other in one matrix W_qkv, so that self-attention takes one product; `weights()`
    has them apart. (A memory of another width has W_q and W_kv.)
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        key_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        d_memory: int | None = None,
        d_out: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        attention: Attention = Attention(),
        rotary: Rotary | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes.sizes(
            d_model=d_model, heads=heads, key_heads=key_heads, d_k=d_k, d_v=d_v, d_memory=d_memory, d_out=d_out
        )
        self.d_model = d_model
        self.heads = heads
        self.key_heads = heads if key_heads is None else key_heads
        self.d_k = check_sizes.per_head(d_model, heads) if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.d_memory = d_model if d_memory is None else d_memory
        self.d_out = d_model if d_out is None else d_out
        check_sizes.groups(heads, self.key_heads)
        self.attention = attention
        self.rotary = rotary
        W_q = {"W_q": heads * self.d_k}
        W_kv = {"W_k": self.key_heads * self.d_k, "W_v": self.key_heads * self.d_v}
        if self.d_memory == d_model:
            self.W_qkv = StackedLinear(d_model, W_q | W_kv, bias)
        else:
            self.W_q, self.W_kv = StackedLinear(d_model, W_q, bias), StackedLinear(self.d_memory, W_kv, bias)
        self.W_O = nn.Linear(heads * self.d_v, self.d_out, bias if out_bias is None else out_bias)
        self.attend = Attend(dropout)

    def weights(self) -> dict[str, Affine]:
        """W_q, W_k and W_v apart: views of the stack in which they stand below each other."""
        asking, asked = self._stacks()
        return {"W_q": asking["W_q"], "W_k": asked["W_k"], "W_v": asked["W_v"]}

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "sources key d_memory"] | KeysAndValues | None = None,
        mask: Mask | None = None,
        *,
        at: CachePosition = CachePosition(),
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query d_out"]:
        """Every x looks at the memory or, without one, at every x. `mask` is for this call, beside the definition's.

        memory  another sequence, or what `keys_and_values` made of it once, for many calls. Such a one serves several
                sequences of x each: a batch of 6 and a memory of 2 are three beams for every source.
        at      where x stands; x goes behind what is in the `cache`, and sees that too
        """
        self._check(memory, cache)
        attention = self.attention.seeing(mask)
        if memory is None:
            queries, keys, values = self._all(x, at)
            if cache is not None:
                keys, values = cache.append(keys, values, at.start)
                attention = cache.seen(attention, at)
        else:
            queries = self.queries(x)
            keys, values = self.keys_and_values(memory) if isinstance(memory, Tensor) else memory
        context = self._attend(queries, keys, values, attention, across=memory is not None and memory is not x)
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(
        self, x: Float[Tensor, "batch query d_model"], at: CachePosition = CachePosition()
    ) -> Float[Tensor, "batch heads query d_k"]:
        """X W_q, head by head."""
        check_sizes.features(self, "x", x, "d_model")
        return self._turn(split_heads(self._stacks()[0].only(x, "W_q"), self.heads), at)

    def keys_and_values(
        self, memory: Float[Tensor, "sources key d_memory"], at: CachePosition = CachePosition()
    ) -> KeysAndValues:
        """M W_k and M W_v, head by head: all that later queries need of a memory, so it can be kept."""
        check_sizes.features(self, "memory", memory, "d_memory")
        both = self._stacks()[1].only(memory, "W_k", "W_v")
        keys, values = torch.split(both, [self.key_heads * self.d_k, self.key_heads * self.d_v], dim=-1)
        return self._turn(split_heads(keys, self.key_heads), at), split_heads(values, self.key_heads)

    def room(self, batch: int, room: int) -> LayerCache:
        """Room for the keys and values of so many tokens, in the dtype and on the device of the weights."""
        check_sizes.sizes(batch=batch, room=room)
        front = (batch, self.key_heads, room)
        like = self.W_O.weight.detach()
        return LayerCache(like.new_empty(*front, self.d_k), like.new_empty(*front, self.d_v))

    def _all(self, x: Tensor, at: CachePosition) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x in one product; queries and keys are turned together."""
        check_sizes.features(self, "x", x, "d_model")
        widths = list(self.W_qkv.widths.values())
        if self.rotary is None:
            queries, keys, values = torch.split(self.W_qkv(x), widths, dim=-1)
            return (
                split_heads(queries, self.heads),
                split_heads(keys, self.key_heads),
                split_heads(values, self.key_heads),
            )
        asked, values = torch.split(self.W_qkv(x), [sum(widths[:2]), widths[2]], dim=-1)
        asked = self._turn(split_heads(asked, self.heads + self.key_heads), at)
        queries, keys = torch.split(asked, [self.heads, self.key_heads], dim=1)
        return queries, keys, split_heads(values, self.key_heads)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, *, across: bool) -> Tensor:
        """Beams of one source ask side by side, as queries of one sequence: where they stand means nothing to it."""
        (batch, heads, n, _), sources = queries.shape, keys.shape[0]
        alike = attention.mask.keys_alone and attention.bias is None
        if batch == sources or not sources or batch % sources or not alike:
            context: Tensor = self.attend(queries, keys, values, attention, across=across)
            return context
        beams = batch // sources
        side_by_side = queries.reshape(sources, beams, heads, n, -1).transpose(1, 2).flatten(2, 3)
        context = self.attend(side_by_side, keys, values, attention, across=across)
        return context.reshape(sources, heads, beams, n, -1).transpose(1, 2).flatten(0, 1)

    def _stacks(self) -> tuple[StackedLinear, StackedLinear]:
        """Where W_q is, and where W_k and W_v are."""
        return (self.W_qkv, self.W_qkv) if self.d_memory == self.d_model else (self.W_q, self.W_kv)

    def _turn(self, features: Tensor, at: CachePosition) -> Tensor:
        if self.rotary is None:
            return features
        if at.rotation is not None:
            return at.rotation(features)
        return self.rotary(features, at.start if at.positions is None else at.positions)

    def _check(self, memory: Tensor | KeysAndValues | None, cache: LayerCache | None) -> None:
        if memory is None and self.d_memory != self.d_model:
            raise ValueError(
                f"memory is missing: a layer with d_model={self.d_model} and d_memory={self.d_memory} "
                "attends to another sequence, layer(x, memory)"
            )
        if memory is not None and self.rotary is not None:
            raise ValueError(
                "memory is another sequence, so there is no distance for rotary to turn by; "
                "build the layer with rotary=None, or leave the memory out"
            )
        if memory is not None and cache is not None:
            raise ValueError(
                "cache is for the keys and values of x; those of a memory are kept by passing "
                "memory=layer.keys_and_values(memory)"
            )
