"""Small models to watch: an encoder-decoder that also decodes with preallocated caches, and one with every layer."""

from functools import partial

import torch
from torch import Tensor, nn

import telescope as ts
from telescope.layers import (
    CachePosition,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LuongAttention,
    MultiHeadAttention,
    SelfAttention,
    SynthesizerAttention,
)
from telescope.layers.attend import join_heads

D = 8
causal = ts.Attention(mask=ts.causal)
KEEPS = ("summaries", "queries-keys", "steps")


def sequence(n: int, *, batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Translator(nn.Module):
    """Two stacks. `decode` takes the target piece by piece and writes keys and values into preallocated buffers."""

    def __init__(self, *, pre_norm: bool = False, dropout: float = 0.0, rotary: bool = True) -> None:
        super().__init__()
        options = {"pre_norm": pre_norm, "dropout": dropout}
        turned = ts.rotary() if rotary else None
        self.encoder = nn.ModuleList(
            EncoderBlock(D, MultiHeadAttention(D, 4, key_heads=2, dropout=dropout), FeedForward(D, 11), **options)
            for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(
                D,
                MultiHeadAttention(D, 4, key_heads=2, attention=causal, rotary=turned, dropout=dropout),
                MultiHeadAttention(D, 2, dropout=dropout),
                FeedForward(D, 11),
                **options,
            )
            for _ in range(2)
        )

    def encode(self, source: Tensor, mask: ts.Mask | None = None) -> Tensor:
        for block in self.encoder:
            source = block(source, mask)
        return source

    def forward(
        self, source: Tensor, target: Tensor, source_mask: ts.Mask | None = None, mask: ts.Mask | None = None
    ) -> Tensor:
        memory = self.encode(source, source_mask)
        for block in self.decoder:
            target = block(target, memory, mask, source_mask)
        return target

    def decode(
        self,
        source: Tensor,
        target: Tensor,
        pieces: list[int],
        source_mask: ts.Mask | None = None,
        keep: Tensor | None = None,
        fill: float = torch.nan,
    ) -> Tensor:
        """Return what forward does, with the target in these pieces; `keep` (batch, n) is its padding mask."""
        memory = self.encode(source, source_mask)
        crossing = [block.cross_attention.keys_and_values(memory) for block in self.decoder]
        own = [block.self_attention for block in self.decoder]
        room = [torch.full((2, len(target), at.key_heads, sum(pieces) + 3, at.d_k), fill).to(target) for at in own]
        written, parts = 0, []
        for part in target.split(pieces, dim=1):
            new = slice(written, written + part.shape[1])
            mask = None if keep is None else ts.padding(keep=keep[:, : new.stop])
            for block, buffer, (keys, values) in zip(self.decoder, room, crossing, strict=True):
                part = block.add_norm_1(part, partial(look_back, block.self_attention, buffer, new, mask))
                part = block.add_norm_2(part, partial(look_across, block.cross_attention, keys, values, source_mask))
                part = block.add_norm_3(part, block.feed_forward)
            written = new.stop
            parts.append(part)
        for buffer in room:
            buffer.fill_(7.0)  # a view of the buffer that was kept has wrong numbers now
        return torch.cat(parts, 1)


def look_back(at: MultiHeadAttention, buffer: Tensor, new: slice, mask: ts.Mask | None, x: Tensor) -> Tensor:
    """Run self-attention with a cache: new keys are written into the buffer, and a view of it is attended to."""
    buffer[0, :, :, new], buffer[1, :, :, new] = at.keys_and_values(x, CachePosition(new.start))
    keys, values = buffer[:, :, :, : new.stop]
    return look_across(at, keys, values, mask, x, CachePosition(new.start))


def look_across(
    at: MultiHeadAttention,
    keys: Tensor,
    values: Tensor,
    mask: ts.Mask | None,
    x: Tensor,
    place: CachePosition = CachePosition(),
) -> Tensor:
    return at.W_O(join_heads(at.attend(at.queries(x, place), keys, values, at.attention.with_extra_mask(mask))))


class Museum(nn.Module):
    """Every kind of attention layer, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = SelfAttention(D)
        self.many_attention = MultiHeadAttention(D, 4, attention=ts.Attention(bias=ts.alibi(4), sink=torch.ones(4)))
        self.synthetic_attention = SynthesizerAttention(D, 2, 11)
        self.dot_attention = LuongAttention("dot", D)
        self.general_attention = LuongAttention("general", D)
        self.concat_attention = LuongAttention("concat", D)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.synthetic_attention(self.many_attention(self.alone(x)))
        return self.concat_attention(self.general_attention(self.dot_attention(x, memory), memory), memory)


def filled(model: nn.Module, dtype: torch.dtype = torch.float64, *, std: float = 0.5) -> nn.Module:
    """Set every parameter to random numbers, so that all of them have an effect."""
    torch.manual_seed(7)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model.to(dtype).eval()


def hooks_of(model: nn.Module) -> list[object]:
    """Return all hooks of all modules of a model."""
    return [kept for module in model.modules() for name, kept in vars(module).items() if "hook" in name and kept]
