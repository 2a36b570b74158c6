"""The induction heads of SmolLM2 by pattern and by effect, and how they form while a small GPT
trains (Olsson et al. 2022): numbers and figure of a page.

    python -m docs.findings.phases       first, which takes a GPU: its numbers are drawn here
    python -m docs.findings.induction
"""

import argparse
from typing import Any

import torch

import telescope as ts

from .common import (
    ACCENT,
    GREY,
    INK,
    LIGHT,
    WARM,
    Numbers,
    device,
    labels_from,
    read,
    save_figure,
    smollm2,
    spearman,
    style,
    windows,
)

ONCE = 64  # random tokens, which come twice
COUNTS = (1, 2, 4, 8, 16)
Heads = list[tuple[int, int]]  # (layer, head)


def repeated(sequences: int) -> torch.Tensor:
    """Return a start token and random tokens, twice, as the page on circuits has them."""
    generator = torch.Generator().manual_seed(0)
    once = torch.randint(1000, 40_000, (sequences, ONCE), generator=generator)
    start = torch.ones(sequences, 1, dtype=torch.long)
    return torch.cat([start, once, once], 1).to(device())


def columns(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return some columns of heads(): (layers, heads) each."""
    with torch.no_grad(), ts.watch(model) as recording:
        model(ids)
    heads = recording.heads()
    return {
        name: torch.tensor([getattr(head, name) for head in heads]).view(len(recording), -1)
        for name in ("induction", "first", "previous")
    }


def ranked(numbers: torch.Tensor) -> Heads:
    """Return all heads, those with the largest numbers first."""
    width = numbers.shape[1]
    return [divmod(i, width) for i in numbers.flatten().argsort(descending=True).tolist()]


def muted(heads: Heads) -> list[Any]:
    """Return the edits that switch these heads off."""
    return [ts.mute(f"model.layers.{layer}.self_attn", head) for layer, head in heads]


def losses_without(
    model: Any, ids: torch.Tensor, labels: torch.Tensor, groups: list[Heads]
) -> list[float]:
    """Return the loss of the model as it is, and without each group of heads."""
    edits = [muted(group) for group in groups]
    effects = ts.effect(model, ids, edits, "loss", labels=labels, progress=False)
    return list(effects.columns["loss"])


def draw(
    pattern: torch.Tensor, rise: torch.Tensor, curves: dict[str, list[float]], before: float
) -> None:
    """Draw pattern against effect, the loss by how many heads are muted, and the phase change."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 4, figsize=(12.6, 3.2))
    axes[0].scatter(pattern.flatten(), rise.flatten(), s=9, color=ACCENT, alpha=0.6, linewidths=0)
    for layer, head in dict.fromkeys([*ranked(pattern)[:4], *ranked(rise)[:4]]):
        place = (float(pattern[layer, head]), float(rise[layer, head]))
        axes[0].annotate(f"{layer}.{head}", place, xytext=(3, 3), textcoords="offset points")
    axes[0].set(xlabel="induction share", ylabel="rise of the loss, nats")
    axes[0].set_title("SmolLM2: 270 heads, one muted at a time")

    colours = {"induction": INK, "random": GREY, "first token": LIGHT, "effect": WARM}
    for name, losses in curves.items():
        axes[1].plot([0, *COUNTS], [before, *losses], "o-", ms=3, color=colours[name], label=name)
    axes[1].set(xlabel="heads muted together", ylabel="loss on the second copy, nats")
    axes[1].set_title("the best of each order")
    axes[1].legend()

    runs = read("phases")["runs"]
    for (name, run), colour in zip(runs.items(), (INK, WARM, ACCENT), strict=True):
        axes[2].plot(run["step"], run["induction"], color=colour, label=name)
        axes[3].plot(run["step"], run["repeats"], color=colour, label=name)
    axes[2].set(xlabel="step", ylabel="induction share")
    axes[2].set_title("while a GPT trains: its best head")
    axes[3].set(xlabel="step", ylabel="loss on the second copy, nats")
    axes[3].set_title("and its loss on random repeats")
    axes[2].legend(fontsize=7)
    save_figure(figure, "induction")


def main() -> None:
    """Measure, and write induction.json and induction.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--draws", type=int, default=5, help="of random heads")
    parser.add_argument("--layers", type=int, default=30, help="whose heads are muted one by one")
    given = parser.parse_args()
    numbers = Numbers("induction")
    model, tokenizer = smollm2()
    ids = repeated(given.sequences)
    labels = labels_from(ids, ONCE + 2)
    found = columns(model, ids)
    pattern = found["induction"]
    # The control: as many random tokens, which hardly repeat.
    generator = torch.Generator().manual_seed(1)
    never = torch.randint(1000, 40_000, ids.shape, generator=generator).to(device())
    control = columns(model, never)["induction"]

    # One head at a time.
    each = [(layer, head) for layer in range(given.layers) for head in range(pattern.shape[1])]
    losses = losses_without(model, ids, labels, [[one] for one in each])
    before = losses[0]
    rise = torch.zeros_like(pattern)
    for (layer, head), loss in zip(each, losses[1:], strict=True):
        rise[layer, head] = loss - before

    # Several heads together, by different orders.
    mixed = [each[i] for i in torch.randperm(len(each), generator=generator).tolist()]
    draws = [mixed[max(COUNTS) * i : max(COUNTS) * (i + 1)] for i in range(given.draws)]
    orders = {
        "induction": [ranked(pattern)],
        "first token": [ranked(found["first"])],
        "effect": [ranked(rise)],
        "random": draws,
    }
    curves, spread = {}, {}
    text = windows(tokenizer, "alice29", 4, 129).to(device())
    on_text = {}
    for name, lists in orders.items():
        groups = [heads[:count] for count in COUNTS for heads in lists]
        several = losses_without(model, ids, labels, groups)[1:]
        by_count = [several[i : i + len(lists)] for i in range(0, len(several), len(lists))]
        curves[name] = [sum(row) / len(row) for row in by_count]
        spread[name] = [[min(row), max(row)] for row in by_count]
        # The same heads on a book: what is lost only where something repeats?
        eight = [heads[:8] for heads in lists]
        plain, *without = losses_without(model, text, labels_from(text, 1), eight)
        on_text[name] = sum(without) / len(without) - plain
    by_pattern, by_effect = ranked(pattern), ranked(rise)
    numbers.write(
        before=before,
        pattern={
            "heads": pattern,
            "above_04": int((pattern >= 0.4).sum()),
            "best": [[*one, float(pattern[one])] for one in by_pattern[:10]],
        },
        control={
            "best": float(control.max()),
            "of_best": [float(control[one]) for one in by_pattern[:10]],
        },
        effect={
            "heads": rise,
            "best": [[*one, float(rise[one]), by_pattern.index(one) + 1] for one in by_effect[:10]],
            "of_pattern": [[float(rise[one]), by_effect.index(one) + 1] for one in by_pattern[:10]],
            "spearman": spearman(pattern.flatten().tolist(), rise.flatten().tolist()),
        },
        counts=list(COUNTS),
        muted=curves,
        spread=spread,
        on_text=on_text,
        text_loss=plain,
    )
    draw(pattern, rise, curves, before)


if __name__ == "__main__":
    main()
