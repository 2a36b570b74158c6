"""Open a saved recording: check its description at once, and read each tensor on first use."""

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import nan, prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..attention import Attention
from ..files import BYTES, LoadError, from_json, paths, read_header, safetensors
from ..measures import SUMS
from ..token_kinds import TokenKind
from .call_tokens import kinds_from_json
from .edits import edits_from_json
from .recorded_call import RecordedCall
from .recording import KEEP, Recording
from .saving import (
    FILE,
    KIND,
    VERSION,
    check_tensors,
    facts_from_json,
    sums_from_json,
)
from .storage import StoredTensor
from .token_texts import TokenTexts


class FileTensor(StoredTensor):
    """A tensor in a safetensors file, read on first use and compared with its checksum, if the
    recording has one.
    """

    def __init__(
        self,
        file: Path,
        name: str,
        kind: str,
        shape: tuple[int, ...],
        checksum: int | None,
        keys: int,
        sums: list[str],
    ) -> None:
        self.file = file
        self.name = name
        self.kind = kind
        self.size = shape
        self.checksum = checksum
        self.keys = keys
        """How many keys the call has: the limit of the numbers in "top_keys"."""
        self.sums = sums
        """The names along the last axis of "shares" in the file."""

    @property
    def tensor(self) -> Shaped[Tensor, "..."]:
        return self._read

    @property
    def shape(self) -> tuple[int, ...]:
        # The file has the sums of the version that saved it, and the tensor those of today.
        return (*self.size[:-1], len(SUMS)) if self.name == "shares" else self.size

    @property
    def nbytes(self) -> int:
        return prod(self.size) * BYTES[self.kind]

    @cached_property
    def _read(self) -> Tensor:
        numbers = _read(self.file, self.name, self.checksum)
        # A key beyond the last would be an index error far from here.
        if (
            self.name == "top_keys"
            and numbers.numel()
            and not (numbers.min() >= -1 and numbers.max() < self.keys)
        ):
            raise LoadError(
                f'{self.file}: tensor "top_keys" names keys beyond the {self.keys:,} that there are'
            )
        # Reorder the sums by name: another version may know more of them, or fewer.
        if self.name != "shares" or self.sums == [*SUMS]:
            return numbers
        unknown = numbers.new_full(numbers.shape[:-1], nan)
        found = dict(zip(self.sums, numbers.unbind(-1), strict=True))
        return torch.stack([found.get(name, unknown) for name in SUMS], -1)


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording that `Recording.save` wrote; see `ts.open`. Raise a LoadError if that is not
    possible.
    """
    folder = paths.check_exists(path)
    if not paths.is_folder(folder) or FILE not in paths.list_names(folder):
        raise LoadError(f"{folder} is no recording: it is no folder with a {FILE}")
    # Check kind, version and checksum before anything else is believed.
    manifest = paths.read_json(_inside(folder, FILE))
    where = str(folder / FILE)
    if manifest.get("is") != KIND:
        raise LoadError(
            f'{where} is not of a recording: its "is" is {manifest.get("is")!r}, and "{KIND}" '
            "would be right"
        )
    if manifest.get("version") != VERSION:
        raise LoadError(
            f"{where} is of version {manifest.get('version')!r}, and this Telescope reads version "
            f"{VERSION}; "
            "open it with the version that wrote it"
        )
    if "crc32" in manifest and manifest["crc32"] != safetensors.manifest_checksum(manifest):
        raise LoadError(f"{where} does not match its checksum: it was damaged, or changed by hand")

    # Check the fields that every recording has.
    match manifest:
        case {
            "model": str(model),
            "keep": str(keep),
            "tokens": dict(),
            "attentions": [*attentions],
        } if keep in KEEP:
            texts = TokenTexts.from_json(manifest, where)
        case _:
            raise LoadError(
                f"{where} lacks its model, keep, tokens or attentions, or they are of another kind"
            )

    # Describe each call; the tensors stay in their files until they are read.
    kinds = kinds_from_json(manifest.get("token_kinds", []), where)  # mostly there are none
    calls = dict(_calls(folder, keep, attention, kinds, where) for attention in attentions)
    if len(calls) < len(attentions):
        raise LoadError(f"{where} has two attentions of one name")
    _warn_of_unknown_sums(folder, calls)
    # Without texts of its own a recording cannot decode.
    decode = texts.decode if texts.alone else None
    special = manifest.get("special", {})  # older recordings have none
    if not isinstance(special, dict) or not all(isinstance(name, str) for name in special.values()):
        raise LoadError(f'{where}: "special" is not a name for each id')

    # Fill a recording as if it had just been made.
    recording = Recording(
        model, list(calls), keep, decode=decode, token_name=lambda token: special.get(str(token))
    )
    # Recordings without edits have no such key.
    recording.edits = edits_from_json(manifest.get("edits", []), where)
    for name, own in calls.items():
        recording[name].calls.extend(own)
    left_out = manifest.get("left_out", {})  # recordings of every attention have no such key
    if not isinstance(left_out, dict) or not all(
        isinstance(reason, str) for reason in left_out.values()
    ):
        raise LoadError(
            f'{where}: "left_out" is not a reason for each attention that was not watched'
        )
    for name, reason in left_out.items():
        recording._leave_out(name, reason)
    return recording


def _calls(
    folder: Path, keep: str, entry: Any, kinds: Sequence[TokenKind], where: str
) -> tuple[str, list[RecordedCall]]:
    """Return the name of an attention and its calls."""
    match entry:
        case {"name": str(name), "calls": [*calls]}:
            place = f'{where}: "{name}"'
            return name, [_call(folder, keep, name, call, kinds, place) for call in calls]
    raise LoadError(f"{where} has an attention without a name or calls: {str(entry)[:80]}")


def _call(
    folder: Path, keep: str, name: str, entry: Any, kinds: Sequence[TokenKind], where: str
) -> RecordedCall:
    """Return a call whose description and file headers were checked."""
    # A file's name must not lead out of the folder.
    file = entry.get("file") if isinstance(entry, dict) else None
    if (
        not isinstance(file, str)
        or {"/", "\\", "\0"} & set(file)
        or not file.endswith(".safetensors")
    ):
        raise LoadError(f"{where} names {file!r}, which is no safetensors file in the same folder")
    described = read_header(_inside(folder, file))
    sums = _checksums(entry.get("crc32"), where)
    # The definition's tensors are needed now; all others are read on first use.
    tensors = {
        part: _read(folder / file, part, sums.get(part))
        for part in described
        if part.startswith("attention.")
    }
    attention = from_json(entry.get("attention"), tensors, where)
    if not isinstance(attention, Attention):
        raise LoadError(f"{where} has no definition")
    facts = facts_from_json(name, entry, attention, where, kinds)
    names = sums_from_json(entry, where)
    check_tensors(keep, facts, described, len(names), str(folder / file))
    # A checksum without its tensor, or the reverse, is a sign of a changed file.
    if sums and (differ := sorted(sums.keys() ^ described.keys())):
        raise LoadError(f'{where} has a checksum or {file} a tensor "{differ[0]}", and not both')
    parts = {
        part: FileTensor(folder / file, part, kind, shape, sums.get(part), facts.size[1], names)
        for part, (kind, shape) in described.items()
        if not part.startswith("attention.")
    }
    return KEEP[keep]._opened(facts, parts)


def _warn_of_unknown_sums(folder: Path, calls: Mapping[str, list[RecordedCall]]) -> None:
    """Name the measures that a later version kept and this one does not know."""
    # Only recordings of summaries hold sums.
    stored = [
        call._kept["shares"] for own in calls.values() for call in own if "shares" in call._kept
    ]
    names = [name for part in stored if isinstance(part, FileTensor) for name in part.sums]
    if unknown := [name for name in dict.fromkeys(names) if name not in SUMS]:
        warnings.warn(
            f"{folder} was saved by a later version; left out, since unknown here: "
            f"{', '.join(unknown)}",
            stacklevel=4,
        )


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder; raise a LoadError for a link that leads out of the
    folder.

    Such a link could make the reader open a file that the recording's author cannot read.
    """
    file = paths.check_exists(folder / name)
    if file.resolve().parent != folder.resolve():
        raise LoadError(
            f"{file} is a link to {file.resolve()}, out of the recording; a recording holds its "
            "own files"
        )
    return file


def _checksums(checksums: Any, where: str) -> dict[str, int]:
    """Return the checksum of each tensor of a file; recordings of earlier versions have none."""
    # A recording of an earlier version is opened unchecked.
    if checksums is None:
        return {}
    if (
        not isinstance(checksums, dict)
        or not checksums
        # `type(...) is int` refuses True, which isinstance would accept.
        or not all(type(number) is int for number in checksums.values())
    ):
        raise LoadError(f"{where} has checksums that are no numbers: {str(checksums)[:80]}")
    return checksums


def _read(file: Path, name: str, checksum: int | None) -> Tensor:
    """Read a tensor; raise a LoadError if it cannot be read or does not match its checksum."""
    try:
        with safe_open(file, "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
    except (SafetensorError, OSError) as problem:
        raise LoadError(f'{file}: tensor "{name}" cannot be read: {problem}') from None
    if checksum not in (None, safetensors.tensor_checksum(tensor)):
        raise LoadError(
            f'{file}: tensor "{name}" does not match its checksum: the file was damaged or changed'
        )
    return tensor
