"""A compiled kernel is launched again only with arguments for which triton would choose it, whatever surveys came
before."""

from functools import cache
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import telescope as ts
from support.needs import need_triton
from support.strategies import composite
from telescope.surveys import device
from telescope.surveys import triton as engine
from telescope.surveys.launch import run, survey_listed
from telescope.surveys.matrix import Matrix
from telescope.surveys.requests import Extras, grid, segments

need_triton()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it replaces triton's driver")
hopper = pytest.importorskip("support.hopper")


class CheckedKernel:
    """A stand-in for a kernel of triton. It is compiled for the arguments of a call; a later launch with arguments for
    which triton would choose another kernel fails. Nothing runs."""

    def __init__(self, kernel):
        self.name = kernel.fn.__name__
        self.arg_names = kernel.arg_names
        self.specialization = hopper.binder(kernel)
        self.launches = 0  # without a look at the arguments

    def __getitem__(self, grid):
        def first(*arguments, **settings):
            constants = {name: value for name, value in settings.items() if name in self.arg_names}
            compiled_for = self.specialization(*arguments, **constants)

            def again(*given):
                self.launches += 1
                wanted = self.specialization(*given)
                assert wanted == compiled_for, f"{self.name} launched for {wanted}, compiled for {compiled_for}"

            return Compiled(again)

        return first


class Compiled:
    def __init__(self, launch):
        self.launch = launch

    def __getitem__(self, grid):
        return self.launch


checked = cache(CheckedKernel)


class CheckedCache(device.LaunchCache):
    def __call__(self, kernel, grid, *arguments, **settings):
        super().__call__(checked(kernel), grid, *arguments, **settings)


@pytest.fixture(autouse=True)
def _kernels_are_checked(monkeypatch):
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", hopper.Hopper())
    monkeypatch.setattr(device, "LaunchCache", CheckedCache)
    device._launch_cache.cache_clear()
    yield
    device._launch_cache.cache_clear()


def launches(name):
    """Return how often kernels of this name were launched without a look at their arguments."""
    from telescope.surveys import kernels
    from telescope.surveys.kernels import pools, sums, top

    (kernel,) = [vars(part)[name] for part in (kernels, sums, top, pools) if name in vars(part)]
    return checked(kernel).launches


def zeros(*shape, dtype=torch.float32, shift=0):
    """Return zeros whose first number stands `shift` numbers behind a multiple of 16 bytes."""
    return torch.zeros(torch.Size(shape).numel() + shift, dtype=dtype)[shift:].view(shape)


# ------------------------------------------------------------------------------------------- orders

ASKED = {
    "top 0": (0, None),
    "top 8": (8, None),
    "top 1": (1, None),
    "top 0, a map": (0, (8, 8)),
    "top 8, a map": (8, (8, 8)),
    "top 0, another map": (0, (4, 16)),
    "top 0, an uneven map": (0, (7, 9)),
    "top 8, an uneven map of one row": (8, (1, 9)),
}


@pytest.mark.parametrize(("first", "second"), [*permutations(ASKED, 2)])
def test_a_survey_after_another_one(first, second):
    q, lse = zeros(1, 2, 256, 64), zeros(1, 2, 256)
    for name in (first, second, first, second):
        before = launches("statistics")
        top, size = ASKED[name]
        cells = None if size is None else grid(*size, "share", of=(256, 256), device=q.device)
        engine.summarize(q, q, ts.Attention(mask=ts.causal), lse, top, cells)
    assert launches("statistics") == before + 1  # the second of its kind is launched in little time


# --------------------------------------------------------------------------------------- any surveys


@composite
def surveys(draw):
    """Draw a function that makes a survey, or computes something of a matrix by kernels."""
    rows, keys = (draw(st.sampled_from([1, 16, 17, 64, 128, 256])) for _ in range(2))
    batch, heads, d = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 16], [1, 2, 4], [1, 16, 20, 64]))
    key_heads = draw(st.sampled_from([1, heads]))
    dtype = draw(st.sampled_from([torch.float32, torch.float16]))
    shift = st.sampled_from([0, 0, 1])
    q = zeros(batch, heads, rows, d, dtype=dtype, shift=draw(shift))
    k = zeros(batch, key_heads, keys, d, dtype=dtype, shift=draw(shift))
    if draw(st.booleans()):  # as projections lie in memory
        q = zeros(batch, rows, heads, d, dtype=dtype, shift=draw(shift)).transpose(1, 2)
    lse = zeros(batch, heads, rows, shift=draw(shift))
    biases = [
        None,
        ts.alibi(heads),
        ts.relative(torch.zeros(heads, 1)),
        ts.relative(torch.zeros(heads, 17)),
        lambda i, j: 0.1 * (i + j),
    ]
    bias = draw(st.sampled_from(biases))
    mask = draw(
        st.sampled_from([ts.causal, ts.everyone, ts.causal & ts.window(9), ~ts.window(5)])
        | st.just(ts.causal & ts.padding([keys] * batch))
    )
    sink, softcap = draw(st.sampled_from([None, 0.5])), draw(st.sampled_from([None, 1.0, 30.0]))
    attention = ts.Attention(bias=bias, mask=mask, sink=sink, softcap=softcap)
    memory = draw(st.sampled_from([2**29, 2**29, 2**20, 1]))  # for one band of rows, or for several

    def size(of):
        return draw(st.integers(1, of) | st.sampled_from([part for part in (1, 2, 4, 8, 16) if part <= of]))

    cells = grid(size(rows), size(keys), draw(st.sampled_from(["share", "max"])), of=(rows, keys), device=q.device)
    if draw(st.integers(0, 4)) == 0:
        ids = torch.arange(rows) % 3, torch.arange(keys) // 5
        cells = segments(ids, "share", of=(rows, keys), batch=batch, device=q.device)
    weights = zeros(draw(st.sampled_from([1, batch])), heads, draw(st.sampled_from([1, 3, 17])), rows)
    norms = zeros(batch, heads, keys, shift=draw(shift))
    top = draw(st.sampled_from([0, 0, 1, 8, 16]))
    what = draw(st.sampled_from(["survey"] * 6 + ["weigh", "map", "check", "lists"]))
    extras = Extras(
        weights if draw(st.integers(0, 3)) == 0 else None,
        norms if draw(st.integers(0, 3)) == 0 else None,
        draw(st.integers(0, 3)) == 0,
    )
    asked_cells = draw(st.sampled_from([None, cells]))
    given_lse = draw(st.sampled_from([None, lse]))
    steps = [range(0, count, draw(st.sampled_from([1, max(1, count - 1)]))) for count in (batch, heads)]
    lists = [zeros(1, rows).int(), zeros(1, keys).int(), *(zeros(2, 1, rows).int() for _ in range(2))]
    seen = draw(st.sampled_from([None, zeros(batch, heads, rows).bool()]))

    def make():
        engine.MEMORY = 2**29 if what == "check" else memory
        if what == "survey":
            engine.summarize(q, k, attention, given_lse, top, asked_cells, extras)
        elif what == "weigh":
            engine.weigh(q, k, attention, given_lse, weights)
        elif what == "map":
            engine.pool(q, k, attention, given_lse, cells)
        elif what == "check":
            engine.row_numbers(q, k, attention, lse, *steps, range(0, rows, max(1, (rows - 1) // 2)))
        else:
            (band,) = Matrix.of(q, k, attention, 2**29).bands()
            run(survey_listed, band, lse, *lists, zeros(2, *lse.shape), seen)

    return make


@given(st.lists(surveys(), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_any_surveys_in_any_order(made, random):
    """The surveys of one example come twice, in two orders; those of earlier examples are still known."""
    usual = engine.MEMORY
    try:
        for _ in range(2):
            random.shuffle(made)
            for make in made:
                make()
    finally:
        engine.MEMORY = usual
