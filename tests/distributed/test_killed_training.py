"""Trainings with one process and two that are killed or asked to stop, and resumed, equal undisturbed ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own: each training is a fork, and torch's threads do not survive one.
SCRIPT = """
import json, os, sys
from pathlib import Path
from random import Random
from fuzz.kills.training import attempt, kill_training, prepare, said
from telescope.files.locks import locked_folder

prepare()
held = Path(sys.argv[1], "held", "run")
with locked_folder(held):
    codes = attempt(held, 2)
print(json.dumps([codes, said(held)]), flush=True)
for count, times in ((1, 4), (1, 4), (2, 4)):
    folder = Path(sys.argv[1], str(len(os.listdir(sys.argv[1]))))
    folder.mkdir()
    done = kill_training(Random(folder.name), folder, count, times)
    print(json.dumps(done.units), flush=True)
"""


def test_a_dozen_kills_leave_no_trace(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (codes, said), *kills = (json.loads(line) for line in done.stdout.splitlines())
    assert set(codes) <= {1, None}  # of a folder that is in use: every process ends, none waits for another
    assert "run is in use by process" in said
    assert len(kills) == 3
    assert sum(kills) >= 6  # of 12: a signal may come when the run has ended
