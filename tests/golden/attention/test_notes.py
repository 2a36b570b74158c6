"""The numbers of the notes, as printed: thirty of "LLMs from scratch", chapter 3, then others that a hand can check."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.attention import LinearScaling, Llama3Scaling

FIGURES = json.loads((Path(__file__).parents[1] / "figures.json").read_text(encoding="utf-8"))

x = torch.tensor(FIGURES["inputs"])[None, None]
journey = x[:, :, 1:2]
two_heads = torch.tensor(FIGURES["two_heads"])
identity = torch.eye(6)[None, None]

weight_free = ts.Attention(scale=1.0)
scaled_dot = ts.Attention()
causal = ts.Attention(mask=ts.causal)


def project(*names, x=x):
    """Return queries, keys and values by the listed matrices; several names are several heads."""
    return [torch.cat([x @ torch.tensor(FIGURES[name][role]) for name in names], dim=1) for role in ROLES]


ROLES = ("query", "key", "value")
rand_123, linear_789, linear_123 = project("rand_123"), project("linear_789"), project("linear_123")
twice = x.expand(2, -1, -1, -1)


def dropped(queries, keys, values, attention):
    torch.manual_seed(123)
    return ts.attend(queries, keys, values, attention, dropout=0.5, engine="reference")[0, 0]


def multi_head():
    """Split d_out = 2 into two heads of one feature, joined by an output projection with a bias."""
    q, k, v = (tensor.transpose(1, -1) for tensor in project("linear_123", x=twice))
    together = ts.attend(q, k, v, causal).transpose(1, 2).flatten(2)
    out = FIGURES["out_projection"]
    return together @ torch.tensor(out["W"]) + torch.tensor(out["bias"])


STEPS = {
    "scores_query2": lambda: ts.trace(journey, x, x, weight_free).scores[0, 0, 0],
    "score_x1_query2": lambda: ts.trace(x, x, x, weight_free, FIGURES["sentence"]).row("journey").terms[0].sum(),
    "weights_query2_by_sum": lambda: ts.trace(journey, x, x, ts.Attention(scale=1.0, normalize=ts.by_sum)).weights[
        0, 0, 0
    ],
    "weights_query2_softmax": lambda: ts.trace(journey, x, x, weight_free).weights[0, 0, 0],
    "context_query2": lambda: ts.attend(journey, x, x, weight_free)[0, 0, 0],
    "scores_all": lambda: ts.trace(x, x, x, weight_free).scores[0, 0],
    "weights_all": lambda: ts.trace(x, x, x, weight_free).weights[0, 0],
    "context_all": lambda: ts.attend(x, x, x, weight_free)[0, 0],
    "query_2": lambda: ts.trace(*rand_123).queries[0, 0, 1],
    "score_22": lambda: ts.trace(*rand_123).scores[0, 0, 1, 1],
    "scores_query2_trainable": lambda: ts.trace(*rand_123).scores[0, 0, 1],
    "weights_query2_scaled": lambda: ts.trace(*rand_123).weights[0, 0, 1],
    "context_query2_trainable": lambda: ts.attend(*rand_123)[0, 0, 1],
    "self_attention_v1": lambda: ts.attend(*rand_123)[0, 0],
    "self_attention_v2": lambda: ts.attend(*linear_789)[0, 0],
    "weights_unmasked_v2": lambda: ts.trace(*linear_789).weights[0, 0],
    "mask_lower_triangular": lambda: ts.causal.block(6, 6)[0, 0].float(),
    "weights_masked_zeroed": lambda: (ts.trace(*linear_789).weights * ts.causal.block(6, 6))[0, 0],
    "weights_masked_renormalised": lambda: ts.by_sum(ts.trace(*linear_789).weights * ts.causal.block(6, 6))[0, 0],
    "scores_masked_minus_inf": lambda: ts.trace(*linear_789, ts.Attention(scale=1.0, mask=ts.causal)).masked[0, 0],
    "weights_causal": lambda: ts.trace(*linear_789, causal).weights[0, 0],
    "dropout_ones": lambda: dropped(torch.zeros_like(x), torch.zeros_like(x), 6 * identity, scaled_dot),
    "dropout_causal_weights": lambda: dropped(*linear_789[:2], identity, causal),
    "causal_attention": lambda: ts.attend(*project("linear_123", x=twice), causal)[:, 0],
    "multi_head_wrapper": lambda: (
        ts.attend(*project("linear_123", "linear_123_second_head", x=twice), causal).transpose(1, 2).flatten(2)
    ),
    "multi_head_attention": multi_head,
    "batched_matmul_heads": lambda: ts.trace(two_heads, two_heads, two_heads).scores,
    "batched_matmul_head1": lambda: ts.trace(*[two_heads[:, :1]] * 3).scores[0, 0],
    "batched_matmul_head2": lambda: ts.trace(*[two_heads[:, 1:]] * 3).scores[0, 0],
    "exercise_3_1_linear_seed123": lambda: ts.attend(*linear_123)[0, 0],
}


def test_every_one_of_the_thirty_steps_is_computed():
    assert len(STEPS) == 30
    assert list(STEPS) == list(FIGURES["steps"])


@pytest.mark.parametrize("name", STEPS)
def test_llms_from_scratch(name):
    got, figures = STEPS[name](), FIGURES["steps"][name]
    assert_close(got, numbers(figures["printed"]), atol=1e-4, rtol=0)
    assert_close(got, numbers(figures["float32"]), atol=1e-6, rtol=0)


def numbers(figure):
    """JSON has no -inf: it is written as a string."""
    if isinstance(figure, list):
        return torch.stack([numbers(part) for part in figure])
    return torch.tensor(float(figure))


def row(*scores):
    """A query [1] whose keys are its scores, so that a hand can follow; values are the identity: context = weights."""
    keys = torch.tensor(scores, dtype=torch.float64)[None, None, :, None]
    return torch.ones(1, 1, 1, 1, dtype=torch.float64), keys, torch.eye(len(scores), dtype=torch.float64)[None, None]


def weights_of(*scores, **choices):
    return ts.attend(*row(*scores), ts.Attention(**choices))[0, 0, 0].tolist()


def test_thinking_machines():
    figures = FIGURES["thinking_machines"]
    queries = torch.ones(1, 1, 1, 64, dtype=torch.float64)
    keys = torch.stack([torch.full((64,), score / 64, dtype=torch.float64) for score in figures["scores"]])[None, None]
    steps = ts.trace(queries, keys, keys)
    assert steps.scores[0, 0, 0].tolist() == figures["scores"] == [112, 96]
    assert steps.scaled[0, 0, 0].tolist() == figures["scaled"] == [14, 12]
    assert [round(weight, 2) for weight in steps.weights[0, 0, 0].tolist()] == figures["weights"] == [0.88, 0.12]
    assert steps.weights[0, 0, 0].tolist() == pytest.approx(figures["float64"], abs=1e-15)


def test_softmax_of_zero_and_one():
    assert weights_of(0.0, 1.0) == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])


def test_by_sum_divides_by_the_sum():
    assert weights_of(1.0, 3.0, normalize=ts.by_sum) == pytest.approx([0.25, 0.75])


def test_a_scale_is_a_factor():
    assert weights_of(0.0, 2.0, scale=0.5) == pytest.approx(weights_of(0.0, 1.0))


def test_a_sink_is_one_more_exponential_in_the_sum():
    total = math.exp(0.5) + math.exp(1.5) + math.exp(2.0)
    assert weights_of(0.5, 1.5, sink=2.0) == pytest.approx([math.exp(0.5) / total, math.exp(1.5) / total])


def test_each_head_has_its_own_sink():
    q, k, v = (tensor.expand(-1, 2, -1, -1) for tensor in row(0.0, 0.0))
    context = ts.attend(q, k, v, ts.Attention(sink=torch.tensor([0.0, math.log(2.0)])))
    assert context[0, :, 0].tolist() == [pytest.approx([1 / 3, 1 / 3]), pytest.approx([1 / 4, 1 / 4])]


def test_a_softcap_bends_the_scores_by_tanh():
    capped = ts.trace(*row(0.0, 1.0, 1000.0), ts.Attention(softcap=5.0)).capped[0, 0, 0]
    assert capped.tolist() == pytest.approx([0.0, 5 * math.tanh(1 / 5), 5.0])


def test_a_bias_comes_after_the_softcap_and_before_the_mask():
    steps = ts.trace(*row(9.0, 9.0), ts.Attention(softcap=1.0, bias=ts.from_additive(torch.tensor([[0.0, 2.0]]))))
    cap = math.tanh(9.0)
    assert steps.biased[0, 0, 0].tolist() == pytest.approx([cap, cap + 2.0])
    assert steps.weights[0, 0, 0].tolist() == pytest.approx([1 / (1 + math.e**2), math.e**2 / (1 + math.e**2)])


def test_luong_general_puts_a_matrix_between():
    W = torch.tensor([[1.0, 0.0], [2.0, -1.0]])
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0], [1.0, 0.0]]]])
    # q·W = [1 + 2·2, -2] = [5, -2];  [5, -2]·[3, 4] = 7;  [5, -2]·[1, 0] = 5
    assert ts.trace(q, k, k, ts.Attention(score=ts.general(W))).scores[0, 0, 0].tolist() == [7.0, 5.0]


def test_luong_concat_is_v_tanh_of_a_sum():
    score = ts.additive(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([3.0, -1.0]))
    q, k = torch.tensor([[[[0.5]]]]), torch.tensor([[[[0.25]]]])
    expected = 3 * math.tanh(0.5) - math.tanh(2 * 0.25)
    assert ts.trace(q, k, k, ts.Attention(score=score)).scores.item() == pytest.approx(expected)


def alibi_slopes(heads):
    """Return what a key one position back loses, head by head."""
    q, k = torch.zeros(1, heads, 1, 1), torch.zeros(1, heads, 2, 1)
    return (-ts.trace(q, k, k, ts.Attention(bias=ts.alibi(heads))).biased[0, :, 0, 0]).tolist()


def test_alibi_slopes_of_8_heads_halve():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_of_12_heads_go_on_with_every_other_of_16():
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_alibi_has_the_precision_of_the_scores():
    zeros = torch.zeros(1, 12, 1000, 1, dtype=torch.float64)
    biased = ts.trace(zeros[:, :, :1], zeros, zeros, ts.Attention(bias=ts.alibi(12))).biased[0, :, 0, 0]
    assert biased[8:].tolist() == pytest.approx([-999 * 2 ** (-0.5 - i) for i in range(4)], rel=1e-15)


def test_alibi_counts_the_distance():
    zeros = torch.zeros(1, 1, 3, 1)
    biased = ts.trace(zeros, zeros, zeros, ts.Attention(bias=ts.alibi(1))).biased[0, 0] * 256
    assert biased.tolist() == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]


def test_relative_looks_up_the_distance_and_clamps_it():
    zeros = torch.zeros(1, 1, 4, 1)
    biased = ts.trace(zeros, zeros, zeros, ts.Attention(bias=ts.relative(torch.tensor([[-1.0, 0.0, 5.0]])))).biased
    assert biased[0, 0].tolist() == [[0, 5, 5, 5], [-1, 0, 5, 5], [-1, -1, 0, 5], [-1, -1, -1, 0]]


def test_sinusoidal_at_small_positions():
    first, second, third = ts.sinusoidal(3, 4).tolist()
    assert first == [0, 1, 0, 1]
    assert second == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)])  # 10,000^(2/4) = 100
    assert third == pytest.approx([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)])
    assert ts.sinusoidal(torch.tensor([2]), 4)[0].tolist() == third
    halves = [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
    assert ts.sinusoidal(3, 4, pairs="halves")[2].tolist() == pytest.approx(halves)


def turn(a, b, angle):
    return a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)


def test_rotary_rotates_pairs_or_a_fraction_of_the_features():
    features = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, None, None]
    (a, c), (b, d) = turn(1, 3, 5.0), turn(2, 4, 0.05)  # base^(-2/4) = 0.01 turns per step in the second pair
    neighbours = [*turn(1, 2, 5.0), *turn(3, 4, 0.05)]
    assert ts.rotary()(features, 5).flatten().tolist() == pytest.approx([a, b, c, d])
    assert ts.rotary(pairs="neighbours")(features, 5).flatten().tolist() == pytest.approx(neighbours)
    assert ts.rotary(fraction=0.5)(features, 5).flatten().tolist() == pytest.approx([*turn(1, 2, 5.0), 3, 4])


def test_rotary_of_a_longer_text():
    """Half the speed for every pair; or, as in Llama 3.1, for those that rotate little within the original length."""
    features = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, None, None]
    linear = ts.rotary(pairs="neighbours", scaling=LinearScaling(2.0))
    assert linear(features, 6).flatten().tolist() == pytest.approx([*turn(1, 2, 3.0), *turn(3, 4, 0.03)])

    llama = Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=1000)
    turns = torch.tensor([4.0, 100.0, 1.0, 0.5, 2.5]) * 2 * math.pi / 1000  # per position; 4 to 0.5 in 1,000 of them
    kept = (llama(turns) / turns).tolist()
    assert kept == pytest.approx([1.0, 1.0, 1 / 8, 1 / 8, 0.5 + 0.5 / 8])


def test_rotary_at_position_zero_changes_nothing():
    features = torch.arange(8.0)[None, None, None]
    assert torch.equal(ts.rotary()(features), features)
