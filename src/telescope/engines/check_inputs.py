"""Check that queries, keys, values and a definition fit together; every error is one sentence that
names the fix.
"""

from typing import Any

import torch
from torch import Tensor

from ..attention import Attention, Bias, Mask, Score
from ..attention.check_numbers import require_dense, require_real
from ..attention.mask import Everyone
from ..attention.masks import Causal, Prefix, Window
from . import torch_modes

AXES = "(batch, heads, position, feature)"


def check(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> None:
    """Raise a TypeError or ValueError that names the argument, what came, what fits and the fix."""
    if not isinstance(attention, Attention):
        raise TypeError(_wrong_definition(attention))
    _check_tensors({"queries": queries, "keys": keys, "values": values}, attention)


def check_without_values(queries: Tensor, keys: Tensor, attention: Attention) -> None:
    """Raise as `check` does, for `survey`, which reads no values: survey(queries, keys,
    attention).
    """
    if isinstance(attention, Tensor) and attention.dtype != torch.bool:
        raise TypeError(
            f"attention is a tensor of shape {_shape(attention)}; survey takes queries, keys and a "
            "ts.Attention, "
            "and values by name: values=values"
        )
    if not isinstance(attention, Attention):
        raise TypeError(_wrong_definition(attention))
    _check_tensors({"queries": queries, "keys": keys}, attention)


def check_dropout(dropout: float) -> float:
    """Return `dropout`; raise a TypeError or ValueError unless it is a number from 0 to 1."""
    if not 0.0 <= require_real("dropout", dropout) <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    return dropout


def _wrong_definition(given: Any) -> str:
    """Return the error for an argument `attention` that is no Attention, with the call that was
    probably intended.
    """
    kind = type(given).__name__
    if isinstance(given, Mask):
        mask = f"ts.{given!r}" if isinstance(given, Causal | Everyone | Prefix | Window) else "..."
        return f"attention is a mask, {kind}, not a ts.Attention; write ts.Attention(mask={mask})"
    if isinstance(given, Bias):
        return f"attention is a bias, {kind}, not a ts.Attention; write ts.Attention(bias=...)"
    if isinstance(given, Score):
        return f"attention is a score, {kind}, not a ts.Attention; write ts.Attention(score=...)"
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        return (
            f"attention is a bool tensor of shape {_shape(given)}, not a ts.Attention; write "
            "ts.Attention(mask=ts.from_tensor(seen)) for True = may attend, or "
            "ts.Attention(mask=ts.from_forbidden(hidden)) for True = forbidden"
        )
    if isinstance(given, Tensor) and given.is_floating_point():
        return (
            f"attention is a float tensor of shape {_shape(given)}, not a ts.Attention; "
            "a mask that is added to the scores goes in as "
            "ts.Attention(bias=ts.from_additive(tensor))"
        )
    return f"attention is a ts.Attention, not {kind}; the plain one is ts.Attention()"


def _check_tensors(inputs: dict[str, Tensor], attention: Attention) -> None:
    """Raise where the tensors, by argument name, do not fit each other or the definition."""
    queries = inputs["queries"]
    keys = inputs["keys"]
    values = inputs.get("values", keys)
    if not _inputs_match(queries, keys, values):
        for name, tensor in inputs.items():
            _check_tensor(name, tensor)
        for name, tensor in inputs.items():
            _check_match(name, tensor, queries)
    batch, heads, rows, d_q = queries.shape
    key_heads, columns, d_k = keys.shape[1:]
    if values.shape[1:3] != keys.shape[1:3]:
        swapped = (values.shape[2], values.shape[1]) == (key_heads, columns)
        fix = "; heads come before positions: values.transpose(1, 2)" if swapped else ""
        raise ValueError(
            f"values {_shape(values)} must have as many heads and positions as keys "
            f"{_shape(keys)}{fix}"
        )
    if key_heads != heads and (key_heads == 0 or heads % key_heads):
        swapped = columns > 0 and rows % columns == 0
        fix = (
            f"; attention takes {AXES}: if heads come after positions, write .transpose(1, 2)"
            if swapped
            else ""
        )
        raise ValueError(
            f"{heads} query heads cannot share {key_heads} key heads evenly; their number must "
            f"divide {heads}{fix}"
        )
    attention.check(batch=batch, heads=heads, queries=rows, keys=columns, d_q=d_q, d_k=d_k)


def _inputs_match(queries: Any, keys: Any, values: Any) -> bool:
    """Return whether the tensors are dense and agree in rank, dtype, device and batch: one test
    before the detailed.
    """
    return (
        isinstance(queries, Tensor)
        and isinstance(keys, Tensor)
        and isinstance(values, Tensor)
        and queries.layout is keys.layout is values.layout is torch.strided
        and not (queries.is_nested or keys.is_nested or values.is_nested)
        and queries.ndim == keys.ndim == values.ndim == 4
        and queries.dtype == keys.dtype == values.dtype
        and queries.is_floating_point()
        and queries.device == keys.device == values.device
        and queries.shape[0] == keys.shape[0] == values.shape[0]
    )


def _check_tensor(name: str, tensor: Any) -> None:
    """Raise unless `tensor` is a floating-point tensor with the four axes of attention."""
    if not isinstance(tensor, Tensor):
        kind = type(tensor)
        maker = {"ndarray": "torch.from_numpy", "list": "torch.tensor"}.get(kind.__name__)
        fix = f", e.g. {maker}({name})" if maker else ""
        raise TypeError(
            f"{name} is a {kind.__name__}; attention takes tensors of shape {AXES}{fix}"
        )
    require_dense(name, tensor)
    if tensor.ndim != 4:
        fix = {
            2: f"; for one sequence and one head write {name}[None, None]",
            3: f"; add the missing axis, {name}.unsqueeze(1) for one head or {name}.unsqueeze(0) "
            "for a batch of one",
        }.get(tensor.ndim, "")
        raise ValueError(f"{name} has shape {_shape(tensor)}; attention takes {AXES}{fix}")
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} is {tensor.dtype}; attention takes floating point, e.g. {name}.float()"
        )


def _check_match(name: str, tensor: Tensor, queries: Tensor) -> None:
    """Raise unless `tensor` has the device, the dtype and the batch size of `queries`."""
    if tensor.device != queries.device:
        raise ValueError(
            f"{name} is on {tensor.device}, queries on {queries.device}; move one of them"
        )
    if tensor.dtype != queries.dtype and not _castable(tensor, queries):
        raise ValueError(f"{name} is {tensor.dtype}, queries {queries.dtype}; convert one of them")
    if tensor.shape[0] != queries.shape[0]:
        raise ValueError(
            f"{name} {_shape(tensor)} has a batch of {tensor.shape[0]}, queries {_shape(queries)} "
            f"of {queries.shape[0]}"
        )


def _castable(*tensors: Tensor) -> bool:
    """Return whether autocast casts these tensors to one dtype; autocast leaves float64 alone."""
    return torch_modes.autocast_enabled(tensors[0].device) and all(
        tensor.dtype != torch.float64 for tensor in tensors
    )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
