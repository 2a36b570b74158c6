"""Multi-head attention, within one sequence (self-attention) or from one sequence to another
(cross-attention).
"""

from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Attention, Mask, Rotary, dot, softmax
from ..words import suggests
from .attend import (
    Attend,
    DefinedLayer,
    check_features,
    check_sizes,
    group_size,
    head_width,
    join_heads,
    split_heads,
)
from .cache import CachePosition, LayerCache


class Affine(NamedTuple):
    """The weight and the bias of one matrix in a `StackedLinear`: views, so writing into them
    changes the stack.

    Attributes:
        weight: (d_in, d_out), for y = x W.
        bias: (d_out,); None where there is none.

    Example:
        >>> from telescope.layers import MultiHeadAttention
        >>> value = MultiHeadAttention(8, heads=2).projections()["W_v"]
        >>> value.weight.shape, value.bias.shape
        (torch.Size([8, 8]), torch.Size([8]))
    """

    weight: Float[Tensor, "d_out d_in"]
    bias: Float[Tensor, " d_out"] | None


class StackedLinear(nn.Linear):
    """Several linear maps of one input, stacked into one matrix: one product computes all of them.

    `widths` maps the name of each matrix to its number of rows, from top to bottom:
    StackedLinear(64, {"W_q": 64, "W_k": 16, "W_v": 16}) has a weight of shape (96, 64).
    """

    def __init__(self, d_in: int, widths: dict[str, int], bias: bool = True) -> None:
        # One weight, initialised as one matrix.
        super().__init__(d_in, sum(widths.values()), bias)
        self.widths = widths

    def __getitem__(self, name: str) -> Affine:
        """Return the weight and the bias of one matrix."""
        return self.rows(name)

    def rows(self, *names: str) -> Affine:
        """Return the weight and the bias of matrices that are neighbours in the stack, named from
        top to bottom.
        """
        # Neighbours in the stack are one view.
        start = self.span(names[0]).start
        stop = self.span(names[-1]).stop
        return Affine(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])

    def span(self, name: str) -> slice:
        """Return the rows of one matrix in the stack."""
        # Rows end where the widths up to here add up to.
        stop = dict(zip(self.widths, accumulate(self.widths.values()), strict=True))[name]
        return slice(stop - self.widths[name], stop)

    def project(
        self, x: Float[Tensor, "batch n d_in"], *names: str
    ) -> Float[Tensor, "batch n d_out"]:
        """Return x Wᵀ + b for the named matrices alone, which are neighbours in the stack."""
        # All of them is the product of the whole stack, which hooks can see.
        return self(x) if len(names) == len(self.widths) else linear(x, *self.rows(*names))


KeysAndValues = tuple[
    Float[Tensor, "sources key_heads key d_k"], Float[Tensor, "sources key_heads key d_v"]
]


class MultiHeadAttention(DefinedLayer):
    """Y = [Y_1 … Y_T] W_O, Y_s = softmax(Q_s K_sᵀ / √d_k) V_s, with Q_s = X W_q, K_s = M W_k, V_s =
    M W_v of head s.

    The memory M is X itself (self-attention), or another sequence (cross-attention). W_q, W_k and
    W_v are stacked in one matrix W_qkv, so that self-attention takes one product; `projections()`
    returns each of them. A layer whose d_memory differs from d_model has W_q and W_kv instead.

    Args:
        d_model: width of X.
        heads: number of query heads.
        key_heads: number of key and value heads, `heads` unless given; fewer are grouped-query
            attention, in which each key head serves heads / key_heads query heads.
        d_k, d_v: width of one head's queries and keys, d_model / heads unless given; of its values,
            d_k unless given.
        d_memory: width of M, d_model unless given.
        d_out: width of Y, d_model unless given.
        bias: whether W_q, W_k, W_v and, unless `out_bias` is given, W_O have a bias.
        attention: the definition: scale, mask, bias, ...
        rotary: rotary positions for queries and keys, in self-attention only.
        dropout: the probability with which an attention weight is dropped, in training only.
        out_bias: whether W_O has a bias; None is `bias`.

    Raises:
        ValueError: where the sizes do not fit together.

    Example:
        >>> import torch
        >>> from telescope.layers import MultiHeadAttention
        >>> layer = MultiHeadAttention(8, heads=2)
        >>> layer(torch.zeros(1, 5, 8)).shape
        torch.Size([1, 5, 8])
        >>> layer.projections()["W_q"].weight.shape
        torch.Size([8, 8])
        >>> # Computed once, for many calls
        >>> memory = layer.keys_and_values(torch.zeros(1, 7, 8))
        >>> (
        ...     layer(torch.zeros(1, 5, 8), memory).shape,
        ...     layer.queries(torch.zeros(1, 5, 8)).shape,
        ... )
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 5, 4]))
        >>> layer.attention, layer.room(batch=1, room=16).keys.shape
        (Attention(), torch.Size([1, 2, 16, 4]))
    """

    @suggests(
        "MultiHeadAttention",
        embed_dim="d_model=",
        hidden_size="d_model=",
        dim="d_model=",
        num_heads="heads=",
        n_heads="heads=",
        num_kv_heads="key_heads=",
        kdim="d_memory=",
        head_dim="d_k=",
        causal="attention=ts.Attention(mask=ts.causal)",
        is_causal="attention=ts.Attention(mask=ts.causal)",
        batch_first="nothing: the batch is always first",
    )
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
        check_sizes(
            d_model=d_model,
            heads=heads,
            key_heads=key_heads,
            d_k=d_k,
            d_v=d_v,
            d_memory=d_memory,
            d_out=d_out,
        )
        self.d_model = d_model
        self.heads = heads
        self.key_heads = heads if key_heads is None else key_heads
        self.d_k = head_width(d_model, heads) if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.d_memory = d_model if d_memory is None else d_memory
        self.d_out = d_model if d_out is None else d_out
        # Raises where key heads do not divide the heads.
        group_size(heads, self.key_heads)
        self.attention = attention
        self.rotary = rotary
        # One product for X alone, two where the memory has another width.
        W_q = {"W_q": heads * self.d_k}
        W_kv = {"W_k": self.key_heads * self.d_k, "W_v": self.key_heads * self.d_v}
        if self.d_memory == d_model:
            self.W_qkv = StackedLinear(d_model, W_q | W_kv, bias)
        else:
            self.W_q = StackedLinear(d_model, W_q, bias)
            self.W_kv = StackedLinear(self.d_memory, W_kv, bias)
        # The outputs of all heads side by side, mixed again.
        self.W_O = nn.Linear(heads * self.d_v, self.d_out, bias if out_bias is None else out_bias)
        self.attend = Attend(dropout)

    def projections(self) -> dict[str, Affine]:
        """Return the weight and the bias of W_q, W_k and W_v: views, so writing into them changes
        the layer.
        """
        query_stack, key_stack = self._stacks()
        return {"W_q": query_stack["W_q"], "W_k": key_stack["W_k"], "W_v": key_stack["W_v"]}

    def _ignored_bias(self) -> tuple[nn.Parameter, slice] | None:
        """Return the bias of W_k, as a parameter and a part of it, if this bias changes no
        attention weight.

        q · (k + b) = q · k + q · b adds one number to a row, which softmax ignores. The gradient of
        such a bias is rounding noise, which Adam scales up to full steps: a bias that is trained
        drifts, and the scores with it.
        """
        _, stack = self._stacks()
        attention = self.attention
        # Another score, a softcap, a sink or rotary positions would let q · b change the weights.
        is_ignored = (
            attention.score == dot
            and attention.normalize is softmax
            and attention.softcap is None
            and attention.sink is None
            and self.rotary is None
        )
        if not is_ignored or stack.bias is None:
            return None
        return stack.bias, stack.span("W_k")

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "sources key d_memory"] | KeysAndValues | None = None,
        mask: Mask | None = None,
        *,
        at: CachePosition = CachePosition(),
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query d_out"]:
        """Return Y, the attention of x to the memory or, without a memory, to x itself.

        Args:
            memory: another sequence, or its keys and values from `keys_and_values`, computed once
                for many calls. The batch of x may be a multiple of the number of memories: a batch
                of 6 and 2 sources are 3 beams for each source, in order.
            mask: a mask for this call, combined with the definition's by &.
            at: the positions of x in the sequence and in the cache.
            cache: keys and values of earlier tokens: those of x are written behind them, and x sees
                them all
            x: (batch, query, d_model).

        Raises:
            ValueError: where the shapes do not fit, or a memory comes with a cache or with rotary
                positions.
        """
        self._check(memory, cache)
        return self._run(x, memory, self.attention.with_extra_mask(mask), at, cache)

    def _run(
        self,
        x: Tensor,
        memory: Tensor | KeysAndValues | None,
        attention: Attention,
        at: CachePosition = CachePosition(),
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return the attention of x to the memory, by a definition of this call."""
        if memory is None:
            # Self-attention: everything comes from x.
            queries, keys, values = self._project_all(x, at)
            if cache is not None:
                keys, values = cache.append(keys, values, at.start)
                attention = cache._hide_unwritten(attention, at)
        else:
            queries = self.queries(x)
            # Keys and values may have been computed before, once for many calls.
            keys, values = self.keys_and_values(memory) if isinstance(memory, Tensor) else memory
        # Hooks are told whether the keys come from another sequence.
        context = self._attend(
            queries, keys, values, attention, across=memory is not None and memory is not x
        )
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(
        self, x: Float[Tensor, "batch query d_model"], at: CachePosition = CachePosition()
    ) -> Float[Tensor, "batch heads query d_k"]:
        """Return X W_q, split into heads and rotated if the layer has rotary positions.

        Args:
            x: (batch, query, d_model).
            at: the positions of x in the sequence and in the cache.
        """
        check_features(self, "x", x, "d_model")
        return self._rotate(split_heads(self._stacks()[0].project(x, "W_q"), self.heads), at)

    def keys_and_values(
        self, memory: Float[Tensor, "sources key d_memory"], at: CachePosition = CachePosition()
    ) -> KeysAndValues:
        """Return M W_k and M W_v, split into heads: pass the pair as `memory` to reuse it in later
        calls.

        Args:
            memory: (sources, key, d_memory).
            at: the positions of the memory's tokens.

        Returns:
            (sources, key_heads, key, d_k) and (sources, key_heads, key, d_v).
        """
        check_features(self, "memory", memory, "d_memory")
        # One product for keys and values, which are neighbours in the stack.
        stacked = self._stacks()[1].project(memory, "W_k", "W_v")
        keys, values = torch.split(
            stacked, [self.key_heads * self.d_k, self.key_heads * self.d_v], dim=-1
        )
        keys = self._rotate(split_heads(keys, self.key_heads), at)
        return keys, split_heads(values, self.key_heads)

    def room(self, batch: int, room: int) -> LayerCache:
        """Return an empty cache for `room` tokens of `batch` sequences, in the weights' dtype and
        on their device.

        Args:
            batch: the number of sequences.
            room: the tokens that each of them may have.
        """
        check_sizes(batch=batch, room=room)
        # Grouped heads share their cache.
        front = (batch, self.key_heads, room)
        like = self.W_O.weight.detach()
        return LayerCache(like.new_empty(*front, self.d_k), like.new_empty(*front, self.d_v))

    def _project_all(self, x: Tensor, at: CachePosition) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of x from one product; queries and keys are rotated in
        one call.
        """
        check_features(self, "x", x, "d_model")
        d_q, d_k, d_v = self.W_qkv.widths.values()
        rotated, values = torch.split(self.W_qkv(x), [d_q + d_k, d_v], dim=-1)
        # Queries and keys are rotated in one call.
        rotated = self._rotate(split_heads(rotated, self.heads + self.key_heads), at)
        queries, keys = torch.split(rotated, [self.heads, self.key_heads], dim=1)
        return queries, keys, split_heads(values, self.key_heads)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, *, across: bool
    ) -> Tensor:
        """Attend; the beams of one source become queries of one sequence, so that its keys are not
        repeated.

        That is exact only where neither mask nor bias depends on the position of the query;
        otherwise the engines get the batch as it is.
        """
        batch, heads, n, _ = queries.shape
        sources = keys.shape[0]
        any_position = attention.mask.same_for_all_queries and attention.bias is None
        # Several queries of one source, where no position counts.
        beams = batch // sources if sources and not batch % sources and any_position else 1
        if beams > 1:
            # (sources · beams, heads, n, d_k) to (sources, heads, beams · n, d_k).
            queries = queries.reshape(sources, beams, heads, n, -1).transpose(1, 2).flatten(2, 3)
        context: Tensor = self.attend(queries, keys, values, attention, across=across)
        if beams == 1:
            return context
        # Back to one sequence for each beam.
        return context.reshape(sources, heads, beams, n, -1).transpose(1, 2).flatten(0, 1)

    def _stacks(self) -> tuple[StackedLinear, StackedLinear]:
        """Return the stack that holds W_q, and the stack that holds W_k and W_v."""
        # One stack holds all three unless the memory has another width.
        return (self.W_qkv, self.W_qkv) if self.d_memory == self.d_model else (self.W_q, self.W_kv)

    def _rotate(self, features: Tensor, at: CachePosition) -> Tensor:
        """Apply the rotary positions, if the layer has them, to features (batch, heads, n, d_k)."""
        if self.rotary is None:
            return features
        # Computed once by the model for all of its layers.
        if at.rotation is not None:
            return at.rotation(features)
        return self.rotary(features, at.start if at.positions is None else at.positions)

    def _check(self, memory: Tensor | KeysAndValues | None, cache: LayerCache | None) -> None:
        # Each message names the call that was probably meant.
        if memory is None and self.d_memory != self.d_model:
            raise ValueError(
                f"memory is missing: a layer with d_model={self.d_model} and "
                f"d_memory={self.d_memory} attends to another sequence, layer(x, memory)"
            )
        if memory is not None and self.rotary is not None:
            raise ValueError(
                "memory is another sequence, so rotary positions have no distance to encode; "
                "build the layer with rotary=None, or leave the memory out"
            )
        if memory is not None and cache is not None:
            raise ValueError(
                "cache is for the keys and values of x; those of a memory are kept by passing "
                "memory=layer.keys_and_values(memory)"
            )
