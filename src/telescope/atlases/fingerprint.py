"""What an atlas is of: checksums of everything that changes one of its numbers, and what differs
between two of them.

The fingerprint of a run is a dict for JSON:

    model      class, parameters, and the checksums "weights" (parameters and buffers) and "config"
    tokenizer  a checksum
    texts      the names and checksums of files, or the checksum of a list: Corpus.describe
    edits      the `ts.edit` blocks around the call, each as a sentence and a checksum
    autocast   the precision of torch.autocast around the call
    options    layers, length, batch, packed, column

The device and the versions of libraries are left out: they change numbers by rounding alone.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..editing import running_edits
from ..layers import DefinitionModule
from ..recording import Recording
from ..words import one_line

OPTIONS = ("layers", "length", "batch", "packed", "column", "shard")
NAMES = {
    "texts": "other texts",
    "tokenizer": "another tokenizer",
    "edits": "other edits",
    "autocast": "another autocast",
}
# Attributes that change no number: of a module, of a tokenizer, of a config.
NO_NUMBER = {"training", "tokenizer", "name_or_path", "gradient_checkpointing", "loss_type"}
NO_NUMBER |= {"get_compiled_call", "forward"}  # that a compiled model has for itself
NO_TOKEN = {"init_inputs", "init_kwargs", "deprecation_warnings", "files_loaded", "verbose"}
NO_TOKEN |= {"chat_template"}
NO_CONFIG = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures"}
NO_CONFIG |= {"disable_compile"}
SIZE = 16  # bytes of a checksum
ROW = 4096  # words of 32 bits that are summed to one number
WORDS_ON_CPU = 1 << 17  # that are multiplied at once: their 1 MiB of products stays in the cache
WORDS_ON_GPU = 1 << 24  # 128 MiB of products
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, Enum)


def fingerprint(model: nn.Module, tokenizer: Any) -> dict[str, Any]:
    """Return what identifies the model, the tokenizer, the edits around the call, and autocast.

    Of a model that several processes run together, all of them must call this, since whole tensors
    are gathered.
    """
    return {
        "model": {
            "class": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "weights": weights_checksum(model),
            "config": config_checksum(model),
        },
        "tokenizer": tokenizer_checksum(tokenizer),
        "edits": [[str(one.edit), checksum([where, one])] for where, one in running_edits(model)],
        "autocast": _autocast(model),
    }


def check_same_run(
    holds: str, known: Mapping[str, Any], wanted: Mapping[str, Any], way_out: str
) -> None:
    """Raise a ValueError that names what differs between the fingerprints of two runs, if anything
    does.

    `holds` and `way_out` are the beginning and the end of the error.
    """
    if known == wanted:
        return
    model = known.get("model")
    if not isinstance(model, dict) or not {"weights", "config"} <= model.keys():
        raise ValueError(
            f"{holds}, written by an earlier version, which cannot be checked against this call; "
            f"{way_out}"
        )
    found = differences(known, wanted)
    if found:
        raise ValueError(one_line(f"{holds} with {' and '.join(found)}; {way_out}"))


def differences(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return what differs between the fingerprints of two runs, in words; nothing if they give the
    same atlas.
    """
    model = known["model"]
    other = wanted["model"]
    found = []
    if model.get("class") != other["class"]:
        found.append(f"another model class: {model.get('class')} instead of {other['class']}")
    if model["weights"] != other["weights"]:
        found.append("other model weights")
    if model["config"] != other["config"]:
        found.append("another model config")
    found += [words for name, words in NAMES.items() if known.get(name) != wanted[name]]
    for name in OPTIONS:
        if name in wanted and known.get(name) != wanted[name]:
            found.append(f"another {name}: {known.get(name)} instead of {wanted[name]}")
    return found


# ---------------------------------------------------------------------------------------- the model


def weights_checksum(model: nn.Module, dtype: torch.dtype | None = None) -> str:
    """Return a checksum of all parameters and buffers, by name; with `dtype`, as they are after
    `model.to(dtype)`.
    """
    names: list[str] = []

    def tensors() -> Iterator[Tensor]:
        for path, tensor in _all_tensors(model):
            names.append(path)
            yield tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    found = tensor_checksums(tensors())  # reads the generator, which fills `names`
    return joined(
        *[part for name, own in zip(names, found, strict=True) for part in (name.encode(), own)]
    ).hex()


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors of all parameters and buffers with their names; one that is shared
    comes once.
    """
    first: dict[int, str] = {}  # the first name of each tensor
    for path, module in model.named_modules():
        for name, tensor in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            whole = f"{path}.{name}"
            if first.setdefault(id(tensor), whole) != whole:
                yield f"{whole} is {first[id(tensor)]}", torch.zeros(0)  # tied weights
            else:
                yield from _plain_tensors(whole, _present(module, name, tensor))


def _present(module: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor with its numbers: that of accelerate where it is offloaded."""
    hook: Any = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        offloaded = getattr(one, "weights_map", None)
        if tensor.is_meta and offloaded is not None and name in offloaded:
            tensor = offloaded[name]
    return tensor


def _plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors that a parameter consists of, by name: those of a sharded one are
    gathered.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()  # a collective: every process has to call it
    # Quantised: integers, scales, and how they belong together.
    if hasattr(tensor, "__tensor_flatten__"):
        inner, context = tensor.__tensor_flatten__()
        for part in inner:
            yield from _plain_tensors(f"{name}.{part}", getattr(tensor, part))
        yield f"{name} {checksum(context)}", torch.zeros(0)
        return
    yield name, torch.zeros(0) if tensor.is_meta else tensor  # a meta tensor has no numbers
    for part, value in vars(tensor).items():  # of a parameter of bitsandbytes: its scales
        if isinstance(value, Tensor):
            yield from _plain_tensors(f"{name}.{part}", value)
        elif hasattr(value, "as_dict"):
            yield f"{name}.{part} {checksum(value.as_dict())}", torch.zeros(0)


def config_checksum(model: nn.Module) -> str:
    """Return a checksum of the classes of all modules and of the settings that they hold.

    These are attributes such as a scale, a window, an activation or a definition of attention, and
    the configs of transformers, with the attention implementation: some implementations leave out
    softcap or sinks.
    """
    parts = []
    for name, module in model.named_modules():
        own = {key: _setting(value) for key, value in vars(module).items() if not _is_state(key)}
        definition = module.attention if isinstance(module, DefinitionModule) else None
        parts.append([name, type(module), own, definition])
    return checksum(parts)


def _is_state(name: str) -> bool:
    """Return whether an attribute of a module changes no number of an atlas: private, a cache, or
    of training.
    """
    return name.startswith("_") or "cache" in name or name in NO_NUMBER


def _setting(value: Any) -> Any:
    """Return the settings of a config of transformers as a dict; any other value as it is."""
    if not hasattr(value, "to_dict") or isinstance(value, type | nn.Module):
        return value
    implementation = getattr(value, "_attn_implementation", None)
    # While a model is edited, the name of its implementation is another.
    own = getattr(implementation, "implementation", implementation)
    told = {name: part for name, part in value.to_dict().items() if name not in NO_CONFIG}
    return [type(value), told, own]


# ------------------------------------------------------------------- the tokenizer and surroundings


def tokenizer_checksum(tokenizer: Any) -> str:
    """Return a checksum of a tokenizer: its vocabulary, rules and options and, of a class of one's
    own, its code.
    """
    if hasattr(tokenizer, "backend_tokenizer"):
        # A tokenizer of transformers sets its truncation and padding anew in each call.
        tokenizer.encode("")
    kind: Any = type(tokenizer)
    is_known = kind.__module__.partition(".")[0] in ("tokenizers", "transformers")
    methods = [getattr(kind, name, None) for name in ("encode", "decode")]
    return checksum([tokenizer, None if is_known else methods], ignored=_is_no_token)


def _is_no_token(name: str) -> bool:
    """Return whether an attribute of a tokenizer changes no token: a path, a cache, or a note."""
    return name.endswith(("_file", "_path")) or "cache" in name or name in NO_TOKEN


def _autocast(model: nn.Module) -> str | None:
    """Return the precision of torch.autocast on the model's devices; None outside of it."""
    kinds = sorted({parameter.device.type for parameter in model.parameters()} - {"meta"})
    active = [
        f"{kind} {torch.get_autocast_dtype(kind)}"
        for kind in kinds
        if torch.is_autocast_enabled(kind)
    ]
    return ", ".join(active) or None


# ---------------------------------------------------------------------- checksums of values


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
        found.update(len(part).to_bytes(8, "little"))  # else "ab", "c" would equal "a", "bc"
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


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one axis and dtype on the CPU; each GPU is waited for once, not for every
    tensor.
    """
    found: dict[int, Tensor] = {}
    for device in {tensor.device for tensor in tensors}:
        which = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        sizes = [len(tensors[i]) for i in which]
        together = torch.cat([tensors[i] for i in which]).cpu()  # the one wait for this device
        found |= dict(zip(which, torch.split(together, sizes), strict=True))
    return [found[i] for i in range(len(tensors))]


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
    return rows.long().mul_(factors).sum(1)  # int64 wraps around, which is modulo 2^64


def _words(tensor: Tensor) -> Int[Tensor, " word"]:
    """Return the bits of a tensor as int32; zeros fill the last word."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()  # lazy flags are applied
    data = plain.reshape(-1).view(torch.uint8)
    if len(data) % 4 or data.storage_offset() % 4:  # a view as int32 has to be aligned
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
                yield from sorted(map(self.of, value))  # a set has no order
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
            {part: own.tensor for part, own in call._kept.items()} for call in recording[name].calls
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
