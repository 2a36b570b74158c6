"""Ask a reader's function once more, with other arguments, what a single wrong answer does not
tell: an argument that is not used, a future that is seen, an order that makes no difference.
"""

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor

from .calling import Solution, copied, leaves
from .patterns import near


def probe(
    function: Solution,
    arguments: Mapping[str, Any],
    found: Any,
    *,
    causal: str = "",
    ordered: str = "",
) -> str:
    """Return what a wrong solution does with its arguments, as a sentence; "" where nothing is
    found.

    arguments  that the function got, by the names of its parameters
    found      what it returned
    causal     the argument whose later tokens must not change earlier rows
    ordered    the argument whose order of tokens must make a difference
    """
    ask = _asking(function)
    again = ask(arguments)
    if again is None or not near(again, found):
        return "gives another result at each call: is there something random in it?"
    if unused := _unused(ask, arguments, found):
        return unused
    if causal and _sees_the_future(ask, arguments, found, causal):
        return (
            "sees the future: a later token changes the rows of earlier ones; mask the scores, "
            "before the softmax"
        )
    if ordered and _ignores_order(ask, arguments, found, ordered):
        return "gives the same rows in whatever order the tokens come: the positions are not used"
    return ""


def same_for_others(function: Solution, arguments: Mapping[str, Any], found: Any) -> bool:
    """Return whether a function returns the same whatever its arguments are."""
    ask = _asking(function)
    tensors = [path for name, part in arguments.items() for path, _ in leaves(part, name)]
    if tensors:
        other = {name: _changed(part, None, name) for name, part in arguments.items()}
    else:
        # Even numbers stay even: a width may have to be.
        other = {name: part + 2 * (i + 1) for i, (name, part) in enumerate(arguments.items())}
    again = ask(other)
    return again is not None and near(again, found)


def _asking(function: Solution) -> Callable[[Mapping[str, Any]], Tensor | None]:
    def ask(arguments: Mapping[str, Any]) -> Tensor | None:
        # The reader's own prints were shown once.
        with torch.no_grad(), redirect_stdout(StringIO()):
            try:
                answer = function(*(copied(value) for value in arguments.values()))
            except Exception:
                return None
        if isinstance(answer, int | float):
            return torch.tensor(float(answer))
        return answer.detach() if isinstance(answer, Tensor) else None

    return ask


def _unused(
    ask: Callable[[Mapping[str, Any]], Tensor | None], arguments: Mapping[str, Any], found: Tensor
) -> str:
    """Return the arguments, or the matrices in them, that make no difference to the result."""
    paths = [path for name, part in arguments.items() for path, _ in leaves(part, name)]
    silent = []
    for path in paths:
        other = {name: _changed(part, path, name) for name, part in arguments.items()}
        answer = ask(other)
        if answer is not None and near(answer, found, 1e-6):
            silent.append(path)
    if not silent:
        return ""
    if len(silent) == len(paths):
        return (
            "returns the same whatever it is given: are the numbers of an example written into it?"
        )
    # A whole block or layer is named by what its matrices have in common.
    names = _grouped(silent, paths)
    return (
        f"does not use {' and '.join(names[:3])}: it is not used at all"
        if len(names) == 1
        else (f"does not use {', '.join(names[:3])}: they are not used at all")
    )


def _grouped(silent: list[str], paths: list[str]) -> list[str]:
    names: list[str] = []
    for path in silent:
        name = path
        shorter = path
        while "[" in shorter:
            shorter = shorter.rpartition("[")[0]
            inside = [other for other in paths if other.startswith(f"{shorter}[")]
            if all(other in silent for other in inside):
                name = shorter
        if name not in names:
            names.append(name)
    return names


def _changed(value: Any, path: str | None, at: str) -> Any:
    """Return a copy of an argument in which the tensor at `path` has other numbers; all tensors
    where the path is None.
    """
    match value:
        case Tensor():
            return _other(value) if path in (None, at) else value
        case dict():
            return {key: _changed(part, path, f'{at}["{key}"]') for key, part in value.items()}
        case list() | tuple():
            return type(value)(_changed(part, path, f"{at}[{i}]") for i, part in enumerate(value))
        case _:
            return value


def _other(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.is_floating_point():
        # Ids stay within the vocabulary.
        return tensor.flip(0) if bool((tensor != tensor.flip(0)).any()) else tensor
    moved = tensor.roll(1, 0) if tensor.ndim else tensor
    return moved * 0.7 + 0.31 * torch.linspace(-1, 1, max(1, tensor.numel())).reshape(tensor.shape)


def _sees_the_future(
    ask: Callable[[Mapping[str, Any]], Tensor | None],
    arguments: Mapping[str, Any],
    found: Tensor,
    name: str,
) -> bool:
    tokens = arguments[name].clone()
    tokens[-1] = tokens[0] if not tokens.is_floating_point() else tokens[-1] + 1.0
    answer = ask({**arguments, name: tokens})
    if answer is None or answer.shape != found.shape or not found.ndim:
        return False
    return not near(answer[:-1], found[:-1])


def _ignores_order(
    ask: Callable[[Mapping[str, Any]], Tensor | None],
    arguments: Mapping[str, Any],
    found: Tensor,
    name: str,
) -> bool:
    answer = ask({**arguments, name: arguments[name].flip(0)})
    return answer is not None and answer.shape == found.shape and near(answer.flip(0), found)
