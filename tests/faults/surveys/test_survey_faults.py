"""Bad input to `survey` gives one clear sentence; unusual valid input gives numbers, and nothing is printed."""

from math import log

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.surveys import ENGINES, chunked

on_every_engine = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "triton"])
pytestmark = pytest.mark.usefixtures("as_users_run_it")


def t(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(device)


q, k = t(2, 4, 6, 8), t(2, 2, 6, 8)
causal = ts.Attention(mask=ts.causal)
lse = ts.survey(q, k, causal).lse


def survey(q=q, k=k, attention=causal, **options):
    return ts.survey(q, k, attention, **options)


def seen(**options):
    return survey(**options)


def with_values():
    return survey(values=t(2, 2, 6, 8))


FAULTS = {
    # what is surveyed
    "three axes": (lambda: survey(q=t(4, 6, 8)), ValueError, "queries has shape (4, 6, 8)", "queries.unsqueeze(1)"),
    "a list": (lambda: survey(k=[[1.0]]), TypeError, "keys is a list"),
    "integers": (lambda: survey(q=q.long()), TypeError, "queries is torch.int64", ".float()"),
    "another device": (lambda: survey(k=t(2, 2, 6, 8, device="meta")), ValueError, "keys is on meta", "queries on cpu"),
    "no numbers": (
        lambda: survey(q=t(2, 4, 6, 8, device="meta"), k=t(2, 2, 6, 8, device="meta")),
        ValueError,
        "queries are on meta",
        "use cpu or cuda",
    ),
    "another dtype": (lambda: survey(k=k.double()), ValueError, "keys is torch.float64", "convert"),
    "heads that do not divide": (lambda: survey(k=t(2, 3, 6, 8)), ValueError, "4 query heads cannot share 3 key heads"),
    "no definition": (lambda: survey(attention=ts.causal), TypeError, "ts.Attention", "Causal"),
    "a mask of another size": (
        lambda: survey(attention=ts.Attention(mask=ts.documents([0, 1]))),
        ValueError,
        "documents(ids) has shape (1, 2)",
    ),
    "values of another length": (lambda: survey(values=t(2, 2, 5, 8)), ValueError, "values (2, 2, 5, 8)"),
    "an engine misspelt": (lambda: survey(engine="chunk"), ValueError, 'no engine "chunk"', 'did you mean "chunked"?'),
    # how much is kept
    "top below zero": (lambda: survey(top=-1), ValueError, "top=-1", "0 or more"),
    "top of half": (lambda: survey(top=0.5), ValueError, "top=0.5", "0 or more"),
    "no peak": (lambda: survey(top=0).peak, ValueError, "top=0", "top=1 keeps it"),
    "map of one number": (lambda: survey(map=8), TypeError, "map=8", "(rows, cols)"),
    "recorded map too tall": (lambda: survey(map=(7, 2)), ValueError, "map(rows=7)", "6 queries", "1 to 6"),
    # lse
    "lse of another shape": (
        lambda: survey(lse=lse[..., None]),
        ValueError,
        "lse has shape (2, 4, 6, 1)",
        "(batch, heads, query) = (2, 4, 6)",
    ),
    "lse of the key heads": (lambda: survey(lse=lse[:, :2]), ValueError, "lse has shape (2, 2, 6)", "(2, 4, 6)"),
    "lse a number": (lambda: survey(lse=1.0), TypeError, "lse is a float tensor", "not float"),
    "lse of whole numbers": (lambda: survey(lse=lse.long()), TypeError, "lse is a float tensor", "torch.int64"),
    "lse elsewhere": (lambda: survey(lse=lse.to("meta")), ValueError, "lse is on meta, queries on cpu", "move"),
    "lse of base 2": (lambda: survey(lse=lse / log(2)), ValueError, "sum to", "base 2", "multiply it by ln 2"),
    "lse of another scale": (
        lambda: survey(lse=lse, attention=ts.Attention(scale=1.0, mask=ts.causal)),
        ValueError,
        "not 1",
        "another definition",
        "leave lse out",
    ),
    "lse without the sink": (
        lambda: survey(lse=lse, attention=ts.Attention(mask=ts.causal, sink=1.0)),
        ValueError,
        "not 1",
        "another definition",
    ),
    "lse of NaN": (lambda: survey(lse=torch.full_like(lse, torch.nan)), ValueError, "sum to nan, not 1"),
    "lse of nothing": (lambda: survey(lse=torch.full_like(lse, -torch.inf)), ValueError, "not 1", "leave lse out"),
    "lse by sum": (
        lambda: survey(lse=lse, attention=ts.Attention(normalize=ts.by_sum)),
        ValueError,
        "lse is defined for softmax only",
    ),
    # arguments of the methods
    "map without a size": (lambda: seen().map(), ValueError, "map(rows, cols)", "segments="),
    "map without columns": (lambda: seen().map(3), ValueError, "map(rows, cols)"),
    "map too wide": (lambda: seen().map(2, 9), ValueError, "map(cols=9)", "6 keys", "1 to 6"),
    "map of nothing": (lambda: seen().map(0, 3), ValueError, "map(rows=0)", "1 to 6"),
    "map of half": (lambda: seen().map(1.5, 3), TypeError, "map(rows=...)", "float"),
    "a way misspelt": (lambda: seen().map(2, 2, "shared"), ValueError, 'how="shared"', 'did you mean "share"?'),
    "no such way": (lambda: seen().map(2, 2, how="zzz"), ValueError, "there are share, max"),
    "a size and segments": (lambda: seen().map(2, 2, segments=[0] * 6), ValueError, "rows and cols, or segments="),
    "segments too few": (
        lambda: seen().map(segments=[0, 1]),
        ValueError,
        "shape (1, 2)",
        "6 queries",
        "segments=(query ids, key ids)",
    ),
    "segments of another batch": (lambda: seen().map(segments=torch.zeros(3, 6).long()), ValueError, "batch of 2"),
    "segments of floats": (lambda: seen().map(segments=[0.0] * 6), ValueError, "whole numbers", "torch.float32"),
    "segments below zero": (lambda: seen().map(segments=[-1] * 6), ValueError, "the id -1", "count from 0"),
    "no such row": (lambda: seen().rows(6), ValueError, "there is no query 6; there are 6, counted from 0 to 5"),
    "rows of floats": (lambda: seen().rows([0.5]), TypeError, "rows takes whole numbers", "torch.float32"),
    "rows of bools": (lambda: seen().rows(torch.ones(6) > 0), TypeError, "rows takes whole numbers", "torch.bool"),
    "no such cell": (lambda: seen().cell(0, -7), ValueError, "there is no key -7; there are 6, counted from 0 to 5"),
    "no such query": (lambda: seen().cell(9, 0), ValueError, "there is no query 9; there are 6, counted from 0 to 5"),
    # going on
    "other heads": (lambda: seen().extend(t(2, 2, 1, 8), t(2, 2, 1, 8)), ValueError, "queries have shape (2, 2, 1, 8)"),
    "another batch": (lambda: seen().extend(t(1, 4, 1, 8), t(1, 2, 1, 8)), ValueError, "after (2, 4, 6, 8)"),
    "other dtype": (
        lambda: seen().extend(q[:, :, :1].double(), k[:, :, :1].double()),
        ValueError,
        "extend: queries are torch.float64",
        "convert",
    ),
    "values from nowhere": (
        lambda: seen().extend(q[:, :, :1], k[:, :, :1], values=t(2, 2, 1, 8)),
        ValueError,
        "this survey was made without",
        "survey(..., values=...)",
    ),
    "values left out": (
        lambda: with_values().extend(q[:, :, :1], k[:, :, :1]),
        ValueError,
        "extend needs them too",
    ),
    "a definition too short": (
        lambda: survey(attention=ts.Attention(mask=ts.documents([0] * 6))).extend(q[:, :, :1], k[:, :, :1]),
        ValueError,
        "documents(ids) has shape (1, 6)",
        "(2, 7)",
    ),
}


@pytest.mark.parametrize(("call", "kind", "words"), [(c, e, w) for c, e, *w in FAULTS.values()], ids=FAULTS)
def test_one_clear_sentence(call, kind, words):
    with pytest.raises(kind) as problem:
        call()
    message = str(problem.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [None, 50.0, -3.0])
def test_a_correct_lse_of_any_dtype_is_accepted(dtype, scale):
    """Kernels round their scores and their lse; that is no error."""
    attention = ts.Attention(mask=ts.causal, scale=scale)
    truth = ts.survey(q.to(dtype).double(), k.to(dtype).double(), attention)
    given = truth.lse.float() if dtype != torch.float16 else truth.lse.half()
    assert_close(survey(q.to(dtype), k.to(dtype), attention, lse=given).peak.key, truth.peak.key)


def test_an_lse_is_checked_in_rows_that_see_a_key():
    """The first rows come before the first key."""
    short = k[:, :, :2]
    known = survey(k=short).lse
    assert known[0, 0].isinf().tolist() == [True] * 4 + [False] * 2
    assert_close(survey(k=short, lse=known).received, survey(k=short).received)
    with pytest.raises(ValueError, match="base 2"):
        survey(k=short, lse=known / log(2))


# ------------------------------------------------------------------------------------------------------ odd, but sound


@on_every_engine
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_mask_that_hides_every_key(engine, dtype):
    blind = survey(q.to(dtype), k.to(dtype), ts.Attention(mask=~ts.everyone), engine=engine, map=(2, 3))
    assert (blind.lse == -torch.inf).all()
    for zeros in (blind.received, blind.entropy, blind.top.weights, blind.map(2, 3), blind.map(2, 3, "max")):
        assert not zeros.any()
    assert (blind.top.keys == -1).all()
    assert not blind.rows(0).any()
    again = survey(q.to(dtype), k.to(dtype), ts.Attention(mask=~ts.everyone), engine=engine, lse=blind.lse)
    assert not again.received.any()


@on_every_engine
def test_scores_of_ten_thousand_stay_finite(engine):
    far = survey(q * 1e4, k, ts.Attention(scale=1.0, mask=ts.causal), engine=engine)
    for numbers in (far.lse, far.received, far.entropy, far.top.weights):
        assert numbers.isfinite().all()
    assert_close(far.received.sum(-1), torch.full((2, 4), 6.0))
    assert (far.entropy >= 0.0).all()


@on_every_engine
def test_top_larger_than_the_number_of_keys(engine):
    wide = survey(engine=engine, top=20)
    assert wide.top.keys.shape == (2, 4, 6, 20)
    assert (wide.top.keys[..., 6:] == -1).all()
    assert not wide.top.weights[..., 6:].any()
    assert (wide.top.keys[:, :, -1, :6].sort().values == torch.arange(6)).all()


@on_every_engine
def test_a_nan_reaches_only_the_queries_that_see_it(engine):
    broken = k.clone()
    broken[0, 0, 4] = torch.nan
    got, clean = survey(k=broken, engine=engine), survey(engine=engine)
    assert got.lse[0, :2, 4:].isnan().all()
    assert_close(got.lse[0, :2, :4], clean.lse[0, :2, :4])
    assert_close(got.lse[1], clean.lse[1])
    assert_close(got.top.keys[1], clean.top.keys[1])


def test_the_error_of_by_sum_names_the_row_that_sums_to_zero(monkeypatch):
    monkeypatch.setitem(chunked.SCORES, "cpu", 2)
    keys = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]).expand(1, 2, 2, 2)
    queries = torch.ones(1, 2, 3, 2)
    queries[0, 1, 2, 1] = 0.0
    with pytest.raises(ValueError, match="by_sum: the scores of batch 0, head 1, query 2 sum to zero"):
        ts.survey(queries, keys, ts.Attention(scale=1.0, normalize=ts.by_sum))


def test_nothing_is_printed(capfd):
    whole = survey(map=(2, 2), values=t(2, 2, 6, 8), lse=lse)
    whole.map(3, 3, "max")
    whole.extend(q[:, :, :1], k[:, :, :1], values=t(2, 2, 1, 8))
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------------------------ out of memory


def test_blocks_get_smaller_where_memory_runs_out(monkeypatch):
    tried, honest = [], chunked._summarize

    def tight(*arguments):
        tried.append(arguments[-1])
        if arguments[-1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(*arguments)

    whole = survey()
    monkeypatch.setattr(chunked, "_summarize", tight)
    monkeypatch.setitem(chunked.SCORES, "cpu", 1000)
    assert_close(survey().received, whole.received)
    assert tried == [1000, 500, 250, 125, 62]


def test_the_error_where_a_single_row_does_not_fit(monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.\nMore advice.")

    monkeypatch.setattr(chunked, "_summarize", full)
    with pytest.raises(torch.OutOfMemoryError) as problem:
        survey()
    message = str(problem.value)
    assert message.startswith("survey of 6 queries and 6 keys: cpu has no memory left")
    assert "survey fewer heads" in message
    assert "\n" not in message
    assert problem.value.__context__ is None or problem.value.__suppress_context__
