"""Biases: what is added to a score because of where the query and the key stand."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .check_numbers import whole
from .masks import unfold_heads
from .pairs import Pairs, must_fit, pick
from .values import Value, size


class Bias(Value):
    """A number for each pair of a query and a key. A new bias says `__call__`, and `check` if not every size fits."""

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        raise TypeError(f"{type(self).__name__} does not say what it adds: it needs a method __call__(self, at)")

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        """Return the bias in `dtype`, that of the scores it is added to."""
        return self(at).to(dtype)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where this bias does not fit an attention of this size."""

    def agrees(self, other: "Bias", of: tuple[int, int]) -> bool:
        """Whether the other adds the same to every pair of a matrix of that size, (queries, keys)."""
        return self == other


@dataclass(frozen=True, eq=False)
class OfPositions(Bias):
    """Any function of the positions: function(query, key)."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        added = torch.as_tensor(self.function(at.query, at.key))
        block = [key if query == 1 else query for query, key in zip(at.query.shape, at.key.shape, strict=True)]
        if added.ndim > len(block) or any(
            have not in (1, need) for have, need in zip(added.shape[::-1], block[::-1], strict=False)
        ):
            raise ValueError(
                f"bias(query, key) gives shape {tuple(added.shape)}; from query {tuple(at.query.shape)} and key "
                f"{tuple(at.key.shape)} it must come to {tuple(block)}, or 1 in place of any of them"
            )
        return added if added.ndim == len(block) else added.reshape((1,) * (len(block) - added.ndim) + added.shape)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "bias").replace("<lambda>", "bias")


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """-slope · distance, a slope for each head: far keys count less (Press et al. 2022)."""

    slopes: Float[Tensor, " heads"]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.added(at, self.slopes.dtype)

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        """In float32, float64's slopes are rounded before the product: a kernel then multiplies no float64."""
        return -at.pick(self.slopes, "head").to(dtype) * (at.query - at.key).abs()

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if len(self.slopes) != heads:
            raise ValueError(f"alibi(heads={len(self.slopes)}) meets {heads} heads; make it with alibi({heads})")

    def __repr__(self) -> str:
        return f"alibi({len(self.slopes)})"


@dataclass(frozen=True, eq=False)
class Relative(Bias):
    """A learned number for each head and distance; beyond its reach the last one holds (cf. Shaw et al. 2018)."""

    table: Float[Tensor, "heads distances"]

    def __post_init__(self) -> None:
        if not isinstance(self.table, Tensor) or not self.table.is_floating_point():
            kind = self.table.dtype if isinstance(self.table, Tensor) else type(self.table).__name__
            raise TypeError(f"relative(table) takes a float tensor (heads, 2 · reach + 1), not {kind}")
        if self.table.ndim != 2 or self.table.shape[-1] % 2 == 0:
            raise ValueError(
                f"relative(table) takes (heads, 2 · reach + 1), the distances from -reach to reach, "
                f"not {tuple(self.table.shape)}"
            )

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        reach = self.table.shape[-1] // 2
        distance = (at.key - at.query).clamp(-reach, reach) + reach
        return pick(self.table, at.head, distance)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if self.table.shape[0] not in (1, heads):
            raise ValueError(f"relative(table) has {self.table.shape[0]} heads; this attention has {heads}")

    def agrees(self, other: Bias, of: tuple[int, int]) -> bool:
        """A table of a longer reach may say the same of the distances there are."""
        if not isinstance(other, Relative) or self == other:
            return self == other
        return torch.equal(self._at(1 - of[1], of[0]), other._at(1 - of[1], of[0]))

    def _at(self, start: int, stop: int) -> Float[Tensor, "heads distance"]:
        reach = self.table.shape[-1] // 2
        return self.table[:, torch.arange(start, stop).clamp(-reach, reach) + reach]

    def __repr__(self) -> str:
        return f"relative(reach={self.table.shape[-1] // 2})"


@dataclass(frozen=True, eq=False)
class FromAdditive(Bias):
    """A bias that was given as a tensor."""

    tensor: Float[Tensor, "batch head query key"]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return at.pick(self.tensor, "batch", "head", "row", "key")

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        must_fit("a bias from_additive", self.tensor, "(batch, head, query, key)", (batch, heads, queries, keys))

    def __repr__(self) -> str:
        return f"from_additive({size(self.tensor)})"


relative = Relative


def alibi(heads: int) -> Bias:
    """The paper's slopes, 2^(-8/heads), 2^(-16/heads), …; between powers of two, every other of the next power's."""
    heads = whole("alibi(heads)", heads)
    if heads < 1:
        raise ValueError(f"alibi(heads={heads}) needs at least one head")
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return Alibi(torch.tensor((slopes + between)[:heads], dtype=torch.float64))


def from_additive(tensor: Tensor, *, heads: int | None = None) -> Bias:
    """A float mask of other libraries, which is **added** to the scores: 0 = may attend, -inf = forbidden, else a bias.

    (query, key), (batch, head, query, key), or (batch · heads, query, key) together with `heads`.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(
            f"from_additive takes a float tensor that is added to the scores, not {kind}; a bool tensor is a mask: "
            "mask=ts.from_tensor (True = may attend) or mask=ts.from_forbidden (True = forbidden)"
        )
    if tensor.ndim not in (2, 3, 4):
        raise ValueError(
            f"from_additive takes (query, key) or (batch, head, query, key), not shape {tuple(tensor.shape)}"
        )
    tensor = unfold_heads(tensor, heads)
    return FromAdditive(tensor if tensor.ndim == 4 else tensor[None, None])
