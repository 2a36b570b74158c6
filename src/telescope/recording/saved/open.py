"""Opening a recording: what it says is checked at once, and numbers are read when they are asked for."""

import os
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...attention import Attention
from ...files import paths, safetensors
from ...files.definitions import meant
from ...files.errors import LoadError
from ...files.safetensors import BYTES, header
from ..kept import KEEP, Call
from ..recording import Recording
from ..storage import StoredTensor
from .manifest import FILE, KIND, VERSION, facts_of_json, must_be_told_right


class FileTensor(StoredTensor):
    """Numbers in a file, read when they are asked for, and then compared with their checksum, where there is one."""

    def __init__(
        self, file: Path, name: str, kind: str, shape: tuple[int, ...], checksum: int | None, keys: int
    ) -> None:
        self.file, self.name, self.kind, self.size, self.checksum = file, name, kind, shape, checksum
        self.keys = keys
        """How many there are, which is what a tensor of keys may name."""

    @property
    def tensor(self) -> Shaped[Tensor, "..."]:
        return self._read

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    @property
    def nbytes(self) -> int:
        return prod(self.size) * BYTES[self.kind]

    @cached_property
    def _read(self) -> Tensor:
        numbers = _read(self.file, self.name, self.checksum)
        if self.name == "top_keys" and numbers.numel() and not (numbers.min() >= -1 and numbers.max() < self.keys):
            raise LoadError(f'{self.file}: tensor "top_keys" names keys beyond the {self.keys:,} that there are')
        return numbers


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """recording.save("run.telescope"), then ts.open("run.telescope"). A LoadError says what is wrong with it."""
    folder = paths.existing(path)
    if not paths.is_folder(folder) or FILE not in paths.names(folder):
        raise LoadError(f"{folder} is no recording: it is no folder with a {FILE}")
    said, where = paths.read_json(_inside(folder, FILE)), str(folder / FILE)
    if said.get("is") != KIND:
        raise LoadError(f'{where} is not of a recording: it says it is {said.get("is")!r}, and "{KIND}" would be right')
    if said.get("version") != VERSION:
        raise LoadError(
            f"{where} is of version {said.get('version')!r}, and this Telescope reads version {VERSION}; "
            "open it with the one that wrote it"
        )
    if "crc32" in said and said["crc32"] != safetensors.of_manifest(said):
        raise LoadError(f"{where} is not what was saved, by its checksum: it was damaged, or changed by hand")
    match said:
        case {"model": str(model), "keep": str(keep), "tokens": dict(texts), "attentions": [*attentions]} if (
            keep in KEEP and all(isinstance(text, str) for text in texts.values())
        ):
            pass
        case _:
            raise LoadError(f"{where} lacks its model, keep, tokens or attentions, or they are of another kind")
    calls = dict(_calls(folder, keep, attention, where) for attention in attentions)
    if len(calls) < len(attentions):
        raise LoadError(f"{where} has two attentions of one name")
    decode = (lambda ids: "".join(texts.get(str(token), "") for token in ids)) if texts else None
    special = said.get("special", {})  # older ones have none
    if not isinstance(special, dict) or not all(isinstance(name, str) for name in special.values()):
        raise LoadError(f'{where}: "special" is not a name for each id')
    recording = Recording(model, list(calls), keep, decode=decode, token_name=lambda token: special.get(str(token)))
    for name, of_name in calls.items():
        recording[name].calls.extend(of_name)
    return recording


def _calls(folder: Path, keep: str, said: Any, where: str) -> tuple[str, list[Call]]:
    match said:
        case {"name": str(name), "calls": [*calls]}:
            return name, [_call(folder, keep, name, call, f'{where}: "{name}"') for call in calls]
    raise LoadError(f"{where} has an attention without a name or calls: {str(said)[:80]}")


def _call(folder: Path, keep: str, name: str, said: Any, where: str) -> Call:
    file = said.get("file") if isinstance(said, dict) else None
    if not isinstance(file, str) or {"/", "\\", "\0"} & set(file) or not file.endswith(".safetensors"):
        raise LoadError(f"{where} names {file!r}, which is no safetensors file in the same folder")
    described = header(_inside(folder, file))
    sums = _checksums(said.get("crc32"), where)
    tensors = {it: _read(folder / file, it, sums.get(it)) for it in described if it.startswith("attention.")}
    attention = meant(said.get("attention"), tensors, where)
    if not isinstance(attention, Attention):
        raise LoadError(f"{where} has no definition")
    facts = facts_of_json(name, said, attention, where)
    must_be_told_right(keep, facts, described, str(folder / file))
    if sums and (differ := sorted(sums.keys() ^ described.keys())):
        raise LoadError(f'{where} has a checksum or {file} a tensor "{differ[0]}", and not both')
    parts = {
        it: FileTensor(folder / file, it, kind, shape, sums.get(it), facts.size[1])
        for it, (kind, shape) in described.items()
        if not it.startswith("attention.")
    }
    return KEEP[keep].opened(facts, parts)


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; a link may not lead out of it, to what its reader can read and its maker cannot."""
    file = paths.existing(folder / name)
    if file.resolve().parent != folder.resolve():
        raise LoadError(f"{file} is a link to {file.resolve()}, out of the recording; a recording holds its own files")
    return file


def _checksums(said: Any, where: str) -> dict[str, int]:
    """Of every tensor of a file; recordings of earlier versions have none."""
    if said is None:
        return {}
    if not isinstance(said, dict) or not said or not all(type(it) is int for it in said.values()):
        raise LoadError(f"{where} has checksums that are no numbers: {str(said)[:80]}")
    return said


def _read(file: Path, name: str, checksum: int | None) -> Tensor:
    try:
        with safe_open(file, "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
    except (SafetensorError, OSError) as problem:
        raise LoadError(f'{file}: tensor "{name}" cannot be read: {problem}') from None
    if checksum not in (None, safetensors.of_tensor(tensor)):
        raise LoadError(
            f'{file}: tensor "{name}" is not what was saved, by its checksum: the file was damaged or changed'
        )
    return tensor
