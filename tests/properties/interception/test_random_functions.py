"""Random calls of scaled_dot_product_attention, watched and edited, against the weights formed by hand in float64."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import telescope as ts


class Calls(nn.Module):
    """Call the function with what it is given."""

    def forward(self, queries, keys, values, options):
        return functional.scaled_dot_product_attention(queries, keys, values, **options)


class Reader(nn.Module):
    """A model that reads another sequence, as the name says: a key that is hidden from all is not padding of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = Calls()

    def forward(self, *given):
        return self.cross(*given)


@st.composite
def calls(draw):
    """Return queries, keys, values and options of any shapes that torch broadcasts."""
    size = st.integers(1, 6)
    batch, groups, key_heads = draw(st.tuples(size, st.integers(1, 3), st.integers(1, 2)))
    queries, keys, width = draw(st.tuples(size, size, st.sampled_from([1, 3, 8])))
    grouped = draw(st.booleans())
    heads = groups * key_heads
    lead = {
        "four": ((batch, heads), (batch, key_heads if grouped else heads)),
        "three": ((heads,), (heads,)),
        "two": ((), ()),
        "five": ((2, batch, heads), (2, batch, key_heads if grouped else heads)),
    }[draw(st.sampled_from(["four", "four", "three", "two", "five"]))]
    random = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    options = {"enable_gqa": grouped and len(lead[0]) > 1}
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.2, 1.0, 3.0]))
    kind = draw(st.sampled_from(["none", "causal", "boolean", "added", "both"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        # Any axis may have size 1, and leading ones may be left out.
        whole = (*lead[0], queries, keys)
        shape = [draw(st.sampled_from([1, one])) for one in whole]
        shape = shape[draw(st.integers(0, len(lead[0]))) :]
        seen = torch.rand(shape, generator=random) > 0.4
        added = torch.randn(shape, generator=random)
        options["attn_mask"] = {
            "boolean": seen,
            "added": added,
            "both": added.masked_fill(~seen, -math.inf),
        }[kind]
    parts = [
        torch.randn(*one, count, width, generator=random)
        for one, count in zip((lead[0], lead[1], lead[1]), (queries, keys, keys), strict=True)
    ]
    return parts, options


def by_hand(queries, keys, options):
    """Return the weights in float64, with four axes."""
    queries, keys = queries.double(), keys.double()
    if options["enable_gqa"]:
        keys = keys.repeat_interleave(queries.shape[-3] // keys.shape[-3], -3)
    scores = queries @ keys.mT * options.get("scale", queries.shape[-1] ** -0.5)
    mask = options.get("attn_mask")
    if options.get("is_causal"):
        mask = torch.ones(scores.shape[-2:]).tril().bool()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.double()
    if scores.ndim < 4:
        # Without an axis of heads there is one head.
        scores = scores.reshape(-1, 1, *scores.shape[-2:])
    return scores.softmax(-1).nan_to_num(0.0).reshape(-1, *scores.shape[-3:])


@given(calls(), st.booleans())
def test_random_calls(case, in_inference_mode):
    parts, options = case
    model = Reader()
    mode = torch.inference_mode() if in_inference_mode else torch.no_grad()
    with mode, ts.watch(model) as recording:
        watched = model(*parts, options)
    assert torch.equal(watched.nan_to_num(), functional.scaled_dot_product_attention(*parts, **options).nan_to_num())
    weights = by_hand(*parts[:2], options)
    close = {"rtol": 1e-4, "atol": 1e-5}
    found = recording["cross"]
    torch.testing.assert_close(found.received.double(), weights.sum(2), **close)
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(weights).sum(-1), **close)
    largest = found.top.weights[..., 0].double()
    torch.testing.assert_close(largest, weights.amax(-1), **close)


@given(calls(), st.integers(0, 5))
def test_a_random_key_is_hidden(case, key):
    parts, options = case
    model = Reader()
    weights = by_hand(*parts[:2], options)
    # A key that is hidden from all queries is padding, and padding has no position.
    assume(bool(weights.sum((1, 2)).all()))
    key %= weights.shape[-1]
    with torch.no_grad(), ts.edit(model, ts.hide(key)):
        found = model(*parts, options)
    weights = weights.index_fill(-1, torch.tensor([key]), 0.0)
    weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
    values = parts[2].double()
    if options["enable_gqa"]:
        values = values.repeat_interleave(parts[0].shape[-3] // values.shape[-3], -3)
    expected = weights.reshape(*values.shape[:-2], *weights.shape[-2:]) @ values
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


pytestmark = pytest.mark.filterwarnings("error::UserWarning")
