"""`telescope watch`: run a model of a folder on a text, and record every attention."""

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
from ..files import panics_as_errors, paths
from ..interception import watch
from ..models import (
    GPT,
    Encoder,
    Model,
    Transformer,
    check_device,
    find_model,
    load,
    read_tokenizer,
)
from ..recording import Recording

# Called with the attention's name, how many are done, and of how many.
Progress = Callable[[str, int, int], object]


class WatchedText(NamedTuple):
    """The recording of a model that read a text, the number of tokens it read, and the text it
    wrote, if any.
    """

    recording: Recording
    tokens: int
    written: str


def watch_text(
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
    """Record every attention while the model of a folder reads a text, and writes `write` more
    tokens.

    layers, keep, store  see `watch`
    tokens               read at most this many tokens of the text
    progress             called after each attention

    Raises ValueError for a device that is not here, a folder without a tokenizer, and a text
    without tokens.
    """
    place = check_device(device)
    model, tokenizer = open_model(folder)
    # On a CPU, compute in float32.
    model = (model.float() if place.type == "cpu" else model).to(place).eval()
    with panics_as_errors("the tokenizer fails"):
        ids = torch.tensor([tokenizer.encode(text).ids[:tokens]], device=place)
    if not ids.numel():
        raise ValueError("the text has no tokens; a model needs at least one")
    with (
        torch.no_grad(),
        watch(model, layers=layers, keep=keep, store=store, tokenizer=tokenizer) as recording,
    ):
        done = 0

        def count_attention(name: str) -> None:
            nonlocal done
            done += 1
            # Each written token calls every attention once more.
            if progress is not None:
                progress(name, done, len(recording) * max(1, write))

        recording.on_call = count_attention
        written = _run(model, ids, write)
    # The recording outlives this run, to which the callback belongs.
    recording.on_call = None
    return WatchedText(recording, ids.shape[1], tokenizer.decode(written) if written else "")


def open_model(folder: Path) -> tuple[nn.Module, Tokenizer]:
    """Load the model and the tokenizer of a folder: by Telescope, or by transformers where that is
    installed.

    A folder that Telescope saved is always loaded by Telescope.
    """
    folder = find_model(folder)
    config = paths.read_json(folder / "config.json")
    if "tokenizer.json" not in paths.list_names(folder):
        raise ValueError(f"{folder} has no tokenizer.json, so it cannot read a text")
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    # The text is recorded as it is, neither padded nor cut.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if "telescope" in config or find_spec("transformers") is None:
        return load(folder), tokenizer
    transformers: Any = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()  # the command shows its own
    # The class that the config names; AutoModel where transformers has no such class.
    architectures = config.get("architectures") or ["AutoModel"]
    model_class = getattr(transformers, str(architectures[0]), transformers.AutoModel)
    try:
        model: nn.Module = model_class.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().split("\n")[0]
        raise ValueError(f"{folder} cannot be opened by transformers: {reason}") from None
    return model, tokenizer


def _run(model: Any, ids: Tensor, write: int) -> list[int]:
    """Run the model on token ids and return the ids it wrote: `write` of them; 32 for an
    encoder-decoder and 0.
    """
    if isinstance(model, Model):
        # A translator always writes, other models only if they are asked to.
        if isinstance(model, Transformer) or write:
            options = {"max_new_tokens": write or 32, "temperature": 0.0}
            (line,) = decoding.generate(model, ids, **options)  # type: ignore[arg-type]
            return line.ids
        if not isinstance(model, GPT | Encoder):
            raise ValueError(
                f"a {type(model).__name__} reads no text by itself; a Transformer, GPT or Encoder "
                "does"
            )
        model(ids)
        return []
    # A model of transformers writes by its own `generate`.
    encoder_decoder = bool(model.config.is_encoder_decoder)
    if write or encoder_decoder:
        # One text has no padding to be masked.
        mask = torch.ones_like(ids)
        written = model.generate(
            ids, attention_mask=mask, max_new_tokens=write or 32, do_sample=False
        )
        # An encoder-decoder returns what it wrote alone; others repeat the prompt before it.
        new_ids: list[int] = written[0, 0 if encoder_decoder else ids.shape[1] :].tolist()
        return new_ids
    model(ids)
    return []


def to_json(watched: WatchedText) -> str:
    """Return the statistics of every head as JSON."""
    heads = {
        "model": watched.recording.model,
        "tokens": watched.tokens,
        "heads": watched.recording.heads().to_dict(),
    }
    return json.dumps(heads, ensure_ascii=False, allow_nan=False, indent=1)
