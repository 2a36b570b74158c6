"""Weights in files: tables of tensor names, read one way to load and the other way to export;
building a model from a config.json without numbers, and loading its weights from safetensors files.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...files import LoadError, StoredTensors
from ...layers import StackedLinear
from ...words import hint
from ..model import Config, Model, Special, build_on_meta, named_weights


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
        # Several tensors of a file are stacked in one of ours.
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
        # Layers are told apart by the first number in a name.
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        pattern = name if number is None else f"{name[: number.start()]}{{n}}{name[number.end() :]}"
        layers.setdefault(pattern, []).append("" if number is None else number[0])
    return [row.at(n) for row in table for n in layers.get(row.ours, [])]


def _stack_heights(model: nn.Module, name: str) -> list[int]:
    """Return the number of rows of each matrix in the StackedLinear whose weight or bias has this
    name.
    """
    stack = model.get_submodule(name.rpartition(".")[0])
    assert isinstance(stack, StackedLinear)
    return list(stack.widths.values())


# ----------------------------------------------------------------------------- building and loading


def build_model(
    kind: type[Model],
    config: Callable[[], Config],
    file: Path,
    tensors: StoredTensors,
    attention: Attention | None = None,
) -> Model:
    """Return the model that a config.json describes, on the "meta" device.

    kind       the class of the model
    config     called to construct the config; its ValueErrors and TypeErrors become LoadErrors
    file       the config.json, for errors
    tensors    the tensors in the model's files: a config with more layers than these is refused
    attention  the definition, where the file has its own
    """
    try:
        built = config()
    # Its sentence names the file already.
    except LoadError:
        raise
    except (ValueError, TypeError) as error:
        raise LoadError(f"{file}: {error}") from None
    # A billion blocks would take hours to build, even without numbers.
    for name, count in asdict(built).items():
        if name.endswith(("blocks", "layers")) and count > len(tensors):
            raise LoadError(
                f"{file}: {name}={count}, but {tensors.source} holds only {len(tensors)} tensors"
            )
    _check_widths(built, file, tensors)
    try:
        # What passes all checks and still cannot be built gets one sentence, too.
        return build_on_meta(kind, built, attention)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"{file} does not describe a model that can be built: {reason}") from None


# Sizes that no tensor needs to have.
NOT_STORED = (
    "max_positions",
    "window",
    "rotary_original",
    "synthesizer_block",
)
# Up to this width, what is computed when a model is built takes milliseconds.
BUILT_AT_ONCE = 1 << 20


def _check_widths(config: Config, file: Path, tensors: StoredTensors) -> None:
    """Raise a LoadError where a width is huge, and larger than each side of each tensor: building
    would take long.
    """
    for name, width in asdict(config).items():
        if type(width) is not int or width <= BUILT_AT_ONCE or name in NOT_STORED:
            continue
        # A width that the model needs is the side of some tensor.
        largest = max((side for entry in tensors.values() for side in entry.shape), default=0)
        if width > largest:
            raise LoadError(
                f"{file}: {name}={width}, but no tensor in {tensors.source} has a side above "
                f"{largest}"
            )


def read_special(given: Mapping[str, Any], file: Path, vocabulary: int | None = None) -> Special:
    """Return the special ids from JSON: each a whole number or null, for "end" also a list.

    Where the size of the vocabulary is given, ids outside of it are dropped.
    """
    ids: dict[str, list[int]] = {"start": [], "end": [], "pad": []}
    for name in given:
        if name not in ids:
            raise LoadError(f'{file}: there is no special id for "{name}"; {hint(name, ids)}')
    for name in ids:
        value = given.get(name)
        values = (
            value if isinstance(value, list) and name == "end" else [] if value is None else [value]
        )
        if not all(type(i) is int for i in values):
            raise LoadError(
                f"{file}: the special id for {name} is {value!r}; it is a whole number, or null"
            )
        # Configs of fine-tuned models name ids that their vocabulary lacks.
        ids[name] = [i for i in values if vocabulary is None or 0 <= i < vocabulary]
    start, pad = (next(iter(ids[name]), None) for name in ("start", "pad"))
    return Special(start, tuple(ids["end"]), pad)


def load_weights(
    model: nn.Module,
    tensors: StoredTensors,
    rows: list[TensorName],
    *,
    unused: Iterable[str] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Give a model on the "meta" device the tensors of its files.

    rows           which tensors of the files make up each tensor of the model. Where several rows
                   have the same tensor of the model (an embedding that is also the head), one of
                   them is enough; further ones must be equal
    unused         patterns of names that the files may hold and the model does not need
    device, dtype  of the loaded tensors; without a dtype, each tensor keeps the one that it has in
                   the file

    Raises a LoadError where a tensor is missing, has another shape or is not needed; the model is
    then unchanged.
    """
    weights = named_weights(model)  # on "meta"
    # A mistake of ours, not of the file.
    uncovered = weights.keys() - {row.ours for row in rows}
    assert not uncovered, f"the table has no row for {sorted(uncovered)}"
    # Of a tied pair files hold one name or both.
    chosen = [row for row in rows if any(name in tensors for name in row.theirs)]
    _check_none_missing(rows, chosen, tensors)
    _check_none_left(rows, tensors, unused)
    for row in chosen:
        _check_shapes(model, row, weights, tensors)

    filled: dict[str, Tensor] = {}
    # Everything has been checked by now; from here on numbers are read.
    with tensors.reader() as read:
        for row in chosen:
            if row.ours in filled:
                _check_tied_equal(
                    next(first for first in chosen if first.ours == row.ours), row, tensors, read
                )
                continue
            own_dtype = dtype or tensors[row.theirs[0]].dtype
            filled[row.ours] = torch.empty(weights[row.ours].shape, device=device, dtype=own_dtype)
            for name, part in row.parts(model, filled[row.ours]).items():
                # Into a view of the stack: no second copy is ever in memory.
                part.copy_(read(name))
    _assign(model, filled)


def _check_none_missing(
    rows: list[TensorName], chosen: list[TensorName], tensors: StoredTensors
) -> None:
    """Raise a LoadError where a file lacks a tensor that the model needs."""
    present = {row.ours for row in chosen}
    for row in (*chosen, *(row for row in rows if row.ours not in present)):
        for name in row.theirs:
            if name not in tensors:
                raise LoadError(f'{tensors.source}: tensor "{name}" is missing')


def _check_none_left(rows: list[TensorName], tensors: StoredTensors, unused: Iterable[str]) -> None:
    """Raise a LoadError where a file holds a tensor that neither `rows` nor `unused` names."""
    known = {name for row in rows for name in row.theirs}
    for name, entry in tensors.items():
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in unused):
            raise LoadError(
                f'{entry.file}: tensor "{name}" has no place in the model that config.json '
                "describes"
            )


def _check_shapes(
    model: nn.Module, row: TensorName, weights: Mapping[str, Tensor], tensors: StoredTensors
) -> None:
    """Raise a LoadError where a tensor of the files has another shape than in the model, or an
    unsuitable dtype.
    """
    for name, part in row.parts(model, weights[row.ours]).items():
        entry = tensors[name]
        if entry.shape != part.shape:
            raise LoadError(
                f'{entry.file}: tensor "{name}" has shape {list(entry.shape)}; '
                f"in the model that config.json describes it has {list(part.shape)}"
            )
        _ = entry.dtype  # raises unless it is a floating-point dtype


def _check_tied_equal(
    first: TensorName, second: TensorName, tensors: StoredTensors, read: Callable[[str], Tensor]
) -> None:
    """Raise a LoadError where two tensors of the files that are one in the model differ in any
    bit.
    """
    for one, other in zip(first.theirs, second.theirs, strict=True):
        if not torch.equal(
            # Bit by bit, so that NaN equals NaN and 0 does not equal -0.
            read(one).contiguous().view(torch.uint8),
            read(other).contiguous().view(torch.uint8),
        ):
            raise LoadError(
                f'{tensors[other].file}: tensors "{one}" and "{other}" should be equal, '
                "as config.json ties them, but their numbers differ"
            )


def _assign(model: nn.Module, filled: Mapping[str, Tensor]) -> None:
    """Replace the model's "meta" tensors by the loaded ones; tensors that modules share stay
    shared.
    """
    loaded = {
        id(empty): _as_parameter(empty, filled[name])
        for name, empty in named_weights(model).items()
    }
    # By identity, so that tied weights stay one tensor.
    state = model.state_dict(keep_vars=True)
    model.load_state_dict(
        {name: loaded.get(id(tensor), tensor) for name, tensor in state.items()}, assign=True
    )
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # one block of memory, which cuDNN needs to be fast


def _as_parameter(empty: Tensor, filled: Tensor) -> Tensor:
    """Return `filled` as a parameter where `empty` is one."""
    return nn.Parameter(filled, empty.requires_grad) if isinstance(empty, nn.Parameter) else filled
