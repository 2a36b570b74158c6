"""Survey on a CPU: one pass over each strip of scores while it is in the cache, by kernels that numba compiles.

Products, softcap, ALiBi, relative biases and masks that are spans of keys are computed in the kernel. Every other score,
bias or mask is computed by PyTorch, block by block, and read once by the kernel.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import log
from threading import Event
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import pad

from ..attention import Attention, dot, softmax
from ..attention.biases import Alibi, Relative
from ..attention.values import has_data
from . import chunked
from .blocks import Block, BlockScores, blocks, row_spans
from .cells import Cells
from .compiling import tell_if_slow
from .device import run_within_memory
from .marks import Listing, Marks
from .summary import Summary, compute_dtype

LOG2_E = 1.0 / log(2.0)
PARTS = 4  # a thread gets at least so many parts of the matrix, since some are finished sooner
MOST = 128  # of `top`: each row compares about twice as many maxima with one another
MAPS = 2**23  # cells of all maps that the parts add to, 64 MB
STEP = 2**26  # scores of one call of the kernel, about a quarter of a second: Ctrl-C waits for it


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return why this engine cannot survey such an attention, or None if it can."""
    if queries.device.type != "cpu":
        return f"it runs on a CPU, and the queries are on {queries.device}"
    if attention.normalize is not softmax:
        return f"it normalises by softmax, not by {getattr(attention.normalize, '__name__', attention.normalize)}"
    if top > MOST:
        return f"top={top} is more than the {MOST} it keeps in order"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    if not all(map(_is_plain, (queries, keys))):
        return "it needs plain tensors that hold numbers"
    return unavailable()


def _is_plain(tensor: Tensor) -> bool:
    """Return whether numpy can read the tensor's memory: not of a subclass, on meta, or inside of torch.func."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, Parameter) and has_data(tensor) and not wrapped


@cache
def unavailable() -> str | None:
    """Return what keeps the kernels from being compiled on this machine, or None; numba is imported to find out."""
    if find_spec("numba") is None:
        return "it needs numba: pip install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("0", ""):
        return "NUMBA_DISABLE_JIT is set, and without compilation it would be slow"
    try:
        _kernels()
    except Exception as error:  # an old numba, or one that does not fit the numpy that is installed
        return f"numba does not work here ({type(error).__name__}: {error}): pip install --upgrade numba"
    return None


@cache
def _kernels() -> ModuleType:
    return import_module(".cpu_kernels", __package__)


@cache
def _compiled(dtype: torch.dtype) -> Any:
    """Return the kernels, compiled for this dtype or loaded from numba's cache."""
    kernels = _kernels()
    nothing = torch.zeros(1, 1, 1, 1, dtype=dtype)
    with tell_if_slow("the CPU's survey kernels"):
        try:
            _survey_products(kernels, nothing, nothing, Attention(), Results.empty(nothing, nothing, Attention()))
        except Exception:  # a cache that cannot be read or written: a full disk, a file cut short
            cached = kernels.survey_rows._cache
            with suppress(Exception):
                cached.flush()  # the next process begins a new one
            cached.disable()
            _survey_products(kernels, nothing, nothing, Attention(), Results.empty(nothing, nothing, Attention()))
    return kernels


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None = None,
) -> Summary:
    """Return the summary. An lse, where given, is not computed again."""
    if cells is not None and cells.how == "max":
        return chunked.summarize(queries, keys, attention, lse, top, cells, marks)

    def within(most: int) -> Summary:
        results = Results.empty(queries, keys, attention, lse, top, cells, marks)
        kernels = _compiled(results.entropy.dtype)
        if _in_kernel(attention) and row_spans(queries, keys, attention)[2]:
            _survey_products(kernels, queries, keys, attention, results)
        else:
            _survey_blocks(kernels, queries, keys, attention, results, most)
        return results.summary(lse, cells)

    return run_within_memory(within, chunked.SCORES["cpu"], keys.shape[-2], queries, keys)


def _in_kernel(attention: Attention) -> bool:
    """Return whether the kernel can compute the scores, given a mask that is spans of keys."""
    return attention.score.is_dot_product and (attention.bias is None or isinstance(attention.bias, Alibi | Relative))


# ----------------------------------------------------------------------------------------------- what is written


@dataclass(frozen=True, eq=False)
class Results:
    """The tensors that the kernel writes, and those it reads beside queries and keys."""

    sinks: list[float]
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

    @classmethod
    def empty(
        cls, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None = None, top: int = 0,
        cells: Cells | None = None, marks: Marks | None = None,
    ) -> "Results":  # fmt: skip
        (batch, heads, rows, _), columns, dtype = queries.shape, keys.shape[-2], compute_dtype(queries)
        sink = torch.as_tensor(-torch.inf if attention.sink is None else attention.sink, dtype=torch.float64).detach()
        parts = -(-PARTS * torch.get_num_threads() // (batch * heads))
        size = (0, 0) if cells is None else (cells.rows, cells.columns)
        parts = max(1, min(parts, MAPS // max(1, batch * heads * size[0] * size[1])))
        none = torch.empty(batch, 0, dtype=torch.int32)
        stop = torch.empty(0, dtype=torch.int32) if marks is None else marks.before.int().contiguous()
        single = torch.empty(0, 1, rows) if marks is None else marks.single
        lists = () if marks is None else marks.listed
        listed_keys, listed_spans = _lists(lists, batch, rows)
        known = None if lse is None else (lse.detach().to(dtype) * LOG2_E).contiguous()
        return cls(
            sinks=(sink.reshape(-1).expand(heads) * LOG2_E).tolist(),
            lse=torch.empty(batch, heads, rows, dtype=dtype) if known is None else known,
            lse_known=known is not None,
            received=torch.zeros(parts, batch, heads, columns, dtype=torch.float64),
            entropy=torch.empty(batch, heads, rows, dtype=dtype),
            weights=torch.empty(batch, heads, rows, top, dtype=dtype),
            found=torch.empty(batch, heads, rows, top, dtype=torch.int32),
            map_row=none if cells is None else cells.row_of_query.int().expand(batch, -1),
            map_column=none if cells is None else cells.column_of_key.int().expand(batch, -1),
            pooled=torch.zeros(parts, batch, heads, *size, dtype=torch.float64),
            marked_stop=stop,
            marked_keys=single.expand(-1, batch, -1).permute(1, 2, 0).int().contiguous(),
            marked_sum=torch.zeros(batch, heads, rows, dtype=dtype),
            marked_weights=torch.zeros(batch, heads, rows, len(single), dtype=dtype),
            listed_keys=listed_keys,
            listed_spans=listed_spans,
            listed_sum=torch.zeros(batch, heads, rows, len(lists), dtype=dtype),
            listed_seen=torch.zeros(batch, heads, rows, len(lists), dtype=torch.bool),
        )

    def arguments(self, part: int, b: int, h: int, rows: slice) -> tuple[Any, ...]:
        """Return the last arguments of the kernel, from the sink on, for some rows of a head."""
        return (
            _number(self.entropy)(self.sinks[h]),
            self.lse[b, h, rows].numpy(),
            self.lse_known,
            self.received[part, b, h].numpy(),
            self.entropy[b, h, rows].numpy(),
            self.weights[b, h, rows].numpy(),
            self.found[b, h, rows].numpy(),
            self.map_row[b, rows].numpy(),
            self.map_column[b].numpy(),
            self.pooled[part, b, h].numpy(),
            self.marked_stop[rows].numpy(),
            self.marked_keys[b, rows].numpy(),
            self.marked_sum[b, h, rows].numpy(),
            self.marked_weights[b, h, rows].numpy(),
            self.listed_keys[b].numpy(),
            self.listed_spans[b, rows].numpy(),
            self.listed_sum[b, h, rows].numpy(),
            self.listed_seen[b, h, rows].numpy(),
        )

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
        )


def _lists(
    listings: tuple[Listing, ...], batch: int, rows: int
) -> tuple[Int[Tensor, "batch slot"], Int[Tensor, "batch query list 2"]]:
    """Return the keys of all lists, one list after the other, and where those of each query begin and end."""
    if not listings:
        return torch.empty(batch, 0, dtype=torch.int32), torch.empty(batch, rows, 0, 2, dtype=torch.int32)
    spans, first = [], 0
    for listing in listings:
        spans.append(torch.stack([(ends + first).expand(batch, -1) for ends in listing.by_row()], -1))
        first += listing.keys.shape[-1]
    keys = torch.cat([listing.keys.expand(batch, -1) for listing in listings], 1)
    return keys.int().contiguous(), torch.stack(spans, 2).int().contiguous()


def _number(like: Tensor) -> Any:
    """Return numpy's type of the elements, so that kernels are compiled for two dtypes, not for Python's floats too."""
    import numpy

    return numpy.float64 if like.dtype == torch.float64 else numpy.float32


# --------------------------------------------------------------------------------------------- scores by the kernel


def _survey_products(kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results) -> None:
    """Survey an attention whose scores the kernel computes."""
    (batch, heads, rows, _), columns, dtype = queries.shape, keys.shape[-2], results.entropy.dtype
    start, stop, _ = row_spans(queries, keys, attention)
    start, stop = start.int().contiguous(), stop.int().contiguous()
    scale, softcap = attention.scale_for(keys.shape[-1]), attention.softcap or 0.0
    scale = scale if softcap else scale * LOG2_E
    if attention.score != dot:
        queries, keys = attention.score.as_dot(queries.to(dtype), keys.to(dtype))
    queries, group = queries.detach().to(dtype).contiguous(), heads // keys.shape[1]
    packed = _pack(kernels, keys.detach().to(dtype))
    slopes, table = [0.0] * heads, torch.empty(1, 0, dtype=dtype)
    if isinstance(attention.bias, Alibi):
        slopes = (attention.bias.slopes.detach().to(dtype) * LOG2_E).tolist()
    elif isinstance(attention.bias, Relative):
        table = (attention.bias.table.detach().to(dtype) * LOG2_E).contiguous()
    number, no_scores = _number(results.entropy), torch.empty(0, 0, dtype=dtype).numpy()

    def survey_part(part: int, b: int, h: int, some: range) -> Iterator[None]:
        seen = stop[b, h].numpy() - start[b, h].numpy()  # numpy, since torch would begin threads of its own here
        step = max(kernels.STRIP, STEP // max(1, int(seen[some.start : some.stop].max())))
        for first in range(some.start, some.stop, step):
            of = slice(first, min(first + step, some.stop))
            kernels.survey_rows(
                queries[b, h, of].numpy(), packed[b, h // group].numpy(), no_scores, 0, number(scale), number(softcap),
                number(slopes[h]), table[h % len(table)].numpy(), columns - rows + first,
                start[b, h, of].numpy(), stop[b, h, of].numpy(), *results.arguments(part, b, h, of),
            )  # fmt: skip
            yield

    parts = len(results.received)
    edges = [rows * i // parts for i in range(parts + 1)]
    _run_in_threads(
        partial(survey_part, part, b, h, range(edges[part], edges[part + 1]))
        for part in range(parts)[::-1]  # under a causal mask, later rows take longer
        for b in range(batch)
        for h in range(heads)
        if edges[part] < edges[part + 1]
    )


def _pack(kernels: Any, keys: Tensor) -> Tensor:
    """Return keys (batch, key_heads, tile, feature, key), padded with zeros to whole tiles."""
    wide = kernels.TILE_VECTORS * kernels.VECTOR // keys.element_size()
    return pad(keys, (0, 0, 0, -keys.shape[-2] % wide)).unflatten(2, (-1, wide)).transpose(-1, -2).contiguous()


# ---------------------------------------------------------------------------------------------- scores by PyTorch


def _survey_blocks(
    kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results, most: int
) -> None:
    """Survey an attention whose scores PyTorch computes, in blocks of at most so many scores."""
    number, dtype = _number(results.entropy), results.entropy.dtype
    if not results.lse_known:
        results.lse.copy_(torch.tensor(results.sinks, dtype=dtype)[:, None])
    for tensor, fill in ((results.entropy, 0.0), (results.weights, 0.0), (results.found, -1)):
        tensor.fill_(fill)  # the numbers of a row that is in no block, since it sees nothing
    no_queries, no_keys, no_table = (torch.empty(shape, dtype=dtype).numpy() for shape in ((0, 0), (0, 0, 0), (0,)))
    scores = BlockScores(queries, keys, attention)

    def survey_head(block: Block, made: Tensor, i: int, j: int) -> Iterator[None]:
        start, stop = (
            torch.full(made.shape[2:3], end, dtype=torch.int32).numpy()
            for end in (block.columns.start, block.columns.stop)
        )
        kernels.survey_rows(
            no_queries, no_keys, made[i, j].numpy(), block.columns.start, number(LOG2_E), number(0.0), number(0.0),
            no_table, 0, start, stop,
            *results.arguments(0, block.sequences.start + i, block.heads.start + j, block.rows),
        )  # fmt: skip
        yield

    for block in blocks(queries, keys, attention, most):
        made = scores(block).detach()
        _run_in_threads(
            partial(survey_head, block, made, i, j) for i in range(made.shape[0]) for j in range(made.shape[1])
        )


# -------------------------------------------------------------------------------------------------------- threads


def _run_in_threads(tasks: Iterable[Callable[[], Iterator[None]]]) -> None:
    """Run every task to its end, on as many threads as torch uses. If one fails, the others stop at their `yield`."""
    waiting, failed = deque(tasks), Event()

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
    futures = [_threads(os.getpid(), threads).submit(work) for _ in range(min(threads, len(waiting)))]
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
