"""On a GPU, `survey` gives the numbers of its reference in float64."""

import os
import subprocess
import sys

import pytest
import torch

import telescope as ts
from support.searching import WatchedSearch
from telescope.measures import BatchTokens, Places, habit_sums
from telescope.surveys import ENGINES, chunked, device, matrix, reference
from telescope.surveys import shares as within
from telescope.surveys import triton as engine
from telescope.surveys.requests import grid

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),  # within torch's own compiler
]

TEXTS = torch.arange(700) // 150
# name: (batch, heads, key heads, queries, keys, d), dtype, definition
CASES = {
    "causal": ((1, 4, 4, 700, 700, 128), torch.bfloat16, ts.Attention(mask=ts.causal)),
    "whole tiles": ((1, 2, 2, 4096, 4096, 128), torch.bfloat16, ts.Attention(mask=ts.causal)),
    "grouped heads": ((2, 6, 2, 300, 300, 64), torch.float16, ts.Attention(mask=ts.causal)),
    "two sequences": ((1, 2, 2, 100, 700, 64), torch.float32, ts.Attention()),
    "one query": ((2, 4, 2, 1, 700, 64), torch.bfloat16, ts.Attention(mask=ts.causal)),
    "window, softcap": (
        (1, 2, 2, 700, 700, 80),
        torch.bfloat16,
        ts.Attention(softcap=20.0, mask=ts.causal & ts.window(99)),
    ),
    "documents, padding, sink": (
        (2, 2, 1, 700, 700, 64),
        torch.bfloat16,
        ts.Attention(sink=torch.tensor([0.5, -1.0]), mask=ts.causal & ts.documents(TEXTS) & ts.padding([0, 600])),
    ),
    "alibi, no span": ((1, 4, 4, 300, 300, 16), torch.float16, ts.Attention(bias=ts.alibi(4), mask=~ts.window(7))),
    "relative, a head of 256": (
        (1, 2, 2, 300, 300, 256),
        torch.bfloat16,
        ts.Attention(bias=ts.relative(torch.linspace(-1, 1, 18).view(2, 9)), mask=ts.causal),
    ),
    "a function, float32": (
        (1, 2, 2, 300, 300, 32),
        torch.float32,
        ts.Attention(bias=lambda i, j: torch.cos(i + 2.0 * j), mask=ts.causal),
    ),
}


def inputs(sizes, dtype):
    batch, heads, key_heads, queries, keys, d = sizes
    torch.manual_seed(0)
    shapes = [(batch, heads, queries, d), (batch, key_heads, keys, d)]
    return [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def assert_agrees(got, q, k, attention, cells=None):
    truth = reference.summarize(q.double(), k.double(), attention, None, got.top_keys.shape[-1], cells)
    for name in ("lse", "received", "entropy", "top_weights", "map"):
        mine, exact = getattr(got, name), getattr(truth, name)
        assert (mine is None) == (exact is None)
        if mine is not None:
            torch.testing.assert_close(
                mine.double(), exact, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
    differ = got.top_keys != truth.top_keys  # among scores that are nearly equal
    assert differ.sum() <= 0.001 * differ.numel()


@pytest.mark.parametrize(("sizes", "dtype", "attention"), CASES.values(), ids=CASES)
def test_kernels_agree(sizes, dtype, attention):
    q, k = inputs(sizes, dtype)
    assert engine.cannot(q, k, attention, 8) is None
    assert ts.survey(q, k, attention).engine == "triton"
    rows, columns = min(5, sizes[3]), 7
    for how in ("share", "max"):
        cells = grid(rows, columns, how, of=sizes[3:5], device=q.device)
        assert_agrees(engine.summarize(q, k, attention, None, 8, cells), q, k, attention, cells)


@pytest.mark.parametrize(("sizes", "dtype", "attention"), CASES.values(), ids=CASES)
def test_a_right_lse_is_accepted_and_a_wrong_one_refused(sizes, dtype, attention):
    q, k = inputs(sizes, dtype)
    lse = ts.survey(q, k, attention, top=0).lse
    ts.survey(q, k, attention, top=0, lse=lse)
    with pytest.raises(ValueError, match=r"sum to 0\.3"):
        ts.survey(q, k, attention, top=0, lse=lse + 1.0)


SELF_ATTENTIONS = {name: case for name, case in CASES.items() if case[0][3] == case[0][4]}


@pytest.mark.parametrize(("sizes", "dtype", "attention"), SELF_ATTENTIONS.values(), ids=SELF_ATTENTIONS)
def test_shares_of_heads_agree(sizes, dtype, attention, monkeypatch):
    """The kernel that sums weights over listed keys, against plain PyTorch in float64."""
    (batch, heads, _, n, *_), (q, k) = sizes, inputs(sizes, dtype)
    ids = torch.randint(0, n // 8, (batch, n), generator=torch.Generator().manual_seed(1)).cuda()
    places = Places.of(
        attention,
        batch=batch,
        heads=heads,
        size=(n, n),
        positions=None,
        across=False,
        text=BatchTokens(ids),
        device=q.device,
    )
    got = habit_sums(q, k, attention, engine.summarize(q, k, attention, None, 8, None), places)
    monkeypatch.setattr(within, "_by_kernel", None)  # the truth must not use it
    monkeypatch.setattr(engine, "cannot", lambda *given: "plain PyTorch is asked for")
    q, k = q.double(), k.double()
    expected = habit_sums(q, k, attention, reference.summarize(q, k, attention, None, 8, None), places)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def test_a_map_that_fits_the_tiles_and_bands(monkeypatch):
    q, k = inputs((1, 2, 2, 4096, 4096, 128), torch.bfloat16)
    attention = ts.Attention(mask=ts.causal)
    cells = grid(4, 8, "share", of=(4096, 4096), device=q.device)
    assert_agrees(engine.summarize(q, k, attention, None, 8, cells), q, k, attention, cells)
    monkeypatch.setattr(engine, "MEMORY", 2**20)
    assert_agrees(engine.summarize(q, k, attention, None, 8, cells), q, k, attention, cells)


MASKS = {
    "causal": lambda n: ts.causal,
    "window": lambda n: ts.causal & ts.window(n // 5),
    "padding": lambda n: ts.causal & ts.padding([n, n * 2 // 3]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("tops", [(0, 8), (8, 0)], ids=["top 0 first", "top 8 first"])
@pytest.mark.parametrize("n", [1024, 2500, 4096])
def test_surveys_with_and_without_a_top_in_any_order(n, tops, mask):
    """Kernels of one are not launched for the other; each of them comes twice, with and without maps."""
    q, k = inputs((2, 2, 1, n, n, 64), torch.bfloat16)
    attention = ts.Attention(mask=mask(n))
    sizes = [None, (n // 32, n // 32), (128, 128), (100, 90)]
    made = [None if size is None else grid(*size, "share", of=(n, n), device=q.device) for size in sizes]
    device._launch_cache.cache_clear()  # as in a new process: the first of them compiles or loads its kernels
    for cells in made:
        truth = reference.summarize(q.double(), k.double(), attention, None, 8, cells)
        for lse in (None, truth.lse.float()):
            for top in tops * 2:
                got = engine.summarize(q, k, attention, lse, top, cells)
                torch.testing.assert_close(got.received.double(), truth.received, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(got.entropy.double(), truth.entropy, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(got.top_weights.double(), truth.top_weights[..., :top], atol=1e-4, rtol=1e-4)
                differ = got.top_keys != truth.top_keys[..., :top]  # among scores that are nearly equal
                assert differ.sum() <= 0.001 * differ.numel()
                if cells is not None:
                    torch.testing.assert_close(got.map.double(), truth.map, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tops", [(8,), (0, 8), (16, 8)], ids=str)
def test_a_search_looks_at_few_blocks(monkeypatch, tops):
    monkeypatch.setattr(device, "LaunchCache", WatchedSearch)
    device._launch_cache.cache_clear()
    q, k = inputs((1, 2, 2, 4096, 4096, 128), torch.bfloat16)
    for top in tops * 2:
        engine.summarize(q, k, ts.Attention(mask=ts.causal), None, top, None)
    device._launch_cache.cache_clear()
    blocks, keys, overfull = WatchedSearch.seen
    assert blocks < 12  # of 64, of which a row sees 32 on average
    assert keys < 32
    assert overfull < 0.01 * q.shape[1] * q.shape[2]


def test_ties_go_to_the_lower_key_also_where_all_scores_are_equal(monkeypatch):
    q, k = (tensor.sign() for tensor in inputs((1, 2, 2, 300, 300, 16), torch.bfloat16))
    for q_, k_ in ((q, k), (torch.zeros_like(q), k)):
        got = engine.summarize(q_, k_, ts.Attention(scale=1.0, mask=ts.causal), None, 8, None)
        truth = reference.summarize(q_.double(), k_.double(), ts.Attention(scale=1.0, mask=ts.causal), None, 8, None)
        assert torch.equal(got.top_keys, truth.top_keys)
    monkeypatch.setattr(matrix, "search_capacity", lambda top: (1, 64))
    got = engine.summarize(q, k, ts.Attention(mask=ts.causal), None, 8, None)
    assert_agrees(got, q, k, ts.Attention(mask=ts.causal))


def test_a_cluster_of_keys_with_the_largest_weights_of_all_rows():
    q, k = inputs((1, 2, 2, 2048, 2048, 64), torch.bfloat16)
    k[:, :, 700:1000] += q.mean(2, keepdim=True) * 20
    q += 1.0
    k[:, :, 700:1000] += 1.0
    assert_agrees(
        engine.summarize(q, k, ts.Attention(mask=ts.causal), None, 8, None), q, k, ts.Attention(mask=ts.causal)
    )


ALIKE_OR_NOT = {
    "all alike": ts.Attention(scale=0.0, mask=ts.causal),
    "usual": ts.Attention(mask=ts.causal),
    "peaked": ts.Attention(scale=1.0, mask=ts.causal),
    "next to nothing": ts.Attention(bias=lambda i, j: -1e3 * j.float(), mask=ts.causal),
}


@pytest.mark.parametrize("top", [1, 5, 20, 64])
@pytest.mark.parametrize("attention", ALIKE_OR_NOT.values(), ids=ALIKE_OR_NOT)
def test_any_top(top, attention):
    """With equal weights, with a few large ones, and where almost all are below the range of 16 bits."""
    q, k = inputs((1, 2, 1, 1000, 1000, 128), torch.bfloat16)
    assert_agrees(engine.summarize(q, k, attention, None, top, None), q, k, attention)


def test_chunked_agrees_on_a_gpu():
    q, k = inputs((1, 2, 2, 300, 300, 64), torch.float32)
    assert_agrees(
        chunked.summarize(q, k, ts.Attention(mask=ts.causal), None, 8, None), q, k, ts.Attention(mask=ts.causal)
    )


@pytest.mark.usefixtures("unchecked")
def test_compiled_and_fake():
    q, k = inputs((1, 2, 2, 256, 256, 64), torch.bfloat16)
    attention = ts.Attention(mask=ts.causal)
    compiled = torch.compile(lambda q, k: ts.survey(q, k, attention, top=2).received * 2)
    torch.testing.assert_close(compiled(q, k), ts.survey(q, k, attention, top=2).received * 2)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = engine.summarize(mode.from_tensor(q), mode.from_tensor(k), attention, None, 2, None)
    assert fake.received.shape == (1, 2, 256)


SURVEY_AND_MAP = """
import telescope as ts, torch
from telescope.surveys import triton as engine
from telescope.surveys.requests import grid
q = torch.zeros(1, 1, 300, 64, device="cuda", dtype=torch.bfloat16)
tasks = [
    lambda: engine.summarize(q, q, ts.Attention(), None, 8, None),
    lambda: engine.pool(q, q, ts.Attention(), None, grid(5, 7, "share", of=(300, 300), device=q.device)),
]
for task in tasks[::{step}]:
    task()
"""


def test_another_process_finds_all_kernels_compiled_in_whatever_order_it_needs_them(tmp_path):
    def compiled(step):
        environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", SURVEY_AND_MAP.format(step=step)], check=True, env=environment)
        return sorted(file.name for file in tmp_path.rglob("*.cubin"))

    assert compiled(1) == compiled(-1)


def test_a_wrong_lse_is_refused():
    q, k = inputs((1, 2, 2, 256, 256, 64), torch.bfloat16)
    lse = ts.survey(q, k).lse
    with pytest.raises(ValueError, match="base 2"):
        ts.survey(q, k, lse=lse / 0.6931471805599453)
    assert next(iter(ENGINES)) == "triton"
