"""Metrics with numbers that a hand can check."""

from math import exp, log

import pytest

from telescope.tasks.learning.sequence_pairs import bleu, chrf, rouge

CAT = "the cat sat on the mat"


def test_bleu_by_hand():
    """6 words: 5/6 of the words match, 3/5 of the pairs, 2/4 of the triples and 1/3 of the quadruples."""
    found = bleu(["the cat sat on a mat"], [[CAT]], tokens="none")
    assert found["bleu"] == pytest.approx(100 * exp(sum(map(log, (5 / 6, 3 / 5, 2 / 4, 1 / 3))) / 4))
    assert found["brevity"] == 1.0


def test_the_brevity_penalty():
    found = bleu(["the cat sat on"], [[CAT]], tokens="none")
    assert found["bleu"] == pytest.approx(100 * exp(1 - 6 / 4))


def test_the_best_of_all_references_counts():
    assert bleu([CAT, "a dog ran in here"], [["no", CAT], ["a dog ran in here"]])["bleu"] == pytest.approx(100)


def test_case_counts_unless_lower():
    assert bleu([CAT.upper()], [[CAT]])["bleu"] < 5
    assert bleu([CAT.upper()], [[CAT]], lower=True)["bleu"] == pytest.approx(100)


def test_words_are_not_split_without_tokens():
    """ "mat." is one word of four without tokens, and two of five with them."""
    assert bleu(["on the mat today."], [["on the mat today ."]], tokens="none")["bleu"] == 0  # no four in a row
    assert bleu(["on the mat today."], [["on the mat today ."]])["bleu"] == pytest.approx(100)


def test_rouge_by_hand():
    """4 of 6 and 4 of 4 words; 2 of 5 and 2 of 3 pairs; in order 4 of 6 and 4 of 4. "mats" has the stem of "mat"."""
    found = rouge(["the cat the mats"], [[CAT]])
    assert found == pytest.approx({"rouge1": 80.0, "rouge2": 50.0, "rougeL": 80.0})
    assert rouge([CAT, "x"], [["y", CAT], ["y"]]) == pytest.approx({"rouge1": 50, "rouge2": 50, "rougeL": 50})


def test_letters():
    assert chrf([CAT], [[CAT]]) == pytest.approx(100)
    assert 50 < chrf(["the cats sat on a mat"], [[CAT]]) < 100
