"""survey: the cost of a survey, compared with the fastest causal forward pass of the same run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import sqrt

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import telescope as ts

from .measure import Row, race

CAUSAL = ts.Attention(mask=ts.causal)
MAP = (128, 128)


def about(device: torch.device, quick: bool) -> str:
    if device.type == "cuda":
        return (
            "causal, 16 heads of 128, bfloat16; x is times the cuDNN forward pass of the same run"
        )
    return (
        f"causal, 12 heads of 64, {_cpu_length(quick):,} tokens, float32; x is times torch's "
        "sdpa of the same run"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type != "cuda":
        q, k, v = torch.randn(
            3, 1, 12, _cpu_length(quick), 64, generator=torch.Generator().manual_seed(0)
        )
        yield from _compared(f"n = {q.shape[-2]:,}", _on_cpu(q, k, v), device)
        return
    for length in (2_048, 4_096) if quick else (16_384, 131_072):
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 16, length, 128, device=device, dtype=torch.bfloat16)
        runners = _on_gpu(q, k, v)
        if length <= 16_384:
            runners["eager, same numbers"] = partial(_eager, q, k)
        yield from _compared(f"n = {length:,}", runners, device)
    length = 16_384 if quick else 1_048_576
    q, k = torch.randn(2, 1, 1, length, 128, device=device, dtype=torch.bfloat16)
    yield from race(
        f"n = {length:,}, one head",
        {"survey top=8": lambda: ts.survey(q, k, CAUSAL)},
        device,
        rounds=1,
    )


def _on_cpu(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "forward: sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "survey top=0": lambda: ts.survey(q, k, CAUSAL, top=0),
        "survey top=8": lambda: ts.survey(q, k, CAUSAL),
        "survey top=8, map": lambda: ts.survey(q, k, CAUSAL, map=MAP),
        "eager, head by head": lambda: [
            _eager(q[:, h : h + 1], k[:, h : h + 1]) for h in range(q.shape[1])
        ],
    }


def _on_gpu(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    lse = _cudnn(q, k, v)[1].reshape(q.shape[:3])
    return {
        "forward: cudnn": lambda: _cudnn(q, k, v),
        "forward: flash": lambda: _sdpa(SDPBackend.FLASH_ATTENTION, q, k, v),
        "forward: efficient": lambda: _sdpa(SDPBackend.EFFICIENT_ATTENTION, q, k, v),
        "forward: flex": lambda: ts.attend(q, k, v, CAUSAL, engine="flex"),
        "survey top=0, map, lse": lambda: ts.survey(q, k, CAUSAL, top=0, map=MAP, lse=lse),
        "survey top=8, lse": lambda: ts.survey(q, k, CAUSAL, lse=lse),
        "survey top=8, map, lse": lambda: ts.survey(q, k, CAUSAL, map=MAP, lse=lse),
        "survey top=8": lambda: ts.survey(q, k, CAUSAL),
    }


def _compared(
    case: str, runners: dict[str, Callable[[], object]], device: torch.device
) -> Iterator[Row]:
    """Yield the rows with their time relative to the first, which is 1.0."""
    rows = race(case, runners, device)
    for row in rows:
        timed = row.ms is not None and rows[0].ms is not None
        yield replace(row, note=f"{row.ms / rows[0].ms:.2f} x") if timed else row


def _eager(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Compute the same numbers from the whole matrix, as is usual."""
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = ((q @ k.mT).float() / sqrt(q.shape[-1])).masked_fill_(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1)
    return lse, weights.sum(-2), -torch.xlogy(weights, weights).sum(-1), *weights.topk(8)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)


def _sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def _cpu_length(quick: bool) -> int:
    return 1_024 if quick else 8_192
