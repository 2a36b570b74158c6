"""What the system refuses a command becomes one sentence and a documented exit code, before work is done."""

import errno
import logging
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from fuzz.supervisor import supervise
from safetensors import SafetensorError

import telescope as ts
from support import writers
from telescope.cli import app, boundary
from telescope.files import check_can_write
from telescope.files.atomic import atomic_folder
from telescope.models.saved.load import check_device, devices_here
from telescope.tasks.learning.new_recipe import new_recipe

COMMANDS = typer.main.get_command(app).commands
WITH_DEVICE = [
    name for name, each in COMMANDS.items() if any("--device" in part.opts for part in getattr(each, "params", ()))
]

# ------------------------------------------------------------------------------------------------------------- devices


@pytest.fixture
def needed(tmp_path):
    """Return the options that each command cannot do without. The model does not exist: nothing may look for it."""
    text = tmp_path / "text.txt"
    text.write_text("Good morning.")
    model = ("--model", f"{tmp_path / 'no-model'}")
    needs = dict.fromkeys(WITH_DEVICE, model)
    needs["watch"] += ("--text", f"{text}")
    needs["atlas"] += ("--texts", f"{text}", "--out", f"{tmp_path / 'out'}")
    return needs


@pytest.mark.parametrize("device", ["gpu", "0", "meta", "cuda:99", "xyz", "cpu:7", "mkldnn", ""])
@pytest.mark.parametrize("name", WITH_DEVICE)
def test_a_device_that_is_not_here(command, needed, name, device):
    code, printed, complaint = command(name, *needed[name], "--device", device)
    listed = ", ".join(devices_here())
    assert (code, printed) == (2, "")
    assert complaint.startswith(f'telescope: there is no device "{device}" here; there ')
    assert complaint.endswith(f" {listed}\n")


def test_every_command_that_computes_takes_a_device():
    assert {*WITH_DEVICE} == {"translate", "summarize", "generate", "recall", "watch", "atlas"}


def test_devices_of_the_library():
    for given in ("cpu", "cpu:0", torch.device("cpu")):
        assert check_device(given).type == "cpu"
    with pytest.raises(ValueError, match=r'there is no device "gpu" here; there (is|are) cpu'):
        ts.load("shakespeare", device="gpu")
    assert next(ts.load("shakespeare", device="meta").parameters()).is_meta


@pytest.mark.parametrize(("given", "found"), [("cuda", "cuda"), ("cuda:1", "cuda:1"), (1, "cuda:1"), ("cpu", "cpu")])
def test_devices_of_a_machine_with_two_gpus(monkeypatch, given, found):
    monkeypatch.setattr("telescope.models.saved.load.devices_here", lambda: ["cpu", "cuda:0", "cuda:1"])
    assert str(check_device(given)) == found
    with pytest.raises(ValueError, match='there is no device "cuda:2" here; there are cpu, cuda:0, cuda:1'):
        check_device("cuda:2")
    with pytest.raises(ValueError, match="no device"):
        check_device(2)


# ----------------------------------------------------------------------------------------------- where output can go


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Return each command that writes, up to the place it writes to. No model and no data exist that it could use."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("Good morning.")
    Path("small.toml").write_text(new_recipe("generate", "small.toml", train="text.txt", source=None, target=None))
    Path("text.txt").write_text("Good morning.")
    return {
        "watch": ("watch", "--model", "no/model", "--text", "text.txt", "--out"),
        "atlas": ("atlas", "--model", "no/model", "--texts", "text.txt", "--out"),
        "train": ("train", "small.toml", "--data", "no/data", "--out"),
        "check": ("train", "small.toml", "--check", "--out"),
        "evaluate": ("evaluate", "no/model", "--recipe", "small.toml", "--out"),
        "recipe": ("new", "recipe", "generate"),
    }


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("text.txt/inside", "text.txt is a file, not a folder; name another place"),
        ("/proc/telescope/out", "no such file or directory; name another place"),
        ("a" * 250, "file name too long"),
        (f"new/{'b' * 300}", "file name too long"),
    ],
    ids=["a file", "no files", "long", "long, in a new folder"],
)
@pytest.mark.parametrize("name", ["watch", "atlas", "train", "check", "evaluate", "recipe"])
def test_output_that_cannot_be_written_is_found_before_work(command, outputs, name, place, reason):
    if len(place) == 250 and name in ("train", "check", "evaluate"):
        place *= 2  # they write into the folder, and need no longer name beside it
    before = sorted(os.listdir())
    code, _, complaint = command(*outputs[name], place)
    assert code == 2
    assert complaint.count("\n") == 1 + (name == "watch" and "page will show" in complaint)
    assert "cannot be written: " in complaint
    assert reason in complaint
    assert sorted(os.listdir()) == before


def test_a_trial_leaves_nothing_and_a_full_disk_is_found(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    check_can_write(tmp_path / "here" / "deep" / "er" / "out", size=1000)
    assert list((tmp_path / "here").iterdir()) == []
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(ValueError, match=r"--out .*out needs 2\.0 KiB, and 1\.0 KiB are free; make room"):
        check_can_write(tmp_path / "out", size=2000, name="--out")

    def full(file, contents):
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match="cannot be written: no space left on device; name another place"):
        check_can_write(tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["here"]


def test_a_disk_too_small_for_a_checkpoint_is_found_before_training(command, outputs, monkeypatch, on_cpu):
    Path("text.txt").write_text("\n".join(f"{number} mornings" for number in range(3000)))
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    code, _, complaint = command("train", "small.toml", "--data", ".", "--out", "run", "--steps", "1")
    assert code == 2
    assert "run/recipe.toml needs " in complaint
    assert "are free; make room" in complaint
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "problem",
    [OSError(errno.ENOSPC, "No space left on device", "x"), SafetensorError("I/O error: no space (os error 28)")],
    ids=["Python", "safetensors"],
)
def test_a_folder_that_fills_the_disk_is_named_itself(tmp_path, problem):
    """Not the hidden folder beside it, which is gone by then."""
    place = tmp_path / "run"
    with pytest.raises(OSError, match=f"{place} cannot be written: the disk is full") as raised, atomic_folder(place):
        raise problem
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- the boundary


CPU_MEMORY = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
ENDS = {
    "a mistake": (ValueError("beams=0 is\n too few"), 2, "beams=0 is too few"),
    "a file": (FileNotFoundError(2, "No such file or directory", "x.txt"), 1, "x.txt: no such file or directory"),
    "permission": (PermissionError(13, "Permission denied", "x.txt"), 1, "x.txt: no permission"),
    "read-only": (OSError(errno.EROFS, "Read-only file system", "x"), 1, "x: read-only file system"),
    "a full disk": (OSError(errno.ENOSPC, "No space left", "x"), 1, "x: no space is left to write to; make room"),
    "memory": (MemoryError(), 1, "this machine has not enough memory for this; a shorter text"),
    "memory of torch": (RuntimeError(CPU_MEMORY), 1, "this machine has not enough memory for this"),
    "memory of a GPU": (torch.OutOfMemoryError("CUDA out of memory"), 1, "the GPU has not enough memory for this"),
    "bytes": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), 2, "holds bytes that are not UTF-8"),
    "depth": (RecursionError("maximum recursion depth"), 1, "nested too deep"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    "a fault": (TypeError("f() takes 1"), 1, "this is a fault of telescope: TypeError: f() takes 1; TELESCOPE_DEBUG=1"),
}


@pytest.mark.parametrize("name", ENDS)
def test_one_sentence_and_a_code(capsys, name):
    problem, code, sentence = ENDS[name]

    def fail():
        raise problem

    assert boundary.run(fail) == code
    printed, complaint = capsys.readouterr()
    assert printed == ""
    assert complaint.startswith("telescope: ")
    assert sentence in complaint
    assert complaint.count("\n") == 1


def test_the_codes_are_documented():
    page = (Path(__file__).parents[3] / "docs/reference/commands.md").read_text()
    for code in (boundary.DONE, boundary.FAILED, boundary.WRONG, boundary.STOPPED, boundary.UNREAD):
        assert f"\n| {code} | " in page


def test_debug_shows_the_traceback(capsys, monkeypatch):
    def fail():
        raise ValueError("no such thing")

    for setting, shown in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("TELESCOPE_DEBUG", setting)
        assert boundary.run(fail) == 2
        complaint = capsys.readouterr().err
        assert ("Traceback" in complaint) == shown
        assert complaint.endswith("telescope: no such thing\n")


def _start(*arguments, **streams):
    line = [sys.executable, "-m", "telescope.cli", *arguments]
    return subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False, **streams)


def test_streams_that_are_closed_full_or_unread(tmp_path):
    closed = _start("--version", preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr.count("\n")) == (1, 1)
    assert "standard output is closed" in closed.stderr
    with open("/dev/full", "w") as device:
        full = _start("--version", stdout=device)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1)
    assert "no space is left to write to" in full.stderr
    reading, writing = os.pipe()
    os.close(reading)
    unread = _start("--help", stdout=writing)
    os.close(writing)
    assert (unread.returncode, unread.stderr) == (141, "")
    gone = tmp_path / "gone"
    gone.mkdir()
    deleted = _start("--version", stdout=subprocess.DEVNULL, cwd=gone, preexec_fn=gone.rmdir)
    assert (deleted.returncode, deleted.stderr.count("\n")) == (1, 1)
    assert "the working directory was deleted" in deleted.stderr


def test_standard_input_that_is_closed(command, tmp_path, monkeypatch):
    writers.gpt().save(tmp_path / "gpt")
    writers.translator().save(tmp_path / "translator")
    monkeypatch.setattr(sys, "stdin", None)
    for name, model in (("generate", "gpt"), ("translate", "translator"), ("summarize", "translator")):
        code, printed, complaint = command(name, "--model", f"{tmp_path / model}")
        assert (code, printed) == (2, "")
        assert complaint == "telescope: standard input is closed; give a text in quotes, or a file\n"


# ------------------------------------------------------------------------------------------------ warnings and logging


def test_a_command_says_warnings_and_the_log_in_one_line(capsys):
    def warn():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a layer\nis left out", stacklevel=1)
        logging.getLogger("telescope.surveys").info("compiling a kernel")
        logging.getLogger("telescope.surveys").debug("a detail")

    assert boundary.run(warn) == 0
    assert capsys.readouterr().err == "telescope: a layer is left out\ntelescope: compiling a kernel\n"


def test_the_library_logs_under_one_name_and_prints_nothing(capsys):
    logger = logging.getLogger("telescope")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    done = subprocess.run(
        [sys.executable, "-c", "import telescope, logging; logging.getLogger('telescope.surveys').warning('x')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ------------------------------------------------------------------------------------------------ random command lines


@pytest.mark.skipif(os.name == "nt", reason="a child is forked for each command line")
def test_sixty_random_command_lines():
    lines = []
    report = supervise("commands", 60, seed=9, say=lines.append)
    assert report.wrong == [], lines
    assert report.counts.total() == 60
    assert report.accepted.total() > 15  # some do their work, so that what comes after the options is tried too
