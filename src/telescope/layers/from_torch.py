"""Conversion of PyTorch's attention layers, with their weights, into Telescope's."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from ..attention import Attention, causal, from_additive, from_forbidden
from .blocks import ACTIVATIONS, AddNorm, DecoderBlock, EncoderBlock, FeedForward
from .multi_head import MultiHeadAttention


@overload
def from_torch(module: nn.MultiheadAttention) -> "ConvertedAttention": ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> EncoderBlock: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> DecoderBlock: ...
def from_torch(module: nn.Module) -> nn.Module:
    """Return Telescope's counterpart of a PyTorch layer, with a copy of its weights: equal outputs
    for equal inputs.

    The returned layer takes (batch, position, feature), whatever `module.batch_first` is. Convert
    masks for each call: `attn_mask` with ts.from_forbidden (bool) or, as a bias, with
    ts.from_additive (float); `key_padding_mask` with ts.padding(keep=~key_padding_mask). A query
    that sees no key gives zeros, where PyTorch gives NaN.

    A converted nn.MultiheadAttention can stand in a layer of PyTorch: encoder_layer.self_attn =
    from_torch( encoder_layer.self_attn). Called as PyTorch calls its own, the layer takes the same
    arguments and masks.

    Args:
        module: an nn.MultiheadAttention, nn.TransformerEncoderLayer or nn.TransformerDecoderLayer.

    Raises:
        TypeError: for any other class, a ValueError for an option without a counterpart.

    Example:
        >>> import torch
        >>> from telescope.layers import from_torch
        >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.ones(1, 3, 8)
        >>> torch.allclose(from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
        True
    """
    # Exact classes: a subclass may compute something else.
    if type(module) is nn.MultiheadAttention:
        return _multi_head(module)
    if type(module) is nn.TransformerEncoderLayer:
        return _encoder(module)
    if type(module) is nn.TransformerDecoderLayer:
        return _decoder(module)
    raise TypeError(
        "from_torch takes an nn.MultiheadAttention, nn.TransformerEncoderLayer or "
        f"nn.TransformerDecoderLayer, not {type(module).__name__}"
    )


class ConvertedAttention(MultiHeadAttention):
    """A converted nn.MultiheadAttention, which layers of torch may call as they call their own.

    layer(x, memory, mask) is a call of Telescope. layer(query, key, value, ...), with a tensor in
    the third place, is a call of torch, as nn.TransformerEncoderLayer and
    nn.TransformerDecoderLayer make: with their masks, with the batch where `batch_first` says, and
    with (Y, None) returned.
    """

    batch_first: bool = True
    """Whether calls of torch have the batch first; calls of Telescope always do."""
    in_proj_bias = None
    """Read by nn.TransformerEncoderLayer: without it, torch calls this layer, and not a kernel of
    its own.
    """
    _qkv_same_embed_dim = False
    """Read by nn.TransformerEncoder, for the same kernel."""

    @property
    def num_heads(self) -> int:
        """The number of query heads, as torch calls it."""
        return self.heads

    def forward(self, x: Tensor, memory: Any = None, mask: Any = None, **options: Any) -> Any:
        """Return Y as MultiHeadAttention does or, for a call of torch, (Y, None).

        Raises a ValueError where torch is asked for what these layers do not have: weights, or
        values that are not of the same sequence as the keys.
        """
        # A tensor in the third place is the value of a call of torch.
        if isinstance(mask, Tensor):
            return self._run_as_torch(x, memory, mask, **options)
        return super().forward(x, memory, mask, **options)

    def _run_as_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Run a call with the parameters of nn.MultiheadAttention. `is_causal` counts where there
        is no `attn_mask`.
        """
        if need_weights:
            raise ValueError(
                "need_weights=True: this layer never forms its weights; pass need_weights=False, "
                "and read them by ts.watch or ts.trace"
            )
        if key is not value:
            raise ValueError(
                "key and value are two sequences; here both come from one memory: layer(x, memory)"
            )
        attention = self.attention
        # torch passes both; the mask then says the same.
        if is_causal and attn_mask is None:
            attention = attention.with_extra_mask(causal)
        for given in (
            attn_mask,
            None if key_padding_mask is None else key_padding_mask[:, None, None],
        ):
            attention = _with_torch_mask(attention, given, self.heads)
        memory = None if key is query else key
        # Telescope always has the batch first.
        if not self.batch_first:
            query = query.transpose(0, 1)
            memory = None if memory is None else memory.transpose(0, 1)
        # The definition of this call, with torch's masks in it.
        y = self._run(query, memory, attention)
        return y if self.batch_first else y.transpose(0, 1), None


def _with_torch_mask(attention: Attention, given: Tensor | None, heads: int) -> Attention:
    """Return the definition with a mask of torch: True is forbidden, and numbers are added to the
    scores.
    """
    if given is None:
        return attention
    if given.dtype == torch.bool:
        return attention.with_extra_mask(from_forbidden(given, heads=heads))
    return attention.with_extra_bias(from_additive(given, heads=heads))


def _multi_head(theirs: nn.MultiheadAttention) -> ConvertedAttention:
    # What has no counterpart is refused, not dropped.
    if theirs.bias_k is not None:
        raise ValueError(
            "add_bias_kv=True has no counterpart: Telescope's layers learn no extra key and value"
        )
    if theirs.kdim != theirs.vdim:
        raise ValueError(
            f"kdim={theirs.kdim} and vdim={theirs.vdim} differ; here keys and values come from one "
            "memory of one width"
        )
    # Without numbers first: the weights are replaced by copies at once.
    with torch.device("meta"):
        ours = ConvertedAttention(
            theirs.embed_dim,
            theirs.num_heads,
            d_memory=theirs.kdim,
            bias=theirs.in_proj_bias is not None,
            # The sink is the extra key and value of zeros.
            attention=Attention(sink=0.0 if theirs.add_zero_attn else None),
            dropout=theirs.dropout,
        )
    if theirs.in_proj_weight is not None:  # W_q, W_k and W_v are stacked, as in W_qkv
        _copy(ours.W_qkv, theirs.in_proj_weight, theirs.in_proj_bias)
    else:
        # Keys of another width: three matrices, of which two are stacked here.
        W_q = theirs.q_proj_weight
        W_kv = torch.cat([theirs.k_proj_weight, theirs.v_proj_weight])
        bias = theirs.in_proj_bias
        # torch keeps one bias for all three.
        b_q, b_kv = (None, None) if bias is None else bias.split([len(W_q), len(W_kv)])
        _copy(ours.W_q, W_q, b_q)
        _copy(ours.W_kv, W_kv, b_kv)
    _copy(ours.W_O, theirs.out_proj.weight, theirs.out_proj.bias)
    ours.batch_first = theirs.batch_first
    return ours.train(theirs.training)


def _encoder(theirs: nn.TransformerEncoderLayer) -> EncoderBlock:
    ours = EncoderBlock(
        theirs.self_attn.embed_dim, _multi_head(theirs.self_attn), _feed_forward(theirs)
    )
    # The norms of torch replace those that were just made.
    ours.add_norm_1 = _add_norm(theirs.norm1, theirs.dropout1, theirs.norm_first)
    ours.add_norm_2 = _add_norm(theirs.norm2, theirs.dropout2, theirs.norm_first)
    return ours.train(theirs.training)


def _decoder(theirs: nn.TransformerDecoderLayer) -> DecoderBlock:
    ours = DecoderBlock(
        theirs.self_attn.embed_dim,
        _multi_head(theirs.self_attn),
        _multi_head(theirs.multihead_attn),
        _feed_forward(theirs),
    )
    ours.add_norm_1 = _add_norm(theirs.norm1, theirs.dropout1, theirs.norm_first)
    ours.add_norm_2 = _add_norm(theirs.norm2, theirs.dropout2, theirs.norm_first)
    ours.add_norm_3 = _add_norm(theirs.norm3, theirs.dropout3, theirs.norm_first)
    return ours.train(theirs.training)


def _feed_forward(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> FeedForward:
    with torch.device("meta"):
        ours = FeedForward(
            theirs.linear1.in_features,
            theirs.linear1.out_features,
            activation=_activation(theirs.activation),
            bias=theirs.linear1.bias is not None,
            dropout=theirs.dropout.p,
        )
    _copy(ours.W_1, theirs.linear1.weight, theirs.linear1.bias)
    _copy(ours.W_2, theirs.linear2.weight, theirs.linear2.bias)
    return ours


def _add_norm(norm: nn.LayerNorm, dropout: nn.Dropout, pre_norm: bool) -> AddNorm:
    return AddNorm(
        norm.normalized_shape[0],
        pre_norm=pre_norm,
        # The norm itself, with its weights and its eps.
        norm=lambda _: deepcopy(norm),
        dropout=dropout.p,
    )


def _activation(theirs: Callable[[Tensor], Tensor]) -> str:
    # Functions and modules both: torch accepts either.
    if theirs in (relu, torch.relu) or isinstance(theirs, nn.ReLU):
        return "relu"
    if theirs is gelu or isinstance(theirs, nn.GELU):
        return "gelu_tanh" if getattr(theirs, "approximate", "none") == "tanh" else "gelu"
    if theirs is silu or isinstance(theirs, nn.SiLU):
        return "silu"
    raise ValueError(
        f"activation={theirs!r} has no counterpart; there are {', '.join(ACTIVATIONS)}"
    )


def _copy(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Give a linear layer on the "meta" device copies of weight and bias, with their dtype and
    device.
    """
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    linear.load_state_dict(
        {name: tensor.detach().clone() for name, tensor in weights.items()}, assign=True
    )
