"""Properties of every model: its initial weights, that it learns, and that its parts can be changed and watched."""

from dataclasses import replace
from math import log, sqrt

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from telescope.layers import Attend
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

V = 31
PAIR = (torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([[9, 8, 7], [6, 5, 4]]))
TEXT = PAIR[:1]
MODELS = {
    "gpt": (GPT, GPTConfig(vocabulary=V, max_positions=8, d_model=16, blocks=2, heads=4), TEXT),
    "llama": (
        GPT,
        GPTConfig(
            vocabulary=V, max_positions=8, d_model=16, blocks=2, heads=4, key_heads=2, positions="rotary", norm="rms",
            gated=True, activation="silu", bias=False, tied=False,
        ),
        TEXT,
    ),
    "synthesizer": (
        GPT, GPTConfig(vocabulary=V, max_positions=8, d_model=16, blocks=2, heads=4, attention="synthesizer"), TEXT
    ),
    "transformer": (
        Transformer,
        TransformerConfig(vocabulary=V, d_model=16, encoder_blocks=2, decoder_blocks=1, heads=2, dropout=0.0),
        PAIR,
    ),
    "encoder": (
        Encoder, EncoderConfig(vocabulary=V, max_positions=8, d_model=16, blocks=2, heads=2, dropout=0.0), TEXT
    ),
    "luong": (LuongTranslator, LuongConfig(vocabulary=V, d_embedding=12, d_model=24, layers=1, dropout=0.0), PAIR),
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def made(name, **how):
    kind, config, inputs = MODELS[name]
    torch.manual_seed(5)
    return kind(config, **how).eval(), inputs


# -------------------------------------------------------------------------------------------------------- all alike


@every_model
def test_config_and_weights_restore_the_model(name):
    model, inputs = made(name)
    kind = type(model)
    config = type(model.config).from_dict(model.config.to_dict())
    assert config == model.config
    other = kind(config).eval()
    other.load_state_dict(model.state_dict())
    assert_close(other(*inputs), model(*inputs), rtol=0.0, atol=0.0)


@every_model
def test_every_weight_has_one_name(name):
    """Tied weights are one parameter under one name: the saved weights are the counted ones."""
    model, _ = made(name)
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in model.state_dict().values())


@every_model
def test_sequences_of_a_batch_are_independent(name):
    model, inputs = made(name)
    alone = torch.cat([model(*(some[i : i + 1] for some in inputs)) for i in range(2)])
    assert_close(model(*inputs), alone)


@every_model
def test_a_model_takes_an_attention_for_its_blocks(name):
    model, inputs = made(name)
    attention = next(module for module in model.modules() if hasattr(module, "attention")).attention
    same, capped = (made(name, attention=replace(attention, softcap=softcap))[0] for softcap in (None, 1e-3))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    for other in (same, capped):
        other.load_state_dict(model.state_dict())
    assert_close(same(*inputs), model(*inputs), rtol=0.0, atol=0.0)
    assert not torch.allclose(capped(*inputs), model(*inputs), atol=1e-2)
    seen = []
    for module in capped.modules():
        if isinstance(module, Attend):
            module.register_forward_hook(lambda _, inputs, __: seen.append(inputs[3].softcap))
    capped(*inputs)
    assert seen
    assert set(seen) == {1e-3}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("gpt", ["blocks.0.self_attention", "blocks.1.self_attention"]),
        ("synthesizer", ["blocks.0.self_attention", "blocks.1.self_attention"]),
        ("encoder", ["blocks.0.self_attention", "blocks.1.self_attention"]),
        (
            "transformer",
            [
                "encoder.0.self_attention",
                "encoder.1.self_attention",
                "decoder.0.self_attention",
                "decoder.0.cross_attention",
            ],
        ),
        ("luong", ["cross_attention"]),
    ],
)
def test_every_attention_has_a_name(name, names):
    model, _ = made(name)
    found = [path.removesuffix(".attend") for path, module in model.named_modules() if isinstance(module, Attend)]
    assert found == names


@every_model
def test_bfloat16_and_float64(name):
    model, inputs = made(name)
    exact = model.double()(*inputs).detach()
    assert exact.dtype == torch.float64
    half = model.bfloat16()(*inputs)
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), exact, rtol=0.1, atol=0.05 * float(exact.abs().max()))


@pytest.mark.parametrize("name", ["gpt", "llama", "synthesizer", "transformer", "luong"])
def test_a_model_learns(name):
    """Eight sentences by heart, starting from the loss of a uniform guess."""
    model, _ = made(name)
    model.train()
    draw = torch.Generator().manual_seed(3)
    source, text = (torch.randint(V, (8, n), generator=draw) for n in (5, 7))
    inputs = (text[:, :-1],) if isinstance(model, GPT) else (source, text[:, :-1])
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    losses = []
    for _ in range(80):
        loss = model.loss(*inputs, text[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.35 < 2.5 < losses[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["llama", "transformer"])
def test_training_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    kind, config, inputs = MODELS[name]
    one = {"blocks": 1} if kind is GPT else {"encoder_blocks": 1}
    model, given = kind(replace(config, **one)), (*inputs, inputs[-1].flip(0))
    step = torch.compile(model.loss, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, actual = model.loss(*given), step(*given)
    assert_close(actual, expected)
    theirs, mine = (torch.autograd.grad(loss, list(model.parameters())) for loss in (expected, actual))
    assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["gpt", "transformer", "luong"])
def test_the_loss_is_the_mean_over_targets_that_are_not_ignored(name):
    model, inputs = made(name)
    targets = torch.tensor([[3, -100, 5], [-100, 2, 1]])
    given = (inputs[0][:, :3],) if name == "gpt" else inputs
    logits = model(*given)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert_close(model.loss(*given, targets), expected)
    other = targets.masked_fill(targets == -100, 0)
    assert_close(model.loss(*given, other, ignore=0), expected)
    smoothed = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert_close(model.loss(*given, targets, label_smoothing=0.1), smoothed)


def test_dropout_is_for_training_alone():
    for kind, config in ((GPT, GPTConfig), (Transformer, TransformerConfig), (Encoder, EncoderConfig)):
        model, inputs = kind(config(dropout=0.5)), PAIR if kind is Transformer else TEXT
        assert not torch.equal(model(*inputs), model(*inputs))
        model.eval()
        assert torch.equal(model(*inputs), model(*inputs))


# ------------------------------------------------------------------------------------------------ how they start


def deviation(weight):
    return float(weight.detach().std())


def largest(weight):
    return float(weight.detach().abs().max())


def test_gpt_starts_as_the_paper_says():
    torch.manual_seed(0)
    model = GPT(GPTConfig(d_model=256, blocks=8))
    block = model.blocks[3]
    for weight in (block.self_attention.W_qkv.weight, block.feed_forward.W_1.weight, model.embedding.weight):
        assert deviation(weight) == pytest.approx(0.02, rel=0.02)
    assert deviation(model.positions.P) == pytest.approx(0.02, rel=0.02)
    for weight in (block.self_attention.W_O.weight, block.feed_forward.W_2.weight):
        assert deviation(weight) == pytest.approx(0.02 / sqrt(16), rel=0.02)
    assert largest(block.self_attention.W_qkv.bias) == 0.0
    logits = model(torch.randint(256, (2, 64)))
    assert float(logits.detach().logsumexp(-1).mean()) == pytest.approx(log(256.0), rel=0.02)


def test_transformer_starts_as_the_paper_says():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary=1000, d_model=256))
    assert deviation(model.embedding.weight) == pytest.approx(256**-0.5, rel=0.02)
    first = model.decoder[0].feed_forward.W_1
    for W in (*model.decoder[0].cross_attention.projections().values(), first):
        rows, columns = W.weight.shape
        bound = sqrt(6.0 / (rows + columns))
        assert bound * 0.99 < largest(W.weight) <= bound
        assert deviation(W.weight) == pytest.approx(bound / sqrt(3), rel=0.02)
        assert largest(W.bias) == 0.0


def test_encoder_starts_as_the_paper_says():
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(pooling="bert"))
    truncated = 0.02 * 0.8796  # the deviation of a normal that is cut at two of its own
    for weight in (model.embedding.weight, model.blocks[0].feed_forward.W_1.weight, model.pooler.weight):
        assert deviation(weight) == pytest.approx(truncated, rel=0.02)
        assert largest(weight) <= 0.04


def test_luong_starts_as_the_paper_says():
    for name, parameter in LuongTranslator().named_parameters():
        assert largest(parameter) <= 0.1, name
        if parameter.numel() > 10_000:
            assert deviation(parameter) == pytest.approx(0.1 / sqrt(3), rel=0.03), name


# ---------------------------------------------------------------------------------------------------- Encoder alone


def test_an_encoder_attends_in_both_directions_but_not_to_padding():
    model, (text,) = made("encoder")
    changed = text.clone()
    changed[:, 3] += 1
    before, after = model(text), model(changed)
    assert not torch.allclose(after[:, 0], before[:, 0])
    hidden = ts.padding([3, 3])
    assert_close(model(changed, hidden)[:, :3], model(text, hidden)[:, :3])
    assert_close(model(text, hidden)[:, :3], model(text[:, :3]))


def test_pooling():
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[5.0, 5.0], [0.0, 0.0], [0.0, 0.0]]])
    small = {"vocabulary": V, "d_model": 2, "blocks": 1, "heads": 1}
    mean, cls, bert = (Encoder(EncoderConfig(pooling=pooling, **small)) for pooling in ("mean", "cls", "bert"))
    assert mean.pool(hidden, ts.padding([2, 1])).tolist() == [[2.0, 4.0], [5.0, 5.0]]
    assert mean.pool(hidden[:1]).tolist() == [[pytest.approx(104 / 3), 36.0]]
    keep = torch.tensor([[False, True, True], [True, False, False]])
    assert mean.pool(hidden, ts.padding(keep=keep)).tolist() == [[51.5, 53.0], [5.0, 5.0]]
    assert mean.pool(hidden, ts.padding([0, 1]))[0].tolist() == [0.0, 0.0]  # of nothing, not NaN
    assert cls.pool(hidden).tolist() == [[1.0, 2.0], [5.0, 5.0]]
    expected = torch.tanh(hidden[:, 0] @ bert.pooler.weight.T + bert.pooler.bias)
    assert_close(bert.pool(hidden), expected)


# ----------------------------------------------------------------------------------------------------- positions


def test_the_transformer_knows_order_by_its_positions_alone():
    model, (source, _) = made("transformer")
    assert not torch.allclose(model.encode(source.flip(1)).flip(1), model.encode(source), atol=1e-3)
    same = torch.zeros_like(source)
    assert_close(model.encode(source.flip(1), positions=same).flip(1), model.encode(source, positions=same))


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_positions_can_be_given(kind):
    model, (text,) = made(kind)
    assert_close(model(text, positions=torch.arange(4)), model(text), rtol=0.0, atol=0.0)
    shifted = model(text, positions=torch.arange(4) + 3)
    alike = torch.allclose(shifted, model(text), atol=1e-5)
    assert alike is (kind == "llama")  # rotary knows distances only
