"""On a GPU too, every engine gives the answer of `reference` in float64, forward and backward."""

import pytest
import torch

import telescope as ts
from telescope.engines import reference, sdpa

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)

# name: (batch, heads, key heads, queries, keys, d_k, d_v), definition
CASES = {
    "plain": ((2, 4, 4, 128, 128, 64, 64), ts.Attention()),
    "causal": ((2, 4, 4, 128, 128, 64, 64), ts.Attention(mask=ts.causal)),
    "causal, an odd length": ((2, 4, 4, 131, 131, 64, 64), ts.Attention(mask=ts.causal)),
    "causal, grouped heads": ((2, 8, 2, 128, 128, 64, 64), ts.Attention(mask=ts.causal)),
    "causal, scale below zero": ((2, 4, 4, 64, 64, 64, 64), ts.Attention(scale=-0.1, mask=ts.causal)),
    "causal, scale of zero": ((2, 4, 4, 64, 64, 64, 64), ts.Attention(scale=0.0, mask=ts.causal)),
    "padding": ((3, 4, 4, 128, 128, 64, 64), ts.Attention(mask=ts.padding([128, 37, 1]))),
    "padding, a sequence of nothing": ((2, 4, 4, 128, 128, 64, 64), ts.Attention(mask=ts.padding([0, 100]))),
    "padding, grouped heads, odd sizes": ((2, 6, 2, 61, 67, 40, 24), ts.Attention(mask=ts.padding([0, 33]))),
    "nobody": ((2, 4, 4, 64, 64, 64, 64), ts.Attention(mask=~ts.everyone)),
    "two sequences, wider values": ((2, 4, 4, 33, 129, 32, 64), ts.Attention(scale=0.5)),
    "odd widths": ((1, 3, 3, 17, 19, 13, 7), ts.Attention(mask=ts.prefix(11))),
    "one query, window and alibi": (
        (2, 8, 2, 1, 257, 64, 64),
        ts.Attention(bias=ts.alibi(8), mask=ts.causal & ts.window(100) & ts.padding([0, 257])),
    ),
    "softcap, sink and window": (
        (2, 4, 2, 65, 65, 64, 64),
        ts.Attention(softcap=5.0, sink=0.5, mask=ts.causal & ts.window(16)),
    ),
    "rows before the first key": ((2, 4, 4, 70, 64, 64, 64), ts.Attention(mask=ts.causal)),
}


def inputs(sizes, dtype):
    batch, heads, key_heads, queries, keys, d_k, d_v = sizes
    torch.manual_seed(0)
    shapes = [(batch, heads, queries, d_k), (batch, key_heads, keys, d_k), (batch, key_heads, keys, d_v)]
    return [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def forward_and_backward(attend, tensors, attention):
    """The context, and the gradients of a random weighing of it."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    context = attend(*leaves, attention)
    torch.manual_seed(1)
    weighing = torch.randn(context.shape, device="cuda", dtype=torch.float32).to(context.dtype)
    return context.detach(), *torch.autograd.grad((context * weighing).sum(), leaves)


def assert_agrees(attend, tensors, attention):
    dtype = tensors[0].dtype
    truth = forward_and_backward(reference.attend, [tensor.double() for tensor in tensors], attention)
    got = forward_and_backward(attend, tensors, attention)
    roundings = 100 if dtype == torch.float32 else 4  # about thrice what an H200 shows
    for name, mine, exact in zip(("context", "queries", "keys", "values"), got, truth, strict=True):
        assert mine.dtype == dtype
        error = roundings * torch.finfo(dtype).eps * max(1.0, exact.abs().max().item())
        torch.testing.assert_close(
            mine.double(), exact, atol=error, rtol=0.0, msg=lambda text, name=name: f"{name}: {text}"
        )


@dtypes
@pytest.mark.parametrize(("sizes", "attention"), CASES.values(), ids=CASES)
def test_attend_agrees(sizes, attention, dtype):
    tensors = inputs(sizes, dtype)
    assert_agrees(ts.attend, tensors, attention)
    if sdpa.cannot(*tensors, attention) is None:
        assert_agrees(sdpa.attend, tensors, attention)


@dtypes
@pytest.mark.parametrize("engine", ["sdpa", "reference"])
def test_who_sees_nothing_gets_zeros_and_gives_no_gradient(engine, dtype):
    def attend(q, k, v, attention):
        return ts.attend(q, k, v, attention, engine=engine)

    context, *gradients = forward_and_backward(
        attend, inputs((2, 8, 2, 64, 64, 64, 64), dtype), ts.Attention(mask=ts.padding([0, 50]))
    )
    for tensor in (context, *gradients):
        assert not tensor[0].any()
        assert tensor.isfinite().all()
        assert tensor[1].any()


def test_masks_and_biases_made_on_the_cpu_follow_the_queries():
    tensors = inputs((2, 2, 2, 8, 8, 16, 16), torch.float32)
    mask = ts.padding(keep=torch.ones(2, 8).bool().tril()) & ts.documents([0, 0, 0, 1, 1, 1, 2, 2])
    bias = ts.relative(torch.randn(2, 5))
    attention = ts.Attention(bias=bias, sink=torch.randn(2), mask=mask)
    there = ts.attend(*tensors, attention)
    assert there.device.type == "cuda"
    here = ts.attend(*(tensor.cpu() for tensor in tensors), attention)
    torch.testing.assert_close(there.cpu(), here, atol=1e-5, rtol=0.0)
