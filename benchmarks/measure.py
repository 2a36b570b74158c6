"""Measure functions: interleaved, so that noise affects all alike; the median of several runs;
memory beside time.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

os.environ.setdefault(
    "KINETO_LOG_LEVEL", "6"
)  # the profiler, which counts memory on a CPU, is otherwise chatty

import torch
from torch.profiler import ProfilerActivity, profile

MIB = 2**20


@dataclass(frozen=True)
class Row:
    """The time and memory of one implementation for one case; a note where it could not run."""

    case: str
    runner: str
    ms: float | None = None
    mib: float | None = None
    note: str = ""

    heads = f"{'case':<24}{'runner':<28}{'ms':>10}{'MiB':>10}"

    def __str__(self) -> str:
        ms = "-" if self.ms is None else f"{self.ms:.3f}" if self.ms < 10 else f"{self.ms:.1f}"
        mib = "-" if self.mib is None else f"{self.mib:.1f}"
        return f"{self.case:<24}{self.runner:<28}{ms:>10}{mib:>10}  {self.note}".rstrip()


def work_before() -> str:
    """Say how busy the machine is before a benchmark, where it can be told."""
    if not hasattr(os, "getloadavg"):
        return ""
    return f", {os.getloadavg()[0]:.1f} processes at work before it"


def race(
    case: str, runners: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int = 7
) -> list[Row]:
    """Run every function once to warm up, once for its peak memory, then `rounds` times in turns.

    Each round has an order of its own: a GPU that just computed at full power is slower for a
    while.
    """
    peaks = {}
    notes = {}
    for name, run in runners.items():
        try:
            began = perf_counter()
            run()
            print(
                f"{case}: {name}, first run {perf_counter() - began:.1f} s",
                file=sys.stderr,
                flush=True,
            )
            peaks[name] = peak(run, device)
        except Exception as problem:  # whatever a peer complains about, the others still race
            notes[name] = _first_line(problem)
        _forget(device)
    times = {name: [] for name in peaks}
    for i in range(rounds):
        for name in Random(i).sample([*times], len(times)):
            times[name].append(seconds(runners[name], device))
    return [
        Row(case, name, note=notes[name])
        if name in notes
        else Row(case, name, 1e3 * median(times[name]), peaks[name])
        for name in runners
    ]


def once(case: str, name: str, run: Callable[[], object], device: torch.device) -> Row:
    """Run a function that takes minutes once, without warming up; return its time and its peak
    memory.
    """
    began = perf_counter()
    try:
        mib = peak(run, device)
    except Exception as problem:
        return Row(case, name, note=_first_line(problem))
    return Row(case, name, 1e3 * (perf_counter() - began), mib, "one run")


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = perf_counter()
        run()
        return perf_counter() - start
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def peak(run: Callable[[], object], device: torch.device) -> float:
    """Return the most memory that torch held during the run beyond what it held before, in MiB."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MIB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    with TemporaryDirectory() as folder:
        seen.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    changes = sorted(
        (event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"
    )
    return max(accumulate((change for _, change in changes), initial=0)) / MIB


def machine(device: torch.device) -> dict[str, str]:
    """Return the facts about this machine without which a figure means nothing."""
    facts = {
        "processor": f"{_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "telescope": _version("telescope"),
    }
    if device.type == "cuda":
        facts = {"gpu": f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"} | facts
    return facts


def save(path: Path, about: Mapping[str, object], rows: list[Row]) -> None:
    """Write the file atomically."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(
        json.dumps({**about, "rows": [asdict(row) for row in rows]}, ensure_ascii=False, indent=1)
    )
    beside.replace(path)


def _first_line(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0][:100] or type(problem).__name__


def _forget(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return str(__import__(package).__version__)
    except ImportError:
        return "none"
