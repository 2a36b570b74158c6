"""Survey on a CPU: one pass over each strip of scores while it is in the cache, by kernels that numba compiles.

Products, softcap, ALiBi, relative biases and masks that are spans of keys are computed in the kernel. Every other score,
bias or mask is computed by PyTorch, block by block, and read once by the kernel.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, dot, softmax
from ..attention.biases import Alibi, Relative
from ..attention.values import has_data
from . import chunked
from .blocks import BlockScores, blocks, row_spans
from .cells import Cells
from .device import run_within_memory
from .summary import Marks, Summary, compute_dtype

LEAST = 2**18  # scores below which the choice is another engine: the kernels take seconds to compile, once
LOG2_E = 1.0 / log(2.0)
PARTS = 4  # a thread gets at least so many parts of the matrix, since some are finished sooner
STEP = 2**26  # scores of one call of the kernel, about a quarter of a second: Ctrl-C waits for it
INSTALLED = find_spec("numba") is not None  # looked up once, not for every survey


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return why this engine cannot survey such an attention, or None if it can."""
    if queries.device.type != "cpu":
        return f"it runs on a CPU, and the queries are on {queries.device}"
    if not INSTALLED:
        return "it needs numba: pip install numba"
    if attention.normalize is not softmax:
        return f"it normalises by softmax, not by {getattr(attention.normalize, '__name__', attention.normalize)}"
    if 0 in (*queries.shape, *keys.shape):
        return "there is nothing to compute"
    if torch.compiler.is_compiling() or type(queries) is not Tensor or not has_data(queries):
        return "it needs tensors with data"
    return None


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
    run = partial(_summarize, queries, keys, attention, lse, top, cells, marks)
    return run_within_memory(run, chunked.SCORES["cpu"], keys.shape[-2], queries, keys)


def pool(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    cells: Cells,
) -> Float[Tensor, "batch heads rows columns"]:
    """Return the map of these cells alone."""
    engine: Any = chunked if cells.how == "max" else None
    made = (engine.summarize if engine else summarize)(queries, keys, attention, lse, 0, cells)
    assert made.map is not None
    pooled: Tensor = made.map
    return pooled


def _summarize(
    queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int, cells: Cells | None,
    marks: Marks | None, most: int,
) -> Summary:  # fmt: skip
    if cells is not None and cells.how == "max":
        return chunked.summarize(queries, keys, attention, lse, top, cells, marks)
    results = Results.empty(queries, keys, attention, lse, top, cells, marks)
    if _in_kernel(attention) and row_spans(queries, keys, attention)[2]:
        _run_products(queries, keys, attention, results)
    else:
        _run_blocks(queries, keys, attention, results, most)
    return results.summary(lse, cells)


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

    @classmethod
    def empty(
        cls, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int, cells: Cells | None,
        marks: Marks | None,
    ) -> "Results":  # fmt: skip
        (batch, heads, rows, _), columns, dtype = queries.shape, keys.shape[-2], compute_dtype(queries)
        sink = torch.full((heads,), -torch.inf) if attention.sink is None else torch.as_tensor(attention.sink)
        parts = 1 if cells is not None else -(-PARTS * torch.get_num_threads() // (batch * heads))
        size = (0, 0) if cells is None else (cells.rows, cells.columns)
        none = torch.empty(batch, 0, dtype=torch.int32)
        stop = torch.empty(0, dtype=torch.int32) if marks is None else marks.before.int().contiguous()
        single = torch.empty(0, 1, rows) if marks is None else marks.single
        return cls(
            sinks=(sink.reshape(-1).double().expand(heads) * LOG2_E).tolist(),
            lse=queries.new_empty(queries.shape[:3], dtype=dtype) if lse is None else (lse.to(dtype) * LOG2_E).contiguous(),
            lse_known=lse is not None,
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
        )

    def arguments(self, part: int, b: int, h: int, rows: slice) -> tuple[Any, ...]:
        """Return what the kernel takes after the sink, for some rows of a head."""
        number = _number(self.entropy)
        return (
            number(self.sinks[h]),
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
        )

    def summary(self, lse: Tensor | None, cells: Cells | None) -> Summary:
        dtype = self.entropy.dtype
        marked = len(self.marked_stop) > 0
        return Summary(
            lse.to(dtype) if lse is not None else self.lse / LOG2_E,
            self.received.sum(0).to(dtype),
            self.entropy,
            self.weights,
            self.found,
            None if cells is None else cells.averaged(self.pooled.sum(0).to(dtype)),
            self.marked_sum if marked else None,
            self.marked_weights if marked else None,
        )


# --------------------------------------------------------------------------------------------- scores by the kernel


def _run_products(queries: Tensor, keys: Tensor, attention: Attention, results: Results) -> None:
    """Survey an attention whose scores the kernel computes."""
    kernels, number = _kernels(), _number(results.entropy)
    (batch, heads, rows, _), columns, dtype = queries.shape, keys.shape[-2], results.entropy.dtype
    start, stop, _ = row_spans(queries, keys, attention)
    start, stop = start.int().contiguous(), stop.int().contiguous()
    if attention.score != dot:
        queries, keys = attention.score.as_dot(queries.to(dtype), keys.to(dtype))
    queries, group = queries.to(dtype).contiguous(), heads // keys.shape[1]
    wide = kernels.TILE_VECTORS * kernels.VECTOR // dtype.itemsize
    packed = pad(keys.to(dtype), (0, 0, 0, -columns % wide)).unflatten(2, (-1, wide)).transpose(-1, -2).contiguous()
    scale, softcap = attention.scale_for(keys.shape[-1]), attention.softcap or 0.0
    scale = scale if softcap else scale * LOG2_E
    slopes, table = [0.0] * heads, torch.empty(1, 0, dtype=dtype)
    if isinstance(attention.bias, Alibi):
        slopes = (attention.bias.slopes.detach().to(dtype) * LOG2_E).tolist()
    elif isinstance(attention.bias, Relative):
        table = (attention.bias.table.detach().to(dtype) * LOG2_E).contiguous()
    none = torch.empty(0, 0, dtype=dtype).numpy()

    def survey_part(part: int, b: int, h: int, rows: range) -> Iterator[None]:
        seen = (stop[b, h] - start[b, h]).clamp(min=0)
        step = max(kernels.STRIP, STEP // max(1, int(seen[rows.start : rows.stop].max())))
        for first in range(rows.start, rows.stop, step):
            some = slice(first, min(first + step, rows.stop))
            kernels.survey_rows(
                queries[b, h, some].numpy(), packed[b, h // group].numpy(), none, 0, number(scale), number(softcap),
                number(slopes[h]), table[h % len(table)].numpy(), columns - queries.shape[2] + first,
                start[b, h, some].numpy(), stop[b, h, some].numpy(), *results.arguments(part, b, h, some),
            )  # fmt: skip
            yield

    parts = [
        partial(survey_part, part, b, h, some)
        for b in range(batch)
        for h in range(heads)
        for part, some in enumerate(_parts(rows, len(results.received)))
    ]
    _run_in_threads(parts)


def _parts(rows: int, count: int) -> list[range]:
    edges = [rows * i // count for i in range(count + 1)]
    return [range(first, stop) for first, stop in zip(edges, edges[1:], strict=False) if first < stop]


# ---------------------------------------------------------------------------------------------- scores by PyTorch


def _run_blocks(queries: Tensor, keys: Tensor, attention: Attention, results: Results, most: int) -> None:
    """Survey an attention whose scores PyTorch computes, block by block."""
    kernels, number, dtype = _kernels(), _number(results.entropy), results.entropy.dtype
    results.lse.copy_(torch.tensor(results.sinks, dtype=dtype)[:, None]) if not results.lse_known else None
    for tensor, fill in ((results.entropy, 0.0), (results.weights, 0.0), (results.found, -1)):
        tensor.fill_(fill)  # the numbers of a row that is in no block, since it sees nothing
    no_queries, no_keys, no_table = (torch.empty(shape, dtype=dtype).numpy() for shape in ((0, 0), (0, 0, 0), (0,)))
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        made, rows = scores(block), block.rows
        count = rows.stop - rows.start
        start, stop = (torch.full((count,), end, dtype=torch.int32).numpy() for end in (block.columns.start, block.columns.stop))

        def survey_head(i: int, j: int, *, made: Tensor = made, start: Any = start, stop: Any = stop, block: Any = block) -> Iterator[None]:
            kernels.survey_rows(
                no_queries, no_keys, made[i, j].numpy(), block.columns.start, number(LOG2_E), number(0.0), number(0.0),
                no_table, 0, start, stop,
                *results.arguments(0, block.sequences.start + i, block.heads.start + j, block.rows),
            )  # fmt: skip
            yield

        _run_in_threads([partial(survey_head, i, j) for i in range(made.shape[0]) for j in range(made.shape[1])])


# -------------------------------------------------------------------------------------------------------- threads


def _run_in_threads(tasks: list[Callable[[], Iterator[None]]]) -> None:
    """Run every task to its end, on as many threads as torch uses. Tasks stop at their next `yield` if one fails."""
    count = min(torch.get_num_threads(), len(tasks))
    if count < 2:
        for task in tasks:
            for _ in task():
                pass
        return
    waiting, failed = iter(tasks), False

    def work() -> None:
        for task in waiting:  # threads share the iterator: each takes the next task
            for _ in task():
                if failed:
                    return

    futures = [_threads(os.getpid(), torch.get_num_threads()).submit(work) for _ in range(count)]
    try:
        for future in futures:
            future.result()
    except BaseException:
        failed = True
        raise


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked process makes its own."""
    return ThreadPoolExecutor(count, thread_name_prefix="telescope-survey")


@cache
def _kernels() -> Any:
    from . import cpu_kernels

    return cpu_kernels


def _number(like: Tensor) -> Any:
    """Return numpy's type of the elements, so that kernels are compiled for two dtypes, not for Python's floats."""
    import numpy

    return numpy.float64 if like.dtype == torch.float64 else numpy.float32
