"""Run the cases of an attack in worker processes, and outlive whatever a case does to its worker.

An attack is a module of this package:

    UNIT       what its report counts, in the plural: "files", "requests", "passes"
    SECONDS    that a case may take of one core
    HUNG       seconds by the clock after which a case counts as hanging
    BYTES      of memory beyond what a prepared worker has, or None for no limit
    STRIDE     cases of one worker process, 200 unless given
    prepare()  what a worker does once, before its first case
    run(dice, folder)   draw one case by `dice`, run it in an empty `folder`, and return Done; raise
                        if it went wrong

Case 1234 of seed 0 is the same case on every machine: `python -m fuzz files --only 1234` runs it
alone and shows where it fails. A worker that dies, or hangs, is replaced; its case is reported.
"""

import faulthandler
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from threading import Lock
from time import process_time
from typing import Any

ROOT = Path(__file__).parents[1]
# Cases of one worker process, after which a new one takes over, unless the attack has its own.
STRIDE = 200


class WrongError(Exception):
    """What a case found, in one sentence."""


@dataclass(frozen=True)
class Done:
    """A case that went as it should: its kind, how many units it counts, and whether its input was
    accepted.
    """

    kind: str
    accepted: bool = True
    units: int = 1


@dataclass
class Report:
    """The sum over all cases. `wrong` are the failed ones: {"case", "wrong", "where"}."""

    counts: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)  # seconds, case

    def add(self, result: dict[str, Any]) -> None:
        if "wrong" in result:
            self.wrong.append(result)
            return
        self.counts[result["kind"]] += result["units"]
        self.accepted[result["kind"]] += result["units"] * result["accepted"]
        self.slowest = sorted([*self.slowest, (result["seconds"], result["case"])])[-3:]


def supervise(
    name: str,
    count: int,
    seed: int = 0,
    *,
    first: int = 0,
    processes: int = 1,
    say: Callable[[str], object] = print,
) -> Report:
    """Run cases first ... first + count - 1 of the attack of this name; `say` is told each that
    goes wrong.
    """
    report = Report()
    lock = Lock()
    stride = getattr(import_module(f"fuzz.{name}"), "STRIDE", STRIDE)
    starts = range(first, first + count, stride)

    def run_stride(start: int) -> None:
        past = min(start + stride, first + count)
        for result in _outlive(name, start, past, seed):
            with lock:
                report.add(result)
                if "wrong" in result:
                    say(f"case {result['case']}: {result['wrong']}")

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_stride, starts))
    return report


def _outlive(name: str, number: int, past: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the result of each case; start another worker after a case that ended its worker."""
    while number < past:
        command = [
            sys.executable,
            "-m",
            "fuzz",
            name,
            "--work",
            f"{number},{past}",
            "--seed",
            str(seed),
        ]
        running = None
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as worker:
                assert worker.stdout is not None
                for line in worker.stdout:
                    result = json.loads(line)
                    if "seconds" not in result:
                        running = result["case"]
                        continue
                    number = result["case"] + 1
                    yield result
            errors.seek(0)
            complaint = errors.read()
        if number < past:
            if running is None or running < number:
                raise RuntimeError(f"the worker did not start: {complaint[-2000:]}")
            ended = f"ended its process with {worker.returncode}"
            yield {"case": running, "wrong": ended, "where": complaint[-4000:], "seconds": 0.0}
            number = running + 1


def work(name: str, first: int, past: int, seed: int) -> None:
    """Run these cases in this process; print a line before each, and one with its result."""
    import torch

    # Results go to a copy of stdout: what a case itself prints must not be taken for one.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(ROOT / "tests"))  # the attacks use the models and the data of the tests
    attack = import_module(f"fuzz.{name}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # about what a file holds, NaN for one
    attack.prepare()
    if attack.BYTES is not None:
        _limit_memory(attack.BYTES)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, past):
            print(json.dumps({"case": number}), file=results, flush=True)
            result = _result(attack, Random(f"{seed}/{number}"), Path(folder) / "case")
            print(json.dumps({"case": number, **result}), file=results, flush=True)


def _result(attack: Any, dice: Random, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    faulthandler.dump_traceback_later(attack.HUNG, exit=True)
    began = process_time()
    try:
        done = attack.run(dice, folder)
        result = {"kind": done.kind, "accepted": done.accepted, "units": done.units}
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # a panic in Rust is no Exception
        where = "".join(traceback.format_exception(problem))
        result = {"wrong": f"{type(problem).__name__}: {str(problem)[:300]}", "where": where}
    faulthandler.cancel_dump_traceback_later()
    seconds = process_time() - began
    if seconds > attack.SECONDS:
        result = {"wrong": f"took {seconds:.1f} s of a core", "where": ""} | result
    shutil.rmtree(folder)
    return {"seconds": seconds, **result}


def _limit_memory(beyond: int) -> None:
    statm = Path("/proc/self/statm")
    if statm.exists():
        size = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + beyond, size + beyond))
