"""Checksums of tensors, files, functions and other Python values, alike in every process and on
every device.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from ..recording.recording import Recording
from .transfers import to_host

SIZE = 16  # bytes of a checksum
ROW = 4096  # words of 32 bits that are summed to one number
WORDS_ON_CPU = (
    1 << 17
)  # words that are multiplied at once: their 1 MiB of products stays in the cache
WORDS_ON_GPU = 1 << 24
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, Enum)


def checksum(value: Any, *, ignored: Callable[[str], bool] | None = None) -> str:
    """Return a checksum of a Python value in hexadecimal digits; tensors count with all of their
    bits.

    Dataclasses count by their fields, and functions by their code with the values it refers to. Of
    any other object only the class counts. With `ignored`, its attributes count too, except those
    whose name is ignored.
    """
    return _Digest(ignored).of(value).hex()


def file_checksum(file: Path) -> str:
    """Return a checksum of the content of a file in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, partial(hashlib.blake2b, digest_size=SIZE)).hexdigest()


def joined(*parts: bytes) -> bytes:
    """Return a checksum of several byte strings; their borders count."""
    found = hashlib.blake2b(digest_size=SIZE)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


# ------------------------------------------------------------------------------------------ tensors


def tensor_checksums(tensors: Iterable[Shaped[Tensor, "..."]]) -> list[bytes]:
    """Return a checksum of the dtype, the shape and all bits of each tensor.

    Tensors are taken one by one, so that each may be made when it is asked for. Each GPU is waited
    for once.

    The bits are read as words of 32 bits, in rows of 4,096 words. The checksum of a row is the sum
    of its words modulo 2^64, each multiplied by an odd number that belongs to its place. Sums of
    integers do not depend on their order, so that a CPU and a GPU get the same. If one word of a
    row changes, the sum always changes, since an odd factor has an inverse modulo 2^64. If several
    words change, the sum stays the same by chance only: at most 1 in 2^32, where only the highest
    bits of words change. The sums of all rows are joined by BLAKE2.

    Nothing is remembered from call to call: a write through `tensor.data` changes neither the
    address of a tensor nor its version, so that only reading its bits shows it.
    """
    kinds: list[str] = []
    sums: list[Tensor] = []
    for tensor in tensors:
        kinds.append(f"{tensor.dtype} {[*tensor.shape]}")
        sums.append(_row_sums(tensor))
    return [
        joined(kind.encode(), own.numpy().tobytes())
        for kind, own in zip(kinds, to_host(sums), strict=True)
    ]


def _row_sums(tensor: Tensor) -> Int[Tensor, " row"]:
    """Return the sums of all rows of a tensor's words, on its device; the last row may be short."""
    words = _words(tensor)
    factors = _factors(words.device)
    whole = len(words) // ROW * ROW
    size = (WORDS_ON_CPU if words.device.type == "cpu" else WORDS_ON_GPU) // ROW
    parts = [*torch.split(words[:whole].view(-1, ROW), size)] if whole else []
    rest = words[whole:]
    return torch.cat(
        [*(_products(rows, factors) for rows in parts), _products(rest[None], factors[: len(rest)])]
    )


def _products(rows: Int[Tensor, "row word"], factors: Int[Tensor, " word"]) -> Int[Tensor, " row"]:
    """Return the sum of words times factors of each row, modulo 2^64.

    On a CPU by NumPy, in one thread: torch's threads wait for each other after each part, which
    takes 20 times as long where other processes keep the cores busy.
    """
    if rows.device.type == "cpu":
        return torch.from_numpy((rows.numpy() * factors.numpy()).sum(1))
    return rows.long().mul_(factors).sum(1)


def _words(tensor: Tensor) -> Int[Tensor, " word"]:
    """Return the bits of a tensor as int32; zeros fill the last word."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8)
    if len(data) % 4 or data.storage_offset() % 4:
        data = nn.functional.pad(data, (0, -len(data) % 4)).clone()
    return data.view(torch.int32)


@cache
def _factors(device: torch.device) -> Int[Tensor, " word"]:
    odd = torch.randint(-(2**62), 2**62, (ROW,), generator=torch.Generator().manual_seed(0)) * 2 + 1
    return odd.to(device)


# ------------------------------------------------------------------------------------ Python values


class _Digest:
    """Compute the checksums of nested values."""

    def __init__(self, ignored: Callable[[str], bool] | None) -> None:
        self.ignored = ignored
        self.open: list[int] = []  # the ids of the values that are being read, so that a cycle ends

    def of(self, value: Any) -> bytes:
        """Return the checksum of a value and of everything in it."""
        kind = _name(type(value))
        if isinstance(value, PLAIN):
            return joined(kind.encode(), repr(value).encode("utf-8", "surrogatepass"))
        if id(value) in self.open:
            return joined(b"cycle", kind.encode())
        self.open.append(id(value))
        try:
            return joined(kind.encode(), *self._parts(value))
        finally:
            self.open.pop()

    def _parts(self, value: Any) -> Iterator[bytes]:
        match value:
            case Tensor():
                yield (
                    tensor_checksums([value])[0]
                    if not value.is_meta
                    else str([*value.shape]).encode()
                )
            case list() | tuple() | range():
                yield from map(self.of, value)
            case set() | frozenset():
                yield from sorted(map(self.of, value))
            case Mapping():
                yield from sorted(self.of(key) + self.of(part) for key, part in value.items())
            case Recording():
                yield from (self._recorded(value, name) for name in value)
            case CodeType():
                yield from map(self.of, (value.co_code, value.co_consts, value.co_names))
            case FunctionType():
                yield from map(self.of, _function_parts(value))
            case MethodType():
                yield from (self.of(value.__func__), self.of(value.__self__))
            case partial():
                yield from map(self.of, (value.func, value.args, value.keywords))
            case BuiltinFunctionType() | type():
                yield _name(value).encode()
            case ModuleType():
                yield value.__name__.encode()
            case _ if is_dataclass(value):
                yield from (self.of(getattr(value, field.name)) for field in fields(value))
            case _ if hasattr(value, "to_str"):  # a tokenizer of the library tokenizers
                yield value.to_str().encode()
            case _ if hasattr(value, "serialized_model_proto"):  # of SentencePiece
                yield value.serialized_model_proto()
            case _ if self.ignored is not None and hasattr(value, "__dict__"):
                own = {name: part for name, part in vars(value).items() if not self.ignored(name)}
                yield self.of(own)

    def _recorded(self, recording: Recording, name: str) -> bytes:
        parts = [
            {part: own.tensor for part, own in call.parts.items()} for call in recording[name].calls
        ]
        return joined(name.encode(), self.of(parts))


def _function_parts(function: FunctionType) -> list[Any]:
    """Return what a function computes with: its code, defaults, captured variables, and the global
    values it names.
    """
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    found = (function.__globals__.get(name) for name in function.__code__.co_names)
    own = [value for value in found if _is_own(value, function)]
    return [function.__code__, function.__defaults__, function.__kwdefaults__, captured, own]


def _is_own(value: Any, function: FunctionType) -> bool:
    """Return whether a global value belongs to a function: a constant, or a function of the same
    module.
    """
    if isinstance(value, FunctionType):
        return value.__module__ == function.__module__
    return value is not None and isinstance(
        value, (*PLAIN, Tensor, tuple, list, dict, set, frozenset)
    )


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
