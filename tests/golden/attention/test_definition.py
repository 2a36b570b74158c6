"""A definition is a value: its repr is its formula, it is equal by content, and it never changes."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import telescope as ts
from telescope.engines import flex

W, table = torch.ones(3, 4), torch.zeros(2, 5)
additive = ts.additive(torch.ones(3, 6), torch.ones(4, 6), torch.ones(6))


def towards_the_start(query, key):
    return -key.double()


# definition, formula(64), repr
WRITTEN = [
    (ts.Attention(), "softmax(q·k / √64) v", "Attention()"),
    (ts.Attention(mask=ts.causal), "softmax(mask(q·k / √64)) v", "Attention(mask=causal)"),
    (ts.Attention(mask=ts.everyone), "softmax(q·k / √64) v", "Attention()"),
    (ts.Attention(scale=1.0), "softmax(q·k) v", "Attention(scale=1.0)"),
    (ts.Attention(scale=0.125), "softmax(q·k / √64) v", "Attention(scale=0.125)"),
    (ts.Attention(scale=0.3), "softmax(q·k · 0.3) v", "Attention(scale=0.3)"),
    (ts.Attention(scale=1e-170), "softmax(q·k · 1e-170) v", "Attention(scale=1e-170)"),
    (ts.Attention(scale=5e-324), "softmax(q·k · 4.94066e-324) v", "Attention(scale=5e-324)"),
    (ts.Attention(scale=1e200), "softmax(q·k · 1e+200) v", "Attention(scale=1e+200)"),
    (ts.Attention(scale=-2.0), "softmax(q·k · -2) v", "Attention(scale=-2.0)"),
    (ts.Attention(scale=1.0, normalize=ts.by_sum), "by_sum(q·k) v", "Attention(scale=1.0, normalize=by_sum)"),
    (ts.Attention(score=ts.general(W)), "softmax(q·W·k / √64) v", "Attention(score=general(3x4))"),
    (
        ts.Attention(score=additive, scale=1.0),
        "softmax(v·tanh(W_q q + W_k k)) v",
        "Attention(score=additive(d_a=6), scale=1.0)",
    ),
    (ts.Attention(softcap=50.0), "softmax(50·tanh(q·k / √64 / 50)) v", "Attention(softcap=50.0)"),
    (ts.Attention(bias=ts.alibi(8)), "softmax(q·k / √64 + alibi(8)) v", "Attention(bias=alibi(8))"),
    (
        ts.Attention(bias=ts.relative(table)),
        "softmax(q·k / √64 + relative(reach=2)) v",
        "Attention(bias=relative(reach=2))",
    ),
    (
        ts.Attention(bias=ts.from_additive(torch.zeros(2, 3))),
        "softmax(q·k / √64 + from_additive(1x1x2x3)) v",
        "Attention(bias=from_additive(1x1x2x3))",
    ),
    (
        ts.Attention(bias=towards_the_start),
        "softmax(q·k / √64 + towards_the_start) v",
        "Attention(bias=towards_the_start)",
    ),
    (ts.Attention(bias=lambda query, key: key), "softmax(q·k / √64 + bias) v", "Attention(bias=bias)"),
    (ts.Attention(sink=0.5), "softmax(q·k / √64; sink) v", "Attention(sink=0.5)"),
    (ts.Attention(sink=torch.zeros(8)), "softmax(q·k / √64; sink) v", "Attention(sink=<8>)"),
    (
        ts.Attention(scale=0.5, bias=ts.alibi(4), softcap=30.0, sink=0.0, mask=ts.causal & ts.window(4)),
        "softmax(mask(30·tanh(q·k / √4 / 30) + alibi(4)); sink) v",
        "Attention(scale=0.5, bias=alibi(4), softcap=30.0, sink=0.0, mask=causal & window(4))",
    ),
]


@pytest.mark.parametrize(("attention", "formula", "written"), WRITTEN, ids=[written for *_, written in WRITTEN])
def test_the_repr_of_a_definition_is_its_formula(attention, formula, written):
    assert attention.formula(64) == formula
    assert repr(attention) == written


def test_str_leaves_d_k_open_and_names_the_mask():
    assert str(ts.Attention()) == "softmax(q·k / √d_k) v"
    assert str(ts.Attention(mask=ts.causal & ts.window(8))) == (
        "softmax(mask(q·k / √d_k)) v, mask = causal & window(8)"
    )


def definition(**choices):
    """Return a definition that is built anew on each call, tensors included."""
    parts = {
        "score": ts.general(torch.eye(3)),
        "scale": 0.5,
        "bias": ts.relative(torch.zeros(2, 3)),
        "softcap": 9.0,
        "sink": torch.tensor([0.0, 1.0]),
        "mask": ts.causal & ts.padding([1, 2]),
    }
    return ts.Attention(**parts | choices)


def test_definitions_are_equal_and_hash_by_content():
    assert definition() == definition()
    assert hash(definition()) == hash(definition())
    assert len({definition(), definition(), ts.Attention()}) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"score": ts.dot},
        {"score": ts.general(2 * torch.eye(3))},
        {"score": ts.general(torch.eye(3).double())},
        {"scale": 0.25},
        {"bias": ts.relative(torch.ones(2, 3))},
        {"bias": ts.from_additive(torch.zeros(2, 3))},
        {"bias": None},
        {"softcap": 8.0},
        {"sink": torch.tensor([0.0, 2.0])},
        {"sink": 0.0},
        {"mask": ts.causal & ts.padding([2, 1])},
        {"mask": ts.causal | ts.padding([1, 2])},
        {"mask": ~(ts.causal & ts.padding([1, 2]))},
    ],
    ids=str,
)
def test_definitions_that_differ_in_one_part_are_not_equal(other):
    assert definition(**other) != definition()


def test_masks_are_equal_by_content():
    assert ts.padding([1, 2]) == ts.padding(torch.tensor([1, 2])) != ts.padding([2, 1])
    assert ts.window(3) == ts.window(3) != ts.window(4)
    assert ts.prefix(3) != ts.window(3)
    assert ts.documents([0, 1]) == ts.documents([[0, 1]]) != ts.documents([0, 1], queries=[0, 1])
    assert ts.causal & ts.window(2) != ts.causal | ts.window(2)
    assert (ts.causal & ts.window(2)) & ts.prefix(1) == ts.causal & (ts.window(2) & ts.prefix(1))
    assert hash(ts.padding([1, 2])) == hash(ts.padding([1, 2]))


def test_a_definition_is_frozen():
    attention = ts.Attention()
    with pytest.raises(FrozenInstanceError):
        attention.scale = 2.0
    with pytest.raises(FrozenInstanceError):
        ts.window(2).size = 3
    assert replace(attention, scale=2.0) == ts.Attention(scale=2.0)
    assert attention == ts.Attention()


def test_no_mask_is_everyone():
    assert ts.Attention().mask == ts.everyone
    assert ts.Attention(mask=ts.everyone) == ts.Attention() == ts.Attention(mask=ts.everyone & ts.everyone)


def test_with_extra_mask_combines_both_masks():
    attention = ts.Attention(scale=0.5, mask=ts.causal)
    assert attention.with_extra_mask(ts.padding([1])) == ts.Attention(scale=0.5, mask=ts.causal & ts.padding([1]))
    assert ts.Attention().with_extra_mask(ts.causal) == ts.Attention(mask=ts.causal)
    assert attention.with_extra_mask(None) is attention


def test_a_plain_function_of_positions_is_a_bias():
    zeros = torch.zeros(1, 1, 2, 1)
    biased = ts.trace(zeros, zeros, zeros, ts.Attention(bias=towards_the_start)).biased
    assert biased[0, 0].tolist() == [[0, -1], [0, -1]]
    assert ts.Attention(bias=towards_the_start) == ts.Attention(bias=towards_the_start)
    assert ts.Attention(bias=towards_the_start) != ts.Attention(bias=lambda query, key: -key)


def test_positions_of_a_plain_function_end_with_the_last_query_at_the_last_key():
    queries, keys = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 3, 1)
    biased = ts.trace(queries, keys, keys, ts.Attention(bias=lambda query, key: 10.0 * query + key)).biased
    assert biased[0, 0].tolist() == [[10, 11, 12], [20, 21, 22]]


def test_plan_names_the_engine_and_the_reason():
    x = torch.zeros(1, 2, 6, 64)
    fast = ts.plan(x, x, x, ts.Attention(mask=ts.causal))
    assert (fast.engine, str(fast)) == (
        "sdpa",
        "sdpa: torch's fused attention computes softmax(mask(q·k / √64)) v without forming the 6 x 6 weights",
    )
    slow = ts.plan(x, x, x, ts.Attention(softcap=5.0))
    assert slow.engine == "reference"
    assert slow.why.startswith("it forms every step of softmax(5·tanh(q·k / √64 / 5)) v, 6 x 6 numbers each")
    assert slow.why.endswith("it has no softcap")
    assert ts.plan(x, x, x, engine="reference").why.endswith("requested")
    assert "q·k · 1e-170" in ts.plan(x, x, x, ts.Attention(scale=1e-170)).why


def test_plan_names_why_faster_engines_cannot_run(monkeypatch):
    monkeypatch.setitem(flex.MISSING_REQUIREMENTS, "cpu", None)
    x = torch.zeros(1, 2, 2048, 64)
    big = ts.plan(x, x, x, ts.Attention(softcap=5.0))
    assert str(big) == (
        "chunked: it computes softmax(5·tanh(q·k / √64 / 5)) v a block of queries at a time, not 2048 x 2048 numbers "
        "at once, because sdpa cannot: it has no softcap and flex, which compiles for half a minute on a CPU, "
        'waits for engine="flex"'
    )
    assert ts.plan(x, x, x, ts.Attention(softcap=5.0), engine="flex").why == (
        "FlexAttention compiles softmax(5·tanh(q·k / √64 / 5)) v into one kernel that forms no 2048 x 2048 weights, "
        "as requested"
    )
    assert ts.plan(x, x, x, ts.Attention(softcap=5.0), dropout=0.1).why.endswith("and flex cannot: it has no dropout")
    assert ts.plan(x[:, :, :1], x, x, ts.Attention(softcap=5.0)).engine == "reference"
