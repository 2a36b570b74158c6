"""Find the query and key projections of a model's attentions, and scale or clear the rows of single
heads.

Known are Telescope's MultiHeadAttention; modules of transformers with q_proj and k_proj (Llama,
Qwen2, Mistral, OPT, BART, Marian, ...), query and key (BERT, ALBERT) or q and k (T5); and modules
that hold both in one projection: GPT-2's c_attn, GPT-NeoX's query_key_value, Phi-3's qkv_proj and
ModernBERT's Wqkv.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from ..attention import Alibi, Dot, General, softmax
from ..interception import telescope_models
from ..layers import MultiHeadAttention
from ..recording.names import modules_by_path

QUERY_NAMES = ("q_proj", "query", "q_lin")
KEY_NAMES = ("k_proj", "key", "k_lin")
NORMS = (
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "qk_norm",
    "query_layernorm",
    "key_layernorm",
)
# The projection of a class that holds queries, keys and values in one, and whether it alternates by
# head.
FUSED = {
    "GPTNeoXAttention": ("query_key_value", True),
    "Phi3Attention": ("qkv_proj", False),
    "ModernBertAttention": ("Wqkv", False),
}
KNOWN = "q_proj and k_proj, query and key, or one of " + ", ".join(
    ["c_attn", *(name for name, _ in FUSED.values())]
)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one projection inside a parameter: their numbers along `axis`, one head after the
    other.
    """

    parameter: Tensor
    axis: int
    numbers: Int[Tensor, " row"]

    @classmethod
    def between(cls, parameter: Tensor, axis: int, start: int, count: int) -> "Rows":
        """Return `count` neighbouring rows from `start` on."""
        return cls(parameter, axis, torch.arange(start, start + count))

    @torch.no_grad()
    def scale(self, factors: Sequence[float]) -> None:
        """Multiply the rows of each head by its factor, in place; also of a parameter that FSDP
        shards.
        """
        vector = torch.ones(self.parameter.shape[self.axis], dtype=torch.float32)
        vector[self.numbers] = torch.tensor(factors).repeat_interleave(
            len(self.numbers) // len(factors)
        )
        shape = [1] * self.parameter.ndim
        shape[self.axis] = -1
        whole: Tensor = vector.reshape(shape).to(self.parameter.device, self.parameter.dtype)
        if isinstance(self.parameter, DTensor):
            mesh = self.parameter.device_mesh
            whole = distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim)
        self.parameter.mul_(whole)

    def values(self) -> Tensor:
        """Return a copy of the rows, whole."""
        parameter = self.parameter.detach()
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        return whole.index_select(self.axis, self.numbers.to(whole.device))


@dataclass(frozen=True, eq=False)
class Projections:
    """The query and key projections of one attention: weights, and biases where it has them."""

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


def projections_of(model: nn.Module) -> dict[str, Projections]:
    """Return the projections of every attention that is known, under the name that `ts.watch` gives
    the attention.
    """
    modules = modules_by_path(model)
    found: dict[str, Projections] = {}
    for name, attend in telescope_models.attentions(modules).items():
        path = next(path for path, module in modules.items() if module is attend)
        layer = modules.get(path.rpartition(".")[0])
        if isinstance(layer, MultiHeadAttention):
            found[name] = _of_telescope(layer)
    for path, module in modules.items():
        own = None if isinstance(module, MultiHeadAttention) else _of_transformers(module)
        if own is not None:
            found[path] = own
    return found


def _of_telescope(layer: MultiHeadAttention) -> Projections:
    query_stack, key_stack = layer._stacks()
    query_rows = query_stack.widths["W_q"]
    key_rows = key_stack.widths["W_k"]
    start = 0 if key_stack is not query_stack else query_rows
    attention = layer.attention
    is_product = type(attention.score) in (Dot, General)
    # The bias of ALiBi is never above 0: scaled logits stay at the limit or below.
    is_biased = attention.bias is not None and not isinstance(attention.bias, Alibi)
    why = ""
    if attention.softcap is not None:
        why = "a softcap bounds the scores already"
    elif not is_product:
        why = f"{attention.score} is not linear in them"
    elif is_biased:
        why = "a bias is added to the scores"
    matters = [
        reason
        for reason, applies in (
            ("rotary positions turn it", layer.rotary is not None),
            ("a softcap bends the scores", layer.attention.softcap is not None),
            ("a sink takes part in the softmax", layer.attention.sink is not None),
            ("the weights are not by softmax", layer.attention.normalize is not softmax),
            ("the score is not linear in it", not is_product),
        )
        if applies
    ]
    return Projections(
        layer.heads,
        layer.key_heads,
        Rows.between(query_stack.weight, 0, 0, query_rows),
        Rows.between(key_stack.weight, 0, start, key_rows),
        None if query_stack.bias is None else Rows.between(query_stack.bias, 0, 0, query_rows),
        None if key_stack.bias is None else Rows.between(key_stack.bias, 0, start, key_rows),
        why,
        "; ".join(matters),
    )


def _of_transformers(module: Any) -> Projections | None:
    """Return the projections of an attention of transformers, None for any other module."""
    children: Mapping[str, Any] = module._modules
    config = getattr(module, "config", None)
    is_t5 = type(module).__name__.endswith("T5Attention")
    query = _linear(children, ("q",) if is_t5 else QUERY_NAMES)
    key = _linear(children, ("k",) if is_t5 else KEY_NAMES)
    stacked = children.get("c_attn")
    fused_name, by_head = FUSED.get(type(module).__name__, ("", False))
    fused = _linear(children, (fused_name,))
    if query is not None and key is not None:
        width = _head_width(module, config, query.weight.shape[0])
        if width is None:
            return None
        heads = query.weight.shape[0] // width
        key_heads = key.weight.shape[0] // width
        rows = [Rows.between(part.weight, 0, 0, part.weight.shape[0]) for part in (query, key)]
        biases = [
            None if part.bias is None else Rows.between(part.bias, 0, 0, len(part.bias))
            for part in (query, key)
        ]
    elif (
        stacked is not None
        and type(stacked).__name__ == "Conv1D"
        and not getattr(module, "is_cross_attention", 0)
    ):
        size = stacked.weight.shape[1] // 3
        heads = key_heads = int(module.num_heads)
        rows = [Rows.between(stacked.weight, 1, start, size) for start in (0, size)]
        biases = [Rows.between(stacked.bias, 0, start, size) for start in (0, size)]
    elif fused is not None:
        assert config is not None
        heads = int(config.num_attention_heads)
        key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        numbers = _fused_rows(fused.weight.shape[0], heads, key_heads, by_head)
        rows = [Rows(fused.weight, 0, own) for own in numbers]
        biases = [None if fused.bias is None else Rows(fused.bias, 0, own) for own in numbers]
    else:
        return None
    why = _why_not_linear(module, children, config)
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    matters = (
        "rotary positions turn it"
        if rotary
        else why or ("sinks take part" if hasattr(module, "sinks") else "")
    )
    return Projections(heads, key_heads, rows[0], rows[1], biases[0], biases[1], why, matters)


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
        is_tensor = type(weight) in (
            nn.Parameter,
            Tensor,
            DTensor,
        )  # not a packed or quantised kind of tensor
        alone = child._parameters.keys() <= {"weight", "bias"} and not child._modules
        if weight is not None and is_tensor and alone and weight.is_floating_point():
            return child
    return None


def _fused_rows(rows: int, heads: int, key_heads: int, by_head: bool) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows of queries and of keys in a projection of `rows` rows that
    also holds values.

    By head: queries, keys and values of head 0, then those of head 1, ...; otherwise all queries,
    all keys, all values.
    """
    width = rows // (heads + 2 * key_heads)
    if by_head:
        of_parts = torch.arange(rows).view(heads, 3, width)
        return of_parts[:, 0].flatten(), of_parts[:, 1].flatten()
    return torch.arange(heads * width), torch.arange(heads * width, (heads + key_heads) * width)


def _why_not_linear(module: Any, children: Mapping[str, Any], config: Any) -> str:
    """Return why the scores of an attention of transformers do not grow with its projections, or
    nothing.
    """
    normed = next((name for name in NORMS if children.get(name) is not None), None)
    # Of T5, only the attention of a decoder to its source has no bias: it is in a decoder, and not
    # causal.
    is_cross = getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True)
    reasons = {
        f"{normed} normalises them after the projection": normed is not None,
        "clip_qkv bounds them after the projection": bool(getattr(config, "clip_qkv", None)),
        "a bias by position is added to the scores": hasattr(module, "has_relative_attention_bias")
        and not is_cross,
        "a softcap bounds the scores already": bool(
            getattr(config, "attn_logit_softcapping", None)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def why_unknown(model: nn.Module, name: str) -> str | None:
    """Return why the projections of an attention are not known; None if the model has no module of
    this name.
    """
    module = modules_by_path(model).get(name)
    if module is None:
        return None
    kind = type(module).__name__
    names = {*QUERY_NAMES, *KEY_NAMES, "q", "k", "c_attn", *(name for name, _ in FUSED.values())}
    children = {
        name: child
        for name, child in module._modules.items()
        if name in names and child is not None
    }
    for child_name, child in children.items():
        if "base_layer" in child._modules:
            return (
                f"an adapter, {type(child).__name__}, is added to {child_name} of {kind}; "
                "merge "
                "the adapter first"
            )
        if type(child).__name__ != "Conv1D" and _linear(children, (child_name,)) is None:
            return f"{child_name} of {kind} is {type(child).__name__}, not a plain nn.Linear"
    return f"{kind} has none that are known: {KNOWN}"


def _head_width(module: Any, config: Any, rows: int) -> int | None:
    """Return the width of a head, by any of the names that transformers has for it."""
    for name in ("head_dim", "attention_head_size"):
        width = getattr(module, name, None)
        if isinstance(width, int) and width > 0 and rows % width == 0:
            return width
    for owner in (module, config):
        for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
            heads = getattr(owner, name, None)
            if isinstance(heads, int) and heads > 0 and rows % heads == 0:
                return rows // heads
    return None
