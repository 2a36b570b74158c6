"""How much of its attention SmolLM2 gives to the first token, and what evicting the first keys
costs (Xiao et al. 2023, StreamingLLM): numbers and figure of a page.

    python -m docs.findings.sinks
"""

import argparse
from dataclasses import replace
from typing import Any

import torch

import telescope as ts

from .common import (
    BOOKS,
    INK,
    LIGHT,
    WARM,
    Numbers,
    column,
    device,
    labels_from,
    save_figure,
    smollm2,
    style,
    windows,
)

LENGTH = 512
COUNTED = 256  # losses are those of the tokens from here on, in every row of the table
WINDOW = 128
OTHERS = (100, 101, 102, 103)  # the four keys that the control evicts


def masked(mask: ts.Mask) -> Any:
    """Return the edit that lets every attention see no more than a mask allows."""

    def restrict(attention: ts.Attention) -> ts.Attention:
        return replace(attention, mask=attention.mask & mask)

    return ts.redefine(None, restrict)


def conditions() -> dict[str, Any]:
    """Return the edit of each row of the table, by name."""
    later = slice(COUNTED - 1, None)
    found: dict[str, Any] = {
        "without keys 0 to 3": ts.hide(range(4), later),
        "without key 0": ts.hide(0, later),
        "without keys 1 to 3": ts.hide([1, 2, 3], later),
        "without keys 100 to 103": ts.hide(list(OTHERS), later),
    }
    for sinks in (0, 1, 2, 4, 8):
        recent = ts.window(WINDOW - sinks)
        found[f"{sinks} + {WINDOW - sinks}"] = masked(recent | ts.prefix(sinks))
    return found


def measure(model: Any, ids: torch.Tensor) -> dict[str, list[float]]:
    """Return the loss of each text, as it is and with each edit."""
    edits = conditions()
    rows: dict[str, list[float]] = {name: [] for name in ("all keys", *edits)}
    for text in ids:
        labels = labels_from(text[None], COUNTED)
        effects = ts.effect(model, text[None], [*edits.values()], "loss", labels=labels)
        for name, loss in zip(rows, effects.columns["loss"], strict=True):
            rows[name].append(loss)
        print({name: round(losses[-1], 2) for name, losses in rows.items()}, flush=True)
    return rows


def shares(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the share of its weight that each head gives to the first token: (layers, heads)."""
    with torch.no_grad(), ts.watch(model) as recording:
        model(ids)
    return column(recording, "first")


def draw(first: torch.Tensor, losses: dict[str, list[float]]) -> None:
    """Draw the share of each head, and the loss by condition."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 2, figsize=(9.2, 3.4), width_ratios=[1.2, 1])
    picture = axes[0].imshow(first.T, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes[0].set(xlabel="layer", ylabel="head", yticks=range(0, first.shape[1], 2))
    axes[0].set_title("share of the weight on the first token")
    figure.colorbar(picture, ax=axes[0], fraction=0.04)
    names = list(losses)[::-1]
    means = [sum(losses[name]) / len(losses[name]) for name in names]
    colours = [
        WARM if name in ("without keys 0 to 3", "without key 0", f"0 + {WINDOW}") else LIGHT
        for name in names
    ]
    axes[1].barh(names, means, color=colours)
    for at, mean in enumerate(means):
        axes[1].annotate(f"{mean:.2f}", (mean, at), xytext=(3, -3), textcoords="offset points")
    axes[1].axvline(means[-1], color=INK, linewidth=0.8)
    axes[1].set_title(f"loss, nats a token, tokens {COUNTED} to {LENGTH - 1}")
    save_figure(figure, "sinks")


def main() -> None:
    """Measure, and write sinks.json and sinks.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1, help="of each of four books")
    given = parser.parse_args()
    numbers = Numbers("sinks")
    model, tokenizer = smollm2()
    by_book = [windows(tokenizer, name, given.texts, LENGTH) for name in BOOKS]
    ids = torch.cat(by_book).to(device())

    first = shares(model, ids)
    losses = measure(model, ids)
    # The first four tokens replaced by line breaks: do sinks need a meaning?
    breaks = ids.clone()
    breaks[:, :4] = tokenizer("\n")["input_ids"][0]
    name = f"4 + {WINDOW - 4}"
    replaced = [
        ts.effect(
            model, text[None], [conditions()[name]], "loss", labels=labels_from(text[None], COUNTED)
        )
        for text in breaks
    ]
    losses[f'4 "\\n" + {WINDOW - 4}'] = [one.columns["loss"][1] for one in replaced]
    losses['all keys, 4 "\\n" first'] = [one.columns["loss"][0] for one in replaced]

    mean = {name: sum(row) / len(row) for name, row in losses.items()}
    ranked = sorted(
        ((float(first[layer, head]), layer, head) for layer in range(30) for head in range(9)),
        reverse=True,
    )
    numbers.write(
        length=LENGTH,
        counted=COUNTED,
        window=WINDOW,
        books=list(BOOKS),
        texts=len(ids),
        losses=losses,
        mean=mean,
        share={
            "all": float(first.mean()),
            "layers": first.mean(1),
            "half_or_more": int((first >= 0.5).sum()),
            "heads": first,
        },
        largest=[[layer, head, share] for share, layer, head in ranked[:5]],
        smallest=[[layer, head, share] for share, layer, head in ranked[-5:]],
    )
    draw(first, losses)


if __name__ == "__main__":
    main()
