"""Save a recording to a folder, as a whole or not at all."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ...files import safetensors
from ...files.atomic import atomic_folder, resolve_path, write_json
from ...files.definitions import to_json
from ...files.errors import LoadError
from ...files.paths import read_json
from ..edits import edits_to_json
from ..recorded_call import RecordedCall
from .manifest import FILE, KIND, VERSION, facts_to_json
from .token_texts import TokenTexts, learn_texts

OUR_FILES = re.compile(rf"{re.escape(FILE)}|\d+\.safetensors")


def save_recording(
    path: str | os.PathLike[str],
    model: str,
    keep: str,
    decode: Callable[[list[int]], str] | None,
    watched: Mapping[str, Sequence[RecordedCall]],
    token_name: Callable[[int], str | None] | None = None,
    *,
    edits: tuple[Any, ...] = (),
    left_out: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Write recording.json and a safetensors file for each call; see `Recording.save`.

    A tokenizer cannot be saved: see `learn_texts` for what is saved of `decode`. `token_name` is
    called once for each token without a text. `left_out` has the reason for each attention that was
    not watched.
    """
    with atomic_folder(path, lambda place: check_can_save(place, replace=replace)) as folder:
        attentions: list[dict[str, Any]] = []
        number = 0
        sequences: dict[
            bytes, Tensor
        ] = {}  # each sequence of token ids once: most layers read the same
        for name, recorded in watched.items():
            calls = []
            for call in recorded:
                tensors: dict[str, Tensor] = {}
                entry = {
                    "attention": to_json(call.saved_attention(), tensors),
                    **facts_to_json(call.facts),
                }
                tensors |= {part: stored.tensor for part, stored in call.parts.items()}
                file = f"{number}.safetensors"
                tensors = {
                    part: tensor.detach().cpu().contiguous() for part, tensor in tensors.items()
                }
                for part in ("query_ids", "key_ids"):
                    for row in tensors.get(part, ()):
                        sequences[row.numpy().tobytes()] = row
                save_file(tensors, folder / file)
                sums = {
                    part: safetensors.tensor_checksum(tensor) for part, tensor in tensors.items()
                }
                calls.append({"file": file, **entry, "crc32": sums})
                number += 1
            attentions.append({"name": name, "calls": calls})
        read = [] if decode is None else [row.tolist() for row in sequences.values()]
        texts = TokenTexts({}, {}, {}) if decode is None else learn_texts(decode, read)
        head = {"is": KIND, "version": VERSION, "model": model, "keep": keep}
        textless = [token for token, text in sorted(texts.alone.items()) if not text]
        named = {} if token_name is None else {str(token): token_name(token) for token in textless}
        special = {token: label for token, label in named.items() if label}
        changed = {"edits": edits_to_json(edits)} if edits else {}
        missing = {"left_out": dict(left_out)} if left_out else {}
        manifest = {
            **head,
            **texts.to_json(),
            "special": special,
            **changed,
            **missing,
            "attentions": attentions,
        }
        write_json(folder / FILE, {**manifest, "crc32": safetensors.manifest_checksum(manifest)})


def check_can_save(
    path: str | os.PathLike[str],
    *,
    replace: bool = False,
    way: str = "save(..., replace=True) replaces it",
) -> None:
    """Raise a ValueError if a recording cannot be saved to this path.

    A recording may replace a recording, if `replace` is True, and nothing else. `way` tells the
    user how to set `replace`.
    """
    place = resolve_path(path)
    if not place.exists():
        return
    try:
        files = sorted(os.listdir(place)) if place.is_dir() else None
        manifest = read_json(place / FILE) if files else {}
        ours = files == [] or manifest.get("is") == KIND
    except LoadError:
        files = None
        manifest = {}
        ours = False
    if not ours:
        raise ValueError(
            f"{place} exists and is no recording, so it is left alone; save into a new folder"
        )
    strange = [name for name in files or () if not OUR_FILES.fullmatch(name)]
    if strange:
        raise ValueError(
            f"{place} holds {strange[0]} beside a recording, which would be lost; save into a new "
            "folder"
        )
    if files and not replace:
        raise ValueError(
            f"{place} holds a recording already, of {manifest.get('model')}, "
            f"keep={manifest.get('keep')!r}, "
            f"so it is left alone; {way}"
        )
