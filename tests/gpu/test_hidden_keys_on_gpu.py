"""Hidden keys on a GPU: on the fused kernels without a mask, in captured steps, and without more memory."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.watching import filled
from telescope.attention import Rectangle, table_of
from telescope.models import GPT, GPTConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),  # the first product of autograd's own thread
]
HIDDEN = {
    "from later queries": lambda n: Rectangle(table_of([[(n // 4, n // 2)]]), table_of([[(n // 2, None)]])),
    "from all queries": lambda n: Rectangle(table_of([[(n // 4, n // 2)]])),
    "the first": lambda n: Rectangle(table_of([[(0, n // 4)]])),
    "from queries in the middle": lambda n: Rectangle(
        table_of([[(3, n // 8)]]), table_of([[(n // 2, n // 2 + n // 8)]])
    ),
    "in two heads": lambda n: Rectangle(table_of([[(3, n // 8)]]), None, torch.tensor([True, False, False, True])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_keys(hidden, dtype):
    n = 512
    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(2, 4, n, 64, device="cuda", dtype=dtype, generator=generator, requires_grad=True)
    k, v = (torch.randn(2, 2, n, 64, device="cuda", dtype=dtype, generator=generator, requires_grad=True) for _ in "kv")
    attention = ts.Attention(mask=ts.causal & ~HIDDEN[hidden](n))
    assert ts.plan(q, k, v, attention).engine == "sdpa"
    context = ts.attend(q, k, v, attention)
    truth = ts.attend(q.double(), k.double(), v.double(), attention, engine="reference")
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-4}
    assert_close(context.double(), truth, **close)
    upstream = torch.randn_like(truth)
    one = torch.autograd.grad(context, (q, k, v), upstream.to(dtype))
    two = torch.autograd.grad(truth, (q, k, v), upstream)
    for mine, right in zip(one, two, strict=True):
        assert float((mine.double() - right.double()).norm() / right.double().norm()) < (
            2e-2 if dtype != torch.float32 else 1e-3
        )


def test_steps_that_are_captured_otherwise_run_edited():
    sizes = {"vocabulary": 13, "max_positions": 64, "d_model": 32, "blocks": 2, "heads": 4}
    model = filled(GPT(GPTConfig(**sizes)), torch.float32)
    prompts = [[1, 5, 2, 8], [4, 4]]
    with ts.edit(model, ts.hide([0, 1], slice(2, None)), ts.mute(0, heads=1)):
        expected = [text.ids for text in ts.decoding.generate(model, prompts, max_new_tokens=24, temperature=0)]
    on_gpu = model.cuda()
    with ts.edit(on_gpu, ts.hide([0, 1], slice(2, None)), ts.mute(0, heads=1)):
        assert [
            text.ids for text in ts.decoding.generate(on_gpu, prompts, max_new_tokens=24, temperature=0)
        ] == expected


def test_a_long_text_takes_no_more_memory():
    n = 16_384
    q, k, v = (torch.randn(1, 8, n, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    rectangle = HIDDEN["from later queries"](n)

    def peak(attention):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            ts.attend(q, k, v, attention)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert peak(ts.Attention(mask=ts.causal & ~rectangle)) < 8 * q.nbytes
