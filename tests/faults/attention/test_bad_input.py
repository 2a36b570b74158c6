"""Bad input gives one clear sentence; a NaN passes through, and never appears where there was none."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.attention import LinearScaling, Llama3Scaling, ZeroSumError

nan, inf = torch.nan, torch.inf
pytestmark = pytest.mark.usefixtures("as_users_run_it")


def t(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(*shape, dtype=dtype, device=device)


def nested(*shape, layout=torch.strided):
    return torch.nested.nested_tensor([t(*shape), t(*shape)], layout=layout)


def attend(q=None, k=None, v=None, **choices):
    """Call attend, by default with batch 2, 4 heads over 2 key heads, 3 queries, 5 keys and 8 features."""
    q, k = t(2, 4, 3, 8) if q is None else q, t(2, 2, 5, 8) if k is None else k
    return ts.attend(q, k, t(2, 2, 5, 8) if v is None else v, ts.Attention(**choices))


def plain(**options):
    return ts.attend(t(2, 4, 3, 8), t(2, 2, 5, 8), t(2, 2, 5, 8), **options)


def masked(mask):
    return attend(mask=mask)


def by_sum(*scores, dtype=torch.float32):
    keys = torch.tensor(scores, dtype=dtype)[None, None, :, None]
    return ts.attend(torch.ones_like(keys[:, :, :1]), keys, keys, ts.Attention(scale=1.0, normalize=ts.by_sum))


def trace(**options):
    x = t(1, 2, 3, 4)
    return ts.trace(x, x, x, **options)


sentence = ["Your", "journey", "starts"]
yes = torch.tensor(True)

FAULTS = {
    # what is given as queries, keys and values
    "a list": (lambda: attend(q=[[1.0]]), TypeError, "queries is a list", "(batch, heads, position, feature)"),
    "sparse queries": (lambda: attend(q=t(2, 4, 3, 8).to_sparse()), TypeError, "queries is a tensor of", ".to_dense()"),
    "sparse keys": (lambda: attend(k=t(2, 2, 5, 8).to_sparse()), TypeError, "keys is a tensor of", "torch.sparse_coo"),
    "sparse values": (lambda: attend(v=t(2, 2, 5, 8).to_sparse()), TypeError, "values is a tensor of layout"),
    "nested queries": (lambda: attend(q=nested(4, 3, 8)), TypeError, "queries is a nested tensor", "ts.padding"),
    "jagged keys": (
        lambda: attend(k=nested(2, 5, 8, layout=torch.jagged)),
        TypeError,
        "keys is a nested tensor",
        "to_padded_tensor",
    ),
    "a sparse mask": (
        lambda: ts.from_tensor((t(3, 5) > 0).to_sparse()),
        TypeError,
        "from_tensor is a tensor of",
    ),
    "a sparse forbidden": (lambda: ts.from_forbidden((t(3, 5) > 0).to_sparse()), TypeError, "from_forbidden is a"),
    "sparse padding": (lambda: ts.padding(keep=(t(3, 5) > 0).to_sparse()), TypeError, "padding(keep=...) is a tensor"),
    "sparse lengths": (
        lambda: ts.padding(torch.tensor([3, 2]).to_sparse()),
        TypeError,
        "padding is a tensor of",
    ),
    "sparse documents": (lambda: ts.documents(torch.tensor([0, 1]).to_sparse()), TypeError, "documents(ids) is a"),
    "a sparse bias": (lambda: ts.from_additive(t(3, 5).to_sparse_csr()), TypeError, "from_additive is a", "sparse_csr"),
    "a sparse table": (lambda: ts.relative(t(2, 5).to_sparse()), TypeError, "relative(table) is a tensor of layout"),
    "a nested mask": (lambda: ts.from_tensor(nested(5) > 0), TypeError, "from_tensor is a nested tensor"),
    "a sparse survey": (
        lambda: ts.survey(t(1, 2, 3, 8).to_sparse(), t(1, 2, 3, 8)),
        TypeError,
        "queries is a tensor of",
    ),
    "a sparse sequence": (
        lambda: ts.layers.MultiHeadAttention(8, 2)(t(1, 3, 8).to_sparse()),
        TypeError,
        "x is a tensor of layout",
    ),
    "None": (lambda: ts.attend(t(2, 4, 3, 8), None, None), TypeError, "keys is a NoneType"),
    "no definition": (lambda: ts.attend(*[t(1, 1, 2, 2)] * 3, ts.causal), TypeError, "ts.Attention", "Causal"),
    "two axes": (lambda: attend(q=t(3, 8)), ValueError, "queries has shape (3, 8)", "queries[None, None]"),
    "three axes": (lambda: attend(k=t(2, 5, 8)), ValueError, "keys has shape (2, 5, 8)", "keys.unsqueeze(1)"),
    "five axes": (lambda: attend(v=t(1, 2, 2, 5, 8)), ValueError, "values has shape (1, 2, 2, 5, 8)"),
    "integers": (lambda: attend(q=t(2, 4, 3, 8, dtype=torch.long)), TypeError, "queries is torch.int64", ".float()"),
    "bools": (lambda: attend(v=t(2, 2, 5, 8, dtype=torch.bool)), TypeError, "values is torch.bool"),
    "another device": (lambda: attend(k=t(2, 2, 5, 8, device="meta")), ValueError, "keys is on meta", "queries on cpu"),
    "another dtype": (
        lambda: attend(v=t(2, 2, 5, 8, dtype=torch.float64)),
        ValueError,
        "values is torch.float64, queries torch.float32",
        "convert",
    ),
    "another batch": (lambda: attend(k=t(3, 2, 5, 8)), ValueError, "keys (3, 2, 5, 8)", "batch of 3", "of 2"),
    "another batch of values": (lambda: attend(v=t(1, 2, 5, 8)), ValueError, "values (1, 2, 5, 8)", "batch of 1"),
    "other features": (lambda: attend(k=t(2, 2, 5, 6)), ValueError, "queries have 8 features and keys have 6"),
    "values of another length": (lambda: attend(v=t(2, 2, 4, 8)), ValueError, "values (2, 2, 4, 8)", "(2, 2, 5, 8)"),
    "values of other heads": (lambda: attend(v=t(2, 4, 5, 8)), ValueError, "values (2, 4, 5, 8)", "heads"),
    "heads that do not divide": (
        lambda: attend(k=t(2, 3, 5, 8), v=t(2, 3, 5, 8)),
        ValueError,
        "4 query heads cannot share 3 key heads",
    ),
    "no key heads": (lambda: attend(k=t(2, 0, 5, 8), v=t(2, 0, 5, 8)), ValueError, "cannot share 0 key heads"),
    "trace checks too": (lambda: ts.trace(t(3, 8), t(3, 8), t(3, 8)), ValueError, "queries[None, None]"),
    "plan checks too": (lambda: ts.plan(t(3, 8), t(3, 8), t(3, 8)), ValueError, "queries[None, None]"),
    # masks that do not fit
    "padding of another batch": (lambda: masked(ts.padding([1, 2, 3])), ValueError, "3 lengths for a batch of 2"),
    "padding too long": (lambda: masked(ts.padding([1, 6])), ValueError, "6 tokens", "only 5 keys"),
    "keep of another length": (
        lambda: masked(ts.padding(keep=yes.expand(2, 4))),
        ValueError,
        "padding(keep=...) has shape (2, 4)",
        "(batch, key) = (2, 5)",
    ),
    "documents of another length": (lambda: masked(ts.documents([0, 0, 1])), ValueError, "documents(ids)", "(2, 5)"),
    "documents of another batch": (lambda: masked(ts.documents([[0] * 5] * 3)), ValueError, "(3, 5)", "(2, 5)"),
    "documents of other queries": (
        lambda: masked(ts.documents([0] * 5, queries=[0, 1])),
        ValueError,
        "documents(queries=...) has shape (1, 2)",
        "(batch, query) = (2, 3)",
    ),
    "documents without the queries": (
        lambda: ts.attend(t(1, 1, 5, 8), t(1, 1, 3, 8), t(1, 1, 3, 8), ts.Attention(mask=ts.documents([0, 0, 1]))),
        ValueError,
        "3 keys, but there are 5 queries",
        "documents(ids, queries=...)",
    ),
    "from_tensor of another size": (
        lambda: masked(ts.from_tensor(yes.expand(3, 4))),
        ValueError,
        "from_tensor has shape (1, 1, 3, 4)",
        "(2, 4, 3, 5)",
    ),
    "from_forbidden of other heads": (
        lambda: masked(ts.from_forbidden(yes.expand(4, 3, 5), heads=2)),
        ValueError,
        "(2, 2, 3, 5)",
        "(2, 4, 3, 5)",
    ),
    "one part of a combination": (lambda: masked(ts.causal & ~ts.padding([1])), ValueError, "1 lengths", "batch of 2"),
    # masks that are none
    "window of nothing": (lambda: ts.window(0), ValueError, "window(size=0)", "smallest window is 1"),
    "prefix below nothing": (lambda: ts.prefix(-1), ValueError, "prefix(size=-1)", "smallest prefix is 0"),
    "padding without anything": (lambda: ts.padding(), ValueError, "lengths", "keep="),
    "padding twice": (lambda: ts.padding([1], keep=yes.expand(1, 1)), ValueError, "either", "keep="),
    "negative length": (lambda: ts.padding([2, -1]), ValueError, "negative length", "[2, -1]"),
    "half a length": (lambda: ts.padding([1.5]), ValueError, "whole number", "torch.float32"),
    "a bool mask as lengths": (lambda: ts.padding(yes.expand(2, 3)), ValueError, "torch.bool", "padding(keep=...)"),
    "keep of numbers": (lambda: ts.padding(keep=t(2, 5)), TypeError, "padding(keep=...)", "True = a real token"),
    "keep of four axes": (lambda: ts.padding(keep=yes.expand(2, 1, 1, 5)), ValueError, "(2, 1, 1, 5)"),
    "documents of fractions": (lambda: ts.documents([0.5]), ValueError, "ids as whole numbers", "torch.float32"),
    "documents of three axes": (lambda: ts.documents([[[1]]]), ValueError, "(batch, token)", "(1, 1, 1)"),
    "from_tensor of floats": (
        lambda: ts.from_tensor(t(3, 5)),
        TypeError,
        "bool tensor with True = may attend, not torch.float32",
        "ts.from_additive",
    ),
    "from_tensor of a list": (lambda: ts.from_tensor([[True]]), TypeError, "bool tensor", "not list"),
    "from_tensor of three axes": (lambda: ts.from_tensor(yes.expand(2, 3, 5)), ValueError, "2 or 4 axes", "(2, 3, 5)"),
    "from_forbidden of floats": (lambda: ts.from_forbidden(t(3, 5)), TypeError, "True = forbidden", "ts.from_additive"),
    "from_forbidden without heads": (lambda: ts.from_forbidden(yes.expand(4, 3, 5)), ValueError, "heads=", "(4, 3, 5)"),
    "from_forbidden of uneven heads": (lambda: ts.from_forbidden(yes.expand(4, 3, 5), heads=3), ValueError, "heads="),
    "a tensor as mask": (lambda: ts.Attention(mask=yes.expand(3, 5)), TypeError, "ts.from_tensor", "ts.from_forbidden"),
    "None as mask": (lambda: ts.Attention(mask=None), TypeError, "ts.everyone", "NoneType"),
    "a mask & a tensor": (lambda: ts.causal & yes, TypeError, "combines with masks, not with Tensor", "ts.from_tensor"),
    # biases
    "from_additive of bools": (
        lambda: ts.from_additive(yes.expand(3, 5)),
        TypeError,
        "float tensor",
        "not torch.bool",
        "ts.from_tensor",
        "ts.from_forbidden",
    ),
    "from_additive of a list": (lambda: ts.from_additive([[0.0]]), TypeError, "float tensor", "not list"),
    "from_additive of one axis": (lambda: ts.from_additive(t(5)), ValueError, "(query, key)", "(5,)"),
    "from_additive of another size": (
        lambda: attend(bias=ts.from_additive(t(3, 4))),
        ValueError,
        "from_additive has shape (1, 1, 3, 4)",
        "(2, 4, 3, 5)",
    ),
    "a tensor as bias": (lambda: ts.Attention(bias=t(3, 5)), TypeError, "bias is a function", "ts.from_additive"),
    "a function of another size": (lambda: attend(bias=lambda query, key: t(7, 7)), ValueError, "bias", "(7, 7)"),
    "alibi of other heads": (lambda: attend(bias=ts.alibi(8)), ValueError, "alibi(heads=8) meets 4 heads", "alibi(4)"),
    "alibi of no heads": (lambda: ts.alibi(0), ValueError, "alibi(heads=0)", "at least one"),
    "relative of an even table": (lambda: ts.relative(t(2, 4)), ValueError, "(heads, 2 · reach + 1)", "(2, 4)"),
    "relative of one axis": (lambda: ts.relative(t(5)), ValueError, "(heads, 2 · reach + 1)", "(5,)"),
    "relative of other heads": (lambda: attend(bias=ts.relative(t(2, 3))), ValueError, "2 heads", "has 4"),
    # scores
    "general of another size": (
        lambda: attend(score=ts.general(t(8, 6))),
        ValueError,
        "general(W) has shape (8, 6)",
        "(8, 8)",
    ),
    "general of other heads": (lambda: attend(score=ts.general(t(3, 8, 8))), ValueError, "general(W)", "(3, 8, 8)"),
    "additive of another size": (
        lambda: attend(score=ts.additive(t(6, 3), t(8, 3), t(3))),
        ValueError,
        "additive(W_q=...) has shape (6, 3)",
        "(8, 3)",
    ),
    "additive of another width": (
        lambda: attend(score=ts.additive(t(8, 3), t(8, 2), t(3))),
        ValueError,
        "additive(W_k=...) has shape (8, 2)",
    ),
    "additive of other heads": (
        lambda: attend(score=ts.additive(t(8, 3), t(8, 3), t(3, 3))),
        ValueError,
        "additive(v=...)",
        "(3, 3)",
    ),
    "a function as score": (lambda: ts.Attention(score=torch.matmul), TypeError, "is not a score", "ts.dot"),
    # the other parts of a definition
    "scale nan": (lambda: ts.Attention(scale=nan), ValueError, "scale=nan", "finite"),
    "scale inf": (lambda: ts.Attention(scale=inf), ValueError, "scale=inf", "finite"),
    "softcap zero": (lambda: ts.Attention(softcap=0.0), ValueError, "softcap=0.0", "above zero"),
    "softcap negative": (lambda: ts.Attention(softcap=-1.0), ValueError, "softcap=-1.0", "above zero"),
    "softcap nan": (lambda: ts.Attention(softcap=nan), ValueError, "softcap=nan"),
    "sink of other heads": (lambda: attend(sink=t(3)), ValueError, "sink has shape (3,)", "4 heads"),
    "sink of a list": (lambda: attend(sink=[1.0, 2.0, 3.0]), TypeError, "one for each head", "not list"),
    "sink with by_sum": (lambda: ts.Attention(sink=0.0, normalize=ts.by_sum), ValueError, "sink belongs to softmax"),
    "scale of a tensor": (lambda: ts.Attention(scale=torch.tensor(0.5)), TypeError, "scale is a number", ".item()"),
    "scale of a text": (lambda: ts.Attention(scale="0.5"), TypeError, "scale is a number, not '0.5'"),
    "scale of a bool": (lambda: ts.Attention(scale=True), TypeError, "scale is a number, not True"),
    "scale beyond floats": (lambda: ts.Attention(scale=10**400), ValueError, "scale is too large"),
    "softcap of a tensor": (lambda: ts.Attention(softcap=t(1)), TypeError, "softcap is a number", "shape (1,)"),
    "softcap of a complex": (lambda: ts.Attention(softcap=1j), TypeError, "softcap is a number, not 1j"),
    "sink nan": (lambda: ts.Attention(sink=nan), ValueError, "sink=nan", "finite"),
    "sink inf": (lambda: ts.Attention(sink=inf), ValueError, "sink=inf", "None is no sink"),
    "sink of whole numbers": (lambda: ts.Attention(sink=torch.zeros(4, dtype=torch.long)), TypeError, "sink.float()"),
    "window of 10**30": (lambda: ts.window(10**30), ValueError, "window(size) is a whole number of 100 bits", "2**62"),
    "prefix of 10**30": (lambda: ts.prefix(10**30), ValueError, "prefix(size) is a whole number of 100 bits", "2**62"),
    "window of a half": (lambda: ts.window(2.5), TypeError, "window(size) is a whole number, not 2.5"),
    "window of a float": (lambda: ts.window(2.0), TypeError, "window(size) is a whole number, not 2.0"),
    "window of a tensor": (lambda: ts.window(torch.tensor(2)), TypeError, "window(size)", "a tensor", ".item()"),
    "prefix of a half": (lambda: ts.prefix(0.5), TypeError, "prefix(size) is a whole number, not 0.5"),
    "prefix of nothing": (lambda: ts.prefix(None), TypeError, "prefix(size) is a whole number, not NoneType"),
    "alibi of half a head": (lambda: ts.alibi(2.5), TypeError, "alibi(heads) is a whole number, not 2.5"),
    "relative of whole numbers": (lambda: ts.relative(torch.zeros(1, 3).int()), TypeError, "float tensor", "int32"),
    "relative of a list": (lambda: ts.relative([[0.0]]), TypeError, "relative(table) takes a float tensor", "list"),
    "normalize by name": (lambda: ts.Attention(normalize="softmax"), TypeError, "'softmax'", "ts.softmax", "ts.by_sum"),
    "an unknown part": (lambda: ts.Attention(masks=ts.causal), TypeError, "masks"),
    # scores that cancel
    "by_sum of zero": (lambda: by_sum(1.0, -1.0), ZeroSumError, "batch 0, head 0, query 0 sum to zero", "ts.softmax"),
    "by_sum of zeros": (lambda: by_sum(0.0, 0.0), ZeroSumError, "sum to zero"),
    "by_sum of a rounding": (lambda: by_sum(0.1 + 0.2, -0.3, dtype=torch.float64), ZeroSumError, "sum to zero"),
    "by_sum of many roundings": (lambda: by_sum(*[0.1] * 10, -1.0), ZeroSumError, "sum to zero"),
    # how it is run
    "dropout above one": (lambda: plain(dropout=1.5), ValueError, "dropout=1.5", "from 0 to 1"),
    "dropout below zero": (lambda: plain(dropout=-0.1), ValueError, "dropout=-0.1", "from 0 to 1"),
    "dropout of a tensor": (lambda: plain(dropout=torch.tensor(0.1)), TypeError, "dropout is a number", ".item()"),
    "dropout nan": (lambda: plain(dropout=nan), ValueError, "dropout=nan"),
    "an engine misspelt": (lambda: plain(engine="spda"), ValueError, 'no engine "spda"', 'did you mean "sdpa"?'),
    "an engine unknown": (lambda: plain(engine="flash-4"), ValueError, '"flash-4"', "sdpa, flex, chunked, reference"),
    "sdpa cannot score": (
        lambda: ts.attend(*[t(1, 1, 2, 2)] * 3, ts.Attention(softcap=5.0), engine="sdpa"),
        ValueError,
        'engine="sdpa" cannot run softmax(5·tanh(q·k / √2 / 5)) v',
        "no softcap",
        '"reference"',
    ),
    "sdpa cannot cap": (
        lambda: ts.attend(*[t(1, 1, 2, 2)] * 3, ts.Attention(softcap=5.0), engine="sdpa"),
        ValueError,
        "5·tanh",
        "it has no softcap",
    ),
    # looking
    "tokens of another length": (lambda: trace(tokens=sentence[:2]), ValueError, "2 keys", "3 queries and 3 keys"),
    "tokens of two sequences": (lambda: trace(tokens=(sentence, ["a"])), ValueError, "3 queries and 1 keys"),
    "tokens in one string": (lambda: trace(tokens="Your journey"), TypeError, '"Your journey"', "list"),
    "a token misspelt": (
        lambda: trace(tokens=sentence).row("jurney"),
        ValueError,
        'no query is "jurney"',
        'did you mean "journey"?',
    ),
    "a token unknown": (lambda: trace(tokens=sentence).row("zebra"), ValueError, "Your, journey, starts"),
    "a row beyond": (lambda: trace().row(3), ValueError, "no query 3", "there are 3"),
    "a head beyond": (lambda: trace().row(0, head=2), ValueError, "head 2"),
    "a sequence beyond": (lambda: trace().row(0, batch=1), ValueError, "batch"),
    # positions
    "rotary of an odd width": (lambda: ts.rotary()(t(1, 1, 2, 5)), ValueError, "5 of 5 is odd"),
    "rotary of an odd part": (lambda: ts.rotary(fraction=0.5)(t(1, 1, 2, 6)), ValueError, "3 of 6", "fraction=0.5"),
    "rotary of nothing": (lambda: ts.rotary(fraction=0.0), ValueError, "fraction=0.0", "above 0"),
    "rotary of too much": (lambda: ts.rotary(fraction=1.5), ValueError, "fraction=1.5", "at most 1"),
    "rotary in unknown pairs": (lambda: ts.rotary(pairs="half"), ValueError, "'half'", '"halves" and "neighbours"'),
    "rotary of base zero": (lambda: ts.rotary(base=0.0), ValueError, "rotary(base)=0.0", "above zero"),
    "rotary of a tensor": (lambda: ts.rotary(base=t(1)), TypeError, "rotary(base) is a number"),
    "rotary of a part of a tensor": (lambda: ts.rotary(fraction=t(1)), TypeError, "rotary(fraction) is a number"),
    "scaling by nothing": (lambda: LinearScaling(0.0), ValueError, "LinearScaling(factor)=0.0"),
    "scaling from high to low": (lambda: Llama3Scaling(low=4.0), ValueError, "low=4.0, high=4.0", "low below high"),
    "scaling by half a position": (lambda: Llama3Scaling(original=0.5), TypeError, "Llama3Scaling(original)", "0.5"),
    "sinusoidal of a negative base": (lambda: ts.sinusoidal(4, 6, base=-1.0), ValueError, "sinusoidal(base)=-1.0"),
    "sinusoidal of half a width": (lambda: ts.sinusoidal(4, 6.0), TypeError, "sinusoidal(d_model)", "6.0"),
    "sinusoidal of an odd width": (lambda: ts.sinusoidal(4, 7), ValueError, "d_model=7 is odd", "6 or 8"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(("call", "kind", "words"), [(f[0], f[1], f[2:]) for f in FAULTS.values()], ids=FAULTS)
def test_one_clear_sentence(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 250


def test_numbers_of_other_libraries_become_python_numbers():
    size, half = np.int64(3), np.float32(0.5)
    attention = ts.Attention(scale=half, softcap=np.float64(2.0), sink=Fraction(1, 2), mask=ts.window(size))
    assert repr(attention) == "Attention(scale=0.5, softcap=2.0, sink=0.5, mask=window(3))"
    assert attention == ts.Attention(scale=0.5, softcap=2.0, sink=0.5, mask=ts.window(3))
    assert type(attention.scale) is type(attention.softcap) is type(attention.sink) is float
    assert (ts.prefix(size), ts.alibi(size), ts.rotary(base=half)) == (ts.prefix(3), ts.alibi(3), ts.rotary(base=0.5))


def test_edge_cases_that_are_no_errors():
    assert by_sum(0.1 + 0.2, -0.3 + 1e-6).isfinite().all()
    assert masked(ts.padding([0, 5]))[0].eq(0).all()
    assert ts.rotary(fraction=0.5)(t(1, 1, 2, 8)).isfinite().all()
    assert ts.from_forbidden(torch.ones(2, 3, 0, dtype=torch.bool), heads=2) == ts.from_tensor(
        torch.ones(1, 2, 3, 0, dtype=torch.bool)
    )


# ---------------------------------------------------------------------------------------------------------------- NaN

SEEN = {
    "everyone": ts.everyone,
    "causal": ts.causal,
    "window": ts.causal & ts.window(2),
    "padding": ts.padding([2, 4]),
    "nothing": ts.padding([0, 4]),
    "documents": ts.documents([[0, 0, 1, 1], [0, 1, 1, 0]]),
    "tensor": ts.from_tensor(torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]).bool()),
}
sights = pytest.mark.parametrize("mask", SEEN.values(), ids=SEEN)
lasts = pytest.mark.parametrize("last", [4, 1], ids=["all queries", "one query"])
breaks = pytest.mark.parametrize("broken", [nan, inf, -inf], ids=str)


def numbers(last):
    """Return two sequences, four heads over two, the last four queries, and which query sees which key."""
    torch.manual_seed(0)
    return torch.randn(2, 4, 4, 3)[:, :, -last:], torch.randn(2, 2, 4, 3), torch.randn(2, 2, 4, 3)


def seen_by(mask, last):
    return mask.block(range(4 - last, 4), 4, of=(4, 4), batch=2).expand(2, 1, last, 4)[:, 0]


def rows_of(mask, last):
    """Restrict a mask given as a tensor to as many rows as there are queries."""
    return ts.from_tensor(mask.tensor[:, :, -last:]) if mask == SEEN["tensor"] else mask


@sights
@lasts
@breaks
def test_a_nan_in_a_value_reaches_the_queries_that_see_it(mask, last, broken):
    q, k, v = numbers(last)
    attention = ts.Attention(mask=rows_of(mask, last))
    whole = ts.attend(q, k, v, attention)
    v[0, 1, 2, 0] = broken  # sequence 0, heads 2 and 3, key 2, one feature
    context = ts.attend(q, k, v, attention)
    hit = torch.zeros_like(whole, dtype=torch.bool)
    hit[0, 2:, :, 0] = seen_by(mask, last)[0, :, 2]
    assert (~context.isfinite() == hit).all()
    assert_close(context[~hit], whole[~hit])


@sights
@lasts
@breaks
def test_a_nan_in_a_key_reaches_the_queries_that_see_it(mask, last, broken):
    q, k, v = numbers(last)
    attention = ts.Attention(mask=rows_of(mask, last))
    whole = ts.attend(q, k, v, attention)
    k[0, 1, 2, 0] = broken
    context = ts.attend(q, k, v, attention)
    hit = torch.zeros_like(whole, dtype=torch.bool)
    hit[0, 2:] = seen_by(mask, last)[0, :, 2, None]
    assert_close(context[~hit], whole[~hit])
    if broken is nan:
        assert context[hit].isnan().all()


@sights
@lasts
def test_a_nan_in_a_query_stays_in_its_row(mask, last):
    q, k, v = numbers(last)
    attention = ts.Attention(mask=rows_of(mask, last))
    whole = ts.attend(q, k, v, attention)
    q[0, 1, -1, 0] = nan
    context = ts.attend(q, k, v, attention)
    hit = torch.zeros_like(whole, dtype=torch.bool)
    hit[0, 1, -1] = seen_by(mask, last)[0, -1].any()
    assert (context.isnan() == hit).all()
    assert_close(context[~hit], whole[~hit])


@lasts
@breaks
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_bias_of_minus_infinity_hides_a_key(last, broken, where):
    q, k, v = numbers(last)
    forbidden = torch.zeros(1, 1, 1, 4)
    forbidden[..., 2] = -inf
    attention = ts.Attention(bias=ts.from_additive(forbidden))
    whole = ts.attend(q, k, v, attention)
    (k if where == "key" else v)[:, :, 2] = broken
    assert_close(ts.attend(q, k, v, attention), whole)


def test_a_hidden_nan_does_not_change_a_visible_infinity():
    zeros, values = torch.zeros(1, 1, 2, 1), torch.tensor([inf, nan])[None, None, :, None]
    context = ts.attend(zeros, zeros, values, ts.Attention(mask=ts.causal))
    assert context[0, 0, 0].item() == inf
    assert context[0, 0, 1].isnan()


@pytest.mark.parametrize("engine", ["sdpa", "reference"])
@pytest.mark.parametrize("junk", [nan, inf, -inf])
def test_hidden_keys_get_no_gradient(engine, junk):
    def slopes(*inputs):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        context = ts.attend(*leaves, ts.Attention(mask=ts.padding([3, 0])), engine=engine)
        return torch.autograd.grad((context * torch.arange(context.numel()).view_as(context)).sum(), leaves)

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 1, 4, 2) for _ in range(3))
    whole = slopes(q, k, v)
    k[0, :, 3], v[0, :, 3] = junk, junk  # beyond the length of the first sequence
    q[1], k[1], v[1] = junk, junk, junk  # a sequence that sees nothing
    for clean, got in zip(whole, slopes(q, k, v), strict=True):
        assert_close(got, clean)
        assert not got[1].any()


def test_meta_tensors_give_shapes():
    x = torch.empty(2, 4, 5, 8, device="meta")
    for attention in (ts.Attention(), ts.Attention(mask=ts.causal & ts.window(2), sink=1.0, bias=ts.alibi(4))):
        context = ts.attend(x, x, x, attention)
        assert (context.shape, context.device.type) == ((2, 4, 5, 8), "meta")
