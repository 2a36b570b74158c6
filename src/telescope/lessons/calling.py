"""Call what a reader wrote, and say in one sentence what is wrong where there is nothing to
compare: no function, an error, nothing returned, an argument that was changed.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Solution = Callable[..., Any]  # what a reader wrote
NOTHING: Mapping[str, Any] = MappingProxyType({})
LONGEST = 200  # characters of an error's text that are shown


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


def passed(name: str, what: str) -> None:
    """Say that a solution is right."""
    print(f"✓ {name}: {what}")


def given(name: str, value: Any) -> None:
    """Raise a WrongAnswer where the reader has not replaced the three dots of an exercise yet."""
    # The page of an exercise says `answer = ...`.
    if value is ...:
        raise WrongAnswer(f"{name} is not given yet: replace the three dots by your answer")
    if value is None:
        raise WrongAnswer(f"{name} is None: give the answer itself, not nothing")
    if callable(value):
        raise WrongAnswer(f"{name} is a function: give the numbers themselves, without a function")


def numbers_of(name: str, value: Any, wanted: str) -> Tensor:
    """Return an answer that is given as numbers, a list of them for example, as a tensor.

    wanted  what the answer should be, for errors: "three scores"
    """
    given(name, value)
    try:
        numbers = torch.as_tensor(value).detach().to_dense().cpu().to(torch.float32)
    except Exception:
        raise WrongAnswer(
            f"{name} should be {wanted}, as a list of numbers or a tensor, and is {describe(value)}"
        ) from None
    # Numbers that are none cannot be compared.
    if bool(numbers.isnan().any()):
        raise WrongAnswer(f"{name} holds NaN, which is no number: give {wanted}")
    if bool(numbers.isinf().any()):
        raise WrongAnswer(f"{name} holds an infinite number: give {wanted}, all of them finite")
    return numbers


def call(
    signature: str,
    function: Solution,
    *arguments: Any,
    optional: bool = False,
    raises: Mapping[str, str] = NOTHING,
) -> Any:
    """Return what the reader's function returns. An exercise that was not begun, an error, or an
    argument that was changed is one sentence.

    signature  of the function as the exercise gives it: "scores(x)"
    optional   whether None is an answer
    raises     sentences for errors of this exercise, by a pattern of their text
    """
    name, parameters = parts_of(signature)
    _must_be_a_function(name, function)
    _must_take(signature, function, arguments)
    own = copied(arguments)
    try:
        found = function(*own)
    except NotImplementedError:
        raise WrongAnswer(
            f"{name} is not written yet: replace `raise NotImplementedError` by your code"
        ) from None
    # A cell that calls exit() would end the notebook.
    except (Exception, SystemExit) as problem:
        raise WrongAnswer(_sentence_of(problem, name, arguments, raises)) from problem
    if found is NotImplemented or found is ...:
        raise WrongAnswer(f"{name} is not written yet: it returns {found}, not a result")
    if inspect.isgenerator(found) or inspect.iscoroutine(found):
        found.close()
        raise WrongAnswer(f"{name} returned a {type(found).__name__}: use `return`, not `yield`")
    if isinstance(found, Tensor) and (found.layout != torch.strided or found.is_meta):
        kind = "without numbers (meta)" if found.is_meta else "that is not dense"
        raise WrongAnswer(f"{name} returned a tensor {kind}; return a plain one")
    # The reader's next cell would go on with another x.
    for parameter, before, after in zip(parameters, arguments, own, strict=False):
        if not same(before, after):
            raise WrongAnswer(
                f"{name} changes {parameter} in place, so that the caller's {parameter} is another "
                f"one afterwards; work on a copy, or without +=, an index on the left, or a name "
                "that ends with _"
            )
    if found is None and not optional:
        raise WrongAnswer(
            f"{name} returned nothing: is there a `return` at its end? `print` shows a result, and "
            "does not return it"
        )
    return found


def parts_of(signature: str) -> tuple[str, list[str]]:
    """Return the name and the parameters of "scores(x)"; a name alone has no parameters."""
    name, _, inside = signature.partition("(")
    return name, [part.strip() for part in inside.rstrip(")").split(",") if part.strip()]


def copied(value: Any) -> Any:
    """Return a copy of arguments: tensors, and lists, tuples and dicts of them."""
    match value:
        case Tensor():
            return value.clone()
        case dict():
            return {key: copied(part) for key, part in value.items()}
        case list() | tuple():
            return type(value)(copied(part) for part in value)
        case _:
            return value


def same(one: Any, other: Any) -> bool:
    """Return whether two arguments are equal, number by number."""
    match one:
        case Tensor():
            return (
                isinstance(other, Tensor)
                and one.shape == other.shape
                and torch.equal(one.nan_to_num(), other.detach().nan_to_num().to(one.dtype))
            )
        case dict():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case _:
            return bool(one == other)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor in an argument with its path: 'w["self"]["W_q"]'."""
    match value:
        case Tensor():
            yield path, value
        case dict():
            for key, part in value.items():
                yield from leaves(part, f'{path}["{key}"]')
        case list() | tuple():
            for index, part in enumerate(value):
                yield from leaves(part, f"{path}[{index}]")


def describe(value: Any) -> str:
    """Return what a value is, in a few words: "a tensor of shape (3, 4)"."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else "a number"
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if kind == "ndarray":
        return f"a numpy array of shape {value.shape}"
    shown = f"{kind} {value!r}" if isinstance(value, int | float | str) else f"a {kind}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _must_be_a_function(name: str, function: Any) -> None:
    if isinstance(function, type):
        raise WrongAnswer(
            f"{name} should be a function, and is the class {function.__name__}: begin with `def`"
        )
    if not callable(function):
        hint = ""
        # check.scores(scores(x)) gives the result.
        if isinstance(function, Tensor | list | tuple):
            hint = "; give the function itself, without calling it"
        raise WrongAnswer(f"{name} should be a function, and is {describe(function)}{hint}")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        kind = "generator" if inspect.isgeneratorfunction(function) else "coroutine"
        raise WrongAnswer(f"{name} is a {kind}: use `def` and `return`, not `yield` or `async`")


def _must_take(signature: str, function: Solution, arguments: tuple[Any, ...]) -> None:
    """Raise a WrongAnswer where a function cannot take as many arguments as the exercise gives."""
    try:
        taken = inspect.signature(function)
    # Some functions that are written in C have no signature.
    except (TypeError, ValueError):
        return
    try:
        taken.bind(*arguments)
    except TypeError:
        name = parts_of(signature)[0]
        own = ", ".join(taken.parameters)
        raise WrongAnswer(
            f"{name} takes ({own}), and is called with {len(arguments)} "
            f"argument{'s' * (len(arguments) != 1)}: define it as {signature}"
        ) from None


# ----------------------------------------------------------------------------- errors in a sentence

# What torch's and Python's usual errors mean; groups of the pattern stand in the sentence.
ERRORS = (
    (r"torch\.return_types\.(max|min|median|sort|topk)",
     "{0} along an axis returns values and indices: take .values, or use a{0}"),
    (r"name '(.+)' is not defined", "{0} is not defined: run the cell that defines it first"),
    (r"'ndarray' object has no attribute '(\w+)'",
     "a numpy array has no {0}: stay with torch's tensors"),
    (r"'(list|tuple|dict|int|float|NoneType)' object has no attribute '(\w+)'",
     "a {0} has no {1}: a tensor has"),
    (r"'Tensor' object has no attribute '(\w+)'", "a tensor has no {0}"),
    (r"'(\w+)' object is not callable", "a {0} is called like a function: [ ] takes an element"),
    (r"unsupported operand type\(s\) for (.+): '(.+)' and '(.+)'",
     "{1} {0} {2} is not possible: one of the two is no tensor"),
    (r"output with shape \[(.*)\] doesn't match the broadcast shape \[(.*)\]",
     "shape [{1}] is added to shape [{0}]: is a sum missing, or parentheses?"),
    (r"Dimension out of range.*got (-?\d+)",
     "there is no axis {0}: a vector has axis 0 alone, so give dim=0"),
    (r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)",
     "index {0} is too large for axis {1}, which has {2}: indices count from 0"),
    (r"index out of range|out of bounds", "an index is too large: indices count from 0"),
    (r"shape '(.+)' is invalid for input of size (\d+)",
     "{1} numbers cannot have the shape {0}: take all sizes from the arguments, and reshape the "
     "tensor that has as many numbers"),
    (r"view size is not compatible", "after a transpose, view cannot be used: use reshape"),
    (r"[Ee]xpected .* same dtype|same dtype, but got|expected scalar type (\w+) but found",
     "tensors of different types meet, such as float and int: use .float()"),
    (r"not implemented for '(\w+)'|[Ii]nput dtype must be either a floating|Long did not match",
     "the numbers are whole: use .float() first"),
    (r"bitwise_not.*Float|unsupported operand type\(s\) for ~|only for floating|~ .*only",
     "~ is for tensors of True and False (torch.bool)"),
    (r"Negation.*bool", "a mask of True and False has no -: use ~mask"),
    (r"Boolean value of Tensor", "`if` asks a whole tensor: use torch.where, or .any() or .all()"),
    (r"only (?:one element|integer) tensors.*", "a tensor of many numbers is used as one number"),
    (r"requires grad", "a tensor requires a gradient: call .detach() first"),
    (r"maximum recursion depth", "the function calls itself without an end"),
    (r"division by zero", "something is divided by zero"),
)  # fmt: skip


def _sentence_of(
    problem: BaseException, name: str, arguments: tuple[Any, ...], raises: Mapping[str, str]
) -> str:
    """Return an error in the reader's function as one sentence: where, what, and what it means."""
    message = " ".join(str(problem).split())
    line = _line_of(problem)
    where = f" in `{line}`" if line else ""
    own = [sentence for pattern, sentence in raises.items() if re.search(pattern, message)]
    if isinstance(problem, KeyError):
        meaning = f"there is no {message} here: {_names_in(arguments)}"
    elif own:
        meaning = own[0]
    elif "must match the size" in message and re.fullmatch(r"[^@(]*\w \* \w[^@(]*", line):
        meaning = "* multiplies element by element; a product of matrices is @"
    else:
        meaning = _about_sizes(message) or _known_error(message)
    # The sizes of the arguments help where the error is not known.
    sizes = ", ".join(describe(argument) for argument in arguments)
    told = f"{name}({sizes}) raised {type(problem).__name__}{where}"
    if meaning:
        return f"{told}: {meaning}"
    return f"{told}: {message[:LONGEST]}" if message else told


def _names_in(arguments: tuple[Any, ...]) -> str:
    """Return the names that the dicts of the arguments have: "self (W_q, W_k), feed_forward"."""

    def named(value: Any) -> str:
        # Blocks of a list have the same names.
        if isinstance(value, list | tuple):
            return named(value[0]) if value else ""
        if not isinstance(value, dict):
            return ""
        parts = ((key, named(part)) for key, part in value.items())
        return ", ".join(f"{key} ({inner})" if inner else f"{key}" for key, inner in parts)

    names = "; ".join(filter(None, map(named, arguments)))
    return f"the names are {names}" if names else "print the keys to see the names"


def _line_of(problem: BaseException) -> str:
    """Return the line of the reader's code that raised an error; "" where it is not known."""
    own = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith("<frozen")
    ]
    # The first frame is that of the check.
    line = (own[-1].line or "") if len(own) > 1 else ""
    return line.strip().split("#")[0].strip()[:80]


def _known_error(message: str) -> str:
    for pattern, sentence in ERRORS:
        if found := re.search(pattern, message):
            groups = [group or "" for group in found.groups()]
            return sentence.format(*groups)
    return ""


def _about_sizes(message: str) -> str:
    """Return what sizes that do not fit say about the mistake; "" for another error."""
    product = re.search(r"cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", message)
    if product:
        a, b, c, d = map(int, product.groups())
        told = f"({a}, {b}) @ ({c}, {d}) have sizes that do not fit: {b} is not {c}"
        if b == d:
            return f"{told}; transpose the second, .mT"
        if a == c:
            return f"{told}; transpose the first, .mT"
        if a == d:
            return f"{told}; exchange their order, or transpose the second and not the first"
        return f"{told}; are these the matrices that belong together?"
    batched = re.search(r"batch2.*\[\d+, (\d+)\] but got: \[\d+, (\d+)\]", message)
    if batched:
        wanted, rows = batched.groups()
        return (
            f"in a product the second tensor needs {wanted} rows, and has {rows}: is it the one "
            "that belongs there, or to be transposed, .mT?"
        )
    vectors = re.search(r"size mismatch, got .*?, (\d+x\d+), ?(\d+)", message)
    if vectors:
        matrix, length = vectors.groups()
        return (
            f"a matrix of {matrix} and a vector of {length} have sizes that do not fit: an axis is "
            "gone or transposed"
        )
    sums = re.search(
        r"size of tensor a \((\d+)\) must match.* b \((\d+)\).*dimension (\d+)", message
    )
    if sums:
        size, other, axis = sums.groups()
        return (
            f"sizes {size} and {other} meet at axis {axis}, and do not fit: sum, mean and max drop "
            "their axis, so give keepdim=True or index with [:, None]; or one of the two is too "
            "long, and has to be cut"
        )
    return ""
