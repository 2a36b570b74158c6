"""Long texts are cut into sentences, and sentences into parts that fit the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telescope.tasks.writing import find_sentences, split_by_length, split_by_sentence


@pytest.mark.parametrize(
    "text",
    [
        "I am tired.|Let's go.",
        "Mr. Smith is here.|Is Dr. J. Watson, too?|No!",
        'He said: "Go!"|Then he left.',
        "It costs 3.50 dollars.|Really?!|Yes…|Well.",
        "Use a tool, e.g. a hammer, i.e. something heavy.",
        "He waited ... and waited.",
        "Am 3. Mai kommt Hr. Meier, z. B. um 8 Uhr.|Gut.",
        "It was in 1990.|He left.",
        "No.|So do I.|Good.",
        "no end",
        "",
        "  Space around. ",
        "你好。|再见！",
    ],
)
def test_where_sentences_end(text):
    expected = text.replace("|", " ") if "。" not in text else text.replace("|", "")
    assert find_sentences(expected) == [part.strip() for part in text.split("|") if part.strip()]


def test_a_long_sentence_is_cut_behind_a_comma_or_between_words():
    pieces = split_by_sentence("one two three, four five six", lambda text: len(text) <= 16)
    assert pieces == ["one two three,", "four five six"]
    assert split_by_sentence("one two three four", lambda text: len(text) <= 9) == ["one two", "three", "four"]
    assert split_by_sentence("abcdefgh", lambda text: len(text) <= 4) == ["abcd", "efgh"]


def test_sentences_stay_together_as_far_as_they_fit():
    text = "One two. Three four. Five six."
    assert split_by_length(text, lambda text: True) == [text]
    assert split_by_length(f" {text}\n", lambda text: len(text) <= 20) == ["One two. Three four.", "Five six."]
    assert split_by_length(" \n", lambda text: True) == []


@given(
    text=st.text("ab .,!?\nAB", max_size=60),
    most=st.integers(1, 30),
    cut=st.sampled_from([split_by_sentence, split_by_length]),
)
def test_nothing_is_lost_and_everything_fits(text, most, cut):
    parts = cut(text, lambda part: len(part) <= most)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= most for part in parts)
