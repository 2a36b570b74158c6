"""Tensors in one or several safetensors files. Headers are checked before any tensor is read. And
checksums.
"""

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
from safetensors.torch import save_file
from torch import Tensor

from . import paths
from .errors import LoadError

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

# Of weights; and the size of each dtype that the format has.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
BYTES |= {f"{kind}{bits}": bits // 8 for kind in "IU" for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class TensorEntry:
    """The description of one tensor in a header."""

    file: Path
    name: str
    kind: str  # F32, BF16, I64, ...
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in PyTorch; a LoadError where it is not a floating-point dtype of weights."""
        if self.kind not in DTYPES:
            raise LoadError(
                f'{self.file}: tensor "{self.name}" is {self.kind}; weights are '
                f"{', '.join(DTYPES)}, so quantised weights must be dequantised first"
            )
        return DTYPES[self.kind]


class StoredTensors(dict[str, TensorEntry]):
    """The tensors of one or several files: their descriptions by name. `reader()` reads their
    numbers.
    """

    def __init__(self, source: Path, entries: Mapping[str, TensorEntry]) -> None:
        super().__init__(entries)
        self.source = source  # the file that lists all tensors: the index, or the only file

    def renamed(self, rename: Callable[[str], str]) -> "StoredTensors":
        """Return the same tensors under the names that `rename` returns; a LoadError where two
        names become equal.
        """
        renamed: dict[str, TensorEntry] = {}
        for name, entry in self.items():
            other = renamed.setdefault(rename(name), entry)
            if other is not entry:
                raise LoadError(
                    f'{entry.file}: tensors "{other.name}" and "{name}" are two names of the same '
                    "tensor"
                )
        return StoredTensors(self.source, renamed)

    @contextmanager
    def reader(self) -> Iterator[Callable[[str], Tensor]]:
        """Yield a function that returns the tensor of a name; the files stay open until the block
        ends.
        """
        with ExitStack() as stack:

            @cache  # each file is opened once, when the first of its tensors is read
            def open_file(file: Path) -> Any:
                return stack.enter_context(safe_open(file, "pt"))

            def read(name: str) -> Tensor:
                file = self[name].file
                try:
                    tensor: Tensor = open_file(file).get_tensor(self[name].name)
                except (SafetensorError, OSError) as error:
                    raise LoadError(f'{file}: tensor "{name}" cannot be read: {error}') from None
                return tensor

            yield read

    def read_all(self) -> dict[str, Tensor]:
        """Return every tensor by its name."""
        with self.reader() as read:
            return {name: read(name) for name in self}


class TensorsInMemory(StoredTensors):
    """Tensors that were read from a file of another format."""

    def __init__(self, source: Path, tensors: dict[str, Tensor]) -> None:
        # The dtypes that weights can have: a reader of another format makes these.
        kinds = {dtype: kind for kind, dtype in DTYPES.items()}
        entries = {
            name: TensorEntry(source, name, kinds[tensor.dtype], tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        super().__init__(source, entries)
        self._tensors = tensors

    @contextmanager
    def reader(self) -> Iterator[Callable[[str], Tensor]]:
        yield self._tensors.__getitem__


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write tensors to a file; equal tensors and metadata give equal bytes.

    The safetensors library writes metadata in another order in each process: sort the header
    afterwards, in place.
    """
    save_file(dict(tensors), file, metadata=dict(metadata))
    with file.open("r+b") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        # Spaces may follow the header; so many that its length, and with it the place of all
        # tensors, is as before.
        assert len(text) <= length, "the safetensors library writes longer JSON than Python"
        opened.seek(8)
        opened.write(text.ljust(length))


def scan_folder(folder: Path) -> StoredTensors:
    """Return the tensors of a folder: of model.safetensors or, where there is an index instead, of
    all its files.
    """
    # The single file first: that is what Telescope writes.
    names = paths.list_names(folder)
    if WEIGHTS_FILE in names:
        return scan_file(folder / WEIGHTS_FILE)
    if INDEX_FILE in names:
        return _scan_shards(folder)
    pickles = [name for name in names if name.endswith(paths.PICKLE_SUFFIXES)]
    if pickles:
        raise paths.pickle_error(folder / pickles[0])
    raise LoadError(f"{folder} has no {WEIGHTS_FILE} and no {INDEX_FILE}, so no weights")


def scan_file(file: Path) -> StoredTensors:
    """Return the tensors of one file, from its header."""
    header = read_header(file)
    return StoredTensors(file, {name: TensorEntry(file, name, *header[name]) for name in header})


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype and the shape of each tensor in a file, after checking the whole layout.

    The format: 8 bytes with the length of the header, the header as JSON, then the tensors without
    gaps.
    """
    # The length is checked before so many bytes are read.
    size = paths.check_is_file(file).stat().st_size
    length = int.from_bytes(paths.read_start(file, 8), "little")
    if size < 8 or length > size - 8:
        raise LoadError(
            f"{file} is truncated or not a safetensors file: "
            f"its header should have {length:,} bytes, and the whole file has {size:,}"
        )
    if length > MAX_HEADER_BYTES:
        raise LoadError(
            f"{file}: its header has {length:,} bytes; more than {MAX_HEADER_BYTES:,} are not read"
        )
    # The header is read by the checks of any other JSON: no field twice, not nested too deep.
    described = paths.parse_json(paths.read_start(file, 8 + length)[8:], f"{file}: its header")
    described.pop("__metadata__", None)

    # Tensors lie one after another, without gaps and without overlap, up to the end of the file.
    available = size - 8 - length
    spans = {
        name: _byte_range(f'{file}: tensor "{name}"', entry, available)
        for name, entry in described.items()
    }
    stop = 0
    for name, (start, past) in sorted(spans.items(), key=lambda span: span[1]):
        if start != stop:
            raise LoadError(
                f'{file}: tensor "{name}" starts at byte {start:,}, where {stop:,} is the next one '
                "free"
            )
        stop = past
    if stop != available:
        raise LoadError(
            f"{file} has {available - stop:,} bytes after its last tensor, which its "
            "header does not describe"
        )
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in described.items()}


def _byte_range(tensor: str, entry: Any, available: int) -> tuple[int, int]:
    """Return the first byte of a tensor and the byte after its last, if the header's entry is
    consistent.

    tensor     file and name, for errors
    available  the number of bytes after the header
    """
    match entry:
        # Python has whole numbers of any size; tensors have those below 2**63, and few axes.
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, past]} if (
            len(entry) == 3
            and len(shape) < 9
            and all(type(number) is int and 0 <= number < 2**63 for number in (*shape, start, past))
        ):
            pass
        case _:
            raise LoadError(f"{tensor} is not described by a dtype, a shape and two data_offsets")
    if kind not in BYTES:
        raise LoadError(f"{tensor} is {kind}, an unknown dtype; there are {', '.join(BYTES)}")
    if start > past:
        raise LoadError(f"{tensor} runs from byte {start:,} to {past:,}, which is before its start")
    if past > available:
        raise LoadError(
            f"{tensor} should end at byte {past:,}, but only {available:,} are there: the file is "
            "truncated"
        )
    needed = prod(shape) * BYTES[kind]
    if needed != past - start:
        raise LoadError(
            f"{tensor} should be {kind} of shape {list(shape)}, {needed:,} bytes, and has "
            f"{past - start:,}"
        )
    return start, past


def _scan_shards(folder: Path) -> StoredTensors:
    """Return the tensors of all files that the index names; each tensor must be in the file that
    the index says.
    """
    index = folder / INDEX_FILE
    weight_map = paths.read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(shard, str) for shard in weight_map.values())
    ):
        raise LoadError(f'{index} has no "weight_map" that says in which file each tensor lies')
    # The index may be hostile: a shard must not lead out of the folder.
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if (
            shard in (".", "..")
            or {"/", "\\", "\0"} & set(shard)
            or not shard.endswith(".safetensors")
        ):
            raise LoadError(
                f"{index} names {shard!r}, which is not a safetensors file in the same folder"
            )
    # Index and files must agree, in both directions.
    entries: dict[str, TensorEntry] = {}
    for shard in shards:
        for name, entry in scan_file(folder / shard).items():
            if name in entries:
                raise LoadError(
                    f'tensor "{name}" is in two files, {entries[name].file} and {folder / shard}'
                )
            if weight_map.get(name) != shard:
                raise LoadError(
                    f'{folder / shard}: tensor "{name}" is not listed for this file in {INDEX_FILE}'
                )
            entries[name] = entry
    for name, shard in weight_map.items():
        if name not in entries:
            raise LoadError(
                f'{folder / shard}: tensor "{name}" is missing, though {INDEX_FILE} names this file'
            )
    return StoredTensors(index, entries)


def tensor_checksum(tensor: Shaped[Tensor, "..."]) -> int:
    """Return the CRC-32 of a tensor's dtype, shape and bytes, so that errors in a file's header are
    detected too.
    """
    description = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    # The bytes as they are in memory, without a copy.
    numbers = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return crc32(numbers, crc32(description.encode()))


def manifest_checksum(manifest: dict[str, Any]) -> int:
    """Return the CRC-32 of a manifest's content, independent of its layout and without its field
    "crc32".
    """
    # Sorted and without spaces: a file that was formatted anew has the same checksum.
    rest = {name: value for name, value in manifest.items() if name != "crc32"}
    return crc32(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
