"""Make the atlases of the shipped models, and the numbers and pictures of docs/atlas.md:

python tools/atlases.py --data DATA --out ATLASES

DATA holds tiny_shakespeare, tatoeba_de_en and debian_synopsis, as for training. Atlases that
ATLASES holds are opened.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot

import telescope as ts
from telescope.atlases.measure import CLASSES
from telescope.measures import HABITS

FOLDER = Path(__file__).parents[1] / "docs" / "atlas"
INK, LIGHT = "#1f3a5f", "#c8d4e3"


def texts_of(name: str, data: Path) -> list[str]:
    """Return texts like those that a shipped model was trained on, from the part that it was
    validated on.
    """
    if name == "shakespeare":
        text = (data / "tiny_shakespeare" / "input.txt").read_text(encoding="utf-8")
        held_out = text[len(text) * 9 // 10 :]
        return [held_out[first : first + 4_000] for first in range(0, len(held_out), 4_000)]
    if name == "translator-en-de":
        with gzip.open(data / "tatoeba_de_en" / "deu.txt.gz", "rt", encoding="utf-8") as lines:
            return [line.split("\t")[0] for i, line in enumerate(lines) if i % 600 == 0]
    with gzip.open(data / "debian_synopsis" / "valid.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines][:150]
    return [
        max((value for value in record.values() if isinstance(value, str)), key=len)
        for record in records
    ]


def atlas_of(name: str, data: Path, out: Path) -> ts.Atlas:
    """Return the atlas of a shipped model, from its folder if it exists."""
    if (out / name).is_dir():
        return ts.open(out / name)
    return ts.atlas(
        ts.load(name, dtype=torch.float32), texts_of(name, data), out=out / name, batch=16
    )


def draw_one_text_is_not_enough(atlas: ts.Atlas) -> None:
    """Draw, for each head, how its strongest share varies from sequence to sequence."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4))
    heads = sorted(atlas.heads(), key=lambda head: (atlas.layers.index(head.layer), head.number))
    for i, head in enumerate(heads):
        habit = _strongest(head)
        found = atlas.statistic(head.layer, head.number, habit)
        low, _, middle, _, high = found.quantiles
        axes.plot([i, i], [low, high], color=LIGHT, linewidth=6, solid_capstyle="butt")
        axes.plot(i, middle, "o", color=INK)
        axes.annotate(
            habit, (i, high), rotation=60, fontsize=7, xytext=(0, 3), textcoords="offset points"
        )
    axes.axhline(0.4, color="grey", linewidth=0.6, linestyle=":")
    names = [f"{head.layer.split('.')[1]}.{head.number}" for head in heads]
    axes.set(
        xticks=range(len(heads)),
        xticklabels=names,
        ylim=(0, 1.05),
        xlabel="block.head",
        ylabel="share of the weight",
    )
    axes.set_title(
        "The strongest habit of each head: median and 5 to 95 % of the sequences", fontsize=9
    )
    _save(figure, "one-text.png")


def measure_key_biases(model_name: str) -> tuple[dict[str, tuple[float, float]], float]:
    """Return the largest logit of each layer of a translator, as shipped and without its key
    biases.

    Also return by how much the outputs differ at most.
    """
    model = ts.load(model_name, dtype=torch.float32).eval()
    sentence = "The man saw the astronomer with a telescope, and waved to the children on the hill."
    source = torch.tensor([model.tokenizer.encode(sentence).ids])
    written = ts.decoding.generate(model, [source[0].tolist()], temperature=0.0, max_new_tokens=40)[
        0
    ].ids
    target = torch.tensor([[model.special.start, *written]])
    health = ts.Health(model, on_alert=lambda report: None)
    before = health.measure(source, target)
    with torch.no_grad():
        logits = model(source, target)
        ts.health.remove_key_bias(model)
        difference = float((model(source, target) - logits).abs().max())
    after = health.measure(source, target)
    return {
        name: (max(before.layers[name].logit), max(after.layers[name].logit))
        for name in before.layers
    }, difference


def draw_maps(atlas: ts.Atlas, places: list[tuple[str, int]]) -> None:
    """Draw the averaged maps of some heads, and their distance profiles."""
    figure, rows = pyplot.subplots(2, len(places), figsize=(2.4 * len(places), 4.4), squeeze=False)
    for column, (layer, number) in enumerate(places):
        kind = next(
            head.kind for head in atlas.heads() if (head.layer, head.number) == (layer, number)
        )
        rows[0][column].imshow(atlas.map(layer, number) ** 0.5, cmap="Blues", vmin=0.0, vmax=1.0)
        rows[0][column].set_title(f"{layer} head {number}: {kind}", fontsize=7)
        rows[0][column].set(xticks=[], yticks=[])
        profile = atlas.profile(layer, number, "distance")
        shown = [(label, share) for label, share in zip(*profile, strict=True) if share > 0][:12]
        rows[1][column].bar(range(len(shown)), [share for _, share in shown], color=INK)
        rows[1][column].set_ylim(0, 1)
        rows[1][column].set_xticks(
            range(len(shown)), [label for label, _ in shown], rotation=70, fontsize=6
        )
    figure.suptitle(
        "Maps averaged over sequences of like length; below, the weight by distance", fontsize=9
    )
    _save(figure, "maps.png")


def draw_special_tokens(atlas: ts.Atlas) -> None:
    """Draw the share of each head's weight that goes to special tokens, by layer."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.2))
    for i, layer in enumerate(atlas.layers):
        profiles = [
            atlas.profile(own, number, "class") for own, number in atlas.places if own == layer
        ]
        shares = [dict(zip(*profile, strict=True))["special"] for profile in profiles]
        axes.bar(i, sum(shares) / len(shares), color=LIGHT)
        axes.plot([i] * len(shares), shares, "o", color=INK, markersize=4)
    tokens = atlas.sums.class_tokens.double()
    axes.axhline(
        float(tokens[CLASSES.index("special")] / tokens.sum()),
        color="grey",
        linewidth=0.8,
        linestyle=":",
    )
    axes.set(ylim=(0, 1), ylabel="share on special tokens")
    axes.set_xticks(range(len(atlas.layers)), atlas.layers, rotation=45, ha="right", fontsize=7)
    axes.set_title(
        "A bar is a layer, a dot a head; dotted: the share of special tokens in the texts",
        fontsize=9,
    )
    _save(figure, "special-tokens.png")


# ----------------------------------------------------------------------------------------- findings


def class_share(atlas: ts.Atlas, layer: str, head: int, name: str) -> float:
    """Return the share of a head's weight that goes to a class of tokens."""
    return dict(zip(*atlas.profile(layer, head, "class"), strict=True))[name]


def line_breaks(atlas: ts.Atlas) -> dict[str, Any]:
    """Return the figures of the first finding: the punctuation heads of the language model read
    line breaks.
    """
    tokens = atlas.sums.class_tokens.double()
    clearest = atlas.heads().where(kind="punctuation").sort("punctuation")
    figures: dict[str, Any] = {
        "tokens": atlas.tokens,
        "line breaks among the tokens": float(tokens[CLASSES.index("space")] / tokens.sum()),
        "largest share on the first token": max(head.first for head in atlas.heads()),
        "punctuation heads": {
            f"{head.layer} head {head.number}": head.punctuation for head in clearest
        },
    }
    holds = False
    if len(clearest):
        layer, number = clearest[0].layer, clearest[0].number
        profile = atlas.profile(layer, number, "distance")
        figures |= {
            "clearest": f"{layer} head {number}",
            "its share on line breaks": class_share(atlas, layer, number, "space"),
            "its share on other punctuation": class_share(atlas, layer, number, "punctuation"),
            "its most frequent distance": max(zip(profile.shares, profile.labels, strict=True))[1],
        }
        holds = figures["its share on line breaks"] > 3 * figures["line breaks among the tokens"]
    return {"holds": holds and figures["largest share on the first token"] < 0.1, **figures}


def special_tokens(atlas: ts.Atlas) -> dict[str, Any]:
    """Return the figures of the second finding: the translator rests on its start and end
    tokens.
    """
    tokens = atlas.sums.class_tokens.double()
    decoder = [
        head
        for head in atlas.heads()
        if head.layer.startswith("decoder") and head.layer.endswith("self")
    ]
    encoder = {
        f"{layer} head {number}": class_share(atlas, layer, number, "special")
        for layer, number in atlas.places
        if layer.startswith("encoder")
    }
    on_start = sum(_strongest(head) == "first" for head in decoder)
    return {
        "holds": on_start > len(decoder) / 2 and max(encoder.values()) > 0.5,
        "share on special tokens, by layer": {
            layer: sum(
                class_share(atlas, layer, number, "special")
                for own, number in atlas.places
                if own == layer
            )
            / sum(own == layer for own, _ in atlas.places)
            for layer in atlas.layers
        },
        "special tokens among the tokens": float(tokens[CLASSES.index("special")] / tokens.sum()),
        "decoder heads with the largest share on the first token": f"{on_start} of {len(decoder)}",
        "encoder heads that give 60 % or more to special tokens": sorted(
            name for name, share in encoder.items() if share >= 0.6
        ),
    }


def key_biases(
    name: str, logits: dict[str, tuple[float, float]], difference: float
) -> dict[str, Any]:
    """Return the figures of the third finding: key biases had drifted, without influence, in the
    first weights.
    """
    drifted = ts.health.drifted_key_biases(ts.load(name, dtype=torch.float32))
    return {
        "holds": bool(drifted) and difference < 1e-3,
        "attentions that drifted": f"{len(drifted)} of {len(logits)}",
        "standard deviation of key biases": sorted(keys for keys, _ in drifted.values()),
        "of query biases": sorted(queries for _, queries in drifted.values()),
        "largest logit": max(before for before, _ in logits.values()),
        "without key biases": max(after for _, after in logits.values()),
        "largest change of an output": difference,
    }


def _strongest(head: object) -> str:
    known = {
        name: getattr(head, name) for name in HABITS if getattr(head, name) == getattr(head, name)
    }
    return max(known, key=lambda name: known[name])


def _save(figure: pyplot.Figure, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / name, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = {"key biases": key_biases("translator-en-de", *measure_key_biases("translator-en-de"))}
    for name in ("shakespeare", "translator-en-de", "summarizer"):
        atlas = atlas_of(name, arguments.data, arguments.out)
        print(name, atlas, atlas.heads(), sep="\n")
        if name == "translator-en-de":
            found["special tokens"] = special_tokens(atlas)
            draw_special_tokens(atlas)
        if name == "shakespeare":
            found["line breaks"] = line_breaks(atlas)
            draw_one_text_is_not_enough(atlas)
            chosen = [
                next(iter(atlas.heads().where(kind=kind)), None)
                for kind in ("previous", "punctuation", "first", "mixed")
            ]
            draw_maps(atlas, [(head.layer, head.number) for head in chosen if head is not None])
    (FOLDER / "findings.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
