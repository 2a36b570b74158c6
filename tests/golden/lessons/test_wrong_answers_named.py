"""Wrong answers are told their mistake, right ones pass however they are written, and what is no answer at all gets one
sentence.
"""

import asyncio
import contextlib
import io
import re
import warnings

import pytest
import torch
from torch import nn

from support.answers import latent, looking_inside, one_attention, several_heads, training, whole_models
from support.answers.right import RIGHT
from telescope.lessons import WrongAnswer, check

WRONG = {
    **one_attention.WRONG,
    **several_heads.WRONG,
    **whole_models.WRONG,
    **looking_inside.WRONG,
    **training.WRONG,
    **latent.WRONG,
}
VALUES = (check.negative_weight, check.even_weights, check.towards)  # take numbers, not a function
LONGEST = 600  # characters of a reply


@pytest.fixture(autouse=True)
def as_in_a_notebook():
    """A warning that a reader's own code gives is not an error; the checks run on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def reply(judge, solution):
    """Return what a check says of a wrong answer, or "" where it passes."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            judge(solution)
        except WrongAnswer as wrong:
            return str(wrong)
    return ""


def test_every_check_has_wrong_answers_and_a_right_one():
    checks = {getattr(check, name) for name in check.__all__}
    assert set(WRONG) == set(RIGHT) == checks
    assert min(map(len, WRONG.values())) >= 12
    assert sum(map(len, WRONG.values())) >= 1000


def test_wrong_answers_get_a_specific_diagnosis():
    """Measure the share of replies that name the mistake: `pytest -s` prints it, and each other reply."""
    answers = [(judge, *row) for judge, rows in WRONG.items() for row in rows]
    replies = [(judge.__name__, label, words, reply(judge, solution)) for judge, label, solution, words in answers]
    passed = [f"{name}: {label}" for name, label, _, said in replies if not said]
    other = [row for row in replies if not re.search(row[2], row[3])]
    share = 1 - len(other) / len(replies)
    print(f"\n{share:.1%} of {len(replies)} wrong answers get a specific diagnosis; the others:")
    for name, label, _, said in other:
        print(f"  {name}, {label}: {said}")
    assert not passed
    assert share >= 0.95
    # One or two sentences on one line, and never the whole error.
    assert all("\n" not in said and len(said) <= LONGEST for *_, said in replies)


@pytest.mark.parametrize("judge", RIGHT, ids=lambda judge: judge.__name__)
def test_a_right_answer_passes_however_it_is_written(judge):
    said = {label: reply(judge, solution) for label, solution in RIGHT[judge]}
    assert not any(said.values()), said


class Solution:
    def __init__(self, *arguments):
        """A class in place of a function."""


def raises(*arguments):
    raise ValueError("two\nlines")


def leaves(*arguments):
    raise SystemExit


def yields(*arguments):
    yield arguments[0]


async def waits(*arguments):
    await asyncio.sleep(0)


def recurses(*arguments):
    return recurses(*arguments)


def begun(*arguments):
    return ...


# What may stand in the place of a function, with words of the reply.
NO_FUNCTIONS = {
    "nothing": (None, "should be a function"),
    "an int": (3, "should be a function, and is int 3"),
    "a list": ([1.0], "give the function itself"),
    "a tensor": (torch.zeros(3), "give the function itself"),
    "a class": (Solution, "is the class Solution"),
    "a generator": (yields, "is a generator"),
    "a coroutine": (waits, "is a coroutine"),
    "no parameters": (lambda: 0, "define it as"),
    "many parameters": (lambda a, b, c, d, e, f, g, h, i: 0, "define it as"),
    "raises": (raises, "raised ValueError .*two lines"),
    "leaves": (leaves, "raised SystemExit"),
    "recurses": (recurses, "calls itself without an end"),
    "not begun": (begun, "is not written yet"),
    "prints": (lambda *arguments: print("12"), "returned nothing|always returned nothing"),
}
# What a function may return in place of the answer.
RESULTS = {
    "a text": "answer",
    "an empty list": [],
    "a ragged list": [[1.0], [1.0, 2.0]],
    "a dict": {"answer": 1},
    "a class": Solution,
    "a function": raises,
    "an iterator": iter([1.0]),
    "a bool": True,
    "nan": float("nan"),
    "infinity": float("inf"),
    "a complex number": 1j,
    "a wrong shape": torch.zeros(2, 7, 3, 1),
    "an empty tensor": torch.zeros(0),
    "NaN": torch.full((3, 5), torch.nan),
    "complex numbers": torch.zeros(3, dtype=torch.complex64),
    "no device": torch.zeros(3, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "a pair": (torch.zeros(3), torch.zeros(3)),
    "a pair of texts": ("a", "b"),
    "a pair of NaN": (torch.full((4, 3), torch.nan), torch.full((4, 3), torch.nan)),
    "numpy": torch.ones(3, 5).numpy(),
}
functions = pytest.mark.parametrize(
    "judge", [judge for judge in WRONG if judge not in VALUES], ids=lambda judge: judge.__name__
)


@functions
@pytest.mark.parametrize("kind", NO_FUNCTIONS)
def test_what_is_no_solution_gets_one_sentence(judge, kind):
    solution, words = NO_FUNCTIONS[kind]
    said = reply(judge, solution)
    assert re.search(words, said)
    assert "\n" not in said


@functions
def test_what_is_no_answer_gets_one_sentence(judge):
    for kind, result in RESULTS.items():
        said = reply(judge, lambda *arguments, result=result: result)
        assert said, kind
        assert "\n" not in said, kind
        assert len(said) <= LONGEST, kind


@pytest.mark.parametrize("judge", VALUES, ids=lambda judge: judge.__name__)
def test_numbers_that_are_none_get_one_sentence(judge):
    for kind, value in {**RESULTS, "nothing": None, "dots": ..., "an int": 3}.items():
        said = reply(judge, value)
        assert said, kind
        assert "\n" not in said, kind


def changed_answer(judge, change):
    """Return the lesson's solution, whose result is changed."""
    solution = RIGHT[judge][0][1]
    return lambda *arguments: change(solution(*arguments))


def tensors(change):
    """Return a change of a result that leaves out what is no tensor."""

    def changed(result):
        if isinstance(result, tuple):
            return tuple(map(changed, result))
        return change(result) if isinstance(result, torch.Tensor) else result

    return changed


@functions
def test_a_right_answer_may_be_float64_or_require_a_gradient(judge):
    for change in (torch.Tensor.double, lambda result: result.float().requires_grad_()):
        if judge is not check.causal_mask:
            assert not reply(judge, changed_answer(judge, tensors(change)))


@functions
def test_a_right_answer_that_is_no_tensor_is_told_so(judge):
    exempt = {check.two_readings, check.reads, check.corrupt, check.clipped}
    for change, words in (
        (torch.Tensor.numpy, "numpy"),
        (torch.Tensor.tolist, "list"),
        (lambda result: result[None], "axis|shape"),
        (lambda result: torch.full_like(result, torch.nan), "NaN|vanish|overflow|infinite"),
    ):
        solution = RIGHT[judge][0][1]
        seen = []

        def noted(*arguments, solution=solution, change=change, seen=seen):
            result = solution(*arguments)
            # A number has no axis, and True and False are no NaN.
            fits = isinstance(result, torch.Tensor) and result.ndim and result.is_floating_point()
            seen.append(fits)
            return change(result) if fits else result

        said = reply(judge, noted)
        if all(seen) and judge not in exempt:
            assert re.search(words, said), said


@functions
def test_an_argument_that_is_changed_in_place_is_named(judge):
    solution = RIGHT[judge][0][1]
    touched = []

    def in_place(*arguments):
        result = solution(*arguments)
        for argument in arguments:
            if isinstance(argument, list):
                argument.append(argument[0])
                touched.append(argument)
                break
            if isinstance(argument, torch.Tensor) and argument.is_floating_point():
                argument.add_(1.0)
                touched.append(argument)
                break
        return result

    said = reply(judge, in_place)
    assert not touched or "in place" in said


def test_a_module_is_a_function():
    class Scores(nn.Module):
        def forward(self, x):
            return x @ x.mT

    assert not reply(check.scores, Scores())


def test_an_error_names_the_readers_line(tmp_path):
    source = tmp_path / "solution.py"
    source.write_text("def softmax(scores):\n    return scores / scores.sum(-1)  # no keepdim\n", encoding="utf-8")
    names = {}
    exec(compile(source.read_text(encoding="utf-8"), source, "exec"), names)
    said = reply(check.softmax, names["softmax"])
    assert "in `return scores / scores.sum(-1)`" in said
    assert "keepdim=True" in said
