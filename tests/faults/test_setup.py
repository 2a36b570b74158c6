"""The output of `make explain` during setup: a sign of life, and pip's own output only if pip fails."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")

NOISY = "import sys; print('chatter'); print('WARNING: Location', file=sys.stderr); sys.exit({code})"


def quietly(code, **how):
    command = ["sh", str(ROOT / "quietly.sh"), "installing", sys.executable, "-c", NOISY.format(code=code)]
    return subprocess.run(command, timeout=60, **how)


def test_a_command_that_works_prints_nothing_of_its_own():
    done = quietly(0, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "installing\n", "")


def test_a_command_that_fails_prints_its_output_and_its_exit_code_is_returned():
    done = quietly(7, capture_output=True, text=True)
    assert done.returncode == 7
    assert done.stdout == "installing\n"
    assert "chatter" in done.stderr
    assert "WARNING: Location" in done.stderr


def test_a_terminal_shows_the_seconds():
    ours, theirs = pty.openpty()
    command = ["sh", str(ROOT / "quietly.sh"), "installing", "sleep", "2.5"]
    code = subprocess.run(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, timeout=60).returncode
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert code == 0
    assert shown.startswith("installing\rinstalling: 1 s")


@pytest.mark.parametrize("code", [0, 3])
def test_make_stops_where_pip_fails(tmp_path, code):
    """With a pip that fails, and an environment that exists."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for name in ("Makefile", "quietly.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / ".venv/bin"
    tools.mkdir(parents=True)
    for name, does in {
        "python": "",
        "pip": f"echo WARNING: Location; exit {code}",
        "telescope": "echo explained",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(["make", "explain"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (code == 0)
    assert ("WARNING" in done.stdout + done.stderr) == (code != 0)
    assert ("explained" in done.stdout) == (tmp_path / ".venv/ready").exists() == (code == 0)
    assert "usually" in done.stdout
