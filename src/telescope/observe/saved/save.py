"""Saving a recording: whole or not at all."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...models.files.definitions import told
from ...models.files.errors import LoadError
from ...models.files.paths import read_json
from ...models.files.whole import write_json, written_whole
from ..kept import Call
from .manifest import FILE, KIND, VERSION, facts_to_json


def save_recording(
    path: str | os.PathLike[str],
    model: str,
    keep: str,
    decode: Callable[[list[int]], str] | None,
    watched: Mapping[str, Sequence[Call]],
) -> None:
    with written_whole(path, _must_be_ours) as folder:
        attentions: list[dict[str, Any]] = []
        number, ids = 0, set()
        for name, of_name in watched.items():
            calls = []
            for call in of_name:
                tensors: dict[str, Tensor] = {}
                said = {"attention": told(call.attention, tensors), **facts_to_json(call.facts)}
                tensors |= {part: it.tensor for part, it in call.parts.items()}
                ids |= {token for part in ("query_ids", "key_ids") if part in tensors for token in _ids(tensors[part])}
                file = f"{number}.safetensors"
                save_file({part: it.detach().cpu().contiguous() for part, it in tensors.items()}, folder / file)
                calls.append({"file": file, **said})
                number += 1
            attentions.append({"name": name, "calls": calls})
        texts = {} if decode is None else {str(token): decode([token]) for token in sorted(ids)}
        head = {"is": KIND, "version": VERSION, "model": model, "keep": keep}
        write_json(folder / FILE, {**head, "tokens": texts, "attentions": attentions})


def _ids(tensor: Tensor) -> list[int]:
    ids: list[int] = torch.unique(tensor).tolist()
    return ids


def _must_be_ours(place: Path) -> None:
    """A recording may take the place of a recording, and of nothing else."""
    if not place.exists():
        return
    try:
        there = sorted(os.listdir(place)) if place.is_dir() else None
        ours = there == [] or (there is not None and read_json(place / FILE).get("is") == KIND)
    except LoadError:
        ours = False
    if not ours:
        raise ValueError(f"{place} is there and is no recording, so it is left alone; save into a new folder")
