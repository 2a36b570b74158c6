"""What an attention is: one frozen value, read in the order in which it is computed."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf, isfinite, isnan, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .biases import Bias, OfPositions
from .check_numbers import real
from .mask import Mask, everyone
from .normalizers import softmax
from .pairs import Pairs
from .scores import Score, dot
from .values import Value, mapped, moved, size, tensors

Normalizer = Callable[..., Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Attention(Value):
    """score → scale → softcap → bias → mask → normalise (with the sink) → weigh the values.

    scale     None is 1/√d_k
    bias      a Bias, or any function of the two positions, bias(query, key)
    softcap   c·tanh(score / c) keeps every score within ±c
    sink      a score that takes weight and gives nothing: a number, or one for each head
    mask      who may see whom; see masks
    """

    # Factories: torch.compile of torch 2.11 cannot build a dataclass whose default values are objects.
    score: Score = field(default_factory=lambda: dot)
    scale: float | None = None
    bias: Bias | Callable[[Tensor, Tensor], Tensor] | None = None
    softcap: float | None = None
    sink: float | Float[Tensor, "*heads"] | None = None
    mask: Mask = field(default_factory=lambda: everyone)
    normalize: Normalizer = field(default_factory=lambda: softmax)

    def __post_init__(self) -> None:
        if not isinstance(self.score, Score):
            raise TypeError(
                f"score={self.score!r} is not a score; there are ts.dot, ts.general(W) and ts.additive(W_q, W_k, v)"
            )
        self._check_numbers()
        if self.bias is not None and not isinstance(self.bias, Bias):
            if not callable(self.bias):
                raise TypeError(
                    "bias is a function of positions or a Bias; a float tensor becomes one by ts.from_additive"
                )
            object.__setattr__(self, "bias", OfPositions(self.bias))
        if not isinstance(self.mask, Mask):
            raise TypeError(
                f"mask is a Mask such as ts.causal, or ts.everyone for none, not {type(self.mask).__name__}; "
                "a bool tensor with True = may attend becomes one by ts.from_tensor"
            )
        if not callable(self.normalize):
            raise TypeError(f"normalize={self.normalize!r} is not a normaliser; there are ts.softmax and ts.by_sum")
        if self.sink is not None and self.normalize is not softmax:
            raise ValueError("a sink belongs to softmax: it is one more score in the sum of exponentials")

    def _check_numbers(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", real("scale", self.scale))
            if not isfinite(self.scale):
                raise ValueError(f"scale={self.scale} is not a finite number; None is 1/√d_k")
        if self.softcap is not None:
            object.__setattr__(self, "softcap", real("softcap", self.softcap))
            if not (isfinite(self.softcap) and self.softcap > 0):
                raise ValueError(f"softcap={self.softcap} must be above zero; None is no cap")
        if self.sink is None:
            return
        if not isinstance(self.sink, Tensor):
            object.__setattr__(self, "sink", real("sink (or a tensor with one for each head)", self.sink))
            if isnan(self.sink) or self.sink == inf:
                raise ValueError(f"sink={self.sink} would take all the weight; it is a finite score, None is no sink")
        elif not self.sink.is_floating_point():
            raise TypeError(f"sink is a tensor of {self.sink.dtype}; it takes floating point, e.g. sink.float()")

    # ------------------------------------------------------------------------------------------ the steps, in order

    def scaled(self, scores: Tensor, keys: Tensor) -> Tensor:
        return scores * self.scale_for(keys.shape[-1])

    def scale_for(self, d_k: int) -> float:
        """1/√d_k, or the scale that was given. No features, no score: any scale does."""
        return self.scale if self.scale is not None else 1.0 / sqrt(d_k or 1)

    def capped(self, scaled: Tensor) -> Tensor:
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)

    def biased(self, capped: Tensor, at: Pairs) -> Tensor:
        if self.bias is None:
            return capped
        assert isinstance(self.bias, Bias)
        added = self.bias.added(at, capped.dtype)
        return (capped + added).masked_fill(added == -torch.inf, -torch.inf)  # a hidden NaN stays hidden

    def masked(self, biased: Tensor, at: Pairs) -> Tensor:
        """-inf where a query may not see a key."""
        return biased if self.mask == everyone else biased.masked_fill(~self.mask.sees(at), -torch.inf)

    def weights(self, masked: Tensor) -> Tensor:
        if self.sink is None:
            return self.normalize(masked)
        sink = torch.as_tensor(self.sink, dtype=masked.dtype, device=masked.device)
        return self.normalize(masked, sink.reshape(-1, 1, 1))

    def masked_scores(
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch key_heads key d_k"],
        at: Pairs,
    ) -> Float[Tensor, "batch heads query key"]:
        """All of it up to the mask, for a block of the matrix: `at` says which queries and keys these are."""
        capped = self.capped(self.scaled(self.score(queries, keys), keys))
        return self.masked(self.biased(capped, at), at)

    # ------------------------------------------------------------------------------------------------------- other

    def seeing(self, mask: Mask | None) -> "Attention":
        """The same attention, in which `mask` has to allow it too."""
        return self if mask is None else replace(self, mask=self.mask & mask)

    def to(self, device: torch.device | str) -> "Attention":
        """The same definition with its tensors on this device. `attend` moves them by itself, again in every call."""
        there: Attention = moved(self, torch.device(device))
        return there

    @cached_property
    def fixed(self) -> bool:
        """Whether it is made of no tensor, to which somebody could write."""
        return next(tensors(self), None) is None

    def copied(self) -> "Attention":
        """The same with tensors of its own: masks are written again by who decodes, weights by who trains."""
        mine: Attention = self if self.fixed else mapped(self, lambda tensor: tensor.detach().clone())
        return mine

    def of_last_query(self) -> "Attention":
        """The same attention of the last query alone, from which e.g. a causal mask hides nothing; made once."""
        last: Attention | None = self.__dict__.get("_of_last_query")
        if last is None:
            mask = self.mask.of_last_query()
            last = self if mask is self.mask else replace(self, mask=mask)
            object.__setattr__(self, "_of_last_query", last)
        return last

    def check(self, *, batch: int, heads: int, queries: int, keys: int, d_q: int, d_k: int) -> None:
        """Raise a ValueError, one sentence, where this definition does not fit an attention of this size."""
        self.score.check(heads=heads, d_q=d_q, d_k=d_k)
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)
        if isinstance(self.bias, Bias):
            self.bias.check(batch=batch, heads=heads, queries=queries, keys=keys)
        if isinstance(self.sink, Tensor) and self.sink.shape not in ((), (1,), (heads,)):
            raise ValueError(
                f"sink has shape {tuple(self.sink.shape)}; it is one number, or one for each of the {heads} heads"
            )

    def formula(self, d_k: int | str = "d_k") -> str:
        """softmax(mask(q·k / √64)) v"""
        inner = self.score.formula + _times(self.scale, d_k)
        if self.softcap is not None:
            inner = f"{self.softcap:g}·tanh({inner} / {self.softcap:g})"
        if self.bias is not None:
            inner = f"{inner} + {self.bias!r}"
        if self.mask != everyone:
            inner = f"mask({inner})"
        if self.sink is not None:
            inner = f"{inner}; sink"
        return f"{getattr(self.normalize, '__name__', repr(self.normalize))}({inner}) v"

    def __str__(self) -> str:
        return self.formula() + ("" if self.mask == everyone else f", mask = {self.mask!r}")

    def __repr__(self) -> str:
        usual = Attention()
        names = [it.name for it in fields(self) if _differ(getattr(self, it.name), getattr(usual, it.name))]
        return f"Attention({', '.join(f'{name}={_show(getattr(self, name))}' for name in names)})"


def _times(scale: float | None, d_k: int | str) -> str:
    if scale is None:
        return f" / √{d_k}"
    if scale == 1.0:
        return ""
    root = 1.0 / scale if scale > 0 else 0.0
    square = root * root  # infinite for a tiny scale, where root**2 would raise
    known = 1 <= square < 2**53 and abs(square - round(square)) < 1e-6 * square
    return f" / √{round(square)}" if known else f" · {scale:g}"


def _differ(value: Any, usual: Any) -> bool:
    return value is not usual and (isinstance(value, Tensor) or value != usual)


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{size(value)}>"
    return getattr(value, "__name__", repr(value))
