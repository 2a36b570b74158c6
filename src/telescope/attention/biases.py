"""Biases: numbers added to the scores that depend on the positions of query and key, such as
ALiBi.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .check_numbers import require_dense, require_int
from .masks import unfold_heads
from .pairs import Pairs, check_shape, pick
from .values import Value, format_shape


class Bias(Value):
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
    """

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        """Return what is added to the scores of the pairs `at`; axes without influence may have
        size 1.
        """
        raise TypeError(
            f"{type(self).__name__} does not define what is added; add a method __call__(self, at)"
        )

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        """Return the bias of the pairs `at` in `dtype`, that of the scores."""
        return self(at).to(dtype)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this bias does not fit an attention of these sizes."""

    def agrees(self, other: "Bias", of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same to every pair of a matrix of size `of` = (queries,
        keys).
        """
        return self == other


@dataclass(frozen=True, eq=False)
class OfPositions(Bias):
    """A bias given as a function of the positions: function(query, key)."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        added = torch.as_tensor(self.function(at.query, at.key))
        block = [
            key if query == 1 else query
            for query, key in zip(at.query.shape, at.key.shape, strict=True)
        ]
        if added.ndim > len(block) or any(
            have not in (1, need)
            for have, need in zip(added.shape[::-1], block[::-1], strict=False)
        ):
            raise ValueError(
                f"bias(query, key) returned shape {tuple(added.shape)}; for query "
                f"{tuple(at.query.shape)} and key "
                f"{tuple(at.key.shape)} it must return {tuple(block)}, or 1 in place of any of them"
            )
        return (
            added
            if added.ndim == len(block)
            else added.reshape((1,) * (len(block) - added.ndim) + added.shape)
        )

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "bias").replace("<lambda>", "bias")


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """Subtract slope · distance from the score, with one slope for each head (Press et al.
    2022).
    """

    slopes: Float[Tensor, " heads"]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.added(at, self.slopes.dtype)

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        """Return the bias in `dtype`. The slopes are rounded before the product, so that kernels
        need no float64.
        """
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
            kind = self.table.dtype if isinstance(self.table, Tensor) else type(self.table).__name__
            raise TypeError(
                f"relative(table) takes a float tensor (heads, 2 · reach + 1), not {kind}"
            )
        require_dense("relative(table)", self.table)
        if self.table.ndim != 2 or self.table.shape[-1] % 2 == 0:
            raise ValueError(
                "relative(table) takes (heads, 2 · reach + 1), the distances from -reach to "
                "reach, "
                f"not {tuple(self.table.shape)}"
            )

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        reach = self.table.shape[-1] // 2
        distance = (at.key - at.query).clamp(-reach, reach) + reach
        return pick(self.table, at.head, distance)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.table.shape[0] not in (1, heads):
            raise ValueError(
                f"relative(table) has {self.table.shape[0]} heads; this attention has {heads}"
            )

    def agrees(self, other: Bias, of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same; tables of different reach may agree on the
        distances that occur.
        """
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

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return at.pick(self.tensor, "batch", "head", "row", "key")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        check_shape(
            "a bias from_additive",
            self.tensor,
            "(batch, head, query, key)",
            (batch, heads, queries, keys),
        )

    def __repr__(self) -> str:
        return f"from_additive({format_shape(self.tensor)})"


@dataclass(frozen=True, eq=False)
class SumOfBiases(Bias):
    """Add what several biases add."""

    biases: tuple[Bias, ...]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.added(at, torch.float64)

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        first, *others = (bias.added(at, dtype) for bias in self.biases)
        return sum(others, first)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        for bias in self.biases:
            bias.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def agrees(self, other: Bias, of: tuple[int, int]) -> bool:
        """Return whether `other` adds the same, part by part."""
        if not isinstance(other, SumOfBiases) or len(self.biases) != len(other.biases):
            return False
        return all(
            mine.agrees(yours, of) for mine, yours in zip(self.biases, other.biases, strict=True)
        )

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
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return Alibi(torch.tensor((slopes + between)[:heads], dtype=torch.float64))


def from_additive(tensor: Tensor, *, heads: int | None = None) -> Bias:
    """Return a bias from a float tensor that is **added** to the scores: 0 = may attend, -inf =
    forbidden.

    This is the additive `attn_mask` of other libraries.

    Args:
        tensor: (query, key), (batch, head, query, key), or (batch · heads, query, key) together
            with `heads`; an axis of size 1 holds for all. The bias keeps the tensor.
        heads: How many heads are folded into the first of three axes.

    Raises:
        TypeError: `tensor` is no float tensor. ValueError: It has the wrong number of axes, or
        `heads` is missing or does not divide the first axis.

    Example:
        >>> import telescope as ts, torch
        >>> ts.Attention(bias=ts.from_additive(torch.zeros(3, 5)))
        Attention(bias=from_additive(1x1x3x5))
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(
            f"from_additive takes a float tensor that is added to the scores, not {kind}; a bool "
            "tensor is a mask: "
            "mask=ts.from_tensor (True = may attend) or mask=ts.from_forbidden (True = forbidden)"
        )
    require_dense("from_additive", tensor)
    if tensor.ndim not in (2, 3, 4):
        raise ValueError(
            "from_additive takes (query, key) or (batch, head, query, key), not shape "
            f"{tuple(tensor.shape)}"
        )
    tensor = unfold_heads(tensor, heads)
    return FromAdditive(tensor if tensor.ndim == 4 else tensor[None, None])
