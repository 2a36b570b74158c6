"""watch: read a text with a model of transformers, or let it write: plainly, watched, and with
eager attention.

The weights are random, since nothing here depends on them. Times are of the whole model, memory is
beside its weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import telescope as ts

from .measure import Row, once, race

MAKE = {
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config"),
    "llama": ("LlamaForCausalLM", "LlamaConfig"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
    "minilm": ("BertModel", "BertConfig"),
}


def qwen2(quick: bool) -> dict[str, Any]:
    """Return the shape of the 1.5B model: 28 layers of 12 heads on 2 key heads, of 128 features
    each.
    """
    small = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    large = {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "vocab_size": 151_936,
    }
    heads = {"num_attention_heads": 2 if quick else 12, "num_key_value_heads": 1 if quick else 2}
    return (
        (small if quick else large)
        | heads
        | {"max_position_embeddings": 2**21, "tie_word_embeddings": True}
    )


def llama(quick: bool) -> dict[str, Any]:
    """Return the shape of the 8B model: 32 layers of 32 heads on 8 key heads, of 128 features
    each.
    """
    large = {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "vocab_size": 128_256,
    }
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 2**17}
    return qwen2(True) if quick else large | heads


def gpt2(quick: bool) -> dict[str, Any]:
    size = (
        {"n_embd": 64, "n_layer": 2, "n_head": 2}
        if quick
        else {"n_embd": 768, "n_layer": 12, "n_head": 12}
    )
    return {"vocab_size": 500 if quick else 50_257, "n_positions": 4_096, **size}


def minilm(quick: bool) -> dict[str, Any]:
    size = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1_536,
    }
    few = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    return {
        "vocab_size": 500 if quick else 30_522,
        "max_position_embeddings": 4_096,
        **(few if quick else size),
    }


def about(device: torch.device, quick: bool) -> str:
    small = ", small models" if quick else ""
    if device.type == "cuda":
        return (
            f"Qwen2 1.5B's shape, bfloat16, a text read at once{small}; x is times plain sdpa "
            "of the same run"
        )
    return f"a text read at once, float32{small}; x is times plain sdpa of the same run"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type == "cuda":
        for length in (512,) if quick else (512, 2_048):
            yield from _compiled("qwen2", qwen2(quick), length, device, torch.bfloat16)
        for length in (512, 1_024) if quick else (512, 2_048, 8_192, 32_768):
            yield from _compared("qwen2", qwen2(quick), length, device, torch.bfloat16)
        for name, options, prompts in (
            ("qwen2", qwen2(quick), (1_024, 8_192)),
            ("llama", llama(quick), (1_024, 8_192)),
        ):
            for prompt in (64,) if quick else prompts:
                yield from _written_compiled(name, options, prompt, 64, device, torch.bfloat16)
                yield from _written(name, options, prompt, 64, device, torch.bfloat16)
        if not quick:
            yield from _largest(device)
        return
    length = 256 if quick else 4_096
    for name, options in (("minilm", minilm(quick)), ("gpt2", gpt2(quick))):
        yield from _compared(name, options, length, device, torch.float32)
        yield from _sizes(name, options, length, device)
    yield from _compared("gpt2", gpt2(quick), 128 if quick else 512, device, torch.float32)
    yield from _written(
        "gpt2", gpt2(quick), 16 if quick else 512, 16 if quick else 64, device, torch.float32
    )
    yield from _sizes_while_writing(gpt2(True), 200 if quick else 2_000, device)


def _compared(
    name: str, options: dict[str, Any], length: int, device: torch.device, dtype: torch.dtype
) -> list[Row]:
    models = {how: _model(name, options, how, device, dtype) for how in ("sdpa", "eager")}
    ids = _text(length, device)
    plain = partial(_read, models["sdpa"], ids)
    runners: dict[str, Callable[[], object]] = {
        "sdpa": plain,
        "watched, top=0": partial(_watched, models["sdpa"], ids, top=0),
        "watched, top=8": partial(_watched, models["sdpa"], ids),
    }
    if device.type == "cuda":
        runners["watched, top=8, in ram"] = partial(_watched, models["sdpa"], ids, store="ram")
    runners["watched, queries-keys"] = partial(_watched, models["sdpa"], ids, keep="queries-keys")
    runners["eager, layer by layer"] = partial(_eager, models["eager"], ids)
    runners["eager, all at once"] = partial(_read, models["eager"], ids, output_attentions=True)
    case = f"{name}, n = {length:,}"
    rounds = 3 if device.type == "cpu" else 11
    rows = race(case, runners, device, rounds=rounds)
    heads = {"heads() of the top=8": _watched(models["sdpa"], ids).heads}
    if device.type == "cuda":
        heads["heads() of those in ram"] = _watched(models["sdpa"], ids, store="ram").heads
    rows += race(case, heads, device, rounds=rounds)
    return [_beside(row, rows[0]) for row in rows]


def _compiled(
    name: str, options: dict[str, Any], length: int, device: torch.device, dtype: torch.dtype
) -> list[Row]:
    """Read a text with a compiled model."""
    model = _model(name, options, "sdpa", device, dtype)
    code = torch.compile(model)
    ids = _text(length, device)
    runners: dict[str, Callable[[], object]] = {
        "compiled": partial(_read, code, ids),
        "compiled, watched, top=8": partial(_watched, code, ids),
        "the same, and heads()": lambda: _watched(code, ids).heads(),
        "not compiled": partial(_read, model, ids),
    }
    rows = race(f"{name}, n = {length:,}", runners, device, rounds=11)
    return [_beside(row, rows[0]) for row in rows]


def _written_compiled(
    name: str,
    options: dict[str, Any],
    prompt: int,
    count: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[Row]:
    """Let a model write `count` tokens after a prompt, over a cache of fixed size, for which
    transformers compiles the model by itself.
    """
    model = _model(name, options, "sdpa", device, dtype)
    ids = _text(prompt, device)
    static = {"cache_implementation": "static"}
    runners: dict[str, Callable[[], object]] = {
        "compiled": partial(_write, model, ids, count, **static),
        "compiled, watched, top=0": partial(_watched_writing, model, ids, count, top=0, **static),
        "compiled, watched, top=8": partial(_watched_writing, model, ids, count, **static),
        "the same, and heads()": lambda: _watched_writing(model, ids, count, **static).heads(),
        "not compiled": partial(_write, model, ids, count),
    }
    rows = race(f"{name}, {count} after {prompt:,}", runners, device, rounds=5)
    return [_beside(row, rows[0]) for row in rows]


def _written(
    name: str,
    options: dict[str, Any],
    prompt: int,
    count: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[Row]:
    """Let a model write `count` tokens after a prompt."""
    models = {how: _model(name, options, how, device, dtype) for how in ("sdpa", "eager")}
    ids = _text(prompt, device)
    runners: dict[str, Callable[[], object]] = {
        "sdpa": partial(_write, models["sdpa"], ids, count),
        "watched, top=0": partial(_watched_writing, models["sdpa"], ids, count, top=0),
        "watched, top=8": partial(_watched_writing, models["sdpa"], ids, count),
        "eager, all weights kept": partial(
            _write,
            models["eager"],
            ids,
            count,
            output_attentions=True,
            return_dict_in_generate=True,
        ),
    }
    rows = race(
        f"{name}, {count} after {prompt:,}",
        runners,
        device,
        rounds=3 if device.type == "cpu" else 5,
    )
    return [_beside(row, rows[0]) for row in rows]


def _sizes_while_writing(
    options: dict[str, Any], longest: int, device: torch.device
) -> Iterator[Row]:
    """Yield the bytes of the recording of a model that writes, at three lengths: they grow
    linearly.
    """
    model = _model("gpt2", options, "sdpa", device, torch.float32)
    for count in (longest // 4, longest // 2, longest):
        recording = _watched_writing(model, _text(8, device), count)
        yield Row(
            f"small gpt2, {count:,} after 8", "recording, top=8", mib=recording.nbytes / 2**20
        )


def _sizes(name: str, options: dict[str, Any], longest: int, device: torch.device) -> Iterator[Row]:
    """Yield the bytes of a recording at three lengths: they grow linearly."""
    model = _model(name, options, "sdpa", device, torch.float32)
    for length in (longest // 4, longest // 2, longest):
        recording = _watched(model, _text(length, device))
        yield Row(f"{name}, n = {length:,}", "recording, top=8", mib=recording.nbytes / 2**20)


def _largest(device: torch.device) -> Iterator[Row]:
    """Find the longest text that fits, watched with top=8: doubled until memory or positions run
    out.
    """
    model = _model("qwen2", qwen2(False), "sdpa", device, torch.bfloat16)
    length = 65_536
    while length <= model.config.max_position_embeddings:
        case = f"qwen2, n = {length:,}"
        ids = _text(length, device)
        row = once(
            case, "watched, top=8, in ram", partial(_watched, model, ids, store="ram"), device
        )
        yield row
        if row.ms is None:
            yield once(
                case, "sdpa", partial(_read, model, ids), device
            )  # whether the model fits unwatched
            return
        length *= 2


def _model(
    name: str, options: dict[str, Any], how: str, device: torch.device, dtype: torch.dtype
) -> Any:
    import transformers

    kind, config = (getattr(transformers, part) for part in MAKE[name])
    torch.manual_seed(0)
    with torch.device(device):
        model = kind(config(**options)).to(dtype).eval()
    model.set_attn_implementation(how)
    return model


def _text(length: int, device: torch.device) -> Tensor:
    return torch.randint(
        1, 400, (1, length), device=device, generator=torch.Generator(device).manual_seed(0)
    )


@torch.no_grad()
def _read(model: Any, ids: Tensor, **options: Any) -> Any:
    last = {"logits_to_keep": 1, "use_cache": False} if hasattr(model, "lm_head") else {}
    return model(ids, **last, **options)


def _watched(model: Any, ids: Tensor, **options: Any) -> ts.Recording:
    with ts.watch(model, **options) as recording:
        _read(model, ids)
    return recording


@torch.no_grad()
def _write(model: Any, ids: Tensor, count: int, **options: Any) -> Any:
    lengths = {"max_new_tokens": count, "min_new_tokens": count}
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        pad_token_id=0,
        **lengths,
        **options,
    )


def _watched_writing(
    model: Any, ids: Tensor, count: int, *, top: int = 8, **options: Any
) -> ts.Recording:
    with ts.watch(model, top=top) as recording:
        _write(model, ids, count, **options)
    return recording


def _eager(model: Any, ids: Tensor) -> list[Tensor]:
    """Compute the same numbers from eager's own weights, which are freed layer by layer."""
    kept: list[Tensor] = []

    def look(module: Any, args: Any, output: Any) -> Any:
        weights = output[1].float()
        kept.extend([weights.sum(-2), -torch.xlogy(weights, weights).sum(-1), *weights.topk(8)])
        return (output[0], None)

    ends = (".self_attn", ".attn", ".attention.self")
    hooks = [
        part.register_forward_hook(look)
        for path, part in model.named_modules()
        if path.endswith(ends)
    ]
    try:
        _read(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def _beside(row: Row, plain: Row) -> Row:
    if row.ms is None or plain.ms is None:
        return row
    return replace(row, note=f"{row.ms / plain.ms:.2f} x")
