"""Scores: how well a query matches a key."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .values import Value, size


class Score(Value):
    """score(queries, keys). A new score says `as_dot`, and fused kernels run it; or, where it is none, `terms`."""

    formula: ClassVar[str]
    is_dot_product: ClassVar[bool] = True

    def as_dot(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose plain dot product is this score."""
        return queries, keys

    def __call__(
        self, queries: Float[Tensor, "batch heads query d_q"], keys: Float[Tensor, "batch key_heads key d_k"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Fewer key heads than query heads are grouped queries: a key head serves neighbouring query heads."""
        if not self.is_dot_product:
            group = queries.shape[1] // (keys.shape[1] or 1)
            return self.terms(queries, keys.repeat_interleave(group, dim=1)).sum(-1)
        queries, keys = self.as_dot(queries, keys)
        return grouped(queries, keys.mT)

    def terms(
        self, queries: Float[Tensor, "batch heads query d_q"], keys: Float[Tensor, "batch heads key d_k"]
    ) -> Float[Tensor, "batch heads query key term"]:
        """The single products whose sum is the score, for whoever wants to see them."""
        queries, keys = self.as_dot(queries, keys)
        return queries.unsqueeze(-2) * keys.unsqueeze(-3)

    def size(self, queries: Tensor, keys: Tensor) -> int:
        """How many numbers a score takes in memory while it is computed: one, where a matrix product does it."""
        if self.is_dot_product or 0 in (*queries.shape, *keys.shape):
            return 1
        one = keys[:1, :1, :1].expand(-1, queries.shape[1], -1, -1)
        return max(1, self.terms(queries[:1, :, :1], one).shape[-1])

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        """Raise a ValueError where this score does not fit queries and keys of these widths."""
        if d_q != d_k:
            raise ValueError(f"queries have {d_q} features and keys have {d_k}; a dot product needs as many in both")


@dataclass(frozen=True, eq=False)
class Dot(Score):
    """q·k"""

    formula = "q·k"

    def __repr__(self) -> str:
        return "dot"


@dataclass(frozen=True, eq=False)
class General(Score):
    """q·W·k, Luong's "general": W (d_q, d_k), or one for each head (heads, d_q, d_k)."""

    W: Float[Tensor, "*heads d_q d_k"]

    formula = "q·W·k"

    def as_dot(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return queries @ self.W.to(queries.dtype), keys

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        _fits("general(W)", self.W, heads, d_q, d_k, "(d_q, d_k)")

    def __repr__(self) -> str:
        return f"general({size(self.W)})"


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """v·tanh(q·W_q + k·W_k): Bahdanau's score, and Luong's "concat" with W = [W_q; W_k].

    W_q (d_q, d_a), W_k (d_k, d_a), v (d_a); with a heads axis in front, one of each for every head.
    """

    W_q: Float[Tensor, "*heads d_q d_a"]
    W_k: Float[Tensor, "*heads d_k d_a"]
    v: Float[Tensor, "*heads d_a"]

    formula = "v·tanh(W_q q + W_k k)"
    is_dot_product = False

    def terms(
        self, queries: Float[Tensor, "batch heads query d_q"], keys: Float[Tensor, "batch heads key d_k"]
    ) -> Float[Tensor, "batch heads query key term"]:
        asked, offered = queries @ self.W_q.to(queries.dtype), keys @ self.W_k.to(keys.dtype)
        together = torch.tanh(asked.unsqueeze(-2) + offered.unsqueeze(-3))
        return together * self.v.to(queries.dtype)[..., None, None, :]

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        d_a = self.v.shape[-1]
        if tuple(self.v.shape) not in ((d_a,), (heads, d_a)):
            raise ValueError(
                f"additive(v=...) has shape {tuple(self.v.shape)}; it is (d_a,), or (heads, d_a) = ({heads}, {d_a})"
            )
        _fits("additive(W_q=...)", self.W_q, heads, d_q, d_a, "(d_q, d_a)")
        _fits("additive(W_k=...)", self.W_k, heads, d_k, d_a, "(d_k, d_a)")

    def __repr__(self) -> str:
        return f"additive(d_a={self.v.shape[-1]})"


def grouped(
    left: Float[Tensor, "batch heads row inner"], right: Float[Tensor, "batch key_heads inner column"]
) -> Float[Tensor, "batch heads row column"]:
    """left @ right, in which a head of the right one serves neighbouring heads of the left one."""
    (batch, heads, rows, inner), (key_heads, columns) = left.shape, (right.shape[1], right.shape[-1])
    if heads == key_heads:
        return left @ right
    if not all(isinstance(size, int) for size in (batch, rows, inner, columns)):  # torch.export leaves it open
        groups = left.view(batch, key_heads, heads // key_heads, rows, inner)
        return (groups @ right.unsqueeze(2)).flatten(1, 2)
    below_each_other = left.reshape(batch, key_heads, heads // key_heads * rows, inner)
    return (below_each_other @ right).reshape(batch, heads, rows, columns)


def _fits(what: str, W: Tensor, heads: int, rows: int, columns: int, axes: str) -> None:
    if tuple(W.shape) not in ((rows, columns), (heads, rows, columns)):
        raise ValueError(
            f"{what} has shape {tuple(W.shape)}; "
            f"this attention needs {axes} = ({rows}, {columns}), or one of those per head"
        )


dot = Dot()
general = General
additive = Additive
