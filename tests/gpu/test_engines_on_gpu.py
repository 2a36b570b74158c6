"""On a GPU every engine gives the result of `reference` in float64, forward and backward."""

from functools import partial

import pytest
import torch

import telescope as ts
from telescope.engines import chunked, flex, reference, sdpa
from telescope.tasks.doctor import check_engines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("unchecked"),  # flex compiles
    pytest.mark.filterwarnings("ignore"),  # torch, while it compiles
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
    "window over many blocks": ((1, 4, 2, 700, 700, 64, 64), ts.Attention(mask=ts.causal & ts.window(150))),
    "documents": ((2, 4, 4, 300, 300, 64, 64), ts.Attention(mask=ts.documents(torch.arange(300) // 70))),
    "softcap, alibi, fewer queries": (
        (1, 4, 4, 150, 400, 64, 64),
        ts.Attention(softcap=5.0, bias=ts.alibi(4), mask=ts.causal),
    ),
    "any function, negative scale": (
        (1, 2, 2, 200, 200, 32, 32),
        ts.Attention(scale=-0.1, bias=lambda query, key: -0.1 * (query - key).abs()),
    ),
    "a mask for each head": (
        (2, 4, 4, 160, 160, 32, 32),
        ts.Attention(mask=ts.from_tensor(torch.arange(160 * 4).view(1, 4, 160, 1) % 3 > 0) & ts.window(90)),
    ),
    "a sequence of nothing, sink": (
        (2, 4, 2, 256, 256, 64, 64),
        ts.Attention(sink=torch.linspace(-1.0, 1.0, 4), mask=ts.causal & ts.padding([0, 200])),
    ),
    "groups of three": ((1, 6, 2, 140, 140, 64, 64), ts.Attention(softcap=3.0, mask=ts.causal)),
}


def inputs(sizes, dtype):
    batch, heads, key_heads, queries, keys, d_k, d_v = sizes
    torch.manual_seed(0)
    shapes = [(batch, heads, queries, d_k), (batch, key_heads, keys, d_k), (batch, key_heads, keys, d_v)]
    return [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def forward_and_backward(attend, tensors, attention):
    """Return the context, and the gradients of a random weighted sum of it."""
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
    for engine in (sdpa, chunked):
        if engine.cannot(*tensors, attention) is None:
            assert_agrees(engine.attend, tensors, attention)


@pytest.mark.parametrize(("sizes", "attention"), CASES.values(), ids=CASES)
def test_flex_agrees(sizes, attention):
    """In one dtype, since each definition is compiled, forward and backward."""
    dtype = torch.float32 if "sink" in str(attention) else torch.bfloat16
    tensors = inputs(sizes, dtype)
    assert flex.cannot(*tensors, attention) is None
    assert_agrees(flex.attend, tensors, attention)


@dtypes
@pytest.mark.parametrize("engine", ["sdpa", "flex", "chunked", "reference"])
def test_a_query_that_sees_no_key_gets_zeros_and_gives_no_gradient(engine, dtype):
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


# ----------------------------------------------------------------------------------------------------- flex and chunked

LONG = (1, 4, 4, 2048, 2048, 64, 64)  # more scores than `reference` is chosen for


def test_flex_is_chosen_and_the_plan_says_why():
    tensors = inputs(LONG, torch.bfloat16)
    plan = ts.plan(*tensors, ts.Attention(mask=ts.causal & ts.window(100)))
    assert plan.engine == "flex"
    assert plan.why.endswith("because sdpa cannot: the mask causal & window(100) would be a 2048 x 2048 tensor")
    assert ts.plan(*tensors, ts.Attention(softcap=5.0), dropout=0.1).engine == "chunked"
    assert ts.plan(*(tensor.double() for tensor in tensors), ts.Attention(softcap=5.0)).engine == "chunked"


def test_many_definitions_stay_fused():
    """torch compiles a function at most eight times and then forms the n x n weights; Telescope allows more."""
    torch.compiler.reset()
    tensors = inputs((1, 2, 2, 8192, 8192, 32, 32), torch.bfloat16)
    for size in range(100, 112):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ts.attend(*tensors, ts.Attention(mask=ts.causal & ts.window(size), softcap=float(size)), engine="flex")
        assert torch.cuda.max_memory_allocated() - before < 2 * 8192**2  # a fourth of one matrix of scores in float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("engine", ["flex", "chunked"])
def test_learned_tensors_get_their_gradient(engine, dtype):
    tensors = [tensor.detach() for tensor in inputs((2, 4, 2, 300, 300, 64, 64), dtype)]
    torch.manual_seed(3)
    learned = [
        torch.randn(4, 9, device="cuda"),
        torch.randn(4, device="cuda"),
        torch.randn(4, 64, 64, device="cuda") / 8,
    ]
    weighing = torch.randn(2, 4, 300, 64, device="cuda")

    def slopes(attend, tensors, kind):
        table, sink, W = leaves = [part.to(kind).requires_grad_() for part in learned]
        attention = ts.Attention(score=ts.general(W), bias=ts.relative(table), sink=sink, mask=ts.causal)
        return torch.autograd.grad((attend(*tensors, attention) * weighing).sum(), leaves)

    module = {"flex": flex, "chunked": chunked}[engine]
    mine = slopes(module.attend, tensors, torch.float32)
    exact = slopes(reference.attend, [tensor.double() for tensor in tensors], torch.float64)
    for gradient, slope in zip(mine, exact, strict=True):
        assert gradient is not None
        assert slope.abs().max() > 0.1
        error = (300 if dtype == torch.float32 else 8) * torch.finfo(dtype).eps * slope.abs().max().item()
        torch.testing.assert_close(gradient.double(), slope, atol=error, rtol=0.0)


@pytest.mark.parametrize("keys", [64, 192])
@pytest.mark.parametrize("how", ["plainly", "compiled"])
def test_gradients_of_very_low_scores(how, keys):
    q, k, v = inputs((2, 4, 4, keys, keys, 64, 64), torch.bfloat16)
    q[..., 0], k[..., 0] = 1.0, -960.0  # which makes all scores about -120; cuDNN's gradient is NaN
    attention = ts.Attention(mask=ts.padding(torch.tensor([keys, 50], device="cuda")))
    attend = partial(ts.attend, engine="sdpa")
    got = forward_and_backward(torch.compile(attend) if how == "compiled" else attend, (q, k, v), attention)
    truth = forward_and_backward(reference.attend, [tensor.double() for tensor in (q, k, v)], attention)
    for mine, exact in zip(got, truth, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine[..., 1:].double(), exact[..., 1:], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("engine", ["flex", "chunked"])
def test_inside_torch_compile(engine):
    tensors = inputs((1, 4, 4, 512, 512, 64, 64), torch.float32)
    for attention in (ts.Attention(mask=ts.causal & ts.window(100)), ts.Attention(softcap=5.0, bias=ts.alibi(4))):
        compiled = torch.compile(partial(ts.attend, engine=engine), fullgraph=True)
        assert_agrees(compiled, tensors, attention.to("cuda"))


def test_inside_torch_compile_flex_cannot_move_a_bias():
    q, k, v = inputs((1, 4, 4, 512, 512, 64, 64), torch.float32)
    compiled = torch.compile(partial(ts.attend, engine="flex"))
    with pytest.raises(Exception, match=r"attention\.to\('cuda:0'\) can"):
        compiled(q, k, v, ts.Attention(softcap=5.0, bias=ts.alibi(4)))


@pytest.mark.parametrize("engine", ["flex", "chunked"])
def test_under_autocast(engine):
    q, k, v = inputs((1, 4, 4, 256, 256, 64, 64), torch.float32)
    attention = ts.Attention(mask=ts.causal & ts.window(50))
    with torch.autocast("cuda", torch.bfloat16):
        context = ts.attend(q, k.bfloat16(), v, attention, engine=engine)
    assert context.dtype == torch.bfloat16
    truth = reference.attend(q.double(), k.double(), v.double(), attention)
    torch.testing.assert_close(context.double(), truth, atol=0.05, rtol=0.0)


def test_a_mask_made_on_the_cpu_is_cached():
    q, k, _ = inputs((1, 2, 2, 512, 512, 64, 64), torch.float32)
    mask = ts.documents(torch.arange(512) // 100)
    assert flex._block_mask(mask, q, k) is flex._block_mask(mask & ts.everyone, q, k)
    assert flex._block_mask(mask, q, k).kv_indices.device == q.device


def test_the_lse_of_flex_is_a_natural_logarithm():
    q, k, v = inputs((1, 4, 4, 300, 300, 64, 64), torch.float32)
    attention = ts.Attention(mask=ts.causal & ts.window(100), softcap=5.0)
    masked = reference.steps(q.double(), k.double(), v.double(), attention).masked
    torch.testing.assert_close(flex.lse(q, k, v, attention).double(), masked.logsumexp(-1), atol=1e-4, rtol=0.0)


def test_chunked_halves_its_blocks_when_memory_runs_out():
    tensors = inputs((1, 16, 16, 8192, 8192, 64, 64), torch.float32)
    attention = ts.Attention(softcap=5.0, mask=ts.causal)
    truth = chunked.attend(*tensors, attention)
    held = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    try:
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held / 4 + 2**29) / total))
        torch.testing.assert_close(chunked.attend(*tensors, attention), truth, atol=1e-5, rtol=0.0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_doctor_finds_everything_right():
    report = check_engines(torch.device("cuda"))
    assert report.healthy, report
    assert all(finding.ms for finding in report.findings if finding.name in ("attend  flex", "attend  sdpa (cudnn)"))
