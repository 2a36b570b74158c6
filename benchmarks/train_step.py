"""train_step: one training step of GPT-2's shape, by Telescope and its peers, with the same data
and optimiser.

Peers: nanoGPT's architecture, written here from its description (one matrix for queries, keys and
values, torch's fused attention, exact GELU, tied head, cross entropy on whole logits, 50,304
words); a GPT out of torch.nn's encoder layers; Hugging Face's GPT2LMHeadModel.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import telescope as ts

from .measure import Row, race

WORDS = 50_257


@dataclass(frozen=True)
class Sizes:
    batch: int
    tokens: int
    d_model: int
    blocks: int
    heads: int
    words: int
    steps: int  # of one timing

    @property
    def padded_words(self) -> int:
        return self.words + -self.words % 64


def sizes(device: torch.device, quick: bool) -> Sizes:
    if device.type == "cuda":
        return (
            Sizes(4, 256, 256, 2, 4, WORDS, 2) if quick else Sizes(16, 1024, 768, 12, 12, WORDS, 10)
        )
    return Sizes(2, 32, 64, 2, 4, 1000, 1) if quick else Sizes(4, 256, 256, 4, 8, 8000, 1)


def about(device: torch.device, quick: bool) -> str:
    size = sizes(device, quick)
    how = (
        "bf16 autocast, torch.compile, fused AdamW"
        if device.type == "cuda"
        else "float32, not compiled, AdamW"
    )
    return (
        f"a training step: {size.blocks} blocks of {size.d_model}, {size.words:,} words, "
        f"batch {size.batch} x {size.tokens:,} tokens, {how}"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    size = sizes(device, quick)
    precision = torch.get_float32_matmul_precision()
    torch.manual_seed(0)
    text = torch.randint(size.words, (size.batch, size.tokens + 1), device=device)
    torch.set_float32_matmul_precision("high")
    runners = {
        name: trainer(make(size), text, size.steps) for name, make in MODELS.items() if _there(name)
    }
    rows = race(
        "GPT-2 124M" if size.d_model == 768 else "GPT", runners, device, rounds=3 if quick else 7
    )
    torch.set_float32_matmul_precision(precision)

    nano = next((row.ms for row in rows if row.runner == "nanoGPT"), None)
    for row in rows:
        if row.ms is None:
            yield row
            continue
        rate = size.steps * size.batch * size.tokens / row.ms
        than = f", {nano / row.ms:.2f} x nanoGPT" if nano else ""
        yield replace(row, ms=row.ms / size.steps, note=f"{rate:.1f} k tokens/s{than}")


def trainer(model: nn.Module, text: Tensor, steps: int) -> Callable[[], None]:
    """Return a function that runs `steps` steps on one text: forward, backward, AdamW; on a GPU
    compiled, in bf16.
    """
    on_gpu = text.is_cuda
    model = model.to(text.device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu
    )
    ids = text[:, :-1].contiguous()
    targets = text[:, 1:].contiguous()

    def loss() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu else nullcontext():
            return model.loss(ids, targets)

    loss = torch.compile(loss) if on_gpu else loss

    def train() -> None:
        for _ in range(steps):
            loss().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return train


# --------------------------------------------------------------------------------------------- ours


def ours(size: Sizes) -> nn.Module:
    return ts.models.GPT(
        ts.models.GPTConfig(
            vocabulary=size.words,
            max_positions=size.tokens,
            d_model=size.d_model,
            blocks=size.blocks,
            heads=size.heads,
        )
    )


# ------------------------------------------------------------------------------------------ nanoGPT


class NanoBlock(nn.Module):
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        d = size.d_model
        self.heads = size.heads
        self.ln_1 = nn.LayerNorm(d)
        self.ln_2 = nn.LayerNorm(d)
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.mlp_fc = nn.Linear(d, 4 * d)
        self.mlp_proj = nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(d, dim=2)
        q, k, v = (
            part.view(batch, tokens, self.heads, d // self.heads).transpose(1, 2)
            for part in (q, k, v)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, tokens, d))
        return x + self.mlp_proj(gelu(self.mlp_fc(self.ln_2(x))))


class Nano(nn.Module):
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        self.wte = nn.Embedding(size.padded_words, size.d_model)
        self.wpe = nn.Embedding(size.tokens, size.d_model)
        self.blocks = nn.ModuleList(NanoBlock(size) for _ in range(size.blocks))
        self.ln_f = nn.LayerNorm(size.d_model)
        self.lm_head = nn.Linear(size.d_model, size.padded_words, bias=False)
        self.apply(_small)
        self.lm_head.weight = self.wte.weight

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)


# ----------------------------------------------------------------------------------------- torch.nn


class TorchGPT(nn.Module):
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        d = size.d_model
        self.wte = nn.Embedding(size.padded_words, d)
        self.wpe = nn.Embedding(size.tokens, d)
        layer = nn.TransformerEncoderLayer(
            d, size.heads, 4 * d, 0.0, gelu, batch_first=True, norm_first=True
        )
        self.stack = nn.TransformerEncoder(
            layer, size.blocks, norm=nn.LayerNorm(d), enable_nested_tensor=False
        )
        self.apply(_small)
        mask = nn.Transformer.generate_square_subsequent_mask(size.tokens)
        self.register_buffer("mask", mask)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        logits = self.stack(x, mask=self.mask, is_causal=True) @ self.wte.weight.T
        return cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


# ------------------------------------------------------------------------------------- transformers


class HuggingFace(nn.Module):
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=size.words, n_positions=size.tokens, n_embd=size.d_model, n_layer=size.blocks, n_head=size.heads,
            activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=size.words - 1, eos_token_id=size.words - 1, loss_type="ForCausalLM",
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=ids, labels=targets, shift_labels=targets).loss
        return loss


MODELS: dict[str, Callable[[Sizes], nn.Module]] = {
    "telescope": ours,
    "nanoGPT": Nano,
    "torch.nn": TorchGPT,
    "transformers": HuggingFace,
}


def _there(name: str) -> bool:
    from importlib.util import find_spec

    return name != "transformers" or find_spec("transformers") is not None


def _small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
