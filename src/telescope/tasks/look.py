"""`telescope watch`: a model in a folder reads a text, and every head of it is looked at."""

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from .. import decoding
from ..files import paths
from ..models import GPT, Encoder, Model, Transformer, load
from ..models.saved.load import found, read_tokenizer
from ..recording.recording import Recording
from ..watch.watch import watch

Progress = Callable[[str, int, int], object]  # what is done, how much of it, of how much


class WatchedText(NamedTuple):
    """A model that has read a text."""

    recording: Recording
    tokens: int
    written: str


def look(
    folder: Path,
    text: str,
    *,
    layers: str | int | None = None,
    keep: str = "summaries",
    store: str = "device",
    tokens: int | None = None,
    write: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> WatchedText:
    """Read the text, at most so many tokens of it, and go on with `write` more."""
    model, tokenizer = opened(folder)
    model = (model.float() if device == "cpu" else model).to(device).eval()  # a CPU computes in float32
    ids = torch.tensor([tokenizer.encode(text).ids[:tokens]], device=device)
    if not ids.numel():
        raise ValueError("the text has no tokens; a model needs at least one")
    with torch.no_grad(), watch(model, layers=layers, keep=keep, store=store, tokenizer=tokenizer) as recording:
        count = {"done": 0}

        def each(name: str) -> None:
            count["done"] += 1
            if progress is not None:
                progress(name, count["done"], len(recording) * max(1, write))

        recording.each = each
        written = _read(model, ids, write)
    recording.each = None
    return WatchedText(recording, ids.shape[1], tokenizer.decode(written) if written else "")


def opened(folder: Path) -> tuple[nn.Module, Tokenizer]:
    """A model of ours, or one of transformers where that is installed; and its tokenizer."""
    folder = found(folder)
    config = paths.read_json(folder / "config.json")
    if "tokenizer.json" not in paths.names(folder):
        raise ValueError(f"{folder} has no tokenizer.json, so it cannot read a text")
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if "telescope" in config or find_spec("transformers") is None:
        return load(folder), tokenizer
    transformers: Any = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()  # there is one of ours
    kinds = config.get("architectures") or ["AutoModel"]
    kind = getattr(transformers, str(kinds[0]), transformers.AutoModel)
    try:
        model: nn.Module = kind.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().split("\n")[0]
        raise ValueError(f"{folder} cannot be opened by transformers: {reason}") from None
    return model, tokenizer


def _read(model: Any, ids: Tensor, write: int) -> list[int]:
    """Read, and write if asked to; a translator always writes."""
    if isinstance(model, Model):
        if isinstance(model, Transformer) or write:
            options = {"max_new_tokens": write or 32, "temperature": 0.0}
            (line,) = decoding.generate(model, ids, **options)  # type: ignore[arg-type]
            return line.ids
        if not isinstance(model, GPT | Encoder):
            raise ValueError(f"{type(model).__name__} reads no text by itself")
        model(ids)
        return []
    translates = bool(model.config.is_encoder_decoder)
    if write or translates:
        mask = torch.ones_like(ids)
        written = model.generate(ids, attention_mask=mask, max_new_tokens=write or 32, do_sample=False)
        rest: list[int] = written[0, 0 if translates else ids.shape[1] :].tolist()
        return rest
    model(ids)
    return []


def to_json(reading: WatchedText) -> str:
    heads = {"model": reading.recording.model, "tokens": reading.tokens, "heads": reading.recording.heads().to_dict()}
    return json.dumps(heads, ensure_ascii=False, allow_nan=False, indent=1)
