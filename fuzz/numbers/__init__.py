"""Compare random attentions and whole models with an independent truth, in several processes.

Attentions are compared with float64, on every engine (attentions.py). Models are compared with the
same numbers found another way (models.py). What fails is printed as a script that shows the
failure.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, time

import torch

from . import attentions, models
from .attentions import Found

MOST = {"cpu": 64, "cuda": 16}  # processes: each takes memory of a GPU


@dataclass(frozen=True)
class Kind:
    """A kind of random case: what draws and checks cases, and how many of them a process reports at
    once.
    """

    hunt: Callable[..., Found]
    together: dict[str, int]


KINDS = {
    "attentions": Kind(attentions.hunt, {"cpu": 24, "cuda": 360}),  # on a GPU all of one definition
    "models": Kind(models.hunt, {"cpu": 24, "cuda": 24}),
}


def main(
    device: torch.device,
    minutes: float,
    seed: int,
    path: Path | None,
    header: dict[str, str],
    only: str | None = None,
    processes: int | None = None,
) -> int:
    """Run for so many minutes, on all cores unless `processes` says how many; return 1 if anything
    was wrong.
    """
    began = perf_counter()
    until = time() + 60.0 * minutes
    kinds = [only] if only else [*KINDS]
    workers = processes or min(os.cpu_count() or 1, MOST[device.type])
    first = dict.fromkeys(kinds, seed * 10**9)
    counts: Counter[str] = Counter()
    wrong: list[tuple[str, str]] = []
    shown = 0.0
    with ExitStack() as stack:
        # Each kind has processes of its own, so that the kinds share the time whatever one case of
        # them takes.
        each = max(1, workers // len(kinds))
        context = get_context("spawn")
        pools = {
            name: stack.enter_context(ProcessPoolExecutor(each, mp_context=context))
            for name in kinds
        }
        waiting: dict[Future[Found], str] = {}
        while waiting or time() < until:
            for name in kinds:
                together = KINDS[name].together[device.type]
                while [*waiting.values()].count(name) < 2 * each and time() < until:
                    future = pools[name].submit(
                        KINDS[name].hunt, first[name], together, device.type, until
                    )
                    waiting[future] = name
                    first[name] += together
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                del waiting[future]
                found = future.result()
                counts += found.counts
                wrong += found.wrong
                for message, script in found.wrong:
                    print(f"\nwrong: {message}\n\n{script}\n", flush=True)
            if perf_counter() - shown > (1.0 if sys.stderr.isatty() else 60.0):
                shown = perf_counter()
                end = "\r" if sys.stderr.isatty() else "\n"
                print(
                    f"{_totals(counts)}, {len(wrong)} wrong", end=end, file=sys.stderr, flush=True
                )

    # The shares of the null test are judged over all of its draws.
    for message, script in models.judge_null(counts):
        wrong.append((message, script))
        print(f"\nwrong: {message}\n\n{script}\n", flush=True)
    seconds = perf_counter() - began
    total = _totals(counts)
    report = {"attack": "numbers", "machine": header, "seed": seed, "seconds": seconds}
    report |= {name: counts.pop(name, 0) for name in ("definitions", "models")}
    print(*(f"{number:>9,}  {name}" for name, number in sorted(counts.items())), sep="\n")
    print(f"\n{total} in {seconds:.0f} s, {len(wrong)} wrong")
    if path is not None:
        path.write_text(
            json.dumps({**report, "compared": counts, "wrong": wrong}, ensure_ascii=False, indent=1)
        )
    return 1 if wrong else 0


def _totals(counts: Counter[str]) -> str:
    kinds = f" of {counts['kinds']:,} kinds" if counts["kinds"] else ""
    return f"{counts['definitions']:,} definitions{kinds} and {counts['models']:,} models"
