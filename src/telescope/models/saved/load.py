"""Load a model: shipped with the package, saved by Telescope or by Hugging Face, or a file of
llama2.c; and export one for Hugging Face's transformers.
"""

import json
import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...attention import Attention
from ...attention import tensors as tensors_of
from ...files import (
    WEIGHTS_FILE,
    WRITTEN_BY,
    LoadError,
    StoredTensors,
    atomic_folder,
    check_savable,
    from_json,
    paths,
    save_tensors,
    scan_folder,
    write_json,
)
from ...words import closest_name, hint
from ..encoder import Encoder
from ..gpt import GPT
from ..model import (
    FORMAT,
    FORMAT_WITH_ATTENTION,
    MODEL_CLASSES,
    Model,
    Special,
    check_matches_config,
    write_tokenizer,
)
from ..transformer import Transformer
from . import llama2c
from .decoder_families import GPT2, LLAMA, MISTRAL, QWEN2, choose_rotary_family
from .encoder_families import BERT, MARIAN
from .huggingface import Family, Fields
from .tokenizer_file import read_tokenizer
from .weights import build_model, identity_rows, load_weights, read_special, rows_for

Device = torch.device | str | int


def devices_here() -> list[str]:
    """Return the names of the devices on which torch can compute here: "cpu", then "cuda:0",
    "cuda:1", ...
    """
    # torch names an accelerator that it was built for, also where there is none.
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        return ["cpu"]
    return [
        "cpu",
        *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())),
    ]


def check_device(given: Device) -> torch.device:
    """Return the device of this name; raise a ValueError with the devices that exist unless torch
    can compute there.
    """
    known = devices_here()
    # "cuda" without a number is the current one.
    kinds = {name.partition(":")[0] for name in known}
    # Compare names before torch parses one: torch accepts names of hardware that it cannot use,
    # some with a warning.
    name = known[-1].partition(":")[0] + f":{given}" if isinstance(given, int) else str(given)
    if name in kinds or name in known or name == "cpu:0":
        return torch.device(name)
    verb = "is" if len(known) == 1 else "are"
    raise ValueError(f'there is no device "{given}" here; there {verb} {", ".join(known)}')


# The shipped models, each in a folder of its own.
FOLDER = Path(__file__).parents[1] / "shipped"


def shipped_models() -> dict[str, Path]:
    """Return the folders of the shipped models, by name."""
    return {config.parent.name: config.parent for config in sorted(FOLDER.glob("*/config.json"))}


def find_shipped(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the model shipped under this name; None if there is none, or if the path
    `name` exists.
    """
    return None if os.path.lexists(name) else shipped_models().get(os.fspath(name))


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """Return the model in a folder, in eval mode, with its tokenizer as `model.tokenizer` if the
    folder has one.

    Nothing in a file is ever executed.

    Args:
        path: a folder that `model.save` wrote; a folder of Hugging Face's with a gpt2, llama
            (SmolLM2 too), mistral, qwen2, bert or marian (without its tokenizer, source.spm and
            target.spm); a .bin file of llama2.c, with the tok*.bin in the same folder; or the name
            of a model that is shipped with the package, unless the working folder has a file or
            folder of that name.
        device: where the weights go; the CPU unless given.
        dtype: of the weights; unless given, the dtype in the file. Shipped models are bfloat16 in
            the file, to be small, and are loaded as float32, so that they write the same text on
            every machine.

    Raises:
        LoadError: with one sentence where a file cannot be read, a ValueError where `dtype` is not
            a floating-point dtype or `device` is not here.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> type(model).__name__, model.training
        ('GPT', False)
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"dtype={dtype} is not a dtype of weights; there are torch.float32, torch.bfloat16, ..."
        )
    # "meta" gives the shapes of the weights without their numbers.
    if device is not None and str(device) != "meta":
        device = check_device(device)
    # Shipped models are bfloat16 in the file, to be small, and run in float32.
    if find_shipped(path) is not None:
        dtype = dtype or torch.float32
    place = find_model(path)
    if not paths.is_folder(place):
        # A file is llama2.c's; a folder without config.json may hold one.
        return llama2c.load(llama2c.check_is_llama2c(place), device=device, dtype=dtype)
    if "config.json" not in paths.list_names(place):
        return llama2c.load(llama2c.find_in_folder(place), device=device, dtype=dtype)

    config = paths.read_json(place / "config.json")
    # Our own folders say so in their first field.
    load_folder = _load_telescope_folder if "telescope" in config else _load_huggingface_folder
    model = load_folder(place, config, device=device, dtype=dtype)
    model.tokenizer = (
        read_tokenizer(place / "tokenizer.json")
        if "tokenizer.json" in paths.list_names(place)
        else None
    )
    return model.eval()


def find_model(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model, by its path or by a shipped name; else raise a LoadError."""
    if (folder := find_shipped(path)) is not None:
        return folder
    name = os.fspath(path)
    # A bare name that is nowhere: probably a shipped model, misspelt; OWNER/NAME is one of a hub.
    if Path(path).name == name and paths.is_missing(name):
        raise _unknown_model_error(name)
    if name.count("/") == 1 and name[0] not in "./~" and not Path(name).parent.exists():
        raise LoadError(f"{name} does not exist; from a hub, transformers' from_pretrained loads")
    return paths.check_exists(path)


def _unknown_model_error(name: str) -> LoadError:
    """Return the error for a name that is neither shipped nor in the working folder; suggest a
    similar name.
    """
    shipped = shipped_models()
    local = [
        entry
        for entry in paths.list_names(Path())
        if entry[0] != "." and (entry.endswith(".bin") or Path(entry).is_dir())
    ]
    similar = closest_name(name, [*shipped, *local])
    suggestion = f'; did you mean "{similar}"?' if similar else "."
    return LoadError(
        f'there is no model "{name}"{suggestion} Shipped: {", ".join(shipped) or "none yet"}. A '
        "folder works too; of a model on a hub, transformers' from_pretrained makes one that "
        "ts.watch takes."
    )


def _load_telescope_folder(
    folder: Path,
    config: dict[str, Any],
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Model:
    """Return the model in a folder that `model.save` wrote; `config` is its parsed config.json."""
    file = folder / "config.json"
    if config.get("telescope") not in (FORMAT, FORMAT_WITH_ATTENTION):
        raise LoadError(
            f"{file} is of format {config['telescope']!r}; this version of Telescope reads "
            f"{FORMAT} and {FORMAT_WITH_ATTENTION}"
        )
    # Unknown fields are refused: a later version may mean something by them.
    expected = {"telescope", "model", "config", "special"}
    if config["telescope"] == FORMAT_WITH_ATTENTION:
        expected.add("attention")
    match config:
        case {"model": str(name), "config": dict(fields), "special": dict(ids)} if (
            set(config) == expected
        ):
            pass
        case _:
            last = ' and "attention"' if "attention" in expected else ""
            raise LoadError(
                f'{file} should have the fields "telescope", "model", "config" and '
                f'"special"{last}, and no others'
            )
    if name not in MODEL_CLASSES:
        raise LoadError(f'{file}: there is no model "{name}"; {hint(name, MODEL_CLASSES)}')
    tensors = scan_folder(folder)
    attention = None
    used = set[str]()
    if "attention" in config:
        # The definition first: building the model needs it.
        attention, used = _read_definition(
            config["attention"], file, tensors, device=device, dtype=dtype
        )
    # Build the model without numbers, then load those of the file.
    kind = MODEL_CLASSES[name]
    model = build_model(kind, lambda: kind.config_type.from_dict(fields), file, tensors, attention)
    model.special = read_special(ids, file)
    load_weights(model, tensors, identity_rows(model), unused=used, device=device, dtype=dtype)
    return model


def _read_definition(
    parsed: Any,
    file: Path,
    tensors: StoredTensors,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Attention, set[str]]:
    """Return the definition in a config.json, and the names of its tensors in the model's files."""
    # The tensors of the definition are stored among the weights.
    with tensors.reader() as read:
        numbers = {name: read(name).to(device) for name in tensors if name.startswith("attention.")}
    if dtype is not None:
        numbers = {
            name: part.to(dtype) if part.is_floating_point() else part
            for name, part in numbers.items()
        }
    attention = from_json(parsed, numbers, str(file))
    if not isinstance(attention, Attention):
        raise LoadError(f'{file}: "attention" is not a definition of attention')
    try:
        # A file may hold a definition that `save` would have refused.
        check_savable("attention", attention)
    except ValueError as problem:
        raise LoadError(f"{file}: {problem}") from None
    # Tensors that the definition holds are not looked for in the model.
    used = {id(tensor) for tensor in tensors_of(attention)}
    return attention, {name for name, tensor in numbers.items() if id(tensor) in used}


FAMILIES: dict[str, Family] = {
    family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, BERT, MARIAN)
}


def _load_huggingface_folder(
    folder: Path,
    config: dict[str, Any],
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Model:
    """Return the model in a Hugging Face folder; `config` is its parsed config.json."""
    file = folder / "config.json"
    family = _family(file, config.pop("model_type", None))
    # The config is read and checked before a single weight.
    fields = Fields(config, file=str(file), family=family.name)
    tensors = _canonical_names(family, scan_folder(folder))
    if dtype is None:
        # Mixed dtypes are converted only if the caller says to which.
        _check_one_dtype(tensors, family.unused)
    model = build_model(family.model, lambda: family.config(fields, tensors), file, tensors)
    model.special = _read_special_ids(folder, config, model)
    family.check(model.config, tensors)
    load_weights(
        model,
        tensors,
        rows_for(family.table(model.config), model),
        unused=family.unused,
        device=device,
        dtype=dtype,
    )
    return model


def _family(file: Path, name: Any) -> Family:
    """Return the family of a model_type; a LoadError where it is unknown."""
    if not isinstance(name, str) or name not in FAMILIES:
        what = "has no model_type" if name is None else f"is of model_type {json.dumps(name)}"
        raise LoadError(
            f"{file} {what}; models of {', '.join(FAMILIES)} can be loaded, and folders of "
            "model.save"
        )
    return FAMILIES[name]


def _read_special_ids(folder: Path, config: dict[str, Any], model: Model) -> Special:
    """Return the special ids; generation_config.json, which is newer, takes precedence over
    config.json.
    """
    # Our names and theirs.
    names = {"start": "bos_token_id", "end": "eos_token_id", "pad": "pad_token_id"}
    if isinstance(model, Transformer):
        # The decoder of a translator begins with a token of its own.
        names["start"] = "decoder_start_token_id"
    generation = folder / "generation_config.json"
    ids = config | (
        paths.read_json(generation) if generation.name in paths.list_names(folder) else {}
    )
    sizes = model.config.to_dict()
    # Special ids are written, so they belong to the target's vocabulary where there are two.
    vocabulary = sizes.get("target_vocabulary") or sizes["vocabulary"]
    return read_special(
        {ours: ids.get(theirs) for ours, theirs in names.items()},
        folder / "config.json",
        vocabulary,
    )


def _canonical_names(family: Family, tensors: StoredTensors) -> StoredTensors:
    """Return the tensors under the names in the family's table.

    Adds the prefix that files of a model without a head leave out; renames gamma and beta, as in
    files of 2018.
    """
    bare = not any(name.startswith(family.prefix) for name in tensors)

    def rename(name: str) -> str:
        for old, new in (
            ("LayerNorm.gamma", "LayerNorm.weight"),
            ("LayerNorm.beta", "LayerNorm.bias"),
        ):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return family.prefix + name if bare else name

    return tensors.renamed(rename)


def _check_one_dtype(tensors: StoredTensors, unused: Iterable[str]) -> None:
    """Raise a LoadError where the tensors that are used have different dtypes."""
    # Tensors that are not loaded may have any dtype.
    used = [
        entry
        for name, entry in tensors.items()
        if not any(fnmatchcase(name, pattern) for pattern in unused)
    ]
    for entry in used:
        if entry.dtype != used[0].dtype:
            raise LoadError(
                f'{entry.file}: tensor "{entry.name}" is {entry.kind} and "{used[0].name}" is '
                f"{used[0].kind}; choose one: ts.load(path, dtype=torch.float32)"
            )


def export(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a folder that `transformers` loads, as GPT-2, Llama, Mistral, Qwen2, BERT or Marian,
    with equal logits.

    Args:
        model: a GPT, Encoder or Transformer whose options transformers supports.
        path: the folder; a model that was saved there before is replaced.

    Raises:
        ValueError: with the reason where the model has no counterpart, or `path` holds anything
            else.

    Example:
        >>> import os, tempfile, telescope as ts
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ts.export(model, f"{folder}/gpt2")
        ...     sorted(os.listdir(f"{folder}/gpt2"))
        ['config.json', 'model.safetensors']
    """
    # A model that was changed after it was built has no config that describes it.
    check_matches_config(model)
    family = choose_family(model)
    config = {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(model.config),
        **_special_fields(model),
        "torch_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    # The folder is complete, or it is not there.
    with atomic_folder(path) as folder:
        write_json(folder / "config.json", config)
        save_tensors(tensors_for(model, family), folder / WEIGHTS_FILE, WRITTEN_BY)
        write_tokenizer(model, folder)
        if model.tokenizer is not None:
            write_json(
                folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}
            )


def choose_family(model: Model) -> Family:
    """Return the family that a model is exported as; a ValueError where there is none."""
    if isinstance(model, GPT):
        return GPT2 if model.config.positions == "learned" else choose_rotary_family(model.config)
    if isinstance(model, Transformer):
        return MARIAN
    if isinstance(model, Encoder):
        return BERT
    raise ValueError(
        f"{type(model).__name__} has no counterpart in transformers, so it cannot be exported"
    )


def tensors_for(model: Model, family: Family) -> dict[str, Tensor]:
    """Return the model's tensors under the family's names; a tensor with several names is written
    under its first.
    """
    weights = family.weights(model)
    # Reversed, so that the first of several rows wins.
    first_rows = {row.ours: row for row in reversed(rows_for(family.table(model.config), model))}
    return {
        name: part.detach().contiguous()
        for ours, row in first_rows.items()
        for name, part in row.parts(model, weights[ours]).items()
    }


def _special_fields(model: Model) -> dict[str, Any]:
    """Return the special ids as fields of config.json."""
    start = model.special.start
    end = list(model.special.end)
    pad = model.special.pad
    # One end token is written as a number, several as a list.
    ids = {"eos_token_id": end[0] if len(end) == 1 else end or None, "pad_token_id": pad}
    if not isinstance(model, Transformer):
        return ids | {"bos_token_id": start}
    if start is None:
        raise ValueError(
            "Marian needs a start token: set model.special = ts.models.Special(start=...)"
        )
    return ids | {"decoder_start_token_id": start, "forced_eos_token_id": None}
