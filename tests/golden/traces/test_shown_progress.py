"""A long call says how far it is: a bar on a terminal, a line now and then elsewhere, nothing if it shall not."""

import io

import pytest
import torch

import telescope as ts
from telescope.tasks import doctor
from telescope.traces import progress, showing_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stderr(monkeypatch):
    """Replace standard error by a log file's, or by a terminal's."""

    def replace(kind=io.StringIO):
        written = kind()
        monkeypatch.setattr("sys.stderr", written)
        monkeypatch.setenv("TERM", "xterm")
        return written

    return replace


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def count_to_ten(clock, given, seconds):
    """Call ten steps of so many seconds."""
    with showing_progress("work", given) as advance:
        for step in range(1, 11):
            clock[0] += seconds
            advance(step / 10, f"{step} of 10")


def test_a_log_gets_a_line_a_minute(stderr, clock):
    written = stderr()
    count_to_ten(clock, None, 30.0)
    assert written.getvalue().splitlines() == [
        "work 20%   2 of 10   4 min left",  # 60 seconds are a fifth
        "work 40%   4 of 10   3 min left",
        "work 60%   6 of 10   2 min left",
        "work 80%   8 of 10   60 s left",
        "work 100%   10 of 10",
    ]


def test_what_was_asked_for_comes_six_times_a_minute(stderr, clock):
    written = stderr()
    count_to_ten(clock, True, 5.0)
    assert [line.split()[1] for line in written.getvalue().splitlines()] == ["20%", "40%", "60%", "80%", "100%"]


def test_a_short_call_is_silent(stderr, clock):
    written = stderr()
    count_to_ten(clock, None, 1.0)
    assert written.getvalue() == ""


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_false_is_silent(stderr, clock, kind):
    written = stderr(kind)
    count_to_ten(clock, False, 1000.0)
    assert written.getvalue() == ""


@pytest.mark.parametrize("given", [None, True])
def test_a_terminal_gets_a_bar(stderr, given):
    written = stderr(Terminal)
    with showing_progress("work", given) as advance:
        advance(0.5, "[5] of 10")
    assert "work" in written.getvalue()
    assert "50%" in written.getvalue()
    assert "[5] of 10" in written.getvalue()  # no markup
    assert written.getvalue().endswith("\x1b[2K")  # and is removed


@pytest.fixture
def every_line(monkeypatch):
    """No pause between two lines."""
    monkeypatch.setattr(progress, "PAUSE_ASKED", 0.0)


MODEL = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)


def test_effect_counts_edits(stderr, every_line):
    model = ts.models.GPT(MODEL).eval()
    ids = torch.tensor([[1, 2, 3]])
    written = stderr()
    ts.effect(model, ids, ts.mute.each(model), progress=True)
    assert written.getvalue() == "effect 100%   2 of 2 edits\n"
    for given in (None, False):
        ts.effect(model, ids, ts.mute.each(model), progress=given)
    assert written.getvalue().count("\n") == 1


TEXTS = ["To be, or not to be, that is the question."] * 3


def test_an_atlas_counts_texts_and_tokens(stderr, every_line):
    model = ts.load("shakespeare")
    written = stderr()
    atlas = ts.atlas(model, TEXTS, batch=1, shard=1, progress=True)
    lines = written.getvalue().splitlines()
    assert [line.split("   ")[0] for line in lines] == ["atlas 0%", "atlas 33%", "atlas 67%"]
    each = atlas.tokens // 3
    read = [f"1 text, {each} tokens, ", f"2 texts, {2 * each} tokens, ", f"3 texts, {3 * each} tokens, "]
    assert all(said in line for said, line in zip(read, lines, strict=True))
    assert all(line.split("   ")[1].endswith(" tokens/s") for line in lines)


@pytest.mark.parametrize("given", [None, False])
def test_a_report_of_ones_own_stands_for_the_bar(stderr, given):
    written = stderr(Terminal)
    seen = []
    ts.atlas(ts.load("shakespeare"), TEXTS, report=seen.append, progress=given)
    assert seen[-1].texts == 3
    assert written.getvalue() == ""


def test_the_doctor_names_what_it_checks(stderr, every_line, monkeypatch):
    checks = [*doctor.engine_checks(torch.device("cpu"), every=False)]
    named = [check for check in checks if check.name.endswith(("sdpa (math)", "chunked"))]
    monkeypatch.setattr(doctor, "engine_checks", lambda device, every: named)
    monkeypatch.setattr(doctor, "survey_cost", lambda device: "")
    written = stderr()
    report = doctor.check_engines(torch.device("cpu"), progress=True)
    lines = written.getvalue().splitlines()
    steps = len(named) + 1
    said = [" ".join(check.name.split()) for check in named]
    assert [line.split("   ")[1] for line in lines] == [*said, "cost of a survey"]
    assert [line.split()[1] for line in lines] == [f"{done / steps:.0%}" for done in range(steps)]
    assert report.healthy
    doctor.check_engines(torch.device("cpu"), progress=False)
    assert len(written.getvalue().splitlines()) == steps
