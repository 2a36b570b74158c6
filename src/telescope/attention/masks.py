"""The masks: by position (causal, window, prefix), by sequence (padding, documents), or from a
tensor.

`causal`, `window`, `prefix`, `padding`, `documents`, `from_tensor` and `from_forbidden` are the
public names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .mask import Mask, Pairs, Seen, Spans, everyone
from .values import (
    check_shape,
    format_shape,
    is_cheap_to_read,
    kind_of,
    pick,
    require_dense,
    require_positions,
)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A query sees the key at its own position and all keys before it."""

    def sees(self, at: Pairs) -> Seen:
        return at.key <= at.query

    def for_last_query(self) -> Mask:
        # The last query is at the last key: nothing is behind it.
        return everyone

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.between(torch.zeros_like(at.query), at.query + 1, keys)

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """Let positions see each other that are less than `size` apart: |query - key| < size.

    `causal & window(n)` is a token and the n - 1 tokens before it.

    Args:
        size: In positions, at least 1.

    Raises:
        TypeError, ValueError: `size` is not a whole number, below 1, or above 2**62.

    Example:
        >>> import telescope as ts
        >>> ts.window(2).block(3, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", require_positions("window(size)", self.size))
        if self.size < 1:
            raise ValueError(
                f"window(size={self.size}) hides every key; the smallest window is 1, in which a "
                "token sees itself"
            )

    def sees(self, at: Pairs) -> Seen:
        return (at.query - at.key).abs() < self.size

    def spans(self, at: Pairs, keys: int) -> Spans:
        # |query - key| < size, as a range of keys.
        return Spans.between(at.query - self.size + 1, at.query + self.size, keys)

    def __repr__(self) -> str:
        return f"window({self.size})"


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Let every query see the first `size` keys, and no other.

    `causal | prefix(n)` is a prefix language model: the first n tokens see each other, later ones
    are causal.

    Args:
        size: In keys, 0 or more.

    Raises:
        TypeError, ValueError: `size` is not a whole number, negative, or above 2**62.

    Example:
        >>> import telescope as ts
        >>> (ts.causal | ts.prefix(2)).block(3, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    size: int

    same_for_all_queries = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", require_positions("prefix(size)", self.size))
        if self.size < 0:
            raise ValueError(f"prefix(size={self.size}) is negative; the smallest prefix is 0")

    def sees(self, at: Pairs) -> Seen:
        return at.key < self.size

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.between(torch.zeros_like(at.query), torch.full_like(at.query, self.size), keys)

    def __repr__(self) -> str:
        return f"prefix({self.size})"


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Padding on the right: the first `lengths[b]` keys of sequence b are real."""

    lengths: Int[Tensor, " batch"]

    same_for_all_queries = True

    def sees(self, at: Pairs) -> Seen:
        return at.key < at.pick(self.lengths, "batch")

    def spans(self, at: Pairs, keys: int) -> Spans:
        lengths = at.pick(self.lengths, "batch")
        return Spans.between(torch.zeros_like(lengths), lengths, keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.lengths.shape[0] != batch:
            raise ValueError(
                f"padding has {self.lengths.shape[0]} lengths for a batch of {batch}; it takes one "
                "length per sequence"
            )
        # On a GPU the lengths are not read, since that would wait.
        if batch and is_cheap_to_read(self.lengths) and int(self.lengths.max()) > keys:
            longest = int(self.lengths.max())
            raise ValueError(
                f"padding has a length of {longest} tokens, but there are only {keys} keys"
            )

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


@dataclass(frozen=True, eq=False)
class Left(Mask):
    """Padding on the left: the first `left[b]` keys of sequence b are padding."""

    left: Int[Tensor, " batch"]

    same_for_all_queries = True

    def sees(self, at: Pairs) -> Seen:
        return at.key >= at.pick(self.left, "batch")

    def spans(self, at: Pairs, keys: int) -> Spans:
        left = at.pick(self.left, "batch")
        return Spans.between(left, torch.full_like(left, keys), keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.left.shape[0] != batch:
            raise ValueError(
                f"padding(left=...) has {self.left.shape[0]} numbers for a batch of {batch}; it "
                "takes one per sequence"
            )

    def __repr__(self) -> str:
        return f"padding(left={self.left.tolist()})"


@dataclass(frozen=True, eq=False)
class Keep(Mask):
    """Padding anywhere: the keys of sequence b with `keep[b]` True are real."""

    keep: Bool[Tensor, "batch key"]

    same_for_all_queries = True

    def sees(self, at: Pairs) -> Seen:
        return at.pick(self.keep, "batch", "key")

    def spans(self, at: Pairs, keys: int) -> Spans:
        if not keys:
            return Spans.unknown(at, keys)
        every_key = torch.arange(keys, device=at.batch.device)[None, None, None]
        return Spans.around(pick(self.keep, at.batch, every_key))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if tuple(self.keep.shape) != (batch, keys):
            raise ValueError(
                f"padding(keep=...) has shape {tuple(self.keep.shape)}; "
                f"this attention needs (batch, key) = ({batch}, {keys})"
            )

    def __repr__(self) -> str:
        return f"padding(keep={format_shape(self.keep)})"


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several texts packed into one sequence: a query sees the keys with its own document id."""

    keys: Int[Tensor, "batch key"]
    queries: Int[Tensor, "batch query"] | None = None

    def sees(self, at: Pairs) -> Seen:
        return self._query_ids(at) == at.pick(self.keys, "batch", "key")

    def spans(self, at: Pairs, keys: int) -> Spans:
        if not keys:
            return Spans.unknown(at, keys)
        # First key, last key and number of keys of each text; `text` is an index into `ids`.
        ids, text = torch.unique(self.keys.to(at.query.device), return_inverse=True)
        position = torch.arange(keys, device=text.device).expand_as(text)
        none = text.new_zeros(text.shape[0], len(ids))
        first = (none + keys).scatter_reduce(1, text, position, "amin")
        past = none.scatter_reduce(1, text, position + 1, "amax")
        count = none.scatter_add(1, text, torch.ones_like(text))
        whole = bool(((past - first == count) | (count == 0)).all())

        # A query whose text has no key sees nothing.
        query_ids = self._query_ids(at)
        text = torch.searchsorted(ids, query_ids.contiguous()).clamp(max=len(ids) - 1)
        start = pick(first, at.batch, text)
        stop = pick(past, at.batch, text)
        # `searchsorted` finds a neighbour where the id itself is not among the keys.
        missing = (ids[text] != query_ids) | (start >= stop)
        return Spans(start.masked_fill(missing, 0), stop.masked_fill(missing, 0), whole)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        check_shape("documents(ids)", self.keys, "(batch, key)", (batch, keys))
        if self.queries is not None:
            check_shape("documents(queries=...)", self.queries, "(batch, query)", (batch, queries))
        # The last query is at the last key, so that queries in front would have no id.
        elif queries > keys:
            raise ValueError(
                f"documents(ids) has ids for {keys} keys, but there are {queries} queries; "
                "give ids of the queries too: documents(ids, queries=...)"
            )

    def _query_ids(self, at: Pairs) -> Tensor:
        """Return the document id of each query of `at`."""
        if self.queries is None:
            return at.pick(self.keys, "batch", "query")
        # Ids of the queries are stored query by query, not by position.
        return at.pick(self.queries, "batch", "row")

    def __repr__(self) -> str:
        return f"documents({format_shape(self.keys)})"


@dataclass(frozen=True, eq=False)
class FromTensor(Mask):
    """A mask stored as a tensor: the only kind that takes memory for every pair."""

    tensor: Bool[Tensor, "batch head query key"]

    is_arbitrary = True

    def sees(self, at: Pairs) -> Seen:
        return at.pick(self.tensor, "batch", "head", "row", "key")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        sizes = (batch, heads, queries, keys)
        check_shape("a mask from_tensor", self.tensor, "(batch, head, query, key)", sizes)

    @property
    def same_for_all_queries(self) -> bool:
        return self.tensor.shape[2] == 1

    def __repr__(self) -> str:
        return f"from_tensor({format_shape(self.tensor)})"


# The public names: a value, and classes that are called like functions.
causal = Causal()
"""The mask of a decoder: a query sees the keys up to its own position.

Masks combine: `causal & window(n)`, `causal | prefix(n)`, `~causal`.

Example:
    >>> import telescope as ts
    >>> ts.causal.block(3, 3)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""
window = Window
prefix = Prefix


def padding(
    lengths: Sequence[int] | Tensor | None = None,
    *,
    left: Sequence[int] | Tensor | None = None,
    keep: Tensor | None = None,
) -> Mask:
    """Return the mask that hides padding keys. Exactly one of the arguments is given.

    Args:
        lengths: (batch,) whole numbers: how many keys of each sequence are real, with the padding
            behind.
        left: (batch,) whole numbers: how many padding keys each sequence has in front.
        keep: (batch, key) bool, True = a real token, for padding anywhere.

    Raises:
        TypeError, ValueError: None or several are given, a number is negative or no whole number,
            or `keep` is no bool tensor with two axes.

    Example:
        >>> import telescope as ts
        >>> ts.padding([2, 3]).block(1, 3, batch=2)[:, 0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    # Exactly one way to say which keys are padding.
    if sum(option is not None for option in (lengths, left, keep)) != 1:
        raise ValueError(
            "padding takes either the lengths of the sequences, left=, how many padding keys are "
            "in front of each, or keep=, a (batch, key) bool tensor with True = a real token"
        )
    if keep is not None:
        return Keep(_require_bool("padding(keep=...)", keep, "a real token", (2,)))
    return Lengths(_counts(lengths)) if left is None else Left(_counts(left))


def _counts(given: Sequence[int] | Tensor | None) -> Tensor:
    """Return one whole number per sequence as a tensor; raise a ValueError for anything else."""
    counts = require_dense("padding", torch.as_tensor(given))
    counts = counts if counts.numel() else counts.long()  # torch makes floats of an empty list
    # A bool mask here would be read as lengths of 0 and 1.
    if counts.ndim != 1 or counts.is_floating_point() or counts.dtype == torch.bool:
        raise ValueError(
            f"padding takes one whole number per sequence, not a {counts.dtype} tensor of shape "
            f"{tuple(counts.shape)}; a bool mask goes to padding(keep=...)"
        )
    if is_cheap_to_read(counts) and bool((counts < 0).any()):
        raise ValueError(f"padding has a negative length: {counts.tolist()}")
    return counts


def documents(
    ids: Sequence[Sequence[int]] | Sequence[int] | Tensor,
    *,
    queries: Sequence[Sequence[int]] | Sequence[int] | Tensor | None = None,
) -> Mask:
    """Return the mask of several texts packed into one sequence: a query sees its own text.

    Args:
        ids: (batch, key) or (key,) whole numbers: to which text each key belongs. Without a batch
            axis they hold for every sequence.
        queries: (batch, query) or (query,) whole numbers, where the queries are another sequence
            than the keys; None takes the ids of the keys at the queries' positions.

    Raises:
        ValueError: The ids are no whole numbers, or have more than two axes.

    Example:
        >>> import telescope as ts
        >>> ts.documents([0, 0, 1]).block(3, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    return Documents(_ids("ids", ids), None if queries is None else _ids("queries", queries))


def from_tensor(tensor: Tensor) -> Mask:
    """Return a mask from a bool tensor with **True = may attend**.

    Args:
        tensor: (query, key) or (batch, head, query, key); an axis of size 1 holds for all. The mask
            keeps the tensor, and later writes to it change the mask.

    Raises:
        TypeError: `tensor` is no bool tensor.
        ValueError: It has neither two nor four axes.

    Example:
        >>> import telescope as ts, torch
        >>> ts.from_tensor(torch.tensor([[True, False], [True, True]])) & ts.window(1)
        from_tensor(1x1x2x2) & window(1)
    """
    return FromTensor(with_four_axes(_require_bool("from_tensor", tensor, "may attend", (2, 4))))


def from_forbidden(tensor: Tensor, *, heads: int | None = None) -> Mask:
    """Return a mask from a bool tensor with **True = forbidden**, as torch.nn.MultiheadAttention
    takes it.

    A `key_padding_mask` (batch, key) of that module is `padding(keep=~key_padding_mask)`.

    Args:
        tensor: (query, key), (batch, head, query, key), or (batch · heads, query, key) together
            with `heads`. The mask holds a copy.
        heads: How many heads are folded into the first of three axes.

    Raises:
        TypeError: `tensor` is no bool tensor.
        ValueError: It has the wrong number of axes, or `heads` is missing or does not divide the
            first axis.

    Example:
        >>> import telescope as ts, torch
        >>> hidden = torch.tensor([[False, True], [False, False]])
        >>> ts.from_forbidden(hidden) == ts.from_tensor(~hidden)
        True
    """
    hidden = _require_bool("from_forbidden", tensor, "forbidden", (2, 3, 4))
    return FromTensor(~with_four_axes(hidden, heads))


def with_four_axes(tensor: Tensor, heads: int | None = None) -> Tensor:
    """Return a (query, key) or (batch · heads, query, key) tensor as (batch, head, query, key).

    torch.nn.MultiheadAttention folds batch and heads into one axis of three.
    """
    if tensor.ndim != 3:
        return tensor if tensor.ndim == 4 else tensor[None, None]
    if not heads or tensor.shape[0] % heads:
        raise ValueError(
            f"a mask of shape {tuple(tensor.shape)} folds batch and heads into one axis; "
            f"pass heads=..., a divisor of {tensor.shape[0]}"
        )
    return tensor.reshape(tensor.shape[0] // heads, heads, *tensor.shape[1:])


def _require_bool(name: str, tensor: Tensor, meaning: str, dimensions: tuple[int, ...]) -> Tensor:
    """Return `tensor`; raise unless it is a bool tensor with one of these numbers of axes."""
    # Numbers are refused: in some libraries 0 hides, in others -inf does.
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        raise TypeError(
            f"{name} takes a bool tensor with True = {meaning}, not {kind_of(tensor)}; "
            "an additive float mask goes to bias=ts.from_additive(...)"
        )
    require_dense(name, tensor)
    if tensor.ndim not in dimensions:
        raise ValueError(
            f"{name} takes a tensor of {' or '.join(map(str, dimensions))} axes, not of shape "
            f"{tuple(tensor.shape)}; give a missing axis size 1"
        )
    return tensor


def _ids(name: str, ids: Sequence[Sequence[int]] | Sequence[int] | Tensor) -> Tensor:
    """Return document ids as a tensor (batch, token); raise unless they are whole numbers."""
    numbers = require_dense(f"documents({name})", torch.as_tensor(ids))
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.ndim not in (1, 2):
        raise ValueError(
            f"documents takes {name} as whole numbers, (token,) or (batch, token), "
            f"not a {numbers.dtype} tensor of shape {tuple(numbers.shape)}"
        )
    # Ids without a batch axis hold for every sequence.
    return numbers if numbers.ndim == 2 else numbers[None]
