"""Masks combine as sets of pairs do."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import telescope as ts
from support.strategies import Shape, composite, masks, shapes


@composite
def several(draw):
    """Draw a shape and three masks that fit it."""
    shape = draw(shapes())
    return shape, draw(masks(shape)), draw(masks(shape)), draw(masks(shape))


def pairs(mask: ts.Mask, shape: Shape) -> torch.Tensor:
    """Return which query sees which key, in full."""
    mask.check(batch=shape.batch, heads=shape.heads, queries=shape.queries, keys=shape.keys)
    block = mask.block(shape.queries, shape.keys, batch=shape.batch, heads=shape.heads)
    return block.expand(shape.whole)


def same(one: ts.Mask, other: ts.Mask, shape: Shape) -> bool:
    return torch.equal(pairs(one, shape), pairs(other, shape))


@given(several())
def test_masks_are_sets(drawn):
    shape, a, b, c = drawn
    assert torch.equal(pairs(a & b, shape), pairs(a, shape) & pairs(b, shape))
    assert torch.equal(pairs(a | b, shape), pairs(a, shape) | pairs(b, shape))
    assert torch.equal(pairs(~a, shape), ~pairs(a, shape))
    assert same(~(a & b), ~a | ~b, shape)
    assert same(~(a | b), ~a & ~b, shape)
    assert same(a & b, b & a, shape)
    assert same(a | b, b | a, shape)
    assert same(a & a, a, shape)
    assert same(a | a, a, shape)
    assert same((a & b) & c, a & (b & c), shape)
    assert same((a | b) | c, a | (b | c), shape)
    assert same(a & (b | c), a & b | a & c, shape)
    assert same(a | b & c, (a | b) & (a | c), shape)
    assert same(a | a & b, a, shape)
    assert ~~a == a


@given(several())
def test_everyone_and_its_complement_are_the_bounds(drawn):
    shape, a, *_ = drawn
    assert a & ts.everyone == a
    assert same(a | ts.everyone, ts.everyone, shape)
    assert same(a | ~ts.everyone, a, shape)
    assert not pairs(a & ~a, shape).any()
    assert pairs(a | ~a, shape).all()


@given(several(), st.data())
def test_a_block_is_that_slice_of_the_whole(drawn, data):
    shape, a, b, c = drawn
    mask = a & b | c
    rows, columns = (
        range(*sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True))))
        for size in (shape.queries, shape.keys)
    )
    block = mask.block(rows, columns, of=(shape.queries, shape.keys), batch=shape.batch, heads=shape.heads)
    whole = pairs(mask, shape)[:, :, rows.start : rows.stop, columns.start : columns.stop]
    assert torch.equal(block.expand_as(whole), whole)


@given(several())
def test_masks_that_are_the_same_for_all_queries_need_one_row(drawn):
    shape, a, b, c = drawn
    for mask in (a, b, c, a & b, b | c, ~c):
        if mask.same_for_all_queries:
            seen = pairs(mask, shape)
            assert torch.equal(seen, seen[:, :, :1].expand_as(seen))


@given(several())
def test_combined_masks_are_equal_by_content(drawn):
    _, a, b, _ = drawn
    assert (a & b) == (a & b)
    assert hash(a | b) == hash(a | b)
    assert (a & b == a | b) == (a == b == ts.everyone)


@settings(max_examples=200)
@given(several())
def test_nothing_is_visible_outside_a_span_and_everything_in_a_whole_one(drawn):
    shape, a, b, c = drawn
    at = ts.Pairs.block(
        range(shape.queries),
        range(shape.keys),
        of=(shape.queries, shape.keys),
        batch=shape.batch,
        heads=shape.heads,
    )
    for mask in (a, b, c, a & b, b | c, ~c, a & b | c):
        spans, seen = mask.spans(at, shape.keys), pairs(mask, shape)
        inside = (at.key >= spans.start) & (at.key < spans.stop)
        assert not (seen & ~inside).any()
        if spans.whole:
            assert torch.equal(inside.expand_as(seen), seen)


def test_the_masks_of_position_and_padding_have_whole_spans():
    at = ts.Pairs.block(range(6), range(6), of=(6, 6), batch=2)
    texts = ts.documents([[0, 0, 1, 1, 1, 2], [3, 3, 3, 3, 3, 3]])
    kept = ts.padding(keep=torch.tensor([[False, True, True, True, True, False], [False] * 6]))
    for mask in (
        ts.causal,
        ts.everyone,
        ts.causal & ts.window(3),
        ts.causal | ts.prefix(2),
        ts.causal & texts & ts.padding([6, 4]),
        ts.causal & kept,
        ~ts.causal,
    ):
        assert mask.spans(at, 6).whole, mask
    for mask in (ts.documents([0, 1, 0, 1, 0, 1]), ~ts.window(2), ts.prefix(1) | ts.window(2)):
        assert not mask.spans(at, 6).whole, mask
