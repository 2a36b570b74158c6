"""PyTorch's own layers as ours, weights and all."""

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
    """Our layer with a copy of the weights: the same outputs, batch first whatever `module.batch_first` says.

    Masks become ours at the call: `attn_mask` by ts.from_forbidden (bool) or as a bias by ts.from_additive (float),
    `key_padding_mask` by ts.padding(keep=~key_padding_mask). A row that may see nothing gives zeros where torch
    gives NaN.
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
        raise ValueError("add_bias_kv=True has no counterpart: no layer here learns one more key and value")
    if theirs.kdim != theirs.vdim:
        raise ValueError(
            f"kdim={theirs.kdim} and vdim={theirs.vdim} differ; here keys and values come from one memory, of one width"
        )
    with torch.device("meta"):
        ours = MultiHeadAttention(
            theirs.embed_dim,
            theirs.num_heads,
            d_memory=theirs.kdim,
            bias=theirs.in_proj_bias is not None,
            attention=Attention(sink=0.0 if theirs.add_zero_attn else None),  # a key and a value of zeros
            dropout=theirs.dropout,
        )
    if theirs.in_proj_weight is not None:  # below each other, as here
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
    """The weights as they are, with their dtype and device, in a linear layer that has none yet (it is on "meta")."""
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    linear.load_state_dict({name: tensor.detach().clone() for name, tensor in weights.items()}, assign=True)
