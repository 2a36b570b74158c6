"""The derivative by the weights: numbers that a hand can check, autograd's own, and every bad request."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import telescope as ts
from support.sentences import says

KEPT = {"keep": "steps", "also": "gradients"}


class Plain(nn.Module):
    """One head over given values; every query sees every key alike."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=torch.float64)[None, None])

    def forward(self, x):
        queries = torch.zeros_like(self.values)
        return scaled_dot_product_attention(queries, queries, self.values)[0, 0]


def test_the_gradient_of_a_context_times_a_value():
    """The loss is 1 · c_00 + 10 · c_11: query 0 has gradient (1, 0), query 1 (0, 10)."""
    model = Plain([[1.0, 2.0], [3.0, 5.0]])
    with ts.watch(model, **KEPT) as recording:
        context = model(None)
        (context[0, 0] + 10 * context[1, 1]).backward()
    (seen,) = recording.values()
    assert seen.weight_gradients(0).tolist() == [[1.0, 3.0], [20.0, 50.0]]
    assert seen.weight_gradients(-1, [-1, 0]).tolist() == [[20.0, 50.0], [1.0, 3.0]]
    assert seen.weight_gradients(0, 1).tolist() == [[20.0, 50.0]]


def test_backward_passes_add_up():
    model = Plain([[1.0, 2.0], [3.0, 5.0]])
    with ts.watch(model, **KEPT) as recording:
        context = model(None)
        context[0, 0].backward(retain_graph=True)
        (2 * context[0, 1]).backward()
    (seen,) = recording.values()
    assert seen.weight_gradients(0).tolist() == [[1.0 + 4.0, 3.0 + 10.0], [0.0, 0.0]]


@pytest.mark.parametrize("key_heads", [None, 2, 1])
@pytest.mark.parametrize("heads", [None, [3, 1]])
@pytest.mark.parametrize("queries", [None, [1, 4]])
def test_autograds_own_derivative(key_heads, heads, queries, tmp_path):
    """The attention is formed with its whole matrices; autograd has the derivative by the weights."""
    torch.manual_seed(2)
    attention = ts.Attention(mask=ts.causal, sink=torch.randn(4, dtype=torch.float64))
    layer = ts.layers.MultiHeadAttention(16, 4, key_heads=key_heads, attention=attention).double().eval()
    x, target = torch.randn(2, 2, 7, 16, dtype=torch.float64)
    with ts.watch(layer, heads=heads, queries=queries, **KEPT) as recording:
        (layer(x) * target).sum().backward()
    with ts.watch(layer, keep="steps") as whole:
        layer(x)
    weights = whole["attention"].trace().weights.detach().requires_grad_()
    values = whole["attention"].call.values.repeat_interleave(4 // (key_heads or 4), 1)
    (layer.W_O((weights @ values).transpose(1, 2).flatten(-2)) * target).sum().backward()
    recording.save(tmp_path / "saved")
    rows = list(range(7)) if queries is None else queries
    for seen in (recording["attention"], ts.open(tmp_path / "saved")["attention"]):
        for head in heads or range(4):
            found = seen.weight_gradients(head, sequence=1)
            assert_close(found, weights.grad[1, head][rows], rtol=1e-10, atol=1e-12)
            assert_close(seen.weight_gradients(head, rows[1]), weights.grad[0, head][rows[1:2]], rtol=1e-10, atol=1e-12)


def test_bad_requests(monkeypatch):
    layer = ts.layers.MultiHeadAttention(8, 2)
    x = torch.randn(1, 5, 8)

    def watched(backward=True, **options):
        with ts.watch(layer, **options) as recording:
            found = layer(x).sum()
            if backward:
                found.backward()
        return recording["attention"]

    for options in ({}, {"also": "gradients"}, {"keep": "steps"}, {"keep": "queries-keys", "also": "gradients"}):
        says(lambda options=options: watched(**options).weight_gradients(0), 'keep="steps"', 'also="gradients"')
    says(lambda: watched(backward=False, **KEPT).weight_gradients(0), "backward pass inside of the block")
    seen = watched(**KEPT)
    says(lambda: seen.weight_gradients(2), "there is no head 2", "kept are 0, 1")
    says(lambda: seen.weight_gradients(0, 5), "no query 5", "from 0 to 4")
    says(lambda: seen.weight_gradients(0, True), "whole number")
    says(lambda: seen.weight_gradients(0, sequence=1), "no sequence 1")
    says(lambda: watched(queries=[1, 2], **KEPT).weight_gradients(0, [0]), "query 0", "ts.watch(queries=...)")
    monkeypatch.setattr("telescope.recording.weight_gradients.MAX_BYTES", 99)
    says(lambda: seen.weight_gradients(0), "5 queries x 5 keys", "choose queries=")
    assert seen.weight_gradients(0, range(4)).shape == (4, 5)
