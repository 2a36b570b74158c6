"""Sums and distributions that merge exactly: the same bits in whatever order and on however many
machines they grow.

Floating-point addition depends on the order of the summands. Here every summand, one number of one
text, is rounded once to a multiple of 2^-40 and added as an integer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

BITS = 40  # of the fraction of a summand
BINS = 256  # of a quantile sketch


@dataclass(eq=False)
class ExactSum:
    """A tensor of sums in fixed point: whole + fraction / 2^40, both int64, with 0 <= fraction <
    2^40.

    Example:
        >>> import torch
        >>> from telescope.atlases.exact import ExactSum
        >>> forth, back = ExactSum.zeros(1), ExactSum.zeros(1)
        >>> for number in (1e9, 0.1, 0.2):
        ...     forth.add(torch.tensor([[number]], dtype=torch.float64))
        >>> for number in (0.2, 0.1, 1e9):
        ...     back.add(torch.tensor([[number]], dtype=torch.float64))
        >>> bool(forth.value == back.value), 1e9 + 0.1 + 0.2 == 0.2 + 0.1 + 1e9
        (True, False)
    """

    whole: Int[Tensor, "..."]
    fraction: Int[Tensor, "..."]

    @classmethod
    def zeros(cls, *shape: int) -> "ExactSum":
        """Return sums of nothing."""
        return cls(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))

    def __getitem__(self, where: Any) -> "ExactSum":
        """Return a view of some of the sums: what is added to it is added here."""
        return ExactSum(self.whole[where], self.fraction[where])

    def add(self, numbers: Float[Tensor, "text ..."]) -> None:
        """Add the numbers of several texts; all are finite."""
        # Split before scaling: a large number times 2^40 would not fit into an int64.
        floor = numbers.floor()
        fraction = ((numbers - floor) * 2**BITS).round().long()
        self._add(floor.long().sum(0), fraction.sum(0))

    def add_to_rows(self, rows: Int[Tensor, " text"], numbers: Float[Tensor, "text ..."]) -> None:
        """Add the numbers of each text to a row of the sums; several texts may have the same
        row.
        """
        floor = numbers.floor()
        fraction = ((numbers - floor) * 2**BITS).round().long()
        self.whole.index_add_(0, rows, floor.long())
        self.fraction.index_add_(0, rows, fraction)
        # Carry whole units over, so that every fraction stays below 2^40.
        carry = self.fraction >> BITS
        self.whole += carry
        self.fraction -= carry << BITS

    def merge(self, other: "ExactSum") -> None:
        """Add the sums of another corpus."""
        self._add(other.whole.to(self.whole.device), other.fraction.to(self.whole.device))

    def _add(self, whole: Tensor, fraction: Tensor) -> None:
        fraction = self.fraction + fraction
        carry = fraction >> BITS
        self.whole += whole + carry
        # In place, since this may be a view of larger sums.
        self.fraction.copy_(fraction - (carry << BITS))

    @property
    def value(self) -> Float[Tensor, "..."]:
        """The sums in float64."""
        # Convert to floating point only here, where a sum is read.
        total: Tensor = self.whole.double() + self.fraction.double() / 2**BITS
        return total

    def tensors(self) -> dict[str, Tensor]:
        """Return the integers, for a file."""
        return {"whole": self.whole, "fraction": self.fraction}

    def to(self, device: torch.device | str) -> "ExactSum":
        """Return the sums on a device."""
        return ExactSum(self.whole.to(device), self.fraction.to(device))


class Distribution:
    """Count, mean, variance, extremes and quantiles of several statistics of every head.

    The quantile sketch is a histogram with fixed edges, so that two of them merge by addition: a
    quantile is off by at most the width of its bin. `edges` has BINS - 1 numbers for each
    statistic, which rise.
    """

    def __init__(self, edges: Float[Tensor, "statistic edge"], heads: int) -> None:
        size = (len(edges), heads)
        self.edges = edges
        self.count = torch.zeros(size, dtype=torch.int64)
        self.total = ExactSum.zeros(*size)
        self.squares = ExactSum.zeros(*size)
        # The extremes of nothing: the first number replaces both.
        self.low = torch.full(size, torch.inf, dtype=torch.float64)
        self.high = torch.full(size, -torch.inf, dtype=torch.float64)
        self.bins = torch.zeros(*size, BINS, dtype=torch.int64)

    def add(
        self,
        first: int,
        heads: slice,
        numbers: Float[Tensor, "statistic text heads value"],
        known: Tensor | None = None,
    ) -> None:
        """Add numbers of the statistics from `first` on, for these heads; not those that are NaN or
        not `known`.
        """
        known = ~numbers.isnan() if known is None else known & ~numbers.isnan()
        numbers = numbers.double()
        # A zero changes no sum, so that unknown numbers need no branch.
        zero = torch.where(known, numbers, 0.0)
        own = (slice(first, first + len(numbers)), heads)
        self.count[own] += known.sum((1, 3))
        for sums, summand in ((self.total, zero), (self.squares, zero * zero)):
            # The values of one text are summed as floats, and the texts exactly.
            sums[own].add(summand.sum(3).transpose(0, 1))
        self.low[own] = torch.minimum(
            self.low[own], torch.where(known, numbers, torch.inf).amin((1, 3))
        )
        self.high[own] = torch.maximum(
            self.high[own], torch.where(known, numbers, -torch.inf).amax((1, 3))
        )

        # Count the numbers in each bin; an unknown number counts 0.
        by_head = zero.transpose(1, 2).flatten(2).contiguous()
        bin_of = torch.searchsorted(self.edges[own[0]], by_head.flatten(1), right=True).view(
            by_head.shape
        )
        self.bins[own].scatter_add_(2, bin_of, known.transpose(1, 2).flatten(2).long())

    def merge(self, other: "Distribution") -> None:
        """Add the distribution of another corpus."""
        device = self.count.device
        self.count += other.count.to(device)
        self.total.merge(other.total)
        self.squares.merge(other.squares)
        self.low = torch.minimum(self.low, other.low.to(device))
        self.high = torch.maximum(self.high, other.high.to(device))
        self.bins += other.bins.to(device)

    @property
    def mean(self) -> Float[Tensor, "statistic heads"]:
        """The mean; NaN where nothing was added."""
        return self.total.value / torch.where(self.count > 0, self.count, torch.nan)

    @property
    def variance(self) -> Float[Tensor, "statistic heads"]:
        """The variance of the numbers that were added, divided by their count; NaN where nothing
        was added.
        """
        count = torch.where(self.count > 0, self.count, torch.nan)
        # Rounding can take the variance of equal numbers slightly below zero.
        return (self.squares.value / count - (self.total.value / count) ** 2).clamp(min=0.0)

    def quantile(self, share: float) -> Float[Tensor, "statistic heads"]:
        """Return the number below which this share of the numbers lies, interpolated within its
        bin.
        """
        # Find the bin that holds the number of this rank.
        wanted = share * self.count[..., None].double()
        below = self.bins.cumsum(-1).double()
        which = (below < wanted).sum(-1, keepdim=True).clamp(max=BINS - 1)

        # How far into the bin the rank lies, if its numbers are spread evenly.
        inside = self.bins.gather(-1, which).double()
        part = ((wanted - (below.gather(-1, which) - inside)) / inside.clamp(min=1)).clamp(0.0, 1.0)

        # The lowest and the highest number bound the outer bins, and cut all others.
        edges = self.edges.double()[:, None].expand(-1, self.count.shape[1], -1)
        lower = torch.cat([self.low[..., None], edges], -1).gather(-1, which)
        upper = torch.cat([edges, self.high[..., None]], -1).gather(-1, which)
        lower = lower.maximum(self.low[..., None])
        upper = upper.minimum(self.high[..., None])
        found = (lower + part * (upper - lower))[..., 0]
        return torch.where(self.count > 0, found, torch.nan)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the edges, for a file."""
        sums = {"total": self.total, "squares": self.squares}
        parts = {
            f"{name}.{part}": tensor
            for name, own in sums.items()
            for part, tensor in own.tensors().items()
        }
        return parts | {"count": self.count, "low": self.low, "high": self.high, "bins": self.bins}

    def to(self, device: torch.device | str) -> "Distribution":
        """Return the distribution on a device."""
        # Skip __init__, which would allocate zeros of the full size first.
        moved = Distribution.__new__(Distribution)
        moved.edges, moved.count, moved.bins = (
            part.to(device) for part in (self.edges, self.count, self.bins)
        )
        moved.total = self.total.to(device)
        moved.squares = self.squares.to(device)
        moved.low = self.low.to(device)
        moved.high = self.high.to(device)
        return moved


def linear_edges(low: float, high: float) -> list[float]:
    """Return the inner edges of BINS bins of equal width."""
    return [low + (high - low) * i / BINS for i in range(1, BINS)]


def signed_log_edges(smallest: float, largest: float) -> list[float]:
    """Return the inner edges of BINS bins that grow by a constant factor on either side of zero."""
    # The edges of both sides, and zero between: 2 · half + 1 = BINS - 1.
    half = BINS // 2 - 1
    steps: Sequence[float] = [
        smallest * (largest / smallest) ** (i / (half - 1)) for i in range(half)
    ]
    return [*(-step for step in reversed(steps)), 0.0, *steps]


def log_edges(smallest: float, largest: float) -> list[float]:
    """Return the inner edges of BINS bins that grow by a constant factor."""
    return [smallest * (largest / smallest) ** (i / (BINS - 2)) for i in range(BINS - 1)]


def edges_table(rows: Iterable[Sequence[float]]) -> Float[Tensor, "statistic edge"]:
    """Return the edges of several statistics as one tensor."""
    return torch.tensor([*rows], dtype=torch.float64)
