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

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..editing.edit import running_edits
from ..layers import DefinitionModule
from ..words import one_line
from .checksums import checksum, joined, tensor_checksums

OPTIONS = ("layers", "length", "batch", "packed", "column", "shard")
NAMES = {
    "texts": "other texts",
    "tokenizer": "another tokenizer",
    "edits": "other edits",
    "autocast": "another autocast",
}
NO_NUMBER = (
    "training",
    "tokenizer",
    "name_or_path",
    "gradient_checkpointing",
    "loss_type",
)  # of a module
NO_TOKEN = (
    "init_inputs",
    "init_kwargs",
    "deprecation_warnings",
    "files_loaded",
    "verbose",
    "chat_template",
)
NO_CONFIG = (
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "architectures",
    "disable_compile",
)


def fingerprint(model: nn.Module, tokenizer: Any) -> dict[str, Any]:
    """Return what identifies the model, the tokenizer, and what surrounds the call: edits and
    autocast.

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

    found = tensor_checksums(tensors())
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
                yield f"{whole} is {first[id(tensor)]}", torch.zeros(0)
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
        tensor = tensor.full_tensor()
    if hasattr(
        tensor, "__tensor_flatten__"
    ):  # quantised: integers, scales, and how they belong together
        inner, context = tensor.__tensor_flatten__()
        for part in inner:
            yield from _plain_tensors(f"{name}.{part}", getattr(tensor, part))
        yield f"{name} {checksum(context)}", torch.zeros(0)
        return
    yield name, torch.zeros(0) if tensor.is_meta else tensor
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
    own = getattr(
        implementation, "implementation", implementation
    )  # while a model is edited, its name is another
    told = {name: part for name, part in value.to_dict().items() if name not in NO_CONFIG}
    return [type(value), told, own]


# ------------------------------------------------------------------- the tokenizer and surroundings


def tokenizer_checksum(tokenizer: Any) -> str:
    """Return a checksum of a tokenizer: its vocabulary, rules and options and, of a class of one's
    own, its code.
    """
    if hasattr(tokenizer, "backend_tokenizer"):
        tokenizer.encode(
            ""
        )  # a tokenizer of transformers sets its truncation and padding anew in each call
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
