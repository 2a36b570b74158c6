"""What a config.json describes: a model without numbers yet, and its special ids."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...files.errors import LoadError
from ...files.safetensors import Tensors
from ...words import hint
from ..config import Config, Special
from ..model import Model, empty
from .tensor_names import TensorName, weights_of


def described(
    kind: type[Model],
    config: Callable[[], Config],
    file: Path,
    tensors: Tensors,
    attention: Attention | None = None,
) -> Model:
    """The model that a config.json describes, if it describes one that these tensors could be."""
    try:
        says = config()
    except LoadError:
        raise
    except (ValueError, TypeError) as error:
        raise LoadError(f"{file}: {error}") from None
    for name, count in asdict(says).items():  # building a billion blocks would take a while, even without numbers
        if name.endswith(("blocks", "layers")) and count > len(tensors):
            raise LoadError(f"{file}: {name}={count}, but {tensors.source} holds only {len(tensors)} tensors")
    try:
        return empty(kind, says, attention)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"{file} does not describe a model that can be built: {reason}") from None


def special(given: Mapping[str, Any], file: Path, vocabulary: int | None = None) -> Special:
    """Whole numbers or null, for the end also a list. An id outside the vocabulary, if that is known, means nothing."""
    ids: dict[str, list[int]] = {"start": [], "end": [], "pad": []}
    for name in given:
        if name not in ids:
            raise LoadError(f'{file}: there is no special id for "{name}"; {hint(name, ids)}')
    for name in ids:
        value = given.get(name)
        several = value if isinstance(value, list) and name == "end" else [] if value is None else [value]
        if not all(type(i) is int for i in several):
            raise LoadError(f"{file}: the special id for {name} is {value!r}; it is a whole number, or null")
        ids[name] = [i for i in several if vocabulary is None or 0 <= i < vocabulary]
    start, pad = (next(iter(ids[name]), None) for name in ("start", "pad"))
    return Special(start, tuple(ids["end"]), pad)


def fill(
    model: nn.Module,
    tensors: Tensors,
    rows: list[TensorName],
    *,
    unused: Iterable[str] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Give a model on "meta" the tensors of a file, row by row; `unused` are patterns of names that may be left over.

    A tensor keeps the dtype it has in the file unless another is asked for. Where several rows have one tensor of ours
    (an embedding that is also the head), one of theirs is enough, and if there are more they have to be equal.
    """
    weights = weights_of(model)
    uncovered = weights.keys() - {row.ours for row in rows}
    assert not uncovered, f"no row says where {sorted(uncovered)} come from"
    chosen = [row for row in rows if any(name in tensors for name in row.theirs)]
    _complete(rows, chosen, tensors)
    _nothing_more(rows, tensors, unused)
    for row in chosen:
        _fits(model, row, weights, tensors)

    filled: dict[str, Tensor] = {}
    with tensors.opened() as read:
        for row in chosen:
            if row.ours in filled:
                _same(next(first for first in chosen if first.ours == row.ours), row, tensors, read)
                continue
            kept = dtype or tensors[row.theirs[0]].dtype
            filled[row.ours] = torch.empty(weights[row.ours].shape, device=device, dtype=kept)
            for name, part in row.parts(model, filled[row.ours]).items():
                part.copy_(read(name))
    _assign(model, filled)


def _complete(rows: list[TensorName], chosen: list[TensorName], tensors: Tensors) -> None:
    found = {row.ours for row in chosen}
    for row in (*chosen, *(row for row in rows if row.ours not in found)):
        for name in row.theirs:
            if name not in tensors:
                raise LoadError(f'{tensors.source}: tensor "{name}" is missing')


def _nothing_more(rows: list[TensorName], tensors: Tensors, unused: Iterable[str]) -> None:
    known = {name for row in rows for name in row.theirs}
    for name, entry in tensors.items():
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in unused):
            raise LoadError(f'{entry.file}: tensor "{name}" has no place in the model that config.json describes')


def _fits(model: nn.Module, row: TensorName, weights: Mapping[str, Tensor], tensors: Tensors) -> None:
    for name, part in row.parts(model, weights[row.ours]).items():
        entry = tensors[name]
        if entry.shape != part.shape:
            raise LoadError(
                f'{entry.file}: tensor "{name}" has shape {list(entry.shape)}; '
                f"in the model that config.json describes it has {list(part.shape)}"
            )
        _ = entry.dtype  # refuses what is not a floating-point number


def _same(first: TensorName, second: TensorName, tensors: Tensors, read: Callable[[str], Tensor]) -> None:
    for one, other in zip(first.theirs, second.theirs, strict=True):
        if not torch.equal(read(one).contiguous().view(torch.uint8), read(other).contiguous().view(torch.uint8)):
            raise LoadError(
                f'{tensors[other].file}: tensors "{one}" and "{other}" should be one and the same, '
                "as config.json ties them, but their numbers differ"
            )


def _assign(model: nn.Module, filled: Mapping[str, Tensor]) -> None:
    """In place of the empty tensors; what is shared stays shared."""
    full = {id(empty): _like(empty, filled[name]) for name, empty in weights_of(model).items()}
    everywhere = model.state_dict(keep_vars=True)
    model.load_state_dict({name: full.get(id(there), there) for name, there in everywhere.items()}, assign=True)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # side by side in memory, as a GPU wants them


def _like(empty: Tensor, filled: Tensor) -> Tensor:
    return nn.Parameter(filled, empty.requires_grad) if isinstance(empty, nn.Parameter) else filled
