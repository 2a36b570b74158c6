"""Shapes in signatures are checked in tests, in the first calls of each.

Functions that check their own arguments (dispatch, trace) are left out.
"""

import gc
import os
import re
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from types import FunctionType

import jaxtyping._decorator as jaxtyping_decorator
import pytest
import torch
from jaxtyping import config, install_import_hook

from support.small_blocks import LADDER, small_blocks

# not normalizers: softmax is compared by identity, which `unchecked` would change
ATTENTION = [
    f"telescope.attention.{name}"
    for name in (
        "definition",
        "mask",
        "masks",
        "positions",
        "regions",
        "restrict",
        "scores",
        "values",
    )
]
ENGINES = [f"telescope.engines.{name}" for name in ("chunked", "exact", "reference", "sdpa")]  # flex compiles
SURVEY = [f"telescope.surveys.{name}" for name in ("reference", "chunked", "fused", "triton", "requests")]
TRACE = ["telescope.traces.render"]
RECORDING = [
    f"telescope.recording.{name}"
    for name in (
        "attention_call",
        "continuation",
        "heads",
        "queries_keys_call",
        "recorded_call",
        "recording",
        "row_in_float64",
        "opening",
        "saving",
        "storage",
        "summaries_call",
        "survey_queue",
        "watched",
    )
]
MEASURES = ["telescope.measures"]
LOOKING = ["telescope.tiles", "telescope.interception.huggingface"]
ATLAS = [f"telescope.atlases.{name}" for name in ("atlas", "exact", "measure", "sums", "texts")]
MODELS = [f"telescope.models.{name}" for name in ("encoder", "gpt", "loss", "luong_translator", "transformer")]
TRAINING = [f"telescope.training.{name}" for name in ("batch", "data", "objectives")]
DECODING = [f"telescope.decoding.{name}" for name in ("beam", "sampling", "writers")]
TASKS = [f"telescope.tasks.{name}" for name in ("explaining.sentence_views", "explaining.show", "learning.recall")]
HOOKED = (
    *ATTENTION,
    *ENGINES,
    *SURVEY,
    *TRACE,
    *MEASURES,
    *RECORDING,
    *LOOKING,
    *ATLAS,
    "telescope.layers",
    *MODELS,
    *DECODING,
    *TRAINING,
    *TASKS,
)
if find_spec("beartype") is not None:  # a machine with a GPU may have what the library needs, and no more
    import_module("support.checking")  # the hook finds it as an attribute of its package
    install_import_hook(HOOKED, "support.checking.typechecker")
CHECKED = 2_000  # calls of a test whose shapes are checked; a property test runs the same lines 100,000 times
checks_left = CHECKED


def count_check(arguments, remember=jaxtyping_decorator.push_shape_memo):
    """Count a call that jaxtyping is about to check, and let it check no more once there were enough."""
    global checks_left
    checks_left -= 1
    if checks_left <= 0:
        config.jaxtyping_disable = True
    return remember(arguments)


jaxtyping_decorator.push_shape_memo = count_check

torch.set_num_threads(1)  # the tests run side by side
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run without a GPU, if slowly


def pytest_generate_tests(metafunc):
    """Run the tests of LADDER twice: with the usual blocks, and with blocks of a few rows and keys."""
    place = metafunc.definition.path.relative_to(Path(__file__).parent).as_posix()
    if place in LADDER:
        kinds = [pytest.param(nullcontext, id=pytest.HIDDEN_PARAM), pytest.param(small_blocks, id="small blocks")]
        metafunc.parametrize("sizes_of_blocks", kinds, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Skip a test that needs a package of an extra which is not installed; the error itself names it."""
    try:
        return (yield)
    except (ImportError, ValueError) as problem:
        match = re.search(r"needs ([\w-]+), which is not installed", str(problem))
        if match is None or find_spec(match[1].replace("-", "_")) is not None:
            raise
        pytest.skip(str(problem))


@pytest.fixture(autouse=True)
def sizes_of_blocks(request):
    global checks_left
    checks_left, config.jaxtyping_disable = CHECKED, False
    if torch.backends.mkldnn.is_available():  # torch switches it off where the CPU lacks bfloat16, and rounds otherwise
        torch.backends.mkldnn.set_flags(True)
    with getattr(request, "param", nullcontext)():
        yield


@pytest.fixture
def unchecked(monkeypatch):
    """Remove the checks of shapes, which torch.compile cannot trace: every function as it was written."""
    modules = [module for name, module in sys.modules.items() if name.startswith(HOOKED)]
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    for place in {*modules, *(kind for kind in classes if kind.__module__.startswith(HOOKED))}:
        for name, checked in list(vars(place).items()):
            kind = type(checked) if isinstance(checked, classmethod | staticmethod) else lambda written: written
            if isinstance(checked, property):
                kind = checked.getter  # with the setter it has
            function = getattr(checked, "__func__", getattr(checked, "fget", checked))
            mine = isinstance(function, FunctionType) and (function.__module__ or "").startswith(HOOKED)
            if mine and not hasattr(function, "dispatch"):  # one that dispatches by type wraps as well
                monkeypatch.setattr(place, name, kind(unwrap(function)))
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.fixture
def as_users_run_it(monkeypatch):
    """Switch off the checks of shapes and types, which only tests have: the library's own errors are tested."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def own_compiler():
    """Drop what other tests have compiled, and count from zero."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_collector():
    """Switch the garbage collector off, so that reference cycles are not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def on_cpu(monkeypatch):
    """Train on the CPU. accelerate takes a GPU where there is one, and remembers its choice."""
    state = pytest.importorskip("accelerate.state", reason="the train extra is not installed").AcceleratorState
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)


@pytest.fixture
def command(monkeypatch, capsys):
    """Return command("explain", "--json"), which gives the exit code, standard output and standard error."""

    def run(*arguments):
        from telescope.cli import main

        monkeypatch.setattr("sys.argv", ["telescope", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run
