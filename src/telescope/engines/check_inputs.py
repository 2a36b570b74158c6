"""Whether queries, keys, values and a definition fit together: if not, one sentence."""

from typing import Any

import torch
from torch import Tensor

from ..attention import Attention
from ..attention.check_numbers import real
from . import torch_modes

AXES = "(batch, heads, position, feature)"


def check(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> None:
    """Raise a TypeError or ValueError that names the argument, what came, what fits and the way out."""
    _check({"queries": queries, "keys": keys, "values": values}, attention)


def check_without_values(queries: Tensor, keys: Tensor, attention: Attention) -> None:
    """The same, for whoever looks at the weights alone."""
    _check({"queries": queries, "keys": keys}, attention)


def check_dropout(dropout: float) -> float:
    """Return `dropout`; raise a TypeError or ValueError unless it is a number from 0 to 1."""
    if not 0.0 <= real("dropout", dropout) <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    return dropout


def _check(given: dict[str, Tensor], attention: Attention) -> None:
    if not isinstance(attention, Attention):
        raise TypeError(f"attention is a ts.Attention, not {type(attention).__name__}; the plain one is ts.Attention()")
    queries, keys = given["queries"], given["keys"]
    values = given.get("values", keys)
    if not _fit(queries, keys, values):
        for name, tensor in given.items():
            _one(name, tensor)
        for name, tensor in given.items():
            _alike(name, tensor, queries)
    batch, heads, rows, d_q = queries.shape
    key_heads, columns, d_k = keys.shape[1:]
    if values.shape[1:3] != keys.shape[1:3]:
        raise ValueError(f"values {_shape(values)} must have as many heads and positions as keys {_shape(keys)}")
    if key_heads != heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(
            f"{heads} query heads cannot share {key_heads} key heads evenly; their number must divide {heads}"
        )
    attention.check(batch=batch, heads=heads, queries=rows, keys=columns, d_q=d_q, d_k=d_k)


def _fit(queries: Any, keys: Any, values: Any) -> bool:
    """Return whether the tensors agree in rank, dtype, device and batch: one cheap test before the detailed checks."""
    return (
        isinstance(queries, Tensor)
        and isinstance(keys, Tensor)
        and isinstance(values, Tensor)
        and queries.ndim == keys.ndim == values.ndim == 4
        and queries.dtype == keys.dtype == values.dtype
        and queries.is_floating_point()
        and queries.device == keys.device == values.device
        and queries.shape[0] == keys.shape[0] == values.shape[0]
    )


def _one(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; attention takes tensors of shape {AXES}")
    if tensor.ndim != 4:
        lift = f"{name}[None, None]" if tensor.ndim == 2 else f"{name}[:, None]" if tensor.ndim == 3 else ""
        way = f"; for one head write {lift}" if lift else ""
        raise ValueError(f"{name} has shape {_shape(tensor)}; attention takes {AXES}{way}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is {tensor.dtype}; attention takes floating point, e.g. {name}.float()")


def _alike(name: str, tensor: Tensor, queries: Tensor) -> None:
    if tensor.device != queries.device:
        raise ValueError(f"{name} is on {tensor.device}, queries on {queries.device}; move one of them")
    if tensor.dtype != queries.dtype and not _castable(tensor, queries):
        raise ValueError(f"{name} is {tensor.dtype}, queries {queries.dtype}; convert one of them")
    if tensor.shape[0] != queries.shape[0]:
        raise ValueError(
            f"{name} {_shape(tensor)} has a batch of {tensor.shape[0]}, queries {_shape(queries)} of {queries.shape[0]}"
        )


def _castable(*tensors: Tensor) -> bool:
    """Whether autocast brings them to one dtype; it leaves float64 alone."""
    return torch_modes.autocast_enabled(tensors[0].device) and all(tensor.dtype != torch.float64 for tensor in tensors)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
