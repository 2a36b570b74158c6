"""The fuzz benchmark finds nothing wrong, and finds faults that are injected on purpose."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import telescope as ts
from telescope.engines import chunked as chunked_engine
from telescope.survey import chunked

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch, on a CPU that has no bfloat16


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks import fuzz

    return fuzz


def test_the_fuzz_finds_nothing_wrong(fuzz):
    found = fuzz.hunt(0, 40)
    assert found.wrong == []
    assert found.counts["definitions"] == 40
    assert min(found.counts[f"survey by {name}"] for name in ("chunked", "reference")) > 30
    assert min(found.counts[f"attend by {name}"] for name in ("choice", "chunked", "reference")) > 30
    assert found.counts["backward by chunked"] > 5


def clamp_partial_sums(monkeypatch):
    """Inject a fault: in a map of by_sum, clamp the sums of single blocks at zero."""
    pool = chunked._add_to_map

    def clamped(pooled, *args):
        pooled.copy_(torch.where(pooled < 0, pooled.clamp(min=0.0), pooled).where(pooled.isfinite(), pooled))
        pool(pooled, *args)

    monkeypatch.setattr(chunked, "_add_to_map", clamped)


def weaken_the_last_key(monkeypatch):
    """Inject a fault: the last key of a block of queries counts a thousandth less."""
    block = chunked_engine._block

    def short(queries, keys, values, *args):
        values = values.clone()
        values[:, :, -1:] *= 0.999
        return block(queries, keys, values, *args)

    monkeypatch.setattr(chunked_engine, "_block", short)


@pytest.mark.parametrize(
    ("fault", "kind", "normalize"),
    [(clamp_partial_sums, "survey.map", "ts.by_sum"), (weaken_the_last_key, "attend by chunked", "ts.softmax")],
)
def test_an_injected_fault_is_found_and_shrunk(fault, kind, normalize, fuzz, monkeypatch):
    fault(monkeypatch)
    drawn = fuzz.Case(2, 2, 1, 11, 7, 3, 3, mask=("&", "ts.causal", "ts.window(9)"), scale="0.3", layout="strided")
    cases = (replace(drawn, normalize=normalize, small_blocks=40, seed=seed) for seed in range(60))
    case, wrong = next((case, wrong) for case in cases if (wrong := fuzz.failure(case)) is not None)
    assert wrong.kind.startswith(kind)
    small, problem = fuzz.shrunk(case, wrong)
    assert (small.mask, small.scale, small.layout, small.heads) == ("ts.everyone", "None", "plain", 1)
    assert fuzz.failure(small).kind == problem.kind
    space = {}
    exec(small.script(problem.line), space)  # the printed lines run
    assert isinstance(space["attention"], ts.Attention)
