"""A step that is captured as a CUDA graph is watched and muted: the tokens and numbers of steps with hooks."""

from importlib import import_module

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from telescope.decoding import generate, stream
from telescope.models import GPT, GPTConfig, Special, Transformer, TransformerConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
generating = import_module("telescope.decoding.generate")  # `decoding.generate` is the function
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
V = 41
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False, "key_heads": 2}
KINDS = {"learned": {}, "llama": LLAMA, "window": {"window": 4}, "synthesizer": {"attention": "synthesizer"}}


def made(kind, end=()):
    if kind == "transformer":
        config = TransformerConfig(vocabulary=V, d_model=64, encoder_blocks=2, decoder_blocks=2, heads=4)
        model = Transformer(config)
    else:
        sizes = {"vocabulary": V, "max_positions": 320, "d_model": 64, "blocks": 3, "heads": 4}
        model = GPT(GPTConfig(**sizes, **KINDS[kind]))
    random = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=random)
    model.special = Special(start=0, end=end, pad=0)
    return model.double().cuda()  # so that no token depends on how a sum is rounded


@pytest.fixture
def graphs(monkeypatch):
    """The captured steps of a test."""
    found = []

    class Noted(generating.CapturedFunction):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(generating, "CapturedFunction", Noted)
    return found


def with_hooks(work):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generating, "is_worth_capturing", lambda *_: False)
        return work()


def assert_same(recording, hooked):
    assert recording.names == hooked.names
    for name, watched in recording.items():
        for one, other in zip(watched.calls, hooked[name].calls, strict=True):
            assert (one.size, one.rows) == (other.size, other.rows)
            assert_close(one.survey().received, other.survey().received, **CLOSE)
            assert_close(one.survey().entropy, other.survey().entropy, **CLOSE)
            assert_close(one.survey().top.weights, other.survey().top.weights, **CLOSE)
            assert_close(one.query_ids, other.query_ids)


OPTIONS = {
    "all": {},
    "some": {"queries": [-1], "heads": [1, -1], "layers": -1},
    "queries-keys": {"keep": "queries-keys"},
    "ram": {"store": "ram", "top": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [*KINDS, "transformer"])
def test_a_captured_step_is_watched(kind, options, graphs):
    """Prompts of several lengths, rows that end early, and more steps than wait at once."""
    model = made(kind)
    texts = [torch.randint(4, V, (n,)).tolist() for n in (5, 40, 1, 12)]
    free = generate(model, texts, max_new_tokens=40, seed=3)
    model.special = Special(start=0, end=(free[0].ids[7], free[2].ids[20]), pad=0)
    graphs.clear()

    def work():
        with ts.watch(model, **options) as recording:
            lines = generate(model, texts, max_new_tokens=150, seed=3)
            lines += generate(model, texts[:2], max_new_tokens=20, temperature=0.0, end=())
        return recording, lines

    hooked, expected = with_hooks(work)
    assert graphs == []
    recording, found = work()
    assert found == expected
    assert [step.graph is not None for step in graphs] == [True, True], graphs[0].failure
    assert_same(recording, hooked)


def test_reading_between_streamed_tokens(graphs):
    model = made("llama")

    def work():
        read = []
        with ts.watch(model) as recording:
            for i, token in enumerate(stream(model, [5, 6, 7], max_new_tokens=40, temperature=0.0)):
                read.append(token.id)
                if i % 7 == 3:
                    read.append(recording["blocks.1.self"].call.size)
        return recording, read

    hooked, expected = with_hooks(work)
    recording, found = work()
    assert found == expected
    assert graphs[0].graph is not None
    assert_same(recording, hooked)


def test_a_muted_step_is_captured(graphs):
    model = made("learned")

    def work():
        with ts.edit(model, ts.mute(0, heads=[1, 2]), ts.mute(2, heads=[0], times=0.5)):
            with ts.watch(model) as recording:
                lines = generate(model, [[5, 6, 7], [8, 9]], max_new_tokens=40, seed=1)
            lines += generate(model, [[5, 6, 7]], max_new_tokens=150, seed=1)
        return recording, lines

    hooked, expected = with_hooks(work)
    recording, found = work()
    assert found == expected
    assert all(step.graph is not None for step in graphs)
    assert_same(recording, hooked)


def test_an_edit_between_streamed_tokens_takes_effect(graphs):
    model = made("learned")

    def work():
        tokens = stream(model, [5, 6, 7], max_new_tokens=60, temperature=0.0)
        found = [next(tokens).id for _ in range(8)]
        with ts.edit(model, ts.mute(0), ts.mute(1)), ts.watch(model) as recording:
            found += [next(tokens).id for _ in range(8)]
        return recording, found + [token.id for token in tokens]

    hooked, expected = with_hooks(work)
    recording, found = work()
    assert found == expected
    assert len(graphs) == 2  # before the block, and after it
    assert_same(recording, hooked)
