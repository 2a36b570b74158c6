"""Models of one's own that write over a cache of keys: one growing recording, with the numbers of reading at once."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing import assert_close

import telescope as ts
from support.foreign import numbered

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

WIDTH, HEADS, ROOM, LENGTH, PROMPT = 24, 3, 16, 9, 5
IDS = torch.randint(0, 31, (2, LENGTH), generator=torch.Generator().manual_seed(1))
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Attention(nn.Module):
    """Causal self-attention over a cache; `kind` tells how the cache is kept."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reset()

    def reset(self):
        empty = torch.zeros(2, HEADS, 0 if self.kind == "joined" else ROOM, WIDTH // HEADS)
        self.keys, self.values, self.count = empty, empty.clone(), 0

    def forward(self, x):
        new = x.shape[1]
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        begin, end = self.count, self.count + new
        self.count = end
        if self.kind == "joined":
            self.keys, self.values = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        else:
            self.keys[:, :, begin:end], self.values[:, :, begin:end] = k, v
        keys, values = self.keys, self.values
        if self.kind in ("joined", "cut"):
            keys, values = keys[:, :, :end], values[:, :, :end]
            y = functional.scaled_dot_product_attention(q, keys, values, is_causal=new > 1)
        elif self.kind == "function":
            mask = create_block_mask(
                lambda batch, head, query, key: query + begin >= key, None, None, new, ROOM, device="cpu"
            )
            y = flex_attention(q, keys, values, block_mask=mask)
        else:
            mask = torch.ones(ROOM, ROOM).tril().bool()[begin:end]
            if self.kind == "added":
                mask = torch.zeros(new, ROOM).masked_fill(~mask, -torch.inf)
            y = functional.scaled_dot_product_attention(q, keys, values, mask)
        return self.out(y.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(31, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.blocks = nn.ModuleList(Attention(kind) for _ in range(2))

    def reset(self):
        for block in self.blocks:
            block.reset()

    def forward(self, ids):
        begin = self.blocks[0].count
        x = self.tokens(ids) + self.positions(torch.arange(begin, begin + ids.shape[1]))
        for block in self.blocks:
            x = x + block(x)
        return x


def write(model):
    """Read a prompt, and the other tokens one by one."""
    model.reset()
    parts = [model(IDS[:, :PROMPT])]
    return torch.cat(parts + [model(IDS[:, i : i + 1]) for i in range(PROMPT, LENGTH)], 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["joined", "cut", "mask", "added", "function"])
def test_steps_are_one_growing_recording(kind, mode):
    model = numbered(GPT(kind))
    with mode():
        plain = write(model)
        with ts.watch(model) as recording:
            assert torch.equal(write(model), plain)
    twin = numbered(GPT("joined"))
    with torch.no_grad(), ts.watch(twin) as truth:
        assert_close(twin(IDS), plain, **CLOSE)
    for name in ("blocks.0", "blocks.1"):
        assert recording[name].call.size == (LENGTH, LENGTH)
        assert_close(recording[name].received, truth[name].received, **CLOSE)
        assert_close(recording[name].entropy, truth[name].entropy, **CLOSE)
    found, expected = recording.heads().sort("layer"), truth.heads().sort("layer")
    for one, other in zip(found, expected, strict=True):
        assert (one.layer, one.number) == (other.layer, other.number)
        assert one.itself == pytest.approx(other.itself, abs=1e-5)
        assert one.previous == pytest.approx(other.previous, abs=1e-5)


@pytest.mark.parametrize("kind", ["joined", "cut", "mask", "added", "function"])
def test_a_key_is_hidden_from_every_step(kind):
    model = numbered(GPT(kind))
    twin = numbered(GPT("joined"))
    with torch.no_grad():
        with ts.edit(model, ts.hide(2)):
            found = write(model)
        with ts.edit(twin, ts.hide(2)):
            expected = twin(IDS)
    assert_close(found, expected, **CLOSE)
