"""Whole models, watched: read at once, token by token with a cache, with a cache of fixed shape, padded, with beams."""

from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.watching import KEEPS, filled
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
from telescope.recording.queries_keys_call import one_head
from telescope.tiles import Tiles

CLOSE = {"rtol": 1e-11, "atol": 1e-11}
SMALL = {"vocabulary": 13, "max_positions": 16, "d_model": 8, "blocks": 2, "heads": 4}
GPTS = {
    "gpt2": GPTConfig(**SMALL),
    "llama": GPTConfig(**SMALL, key_heads=2, positions="rotary", norm="rms", gated=True, activation="silu", bias=False),
    "window": GPTConfig(**SMALL, window=3),
    "synthesizer": GPTConfig(**SMALL, attention="synthesizer"),
}
IDS = torch.tensor([[1, 5, 2, 8, 3, 9], [4, 4, 7, 0, 12, 6]])


def transformer():
    config = TransformerConfig(
        vocabulary=13, max_positions=16, d_model=8, encoder_blocks=2, decoder_blocks=2, heads=4, dropout=0.0
    )
    return filled(Transformer(config))


def assert_same(got, truth, keep):
    for name in truth:
        one, two = got[name].survey(), truth[name].survey()
        for number in ("lse", "received", "entropy", "top_weights"):
            assert_close(getattr(one.summary, number), getattr(two.summary, number), **CLOSE)
        assert torch.equal(one.top.keys, two.top.keys)
        if keep == "steps":
            assert_close(got[name].trace().context, truth[name].trace().context, **CLOSE)
            assert_close(got[name].before, truth[name].before, **CLOSE)
            assert_close(got[name].after, truth[name].after, **CLOSE)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("kind", GPTS)
def test_gpt_token_by_token(kind, fixed, keep):
    model = filled(GPT(GPTS[kind]))
    with ts.watch(model, keep=keep) as truth:
        expected = model(IDS)
    assert truth.names == ("blocks.0.self", "blocks.1.self")
    with ts.watch(model, keep=keep) as recording:
        cache = model.cache(batch=2, room=9)
        parts = [model(IDS[:, :3], cache=cache)]
        cache = cache.fixed() if fixed else cache
        parts += [model(IDS[:, i : i + 1], cache=cache) for i in range(3, 6)]
    for tensor in cache.tensors():
        tensor.fill_(3)
    assert_close(torch.cat(parts, 1), expected, **CLOSE)
    assert_same(recording, truth, keep)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_gpt_of_a_padded_batch(fixed, keep):
    """Padding is on the left; the second text has the numbers it has alone, two positions further on."""
    model = filled(GPT(GPTS["llama"]))
    with ts.watch(model, keep=keep) as alone:
        model(IDS[1:, 2:])
    with ts.watch(model, keep=keep) as recording:
        cache = model.cache(batch=2, room=8, pads=[0, 2])
        model(IDS[:, :4], cache=cache)
        cache = cache.fixed() if fixed else cache
        model(IDS[:, 4:5], cache=cache)
        model(IDS[:, 5:], cache=cache)
    for name in alone:
        one, two = recording[name].survey(), alone[name].survey()
        assert_close(one.entropy[1:, :, 2:], two.entropy, **CLOSE)
        assert_close(one.received[1:, :, 2:], two.received, **CLOSE)
        assert_close(one.received[1, :, :2], torch.zeros(4, 2, dtype=torch.float64), **CLOSE)
        assert torch.equal(one.peak.key[1:, :, 2:], two.peak.key + 2)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_transformer_token_by_token(fixed, keep):
    model, source, of_source = transformer(), IDS.flip(1)[:, :5], ts.padding([5, 3])
    with ts.watch(model, keep=keep) as truth:
        expected = model(source, IDS, of_source)
    assert "decoder.1.cross" in truth.names
    with ts.watch(model, keep=keep) as recording:
        cache = model.cache(model.encode(source, of_source), of_source, room=8)
        parts = [model.decode(IDS[:, :2], cache=cache)]
        cache = cache.fixed() if fixed else cache
        parts += [model.decode(IDS[:, i : i + 1], cache=cache) for i in range(2, 6)]
    assert_close(model.logits(torch.cat(parts, 1)), expected, **CLOSE)
    assert_same(recording, truth, keep)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("feeding", [True, False], ids=["feeding", "at once"])
def test_luong_word_by_word(feeding, keep):
    """With input feeding the attention is called for every word; another target of the same source is another call."""
    config = LuongConfig(vocabulary=13, d_embedding=5, d_model=8, input_feeding=feeding, dropout=0.0)
    model, source, of_source = filled(LuongTranslator(config)), IDS.flip(1)[:, :5], ts.padding([5, 3])
    other = torch.cat([IDS[:, :1], IDS[:, 1:].flip(1)], 1)
    with ts.watch(model, keep=keep) as recording:
        expected = model(source, IDS, of_source)
        model(source, other, of_source)
    with ts.watch(model, keep=keep) as words:
        cache = model.cache(model.encode(source, of_source), of_source)
        parts = [model.decode(word, cache=cache) for word in IDS.split(1, dim=1)]
    assert_close(model.logits(torch.cat(parts, 1)), expected, **CLOSE)
    (one, two), three = recording["cross"].calls, words["cross"].call
    assert one.size == two.size == three.size == (6, 5)
    assert_close(one.survey().entropy, three.survey().entropy, **CLOSE)
    assert_close(one.survey().received, three.survey().received, **CLOSE)
    assert not torch.allclose(one.survey().received, two.survey().received)


def test_the_same_text_twice_is_two_calls():
    config = EncoderConfig(vocabulary=13, max_positions=4, d_model=8, blocks=2, heads=2)
    model = filled(Encoder(config))
    with ts.watch(model, keep="steps") as recording:
        model(IDS[:, :1])
        model(IDS[:, :1])
    assert recording.names == ("blocks.0.self", "blocks.1.self")
    assert [len(watched.calls) for watched in recording.values()] == [2, 2]


def test_beams_of_a_source_are_queries_of_one_sequence():
    """Two sources of three beams each: self-attention has six sequences, cross-attention two, with three queries at
    once."""
    model, source, contexts = transformer(), IDS[:, :4], []
    across_0, back_0 = model.decoder[0].cross_attention.attend, model.decoder[0].self_attention.attend
    for attend in (back_0, across_0):
        attend.register_forward_hook(lambda _, inputs, context: contexts.append(context))
    with ts.watch(model, keep="steps") as recording:
        cache = model.cache(model.encode(source), room=4, beams=3)
        for column in range(2):
            model.decode(IDS.repeat_interleave(3, 0)[:, column : column + 1], cache=cache)
        cache.reorder(torch.tensor([1, 0, 2, 5, 4, 3]))
        model.decode(torch.tensor([[1], [2], [3], [4], [5], [6]]), cache=cache)
    back, across = recording["decoder.0.self"].calls, recording["decoder.0.cross"].calls
    assert [call.size for call in across] == [(3, 4)] * 3
    assert across[0].queries.shape[0] == 2
    assert back[0].queries.shape[0] == 6
    assert_close(torch.cat([call.trace().context for call in back], 2), torch.cat(contexts[::2], 2), **CLOSE)
    assert_close(torch.cat([call.trace().context for call in across], 2), torch.cat(contexts[1::2], 2), **CLOSE)
    with pytest.raises(ValueError, match="beams run side by side"):
        _ = across[0].before


# ------------------------------------------------------------------------------------------------------- sums of rows

EIGHT = SMALL | {"d_model": 16, "heads": 2}  # a head's eight features, as fused kernels take them
READERS = {
    "gpt2": lambda: GPT(GPTConfig(**EIGHT)),
    "llama": lambda: GPT(GPTConfig(**EIGHT, key_heads=1, positions="rotary", norm="rms", gated=True, bias=False)),
    "encoder": lambda: Encoder(EncoderConfig(**EIGHT)),
    "transformer": lambda: Transformer(
        TransformerConfig(vocabulary=13, max_positions=16, d_model=16, encoder_blocks=1, decoder_blocks=1, heads=2)
    ),
}


def read(model):
    return model(IDS.flip(1)[:, :5], IDS) if isinstance(model, Transformer) else model(IDS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", READERS)
def test_the_lse_of_the_kernel_that_ran(kind, dtype):
    """The lse is kept, belongs to the kept queries and keys, and changes nothing that the model computes."""
    model = filled(READERS[kind]()).to(dtype).eval()
    expected = read(model)
    with ts.watch(model, keep="queries-keys") as recording:
        assert torch.equal(read(model), expected)
    close = {"rtol": 0, "atol": 1e-11 if dtype == torch.float64 else 1e-5}
    for name in recording:
        call = recording[name].call
        truth = ts.survey(call.queries.double(), call.keys.double(), call.attention).lse
        assert_close(call.lse.double(), truth, **close)
        assert Tiles(one_head(call, 1, 1)).summed_fraction == 1.0  # so that a map of it is exact from the start


def test_gradients_equal_those_without_watch():
    model = filled(READERS["llama"]())
    gradients = []
    for watching in (False, True):
        model.zero_grad()
        with ts.watch(model, keep="steps") if watching else nullcontext():
            read(model).square().sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_the_lse_grows_with_the_generated_text():
    model = filled(READERS["gpt2"]())
    with ts.watch(model, keep="queries-keys") as recording:
        cache = model.cache(batch=2, room=6)
        for part in (IDS[:, :3], IDS[:, 3:4], IDS[:, 4:5], IDS[:, 5:]):
            model(part, cache=cache)
    for name in recording:
        assert recording[name].call.lse.shape == (2, 2, 6)
        assert_close(recording[name].call.lse, recording[name].survey().lse, **CLOSE)


@pytest.mark.parametrize("hidden", ["window", "padding", "nan"])
def test_no_lse_is_kept_where_the_kernel_ran_on_something_else(hidden):
    """The kernel got keys that a query without any may not see, or its result was computed again because of a NaN."""
    options = {"window": 2} if hidden == "window" else {}
    model = filled(GPT(GPTConfig(**EIGHT, **options)))
    if hidden == "nan":
        model.state_dict()["embedding.weight"][5] = torch.nan
    with ts.watch(model, keep="queries-keys") as recording:
        model(IDS, mask=ts.padding([6, 4]) if hidden == "padding" else None)
    assert all(recording[name].call.lse is None for name in recording)


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing_behind(problem):
    """Hooks run after an error, but not after an interrupt."""

    def fails(*_):
        raise problem("stop")

    model = filled(READERS["gpt2"]())
    with pytest.raises(problem), ts.watch(model, keep="queries-keys"):  # noqa: PT012
        hook = model.blocks[0].self_attention.attend.register_forward_pre_hook(fails)
        try:
            read(model)
        finally:
            hook.remove()
    assert torch._C._len_torch_function_stack() == 0
