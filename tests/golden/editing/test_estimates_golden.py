"""Estimates of effects that a hand can check: heads that attend evenly, and a measure that is linear in what they
return, so that every estimate is the effect itself.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import telescope as ts


class TwoHeads(nn.Module):
    """Two heads of one feature, with the values 1, 2, 6 and 10, 20, 60; every query sees every key alike."""

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.tensor([[1.0, 2.0, 6.0], [10.0, 20.0, 60.0]], dtype=torch.float64))

    def forward(self, x):
        values = self.values[None, :, :, None].expand(len(x), 2, 3, 1)
        even = torch.zeros_like(values)
        return scaled_dot_product_attention(even, even, values)


def total(output):
    return output.sum()


EFFECTS = {  # of the sum of both heads' contexts over three queries, 3 · 3 + 3 · 30 = 99
    "mute head 0": (ts.mute(heads=0), -9),
    "mute head 1": (ts.mute(heads=1), -90),
    "mute both": (ts.mute(), -99),
    "half of head 1": (ts.mute(heads=1, times=0.5), -45),
    "twice head 0": (ts.mute(heads=0, times=2), 9),
    "the mean is what it is": (ts.mute(by="mean"), 0),
    "hide 6 and 60: means of 1.5 and 15": (ts.hide(2), 3 * -1.5 + 3 * -15),
    "hide 6 in head 0": (ts.hide(2, heads=0), 3 * -1.5),
    "hide 1 and 2 from the last query": (ts.hide([0, 1], 2, heads=0), 3),
    "hide every key: nothing is left": (ts.hide(slice(None)), -99),
    "hide every key from query 1": (ts.hide(slice(None), 1), -33),
    "1 counts twice: (2 + 2 + 6) / 4": (ts.boost(0, by=2.0, heads=0), 3 * -0.5),
    "6 counts half, for query 0: 6 / 2.5": (ts.boost(2, by=0.5, heads=0, queries=0), 6 / 2.5 - 3),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_an_estimate_is_the_effect_where_all_is_linear(name):
    edit, effect = EFFECTS[name]
    inputs = torch.zeros(1, 3, dtype=torch.float64)
    found = ts.effect(TwoHeads().eval(), inputs, [edit], total, how="gradient", verify="all")
    assert found.columns["value"] == pytest.approx([99, 99 + effect], abs=1e-10)
    assert found.columns["exact"] == pytest.approx([99, 99 + effect], abs=1e-10)
    assert found.columns["verified"] == [True, True]


def test_edits_of_one_row_add_up():
    rows = [[ts.mute(heads=0), ts.hide(2, heads=1)], ts.mute(heads=1)]
    found = ts.effect(TwoHeads().eval(), torch.zeros(1, 3), rows, total, how="gradient", verify=0)
    assert found.columns["value"] == pytest.approx([99, 99 - 9 - 45, 9], abs=1e-10)


def test_the_largest_estimates_are_run():
    """Of -9, -90 and -45 two are run; printed, the third has no exact value."""
    edits = [ts.mute(heads=0), ts.mute(heads=1), ts.hide(2, heads=1)]
    found = ts.effect(TwoHeads().eval(), torch.zeros(1, 3), edits, total, how="gradient", verify=2)
    assert list(found.columns) == ["edit", "value", "exact", "verified"]
    assert found.columns["verified"] == [True, False, True, True]
    assert math.isnan(found.columns["exact"][1])
    assert [str(row["edit"]) for row in found.sort("exact", descending=False).rows] == [
        "None",
        "mute head 1 in every layer",
        "hide key 2 from every query in head 1 in every layer",
        "mute head 0 in every layer",
    ]
    assert repr(found).splitlines()[2].split()[-3:] == ["90", "-", "False"]


def test_recall():
    """The exact order is 0, 1, 2, 3 by size; the estimates have 0, 2, 3, 1."""
    columns = {
        "edit": [None, *map(ts.mute, range(4))],
        "loss": [1.0, 9.0, 1.1, -3.0, 2.0],
        "exact": [1.0, -9.0, 5.0, 2.0, 1.0],
        "verified": [True] * 5,
    }
    effects = ts.Effects(columns)
    assert effects.recall(top=1, among=1) == 1.0
    assert effects.recall(top=2, among=2) == 0.5
    assert effects.recall(top=3, among=2) == pytest.approx(2 / 3)
    assert effects.recall() == 1.0


def test_the_difference_of_logits():
    """After the last token that is no padding: 7 - 3 in the first text, 2 - 5 in the second."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = ts.layers.MultiHeadAttention(4, 1)
            self.rows = torch.tensor([[[0.0, 0.0], [7.0, 3.0]], [[0.0, 0.0], [2.0, 5.0]]])

        def forward(self, x):
            return self.rows + 0.0 * self.attention(x).sum()

    found = ts.effect(Table().eval(), torch.zeros(2, 2, 4), [], tokens=[0], against=[1])
    assert found.columns["difference"] == [0.5 * (4 - 3)]
    found = ts.effect(Table().eval(), torch.zeros(2, 2, 4), [], tokens=[0], against=[1], how="gradient")
    assert found.columns == {"edit": [None], "difference": [0.5], "exact": [0.5], "verified": [True]}


def test_a_table_of_effects_is_cut_as_a_list_is():
    table = ts.Effects({"edit": [None, "one", "two"], "loss": [1.0, 2.0, 3.0]})
    assert table[1] == {"edit": "one", "loss": 2.0}
    assert table[-1]["loss"] == 3.0
    assert table[:2].columns == {"edit": [None, "one"], "loss": [1.0, 2.0]}
    assert [row["loss"] for row in table] == [1.0, 2.0, 3.0]
    with pytest.raises(IndexError):
        table[3]
