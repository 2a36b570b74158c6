"""The output while a model trains: on a terminal, elsewhere, and in TensorBoard."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from support.learning import learn, pairs, transformer
from telescope.training import (
    Examples,
    Finished,
    HeadsWatched,
    Logged,
    Saved,
    Started,
    Stopped,
    Validated,
    format_duration,
)
from telescope.training.reports import ProgressBar, format_event, print_event, tensorboard

LOGGED = Logged(
    step=1200, steps=8000, epoch=2, loss=5.83456, lr=0.00123, norm=0.871, tokens_per_second=1912.0, seconds_left=10260.0
)
EVENTS = [
    (
        Started(step=100, steps=8000, parameters=2_601_234, data="29,000 examples", device="cuda:0", processes=1),
        "2.6M parameters   29,000 examples   cuda:0   8,000 steps   going on from step 100",
    ),
    (LOGGED, "step 1,200  loss 5.8346  lr 1.23e-03  norm 0.87  1.9k tokens/s  2 h 51 min left"),
    (
        Validated(1200, {"loss": 2.0, "bleu": 38.123456}, True),
        "step 1,200  validation  loss 2.0000  bleu 38.1235  best so far",
    ),
    (
        HeadsWatched(1200, {"encoder.0.self": (0.01, 1.2)}, {"encoder.0.self": (3.0, 41.26)}),
        "step 1,200  attention  largest logit 41.3 (encoder.0.self)  heads that attend to one key alone: 1",
    ),
    (Stopped(step=131, saved=100), "stopped at step 131; the same command goes on from step 100"),
    (Finished(step=8000, kept=7600), "finished at step 8,000 with the weights of step 7,600"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "printed"), EVENTS)
def test_an_event_is_one_line(event, printed):
    assert format_event(event) == printed


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [(0.4, "0 s"), (89.0, "89 s"), (95.0, "2 min"), (3599.0, "1 h 0 min"), (7300.0, "2 h 2 min")],
)
def test_time_left(seconds, printed):
    assert format_duration(seconds) == printed


def test_plain_lines_go_to_standard_error(capsys):
    print_event(LOGGED)
    assert capsys.readouterr() == ("", f"{format_event(LOGGED)}\n")


def test_a_terminal_has_one_line_that_is_redrawn():
    """Logged steps are drawn over; results stay."""
    shown = io.StringIO()
    moving = ProgressBar(Console(file=shown, force_terminal=True, width=140, color_system=None))
    for event, _ in EVENTS:
        moving(event)
    moving(Saved(1300, Path("out")))
    assert "loss 5.8346" in shown.getvalue()
    assert "\x1b[2K" in shown.getvalue()  # the line is erased
    assert "validation  loss 2.0000" in shown.getvalue()
    assert "saved" not in shown.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("on_cpu")
def test_tensorboard_has_every_number_once(tmp_path):
    """Though the run was stopped, and reported some steps twice."""
    events_of = "tensorboard.backend.event_processing.event_accumulator"
    EventAccumulator = pytest.importorskip(events_of, reason="the train extra is not installed").EventAccumulator

    data = Examples(*pairs())

    def stop(event):
        keep(event)
        if isinstance(event, Logged) and event.step == 3:
            keep(Stopped(3, 2))
            raise KeyboardInterrupt

    how = {"steps": 5, "save_every": 2, "watch_every": 2, "validate": lambda model: {"loss": 1.5}, "validate_every": 4}
    keep = tensorboard(tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        learn(transformer(), data, tmp_path, on_event=stop, **how)
    _, events = learn(transformer(), data, tmp_path, on_event=tensorboard(tmp_path / "log"), **how)
    found = EventAccumulator(str(tmp_path / "log"))
    found.Reload()
    assert [scalar.step for scalar in found.Scalars("train/loss")] == [1, 2, 3, 4, 5]
    logged = [event.loss for event in events if isinstance(event, Logged)]
    assert [scalar.value for scalar in found.Scalars("train/loss")][2:] == pytest.approx(logged)
    assert [scalar.step for scalar in found.Scalars("entropy/decoder.0.cross.1")] == [2, 4]
    assert [scalar.step for scalar in found.Scalars("largest_logit/encoder.0.self.0")] == [2, 4]
    assert [scalar.value for scalar in found.Scalars("validation/loss")] == [1.5, 1.5]
