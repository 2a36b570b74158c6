"""Names in a model beside the names in a file: a table that is read one way to load and the other way to export."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ...layers.attend import Definition
from ...layers.multi_head import StackedLinear


@dataclass(frozen=True)
class TensorName:
    """Our tensor, and theirs: one, or several that stand below each other in ours. {n} is the number of a layer."""

    ours: str
    theirs: tuple[str, ...]
    view: Callable[[Tensor], Tensor] | None = None  # ours, shaped as theirs is

    def at(self, n: str) -> "TensorName":
        theirs = tuple(name.replace("{n}", n) for name in self.theirs)
        return replace(self, ours=self.ours.replace("{n}", n), theirs=theirs)

    def parts(self, model: nn.Module, whole: Tensor) -> dict[str, Tensor]:
        """Our tensor as theirs: views, so that what is written into them is written into ours."""
        heights = [len(whole)] if len(self.theirs) == 1 else _heights(model, self.ours)
        parts = dict(zip(self.theirs, whole.split_with_sizes(heights), strict=True))
        return parts if self.view is None else {name: self.view(part) for name, part in parts.items()}


def row(ours: str, *theirs: str, view: Callable[[Tensor], Tensor] | None = None) -> TensorName:
    return TensorName(ours, theirs, view)


def linear(ours: str, *theirs: str, view: Callable[[Tensor], Tensor] | None = None) -> tuple[TensorName, TensorName]:
    """The weight and the bias of a linear layer or a norm."""
    return (
        row(f"{ours}.weight", *(f"{name}.weight" for name in theirs), view=view),
        row(f"{ours}.bias", *(f"{name}.bias" for name in theirs)),
    )


def same(model: nn.Module) -> list[TensorName]:
    """The rows of our own files."""
    return [row(name, name) for name in weights_of(model)]


def rows_for(table: Iterable[TensorName], model: nn.Module) -> list[TensorName]:
    """The rows of what a model has, layer by layer. The rows of what it does not have are left out."""
    layers: dict[str, list[str]] = {}
    for name in weights_of(model):
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        pattern = name if number is None else f"{name[: number.start()]}{{n}}{name[number.end() :]}"
        layers.setdefault(pattern, []).append("" if number is None else number[0])
    return [row.at(n) for row in table for n in layers.get(row.ours, [])]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that is kept, once: what is shared has the first of its names. Those of definitions are left out."""
    defined = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Definition))
    once: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(defined):
            once.setdefault(id(tensor), (name, tensor))
    return dict(once.values())


def _heights(model: nn.Module, name: str) -> list[int]:
    stack = model.get_submodule(name.rpartition(".")[0])
    assert isinstance(stack, StackedLinear)
    return list(stack.widths.values())
