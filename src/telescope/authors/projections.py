"""The queries and keys of an attention as linear maps of what it was given.

Biases, norms of queries and keys, and rotary positions are applied as they ran. How a model turns
its queries is found in the numbers: from what the projection returns to the queries that attended,
a rotation of pairs of features. A map that does not give the recorded queries is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..anatomy import NORMS, QueryKeyProjections, find_query_key, why_unknown
from .following import Written
from .norms import TOLERANCE, LostError, NormFormula

Matrix = Float[Tensor, "features features"]


@dataclass(frozen=True, eq=False)
class Side:
    """The projection of one side, "query" or "key", of all heads."""

    weight: Float[Tensor, "heads d_k d_model"]
    bias: Float[Tensor, "heads d_k"] | None
    norm: tuple[str, nn.Module] | None
    """The norm that queries or keys go through before they attend."""

    def whole(self, x: Float[Tensor, " d_model"]) -> Float[Tensor, "heads d_k"]:
        """Return the projection of one token, before the norm."""
        found = torch.einsum("hkd,d->hk", self.weight, x)
        return found if self.bias is None else found + self.bias


def sides_of(name: str, layer: nn.Module) -> dict[str, Side]:
    """Return the query and the key side of an attention layer.

    Raise a LostError if its projections are not known.
    """
    found = find_query_key(layer)
    if found is None:
        raise LostError(f'"{name}": no projections of queries and keys; {why_unknown(layer)}')
    norms = [*_norms(layer._modules)]
    return {side: _side(found, side, norms) for side in ("query", "key")}


def _side(found: QueryKeyProjections, side: str, norms: list[tuple[str, nn.Module]]) -> Side:
    rows = found.query if side == "query" else found.key
    biases = found.query_bias if side == "query" else found.key_bias
    heads = found.heads if side == "query" else found.key_heads
    values = rows.values().double()
    weight = values.mT if rows.axis == 1 else values
    bias = None if biases is None else biases.values().double().reshape(heads, -1)
    norm = next((one for one in norms if one[0].startswith(side[0])), None)
    return Side(weight.reshape(heads, -1, weight.shape[-1]), bias, norm)


def _norms(children: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    for name in NORMS:
        module = children.get(name)
        if isinstance(module, nn.Module) and not isinstance(module, nn.Identity):
            yield name, module


# ------------------------------------------------------------------------------------- one position


@dataclass(frozen=True, eq=False)
class Projected:
    """The query or key of one head at one position, as the sum of what each author put into it."""

    parts: Float[Tensor, "author d_k"]
    constant: Float[Tensor, " d_k"]
    """What the bias of the projection adds."""


@dataclass(frozen=True, eq=False)
class Turn:
    """How the queries and keys of one position were changed behind the projection: by one rotation,
    the same for all heads, and by a number for each side.
    """

    matrix: Matrix
    factors: Mapping[str, float]

    @classmethod
    def find(
        cls, before: Mapping[str, Tensor], ran: Mapping[str, Tensor], tolerance: float
    ) -> "Turn | None":
        """Return the rotation that turns what the projections returned into what attended; None if
        there is none.

        Both have (heads, d_k) for "query" or "key", or for both.
        """
        width = next(iter(before.values())).shape[-1]
        # Most often nothing is turned, or every feature is.
        for turned in (0, *range(width - width % 2, 0, -2)):
            for pairs in _pairings(turned):
                matrix = _rotation(before, ran, pairs, width)
                factors = {}
                for side, given in before.items():
                    moved = given @ matrix.mT
                    squares = moved.square().sum().clamp(min=1e-300)
                    factors[side] = float((moved * ran[side]).sum() / squares)
                    error = (factors[side] * moved - ran[side]).norm()
                    if not bool(error <= tolerance * ran[side].norm()):
                        break
                else:
                    return cls(matrix, factors)
        return None

    def __call__(self, side: str, x: Float[Tensor, "*some d_k"]) -> Float[Tensor, "*some d_k"]:
        return x @ self.matrix.mT * self.factors[side]


def _pairings(turned: int) -> list[tuple[Tensor, Tensor]]:
    """Return the ways in which the first features may be paired: halves, or neighbours."""
    numbers = torch.arange(turned)
    half = turned // 2
    halves = (numbers[:half], numbers[half:])
    return [halves] if turned <= 2 else [halves, (numbers[::2], numbers[1::2])]


def _rotation(
    before: Mapping[str, Tensor],
    ran: Mapping[str, Tensor],
    pairs: tuple[Tensor, Tensor],
    width: int,
) -> Matrix:
    """Return the matrix that rotates these pairs of features as well as a rotation can, and keeps
    all others.
    """
    one, other = pairs
    like = next(iter(before.values()))
    matrix = torch.eye(width, dtype=like.dtype, device=like.device)
    if not len(one):
        return matrix
    # A pair is a complex number, and its rotation the phase of a quotient.
    phase = torch.zeros(len(one), dtype=torch.complex128, device=like.device)
    for side, given in before.items():
        pair = torch.complex(given[:, one], given[:, other])
        turned = torch.complex(ran[side][:, one], ran[side][:, other])
        phase = phase + (pair.conj() * turned).sum(0)
    phase = torch.where(phase == 0, torch.ones_like(phase), phase)
    phase = phase / phase.abs()
    matrix[one, one] = matrix[other, other] = phase.real
    matrix[one, other] = -phase.imag
    matrix[other, one] = phase.imag
    return matrix


@dataclass(frozen=True, eq=False)
class Position:
    """What an attention computed of one token: the queries and keys of all heads, where recorded.

    Both sides were turned by one rotation, which is found from all heads together.
    """

    name: str
    sides: Mapping[str, Side]
    x: Mapping[str, Tensor]
    """What each side was given, (d_model,)."""
    ran: Mapping[str, Float[Tensor, "heads d_k"]]
    """The recorded queries and keys of the token, where they are recorded."""
    dtype: torch.dtype

    def project(self, side: str, head: int, written: Written) -> Projected:
        """Return the query or key of one head as a sum over the authors of what it was given."""
        own = self.sides[side]
        scale, turn = self.scale_and_turn
        linear = torch.einsum("kd,ad->ak", own.weight[head], written.parts)
        constant = torch.zeros_like(linear[0]) if own.bias is None else own.bias[head]
        # The norm of queries is linear with its denominator held.
        gain = scale[side][head]
        return Projected(turn(side, linear * gain), turn(side, (constant * gain)[None])[0])

    def project_all(self, side: str, written: Written) -> Float[Tensor, "heads d_k"]:
        """Return what one author wrote into the query or key of every head."""
        scale, turn = self.scale_and_turn
        linear = torch.einsum("hkd,d->hk", self.sides[side].weight, written.parts[0])
        return turn(side, linear * scale[side])

    @cached_property
    def scale_and_turn(self) -> tuple[Mapping[str, Tensor], Turn]:
        """What each side was multiplied by before its rotation, and the rotation."""
        scale = {name: self._norm_scale(name) for name in self.ran}
        return scale, self._turn(scale)

    def _turn(self, scale: Mapping[str, Tensor]) -> Turn:
        before = {side: self.sides[side].whole(self.x[side]) * scale[side] for side in self.ran}
        found = Turn.find(before, self.ran, TOLERANCE[self.dtype])
        if found is None:
            raise LostError(
                f'"{self.name}": its queries and keys are not its projections of the residual '
                "stream, turned by position; the weights have changed since, or the attention "
                "computes them in another way"
            )
        return found

    def _norm_scale(self, side: str) -> Float[Tensor, "heads d_k"]:
        """Return what the norm of queries or keys multiplies each feature by; ones without a
        norm.
        """
        own = self.sides[side]
        before = own.whole(self.x[side])
        if own.norm is None:
            return torch.ones_like(before)
        name, module = own.norm
        # Over one head, or over all heads side by side.
        weight = getattr(module, "weight", None)
        is_joined = isinstance(weight, Tensor) and weight.shape == (before.numel(),)
        given = before.flatten()[None] if is_joined else before
        formula = NormFormula.of(f"{self.name}.{name}", module)
        with torch.no_grad():
            returned = module(given.to(self.dtype)[None, None])[0, 0].double()
        inverse = formula.denominator(given, returned, TOLERANCE[self.dtype])
        if inverse is None or formula.is_centred or bool(formula.bias.abs().max() > 0):
            raise LostError(
                f'"{self.name}": {name}, a {type(module).__name__}, is no RMSNorm, so that its '
                "queries are no sums of parts"
            )
        return (formula.gain * inverse).expand_as(given).reshape(before.shape)
