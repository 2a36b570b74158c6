"""Scores: how well a query matches a key, `dot`, `general` (Luong) or `additive` (Bahdanau)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .values import Value, format_shape


class Score(Value):
    """Compute score(queries, keys), how well each query matches each key.

    A subclass sets `formula`, and defines `as_dot` if the score is a dot product of rewritten
    queries and keys, so that fused kernels can run it; otherwise it sets `is_dot_product = False`
    and defines `terms`.

    Example:
        >>> import telescope as ts, torch
        >>> class Negative(ts.Score):
        ...     formula = "-q·k"
        ...     def as_dot(self, queries, keys):
        ...         return -queries, keys
        >>> Negative()(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2)).tolist()
        [[[[-2.0, -2.0, -2.0]]]]
    """

    formula: ClassVar[str]
    is_dot_product: ClassVar[bool] = True

    def as_dot(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose plain dot product is this score."""
        return queries, keys

    def __call__(
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch key_heads key d_k"],
    ) -> Float[Tensor, "batch heads query key"]:
        """Return all scores. With fewer key heads than query heads, neighbouring query heads share
        a key head.
        """
        if not self.is_dot_product:
            group = queries.shape[1] // (keys.shape[1] or 1)
            return self.terms(queries, keys.repeat_interleave(group, dim=1)).sum(-1)
        queries, keys = self.as_dot(queries, keys)
        return grouped_matmul(queries, keys.mT)

    def terms(
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch heads key d_k"],
    ) -> Float[Tensor, "batch heads query key term"]:
        """Return the summands of every score, along a last axis."""
        queries, keys = self.as_dot(queries, keys)
        return queries.unsqueeze(-2) * keys.unsqueeze(-3)

    def numbers_per_score(self, queries: Tensor, keys: Tensor) -> int:
        """Return how many numbers one score takes in memory while it is computed: 1 for a matrix
        product.
        """
        if self.is_dot_product or 0 in (*queries.shape, *keys.shape):
            return 1
        one_key = keys[:1, :1, :1].expand(-1, queries.shape[1], -1, -1)
        return max(1, self.terms(queries[:1, :, :1], one_key).shape[-1])

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
        """Raise a ValueError where this score does not fit queries and keys of these widths."""
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
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch heads key d_k"],
    ) -> Float[Tensor, "batch heads query key term"]:
        projected_queries = queries @ self.W_q.to(queries.dtype)
        projected_keys = keys @ self.W_k.to(keys.dtype)
        hidden = torch.tanh(projected_queries.unsqueeze(-2) + projected_keys.unsqueeze(-3))
        return hidden * self.v.to(queries.dtype)[..., None, None, :]

    def check(self, *, heads: int, d_q: int, d_k: int) -> None:
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


def grouped_matmul(
    left: Float[Tensor, "batch heads row inner"],
    right: Float[Tensor, "batch key_heads inner column"],
) -> Float[Tensor, "batch heads row column"]:
    """Return left @ right, where each head of `right` serves a group of neighbouring heads of
    `left`.
    """
    batch, heads, rows, inner = left.shape
    key_heads, columns = (right.shape[1], right.shape[-1])
    if heads == key_heads:
        return left @ right
    if not all(
        isinstance(size, int) for size in (batch, rows, inner, columns)
    ):  # symbolic sizes of torch.export
        groups = left.view(batch, key_heads, heads // key_heads, rows, inner)
        return (groups @ right.unsqueeze(2)).flatten(1, 2)
    stacked = left.reshape(
        batch, key_heads, heads // key_heads * rows, inner
    )  # rows of a group under each other
    return (stacked @ right).reshape(batch, heads, rows, columns)


def _check_matrix(what: str, W: Tensor, heads: int, rows: int, columns: int, axes: str) -> None:
    """Raise a ValueError unless W is (rows, columns) or (heads, rows, columns)."""
    if tuple(W.shape) not in ((rows, columns), (heads, rows, columns)):
        raise ValueError(
            f"{what} has shape {tuple(W.shape)}; "
            f"this attention needs {axes} = ({rows}, {columns}), or one such matrix per head"
        )


dot = Dot()
general = General
additive = Additive
