"""Survey on a CPU: one pass over each strip of scores while it is in the cache, by kernels that
numba compiles.

Products, softcap, ALiBi, relative biases and masks that are spans of keys are computed in the
kernel. Any other score, bias or mask is computed by PyTorch, block by block, and read once by the
kernel.
"""

import os
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from math import log
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import pad

from ..attention import Alibi, Attention, Relative, has_data
from . import chunked
from .blocks import BlockScores, as_dot, blocks, obstacle, row_spans, sink_of
from .device import PARTS, Task, row_tasks, run_tasks, run_within_memory, tell_if_slow
from .requests import Cells, Extras, Listing, Marks
from .summary import Keys, PerQuery, Queries, Summary, compute_dtype

LOG2_E = 1.0 / log(2.0)
MOST = 128  # of `top`: each row compares about twice as many maxima with one another
MAPS = 2**23  # cells of all maps that the parts add to, 64 MB
MARGIN = 64  # zeros after the last norm: vectors and blocks of scores end beyond the last key


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return why this engine cannot survey such an attention, or None if it can."""
    if queries.device.type != "cpu":
        return f"it runs on a CPU, and the queries are on {queries.device}"
    found = obstacle(queries, keys, attention, top, MOST)
    if found is None and not all(map(_is_plain, (queries, keys))):
        return "it needs plain tensors that hold numbers"
    return found or unavailable()


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
        problem = f"{type(error).__name__}: {error}"
        return f"numba does not work here ({problem}): pip install --upgrade numba"
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
        results = Results.empty(nothing, nothing, Attention(), None, 0, None, None, Extras())
        _survey_products(kernels, nothing, nothing, Attention(), results)
        kernels.cpu_layout.fingerprint(nothing.int(), torch.ones(1, dtype=torch.int64))

    # Compile, or load what an earlier process compiled.
    with tell_if_slow("the CPU's survey kernels"):
        try:
            kernels.drop_stale_code()
            compile_or_load()
        except Exception:  # a cache that cannot be read or written: a full disk, a file cut short
            caches = [function._cache for function in kernels.ON_DISK]
            try:
                for kept in caches:
                    kept.flush()  # begin a new one
                compile_or_load()
            except Exception:
                # No cache can be written: compile for this process alone.
                for kept in caches:
                    kept.disable()
                compile_or_load()
    return kernels


def fingerprint(keys: Tensor, factors: Tensor) -> Tensor:
    """Return Σ features · factors, modulo 2^64, of keys (batch, head, key, feature) of int32, on a
    machine on which this engine has run.
    """
    found: Tensor = _kernels().cpu_layout.fingerprint(keys, factors)
    return found


def summarize(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None = None,
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary. An lse, where given, is not computed again."""
    # The kernel sums over the cells of a map and finds no largest weight in them.
    if cells is not None and cells.how == "max":
        return chunked.summarize(queries, keys, attention, lse, top, cells, marks, extras)

    def within(most: int) -> Summary:
        results = Results.empty(queries, keys, attention, lse, top, cells, marks, extras)
        # The kernel forms the products itself where score, bias and mask are of its kinds.
        kernels = _compiled(results.entropy.dtype)
        if _in_kernel(attention) and row_spans(queries, keys, attention).whole:
            _survey_products(kernels, queries, keys, attention, results)
        else:
            _survey_blocks(kernels, queries, keys, attention, results, most)
        return results.summary(lse, cells, extras)

    return run_within_memory(within, chunked.SCORES["cpu"], keys.shape[-2], queries, keys)


def _in_kernel(attention: Attention) -> bool:
    """Return whether the kernel can compute the scores, given a mask that is spans of keys."""
    return attention.score.is_dot_product and (
        attention.bias is None or isinstance(attention.bias, Alibi | Relative)
    )


# ----------------------------------------------------------------- what the kernel reads and writes


class Source(NamedTuple):
    """Where the kernel gets its scores: numpy arrays, of which those not needed have no elements.

    queries, keys    the memory of (b, h, row, feature), which has `query_strides`, and, packed,
                     (b, key head, tile, feature, key): their products times `scale` are the scores;
    scores           or the scores themselves (b, h, row, key), times `scale`
    origin           (4,): which b, h, row and key the first of `scores` is
    softcap          0 for none; with one, scores before it are in natural units
    slopes, tables   a bias: (h,), ALiBi's slope, 0 for none; (h or 1, distance), one number for
                     each distance
    shift            the position of row 0, counted in keys
    start, stop      (b, h, row): the first key that each row sees, and one past the last; not read
                     with `scores`
    """

    queries: Any
    query_strides: Any
    keys: Any
    scores: Any
    origin: Any
    scale: Any
    softcap: Any
    slopes: Any
    tables: Any
    shift: int
    start: Any
    stop: Any

    @classmethod
    def empty(cls, results: "Results") -> "Source":
        """Return a source without scores, to be filled in by `_replace`."""
        batch, heads, rows = results.lse.shape
        like = results.entropy

        def none(*size: int) -> Any:
            return like.new_empty(size).numpy()

        # numpy's type of a number, so that kernels are compiled for two dtypes, not for Python's
        # floats too.
        number = numpy.float64 if like.dtype == torch.float64 else numpy.float32
        no_span = torch.empty(batch, heads, 0, dtype=torch.int32).numpy()
        return cls(
            queries=none(0),
            query_strides=numpy.zeros(3, int),
            keys=none(batch, heads, 0, 0, 0),
            scores=none(batch, heads, rows, 0),
            origin=numpy.zeros(4, int),
            scale=number(LOG2_E),
            softcap=number(0.0),
            slopes=like.new_zeros(heads).numpy(),
            tables=none(1, 0),
            shift=0,
            start=no_span,
            stop=no_span,
        )


class Results(NamedTuple):
    """What the kernel writes, and what it reads beside the scores: tensors, or their numpy arrays.

    Those that are not asked for have no elements. Each part of the rows adds to sums of its own.

    sinks            (h,), to base two, -inf for none
    lse              (b, h, row), to base two: read if `lse_known`, else written
    received         (part, b, h, key), float64: added to
    entropy          (b, h, row), in nats; weights, found (b, h, row, top): written
    map_row          (b, row), map_column (b, key): the cell of each pair
    pooled           (part, b, h, rows, columns), float64: added to
    marked_stop      (row,): the weight of all keys before is written to marked_sum (b, h, row)
    marked_keys      (b, row, mark): the weight of each is written to marked_weights (b, h, row,
                     mark)
    listed_keys      (b, slot): the keys of all lists, one list after the other
    listed_spans     (b, row, list, 2): where the keys of a row begin and end. Their total weight is
                     written to listed_sum (b, h, row, list), and whether the row sees one of them
                     to listed_seen, likewise
    query_weights    (b, h, set, row): each set times the weights is added to weighted (part, b, h,
                     set, key), float64
    norms            (b, h, key), zeros after the last: their sum times the weights is written to
                     carried (b, h, row)
    largest          (part, b, h, key): raised to the largest weight of each key; largest_row,
                     likewise: its row
    """

    sinks: Any
    lse: Any
    lse_known: Any
    received: Any
    entropy: Any
    weights: Any
    found: Any
    map_row: Any
    map_column: Any
    pooled: Any
    marked_stop: Any
    marked_keys: Any
    marked_sum: Any
    marked_weights: Any
    listed_keys: Any
    listed_spans: Any
    listed_sum: Any
    listed_seen: Any
    query_weights: Any
    weighted: Any
    norms: Any
    carried: Any
    largest: Any
    largest_row: Any

    @classmethod
    def empty(
        cls, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int,
        cells: Cells | None, marks: Marks | None, extras: Extras,
    ) -> "Results":  # fmt: skip
        batch, heads, rows, _ = queries.shape
        columns = keys.shape[-2]
        dtype = compute_dtype(queries)
        sinks = sink_of(attention, torch.float64, queries.device).reshape(-1).expand(heads)
        size = (0, 0) if cells is None else (cells.rows, cells.columns)

        # Few heads are cut into parts of their rows, as long as their maps fit into memory.
        parts = -(-PARTS * torch.get_num_threads() // (batch * heads))
        parts = max(1, min(parts, MAPS // max(1, batch * heads * size[0] * size[1])))

        def zeros(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*size, dtype=dtype)

        def integers(numbers: Tensor, *size: int) -> Tensor:
            return numbers.int().expand(*size).contiguous()

        # The kernel writes everything of a row. What is not asked for has no elements.
        unwritten = partial(torch.empty, dtype=dtype)
        known = unwritten(batch, heads, rows) if lse is None else lse.detach().to(dtype) * LOG2_E
        none = torch.empty(batch, 0)
        before = torch.empty(0) if marks is None else marks.before
        single = torch.empty(0, 1, rows) if marks is None else marks.single
        lists = () if marks is None else marks.listed
        listed_keys, listed_spans = _lists(lists, batch, rows)
        asked = extras.weighted
        searched = columns if extras.largest else 0
        return cls(
            sinks=(sinks * LOG2_E).to(dtype),
            lse=known.contiguous(),
            lse_known=lse is not None,
            received=zeros(parts, batch, heads, columns, dtype=torch.float64),
            entropy=unwritten(batch, heads, rows),
            weights=unwritten(batch, heads, rows, top),
            found=unwritten(batch, heads, rows, top, dtype=torch.int32),
            map_row=integers(none if cells is None else cells.row_of_query, batch, -1),
            map_column=integers(none if cells is None else cells.column_of_key, batch, -1),
            pooled=zeros(parts, batch, heads, *size, dtype=torch.float64),
            marked_stop=before.int().contiguous(),
            marked_keys=single.expand(-1, batch, -1).permute(1, 2, 0).int().contiguous(),
            marked_sum=unwritten(batch, heads, rows),
            marked_weights=unwritten(batch, heads, rows, len(single)),
            listed_keys=listed_keys,
            listed_spans=listed_spans,
            listed_sum=unwritten(batch, heads, rows, len(lists)),
            listed_seen=unwritten(batch, heads, rows, len(lists), dtype=torch.bool),
            query_weights=zeros(batch, heads, 0, rows)
            if asked is None
            else asked.to(dtype).expand(batch, heads, -1, -1).contiguous(),
            weighted=zeros(parts, batch, heads, extras.sets, columns, dtype=torch.float64),
            norms=zeros(batch, heads, 0)
            if extras.carried is None
            else pad(extras.carried, (0, MARGIN)),
            carried=unwritten(batch, heads, rows),
            largest=zeros(parts, batch, heads, searched),
            largest_row=torch.full((parts, batch, heads, searched), -1, dtype=torch.int32),
        )

    def clear_rows(self) -> None:
        """Write the numbers of rows that see nothing, for those that no task writes."""
        if not self.lse_known:
            self.lse.copy_(self.sinks[:, None])
        self.found.fill_(-1)
        marked = (self.marked_sum, self.marked_weights, self.listed_sum, self.listed_seen)
        for numbers in (self.entropy, self.weights, self.carried, *marked):
            numbers.zero_()

    def run(self, kernels: Any, source: Source, units: list[list[Task]]) -> None:
        """Run the kernel on all tasks. Its numpy arrays share the tensors' memory."""
        arrays = Results(*(one.numpy() if isinstance(one, Tensor) else one for one in self))
        run_tasks(lambda places: kernels.survey_heads(places, source, arrays), units)

    def summary(self, lse: Tensor | None, cells: Cells | None, extras: Extras) -> Summary:
        """Return the summary, once all rows are surveyed."""
        dtype = self.entropy.dtype
        is_marked = len(self.marked_stop) > 0
        is_listed = self.listed_spans.numel() > 0
        part = self.largest.argmax(0)[None]  # the first of equal ones, which has the lower rows
        return Summary(
            lse=self.lse / LOG2_E if lse is None else lse.detach().to(dtype),
            received=self.received.sum(0).to(dtype),
            entropy=self.entropy,
            top_weights=self.weights,
            top_keys=self.found,
            map=None if cells is None else cells.averaged(self.pooled.sum(0).to(dtype)),
            before=self.marked_sum if is_marked else None,
            single=self.marked_weights if is_marked else None,
            listed=self.listed_sum if is_listed else None,
            listed_seen=self.listed_seen if is_listed else None,
            weighted=self.weighted.sum(0).to(dtype) if extras.sets else None,
            carried=None if extras.carried is None else self.carried,
            largest_weight=self.largest.gather(0, part)[0] if extras.largest else None,
            largest_query=self.largest_row.gather(0, part)[0] if extras.largest else None,
        )


def _lists(listings: tuple[Listing, ...], batch: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return `listed_keys` and `listed_spans` of the Results."""
    keys = [torch.empty(batch, 0)]
    spans = [torch.empty(batch, rows, 0, 2)]
    first = 0
    for listing in listings:
        # The keys of a list stand behind those of the lists before.
        ends = [(ends + first).expand(batch, -1) for ends in listing._by_row()]
        spans.append(torch.stack(ends, -1)[:, :, None])
        keys.append(listing.keys.expand(batch, -1))
        first += listing.keys.shape[-1]
    # As integers before they are joined: floats would round large ones.
    joined, stacked = (
        torch.cat([part.int() for part in parts], dim) for parts, dim in ((keys, 1), (spans, 2))
    )
    return joined.contiguous(), stacked.contiguous()


# -------------------------------------------------------------- scores by the kernel, or by PyTorch


def _survey_products(
    kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results
) -> None:
    """Survey an attention whose scores the kernel computes."""
    batch, heads, rows, _ = queries.shape
    dtype = results.entropy.dtype
    empty = Source.empty(results)
    number = type(empty.scale)
    spans = row_spans(queries, keys, attention)
    scale = attention.scale_for(keys.shape[-1])
    softcap = attention.softcap or 0.0
    bias = attention.bias

    # Queries, keys and biases as the kernel takes them.
    queries, keys = as_dot(attention, queries, keys, dtype)
    memory, strides = kernels.cpu_layout.memory_of(queries.detach().to(dtype))
    source = empty._replace(
        queries=memory,
        query_strides=strides,
        keys=kernels.cpu_layout.pack(
            keys.detach().to(dtype), kernels.TILE_VECTORS * kernels.VECTOR
        ).numpy(),
        scale=number(scale if softcap else scale * LOG2_E),
        softcap=number(softcap),
        shift=keys.shape[-2] - rows,
        start=spans.start.int().contiguous().numpy(),
        stop=spans.stop.int().contiguous().numpy(),
    )
    if isinstance(bias, Alibi):
        slopes = bias.slopes.detach().to(dtype) * LOG2_E
        source = source._replace(slopes=slopes.contiguous().numpy())
    elif isinstance(bias, Relative):
        table = bias.table.detach().to(dtype) * LOG2_E
        source = source._replace(tables=table.contiguous().numpy())

    # A task is a stretch of rows with about as many scores as another.
    seen = (spans.stop - spans.start).clamp(min=0).to(torch.float64).cumsum(-1).numpy()
    parts = len(results.received)
    edges = [rows * i // parts for i in range(parts + 1)]
    units = [
        row_tasks((part, b, h), range(edges[part], edges[part + 1]), seen[b, h], kernels.STRIP)
        for part in range(parts)[::-1]  # under a causal mask, later rows take longer
        for b in range(batch)
        for h in range(heads)
    ]
    results.run(kernels, source, units)


def _survey_blocks(
    kernels: Any, queries: Tensor, keys: Tensor, attention: Attention, results: Results, most: int
) -> None:
    """Survey an attention whose scores PyTorch computes, in blocks of at most so many scores."""
    results.clear_rows()
    empty = Source.empty(results)
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        # The kernel reads the block as a part of the whole matrix, from its origin on.
        sequences, heads, rows = block.index
        origin = (sequences.start, heads.start, rows.start, block.columns.start)
        source = empty._replace(
            scores=scores(block).detach().contiguous().numpy(), origin=numpy.array(origin)
        )
        # One task for each head of the block.
        size = (rows.stop - rows.start) * block.width
        units = [
            [Task((0, b, h, rows.start, rows.stop), size)]
            for b in range(sequences.start, sequences.stop)
            for h in range(heads.start, heads.stop)
        ]
        results.run(kernels, source, units)
