"""estimate: the effects of all heads and of many segments by one gradient, and how many of the largest it finds.

Cost: `ts.effect(how="gradient", verify=0)` beside one forward pass. Times are of the whole model;
memory is counted with its weights.

Quality, on a CPU: every head of the shipped models is muted, on real texts. `recall` is the share
of the ten exactly largest effects on the loss among the twenty largest estimates, the mean of all
texts; `5 in 10` likewise.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import telescope as ts
from telescope.decoding.writers import start_token
from telescope.text.corpora import SUMMARIES, TRANSLATIONS
from telescope.text.data_files import data_folder

from .measure import MIB, Row, race
from .watch import _model, _read, _text, gpt2, qwen2

SEGMENTS = 64


def about(device: torch.device, quick: bool) -> str:
    small = ", small models" if quick else ""
    if device.type == "cuda":
        return f"Qwen2 1.5B's shape, bfloat16{small}; x is times the plain forward pass"
    return f"GPT-2's shape, float32, then shipped models on real texts{small}; x as on a GPU"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type == "cuda":
        for length in (512,) if quick else (8_192, 32_768):
            yield from _costs("qwen2", qwen2(quick), length, device, torch.bfloat16)
        return
    yield from _costs("gpt2", gpt2(quick), 256 if quick else 4_096, device, torch.float32)
    count = 2 if quick else 50
    yield from _recall("shakespeare", count)
    yield from _recall("translator-en-de", count)
    yield from _recall("summarizer", count)


# --------------------------------------------------------------------------------------------- cost


def _costs(
    name: str, options: dict[str, Any], length: int, device: torch.device, dtype: torch.dtype
) -> list[Row]:
    """Estimate every head, and every one of SEGMENTS segments, hidden from all later queries."""
    model = _model(name, options, "sdpa", device, dtype)
    ids = _text(length, device)
    heads = ts.mute.each(model)
    segments = ts.hide.each([i * SEGMENTS // length for i in range(length)][: length - 1])
    some = segments[:-1]
    runners: dict[str, Callable[[], object]] = {
        "forward": partial(_read, model, ids),
        "forward and loss": partial(_loss, model, ids),
        f"{len(heads)} heads": partial(_estimated, model, ids, heads),
        f"{len(some)} segments": partial(_estimated, model, ids, some),
        "both": partial(_estimated, model, ids, [*heads, *some]),
        "both, difference": partial(
            _estimated, model, ids, [*heads, *some], measure="logits", tokens=[1], against=[2]
        ),
    }
    rows = race(f"{name}, n = {length:,}", runners, device, rounds=3)
    weights = sum(part.nbytes for part in model.parameters()) / MIB
    return [_beside(row, rows[0], weights) for row in rows]


@torch.no_grad()
def _loss(model: Any, ids: Tensor) -> Tensor:
    logits = model(ids).logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())


def _estimated(model: Any, ids: Tensor, edits: Any, measure: str = "loss", **options: Any) -> Any:
    return ts.effect(model, ids, edits, measure, how="gradient", verify=0, **options)


def _beside(row: Row, plain: Row, weights: float) -> Row:
    """Note the time and the memory, with the weights, as multiples of those of `plain`."""
    if row.ms is None or plain.ms is None or row.mib is None or plain.mib is None:
        return row
    memory = (row.mib + weights) / (plain.mib + weights)
    return replace(row, note=f"{row.ms / plain.ms:.2f} x, memory with weights {memory:.2f} x")


# ------------------------------------------------------------------------------------------ quality


def _recall(name: str, count: int) -> Iterator[Row]:
    model: Any = ts.load(name).double().eval()
    edits = ts.mute.each(model)
    ways: dict[str, dict[str, Any]] = {"gradient": {}, "gradient, drops=all": {"drops": "all"}}
    for way, options in ways.items():
        found = [
            ts.effect(
                model,
                inputs,
                edits,
                "loss",
                how="gradient",
                verify="all",
                progress=False,
                **options,
            )
            for inputs in INPUTS[name](model, count)
        ]
        recalls = [sum(one.recall(*at) for one in found) / len(found) for at in ((10, 20), (5, 10))]
        note = f"recall {recalls[0]:.3f}, 5 in 10 {recalls[1]:.3f}, {len(edits)} heads"
        yield Row(f"{name.partition('-')[0]}, {len(found)} texts", way, note=note)


def _written(model: Any, count: int) -> list[Any]:
    """Return texts that the model writes itself."""
    openings = ("ROMEO:", "KING:", "First Citizen:", "JULIET:", "To be", "My lord,", "What")
    found = []
    for seed in range(count):
        prompt = model.tokenizer.encode(openings[seed % len(openings)]).ids
        options = {"temperature": 1.0, "seed": seed, "max_new_tokens": 100}
        found.append(torch.tensor([ts.decoding.generate(model, [prompt], **options)[0].ids]))
    return found


def _pairs(pairs: Any, model: Any, count: int) -> list[Any]:
    """Return sources, each with its target behind the token that begins a text."""
    found = []
    for pair in [one for one in pairs if len(one.source) < 600][:count]:
        source = model.tokenizer.encode(pair.source).ids
        target = [start_token(model), *model.tokenizer.encode(pair.targets[0]).ids]
        found.append((torch.tensor([source]), torch.tensor([target])))
    return found


def _captions(model: Any, count: int) -> list[Any]:
    return _pairs(TRANSLATIONS["multi30k"](data_folder(), "test", "en", "de"), model, count)


def _descriptions(model: Any, count: int) -> list[Any]:
    return _pairs(SUMMARIES["debian-synopsis"](data_folder(), "validation"), model, count)


INPUTS: dict[str, Callable[[Any, int], list[Any]]] = {
    "shakespeare": _written,
    "translator-en-de": _captions,
    "summarizer": _descriptions,
}
