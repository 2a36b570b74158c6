"""Tables of tensor names, in a model and in a file: read one way to load, the other way to
export.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ...layers.attend import DefinitionModule
from ...layers.multi_head import StackedLinear


@dataclass(frozen=True)
class TensorName:
    """A row of a table: one tensor of the model, and the tensors of a file that are stacked to make
    it.

    ours    the name in the model; {n} stands for the number of a layer
    theirs  the names in the file, from the top of the stack to the bottom
    view    returns a view of our tensor in the shape that the file has, such as the transpose
    """

    ours: str
    theirs: tuple[str, ...]
    view: Callable[[Tensor], Tensor] | None = None

    def at(self, n: str) -> "TensorName":
        """Return the row of layer n."""
        theirs = tuple(name.replace("{n}", n) for name in self.theirs)
        return replace(self, ours=self.ours.replace("{n}", n), theirs=theirs)

    def parts(self, model: nn.Module, whole: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the file, by name, as views of our tensor: writing into them writes
        into ours.
        """
        heights = [len(whole)] if len(self.theirs) == 1 else _stack_heights(model, self.ours)
        parts = dict(zip(self.theirs, whole.split_with_sizes(heights), strict=True))
        return (
            parts if self.view is None else {name: self.view(part) for name, part in parts.items()}
        )


def row(ours: str, *theirs: str, view: Callable[[Tensor], Tensor] | None = None) -> TensorName:
    """Return a row of a table."""
    return TensorName(ours, theirs, view)


def linear(
    ours: str, *theirs: str, view: Callable[[Tensor], Tensor] | None = None
) -> tuple[TensorName, TensorName]:
    """Return the rows of the weight and the bias of a linear layer or a norm."""
    return (
        row(f"{ours}.weight", *(f"{name}.weight" for name in theirs), view=view),
        row(f"{ours}.bias", *(f"{name}.bias" for name in theirs)),
    )


def identity_rows(model: nn.Module) -> list[TensorName]:
    """Return the table of files that Telescope writes: names in file and model are equal."""
    return [row(name, name) for name in named_weights(model)]


def rows_for(table: Iterable[TensorName], model: nn.Module) -> list[TensorName]:
    """Return a row for every layer, with {n} replaced; rows of tensors that the model does not have
    are left out.
    """
    layers: dict[str, list[str]] = {}
    for name in named_weights(model):
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        pattern = name if number is None else f"{name[: number.start()]}{{n}}{name[number.end() :]}"
        layers.setdefault(pattern, []).append("" if number is None else number[0])
    return [row.at(n) for row in table for n in layers.get(row.ours, [])]


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state_dict by name, without those of definitions; a shared one by
    its first name.
    """
    defined = tuple(
        f"{name}." for name, module in model.named_modules() if isinstance(module, DefinitionModule)
    )
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(defined):
            unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


def _stack_heights(model: nn.Module, name: str) -> list[int]:
    """Return the number of rows of each matrix in the StackedLinear whose weight or bias has this
    name.
    """
    stack = model.get_submodule(name.rpartition(".")[0])
    assert isinstance(stack, StackedLinear)
    return list(stack.widths.values())
