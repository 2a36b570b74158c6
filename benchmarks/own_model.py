"""own_model: what it costs to watch a Llama that a user wrote with scaled_dot_product_attention,
beside the Llama of transformers.

Both have one shape and one dtype, and read one text at once. The weights are random.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

import telescope as ts

from .measure import Row, race
from .watch import _model, _read, _text, _watched


class Attention(nn.Module):
    """Heads that share keys, with rotary positions."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads = heads
        size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, key_heads * size, bias=False)
        self.v = nn.Linear(width, key_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
        size = x.shape[-1] // self.heads
        q, k, v = (
            part(x).unflatten(-1, (-1, size)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(
            rotate(q, rotations), rotate(k, rotations), v, is_causal=True, enable_gqa=True
        )
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of features by the position."""
    cosines, sines = rotations
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class Block(nn.Module):
    """An attention and a gated feed-forward network."""

    def __init__(self, width: int, hidden: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.RMSNorm(width)
        self.attention = Attention(width, heads, key_heads)
        self.norm_2 = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm_1(x), rotations)
        inside = self.norm_2(x)
        return x + self.down(silu(self.gate(inside)) * self.up(inside))


class OwnLlama(nn.Module):
    """A Llama as a user writes it: nothing here knows of Telescope or of transformers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        heads = config.num_attention_heads
        width = config.hidden_size
        self.size = width // heads
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.blocks = nn.ModuleList(
            Block(width, config.intermediate_size, heads, config.num_key_value_heads)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        frequencies = 10_000 ** -(torch.arange(0, self.size, 2, device=ids.device) / self.size)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        rotations = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, rotations)
        return self.head(self.norm(x)[:, -1:])


def shape(device: torch.device, quick: bool) -> dict[str, Any]:
    """Return the shape: that of Llama 3.2 1B on a GPU, a narrow one on a CPU."""
    large = device.type == "cuda" and not quick
    return {
        "hidden_size": 2048 if large else 256,
        "intermediate_size": 8192 if large else 1024,
        "num_hidden_layers": 16 if large else 2 if quick else 12,
        "num_attention_heads": 32 if large else 4,
        "num_key_value_heads": 8 if large else 2,
        "vocab_size": 128_256 if large else 1_000,
        "max_position_embeddings": 2**17,
    }


def about(device: torch.device, quick: bool) -> str:
    sizes = shape(device, quick)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    return (
        f"a Llama of {sizes['num_hidden_layers']} layers of {sizes['num_attention_heads']} heads on "
        f"{sizes['num_key_value_heads']} key heads, {dtype}; x is times the same model unwatched"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    theirs = _model("llama", shape(device, quick), "sdpa", device, dtype)
    with torch.device(device):
        own = OwnLlama(theirs.config).to(dtype).eval()
    lengths = (512, 8_192) if device.type == "cuda" and not quick else (512,)
    for length in lengths:
        ids = _text(length, device)
        runners: dict[str, Callable[[], object]] = {
            "transformers": partial(_read, theirs, ids),
            "transformers, watched": partial(_watched, theirs, ids),
            "transformers, and heads()": lambda ids=ids: _watched(theirs, ids).heads(),
            "own": partial(_read_own, own, ids),
            "own, watched": partial(_watched_own, own, ids),
            "own, and heads()": lambda ids=ids: _watched_own(own, ids).heads(),
        }
        rounds = 3 if quick else 21
        rows = race(f"llama, n = {length:,}", runners, device, rounds=rounds)
        for row in rows:
            plain = rows[3 if row.runner.startswith("own") else 0]
            known = row.ms is not None and plain.ms is not None
            yield replace(row, note=f"x {row.ms / plain.ms:.2f}") if known else row  # type: ignore[operator]


@torch.no_grad()
def _read_own(model: nn.Module, ids: Tensor) -> Tensor:
    return model(ids)


def _watched_own(model: nn.Module, ids: Tensor) -> ts.Recording:
    with ts.watch(model) as recording:
        _read_own(model, ids)
    return recording
