"""How many numbers a layer learns, by the notes' formulas. The sizes are unequal primes: none stands in for another."""

import pytest
from torch import nn

from telescope import Attention, causal
from telescope.layers import (
    AddNorm,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    LuongAttention,
    MultiHeadAttention,
    SelfAttention,
    SinusoidalPositions,
    SynthesizerAttention,
)

d, T, m, l = 13, 3, 5, 7  # noqa: E741  the notes' letters: d x m queries and keys, d x l values, T heads


def count(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


def test_the_example_of_the_notes_is_three_matrices_of_3x2():
    assert count(SelfAttention(3, 2)) == 18


def test_self_attention():
    assert count(SelfAttention(d, m, l)) == d * (2 * m + l) == 221
    assert count(SelfAttention(d, m, l, bias=True)) == d * (2 * m + l) + 2 * m + l
    assert count(SelfAttention(d)) == 3 * d * d


def test_multi_head_is_the_notes_formula():
    weights = d * (2 * m + l) * T + T * l * d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, bias=False)) == weights == 936
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l)) == weights + 2 * m * T + l * T + d == 1000


def test_multi_head_biases_apart():
    weights = d * (2 * m + l) * T + T * l * d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, bias=False, out_bias=True)) == weights + d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, out_bias=False)) == weights + 2 * m * T + l * T


def test_the_paper_base_model():
    assert count(MultiHeadAttention(512, 8, bias=False)) == 4 * 512 * 512


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_grouped_queries_have_fewer_keys_and_values(key_heads):
    layer = MultiHeadAttention(d, 6, key_heads=key_heads, d_k=m, d_v=l, bias=False)
    assert count(layer) == d * m * 6 + d * (m + l) * key_heads + 6 * l * d


def test_a_memory_and_an_output_of_other_widths():
    d_memory, d_out = 17, 19
    layer = MultiHeadAttention(d, T, d_k=m, d_v=l, d_memory=d_memory, d_out=d_out)
    assert count(layer) == d * m * T + d_memory * (m + l) * T + T * l * d_out + 2 * m * T + l * T + d_out


def test_luong():
    assert count(LuongAttention("dot", d)) == 0
    assert count(LuongAttention("general", d, 17)) == d * 17
    assert count(LuongAttention("general", d)) == d * d
    assert count(LuongAttention("concat", d, 17, 11)) == d * 11 + 17 * 11 + 11
    assert count(LuongAttention("concat", d, 17)) == d * 17 + 17 * 17 + 17


@pytest.mark.parametrize(("shared", "tables"), [(False, T), (True, 1)])
def test_synthesizer(shared, tables):
    width, block = T * m, 11
    maps = 3 * width * width  # A, V and W_O
    assert count(SynthesizerAttention(width, T, block, shared=shared, bias=False)) == maps + tables * m * block
    assert count(SynthesizerAttention(width, T, block, shared=shared)) == (
        maps + 3 * width + tables * (m * block + block)
    )


def test_feed_forward():
    assert count(FeedForward(d, 29)) == 2 * d * 29 + 29 + d
    assert count(FeedForward(d, 29, bias=False)) == 2 * d * 29
    assert count(GatedFeedForward(d, 29)) == 3 * d * 29


def test_add_norm_and_positions():
    assert count(AddNorm(d)) == 2 * d
    assert count(AddNorm(d, norm=nn.RMSNorm)) == d
    assert count(LearnedPositions(17, d)) == 17 * d
    assert count(SinusoidalPositions(d + 1)) == 0


def test_the_transformer_of_the_paper():
    """Vaswani et al. 2017, base: d_model 512, d_ff 2048, six blocks each (their 65 million with the embeddings)."""
    attention, hidden, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder = EncoderBlock(512, MultiHeadAttention(512, 8), FeedForward(512, 2048))
    decoder = DecoderBlock(512, MultiHeadAttention(512, 8), MultiHeadAttention(512, 8), FeedForward(512, 2048))
    assert count(encoder) == attention + hidden + 2 * norm == 3_152_384
    assert count(decoder) == 2 * attention + hidden + 3 * norm == 4_204_032


@pytest.mark.parametrize(
    ("self_attention", "whole_model"),
    [
        (lambda: MultiHeadAttention(256, 8, attention=Attention(mask=causal)), 3_323_392),
        (lambda: SynthesizerAttention(256, 8, 127, shared=True), 3_076_988),
    ],
    ids=["vanilla", "synthesizer"],
)
def test_stanford_assignment_5(self_attention, whole_model):
    """Four blocks of width 256, 256 characters, 128 learned positions, a final norm and a head without bias."""
    block = EncoderBlock(256, self_attention(), FeedForward(256, 1024, activation="gelu"), pre_norm=True)
    outside = nn.ModuleList(
        [nn.Embedding(256, 256), LearnedPositions(128, 256), nn.LayerNorm(256), nn.Linear(256, 256, bias=False)]
    )
    assert 4 * count(block) + count(outside) == whole_model
