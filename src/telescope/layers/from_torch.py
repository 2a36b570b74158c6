"""Conversion of PyTorch's attention layers, with their weights, into Telescope's."""

from collections.abc import Callable
from copy import deepcopy
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from ..attention import Attention
from .blocks import ACTIVATIONS, AddNorm, DecoderBlock, EncoderBlock, FeedForward
from .multi_head import MultiHeadAttention


@overload
def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> EncoderBlock: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> DecoderBlock: ...
def from_torch(module: nn.Module) -> nn.Module:
    """Return Telescope's counterpart of a PyTorch layer, with a copy of its weights: equal outputs for equal inputs.

    module  an nn.MultiheadAttention, nn.TransformerEncoderLayer or nn.TransformerDecoderLayer

    The returned layer takes (batch, position, feature), whatever `module.batch_first` is. Convert masks for each
    call: `attn_mask` with ts.from_forbidden (bool) or, as a bias, with ts.from_additive (float); `key_padding_mask`
    with ts.padding(keep=~key_padding_mask). A query that sees no key gives zeros, where PyTorch gives NaN.

    Raises a TypeError for any other class, a ValueError for an option without a counterpart.

    Example:
        >>> import torch
        >>> from telescope.layers import from_torch
        >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.ones(1, 3, 8)
        >>> torch.allclose(from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
        True
    """
    if type(module) is nn.MultiheadAttention:
        return _multi_head(module)
    if type(module) is nn.TransformerEncoderLayer:
        return _encoder(module)
    if type(module) is nn.TransformerDecoderLayer:
        return _decoder(module)
    raise TypeError(
        f"from_torch takes an nn.MultiheadAttention, nn.TransformerEncoderLayer or nn.TransformerDecoderLayer, "
        f"not {type(module).__name__}"
    )


def _multi_head(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    if theirs.bias_k is not None:
        raise ValueError("add_bias_kv=True has no counterpart: Telescope's layers learn no extra key and value")
    if theirs.kdim != theirs.vdim:
        raise ValueError(
            f"kdim={theirs.kdim} and vdim={theirs.vdim} differ; here keys and values come from one memory of one width"
        )
    with torch.device("meta"):
        ours = MultiHeadAttention(
            theirs.embed_dim,
            theirs.num_heads,
            d_memory=theirs.kdim,
            bias=theirs.in_proj_bias is not None,
            attention=Attention(sink=0.0 if theirs.add_zero_attn else None),  # the extra key and value of zeros
            dropout=theirs.dropout,
        )
    if theirs.in_proj_weight is not None:  # W_q, W_k and W_v are stacked, as in W_qkv
        _copy(ours.W_qkv, theirs.in_proj_weight, theirs.in_proj_bias)
    else:
        W_q, W_kv = theirs.q_proj_weight, torch.cat([theirs.k_proj_weight, theirs.v_proj_weight])
        bias = theirs.in_proj_bias
        b_q, b_kv = (None, None) if bias is None else bias.split([len(W_q), len(W_kv)])
        _copy(ours.W_q, W_q, b_q)
        _copy(ours.W_kv, W_kv, b_kv)
    _copy(ours.W_O, theirs.out_proj.weight, theirs.out_proj.bias)
    return ours.train(theirs.training)


def _encoder(theirs: nn.TransformerEncoderLayer) -> EncoderBlock:
    ours = EncoderBlock(theirs.self_attn.embed_dim, _multi_head(theirs.self_attn), _feed_forward(theirs))
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
    return AddNorm(norm.normalized_shape[0], pre_norm=pre_norm, norm=lambda _: deepcopy(norm), dropout=dropout.p)


def _activation(theirs: Callable[[Tensor], Tensor]) -> str:
    if theirs in (relu, torch.relu) or isinstance(theirs, nn.ReLU):
        return "relu"
    if theirs is gelu or isinstance(theirs, nn.GELU):
        return "gelu_tanh" if getattr(theirs, "approximate", "none") == "tanh" else "gelu"
    if theirs is silu or isinstance(theirs, nn.SiLU):
        return "silu"
    raise ValueError(f"activation={theirs!r} has no counterpart; there are {', '.join(ACTIVATIONS)}")


def _copy(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Give a linear layer on the "meta" device copies of weight and bias, with their dtype and device."""
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    linear.load_state_dict({name: tensor.detach().clone() for name, tensor in weights.items()}, assign=True)
