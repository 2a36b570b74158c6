"""A mistake in the use of a model is answered in one sentence: the argument, what came, what fits."""

import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import telescope as ts
from support.sentences import says
from telescope.layers import MultiHeadAttention
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

pytestmark = pytest.mark.usefixtures("as_users_run_it")


# ---------------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize(
    ("kind", "given", "parts"),
    [
        (GPTConfig, {"d_modle": 64}, ('GPTConfig has no field "d_modle"; did you mean "d_model"?',)),
        (GPTConfig, {"d_model": 250}, ("d_model=250 cannot be split into heads=8; nearest: 248 or 256",)),
        (GPTConfig, {"key_heads": 3}, ("key_heads=3 does not divide heads=8; these do: 1, 2, 4, 8",)),
        (GPTConfig, {"norm": "layr"}, ('there is no norm="layr"; did you mean "layer"?',)),
        (GPTConfig, {"positions": "rotery"}, ('there is no positions="rotery"; did you mean "rotary"?',)),
        (GPTConfig, {"activation": "swiglu"}, ('there is no activation="swiglu"; ',)),
        (GPTConfig, {"rotary_scaling": "yarn"}, ('there is no rotary_scaling="yarn"; there are linear, llama3',)),
        (GPTConfig, {"rotary_pairs": "halfs"}, ('there is no rotary_pairs="halfs"; did you mean "halves"?',)),
        (GPTConfig, {"rotary_fraction": 1.5}, ("rotary(fraction=1.5)",)),
        (GPTConfig, {"rotary_low": 4.0}, ("rotary_low=4.0", "rotary_high=4.0")),
        (GPTConfig, {"positions": "rotary", "d_k": 5}, ("rotary turns pairs", "5 of 5")),
        (GPTConfig, {"dropout": 2}, ("dropout=2 is a probability",)),
        (GPTConfig, {"dropout": -0.1}, ("dropout=-0.1 is a probability",)),
        (GPTConfig, {"attention_dropout": float("nan")}, ("attention_dropout=nan is a probability",)),
        (GPTConfig, {"blocks": 0}, ("blocks=0 must be at least 1",)),
        (GPTConfig, {"window": 0}, ("window=0 must be at least 1",)),
        (GPTConfig, {"norm_eps": 0.0}, ("norm_eps=0.0 must be a number above zero",)),
        (GPTConfig, {"heads": "8"}, ("heads='8' is str; it takes int",)),
        (GPTConfig, {"heads": 8.0}, ("heads=8.0 is float; it takes int",)),
        (GPTConfig, {"heads": True}, ("heads=True is bool; it takes int",)),
        (GPTConfig, {"tied": 1}, ("tied=1 is int; it takes bool",)),
        (GPTConfig, {"d_k": "x"}, ("d_k='x' is str; it takes int or None",)),
        (GPTConfig, {"norm": None}, ("norm=None is NoneType; it takes layer or rms",)),
        (GPTConfig, {"attention": "synthesizer", "key_heads": 2}, ("key_heads=2", "synthesizer")),
        (GPTConfig, {"attention": "synthesizer", "positions": "rotary"}, ("synthesizer", "no keys to rotate")),
        (TransformerConfig, {"target_vocabulary": 7}, ("vocabulary=256", "target_vocabulary=7", "shared=False")),
        (TransformerConfig, {"d_model": 15, "heads": 3}, ('positions="sinusoidal"', "d_model=15 is odd")),
        (TransformerConfig, {"decoder_heads": 5}, ("d_model=256 cannot be split into heads=5",)),
        (TransformerConfig, {"encoder_layers": 3}, ('did you mean "encoder_blocks"?',)),
        (EncoderConfig, {"pooling": "max"}, ('there is no pooling="max"; ',)),
        (EncoderConfig, {"types": -1}, ("types=-1",)),
        (LuongConfig, {"score": "dott"}, ('there is no score="dott"; did you mean "dot"?',)),
        (LuongConfig, {"d_model": 15, "bidirectional": True}, ("d_model=15 cannot be split", "14 or 16")),
    ],
)
def test_configs(kind, given, parts):
    says(lambda: kind.from_dict(given), *parts)
    says(lambda: kind(**given), *parts)


def test_a_config_is_copied_and_sent_like_any_value():
    config = GPTConfig(heads=4, norm="rms")
    assert pickle.loads(pickle.dumps(config)) == deepcopy(config) == replace(GPTConfig(heads=4), norm="rms") == config


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        GPTConfig().heads = 3


# ----------------------------------------------------------------------------------------------------------- models


def gpt(**changes):
    return GPT(GPTConfig(**{"vocabulary": 31, "max_positions": 8, "d_model": 16, "blocks": 1, "heads": 4} | changes))


def translator():
    return Transformer(TransformerConfig(vocabulary=31, max_positions=8, d_model=16, heads=4, positions="learned"))


IDS = torch.tensor([[1, 2, 3]])


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: gpt()(IDS + 28), ("ids has the id 31; the vocabulary is 0 to 30",)),
        (lambda: gpt()(IDS - 2), ("ids has the id -1; the vocabulary is 0 to 30",)),
        (lambda: gpt()(IDS[0]), ("ids is torch.int64 of shape (3,)", "(batch, n)")),
        (lambda: gpt()(IDS.float()), ("ids is torch.float32", "whole numbers")),
        (lambda: gpt()([[1, 2]]), ("ids is list",)),
        (lambda: gpt()(IDS.repeat(1, 3)), ("9 tokens are too many", "8")),
        (lambda: gpt(positions="none", attention="synthesizer", synthesizer_block=2)(IDS), ("3 tokens", "2")),
        (lambda: gpt().cache(1, 9), ("9 tokens are too many", "8")),
        (lambda: gpt().cache(0, 8), ("batch=0",)),
        (lambda: gpt().cache(1, 0), ("room=0",)),
        (lambda: gpt().cache(2, 8, pads=[1]), ("pads=[1]", "batch of 2")),
        (lambda: gpt().cache(2, 8, pads=[1, -1]), ("pads=[1, -1]", "none below 0")),
        (lambda: gpt()(IDS, cache=gpt().cache(2)), ("ids has a batch of 1, the cache one of 2",)),
        (lambda: gpt(positions="rotary")(IDS, cache=gpt(positions="rotary").cache(1, 2)), ("room=2", "room=3")),
        (lambda: gpt().loss(IDS, IDS[:, :2]), ("targets has shape (1, 2)",)),
        (lambda: GPT(GPTConfig(), attention=ts.Attention(softcap=3.0)), ("mask", "mask=ts.causal")),
        (lambda: translator()(IDS, IDS + 28), ("target has the id 31",)),
        (lambda: translator()(IDS + 28, IDS), ("source has the id 31",)),
        (lambda: translator()(IDS.repeat(1, 3), IDS), ("source: 9 tokens are too many for max_positions=8",)),
        (lambda: translator().decode(IDS), ("memory", "cache")),
        (lambda: translator().cache(torch.zeros(1, 3, 16), room=9), ("room: 9 tokens", "max_positions=8")),
        (lambda: translator().cache(torch.zeros(1, 3, 15)), ("memory has shape (1, 3, 15)",)),
        (lambda: translator().cache(torch.zeros(1, 3, 16), beams=0), ("beams=0",)),
        (lambda: LuongTranslator()(IDS, IDS, ts.padding([0])), ("at least one token",)),
        (lambda: LuongTranslator()(IDS, IDS, ts.padding(left=[1])), ("pad on the right",)),
        (lambda: LuongTranslator()(IDS, IDS, target_mask=ts.padding(left=[1])), ("pad on the right",)),
        (lambda: LuongTranslator().decode(IDS), ("memory", "cache")),
        (lambda: Encoder(EncoderConfig(types=0))(IDS, types=IDS), ("types=0",)),
        (lambda: Encoder(EncoderConfig(max_positions=2))(IDS), ("3 positions", "max_positions=2")),
        (lambda: Encoder().pool(torch.zeros(1, 3, 256), ts.causal), ("mask=causal", "ts.padding")),
    ],
)
def test_calls(call, parts):
    says(call, *parts)


def test_a_decoder_with_two_memories():
    model = translator()
    z = model.encode(IDS)
    says(lambda: model.decode(IDS, z, cache=model.cache(z)), "the cache holds the memory already")
    says(lambda: model.decode(IDS.repeat(2, 1), cache=model.cache(z)), "target has a batch of 2, the cache one of 1")


def test_a_full_cache():
    model = gpt(positions="rotary")
    cache = model.cache(1, 4)
    with torch.no_grad():
        model(IDS, cache=cache)
        says(lambda: model(IDS, cache=cache), "room=4", "reach up to 6", "room=6")
        assert cache.length == 3  # nothing has happened
        assert model(IDS[:, :1], cache=cache).shape == (1, 1, 31)


def test_a_cache_is_not_for_a_memory():
    layer = MultiHeadAttention(6, 3)
    x = torch.zeros(2, 5, 6)
    says(lambda: layer(x, x, cache=layer.room(2, 5)), "cache", "keys_and_values")
