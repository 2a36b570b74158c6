"""What the lessons and the checks of their exercises work with: the comparison of a reader's answer
with the right one; the sentences and vectors of the notes, the weights of layers as plain matrices.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..models import GPT, Transformer

TOLERANCE = 1e-4  # relative and absolute: readers may sum in another order
Solution = Callable[..., Any]  # what a reader wrote


class WrongAnswer(AssertionError):  # noqa: N818  a reader made no error
    """Say in one sentence what is wrong with a solution of an exercise. A notebook shows the
    sentence alone, without a traceback.

    Example:
        >>> from telescope.lessons import WrongAnswer
        >>> issubclass(WrongAnswer, AssertionError)
        True
    """

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback, which would lead into the check."""
        return [f"{type(self).__name__}: {self}"]


def call(name: str, function: Solution, *arguments: Any, optional: bool = False) -> Any:
    """Return what the reader's function returns; an exercise that was not begun, or an error, is
    one sentence. Only an `optional` answer may be None.
    """
    if not callable(function):
        raise WrongAnswer(f"{name} should be a function, and is {_describe(function)}")
    try:
        found = function(*arguments)
    except NotImplementedError:
        raise WrongAnswer(
            f"{name} is not written yet: replace `raise NotImplementedError` by your code"
        ) from None
    except Exception as problem:
        # Name the sizes of the arguments, which the reader needs to understand the error.
        sizes = ", ".join(_describe(argument) for argument in arguments)
        raise WrongAnswer(
            f"{name}({sizes}) raised {type(problem).__name__}: {problem}"
        ) from problem
    if found is None and not optional:
        raise WrongAnswer(f"{name} returned nothing: is there a `return` at its end?")
    return found


def given(name: str, value: Any) -> None:
    """Raise a WrongAnswer where the reader has not replaced the three dots of an exercise yet."""
    # The page of an exercise says `answer = ...`.
    if value is ...:
        raise WrongAnswer(f"{name} is not given yet: replace the three dots by your answer")


def as_tensor(value: Any) -> Any:
    """Return a list of numbers as a tensor; anything else as it is."""
    try:
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float32)
    # No list of numbers: the check that asked says what it expects.
    except (TypeError, ValueError):
        return value


def compare(
    name: str,
    found: Any,
    right: Tensor | float,
    mistakes: Mapping[str, Any] = MappingProxyType({}),
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Raise a WrongAnswer unless `found` is close to `right`.

    mistakes  what usual mistakes would give, by the sentence that says what to change
    """
    # A plain number is compared as a tensor without axes.
    right = torch.as_tensor(right)
    if not isinstance(found, Tensor):
        if not isinstance(found, int | float):
            raise WrongAnswer(
                f"{name} should return {_describe(right)}, and returned {_describe(found)}"
            )
        found = torch.as_tensor(float(found))
    # A right answer ends here; all that follows explains a wrong one.
    if found.shape == right.shape and _near(found, right, tolerance):
        return

    # A usual mistake has the best explanation; then what the shape and the numbers tell.
    for sentence, mistaken in mistakes.items():
        wrong = torch.as_tensor(mistaken)
        if found.shape == wrong.shape and _near(found, wrong, tolerance):
            raise WrongAnswer(f"{name}: {sentence}")
    if found.shape != right.shape:
        # The most usual reason of a wrong shape.
        turned = found.ndim >= 2 and found.mT.shape == right.shape
        hint = "; it looks transposed" if turned else ""
        raise WrongAnswer(
            f"{name} has shape {tuple(found.shape)}, and should have {tuple(right.shape)}{hint}"
        )
    # From here on the shape is right: look at the numbers, in float64.
    found = found.double()
    right = right.double()
    if bool(found.isnan().any()):
        raise WrongAnswer(
            f"{name} has NaN at {_place(found.isnan())}: look for 0 / 0, or a softmax over nothing "
            "but -inf"
        )
    # Of a square matrix the shape does not tell.
    if found.ndim >= 2 and found.shape[-1] == found.shape[-2] and _near(found.mT, right, tolerance):
        raise WrongAnswer(f"{name} is transposed: queries are rows, keys are columns")
    # A missing √d_k, a sum for a mean: all numbers are off by one factor.
    ratio = _constant_ratio(found, right)
    if ratio is not None:
        if ratio < 0:
            raise WrongAnswer(f"{name} is {ratio:.4g} times what it should be: a sign is wrong")
        size = f"{ratio:.4g} times too large" if ratio > 1 else f"{1 / ratio:.4g} times too small"
        raise WrongAnswer(f"{name} is {size} everywhere: a factor is missing or too many")
    # Nothing is known about the mistake: show the place where it is largest.
    difference = (found - right).abs()
    where = int(difference.argmax())
    raise WrongAnswer(
        f"{name} is {found.flatten()[where].item():.4f} at "
        f"{_place(difference == difference.max())}, and should be "
        f"{right.flatten()[where].item():.4f}"
    )


class Case(NamedTuple):
    """One call of a reader's function.

    arguments  that the function gets
    right      what it should return
    mistakes   what usual mistakes would give, by the sentence that says what to change
    if_nan     the sentence for an answer that holds NaN
    what       is compared, for errors; the name of the exercise unless given
    """

    arguments: tuple[Any, ...]
    right: Tensor | float
    mistakes: Mapping[str, Any] = MappingProxyType({})
    tolerance: float = TOLERANCE
    if_nan: str = ""
    what: str = ""


Cases = Iterator[Case]


def exercise(name: str, praise: str) -> Callable[[Callable[[], Cases]], Callable[[Solution], None]]:
    """Make the check of an exercise from a function that yields its cases.

    name    of the function that the reader writes
    praise  printed where all cases agree
    """

    def make_check(cases: Callable[[], Cases]) -> Callable[[Solution], None]:
        def check(function: Solution) -> None:
            for case in cases():
                found = call(name, function, *case.arguments)
                # Before the comparison: this sentence explains the NaN better than `compare` can.
                if case.if_nan and isinstance(found, Tensor) and bool(found.isnan().any()):
                    raise WrongAnswer(f"{name}: {case.if_nan}")
                what = case.what or name
                compare(what, found, case.right, case.mistakes, tolerance=case.tolerance)
            passed(name, praise)

        # Not functools.wraps: help() would show the signature of `cases`, without the function.
        check.__name__ = check.__qualname__ = cases.__name__
        check.__module__ = cases.__module__
        check.__doc__ = cases.__doc__
        return check

    return make_check


def passed(name: str, what: str) -> None:
    """Say that a solution is right."""
    print(f"✓ {name}: {what}")


def _near(found: Tensor, right: Tensor, tolerance: float) -> bool:
    one = found.detach().double()
    other = right.detach().double()
    # NaN equals NaN: a usual mistake may be known by the NaN that it gives.
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _constant_ratio(found: Tensor, right: Tensor) -> float | None:
    """Return c where found = c · right everywhere, and c is not 1."""
    # Numbers near zero tell no ratio.
    known = right.abs() > 1e-6
    if known.sum() < 2:  # any number is a multiple of another
        return None
    ratios = found[known] / right[known]
    ratio = ratios.mean().item()
    spread = (ratios - ratio).abs().max().item()
    # Ratios within a thousandth of their mean are one factor; near 0, the answer is all zeros.
    return ratio if spread <= 1e-3 * abs(ratio) and abs(ratio) > 1e-6 else None


def _place(chosen: Tensor) -> str:
    """Return the first place where `chosen` is True: "[1, 2]"."""
    place = chosen.nonzero()[0].tolist()
    # A tensor without axes has no index.
    return f"{place}" if place else "its only number"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else "a number"
    kind = type(value).__name__
    return f"{kind} {value!r}" if isinstance(value, int | float | str) else f"a {kind}"


# The sentences of the notes, word by word.
JOURNEY = ("Your", "journey", "starts", "with", "one", "step")
TELESCOPE = ("The", "man", "saw", "the", "astronomer", "with", "a", "telescope")


def journey() -> Float[Tensor, "6 3"]:
    """Return the six vectors of "Your journey starts with one step" (Raschka, Build a Large
    Language Model, chapter 3).

    Example:
        >>> from telescope.lessons import journey
        >>> journey().shape
        torch.Size([6, 3])
    """
    return torch.tensor(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    )


def passages() -> list[str]:
    """Return 24 passages of Shakespeare, some 500 characters each, which the model "shakespeare"
    was not trained on.

    They stand at the beginning of the tenth of tiny Shakespeare that was held out.

    Example:
        >>> from telescope.lessons import passages
        >>> len(passages())
        24
    """
    text = Path(__file__).with_name("passages.txt").read_text(encoding="utf-8")
    # A line of three dashes stands between two passages.
    return text.rstrip("\n").split("\n\n---\n\n")


def matrices(module: nn.Module) -> dict[str, Any]:
    """Return the weights of a layer, a block or a whole model as plain matrices, for y = x W.

    An attention has W_q, W_k, W_v and W_o; a feed-forward network W_1 and W_2; a block `self`,
    `feed_forward` and, in a decoder, `cross`; a model `embedding`, `positions` where they are
    learned, and lists of blocks. Biases are left out: the models of the lessons have none.

    The matrices share the module's memory: what is trained in them, or copied into them, is in the
    module too.

    Raises TypeError for any other module.

    Example:
        >>> from telescope.layers import FeedForward
        >>> from telescope.lessons import matrices
        >>> matrices(FeedForward(8, 32, bias=False))["W_1"].shape
        torch.Size([8, 32])
    """
    # nn.Linear computes x Wᵀ: its weight is transposed here.
    match module:
        case MultiHeadAttention():
            named = {name: part.weight.detach().mT for name, part in module.projections().items()}
            return {
                **{name: named[name] for name in ("W_q", "W_k", "W_v")},
                "W_o": module.W_O.weight.detach().mT,
            }
        case FeedForward():
            return {name: getattr(module, name).weight.detach().mT for name in ("W_1", "W_2")}
        case EncoderBlock() | DecoderBlock():
            parts = {"self": matrices(module.self_attention)}
            if isinstance(module, DecoderBlock):
                parts["cross"] = matrices(module.cross_attention)
            return parts | {"feed_forward": matrices(module.feed_forward)}
        case GPT():
            blocks = [matrices(block) for block in module.blocks]
            learned = {}
            if module.positions is not None:
                learned["positions"] = next(module.positions.parameters()).detach()
            return {"embedding": module.embedding.weight.detach(), **learned, "blocks": blocks}
        case Transformer():
            return {
                "embedding": module.embedding.weight.detach(),
                "encoder": [matrices(block) for block in module.encoder],
                "decoder": [matrices(block) for block in module.decoder],
            }
        case _:
            raise TypeError(
                f"a {type(module).__name__} is not part of the lessons; MultiHeadAttention or GPT "
                "is"
            )


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normal random numbers, the same at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal_matrix(queries: int, keys: int) -> Tensor:
    # The diagonal is shifted so that the last query sees the last key.
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
