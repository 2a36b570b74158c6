"""Circuits whose numbers a hand can check: an induction circuit of ones and zeros, and matrices of a few rows."""

import pytest
import torch

import telescope as ts
from telescope.circuitry import Composition, Factors
from telescope.circuitry.factors import compose, positive_share

SIZE = 8  # tokens, positions, and the width of a head
TOKEN = slice(0, SIZE)  # where the stream holds the token
POSITION = slice(SIZE, 2 * SIZE)
BEFORE = slice(2 * SIZE, 3 * SIZE)  # where head 0 of block 0 writes the token before
CONFIG = ts.models.GPTConfig(
    vocabulary=SIZE, max_positions=SIZE, d_model=3 * SIZE, blocks=2, heads=2, d_k=SIZE, norm="rms", bias=False
)


@torch.no_grad()
def induction_by_hand():
    """Return a GPT in which head 0 of block 0 copies the token before, and head 1 of block 1 asks for it."""
    model = ts.models.GPT(CONFIG).eval()
    one = torch.eye(SIZE)
    for parameter in model.parameters():
        parameter.zero_()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
    model.embedding.weight[:, TOKEN] = one
    model.positions.P[:, POSITION] = one
    first = model.blocks[0].self_attention
    second = model.blocks[1].self_attention
    # A query at position i meets the key at position i - 1, whose token is written beside.
    first.projections()["W_q"].weight[:SIZE, POSITION] = 40 * torch.roll(one, 1, 1)
    first.projections()["W_k"].weight[:SIZE, POSITION] = one
    first.projections()["W_v"].weight[:SIZE, TOKEN] = one
    first.W_O.weight[BEFORE, :SIZE] = one
    # A query meets the keys before which its own token stands; what they hold comes next.
    second.projections()["W_q"].weight[SIZE:, TOKEN] = 40 * one
    second.projections()["W_k"].weight[SIZE:, BEFORE] = one
    second.projections()["W_v"].weight[SIZE:, TOKEN] = one
    second.W_O.weight[TOKEN, SIZE:] = 16 * one
    return model


def test_an_induction_circuit_by_hand_has_the_highest_scores():
    model = induction_by_hand()
    circuits = ts.circuits(model)
    assert circuits[0, 0].previous_token == 1.0
    assert circuits[1, 1].copying == pytest.approx(1.0)
    assert circuits.matching((0, 0), (1, 1)) == pytest.approx(1.0)
    assert circuits[1, 1].induction == pytest.approx(1.0)
    # Eight directions of equal size meet: 8 / (√8 · √8) of squares, 1/√8 of the norms, and none can meet better.
    found = circuits.composition((0, 0), (1, 1), "k")
    assert found.ratio == pytest.approx(8**-0.5)
    assert found.at_most == pytest.approx(8**-0.5)
    assert found.share == pytest.approx(1.0)
    # The other heads are zeros.
    assert [row["induction"] for row in circuits.rows] == pytest.approx([0.0, 0.0, 0.0, 1.0])
    assert circuits.composition((0, 0), (1, 1), "q").ratio == 0.0


def test_the_circuit_by_hand_does_what_its_weights_say():
    model = induction_by_hand()
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 1]])  # the first token sees itself, and holds itself as the token before
    with ts.watch(model) as recording, torch.no_grad():
        logits = model(ids)
    assert int(logits[0, -1].argmax()) == 2
    assert recording["blocks.0.self"].head(0).top.keys[0, 0, 1:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(recording["blocks.1.self"].head(1).top.keys[0, 0, -1, 0]) == 2


def test_previous_token_heads_are_given_where_the_weights_do_not_tell():
    model = induction_by_hand()
    assert ts.circuits(model, previous=[(0, 0)])[1, 1].induction == pytest.approx(1.0)
    assert ts.circuits(model, previous=[(0, 1)])[1, 1].induction == 0.0
    assert ts.circuits(model, previous=[])[1, 1].induction == 0.0
    with ts.watch(model) as recording, torch.no_grad():
        model(torch.tensor([[0, 1, 2, 3, 4, 5, 6]]))
    found = recording.heads().where(previous=0.9)
    assert [(head.layer, head.number) for head in found] == [("blocks.0.self", 0)]
    # A row of the table counts by its share.
    assert ts.circuits(model, previous=found)[1, 1].induction == pytest.approx(found[0].previous)


def test_a_random_model_has_scores_near_zero():
    torch.manual_seed(0)
    config = ts.models.GPTConfig(vocabulary=300, max_positions=64, d_model=128, blocks=2, heads=4)
    for row in ts.circuits(ts.models.GPT(config)).rows:
        assert abs(row["copying"]) < 0.2
        assert row["previous_token"] < 0.2
        assert row["induction"] == 0.0
    circuits = ts.circuits(ts.models.GPT(config), previous=[(0, head) for head in range(4)])
    assert circuits[1, 0].induction < 0.01
    assert abs(circuits.composition((0, 0), (1, 0), "k").share) < 0.01


def test_factors_of_two_rows():
    """leftᵀ right = [[3, 0, 0], [0, 0, 4]] has the singular values 4 and 3."""
    factors = Factors(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    assert factors.matrix().tolist() == [[3, 0, 0], [0, 0, 4]]
    assert factors.singular_values.tolist() == pytest.approx([4, 3])
    assert factors.directions.left.abs().tolist() == [[0, 1], [1, 0]]
    assert factors.directions.right.abs().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert factors.norm == pytest.approx(5.0)
    assert factors.transposed.matrix().tolist() == [[3, 0], [0, 0], [0, 4]]
    assert factors.transposed.times(factors).matrix().tolist() == [[9, 0, 0], [0, 0, 0], [0, 0, 16]]


def test_composition_of_two_directions():
    """‖A B‖ is 0, 1 or in between: the cosine of what is read and what is written, where both have one direction."""
    reads = Factors(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    writes = Factors(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]]))
    found = compose(reads, writes)
    assert found == pytest.approx((0.6, 0.5**0.5, 1.0))
    assert found.share == pytest.approx((0.36 - 0.5) / 0.5)
    assert Composition(0.0, 0.5, 0.0).share == 0.0
    assert compose(reads, Factors(torch.zeros(1, 2), torch.zeros(1, 2))).ratio == 0.0


def test_positive_share():
    assert positive_share(torch.diag(torch.tensor([3.0, -1.0]))) == pytest.approx(0.5)
    assert positive_share(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])) == pytest.approx(0.0)  # ±i
    assert positive_share(torch.zeros(2, 2)) == 0.0


def test_heads_are_named_as_in_watch():
    model = induction_by_hand()
    circuits = ts.circuits(model)
    assert len(circuits) == 4
    assert list(circuits)[-1] == ("blocks.1.self", 1)
    for key in [(-1, -1), (1, 1), ("blocks.1.self", 1), ("blocks.1", -1)]:
        assert repr(circuits[key]) == "blocks.1.self, head 1"
        assert key in circuits
    assert (2, 0) not in circuits
    assert 3 not in circuits
    assert list(ts.circuits(model, layers=-1)) == [("blocks.1.self", 0), ("blocks.1.self", 1)]


def test_the_table_is_sorted_and_printed():
    circuits = ts.circuits(induction_by_hand())
    best = circuits.sort("induction")
    assert next(iter(best)) == ("blocks.1.self", 1)
    assert [*best.rows[0]][:3] == ["layer", "head", "copying"]
    assert repr(best).splitlines()[:2] == [
        "layer          head  copying  previous token  induction  qk norm  ov norm",
        "blocks.1.self     1     1.00            0.00       1.00   113.14    45.25",
    ]
    pytest.importorskip("pandas", reason="the tables extra is not installed")
    assert list(circuits.table().columns) == [*best.rows[0]]


def test_numbers_without_meaning_say_why():
    config = ts.models.GPTConfig(vocabulary=8, d_model=16, blocks=1, heads=2, positions="rotary")
    circuits = ts.circuits(ts.models.GPT(config))
    head = circuits[0, 0]
    assert head.previous_token is None
    assert head.induction is None
    assert head.copying is not None
    assert list(head.why_not) == ["previous_token", "induction"]
    assert head.why_not["previous_token"].startswith("GPT has rotary positions")
    assert circuits.rows[0]["previous_token"] != circuits.rows[0]["previous_token"]  # NaN
    assert "no previous_token: GPT has rotary positions" in " ".join(repr(circuits).split())
    encoder = ts.models.Encoder(ts.models.EncoderConfig(vocabulary=8, d_model=16, blocks=1, heads=2))
    head = ts.circuits(encoder)[0, 0]
    assert head.copying is None
    assert head.ov.singular_values.shape == (8,)
    assert "normalises its stream after every addition" in head.why_not["copying"]
