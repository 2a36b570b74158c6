"""Telescope and transformers decode the same tokens from the same weights: greedy and beam search, alone and in
batches."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import GPTS, MARIANS, gpt, marian, transformers

SCORES = {"rtol": 1e-6, "atol": 1e-4}
N = 20
SPECIAL = ts.models.Special(start=0, pad=0)
FAMILIES = ["llama", "qwen2, window", "marian", "marian, two vocabularies"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return Telescope's model and the model of transformers that was exported from it."""

    @cache
    def load(name, special):
        folder = tmp_path_factory.mktemp("models")
        (marian(name) if name in MARIANS else gpt(name)).save_pretrained(folder / "theirs")
        ours = ts.load(folder / "theirs")
        ours.special = special
        ours.special = replace(special, end=ends(ours))
        ts.export(ours, folder / "exported")
        kind = transformers.AutoModelForSeq2SeqLM if name in MARIANS else transformers.AutoModelForCausalLM
        return ours, kind.from_pretrained(folder / "exported").eval()

    return load


def prompts(lengths, seed=3, words=50):
    """Return prompts without the id of padding."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(5, words, (n,), generator=draw).tolist() for n in lengths]


def theirs(model, ids, *, left, pad=0, **how):
    longest = max(map(len, ids))
    rows = [[pad] * (longest - len(row)) + row if left else row + [pad] * (longest - len(row)) for row in ids]
    real = [[0] * (longest - len(row)) + [1] * len(row) for row in ids]
    mask = torch.tensor(real if left else [row[::-1] for row in real])
    how = {"do_sample": False, "max_new_tokens": N, "bad_words_ids": [[pad]], **how}
    out = model.generate(
        torch.tensor(rows), attention_mask=mask, return_dict_in_generate=True, output_scores=True, **how
    )
    return out, out.sequences[:, longest if left else 1 :].tolist()


def ends(model):
    """Return ids that the model writes sooner or later, so that texts end at different lengths."""
    best = ts.decoding.beam(model, prompts([7, 3, 1, 5]), beams=5, n_best=5, max_new_tokens=N)
    return tuple(sorted({found[i].ids[6 * i % N] for found in best for i in range(5)} - {0})[:8])


def up_to_the_end(ids, end):
    return next((ids[:n] for n, token in enumerate(ids, start=1) if token in end), ids)


@pytest.mark.parametrize("name", ["gpt2", "gpt2 not tied", *FAMILIES])
@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy(both, name, penalty):
    ours, model = both(name, SPECIAL)
    left, ids = name in GPTS, prompts([7, 3, 1, 5])
    if penalty == 1.0:
        _, expected = theirs(model, ids, left=left)
    else:  # they count the padding as seen, we do not: one by one
        expected = [theirs(model, [row], left=left, repetition_penalty=penalty)[1][0] for row in ids]
    out = ts.decoding.generate(ours, ids, max_new_tokens=N, temperature=0.0, repetition_penalty=penalty)
    for mine, other in zip(out, expected, strict=True):
        assert mine.ids == up_to_the_end(other, ours.special.end)
        assert mine.why == ("end" if mine.ids[-1] in ours.special.end else "length")


@pytest.mark.parametrize("name", ["gpt2", *FAMILIES])
@pytest.mark.parametrize(
    ("beams", "length_penalty", "early_stopping"),
    [(5, 1.0, False), (5, 1.0, True), (5, 0.0, False), (3, -0.7, False), (2, 2.5, True)],
)
def test_beam(both, name, beams, length_penalty, early_stopping):
    ours, model = both(name, SPECIAL)
    left, ids = name in GPTS, prompts([7, 3, 1, 5])
    how = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    out, expected = theirs(model, ids, left=left, num_beams=beams, num_return_sequences=beams, **how)
    mine = ts.decoding.beam(ours, ids, beams=beams, n_best=beams, max_new_tokens=N, **how)
    assert [len(best) for best in mine] == [beams] * len(ids)
    flat = [found for best in mine for found in best]
    assert [found.ids for found in flat] == [up_to_the_end(row, ours.special.end) for row in expected]
    assert_close(torch.tensor([found.score for found in flat]), out.sequences_scores, **SCORES)


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
def test_texts_end_at_different_lengths(both, name):
    """Check the premise of the tests above: with texts of equal lengths they would show little."""
    ours, _ = both(name, SPECIAL)
    lengths = set()
    for penalty in (1.0, 0.0):
        found = ts.decoding.beam(ours, prompts([7, 3, 1, 5]), n_best=5, max_new_tokens=N, length_penalty=penalty)
        lengths |= {len(text.ids) for best in found for text in best}
    assert len(lengths) > 3
