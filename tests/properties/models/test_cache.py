"""A cache changes nothing: token by token equals all at once, for every model, padding and shape of the cache."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import pad
from torch.testing import assert_close

import telescope as ts
from support import watching
from telescope.layers import CachePosition, MultiHeadAttention
from telescope.models import GPT, GPTConfig, LuongConfig, LuongTranslator, Transformer, TransformerConfig

N, V, ROOM = 9, 31, 12
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
STEPS = [4, 1, 3, 1]
filled = partial(watching.filled, std=0.3)
SMALL = {"vocabulary": V, "max_positions": 16, "d_model": 24, "blocks": 2, "heads": 4}
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
KINDS = {
    "learned": {},
    "llama": {**LLAMA, "key_heads": 2, "tied": False},
    "llama3": {**LLAMA, "key_heads": 1, "rotary_scaling": "llama3", "rotary_original": 8},
    "linear": {"positions": "rotary", "rotary_scaling": "linear", "rotary_factor": 3.0},
    "neighbours": {"positions": "rotary", "rotary_pairs": "neighbours", "d_k": 10, "rotary_fraction": 0.4},
    "window": {"window": 3, "positions": "rotary", "attention_bias": True, "out_bias": False},
    "synthesizer": {"attention": "synthesizer"},
    "shared_table": {"attention": "synthesizer", "synthesizer_shared": True, "synthesizer_block": 13, "bias": False},
    "no_positions": {"positions": "none"},
}  # fmt: skip
DEFINITIONS = {
    "softcap": ts.Attention(mask=ts.causal, softcap=2.0),
    "alibi": ts.Attention(mask=ts.causal, bias=ts.alibi(4)),
    "sink": ts.Attention(mask=ts.causal, sink=torch.linspace(-1.0, 1.0, 4, dtype=torch.float64)),
    "prefix": ts.Attention(mask=ts.causal | ts.prefix(2)),
}
every_kind = pytest.mark.parametrize("kind", [*KINDS, *DEFINITIONS])


def made(kind):
    return filled(GPT(GPTConfig(**SMALL, **KINDS.get(kind, {})), attention=DEFINITIONS.get(kind)))


def ids(batch=2, n=N, seed=3):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def in_steps(model, text, cache, steps=STEPS, fixed_after=None):
    """Return the logits of a text that is read a few tokens at a time; after `fixed_after` tokens with fixed shapes."""
    logits, start = [], 0
    for n in steps:
        if start == fixed_after:
            cache.fixed()
        logits.append(model(text[:, start : start + n], cache=cache))
        start += n
    return torch.cat(logits, dim=1)


# ----------------------------------------------------------------------------------------------------------- GPT


@every_kind
@pytest.mark.parametrize("fixed_after", [None, 4, 0], ids=["growing", "fixed", "fixed_from_the_start"])
def test_step_by_step_equals_all_at_once(kind, fixed_after):
    if kind == "prefix":
        pytest.skip("a prefix is read at once, or its tokens cannot see each other")
    model, text = made(kind), ids()
    cache = model.cache(batch=2, room=ROOM)
    assert_close(in_steps(model, text, cache, fixed_after=fixed_after), model(text), **CLOSE)
    assert int(cache.length) == N


@pytest.mark.parametrize("fixed_after", [None, 4])
def test_a_prefix_read_at_once(fixed_after):
    model, text = made("prefix"), ids()
    assert_close(in_steps(model, text, model.cache(2, ROOM), fixed_after=fixed_after), model(text), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fixed_after", [None, 4], ids=["growing", "fixed"])
def test_padding_on_the_left_changes_nothing(kind, fixed_after):
    """Three sequences of 9, 6 and 1 tokens in one batch: each has the logits that it has alone."""
    model, alone, pads = made(kind), [ids(1, n, seed=n) for n in (9, 6, 1)], [0, 3, 8]
    together = torch.cat([pad(text, (p, 0)) for p, text in zip(pads, alone, strict=True)])
    logits = in_steps(model, together, model.cache(3, ROOM, pads=pads), fixed_after=fixed_after)
    for i, (p, text) in enumerate(zip(pads, alone, strict=True)):
        assert_close(logits[i, p:], model(text)[0], **CLOSE)


@pytest.mark.parametrize("kind", ["learned", "llama", "neighbours", "window"])
def test_padded_on_the_left_without_a_cache(kind):
    model, text = made(kind), ids(1, 6)
    padded = pad(text, (3, 0))
    keep = torch.arange(9)[None] >= 3
    positions = (torch.arange(9)[None] - 3).clamp(min=0)
    logits = model(padded, mask=ts.padding(keep=keep), positions=positions)
    assert_close(logits[:, 3:], model(text), **CLOSE)
    assert torch.isfinite(logits).all()


@every_kind
def test_later_tokens_change_nothing(kind):
    model, text = made(kind), ids()
    changed = text.clone()
    changed[:, 5] = (text[:, 5] + 1) % V
    before, after = model(text), model(changed)
    assert_close(after[:, :5], before[:, :5], rtol=0.0, atol=0.0)
    assert not torch.allclose(after[:, 5], before[:, 5])
    assert not torch.allclose(after[:, 6], before[:, 6])


def test_unwritten_slots_are_not_read():
    """Whatever the unwritten slots hold, NaN included: `fixed` clears them."""
    model, text = made("llama"), ids()
    cache = model.cache(2, ROOM)
    for tensor in cache.tensors():
        tensor.fill_(torch.nan)
    assert_close(in_steps(model, text, cache, fixed_after=4), model(text), **CLOSE)


@pytest.mark.parametrize("fixed_after", [None, 4], ids=["growing", "fixed"])
@pytest.mark.parametrize("index", [[1, 0, 0], [2, 1], [0, 1, 2, 2, 2]], ids=str)
def test_reorder_continues_from_other_sequences(fixed_after, index):
    model, text, pads = made("llama"), ids(3), [0, 2, 1]
    index = torch.tensor(index)
    cache = model.cache(3, ROOM, pads=pads)
    before = [tensor.data_ptr() for tensor in cache.tensors()]
    in_steps(model, text[:, :4], cache, [4])
    if fixed_after:
        cache.fixed()
    cache.reorder(index)
    assert cache.batch == len(index)
    if len(index) == 3:  # a captured step still finds its tensors
        assert [tensor.data_ptr() for tensor in cache.tensors()][: len(before)] == before
    went_on = in_steps(model, text[index][:, 4:], cache, [1, 3, 1])
    expected = in_steps(model, text[index], model.cache(len(index), ROOM, pads=torch.tensor(pads)[index]))
    assert_close(went_on, expected[:, 4:], **CLOSE)


def test_the_memory_of_a_cache_equals_the_formula():
    config = GPTConfig(**SMALL, positions="rotary", key_heads=2, d_k=10)
    cache = GPT(config).bfloat16().cache(batch=3, room=11)
    assert cache.nbytes == 2 * config.blocks * 3 * 2 * 11 * 10 * 2
    assert (cache.batch, cache.room, cache.length) == (3, 11, 0)


def test_the_work_of_a_step_is_that_of_one_token():
    """The cost of one token, plus attention to the cached keys: O(n), not O(n²)."""
    model = made("llama")
    cache, seen = model.cache(1, ROOM), []
    model.blocks[0].self_attention.attend.register_forward_hook(
        lambda _, inputs, __: seen.append((inputs[0].shape[2], inputs[1].shape[2]))
    )
    in_steps(model, ids(1), cache, [4, 1, 1, 1])
    assert seen == [(4, 4), (1, 5), (1, 6), (1, 7)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["learned", "window"])
def test_a_fixed_step_is_one_graph_for_all_lengths(kind):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model, text = made(kind), ids()
    step = torch.compile(lambda token, cache: model(token, cache=cache), backend=counter, fullgraph=True)
    cache = model.cache(2, ROOM, pads=[0, 2])
    expected = in_steps(model, text, model.cache(2, ROOM, pads=[0, 2]))
    with torch.no_grad():
        model(text[:, :4], cache=cache)
        cache.fixed()
        for i in range(4, N):
            assert_close(step(text[:, i : i + 1], cache)[:, 0], expected[:, i], **CLOSE)
    assert counter.frame_count == 1


# --------------------------------------------------------------------------------------- Transformer and translator


def translator(**changes):
    config = {"vocabulary": V, "d_model": 24, "encoder_blocks": 2, "decoder_blocks": 2, "heads": 4, "dropout": 0.0}
    return filled(Transformer(TransformerConfig(**config | changes)))


SOURCE_MASK = ts.padding([7, 4])


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal_halves", "learned"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("fixed", [False, True])
@torch.no_grad()
def test_the_decoder_step_by_step_equals_all_at_once(positions, beams, fixed):
    model, source, target = translator(positions=positions), ids(2, 7), ids(2 * beams, N, seed=5)
    expected = model(source.repeat_interleave(beams, 0), target, ts.padding([7] * beams + [4] * beams))
    cache = model.cache(model.encode(source, SOURCE_MASK), SOURCE_MASK, ROOM, beams=beams)
    assert cache.sources == 2
    assert cache.batch == 2 * beams
    if fixed:
        cache.fixed()
    actual, start = [], 0
    for n in STEPS:
        actual.append(model.logits(model.decode(target[:, start : start + n], cache=cache)))
        start += n
    assert_close(torch.cat(actual, dim=1), expected, **CLOSE)


@torch.no_grad()
def test_beams_share_the_keys_and_values_of_their_source():
    """They are stored once for each source, and attended to by all its beams in one call."""
    model, source = translator(), ids(2, 7)
    cache = model.cache(model.encode(source, SOURCE_MASK), SOURCE_MASK, ROOM, beams=5)
    assert [keys.shape for keys, _ in cache.memory] == [(2, 4, 7, 6)] * 2
    seen = []
    model.decoder[0].cross_attention.attend.register_forward_hook(
        lambda _, inputs, __: seen.append((tuple(inputs[0].shape), inputs[1].shape[0]))
    )
    model.decode(ids(10, 1), cache=cache)
    assert seen == [((2, 4, 5, 6), 2)]


@torch.no_grad()
def test_luong_step_by_step_equals_all_at_once():
    for feeding in (False, True):
        config = LuongConfig(vocabulary=V, d_embedding=5, d_model=8, bidirectional=True, input_feeding=feeding)
        model, source, target = filled(LuongTranslator(config)), ids(2, 7), ids(6, N, seed=5)
        expected = model(source.repeat_interleave(3, 0), target, ts.padding([7] * 3 + [4] * 3))
        cache = model.cache(model.encode(source, SOURCE_MASK), SOURCE_MASK, beams=3)
        assert (cache.batch, cache.sources) == (6, 2)
        steps = [model.logits(model.decode(some, cache=cache)) for some in target.split(STEPS[0], dim=1)]
        assert_close(torch.cat(steps, dim=1), expected, **CLOSE)
        assert cache.length == N

        index = torch.tensor([1, 1, 0, 5, 4, 3])
        cache = model.cache(model.encode(source, SOURCE_MASK), SOURCE_MASK, beams=3)
        model.decode(target[:, :4], cache=cache)
        cache.reorder(index)
        went_on = model.logits(model.decode(target[index][:, 4:], cache=cache))
        whole = model(source.repeat_interleave(3, 0), target[index], ts.padding([7] * 3 + [4] * 3))
        assert_close(went_on, whole[:, 4:], **CLOSE)


# --------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("rotary", [None, ts.rotary()])
@torch.no_grad()
def test_a_single_layer_with_its_cache(rotary):
    layer = filled(MultiHeadAttention(6, 3, key_heads=1, attention=ts.Attention(mask=ts.causal), rotary=rotary))
    x = torch.randn(2, N, 6, dtype=torch.float64)
    room = layer.room(2, ROOM)
    steps = [layer(x[:, i : i + 1], at=CachePosition(i), cache=room) for i in range(N)]
    assert_close(torch.cat(steps, dim=1), layer(x), **CLOSE)


@torch.no_grad()
def test_keys_and_values_of_a_memory_can_be_reused():
    layer = filled(MultiHeadAttention(6, 3, d_memory=5))
    x, memory = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((N, 6), (4, 5)))
    kept = layer.keys_and_values(memory)
    assert_close(layer(x, kept), layer(x, memory), **CLOSE)
    beams = torch.randn(6, N, 6, dtype=torch.float64)
    assert_close(layer(beams, kept), layer(beams, memory.repeat_interleave(3, 0)), **CLOSE)
