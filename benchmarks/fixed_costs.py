"""fixed_costs: the time that attend takes beside torch's kernel, on one thread, for small
attentions.

Each definition is compared with F.scaled_dot_product_attention, which gets the same mask or bias as
a tensor, or as is_causal where that is the same. The note says how many times as long Telescope
takes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import telescope as ts

from .measure import Row

SIZES = [(1, 64), (16, 16), (1, 1024), (512, 512)]  # queries, keys
HEADS = 8
WIDTH = 64
GOALS = {(1, 64): 5.0, (16, 16): 5.0, (1, 1024): 2.0, (512, 512): 1.3}


def about(device: torch.device, quick: bool) -> str:
    return (
        f"fixed costs: batch 1, {HEADS} heads, {WIDTH} features, torch.float32, one thread; "
        f"goals {_goals()}"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        for key_heads, learns in ((HEADS, False), (2, False), (HEADS, True)):
            for size in SIZES[:2] if quick else SIZES:
                yield from _of_size(size, key_heads, learns, device, quick)
    finally:
        torch.set_num_threads(threads)


def definitions(queries: int, keys: int, device: torch.device) -> dict[str, ts.Attention]:
    """Return one of each mask and bias that torch can take as a tensor."""
    texts = torch.arange(keys, device=device) // 8
    coin = torch.rand(queries, keys, device=device) < 0.8
    added = torch.randn(1, HEADS, queries, keys, device=device)
    return {
        "plain": ts.Attention(),
        "causal": ts.Attention(mask=ts.causal),
        "causal & window": ts.Attention(mask=ts.causal & ts.window(8)),
        "padding": ts.Attention(mask=ts.padding([keys // 2])),
        "padding, keep": ts.Attention(mask=ts.padding(keep=coin[-1:])),
        "causal & padding": ts.Attention(mask=ts.causal & ts.padding([keys // 2])),
        "documents": ts.Attention(mask=ts.documents(texts)),
        "tensor": ts.Attention(mask=ts.from_tensor(coin)),
        "alibi": ts.Attention(bias=ts.alibi(HEADS)),
        "causal, alibi": ts.Attention(mask=ts.causal, bias=ts.alibi(HEADS)),
        "relative": ts.Attention(bias=ts.relative(torch.randn(HEADS, 33, device=device))),
        "additive": ts.Attention(bias=ts.from_additive(added)),
        "function": ts.Attention(bias=lambda query, key: -0.1 * (query - key).abs()),
    }


def _of_size(
    size: tuple[int, int], key_heads: int, learns: bool, device: torch.device, quick: bool
) -> Iterator[Row]:
    queries, keys = size
    shapes = (HEADS, queries), (key_heads, keys), (key_heads, keys)
    inputs = [
        torch.randn(1, *shape, WIDTH, device=device, requires_grad=learns) for shape in shapes
    ]
    kind = ("" if key_heads == HEADS else f", {key_heads} key heads") + (
        ", trained" if learns else ""
    )
    for name, attention in definitions(queries, keys, device).items():
        ready = dense(attention, queries, keys, device)
        runners = {
            "torch sdpa": partial(_torch, inputs, ready),
            "attend": partial(_ours, inputs, attention),
        }
        times = _in_turns(runners, 3 if quick else 200 if queries * keys < 2**14 else 21)
        torchs, ours = times.values()
        case = f"{queries}x{keys}{kind}"
        yield Row(case, f"torch sdpa, {name}", 1e3 * torchs)
        yield Row(case, f"attend, {name}", 1e3 * ours, note=f"{ours / torchs:.2f} x")


def dense(
    attention: ts.Attention, queries: int, keys: int, device: torch.device
) -> dict[str, object]:
    """Return the mask and bias of a definition as torch takes them."""
    if attention.bias is None and attention.mask == ts.everyone:
        return {}
    if attention.bias is None and attention.mask == ts.causal and queries == keys:
        return {"is_causal": True}
    at = ts.Pairs.block(range(queries), range(keys), of=(queries, keys), heads=HEADS, device=device)
    seen = attention.mask.sees(at)
    if attention.bias is None:
        return {"attn_mask": seen}
    assert isinstance(attention.bias, ts.Bias)
    return {"attn_mask": torch.where(seen, attention.bias.added(at, torch.float32), -torch.inf)}


def _torch(inputs: list[Tensor], ready: dict[str, object]) -> None:
    gqa = inputs[0].shape[1] != inputs[1].shape[1]
    _learn(scaled_dot_product_attention(*inputs, enable_gqa=gqa, **ready), inputs)


def _ours(inputs: list[Tensor], attention: ts.Attention) -> None:
    _learn(ts.attend(*inputs, attention), inputs)


def _learn(context: Tensor, inputs: list[Tensor]) -> None:
    if inputs[0].requires_grad:
        torch.autograd.grad(context.sum(), inputs)


def _in_turns(runners: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the seconds of each function: the median of many short runs, taken in turns for equal
    noise.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    for round in range(rounds + 2):
        for name, runner in runners.items():
            began = perf_counter()
            runner()
            if round >= 2:  # the first ones warm up
                times[name].append(perf_counter() - began)
    return {name: median(each) for name, each in times.items()}


def _goals() -> str:
    return ", ".join(f"{queries}x{keys}: {goal} x" for (queries, keys), goal in GOALS.items())
