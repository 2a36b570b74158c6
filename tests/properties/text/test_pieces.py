"""Subword regularisation: the same texts in other tokens, and the same again for the same seed."""

from collections import Counter

import pytest
from tokenizers import Tokenizer, models

from telescope.text.tokenizer import (
    MAX_SPLITS,
    UNKNOWN,
    bpe_from_merges,
    character_tokenizer,
    encode,
    encode_with_dropout,
    train_bpe,
)

TEXTS = [
    "the astronomer saw the astronomers' telescope",
    "Tausende Fernrohre, 1024 davon größer als das größte.",
    "a telescope for the astronomy of stars, seen by astronomers",
] * 3
CODES = ["#version: 0.2", "t h", "th e</w>", "s a", "sa w</w>", "s t", "a st", "ast r", "o n"]


@pytest.fixture(scope="module")
def learnt() -> Tokenizer:
    return train_bpe(TEXTS, 400)


@pytest.fixture(scope="module")
def given() -> Tokenizer:
    return bpe_from_merges(CODES, ["the astronomer saw the stars"])


@pytest.mark.parametrize("kind", ["learnt", "given"])
def test_other_tokens_spell_the_same_texts(kind, request):
    tokenizer = request.getfixturevalue(kind)
    texts = TEXTS if kind == "learnt" else ["the astronomer saw the stars", "saw", ""]
    usual = encode(tokenizer, texts)
    others = encode_with_dropout(tokenizer, texts, dropout=0.5, seed=1)
    assert tokenizer.decode_batch(others) == tokenizer.decode_batch(usual)
    assert [ids[-1] for ids in others] == [ids[-1] for ids in usual]  # the end
    assert sum(map(len, others)) > sum(map(len, usual))


@pytest.mark.parametrize("kind", ["learnt", "given"])
def test_no_dropout_gives_the_usual_tokens_and_full_dropout_letters(kind, request):
    tokenizer = request.getfixturevalue(kind)
    texts = ["the astronomer saw the stars"]
    assert encode_with_dropout(tokenizer, texts, dropout=0.0, seed=0) == encode(tokenizer, texts)
    ((*letters, _),) = encode_with_dropout(tokenizer, texts, dropout=1.0, seed=0)
    assert len(letters) == (len(texts[0]) + 1 if kind == "learnt" else len(texts[0].replace(" ", "")))


def test_the_tokens_depend_on_the_seed_alone(learnt):
    first, again, other = (encode_with_dropout(learnt, TEXTS, dropout=0.1, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_merge_is_dropped_with_the_given_probability():
    tokenizer = bpe_from_merges(["#version: 0.2", "a b</w>"], ["ab"])
    texts = ["ab"] * MAX_SPLITS  # a word has no more
    found = Counter(
        len(ids) - 1 for seed in range(200) for ids in encode_with_dropout(tokenizer, texts, dropout=0.25, seed=seed)
    )
    assert found.total() == 200 * MAX_SPLITS
    assert abs(found[2] / found.total() - 0.25) < 0.05  # 4.6 standard deviations


def test_a_word_has_several_splits_but_at_most_max_splits(learnt):
    often = encode_with_dropout(learnt, ["astronomers"] * 500, dropout=0.3, seed=0)
    assert 3 <= len({tuple(ids) for ids in often}) <= MAX_SPLITS
    assert often[MAX_SPLITS:] != often[MAX_SPLITS : 2 * MAX_SPLITS] * 60  # drawn, not in turns


def test_an_unknown_letter_stays_unknown(given):
    (ids,) = encode_with_dropout(given, ["the ß"], dropout=0.5, seed=0)
    assert given.token_to_id(UNKNOWN) in ids


def test_arguments_that_do_not_fit(learnt):
    with pytest.raises(ValueError, match=r"dropout=1\.5 is a probability, from 0 to 1"):
        encode_with_dropout(learnt, TEXTS, dropout=1.5, seed=0)
    with pytest.raises(ValueError, match="a tokenizer of the kind WordLevel has no merges that could fail; BPE has"):
        encode_with_dropout(character_tokenizer("abc"), ["abc"], dropout=0.1, seed=0)
    with pytest.raises(ValueError, match="Unigram"):
        encode_with_dropout(Tokenizer(models.Unigram()), [], dropout=0.1, seed=0)
