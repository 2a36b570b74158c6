"""Every mask as a picture: a row is a query, a column is a key, 1 = may attend."""

from itertools import product

import pytest
import torch

import telescope as ts

lower = torch.ones(3, 3, dtype=torch.bool).tril()
folded = torch.stack([~lower, ~lower.mT, lower & False, lower | True])  # (batch · heads, query, key), True = forbidden
marked = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]]).bool()
texts = [7, 7, 8, 8, 8]

# name: (mask, (queries, keys), pictures[batch][head]; one picture stands for all)
MASKS = {
    "everyone": (ts.everyone, (2, 3), [["111 111"]]),
    "nobody": (~ts.everyone, (2, 3), [["000 000"]]),
    "causal": (ts.causal, (3, 3), [["100 110 111"]]),
    "causal, three queries at the end of five keys": (ts.causal, (3, 5), [["11100 11110 11111"]]),
    "causal, five queries at the end of three keys": (ts.causal, (5, 3), [["000 000 100 110 111"]]),
    "causal, one query": (ts.causal, (1, 4), [["1111"]]),
    "window": (ts.window(2), (4, 4), [["1100 1110 0111 0011"]]),
    "window, two queries at the end of four keys": (ts.window(2), (2, 4), [["0111 0011"]]),
    "window of one": (ts.window(1), (2, 2), [["10 01"]]),
    "causal & window, a token and the two before it": (
        ts.causal & ts.window(3),
        (5, 5),
        [["10000 11000 11100 01110 00111"]],
    ),
    "causal & window, three queries at the end": (ts.causal & ts.window(3), (3, 5), [["11100 01110 00111"]]),
    "prefix": (ts.prefix(2), (3, 4), [["1100 1100 1100"]]),
    "prefix of nothing": (ts.prefix(0), (2, 2), [["00 00"]]),
    "causal | prefix": (ts.causal | ts.prefix(2), (4, 4), [["1100 1100 1110 1111"]]),
    "not causal": (~ts.causal, (3, 3), [["011 001 000"]]),
    "not (causal & window)": (~(ts.causal & ts.window(2)), (3, 3), [["011 001 100"]]),
    "padding by lengths": (ts.padding([1, 3]), (2, 3), [["100 100"], ["111 111"]]),
    "padding, a sequence of nothing": (ts.padding([0, 2]), (2, 2), [["00 00"], ["11 11"]]),
    "padding on the left": (ts.padding(left=[1, 3]), (2, 3), [["011 011"], ["000 000"]]),
    "causal & padding on the left": (ts.causal & ts.padding(left=[1, 0]), (2, 3), [["010 011"], ["110 111"]]),
    "padding by keep": (ts.padding(keep=marked), (2, 4), [["1011 1011"], ["0001 0001"]]),
    "causal & padding": (ts.causal & ts.padding([2, 3]), (3, 3), [["100 110 110"], ["100 110 111"]]),
    "documents": (ts.documents(texts), (5, 5), [["11000 11000 00111 00111 00111"]]),
    "documents, the last three tokens ask": (ts.documents(texts), (3, 5), [["00111 00111 00111"]]),
    "documents, per sequence": (ts.documents([[1, 1, 2], [1, 2, 2]]), (3, 3), [["110 110 001"], ["100 011 011"]]),
    "documents, queries of another sequence": (ts.documents(texts, queries=[8, 7]), (2, 5), [["00111 11000"]]),
    "documents & causal": (ts.documents(texts) & ts.causal, (5, 5), [["10000 11000 00100 00110 00111"]]),
    "from_tensor": (ts.from_tensor(lower), (3, 3), [["100 110 111"]]),
    "from_tensor, rows as they are stored": (ts.from_tensor(lower[:2]), (2, 3), [["100 110"]]),
    "from_tensor, per head": (
        ts.from_tensor(torch.stack([lower, ~lower])[None]),
        (3, 3),
        [["100 110 111", "011 001 000"]],
    ),
    "from_tensor, one row for all": (ts.from_tensor(marked[:1]), (3, 4), [["1011 1011 1011"]]),
    "from_forbidden": (ts.from_forbidden(~lower), (3, 3), [["100 110 111"]]),
    "from_forbidden, heads folded into the batch": (
        ts.from_forbidden(folded, heads=2),
        (3, 3),
        [["100 110 111", "111 011 001"], ["111 111 111", "000 000 000"]],
    ),
}
every_mask = pytest.mark.parametrize(("mask", "size", "pictures"), MASKS.values(), ids=MASKS)


@every_mask
def test_picture(mask, size, pictures):
    whole = mask.block(*size, batch=2, heads=2)
    for batch, head in product(range(2), range(2)):
        rows = whole.expand(2, 2, -1, -1)[batch, head].int().tolist()
        heads = pictures[batch % len(pictures)]
        assert " ".join("".join(map(str, row)) for row in rows) == heads[head % len(heads)]


@every_mask
def test_the_last_query_alone(mask, size, pictures):
    queries, keys = size
    whole = mask.block(queries, keys, batch=2, heads=2).expand(2, 2, -1, -1)
    if "from_" not in repr(mask) and "documents" not in repr(mask):  # those know how many queries there are
        last = mask.for_last_query().block(1, keys, batch=2, heads=2).expand(2, 2, -1, -1)
        assert torch.equal(last, whole[:, :, -1:])


@every_mask
def test_any_block_is_that_slice_of_the_whole(mask, size, pictures):
    queries, keys = size
    whole = mask.block(queries, keys, batch=2, heads=2)
    for rows, columns in product(ranges(queries), ranges(keys)):
        block = mask.block(rows, columns, of=size, batch=2, heads=2)
        assert torch.equal(block, whole[:, :, rows.start : rows.stop, columns.start : columns.stop])


def ranges(size):
    return [range(start, stop) for start in range(size) for stop in range(start + 1, size + 1)]


@every_mask
def test_an_attention_applies_the_whole_mask(mask, size, pictures):
    queries, keys = torch.zeros(2, 2, size[0], 1), torch.zeros(2, 2, size[1], 1)
    masked = ts.trace(queries, keys, keys, ts.Attention(mask=mask)).masked
    assert torch.equal(masked == 0, mask.block(*size, batch=2, heads=2).expand(2, 2, -1, -1))


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (ts.causal & ts.window(1024) & ts.padding([3, 5]), "causal & window(1024) & padding([3, 5])"),
        (ts.causal | ts.prefix(2), "causal | prefix(2)"),
        ((ts.causal | ts.prefix(2)) & ts.window(4), "(causal | prefix(2)) & window(4)"),
        (ts.causal & ts.window(4) | ts.prefix(2), "causal & window(4) | prefix(2)"),
        (~ts.causal, "~causal"),
        (~(ts.causal & ts.window(2)), "~(causal & window(2))"),
        (ts.padding(keep=marked), "padding(keep=2x4)"),
        (ts.padding(left=[0, 2]), "padding(left=[0, 2])"),
        (ts.documents(texts), "documents(1x5)"),
        (ts.from_tensor(lower), "from_tensor(1x1x3x3)"),
        (~~ts.causal, "causal"),
        (ts.everyone & ts.causal, "causal"),
        (ts.causal & ts.everyone, "causal"),
    ],
)
def test_the_repr_of_a_mask_is_the_call_that_makes_it(mask, written):
    assert repr(mask) == written


@pytest.mark.parametrize(
    ("mask", "alone"),
    [
        (ts.everyone, True),
        (ts.prefix(2), True),
        (ts.padding([1, 2]), True),
        (ts.padding(keep=marked), True),
        (ts.padding(left=[1, 2]), True),
        (~ts.padding([1, 2]) | ts.prefix(1), True),
        (ts.from_tensor(marked[:1]), True),
        (ts.from_tensor(lower), False),
        (ts.causal, False),
        (ts.window(2), False),
        (ts.documents(texts), False),
        (ts.padding([1, 2]) & ts.causal, False),
        (~ts.causal, False),
    ],
    ids=repr,
)
def test_masks_that_are_the_same_for_all_queries_have_one_row(mask, alone):
    assert mask.same_for_all_queries is alone
    if alone:
        whole = mask.block(5, 4, batch=2)
        assert torch.equal(whole, whole[:, :, :1].expand_as(whole))


def test_a_custom_mask_needs_only_sees():
    class EvenKeys(ts.Mask):
        def sees(self, at):
            return at.key % 2 == 0

    zeros = torch.zeros(1, 1, 4, 1)
    weights = ts.trace(zeros, zeros, zeros, ts.Attention(mask=EvenKeys() & ts.causal)).weights[0, 0]
    assert weights.tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0.5, 0]]
