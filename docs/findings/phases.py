"""Train small GPTs on texts that repeat, and watch induction heads form: numbers for the page on
induction heads.

    python -m docs.findings.phases            the run of the page: a GPU, or hours of a CPU
    python -m docs.findings.phases --steps 60 a shorter one
    python -m docs.findings.phases --drawn    the figure alone, from the numbers of the last run

Three runs, alike but for one thing each: the shape and data of recipes/induction.toml; one block
instead of three; and the same text without repeats.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

import telescope as ts
from telescope.tasks.learning.repeats import measure_repeats
from telescope.text import train_bpe
from telescope.training import Repeated, Training, language, train

from .common import ACCENT, BOOKS, INK, WARM, Numbers, book, read, save_figure, style

BLOCK = 256
HELD_OUT = 10  # the last of so many parts of each book is for validation
RUNS = {
    "three blocks, repeats": {"blocks": 3, "share": 0.8},
    "one block, repeats": {"blocks": 1, "share": 0.8},
    "three blocks, plain text": {"blocks": 3, "share": 0.0},
}


def texts() -> tuple[str, str]:
    """Return the text to train on, and the text for validation."""
    known, held_out = [], []
    for name in BOOKS:
        text = book(name)
        cut = len(text) * (HELD_OUT - 1) // HELD_OUT
        known.append(text[:cut])
        held_out.append(text[cut:])
    return "\n\n".join(known), "\n\n".join(held_out)


def in_context(model: Any, ids: torch.Tensor) -> float:
    """Return the in-context learning score of Olsson et al. (2022): the loss of a late token less
    that of an early one, here the tokens 192 to 255 and 32 to 63 of each window.
    """
    with torch.no_grad():
        logits = model(ids[:, :-1])
    losses = torch.nn.functional.cross_entropy(
        logits.float().transpose(1, 2), ids[:, 1:], reduction="none"
    )
    return float(losses[:, 192:].mean() - losses[:, 32:64].mean())


def train_one(blocks: int, share: float, steps: int, rows: int, every: int) -> dict[str, Any]:
    """Train a GPT, and return what was measured every so many steps."""
    known, held_out = texts()
    tokenizer = train_bpe(known.split("\n\n"), 1024)
    ids = tokenizer.encode(known).ids
    validation = torch.tensor(tokenizer.encode(held_out).ids)
    count = len(validation) // (BLOCK + 1)
    validation = validation[: count * (BLOCK + 1)].view(count, -1)[:64]

    torch.manual_seed(0)
    config = ts.models.GPTConfig(
        vocabulary=tokenizer.get_vocab_size(),
        max_positions=BLOCK,
        positions="rotary",
        d_model=192,
        blocks=blocks,
        heads=6,
        bias=False,
        dropout=0.1,
    )
    model = ts.models.GPT(config)
    gpu = torch.cuda.is_available()
    settings = Training(
        steps=steps,
        rows=rows,
        lr=0.003,
        schedule="cosine",
        warmup=100,
        decay=4000,
        floor=0.1,
        beta_2=0.99,
        weight_decay=0.1,
        clip=1.0,
        validate_every=every,
        save_every=steps,
        log_every=every,
        precision="bf16" if gpu else "fp32",
        capture=gpu,
    )
    seen: list[dict[str, float]] = []

    @torch.no_grad()
    def measure(now: Any) -> dict[str, float]:
        """Return the loss on text, on random tokens that come twice, and the shares of heads."""
        device = next(now.parameters()).device
        text = validation.to(device)
        once = torch.randint(config.vocabulary, (8, 64), generator=torch.Generator().manual_seed(0))
        with ts.watch(now) as recording:
            now(torch.cat([once, once], 1).to(device))
        heads = recording.heads()
        found = measure_repeats(now)
        seen.append(
            {
                "text": float(now.loss(text[:, :-1], text[:, 1:])),
                "repeats": found["repeats"],
                "induction": found["induction"],
                "previous": max(head.previous for head in heads),
                "in_context": in_context(now, text),
            }
        )
        return {"loss": seen[-1]["text"], **found}

    measure(model.eval())
    with tempfile.TemporaryDirectory() as folder:
        data = Repeated(ids, BLOCK, share)
        train(model.train(), data, language, settings, Path(folder), validate=measure)
    # The step of each measurement; a last one, where it is no multiple, is of the last step.
    at = [min(i * every, steps) for i in range(len(seen))]
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "step": at,
        **{name: [row[name] for row in seen] for name in seen[0]},
    }


def draw(runs: dict[str, Any]) -> None:
    """Draw what was measured while the models trained."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.1))
    titles = {
        "induction": "induction share of the best head",
        "repeats": "loss on random tokens, second time",
        "text": "loss on text that was held out",
    }
    for axis, (column, title) in zip(axes, titles.items(), strict=True):
        for (name, run), colour in zip(runs.items(), (INK, WARM, ACCENT), strict=True):
            axis.plot(run["step"], run[column], color=colour, label=name)
        axis.set(xlabel="step")
        axis.set_title(title)
    axes[0].legend(fontsize=7, loc="center right")
    axes[2].set_ylim(3, 5)
    save_figure(figure, "phases")


def main() -> None:
    """Train the three models, and write phases.json and phases.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--drawn", action="store_true", help="draw what was measured before")
    given = parser.parse_args()
    if given.drawn:
        draw(read("phases")["runs"])
        return
    numbers = Numbers("phases")
    runs = {
        name: train_one(**settings, steps=given.steps, rows=given.rows, every=given.every)
        for name, settings in RUNS.items()
    }
    numbers.write(steps=given.steps, rows=given.rows, runs=runs)
    draw(runs)


if __name__ == "__main__":
    main()
