"""Every attention function and its arguments, against weights formed by hand in float64."""

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import telescope as ts
from support.foreign import assert_statistics, close

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 8


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Calls(nn.Module):
    """Call one function with queries, keys and values."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, queries, keys, values):
        return self.function(queries, keys, values)


def tensors(queries=QUERIES, keys=KEYS, heads=HEADS, key_heads=HEADS, width=WIDTH):
    return (
        numbers(BATCH, heads, queries, WIDTH, seed=1),
        numbers(BATCH, key_heads, keys, WIDTH, seed=2),
        numbers(BATCH, key_heads, keys, width, seed=3),
    )


def four(part):
    """Return a tensor with the axes (batch, heads, token, feature)."""
    if part.ndim == 3:
        part = part.unsqueeze(1)
    return part.reshape(-1, *part.shape[-3:]) if part.ndim >= 4 else part[None, None]


def by_hand(queries, keys, *, scale=None, seen=None, added=None, cap=None):
    """Return the weights and the log-sum-exp of each query, in float64."""
    queries, keys = four(queries).double(), four(keys).double()
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    scores = queries @ keys.mT * (queries.shape[-1] ** -0.5 if scale is None else scale)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if added is not None:
        scores = scores + added.double()
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().nan_to_num(0.0), lse


@torch.no_grad()
def check(function, given, weights, lse, *, heads_after_tokens=False):
    """Watch a module that calls a function, and edit it: hide key 1, boost key 2, mute head 0."""
    model = Calls(function)
    plain = model(*given)
    with ts.watch(model) as recording:
        assert torch.equal(model(*given), plain)
    assert [*recording] == ["attention"]
    seen = recording["attention"].survey()
    # Keys at the end that nobody sees are the free end of a cache, and no part of the text.
    shown = weights[..., : seen.received.shape[-1]]
    assert not weights[..., shown.shape[-1] :].any()
    assert_statistics("attention", seen, shown, lse)
    values = four(given[2].transpose(1, 2) if heads_after_tokens else given[2]).double()
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    close(plain, shaped(weights @ values, plain, heads_after_tokens), "the context")

    with ts.edit(model, ts.hide(1)):
        hidden = weights.index_fill(-1, torch.tensor([1]), 0.0)
        hidden = (hidden / hidden.sum(-1, keepdim=True)).nan_to_num(0.0)
        close(model(*given), shaped(hidden @ values, plain, heads_after_tokens), "with a hidden key")
    with ts.edit(model, ts.boost(2, by=1.5)):
        boosted = weights * torch.where(torch.arange(weights.shape[-1]) == 2, 1.5, 1.0)
        boosted = (boosted / boosted.sum(-1, keepdim=True)).nan_to_num(0.0)
        close(model(*given), shaped(boosted @ values, plain, heads_after_tokens), "with a boosted key")
    with ts.edit(model, ts.mute(heads=0)):
        context = weights @ values
        context[:, 0] = 0
        close(model(*given), shaped(context, plain, heads_after_tokens), "with a muted head")
    assert torch.equal(model(*given), plain)


def shaped(context, like, heads_after_tokens):
    return (context.transpose(1, 2) if heads_after_tokens else context).reshape(like.shape)


# ---------------------------------------------------------------------------------------- scaled_dot_product_attention

SEEN = numbers(BATCH, HEADS, QUERIES, KEYS, seed=4) > -0.5
SEEN[0, 0, 0] = False  # a query that sees nothing
ADDED = numbers(BATCH, HEADS, QUERIES, KEYS, seed=5)
LENGTHS = torch.arange(KEYS) < torch.tensor([4, 7])[:, None, None, None]
MASKS = {
    "one for all": SEEN[1, 1],
    "of each sequence": LENGTHS,
    "of each head": SEEN[1:, :, :, :],
    "of each query": SEEN,
    "one row": SEEN[1, 1, 1:2],
    "one column": torch.tensor([[True], [True], [False], [True], [True]]),
    "repeated": LENGTHS.expand(BATCH, HEADS, QUERIES, KEYS).contiguous(),
    "band": torch.ones(QUERIES, KEYS).tril(1).bool(),
    "causal from the end": torch.ones(QUERIES, KEYS).tril(KEYS - QUERIES).bool(),
}


@pytest.mark.parametrize("name", MASKS)
def test_boolean_masks(name):
    given = tensors()
    mask = MASKS[name]
    weights, lse = by_hand(*given[:2], seen=mask)
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, mask), given, weights, lse)


BIASES = {
    "of each pair": ADDED,
    "of heads": ADDED[0, :, :1, :1],
    "of positions": ADDED[0, 0],
    "with hidden pairs": ADDED.masked_fill(~SEEN, -math.inf),
    "hidden pairs alone": torch.zeros(1, 1, QUERIES, KEYS).masked_fill(~SEEN[1:, 1:2], -math.inf),
    "the least number": torch.zeros(BATCH, 1, 1, KEYS).masked_fill(~LENGTHS, torch.finfo(torch.float32).min),
}


@pytest.mark.parametrize("name", BIASES)
def test_additive_masks(name):
    given = tensors()
    weights, lse = by_hand(*given[:2], added=BIASES[name])
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=BIASES[name]), given, weights, lse)


@pytest.mark.parametrize("keys", [3, 5, 7])
def test_is_causal_counts_from_the_first(keys):
    given = tensors(keys=keys)
    weights, lse = by_hand(*given[:2], seen=torch.ones(QUERIES, keys).tril().bool())
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), given, weights, lse)


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.5])
def test_a_scale(scale):
    given = tensors()
    weights, lse = by_hand(*given[:2], scale=scale)
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=scale), given, weights, lse)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_that_share_keys(key_heads):
    given = tensors(key_heads=key_heads)
    weights, lse = by_hand(*given[:2])
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), given, weights, lse)


def test_values_of_another_width():
    given = tensors(width=3)
    check(functional.scaled_dot_product_attention, given, *by_hand(*given[:2]))


AXES = {
    "two": (lambda part: part[0, 0], SEEN[1, 1]),
    "three": (lambda part: part[:, 0], SEEN[:1, 1]),
    "three, a mask of each": (lambda part: part[:, 0], SEEN[:, 1]),
    "five": (lambda part: torch.stack([part, part.flip(0), -part]), SEEN),
    "five, a mask of each": (
        lambda part: torch.stack([part, part.flip(0), -part]),
        torch.stack([SEEN, SEEN.flip(0), SEEN.flip(1)]),
    ),
}


@pytest.mark.parametrize("name", AXES)
def test_other_numbers_of_axes(name):
    take, seen = AXES[name]
    given = tuple(map(take, tensors()))
    whole = four(seen.expand(*given[0].shape[:-1], KEYS))
    weights, lse = by_hand(*given[:2], seen=whole)
    check(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, seen), given, weights, lse)


def test_keys_that_all_sequences_share():
    queries, keys, values = tensors()
    given = queries, keys[:1], values[:1]
    weights, lse = by_hand(queries, keys[:1].expand(BATCH, -1, -1, -1))
    check(functional.scaled_dot_product_attention, (queries, *given[1:]), weights, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """The weights are those of the rounded queries and keys."""
    given = tuple(part.to(dtype) for part in tensors())
    model = Calls(functional.scaled_dot_product_attention)
    with torch.no_grad(), ts.watch(model) as recording:
        model(*given)
    weights, _ = by_hand(*given[:2])
    torch.testing.assert_close(recording["attention"].received.double(), weights.sum(2), rtol=1e-3, atol=1e-3)


def test_autocast():
    given = tensors()
    model = Calls(functional.scaled_dot_product_attention)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(*given)
        with ts.watch(model) as recording:
            assert torch.equal(model(*given), plain)
    weights, _ = by_hand(*(part.bfloat16() for part in given[:2]))
    torch.testing.assert_close(recording["attention"].received.double(), weights.sum(2), rtol=1e-3, atol=1e-3)


def test_dropout_is_noted_and_weights_are_those_before_it():
    given = tensors()

    def function(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    model = Calls(function)
    torch.manual_seed(7)
    plain = model(*given)
    with torch.no_grad(), ts.watch(model) as recording:
        torch.manual_seed(7)
        assert torch.equal(model(*given), plain)
    assert_statistics("attention", recording["attention"].survey(), *by_hand(*given[:2]))


def test_gradients_pass_through_a_watch_and_an_edit():
    given = tuple(part.requires_grad_() for part in tensors())
    model = Calls(functional.scaled_dot_product_attention)
    plain = torch.autograd.grad(model(*given).square().sum(), given)
    with ts.watch(model):
        watched = torch.autograd.grad(model(*given).square().sum(), given)
    assert all(map(torch.equal, plain, watched))
    with ts.edit(model, ts.hide(1)):
        edited = torch.autograd.grad(model(*given).square().sum(), given)
    seen = torch.ones(KEYS).bool()
    seen[1] = False
    truth = torch.autograd.grad(
        functional.scaled_dot_product_attention(*given, seen.expand(QUERIES, -1)).square().sum(), given
    )
    for one, other in zip(edited, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------- flex_attention


def causal_function(batch, head, query, key):
    return query >= key


def distances(score, batch, head, query, key):
    return score - (query - key).abs() * 0.25 * (head + 1)


def capped(score, batch, head, query, key):
    return 3.0 * torch.tanh(score / 3.0)


def hiding(score, batch, head, query, key):
    return torch.where(query >= key, score, -float("inf"))


QUERY, KEY = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
SLOPES = 0.25 * torch.arange(1, HEADS + 1)[:, None, None]
SCORE_EDITS = {
    "distances": (distances, {"added": -(QUERY - KEY).abs() * SLOPES}),
    "a cap": (capped, {"cap": 3.0}),
    "a mask": (hiding, {"seen": QUERY >= KEY}),
}


@pytest.mark.parametrize("name", SCORE_EDITS)
def test_score_edits_of_flex_attention(name):
    function, parts = SCORE_EDITS[name]
    given = tensors()
    weights, lse = by_hand(*given[:2], **parts)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=function), given, weights, lse)


def test_a_table_that_a_score_edit_reads():
    table = numbers(HEADS, QUERIES, KEYS, seed=6)

    def read(score, batch, head, query, key):
        return score + table[head, query, key]

    given = tensors()
    weights, lse = by_hand(*given[:2], added=table)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=read), given, weights, lse)


@pytest.mark.parametrize("keys", [5, 7])
def test_block_masks_of_flex_attention(keys):
    mask = create_block_mask(causal_function, None, None, QUERIES, keys, device="cpu")
    given = tensors(keys=keys)
    weights, lse = by_hand(*given[:2], seen=torch.ones(QUERIES, keys).tril().bool())
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), given, weights, lse)


def test_a_block_mask_and_a_score_edit_of_heads_that_share_keys():
    mask = create_block_mask(causal_function, None, None, QUERIES, QUERIES, device="cpu")
    given = tensors(keys=QUERIES, key_heads=2)
    near = -(QUERY - KEY[:QUERIES]).abs() * SLOPES
    weights, lse = by_hand(*given[:2], seen=torch.ones(QUERIES, QUERIES).tril().bool(), added=near, scale=0.5)

    def function(q, k, v):
        return flex_attention(q, k, v, distances, mask, 0.5, enable_gqa=True)

    check(function, given, weights, lse)


def test_compiled_flex_attention():
    compiled = torch.compile(flex_attention, backend="aot_eager")
    mask = create_block_mask(causal_function, None, None, QUERIES, KEYS, device="cpu")
    given = tensors()
    weights, lse = by_hand(*given[:2], seen=QUERY >= KEY)
    check(lambda q, k, v: compiled(q, k, v, block_mask=mask), given, weights, lse)


# ----------------------------------------------------------------------------------------- functions of other libraries


def flash(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None
):
    """What flash_attn_func computes, on tensors (batch, token, heads, feature)."""
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    rows, columns = queries.shape[-2], keys.shape[-2]
    distance = torch.arange(rows)[:, None] + columns - rows - torch.arange(columns)
    seen = distance >= 0 if causal else torch.ones(rows, columns).bool()
    before, after = window_size
    if before >= 0:
        seen = seen & (distance <= before)
    if after >= 0:
        seen = seen & (-distance <= after)
    added = None if alibi_slopes is None else -distance.abs() * alibi_slopes[:, None, None]
    weights, _ = by_hand(queries, keys, scale=softmax_scale, seen=seen, cap=softcap or None, added=added)
    values = values.repeat_interleave(queries.shape[1] // values.shape[1], 1)
    return (weights.to(q.dtype) @ values).transpose(1, 2)


@pytest.fixture
def flash_attn(monkeypatch):
    library = ModuleType("flash_attn")
    library.flash_attn_func = flash
    library.flash_attn_qkvpacked_func = lambda qkv, *rest, **options: flash(*qkv.unbind(2), *rest, **options)
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    return library


ALL = torch.ones(QUERIES, KEYS).bool()
BACK = QUERY + KEYS - QUERIES - KEY
FLASH = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"seen": BACK >= 0}),
    "scale": ({"softmax_scale": 0.2}, {"scale": 0.2}),
    "a causal window": ({"causal": True, "window_size": (2, 0)}, {"seen": (BACK >= 0) & (BACK <= 2)}),
    "a window": ({"window_size": (2, 2)}, {"seen": BACK.abs() <= 2}),
    "a cap": ({"softcap": 2.0}, {"cap": 2.0}),
    "alibi": ({"alibi_slopes": SLOPES.flatten()}, {"added": -BACK.abs() * SLOPES}),
}


@pytest.mark.parametrize("name", FLASH)
def test_flash_attention(flash_attn, name):
    options, parts = FLASH[name]
    queries, keys, values = tensors(key_heads=2)
    given = tuple(part.transpose(1, 2) for part in (queries, keys, values))
    weights, lse = by_hand(queries, keys, **parts)
    check(lambda q, k, v: flash_attn.flash_attn_func(q, k, v, **options), given, weights, lse, heads_after_tokens=True)


def test_packed_flash_attention(flash_attn):
    queries, keys, values = tensors(keys=QUERIES)
    given = tuple(part.transpose(1, 2) for part in (queries, keys, values))
    weights, lse = by_hand(queries, keys, seen=torch.ones(QUERIES, QUERIES).tril().bool())
    check(
        lambda q, k, v: flash_attn.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True),
        given,
        weights,
        lse,
        heads_after_tokens=True,
    )


class LowerTriangularMask:
    """As xformers has it: counted from the first."""


class LowerTriangularFromBottomRightMask:
    """As xformers has it: counted from the last."""


def efficient(query, key, value, attn_bias=None, p=0.0, scale=None):
    """What memory_efficient_attention of xformers computes."""
    has_heads = query.ndim == 4
    parts = [part.transpose(1, 2) if has_heads else part.unsqueeze(1) for part in (query, key, value)]
    rows, columns = parts[0].shape[-2], parts[1].shape[-2]
    seen = torch.ones(rows, columns).bool()
    if isinstance(attn_bias, LowerTriangularMask):
        seen = seen.tril()
    elif attn_bias is not None and not isinstance(attn_bias, torch.Tensor):
        seen = seen.tril(columns - rows)
    added = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    weights, _ = by_hand(*parts[:2], scale=scale, seen=seen, added=added)
    context = weights.to(query.dtype) @ parts[2]
    return context.transpose(1, 2) if has_heads else context[:, 0]


XFORMERS = {
    "plain": (None, {}),
    "causal": (LowerTriangularMask(), {"seen": QUERY >= KEY}),
    "causal from the end": (LowerTriangularFromBottomRightMask(), {"seen": BACK >= 0}),
    "a bias": (ADDED, {"added": ADDED}),
}


@pytest.fixture
def xformers(monkeypatch):
    ops = ModuleType("xformers.ops")
    ops.memory_efficient_attention = efficient
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    return ops


@pytest.mark.parametrize("name", XFORMERS)
def test_xformers(xformers, name):
    bias, parts = XFORMERS[name]
    queries, keys, values = tensors()
    given = tuple(part.transpose(1, 2) for part in (queries, keys, values))
    weights, lse = by_hand(queries, keys, **parts)
    check(
        lambda q, k, v: xformers.memory_efficient_attention(q, k, v, bias),
        given,
        weights,
        lse,
        heads_after_tokens=True,
    )


def test_xformers_without_heads(xformers):
    given = tuple(part[:, 0] for part in tensors())
    weights, lse = by_hand(*given[:2], scale=0.3)
    check(lambda q, k, v: xformers.memory_efficient_attention(q, k, v, scale=0.3), given, weights, lse)


# ---------------------------------------------------------------------------------------------------------- ts.attend

DEFINITIONS = {
    "plain": (ts.Attention(), {}),
    "causal": (ts.Attention(mask=ts.causal), {"seen": BACK >= 0}),
    "a window and a scale": (ts.Attention(mask=ts.window(2), scale=0.4), {"seen": BACK.abs() < 2, "scale": 0.4}),
    "a cap": (ts.Attention(softcap=2.0), {"cap": 2.0}),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_attend(name):
    definition, parts = DEFINITIONS[name]
    given = tensors(key_heads=2)
    weights, lse = by_hand(*given[:2], **parts)
    check(lambda q, k, v: ts.attend(q, k, v, definition), given, weights, lse)
