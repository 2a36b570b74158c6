"""The three models of the course, written from the formulas of its hand-out, compared with Telescope's in float64."""

import math

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear, relu
from torch.testing import assert_close

from telescope.models import GPT, GPTConfig

SIZES = {"vocabulary": 29, "max_positions": 12, "d_model": 16, "blocks": 2, "heads": 4, "tied": False}
VARIANTS = {
    "causal": {},
    "synthesizer": {"attention": "synthesizer", "synthesizer_block": 11, "synthesizer_shared": True},
    "rotary": {"positions": "rotary", "rotary_pairs": "neighbours"},
}


def heads(x):
    return x.unflatten(-1, (4, 4)).transpose(1, 2)


def rotated(x):
    """Rotate each pair of features, as one complex number times e^(i t θ); θ_i = 10000^(-2(i - 1)/d)."""
    d, n = x.shape[-1], x.shape[-2]
    theta = torch.tensor([10000.0 ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * theta
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def course(weights, ids, variant):
    """Compute pre-norm blocks, a norm and a head without bias; masked scores are -1e10 before the softmax."""
    w, n = weights, ids.shape[1]
    x = w["embedding.weight"][ids]
    if variant != "rotary":
        x = x + w["positions.P"][:n]
    later = torch.ones(n, n).triu(1).bool()
    for i in range(2):
        b = f"blocks.{i}."

        def affine(x, name, b=b):
            return linear(x, w[b + name + ".weight"], w[b + name + ".bias"])

        def normed(x, name, b=b):
            return layer_norm(x, (16,), w[b + name + ".weight"], w[b + name + ".bias"])

        a = normed(x, "add_norm_1.norm")
        if variant == "synthesizer":
            w2, b2 = w[b + "self_attention.B"][0], w[b + "self_attention.b2"][0, 0]
            scores = relu(heads(affine(a, "self_attention.A"))) @ w2[:, :n] + b2[:n]
            values = heads(affine(a, "self_attention.V"))
        else:
            queries, keys, values = (heads(part) for part in affine(a, "self_attention.W_qkv").chunk(3, dim=-1))
            if variant == "rotary":
                queries, keys = rotated(queries), rotated(keys)
            scores = queries @ keys.mT / math.sqrt(4)
        attended = scores.masked_fill(later, -1e10).softmax(-1) @ values
        x = x + affine(attended.transpose(1, 2).flatten(2), "self_attention.W_O")
        hidden = gelu(affine(normed(x, "add_norm_2.norm"), "feed_forward.W_1"))
        x = x + affine(hidden, "feed_forward.W_2")
    return linear(layer_norm(x, (16,), w["norm.weight"], w["norm.bias"]), w["head.weight"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_equal_those_of_the_course(variant):
    torch.manual_seed(3)
    model = GPT(GPTConfig(**SIZES, **VARIANTS[variant])).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))  # biases and tables too
        ids = torch.randint(29, (3, 11))
        assert_close(model(ids), course(dict(model.named_parameters()), ids, variant), rtol=1e-10, atol=1e-10)


def test_pairs_of_halves_are_pairs_of_neighbours_in_another_order():
    """Pairing halves, as is usual in code, is the formula's pairing of neighbours with the rows of W_q and W_k
    reordered."""
    torch.manual_seed(3)
    formula = GPT(GPTConfig(**SIZES, **VARIANTS["rotary"])).double().eval()
    usual = GPT(GPTConfig(**SIZES, positions="rotary")).double().eval()
    usual.load_state_dict(formula.state_dict())
    with torch.no_grad():
        for block in usual.blocks:
            for part in (block.self_attention.W_qkv.weight, block.self_attention.W_qkv.bias):
                reordered = part[:32].unflatten(0, (8, 2, 2)).transpose(1, 2).flatten(0, 2).clone()
                part[:32] = reordered
        ids = torch.randint(29, (3, 11))
        assert_close(usual(ids), formula(ids), rtol=1e-10, atol=1e-10)
