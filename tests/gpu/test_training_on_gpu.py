"""On a GPU: a captured, compiled or bfloat16 step learns what a plain one does, and a stopped run resumes."""

import pytest
import torch

from support.learning import gpt, learn, losses, luong, pairs, transformer
from telescope.training import Examples, Logged, TrainingError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("unchecked", "on_gpu"),  # models compile
    pytest.mark.filterwarnings("ignore"),  # torch, while it compiles
]
WAYS = {
    "captured": {"capture": True},
    "compiled": {"compile": True},
    "both": {"capture": True, "compile": True},
}
RUN = {"steps": 24, "tokens": 128, "clip": 1.0, "warmup": 4, "label_smoothing": 0.1, "weight_decay": 0.1}


@pytest.fixture
def on_gpu():
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def data(model):
    sources, targets = pairs(40, longest=20)  # three shapes and more
    return Examples(targets) if model is gpt else Examples(sources, targets)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [gpt, transformer])
def test_every_mode_has_the_same_losses(make, way, tmp_path):
    _, plain = learn(make(), data(make), tmp_path / "plain", **RUN)
    _, other = learn(make(), data(make), tmp_path / "other", **RUN, **WAYS[way])
    assert losses(other) == pytest.approx(losses(plain), rel=2e-3)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("way", ["captured", "both"])
def test_lower_precision_has_nearly_the_same_losses(way, precision, tmp_path):
    _, plain = learn(transformer(), data(transformer), tmp_path / "plain", **RUN)
    _, half = learn(transformer(), data(transformer), tmp_path / "half", precision=precision, **RUN, **WAYS[way])
    assert losses(half) == pytest.approx(losses(plain), rel=5e-2)


def test_a_captured_step_draws_dropout_anew(tmp_path):
    """The same batch repeatedly, at a learning rate that changes nothing: only dropout makes the losses differ."""
    how = {"steps": 8, "rows": 12, "tokens": None, "lr": 1e-12, "capture": True}
    _, events = learn(transformer(dropout=0.3), Examples(*pairs(12)), tmp_path, **how)
    assert len(set(losses(events).values())) == 8


@pytest.mark.parametrize("way", ["captured", "both"])
def test_a_resumed_run_has_the_same_losses(way, tmp_path):
    def stop(event):
        if isinstance(event, Logged) and event.step == 15:
            raise KeyboardInterrupt

    def made():
        return transformer(dropout=0.2), data(transformer)

    run = RUN | WAYS[way] | {"save_every": 4}
    _, unbroken = learn(*made(), tmp_path / "whole", **run)
    with pytest.raises(KeyboardInterrupt):
        learn(*made(), tmp_path / "out", on_event=stop, **run)
    _, after = learn(*made(), tmp_path / "out", **run)
    assert min(losses(after)) == 13
    expected = {step: loss for step, loss in losses(unbroken).items() if step > 12}
    assert losses(after) == pytest.approx(expected, rel=1e-4)


def test_an_lstm_of_packed_sentences_cannot_be_captured(tmp_path):
    with pytest.raises(TrainingError, match=r"cannot be captured.*capture = false"):
        learn(luong(), Examples(*pairs(12)), tmp_path, steps=5, rows=12, tokens=None, capture=True)
