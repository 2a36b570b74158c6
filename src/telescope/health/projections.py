"""Find the query and key projections of a model's attentions, and scale or clear the rows of single heads.

Known are Telescope's MultiHeadAttention; modules of transformers with q_proj and k_proj (Llama, Qwen2, Mistral, OPT,
BART, Marian, ...) or query and key (BERT); and GPT-2's c_attn, which holds both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from ..attention import softmax
from ..layers import MultiHeadAttention
from ..recording.names import modules_by_path
from ..watch import telescope_models

QUERY_NAMES, KEY_NAMES = ("q_proj", "query", "q_lin"), ("k_proj", "key", "k_lin")
NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "qk_norm")


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one projection inside a parameter: `count` of them from `start` on, along `axis`."""

    parameter: Tensor
    axis: int
    start: int
    count: int

    @torch.no_grad()
    def scale(self, factors: Sequence[float]) -> None:
        """Multiply the rows of each head by its factor, in place; also of a parameter that FSDP shards."""
        vector = torch.ones(self.parameter.shape[self.axis], dtype=torch.float32)
        width = self.count // len(factors)
        for head, factor in enumerate(factors):
            vector[self.start + head * width : self.start + (head + 1) * width] = factor
        shape = [1] * self.parameter.ndim
        shape[self.axis] = -1
        whole: Tensor = vector.reshape(shape).to(self.parameter.device, self.parameter.dtype)
        if isinstance(self.parameter, DTensor):
            mesh = self.parameter.device_mesh
            whole = distribute_tensor(whole, mesh, [Replicate()] * mesh.ndim)
        self.parameter.mul_(whole)

    def values(self) -> Tensor:
        """Return the rows as they are, whole."""
        parameter = self.parameter.detach()
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        return whole.narrow(self.axis, self.start, self.count)


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
    """Return the projections of every attention that is known, under the name that `ts.watch` gives the attention."""
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
    query_rows, key_rows = query_stack.widths["W_q"], key_stack.widths["W_k"]
    start = 0 if key_stack is not query_stack else query_rows
    why = "" if layer.attention.softcap is None else "a softcap bounds the scores already"
    matters = [
        reason
        for reason, applies in (
            ("rotary positions turn it", layer.rotary is not None),
            ("a softcap bends the scores", layer.attention.softcap is not None),
            ("a sink takes part in the softmax", layer.attention.sink is not None),
            ("the weights are not by softmax", layer.attention.normalize is not softmax),
        )
        if applies
    ]
    return Projections(
        layer.heads,
        layer.key_heads,
        Rows(query_stack.weight, 0, 0, query_rows),
        Rows(key_stack.weight, 0, start, key_rows),
        None if query_stack.bias is None else Rows(query_stack.bias, 0, 0, query_rows),
        None if key_stack.bias is None else Rows(key_stack.bias, 0, start, key_rows),
        why,
        "; ".join(matters),
    )


def _of_transformers(module: Any) -> Projections | None:
    """Return the projections of an attention of transformers, None for any other module."""
    children: Mapping[str, Any] = module._modules
    config = getattr(module, "config", None)
    query = next((children[name] for name in QUERY_NAMES if isinstance(children.get(name), nn.Linear)), None)
    key = next((children[name] for name in KEY_NAMES if isinstance(children.get(name), nn.Linear)), None)
    stacked = children.get("c_attn")
    if query is not None and key is not None:
        width = _head_width(module, config, query.weight.shape[0])
        if width is None:
            return None
        heads, key_heads = query.weight.shape[0] // width, key.weight.shape[0] // width
        rows = [Rows(part.weight, 0, 0, part.weight.shape[0]) for part in (query, key)]
        biases = [None if part.bias is None else Rows(part.bias, 0, 0, len(part.bias)) for part in (query, key)]
    elif stacked is not None and type(stacked).__name__ == "Conv1D" and not getattr(module, "is_cross_attention", 0):
        size = stacked.weight.shape[1] // 3
        heads = key_heads = int(module.num_heads)
        rows = [Rows(stacked.weight, 1, start, size) for start in (0, size)]
        biases = [Rows(stacked.bias, 0, start, size) for start in (0, size)]
    else:
        return None
    normed = next((name for name in NORMS if children.get(name) is not None), None)
    cap = getattr(config, "attn_logit_softcapping", None)
    why = f"{normed} normalises them after the projection" if normed else ""
    why = why or ("a softcap bounds the scores already" if cap else "")
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    matters = "rotary positions turn it" if rotary else why or ("sinks take part" if hasattr(module, "sinks") else "")
    return Projections(heads, key_heads, rows[0], rows[1], biases[0], biases[1], why, matters)


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
