"""The worked examples as runs like any other: vectors in place of a model, whole words, cells that
can be edited.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

import torch
from torch import Tensor

from .. import attention as attentions
from ..recording.attention_call import AttentionCall
from ..recording.call_facts import KeepOptions
from ..recording.queries_keys_call import StepsCall
from ..recording.recording import Recording
from ..tasks.explaining.examples import EXAMPLES, Example, ExampleScene
from ..traces.numbers import shortest_numbers
from ..traces.trace import Trace
from ..traces.whole_words import Words
from .answers import ExampleFacts, ExampleInput, ExampleStep
from .requests import Refusal, unknown
from .run import AttentionView, Run

PREFIX = "example-"
NORMALIZERS = {"softmax": attentions.softmax, "by_sum": attentions.by_sum}
LARGEST_NUMBER = 1e6  # in a cell


def example_name(run: str) -> str | None:
    """Return the example that a run such as example-bank shows, or None."""
    name = run.removeprefix(PREFIX)
    return name if run.startswith(PREFIX) and name in EXAMPLES else None


def example_run(name: str, inputs: object = None, normalize: object = None) -> Run:
    """Return an example as a run, computed from other numbers where `inputs` are given: {"x":
    [[1.0, 0.0], …]}.

    Raises Refusal for an unknown example, normaliser or input, and for a cell that is no number.
    """
    name = name.removeprefix(PREFIX)
    if name not in EXAMPLES:
        raise unknown(f'there is no example "{name[:40]}"; there are {", ".join(EXAMPLES)}')
    # A list: JSON may hold what cannot be hashed.
    if normalize is not None and normalize not in list(NORMALIZERS):
        raise _bad(f"normalize must be one of {', '.join(NORMALIZERS)}")
    normalizer = NORMALIZERS[str(normalize or "softmax")]
    original = EXAMPLES[name](normalizer)
    given = {} if inputs is None else _check_inputs(original, inputs)
    example = EXAMPLES[name](normalizer, given) if given else original
    run = f"{PREFIX}{name}"
    if given or normalize not in (None, "softmax"):
        run += f"-{_hash(given, str(normalize))}"
    views = tuple(_view(at, scene) for at, scene in enumerate(example.scenes))
    if name == "bank":  # one picture for both: the same word moves to two places
        views = tuple(replace(view, beside=views) for view in views)
    facts = _describe(example, normalizer)
    return Run(run, run, "example", example.sentence, name, "steps", views, example=facts)


def run_of_trace(steps: Trace) -> Run:
    """Return a trace as a run of one attention."""
    scene = ExampleScene("Trace", "", steps, steps.query_tokens[0])
    words = " ".join(steps.key_tokens)
    return Run("trace", "trace", "sentence", words[:80], "trace", "steps", (_view(0, scene),))


def _view(number: int, scene: ExampleScene) -> AttentionView:
    """Return a scene as a view: its queries, keys and values, recorded as if a model had computed
    them.
    """
    steps = scene.trace
    name = f"scene.{number}"
    across = steps.query_tokens != steps.key_tokens and len(steps.query_tokens) > 1
    recording = Recording("example", [name], StepsCall.keep, KeepOptions())
    heads = tuple(range(steps.queries.shape[1]))
    recording.record(
        name,
        AttentionCall(
            steps.queries, steps.keys, steps.values, steps.attention, heads, 0.0, across=across
        ),
    )
    call = recording[name].call
    if scene.moves:
        assert isinstance(call, StepsCall)
        call.add_residual_stream(steps.values[:, 0], steps.context[:, 0])
    rows, columns = (_whole(tokens) for tokens in (steps.query_tokens, steps.key_tokens))
    return AttentionView(name, call, None, rows, columns, title=scene.title)


def _whole(tokens: tuple[str, ...]) -> Words:
    """Return words of one token each."""
    numbers = tuple(range(len(tokens)))
    return Words(names=tokens, word_ids=numbers, pieces=tokens, text_words=numbers)


def _describe(example: Example, normalizer: object) -> ExampleFacts:
    return ExampleFacts(
        name=example.name,
        origin=example.origin,
        normalize=next(name for name, one in NORMALIZERS.items() if one is normalizer),
        inputs=[
            ExampleInput(name, example.input_rows.get(name), shortest_numbers(matrix))
            for name, matrix in example.inputs.items()
        ],
        scenes=[
            ExampleStep(
                title=scene.title,
                caption=scene.caption,
                query=scene.trace.find(scene.query),
                findings=scene.findings,
                inputs=["x"] if scene.moves else list(example.inputs),
            )
            for scene in example.scenes
        ],
    )


def _check_inputs(example: Example, inputs: object) -> dict[str, Tensor]:
    """Return the inputs as matrices of the example's own shapes."""
    if not isinstance(inputs, Mapping):
        raise _bad('inputs must be {"x": [[…], …]}, rows of numbers by name')
    found = {}
    for name, rows in inputs.items():
        if name not in example.inputs:
            raise _bad(
                f'there is no input "{str(name)[:40]}"; there are {", ".join(example.inputs)}'
            )
        height, width = example.inputs[name].shape
        if (
            not isinstance(rows, list)
            or len(rows) != height
            or any(not isinstance(r, list) or len(r) != width for r in rows)
        ):
            raise _bad(f'"{name}" must be {height} rows of {width} numbers')
        for i, row in enumerate(rows):
            for j, x in enumerate(row):
                number = isinstance(x, int | float) and not isinstance(x, bool)
                if (
                    not number or not abs(x) <= LARGEST_NUMBER
                ):  # NaN is not; an int may be too large to become a float
                    raise _bad(
                        f'"{name}", row {i}, column {j}: {str(x)[:20]} is not a number from -1e6 '
                        "to 1e6"
                    )
        found[name] = torch.tensor(rows, dtype=torch.float32)
    return found


def _hash(given: Mapping[str, Tensor], normalize: str) -> str:
    contents = {name: matrix.tolist() for name, matrix in sorted(given.items())}
    return sha256(json.dumps([contents, normalize]).encode()).hexdigest()[:12]


def _bad(message: str) -> Refusal:
    return Refusal(400, "bad-json", message)
