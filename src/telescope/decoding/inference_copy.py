"""A copy of a model for decoding: in `eval` mode and, on a CPU, with matrices packed for products
of a few rows.

The model itself is not changed. The copy has its own modules, which share the parameters, hooks and
definitions.
"""

import os
from copy import copy
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ..layers.multi_head import StackedLinear

M = TypeVar("M", bound=nn.Module)

# Matrices of at least MIN_NUMBERS numbers are packed, for at least MIN_STEPS steps. The products of
# GPT-2 (124M) are then 1.6 times as fast with 8 rows, 1.5 times with 40 (two Neoverse cores),
# slower with one. Packing takes as long as 3 to 8 steps.
MIN_NUMBERS = 2**16
MIN_STEPS = 16


def inference_copy(model: M, *, rows: int, steps: int) -> M:
    """Return a copy of the model in `eval` mode, packed if that pays for so many rows and at most
    so many steps.
    """
    if rows == 1 or steps < MIN_STEPS or not _can_pack(model):
        return _copy_modules(model, packed=False)
    copied = _copy_modules(model, packed=True)
    W = getattr(model, "head_weight", None)
    if isinstance(W, Tensor) and W.numel() >= MIN_NUMBERS:
        copied.__dict__["logits"] = PackedLinear(W, getattr(model, "head_bias", None))
    return copied


def _copy_modules(module: M, *, packed: bool) -> M:
    """Return a copy of a module and its children, in `eval` mode, with the same parameters."""
    copied = copy(module)
    children = module._modules.items()
    copied.__dict__["_modules"] = {
        name: None if child is None else _copy_modules(child, packed=packed)
        for name, child in children
    }
    copied.training = False
    if packed and isinstance(module, nn.Linear) and module.weight.numel() >= MIN_NUMBERS:
        copied.__dict__["forward"] = PackedLinear(module.weight, module.bias)
        if isinstance(module, StackedLinear):
            copied.__dict__["project"] = PackedStack(module)
    return copied


class PackedLinear:
    """x Wᵀ + b with W packed once, which oneDNN would otherwise do for every product.

    W is packed at the second call: a matrix that is used twice is used often.
    """

    def __init__(
        self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.used = False
        self.packed = None

    def __call__(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        if self.packed is None:
            if not self.used:
                self.used = True
                return linear(x, self.weight, self.bias)
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class PackedStack:
    """Products with some matrices of a StackedLinear, packed for each combination of names."""

    def __init__(self, stack: StackedLinear) -> None:
        self.stack = stack
        self.products: dict[tuple[str, ...], PackedLinear] = {}

    def __call__(
        self, x: Float[Tensor, "*rows d_in"], *names: str
    ) -> Float[Tensor, "*rows d_some"]:
        if names not in self.products:
            self.products[names] = PackedLinear(*self.stack.rows(*names))
        return self.products[names](x)


def _can_pack(model: nn.Module) -> bool:
    """Return whether all weights are float32 on a CPU, torch can pack, and memory suffices for a
    second copy.
    """
    weights: list[Any] = list(model.parameters())
    if any(W.device.type != "cpu" or W.dtype != torch.float32 for W in weights):
        return False
    packs = torch._C._has_mkldnn and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    return packs and 2 * sum(W.nbytes for W in weights) < _free_memory()


def _free_memory() -> int:
    """Return the free memory in bytes, or a very large number where the system does not report
    it.
    """
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**62
