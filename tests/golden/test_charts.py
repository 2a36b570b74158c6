"""Charts of a page are drawn from its own tables."""

import re

import pytest
from tools import charts

from support.repository import HOME

TABLE = "| | a | b |\n|---|---|---|\n| one | 1.0 | 2.0 to 4.0 |\n| two | | 12 ms |\n"


def widths(drawing):
    return [float(width) for width in re.findall(r'<rect class="bar-\d" x="230" y="\d+" width="([\d.]+)"', drawing)]


def test_a_chart_stands_above_its_table():
    page = charts.with_charts(f'# P\n\n<!-- chart: columns 1 2, unit "times", mark 6 -->\n{TABLE}\ntext\n')
    drawing, _, rest = page.partition("</svg>")
    assert rest == f"\n\n{TABLE}\ntext\n"
    _, *bars = [round(width / 460, 4) for width in widths(drawing)]  # the first square is the legend's
    assert bars == [round(1 / 12, 4), 0.25, 1.0]  # 3 is the mean of 2 and 4; the empty cell has no bar
    assert "2.0 to 4.0</text>" in drawing
    assert 'aria-label="a, b: times"' in drawing
    assert '<line class="mark" x1="460.0"' in drawing  # half of the room


def test_a_logarithmic_chart_begins_at_half_the_smallest_number():
    drawing = charts.with_charts(f'<!-- chart: columns 2, unit "ms", names "time", log -->\n{TABLE}')
    _, first, second = widths(drawing)
    assert second == 460.0
    assert first == pytest.approx(460 / 3, abs=0.1)  # ln 2 of ln 8
    assert ">time</text>" in drawing


def test_a_table_without_numbers_is_no_chart():
    with pytest.raises(ValueError, match="hold no numbers to draw"):
        charts.with_charts('<!-- chart: columns 1, unit "x" -->\n| | a |\n|---|---|\n| one | none |\n')


def test_the_benchmarks_have_charts():
    text = (HOME / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    drawn = charts.with_charts(text)
    assert drawn.count("<svg") == text.count("<!-- chart:") >= 8
