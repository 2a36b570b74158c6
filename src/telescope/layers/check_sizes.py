"""Checks of a layer's sizes and inputs. Each raises one sentence that names the argument, its value
and what fits.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from ..attention.check_numbers import require_dense, require_int
from ..words import hint


def check_sizes(**sizes: int | None) -> None:
    """Raise a ValueError where a size is below 1, a TypeError where a size is not an int. None
    means "not given".
    """
    for name, size in sizes.items():
        if size is not None and require_int(name, size) < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def head_width(d_model: int, heads: int) -> int:
    """Return d_model / heads, the width of one head; raise a ValueError where the division leaves a
    remainder.
    """
    if d_model % heads:
        below = d_model - d_model % heads
        near = f"{below} or {below + heads}" if below else f"{heads}"
        raise ValueError(f"d_model={d_model} cannot be split into heads={heads}; nearest: {near}")
    return d_model // heads


def group_size(heads: int, key_heads: int) -> int:
    """Return heads / key_heads, the number of query heads that share one key head (grouped-query
    attention).
    """
    if heads % key_heads:
        divisors = ", ".join(
            str(n) for n in range(1, min(heads, 1024) + 1) if heads % n == 0
        )  # a file may say 2^62
        raise ValueError(
            f"key_heads={key_heads} does not divide heads={heads}; these do: {divisors}"
        )
    return heads // key_heads


def check_choice(name: str, choice: str, choices: Iterable[str]) -> None:
    """Raise a ValueError unless `choice` is one of `choices`; the error suggests the nearest
    one.
    """
    known = list(choices)
    if choice not in known:
        raise ValueError(f'there is no {name}="{choice}"; {hint(choice, known)}')


def check_features(layer: nn.Module, name: str, tensor: Tensor, argument: str) -> None:
    """Raise a ValueError unless `tensor` is (batch, position, width), where width is the layer's
    attribute `argument`.

    `name` is what the caller calls the tensor, for the error message. Raise a TypeError if the
    tensor is not dense.
    """
    require_dense(name, tensor)
    width = getattr(layer, argument)
    if tensor.ndim != 3 or tensor.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; "
            f"{type(layer).__name__} with {argument}={width} takes (batch, position, {width})"
        )
