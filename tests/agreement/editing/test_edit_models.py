"""Telescope's own models, edited: against attention in float64 that is changed by hand, read at once and generated."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.editing import Boosted, Hidden, Kept, Muted, Pasted, Rescaled, attend_by_hand
from support.watching import filled
from telescope.anatomy import Modules
from telescope.interception.telescope_models import attentions
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

IDS = torch.tensor([[1, 5, 2, 8, 3, 9], [4, 4, 7, 0, 12, 6]])
SOURCE, LENGTHS = IDS.flip(1)[:, :5], [5, 3]
SMALL = {"vocabulary": 13, "max_positions": 16, "d_model": 8, "blocks": 2, "heads": 4}
GROUPED = {"key_heads": 2, "positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}


def make(kind, dtype=torch.float64):
    if kind == "Transformer":
        sizes = {"encoder_blocks": 2, "decoder_blocks": 2, "heads": 4, "dropout": 0.0}
        model = Transformer(TransformerConfig(vocabulary=13, max_positions=16, d_model=8, **sizes))
        model.special = ts.models.Special(start=1, end=(2,))
    elif kind.startswith("LuongTranslator"):
        feeding = kind.endswith("feeding")
        config = LuongConfig(vocabulary=13, d_embedding=5, d_model=8, dropout=0.0, input_feeding=feeding)
        model = LuongTranslator(config)
        model.special = ts.models.Special(start=1, end=(2,))
    elif kind == "Encoder":
        model = Encoder(EncoderConfig(**SMALL, dropout=0.0))
    else:
        model = GPT(GPTConfig(**SMALL, **{"GPT": {}, "GPT, grouped": GROUPED, "GPT, window": {"window": 3}}[kind]))
    return filled(model, dtype)


KINDS = ("GPT", "GPT, grouped", "GPT, window", "Transformer", "Encoder", "LuongTranslator")


def run(model, ids=IDS):
    if isinstance(model, Transformer | LuongTranslator):
        return model(SOURCE, ids, ts.padding(LENGTHS))
    return model(ids, ts.padding([6, 4])) if isinstance(model, Encoder) else model(ids)


def by_hand(model, edit, ids=IDS):
    names = {id(attend): name for name, attend in attentions(Modules.of(model)).items()}
    with torch.no_grad(), attend_by_hand(names, edit):
        return run(model, ids)


def heads_of(kind):
    return [0] if kind == "LuongTranslator" else [0, 2]


def edits_of(kind):
    heads = heads_of(kind)
    return {
        "mute": (ts.mute(heads=heads), Muted(heads=heads)),
        "half": (ts.mute(heads=heads, times=0.5), Muted(heads=heads, times=0.5)),
        "hide": (ts.hide(range(1, 3)), Hidden(keys=range(1, 3))),
        "hide from some": (
            ts.hide(range(0, 2), slice(2, 4), heads=heads),
            Hidden("", heads, range(0, 2), range(2, 4)),
        ),
        "boost": (ts.boost(range(1, 3), by=4.0), Boosted(keys=range(1, 3), by=4.0)),
        "boost for some": (
            ts.boost([1], queries=range(2, 5), by=0.3),
            Boosted("", None, range(1, 2), range(2, 5), 0.3),
        ),
        "redefine": (ts.redefine("*", lambda attention: replace(attention, scale=0.4)), Rescaled(to=0.4)),
    }


@pytest.mark.parametrize("edit", edits_of("GPT"))
@pytest.mark.parametrize("kind", KINDS)
def test_every_model(kind, edit):
    model = make(kind)
    made, hand = edits_of(kind)[edit]
    before = run(model)
    truth = by_hand(model, hand)
    with ts.edit(model, made):
        edited = run(model)
    assert_close(edited, truth, rtol=1e-9, atol=1e-9)
    assert float((edited.detach() - before.detach()).abs().max()) > 1e-4
    assert torch.equal(run(model), before)
    small = make(kind, torch.float32)
    with ts.edit(small, made):
        assert float((run(small).detach() - truth).norm() / truth.norm()) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_frozen(kind):
    model, kept = make(kind), Kept()
    expected = by_hand(model, kept)
    with ts.watch(model, keep="queries-keys") as recording:
        assert_close(run(model), expected)
    before = run(model)
    with ts.edit(model, ts.frozen(recording)):
        assert torch.equal(run(model), before)  # its own pattern: nothing, bit by bit
    other = IDS.flip(1)
    with ts.edit(model, ts.frozen(recording)):
        assert_close(run(model, other), by_hand(model, Pasted(kept.kept), other), rtol=1e-9, atol=1e-9)
    if kind != "LuongTranslator":  # which has one head
        with ts.edit(model, ts.frozen(recording, heads=[1])):
            assert_close(run(model, other), by_hand(model, Pasted(kept.kept, [1]), other), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("edit", ["half", "hide", "hide from some", "boost for some"])
@pytest.mark.parametrize("kind", ["GPT, grouped", "GPT, window"])
def test_token_by_token(kind, edit, fixed):
    """With a cache the edits are those of the text read at once; so is what is recorded of it."""
    model = make(kind)
    made, hand = edits_of(kind)[edit]
    truth = by_hand(model, hand)
    with torch.no_grad(), ts.edit(model, made), ts.watch(model, keep="queries-keys") as recording:
        cache = model.cache(batch=2, room=9)
        parts = [model(IDS[:, :3], cache=cache)]
        cache = cache.fixed() if fixed else cache
        parts += [model(IDS[:, i : i + 1], cache=cache) for i in range(3, 6)]
    assert_close(torch.cat(parts, 1), truth, rtol=1e-9, atol=1e-9)
    with torch.no_grad(), ts.edit(model, made), ts.watch(model, keep="queries-keys") as once:
        model(IDS)
    for name in once:
        assert_close(recording[name].survey().received, once[name].survey().received, rtol=1e-9, atol=1e-9)


def test_queries_of_a_decoder_count_from_its_first_token():
    """In cross-attention a query has no position among the keys; beams of a source may stand side by side."""
    model = make("Transformer")
    made = ts.hide([0, 1], range(2, 4), layers="*.cross")
    truth = by_hand(model, Hidden("cross", None, range(2), range(2, 4)))
    mask = ts.padding(LENGTHS)
    with torch.no_grad(), ts.edit(model, made):
        cache = model.cache(model.encode(SOURCE, mask), mask, room=8)
        parts = [model.decode(IDS[:, i : i + 1], cache=cache) for i in range(6)]
        twice = model.cache(model.encode(SOURCE, mask), mask, room=8, beams=2)
        beams = [model.decode(IDS.repeat_interleave(2, 0)[:, i : i + 1], cache=twice) for i in range(6)]
    assert_close(model.logits(torch.cat(parts, 1)), truth, rtol=1e-9, atol=1e-9)
    assert_close(model.logits(torch.cat(beams, 1))[::2], truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("edit", ["hide", "mean"])
@pytest.mark.parametrize("how", ["generate", "beam"])
def test_a_batch_gives_what_each_text_gives_alone(how, edit):
    """Prompts of different lengths, beams, and texts that end early: each keeps its own hidden words and means."""
    model = make("GPT, grouped", torch.float32)
    model.special = ts.models.Special(end=(3,))
    made = ts.hide([0, 1], slice(2, None)) if edit == "hide" else ts.mute(heads=[0, 1], by="mean")
    prompts = [[1, 5, 2, 8, 3], [4, 4], [7, 0, 12]]
    with ts.edit(model, made):
        if how == "generate":
            together = [text.ids for text in ts.decoding.generate(model, prompts, max_new_tokens=8, temperature=0)]
            alone = [ts.decoding.generate(model, [one], max_new_tokens=8, temperature=0)[0].ids for one in prompts]
        else:
            together = [found[0].ids for found in ts.decoding.beam(model, prompts, beams=3, max_new_tokens=8)]
            alone = [ts.decoding.beam(model, [one], beams=3, max_new_tokens=8)[0][0].ids for one in prompts]
    assert together == alone
    plain = [text.ids for text in ts.decoding.generate(model, prompts, max_new_tokens=8, temperature=0)]
    assert plain != together


def test_queries_of_a_decoder_that_feeds_its_output_back():
    """It attends once for each word, and the words count from the first of each text."""
    model, mask, calls = make("LuongTranslator, feeding"), ts.padding(LENGTHS), []

    def hide_in_two_words(attention):
        calls.append(attention)
        return attention.with_extra_mask(Without()) if (len(calls) - 1) % 6 in (2, 3) else attention

    with torch.no_grad(), ts.edit(model, ts.redefine("cross", hide_in_two_words)):
        truth = model(SOURCE, IDS, mask)
    with torch.no_grad(), ts.edit(model, ts.hide([1, 2], range(2, 4))):
        assert_close(model(SOURCE, IDS, mask), truth, rtol=1e-9, atol=1e-9)
        cache = model.cache(model.encode(SOURCE, mask), mask)
        parts = [model.decode(part, cache=cache) for part in IDS.split([1, 2, 2, 1], 1)]
    assert_close(model.logits(torch.cat(parts, 1)), truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["Transformer", "LuongTranslator, feeding"])
def test_translators_search(kind):
    """Beams of a batch of sources, of which one ends early, against a mask of the test's own, source by source."""
    model, sources = make(kind, torch.float32), [[5, 2, 8, 3, 9], [4, 7, 6]]
    options = {"beams": 3, "n_best": 3, "max_new_tokens": 6}
    with ts.edit(model, ts.hide(range(1, 3), layers="*cross")):
        found = ts.decoding.beam(model, sources, **options)
    plain = ts.decoding.beam(model, sources, **options)
    with ts.edit(model, ts.redefine("*cross", lambda attention: attention.with_extra_mask(Without()))):
        alone = [ts.decoding.beam(model, [source], **options)[0] for source in sources]
    for edited, truth, unedited in zip(found, alone, plain, strict=True):
        assert [text.ids for text in edited] == [text.ids for text in truth]
        assert [text.score for text in edited] == pytest.approx([text.score for text in truth], abs=1e-5)
        assert [text.score for text in edited] != pytest.approx([text.score for text in unedited], abs=1e-4)


class Without(ts.Mask):
    """Keys 1 and 2 are hidden, by a mask of the test's own."""

    def sees(self, at):
        return (at.key < 1) | (at.key > 2)

    @property
    def same_for_all_queries(self):
        return True


def test_only_the_prompt():
    """With new=False neither generated queries nor generated keys are edited."""
    model = make("GPT")
    made = ts.hide(slice(1, None), new=False)
    truth = by_hand(model, Hidden(keys=range(1, 3), queries=range(3)))
    with torch.no_grad(), ts.edit(model, made):
        cache = model.cache(batch=2, room=9)
        parts = [model(IDS[:, :3], cache=cache)] + [model(IDS[:, i : i + 1], cache=cache) for i in range(3, 6)]
    assert_close(torch.cat(parts, 1), truth, rtol=1e-9, atol=1e-9)


def test_gradients_flow():
    model, other = make("GPT, grouped"), make("GPT, grouped")
    edits = [
        ts.mute(0, heads=1, times=0.5),
        ts.mute(1, heads=2, by="mean"),
        ts.hide(1, slice(3, None)),
        ts.boost(2, by=2.0),
    ]
    hide, boost = Hidden(keys=range(1, 2), queries=range(3, 99)), Boosted(keys=range(2, 3), by=2.0)
    half, mean = Muted("blocks.0", [1], 0.5), Muted("blocks.1", [2], mean=True)

    class All(Hidden):
        def scores(self, name, scores, at):
            return boost.scores(name, hide.scores(name, scores, at), at)

        def context(self, name, context, at):
            return mean.context(name, half.context(name, context, at), at)

    with ts.edit(model, *edits):
        model(IDS).square().sum().backward()
    names = {id(attend): name for name, attend in attentions(Modules.of(other)).items()}
    with attend_by_hand(names, All()):
        other(IDS).square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-8)


def test_gradient_checkpointing_runs_the_edited_call_again():
    from torch.utils.checkpoint import checkpoint

    model, other = make("GPT"), make("GPT")
    with ts.edit(model, ts.hide(1)):
        checkpoint(model, IDS, use_reentrant=False).square().sum().backward()
    with ts.edit(other, ts.hide(1)):
        other(IDS).square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad)
