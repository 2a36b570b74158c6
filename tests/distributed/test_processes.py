"""Several processes compute what one does; a run that was killed and resumed equals one that was not."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import run
import torch
from torch.testing import assert_close

import telescope as ts

SCRIPT = Path(run.__file__)
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(*jobs, launcher=()):
    source = str(Path(ts.__file__).parents[1])
    settled = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    command = [sys.executable, *launcher, str(SCRIPT), json.dumps([[str(out), *rest] for out, *rest in jobs])]
    done = subprocess.run(command, env=os.environ | settled, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def losses_of(out):
    found = re.findall(r"^(loss|validation) (\d+) (\S+)$", (out / "losses").read_text(), re.MULTILINE)
    return {(kind, int(step)): float(loss) for kind, step, loss in found}


def weights(out):
    return ts.load(out / "model").state_dict()


def assert_same(actual, expected):
    assert losses_of(actual) == pytest.approx(losses_of(expected), rel=1e-6)  # losses are added up in float32
    for name, tensor in weights(actual).items():
        assert_close(tensor, weights(expected)[name], rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("on_cpu")
def test_two_processes_equal_one(tmp_path):
    """With DDP and with FSDP: an odd number of rows, several batches a step, clipping.

    One process loads what they save.
    """
    settings = {"steps": 5, "accumulate": 2, "save_every": 2}
    learned = settings | {"learned": True}
    start(
        (tmp_path / "ddp", settings),
        (tmp_path / "fsdp", settings | {"shard": True}),
        (tmp_path / "learned-ddp", learned),
        launcher=TWO,
    )
    run.run(tmp_path / "alone", dict(settings))
    run.run(tmp_path / "learned", dict(learned))
    assert_same(tmp_path / "ddp", tmp_path / "alone")
    assert_same(tmp_path / "learned-ddp", tmp_path / "learned")
    assert_same(tmp_path / "fsdp", tmp_path / "alone")
    sharded = [
        int(re.search(r"sharded (\d+)", (tmp_path / name / "losses").read_text())[1]) for name in ("ddp", "fsdp")
    ]
    assert sharded == [0, len(weights(tmp_path / "alone"))]

    run.run(tmp_path / "fsdp" / "second", dict(settings))  # from its second step on, in one process
    went_on = losses_of(tmp_path / "fsdp" / "second")
    assert {step for _, step in went_on} == {3, 4, 5}
    assert went_on == pytest.approx({key: losses_of(tmp_path / "alone")[key] for key in went_on}, rel=1e-6)


def test_a_killed_run_resumes_with_the_same_losses(tmp_path):
    settings = {"steps": 10, "save_every": 2, "dropout": 0.2, "average": 2, "validate_every": 3}
    whole, out = tmp_path / "whole", tmp_path / "out"
    deaths = "training 5", "writing 6", "written 8"
    ends = start((whole, settings), *((out, settings, death) for death in deaths), (out, settings))
    assert ends == [0, *[-signal.SIGKILL] * 3, 0]

    steps = [int(step) for step in re.findall(r"^loss (\d+)", (out / "losses").read_text(), re.MULTILINE)]
    assert steps == [*range(1, 6), *range(5, 7), *range(5, 9), *range(9, 11)]
    assert losses_of(out) == losses_of(whole)  # the last telling of each step
    lines = set((out / "losses").read_text().splitlines())
    assert lines == set((whole / "losses").read_text().splitlines())  # and every other
    assert os.listdir(out / "checkpoints") == ["step-00000010"]
    for name, tensor in weights(out).items():
        assert torch.equal(tensor, weights(whole)[name])
