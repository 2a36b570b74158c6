"""Attention functions on a GPU: the same bits from torch's own kernels, and the numbers of a CPU in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import telescope as ts
from support.editing import Muted
from support.foreign import numbered
from support.truth import in_float64, plain_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
WIDTH, HEADS = 256, 4


class Attention(nn.Module):
    """Causal heads that share keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.v, self.out = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


def stack():
    return numbered(nn.Sequential(*(Attention() for _ in range(3))))


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 512, batch_first=True)
    return numbered(nn.TransformerEncoder(layer, 3))


def tokens(n):
    return torch.randn(2, n, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("make", [stack, encoder])
@pytest.mark.parametrize("n", [60, 1500])
@torch.no_grad()
def test_the_same_bits_and_the_numbers_of_float64(make, n, dtype):
    model = make()
    x = tokens(n)
    twin = in_float64(model)
    with plain_attention(twin) as truth:
        twin(x.double())
    model = model.to("cuda", dtype)
    expected = model(x.to("cuda", dtype))
    with ts.watch(model) as recording:
        assert torch.equal(model(x.to("cuda", dtype)), expected)
    first, weights = next((name, call.weights) for name, call in truth.items())
    close = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.3, "rtol": 5e-2}
    found = recording[first]
    torch.testing.assert_close(found.received.cpu().double(), weights.sum(2), **close)
    torch.testing.assert_close(found.entropy.cpu().double(), torch.special.entr(weights).sum(-1), **close)
    assert len(recording.heads()) == 3 * HEADS


@pytest.mark.parametrize("make", [stack, encoder])
@torch.no_grad()
def test_a_muted_head(make):
    model = make()
    x = tokens(300)
    twin = in_float64(model)
    with plain_attention(twin, Muted(heads=[1])):
        truth = twin(x.double())
    model = model.cuda()
    with ts.edit(model, ts.mute(heads=[1])):
        found = model(x.cuda())
    torch.testing.assert_close(found.cpu().double(), truth, atol=1e-3, rtol=1e-3)


class Flex(nn.Module):
    """Compiled flex_attention with a sliding window."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = torch.compile(flex_attention)

    def forward(self, q, k, v, mask):
        return self.attend(q, k, v, block_mask=mask)


def window(batch, head, query, key):
    return (query >= key) & (query - key < 100)


@torch.no_grad()
def test_compiled_flex_attention():
    model = Flex()
    parts = [torch.randn(1, HEADS, 512, 64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    given = [part.cuda() for part in parts]
    mask = create_block_mask(window, None, None, 512, 512, device="cuda")
    expected = model(*given, mask)
    with ts.watch(model) as recording:
        assert torch.equal(model(*given, mask), expected)
    distance = torch.arange(512)[:, None] - torch.arange(512)
    scores = parts[0].double() @ parts[1].double().mT / 8
    weights = scores.masked_fill((distance < 0) | (distance >= 100), -torch.inf).softmax(-1)
    found = recording["attention"].received.cpu().double()
    torch.testing.assert_close(found, weights.sum(2), atol=1e-3, rtol=1e-3)
