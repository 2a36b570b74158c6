"""The CPU's fused survey: strips, tiles and threads of every size, and machines on which its compiler does not work."""

import multiprocessing
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_survey import agree, maps
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, definitions, seeds, tensors
from telescope.recording.continuation import fingerprints
from telescope.surveys import device, dispatch, fused
from telescope.tasks import doctor

pytest.importorskip("numba")
LENGTHS = [1, 31, 33, 64, 65, 129]  # around a strip of 32 rows and tiles of 8 to 32 keys
CAUSAL = ts.Attention(mask=ts.causal)


@contextmanager
def in_parts(threads, step):
    """Cut rows into parts for so many threads, and a part into calls of the kernel with so many scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        patch.setattr(device, "STEP", step)
        yield


@given(st.data())
def test_longer_than_strips_and_tiles(data):
    queries, keys = data.draw(st.sampled_from(LENGTHS)), data.draw(st.sampled_from(LENGTHS))
    batch, key_heads, d_k = (data.draw(st.sampled_from(sizes)) for sizes in ([1, 2], [1, 2], [1, 8, 33]))
    shape = Shape(batch, 2, key_heads, queries, keys, d_k)
    attention, dtype = data.draw(definitions(shape)), data.draw(st.sampled_from([torch.float32, torch.float64]))
    q, k, _ = tensors(shape, data.draw(seeds), dtype)
    if fused.cannot(q, k, attention) is None:
        options = {"top": data.draw(st.sampled_from([0, 1, 8, 40])), "cells": data.draw(st.none() | maps(shape))}
        with in_parts(data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([40, 2**26]))):
            agree("fused", (q, k), attention, **options, lse=data.draw(st.booleans()))


OTHER_CPU = """
import sys, torch
from llvmlite import binding
features = binding.get_host_cpu_features()
kept = {"avx2": ("avx512",), "neon": ("avx", "fma")}[sys.argv[1]]
for name in features:
    if name.startswith(kept):
        features[name] = False
binding.get_host_cpu_features = lambda: features
from telescope.surveys import cpu_kernels
assert cpu_kernels.VECTOR == {"avx2": 32, "neon": 16}[sys.argv[1]], cpu_kernels.VECTOR
import telescope as ts
from support.strategies import Shape, tensors
from test_survey import agree
for mask in (ts.everyone, ts.causal & ts.window(70), ts.from_tensor(torch.rand(100, 150) < 0.3)):
    for dtype in (torch.float32, torch.float64):
        q, k, _ = tensors(Shape(1, 2, 1, 100, 150, 33), 0, dtype)
        agree("fused", (q, k), ts.Attention(mask=mask), top=8)
        agree("fused", (q, k), ts.Attention(mask=mask, softcap=3.0, sink=0.5), top=8, lse=True)
"""


AVX2 = pytest.param("avx2", marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="no x86"))


@pytest.mark.parametrize("width", [AVX2, "neon"])
def test_the_vectors_of_other_cpus(width):
    """The kernels as they are for CPUs with shorter vectors. Their code runs here as well."""
    done = run_python(OTHER_CPU, width, NUMBA_OPT="1")
    assert done.returncode == 0, done.stderr


def run_python(script, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@given(st.data())
def test_equal_scores_come_in_the_order_of_the_keys(data):
    """Few scores are compared with one another, many are sorted one by one: both keep the lower key first."""
    columns = data.draw(st.sampled_from([9, 70, 200]))
    values = data.draw(st.sampled_from([1, 2, 5, 50]))  # of one value, all scores are equal
    top = data.draw(st.sampled_from([1, 8, 40]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(data.draw(seeds))
    q = torch.ones(1, 2, 40, 1, dtype=dtype)
    k = torch.randint(values, (1, 2, columns, 1), generator=generator).to(dtype)
    attention = ts.Attention(scale=1.0, mask=data.draw(st.sampled_from([ts.everyone, ts.causal])))
    seen = ts.survey(q, k, attention, top=top, engine="fused")
    scores = (q @ k.mT).double()
    if attention.mask is ts.causal:
        hidden = torch.ones(40, columns).triu(columns - 40 + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    # A stable sort, and no key where nothing is seen.
    ordered, keys = scores.sort(stable=True, dim=-1, descending=True)
    keys = keys.masked_fill(ordered == -torch.inf, -1)[..., :top]
    weights = scores.softmax(-1).nan_to_num().gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
    width = keys.shape[-1]
    assert torch.equal(seen.top.keys[..., :width].long(), keys)
    assert_close(seen.top.weights[..., :width].double(), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_layout_of_queries_and_keys(dtype):
    q, k, _ = (part.to(dtype) for part in tensors(Shape(2, 4, 2, 50, 70, 6), 0, torch.float32))
    expected = ts.survey(q, k, CAUSAL, engine="fused", top=3)
    layouts = {
        "tokens first": lambda part: part.transpose(1, 2).contiguous().transpose(1, 2),
        "features first": lambda part: part.mT.contiguous().mT,
        "a part of a larger tensor": lambda part: torch.cat([part, part], -1)[..., 6:],
    }
    for name, change in layouts.items():
        seen = ts.survey(change(q), change(k), CAUSAL, engine="fused", top=3)
        for number in ("lse", "received", "entropy"):
            assert torch.equal(getattr(seen, number), getattr(expected, number)), (name, number)
        assert torch.equal(seen.top.keys, expected.top.keys), name


@pytest.mark.parametrize("features", [1, 6, 7, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fingerprints_of_both_ways(features, dtype):
    numbers()  # the kernels are compiled
    keys, _, _ = tensors(Shape(2, 3, 3, 50, 50, features), 0, torch.float32)
    keys = keys.to(dtype)
    for one in (
        keys,
        keys.transpose(1, 2).contiguous().transpose(1, 2),
        keys[:, :, :0],
        keys[:1].expand(2, -1, -1, -1),
    ):
        assert torch.equal(fingerprints(one, "fused"), fingerprints(one))


# --------------------------------------------------------------------------------------------- threads and processes


def numbers(seed=0, **options):
    q, k, _ = tensors(Shape(1, 4, 2, 200, 200, 16), seed, torch.float32)
    seen = ts.survey(q, k, CAUSAL, engine="fused", **options)
    return [seen.lse, seen.received, seen.entropy, seen.top.weights, seen.top.keys]


def test_several_threads_at_once():
    alone = [numbers(seed) for seed in range(12)]
    with ThreadPoolExecutor(6) as pool, in_parts(2, 2**26):
        together = list(pool.map(numbers, range(12)))
    assert_close(together, alone)


def in_another_process(queue):
    queue.put([tensor.tolist() for tensor in numbers()])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    with in_parts(2, 2**26):
        mine = [tensor.tolist() for tensor in numbers()]  # the threads of this process have begun
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=in_another_process, args=(queue,), daemon=True)
        process.start()
        assert_close(queue.get(timeout=120), mine)
        process.join(60)
    assert process.exitcode == 0


def test_a_loader_with_workers():
    class Surveys(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return numbers(i)[1]

    numbers()
    loader = torch.utils.data.DataLoader(Surveys(), batch_size=None, num_workers=1)
    assert_close(list(loader), [numbers(i)[1] for i in range(3)])


def test_an_error_in_one_thread_stops_the_others():
    begun = []

    def task(i):
        begun.append(i)
        if i == 0:
            raise MemoryError("of a task")
        yield

    with in_parts(2, 2**26), pytest.raises(MemoryError, match="of a task"):
        device.run_in_threads([lambda i=i: task(i) for i in range(10_000)])
    assert len(begun) < 10_000
    numbers()  # the threads are as good as before


def test_threads_are_those_of_torch():
    names = set()

    def task():
        names.add(current())
        yield

    def current():
        from threading import current_thread

        return current_thread().name

    with in_parts(1, 2**26):
        device.run_in_threads([task] * 4)
    assert names == {current()}


def test_a_survey_in_a_thread_of_its_own():
    got = []
    thread = Thread(target=lambda: got.append(numbers()))
    thread.start()
    thread.join()
    assert_close(got, [numbers()])


# ------------------------------------------------------------------------------------------------------ the choice


def test_few_scores_are_left_to_chunked():
    size = lambda n: torch.randn(1, 1, n, 4)  # noqa: E731
    assert dispatch.choose(size(512), size(512), CAUSAL, 8, None) == "chunked"
    assert dispatch.choose(size(513), size(512), CAUSAL, 8, None) == "fused"


@pytest.fixture
def looked_up_again():
    fused.unavailable.cache_clear()
    yield
    fused.unavailable.cache_clear()


@pytest.mark.parametrize(
    ("broken", "advice"),
    [
        (lambda patch: patch.setattr(fused, "find_spec", lambda name: None), "it needs numba: pip install numba"),
        (lambda patch: patch.setenv("NUMBA_DISABLE_JIT", "1"), "NUMBA_DISABLE_JIT is set"),
        (lambda patch: patch.setattr(fused, "_kernels", cannot_import), "pip install --upgrade numba"),
    ],
    ids=["missing", "switched off", "too old"],
)
def test_without_a_working_compiler(broken, advice, monkeypatch, looked_up_again, command):
    broken(monkeypatch)
    monkeypatch.setitem(doctor.TIMED, "cpu", (1, 2, 128, 16))
    q, k, _ = tensors(Shape(1, 2, 2, 600, 600, 4), 0, torch.float32)
    assert ts.survey(q, k, CAUSAL).engine == "chunked"
    with pytest.raises(ValueError, match='engine="fused" cannot survey') as problem:
        ts.survey(q, k, CAUSAL, engine="fused")
    assert advice in str(problem.value)
    assert advice in " ".join(command("doctor", "--plain")[1].split())


def cannot_import():
    raise ImportError("Numba needs NumPy 1.26 or less")


FIRST_SURVEY = """
import sys, torch, telescope as ts
from telescope.surveys import cpu_kernels, cpu_layout
if "of fingerprints" in sys.argv:
    cpu_kernels.ON_DISK = (cpu_layout.fingerprint_keys,)
x = torch.ones(1, 1, 3, 2)
print(ts.survey(x, x, ts.Attention(mask=ts.causal), engine="fused").received.tolist())
for function in (cpu_kernels.survey_heads, cpu_layout.fingerprint_keys):
    print(sum(function.stats.cache_hits.values()))
"""


def first_survey(*caches, **environment):
    """Survey in a new process, which begins these caches anew where one cannot be read.

    Return how many surveys, and fingerprints, were not compiled, but in the cache.
    """
    done = run_python(FIRST_SURVEY, *caches, NUMBA_OPT="1", **environment)
    assert done.returncode == 0, done.stderr
    received, surveys, signed = done.stdout.splitlines()
    assert received == "[[[1.8333333730697632, 0.8333333730697632, 0.3333333432674408]]]"
    return int(surveys), int(signed)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "a_file").touch()
    first_survey(NUMBA_CACHE_DIR=str(tmp_path / "a_file" / "in_it"))


def test_a_cache_cut_short_is_written_again(tmp_path):
    """That of fingerprints, which compile in a second; the survey's is begun anew with it, by the test below."""
    from numba.core.caching import _CacheLocator

    from telescope.surveys import cpu_kernels

    numbers()  # the kernels are compiled, and in the cache of this process
    folder = tmp_path / _CacheLocator.get_suitable_cache_subpath(cpu_kernels.__file__)
    folder.mkdir()
    kept = [*Path(cpu_kernels.survey_heads.stats.cache_path).glob("cpu_*.nb?")]
    cut = [path for path in kept if ".fingerprint_keys" in path.name]
    assert {path.suffix for path in cut} == {".nbi", ".nbc"}
    for path in kept:
        code = path.read_bytes()
        (folder / path.name).write_bytes(code[: len(code) // 2] if path in cut else code)
    assert first_survey("of fingerprints", NUMBA_CACHE_DIR=str(tmp_path)) == (1, 0)
    assert first_survey("of fingerprints", NUMBA_CACHE_DIR=str(tmp_path)) == (1, 1)


def test_every_cache_is_begun_anew():
    """Those of all kernels that are kept on disk."""
    from numba.core.caching import FunctionCache

    from telescope.surveys import cpu_kernels, cpu_layout

    functions = [*vars(cpu_kernels).values(), *vars(cpu_layout).values()]
    cached = {one for one in functions if isinstance(getattr(one, "_cache", None), FunctionCache)}
    assert cached == set(cpu_kernels.ON_DISK)


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap_is_as_exact_as_its_numbers(size, softcap):
    """Near zero, c · tanh(x / c) is x: an error of c roundings would be larger than the scores of a quiet head."""
    queries, keys = (torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(i)) * size for i in range(2))
    attention = ts.Attention(softcap=softcap)
    got = ts.survey(queries, keys, attention, top=40, engine="fused")
    truth = ts.survey(queries.double(), keys.double(), attention, top=40, engine="reference")
    scores = softcap * torch.tanh(queries.double() @ keys.double().mT / 8**0.5 / softcap)
    slack = 8 * torch.finfo(torch.float32).eps * (1.0 + float(scores.abs().max()))
    assert float((got.lse - truth.lse).abs().max()) <= slack
    assert float((got.top.weights - truth.top.weights).abs().max()) <= slack
