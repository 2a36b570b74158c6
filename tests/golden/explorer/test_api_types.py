"""The page's types and the API's reference are those of the dataclasses that the explorer answers with."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from telescope.explorer.answers import ABSENT, Absent, Answer, Columns, Scores, to_json

TOOL = Path(__file__).parents[3] / "tools" / "api_types.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("api_types", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_written_files_are_current(tool):
    for path, make in tool.FILES.items():
        assert path.read_text(encoding="utf-8") == make(), f"python tools/api_types.py writes {path.name}"


@dataclass(frozen=True)
class Part(Answer):
    """A part.

    p  its probability, which
       may be null
    """

    p: float | None


@dataclass(frozen=True)
class Whole(Answer):
    """A whole."""

    exact = True
    with_: Sequence[Part]
    steps: Scores
    place: tuple[int, float] | None
    shares: Sequence[float | None]
    by_name: dict[str, str | None]
    h: int | str
    names: Sequence[str] | Absent = ABSENT
    more: Columns | None = None


def test_unions_and_nullable_fields_by_hand(tool):
    kinds = dict(tool.keys_of(Whole))
    assert kinds == {
        "with": "Part[]",
        "steps": "JsonNumber[]",
        "place": "[number, number] | null",
        "shares": "(number | null)[]",
        "by_name": "Record<string, string | null>",
        "h": "number | string",
        "names?": "string[]",
        "more": "Columns | null",
    }
    assert tool.described(Part) == ("A part.", {"p": "its probability, which may be null"})


def test_an_answer_as_json_by_hand():
    third = 1 / 3
    steps = torch.tensor([third, -torch.inf], dtype=torch.float64)
    whole = Whole([Part(third), Part(None)], steps, (1, 0.5), [None, third], {"a": None}, "mean", more=Columns(n=1))
    assert list(to_json(whole)) == ["with", "steps", "place", "shares", "by_name", "h", "n"]
    assert to_json(whole) == {
        "with": [{"p": third}, {"p": None}],
        "steps": [third, "-inf"],
        "place": [1, 0.5],
        "shares": [None, third],
        "by_name": {"a": None},
        "h": "mean",
        "n": 1,
    }
    assert to_json(Part(third)) == {"p": 0.3333333}  # the digits of float32, unless all are wanted
    assert to_json([float("nan"), float("inf")]) == ["nan", "inf"]
