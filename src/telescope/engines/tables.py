"""Turn masks and biases into what a fused kernel takes: one table that is added to the scores.

All layers and steps need the same tables of positions and small tensors. These are cached by
content, not by the object that holds it, so that writing to a tensor never leaves a stale table
behind.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..attention import Attention, Bias, Pairs, everyone
from ..attention.biases import Alibi, Relative, SumOfBiases
from ..attention.mask import Both, Either, Everyone, Opposite
from ..attention.masks import Causal, Left, Lengths, Prefix, Window
from ..attention.pairs import is_tracing
from ..attention.rectangle import Raised, Rectangle
from ..attention.restrict import WrittenMask
from ..attention.values import Value, field_values, has_data, is_cheap_to_read

MAX_CACHED_NUMBERS = 2**21  # numbers of a table that is cached, at most
CACHE_BYTES = 2**25  # of all cached tables together
# A row whose largest number is beyond ±NEAR is shifted to zero, which leaves softmax unchanged.
NEAR = 8.0
FAR = (
    2.0**24
)  # beyond ±FAR it is not shifted: float32 has lost the scores anyhow, and all keys weigh the same
MAX_KEY_NUMBERS = 1024  # numbers of a tensor that is read to make a cache key, at most
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
    if attention.mask == everyone and attention.bias is None:
        return ScoreTable(None, None)
    if torch.compiler.is_compiling() or not has_data(queries):
        return _make_table(queries, rows, columns, of, attention)
    size_key = (*queries.shape[:2], rows, columns, of, queries.dtype, queries.device)
    if isinstance(
        attention.mask, WrittenMask
    ):  # made for one step of decoding: all layers share its cache
        cache = attention.mask.cache
        cached: tuple[Bias | None, ScoreTable | None] = cache.get(size_key, (None, None))
        bias, table = cached
        if table is None or bias is not attention.bias:
            table = _as_additive(_make_table(queries, rows, columns, of, attention), queries)
            cache[size_key] = attention.bias, table
        return table
    if queries.device.type != "cpu" or is_tracing():
        return _make_table(queries, rows, columns, of, attention)
    definition_key = _cache_key(attention.mask), _cache_key(attention.bias)
    if None in definition_key:
        return _make_table(queries, rows, columns, of, attention)
    found = _table_cache.get((definition_key, size_key))
    if found is None:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # an inference tensor could not be saved for a gradient
            found = _table_cache.put(
                (definition_key, size_key),
                _as_additive(_make_table(queries, rows, columns, of, attention), queries),
            )
    return found


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
        seen = mask.sees(at)
        nonempty = seen.any(-1, keepdim=True)
        if is_cheap_to_read(nonempty) and bool(nonempty.all()):
            return ScoreTable(seen, None)
        return ScoreTable(seen | ~nonempty, ~nonempty)
    assert isinstance(bias, Bias)
    added = bias.added(
        at, torch.float32 if queries.element_size() < 4 else queries.dtype
    )  # half precision rounds too much
    if mask != everyone:
        added = torch.where(mask.sees(at), added, -torch.inf)
    if is_cheap_to_read(added) and mask == everyone and _within(added, NEAR):
        return ScoreTable(added, None)
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
    low, high = numbers.detach().aminmax()
    return -bound < low.item() and high.item() < bound


def _as_additive(table: ScoreTable, queries: Tensor) -> ScoreTable:
    """Return the table with a bool mask turned into 0 and -inf, which the kernel would do in every
    call.
    """
    if table.added is None or table.added.dtype != torch.bool:
        return table
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
    return (
        (content.dtype, content.shape, *content.flatten().tolist())
        if plain and content.numel() <= MAX_KEY_NUMBERS
        else None
    )


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
            if (
                table.added is not None and table.added._version != version
            ):  # the table was written to
                self._drop(key)
                return None
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
            while self.bytes > CACHE_BYTES:
                self._drop(next(iter(self.tables)))
        return table

    def _drop(self, key: Any) -> None:
        table, _ = self.tables.pop(key)
        assert table.added is not None
        self.bytes -= table.added.untyped_storage().nbytes()


_table_cache = _TableCache()
