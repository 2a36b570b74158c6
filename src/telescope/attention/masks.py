"""The masks: by position (causal, window, prefix), by what is in the batch (padding, documents), or from a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .check_numbers import whole
from .mask import Mask, everyone
from .pairs import Pairs, Spans, must_fit, pick
from .values import readable, size


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Nobody sees the future: a token sees itself and what came before it."""

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.key <= at.query

    def of_last_query(self) -> Mask:
        return everyone

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.between(torch.zeros_like(at.query), at.query + 1, keys)

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """Positions less than `size` apart see each other; `causal & window(n)` is a token and the n - 1 before it."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("window(size)", self.size))
        if self.size < 1:
            raise ValueError(
                f"window(size={self.size}) lets nobody see anything; the smallest window is 1, a token and itself"
            )

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return (at.query - at.key).abs() < self.size

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.between(at.query - self.size + 1, at.query + self.size, keys)

    def __repr__(self) -> str:
        return f"window({self.size})"


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """The first `size` keys are open to everyone; `causal | prefix(n)` reads n tokens both ways, then writes on."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("prefix(size)", self.size))
        if self.size < 0:
            raise ValueError(f"prefix(size={self.size}) is shorter than nothing; the smallest prefix is 0")

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.key < self.size

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.between(torch.zeros_like(at.query), torch.full_like(at.query, self.size), keys)

    @property
    def keys_alone(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"prefix({self.size})"


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Of each sequence in the batch only the first `lengths` keys are real; the rest is padding."""

    lengths: Int[Tensor, " batch"]

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.key < at.pick(self.lengths, "batch")

    def spans(self, at: Pairs, keys: int) -> Spans:
        lengths = at.pick(self.lengths, "batch")
        return Spans.between(torch.zeros_like(lengths), lengths, keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.lengths.shape[0] != batch:
            raise ValueError(
                f"padding has {self.lengths.shape[0]} lengths for a batch of {batch}; it takes one length per sequence"
            )
        if batch and readable(self.lengths) and int(self.lengths.max()) > keys:
            longest = int(self.lengths.max())
            raise ValueError(f"padding says a sequence has {longest} tokens, but there are only {keys} keys")

    @property
    def keys_alone(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


@dataclass(frozen=True, eq=False)
class Left(Mask):
    """Of each sequence in the batch the first `left` keys are padding; the rest is real."""

    left: Int[Tensor, " batch"]

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.key >= at.pick(self.left, "batch")

    def spans(self, at: Pairs, keys: int) -> Spans:
        left = at.pick(self.left, "batch")
        return Spans.between(left, torch.full_like(left, keys), keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.left.shape[0] != batch:
            raise ValueError(
                f"padding(left=...) has {self.left.shape[0]} numbers for a batch of {batch}; it takes one per sequence"
            )

    @property
    def keys_alone(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"padding(left={self.left.tolist()})"


@dataclass(frozen=True, eq=False)
class Keep(Mask):
    """Of each sequence in the batch only the keys marked True are real; the rest is padding."""

    keep: Bool[Tensor, "batch key"]

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.pick(self.keep, "batch", "key")

    def spans(self, at: Pairs, keys: int) -> Spans:
        if not keys:
            return Spans.unknown(at, keys)
        keep = self.keep.to(at.batch.device).long()
        kept, first = keep.sum(-1), keep.argmax(-1)
        past = torch.where(kept == 0, first, keys - keep.flip(-1).argmax(-1))
        whole = bool((past - first == kept).all())
        return Spans(at.pick(first, "batch"), at.pick(past, "batch"), whole)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if tuple(self.keep.shape) != (batch, keys):
            raise ValueError(
                f"padding(keep=...) has shape {tuple(self.keep.shape)}; "
                f"this attention needs (batch, key) = ({batch}, {keys})"
            )

    @property
    def keys_alone(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"padding(keep={size(self.keep)})"


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several texts packed into one sequence: a token sees the tokens of its own text only."""

    keys: Int[Tensor, "batch key"]
    queries: Int[Tensor, "batch query"] | None = None

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self._of_queries(at) == at.pick(self.keys, "batch", "key")

    def spans(self, at: Pairs, keys: int) -> Spans:
        if not keys:
            return Spans.unknown(at, keys)
        ids, text = torch.unique(self.keys.to(at.query.device), return_inverse=True)  # text: which of the ids a key has
        where = torch.arange(keys, device=text.device).expand_as(text)
        texts = (text.shape[0], len(ids))
        first = torch.full(texts, keys, device=text.device).scatter_reduce(1, text, where, "amin")
        past = torch.zeros(texts, dtype=torch.long, device=text.device).scatter_reduce(1, text, where + 1, "amax")
        count = torch.zeros(texts, dtype=torch.long, device=text.device).scatter_add(1, text, torch.ones_like(text))
        whole = bool(((past - first == count) | (count == 0)).all())

        mine = self._of_queries(at)
        text = torch.searchsorted(ids, mine.contiguous()).clamp(max=len(ids) - 1)
        start, stop = pick(first, at.batch, text), pick(past, at.batch, text)
        missing = (ids[text] != mine) | (start >= stop)
        return Spans(start.masked_fill(missing, 0), stop.masked_fill(missing, 0), whole)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        must_fit("documents(ids)", self.keys, "(batch, key)", (batch, keys))
        if self.queries is not None:
            must_fit("documents(queries=...)", self.queries, "(batch, query)", (batch, queries))
        elif queries > keys:
            raise ValueError(
                f"documents(ids) numbers {keys} keys, but there are {queries} queries; "
                "number them too: documents(ids, queries=...)"
            )

    def _of_queries(self, at: Pairs) -> Tensor:
        if self.queries is None:
            return at.pick(self.keys, "batch", "query")
        return at.pick(self.queries, "batch", "row")

    def __repr__(self) -> str:
        return f"documents({size(self.keys)})"


@dataclass(frozen=True, eq=False)
class FromTensor(Mask):
    """A mask that was given as a tensor; the one kind that is as large as itself."""

    tensor: Bool[Tensor, "batch head query key"]

    given = True

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return at.pick(self.tensor, "batch", "head", "row", "key")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        must_fit("a mask from_tensor", self.tensor, "(batch, head, query, key)", (batch, heads, queries, keys))

    @property
    def keys_alone(self) -> bool:
        return self.tensor.shape[2] == 1

    def __repr__(self) -> str:
        return f"from_tensor({size(self.tensor)})"


causal = Causal()
window = Window
prefix = Prefix


def padding(
    lengths: Sequence[int] | Tensor | None = None,
    *,
    left: Sequence[int] | Tensor | None = None,
    keep: Tensor | None = None,
) -> Mask:
    """Hide the padding: by the length of each sequence; by how much of it is on the `left`, where it is in front; or by
    `keep` (batch, key), True = a real token."""
    if sum(way is not None for way in (lengths, left, keep)) != 1:
        raise ValueError(
            "padding takes either the lengths of the sequences, left=, how much there is in front of each, or keep=, "
            "a (batch, key) bool tensor with True = a real token"
        )
    if keep is not None:
        return Keep(_bool("padding(keep=...)", keep, "a real token", (2,)))
    return Lengths(_counts(lengths)) if left is None else Left(_counts(left))


def _counts(given: Sequence[int] | Tensor | None) -> Tensor:
    counts = torch.as_tensor(given)
    counts = counts if counts.numel() else counts.long()  # an empty list is taken for floats
    if counts.ndim != 1 or counts.is_floating_point() or counts.dtype == torch.bool:
        raise ValueError(
            f"padding takes one whole number per sequence, not a {counts.dtype} tensor of shape {tuple(counts.shape)}; "
            "a bool mask goes to padding(keep=...)"
        )
    if readable(counts) and bool((counts < 0).any()):
        raise ValueError(f"padding has a negative length: {counts.tolist()}")
    return counts


def documents(
    ids: Sequence[Sequence[int]] | Sequence[int] | Tensor,
    *,
    queries: Sequence[Sequence[int]] | Sequence[int] | Tensor | None = None,
) -> Mask:
    """Several texts in one sequence: `ids` (batch, key) says to which text each token belongs.

    Without a batch axis the ids hold for the whole batch. Where the queries are another sequence, number them as well.
    """
    return Documents(_ids("ids", ids), None if queries is None else _ids("queries", queries))


def from_tensor(tensor: Tensor) -> Mask:
    """A mask from a bool tensor, **True = may attend**: (query, key) or (batch, head, query, key), 1 for "alike"."""
    return FromTensor(_whole(_bool("from_tensor", tensor, "may attend", (2, 4))))


def from_forbidden(tensor: Tensor, *, heads: int | None = None) -> Mask:
    """A mask from a bool tensor of the other polarity, **True = forbidden**, as torch.nn.MultiheadAttention takes it.

    An `attn_mask` is (query, key), or (batch · heads, query, key) together with `heads`. A `key_padding_mask`
    (batch, key) is `padding(keep=~key_padding_mask)`.
    """
    return FromTensor(~_whole(unfold_heads(_bool("from_forbidden", tensor, "forbidden", (2, 3, 4)), heads)))


def unfold_heads(tensor: Tensor, heads: int | None) -> Tensor:
    """(batch · heads, query, key), torch.nn.MultiheadAttention's folded form, to (batch, head, query, key)."""
    if tensor.ndim != 3:
        return tensor
    if not heads or tensor.shape[0] % heads:
        raise ValueError(
            f"a mask of shape {tuple(tensor.shape)} folds batch and heads into one axis; "
            f"say heads=..., a divisor of {tensor.shape[0]}"
        )
    return tensor.reshape(tensor.shape[0] // heads, heads, *tensor.shape[1:])


def _whole(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 4 else tensor[None, None]


def _bool(name: str, tensor: Tensor, meaning: str, dimensions: tuple[int, ...]) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(
            f"{name} takes a bool tensor with True = {meaning}, not {kind}; "
            "an additive float mask goes to bias=ts.from_additive(...)"
        )
    if tensor.ndim not in dimensions:
        raise ValueError(
            f"{name} takes a tensor of {' or '.join(map(str, dimensions))} axes, not of shape {tuple(tensor.shape)}; "
            "give the missing ones size 1"
        )
    return tensor


def _ids(name: str, ids: Sequence[Sequence[int]] | Sequence[int] | Tensor) -> Tensor:
    numbers = torch.as_tensor(ids)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.ndim not in (1, 2):
        raise ValueError(
            f"documents takes {name} as whole numbers, (token,) or (batch, token), "
            f"not a {numbers.dtype} tensor of shape {tuple(numbers.shape)}"
        )
    return numbers if numbers.ndim == 2 else numbers[None]
