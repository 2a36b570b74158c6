"""A model as decoding wants it: not training and, on a CPU, with its matrices packed for products of a few rows.

The model itself is not touched. The copy has modules of its own, but the same parameters, hooks and definitions.
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

# From how many numbers on a matrix is packed, and for how many steps. Then the products of GPT-2 (124M) are 1.6 times
# as fast with 8 rows, 1.5 times with 40 (two Neoverse cores), slower with one. Packing takes as long as 3 to 8 steps.
LARGE, STEPS = 2**16, 16


def ready(model: M, *, rows: int, steps: int) -> M:
    """The copy, for so many rows and at most so many steps."""
    if rows == 1 or steps < STEPS or not _packable(model):
        return _still(model, packed=False)
    copied, W = _still(model, packed=True), getattr(model, "head_weight", None)
    if isinstance(W, Tensor) and W.numel() >= LARGE:
        copied.__dict__["logits"] = Product(W, getattr(model, "head_bias", None))
    return copied


def _still(module: M, *, packed: bool) -> M:
    copied = copy(module)
    children = module._modules.items()
    copied.__dict__["_modules"] = {
        name: None if child is None else _still(child, packed=packed) for name, child in children
    }
    copied.training = False
    if packed and isinstance(module, nn.Linear) and module.weight.numel() >= LARGE:
        copied.__dict__["forward"] = Product(module.weight, module.bias)
        if isinstance(module, StackedLinear):
            copied.__dict__["only"] = Rows(module)
    return copied


class Product:
    """x Wᵀ + b. What is used a second time is used often, so then W is packed: oneDNN would do so for every product."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None) -> None:
        self.weight, self.bias = weight, bias
        self.used, self.packed = False, None

    def __call__(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        if self.packed is None:
            if not self.used:
                self.used = True
                return linear(x, self.weight, self.bias)
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class Rows:
    """Some matrices of a stack: x W for each of them."""

    def __init__(self, stack: StackedLinear) -> None:
        self.stack = stack
        self.products: dict[tuple[str, ...], Product] = {}

    def __call__(self, x: Float[Tensor, "*rows d_in"], *names: str) -> Float[Tensor, "*rows d_some"]:
        if names not in self.products:
            self.products[names] = Product(*self.stack.rows(*names))
        return self.products[names](x)


def _packable(model: nn.Module) -> bool:
    """Plain float32 on a CPU, a torch that packs, and room for the weights a second time."""
    weights: list[Any] = list(model.parameters())
    if any(W.device.type != "cpu" or W.dtype != torch.float32 for W in weights):
        return False
    packs = torch._C._has_mkldnn and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    return packs and 2 * sum(W.nbytes for W in weights) < _free_memory()


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such system: nobody knows
        return 2**62
