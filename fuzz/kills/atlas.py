"""Kill `ts.atlas`, with 1 to 3 processes: the next run finishes, with the files of an undisturbed
run.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from support import mapping
from telescope.atlases import shared_work

from ..supervisor import ROOT, Done, WrongError
from .children import (
    KILLED,
    NEVER,
    PATIENCE,
    Measured,
    complaint,
    contents,
    finish,
    kill,
    measure,
    put,
    start,
    wait,
)

TEXTS = mapping.corpus(10)
COUNTS = (1, 1, 1, 2, 3, 3)  # of processes, as often as they are drawn
LATE = 0.3  # seconds that a process waits for one that was killed

OLD: dict[str, bytes] = {}  # an atlas of something else, which is replaced
NEW: dict[str, bytes] = {}  # what every run must leave
TAKEN: list[Measured] = []  # by one process


def prepare() -> None:
    """Make the atlas undisturbed, with 1 and with 3 processes, which must leave the same files."""
    mapping.make(TEXTS[:2])  # compiles, once for all processes
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        mapping.make(TEXTS[:3], out=folder / "old")
        TAKEN.append(measure(partial(make, folder / "new", 0, 1), folder))
        finish(
            *(start(partial(make, folder / "three", rank, 3), folder) for rank in range(3)),
            folder=folder,
        )
        OLD.update(contents(folder / "old"))
        NEW.update(contents(folder / "new"))
        if contents(folder / "three") != NEW:
            raise WrongError("three processes leave other files than one")


def make(out: Path, rank: int, count: int, replace: bool = False, late: float = PATIENCE) -> None:
    """Make the atlas in this process, saving after each shard."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
    shared_work.TIMEOUT = late
    shared_work.GRACE = late
    shared_work.BEAT = 0.02
    shared_work.POLL = 0.03
    mapping.make(TEXTS, out=out, replace=replace, save_every=0.0)


def kill_atlas(dice: Random, folder: Path) -> Done:
    """Kill one or all processes of an atlas, some times; then finish with as many as come."""
    out = folder / "atlas"
    replace = dice.random() < 0.25
    allowed = [OLD if replace else {}, NEW]
    put(out, OLD if replace else {})
    kills = 0
    while not kills or dice.random() < 0.4:
        count = dice.choice(COUNTS)
        kills += _kill(dice, out, folder, count, replace)
        if contents(out) not in allowed:
            raise WrongError(
                f"after a kill of {count} processes neither the old nor the new atlas is there, "
                "whole"
            )
    count = dice.choice((1, 3))
    _check(
        out,
        folder,
        [start(partial(make, out, rank, count, replace), folder) for rank in range(count)],
    )
    return Done("atlas, replaced" if replace else "atlas", units=kills)


def _kill(dice: Random, out: Path, folder: Path, count: int, replace: bool) -> int:
    """Run `count` processes, of which one or all are killed; return how many were before they were
    done.
    """
    death = TAKEN[0].draw(dice)
    victim = dice.randrange(count)
    is_alone = dice.random() < 0.4
    children = []
    for rank in range(count):
        own = death if rank == victim else NEVER
        children.append(start(partial(make, out, rank, count, replace, LATE), folder, own))
    codes = {victim: wait(children[victim], PATIENCE if death.seconds is None else death.seconds)}
    for rank in range(count):
        if rank != victim:
            codes[rank] = wait(children[rank]) if is_alone else kill(children[rank])
    for rank, code in codes.items():
        told = complaint(folder, children[rank])
        if code not in (0, KILLED) and "no sign of life" not in told:
            raise WrongError(f"process {rank} of {count} ended with {code}: {told}")
    return sum(code == KILLED for code in codes.values())


def _check(out: Path, folder: Path, children: list[int]) -> None:
    """Wait for the processes that finish the atlas, and compare its files with those of an
    undisturbed run.
    """
    finish(*children, folder=folder)
    found = contents(out)
    wrong = [name for name in NEW | found if found.get(name) != NEW.get(name)]
    if wrong:
        raise WrongError(f"{wrong[0]} differs from that of an undisturbed run")
    left = [file.name for file in folder.iterdir() if file != out]
    if left:
        raise WrongError(f"{left[0]} is left behind")


def kill_torchrun(dice: Random, folder: Path) -> Done:
    """Kill torchrun and its three processes, once they have begun; then run it again."""
    out = folder / "atlas"
    running = _torchrun(out)
    begun = monotonic()
    while (
        not (folder / "atlas.progress").exists()
        and monotonic() - begun < PATIENCE
        and running.poll() is None
    ):
        sleep(0.01)
    sleep(dice.uniform(0.0, 3 * TAKEN[0].seconds))
    hit = 0 if running.poll() is not None else 3
    for child in (running.pid, *_descendants(running.pid)):
        os.kill(child, 9)
    running.wait()
    again = _torchrun(out)
    if again.wait(PATIENCE):
        raise WrongError(f"torchrun ended with {again.returncode} after a kill")
    _check(out, folder, [])
    return Done("atlas by torchrun", units=hit)


def _torchrun(out: Path) -> "subprocess.Popen[bytes]":
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    command = [sys.executable, *launcher, "-m", "fuzz.kills.atlas", str(out)]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )


def _descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in file.read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


if __name__ == "__main__":  # a process of torchrun
    import torch

    torch.set_num_threads(1)
    make(Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
