"""atlas: a model reads a corpus plainly, and while every head is measured; processes that share it;
memory.

On a CPU the shipped GPT reads tiny Shakespeare (TELESCOPE_DATA, or --data of the recipes);
elsewhere a text of random tokens. On a GPU, Qwen2 1.5B's shape with random weights reads batches of
8 texts of 2,048 tokens drawn by Zipf's law.
"""

import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import telescope as ts
from telescope.interception.watch import record_calls
from telescope.recording.attention_call import KeepOptions
from telescope.text.data_files import data_folder

from .measure import Row, seconds
from .watch import _model, qwen2

TOKENS = 2_048
BATCH = 8


class RandomTexts:
    """A tokenizer for which a number is a text of tokens drawn by Zipf's law: they repeat as words
    do.

    With `keep`, each text is drawn once, so that drawing takes no time of a run.
    """

    def __init__(self, vocabulary: int, length: int = TOKENS, *, keep: bool = True) -> None:
        self.length = length
        self.keep = keep
        self.shares = 1.0 / (torch.arange(vocabulary, dtype=torch.float64) + 2.7)
        self.drawn: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if text in self.drawn:
            return self.drawn[text]
        generator = torch.Generator().manual_seed(int(text))
        ids: list[int] = torch.multinomial(
            self.shares, self.length, True, generator=generator
        ).tolist()
        if self.keep:
            self.drawn[text] = ids
        return ids

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{token}" for token in ids)


def about(device: torch.device, quick: bool) -> str:
    if device.type == "cuda":
        return (
            f"Qwen2 1.5B's shape, bfloat16, batches of {BATCH} x {TOKENS:,} tokens, all heads; "
            "% of the plain tokens/s"
        )
    return "the shipped GPT on tiny Shakespeare, float32; % of the plain forward pass's tokens/s"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type == "cuda":
        yield from _on_gpu(device, quick)
        return
    yield from _on_cpu(quick)
    yield from _processes(quick)
    yield from _memory(quick)


def _on_gpu(device: torch.device, quick: bool) -> Iterator[Row]:
    """Yield the time of a plain forward pass with and without logits, recorded, and with an atlas
    in memory.

    An atlas in memory writes no tables, so that neither pandas nor pyarrow is needed.
    """
    model = _model("qwen2", qwen2(quick), "sdpa", device, torch.bfloat16).eval()
    vocabulary = model.config.vocab_size
    rounds = 2 if quick else 24
    tokenizer = RandomTexts(vocabulary)
    texts = [str(i) for i in range(BATCH * rounds)]
    ids = torch.tensor([tokenizer.encode(text) for text in texts], device=device).view(
        rounds, BATCH, TOKENS
    )

    def plain(*, head: bool) -> None:
        with torch.no_grad():
            for batch in ids:
                (model if head else model.base_model)(input_ids=batch, use_cache=False)

    def recorded() -> None:
        with torch.no_grad():
            for batch in ids:
                with record_calls(model, KeepOptions(top=1, sample=True), tokenizer=tokenizer):
                    model.base_model(input_ids=batch, use_cache=False)

    def mapped() -> None:
        ts.atlas(model, texts, tokenizer=tokenizer, length=TOKENS, batch=BATCH)

    runners: dict[str, Callable[[], object]] = {
        "plain, with logits": partial(plain, head=True),
        "plain, hidden": partial(plain, head=False),
    }
    runners |= {"recorded, not added up": recorded, "atlas": mapped}
    yield from _compared(f"{rounds} batches", runners, rounds * BATCH * TOKENS, device, 3)
    waits = _waits(mapped)
    for place in sorted(set(waits)):
        print(f"the host waits for the GPU {waits.count(place)} times at {place}", file=sys.stderr)
    yield Row(
        f"{rounds} batches", "atlas", note=f"the host waits for the GPU {len(waits)} times in all"
    )


def _waits(run_once: Callable[[], object]) -> list[str]:
    """Return the line of the library at each moment when the host waits for the GPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run_once()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    synchronizing = [warning for warning in caught if "synchronizing" in str(warning.message)]
    return [f"{Path(warning.filename).name}:{warning.lineno}" for warning in synchronizing]


def _on_cpu(quick: bool) -> Iterator[Row]:
    model = ts.load("shakespeare", dtype=torch.float32).eval()
    text = _shakespeare()[: 20_000 if quick else 200_000]
    ids = torch.tensor(model.tokenizer.encode(text).ids)
    ids = ids[: len(ids) // (BATCH * 256) * BATCH * 256].view(-1, BATCH, 256)

    def plain() -> None:
        with torch.no_grad():
            for batch in ids:
                model(batch)

    with TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(model.tokenizer.decode(ids.flatten().tolist()))
        runners = {"plain": plain, "atlas": lambda: ts.atlas(model, file, batch=BATCH)}
        yield from _compared(
            "one process", runners, ids.numel(), torch.device("cpu"), 1 if quick else 5
        )


def _compared(
    case: str, runners: dict[str, Any], tokens: int, device: torch.device, rounds: int
) -> Iterator[Row]:
    """Run each once to warm up, then in turns; note the tokens per second, and their share of each
    plain runner's.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    for name, run_once in runners.items():
        began = perf_counter()
        run_once()
        print(
            f"{case}: {name}, first run {perf_counter() - began:.1f} s", file=sys.stderr, flush=True
        )
    for _ in range(rounds):
        for name, run_once in runners.items():
            times[name].append(seconds(run_once, device))
    plain = {name: median(own) for name, own in times.items() if name.startswith("plain")}
    for name, own in times.items():
        shares = ", ".join(
            f"{first / median(own):.0%} of {which}"
            for which, first in plain.items()
            if which != name
        )
        note = f"{tokens / median(own):,.0f} tokens/s{', ' if shares else ''}{shares}"
        yield Row(case, name, 1e3 * median(own), note=note)


def _processes(quick: bool) -> Iterator[Row]:
    """Yield the time of one process of one thread, and of two, on the same text: from the first
    batch to the end.
    """
    text = _shakespeare()[: 30_000 if quick else 400_000]
    times = {}
    for count in (1, 2):
        with TemporaryDirectory() as folder:
            file = Path(folder) / "text.txt"
            file.write_text(text)
            settled = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count), "PYTHONWARNINGS": "ignore"}
            command = [sys.executable, "-m", "benchmarks.atlas", "map", str(file), f"{folder}/out"]
            started = [
                subprocess.Popen(
                    command, env=os.environ | settled | {"RANK": str(rank)}, stdout=subprocess.PIPE
                )
                for rank in range(count)
            ]
            times[count] = max(float(process.communicate()[0]) for process in started)
        yield Row(
            "processes",
            f"{count} of one thread",
            1e3 * times[count],
            note=f"{times[1] / times[count]:.2f} x",
        )


def _memory(quick: bool) -> Iterator[Row]:
    """Yield the most memory of a process that reads corpora of three sizes with a small model."""
    for tokens in (20_000, 40_000, 80_000) if quick else (250_000, 500_000, 1_000_000):
        command = [sys.executable, "-m", "benchmarks.atlas", "memory", str(tokens)]
        seconds_taken, mib = map(
            float, subprocess.run(command, capture_output=True, check=True).stdout.split()
        )
        yield Row(
            f"{tokens:,} tokens",
            "atlas of a small GPT",
            1e3 * seconds_taken,
            mib,
            "peak of the whole process",
        )


def _shakespeare() -> str:
    file = data_folder() / "tiny_shakespeare" / "input.txt"
    if file.exists():
        return file.read_text(encoding="utf-8")
    return "\n".join(
        f"Line {i}: a text that stands in for Shakespeare's {i * i}." for i in range(20_000)
    )


def _map(file: Path, out: str) -> None:
    """Map a text, and print the seconds of reading it, without those of starting."""
    model = ts.load("shakespeare", dtype=torch.float32).eval()
    rank = os.environ.pop("RANK"), os.environ.pop("WORLD_SIZE")
    ts.atlas(model, ["Warm up, that the kernels are loaded. " * 12])
    os.environ["RANK"], os.environ["WORLD_SIZE"] = rank
    began = perf_counter()
    ts.atlas(model, file, out=out)
    print(perf_counter() - began)


def _print_memory(tokens: int) -> None:
    config = ts.models.GPTConfig(vocabulary=512, max_positions=256, d_model=32, blocks=2, heads=2)
    model = ts.models.GPT(config).eval()
    began = perf_counter()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "numbers.jsonl"
        with file.open("w") as opened:
            for i in range(tokens // 256):
                opened.write(f'{{"text": "{i}"}}\n')
        ts.atlas(
            model, file, tokenizer=RandomTexts(512, 256, keep=False), out=f"{folder}/out", batch=32
        )
    print(perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    if sys.argv[1] == "map":
        _map(Path(sys.argv[2]), sys.argv[3])
    else:
        _print_memory(int(sys.argv[2]))
