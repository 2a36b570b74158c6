"""health: training steps of GPT-2 124M's shape, without and with `ts.Health` every 50 steps.

On a CPU a small GPT stands in for it, and the time is that of the process on all of its cores,
which other programs on the machine change little.
"""

import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter, process_time

import torch

import telescope as ts

from .measure import Row, seconds

EVERY = 50
SECONDS = 100.0  # after which no further round begins, compilation included


def about(device: torch.device, quick: bool) -> str:
    shape = (
        "GPT-2 124M's shape, bfloat16 autocast, compiled, 16 x 1,024 tokens"
        if device.type == "cuda"
        else "a small GPT, 8 x 128 tokens, time of the process"
    )
    return f"{shape}; {EVERY} training steps, ms a step; health every {EVERY} steps"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    began = perf_counter()
    large = device.type == "cuda" and not quick
    size = (
        {"d_model": 768, "blocks": 12, "heads": 12}
        if large
        else {"d_model": 128, "blocks": 4, "heads": 4}
    )
    vocabulary, length, batch = (50_304, 1_024, 16) if large else (512, 128, 8)
    config = ts.models.GPTConfig(vocabulary=vocabulary, max_positions=length, **size)
    model = ts.models.GPT(config).to(device)
    loss_of = torch.compile(model.loss) if device.type == "cuda" else model.loss
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    ids = torch.randint(vocabulary, (batch, length + 1), device=device)
    health = ts.Health(model, every=EVERY, rules=(), log=lambda numbers, step: None)

    def train(steps: int, watched: bool) -> None:
        for _ in range(steps):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = loss_of(ids[:, :-1], ids[:, 1:])
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                if watched:
                    health.step(ids[:, :-1])

    train(3, watched=False)
    train(EVERY, watched=True)
    print(
        f"compiled, and first measurement: {perf_counter() - began:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    times: dict[str, list[float]] = {"without": [], "with health": []}
    for i in range(2 if quick else 7):
        if i > 1 and perf_counter() - began > SECONDS:
            break
        for name, own in times.items():
            own.append(_seconds(lambda watched=name != "without": train(EVERY, watched), device))
    plain = median(times["without"])
    for name, own in times.items():
        yield Row(
            "training step", name, 1e3 * median(own) / EVERY, note=f"{median(own) / plain - 1:+.2%}"
        )

    def measure() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            health.measure(ids[:, :-1])

    single = [_seconds(measure, device) for _ in range(5)]
    share = median(single) / plain
    note = f"{health.sequences} sequences; {share:+.2%} of {EVERY} steps"
    yield Row("training step", "one measurement", 1e3 * median(single), note=note)


def _seconds(run_once: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        return seconds(run_once, device)
    began = process_time()
    run_once()
    return process_time() - began
