"""What the models have in common: their normalisers, and a look at the ids and masks they are given."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..attention import Mask
from ..attention.values import has_numbers
from ..layers.definition import Definition

Norm = Literal["layer", "rms"]


def normaliser(norm: Norm, eps: float, bias: bool = True) -> Callable[[int], nn.Module]:
    """What makes the normaliser of a width."""
    return partial(nn.RMSNorm, eps=eps) if norm == "rms" else partial(nn.LayerNorm, eps=eps, bias=bias)


def to_initialise(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model by name, without those of a definition: these come with numbers of their own."""
    given = {id(part) for module in model.modules() if isinstance(module, Definition) for part in module.modules()}
    return ((name, module) for name, module in model.named_modules() if id(module) not in given)


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Whole numbers (batch, n) from 0 to vocabulary - 1; on a GPU only the form is looked at, the rest would wait."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.ndim != 2:
        what = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"{name} is {what}; a model takes whole numbers (batch, n), one for each token")
    if ids.numel() and ids.device.type == "cpu" and has_numbers(ids):
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= vocabulary:
            stranger = low if low < 0 else high
            raise ValueError(f"{name} has the id {stranger}; the vocabulary is 0 to {vocabulary - 1}")


def real_tokens(mask: Mask | None, x: Tensor) -> Bool[Tensor, "batch n"]:
    """Which tokens of x (batch, n, …) a mask of padding shows: those that are no padding."""
    batch, n = x.shape[:2]
    if mask is None:
        return torch.ones(batch, n, dtype=torch.bool, device=x.device)
    if not mask.keys_alone:
        raise ValueError(f"mask={mask!r} differs from query to query; only ts.padding says which tokens are real")
    return mask.block(range(n - 1, n), n, of=(n, n), batch=batch, device=x.device)[:, 0, 0].expand(batch, n)
