"""The query, key and value projections of an attention, and the rows of single heads in them, to be
read, scaled or cleared.

Known are Telescope's MultiHeadAttention; modules of transformers with q_proj and k_proj (Llama,
Qwen2, Mistral, OPT, BART, Marian, ...), query and key (BERT, ALBERT) or q and k (T5); and modules
that hold both in one projection: GPT-2's c_attn, GPT-NeoX's query_key_value, Phi-3's qkv_proj and
ModernBERT's Wqkv.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from ..attention import Alibi, Dot, General, softmax
from ..layers import MultiHeadAttention
from .parts import OUTPUT_PROJECTIONS

# The names in Llama and BART, in BERT, and in DistilBERT.
QUERY_NAMES = ("q_proj", "query", "q_lin")
KEY_NAMES = ("k_proj", "key", "k_lin")
VALUE_NAMES = ("v_proj", "value", "v_lin")
# Norms between the projection and the scores, by which these no longer grow with the projection.
NORMS = (
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "qk_norm",
    "query_layernorm",
    "key_layernorm",
)


class Fused(NamedTuple):
    """One projection that holds queries, keys and values."""

    name: str
    by_head: bool
    """Whether the three alternate by head; otherwise all queries come first, then all keys."""


# By the name of the class: other classes have projections of these names in another order.
FUSED = {
    "GPTNeoXAttention": Fused("query_key_value", by_head=True),
    "Phi3Attention": Fused("qkv_proj", by_head=False),
    "ModernBertAttention": Fused("Wqkv", by_head=False),
}
FUSED_NAMES = ["c_attn", *(fused.name for fused in FUSED.values())]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one projection inside a parameter: their numbers along `axis`, one head after the
    other.
    """

    parameter: Tensor
    axis: int
    numbers: Int[Tensor, " row"]

    @torch.no_grad()
    def scale(self, factors: Sequence[float]) -> None:
        """Multiply the rows of each head by its factor, in place; also of a parameter that FSDP
        shards.
        """
        # A factor of 1 leaves all other rows as they are.
        vector = torch.ones(self.parameter.shape[self.axis], dtype=torch.float32)
        vector[self.numbers] = torch.tensor(factors).repeat_interleave(
            len(self.numbers) // len(factors)
        )
        # Let the factors broadcast along the axis of the rows.
        shape = [1] * self.parameter.ndim
        shape[self.axis] = -1
        whole: Tensor = vector.reshape(shape).to(self.parameter.device, self.parameter.dtype)
        if isinstance(self.parameter, DTensor):
            # A sharded parameter multiplies with DTensors alone: give every process all factors.
            mesh = self.parameter.device_mesh
            whole = distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim)
        self.parameter.mul_(whole)

    def values(self) -> Tensor:
        """Return a copy of the rows, whole."""
        parameter = self.parameter.detach()
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        return whole.index_select(self.axis, self.numbers.to(whole.device))


@dataclass(frozen=True, eq=False)
class QueryKeyProjections:
    """The query, key and value projections of one attention: weights, and biases where it has
    them.
    """

    heads: int
    key_heads: int
    query: Rows
    key: Rows
    query_bias: Rows | None
    key_bias: Rows | None
    cannot_scale: str = ""
    """Why scaling the projections would not scale the scores, if so."""
    key_bias_matters: str = ""
    """Why the bias of the keys has influence on the weights, if so."""
    value: Rows | None = None
    """None where the values are not a product of their own."""
    value_bias: Rows | None = None
    not_bilinear: str = ""
    """Why the scores are no product of a query's and a key's projection, if so."""


class Place(NamedTuple):
    """Where a projection is: rows of a module, along an axis of its weight."""

    module: Any
    rows: Int[Tensor, " row"]
    axis: int = 0

    def weight(self) -> Rows:
        return Rows(self.module.weight, self.axis, self.rows)

    def bias(self) -> Rows | None:
        return None if self.module.bias is None else Rows(self.module.bias, 0, self.rows)


def find_query_key(layer: nn.Module) -> QueryKeyProjections | None:
    """Return the projections of a layer that attends; None if they are not known."""
    if isinstance(layer, MultiHeadAttention):
        return _of_telescope(layer)
    return _of_transformers(layer)


def _of_telescope(layer: MultiHeadAttention) -> QueryKeyProjections:
    query_stack, key_stack = layer._stacks()
    query_rows = query_stack.widths["W_q"]
    # In self-attention one stack holds both projections, the keys after the queries.
    start = 0 if key_stack is not query_stack else query_rows
    query = Place(query_stack, torch.arange(query_rows))
    stop = start + key_stack.widths["W_k"]
    key = Place(key_stack, torch.arange(start, stop))
    value = Place(key_stack, torch.arange(stop, stop + key_stack.widths["W_v"]))

    attention = layer.attention
    is_product = type(attention.score) in (Dot, General)
    # The bias of ALiBi is never above 0: scaled logits stay at the limit or below.
    is_biased = attention.bias is not None and not isinstance(attention.bias, Alibi)
    cannot_scale = {
        "a softcap bounds the scores already": attention.softcap is not None,
        f"{attention.score} is not linear in them": not is_product,
        "a bias is added to the scores": is_biased,
    }
    # q · (k + b) adds q · b to a whole row, which softmax ignores, unless one of these holds.
    matters = {
        "rotary positions turn it": layer.rotary is not None,
        "a softcap bends the scores": attention.softcap is not None,
        "a sink takes part in the softmax": attention.sink is not None,
        "the weights are not by softmax": attention.normalize is not softmax,
        "the score is not linear in it": not is_product,
    }
    return QueryKeyProjections(
        layer.heads,
        layer.key_heads,
        query.weight(),
        key.weight(),
        query.bias(),
        key.bias(),
        next((reason for reason, applies in cannot_scale.items() if applies), ""),
        "; ".join(reason for reason, applies in matters.items() if applies),
        value.weight(),
        value.bias(),
        # A general score has a matrix of its own between the two.
        "" if type(attention.score) is Dot else f"its score is {attention.score}, not q · k",
    )


def _of_transformers(module: Any) -> QueryKeyProjections | None:
    """Return the projections of an attention of transformers, None for any other module."""
    children: Mapping[str, Any] = module._modules
    config = getattr(module, "config", None)
    is_t5 = type(module).__name__.endswith("T5Attention")
    # Take single letters for projections in T5 alone.
    query = _linear(children, ("q",) if is_t5 else QUERY_NAMES)
    key = _linear(children, ("k",) if is_t5 else KEY_NAMES)
    value = _linear(children, ("v",) if is_t5 else VALUE_NAMES)
    of_gpt2: Any = children.get("c_attn")
    fused = FUSED.get(type(module).__name__, Fused("", by_head=False))
    stacked = _linear(children, (fused.name,))

    # One projection each.
    if query is not None and key is not None:
        width = _head_width(module, config, len(query.weight))
        if width is None:
            return None
        heads = len(query.weight) // width
        key_heads = len(key.weight) // width
        parts = (query, key) if value is None else (query, key, value)
        places = [Place(part, torch.arange(len(part.weight))) for part in parts]
    # GPT-2's, whose weight is transposed. In its cross-attention c_attn holds keys and values.
    elif type(of_gpt2).__name__ == "Conv1D" and not getattr(module, "is_cross_attention", 0):
        size = of_gpt2.weight.shape[1] // 3
        heads = key_heads = int(module.num_heads)
        numbers = [torch.arange(i * size, (i + 1) * size) for i in range(3)]
        places = [Place(of_gpt2, own, axis=1) for own in numbers]
    # One projection for queries, keys and values, in the order that is known of the class.
    elif stacked is not None:
        assert config is not None
        heads = int(config.num_attention_heads)
        # A model without grouped queries has as many key heads as heads.
        key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        fused_rows = _fused_rows(len(stacked.weight), heads, key_heads, fused.by_head)
        places = [Place(stacked, own) for own in fused_rows]
    else:
        return None

    # Find out what is done to queries, keys and scores after the projections.
    cannot_scale = _why_not_linear(module, children, config)
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    sinks = "sinks take part" if hasattr(module, "sinks") else ""
    values = places[2] if len(places) > 2 else None
    return QueryKeyProjections(
        heads,
        key_heads,
        places[0].weight(),
        places[1].weight(),
        places[0].bias(),
        places[1].bias(),
        cannot_scale,
        "rotary positions turn it" if rotary else cannot_scale or sinks,
        None if values is None else values.weight(),
        None if values is None else values.bias(),
        _why_not_bilinear(children, config),
    )


def _linear(children: Mapping[str, Any], names: Sequence[str]) -> nn.Linear | None:
    """Return the first child of these names that is a plain nn.Linear, whose numbers can be
    multiplied in place.

    Not one that is quantised, parametrised or wrapped by an adapter.
    """
    for name in names:
        child = children.get(name)
        if not isinstance(child, nn.Linear):
            continue
        weight = child._parameters.get("weight")
        # Not a packed or quantised kind of tensor.
        is_tensor = type(weight) in (nn.Parameter, Tensor, DTensor)
        # A layer that is parametrised or wrapped has other parameters or modules of its own.
        alone = child._parameters.keys() <= {"weight", "bias"} and not child._modules
        if weight is not None and is_tensor and alone and weight.is_floating_point():
            return child
    return None


def _fused_rows(rows: int, heads: int, key_heads: int, by_head: bool) -> tuple[Tensor, ...]:
    """Return the numbers of the rows of queries, of keys and of values in a projection of `rows`
    rows.

    By head: queries, keys and values of head 0, then those of head 1, ...; otherwise all queries,
    all keys, all values.
    """
    width = rows // (heads + 2 * key_heads)
    # GPT-NeoX, the one class of this order, has as many key heads as heads.
    if by_head:
        of_parts = torch.arange(rows).view(heads, 3, width)
        return tuple(of_parts[:, part].flatten() for part in range(3))
    widths = [heads * width, key_heads * width, key_heads * width]
    return tuple(torch.split(torch.arange(rows), widths))


def _why_not_linear(module: Any, children: Mapping[str, Any], config: Any) -> str:
    """Return why the scores of an attention of transformers do not grow with its projections, or
    nothing.
    """
    # Of T5, only the attention of a decoder to its source has no bias: it is in a decoder, and not
    # causal.
    is_cross = getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True)
    reasons = {
        "a bias by position is added to the scores": hasattr(module, "has_relative_attention_bias")
        and not is_cross,
        "a softcap bounds the scores already": bool(
            getattr(config, "attn_logit_softcapping", None)
        ),
    }
    first = next((reason for reason, applies in reasons.items() if applies), "")
    return _why_not_bilinear(children, config) or first


def _why_not_bilinear(children: Mapping[str, Any], config: Any) -> str:
    """Return what bends queries or keys after their projection, or nothing."""
    normed = next((name for name in NORMS if children.get(name) is not None), None)
    if normed is not None:
        return f"{normed} normalises them after the projection"
    clips = bool(getattr(config, "clip_qkv", None))
    return "clip_qkv bounds them after the projection" if clips else ""


def unknown_parts(module: nn.Module) -> str:
    """Return the first part of an attention of transformers whose numbers are neither a known
    projection nor a known norm, such as a gate of its output; "" if there is none.
    """
    known = {*QUERY_NAMES, *KEY_NAMES, *VALUE_NAMES, "q", "k", "v", *FUSED_NAMES, *NORMS}
    known |= {*OUTPUT_PROJECTIONS, "LayerNorm", "relative_attention_bias"}
    for name, child in module._modules.items():
        if name not in known and child is not None and next(child.parameters(), None) is not None:
            return name
    own = [name for name, one in module._parameters.items() if one is not None]
    return next((name for name in own if name != "sinks"), "")


def why_unknown(module: nn.Module) -> str:
    """Return why the query, key and value projections of a module are not known."""
    kind = type(module).__name__
    names = {*QUERY_NAMES, *KEY_NAMES, "q", "k", *FUSED_NAMES}
    children = {
        name: child
        for name, child in module._modules.items()
        if name in names and child is not None
    }
    # Name the first child of a known name that cannot be scaled, and why.
    for name, child in children.items():
        if "base_layer" in child._modules:
            return (
                f"an adapter, {type(child).__name__}, is added to {name} of {kind}; merge the "
                "adapter first"
            )
        if type(child).__name__ != "Conv1D" and _linear(children, (name,)) is None:
            return f"{name} of {kind} is {type(child).__name__}, not a plain nn.Linear"
    known = f"q_proj and k_proj, query and key, or one of {', '.join(FUSED_NAMES)}"
    return f"{kind} has none that are known: {known}"


def _head_width(module: Any, config: Any, rows: int) -> int | None:
    """Return the width of a head, by any of the names that transformers has for it."""
    for name in ("head_dim", "attention_head_size"):
        width = getattr(module, name, None)
        if isinstance(width, int) and width > 0 and rows % width == 0:
            return width
    # Without a width, divide the rows by the number of heads.
    for owner in (module, config):
        for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            heads = getattr(owner, name, None)
            if isinstance(heads, int) and heads > 0 and rows % heads == 0:
                return rows // heads
    return None
