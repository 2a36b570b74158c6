"""The page's worked examples are those of Python: the file that tools/worked_examples.py writes is current."""

import importlib.util
from math import tanh
from pathlib import Path

import pytest

import telescope as ts
from telescope.tasks import EXAMPLES

TOOL = Path(__file__).parents[3] / "tools/worked_examples.py"


def test_the_written_file_is_current():
    spec = importlib.util.spec_from_file_location("worked_examples", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.FILE.read_text(encoding="utf-8") == tool.contents(), "python tools/worked_examples.py writes it"


def test_luong_has_three_scores():
    """s·h, s W_a h and v_a·tanh(W_s s + W_h h), by hand for liebe, (0, 3, 0.5), and love, (0, 1, 0.2)."""
    scenes = EXAMPLES["luong"](ts.softmax).scenes
    assert [scene.trace.attention.score.formula for scene in scenes] == ["q·k", "q·W·k", "v·tanh(W_q q + W_k k)"]
    by_hand = (3 + 0.1, 2 * 3 + 0.5 * 0.1, -4 * (tanh(0) + tanh(1.5 + 1.5) + tanh(0.25 + 0.3)))
    for scene, score in zip(scenes, by_hand, strict=True):
        assert scene.trace.scores[0, 0, 1, 1].item() == pytest.approx(score, rel=1e-6)
        # Each score aligns the words as a translation does.
        assert scene.trace.weights[0, 0].argmax(-1).tolist() == [0, 1, 2]
