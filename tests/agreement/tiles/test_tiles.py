"""The map: every tile at every level, compared with the whole matrix in float64, for any definition."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from math import log2
from threading import get_ident
from time import sleep

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.small_blocks import small_blocks
from support.strategies import Shape, definitions, normal, seeds, shapes, tensors
from telescope.recording.attention_call import CallFacts
from telescope.recording.queries_keys_call import OneHead, QueriesKeysCall, one_head
from telescope.recording.storage import GrowingTensor
from telescope.tiles import Pyramid, Tiles
from telescope.tiles.scores import sum_rows
from telescope.tiles.tiles import SHARED, sample_queries

inf = torch.inf


def head(queries, keys, attention=ts.Attention(), d=16, dtype=torch.float32, seed=0):
    q, k = (normal(1, 1, n, d, seed=seed + i, dtype=dtype) for i, n in enumerate((queries, keys)))
    return OneHead(q, k, None, attention)


def matrix(one):
    """Return log2 of every weight in float64, -inf where a pair is masked."""
    (queries, keys), attention = one.size, one.attention
    at = ts.Pairs.block(range(queries), range(keys), of=(queries, keys))
    masked = attention.masked_scores(one.queries.double(), one.keys.double(), at)
    lse = torch.logsumexp(masked, -1, keepdim=True)
    if attention.sink is not None:
        lse = torch.logaddexp(lse, torch.as_tensor(attention.sink).double().reshape(-1, 1, 1))
    return torch.where(masked == -inf, -inf, (masked - lse) * log2(torch.e))[0, 0]


def pooled(logs, cells, how):
    """Pool the matrix by loops over pixels, as the definition says."""
    height, width = (-(-n // cells) for n in logs.shape)
    picture = torch.full((height, width), -inf, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            cell = logs[i * cells : (i + 1) * cells, j * cells : (j + 1) * cells]
            picture[i, j] = cell.max() if how == "max" else (cell.exp2().sum() / len(cell)).log2()
    return picture


def pooled_fast(logs, cells, how):
    """Pool a matrix whose side `cells` divides."""
    parts = logs.view(logs.shape[0] // cells, cells, logs.shape[1] // cells, cells)
    return parts.amax((1, 3)) if how == "max" else (parts.exp2().sum((1, 3)) / cells).log2()


def all_tiles(tiles, z):
    pyramid = tiles.pyramid
    return [(x, y, tiles.tile(z, x, y, budget=2**40)) for y in range(2**z) for x in range(2**z) if pyramid.has(z, x, y)]


def put_together(tiles, z):
    """Return all tiles of a level side by side, cropped to the matrix."""
    side, cells = tiles.pyramid.side, tiles.pyramid.cells(z)
    height, width = (-(-n // cells) for n in tiles.scores.size)
    whole = {how: torch.full((2**z * side, 2**z * side), torch.nan) for how in ("share", "max")}
    for x, y, tile in all_tiles(tiles, z):
        assert tile.exact
        assert tile.samples == cells
        for how, numbers in whole.items():
            numbers[y * side : (y + 1) * side, x * side : (x + 1) * side] = getattr(tile, how)
    for numbers in whole.values():
        assert numbers[height:].isnan().all()
        assert numbers[:, width:].isnan().all()
    return {how: numbers[:height, :width] for how, numbers in whole.items()}


# ------------------------------------------------------------------------------------------------------------- golden


def test_tiles_by_hand():
    """Queries of zeros see all keys alike: causal, row i gives 1 / (i + 1). A pixel has two queries and two keys."""
    one = OneHead(torch.zeros(1, 1, 512, 4), torch.zeros(1, 1, 512, 4), None, ts.Attention(mask=ts.causal))
    tile = Tiles(one).tile(0, 0, 0)
    share, largest = tile.share.exp2(), tile.max.exp2()
    assert_close(share[0, 0].item(), 1.0)  # (1 + (1/2 + 1/2)) / 2
    assert_close(share[1, 0].item(), (2 / 3 + 2 / 4) / 2)
    assert_close(share[1, 1].item(), (1 / 3 + 2 / 4) / 2)
    assert_close(largest[1, :2].tolist(), [1 / 3, 1 / 3])
    assert tile.share[0, 1] == tile.max[0, 1] == -inf
    deepest = Tiles(one).tile(1, 0, 1)
    assert_close(deepest.share[44, 7].exp2().item(), 1 / 301)


def test_tracks_by_hand():
    one = OneHead(torch.zeros(1, 1, 512, 4), torch.zeros(1, 1, 512, 4), None, ts.Attention(mask=ts.causal))
    tiles, n = Tiles(one), 512
    ln = torch.arange(1, n + 1).double().log()
    assert_close(tiles.entropies(0, 0).numbers.double(), ln.view(-1, 2).mean(1), atol=1e-5, rtol=0)
    received = torch.tensor([sum(1 / (i + 1) for i in range(j, n)) for j in range(n)]).double() / n
    assert_close(tiles.received(0, 0).numbers.double(), received.view(-1, 2).sum(1), atol=1e-7, rtol=1e-5)
    assert_close(tiles.received(1, 1).numbers.double(), received[256:], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    ("n", "zoom"), [(1, 0), (256, 0), (257, 1), (512, 1), (513, 2), (4096, 4), (4097, 5), (131072, 9), (2**20, 12)]
)
def test_number_of_levels(n, zoom):
    assert Pyramid(n, n).max_zoom == Pyramid(1, n).max_zoom == Pyramid(n, 1).max_zoom == zoom
    assert Pyramid(n, n).cells(zoom) == 1


# ---------------------------------------------------------------------------------------------------------- agreement


@cache
def long():
    one = head(4096, 4096, ts.Attention(mask=ts.causal), d=32)
    return Tiles(one), matrix(one)


@pytest.mark.parametrize("z", range(5))
def test_every_tile_of_4096_tokens_is_the_matrix(z):
    tiles, logs = long()
    got = put_together(tiles, z)
    for how, picture in got.items():
        truth = pooled_fast(logs, tiles.pyramid.cells(z), how)
        assert torch.equal(picture == -inf, truth == -inf)
        seen = truth > -inf
        assert (picture[seen] - truth[seen]).abs().max() < 1e-4  # bits; the page is promised 0.02


@given(st.data(), shapes(), seeds, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_any_head_of_any_definition(data, shape, seed, dtype):
    """One head of one sequence of a call, of random masks, biases and scores; tiles of 4 x 4."""
    with small_blocks() if data.draw(st.booleans()) else nullcontext():
        tiles_are_the_matrix(data, shape, seed, dtype)


def tiles_are_the_matrix(data, shape, seed, dtype):
    attention = data.draw(definitions(shape))
    q, k, _ = tensors(shape, seed, dtype)
    number, sequence = data.draw(st.integers(0, shape.heads - 1)), data.draw(st.integers(0, shape.batch - 1))
    one = one_head(kept(q, k, attention, shape), number, sequence)
    whole = ts.survey(q.double(), k.double(), attention, top=0, engine="reference").rows(range(shape.queries))
    truth = whole[sequence, number]
    tiles, logs = Tiles(one, side=4), matrix(one)
    for z in range(tiles.pyramid.max_zoom + 1):
        got, cells = put_together(tiles, z), tiles.pyramid.cells(z)
        expected = {how: pooled(logs, cells, how) for how in ("share", "max")}
        for how, picture in got.items():
            assert torch.equal(picture == -inf, expected[how] == -inf)
            seen = expected[how] > -inf
            assert_close(picture[seen].double(), expected[how][seen], atol=2e-4, rtol=1e-5)
        sums = got["share"].double().exp2().sum(1)
        rows = torch.stack([part.sum(1).mean() for part in truth.split(cells)])
        assert_close(sums, rows, atol=1e-5, rtol=1e-5)


def kept(q, k, attention, shape):
    facts = CallFacts("some", tuple(range(shape.heads)), 0.0, attention, (shape.queries, shape.keys), None,
                  (shape.batch, shape.key_heads, shape.d_k, shape.d_k), q.dtype, q.device)  # fmt: skip
    return QueriesKeysCall._opened(facts, {"queries": GrowingTensor(q, 2), "keys": GrowingTensor(k, 2)})


@pytest.mark.parametrize(
    ("queries", "keys"), [(1000, 1000), (1, 1), (1, 700), (700, 1), (300, 700), (700, 300), (521, 521)]
)
@pytest.mark.parametrize("mask", [ts.everyone, ts.causal, ts.causal & ts.window(100)], ids=repr)
def test_matrices_that_tiles_do_not_divide(queries, keys, mask):
    one = head(queries, keys, ts.Attention(mask=mask, sink=0.5))
    tiles, logs = Tiles(one), matrix(one)
    for z in range(tiles.pyramid.max_zoom + 1):
        cells = tiles.pyramid.cells(z)
        full = [-(-n // cells) * cells for n in logs.shape]
        padded = torch.full(full, -inf, dtype=torch.float64)
        padded[:queries, :keys] = logs
        many = torch.tensor([len(range(i, min(i + cells, queries))) for i in range(0, queries, cells)])
        for how, picture in put_together(tiles, z).items():
            truth = pooled_fast(padded, cells, how)
            truth = truth + log2(cells) - many.double().log2()[:, None] if how == "share" else truth
            assert torch.equal(picture == -inf, truth == -inf)
            assert_close(picture.double(), truth, atol=2e-4, rtol=1e-5)


def test_tracks_equal_the_survey():
    one = head(700, 900, ts.Attention(mask=ts.causal, softcap=3.0, sink=0.3))
    tiles, seen = Tiles(one), ts.survey(one.queries, one.keys, one.attention, top=0)
    deepest = tiles.pyramid.max_zoom
    entropy = torch.cat([tiles.entropies(deepest, y).numbers for y in range(3)])
    received = torch.cat([tiles.received(deepest, x).numbers for x in range(4)])
    assert_close(entropy[:700], seen.entropy[0, 0], atol=2e-5, rtol=1e-5)
    assert_close(received[:900] * 700, seen.received[0, 0], atol=1e-5, rtol=1e-4)
    assert_close(tiles.row_sums.lse.double() / log2(torch.e), seen.lse[0, 0].double(), atol=1e-5, rtol=1e-6)
    assert entropy[700:].isnan().all()
    assert received[900:].isnan().all()


# --------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("mask", [ts.everyone, ts.causal], ids=repr)
def test_a_parent_is_its_children_pooled(mask):
    tiles = Tiles(head(1000, 1300, ts.Attention(mask=mask)))
    for z in range(tiles.pyramid.max_zoom):
        parent, children = put_together(tiles, z), put_together(tiles, z + 1)
        rows, columns = children["share"].shape
        even = (rows + rows % 2, columns + columns % 2)
        for how in ("share", "max"):
            padded = torch.zeros(even).double()
            padded[:rows, :columns] = children[how].double().exp2()
            parts = padded.view(even[0] // 2, 2, even[1] // 2, 2)
            count = torch.tensor(
                [min(tiles.pyramid.cells(z + 1), 1000 - i * tiles.pyramid.cells(z + 1)) for i in range(rows)]
            )
            weight = torch.zeros(even[0]).double()
            weight[:rows] = count
            weight = weight.view(-1, 2, 1, 1)
            made = parts.amax((1, 3)) if how == "max" else (parts * weight).sum((1, 3)) / weight.sum((1, 3))
            assert_close(made, parent[how].double().exp2(), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("budget", [1, 2**17])
def test_a_sampled_tile_is_marked_and_is_the_mean_of_its_rows(budget):
    """Rows still sum to one, since all keys of a sampled query are read."""
    one = head(2000, 2000, ts.Attention(mask=ts.causal))
    logs, sampled = matrix(one), 0
    for z in range(4):
        for y in range(2**z):
            tiles = Tiles(one)
            pyramid, cells = tiles.pyramid, tiles.pyramid.cells(z)
            row = [tiles.tile(z, x, y, budget) for x in range(2**z)]
            assert row[0].exact == (row[0].samples == cells)
            sampled += not row[0].exact
            there = -(-len(pyramid.queries_of(z, y)) // cells)
            if len({tile.samples for tile in row}) == 1:
                sums = torch.cat([tile.share.exp2() for tile in row], 1).nansum(1)
                assert_close(sums[:there], torch.ones(there), atol=1e-5, rtol=0)
            stretch, far = int(cells / row[0].samples), max(cells, int(cells / row[0].samples))
            rows, first = sample_queries(pyramid.queries_of(z, y), stretch), pyramid.queries_of(z, y).start
            keys = pyramid.keys_of(z, 0)
            for pixel in range(0, there, 7):
                some = rows[(rows - first) // far == pixel * cells // far]
                mean = logs[some][:, keys.start : keys.start + cells].exp2().sum(1).mean()
                assert_close(row[0].share[pixel, 0].exp2().double(), mean, atol=1e-6, rtol=1e-4)
    assert sampled


def test_the_same_request_has_the_same_answer():
    one = head(3000, 3000, ts.Attention(mask=ts.causal))
    first, second = (Tiles(one).tile(0, 0, 0, budget=2**20) for _ in range(2))
    assert not first.exact
    assert torch.equal(first.share.view(torch.int32), second.share.view(torch.int32))
    assert torch.equal(first.max.view(torch.int32), second.max.view(torch.int32))


def test_a_tile_keeps_the_precision_of_an_earlier_larger_budget():
    """A larger budget samples more rows; afterwards a small budget shows as many. Neighbouring tiles sample alike."""
    tiles = Tiles(head(2000, 2000))
    small, large = 2**21, 2**22
    first, again, closer, now = (tiles.tile(0, 0, 0, budget).samples for budget in (small, small, large, small))
    assert first == again < closer == now
    assert len({tiles.tile(2, x, 1, budget=2**19).samples for x in range(4)}) == 1
    assert tiles.tile(0, 0, 0, budget=2**30).exact


@pytest.mark.parametrize("sink", [None, 0.7])
def test_with_the_sums_of_a_recording_a_tile_costs_its_pixels_alone(sink):
    one = head(3000, 3000, ts.Attention(mask=ts.causal, sink=sink))
    lse = ts.survey(one.queries, one.keys, one.attention, top=0).lse
    given, enough = Tiles(one._replace(lse=lse)), SHARED * 256 * 256
    assert given.summed_fraction == 1.0
    for x, y in ((0, 0), (3, 5), (11, 11)):
        learning, truth = Tiles(one).tile(4, x, y, enough), Tiles(one).tile(4, x, y, 2**40)
        tile = given.tile(4, x, y, enough)
        assert tile.exact
        assert y == 0 or not learning.exact
        assert_close(tile.share, truth.share, atol=1e-4, rtol=0, equal_nan=True)
        assert_close(tile.max, truth.max, atol=1e-4, rtol=0, equal_nan=True)
    assert not given.row_sums.summed.any()
    expected = Tiles(one).entropies(2, 1, 2**40).numbers
    assert_close(given.entropies(2, 1, 2**40).numbers, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("wrong", [lambda lse: lse * log2(torch.e), lambda lse: lse + 0.1, torch.zeros_like])
def test_wrong_row_sums_are_computed_again(wrong):
    one = head(600, 600, ts.Attention(mask=ts.causal))
    lse = ts.survey(one.queries, one.keys, one.attention, top=0).lse
    tiles = Tiles(one._replace(lse=wrong(lse)))
    assert tiles.summed_fraction == 0.0
    assert torch.equal(tiles.tile(0, 0, 0).share.nan_to_num(), Tiles(one).tile(0, 0, 0).share.nan_to_num())


def test_threads_share_the_row_sums(monkeypatch):
    """Each row is summed once, by one of several threads; if a thread fails, the others compute its rows."""
    one = head(2000, 2000, ts.Attention(mask=ts.causal))
    tiles, summed, failing = Tiles(one), [], [True]

    def slowly(scores, rows):
        if failing and failing.pop():
            sleep(0.02)
            raise RuntimeError("no more")
        summed.append((get_ident(), rows))
        sleep(0.01)
        return sum_rows(scores, rows)

    monkeypatch.setattr("telescope.tiles.scores.sum_rows", slowly)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(tiles.tile, 0, 0, 0, 2**40) for _ in range(4)]
        problems = [one.exception() for one in futures]
    assert sorted(map(str, filter(None, problems))) == ["no more"]
    assert torch.equal(torch.cat([rows for _, rows in summed]).sort().values, torch.arange(2000))
    assert len({thread for thread, _ in summed}) > 1
    truth = Tiles(one).tile(0, 0, 0, 2**40).share
    for done in futures:
        assert done.exception() or torch.equal(done.result().share.nan_to_num(), truth.nan_to_num())


@given(st.integers(0, 8), st.integers(0, 5), st.integers(1, 3000))
def test_one_query_of_each_interval_is_sampled_and_kept_on_finer_levels(deep, before, count):
    stretch = 2**deep
    there = range(before * stretch, before * stretch + count)
    some = sample_queries(there, stretch)
    assert torch.equal(some // stretch, torch.arange(before, before + len(some)))
    assert int(some[-1]) < there.stop
    finer = sample_queries(there, max(1, stretch // 2))
    assert set(some.tolist()) <= set(finer.tolist())


def test_sampled_queries_are_drawn_evenly():
    places = sample_queries(range(2**18), 16) % 16
    counts = torch.bincount(places, minlength=16)
    assert counts.sum() == 2**14
    assert (counts - 1024).abs().max() < 150  # 1,024 ± 31 each, nearly five times that


@pytest.mark.parametrize("cells", [1, 2, 8])
def test_a_tiny_weight_is_not_masked(cells):
    """Keys 1,000 nats below the best one underflow an exponential; they are visible all the same."""
    n = 256 * cells
    keys = torch.zeros(1, 1, n, 1)
    keys[..., 0, 0] = 1000.0
    one = OneHead(torch.ones(1, 1, n, 1), keys, None, ts.Attention(scale=1.0, mask=ts.causal))
    tile = Tiles(one).tile(0, 0, 0)
    far = tile.share[200, 100]
    assert_close(far.item(), -1000 * log2(torch.e) + log2(cells), atol=1e-2, rtol=0)
    assert tile.share[100, 200] == -inf
    assert tile.share[200, 0] == 0.0


def test_a_row_that_sees_nothing_is_masked():
    keep = torch.zeros(1, 300, dtype=torch.bool)
    for sink in (None, 1.0):
        one = head(300, 300, ts.Attention(mask=ts.padding(keep=keep), sink=sink))
        tile = Tiles(one).tile(1, 0, 0)
        assert (tile.share == -inf).all()
        assert (Tiles(one).entropies(0, 0).numbers[:150] == 0).all()


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("place", [(-1, 0, 0), (3, 0, 0), (0, 1, 0), (2, 0, 4), (2, -1, 0), (2, 3, 0)])
def test_a_tile_outside_of_the_map_is_an_error(place):
    with pytest.raises(ValueError, match="there is no tile"):
        Tiles(head(1000, 700)).tile(*place)


def test_other_normalisers_than_softmax_are_refused():
    with pytest.raises(ValueError, match="softmax"):
        Tiles(head(5, 5, ts.Attention(normalize=ts.by_sum)))


def test_an_unknown_head_or_sequence_is_an_error():
    shape = Shape()
    q, k, _ = tensors(shape)
    call = kept(q, k, ts.Attention(), shape)
    with pytest.raises(ValueError, match="there is no head 2"):
        one_head(call, 2)
    with pytest.raises(ValueError, match="there is no sequence 2"):
        one_head(call, 0, 2)
