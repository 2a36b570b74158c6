"""What only an edit can show, with the shipped models: python tools/edits.py [--data DIR], draws
docs/edits.png

1. The cross heads of the translator, switched off one at a time and a layer at a time: BLEU of 200
   sentences of Tatoeba that were held out.
2. The heads of the GPT, switched off one at a time: the loss on held-out text, beside the kind of
   each head.
3. One sentence, of which one word after the other is hidden: what is still translated.

The numbers are also written to docs/edits.json. Needs the extras train (sacrebleu) and notebook
(matplotlib).
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import matplotlib.pyplot as plt
import torch

import telescope as ts
from telescope.tasks.learning.sequence_pairs import bleu
from telescope.tasks.writing import do_not_split, rewrite
from telescope.text.corpora import TEXTS, TRANSLATIONS
from telescope.text.data_files import data_folder

SENTENCE = "The man saw the astronomer with a telescope"
SENTENCES, BEAMS = 200, 5
WINDOWS = 16  # of held-out text, each as long as the GPT reads at once
COLOURS = {
    "previous": "#4269d0",
    "first": "#efb118",
    "itself": "#6cc5b0",
    "punctuation": "#ff725c",
    "far": "#a463f2",
}


def cross_heads(data: Path) -> dict[str, Any]:
    """Return BLEU as it is, without each cross head, without the cross heads of a layer, and
    without any.
    """
    model = ts.load("translator-en-de", dtype=torch.float32)
    pairs = TRANSLATIONS["tatoeba"](data, "test", "en", "de")
    pairs = Random(0).sample(pairs, SENTENCES)
    sources, references = [pair.source for pair in pairs], [pair.targets for pair in pairs]

    def measure(*edits: ts.edit) -> float:
        with ts.edit(model, *edits):
            parts = rewrite(model, sources, do_not_split, beams=BEAMS)
        return bleu([part[0].text if part else "" for part in parts], references)["bleu"]

    figures: dict[str, Any] = {
        "as it is": measure(),
        "no cross head": measure(ts.mute("decoder.*.cross")),
        "heads": {},
    }
    each = ts.mute.each(model, "decoder.*.cross")
    for name in dict.fromkeys(edit.layers[0] for edit in each):
        edits = [edit for edit in each if edit.layers == (name,)]
        figures["heads"][name] = [measure(edit) for edit in (*edits, ts.mute(name))]
        print(name, [f"{score:.1f}" for score in figures["heads"][name]], flush=True)
    return figures


def gpt_heads(data: Path) -> list[dict[str, Any]]:
    """Return, for each head of the GPT, by how much its muting raises the loss, and its kind."""
    model = ts.load("shakespeare", dtype=torch.float32)
    ids = model.tokenizer.encode(TEXTS["tiny-shakespeare"](data, "validation")).ids
    block = model.longest
    windows = torch.tensor(ids[: WINDOWS * block]).view(WINDOWS, block)
    with torch.no_grad(), ts.watch(model) as recording:
        model(windows)
    kinds = {(head.layer, head.number): head.kind for head in recording.heads()}
    effects = ts.effect(model, windows, ts.mute.each(model), "loss", progress=True)
    plain = effects.columns["loss"][0]
    rows = []
    for edit, loss in zip(effects.columns["edit"][1:], effects.columns["loss"][1:], strict=True):
        head = (edit.layers[0], edit.heads[0])
        rows.append(
            {
                "layer": head[0],
                "head": head[1],
                "kind": kinds[head],
                "loss": loss,
                "as it is": plain,
            }
        )
    return sorted(rows, key=lambda row: -row["loss"])


def hidden_words() -> dict[str, str]:
    """Return the translation of the sentence as it is, and with each of its words hidden."""
    model = ts.load("translator-en-de", dtype=torch.float32)
    found = {}
    for word in (None, "man", "saw", "astronomer", "telescope"):
        with ts.edit(model, *([] if word is None else [ts.hide(word)])):
            found[word or ""] = rewrite(model, [SENTENCE], do_not_split, beams=BEAMS)[0][0].text
        print(word, found[word or ""], flush=True)
    return found


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw the three findings into one picture."""
    picture, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13.5, 4.4), width_ratios=[1.05, 1.0, 1.25], layout="constrained"
    )
    cross = figures["cross heads"]
    grid = [[score - cross["as it is"] for score in scores] for scores in cross["heads"].values()]
    left.imshow(
        [[-((-change) ** 0.5) if change < 0 else 0.0 for change in row] for row in grid],
        cmap="Reds_r",
        vmax=0.0,
    )
    for i, row in enumerate(grid):
        for j, change in enumerate(row):
            colour = "white" if change < -3.5 else "black"
            left.text(j, i, f"{change:+.1f}", ha="center", va="center", color=colour, fontsize=9)
    left.set_yticks(range(len(grid)), list(cross["heads"]), fontsize=9)
    left.set_xticks(
        range(len(grid[0])), [*(f"head {j}" for j in range(len(grid[0]) - 1)), "all"], fontsize=9
    )
    left.set_title(
        f"translator: BLEU when cross heads are muted\n{cross['as it is']:.1f} as it is, "
        f"{cross['no cross head']:.1f} without any",
        fontsize=10,
    )
    rows = figures["gpt heads"][:12]
    names = [
        f"{row['layer'].removesuffix('.self')} head {row['head']}: {row['kind']}" for row in rows
    ]
    colours = [COLOURS.get(row["kind"], "#9c9c9c") for row in rows]
    middle.barh(names, [row["loss"] - row["as it is"] for row in rows], color=colours)
    middle.invert_yaxis()
    middle.tick_params(labelsize=9)
    middle.set_title(
        f"GPT: what muting a head adds to the loss, in nats\n{rows[0]['as it is']:.3f} as it is; "
        "the 12 that add most",
        fontsize=10,
    )
    middle.spines[["top", "right"]].set_visible(False)
    right.axis("off")
    right.set_title("translator: one word hidden", fontsize=10)
    for i, (word, text) in enumerate(figures["hidden words"].items()):
        above = f'without "{word}"' if word else SENTENCE
        right.text(
            0.05, 0.93 - 0.2 * i, above, transform=right.transAxes, fontsize=8.5, color="#555555"
        )
        right.text(
            0.05, 0.93 - 0.2 * i - 0.075, text, transform=right.transAxes, fontsize=9, weight="bold"
        )
    picture.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="the folder of all data sets")
    parser.add_argument(
        "--draw", action="store_true", help="draw docs/edits.json again, without running the models"
    )
    arguments = parser.parse_args()
    docs = Path(__file__).parents[1] / "docs"
    numbers = docs / "edits.json"
    if not arguments.draw:
        data = data_folder(arguments.data)
        results = {
            "hidden words": hidden_words(),
            "gpt heads": gpt_heads(data),
            "cross heads": cross_heads(data),
        }
        numbers.write_text(
            json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    draw(json.loads(numbers.read_text(encoding="utf-8")), docs / "edits.png")
