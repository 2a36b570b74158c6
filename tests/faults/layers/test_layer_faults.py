"""A mistake in the use of a layer is answered in one sentence: the argument, what came, what fits."""

import pytest
import torch
from torch import nn

import telescope as ts
from support.sentences import says
from telescope.layers import (
    AddNorm,
    Attend,
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
    from_torch,
)

pytestmark = pytest.mark.usefixtures("as_users_run_it")


# -------------------------------------------------------------------------------------------------- building a layer


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: MultiHeadAttention(250, 8), "d_model=250 cannot be split into heads=8; nearest: 248 or 256"),
        (lambda: MultiHeadAttention(5, 8), "d_model=5 cannot be split into heads=8; nearest: 8"),
        (lambda: MultiHeadAttention(250, 8, d_v=3), "d_model=250 cannot be split into heads=8; nearest: 248 or 256"),
        (lambda: SynthesizerAttention(13, 4, 7), "d_model=13 cannot be split into heads=4; nearest: 12 or 16"),
        (lambda: MultiHeadAttention(64, 8, key_heads=3), "key_heads=3 does not divide heads=8; these do: 1, 2, 4, 8"),
        (lambda: MultiHeadAttention(64, 8, key_heads=16), "key_heads=16 does not divide heads=8; these do: 1, 2, 4, 8"),
        (lambda: LuongAttention("genral", 5), 'there is no score="genral"; did you mean "general"?'),
        (lambda: LuongAttention("xyz", 5), 'there is no score="xyz"; there are dot, general, concat'),
        (
            lambda: LuongAttention("dot", 5, 7),
            'score="dot" needs one width, not d_query=5 and d_memory=7; score="general" and score="concat" take two',
        ),
        (
            lambda: LuongAttention("general", 5, 7, 3),
            'd_attention=3 is for score="concat" only; leave it out for score="general"',
        ),
        (lambda: MultiHeadAttention(8, 2.0), "heads is a whole number, not 2.0"),
        (lambda: MultiHeadAttention(torch.tensor(8), 2), "d_model is a whole number, not a tensor"),
        (lambda: Attend(torch.tensor(0.1)), "dropout is a number, not a tensor"),
        (lambda: FeedForward(5, 7, activation="relo"), 'there is no activation="relo"; did you mean "relu"?'),
        (lambda: SinusoidalPositions(7), "d_model=7 is odd, nearest: 6 or 8"),
    ],
)
def test_sizes_that_do_not_fit(call, sentence):
    says(call, sentence)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: SelfAttention(0), "d_model=0"),
        (lambda: SelfAttention(5, 0), "d_k=0"),
        (lambda: SelfAttention(5, 3, -1), "d_v=-1"),
        (lambda: MultiHeadAttention(-4, 2), "d_model=-4"),
        (lambda: MultiHeadAttention(4, 0), "heads=0"),
        (lambda: MultiHeadAttention(4, 2, key_heads=0), "key_heads=0"),
        (lambda: MultiHeadAttention(4, 2, d_k=0), "d_k=0"),
        (lambda: MultiHeadAttention(4, 2, d_v=0), "d_v=0"),
        (lambda: MultiHeadAttention(4, 2, d_memory=0), "d_memory=0"),
        (lambda: MultiHeadAttention(4, 2, d_out=0), "d_out=0"),
        (lambda: LuongAttention("dot", 0), "d_query=0"),
        (lambda: LuongAttention("general", 5, 0), "d_memory=0"),
        (lambda: LuongAttention("concat", 5, 7, 0), "d_attention=0"),
        (lambda: SynthesizerAttention(0, 2, 7), "d_model=0"),
        (lambda: SynthesizerAttention(4, 0, 7), "heads=0"),
        (lambda: SynthesizerAttention(4, 2, 0), "block=0"),
        (lambda: FeedForward(0, 7), "d_model=0"),
        (lambda: FeedForward(5, 0), "d_hidden=0"),
        (lambda: AddNorm(0), "d_model=0"),
        (lambda: EncoderBlock(0, nn.Identity(), nn.Identity()), "d_model=0"),
        (lambda: LearnedPositions(0, 5), "max_positions=0"),
        (lambda: LearnedPositions(5, 0), "d_model=0"),
        (lambda: SinusoidalPositions(0), "d_model=0"),
    ],
)
def test_sizes_below_one(call, sentence):
    says(call, f"{sentence} must be at least 1")


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: Attend(p),
        lambda p: SelfAttention(4, dropout=p),
        lambda p: MultiHeadAttention(4, 2, dropout=p),
        lambda p: LuongAttention("dot", 4, dropout=p),
        lambda p: SynthesizerAttention(4, 2, 7, dropout=p),
    ],
)
def test_a_dropout_that_is_no_probability(make, p):
    says(lambda: make(p), f"dropout={p} is a probability, from 0 to 1")


@pytest.mark.parametrize("make", [lambda p: FeedForward(4, 7, dropout=p), lambda p: AddNorm(4, dropout=p)])
def test_a_dropout_of_a_sublayer_that_is_no_probability(make):
    says(lambda: make(1.5), "between 0 and 1", "1.5")


# --------------------------------------------------------------------------------------------------- calling a layer


SIX_WIDE = {
    "SelfAttention": SelfAttention(6, 5),
    "MultiHeadAttention": MultiHeadAttention(6, 3),
    "SynthesizerAttention": SynthesizerAttention(6, 3, 7),
    "FeedForward": FeedForward(6, 7),
    "GatedFeedForward": GatedFeedForward(6, 7),
    "LearnedPositions": LearnedPositions(7, 6),
    "SinusoidalPositions": SinusoidalPositions(6),
    "AddNorm": EncoderBlock(6, MultiHeadAttention(6, 3), FeedForward(6, 7), pre_norm=True),
}


@pytest.mark.parametrize("name", SIX_WIDE)
@pytest.mark.parametrize("shape", [(2, 5, 13), (2, 5, 1), (5, 6), (6,), (2, 3, 5, 6)], ids=str)
def test_an_input_that_does_not_fit(name, shape):
    sentence = f"x has shape {shape}; {name} with d_model=6 takes (batch, position, 6)"
    says(lambda: SIX_WIDE[name](torch.zeros(shape)), sentence)


def test_a_memory_that_does_not_fit():
    x, layer = torch.zeros(2, 5, 6), MultiHeadAttention(6, 3, d_memory=4)
    says(
        lambda: layer(x, torch.zeros(2, 7, 6)),
        "memory has shape (2, 7, 6); MultiHeadAttention with d_memory=4 takes (batch, position, 4)",
    )
    says(lambda: layer(x), "memory is missing", "d_model=6", "d_memory=4", "layer(x, memory)")
    says(lambda: layer(x, torch.zeros(3, 7, 4)), "batch of 3", "of 2")
    cross = DecoderBlock(6, MultiHeadAttention(6, 3), layer, FeedForward(6, 7))
    says(lambda: cross(x, torch.zeros(2, 7, 13)), "memory has shape (2, 7, 13)", "d_memory=4")


def test_errors_of_luong_name_its_states_and_its_memory():
    layer = LuongAttention("general", 6, 4)
    states, memory = torch.zeros(2, 5, 6), torch.zeros(2, 7, 4)
    says(lambda: layer(memory, states), "states has shape (2, 7, 4); LuongAttention with d_query=6 takes")
    says(lambda: layer(states, states), "memory has shape (2, 5, 6); LuongAttention with d_memory=4 takes")


def test_rotary_has_no_distance_to_a_memory():
    layer, x = MultiHeadAttention(6, 3, rotary=ts.rotary()), torch.zeros(2, 5, 6)
    says(lambda: layer(x, x), "memory", "rotary=None")


def test_rotary_needs_pairs():
    says(lambda: MultiHeadAttention(15, 3, rotary=ts.rotary())(torch.zeros(2, 5, 15)), "rotary turns pairs", "5 of 5")


def test_a_sequence_that_is_too_long():
    x = torch.zeros(2, 8, 6)
    says(lambda: SynthesizerAttention(6, 3, 7)(x), "x has 8 positions", "block=7")
    says(lambda: LearnedPositions(7, 6)(x), "x has 8 positions from start=0", "max_positions=7", "0 to 6")
    says(lambda: LearnedPositions(9, 6)(x, start=2), "x has 8 positions from start=2", "max_positions=9", "0 to 8")
    says(lambda: LearnedPositions(9, 6)(x, start=-1), "start=-1")


def test_a_sublayer_that_changes_the_shape():
    says(
        lambda: AddNorm(6)(torch.zeros(2, 5, 6), nn.Linear(6, 1)),
        "sublayer gives shape (2, 5, 1); to be added to x it must be (2, 5, 6) again",
    )


@pytest.mark.parametrize(
    ("mask", "parts"),
    [
        (torch.ones(5, 5, dtype=torch.bool), ("not with Tensor", "ts.from_tensor")),
        (ts.padding([3, 4, 5]), ("3 lengths", "batch of 2")),
        (ts.padding(keep=torch.ones(2, 4, dtype=torch.bool)), ("(2, 4)", "(2, 5)")),
        (ts.from_forbidden(torch.zeros(4, 5, dtype=torch.bool)), ("(1, 1, 4, 5)", "(2, 3, 5, 5)")),
    ],
)
def test_a_mask_that_does_not_fit(mask, parts):
    says(lambda: MultiHeadAttention(6, 3)(torch.zeros(2, 5, 6), mask=mask), *parts)


# ---------------------------------------------------------------------------------------------------- from_torch


class Mine(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: nn.MultiheadAttention(6, 3, add_bias_kv=True), ("add_bias_kv=True has no counterpart",)),
        (lambda: nn.MultiheadAttention(6, 3, kdim=5, vdim=7), ("kdim=5", "vdim=7", "one memory")),
        (lambda: nn.TransformerEncoderLayer(6, 3, 7, activation=torch.tanh), ("activation=", "tanh", "relu, gelu")),
        (lambda: nn.TransformerDecoderLayer(6, 3, 7, activation=nn.PReLU()), ("activation=PReLU", "relu, gelu")),
        (lambda: nn.Linear(6, 3), ("nn.MultiheadAttention", "not Linear")),
        (lambda: Mine(6, 3), ("not Mine",)),
        (lambda: "attention", ("not str",)),
    ],
)
def test_torch_modules_without_a_counterpart(make, parts):
    says(lambda: from_torch(make()), *parts)
