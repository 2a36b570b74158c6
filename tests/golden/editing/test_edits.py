"""Edits as values: how they print, compare and are saved; and what their spans are in a text."""

import math
from dataclasses import replace

import pytest
import torch

import telescope as ts
from telescope.editing import divergence, likeliest, log_probability
from telescope.editing.edits import from_json
from telescope.editing.spans import Span, TextFinder, span

SENTENCES = {
    "mute every head in every layer": ts.mute(),
    "mute head 2 of decoder.1.cross": ts.mute("decoder.1.cross", 2),
    "mute heads 4 and 7 of model.layers.11 times 0.5 by the mean": ts.mute(
        "model.layers.11", heads=[4, 7], times=0.5, by="mean"
    ),
    "mute head -1 of layer 0, layer -1": ts.mute([0, -1], heads=-1),
    "hide keys 10 to 39 from queries 200 to 259 in every layer": ts.hide(range(10, 40), range(200, 260), layers="*"),
    "hide key 3 from queries from 5 on in head 1 of encoder.*": ts.hide(3, slice(5, None), heads=1, layers="encoder.*"),
    'hide "the astronomer" from every query of the prompt in every layer': ts.hide("the astronomer", new=False),
    "hide 2 to 4, 9 and tokens 7, 8 from every query in every layer": ts.hide([2, 3, 4, 9, ts.tokens(7, 8)]),
    "boost keys 1 to 2 for every query in every layer by 4": ts.boost([2, 1], by=4),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_an_edit_is_a_sentence(sentence):
    edit = SENTENCES[sentence]
    assert str(edit) == sentence
    assert from_json(edit.to_json()) == edit
    assert hash(from_json(edit.to_json())) == hash(edit)
    assert edit != replace(edit, heads=(5,))


def test_recordings_and_functions_are_saved_by_name():
    layer = ts.layers.MultiHeadAttention(8, 2)
    with ts.watch(layer, keep="queries-keys") as recording:
        layer(torch.randn(1, 5, 8))

    def twice(attention):
        return replace(attention, scale=2.0)

    for edit in (ts.frozen(recording), ts.redefine("*", twice)):
        saved = from_json(edit.to_json())
        assert str(saved) == str(edit)
        with pytest.raises(ValueError, match="was read from a file"), ts.edit(layer, saved):
            pass


def test_spans_of_the_same_positions_are_equal():
    assert span("keys", [3, 4, 5]) == span("keys", range(3, 6)) == span("keys", slice(3, 6))
    assert span("keys", [range(0, 3), 5, range(2, 6)]) == Span(ranges=((0, 6),))
    assert span("keys", slice(4, None)).ranges == ((4, None),)


class Letters:
    """A tokenizer with a token for each byte, so that é takes two."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("man", [(4, 7)]),  # not the one in "woman"
        ("Man", [(4, 7)]),
        ("the", [(13, 16)]),  # as it is written, before any other case
        ("THE", [(0, 3), (13, 16)]),
        ("a café", [(26, 33)]),
        ("in", [(23, 25)]),
        ("astronomer", []),
    ],
)
def test_texts_are_whole_words(wanted, found):
    text = "The man, not the woman in a café."
    finder = TextFinder(Letters().decode)
    ids = list(text.encode())
    assert finder.find(wanted, ids) == found


def test_a_text_that_is_not_there_gets_the_nearest_word():
    finder = TextFinder(Letters().decode)
    assert finder.hint("astronomr", list(b"The man saw the astronomer")) == 'did you mean "astronomer"?'


def test_the_translators_tokens():
    """The tokenizer of the shipped translator cuts words into pieces; special tokens have names."""
    model = ts.load("translator-en-de")
    ids = model.tokenizer.encode("The man saw the astronomer with a telescope").ids
    finder = TextFinder(model.tokenizer.decode, model.tokenizer.id_to_token)
    ((start, stop),) = finder.find("the astronomer", ids)
    assert model.tokenizer.decode(ids[start:stop]).strip() == "the astronomer"
    ((start, stop),) = finder.find("telescope", ids)
    assert model.tokenizer.decode(ids[start:stop]).strip() == "telescope"
    assert finder.find("</s>", ids) == [(len(ids) - 1, len(ids))]


def test_families_of_edits():
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2))
    assert [str(edit) for edit in ts.mute.each(model)] == [
        f"mute head {head} of blocks.{block}.self" for block in (0, 1) for head in (0, 1)
    ]
    sentences = ts.hide.each([0, 0, 1, 1, 1, 2])
    assert [str(edit) for edit in sentences] == [
        "hide keys 0 to 1 from queries from 2 on in every layer",
        "hide keys 2 to 4 from queries from 5 on in every layer",
        "hide key 5 from queries from 6 on in every layer",
    ]
    assert ts.hide.each([range(2, 5)]) == [sentences[1]]
    assert ts.hide.each(["a word"], queries=None) == [ts.hide("a word")]


def test_divergence_and_likeliest_tokens():
    """KL of (1/2, 1/4, 1/4) from (1/4, 1/4, 1/2): ln(2)/2 - ln(2)/4."""
    before = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    after = before.flip(0)
    assert divergence(before, after).item() == pytest.approx(0.25 * math.log(2))
    assert divergence(torch.stack([before, after]), torch.stack([after, after])).shape == (2,)
    first, second = likeliest(after, 2)
    assert first == (2, pytest.approx(0.5))
    assert second.probability == pytest.approx(0.25)
    assert log_probability(torch.stack([before, after]), [0, 0]) == pytest.approx(math.log(1 / 8))
