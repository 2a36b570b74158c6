"""Saving a recording: whole or not at all."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...files import safetensors
from ...files.atomic import resolved, write_json, written_whole
from ...files.definitions import told
from ...files.errors import LoadError
from ...files.paths import read_json
from ..kept import Call
from .manifest import FILE, KIND, VERSION, facts_to_json

OUR_FILES = re.compile(rf"{re.escape(FILE)}|\d+\.safetensors")


def save_recording(
    path: str | os.PathLike[str],
    model: str,
    keep: str,
    decode: Callable[[list[int]], str] | None,
    watched: Mapping[str, Sequence[Call]],
    token_name: Callable[[int], str | None] | None = None,
    *,
    replace: bool = False,
) -> None:
    with written_whole(path, lambda place: must_be_free(place, replace=replace)) as folder:
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
                tensors = {part: it.detach().cpu().contiguous() for part, it in tensors.items()}
                save_file(tensors, folder / file)
                sums = {part: safetensors.of_tensor(it) for part, it in tensors.items()}
                calls.append({"file": file, **said, "crc32": sums})
                number += 1
            attentions.append({"name": name, "calls": calls})
        texts = {} if decode is None else {str(token): decode([token]) for token in sorted(ids)}
        head = {"is": KIND, "version": VERSION, "model": model, "keep": keep}
        named = {token: token_name(int(token)) for token, text in texts.items() if not text} if token_name else {}
        special = {token: called for token, called in named.items() if called}
        manifest = {**head, "tokens": texts, "special": special, "attentions": attentions}
        write_json(folder / FILE, {**manifest, "crc32": safetensors.of_manifest(manifest)})


def must_be_free(
    path: str | os.PathLike[str], *, replace: bool = False, way: str = "save(..., replace=True) replaces it"
) -> None:
    """Raise a ValueError where a recording cannot be saved: a recording may take the place of a recording, if it is to
    `replace` it, and of nothing else. `way` is how the caller says so."""
    place = resolved(path)
    if not place.exists():
        return
    try:
        there = sorted(os.listdir(place)) if place.is_dir() else None
        said = read_json(place / FILE) if there else {}
        ours = there == [] or said.get("is") == KIND
    except LoadError:
        there, said, ours = None, {}, False
    if not ours:
        raise ValueError(f"{place} is there and is no recording, so it is left alone; save into a new folder")
    strange = [name for name in there or () if not OUR_FILES.fullmatch(name)]
    if strange:
        raise ValueError(f"{place} holds {strange[0]} beside a recording, which would be lost; save into a new folder")
    if there and not replace:
        raise ValueError(
            f"{place} holds a recording already, of {said.get('model')}, keep={said.get('keep')!r}, "
            f"so it is left alone; {way}"
        )


def _ids(tensor: Tensor) -> list[int]:
    ids: list[int] = torch.unique(tensor).tolist()
    return ids
