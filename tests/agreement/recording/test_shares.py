"""The shares of the habits of heads, on every code path, compared with whole rows in float64 and plain loops."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import telescope as ts
from support.needs import need_triton
from support.strategies import Shape, composite, definitions, normal, seeds, shapes, tensors
from telescope.attention import Pairs
from telescope.attention.regions import RealQueries
from telescope.attention.restrict import restrict_to_queries
from telescope.measures import BatchTokens, Places, habit_sums, habits
from telescope.measures import places as module
from telescope.measures.habits import NAMES
from telescope.measures.table import KEY_RULES, AtOffset, FarKeys, FirstToken, TokenMatch
from telescope.surveys import ENGINES, blocks, fused, launch, matrix, reference, requests, survey_unchecked
from telescope.surveys import shares as within
from telescope.surveys import triton as engine

RULES = [*KEY_RULES.values()]


def belongs(rule, j, place, tokens, first, back):
    """Return whether key j belongs to a habit of the query at this place."""
    match rule:
        case AtOffset(offset):
            return j == place + offset
        case FirstToken():
            return j == first
        case FarKeys():
            return place - j > back
        case TokenMatch(0):
            return tokens[j] == tokens[place] and j < place
        case TokenMatch(steps):
            return first + steps <= j < place and tokens[j - steps] == tokens[place]


def truth(q, k, attention, positions, ids, first, back=module.FAR):
    """Return the sums (batch, heads, sum), from the weights of whole rows."""
    (batch, heads, rows, _), columns = q.shape, k.shape[-2]
    masked = attention.masked_scores(q.double(), k.double(), Pairs.all(torch.empty(batch, heads, rows, columns)))
    weights, seen = attention.weights(masked), masked > -torch.inf
    total = torch.zeros(batch, heads, len(NAMES) + 2, dtype=torch.float64)
    for b in range(batch):
        tokens = ids[b].tolist()
        for row, place in enumerate(positions):
            if place <= first[b]:
                continue
            habits = [[belongs(rule, j, place, tokens, first[b], back) for j in range(columns)] for rule in RULES]
            same = [tokens[j] == tokens[place] and j < place for j in range(columns)]
            counts = seen[b, :, row].any(-1)
            again = (seen[b, :, row] & torch.tensor(same)).any(-1) & counts
            share = weights[b, :, row] @ torch.tensor(habits).double().T
            counting = [again if isinstance(rule, TokenMatch) else counts for rule in RULES]
            total[b, :, :-2] += share * torch.stack(counting, 1)
            total[b, :, -2] += counts
            total[b, :, -1] += again
    return total


def placed(attention, shape, text, positions=None, size=None):
    return Places.of(
        attention,
        batch=shape.batch,
        heads=shape.heads,
        size=size or (shape.queries, shape.keys),
        positions=positions,
        across=False,
        text=text,
        device=torch.device("cpu"),
    )


def summed(q, k, attention, places, top=1, *, path=""):
    if "pass" in path:
        marks = places.marks(len(q) // max(places.batch, 1))
        engine = "fused" if "fused" in path and fused.cannot(q, k, attention) is None else "chunked"
        summary = survey_unchecked(q, k, attention, top=top, engine=engine, marks=marks).summary
        assert summary.single is not None
        assert (summary.listed is not None) == (engine == "fused" and bool(marks.listed))
    else:
        summary = reference.summarize(q, k, attention, None, top, None)
    return habit_sums(q, k, attention, summary, places)


@composite
def texts(draw, shape):
    """Draw texts of few different tokens, so that most occur again, with some padding."""
    ids = normal(shape.batch, shape.keys, seed=draw(seeds)).mul(1.5).round().long().abs()
    left = draw(st.lists(st.integers(0, shape.keys), min_size=shape.batch, max_size=shape.batch))
    return ids, left


@st.composite
def cases(draw):
    shape = draw(shapes(square=True))
    shape = replace(shape, queries=draw(st.sampled_from([shape.keys, max(shape.keys - 2, 1)])))
    return shape, draw(definitions(shape)), *draw(texts(shape)), draw(seeds)


@pytest.mark.parametrize("path", ["rows", "lists", "in the pass", "in the fused pass"])
@pytest.mark.parametrize("padded", [False, True])
@settings(max_examples=30)
@given(case=cases())
def test_sums_agree(path, padded, case):
    shape, attention, ids, left, seed = case
    first = [0] * shape.batch
    if padded:
        padding = ts.padding(left=left)
        attention, first = attention.with_extra_mask(padding & RealQueries(padding)), [n % shape.keys for n in left]
    q, k, _ = tensors(shape, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL", {"cpu": 2**16 if path == "rows" else -1})
        patch.setattr(module, "FAR", 3)
        patch.setattr(habits, "BLOCK", {"cpu": 40, "cuda": 40})
        patch.setattr(within, "TILE", 3)
        patch.setattr(requests, "TILE", 3)
        patch.setattr(within, "SCORES", {"cpu": 400, "cuda": 400})
        patch.setattr(blocks, "ROWS", 4)
        places = placed(attention, shape, BatchTokens(ids))
        got = summed(q, k, attention, places, path=path)
    positions = range(shape.keys - shape.queries, shape.keys)
    torch.testing.assert_close(got, truth(q, k, attention, positions, ids, first, 3), rtol=0, atol=1e-9)


@pytest.mark.parametrize("path", ["rows", "lists", "in the pass", "in the fused pass"])
@settings(max_examples=25)
@given(case=cases(), chosen=st.sets(st.integers(0, 16), min_size=1))
def test_sums_of_selected_queries(path, case, chosen):
    shape, attention, ids, _, seed = case
    rows = sorted({row % shape.queries for row in chosen})
    size = (shape.queries, shape.keys)
    q, k, _ = tensors(shape, seed)
    positions = tuple(shape.keys - shape.queries + row for row in rows)
    some = restrict_to_queries(attention, torch.tensor(rows), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL", {"cpu": 2**16 if path == "rows" else -1})
        patch.setattr(within, "TILE", 3)
        patch.setattr(requests, "TILE", 3)
        places = placed(attention, shape, BatchTokens(ids), positions)
        got = summed(q[:, :, rows], k, some, places, path=path)
    expected = truth(q[:, :, rows], k, some, positions, ids, [0] * shape.batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_sums_of_weights_that_by_sum_normalises():
    shape = Shape(2, 2, 1, 9, 9, 4)
    q, k, _ = (tensor.abs() for tensor in tensors(shape))
    attention, ids = ts.Attention(normalize=ts.by_sum, mask=ts.causal), torch.arange(18).view(2, 9) % 4
    got = summed(q, k, attention, placed(attention, shape, BatchTokens(ids)))
    torch.testing.assert_close(got, truth(q, k, attention, range(9), ids, [0, 0]), rtol=0, atol=1e-9)


ATTENTIONS = {
    "causal": ts.Attention(mask=ts.causal),
    "both ways, sink": ts.Attention(sink=torch.tensor([0.5, -1.0])),
    "window, softcap": ts.Attention(mask=ts.causal & ts.window(20), softcap=2.0),
    "documents, padding": ts.Attention(mask=ts.causal & ts.documents([0] * 20 + [1] * 17) & ts.padding(left=[0, 7])),
    "alibi, padding queries": ts.Attention(
        bias=ts.alibi(2), mask=ts.causal & ts.padding(left=[9, 0]) & RealQueries(ts.padding(left=[9, 0]))
    ),
    "relative": ts.Attention(bias=ts.relative(normal(2, 9, seed=5)), mask=ts.causal),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs it on the GPU")
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_the_kernel_agrees(attention, monkeypatch):
    need_triton()
    monkeypatch.setattr(module, "SMALL", {"cpu": -1})
    monkeypatch.setattr(module, "FAR", 9)
    for one in (matrix, launch):
        monkeypatch.setattr(one, "BM", 16)
        monkeypatch.setattr(one, "BN", 32)
    monkeypatch.setattr(engine, "cannot", lambda *given: None)
    shape = Shape(2, 2, 1, 37, 37, 16)
    q, k, _ = tensors(shape, dtype=torch.float32)
    ids = normal(2, 37, seed=9).mul(2.0).round().long().abs()
    left = [9, 0] if "real queries" in str(attention) else [0, 0]
    got = summed(q, k, attention, placed(attention, shape, BatchTokens(ids)))
    torch.testing.assert_close(got, truth(q, k, attention, range(37), ids, left, 9), rtol=0, atol=2e-4)


def test_several_layers_at_once():
    """Batches of several layers, concatenated as the survey queue does it."""
    shape = Shape(2, 2, 1, 12, 12, 4)
    ids, attention = torch.tensor([[1, 2] * 6, [3, 3, 4] * 4]), ts.Attention(mask=ts.causal)
    q, k, _ = tensors(replace(shape, batch=6))
    with pytest.MonkeyPatch.context() as patch:
        for small, path in ((2**16, ""), (-1, ""), (-1, "in the pass"), (-1, "in the fused pass")):
            patch.setattr(module, "SMALL", {"cpu": small})
            got = summed(q, k, attention, placed(attention, shape, BatchTokens(ids)), path=path)
            expected = truth(q, k, attention, range(12), ids.repeat(3, 1), [0] * 6)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_memory_of_a_long_text_grows_with_n():
    """The n x n matrix of one head would take 1.5 GiB."""
    shape = Shape(1, 1, 1, 20_000, 20_000, 4)
    q, k, _ = tensors(shape, dtype=torch.float32)
    ids = torch.randint(0, 20_000, (1, 20_000), generator=torch.Generator().manual_seed(0))
    attention = ts.Attention(mask=ts.causal)
    places = placed(attention, shape, BatchTokens(ids))
    assert places.listed is not None
    assert sum(len(listing._tiles) for listing in places.listed.values()) < 0.1 * (20_000 / within.TILE) ** 2
    summary = ENGINES["chunked"].summarize(q[:, :, -1:], k, attention, None, 1, None)
    last = summary.received[0, 0]
    one = habit_sums(q[:, :, -1:], k, attention, summary, placed(attention, shape, BatchTokens(ids), size=(1, 20_000)))
    far = last[: 20_000 - 1 - module.FAR].sum()
    assert one[0, 0, NAMES.index("far")] == pytest.approx(float(far), abs=1e-5)


def test_tokens_of_32_bits_are_found_as_those_of_64():
    """A token's number times the length of a text exceeds 32 bits for large vocabularies and long texts."""
    ids = 1 + 2**22 * torch.randint(0, 2, (1, 1024), generator=torch.Generator().manual_seed(0))
    found = []
    for dtype in (torch.int32, torch.int64):
        places = Places.of(
            ts.Attention(mask=ts.causal),
            batch=1,
            heads=1,
            size=(1024, 1024),
            positions=None,
            across=False,
            text=BatchTokens(ids.to(dtype)),
            device=torch.device("cpu"),
        )
        found.append([tensor for back in (0, 1) for tensor in places._by_token(back)._tensors])
    for narrow, wide in zip(*found, strict=True):
        assert torch.equal(narrow, wide)
