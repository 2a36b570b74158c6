"""Whole models, compared with PyTorch's own modules of the same weights: the same numbers, with padding."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding, linear
from torch.testing import assert_close

import telescope as ts
from support import watching
from telescope.layers import from_torch
from telescope.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    LuongConfig,
    LuongTranslator,
    Transformer,
    TransformerConfig,
)

BATCH, N, M, V, W, D, HEADS, HIDDEN = 3, 7, 5, 29, 23, 12, 3, 17
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
LENGTHS = torch.tensor([7, 4, 1])
filled = partial(watching.filled, std=0.4)


def ids(length, vocabulary=V, seed=3):
    return torch.randint(vocabulary, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def take_over(blocks, layers):
    for block, layer in zip(blocks, layers, strict=True):
        block.load_state_dict(from_torch(layer).state_dict())


def later(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


# ------------------------------------------------------------------------------------------------- nn.Transformer


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal_halves", "learned"])
@pytest.mark.parametrize("apart", [False, True], ids=["shared", "apart"])
def test_transformer(pre_norm, positions, apart):
    theirs = filled(
        nn.Transformer(D, HEADS, 2, 3, HIDDEN, dropout=0.0, activation="gelu", batch_first=True, norm_first=pre_norm)
    )
    config = TransformerConfig(
        vocabulary=V, target_vocabulary=W if apart else None, shared=not apart, tied=not apart, head_bias=apart,
        scaled=not apart, max_positions=11, d_model=D, encoder_blocks=2, decoder_blocks=3, heads=HEADS, d_hidden=HIDDEN,
        positions=positions, pre_norm=pre_norm, final_norm=True, activation="gelu", dropout=0.0,
    )  # fmt: skip
    ours = filled(Transformer(config))
    take_over(ours.encoder, theirs.encoder.layers)
    take_over(ours.decoder, theirs.decoder.layers)
    ours.encoder_norm.load_state_dict(theirs.encoder.norm.state_dict())
    ours.decoder_norm.load_state_dict(theirs.decoder.norm.state_dict())

    source, target = ids(N), ids(M, W if apart else V, seed=5)
    pad = torch.arange(N) >= LENGTHS[:, None]
    embedded = ours.target_embedding.weight if apart else ours.embedding.weight
    scale = 1.0 if apart else D**0.5

    def added(add, n):
        if positions == "learned":
            return add.P[:n]
        angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        if positions == "sinusoidal_halves":
            return torch.cat([angles.sin(), angles.cos()], dim=-1)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(n, D)

    hidden = theirs(
        embedding(source, ours.embedding.weight) * scale + added(ours.source_positions, N),
        embedding(target, embedded) * scale + added(ours.target_positions, M),
        tgt_mask=later(M), src_key_padding_mask=pad, memory_key_padding_mask=pad,
    )  # fmt: skip
    expected = linear(hidden, ours.head.weight if apart else embedded, ours.head_bias)
    actual = ours(source, target, ts.padding(LENGTHS))
    assert_close(actual, expected, **CLOSE)

    wanted = ids(M, W if apart else V, seed=6)
    wanted[1, 2:] = -100
    loss = ours.loss(source, target, wanted, ts.padding(LENGTHS), label_smoothing=0.1)
    assert_close(loss, cross_entropy(expected.flatten(0, 1), wanted.flatten(), label_smoothing=0.1), **CLOSE)
    mine, yours = (torch.autograd.grad(some, ours.embedding.weight)[0] for some in (actual.sum(), expected.sum()))
    assert_close(mine, yours, **CLOSE)


def test_final_norms_are_those_of_the_paper_by_default():
    """A post-norm model has no final norm unless the config says so, a pre-norm model has two."""
    small = {"d_model": D, "heads": HEADS, "encoder_blocks": 1, "decoder_blocks": 1}
    post, pre = (Transformer(TransformerConfig(pre_norm=pre_norm, **small)) for pre_norm in (False, True))
    assert isinstance(post.encoder_norm, nn.Identity)
    assert isinstance(post.decoder_norm, nn.Identity)
    assert isinstance(pre.encoder_norm, nn.LayerNorm)
    assert isinstance(pre.decoder_norm, nn.LayerNorm)


# ------------------------------------------------------------------------------------------ nn.TransformerEncoder


def test_gpt_is_a_causal_stack_of_encoder_layers():
    layer = nn.TransformerEncoderLayer(D, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=True)
    theirs = filled(nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(D), enable_nested_tensor=False))
    ours = filled(GPT(GPTConfig(vocabulary=V, max_positions=N, d_model=D, blocks=3, heads=HEADS, d_hidden=HIDDEN)))
    take_over(ours.blocks, theirs.layers)
    ours.norm.load_state_dict(theirs.norm.state_dict())
    text = ids(N)
    x = ours.embedding.weight[text] + ours.positions.P
    expected = theirs(x, mask=later(N), is_causal=False) @ ours.embedding.weight.T
    assert_close(ours(text), expected, **CLOSE)
    targets = ids(N, seed=9)
    assert_close(ours.loss(text, targets), cross_entropy(expected.flatten(0, 1), targets.flatten()), **CLOSE)


def test_encoder_is_a_stack_of_encoder_layers():
    layer = nn.TransformerEncoderLayer(D, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, layer_norm_eps=1e-12)
    theirs = filled(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    config = EncoderConfig(vocabulary=V, max_positions=9, d_model=D, blocks=3, heads=HEADS, d_hidden=HIDDEN)
    ours = filled(Encoder(config))
    take_over(ours.blocks, theirs.layers)
    text, types, pad = ids(N), ids(N, 2, seed=4), torch.arange(N) >= LENGTHS[:, None]
    x = ours.norm(ours.embedding.weight[text] + ours.positions.P[:N] + ours.types.weight[types])
    expected = theirs(x, src_key_padding_mask=pad)
    actual = ours(text, ts.padding(LENGTHS), types)
    assert_close(actual[~pad], expected[~pad], **CLOSE)
    mean = torch.stack([expected[i, :n].mean(0) for i, n in enumerate(LENGTHS)])
    assert_close(ours.pool(actual, ts.padding(LENGTHS)), mean, **CLOSE)


def test_rms_norm_and_gated_silu_by_hand():
    config = GPTConfig(
        vocabulary=V, d_model=D, blocks=1, heads=HEADS, d_hidden=HIDDEN, positions="none", norm="rms", norm_eps=1e-3,
        activation="silu", gated=True, bias=False, tied=False,
    )  # fmt: skip
    ours, text = filled(GPT(config)), ids(1)  # of one token the attention is its value
    block = ours.blocks[0]

    def rms(x, norm):
        return x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    x = ours.embedding.weight[text]
    x = (
        x
        + rms(x, block.add_norm_1.norm)
        @ block.self_attention.projections()["W_v"].weight.T
        @ block.self_attention.W_O.weight.T
    )
    y = rms(x, block.add_norm_2.norm)
    gate = y @ block.feed_forward.W_1.weight.T
    hidden = gate * torch.sigmoid(gate) * (y @ block.feed_forward.W_3.weight.T)
    x = x + hidden @ block.feed_forward.W_2.weight.T
    assert_close(ours(text), rms(x, ours.norm) @ ours.head.weight.T, **CLOSE)


# ---------------------------------------------------------------------------------------------------------- LSTM


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_luong_word_by_word(bidirectional, input_feeding, score):
    """Each sentence alone, without padding, every step of equations 1, 5 and 6 written out."""
    config = LuongConfig(
        vocabulary=V, target_vocabulary=W, d_embedding=5, d_model=8, layers=2, dropout=0.0,
        bidirectional=bidirectional, input_feeding=input_feeding, score=score,
    )  # fmt: skip
    model = filled(LuongTranslator(config))
    source, target = ids(N), ids(M, W, seed=5)
    actual = model(source, target, ts.padding(LENGTHS))
    attention = model.cross_attention
    similar = {
        "dot": lambda s, h: s @ h,
        "general": lambda s, h: s @ attention.W @ h,
        "concat": lambda s, h: attention.v @ torch.tanh(s @ attention.W_q + h @ attention.W_k),
    }[score]

    for row, length in enumerate(LENGTHS):
        h, (hidden, cell) = model.encoder(model.embedding.weight[source[row : row + 1, :length]])
        if bidirectional:
            hidden, cell = (torch.cat([state[[0, 2]], state[[1, 3]]], dim=-1) for state in (hidden, cell))
        fed = torch.zeros(1, 1, 8, dtype=torch.float64)
        for t in range(M):
            x = model.target_embedding.weight[target[row : row + 1, t : t + 1]]
            x = torch.cat([x, fed], dim=-1) if input_feeding else x
            s, (hidden, cell) = model.decoder(x, (hidden, cell))
            weights = torch.softmax(torch.stack([similar(s[0, 0], h[0, j]) for j in range(length)]), dim=0)
            context = weights @ h[0]
            fed = torch.tanh(torch.cat([context, s[0, 0]]) @ model.W_c.weight.T)[None, None]
            assert_close(actual[row, t], model.head.weight @ fed[0, 0], **CLOSE)

    targets = ids(M, W, seed=6)
    loss = model.loss(source, target, targets, ts.padding(LENGTHS))
    assert_close(loss, cross_entropy(actual.flatten(0, 1), targets.flatten()), **CLOSE)
