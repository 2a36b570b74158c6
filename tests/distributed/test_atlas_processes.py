"""An atlas is the same for any number of processes, for a run that was killed, and where one of them never came."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import telescope as ts
from support import mapping

SCRIPT = Path(mapping.__file__)
SOURCE = os.pathsep.join([str(Path(ts.__file__).parents[1]), str(SCRIPT.parents[1]), str(SCRIPT.parent)])


def start(*jobs, launcher=(), **environment):
    settled = {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "ignore"} | environment
    command = [sys.executable, *launcher, str(SCRIPT), json.dumps(jobs)]
    done = subprocess.run(command, env=os.environ | settled, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def assert_same(one, other):
    """Bit by bit: counts, sums in fixed point, histograms, extremes and evidence."""
    tensors = other.sums.tensors()
    for name, tensor in one.sums.tensors().items():
        assert torch.equal(tensor, tensors[name]), name
    assert one.sums.description() == other.sums.description()
    assert repr(one) == repr(other)
    assert (one.texts, one.skipped, one.skipped_count) == (other.texts, other.skipped, other.skipped_count)
    for layer, head in one.places:
        assert one.evidence(layer, head, "previous") == other.evidence(layer, head, "previous")


def different_files(one, other):
    """Return the names of the files that two folders do not have in common, byte by byte."""
    names = {file.name for folder in (one, other) for file in folder.iterdir()}
    return [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.filterwarnings("ignore:the Parquet tables")
def test_processes_and_kills_leave_no_trace(tmp_path):
    draw = random.Random(5)
    kills = [draw.uniform(0.0, 0.06) for _ in range(10)]
    jobs = [{"out": str(tmp_path / str(world)), "world": world} for world in (1, 2, 3)]
    killed = {"out": str(tmp_path / "killed"), "kills": kills}
    both = {"out": str(tmp_path / "both"), "world": 2, "kills": [0.1, 0.02]}
    died = {"out": str(tmp_path / "died"), "world": 2, "missing": 1}
    told, errors = start(*jobs, killed, both, died, {"out": str(tmp_path / "died")})
    without_one = told.pop(5)
    assert without_one["codes"] == [1]
    assert without_one["seconds"] < 60
    assert "process 1 of 2 has given no sign of life" in errors
    assert all(not any(job["codes"]) for job in told), errors
    assert told[3]["hits"] >= 5
    whole = ts.open(tmp_path / "1")
    assert whole.texts == 40
    assert not (tmp_path / "1.progress").exists()
    for name in ("2", "3", "killed", "both", "died"):
        assert different_files(tmp_path / name, tmp_path / "1") == [], name
    torch.set_num_threads(1)
    assert_same(mapping.make(mapping.corpus()), whole)  # and in memory, in this process


def test_a_fingerprint_does_not_depend_on_the_process():
    """Sets and dicts of strings have another order in each process."""
    script = (
        "import json, telescope as ts; from support import mapping\n"
        "from telescope.atlases.fingerprint import fingerprint; "
        "letters = mapping.Letters(); letters.known = set(mapping.LETTERS); model = mapping.tiny_gpt(); "
        "by = lambda attention: attention if str(attention) in {'a', 'b', 'c', 'd'} else attention\n"
        "with ts.edit(model, ts.redefine(None, by)): print(json.dumps(fingerprint(model, letters)))"
    )
    found = []
    for seed in ("1", "2"):
        settled = {"PYTHONHASHSEED": seed, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, env=os.environ | settled, capture_output=True, text=True, timeout=300, check=True
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len(found[0]["edits"]) == 2
