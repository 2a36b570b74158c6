"""The kernels of `survey` are compiled for few kinds of arguments, in parallel, before the first of them runs."""

import sys
from functools import partial
from time import sleep

import pytest
import torch

import telescope as ts
from support.needs import need_triton
from telescope.surveys import device
from telescope.surveys import triton as engine
from telescope.surveys.requests import Extras, grid

need_triton()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it replaces triton's driver")
jit = pytest.importorskip("triton.runtime.jit")
hopper_driver = pytest.importorskip("support.hopper")

SURVEY = {  # kernels of a survey with a top, without a map
    "log_sum_exp",
    "statistics",
    "find_blocks",
    "place_rows",
    "group_rows",
    "raise_thresholds",
    "collect_keys",
    "rank_keys",
    "search_all_keys",
}
HALF = torch.zeros(1024, 1024, dtype=torch.float16)
LENGTHS = [1, 64, 100, 129, 256, 333, 704, 705, 1024]


@pytest.fixture
def hopper(monkeypatch):
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", hopper_driver.Hopper())


@pytest.fixture
def variants(monkeypatch, hopper):
    """Record each variant of a kernel that triton would compile, as (name, key); nothing is compiled or run."""
    from triton import knobs

    found, functions = set(), {}

    def record(*, key, fn, **rest):
        found.add((fn.name.split(".")[-1], key))
        return True  # do not compile

    def specialize(kernel, grid, *arguments, **settings):
        function = functions.setdefault(kernel, jit.JITFunction(kernel.fn, **kernel.kwargs))  # not interpreted
        function.warmup(*arguments, grid=grid, **settings)

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", record)
    monkeypatch.setattr(device, "LaunchCache", lambda: specialize)
    monkeypatch.setattr(device, "compile_in_parallel", lambda compilations: [each() for each in compilations])
    monkeypatch.setattr(
        device, "_compile", lambda device, kernel, grid, given, kept: specialize(kernel, grid, *given, **kept)
    )
    device._launch_cache.cache_clear()
    yield found
    device._launch_cache.cache_clear()


def survey(
    keys, attention, *, queries=None, batch=1, heads=4, d=64, dtype=torch.bfloat16, top=8, cells=None, extras=False
):
    q = torch.zeros(batch, heads, queries or keys, d, dtype=dtype)
    k = torch.zeros(batch, heads, keys, d, dtype=dtype)
    size = (queries or keys, keys)
    cells = None if cells is None else grid(*cells, "share", of=size, device=q.device)
    asked = Extras(torch.zeros(1, 1, 3, size[0]), torch.zeros(batch, heads, keys), True) if extras else Extras()
    engine.summarize(q, k, attention, None, top, cells, asked)


def padded(n, batch):
    return ts.Attention(mask=ts.causal & ts.padding([n // 3 * i for i in range(batch)]))


# name: calls of `survey` that need the same kernels
ALIKE = {
    "lengths": [(n, ts.Attention(mask=ts.causal), {}) for n in LENGTHS],
    "fewer queries": [(n, ts.Attention(mask=ts.causal), {"queries": m}) for n in (129, 704) for m in (1, 16, 17)],
    "top": [(333, ts.Attention(mask=ts.causal), {"top": top}) for top in range(1, 9)],
    "sinks": [(333, ts.Attention(mask=ts.causal, sink=sink), {}) for sink in (None, 0.5, torch.zeros(4))],
    "padding": [(n, padded(n, batch), {"batch": batch}) for n in (100, 333, 704) for batch in (1, 2, 3)],
    "a mask in a table": [(n, ts.Attention(mask=~ts.window(7)), {"heads": h}) for n in LENGTHS[1:] for h in (1, 3, 4)],
    "a bias in a table": [(n, ts.Attention(bias=lambda i, j: torch.cos(i + j)), {}) for n in LENGTHS],
    "a bias in half precision": [(n, ts.Attention(bias=ts.from_additive(HALF[:n, :n])), {}) for n in LENGTHS],
    "relative biases": [
        (n, ts.Attention(bias=ts.relative(torch.zeros(heads, 2 * reach + 1))), {})
        for n in (100, 333, 704)
        for reach in (1, 8, 16)
        for heads in (1, 4)
    ],
}


@pytest.mark.parametrize("calls", ALIKE.values(), ids=ALIKE)
def test_one_definition_has_one_variant_of_each_kernel(variants, calls):
    for keys, attention, rest in calls:
        survey(keys, attention, **rest)
    assert sorted(name for name, _ in variants) == sorted(SURVEY)


def test_extras_of_any_length_share_one_kernel(variants):
    for n in LENGTHS:
        survey(n, ts.Attention(mask=ts.causal), top=0, extras=True)
    assert sorted(name for name, _ in variants) == ["find_largest_rows", "log_sum_exp", "statistics", "weigh"]


def test_maps_of_any_size_share_three_kernels(variants):
    """One for each width of a tile: 32, 64 and 128 keys."""
    for n in (100, 333, 704):
        for cells in ((5, 7), (4, 4), (1, 33), (99, 2)):
            survey(n, ts.Attention(mask=ts.causal), cells=cells)
    assert sorted(name for name, _ in variants) == sorted([*SURVEY, "pool", "pool", "pool"])


def test_whole_tiles_of_a_long_text_have_two_kernels_of_their_own(variants):
    for n in (4095, 4096, 8192):
        survey(n, ts.Attention(mask=ts.causal), heads=1, d=16)
    assert sorted(name for name, _ in variants) == sorted([*SURVEY, "log_sum_exp", "statistics"])


REHEARSED = {
    "causal": (333, ts.Attention(mask=ts.causal), {}),
    "whole tiles, a map that fits them": (4096, ts.Attention(), {"heads": 1, "cells": (4, 4)}),
    "a map of small cells": (4096, ts.Attention(mask=ts.causal), {"heads": 1, "cells": (128, 128)}),
    "top 0, a map": (100, ts.Attention(mask=ts.causal), {"top": 0, "cells": (5, 7)}),
    "a long top, a softcap": (700, ts.Attention(softcap=9.0), {"top": 40}),
    "padding, a table": (129, ts.Attention(mask=~ts.window(5) & ts.padding([0, 40])), {"batch": 2}),
    "extras": (333, ts.Attention(mask=ts.causal), {"top": 0, "extras": True}),
    "alibi, fewer queries": (257, ts.Attention(bias=ts.alibi(4), mask=ts.causal), {"queries": 33}),
}


@pytest.mark.parametrize("case", REHEARSED.values(), ids=REHEARSED)
def test_all_kernels_of_a_survey_are_compiled_before_it(variants, monkeypatch, case):
    keys, attention, rest = case
    asked = []
    monkeypatch.setattr(engine, "_compile_once", lambda *given: asked.append(given))
    survey(keys, attention, **rest)
    launched = set(variants)
    variants.clear()
    ((matrix, needs_lse, top, cells, extras),) = asked
    rehearse = partial(engine._rehearse, next(matrix.bands(top=top)), needs_lse, top, cells, extras)
    device.compile_ahead(torch.device("cpu"), rehearse)
    assert variants == launched


def test_a_slow_compilation_is_announced_once_and_its_error_raised(hopper, monkeypatch, caplog):
    caplog.set_level("INFO", logger="telescope")
    monkeypatch.setattr(device, "SECONDS", 0.05)
    monkeypatch.setattr(device, "keep_triton_key", lambda: None)
    finished = []
    device.compile_in_parallel([lambda: finished.append(sleep(0.3))] * 3)
    assert len(finished) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "compiling the GPU's survey kernels for this definition; this is done once on a machine"
    ]
    usual = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        device.compile_in_parallel([lambda: None, lambda: 1 // 0])
    assert sys.getswitchinterval() == usual


def test_tritons_hash_of_itself_is_computed_once_on_a_machine(monkeypatch, tmp_path):
    from triton.runtime import cache

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    computed = []

    def compute():
        computed.append(None)
        return "3.9-a hash"

    for _ in range(2):  # two processes
        monkeypatch.setattr(cache, "triton_key", compute)
        device.keep_triton_key.__wrapped__()
        assert cache.triton_key() == cache.triton_key() == "3.9-a hash"
    assert len(computed) == 1
