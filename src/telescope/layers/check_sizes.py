"""Whether the sizes and the inputs of a layer fit: if not, one sentence."""

from collections.abc import Iterable

from torch import Tensor, nn

from ..attention.check_numbers import whole
from ..words import hint


def sizes(**given: int | None) -> None:
    """Every size that was given is at least one."""
    for name, size in given.items():
        if size is not None and whole(name, size) < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def per_head(d_model: int, heads: int) -> int:
    """d_model / heads, the width of one head."""
    if d_model % heads:
        below = d_model - d_model % heads
        near = f"{below} or {below + heads}" if below else f"{heads}"
        raise ValueError(f"d_model={d_model} cannot be split into heads={heads}; nearest: {near}")
    return d_model // heads


def groups(heads: int, key_heads: int) -> int:
    """heads / key_heads, how many heads of queries share one of keys."""
    if heads % key_heads:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"key_heads={key_heads} does not divide heads={heads}; these do: {divisors}")
    return heads // key_heads


def one_of(name: str, choice: str, choices: Iterable[str]) -> None:
    """The choice is among the choices; a misspelt one is answered with the nearest."""
    known = list(choices)
    if choice not in known:
        raise ValueError(f'there is no {name}="{choice}"; {hint(choice, known)}')


def features(layer: nn.Module, name: str, tensor: Tensor, argument: str) -> None:
    """The input `name` is (batch, position, feature), as wide as the layer's `argument`."""
    width = getattr(layer, argument)
    if tensor.ndim != 3 or tensor.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; "
            f"{type(layer).__name__} with {argument}={width} takes (batch, position, {width})"
        )
