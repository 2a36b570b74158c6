"""What several engines need: arithmetic that keeps NaN contained, the keys that a block of queries
can see, and tables of masks and biases for fused kernels.

A NaN or infinity in a hidden key or value must change no output and no gradient, though 0 · NaN =
NaN. Tables are cached by content, not by the object that holds it, so that writing to a tensor
never leaves a stale table behind.
"""

import threading
from collections import OrderedDict
from math import isfinite
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ..attention import (
    Alibi,
    Attention,
    Bias,
    Both,
    Causal,
    Context,
    Either,
    Everyone,
    Keys,
    Left,
    Lengths,
    Opposite,
    Pairs,
    Prefix,
    Queries,
    Raised,
    Rectangle,
    Relative,
    Score,
    Scores,
    SumOfBiases,
    Value,
    Values,
    Window,
    WrittenMask,
    by_sum,
    everyone,
    field_values,
    grouped_matmul,
    has_data,
    is_cheap_to_read,
    is_tracing,
    softmax,
)


def upcast_half(tensor: Tensor) -> Tensor:
    """Return float16 and bfloat16 tensors as float32, and others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def may_be_nonfinite(*tensors: Tensor) -> bool:
    """Return whether some tensor may hold a NaN or infinity; False for tensors without data, as
    when compiling.
    """
    return all(map(has_data, tensors)) and sums_are_nonfinite(*tensors)


def sums_are_nonfinite(*tensors: Tensor) -> bool:
    """Return whether some tensor, all of which have data, may hold a NaN or infinity."""
    return any(not isfinite(sum_to_float(tensor)) for tensor in tensors)


def sum_to_float(tensor: Tensor) -> float:
    """Return the sum of all numbers, which one NaN or infinity makes non-finite, several times
    faster than isfinite().

    Half precision is summed in float32. Finite numbers may overflow in the sum, so this is a test
    without misses, but with false alarms.
    """
    # A sum that is only looked at needs no graph.
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return (tensor.sum(dtype=torch.float32) if tensor.element_size() < 4 else tensor.sum()).item()


def repeat_key_heads(
    tensor: Shaped[Tensor, "batch key_heads key d"], queries: Queries
) -> Shaped[Tensor, "batch heads key d"]:
    """Return `tensor` with each key head repeated for its group of neighbouring query heads."""
    heads = queries.shape[1]
    key_heads = tensor.shape[1]
    return tensor if heads == key_heads else tensor.repeat_interleave(heads // key_heads, dim=1)


def nan_safe_score(score: Score, queries: Queries, keys: Keys) -> Scores:
    """Return score(queries, keys), where a NaN or infinity stays out of the gradients of all other
    pairs.
    """
    if not may_be_nonfinite(queries, keys):
        return score(queries, keys)
    bad_queries, bad_keys = (~tensor.isfinite().all(-1, keepdim=True) for tensor in (queries, keys))
    # Scores of clean inputs carry the gradients; the others are put in as constants.
    clean = score(queries.masked_fill(bad_queries, 0.0), keys.masked_fill(bad_keys, 0.0))
    bad = bad_queries | repeat_key_heads(bad_keys, queries).mT
    return torch.where(bad, score(queries, keys).detach(), clean)


def nan_safe_weigh(weights: Scores, values: Values, masked: Scores) -> Context:
    """Return weights @ values, where a hidden value adds nothing, not even a NaN (0 · NaN =
    NaN).
    """
    if not may_be_nonfinite(values):
        return grouped_matmul(weights, values)
    values = repeat_key_heads(values, weights)
    # Finite values take one product; keys with a NaN or infinity are added one by one.
    bad = ~values.isfinite()
    context = grouped_matmul(weights, values.masked_fill(bad, 0.0))
    for key in bad.any(-1).flatten(0, 1).any(0).nonzero().flatten().tolist():
        # Only what is not finite and not hidden is added.
        part = (weights[..., key, None] * values[..., None, key, :]).detach()
        context = context + part.masked_fill(
            part.isfinite() | (masked[..., key, None] == -torch.inf), 0.0
        )
    return context


def find_key_ranges(
    queries: Tensor, keys: Tensor, attention: Attention
) -> Int[Tensor, "query 2"] | None:
    """Return for each query the range (start, stop) of the keys it sees in any sequence and head;
    None if unknown.

    All queries are computed at once and copied to the CPU, since on a GPU every copy waits.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    # Another normaliser may depend on the number of hidden keys.
    if attention.normalize not in (softmax, by_sum) or not has_data(queries):
        return None
    if 0 in (batch, heads, rows, columns):
        return None
    of = (rows, columns)
    at = Pairs.block(range(rows), range(1), of=of, batch=batch, heads=heads, device=queries.device)
    # The widest range over sequences and heads, one for each query.
    spans = attention.mask.spans(at, columns)
    start = spans.start.masked_fill(spans.empty, columns).amin((0, 1))
    stop = spans.stop.masked_fill(spans.empty, 0).amax((0, 1))
    return torch.cat([torch.minimum(start, stop), stop], dim=-1).expand(rows, 2).cpu()


def range_of_block(key_ranges: Int[Tensor, "query 2"] | None, block: range, columns: int) -> range:
    """Return the range of keys that covers what the queries of `block` see; all `columns` keys if
    unknown.
    """
    if key_ranges is None:
        return range(columns)
    starts, stops = key_ranges[block.start : block.stop].unbind(-1)
    nonempty = starts < stops
    if not bool(nonempty.any()):
        return range(0)
    return range(int(starts[nonempty].min()), int(stops[nonempty].max()))


MAX_CACHED_NUMBERS = 2**21  # numbers of a table that is cached, at most
CACHE_BYTES = 2**25  # of all cached tables together
# A row whose largest number is beyond ±NEAR is shifted to zero, which leaves softmax unchanged.
NEAR = 8.0
# Beyond ±FAR it is not shifted: float32 has lost the scores anyhow, and all keys weigh the same.
FAR = 2.0**24
MAX_KEY_NUMBERS = 1024  # numbers of a tensor that is read to make a cache key, at most
# Masks and biases whose content a key can hold: positions and small tensors.
CACHEABLE = (
    *(Everyone, Causal, Window, Prefix, Lengths, Left, Rectangle, Both, Either, Opposite),
    *(Alibi, Relative, Raised, SumOfBiases),
)


class ScoreTable(NamedTuple):
    """A table for the scores of a block, and the rows and values that the kernel cannot be trusted
    with.

    added       what is added to the scores, or a bool mask with True = may attend; None changes
                nothing
    empty_rows  queries that see nothing. Their rows show every key, and the caller sets the result
                to zero: kernels differ in the result and the gradient of an empty row
    nonfinite   whether the table holds a NaN or +inf, which kernels handle differently
    far         whether a row's largest number is beyond `FAR`: the kernel keeps that number and the
                logarithm of the row's sum as one number, and has lost the sum when it computes
                gradients
    """

    added: Shaped[Tensor, "#batch #heads #query #key"] | None
    empty_rows: Bool[Tensor, "#batch #heads #query 1"] | None
    nonfinite: bool = False
    far: bool = False


def score_table(
    queries: Float[Tensor, "batch heads row d_k"],
    rows: int | range,
    columns: int | range,
    of: tuple[int, int],
    attention: Attention,
) -> ScoreTable:
    """Return the table of these rows and columns of a matrix of size `of`, from the cache where
    possible.

    Axes without influence have size 1. The table is shared: do not write to it.
    """
    # Nothing to add.
    if attention.mask == everyone and attention.bias is None:
        return ScoreTable(None, None)
    if torch.compiler.is_compiling() or not has_data(queries):
        return _make_table(queries, rows, columns, of, attention)
    size_key = (*queries.shape[:2], rows, columns, of, queries.dtype, queries.device)
    # A mask made for one step of decoding owns the tables of that step, for all layers.
    if isinstance(attention.mask, WrittenMask):
        cache = attention.mask.cache
        cached: tuple[Bias | None, ScoreTable | None] = cache.get(size_key, (None, None))
        bias, table = cached
        if table is None or bias is not attention.bias:
            table = _as_additive(_make_table(queries, rows, columns, of, attention), queries)
            cache[size_key] = attention.bias, table
        return table
    # Making a key reads numbers, which would wait for a GPU.
    if queries.device.type != "cpu" or is_tracing():
        return _make_table(queries, rows, columns, of, attention)
    definition_key = _cache_key(attention.mask), _cache_key(attention.bias)
    if None in definition_key:
        return _make_table(queries, rows, columns, of, attention)
    key = (definition_key, size_key)
    found = _table_cache.get(key)
    if found is not None:
        return found
    # An inference tensor could not be saved for a gradient.
    with torch.inference_mode(False), torch.no_grad():
        table = _make_table(queries, rows, columns, of, attention)
        return _table_cache.put(key, _as_additive(table, queries))


def _make_table(
    queries: Tensor,
    rows: int | range,
    columns: int | range,
    of: tuple[int, int],
    attention: Attention,
) -> ScoreTable:
    """Compute the table of these rows and columns."""
    batch, heads = queries.shape[:2]
    mask = attention.mask
    bias = attention.bias
    if bias is None and mask.same_for_all_queries:
        rows = range(1)  # one row stands for all
    at = Pairs.block(rows, columns, of=of, batch=batch, heads=heads, device=queries.device)
    if bias is None:
        # Without a bias a bool table does, the smallest that kernels take.
        seen = mask.sees(at)
        nonempty = seen.any(-1, keepdim=True)
        if is_cheap_to_read(nonempty) and bool(nonempty.all()):
            return ScoreTable(seen, None)
        return ScoreTable(seen | ~nonempty, ~nonempty)
    assert isinstance(bias, Bias)
    # Half precision rounds too much.
    added = bias.added(at, torch.float32 if queries.element_size() < 4 else queries.dtype)
    if mask != everyone:
        added = torch.where(mask.sees(at), added, -torch.inf)
    if is_cheap_to_read(added) and mask == everyone and _within(added, NEAR):
        return ScoreTable(added, None)
    # Rows far from zero are shifted, so that the kernel's sums keep their digits.
    largest = added.detach().amax(-1, keepdim=True)
    if is_cheap_to_read(largest) and _within(largest, NEAR):
        return ScoreTable(added, None)
    empty_rows = largest == -torch.inf
    shift = torch.where(largest.abs() <= FAR, largest, 0.0)
    added = (added - shift).masked_fill(empty_rows, 0.0)
    if not is_cheap_to_read(largest):
        return ScoreTable(added, empty_rows)
    nonfinite = not bool((largest < torch.inf).all())
    far = not bool((empty_rows | (largest.abs() <= FAR)).all())
    return ScoreTable(added, empty_rows if bool(empty_rows.any()) else None, nonfinite, far)


def _within(numbers: Tensor, bound: float) -> bool:
    """Return whether all numbers are nearer to zero than `bound`; a NaN is not."""
    # Both ends in one pass.
    low, high = numbers.detach().aminmax()
    return -bound < low.item() and high.item() < bound


def _as_additive(table: ScoreTable, queries: Tensor) -> ScoreTable:
    """Return the table with a bool mask turned into 0 and -inf, which the kernel would do in every
    call.
    """
    if table.added is None or table.added.dtype != torch.bool:
        return table
    # Once per table instead of once per call.
    zeros = torch.zeros_like(table.added, dtype=queries.dtype)
    return table._replace(added=zeros.masked_fill(~table.added, -torch.inf))


def _cache_key(value: Any) -> Any:
    """Return a hashable key for the content of a mask or bias, or None if its kind is not known to
    be cacheable.
    """
    if value is None:
        return "none"
    if type(value) not in CACHEABLE:
        return None
    parts = [type(value), *(_cache_key_part(content) for content in field_values(value))]
    return None if None in parts else tuple(parts)


def _cache_key_part(content: Any) -> Any:
    """Return the key of one field: a small CPU tensor counts by its numbers, a large or learned one
    gives None.
    """
    if content is None or isinstance(content, Value):
        return _cache_key(content)
    if isinstance(content, tuple):
        parts = tuple(map(_cache_key, content))
        return None if None in parts else parts
    if not isinstance(content, Tensor):
        return content
    plain = content.device.type == "cpu" and not content.requires_grad and has_data(content)
    if not plain or content.numel() > MAX_KEY_NUMBERS:
        return None
    return (content.dtype, content.shape, *content.flatten().tolist())


class _TableCache:
    """The most recently used tables, as many as fit into `CACHE_BYTES`. Safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self.tables: OrderedDict[Any, tuple[ScoreTable, int]] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key: Any) -> ScoreTable | None:
        """Return the cached table, or None; a table that was written to is dropped."""
        with self.lock:
            found = self.tables.get(key)
            if found is None:
                return None
            table, version = found
            # The table was written to.
            if table.added is not None and table.added._version != version:
                self._drop(key)
                return None
            # The last used one is dropped last.
            self.tables.move_to_end(key)
            return table

    def put(self, key: Any, table: ScoreTable) -> ScoreTable:
        """Keep the table unless it is too large, drop the least recently used ones, and return the
        table.
        """
        added = table.added
        if added is None or type(added) is not Tensor or added.numel() > MAX_CACHED_NUMBERS:
            return table
        with self.lock:
            if key not in self.tables:
                self.tables[key] = table, added._version
                self.bytes += added.untyped_storage().nbytes()
            # The first in the dict is the least recently used.
            while self.bytes > CACHE_BYTES:
                self._drop(next(iter(self.tables)))
        return table

    def _drop(self, key: Any) -> None:
        table, _ = self.tables.pop(key)
        assert table.added is not None
        self.bytes -= table.added.untyped_storage().nbytes()


_table_cache = _TableCache()
