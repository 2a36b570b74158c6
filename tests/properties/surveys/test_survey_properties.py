"""Properties of every survey, whatever the numbers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.small_blocks import small_blocks
from support.strategies import Shape, composite, definitions, normal, position_masks, seeds, shapes, tensors
from telescope.surveys import chunked

EXACT = {"atol": 1e-11, "rtol": 1e-11}
SUMMARY = ("lse", "received", "entropy", "top_weights")


@pytest.fixture(autouse=True, scope="module")
def many_blocks():
    """Cut small attentions into many blocks: with the usual sizes, one block would hold all of it."""
    with small_blocks():
        yield


@composite
def surveys(draw, sink=True, **options):
    """Draw a survey, the weights it is about, and its shape."""
    shape = draw(shapes())
    attention = draw(definitions(shape).filter(lambda attention: sink or attention.sink is None))
    q, k, v = tensors(shape, draw(seeds))
    return ts.survey(q, k, attention, **options), ts.trace(q, k, v, attention).weights, shape


def assert_same(mine, other):
    for name in SUMMARY:
        one, two = getattr(mine.summary, name), getattr(other.summary, name)
        assert_close(one, two, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(mine.top.keys, other.top.keys)


@settings(max_examples=40)
@given(surveys(sink=False))
def test_the_total_received_is_the_number_of_queries_that_see_a_key(drawn):
    """Every query that sees a key gives one in all."""
    seen, _, _ = drawn
    assert_close(seen.received.sum(-1), (seen.lse > -torch.inf).double().sum(-1), **EXACT)


@settings(max_examples=40)
@given(surveys(), st.data())
def test_a_map_is_the_pooled_matrix(drawn, data):
    seen, weights, shape = drawn
    rows, cols = data.draw(st.integers(1, shape.queries)), data.draw(st.integers(1, shape.keys))
    of_queries, of_keys = (
        torch.arange(shape.queries) * rows // shape.queries,
        torch.arange(shape.keys) * cols // shape.keys,
    )
    share, largest = seen.map(rows, cols), seen.map(rows, cols, "max")
    for r in range(rows):
        for c in range(cols):
            cell = weights[:, :, of_queries == r][..., of_keys == c]
            assert_close(share[:, :, r, c], cell.sum(-1).mean(-1), **EXACT)
            assert_close(largest[:, :, r, c], cell.amax((-2, -1)), **EXACT)
            assert (largest[:, :, r, c] >= share[:, :, r, c] / cell.shape[-1] - 1e-12).all()
    assert_close(share.sum(-1), seen.map(rows, 1)[..., 0], **EXACT)


@settings(max_examples=40)
@given(surveys(), st.data())
def test_borders_tell_which_queries_and_keys_a_cell_pools(drawn, data):
    seen, weights, shape = drawn
    rows, cols = data.draw(st.integers(1, shape.queries)), data.draw(st.integers(1, shape.keys))
    first_queries, first_keys = seen.borders(rows, cols)
    share = seen.map(rows, cols)
    for r, (top, bottom) in enumerate(pairwise([*first_queries, shape.queries])):
        for c, (left, right) in enumerate(pairwise([*first_keys, shape.keys])):
            assert_close(share[:, :, r, c], weights[:, :, top:bottom, left:right].sum(-1).mean(-1), **EXACT)


@settings(max_examples=40)
@given(surveys(sink=False))
def test_rows_of_a_map_sum_to_one(drawn):
    seen, _, shape = drawn
    seeing = (seen.lse > -torch.inf).double().mean(-1)
    assert_close(seen.map(1, shape.keys).sum(-1)[..., 0], seeing, **EXACT)


@settings(max_examples=40)
@given(surveys())
def test_a_map_of_every_token_is_the_matrix(drawn):
    seen, weights, shape = drawn
    assert_close(seen.map(shape.queries, shape.keys), weights, **EXACT)
    assert_close(seen.map(shape.queries, shape.keys, "max"), weights, **EXACT)
    assert_close(seen.rows(range(shape.queries)), weights, **EXACT)


@settings(max_examples=40)
@given(surveys(), st.data())
def test_a_recorded_map_equals_one_computed_later(drawn, data):
    seen, _, shape = drawn
    rows, cols = data.draw(st.integers(1, shape.queries)), data.draw(st.integers(1, shape.keys))
    kept = ts.survey(seen.queries, seen.keys, seen.attention, map=(rows, cols))
    assert kept.map(rows, cols) is kept.summary.map
    assert_close(kept.map(rows, cols), seen.map(rows, cols), **EXACT)


@settings(max_examples=40)
@given(surveys(), st.data())
def test_segments_are_cells_of_any_shape(drawn, data):
    seen, weights, shape = drawn
    query_ids, key_ids = (
        normal(shape.batch, size, seed=data.draw(seeds)).round().long().abs() for size in (shape.queries, shape.keys)
    )
    one_hot = [torch.nn.functional.one_hot(ids).double()[:, None] for ids in (query_ids, key_ids)]
    counts = one_hot[0].sum(-2).clamp(min=1.0)[..., None]
    assert_close(seen.map(segments=(query_ids, key_ids)), one_hot[0].mT @ weights @ one_hot[1] / counts, **EXACT)


@settings(max_examples=40)
@given(surveys(top=4))
def test_the_top_are_weights_of_the_matrix(drawn):
    seen, weights, shape = drawn
    there = weights.gather(-1, seen.top.keys.clamp(min=0)).masked_fill(seen.top.keys < 0, 0.0)
    assert_close(seen.top.weights, there, **EXACT)
    best = weights.sort(-1, descending=True).values[..., :4]
    assert_close(seen.top.weights[..., : shape.keys], best, **EXACT)
    assert_close(seen.peak.weight, weights.amax(-1), **EXACT)


@settings(max_examples=40)
@given(surveys(), st.data())
def test_a_cell_is_a_weight(drawn, data):
    seen, weights, shape = drawn
    i, j = (
        data.draw(st.integers(-shape.queries, shape.queries - 1)),
        data.draw(st.integers(-shape.keys, shape.keys - 1)),
    )
    assert_close(seen.cell(i, j), weights[:, :, i, j], **EXACT)
    some = data.draw(st.lists(st.integers(-shape.queries, shape.queries - 1)))
    for rows in (some, torch.tensor(some, dtype=torch.long), slice(i, None), range(shape.queries)[i:]):
        assert_close(seen.rows(rows), weights[:, :, rows if not isinstance(rows, range) else list(rows)], **EXACT)
    assert_close(seen.rows(i), weights[:, :, [i]], **EXACT)


@given(st.data())
@settings(max_examples=40)
def test_an_lse_from_a_forward_pass_changes_nothing(data):
    shape = data.draw(shapes())
    attention = data.draw(definitions(shape))
    q, k, _ = tensors(shape, data.draw(seeds))
    seen = ts.survey(q, k, attention)
    assert_same(ts.survey(q, k, attention, lse=seen.lse), seen)


@settings(max_examples=40)
@given(shapes(), seeds)
def test_keys_in_another_order_receive_the_same(shape, seed):
    q, k, _ = tensors(shape, seed)
    order = torch.randperm(shape.keys, generator=torch.Generator().manual_seed(seed))
    assert_close(ts.survey(q, k[:, :, order]).received, ts.survey(q, k).received[..., order], **EXACT)


@settings(max_examples=40)
@given(shapes(), seeds)
def test_a_survey_has_no_gradient_and_does_not_change_its_inputs(shape, seed):
    q, k, v = (tensor.requires_grad_() for tensor in tensors(shape, seed))
    before = q.detach().clone(), k.detach().clone()
    seen = ts.survey(q, k, values=v, map=(1, 1))
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])
    kept = (*vars(seen.summary).values(), seen.context, seen.rows(0), seen.map(1, 1, "max"))
    assert not any(tensor.requires_grad for tensor in kept if tensor is not None)


@settings(max_examples=40)
@given(shapes(), seeds)
def test_values_give_the_context(shape, seed):
    q, k, v = tensors(shape, seed)
    attention = ts.Attention(mask=ts.causal)
    assert torch.equal(ts.survey(q, k, attention, values=v).context, ts.attend(q, k, v, attention))


# ---------------------------------------------------------------------------------------------------------- going on


def grown(q, k, v, attention, start, steps):
    """Return a survey of `start` queries, extended by so many at a time; attention(keys) is the definition for that
    many."""
    gap = k.shape[-2] - q.shape[-2]
    seen = ts.survey(q[:, :, :start], k[:, :, : start + gap], attention(start + gap), values=v[:, :, : start + gap])
    for i in range(start, q.shape[-2], steps):
        stop = min(i + steps, q.shape[-2])
        new = slice(i + gap, stop + gap)
        seen = seen.extend(q[:, :, i:stop], k[:, :, new], values=v[:, :, new], attention=attention(new.stop))
    return seen


@given(st.data())
def test_extend_equals_a_survey_from_scratch(data):
    """Every mask by position works while decoding, whether or not the old queries see the new keys."""
    shape = data.draw(shapes())
    shape = Shape(**vars(shape) | {"keys": shape.queries + data.draw(st.integers(0, 3))})
    bias = data.draw(st.sampled_from([None, ts.alibi(shape.heads)]))
    attention = ts.Attention(mask=data.draw(position_masks()), bias=bias, sink=data.draw(st.sampled_from([None, 0.5])))
    q, k, v = tensors(shape, data.draw(seeds))
    seen = grown(
        q, k, v, lambda keys: attention, data.draw(st.integers(0, shape.queries)), data.draw(st.integers(1, 4))
    )
    whole = ts.survey(q, k, attention, values=v)
    assert_same(seen, whole)
    assert_close(seen.context, whole.context, **EXACT)
    assert torch.equal(seen.keys, k)


LONGER = {
    "documents": lambda length: ts.causal & ts.documents(torch.arange(9)[:length] // 4),
    "documents in no order": lambda length: ts.causal & ts.documents(torch.arange(9)[:length] % 2),
    "padding": lambda length: ts.causal & ts.padding(keep=(torch.arange(length) > 1).expand(2, -1)),
    "a tensor": lambda length: ts.from_tensor(torch.ones(length, length, dtype=torch.bool).tril()),
    "texts that are told anew": lambda length: ts.causal & ts.documents(torch.arange(length) // max(length // 2, 1)),
}


@pytest.mark.parametrize("mask", LONGER.values(), ids=LONGER)
@pytest.mark.parametrize("steps", [1, 3])
def test_extend_with_a_longer_definition(mask, steps):
    q, k, v = tensors(Shape(2, 4, 2, 9, 9))
    seen = grown(q, k, v, lambda keys: ts.Attention(mask=mask(keys)), 4, steps)
    assert_same(seen, ts.survey(q, k, ts.Attention(mask=mask(9))))


def test_extend_with_a_longer_bias():
    q, k, v = tensors(Shape(2, 4, 2, 9, 9))
    numbers = normal(1, 1, 9, 9, seed=7)
    seen = grown(q, k, v, lambda n: ts.Attention(bias=ts.from_additive(numbers[..., :n, :n]), mask=ts.causal), 4, 2)
    assert_same(seen, ts.survey(q, k, ts.Attention(bias=ts.from_additive(numbers), mask=ts.causal)))


def test_extend_computes_the_new_rows_alone(monkeypatch):
    """Token by token a causal survey costs one row a step."""
    counted = []
    honest = chunked.summarize
    monkeypatch.setattr(chunked, "summarize", lambda q, *rest: counted.append(q.shape[-2]) or honest(q, *rest))
    q, k, v = tensors(Shape(2, 4, 2, 9, 9))
    grown(q, k, v, lambda keys: ts.Attention(mask=ts.causal & ts.window(4)), 5, 1)
    assert counted == [5, 1, 1, 1, 1]
    counted.clear()
    grown(q, k, v, lambda keys: ts.Attention(), 7, 1)
    assert counted == [7, 8, 9]
    counted.clear()
    grown(q, k, v, lambda keys: ts.Attention(mask=LONGER["documents"](keys)), 7, 1)
    assert counted == [7, 1, 1]


@pytest.mark.parametrize("mask", [ts.causal, ts.prefix(2)], ids=repr)
def test_keys_without_queries_move_the_old_queries(mask):
    """The last query is at the last key: with one more key and no query, each of them moves on by one."""
    q, k, _ = tensors(Shape(1, 1, 1, 4, 5))
    attention = ts.Attention(mask=mask, bias=ts.alibi(1))
    seen = ts.survey(q, k[:, :, :4], attention).extend(q[:, :, :0], k[:, :, 4:])
    assert_same(seen, ts.survey(q, k, attention))


def test_extend_with_another_definition():
    q, k, _ = tensors(Shape(1, 1, 1, 5, 5))
    sharper = ts.Attention(mask=ts.causal, scale=2.0)
    seen = ts.survey(q[:, :, :4], k[:, :, :4], ts.Attention(mask=ts.causal))
    assert_same(seen.extend(q[:, :, 4:], k[:, :, 4:], attention=sharper), ts.survey(q, k, sharper))


def test_extend_with_a_key_that_becomes_visible():
    """The second token was hidden and is visible now: the spans of the old queries stay, but they see more."""
    q, k, _ = tensors(Shape(1, 1, 1, 5, 5))
    gap, closed = (
        ts.Attention(mask=ts.causal & ts.padding(keep=torch.tensor([keep], dtype=torch.bool)))
        for keep in ([1, 0, 1, 1], [1, 1, 1, 1, 1])
    )
    seen = ts.survey(q[:, :, :4], k[:, :, :4], gap).extend(q[:, :, 4:], k[:, :, 4:], attention=closed)
    assert_same(seen, ts.survey(q, k, closed))


def test_extend_drops_a_recorded_map():
    q, k, _ = tensors(Shape(1, 2, 1, 6, 6))
    attention = ts.Attention(mask=ts.causal)
    seen = ts.survey(q[:, :, :5], k[:, :, :5], attention, map=(2, 2)).extend(q[:, :, 5:], k[:, :, 5:])
    assert seen.summary.map is None
    assert_close(seen.map(2, 2), ts.survey(q, k, attention).map(2, 2), **EXACT)
