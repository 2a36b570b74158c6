"""Compare a reader's answer with the right one, and explain a wrong one: by the usual mistakes of
the exercise, then by asking the function again, then by what the numbers tell.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .calling import NOTHING, Solution, WrongAnswer, call, parts_of, passed
from .patterns import TOLERANCE, near, no_tensor, pattern, place, unchanged
from .probing import probe, same_for_others
from .slips import PAIR, Mistakes, each

SLIP = 1e-3  # what a mistake gives is known more exactly than a right answer has to be


def compare(
    name: str,
    found: Any,
    right: Tensor | float,
    mistakes: Mistakes = NOTHING,
    *,
    tolerance: float = TOLERANCE,
    function: Solution | None = None,
    arguments: Mapping[str, Any] = NOTHING,
    factors: Mapping[str, float] = NOTHING,
    weights: bool = False,
    causal: str = "",
    ordered: str = "",
    asked: Callable[[Solution], str] | None = None,
) -> None:
    """Raise a WrongAnswer unless `found` is close to `right`.

    mistakes   what usual mistakes would give, by the sentence that says what to change
    function   the reader's, which is asked once more where the answer is wrong
    arguments  that the function got, by the names of its parameters
    factors    numbers that are likely to be missing, by name: √d_k
    weights    whether the rows of the answer should sum to 1
    causal, ordered  arguments of `probe`
    asked      a question of the exercise to the function: returns a sentence, or ""
    """
    # A plain number is compared as a tensor without axes.
    right = _number(right)
    found = _as_tensor(name, found, right)
    # A right answer ends here; all that follows explains a wrong one.
    if near(found, right, tolerance):
        return
    blank = bool(found.isnan().all())
    if path := unchanged(found, arguments):
        raise WrongAnswer(f"{name} is {path}, unchanged")
    # A usual mistake has the best explanation; then what the function does, then the numbers.
    for sentence, mistaken in each(mistakes):
        # Many pairs, which come last, give nothing but NaN: it tells none of them.
        if blank and sentence.startswith(PAIR):
            break
        wrong = _number(mistaken)
        # A slip that makes no difference here explains nothing.
        if near(found, wrong, min(tolerance, SLIP)) and not near(wrong, right, tolerance):
            raise WrongAnswer(f"{name}: {sentence}")
    if weights and found.ndim and (sentence := _no_weights(found, right)):
        raise WrongAnswer(f"{name}: {sentence}")
    if function is not None and not blank and same_for_others(function, arguments, found):
        raise WrongAnswer(
            f"{name} returns the same whatever it is given: are the numbers of an example written "
            "into it?"
        )
    if told := pattern(found, right, arguments, factors):
        # A shape or a NaN is explained better by an argument that is not used.
        weak = found.shape != right.shape or "right but for" in told
        if not weak or function is None:
            raise WrongAnswer(f"{name}{told}")
    if function is not None and (
        sentence := probe(function, arguments, found, causal=causal, ordered=ordered)
    ):
        raise WrongAnswer(f"{name} {sentence}")
    if function is not None and asked is not None and (sentence := asked(function)):
        raise WrongAnswer(f"{name}: {sentence}")
    if told:
        raise WrongAnswer(f"{name}{told}")
    # Nothing is known about the mistake: show the place where it is largest.
    difference = (found.double() - right.double()).detach().abs()
    where = int(difference.argmax())
    raise WrongAnswer(
        f"{name} is {found.flatten()[where].item():.4f} at "
        f"{place(difference == difference.max())}, and should be "
        f"{right.flatten()[where].item():.4f}"
    )


def _as_tensor(name: str, answer: Any, right: Tensor) -> Tensor:
    """Return an answer as a tensor that can be compared."""
    found: Tensor | float = answer
    if isinstance(found, bool) or not isinstance(found, Tensor | int | float):
        raise WrongAnswer(f"{name}{no_tensor(answer, right)}")
    if not isinstance(found, Tensor):
        return _number(float(found))
    found = found.detach().cpu()
    if found.is_complex():
        raise WrongAnswer(f"{name} holds complex numbers: a root of a number below 0 is taken")
    if found.dtype == torch.bool and right.dtype != torch.bool:
        raise WrongAnswer(f"{name} holds True and False; return numbers")
    cut = not found.is_floating_point() and found.dtype != torch.bool
    if cut and found.shape == right.shape and not near(right.trunc(), right, 1e-6):
        raise WrongAnswer(
            f"{name} holds whole numbers ({found.dtype}): what stands after the point is lost, so "
            "return float"
        )
    return found


def _number(value: Tensor | float) -> Tensor:
    """Return a tensor as it is, and a number as a tensor without axes, in full precision."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _no_weights(found: Tensor, right: Tensor) -> str:
    """Return why an answer cannot be weights; "" if it can."""
    if found.shape != right.shape or bool(found.isnan().any()):
        return ""
    sums = found.double().sum(-1)
    wanted = right.double().sum(-1)
    if bool((found < -1e-6).any()):
        return f"a weight at {place(found < -1e-6)} is negative; exp makes every number positive"
    wrong = (sums - wanted).abs() > 1e-3
    if bool(wrong.any()):
        own = float(sums[wrong][0])
        other = float(wanted[wrong][0])
        return f"row {place(wrong)} sums to {own:.4g}, and should sum to {other:.4g}"
    return ""


class Case(NamedTuple):
    """One call of a reader's function.

    arguments  that the function gets
    right      what it should return
    mistakes   what usual mistakes would give, by the sentence that says what to change
    if_nan     the sentence for an answer that holds NaN
    what       is compared, for errors; the name of the exercise unless given
    raises     sentences for errors, by a pattern of their text
    factors, weights, causal, ordered, asked  arguments of `compare`
    """

    arguments: tuple[Any, ...]
    right: Tensor | float
    mistakes: Mistakes = NOTHING
    tolerance: float = TOLERANCE
    if_nan: str = ""
    what: str = ""
    raises: Mapping[str, str] = NOTHING
    factors: Mapping[str, float] = NOTHING
    weights: bool = False
    causal: str = ""
    ordered: str = ""
    asked: Callable[[Solution], str] | None = None


Cases = Iterator[Case]


def exercise(
    signature: str, praise: str
) -> Callable[[Callable[[], Cases]], Callable[[Solution], None]]:
    """Make the check of an exercise from a function that yields its cases.

    signature  of the function that the reader writes: "scores(x)"
    praise     printed where all cases agree
    """
    name = parts_of(signature)[0]

    def make_check(cases: Callable[[], Cases]) -> Callable[[Solution], None]:
        def check(function: Solution) -> None:
            before: list[Any] = []
            for case in cases():
                before.append(judge(signature, function, case, before))
            passed(name, praise)

        # Not functools.wraps: help() would show the signature of `cases`, without the function.
        check.__name__ = check.__qualname__ = cases.__name__
        check.__module__ = cases.__module__
        check.__doc__ = cases.__doc__
        return check

    return make_check


def judge(signature: str, function: Solution, case: Case, before: list[Any]) -> Any:
    """Return a reader's answer to a case; raise a WrongAnswer if it is wrong.

    before  the answers to earlier cases, which were right
    """
    name, parameters = parts_of(signature)
    what = case.what or name
    try:
        found = call(signature, function, *case.arguments, raises=case.raises)
    except WrongAnswer as wrong:
        if before and "raised" in str(wrong):
            raise WrongAnswer(
                f"{wrong} (the first input went well: is a size of an example written into it?)"
            ) from None
        raise
    # Before the comparison: this sentence explains the NaN better than `compare` can.
    if case.if_nan and isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer(f"{name}: {case.if_nan}")
    compare(
        what,
        found,
        case.right,
        case.mistakes,
        tolerance=case.tolerance,
        function=function,
        arguments=dict(zip(parameters, case.arguments, strict=True)),
        factors=case.factors,
        weights=case.weights,
        causal=case.causal,
        ordered=case.ordered,
        asked=case.asked,
    )
    return found
