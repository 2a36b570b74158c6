"""Use of a machine besides kernels: less work where memory runs out, threads, CUDA streams and
events; compile Triton kernels ahead, in parallel, and launch them in little time.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Any, NamedTuple, TypeVar

import numpy
import torch
from torch import Tensor

from ..attention import has_data

PARTS = 4  # a thread gets at least so many parts of the matrix, since some are finished sooner
STEP = 2**26  # scores of one call of a kernel, about a quarter of a second: Ctrl-C waits for it
FEWEST = 2**18  # scores that a thread is given at a time: for fewer, another thread would be slower
SECONDS = 2.0  # a wait that is not explained
THREADS = 8  # compilers at a time; most of their work does not hold Python's lock
# Seconds a thread may hold Python's lock: enough to reach the part of a compiler that needs no
# lock.
SLICE = 0.05

logger = logging.getLogger(__name__)

_compiling = Lock()


# ------------------------------------------------------------------------------- memory and threads

Result = TypeVar("Result")


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU; those of one GPU are copied at once, as bytes."""
    found = {i: tensor for i, tensor in enumerate(tensors) if tensor.device.type == "cpu"}
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        here = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        # The largest numbers first, so that each tensor begins at a multiple of its numbers' size.
        here.sort(key=lambda i: -tensors[i].element_size())
        joined = torch.cat([tensors[i].contiguous().view(-1).view(torch.uint8) for i in here]).cpu()
        parts = torch.split(joined, [tensors[i].nbytes for i in here])
        for i, part in zip(here, parts, strict=True):
            found[i] = part.view(tensors[i].dtype).view(tensors[i].shape)
    return [found[i] for i in range(len(tensors))]


def run_within_memory(
    run: Callable[[int], Result], most: int, least: int, queries: Tensor, keys: Tensor
) -> Result:
    """Return run(most); each time memory runs out, try half as much, down to `least`.

    Raises torch.OutOfMemoryError, one sentence with the sizes of queries and keys, where `least`
    does not fit.
    """
    while True:
        try:
            return run(most)
        except torch.OutOfMemoryError:
            if most <= least:
                break
        most //= 2  # not within `except`, where the exception still holds on to its tensors
    raise torch.OutOfMemoryError(
        f"survey of {queries.shape[-2]:,} queries and {keys.shape[-2]:,} keys: {queries.device} "
        "has no memory left for one row at a time; survey fewer heads or sequences at once, or "
        "free what else is held there"
    )


class Task(NamedTuple):
    """Rows of one head, for one call of a CPU kernel."""

    place: tuple[int, int, int, int, int]
    """part, sequence, head, the first row and one past the last"""
    scores: float


def row_tasks(head: tuple[int, int, int], rows: range, seen: Any, least: int) -> list[Task]:
    """Return tasks of at most about STEP scores, and of `least` rows or more, for these rows of a
    head; `seen` counts the keys of all rows so far.
    """
    found = []
    first = rows.start
    before = float(seen[rows.start - 1]) if rows.start else 0.0
    total = float(seen[rows.stop - 1]) if rows.stop else 0.0
    while first < rows.stop:
        last = rows.stop  # without a search where one task is enough, as for most heads
        if total > before + STEP:
            last = int(numpy.searchsorted(seen, before + STEP, side="right"))
        last = min(max(last, first + least), rows.stop)
        found.append(Task((*head, first, last), float(seen[last - 1]) - before))
        first = last
        before = float(seen[last - 1])
    return found


def run_tasks(kernel: Callable[[Any], None], units: Sequence[list[Task]]) -> None:
    """Call kernel(places) for all tasks, on several threads. The tasks of one unit add to the same
    sums, so that one thread runs them.
    """
    # Join small units: a thread gets several portions, none of them too small.
    total = sum(task.scores for unit in units for task in unit)
    least = max(FEWEST, total / (PARTS * torch.get_num_threads()))
    portions: list[list[Task]] = [[]]
    scores = 0.0
    for unit in units:
        if scores >= least:
            portions.append([])
            scores = 0.0
        portions[-1].extend(unit)
        scores += sum(task.scores for task in unit)

    def run(portion: list[Task]) -> Iterator[None]:
        # As many tasks in one call as have STEP scores together.
        calls = [[portion[0].place]]
        scores = portion[0].scores
        for task in portion[1:]:
            if scores + task.scores > STEP:
                calls.append([])
                scores = 0.0
            calls[-1].append(task.place)
            scores += task.scores
        for places in calls:
            kernel(numpy.array(places))
            yield

    run_in_threads([partial(run, portion) for portion in portions if portion])


def run_in_threads(tasks: Sequence[Callable[[], Iterator[None]]]) -> None:
    """Run every task to its end, on as many threads as torch uses. If one fails, the others stop at
    their `yield`.
    """
    waiting = deque(tasks)
    failed = Event()

    def work() -> None:
        while not failed.is_set():
            try:
                task = waiting.popleft()
            except IndexError:  # all are taken
                return
            try:
                for _ in task():
                    if failed.is_set():
                        return
            except BaseException:
                failed.set()
                raise

    # As many threads as torch has; this one waits for them.
    threads = torch.get_num_threads()
    if threads == 1 or len(waiting) == 1:
        work()
        return
    futures = [
        _threads(os.getpid(), threads).submit(work) for _ in range(min(threads, len(waiting)))
    ]
    try:
        for future in futures:
            future.result()
    except BaseException:  # Ctrl-C arrives here
        failed.set()
        wait(futures)  # what they write to must not be freed before they stop
        raise


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked process begins its own."""
    return ThreadPoolExecutor(count, thread_name_prefix="telescope-survey")


# ------------------------------------------------------------------------------------- CUDA streams


def side_stream(tensor: Tensor, *, copies: bool = False) -> AbstractContextManager[object]:
    """Return a context that queues work on a second CUDA stream of the tensor's device; elsewhere
    one without effect.

    The second stream waits for what is queued on the current one by now, not for what is queued
    later. `copies` to the host have a stream to themselves, so that no kernel waits for them.
    """
    if not tensor.is_cuda or not has_data(tensor):
        return nullcontext()
    stream = _side_stream(tensor.device, copies)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    return torch.cuda.stream(stream)


@cache
def _side_stream(device: torch.device, copies: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def record_use(*tensors: Tensor) -> None:
    """Record that the current CUDA stream uses these tensors.

    When they are freed, their memory is not used again before what is queued on this stream by then
    has run.
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


class StreamEvent(NamedTuple):
    """A CUDA event and the stream that it was recorded on."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    def wait(self, *tensors: Tensor) -> None:
        """Make the current stream wait for the event, and record that it uses these tensors, made
        before the event.
        """
        current = torch.cuda.current_stream(self.stream.device)
        if current != self.stream:
            current.wait_event(self.event)
            record_use(*tensors)


def record_event(device: torch.device) -> StreamEvent | None:
    """Record an event on the current CUDA stream; None on a device without streams."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    return StreamEvent(stream, stream.record_event())


# -------------------------------------------------------------------------------- compiling kernels


@contextmanager
def tell_if_slow(what: str) -> Iterator[None]:
    """Log a line if the block takes more than two seconds: "compiling `what`; this is done once on
    a machine".
    """

    def tell() -> None:
        logger.info("compiling %s; this is done once on a machine", what)

    timer = Timer(SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def compile_in_parallel(compilations: Sequence[Callable[[], Any]]) -> None:
    """Call functions that compile Triton kernels, several at a time. Raises what the first to fail
    raises.
    """
    from triton.runtime import driver

    what = "the GPU's survey kernels for this definition"
    with _compiling, tell_if_slow(what), _long_slices(), ThreadPoolExecutor(THREADS) as pool:
        kept = pool.submit(keep_triton_key)
        # The first use builds the driver: once, not in every thread.
        driver.active.get_current_target()
        kept.result()
        for _ in pool.map(lambda compilation: compilation(), compilations):
            pass


@contextmanager
def _long_slices() -> Iterator[None]:
    """Switch between Python's threads less often: eight that take turns every 5 ms finish a quarter
    later.
    """
    # Process-wide, but for seconds only, and the interval is set back.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SLICE)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@cache
def keep_triton_key() -> None:
    """Keep the hash of Triton's own files, a part of every key of its cache, in that cache.

    Triton reads its 500 MB again in every process, for 0.4 to 2.5 seconds. The hash kept is used as
    long as these files have the same names, sizes and times of change. Triton has no setting for
    this, so its function is replaced by one that returns the same text.
    """
    import triton
    from triton.runtime import cache as triton_cache

    if not hasattr(triton_cache, "triton_key"):  # another version, which has it elsewhere
        return
    # The key of the entry: names, sizes and times of change of Triton's files.
    package = Path(triton.__file__).parent
    parts = (package / part for part in ("_C", "backends", "compiler", "language", "runtime"))
    files = sorted(
        file for part in parts for kind in ("*.py", "*.so", "*.pyd") for file in part.rglob(kind)
    )
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    manager = triton_cache.get_cache_manager(
        sha256(repr((triton.__version__, stamps)).encode()).hexdigest()
    )
    path = manager.get_file("triton_key")
    key = triton_cache.triton_key() if path is None else Path(path).read_text()
    if path is None:
        manager.put(key, "triton_key", binary=False)
    triton_cache.triton_key = cache(lambda: key)


# -------------------------------------------------------------------------------- launching kernels

_planned: ContextVar[list[tuple[Any, ...]] | None] = ContextVar("_planned", default=None)


def compile_ahead(device: torch.device, launch: Callable[[], object]) -> None:
    """Compile the kernels that launch() launches, in parallel, without running one of them.

    launch() may allocate tensors on this device, and read nothing from them.
    """
    planned: list[tuple[Any, ...]] = []
    token = _planned.set(planned)
    try:
        launch()
    finally:
        _planned.reset(token)
    compile_in_parallel([partial(_compile, device, *launched) for launched in planned])


def _compile(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    settings: dict[str, Any],
) -> None:
    with torch.cuda.device(device):  # of this thread
        compiled = kernel.warmup(*arguments, grid=grid, **settings)
        compiled[grid]  # an index loads the kernel onto the GPU


class LaunchCache:
    """Compiled kernels for launches whose arguments have the same kinds, as `launch_cache_for`
    compares them.

    Triton inspects every argument at every launch. A launch that finds its kernel here skips that.
    """

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any
    ) -> None:
        """Run kernel[grid](*arguments, **settings), where the kernel is compiled for each
        combination of settings.
        """
        # Kernels live as long as the process, so that an id is never used again.
        key = (id(kernel), *settings.values())
        known = self._compiled.get(key)
        if known is not None:
            compiled, rest = known
            compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
            return
        compiled = kernel[grid](*arguments, **settings)
        if compiled is not None:  # None under Triton's interpreter
            rest = [settings[name] for name in kernel.arg_names[len(arguments) :]]
            self._compiled[key] = (compiled, rest)


def launch_cache_for(kind: Any, arguments: tuple[Any, ...]) -> Callable[..., None]:
    """Return the cache of launches of this kind with such arguments; within `compile_ahead`, what
    plans to compile the kernels.

    The kind tells all that Triton compiles for but the arguments. Of those, numbers must be equal,
    and tensors must have equal dtypes, shapes, strides and the same alignment to 16 bytes.
    """
    planned = _planned.get()
    if planned is not None:
        return lambda kernel, grid, *given, **settings: planned.append(
            (kernel, grid, given, settings)
        )
    return _launch_cache((kind, *[layout(argument) for argument in arguments]))


def layout(argument: Any) -> Any:
    """Return what kernels may be compiled for of an argument: of a tensor its dtype, alignment,
    shape and strides, else the argument itself.

    A launcher computes from shapes which kernels to launch, their numbers, and what is None: with
    top=0, for one, `statistics` is compiled without maxima.
    """
    if not isinstance(argument, Tensor):
        return argument
    return argument.dtype, argument.data_ptr() % 16, argument.shape, argument.stride()


# The process owns these caches, the 64 used last: compiled kernels belong to no survey. They hold
# no tensors.
@lru_cache(maxsize=64)
def _launch_cache(kinds: tuple[Any, ...]) -> LaunchCache:
    return LaunchCache()
