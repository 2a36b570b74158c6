"""The mask functions of transformers as masks of Telescope, compared with the masks that transformers forms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.huggingface import transformers
from support.strategies import composite, definitions, seeds, shapes, tensors
from support.watched import FAMILIES, IDS, PADDED_LEFT
from telescope.attention import Causal, Documents, Left, drop_first_keys, restrict_to_queries
from telescope.interception.huggingface import implementation_switch
from telescope.interception.huggingface.definition import bias_of
from telescope.interception.huggingface.masks import LazyMask, describe_mask
from telescope.interception.mask_tensors import FunctionMask

their = transformers.masking_utils
PAD = torch.tensor([[True] * 9, [False] * 2 + [True] * 7])
HOLES = PAD & torch.tensor([True] * 5 + [False] + [True] * 3)
IDS_OF_BLOCKS = torch.tensor([[-1, 0, 0, -1, -1, 1, 1, 1, -1]]).expand(2, -1)
TEXTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]).expand(2, -1)
LEFT = torch.tensor([0, 2])


def every_third(batch, head, query, key):
    return (query - key) % 3 == 0


FUNCTIONS = {
    "causal": their.causal_mask_function,
    "both ways": their.bidirectional_mask_function,
    "window": their.sliding_window_causal_mask_function(3),
    "window, both ways": their.sliding_window_bidirectional_mask_function(2),
    "window alone": their.sliding_window_overlay(3),
    "chunks": their.chunked_causal_mask_function(4, LEFT),
    "packed": their.and_masks(their.causal_mask_function, their.packed_sequence_mask_function(TEXTS)),
    "blocks": their.or_masks(their.causal_mask_function, their.blockwise_overlay(IDS_OF_BLOCKS)),
    "window or blocks": their.or_masks(
        their.sliding_window_causal_mask_function(3), their.blockwise_overlay(IDS_OF_BLOCKS)
    ),
    "padding": their.and_masks(their.bidirectional_mask_function, their.padding_mask_function(HOLES)),
    "of somebody": their.and_masks(their.causal_mask_function, every_third),
    "of somebody alone": every_third,
}


@pytest.mark.parametrize("padding", [None, PAD, HOLES, PAD[:, :7]], ids=["", "left", "holes", "short"])
@pytest.mark.parametrize("place", [(9, 0, 9, 0), (3, 6, 9, 0), (1, 8, 9, 0), (2, 7, 4, 5), (2, 5, 9, 0)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks(name, place, padding):
    queries, at, keys, gone = place
    arguments = {
        "batch_size": 2,
        "q_length": queries,
        "q_offset": at,
        "kv_length": keys,
        "kv_offset": gone,
        "mask_function": FUNCTIONS[name],
        "attention_mask": padding,
        "allow_is_causal_skip": False,
    }
    written = their.sdpa_mask(**arguments)
    mask, here, before, _ = describe_mask(arguments)
    assert before == gone
    assert not written[..., here:].any()  # no query sees the keys that are left out
    attention = drop_first_keys(ts.Attention(mask=mask), gone)
    seen = attention.mask.block(queries, here, of=(queries, here), batch=2)
    assert torch.equal(seen.expand(2, 1, queries, here), written[..., :here])
    lazy = LazyMask.of(their.sdpa_mask, arguments, torch.bool)
    assert lazy.shape == written.shape
    assert torch.equal(torch.cat([lazy.rows(range(0, 1)), lazy.rows(range(1, queries))], 2), written)
    assert torch.equal(lazy[:, :, :, :keys] | False, written)


def test_known_mask_functions_become_named_masks():
    given = {"batch_size": 2, "q_length": 9, "kv_length": 9, "attention_mask": PAD}
    assert describe_mask(given | {"mask_function": FUNCTIONS["causal"]})[0] == ts.causal & ts.padding(left=LEFT)
    assert describe_mask(given | {"mask_function": FUNCTIONS["window"], "attention_mask": None})[0] == (
        ts.window(3) & ts.causal
    )
    kinds = [type(part) for part in describe_mask(given | {"mask_function": FUNCTIONS["packed"]})[0].masks]
    assert kinds == [Causal, Documents, Left]
    kinds = [type(part) for part in describe_mask(given | {"mask_function": FUNCTIONS["of somebody"]})[0].masks]
    assert kinds == [Causal, FunctionMask, Left]


# ------------------------------------------------------------------------------------- some queries, and the later keys


@composite
def parts(draw):
    shape = draw(shapes())
    which = draw(st.lists(st.integers(0, max(shape.queries - 1, 0)), max_size=shape.queries, unique=True))
    return shape, draw(definitions(shape)), torch.tensor(which, dtype=torch.long), draw(seeds)


@given(parts())
def test_a_definition_restricted_to_queries_computes_what_they_did(drawn):
    shape, attention, which, seed = drawn
    q, k, v = tensors(shape, seed)
    which = which[which < shape.queries]
    whole = ts.trace(q, k, v, attention)
    some = restrict_to_queries(attention, which, (shape.queries, shape.keys))
    assert_close(ts.trace(q[:, :, which], k, v, some).weights, whole.weights[:, :, which], rtol=1e-12, atol=1e-12)
    survey = ts.survey(q[:, :, which], k, some)
    assert_close(survey.received, whole.weights[:, :, which].sum(-2), rtol=1e-10, atol=1e-10)


@given(parts())
def test_a_definition_without_the_first_keys_keeps_its_meaning(drawn):
    shape, attention, _, seed = drawn
    gone = shape.keys // 3
    q, k, v = tensors(shape, seed)
    q, k, v = (tensor.double() for tensor in (q, k, v))
    masked = ts.trace(q, k, v, attention).masked[..., gone:]
    later = drop_first_keys(attention, gone)
    got = ts.trace(q, k[:, :, gone:], v[:, :, gone:], later).masked
    assert_close(got, masked, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- a bias


def test_a_relative_bias_is_found_in_an_additive_mask():
    table = torch.randn(3, 15)
    distance = torch.arange(8)[None] - torch.arange(8)[:, None]
    added = table[None, :, distance + 7]
    found = bias_of(added, None)
    assert torch.equal(found.table, table)
    one_more = bias_of(added[:, :, -1:], found)  # a row that is written
    assert torch.equal(one_more.table, table)
    assert one_more.agrees(found, (8, 8))
    assert bias_of(torch.zeros(1, 3, 8, 8), None) is None
    bent = added.clone()
    bent[0, 1, 5, 2] += 1.0
    assert repr(bias_of(bent, None)) == "from_additive(1x3x8x8)"


# ------------------------------------------------------------------------------ flash, which this machine does not have


def flash(module, query, key, value, attention_mask, scaling=None, sliding_window=None, is_causal=None, **kwargs):
    """Compute what flash attention does with its arguments, written out."""
    mask = ts.causal if (module.is_causal if is_causal is None else is_causal) else ts.everyone
    mask = mask if sliding_window is None else mask & ts.window(sliding_window)
    if attention_mask is not None:
        mask = mask & ts.padding(keep=attention_mask[:, -key.shape[2] :].bool())
    return ts.attend(query, key, value, ts.Attention(scale=scaling, mask=mask)).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("mask", [torch.ones_like(PADDED_LEFT), PADDED_LEFT], ids=["", "padded"])
def test_flash(family, mask, monkeypatch):
    """The same recording as of sdpa, for prompt and new tokens, also where the cache keeps a window."""
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "flash_attention_2", flash)
    model, recordings = FAMILIES[family].model(), []
    for implementation in ("sdpa", "flash_attention_2"):
        model.config._attn_implementation_internal = implementation
        with ts.watch(model) as recording, torch.no_grad():
            model.generate(IDS, attention_mask=mask, max_new_tokens=5, do_sample=False)
        recordings.append(recording)
    model.config._attn_implementation_internal = "sdpa"
    assert not implementation_switch._switched
    real = mask.bool()
    for name in recordings[0]:
        one, two = (recording[name].survey() for recording in recordings)
        for row in range(2):
            seeing = torch.cat([real[row], torch.ones(4, dtype=torch.bool)])
            assert_close(one.entropy[row][:, seeing], two.entropy[row][:, seeing], atol=1e-4, rtol=0.0)
        assert_close(one.received, two.received, atol=1e-4, rtol=0.0)
