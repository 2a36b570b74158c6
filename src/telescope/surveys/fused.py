"""Survey on a CPU: one pass over each strip of scores while it is in the cache, by kernels that
numba compiles.

Products, softcap, ALiBi, relative biases and masks that are spans of keys are computed in the
kernel. Any other score, bias or mask is computed by PyTorch, block by block, and read once by the
kernel.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import log
from threading import Event
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import pad

from ..attention import Alibi, Attention, Relative, dot, has_data, softmax
from . import chunked
from .blocks import BlockScores, blocks, row_spans
from .cells import Cells
from .compiling import tell_if_slow
from .device import run_within_memory
from .extras import Extras
from .marks import Listing, Marks
from .summary import Summary, compute_dtype

LOG2_E = 1.0 / log(2.0)
PARTS = 4  # a thread gets at least so many parts of the matrix, since some are finished sooner
MOST = 128  # of `top`: each row compares about twice as many maxima with one another
MAPS = 2**23  # cells of all maps that the parts add to, 64 MB
STEP = 2**26  # scores of one call of the kernel, about a quarter of a second: Ctrl-C waits for it
MARGIN = 64  # zeros after the last norm: vectors and blocks of scores end beyond the last key
FEWEST = 2**18  # scores that a thread is given at a time: for fewer, another thread would be slower


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return why this engine cannot survey such an attention, or None if it can."""
    if queries.device.type != "cpu":
        return f"it runs on a CPU, and the queries are on {queries.device}"
    if attention.normalize is not softmax:
        return (
            "it normalises by softmax, not by "
            f"{getattr(attention.normalize, '__name__', attention.normalize)}"
        )
    if top > MOST:
        return f"top={top} is more than the {MOST} it keeps in order"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    if not all(map(_is_plain, (queries, keys))):
        return "it needs plain tensors that hold numbers"
    return unavailable()


def _is_plain(tensor: Tensor) -> bool:
    """Return whether numpy can read the tensor's memory: not of a subclass, on meta, or inside of
    torch.func.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, Parameter) and has_data(tensor) and not wrapped


@cache
def unavailable() -> str | None:
    """Return what keeps the kernels from being compiled on this machine, or None; numba is imported
    to find out.
    """
    if find_spec("numba") is None:
        return "it needs numba: pip install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("0", ""):
        return "NUMBA_DISABLE_JIT is set, and without compilation it would be slow"
    try:
        _kernels()
    except Exception as error:  # an old numba, or one that does not fit the numpy that is installed
        return (
            f"numba does not work here ({type(error).__name__}: {error}): pip install "
            "--upgrade "
            "numba"
        )
    return None


@cache
def _kernels() -> ModuleType:
    return import_module(".cpu_kernels", __package__)


@cache
def _compiled(dtype: torch.dtype) -> Any:
    """Return the kernels, compiled for this dtype or loaded from numba's cache."""
    kernels = _kernels()
    nothing = torch.zeros(1, 1, 1, 1, dtype=dtype)

    def compile_or_load() -> None:
        _survey_products(
            kernels, nothing, nothing, Attention(), Results.empty(nothing, nothing, Attention())
        )

    with tell_if_slow("the CPU's survey kernels"):
        try:
            compile_or_load()
        except Exception:  # a cache that cannot be read or written: a full disk, a file cut short
            cached = kernels.survey_heads._cache
            try:
                cached.flush()  # begin a new one
                compile_or_load()
            except Exception:
                cached.disable()
                compile_or_load()
    return kernels


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None = None,
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary. An lse, where given, is not computed again."""
    if cells is not None and cells.how == "max":
        return chunked.summarize(queries, keys, attention, lse, top, cells, marks, extras)

    def within(most: int) -> Summary:
        results = Results.empty(queries, keys, attention, lse, top, cells, marks, extras)
        kernels = _compiled(results.entropy.dtype)
        if _in_kernel(attention) and row_spans(queries, keys, attention)[2]:
            _survey_products(kernels, queries, keys, attention, results)
        else:
            _survey_blocks(kernels, queries, keys, attention, results, most)
        return results.summary(lse, cells)

    return run_within_memory(within, chunked.SCORES["cpu"], keys.shape[-2], queries, keys)


def _in_kernel(attention: Attention) -> bool:
    """Return whether the kernel can compute the scores, given a mask that is spans of keys."""
    return attention.score.is_dot_product and (
        attention.bias is None or isinstance(attention.bias, Alibi | Relative)
    )


# ---------------------------------------------------------------------------------- what is written


@dataclass(frozen=True, eq=False)
class Results:
    """The tensors that the kernel writes, and those it reads beside queries and keys."""

    sinks: Tensor
    """(head,), float64, to base two."""
    lse: Tensor
    lse_known: bool
    received: Tensor
    """(part, batch, heads, key), float64: each part of the rows adds to its own."""
    entropy: Tensor
    weights: Tensor
    found: Tensor
    map_row: Tensor
    map_column: Tensor
    pooled: Tensor
    """(part, batch, heads, rows, columns), float64, or without elements."""
    marked_stop: Tensor
    marked_keys: Tensor
    marked_sum: Tensor
    marked_weights: Tensor
    listed_keys: Tensor
    """(batch, slot): the keys of all lists, one list after the other."""
    listed_spans: Tensor
    """(batch, query, list, 2): where the keys of a query begin and end."""
    listed_sum: Tensor
    listed_seen: Tensor
    extras: Extras
    query_weights: Tensor
    weighted: Tensor
    """(part, batch, heads, set, key), float64."""
    norms: Tensor
    carried: Tensor
    largest: Tensor
    """(part, batch, heads, key), or without elements, as `largest_row`."""
    largest_row: Tensor

    @classmethod
    def empty(
        cls, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None = None, top: int = 0,
        cells: Cells | None = None, marks: Marks | None = None, extras: Extras = Extras(),
    ) -> "Results":  # fmt: skip
        batch, heads, rows, _ = queries.shape
        columns = keys.shape[-2]
        dtype = compute_dtype(queries)
        sink = torch.as_tensor(
            -torch.inf if attention.sink is None else attention.sink, dtype=torch.float64
        ).detach()
        parts = -(-PARTS * torch.get_num_threads() // (batch * heads))
        size = (0, 0) if cells is None else (cells.rows, cells.columns)
        parts = max(1, min(parts, MAPS // max(1, batch * heads * size[0] * size[1])))
        none = torch.empty(batch, 0, dtype=torch.int32)
        stop = (
            torch.empty(0, dtype=torch.int32) if marks is None else marks.before.int().contiguous()
        )
        single = torch.empty(0, 1, rows) if marks is None else marks.single
        lists = () if marks is None else marks.listed
        listed_keys, listed_spans = _lists(lists, batch, rows)
        known = None if lse is None else (lse.detach().to(dtype) * LOG2_E).contiguous()
        return cls(
            sinks=sink.reshape(-1).expand(heads) * LOG2_E,
            lse=torch.empty(batch, heads, rows, dtype=dtype) if known is None else known,
            lse_known=known is not None,
            received=torch.zeros(parts, batch, heads, columns, dtype=torch.float64),
            entropy=torch.empty(batch, heads, rows, dtype=dtype),
            weights=torch.empty(batch, heads, rows, top, dtype=dtype),
            found=torch.empty(batch, heads, rows, top, dtype=torch.int32),
            map_row=none
            if cells is None
            else cells.row_of_query.int().expand(batch, -1).contiguous(),
            map_column=none
            if cells is None
            else cells.column_of_key.int().expand(batch, -1).contiguous(),
            pooled=torch.zeros(parts, batch, heads, *size, dtype=torch.float64),
            marked_stop=stop,
            marked_keys=single.expand(-1, batch, -1).permute(1, 2, 0).int().contiguous(),
            marked_sum=torch.zeros(batch, heads, rows, dtype=dtype),
            marked_weights=torch.zeros(batch, heads, rows, len(single), dtype=dtype),
            listed_keys=listed_keys,
            listed_spans=listed_spans,
            listed_sum=torch.zeros(batch, heads, rows, len(lists), dtype=dtype),
            listed_seen=torch.zeros(batch, heads, rows, len(lists), dtype=torch.bool),
            extras=extras,
            query_weights=_query_weights(extras, (batch, heads, rows), dtype),
            weighted=torch.zeros(parts, batch, heads, extras.sets, columns, dtype=torch.float64),
            norms=torch.empty(batch, heads, 0, dtype=dtype)
            if extras.norms is None
            else pad(extras.norms, (0, MARGIN)),
            carried=torch.zeros(batch, heads, rows, dtype=dtype),
            largest=torch.zeros(parts, batch, heads, columns if extras.largest else 0, dtype=dtype),
            largest_row=torch.full(
                (parts, batch, heads, columns if extras.largest else 0), -1, dtype=torch.int32
            ),
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The last arguments of the kernel, from the sinks on."""
        return (
            self.sinks.to(self.entropy.dtype).numpy(),
            self.lse.numpy(),
            self.lse_known,
            *(
                part.numpy()
                for part in (
                    self.received, self.entropy, self.weights, self.found, self.map_row, self.map_column, self.pooled,
                    self.marked_stop, self.marked_keys, self.marked_sum, self.marked_weights,
                    self.listed_keys, self.listed_spans, self.listed_sum, self.listed_seen,
                )
            ),
            tuple(
                part.numpy()
                for part in (
                    self.query_weights, self.weighted, self.norms, self.carried, self.largest, self.largest_row
                )
            ),
        )  # fmt: skip

    def summary(self, lse: Tensor | None, cells: Cells | None) -> Summary:
        """Return the summary, once all rows are surveyed."""
        dtype = self.entropy.dtype
        marked = len(self.marked_stop) > 0
        return Summary(
            lse.detach().to(dtype) if lse is not None else self.lse / LOG2_E,
            self.received.sum(0).to(dtype),
            self.entropy,
            self.weights,
            self.found,
            None if cells is None else cells.averaged(self.pooled.sum(0).to(dtype)),
            self.marked_sum if marked else None,
            self.marked_weights if marked else None,
            self.listed_sum if self.listed_spans.numel() else None,
            self.listed_seen if self.listed_spans.numel() else None,
            **self._extra_fields(),
        )

    def _extra_fields(self) -> dict[str, Tensor | None]:
        """Return the fields of a Summary that `extras` asks for."""
        part = self.largest.argmax(0)[None]  # the first of equal ones, which has the lower rows
        return {
            "weighted": self.weighted.sum(0).to(self.entropy.dtype) if self.extras.sets else None,
            "carried": None if self.extras.norms is None else self.carried,
            "largest_weight": self.largest.gather(0, part)[0] if self.extras.largest else None,
            "largest_query": self.largest_row.gather(0, part)[0] if self.extras.largest else None,
        }


def _query_weights(
    extras: Extras, size: tuple[int, int, int], dtype: torch.dtype
) -> Float[Tensor, "b h set row"]:
    """Return the weights of all queries of every head, none if they are not asked for."""
    batch, heads, rows = size
    if extras.query_weights is None:
        return torch.empty(batch, heads, 0, rows, dtype=dtype)
    return extras.query_weights.to(dtype).expand(batch, heads, -1, -1).contiguous()


def _lists(
    listings: tuple[Listing, ...], batch: int, rows: int
) -> tuple[Int[Tensor, "batch slot"], Int[Tensor, "batch query list 2"]]:
    """Return the keys of all lists, one list after the other, and where those of each query begin
    and end.
    """
    if not listings:
        return torch.empty(batch, 0, dtype=torch.int32), torch.empty(
            batch, rows, 0, 2, dtype=torch.int32
        )
    spans = []
    first = 0
    for listing in listings:
        spans.append(
            torch.stack([(ends + first).expand(batch, -1) for ends in listing.by_row()], -1)
        )
        first += listing.keys.shape[-1]
    keys = torch.cat([listing.keys.expand(batch, -1) for listing in listings], 1)
    return keys.int().contiguous(), torch.stack(spans, 2).int().contiguous()


def _number(like: Tensor) -> Any:
    """Return numpy's type of the elements, so that kernels are compiled for two dtypes, not for
    Python's floats too.
    """
    return numpy.float64 if like.dtype == torch.float64 else numpy.float32


# ----------------------------------------------------------------------------- scores by the kernel


def _survey_products(
    kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results
) -> None:
    """Survey an attention whose scores the kernel computes."""
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    dtype = results.entropy.dtype
    start, stop, _ = row_spans(queries, keys, attention)
    start = start.int().contiguous()
    stop = stop.int().contiguous()
    scale = attention.scale_for(keys.shape[-1])
    softcap = attention.softcap or 0.0
    scale = scale if softcap else scale * LOG2_E
    if attention.score != dot:
        queries, keys = attention.score.as_dot(queries.to(dtype), keys.to(dtype))
    queries = queries.detach().to(dtype).contiguous()
    packed = _pack(kernels, keys.detach().to(dtype))
    slopes = torch.zeros(heads, dtype=dtype)
    tables = torch.empty(1, 0, dtype=dtype)
    if isinstance(attention.bias, Alibi):
        slopes = (attention.bias.slopes.detach().to(dtype) * LOG2_E).contiguous()
    elif isinstance(attention.bias, Relative):
        tables = (attention.bias.table.detach().to(dtype) * LOG2_E).contiguous()
    number = _number(results.entropy)
    no_scores = torch.empty(batch, heads, rows, 0, dtype=dtype)
    arrays = (
        queries.numpy(), packed.numpy(), no_scores.numpy(), numpy.zeros(4, int), number(scale), number(softcap),
        slopes.numpy(), tables.numpy(), columns - rows, start.numpy(), stop.numpy(), *results.arguments,
    )  # fmt: skip
    seen = (stop - start).clamp(min=0).to(torch.float64).cumsum(-1).numpy()
    parts = len(results.received)
    edges = [rows * i // parts for i in range(parts + 1)]
    units = [
        _tasks((part, b, h), range(edges[part], edges[part + 1]), seen[b, h], kernels.STRIP)
        for part in range(parts)[::-1]  # under a causal mask, later rows take longer
        for b in range(batch)
        for h in range(heads)
    ]
    _run(kernels, units, arrays)


def _pack(kernels: Any, keys: Tensor) -> Tensor:
    """Return keys (batch, key_heads, tile, feature, key), padded with zeros to whole tiles."""
    wide = kernels.TILE_VECTORS * kernels.VECTOR // keys.element_size()
    padded = pad(keys, (0, 0, 0, -keys.shape[-2] % wide))
    return padded.view(*padded.shape[:2], -1, wide, padded.shape[-1]).transpose(-1, -2).contiguous()


# -------------------------------------------------------------------------------- scores by PyTorch


def _survey_blocks(
    kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results, most: int
) -> None:
    """Survey an attention whose scores PyTorch computes, in blocks of at most so many scores."""
    number = _number(results.entropy)
    dtype = results.entropy.dtype
    if not results.lse_known:
        results.lse.copy_(results.sinks[:, None])
    for tensor, fill in ((results.entropy, 0.0), (results.weights, 0.0), (results.found, -1)):
        tensor.fill_(fill)  # the numbers of a row that is in no block, since it sees nothing
    batch, heads, count, _ = queries.shape
    none = [
        torch.empty(*shape, dtype=dtype).numpy()
        for shape in ((batch, heads, count, 0), (batch, heads, 0, 0, 0))
    ]
    no_span = torch.empty(batch, heads, 0, dtype=torch.int32).numpy()
    no_table = torch.empty(1, 0, dtype=dtype).numpy()
    no_slopes = torch.zeros(heads, dtype=dtype).numpy()
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        made = scores(block).detach().contiguous()
        sequences, some_heads, rows = block.index
        origin = numpy.array([sequences.start, some_heads.start, rows.start, block.columns.start])
        arrays = (
            *none, made.numpy(), origin, number(LOG2_E), number(0.0), no_slopes, no_table, 0, no_span, no_span,
            *results.arguments,
        )  # fmt: skip
        size = (rows.stop - rows.start) * block.width
        units = [
            [Task((0, b, h, rows.start, rows.stop), size)]
            for b in range(sequences.start, sequences.stop)
            for h in range(some_heads.start, some_heads.stop)
        ]
        _run(kernels, units, arrays)


# -------------------------------------------------------------------------------------------- tasks


class Task(NamedTuple):
    """Rows of one head, for one call of the kernel."""

    place: tuple[int, int, int, int, int]
    """part, sequence, head, the first row and one past the last"""
    scores: float


def _tasks(head: tuple[int, int, int], rows: range, seen: Any, strip: int) -> list[Task]:
    """Return tasks of at most about STEP scores for these rows of a head; `seen` counts the keys of
    all rows so far.
    """
    found = []
    first = rows.start
    before = float(seen[rows.start - 1]) if rows.start else 0.0
    while first < rows.stop:
        last = int(numpy.searchsorted(seen, before + STEP, side="right"))
        last = min(max(last, first + strip), rows.stop)
        found.append(Task((*head, first, last), float(seen[last - 1]) - before))
        first = last
        before = float(seen[last - 1])
    return found


def _run(kernels: Any, units: Sequence[list[Task]], arrays: tuple[Any, ...]) -> None:
    """Run the kernel on all tasks. The tasks of one unit add to the same sums, so that one thread
    runs them.
    """
    threads = torch.get_num_threads()
    total = sum(task.scores for unit in units for task in unit)
    least = max(FEWEST, total / (PARTS * threads))
    portions: list[list[Task]] = [[]]
    for unit in units:
        if sum(task.scores for task in portions[-1]) >= least:
            portions.append([])
        portions[-1].extend(unit)

    def run(portion: list[Task]) -> Iterator[None]:
        calls = [[portion[0].place]]
        scores = portion[0].scores
        for task in portion[1:]:
            if scores + task.scores > STEP:
                calls.append([])
                scores = 0.0
            calls[-1].append(task.place)
            scores += task.scores
        for places in calls:
            kernels.survey_heads(numpy.array(places), *arrays)
            yield

    _run_in_threads([partial(run, portion) for portion in portions if portion])


# ------------------------------------------------------------------------------------------ threads


def _run_in_threads(tasks: Sequence[Callable[[], Iterator[None]]]) -> None:
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
