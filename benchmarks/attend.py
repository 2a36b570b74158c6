"""attend: every engine and its peers, for definitions from the plain causal one to what only plain
PyTorch can express.

Peers: torch's sdpa with each backend, sdpa with a dense n x n mask, eager PyTorch, and
FlexAttention written by hand.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import telescope as ts
from telescope.engines import chunked, flex, reference, sdpa

from .measure import Row, race

ENGINES = {"sdpa": sdpa, "flex": flex, "chunked": chunked, "reference": reference}
LARGEST = 2**33  # bytes that a peer may want for one n x n tensor; beyond, it does not run


def sizes(device: torch.device, quick: bool) -> tuple[int, int, int, torch.dtype]:
    """heads, tokens, features, dtype"""
    if device.type == "cuda":
        return 16, 2048 if quick else 16384, 128, torch.bfloat16
    return 8, 256 if quick else 1024, 64, torch.float32


def about(device: torch.device, quick: bool) -> str:
    heads, tokens, features, dtype = sizes(device, quick)
    return f"attend, forward: batch 1, {heads} heads, {tokens} tokens, {features} features, {dtype}"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    heads, tokens, features, dtype = sizes(device, quick)
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, tokens, features, device=device, dtype=dtype) for _ in range(3)]
    rounds = 3 if quick or device.type == "cpu" else 20
    with torch.no_grad():
        for case, attention in definitions(heads, tokens, features, device).items():
            runners = ours(attention, inputs) | peers(case, attention, inputs)
            yield from race(case, runners, device, rounds=rounds)


def definitions(
    heads: int, tokens: int, features: int, device: torch.device
) -> dict[str, ts.Attention]:
    texts = torch.arange(tokens, device=device) // (tokens // 8)
    W_q, W_k, v = (
        torch.randn(*size, device=device) / 8 for size in [(features, 8), (features, 8), (8,)]
    )
    return {
        "causal": ts.Attention(mask=ts.causal),
        "causal & window": ts.Attention(mask=ts.causal & ts.window(tokens // 16)),
        "causal & documents": ts.Attention(mask=ts.causal & ts.documents(texts)),
        "softcap": ts.Attention(mask=ts.causal, softcap=30.0),
        "alibi": ts.Attention(mask=ts.causal, bias=ts.alibi(heads)),
        "sink": ts.Attention(mask=ts.causal, sink=torch.zeros(heads, device=device)),
        "additive": ts.Attention(mask=ts.causal, score=ts.additive(W_q, W_k, v)),
    }


def ours(attention: ts.Attention, inputs: list[Tensor]) -> dict[str, Callable[[], object]]:
    chosen = ts.plan(*inputs, attention).engine
    terms = attention.score.v.shape[-1] if isinstance(attention.score, ts.additive) else 1
    return {
        f"{name}{' (chosen)' if name == chosen else ''}": partial(
            ts.attend, *inputs, attention, engine=name
        )
        for name in ENGINES
        if ENGINES[name].cannot(*inputs, attention) is None
        and (name != "reference" or _fits(inputs, terms))
    }


def peers(
    case: str, attention: ts.Attention, inputs: list[Tensor]
) -> dict[str, Callable[[], object]]:
    queries = inputs[0]
    device = inputs[0].device
    runners: dict[str, Callable[[], object]] = {}
    if case == "causal":
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        if device.type == "cuda":
            backends += [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        for backend in backends:
            if backend != SDPBackend.MATH or _fits(inputs):
                runners[f"torch {backend.name.lower()}"] = partial(_by_backend, backend, inputs)
    if (
        attention.score == ts.dot
        and attention.softcap is None
        and attention.sink is None
        and _fits(inputs)
    ):
        runners["torch sdpa, dense mask"] = partial(_with_dense_mask, attention, inputs)
    if attention.score == ts.dot and _fits(inputs):
        runners["eager"] = partial(_eager, attention, inputs)
    if device.type == "cuda" and case in BY_HAND:
        score_mod, mask_mod = BY_HAND[case](queries.shape[-2], queries.shape[1], device)
        blocks = create_block_mask(mask_mod, None, None, *[queries.shape[-2]] * 2, device=device)
        runners["torch flex, by hand"] = partial(
            _compiled(), *inputs, score_mod=score_mod, block_mask=blocks
        )
    return runners


def _fits(inputs: list[Tensor], terms: int = 1) -> bool:
    _, heads, tokens, _ = inputs[0].shape
    return heads * tokens**2 * 4 * terms <= LARGEST * (2 if inputs[0].is_cuda else 0.125)


def _by_backend(backend: SDPBackend, inputs: list[Tensor]) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(*inputs, is_causal=True)


def _with_dense_mask(attention: ts.Attention, inputs: list[Tensor]) -> Tensor:
    _, heads, tokens, _ = inputs[0].shape
    device = inputs[0].device
    at = ts.Pairs.block(
        range(tokens), range(tokens), of=(tokens, tokens), heads=heads, device=device
    )
    seen = attention.mask.sees(at)
    if isinstance(attention.bias, ts.Bias):
        seen = attention.bias(at).to(inputs[0].dtype).masked_fill(~seen, -torch.inf)
    return scaled_dot_product_attention(*inputs, attn_mask=seen)


def _eager(attention: ts.Attention, inputs: list[Tensor]) -> Tensor:
    """As model code writes it, in the dtype of its inputs."""
    queries, keys, values = inputs
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    at = ts.Pairs.all(scores)
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    if isinstance(attention.bias, ts.Bias):
        scores = scores + attention.bias(at).to(scores.dtype)
    scores = scores.masked_fill(~attention.mask.sees(at), -torch.inf)
    if isinstance(attention.sink, Tensor):
        sink = attention.sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1] @ values
    return scores.softmax(-1) @ values


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def _causal(tokens: int, heads: int, device: torch.device) -> tuple[Any, Any]:
    return None, lambda b, h, i, j: j <= i


def _window(tokens: int, heads: int, device: torch.device) -> tuple[Any, Any]:
    size = tokens // 16
    return None, lambda b, h, i, j: (j <= i) & (i - j < size)


def _documents(tokens: int, heads: int, device: torch.device) -> tuple[Any, Any]:
    texts = torch.arange(tokens, device=device) // (tokens // 8)
    return None, lambda b, h, i, j: (j <= i) & (texts[i] == texts[j])


def _softcap(tokens: int, heads: int, device: torch.device) -> tuple[Any, Any]:
    return lambda score, b, h, i, j: 30.0 * torch.tanh(score / 30.0), lambda b, h, i, j: j <= i


def _alibi(tokens: int, heads: int, device: torch.device) -> tuple[Any, Any]:
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    return lambda score, b, h, i, j: score - slopes[h] * (i - j), lambda b, h, i, j: j <= i


BY_HAND = {
    "causal": _causal,
    "causal & window": _window,
    "causal & documents": _documents,
    "softcap": _softcap,
    "alibi": _alibi,
}
