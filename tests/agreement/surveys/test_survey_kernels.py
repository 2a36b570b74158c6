"""The Triton kernels of `survey`, interpreted where there is no GPU, give the numbers of its `reference`."""

import pytest
import torch

import telescope as ts
from support.needs import need_triton
from support.searching import WatchedSearch
from support.strategies import Shape, assert_near, normal, tensors
from telescope.attention import values
from telescope.surveys import device, launch, matrix, reference
from telescope.surveys import triton as engine
from telescope.surveys.requests import Extras, grid, segments

need_triton()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them on the GPU")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Set tiles of 16 rows and 32 keys, so that a small matrix has many."""
    for module in (matrix, launch):
        monkeypatch.setattr(module, "BM", 16)
    for module in (matrix, launch, engine):
        monkeypatch.setattr(module, "BN", 32)
    monkeypatch.setattr(engine, "CHECKED_TILES", 1)
    monkeypatch.setattr(matrix, "BLOCK", 32)
    monkeypatch.setattr(launch, "GROUP", 2)
    monkeypatch.setattr(launch, "PLACED_BLOCKS", 2)
    monkeypatch.setattr(launch, "LEAST_KEYS", 32)
    monkeypatch.setattr(launch, "MANY_TILES", 1)
    monkeypatch.setattr(launch, "SPLIT", torch.float16)  # the interpreter multiplies no bfloat16


def surveyed(q, k, attention, *, top=3, cells=None, lse=None):
    """Return the summary of the kernels, after comparing all but the keys with reference in float64."""
    truth = reference.summarize(q.double(), k.double(), attention, None, top, cells)
    got = engine.summarize(q, k, attention, lse, top, cells)
    for name in ("lse", "entropy", "received", "top_weights", "map"):
        mine, exact = getattr(got, name), getattr(truth, name)
        assert (mine is None) == (exact is None)
        if mine is not None:
            seen = exact.isfinite()
            assert torch.equal(mine.isfinite(), seen)
            assert_near(mine[seen], exact[seen], torch.float32, unit=32.0)
    return got, truth


TEXTS = [0] * 13 + [1] * 30 + [2] * 2 + [3] * 8
CASES = {
    "causal": (Shape(1, 1, 1, 53, 53, 16), ts.Attention(mask=ts.causal)),
    "grouped heads, everyone": (Shape(1, 2, 1, 20, 37, 16), ts.Attention()),
    "more queries than keys": (Shape(1, 1, 1, 40, 17, 16), ts.Attention(mask=ts.causal)),
    "window, softcap, a width of 20": (
        Shape(1, 1, 1, 53, 53, 20),
        ts.Attention(softcap=2.0, mask=ts.causal & ts.window(9)),
    ),
    "documents, padding": (
        Shape(2, 1, 1, 53, 53, 16),
        ts.Attention(mask=ts.causal & ts.documents(TEXTS) & ts.padding([0, 40])),
    ),
    "a mask without a span, alibi": (Shape(1, 1, 1, 53, 53, 16), ts.Attention(bias=ts.alibi(1), mask=~ts.window(5))),
    "relative, sink": (
        Shape(2, 1, 1, 33, 33, 16),
        ts.Attention(bias=ts.relative(normal(1, 9, seed=5)), sink=0.5, mask=ts.padding([0, 30])),
    ),
    "a bias by a function": (
        Shape(1, 1, 1, 33, 33, 16),
        ts.Attention(bias=lambda i, j: torch.cos(i + 2.0 * j), mask=ts.causal),
    ),
    "a bias that hides": (
        Shape(1, 1, 1, 20, 20, 16),
        ts.Attention(bias=ts.from_additive(torch.where(normal(20, 20, seed=3) > 0.5, -torch.inf, 0.5))),
    ),
    "general": (Shape(1, 1, 1, 20, 20, 16), ts.Attention(score=ts.general(normal(16, 16, seed=4)), scale=-0.1)),
}


@pytest.mark.parametrize(("shape", "attention"), CASES.values(), ids=CASES)
def test_kernels_agree(shape, attention):
    q, k, _ = tensors(shape, dtype=torch.float32)
    got, truth = surveyed(q, k, attention)
    assert torch.equal(got.top_keys, truth.top_keys)


SPANS = {name: case for name, case in CASES.items() if "bias" not in name and "span" not in name}


@pytest.mark.parametrize(("shape", "attention"), SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("off", [0.0, 0.25], ids=["right", "wrong"])
def test_the_check_of_an_lse_agrees(shape, attention, off):
    q, k, _ = tensors(shape, dtype=torch.float32)
    lse = reference.summarize(q, k, attention, None, 0, None).lse + off
    batch, heads, rows = (range(0, size, max(1, size - 1)) for size in lse.shape)
    got = engine.row_numbers(q, k, attention, lse, batch, heads, rows)
    exact = reference.row_numbers(q, k, attention, lse, batch, heads, rows)
    seen = exact[3] > 0
    assert torch.equal(got[3] > 0, seen)
    assert_near(got[:, seen], exact[:, seen], torch.float32, unit=32.0)


def test_the_check_leaves_tables_to_pytorch():
    q, k, _ = tensors(Shape(1, 1, 1, 20, 20, 16), dtype=torch.float32)
    one = range(1)
    assert engine.row_numbers(q, k, ts.Attention(mask=~ts.window(5)), q[..., 0], one, one, one) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_any_layout_and_a_given_lse(dtype, layout):
    q, k, _ = tensors(Shape(1, 2, 2, 37, 37, 16), dtype=dtype, layout=layout)
    attention = ts.Attention(mask=ts.causal)
    lse = reference.summarize(q, k, attention, None, 0, None).lse
    surveyed(q, k, attention, lse=lse, top=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["causal", "documents, padding", "a mask without a span, alibi", "general"])
def test_what_is_asked_for_besides(name, dtype):
    shape, attention = CASES[name]
    q, k, _ = tensors(shape, dtype=dtype)
    weights = normal(1, 1, 3, shape.queries, seed=1).float()
    extras = Extras(weights, normal(shape.batch, shape.heads, shape.keys, seed=2).abs().float(), True)
    ids, size = (torch.arange(shape.queries), torch.arange(shape.keys) // 7), (shape.queries, shape.keys)
    cells = segments(ids, "share", of=size, batch=shape.batch, device=q.device)
    truth = reference.summarize(q.double(), k.double(), attention, None, 0, cells, extras)
    got = engine.summarize(q, k, attention, None, 0, cells, extras)
    for field in ("weighted", "carried", "largest_weight", "map"):
        assert_near(getattr(got, field), getattr(truth, field), torch.float32, unit=32.0)
    assert torch.equal(got.largest_query, truth.largest_query)
    for sets in (1, 3, 20):  # in one kernel, in another, and in more than one launch of it
        weights = normal(1, shape.heads, sets, shape.queries, seed=sets).float()
        exact = reference.summarize(q.double(), k.double(), attention, None, 0, None, Extras(weights.double()))
        assert_near(engine.weigh(q, k, attention, got.lse, weights), exact.weighted, torch.float32, unit=32.0)


def test_bands_of_rows_agree_on_the_largest(monkeypatch):
    """Later bands raise what earlier ones found, and count rows from the first of all."""
    monkeypatch.setattr(engine, "MEMORY", 1)
    q, k, _ = tensors(Shape(1, 2, 1, 53, 53, 16), dtype=torch.float32)
    attention = ts.Attention(mask=ts.causal)
    extras = Extras(normal(1, 2, 2, 53, seed=1).float(), normal(1, 2, 53, seed=2).float(), True)
    truth = reference.summarize(q.double(), k.double(), attention, None, 0, None, extras)
    got = engine.summarize(q, k, attention, None, 0, None, extras)
    assert torch.equal(got.largest_query, truth.largest_query)
    assert_near(got.carried, truth.carried, torch.float32, unit=32.0)
    assert_near(got.weighted, truth.weighted, torch.float32, unit=32.0)


def test_ties_go_to_the_lower_key():
    q, k = (normal(1, 1, 40, 16, seed=seed).sign().float() for seed in (0, 1))
    got, truth = surveyed(q, k, ts.Attention(scale=1.0), top=4)
    assert torch.equal(got.top_keys, truth.top_keys)


@pytest.mark.parametrize("n", [34, 100], ids=["few", "more than are compared"])
def test_rows_of_equal_scores(n):
    q = torch.zeros(1, 1, n, 16)
    got, _ = surveyed(q, q, ts.Attention(mask=ts.causal), top=2)
    assert got.top_keys[0, 0, :, 0].unique().tolist() == [0]
    assert got.top_keys[0, 0, 1:, 1].unique().tolist() == [1]


def test_a_row_with_more_candidate_blocks_than_capacity(monkeypatch):
    monkeypatch.setattr(matrix, "search_capacity", lambda top: (1, 64))
    q, k, _ = tensors(Shape(1, 1, 1, 20, 70, 16), dtype=torch.float32)
    got, truth = surveyed(q, k, ts.Attention(mask=ts.causal))
    assert torch.equal(got.top_keys, truth.top_keys)


@pytest.mark.parametrize("first", [0, 1], ids=["after a survey without a top", "at once"])
def test_a_search_looks_at_few_blocks(monkeypatch, first):
    monkeypatch.setattr(device, "LaunchCache", WatchedSearch)
    device._launch_cache.cache_clear()
    q, k, _ = tensors(Shape(1, 1, 1, 32, 320, 16), dtype=torch.float32)
    for top in (first, 1):
        got, truth = surveyed(q, k, ts.Attention(), top=top)
    device._launch_cache.cache_clear()
    assert torch.equal(got.top_keys, truth.top_keys)
    blocks, keys, overfull = WatchedSearch.seen
    assert blocks < 2  # of ten
    assert keys < 2  # of 320
    assert overfull == 0


def test_a_tile_of_several_blocks(monkeypatch):
    """The maximum of each block is noted; the last block is beyond the last key."""
    for module in (matrix, launch, engine):
        monkeypatch.setattr(module, "BN", 64)
    q, k, _ = tensors(Shape(1, 1, 1, 20, 80, 16), dtype=torch.float32)
    for mask in (ts.causal, ts.everyone, ts.causal & ts.window(9)):
        got, truth = surveyed(q, k, ts.Attention(mask=mask))
        assert torch.equal(got.top_keys, truth.top_keys)


def test_tiny_weights_are_ranked():
    """Maxima below the range of 16 bits are known only roughly; hidden keys come after them."""
    q, k, _ = tensors(Shape(1, 1, 1, 20, 70, 16), dtype=torch.float32)
    for slope in (1e3, 6e3, 1e6):
        got, truth = surveyed(q, k, ts.Attention(bias=lambda i, j, s=slope: -s * j.float(), mask=ts.causal))
        assert torch.equal(got.top_keys, truth.top_keys)


def test_bands_of_rows(monkeypatch):
    """With memory for one tile of rows at a time, and a map that does not fit the tiles."""
    monkeypatch.setattr(engine, "MEMORY", 1)
    q, k, _ = tensors(Shape(1, 1, 1, 40, 40, 16), dtype=torch.float32)
    mask = ts.causal & ts.from_tensor(normal(40, 40, seed=9) > 0)
    surveyed(q, k, ts.Attention(mask=mask), cells=grid(7, 9, "share", of=(40, 40), device=q.device))


FITTING = {"one tile and half of one": (4, 4), "two rows of tiles": (2, 2), "one": (1, 1), "wide": (4, 1)}


@pytest.mark.parametrize("size", FITTING.values(), ids=FITTING)
@pytest.mark.parametrize("memory", [2**29, 1], ids=["one band", "bands"])
def test_a_map_that_fits_the_tiles(monkeypatch, size, memory):
    """It is summed with the rest, without a pass of its own."""
    monkeypatch.setattr(engine, "MEMORY", memory)
    monkeypatch.setattr(engine, "survey_map", None)
    q, k, _ = tensors(Shape(2, 2, 1, 64, 64, 16), dtype=torch.float32)
    attention = ts.Attention(mask=ts.causal & ts.padding([64, 40]))
    cells = grid(*size, "share", of=(64, 64), device=q.device)
    got, truth = surveyed(q, k, attention, top=0, cells=cells)
    assert_near(engine.pool(q, k, attention, got.lse, cells), truth.map, torch.float32, unit=4.0)


# Rows and columns of a map → queries and keys. A program pools one column of cells, so that maps of every key are slow.
EVEN = {(1, 1): (53, 90), (2, 3): (53, 90), (5, 2): (53, 90), (53, 1): (53, 90), (4, 40): (21, 40), (21, 40): (21, 40)}


@pytest.mark.parametrize("how", ["share", "max"])
@pytest.mark.parametrize(("size", "of"), EVEN.items(), ids=str)
def test_a_map_of_even_cells(monkeypatch, how, size, of):
    """Cells wider than a tile, narrower, and of one weight; rows and columns that differ by one."""
    monkeypatch.setattr(engine, "LEAST_RUN", 16)
    queries, keys = of
    q, k, _ = tensors(Shape(1, 2, 1, queries, keys, 16), dtype=torch.float32)
    # The last rows see none of the first keys, and the first rows none of the last.
    attention = ts.Attention(mask=ts.causal & ts.window(2 * keys // 3), sink=0.5)
    cells = grid(*size, how, of=of, device=q.device)
    surveyed(q, k, attention, top=0, cells=cells)


def test_programs_share_the_keys_of_a_map(monkeypatch):
    monkeypatch.setattr(engine, "MEMORY", 1)
    for filling in (1, 2**20):
        monkeypatch.setattr(launch, "FILLING", filling)
        q, k, _ = tensors(Shape(1, 1, 1, 20, 70, 16), dtype=torch.float32)
        surveyed(q, k, ts.Attention(), top=0, cells=grid(3, 5, "share", of=(20, 70), device=q.device))


@pytest.mark.parametrize("how", ["share", "max"])
def test_maps_alone(how):
    q, k, _ = tensors(Shape(2, 1, 1, 23, 40, 16), dtype=torch.float32)
    attention = ts.Attention(mask=ts.causal & ts.padding([40, 9]))
    ids = torch.stack([torch.arange(40) // 9, torch.arange(40) % 3])
    for cells in (
        grid(3, 5, how, of=(23, 40), device=q.device),
        segments(ids, how, of=(23, 40), batch=2, device=q.device),
    ):
        truth = reference.summarize(q.double(), k.double(), attention, None, 0, cells).map
        assert_near(engine.pool(q, k, attention, None, cells), truth, torch.float32, unit=4.0)


def test_bands_get_smaller_where_memory_runs_out(monkeypatch):
    q, k, _ = tensors(Shape(1, 1, 1, 40, 40, 16), dtype=torch.float32)
    attention, heights, start = ts.Attention(mask=ts.causal), [], launch.survey_rows

    def short_of_memory(launcher, band, *arguments):
        heights.append(band.queries.shape[-2])
        if launcher is start and band.queries.shape[-2] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        launcher(band, *arguments)

    monkeypatch.setattr(engine, "run", short_of_memory)
    monkeypatch.setattr(engine, "MEMORY", 2**17)
    monkeypatch.setattr(engine, "LEAST", 1)
    surveyed(q, k, attention)
    assert heights[-1] <= 16 < max(heights)
    monkeypatch.setattr(engine, "LEAST", 2**16)
    with pytest.raises(torch.OutOfMemoryError, match="40 queries and 40 keys: cpu has no memory left"):
        engine.summarize(q, k, attention, None, 3, None)


def test_a_mask_that_is_written_to_is_read_again():
    """Spans are cached for all layers of a model, by the mask itself and how often its tensors were written to."""
    q, k, _ = tensors(Shape(1, 1, 1, 40, 40, 16), dtype=torch.float32)
    texts = torch.tensor([0] * 20 + [1] * 20)
    attention = ts.Attention(mask=ts.causal & ts.documents(texts))
    held = next(iter(values.tensors(attention.mask)))
    before, _ = surveyed(q, k, attention)
    matrix._spans_and_event.cache_clear()
    surveyed(q, k, attention)
    surveyed(q, k, attention)
    assert matrix._spans_and_event.cache_info().hits > 0
    held[..., 20:30] = held[..., 0:1].clone()
    after, _ = surveyed(q, k, attention)
    assert not torch.equal(before.lse, after.lse)
