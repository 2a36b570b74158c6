"""The definition of an attention: one frozen value, whose methods are the steps in the order of
computation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf, isfinite, isnan, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..words import suggests
from .mask import Everyone, Mask, Pairs, everyone
from .masks import Causal, Window
from .normalizers import softmax
from .scores import Bias, OfPositions, Score, SumOfBiases, dot
from .values import (
    Keys,
    Queries,
    Scores,
    Value,
    format_shape,
    identity_key,
    map_tensors,
    require_real,
    tensors,
    to_device,
)

Normalizer = Callable[..., Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Attention(Value):
    """Define an attention: score → scale → softcap → bias → mask → normalise (with the sink) →
    weigh the values.

    A definition is a value: frozen, compared by content, without parameters of its own. It names no
    sizes; a part that fits only some sizes is checked when the definition meets queries and keys.

    Args:
        score: How well a query matches a key: `dot`, `general(W)`, `additive(W_q, W_k, v)` or a
            Score of your own.
        scale: The factor of every score; None is 1/√d_k.
        bias: What is added to a score because of the two positions: a Bias, or a function
            bias(query, key) of two integer tensors that broadcast against each other.
        softcap: c·tanh(score / c) keeps every score within ±c; None is no cap.
        sink: One more score in the sum of softmax that belongs to no key: a number, or a tensor
            (heads,).
        mask: Which keys each query may attend to, such as `causal & window(64)`; `everyone` hides
            nothing.
        normalize: Scores (..., key) to weights of the same shape: `softmax` or `by_sum`.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind, or a number out of its range.

    Example:
        >>> import telescope as ts
        >>> attention = ts.Attention(scale=0.125, mask=ts.causal & ts.window(4))
        >>> print(attention)
        softmax(mask(q·k / √64)) v, mask = causal & window(4)
        >>> attention == ts.Attention(scale=0.125, mask=ts.causal & ts.window(4))
        True
        >>> attention.formula(d_k=64)
        'softmax(mask(q·k / √64)) v'
        >>> far = attention.with_extra_mask(~ts.window(2)).with_extra_bias(ts.alibi(1))
        >>> far.mask, far.biases
        (causal & window(4) & ~window(2), (alibi(1),))
        >>> attention.to("cpu") == attention, attention.for_last_query().mask
        (True, window(4))
        >>> # It fits
        >>> attention.check(batch=1, heads=2, queries=3, keys=3, d_q=4, d_k=4)
        >>> import torch
        >>> x = torch.eye(2)[None, None]
        >>> at = ts.Pairs.block(2, 2, of=(2, 2))
        >>> scaled = attention.scaled(attention.score(x, x), x)
        >>> masked = attention.masked(
        ...     attention.biased(attention.capped(scaled), at), at
        ... )
        >>> (
        ...     torch.equal(masked, attention.masked_scores(x, x, at)),
        ...     attention.scale_for(d_k=2),
        ... )
        (True, 0.125)
        >>> attention.weights(masked)[0, 0].tolist()[0]
        [1.0, 0.0]
    """

    # Factories: torch.compile of torch 2.11 cannot build a dataclass whose default values are
    # objects.
    score: Score = field(default_factory=lambda: dot)
    scale: float | None = None
    bias: Bias | Callable[[Tensor, Tensor], Tensor] | None = None
    softcap: float | None = None
    sink: float | Float[Tensor, "*heads"] | None = None
    mask: Mask = field(default_factory=lambda: everyone)
    normalize: Normalizer = field(default_factory=lambda: softmax)

    def __post_init__(self) -> None:
        # Attention(causal) is a likely slip: the score is the first argument.
        if isinstance(self.score, Mask):
            raise TypeError(
                f"score={self.score!r} is a mask, not a score; write ts.Attention(mask=...)"
            )
        if not isinstance(self.score, Score):
            raise TypeError(
                f"score={self.score!r} is not a score; there are ts.dot, ts.general(W) and "
                "ts.additive(W_q, W_k, v)"
            )
        self._check_numbers()
        if self.bias is not None and not isinstance(self.bias, Bias):
            if not callable(self.bias):
                raise TypeError(
                    f"bias is a function of positions or a Bias, not {type(self.bias).__name__}; "
                    "a float tensor becomes a Bias by ts.from_additive(tensor)"
                )
            # From here on a bias is a Bias or None.
            object.__setattr__(self, "bias", OfPositions(self.bias))
        if not isinstance(self.mask, Mask):
            raise TypeError(_wrong_mask(self.mask))
        if not callable(self.normalize):
            raise TypeError(
                f"normalize={self.normalize!r} is not a normaliser; there are ts.softmax and "
                "ts.by_sum"
            )
        # A sum of scores has no place for one more exponential.
        if self.sink is not None and self.normalize is not softmax:
            raise ValueError(
                "a sink belongs to softmax: it is one more score in the sum of exponentials"
            )

    def _check_numbers(self) -> None:
        """Store scale, softcap and sink as plain numbers; raise where one is out of its range."""
        if self.scale is not None:
            object.__setattr__(self, "scale", require_real("scale", self.scale))
            if not isfinite(self.scale):
                raise ValueError(f"scale={self.scale} is not a finite number; None is 1/√d_k")
        if self.softcap is not None:
            object.__setattr__(self, "softcap", require_real("softcap", self.softcap))
            # tanh(score / 0) is undefined, and below zero it would flip the order of scores.
            if not (isfinite(self.softcap) and self.softcap > 0):
                raise ValueError(f"softcap={self.softcap} must be above zero; None is no cap")
        if self.sink is None:
            return
        if not isinstance(self.sink, Tensor):
            object.__setattr__(
                self, "sink", require_real("sink (or a tensor with one for each head)", self.sink)
            )
            # -inf is fine: a sink without weight.
            if isnan(self.sink) or self.sink == inf:
                raise ValueError(
                    f"sink={self.sink} would take all the weight; it is a finite score, None is no "
                    "sink"
                )
        elif not self.sink.is_floating_point():
            raise TypeError(
                f"sink is a tensor of {self.sink.dtype}; it takes floating point, e.g. sink.float()"
            )

    # -------------------------------------------------------------------------- the steps, in order

    def scaled(self, scores: Tensor, keys: Tensor) -> Tensor:
        """Return the scores times the scale for keys of this width.

        Args:
            scores: (..., key), what the score function returned.
            keys: (..., key, d_k); their width sets the scale where none is given.

        Returns:
            (..., key), the scores times the scale.
        """
        return scores * self.scale_for(keys.shape[-1])

    def scale_for(self, d_k: int) -> float:
        """Return the given scale, or 1/√d_k. Without features every score is zero, and the scale is
        1.

        Args:
            d_k: the width of a key.
        """
        return self.scale if self.scale is not None else 1.0 / sqrt(d_k or 1)

    def capped(self, scaled: Tensor) -> Tensor:
        """Return the scaled scores, kept within ±softcap.

        Args:
            scaled: the scores times the scale.

        Returns:
            The same shape: softcap · tanh(scaled / softcap), or `scaled` itself without a softcap.
        """
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)

    def biased(self, capped: Tensor, at: Pairs) -> Tensor:
        """Return the capped scores of the pairs `at` with the bias added.

        Args:
            capped: (batch, heads, query, key), the scores after the softcap.
            at: which queries and keys these are.

        Returns:
            The same shape; -inf where the bias forbids a key.
        """
        if self.bias is None:
            return capped
        assert isinstance(self.bias, Bias)
        added = self.bias.added(at, capped.dtype)
        # NaN + -inf is NaN: hide it too.
        return (capped + added).masked_fill(added == -torch.inf, -torch.inf)

    def masked(self, biased: Tensor, at: Pairs) -> Tensor:
        """Return the biased scores of the pairs `at`, with -inf where a query may not see a key.

        Args:
            biased: (batch, heads, query, key), the scores after the bias.
            at: which queries and keys these are.
        """
        if self.mask == everyone:
            return biased
        return biased.masked_fill(~self.mask.sees(at), -torch.inf)

    def weights(self, masked: Tensor) -> Tensor:
        """Return the weights: the masked scores normalised over the keys, the last axis.

        Args:
            masked: (batch, heads, query, key), the scores after the mask.

        Returns:
            The same shape; the weights of a query sum to one, or to less where there is a sink.
        """
        if self.sink is None:
            return self.normalize(masked)
        # One sink for each head, broadcast over queries and keys.
        sink = torch.as_tensor(self.sink, dtype=masked.dtype, device=masked.device)
        return self.normalize(masked, sink.reshape(-1, 1, 1))

    def masked_scores(self, queries: Queries, keys: Keys, at: Pairs) -> Scores:
        """Return the scores of a block after every step up to the mask. `at` says which queries and
        keys these are.

        Args:
            queries: (batch, heads, query, d_q).
            keys: (batch, heads, key, d_k).
            at: which queries and keys these are.

        Returns:
            (batch, heads, query, key), with -inf where a query may not see a key.
        """
        # score → scale → softcap → bias → mask.
        capped = self.capped(self.scaled(self.score(queries, keys), keys))
        return self.masked(self.biased(capped, at), at)

    # -------------------------------------------------------------------------- variants and checks

    def with_extra_mask(self, mask: Mask | None) -> "Attention":
        """Return this attention with `mask` as one more condition: a query sees what both masks
        allow.

        Args:
            mask: the condition to add; None adds nothing.
        """
        return self if mask is None else replace(self, mask=self.mask & mask)

    def with_extra_bias(self, bias: Bias) -> "Attention":
        """Return this attention with `bias` added to the scores, beside the bias that it has.

        Args:
            bias: what is added to the scores besides.
        """
        biases = (*self.biases, bias)
        return replace(self, bias=bias if len(biases) == 1 else SumOfBiases(biases))

    @property
    def biases(self) -> tuple[Bias, ...]:
        """The biases that are added up; () where there is none."""
        # `__post_init__` has wrapped a function as a Bias.
        return self.bias.parts if isinstance(self.bias, Bias) else ()

    def to(self, device: torch.device | str) -> "Attention":
        """Return this definition with its tensors on `device`; without this, `attend` copies them
        in every call.

        Args:
            device: such as "cuda".
        """
        copy: Attention = to_device(self, torch.device(device))
        return copy

    @cached_property
    def _has_no_tensors(self) -> bool:
        """Whether the definition holds no tensor, so that its content can never change."""
        return next(tensors(self), None) is None

    @cached_property
    def _is_torchs_own(self) -> bool:
        """Whether torch's fused kernel computes this as it is: dot product, softmax, and at most a
        causal mask.
        """
        return (
            self.score == dot
            and self.normalize is softmax
            and isinstance(self.mask, Everyone | Causal)
            and self.bias is None
            and self.softcap is None
            and self.sink is None
            # The kernel would scale the mask's -inf too.
            and (self.scale is None or self.scale > 0.0)
        )

    @property
    def _kernel_obstacle(self) -> str | None:
        """Why no fused kernel runs this: its score is no dot product, or its weights no softmax."""
        if not self.score.is_dot_product:
            return f"the score {self.score.formula} is no dot product"
        if self.normalize is not softmax:
            return f"it normalises by softmax, not by {_format(self.normalize)}"
        return None

    @property
    def _identity(self) -> Any:
        """A hashable key that reads no numbers, as `identity_key` gives it; fast for a definition
        without tensors.

        It is unique only while the definition lives: keep the definition with the key.
        """
        # Without tensors the content cannot change, so that the object itself is the key.
        return id(self) if self._has_no_tensors else identity_key(self)

    def _clone(self) -> "Attention":
        """Return a copy that owns its tensors: decoding writes to masks in place, and training to
        weights.
        """
        copy: Attention = map_tensors(self, lambda tensor: tensor.detach().clone())
        return copy

    def for_last_query(self) -> "Attention":
        """Return this attention for the last query alone, to which e.g. a causal mask shows every
        key; made once.
        """
        # Before Python 3.12 a cached property takes a lock, which torch.compile cannot trace.
        if torch.compiler.is_compiling():
            return self._make_for_last_query()
        return self._for_last_query

    @cached_property
    def _for_last_query(self) -> "Attention":
        return self._make_for_last_query()

    def _make_for_last_query(self) -> "Attention":
        mask = self.mask.for_last_query()
        return self if mask is self.mask else replace(self, mask=mask)

    def check(self, *, batch: int, heads: int, queries: int, keys: int, d_q: int, d_k: int) -> None:
        """Raise a ValueError where this definition does not fit an attention of these sizes.

        Args:
            batch, heads: the number of sequences and of query heads.
            queries, keys: the number of queries and of keys.
            d_q, d_k: the width of a query and of a key.

        Raises:
            ValueError: a part of the definition does not fit; the sentence names it.
        """
        self.score.check(heads=heads, d_q=d_q, d_k=d_k)
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)
        if isinstance(self.bias, Bias):
            self.bias.check(batch=batch, heads=heads, queries=queries, keys=keys)
        # The only field whose size depends on the heads and that checks nothing itself.
        if isinstance(self.sink, Tensor) and self.sink.shape not in ((), (1,), (heads,)):
            raise ValueError(
                f"sink has shape {tuple(self.sink.shape)}; it is one number, or one for each of "
                f"the {heads} heads"
            )

    def formula(self, d_k: int | str = "d_k") -> str:
        """Return the definition as a formula: "softmax(mask(q·k / √64)) v".

        Args:
            d_k: the width of a key, or a name for it.
        """
        # From the inside out, in the order of the steps.
        inner = self.score.formula + _format_scale(self.scale, d_k)
        if self.softcap is not None:
            inner = f"{self.softcap:g}·tanh({inner} / {self.softcap:g})"
        if self.bias is not None:
            inner = f"{inner} + {self.bias!r}"
        if self.mask != everyone:
            inner = f"mask({inner})"
        if self.sink is not None:
            inner = f"{inner}; sink"
        return f"{_format(self.normalize)}({inner}) v"

    def __str__(self) -> str:
        return self.formula() + ("" if self.mask == everyone else f", mask = {self.mask!r}")

    def __repr__(self) -> str:
        default = Attention()
        parts = [(part.name, getattr(self, part.name)) for part in fields(self)]
        given = [
            f"{name}={_format(part)}"
            for name, part in parts
            if isinstance(part, Tensor) or part != getattr(default, name)
        ]
        return f"Attention({', '.join(given)})"


# After the dataclass has written it: what a caller may guess.
Attention.__init__ = suggests(  # type: ignore[method-assign]
    "Attention",
    causal="mask=ts.causal",
    is_causal="mask=ts.causal",
    window="mask=ts.window(size)",
    sliding_window="mask=ts.causal & ts.window(size)",
    attn_mask="mask=ts.from_tensor(attn_mask)",
    padding="mask=ts.padding(lengths)",
    softmax_scale="scale=",
    logit_cap="softcap=",
    logits_soft_cap="softcap=",
    sinks="sink=",
    alibi="bias=ts.alibi(heads)",
    heads="the heads into the tensors, (batch, heads, n, d)",
    num_heads="the heads into the tensors, (batch, heads, n, d)",
    dropout="dropout= of ts.attend",
)(Attention.__init__)

Window.__init__ = suggests(  # type: ignore[method-assign]
    "window",
    "one size looks both ways, and ts.causal & ts.window(size) looks back",
    window_size="size=",
    left="ts.causal & ts.window(size), which looks back",
    right="ts.window(size), which looks both ways",
)(Window.__init__)


def _wrong_mask(given: Any) -> str:
    """Return the error for an argument `mask` that is no Mask, with the expression that was
    probably intended.
    """
    # A bool tensor says nothing about what True means: name both ways.
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        return (
            f"mask is a bool tensor of shape {tuple(given.shape)}; write mask=ts.from_tensor(seen) "
            "for True = may attend, or mask=ts.from_forbidden(hidden) for True = forbidden"
        )
    if isinstance(given, Tensor):
        return (
            f"mask is a {given.dtype} tensor of shape {tuple(given.shape)}; "
            "a float mask that is added to the scores goes in as bias=ts.from_additive(tensor)"
        )
    # numpy is not imported here, so that its arrays are known by name.
    kind = type(given).__name__
    if kind == "ndarray":
        return (
            "mask is a numpy array; write mask=ts.from_tensor(torch.from_numpy(seen)), with "
            "True = may attend"
        )
    return (
        f"mask is a Mask such as ts.causal, or ts.everyone for none, not {kind}; "
        "a bool tensor with True = may attend becomes a Mask by ts.from_tensor(seen)"
    )


def _format_scale(scale: float | None, d_k: int | str) -> str:
    """Return the scale as a factor of the formula: " / √64", " · 0.3", or nothing for 1."""
    if scale is None:
        return f" / √{d_k}"
    if scale == 1.0:
        return ""
    # 1/√64 is printed as / √64, which tells the width of a head.
    root = 1.0 / scale if scale > 0 else 0.0
    square = root * root  # infinite for a tiny scale, where root**2 would raise
    # Up to 2**53 every whole number is a float, so that the root is exact.
    is_root = 1 <= square < 2**53 and abs(square - round(square)) < 1e-6 * square
    return f" / √{round(square)}" if is_root else f" · {scale:g}"


def _format(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{format_shape(value)}>"
    return getattr(value, "__name__", repr(value))
