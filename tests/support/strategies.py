"""Random attentions: shapes, definitions that fit them, and tensors in every layout of memory.

Sizes are small and odd. Numbers come from a drawn seed, so that an example is short and can be run again.
"""

import random
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import telescope as ts

settings.register_profile(
    "telescope",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("telescope")


def composite(build: Any) -> Any:
    """Wrap st.composite so that the checks of shapes may draw random numbers, which hypothesis would take for the
    test's."""

    @st.composite
    @wraps(build)
    def drawn(draw: Any, *args: Any, **kwargs: Any) -> Any:
        before = random.getstate()
        try:
            return build(draw, *args, **kwargs)
        finally:
            random.setstate(before)

    return drawn


seeds = st.integers(0, 2**31)
lengths = st.sampled_from([1, 2, 3, 5, 7, 11, 17])
widths = st.sampled_from([1, 2, 3, 8, 13])
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
layouts = st.sampled_from(["plain", "transposed", "strided", "expanded"])


# ------------------------------------------------------------------------------------------------------------ tensors


@dataclass(frozen=True)
class Shape:
    batch: int = 2
    heads: int = 2
    key_heads: int = 2
    queries: int = 5
    keys: int = 5
    d_k: int = 4
    d_v: int = 4

    @property
    def whole(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.queries, self.keys


@composite
def shapes(draw: Any, *, square: bool = False) -> Shape:
    """Draw shapes, mostly with as many queries as keys, which fused kernels need; `square` means always."""
    key_heads = draw(st.integers(1, 3))
    queries = draw(lengths)
    keys = queries if square or draw(st.booleans()) else draw(lengths)
    heads = key_heads * draw(st.integers(1, 3))
    d_k = draw(widths)
    d_v = d_k if draw(st.booleans()) else draw(widths)
    return Shape(draw(st.integers(1, 3)), heads, key_heads, queries, keys, d_k, d_v)


def normal(*size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tensors(
    shape: Shape, seed: int = 0, dtype: torch.dtype = torch.float64, layout: str = "plain"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values."""
    sizes = (
        (shape.batch, shape.heads, shape.queries, shape.d_k),
        (shape.batch, shape.key_heads, shape.keys, shape.d_k),
        (shape.batch, shape.key_heads, shape.keys, shape.d_v),
    )
    q, k, v = (laid_out(normal(*size, seed=seed + i, dtype=dtype), layout) for i, size in enumerate(sizes))
    return q, k, v


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """Return the same shape in another layout: as a projection leaves it, with gaps, or with one sequence for the
    batch."""
    if layout == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return tensor.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "expanded":
        return tensor[:1].expand_as(tensor)
    return tensor


# -------------------------------------------------------------------------------------------------------------- masks


@composite
def position_masks(draw: Any) -> ts.Mask:
    """Draw masks by position alone: they fit every batch and every number of heads, and work with a cache."""
    leaves = st.one_of(
        st.just(ts.causal), st.integers(1, 6).map(ts.window), st.integers(0, 6).map(ts.prefix), st.just(ts.everyone)
    )
    return draw(combined(leaves))


@composite
def key_masks(draw: Any, shape: Shape) -> ts.Mask:
    """Draw masks under which all queries see the same keys; some hide whole sequences."""
    kind = draw(st.sampled_from(["everyone", "prefix", "lengths", "left", "keep", "row"]))
    coin = normal(shape.batch, shape.heads, 1, shape.keys, seed=draw(seeds)) < 0.5
    if kind == "prefix":
        return ts.prefix(draw(st.integers(0, shape.keys)))
    if kind in ("lengths", "left"):
        counts = st.integers(0, shape.keys)
        each = torch.tensor([draw(counts) for _ in range(shape.batch)], dtype=torch.long)
        return ts.padding(each) if kind == "lengths" else ts.padding(left=each)
    if kind == "keep":
        return ts.padding(keep=coin[:, 0, 0])
    if kind == "row":
        return ts.from_tensor(coin)
    return ts.everyone


@composite
def masks(draw: Any, shape: Shape) -> ts.Mask:
    """Draw any mask that fits."""
    coin = normal(*shape.whole, seed=draw(seeds)) < 0.5
    texts, asking = (normal(1, size, seed=draw(seeds)).round().long() for size in (shape.keys, shape.queries))
    leaves = st.sampled_from(
        [
            draw(position_masks()),
            draw(key_masks(shape)),
            ts.from_tensor(coin[:1, :1]),
            ts.from_forbidden(coin.flatten(0, 1), heads=shape.heads) if coin.numel() else ts.from_forbidden(coin),
            ts.documents(texts, queries=asking),
            ts.documents(texts) if shape.queries <= shape.keys else ts.causal,
        ]
    )
    return draw(combined(leaves))


def combined(leaves: st.SearchStrategy[ts.Mask]) -> st.SearchStrategy[ts.Mask]:
    return st.recursive(
        leaves,
        lambda part: st.one_of(
            st.tuples(part, part).map(lambda pair: pair[0] & pair[1]),
            st.tuples(part, part).map(lambda pair: pair[0] | pair[1]),
            part.map(lambda mask: ~mask),
        ),
        max_leaves=3,
    )


# -------------------------------------------------------------------------------------------------------- definitions

scales = st.sampled_from([None, None, 1.0, 0.3, -0.5, 0.0])


@composite
def scores(draw: Any, shape: Shape, *, dot_products: bool = False) -> ts.Score:
    kind = draw(st.sampled_from(["dot", "dot", "general"] if dot_products else ["dot", "dot", "general", "additive"]))
    front = (shape.heads,) if draw(st.booleans()) else ()
    seed, d = draw(seeds), shape.d_k
    if kind == "general":
        return ts.general(normal(*front, d, d, seed=seed) / max(d, 1) ** 0.5)
    if kind == "additive":
        W_q, W_k, v = (normal(*front, *size, seed=seed + i) for i, size in enumerate([(d, 3), (d, 3), (3,)]))
        return ts.additive(W_q, W_k, v)
    return ts.dot


@composite
def biases(draw: Any, shape: Shape) -> ts.Bias | None:
    kind = draw(st.sampled_from([None, "alibi", "relative", "tensor", "function"]))
    seed = draw(seeds)
    if kind == "alibi":
        return ts.alibi(shape.heads) if shape.heads else None
    if kind == "relative":
        return ts.relative(normal(draw(st.sampled_from([1, shape.heads])), 2 * draw(st.integers(0, 3)) + 1, seed=seed))
    if kind == "tensor":
        numbers = normal(*shape.whole, seed=seed)
        return ts.from_additive(numbers.masked_fill(numbers > 1.0, -torch.inf))
    if kind == "function":
        return lambda query, key: torch.cos((query + 2.0 * key).double())
    return None


@composite
def definitions(draw: Any, shape: Shape) -> ts.Attention:
    """Draw any definition that fits, each part by itself.

    (by_sum, which is undefined near zero, is tested elsewhere.)
    """
    sinks = st.sampled_from([None, None, 0.5, normal(shape.heads, seed=draw(seeds))])
    return ts.Attention(
        score=draw(scores(shape)),
        scale=draw(scales),
        bias=draw(biases(shape)),
        softcap=draw(st.sampled_from([None, None, 2.0])),
        sink=draw(sinks),
        mask=draw(masks(shape)),
    )


@composite
def fused(draw: Any, shape: Shape) -> ts.Attention:
    """Draw definitions that a fused kernel can run at this shape: any mask for one query, few for many."""
    some = masks(shape) if shape.queries == 1 else combined(key_masks(shape))
    mask = draw(st.one_of(key_masks(shape), some, st.just(ts.causal)))
    return ts.Attention(score=draw(scores(shape, dot_products=True)), scale=draw(scales), mask=mask)


# --------------------------------------------------------------------------------------------------------- comparison


def assert_near(
    got: Tensor, truth: Tensor, dtype: torch.dtype | None = None, *, backward: bool = False, unit: float = 1.0
) -> None:
    """Check a result within a few roundings of `dtype`, relative to its largest number or to `unit`."""
    dtype = dtype or got.dtype
    forwards, backwards = (2, 10) if dtype in (torch.float16, torch.bfloat16) else (8, 64)
    finite = truth.detach()[truth.detach().isfinite()].abs()  # NaN and infinity have to be where they are, and no more
    largest = float(finite.max()) if finite.numel() else 0.0
    error = (backwards if backward else forwards) * torch.finfo(dtype).eps * max(largest, unit)
    assert_close(got.detach().double(), truth.detach().double(), atol=error, rtol=0.0, equal_nan=True)


def gradients(context: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a random weighted sum of the context."""
    weighing = normal(*context.shape, seed=0, dtype=context.dtype)
    return torch.autograd.grad((context * weighing).sum(), inputs)


def learnable(*inputs: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return new leaves with the same numbers and strides."""
    return [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in inputs]
