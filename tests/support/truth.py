"""Attention functions of torch written out in float64: what any model that calls them should be recorded as.

Nothing here uses Telescope: a stack of hooks tells which module runs, and each call forms all of its weights.
"""

import copy
import math
import sys
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from support.editing import At, ByHand, softmax

UNCHANGED = ByHand()


class TrueCall(NamedTuple):
    """What one call of an attention function computes."""

    weights: Tensor
    """(batch, heads, query, key) in float64; axes before the heads are one batch."""
    lse: Tensor
    """The log-sum-exp of each query's scores."""


def in_float64(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double().eval()


def doubled(inputs: Any) -> Any:
    """Return arguments with every floating-point tensor in float64."""
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: doubled(value) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(map(doubled, inputs))
    return inputs


@contextmanager
def plain_attention(model: nn.Module, change: ByHand = UNCHANGED, *, only_looks: bool = False):
    """Write out the attention of a model while the block runs; yield name → TrueCall, in the order of the calls.

    A further call of one module has the name of the first with .2, .3 appended. `change` edits scores or contexts.
    With `only_looks` the model goes on with what torch returns: its queries and keys are those of any other run.
    """
    calls: dict[str, TrueCall] = {}
    running: list[str] = []

    def attend(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, **options
    ):
        name = numbered(running[-1], calls)
        dtype = query.dtype
        if only_looks:
            returned = own_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        query, key, value = query.double(), key.double(), value.double()
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask.double()
        lead = scores.shape[:-2]
        scores = four_axes(scores)
        batch, _, queries, keys = scores.shape
        at = At(torch.arange(queries).expand(batch, -1), torch.arange(keys).expand(batch, -1))
        scores = change.scores(name, scores, at)
        weights = softmax(scores)
        calls[name] = TrueCall(weights, scores.logsumexp(-1))
        if only_looks:
            return returned
        context = change.context(name, weights @ four_axes(value.expand(*lead, *value.shape[-2:])), at)
        return context.reshape(*lead, *context.shape[-2:]).to(dtype)

    def leave():
        running.pop()

    with ExitStack() as undo:
        for path, module in model.named_modules():
            undo.callback(module.register_forward_pre_hook(lambda *_, path=path: running.append(path)).remove)
            undo.callback(module.register_forward_hook(lambda *_: leave(), always_call=True).remove)
        undo.enter_context(replaced(own_sdpa, attend))
        # Torch's fast path calls neither of the functions.
        undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        undo.enter_context(replaced(own_multi_head, without_weights))
        yield calls


own_sdpa = torch.nn.functional.scaled_dot_product_attention
own_multi_head = torch.nn.functional.multi_head_attention_forward


def without_weights(*args, **kwargs):
    """Let nn.MultiheadAttention call scaled_dot_product_attention, whatever it was asked for."""
    return own_multi_head(*args, **kwargs | {"need_weights": False})


def numbered(name: str, taken: Any) -> str:
    name = name or "attention"
    number = 1 + sum(one == name or (one.startswith(f"{name}.") and one[len(name) + 1 :].isdigit()) for one in taken)
    return name if number == 1 else f"{name}.{number}"


def four_axes(part: Tensor) -> Tensor:
    if part.ndim < 4:
        part = part.reshape(*[1] * (3 - part.ndim), *part.shape).unsqueeze(-3)
    return part.reshape(-1, *part.shape[-3:])


@contextmanager
def replaced(original: Any, own: Any):
    """Replace a function wherever a file has a name for it while the block runs."""
    places = [
        (vars(module), name)
        for module in [*sys.modules.values()]
        if isinstance(module, type(sys)) and module.__name__ != __name__
        for name, value in [*vars(module).items()]
        if value is original
    ]
    for namespace, name in places:
        namespace[name] = own
    try:
        yield
    finally:
        for namespace, name in places:
            namespace[name] = original
