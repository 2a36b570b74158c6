"""Errors in training are one sentence, and the last good checkpoint is kept."""

import json
import os
import re
import resource
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.learning import gpt, learn, losses, luong, pairs, transformer
from telescope import training
from telescope.models import LoadError
from telescope.training import Examples, Logged, Saved, Training, TrainingError, Windows
from telescope.training.objectives import Criterion, Learner
from telescope.training.processes import shard
from telescope.training.reports import tensorboard

pytestmark = pytest.mark.usefixtures("on_cpu")


def says(*words):
    return "(?s)" + ".*".join(map(re.escape, words))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stepz": 3}, ['Training has no field "stepz"', 'did you mean "steps"']),
        ({"tokens": 5}, ["steps or epochs", "neither"]),
        ({"steps": 5, "epochs": 2, "rows": 1}, ["steps or epochs", "both"]),
        ({"steps": 5}, ["tokens or rows", "neither"]),
        ({"steps": 0, "rows": 1}, ["steps=0", "at least 1"]),
        ({"steps": 1, "rows": 1, "lr": 0.0}, ["lr=0.0", "above zero"]),
        ({"steps": 1, "rows": 1, "schedule": "cosin"}, ['schedule="cosin"', 'did you mean "cosine"']),
        ({"steps": 1, "rows": 1, "label_smoothing": 1.0}, ["label_smoothing=1.0", "below 1"]),
        ({"steps": 1, "rows": 1, "warmup": -1}, ["warmup=-1"]),
        ({"steps": 1, "rows": 1, "clip": float("nan")}, ["clip=nan"]),
        ({"steps": 1, "rows": 1, "agreement": -1.0}, ["agreement=-1.0", "0, which switches it off, or above"]),
        ({"steps": 1, "rows": 1, "save_every": 0}, ["save_every=0"]),
        ({"steps": 1, "rows": 1, "seed": "1"}, ["seed='1' is str", "int"]),
        ({"steps": 1, "rows": 1, "capture": True, "accumulate": 2}, ["capture", "accumulate=2"]),
    ],
)
def test_settings_that_do_not_fit(fields, words):
    with pytest.raises((TypeError, ValueError), match=says(*words)):
        Training(**fields)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([], ["0 columns"]),
        ([[]], ["no examples"]),
        ([[[1], [2]], [[1, 2]]], ["2 sources and 1 targets"]),
        ([[[1], []], [[1, 2], [1, 2]]], ["source 1 has 0 ids", "at least 1"]),
        ([[[1], [1]], [[1, 2], [1]]], ["target 1 has 1 ids", "at least 2"]),
        ([[[1, 2], [3, -4, 5]]], ["text 1 has the id -4", "0 and above"]),
        ([[[1, 2.5]]], ["texts are torch.float32", "whole numbers"]),
    ],
)
def test_examples_of_a_wrong_form(columns, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=says(*words)):
        Examples(*columns)


@pytest.mark.parametrize(
    ("ids", "block", "words"),
    [
        ([1, 2, 3], 3, ["block=3", "text of 3 ids", "1 to 2"]),
        ([1, 2, 3], 0, ["block=0"]),
        ([1, -2, 3], 1, ["ids has -2"]),
        ([[1, 2], [3, 4]], 1, ["shape (2, 2)"]),
        ([1.0, 2.0], 1, ["torch.float32"]),
    ],
)
def test_texts_without_windows(ids, block, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=says(*words)):
        Windows(ids, block)


def test_an_id_outside_of_the_vocabulary(tmp_path):
    with pytest.raises(ValueError, match=says("the data has the id 20", "0 to 19")):
        learn(transformer(), Examples([[20]], [[1, 2]]), tmp_path)


def test_a_criterion_must_name_its_direction():
    assert Criterion.parse("highest bleu") == Criterion("bleu", lower=False)
    with pytest.raises(ValueError, match=says('better="bleu"', '"highest bleu" does')):
        Criterion.parse("bleu")


def test_a_validation_without_the_figure_that_decides(tmp_path):
    with pytest.raises(ValueError, match=says("validation returns bleu", 'not "loss"')):
        learn(transformer(), Examples(*pairs()), tmp_path, validate=lambda model: {"bleu": 1.0}, steps=1)


# --------------------------------------------------------------------------------------------------- numbers that end


@pytest.fixture
def learning(monkeypatch):
    """Return the list of models that are trained, which are copies of the given ones."""
    models = []

    def learner(model, *rest):
        models.append(model)
        return Learner(model, *rest)

    monkeypatch.setattr("telescope.training.loop.Learner", learner)
    return models


def test_a_loss_of_nan_keeps_the_last_good_checkpoint(learning, tmp_path):
    data = Examples(pairs()[1])

    def poison(event):
        if event == Saved(4, tmp_path / "checkpoints" / "step-00000004"):
            with torch.no_grad():
                learning[0].norm.weight.fill_(torch.nan)

    with pytest.raises(TrainingError, match=says("at step 5 the loss is nan", "of step 4 is kept", "lower lr")):
        learn(gpt(), data, tmp_path, save_every=2, steps=8, on_event=poison)
    _, events = learn(gpt(), data, tmp_path, save_every=2, steps=8)
    assert set(losses(events)) == {5, 6, 7, 8}


def test_weights_of_nan_are_not_saved(learning, tmp_path):
    """The error comes when they are to be saved, though no loss was logged in between."""

    def poison(event):
        if isinstance(event, Saved) and event.step == 2:
            with torch.no_grad():
                learning[0].embedding.weight[0, 0] = torch.inf

    with pytest.raises(TrainingError, match=says("at step 3 weights are no longer numbers", "step 2 is kept")):
        learn(gpt(), Examples(pairs()[1]), tmp_path, save_every=1, log_every=2, steps=8, on_event=poison)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000002"]


# ------------------------------------------------------------------------------------------------------- checkpoints


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path):
    data, limits = Examples(*pairs()), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event):
        if isinstance(event, Logged) and event.step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))  # no file can be larger

    try:
        with pytest.raises(TrainingError, match=says("step-00000004 cannot be", "file too large", "step 2 is kept")):
            learn(transformer(), data, tmp_path, save_every=2, on_event=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000002"]
    _, unbroken = learn(transformer(), data, tmp_path / "whole")
    _, events = learn(transformer(), data, tmp_path, save_every=2)
    assert losses(events) == {step: loss for step, loss in losses(unbroken).items() if step > 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.5}, ["training.lr is 0.003 there and 0.5 here"]),
        ({"data": Examples(*pairs(seed=6))}, ["data is", "checksum"]),
        ({"model": transformer(d_hidden=48)}, ["model.d_hidden is 32 there and 48 here"]),
        ({"model": luong()}, ["model.kind is 'Transformer' there and 'LuongTranslator' here"]),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(change, words, tmp_path):
    run = {"model": transformer(), "data": Examples(*pairs())}
    learn(**run, out=tmp_path, steps=2)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TrainingError, match=says("holds a checkpoint of another run", *words, "another folder")):
        learn(**run | change, out=tmp_path, steps=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_resumed_run_may_log_and_save_at_other_intervals(tmp_path):
    data = Examples(*pairs())

    def stop(event):
        if isinstance(event, Logged):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(transformer(), data, tmp_path, save_every=2, log_every=3, on_event=stop)
    _, events = learn(transformer(), data, tmp_path, save_every=5, log_every=4, watch_every=3)
    assert set(losses(events)) == {4, 8}


@pytest.mark.parametrize("file", ["state.json", "weights.safetensors", "optimiser.safetensors"])
def test_a_damaged_checkpoint_is_named(file, tmp_path):
    learn(transformer(), Examples(*pairs()), tmp_path, steps=2)
    damaged = tmp_path / "checkpoints" / "step-00000002" / file
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(LoadError, match=says(str(damaged))):
        learn(transformer(), Examples(*pairs()), tmp_path, steps=2)


def test_a_checkpoint_of_other_fields_or_tensors_is_named(tmp_path):
    """Its files can be read, and are not those that a run of this model writes."""
    data = Windows([3, 4, 5, 6, 7] * 10, 8)
    learn(gpt(), data, tmp_path, steps=1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    state = json.loads((folder / "state.json").read_text())
    for change in (
        {"recipe": None},
        {"standing": {}},
        {"totals": "x"},
        {"totals": ["x"]},
        {"standing": state["standing"] | {"step": "1"}},
        {"standing": state["standing"] | {"batch": -1}},
        {"standing": state["standing"] | {"best": [1]}},
    ):
        (folder / "state.json").write_text(json.dumps(state | change))
        with pytest.raises(LoadError, match=says("state.json is damaged: its fields", "to start anew")):
            learn(gpt(), data, tmp_path, steps=1)
    (folder / "state.json").write_text(json.dumps(state))
    for file, name in (("weights", "norm.weight"), ("optimiser", "norm.weight/exp_avg"), ("random", "0/cpu")):
        whole = load_file(folder / f"{file}.safetensors")
        changes = [{name: torch.zeros(3)}] if file == "random" else [{name: torch.zeros(3)}, {"more": torch.zeros(1)}]
        for change in changes:
            save_file(whole | change, folder / f"{file}.safetensors")
            sentence = "random generator" if file == "random" else f"{file}.safetensors is damaged"
            with pytest.raises(LoadError, match=sentence):
                learn(gpt(), data, tmp_path, steps=1)
        save_file(whole, folder / f"{file}.safetensors")
    learn(gpt(), data, tmp_path, steps=1)


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    left = tmp_path / "checkpoints" / ".step-00000002.new-0123abcd"
    left.mkdir(parents=True)
    (left / "weights.safetensors").write_bytes(b"half")
    learn(transformer(), Examples(*pairs()), tmp_path, steps=2)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000002"]


# ------------------------------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize("name", ["accelerate", "tensorboard"])
def test_a_missing_library_is_named(name, monkeypatch, tmp_path):
    run = gpt(), Windows([1, 2, 3], 1), training.language, Training(steps=1, rows=1), tmp_path
    needs = {"accelerate": lambda: training.train(*run), "tensorboard": lambda: tensorboard(tmp_path)}[name]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=says(f"training needs {name}", "pip install 'telescope-attention[train]'")):
        needs()


def test_an_lstm_is_not_sharded():
    with pytest.raises(ValueError, match=says("shard=True", "LSTM")):
        shard(luong(), torch.device("cpu"))


def test_settings_are_frozen():
    message = Training(steps=1, rows=1)
    with pytest.raises(AttributeError):
        message.steps = 2
    assert replace(message, steps=2).steps == 2
