"""Calls that begin after a sliding-window cache has dropped keys: keys are numbered from the first token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.huggingface import transformers
from support.strategies import composite, definitions, shapes
from support.watched import FAMILIES, weights_by_name
from support.watching import KEEPS
from telescope.attention import hide_first_keys

IDS = torch.tensor([[1, 5, 2, 58, 3, 9, 9, 17, 30, 31, 7, 12, 40], [4, 4, 7, 60, 12, 6, 33, 2, 8, 8, 50, 3, 21]])
PADDING = torch.tensor([[1] * 13, [0] * 2 + [1] * 11])
READ = 9  # unwatched; the window is 4
CLOSE = {"atol": 1e-4, "rtol": 0.0}
pytestmark = pytest.mark.usefixtures("without_gradients")


def cache_of(model, kind):
    if kind == "static":
        return transformers.StaticCache(config=model.config, max_cache_len=16)
    return transformers.DynamicCache(config=model.config)


def turns(model, pieces, *, padding=None, cache="dynamic", **options):
    """Read the first tokens unwatched, and the rest in these pieces."""
    kept, at = cache_of(model, cache), READ
    places = None if padding is None else (padding.cumsum(-1) - 1).clamp(min=0)

    def read(start, stop):
        mask = {} if padding is None else {"attention_mask": padding[:, :stop], "position_ids": places[:, start:stop]}
        model(IDS[:, start:stop], past_key_values=kept, **mask)

    read(0, READ)
    with ts.watch(model, **options) as recording:
        for piece in pieces:
            read(at, at + piece)
            at += piece
    return recording


def truth(family, names, stop, padding=None):
    """Return the weights of the watched queries with every key, of the text read at once."""
    options = {} if padding is None else {"position_ids": (padding.cumsum(-1) - 1).clamp(min=0)[:, :stop]}
    mask = None if padding is None else padding[:, :stop]
    eager = FAMILIES[family].model("eager")
    output = eager(IDS[:, :stop], attention_mask=mask, use_cache=False, output_attentions=True, **options)
    return {name: weights[:, :, READ:] for name, weights in weights_by_name(output, names).items()}


def assert_equals(survey, weights):
    assert survey.received.shape[-1] == weights.shape[-1]
    assert_close(survey.received, weights.sum(-2), **CLOSE)
    assert_close(survey.entropy, -torch.xlogy(weights, weights).sum(-1), **CLOSE)
    assert torch.equal(survey.peak.key, weights.argmax(-1))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["", "padded"])
@pytest.mark.parametrize("pieces", [[1], [3], [2, 1, 1]], ids=str)
def test_a_second_turn(pieces, padding, cache, keep, tmp_path):
    """One token, several, and what is generated after them: every number, also after saving."""
    model = FAMILIES["mistral"].model()
    recording = turns(model, pieces, padding=padding, cache=cache, keep=keep)
    stop = READ + sum(pieces)
    weights = truth("mistral", recording.names, stop, padding)
    recording.save(tmp_path / "run.telescope")
    opened = ts.open(tmp_path / "run.telescope")
    for name, rows in weights.items():
        call = recording[name].call
        assert call.size == (sum(pieces), stop)
        assert_equals(recording[name].survey(), rows)
        assert_equals(opened[name].survey(), rows)
        if keep != "summaries":
            assert_close(recording[name].survey().rows(range(sum(pieces))), rows, **CLOSE)
            assert_close(recording[name].survey().map(1, stop)[:, :, 0], rows.mean(-2), **CLOSE)
        if keep == "steps":
            assert_close(opened[name].trace().weights, rows, **CLOSE)
    for heads in (recording.heads(), opened.heads()):
        assert len(heads) == 8


def test_a_map_and_selected_queries():
    model = FAMILIES["mistral"].model()
    recording = turns(model, [3], map=(1, 12), queries=[0, 2])
    for name, rows in truth("mistral", recording.names, 12).items():
        assert_close(recording[name].survey().received, rows[:, :, [0, 2]].sum(-2), **CLOSE)
        assert_close(recording[name].survey().map(1, 12)[:, :, 0], rows[:, :, [0, 2]].mean(-2), **CLOSE)


@pytest.mark.parametrize("keep", KEEPS)
def test_reordered_beams(keep, tmp_path):
    """Whenever beams are reordered a new call begins, after keys were dropped."""
    model = FAMILIES["mistral"].model()
    with ts.watch(model, keep=keep) as recording:
        model.generate(IDS, num_beams=3, max_new_tokens=6, do_sample=False)
    recording.save(tmp_path / "run.telescope")
    opened, later = ts.open(tmp_path / "run.telescope"), 0
    assert len(recording.heads()) == len(opened.heads()) == 8
    for name, watched in recording.items():
        for call, again in zip(watched.calls, opened[name].calls, strict=True):
            survey = call.survey()
            assert survey.received.shape[-1] == call.size[1]
            assert torch.equal(survey.received, again.survey().received)
            first = call.size[1] - call.size[0] - 3  # as far back as the first query sees
            assert float(survey.received[..., : max(first, 0)].sum()) == 0.0
            assert_close(survey.received.sum(-1), torch.full_like(survey.received[..., 0], call.size[0]), **CLOSE)
            later += call.size[0] < call.size[1]
    assert later


def test_two_kinds_of_layers():
    """One layer drops keys, the other keeps all of them."""
    model = FAMILIES["gpt-oss"].model()
    assert {*model.config.layer_types} == {"sliding_attention", "full_attention"}
    recording = turns(model, [2, 1])
    for name, rows in truth("gpt-oss", recording.names, 12).items():
        assert_equals(recording[name].survey(), rows)


@composite
def masks(draw):
    shape = draw(shapes())
    return shape, draw(definitions(shape)).mask, draw(st.integers(0, shape.keys))


@given(masks())
def test_dropped_keys_are_hidden(drawn):
    shape, mask, gone = drawn
    of = (shape.queries, shape.keys)
    size = {"of": of, "batch": shape.batch, "heads": shape.heads}
    hidden = hide_first_keys(mask, gone, of, batch=shape.batch, heads=shape.heads)
    seen = mask.block(*of, **size).clone()
    seen[..., :gone] = False
    assert torch.equal(hidden.block(*of, **size).expand_as(seen), seen)


def test_a_window_mask_hides_dropped_keys():
    mask = ts.causal & ts.window(4)
    assert hide_first_keys(mask, 6, (1, 10), batch=1, heads=1) is mask
    assert repr(hide_first_keys(mask, 7, (1, 10), batch=1, heads=1)) == "causal & window(4) & ~prefix(7)"
    assert repr(hide_first_keys(ts.causal, 6, (1, 10), batch=1, heads=1)) == "causal & ~prefix(6)"
