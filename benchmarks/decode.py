"""decode: generate 128 tokens with Telescope and with transformers.generate at its defaults, with
the same weights; and a GPT watched meanwhile, with all surveys run at the end.

Beside them a lower bound: the bytes that a step has to read, weights and cache, at this machine's
memory bandwidth, measured in the same run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import telescope as ts
from telescope.models import GPT, GPTConfig, Model, Special, Transformer, TransformerConfig

from .measure import Row, race, seconds

PROMPT = 16  # tokens


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Model]
    batch: int
    beams: int
    tokens: int
    goal: float  # times as fast as transformers


def cases(device: torch.device, quick: bool) -> list[Case]:
    tokens = 8 if quick else 128
    gpt = partial(gpt2, quick)
    size = "small" if quick else "124M"
    if device.type == "cuda":
        return [Case(f"GPT-2 {size}, batch 1", gpt, 1, 1, tokens, 5.0)]
    return [
        Case(f"GPT-2 {size}, batch 1", gpt, 1, 1, tokens, 1.15),
        Case(f"GPT-2 {size}, batch 8", gpt, 8, 1, tokens, 1.15),
        Case(
            f"Marian{' small' if quick else ''}, batch 8, beam 5",
            partial(marian, quick),
            8,
            5,
            tokens,
            2.0,
        ),
    ]


def gpt2(quick: bool) -> Model:
    small = {"vocabulary": 500, "d_model": 48, "blocks": 2, "heads": 4}
    large = {"vocabulary": 50_257, "d_model": 768, "blocks": 12, "heads": 12}
    return GPT(GPTConfig(max_positions=1024, activation="gelu_tanh", **small if quick else large))


def marian(quick: bool) -> Model:
    small = {"vocabulary": 500, "d_model": 48, "encoder_blocks": 2, "decoder_blocks": 2, "heads": 4}
    large = {
        "vocabulary": 58_101,
        "d_model": 512,
        "encoder_blocks": 6,
        "decoder_blocks": 6,
        "heads": 8,
    }
    config = {"positions": "sinusoidal_halves", "activation": "silu", "head_bias": True}
    model = Transformer(TransformerConfig(**config, **small if quick else large))
    pad = model.config.vocabulary - 1
    model.special = Special(start=pad, pad=pad)  # and no end: all write as many tokens
    return model


def about(device: torch.device, quick: bool) -> str:
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    tokens = cases(device, quick)[0].tokens
    small = ", small models" if quick else ""
    return (
        f"decoding, greedy or beams: {PROMPT} tokens read, {tokens} written, random weights, "
        f"{dtype}{small}; ms a token"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    for case in cases(device, quick):
        torch.manual_seed(0)
        model = (
            case.make()
            .to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
            .eval()
        )
        ids = torch.randint(1, 400, (case.batch, PROMPT), device=device)
        runners: dict[str, Callable[[], object]] = {"telescope": ours(model, ids, case)}
        if case.beams == 1 and isinstance(model, GPT):
            runners |= {f"watched, top={top}": watched(model, ids, case, top) for top in (0, 8)}
        runners |= theirs(model, ids, case)
        rows = race(case.name, runners, device, rounds=1 if quick else 3)
        per_step = floor(model, case, device)
        plain = next((row.ms for row in rows if row.runner == "telescope"), None)
        peer = next((row.ms for row in rows if row.runner == "transformers.generate"), None)
        for row in rows:
            if row.ms is None:
                yield row
                continue
            ms = row.ms / case.tokens
            note = f"{ms / per_step:.1f} x the floor"
            if row.runner == "telescope" and peer:
                note += f", {peer / row.ms:.2f} x transformers (goal {case.goal:g})"
            if row.runner.startswith("watched") and plain:
                # Only a GPU captures steps.
                goal = " (goal 1.10)" if device.type == "cuda" else ""
                note = f"{row.ms / plain:.2f} x plain{goal}"
            yield replace(row, ms=ms, note=note)
        yield Row(case.name, "floor: memory read once", per_step)


def ours(model: Model, ids: Tensor, case: Case) -> Callable[[], list[list[int]]]:
    def write() -> list[list[int]]:
        if case.beams > 1:
            found = ts.decoding.beam(model, ids, beams=case.beams, max_new_tokens=case.tokens)
            return [best[0].ids for best in found]
        return [
            line.ids
            for line in ts.decoding.generate(
                model, ids, max_new_tokens=case.tokens, temperature=0.0
            )
        ]

    return write


def watched(model: Model, ids: Tensor, case: Case, top: int) -> Callable[[], object]:
    """Return a function that writes what `ours` does, and records every attention meanwhile."""
    write = ours(model, ids, case)

    def run() -> object:
        with ts.watch(model, top=top) as recording:
            written = write()
        recording._flush()
        return written

    return run


def theirs(model: Model, ids: Tensor, case: Case) -> dict[str, Callable[[], list[list[int]]]]:
    try:
        import transformers
    except ImportError:
        return {}
    kinds: dict[type[Model], Any] = {
        GPT: transformers.AutoModelForCausalLM,
        Transformer: transformers.AutoModelForSeq2SeqLM,
    }
    with TemporaryDirectory() as folder:
        ts.export(model, f"{folder}/exported")
        theirs = kinds[type(model)].from_pretrained(
            f"{folder}/exported", dtype=next(model.parameters()).dtype
        )
    theirs = theirs.to(ids.device).eval()
    before = PROMPT if isinstance(model, GPT) else 1
    how = (
        {} if isinstance(model, GPT) else {"bad_words_ids": [[model.special.pad]]}
    )  # as Marian's own configs say

    def write() -> list[list[int]]:
        with torch.no_grad():
            written = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=case.tokens,
                do_sample=False,
                num_beams=case.beams,
                **how,
            )
        rows: list[list[int]] = written[:, before:].tolist()
        return rows

    return {"transformers.generate": write}


def floor(model: Model, case: Case, device: torch.device) -> float:
    """Return the milliseconds to read once what a step needs: the matrices it multiplies by, and
    half of the keys and values at the end, which is what a step reads on average.
    """
    read = sum(W.nbytes for name, W in model.named_parameters() if W.ndim == 2 and not _idle(name))
    each = next(model.parameters()).element_size()
    rows = case.batch * case.beams
    config = model.config
    if isinstance(config, GPTConfig):
        read += 2 * config.blocks * rows * config.d_model * (PROMPT + case.tokens // 2) * each
    elif isinstance(config, TransformerConfig):
        read += (
            2
            * config.decoder_blocks
            * config.d_model
            * (rows * case.tokens // 2 + case.batch * PROMPT)
            * each
        )
    return 1e3 * read / bandwidth(device)


def _idle(name: str) -> bool:
    """Return whether a step does not read this parameter: it is the encoder's, or a table of
    positions.

    An embedding counts as read, since it is the head too.
    """
    return name.startswith(("encoder.", "positions."))


def bandwidth(device: torch.device) -> float:
    """Return bytes per second: the best of several sums over more memory than any cache holds."""
    size = 2**31 if device.type == "cuda" else 2**28
    numbers = torch.ones(size // 4, device=device)
    numbers.sum()
    return numbers.nbytes / min(seconds(numbers.sum, device) for _ in range(10))
