"""Tokens joined to words by their spans in the text, whatever the tokenizer."""

from math import exp, inf
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support import writers
from telescope.editing import log_probability
from telescope.explorer.answers import WrittenWord
from telescope.explorer.what_if import WordChange, _word_change
from telescope.tasks.explaining.sentence_views import written_words
from telescope.traces.whole_words import Words


def metaspace():
    """Return a tokenizer with pieces such as ▁the, and a token for unknown text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(["the man saw the astronomer"] * 3, trainer)
    return tokenizer


def lowered():
    """Return a tokenizer that changes the text before it cuts it."""
    tokenizer = writers.byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


TRANSLATOR = writers.translator()
TOKENIZERS = {
    "bytes": writers.byte_level(),
    "metaspace": metaspace(),
    "characters": writers.of_characters(),
    "lowered": lowered(),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The man saw the astronomer.", "The man saw the astronomer ."),
        ("the  man,\tsaw", "the man , saw"),
        ("man's well-known man", "man's well-known man"),
        ("- so -", "- so -"),
        ("  the man ", "the man"),
        ("a", "a"),
    ],
)
def test_words_are_those_of_the_text(kind, text, names):
    found = Words.from_encoding(text, TOKENIZERS[kind].encode(text))
    assert " ".join(name for i, name in enumerate(found.names) if i in found.text_words) == names


def test_pieces_by_hand():
    """Le télescope! as Le, ·tél, ·es, ·cope, ! and the end: four words of six tokens."""
    found = Words.from_spans("Le télescope!", [(0, 2), (2, 6), (6, 8), (8, 12), (12, 13), "</s>"])
    assert found.names == ("Le", "télescope", "!", "</s>")
    assert found.word_ids == (0, 1, 1, 1, 2, 3)
    assert found.pieces == ("Le", "tél", "·es", "·cope", "!", "</s>")
    assert found.text_words == (0, 1, 2)
    assert found.positions(1) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "spans", "names", "of"),
    [
        ("a b", [(0, 1), (1, 2), (2, 3)], ("a", "b"), (0, 1, 1)),  # a space goes with what follows it
        ("a b", [(0, 2), (2, 3)], ("a", "b"), (0, 1)),  # or belongs to the token that contains it
        ("a b ", [(0, 1), (1, 3), (3, 4)], ("a", "b"), (0, 1, 1)),  # the last one has only what is before it
        ("so?!", [(0, 1), (1, 3), (3, 4)], ("so?!",), (0, 0, 0)),  # a token of two words makes one of them
        ("é", [(0, 0), (0, 1)], ("é",), (0, 0)),  # half a character
        ("😀", [(0, 1)] * 4, ("😀",), (0,) * 4),
        ("ne\u0301e", [(0, 1), (1, 3), (3, 4)], ("ne\u0301e",), (0, 0, 0)),  # an accent that is written onto an e
        ("ne\u0301 e", [(0, 1), (1, 2), (3, 5)], ("ne\u0301", "e"), (0, 0, 1)),  # of which its token does not know
        ("देखा।", [(0, 2), (2, 4), (4, 5)], ("देखा", "।"), (0, 0, 1)),
        ("", ["<s>", "</s>"], ("<s>", "</s>"), (0, 1)),
        ("a", ["<s>", "<s>", (0, 1), "</s>"], ("<s>", "<s>", "a", "</s>"), (0, 1, 2, 3)),
        ("a a", [(0, 1), "<mask>", (1, 3)], ("a", "<mask>", "a"), (0, 1, 2)),
        ("", [], (), ()),
    ],
)
def test_which_tokens_are_joined(text, spans, names, of):
    found = Words.from_spans(text, spans)
    assert (found.names, found.word_ids) == (names, of)


def test_find_returns_the_last_match_and_ignores_case():
    found = Words.from_spans("The man the", [(0, 3), (3, 7), (7, 11)])
    assert (found.find("THE"), found.find("Man"), found.find("dog")) == (2, 1, None)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from([*TOKENIZERS]), text=st.text(max_size=24))
def test_every_token_is_of_one_word_and_words_follow_each_other(kind, text):
    encoding = TOKENIZERS[kind].encode(text)
    found = Words.from_encoding(text, encoding)
    assert len(found.word_ids) == len(found.pieces) == len(encoding.ids)
    assert sorted(set(found.word_ids)) == list(range(len(found.names)))
    assert list(found.word_ids) == sorted(found.word_ids)
    if kind == "bytes" and text.strip():  # which loses nothing of a text
        assert "".join("".join(found.names[i] for i in found.text_words).split()) == "".join(text.split())


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=24))
def test_words_that_are_written_are_the_words_that_are_read(text):
    """The same tokens, once by the offsets of the tokenizer and once by what each adds to the text."""
    model = TRANSLATOR
    encoding = model.tokenizer.encode(text)
    if model.tokenizer.decode(encoding.ids).lstrip() == text:
        read, written = Words.from_encoding(text, encoding), written_words(model, encoding.ids)
        assert (read.names, read.word_ids) == (written.names, written.word_ids)


def test_the_probability_of_a_word_by_hand():
    """Three pieces with the probabilities 0.5, 0.4 and 0.25: the word has 0.05. One piece alone has its own."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.4, 0.5], [0.5, 0.25, 0.25]], dtype=torch.float64)
    assert exp(log_probability(p.log(), [0, 1, 2])) == pytest.approx(0.05, rel=1e-12)
    assert exp(log_probability(p[:1].log(), [2])) == pytest.approx(0.2, rel=1e-12)
    assert log_probability(torch.zeros(1, 2).log(), [1]) == -inf  # a token that was left out


def test_a_changed_word_by_hand():
    """A word of two pieces, of which an edit halves the first and makes another second the likeliest."""
    words = Words.from_spans("ab", [(0, 1), (1, 2)])
    made = SimpleNamespace(words=words, written=[0, 1], text_of=lambda i, token: "abc"[token])
    made.name_of = made.text_of
    before = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.5, 0.4]], dtype=torch.float64).log()
    after = torch.tensor([[0.4, 0.3, 0.3], [0.0, 0.25, 0.75]], dtype=torch.float64).log()
    word = WrittenWord("ab", first=0, i=1, word=0)
    changed = _word_change(made, word, before, after)
    assert changed == WordChange("ab", 0, 1, 0, before=pytest.approx(0.4), after=pytest.approx(0.1), instead="ac")
    assert _word_change(made, word, before, before).instead is None
