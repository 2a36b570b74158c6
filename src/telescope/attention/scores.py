"""Scores, how well a query matches a key, and biases, what their positions add to a score."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import floor, log2
from operator import add
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .mask import Pairs
from .masks import with_four_axes
from .values import (
    Keys,
    Part,
    Queries,
    Scores,
    check_shape,
    format_shape,
    grouped_matmul,
    kind_of,
    pick,
    require_dense,
    require_int,
)


class Score(Part):
    """Compute score(queries, keys), how well each query matches each key.

    A subclass sets `formula`. It defines `as_dot` if rewritten queries and keys give the score as a
    dot product, which fused kernels run; else it sets `is_dot_product = False` and defines `terms`.

    Example:
        >>> import telescope as ts, torch
        >>> class Negative(ts.Score):
        ...     formula = "-q·k"
        ...     def as_dot(self, queries, keys):
        ...         return -queries, keys
        >>> Negative()(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2)).tolist()
        [[[[-2.0, -2.0, -2.0]]]]
        >>> x = torch.ones(1, 1, 1, 2)
        >>> (
        ...     Negative().terms(x, x).flatten().tolist(),
        ...     Negative().numbers_per_score(x, x),
        ... )
        ([-1.0, -1.0], 1)
        >>> Negative().check(heads=1, d_q=2, d_k=2)  # it fits
    """

    formula: ClassVar[str]
    is_dot_product: ClassVar[bool] = True

    def as_dot(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose plain dot product is this score.

        Args:
            queries: (batch, heads, query, d_q).
            keys: (batch, heads, key, d_k).

        Returns:
            Queries and keys of one width.
        """
        return queries, keys

    def __call__(self, queries: Queries, keys: Keys) -> Scores:
        """Return all scores. With fewer key heads, neighbouring query heads share one."""
        if not self.is_dot_product:
            # No kernel computes these scores, so that key heads are repeated for their groups.
            group = queries.shape[1] // (keys.shape[1] or 1)
            return self.terms(queries, keys.repeat_interleave(group, dim=1)).sum(-1)
        queries, keys = self.as_dot(queries, keys)
        return grouped_matmul(queries, keys.mT)

    def terms(
        self, queries: Queries, keys: Float[Tensor, "batch heads key d_k"]
    ) -> Float[Tensor, "batch heads query key term"]:
        """Return the summands of every score, along a last axis.

        Args:
            queries: (batch, heads, query, d_q).
            keys: (batch, heads, key, d_k).
        """
        queries, keys = self.as_dot(queries, keys)
        return queries.unsqueeze(-2) * keys.unsqueeze(-3)

    def numbers_per_score(self, queries: Tensor, keys: Tensor) -> int:
        """Return how many numbers one score takes in memory: 1 for a matrix product.

        Args:
            queries: (batch, heads, query, d_q).
            keys: (batch, heads, key, d_k).
        """
        if self.is_dot_product or 0 in (*queries.shape, *keys.shape):
            return 1
        # Run the terms of one pair, and count them.
        one_key = keys[:1, :1, :1].expand(-1, queries.shape[1], -1, -1)
        return max(1, self.terms(queries[:1, :, :1], one_key).shape[-1])

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        """Raise a ValueError where this score does not fit queries and keys of these widths.

        Args:
            heads: the number of query heads.
            d_q, d_k: the width of a query and of a key.

        Raises:
            ValueError: the score does not fit; the sentence says what would.
        """
        if d_q != d_k:
            raise ValueError(
                f"queries have {d_q} features and keys have {d_k}; a dot product needs the same "
                "number in both"
            )


@dataclass(frozen=True, eq=False)
class Dot(Score):
    """The dot product q·k."""

    formula = "q·k"

    def __repr__(self) -> str:
        return "dot"


@dataclass(frozen=True, eq=False)
class General(Score):
    """Score by q·W·k, Luong's "general".

    Args:
        W: (d_q, d_k), or one matrix for each head, (heads, d_q, d_k).

    Example:
        >>> import telescope as ts, torch
        >>> score = ts.general(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> score(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2)).item()
        3.0
    """

    W: Float[Tensor, "*heads d_q d_k"]

    formula = "q·W·k"

    def as_dot(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return queries @ self.W.to(queries.dtype), keys

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        _check_matrix("general(W)", self.W, heads, d_q, d_k, "(d_q, d_k)")

    def __repr__(self) -> str:
        return f"general({format_shape(self.W)})"


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """Score by v·tanh(q·W_q + k·W_k): Bahdanau's score, and Luong's "concat" with W = [W_q; W_k].

    Args:
        W_q: (d_q, d_a), or one for each head, (heads, d_q, d_a).
        W_k: (d_k, d_a), or one for each head, (heads, d_k, d_a).
        v: (d_a,), or one for each head, (heads, d_a).

    Example:
        >>> import telescope as ts, torch
        >>> score = ts.additive(torch.eye(2), torch.eye(2), torch.ones(2))
        >>> round(score(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2)).item(), 4)
        1.9281
    """

    W_q: Float[Tensor, "*heads d_q d_a"]
    W_k: Float[Tensor, "*heads d_k d_a"]
    v: Float[Tensor, "*heads d_a"]

    formula = "v·tanh(W_q q + W_k k)"
    is_dot_product = False

    def terms(
        self, queries: Queries, keys: Float[Tensor, "batch heads key d_k"]
    ) -> Float[Tensor, "batch heads query key term"]:
        projected_queries = queries @ self.W_q.to(queries.dtype)
        projected_keys = keys @ self.W_k.to(keys.dtype)
        # Every query meets every key: (batch, heads, query, key, d_a).
        hidden = torch.tanh(projected_queries.unsqueeze(-2) + projected_keys.unsqueeze(-3))
        return hidden * self.v.to(queries.dtype)[..., None, None, :]

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        # The width of v says how wide the projections must be.
        d_a = self.v.shape[-1]
        if tuple(self.v.shape) not in ((d_a,), (heads, d_a)):
            raise ValueError(
                f"additive(v=...) has shape {tuple(self.v.shape)}; it is (d_a,), or (heads, d_a) = "
                f"({heads}, {d_a})"
            )
        _check_matrix("additive(W_q=...)", self.W_q, heads, d_q, d_a, "(d_q, d_a)")
        _check_matrix("additive(W_k=...)", self.W_k, heads, d_k, d_a, "(d_k, d_a)")

    def __repr__(self) -> str:
        return f"additive(d_a={self.v.shape[-1]})"


def _check_matrix(what: str, W: Tensor, heads: int, rows: int, columns: int, axes: str) -> None:
    """Raise a ValueError unless W is (rows, columns) or (heads, rows, columns)."""
    if tuple(W.shape) not in ((rows, columns), (heads, rows, columns)):
        raise ValueError(
            f"{what} has shape {tuple(W.shape)}; "
            f"this attention needs {axes} = ({rows}, {columns}), or one such matrix per head"
        )


# The public names: a value, and classes that are called like functions.
dot = Dot()
"""The dot product q·k, the score of a definition that names no other.

Example:
    >>> import telescope as ts, torch
    >>> ts.dot(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2)).item()
    2.0
"""
general = General
additive = Additive


# What a bias returns for a block: axes without influence on it may have size 1.
Added = Float[Tensor, "#batch #head #query #key"]


class Bias(Part):
    """Add a number to the score of each pair of a query and a key.

    A subclass defines `__call__`, and `check` if it fits only some sizes. For a bias of the two
    positions alone, a plain function will do: Attention(bias=lambda query, key: ...).

    Example:
        >>> import telescope as ts
        >>> class PerHead(ts.Bias):
        ...     def __call__(self, at):
        ...         return -1.0 * at.head * (at.query - at.key).abs()
        >>> PerHead()(ts.Pairs.block(2, 2, of=(2, 2), heads=2))[0, 1].tolist()
        [[-0.0, -1.0], [-1.0, -0.0]]
        >>> import torch
        >>> bias = ts.alibi(2)
        >>> bias.added(ts.Pairs.block(2, 2, of=(2, 2), heads=2), torch.float32).dtype
        torch.float32
        >>> bias.parts, bias.agrees(ts.alibi(2), of=(2, 2))
        ((alibi(2),), True)
        >>> bias.check(batch=1, heads=2, queries=3, keys=3)  # it fits
    """

    def __call__(self, at: Pairs) -> Added:
        """Return what is added to the scores of the pairs `at`; an axis may have size 1."""
        raise TypeError(
            f"{type(self).__name__} does not define what is added; add a method __call__(self, at)"
        )

    def added(self, at: Pairs, dtype: torch.dtype) -> Added:
        """Return the bias of the pairs `at` in `dtype`, that of the scores.

        Args:
            at: the positions of the queries and keys of a block, as tensors that broadcast.
            dtype: that of the scores.
        """
        return self(at).to(dtype)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this bias does not fit an attention of these sizes.

        Args:
            batch, heads: the number of sequences and of query heads.
            queries, keys: the number of queries and of keys.

        Raises:
            ValueError: the bias does not fit; the sentence says what would.
        """

    @property
    def parts(self) -> "tuple[Bias, ...]":
        """The biases that are added up; the bias itself where there is one."""
        return (self,)

    def agrees(self, other: "Bias", of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same in a matrix of size `of` = (queries, keys).

        Args:
            other: another bias.
            of: (queries, keys), the size of the matrix.
        """
        return self == other


@dataclass(frozen=True, eq=False)
class OfPositions(Bias):
    """A bias given as a function of the positions: function(query, key)."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, at: Pairs) -> Added:
        added = torch.as_tensor(self.function(at.query, at.key))
        sizes = zip(at.query.shape, at.key.shape, strict=True)
        block = [key if query == 1 else query for query, key in sizes]  # what both broadcast to
        # Axes that the function left out are added in front, as in broadcasting.
        missing = len(block) - added.ndim
        shape = (1,) * missing + added.shape
        if missing < 0 or any(
            have not in (1, need) for have, need in zip(shape, block, strict=True)
        ):
            raise ValueError(
                f"bias(query, key) returned shape {tuple(added.shape)}; for query "
                f"{tuple(at.query.shape)} and key {tuple(at.key.shape)} it must return "
                f"{tuple(block)}, or 1 in place of any of them"
            )
        return added.reshape(shape) if missing else added

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "bias").replace("<lambda>", "bias")


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """Subtract slope · distance from the score, one slope for each head (Press et al. 2022)."""

    slopes: Float[Tensor, " heads"]

    def __call__(self, at: Pairs) -> Added:
        return self.added(at, self.slopes.dtype)

    def added(self, at: Pairs, dtype: torch.dtype) -> Added:
        """Return the bias, with slopes rounded to `dtype`: kernels then need no float64."""
        # Distances are whole numbers, so that only the slopes are rounded.
        return -at.pick(self.slopes, "head").to(dtype) * (at.query - at.key).abs()

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if len(self.slopes) != heads:
            raise ValueError(
                f"alibi(heads={len(self.slopes)}) meets {heads} heads; write alibi({heads})"
            )

    def __repr__(self) -> str:
        return f"alibi({len(self.slopes)})"


@dataclass(frozen=True, eq=False)
class Relative(Bias):
    """Add a learned number for each head and distance key - query (cf. Shaw et al. 2018).

    Args:
        table: (heads, 2 · reach + 1) float: column reach + d holds the number for key - query = d.
            Beyond -reach or reach the outermost column holds. With one row, all heads share it.

    Raises:
        TypeError, ValueError: `table` is no float tensor, or has another shape.

    Example:
        >>> import telescope as ts, torch
        >>> bias = ts.relative(torch.tensor([[-1.0, 0.0, 2.0]]))
        >>> bias(ts.Pairs.block(3, 3, of=(3, 3)))[0, 0].tolist()
        [[0.0, 2.0, 2.0], [-1.0, 0.0, 2.0], [-1.0, -1.0, 0.0]]
    """

    table: Float[Tensor, "heads distances"]

    def __post_init__(self) -> None:
        if not isinstance(self.table, Tensor) or not self.table.is_floating_point():
            raise TypeError(
                "relative(table) takes a float tensor (heads, 2 · reach + 1), not "
                f"{kind_of(self.table)}"
            )
        require_dense("relative(table)", self.table)
        if self.table.ndim != 2 or self.table.shape[-1] % 2 == 0:
            raise ValueError(
                "relative(table) takes (heads, 2 · reach + 1), the distances from -reach to reach, "
                f"not {tuple(self.table.shape)}"
            )

    def __call__(self, at: Pairs) -> Added:
        reach = self.table.shape[-1] // 2
        # Beyond the reach the outermost number holds.
        distance = (at.key - at.query).clamp(-reach, reach) + reach
        return pick(self.table, at.head, distance)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.table.shape[0] not in (1, heads):
            raise ValueError(
                f"relative(table) has {self.table.shape[0]} heads; this attention has {heads}"
            )

    def agrees(self, other: Bias, of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same at the distances that occur.

        Args:
            other: another bias.
            of: (queries, keys), the size of the matrix.
        """
        # Tables that were cut to different lengths still agree on the distances that occur.
        if not isinstance(other, Relative) or self == other:
            return self == other
        return torch.equal(self._columns(1 - of[1], of[0]), other._columns(1 - of[1], of[0]))

    def _columns(self, start: int, stop: int) -> Float[Tensor, "heads distance"]:
        """Return the numbers for the distances from `start` up to `stop`."""
        reach = self.table.shape[-1] // 2
        return self.table[:, torch.arange(start, stop).clamp(-reach, reach) + reach]

    def __repr__(self) -> str:
        return f"relative(reach={self.table.shape[-1] // 2})"


@dataclass(frozen=True, eq=False)
class FromAdditive(Bias):
    """A bias stored as a tensor."""

    tensor: Float[Tensor, "batch head query key"]

    def __call__(self, at: Pairs) -> Added:
        return at.pick(self.tensor, "batch", "head", "row", "key")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        sizes = (batch, heads, queries, keys)
        check_shape("a bias from_additive", self.tensor, "(batch, head, query, key)", sizes)

    def __repr__(self) -> str:
        return f"from_additive({format_shape(self.tensor)})"


@dataclass(frozen=True, eq=False)
class SumOfBiases(Bias):
    """Add what several biases add."""

    biases: tuple[Bias, ...]

    @property
    def parts(self) -> tuple[Bias, ...]:
        return self.biases

    def __call__(self, at: Pairs) -> Added:
        return self.added(at, torch.float64)

    def added(self, at: Pairs, dtype: torch.dtype) -> Added:
        return reduce(add, [bias.added(at, dtype) for bias in self.biases])

    def check(self, **size: int) -> None:
        for bias in self.biases:
            bias.check(**size)

    def agrees(self, other: Bias, of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same, part by part."""
        # Sums agree part by part, in one order.
        if not isinstance(other, SumOfBiases) or len(self.biases) != len(other.biases):
            return False
        pairs = zip(self.biases, other.biases, strict=True)
        return all(mine.agrees(yours, of) for mine, yours in pairs)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.biases))


relative = Relative


def alibi(heads: int) -> Bias:
    """Return the ALiBi bias, -slope · |query - key|, with the paper's slopes (Press et al. 2022).

    The slopes are 2^(-8/heads), 2^(-16/heads), …; where `heads` is no power of two, the slopes of
    the next lower power come first, then every other slope of the next higher one.

    Args:
        heads: How many heads the attention has, at least 1.

    Raises:
        TypeError, ValueError: `heads` is not a whole number, or below 1.

    Example:
        >>> import telescope as ts
        >>> ts.alibi(4).slopes.tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    heads = require_int("alibi(heads)", heads)
    if heads < 1:
        raise ValueError(f"alibi(heads={heads}) needs at least one head")
    # The slopes of the next lower power of two, then those between them.
    power = 2 ** floor(log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return Alibi(torch.tensor((slopes + between)[:heads], dtype=torch.float64))


def from_additive(tensor: Tensor, *, heads: int | None = None) -> Bias:
    """Return a bias from a tensor **added** to the scores: 0 = may attend, -inf = forbidden.

    This is the additive `attn_mask` of other libraries. The bias keeps the tensor.

    Args:
        tensor: (query, key), (batch, head, query, key), or (batch · heads, query, key) with
            `heads`; an axis of size 1 holds for all.
        heads: How many heads are folded into the first of three axes.

    Raises:
        TypeError, ValueError: `tensor` is no float tensor, or its axes or `heads` do not fit.

    Example:
        >>> import telescope as ts, torch
        >>> ts.Attention(bias=ts.from_additive(torch.zeros(3, 5)))
        Attention(bias=from_additive(1x1x3x5))
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(
            "from_additive takes a float tensor that is added to the scores, not "
            f"{kind_of(tensor)}; a bool tensor is a mask: "
            "mask=ts.from_tensor (True = may attend) or mask=ts.from_forbidden (True = forbidden)"
        )
    require_dense("from_additive", tensor)
    if tensor.ndim not in (2, 3, 4):
        raise ValueError(
            "from_additive takes (query, key) or (batch, head, query, key), not shape "
            f"{tuple(tensor.shape)}"
        )
    return FromAdditive(with_four_axes(tensor, heads))
