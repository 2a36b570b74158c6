"""A small training, with one process or two, that is killed or asked to stop at random moments,
then resumed.

A signal comes after a random delay, or at a random step of writing: before or after a file, a
rename, a removal or a flush to disk. The run that is resumed until it finishes must end with the
weights, the losses and the files of a run that nobody disturbed. A run that was asked to stop
(SIGTERM) must end with its exit code, and lose no step.

Every process is a fork of a worker that has imported everything, so that no kill waits for imports.
"""

import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from ..supervisor import Done, WrongError

HUNG = 60.0  # seconds after which an attempt counts as hanging
STOPPED = 128 + signal.SIGTERM  # the exit code of a run that was asked to stop
# Functions that write, by their module: a signal may come before or after each call.
WRITERS = {
    "telescope.files.atomic": ("_sync_folder", "_put_in_place", "_exchange", "sync_file"),
    "telescope.training.checkpoint": ("save_file", "write_json"),
    "telescope.training.reports": ("_to_line",),
    "telescope.tasks.learning.train": ("_write_whole", "save"),
    "shutil": ("rmtree",),
    "os": ("replace", "rename"),
}


@dataclass(frozen=True)
class Disturbance:
    """A signal to one process of an attempt (`rank`), or to all (None): at a moment, or at the n-th
    step of writing.
    """

    signal: int
    rank: int | None
    seconds: float | None
    writing: int | None


@dataclass(frozen=True)
class Undisturbed:
    """What a run that nobody disturbs leaves, and what it takes."""

    weights: dict[str, Any]
    losses: dict[int, float]
    names: set[str]
    seconds: float
    writings: int


def prepare() -> None:
    """Import everything that a training needs, and measure the undisturbed runs."""
    import torch

    # torch._dynamo is imported by the first optimiser, and takes as long as torch itself.
    for module in (
        "accelerate",
        "torch._dynamo",
        "torch.utils.tensorboard",
        "telescope.tasks.learning.train",
    ):
        import_module(module)
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ["OMP_NUM_THREADS"] = "1"
    data()  # made here, not in a fork, so that all forks share the folder and the worker removes it
    recipe()
    for count in (1, 2):
        undisturbed(count)


def kill_training(
    dice: Random, folder: Path, count: int | None = None, times: int | None = None
) -> Done:
    """Disturb a training some times, resume it until it finishes, and compare it with an
    undisturbed one.

    count  the number of processes; drawn unless given
    times  how often it is disturbed; one to three times unless given
    """
    count = count or dice.choice((1, 1, 1, 2))
    expected = undisturbed(count)
    out = folder / "run"
    kills = 0
    for _ in range(times or dice.randint(1, 3)):
        disturbance = draw(dice, count, expected)
        before = saved_step(out)
        codes = attempt(out, count, disturbance)
        kills += any(codes)
        check_attempt(out, codes, disturbance, before)
    codes = attempt(out, count)
    if any(codes):
        raise WrongError(f"the resumed run ended with {codes}: {said(out)}")
    check_finished(out, expected)
    return Done(f"training, {count} process{'es' if count > 1 else ''}", units=kills)


def draw(dice: Random, count: int, expected: Undisturbed) -> Disturbance:
    number = dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    rank = dice.choice((None, *range(count)))
    if dice.random() < 0.5:
        return Disturbance(number, rank, dice.uniform(0.0, expected.seconds), None)
    # Only the first process writes.
    return Disturbance(number, 0, None, dice.randrange(expected.writings))


# -------------------------------------------------------------------------------------- one attempt


def attempt(out: Path, count: int, disturbance: Disturbance | None = None) -> list[int | None]:
    """Run or resume the training in `out`; return how each process ended.

    An end is an exit code, negative if a signal ended the process, or None for a process that had
    to be ended because another one had failed.
    """
    store = out.with_name(f"store-{time.monotonic_ns()}")
    sent_mark(out).unlink(missing_ok=True)
    children = [
        fork(lambda rank=rank: learn(out, rank, count, store, disturbance)) for rank in range(count)
    ]
    ends: dict[int, int | None] = {}
    began = time.monotonic()
    signalled = disturbance is None or disturbance.seconds is None
    while len(ends) < count:
        passed = time.monotonic() - began
        if not signalled and disturbance is not None and passed >= (disturbance.seconds or 0.0):
            signalled = True
            for rank, child in enumerate(children):
                if disturbance.rank in (None, rank) and rank not in ends:
                    os.kill(child, disturbance.signal)
        for rank, child in enumerate(children):
            if rank not in ends:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    ends[rank] = os.waitstatus_to_exitcode(status)
        # As torchrun does: where one process has failed, the others are ended.
        failed = any(code not in (0, STOPPED) for code in ends.values())
        if failed or passed > HUNG:
            for rank, child in enumerate(children):
                if rank not in ends:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    ends[rank] = None
        if passed > HUNG:
            raise WrongError(f"an attempt takes more than {HUNG:g} s: {said(out)}")
        time.sleep(0.001)
    return [ends[rank] for rank in range(count)]


def fork(work: Callable[[], None]) -> int:
    """Run the work in a child process, and return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def learn(out: Path, rank: int, count: int, store: Path, disturbance: Disturbance | None) -> None:
    """Train in this process, as `telescope train` does; what it says is appended to a file beside
    `out`.
    """
    from telescope.tasks.learning.train import train

    opened = os.open(out.with_name("said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, 2)
    os.dup2(opened, 1)
    if count > 1:
        import torch.distributed

        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ.update(
            {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
        )
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count
        )
    if rank == 0:
        wrap_writers(out, disturbance)
    train(recipe(), out, data=data())


def wrap_writers(out: Path, disturbance: Disturbance | None) -> None:
    """Count the steps of writing in out/../writings, and send the signal at the one that was
    drawn.
    """
    passed = 0

    def step() -> None:
        nonlocal passed
        if disturbance is not None and disturbance.writing == passed:
            sent_mark(out).touch()
            os.kill(os.getpid(), disturbance.signal)
        passed += 1
        if disturbance is None:
            out.with_name("writings").write_text(str(passed))

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            step()
            answer = function(*given, **named)
            step()
            return answer

        return call

    for module, names in WRITERS.items():
        place = import_module(module)
        for name in names:
            setattr(place, name, wrapped(getattr(place, name)))


# ------------------------------------------------------------------------------- what must be found


def check_attempt(
    out: Path, codes: list[int | None], disturbance: Disturbance, before: int
) -> None:
    """Raise where a disturbed attempt ended otherwise than by its signal, or lost a step.

    A process may fail only where the other one was ended by the signal. Before the training begins
    and after it has ended, SIGTERM ends a process as it does any other.
    """
    after = saved_step(out)
    if after < before:
        raise WrongError(
            f"the checkpoint of step {before} was lost; now there is {after}: {codes}, "
            f"{disturbance}"
        )
    if -disturbance.signal in codes:
        return
    finished = set(codes) == {0}
    stopped = set(codes) == {STOPPED} and disturbance.signal == signal.SIGTERM
    if finished and disturbance.signal == signal.SIGTERM and sent_mark(out).exists():
        raise WrongError(f"asked to stop, the run went on until it was finished: {disturbance}")
    if not finished and not stopped:
        raise WrongError(f"{disturbance} ended the run with {codes}: {said(out)}")
    if stopped and stopped_step(out) != after:
        raise WrongError(
            f"asked to stop, the run ended at step {stopped_step(out)}, with the checkpoint of "
            f"{after}"
        )


def check_finished(out: Path, expected: Undisturbed) -> None:
    """Raise where a run that was disturbed and resumed differs from the undisturbed one."""
    import torch

    weights = weights_of(out)
    for name, tensor in expected.weights.items():
        if not torch.equal(weights[name], tensor):
            raise WrongError(f"{name} differs from the undisturbed run's")
    losses = losses_of(out)
    if losses != expected.losses:
        raise WrongError(f"the losses are {losses}, those of the undisturbed run {expected.losses}")
    names = names_of(out)
    if names != expected.names:
        raise WrongError(f"files are left over or missing: {sorted(names ^ expected.names)}")


def saved_step(out: Path) -> int:
    """Return the step of the last checkpoint; 0 is none."""
    from telescope.training.checkpoint import saved_steps

    return max(saved_steps(out / "training"), default=0)


def sent_mark(out: Path) -> Path:
    """Return a file that exists if this attempt has come to the step of writing at which it gets
    its signal.
    """
    return out.with_name("sent")


def stopped_step(out: Path) -> int | None:
    """Return the step of the last event in the log, if the event is that the run has stopped."""
    last = json.loads((out / "training" / "log.jsonl").read_text().splitlines()[-1])
    step: int | None = last["step"] if last["event"] == "stopped" else None
    return step


def weights_of(out: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(out / "model.safetensors")


def losses_of(out: Path) -> dict[int, float]:
    from telescope.training import read_log

    return {event["step"]: event["loss"] for event in read_log(out) if event["event"] == "logged"}


def names_of(out: Path) -> set[str]:
    """Return all files and folders of a run, but TensorBoard's: each attempt writes one."""
    found = (place.relative_to(out).as_posix() for place in out.rglob("*"))
    return {name for name in found if "tfevents" not in name}


def said(out: Path) -> str:
    return out.with_name("said").read_text(errors="replace")[-1500:]


# ------------------------------------------------------------------------------- the small training


@cache
def data() -> Path:
    """Return a folder with a small corpus, which is removed when the worker ends; its forks leave
    it alone.
    """
    folder = Path(tempfile.mkdtemp(prefix="telescope-kills-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = "First Citizen:\nBefore we proceed, hear me speak.\n\n" * 40
    (folder / "tiny_shakespeare").mkdir()
    (folder / "tiny_shakespeare" / "input.txt").write_text(text)
    return folder


@cache
def recipe() -> Any:
    """Return a recipe of a few steps with everything that a checkpoint must carry: dropout,
    averages, the best.
    """
    from telescope.tasks.learning.train import read

    whole = read(Path(__file__).parents[2] / "recipes" / "shakespeare-char.toml")
    config = replace(
        whole.model.config,
        d_model=16,
        heads=2,
        d_hidden=16,
        max_positions=16,
        blocks=1,
        dropout=0.2,
    )
    small = replace(whole, model=replace(whole.model, config=config))
    length = {"steps": 14, "epochs": None, "rows": 3, "warmup": 2, "log_every": 5, "save_every": 4}
    return small.training_with(**length, validate_every=5, average=2, average_every=2)


@cache
def undisturbed(count: int) -> Undisturbed:
    """Run the training once with so many processes, and return what it leaves."""
    folder = Path(tempfile.mkdtemp(prefix="telescope-kills-"))
    out = folder / "run"
    try:
        began = time.monotonic()
        codes = attempt(out, count)
        seconds = time.monotonic() - began
        if any(codes):
            raise WrongError(f"the undisturbed run ended with {codes}: {said(out)}")
        writings = int((folder / "writings").read_text())
        return Undisturbed(weights_of(out), losses_of(out), names_of(out), seconds, writings)
    finally:
        shutil.rmtree(folder)
