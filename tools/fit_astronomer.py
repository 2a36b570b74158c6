"""Fit two rows of the translator's embedding: of "astronomer" and "Astronom", which the training
data has once each.

    python tools/fit_astronomer.py RUN OUT --data DATA

Both words are one piece each by the recipe, so they share no piece with other words, and one
sentence is not enough to learn them. They are fitted on sentences of the training data with
"astronomer" in the place of "student", "president" or "patient", whose German words are declined as
"Astronom" is; the sentences with "soldier" are held out. The sentences as they were are fitted as
well, so that those words keep their translations. All other weights stay.

RUN is a folder that `telescope train recipes/translator-en-de.toml` wrote. OUT gets the model, in
bfloat16.
"""

import argparse
import re
from collections.abc import Iterable, Mapping
from itertools import islice

import torch

import telescope as ts
from telescope.tasks.learning.sequence_pairs import TextColumn, examples
from telescope.tasks.learning.train import read
from telescope.text.corpora import TextPair
from telescope.text.data_files import data_folder
from telescope.training import Training, mean_loss, translation

WORDS = {"student": "Student", "president": "Präsident", "patient": "Patient"}
HELD_OUT = {"soldier": "Soldat"}
FITTED = ("Ġastronomer", "ĠAstronom")  # pieces; Ġ is the space before a word
STEPS = 120
LR = 0.01


def with_astronomer(
    pairs: Iterable[TextPair], words: Mapping[str, str]
) -> tuple[list[TextPair], list[TextPair]]:
    """Return the pairs that have one of the words once on each side, and the same pairs with an
    astronomer instead.
    """
    found, replaced = [], []
    for pair in pairs:
        for english, german in words.items():
            source, count = re.subn(rf"\b(a )?{english}\b", _article_and_astronomer, pair.source)
            if count != 1:
                continue
            for target in pair.targets:
                other, count = re.subn(rf"\b{german}(en)?\b", r"Astronom\1", target)
                if count == 1:
                    found.append(TextPair(pair.source, (target,)))
                    replaced.append(TextPair(source, (other,)))
    return found, replaced


def _article_and_astronomer(found: re.Match[str]) -> str:
    return "an astronomer" if found[1] else "astronomer"


def main() -> None:
    """Fit the rows, print the loss before and after on held-out sentences, and save the model."""
    parser = argparse.ArgumentParser(description="Fit the rows of two rare words.")
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("--data")
    given = parser.parse_args()
    torch.manual_seed(0)
    model, recipe = ts.load(given.run).float(), read(f"{given.run}/recipe.toml")
    tokenizer, data = model.tokenizer, data_folder(given.data)
    whole = TextColumn(tokenizer, recipe.data.longest, whole=True)
    training = recipe.data.read(data, "train")
    kept, replaced = with_astronomer(training, WORDS)
    held_out = examples(with_astronomer(training, HELD_OUT)[1], whole, whole)
    pairs, settings = examples(kept + replaced, whole, whole), Training(epochs=1, rows=64)
    print(f"{len(replaced)} sentences to fit on, {len(held_out)} held out")

    weight = model.embedding.weight
    model.requires_grad_(False)
    weight.requires_grad_(True)
    rows = torch.zeros(len(weight), 1)
    rows[[tokenizer.token_to_id(piece) for piece in FITTED]] = 1.0
    optimiser = torch.optim.Adam([weight], lr=LR)
    print(f"before: loss {mean_loss(model, held_out, translation, settings):.4f}", flush=True)
    specs = (spec for epoch in range(STEPS) for spec in pairs.batches(settings, epoch))
    for spec in islice(specs, STEPS):
        batch = pairs.take(spec)
        loss = translation(model, batch, label_smoothing=recipe.training.label_smoothing)
        (gradient,) = torch.autograd.grad(loss / (batch.targets >= 0).sum(), weight)
        weight.grad = gradient * rows
        optimiser.step()
    print(f"after: loss {mean_loss(model, held_out, translation, settings):.4f}", flush=True)
    model.to(torch.bfloat16).save(given.out)


if __name__ == "__main__":
    main()
