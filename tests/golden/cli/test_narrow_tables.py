"""Tables of the command line on a terminal of 80 columns: a number is whole, or its column is named below."""

import re

import pytest
from rich.console import Console

from telescope.atlases.compare import Comparison, HeadChange
from telescope.health.report import HeadHealth, HealthReport
from telescope.measures import Head
from telescope.recording.heads import Heads
from telescope.tasks.doctor import DTYPES, Finding, Report, draw

SHARES = ("itself", "previous", "first", "sink", "same", "induction", "punctuation", "far")


def printed(renderable, width=80):
    console = Console(width=width, color_system=None, file=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def heads(kind="first"):
    shares = dict.fromkeys(SHARES, 0.1234)
    return Heads(
        [
            Head(layer=f"decoder.{layer}.cross", number=number, kind=kind, **shares, spread=10.25)
            for layer in range(2)
            for number in range(12)
        ]
    )


def test_heads_at_80_columns():
    """Every head has its name, its kind, and whole percentages; what found no room is named."""
    lines = printed(heads())
    head = lines[0].split()
    rows = [line.split() for line in lines[1:25]]
    assert [row[:3] for row in rows] == [[f"decoder.{at // 12}.cross", str(at % 12), "first"] for at in range(24)]
    assert all(len(row) == len(head) for row in rows)
    assert all(re.fullmatch(r"12%|10\.2|10\.3", cell) for row in rows for cell in row[3:])
    (caption,) = [line for line in lines if line.startswith("no room for")]
    left_out = {name for name in (*SHARES, "spread") if name not in head}
    assert left_out
    assert all(name in caption for name in left_out)
    assert "…" not in "".join(lines)


def test_heads_at_120_columns_have_every_column():
    lines = printed(heads(), 120)
    assert lines[0].split() == ["layer", "head", "kind", *SHARES, "spread"]
    assert not any("no room" in line for line in lines)


@pytest.mark.parametrize("kind", ["same", "far", "punctuation"])
def test_the_column_of_a_kind_is_left_out_last(kind):
    assert kind in printed(heads(kind))[0].split()


def test_a_comparison_of_atlases_at_80_columns():
    change = HeadChange("encoder.layer.11.self", 11, "induction", "punctuation", "punctuation", 0.4, 0.93, 12.34, 0.56)
    lines = printed(Comparison([change] * 3))
    head = lines[0].split()
    row = lines[1].split()
    assert row[:2] == ["encoder.layer.11.self", "11"]
    assert "induction → punctuation" in lines[1]
    numbers = dict(zip(head[-(len(row) - 6) :], row[6:], strict=True))
    assert (
        numbers.items() <= {"before": "40%", "after": "93%", "change": "+53%", "errors": "12.3", "moved": "56%"}.items()
    )
    assert "change" in numbers
    assert printed(Comparison([change]), 140)[0].split() == [
        *("layer", "head", "kind", "habit", "before", "after", "change", "errors", "moved")
    ]


def test_the_health_of_a_model_at_80_columns():
    layer = HeadHealth(logit=(123.4, 5711.9), entropy=(1.25, 0.125), one_key=(0.99, 0.25))
    lines = printed(HealthReport(1200, {"encoder.layer.11.self": layer}))
    assert lines[-1].split() == ["encoder.layer.11.self", "5711.9", "0.12", "99%", "1", "0"]
    words = " ".join(lines).split()
    assert {"largest", "logit", "smallest", "entropy", "one", "key", "dead", "collapsed"} <= {*words}


def test_the_doctor_at_80_columns():
    errors = {str(dtype)[6:]: 1.5e-7 for dtype in DTYPES}
    findings = (
        Finding("flash-attention-3", errors=errors, rows="1.0000", ms=1234.56),
        Finding("cudnn", missing="this machine has no GPU, and cuDNN runs on one alone"),
    )
    text = "\n".join(printed(draw(Report("torch 2.15", "2 x 8 x 1024", findings))))
    assert text.count("1e-07") + text.count("2e-07") == len(errors)
    assert "1234.56" in text
    assert "1.0000" in text
    assert "…" not in text
