"""`ts.alignments` with weights that a hand can set: each query looks at one key."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot, scaled_dot_product_attention

import telescope as ts

KEYS = 9


class CrossAttention(nn.Module):
    """Heads whose queries look at the keys of these numbers, (head, query)."""

    def forward(self, looked):
        queries = 50.0 * one_hot(torch.tensor(looked), KEYS)[None].float()
        keys = torch.eye(KEYS).expand(1, len(looked), -1, -1)
        return scaled_dot_product_attention(queries, keys, keys, scale=1.0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross = CrossAttention()

    def forward(self, *texts):
        for text in texts:
            self.cross(text)


def watched(*texts, **options):
    model = Model()
    with ts.watch(model, **options) as recording:
        for text in texts:
            model(text)
    return recording


STEADY = [0, 1, 2, 3, 4]
AHEAD = [2, 3, 4, 5, 6]
BACKWARDS = [4, 3, 2, 1, 0]
SWAPPED = [0, 1, 2, 4, 3]  # 9 of 10 pairs in order


def test_heads_that_keep_the_order_come_first_and_those_that_look_ahead_lead():
    first, second, *others = ts.alignments(watched([BACKWARDS, STEADY, SWAPPED, AHEAD]))
    assert first == ("cross", 3, pytest.approx(1.0), pytest.approx(2.0, abs=1e-3))
    assert second == ("cross", 1, pytest.approx(1.0), pytest.approx(0.0, abs=1e-3))
    assert [(one.number, one.order) for one in others] == [(2, pytest.approx(0.8)), (0, pytest.approx(-1.0))]


def test_two_texts_count_by_their_pairs():
    """Of 10 + 3 pairs, the first head has 10 in order and 3 against it."""
    long, short = [STEADY, STEADY, AHEAD], [[2, 1, 0], [0, 1, 2], [1, 2, 3]]
    found = {one.number: one.order for one in ts.alignments(watched(long, short))}
    assert found == {0: pytest.approx(7 / 13), 1: pytest.approx(1.0), 2: pytest.approx(1.0)}


def test_queries_that_begin_or_end_a_text_may_be_left_out():
    one = [[8, 1, 2, 3, 0], STEADY]
    found = {one.number: one.order for one in ts.alignments(watched(one), queries=slice(1, -1))}
    assert found == {0: pytest.approx(1.0), 1: pytest.approx(1.0)}


def test_a_recording_without_cross_attention_says_so():
    layer = ts.layers.MultiHeadAttention(8, 2)
    with ts.watch(layer) as recording:
        layer(torch.randn(1, 5, 8))
    with pytest.raises(ValueError, match="alignments: MultiHeadAttention was recorded without a cross-attention"):
        ts.alignments(recording)


def test_without_a_largest_weight_nothing_is_known():
    with pytest.raises(ValueError, match="no largest weight was kept; record with top=1 or more"):
        ts.alignments(watched([STEADY, AHEAD], top=0))


def test_attentions_over_other_numbers_of_queries_are_not_compared():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one_cross = CrossAttention()
            self.other_cross = CrossAttention()

        def forward(self):
            self.one_cross([STEADY])
            self.other_cross([[0, 1, 2]])

    model = Two()
    with ts.watch(model) as recording:
        model()
    with pytest.raises(ValueError, match="the cross-attentions have other numbers of queries"):
        ts.alignments(recording)
