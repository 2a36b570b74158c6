"""The induction heads of SmolLM2 by pattern and by effect (Olsson et al. 2022): numbers and figure
of a page. How such heads form while a small GPT trains is in phases.py.

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
    column,
    device,
    labels_from,
    save_figure,
    smollm2,
    spearman,
    style,
    windows,
)

ONCE = 64  # random tokens, which come twice
COUNTS = (1, 2, 4, 8)
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
    return {name: column(recording, name) for name in ("induction", "first", "previous")}


def diagonal(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the share of its weight that each head gives to the token that stands ONCE - 1 before
    the query, over the queries of the second half: (layers, heads).
    """
    length = ids.shape[1]
    place = torch.arange(length)
    there = ts.from_tensor(place[:, None] - place == ONCE - 1)
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as recording:
        model(ids)
    rows = []
    for watched in recording.values():
        call = watched.call
        seen = ts.survey(call.queries, call.keys, call.attention, within=there)
        rows.append(seen.within[:, :, ONCE + 1 :].mean((0, 2)))
    return torch.stack(rows).cpu()


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
    pattern: torch.Tensor,
    exact: dict[tuple[int, int], float],
    curves: dict[str, list[float]],
    before: float,
) -> None:
    """Draw pattern against effect, the loss by how many heads are muted, and the phase change."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 3.3))
    by_effect = sorted(exact, key=lambda one: -exact[one])
    for one, rise in exact.items():
        place = (float(pattern[one]), rise)
        axes[0].plot(*place, "o", color=ACCENT, markersize=3)
        if one in [*by_effect[:4], *ranked(pattern)[:4]]:
            name = "{}.{}".format(*one)
            axes[0].annotate(name, place, xytext=(3, 3), textcoords="offset points")
    axes[0].set(xlabel="induction share", ylabel="rise of the loss, nats")
    axes[0].set_title("SmolLM2: one head muted at a time")

    colours = {"induction": INK, "random": GREY, "first token": LIGHT, "effect": WARM}
    for name, losses in curves.items():
        axes[1].plot([0, *COUNTS], [before, *losses], "o-", ms=3, color=colours[name], label=name)
    axes[1].set(xlabel="heads muted together", ylabel="loss on the second copy, nats")
    axes[1].set_title("the best of each order")
    axes[1].legend()

    save_figure(figure, "induction")


def main() -> None:
    """Measure, and write induction.json and induction.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--draws", type=int, default=3, help="of random heads")
    parser.add_argument("--singly", type=int, default=2, help="sequences for single heads")
    parser.add_argument("--verify", type=int, default=30, help="heads with the largest estimates")
    given = parser.parse_args()
    numbers = Numbers("induction")
    model, tokenizer = smollm2()
    ids = repeated(given.sequences)
    labels = labels_from(ids, ONCE + 2)
    found = columns(model, ids)
    pattern = found["induction"]
    # The control: the same places in as many random tokens of which none comes twice.
    generator = torch.Generator().manual_seed(1)
    never = 1000 + torch.randperm(39_000, generator=generator)[: ids.numel()].view_as(ids.cpu())
    control = diagonal(model, never.to(device()))

    # One head at a time: estimates of all, and exact effects of the largest and of the best by
    # pattern.
    each = [(layer, head) for layer in range(30) for head in range(pattern.shape[1])]
    some = slice(given.singly)
    estimates = ts.effect(
        model,
        ids[some],
        muted(each),
        "loss",
        labels=labels[some],
        how="gradient",
        verify=0,
        progress=False,
    ).columns["loss"]
    estimate = torch.tensor(estimates[1:]).view_as(pattern) - estimates[0]
    print("estimated", flush=True)
    checked = list(dict.fromkeys([*ranked(pattern)[:10], *ranked(estimate.abs())[: given.verify]]))
    losses = losses_without(model, ids[some], labels[some], [[one] for one in checked])
    exact = {one: loss - losses[0] for one, loss in zip(checked, losses[1:], strict=True)}
    print(f"{len(checked)} heads muted one by one", flush=True)

    # Several heads together, by different orders.
    mixed = [each[i] for i in torch.randperm(len(each), generator=generator).tolist()]
    draws = [mixed[max(COUNTS) * i : max(COUNTS) * (i + 1)] for i in range(given.draws)]
    orders = {
        "induction": [ranked(pattern)],
        "first token": [ranked(found["first"])],
        "effect": [sorted(exact, key=lambda one: -exact[one])],
        "random": draws,
    }
    curves, spread = {}, {}
    text = windows(tokenizer, "alice29", 2, 129).to(device())
    on_text = {}
    for name, lists in orders.items():
        groups = [heads[:count] for count in COUNTS for heads in lists]
        before, *several = losses_without(model, ids[:2], labels[:2], groups)
        by_count = [several[i : i + len(lists)] for i in range(0, len(several), len(lists))]
        curves[name] = [sum(row) / len(row) for row in by_count]
        spread[name] = [[min(row), max(row)] for row in by_count]
        # The same heads on a book: what is lost only where something repeats?
        eight = [heads[:8] for heads in lists]
        plain, *without = losses_without(model, text, labels_from(text, 1), eight)
        on_text[name] = sum(without) / len(without) - plain
    by_pattern = ranked(pattern)
    by_effect = sorted(exact, key=lambda one: -exact[one])
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
            "before": losses[0],
            "verified": len(checked),
            "exact": [[*one, own] for one, own in exact.items()],
            "estimates": estimate,
            "best": [[*one, exact[one], by_pattern.index(one) + 1] for one in by_effect[:10]],
            "of_pattern": [[*one, exact[one]] for one in by_pattern[:10]],
            "spearman": spearman(
                [float(estimate[one]) for one in checked], [exact[one] for one in checked]
            ),
        },
        counts=list(COUNTS),
        muted=curves,
        spread=spread,
        on_text=on_text,
        text_loss=plain,
    )
    draw(pattern, exact, curves, before)


if __name__ == "__main__":
    main()
