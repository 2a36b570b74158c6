"""The documented commands for several processes: one launch is stopped, another goes on; the result is as of one."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch.testing import assert_close

import telescope as ts
from support import corpora
from support.recipes import RECIPES, small
from telescope.tasks.learning.train import read, train
from telescope.training import Logged, read_log

BIN = Path(sys.executable).parent
TORCHRUN = [str(BIN / "torchrun"), "--nproc-per-node", "2"]
ACCELERATE = [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2"]
TRAIN = ["-m", "telescope.cli", "train", "mine.toml", "--out", "runs/mine", "--data", "data"]
STEPS = 120


def launch(command, folder):
    """Start a command as a user does on a machine without a GPU: nothing tells accelerate to use the CPU."""
    settled = {"PYTHONPATH": str(Path(ts.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    usual = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE")}
    return subprocess.Popen(command, cwd=folder, env=usual | settled, stderr=subprocess.PIPE, text=True)


def wait_for_a_step(log, process):
    """Wait until the run has logged a step."""
    until = time.monotonic() + 120
    while not log.exists() or b'"logged"' not in log.read_bytes():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.usefixtures("on_cpu")
def test_two_processes_by_torchrun_and_accelerate(tmp_path):
    corpora.make(tmp_path / "data")
    whole = small(read(RECIPES / "shakespeare-char.toml"), steps=STEPS, save_every=1000, validate_every=1000)
    config = replace(whole.model.config, dropout=0.0)  # two processes draw other numbers than one
    recipe = replace(whole, model=replace(whole.model, config=config))
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    out = tmp_path / "runs/mine"

    # Stop the first launch by the signal that a scheduler sends: torchrun passes it on.
    first = launch([*TORCHRUN, *TRAIN], tmp_path)
    wait_for_a_step(out / "training/log.jsonl", first)
    first.send_signal(signal.SIGTERM)
    _, complaint = first.communicate(timeout=120)
    stopped = read_log(out)[-1]
    assert stopped["event"] == "stopped", complaint
    assert 1 < stopped["step"] == stopped["saved"] < STEPS
    assert os.listdir(out / "training/checkpoints") == [f"step-{stopped['step']:08d}"]

    # Go on with the other launcher.
    second = launch([*ACCELERATE, *TRAIN], tmp_path)
    _, complaint = second.communicate(timeout=120)
    assert second.returncode == 0, complaint

    # Only the first process of each launch has written, each event once.
    events = read_log(out)
    started = [event for event in events if event["event"] == "started"]
    assert [(event["processes"], event["step"]) for event in started] == [(2, 0), (2, stopped["step"])]
    assert [event["step"] for event in events if event["event"] == "logged"] == list(range(1, STEPS + 1))
    assert len(list(out.glob("training/log/*tfevents*"))) == 2
    assert sorted(os.listdir(out)) == [
        *("config.json", "model.safetensors", "recipe.toml"),
        "tokenizer.json",
        "training",
    ]

    # The same recipe means the same with one process.
    losses = {}

    def note(event):
        if isinstance(event, Logged):
            losses[event.step] = event.loss

    train(recipe, tmp_path / "alone", data=tmp_path / "data", report=note)
    assert {event["step"]: event["loss"] for event in events if event["event"] == "logged"} == pytest.approx(
        losses, rel=1e-4
    )
    expected = ts.load(tmp_path / "alone").state_dict()
    for name, tensor in ts.load(out).state_dict().items():
        assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
