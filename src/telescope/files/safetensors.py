"""Tensors in safetensors files, one or several: what the headers say is checked before a number is read."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from . import paths
from .errors import LoadError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100_000_000  # as the safetensors library has it

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
BYTES |= {f"{kind}{bits}": bits // 8 for kind in "IU" for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Entry:
    """One tensor as a header tells of it."""

    file: Path
    name: str
    kind: str  # F32, BF16, I64, ...
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        if self.kind not in DTYPES:
            raise LoadError(
                f'{self.file}: tensor "{self.name}" is {self.kind}; weights are {", ".join(DTYPES)}, '
                "and quantised ones have to be turned back into those first"
            )
        return DTYPES[self.kind]


class Tensors(Mapping[str, Entry]):
    """What lies in the files, by name; `opened` gives the numbers."""

    def __init__(self, source: Path, entries: dict[str, Entry]) -> None:
        self.source = source  # the file that names them all
        self._entries = entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def called(self, rename: Callable[[str], str]) -> "Tensors":
        """The same under other names."""
        renamed: dict[str, Entry] = {}
        for name, entry in self.items():
            if (other := renamed.setdefault(rename(name), entry)) is not entry:
                raise LoadError(f'{entry.file}: tensors "{other.name}" and "{name}" are two names of one and the same')
        return Tensors(self.source, renamed)

    @contextmanager
    def opened(self) -> Iterator[Callable[[str], Tensor]]:
        """A function from a name to its numbers, while the files are open."""
        with ExitStack() as stack:

            @cache
            def numbers(file: Path) -> Any:
                return stack.enter_context(safe_open(file, "pt"))

            def read(name: str) -> Tensor:
                file = self[name].file
                try:
                    tensor: Tensor = numbers(file).get_tensor(self[name].name)
                except (SafetensorError, OSError) as error:
                    raise LoadError(f'{file}: tensor "{name}" cannot be read: {error}') from None
                return tensor

            yield read


class InMemory(Tensors):
    """Tensors that a file of another format held."""

    def __init__(self, source: Path, tensors: dict[str, Tensor]) -> None:
        kinds = {dtype: kind for kind, dtype in DTYPES.items()}
        entries = {name: Entry(source, name, kinds[it.dtype], tuple(it.shape)) for name, it in tensors.items()}
        super().__init__(source, entries)
        self._tensors = tensors

    @contextmanager
    def opened(self) -> Iterator[Callable[[str], Tensor]]:
        yield self._tensors.__getitem__


def in_folder(folder: Path) -> Tensors:
    """Of model.safetensors or, where a model is in several files, of all that its index names."""
    there = paths.names(folder)
    if SINGLE in there:
        return in_file(folder / SINGLE)
    if INDEX in there:
        return _of_shards(folder)
    pickles = [name for name in there if name.endswith(paths.PICKLES)]
    if pickles:
        raise paths.pickle_refused(folder / pickles[0])
    raise LoadError(f"{folder} has no {SINGLE} and no {INDEX}, so no weights")


def in_file(file: Path) -> Tensors:
    return Tensors(file, {name: Entry(file, name, kind, shape) for name, (kind, shape) in header(file).items()})


def header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and the shape of each tensor: 8 bytes of length, that much JSON, and then the numbers without a gap."""
    size = paths.file(file).stat().st_size
    length = int.from_bytes(paths.start(file, 8), "little")
    if size < 8 or length > size - 8:
        raise LoadError(
            f"{file} is truncated or not a safetensors file: "
            f"its header should have {length:,} bytes, and the whole file has {size:,}"
        )
    if length > LARGEST_HEADER:
        raise LoadError(f"{file}: its header has {length:,} bytes; more than {LARGEST_HEADER:,} are not read")
    described = paths.parse_json(paths.start(file, 8 + length)[8:], f"{file}: its header")
    described.pop("__metadata__", None)

    spans = {name: _span(f'{file}: tensor "{name}"', entry, size - 8 - length) for name, entry in described.items()}
    stop = 0
    for name, (start, past) in sorted(spans.items(), key=lambda span: span[1]):
        if start != stop:
            raise LoadError(f'{file}: tensor "{name}" starts at byte {start:,}, where {stop:,} is the next one free')
        stop = past
    if stop != size - 8 - length:
        raise LoadError(f"{file} has {size - 8 - length - stop:,} bytes after its last tensor, which nothing describes")
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in described.items()}


def _span(tensor: str, entry: Any, available: int) -> tuple[int, int]:
    """Where its numbers are, if the header is right about them."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, past]} if (
            len(entry) == 3
            and len(shape) < 9
            and all(type(number) is int and 0 <= number < 2**63 for number in (*shape, start, past))
        ):
            pass
        case _:
            raise LoadError(f"{tensor} is not described by a dtype, a shape and two data_offsets")
    if kind not in BYTES:
        raise LoadError(f"{tensor} is {kind}, a dtype that is not known here; there are {', '.join(BYTES)}")
    if start > past:
        raise LoadError(f"{tensor} is said to lie from byte {start:,} to {past:,}")
    if past > available:
        raise LoadError(
            f"{tensor} should end at byte {past:,}, but only {available:,} are there: the file is truncated"
        )
    if prod(shape) * BYTES[kind] != past - start:
        raise LoadError(
            f"{tensor} is said to be {kind} of shape {list(shape)}, {prod(shape) * BYTES[kind]:,} bytes, "
            f"and has {past - start:,}"
        )
    return start, past


def _of_shards(folder: Path) -> Tensors:
    """The shards as one: each tensor in the file that the index says, and in no other."""
    index = folder / INDEX
    where = paths.read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(shard, str) for shard in where.values()):
        raise LoadError(f'{index} has no "weight_map" that says in which file each tensor lies')
    shards = sorted(set(where.values()))
    for shard in shards:
        if shard in (".", "..") or {"/", "\\", "\0"} & set(shard) or not shard.endswith(".safetensors"):
            raise LoadError(f"{index} names {shard!r}, which is not a safetensors file in the same folder")
    entries: dict[str, Entry] = {}
    for shard in shards:
        for name, entry in in_file(folder / shard).items():
            if name in entries:
                raise LoadError(f'tensor "{name}" is in two files, {entries[name].file} and {folder / shard}')
            if where.get(name) != shard:
                raise LoadError(f'{folder / shard}: tensor "{name}" is not said to be here by {INDEX}')
            entries[name] = entry
    for name, shard in where.items():
        if name not in entries:
            raise LoadError(f'{folder / shard}: tensor "{name}" is missing, though {INDEX} says that it is here')
    return Tensors(index, entries)


def of_tensor(tensor: Shaped[Tensor, "..."]) -> int:
    """Of its dtype, its shape and its bytes, so that the header of the file is covered too."""
    told = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    numbers = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return crc32(numbers, crc32(told.encode()))


def of_manifest(said: dict[str, Any]) -> int:
    """Return the checksum of the manifest's content, independent of its layout and without its own checksum."""
    rest = {name: value for name, value in said.items() if name != "crc32"}
    return crc32(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
