"""Save a recording to a folder: recording.json describes the calls, a safetensors file for each
call holds its tensors. Also the checks of recording.json when it is opened.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..attention import (
    Attention,
    Bias,
    Combination,
    Mask,
    Opposite,
    Renumbered,
    RenumberedBias,
    Restriction,
    SomeHeads,
    SomeQueries,
    SomeSequences,
)
from ..files import (
    DTYPES,
    LoadError,
    atomic_folder,
    read_json,
    resolve_path,
    safetensors,
    to_json,
    write_json,
)
from ..measures import SUMS, Written
from ..token_kinds import TokenKind
from .attention_call import CallFacts
from .call_tokens import WrittenKinds, sides_from_json
from .edits import edits_to_json
from .recorded_call import RecordedCall
from .token_texts import TokenTexts, learn_texts

# The file that makes a folder a recording, and what it says of itself.
FILE = "recording.json"
KIND = "telescope recording"
VERSION = 1
SUMS_OF_0_1 = (
    "itself", "previous", "first", "same", "induction", "far", "queries", "repeated",
)  # fmt: skip
"""The sums of heads in a recording that does not name them."""

Shape = tuple[int | None, ...]  # None is any size
IDS = ("top_keys", "query_ids", "key_ids")  # integers; all other tensors are floating-point
LARGEST = 2**31  # the limit of each size
# The types of tensors by the names that recording.json has.
FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
# The names of files that a save may replace.
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
    # The folder appears as a whole, or not at all.
    with atomic_folder(path, lambda place: check_can_save(place, replace=replace)) as folder:
        attentions: list[dict[str, Any]] = []
        number = 0
        # Each sequence of token ids once: most layers read the same.
        sequences: dict[bytes, Tensor] = {}
        kinds = WrittenKinds()
        for name, recorded in watched.items():
            calls = []
            for call in recorded:
                tensors: dict[str, Tensor] = {}
                # The definition adds its tensors to those of the file, under names of its own.
                entry = {
                    "attention": to_json(call._saved_attention(), tensors),
                    **facts_to_json(call._facts),
                    **kinds.entry(call._facts.tokens),
                }
                tensors |= {part: stored.tensor for part, stored in call._kept.items()}
                # Another version may know other sums: name those of this one.
                if "shares" in tensors:
                    entry["sums"] = [*SUMS]
                file = f"{number}.safetensors"
                # Files hold contiguous tensors, wherever the numbers are now.
                tensors = {
                    part: tensor.detach().cpu().contiguous() for part, tensor in tensors.items()
                }
                for part in ("query_ids", "key_ids"):
                    for row in tensors.get(part, ()):
                        sequences[row.numpy().tobytes()] = row
                save_file(tensors, folder / file)
                # Each tensor has a checksum, which is compared when the tensor is read.
                sums = {
                    part: safetensors.tensor_checksum(tensor) for part, tensor in tensors.items()
                }
                calls.append({"file": file, **entry, "crc32": sums})
                number += 1
            attentions.append({"name": name, "calls": calls})

        # What the tokens say, and everything about the recording as a whole.
        read = [] if decode is None else [row.tolist() for row in sequences.values()]
        texts = TokenTexts({}, {}, {}) if decode is None else learn_texts(decode, read)
        head = {"is": KIND, "version": VERSION, "model": model, "keep": keep}
        # Tokens without a text, such as </s>, may have a name.
        textless = [token for token, text in sorted(texts.alone.items()) if not text]
        named = {} if token_name is None else {str(token): token_name(token) for token in textless}
        special = {token: label for token, label in named.items() if label}
        # A field that would be empty is left out.
        changed = {"edits": edits_to_json(edits)} if edits else {}
        missing = {"left_out": dict(left_out)} if left_out else {}
        manifest = {
            **head,
            **texts.to_json(),
            "special": special,
            **changed,
            **missing,
            **kinds.to_json(),
            "attentions": attentions,
        }
        # The checksum is of everything else in the description.
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

    # Only an empty folder, or a recording, may be written to.
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

    # A strange file would vanish with the old folder.
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


# ------------------------------------------------------------------ the entry of a call


def required_tensors(keep: str, facts: CallFacts) -> dict[str, Shape]:
    """Return the names and shapes of the tensors that every call of this kind has."""
    batch, key_heads, d_q, d_k = facts.shape
    heads = len(facts.heads)
    keys = facts.size[1]
    # A selection by `ts.watch(queries=...)` keeps fewer rows.
    rows = facts.size[0] if facts.rows is None else len(facts.rows)
    if keep == "summaries":
        return {
            "received": (batch, heads, keys),
            "entropy": (batch, heads, rows),
            "top_weights": (batch, heads, rows, None),
            "top_keys": (batch, heads, rows, None),
        }
    kept: dict[str, Shape] = {
        "queries": (batch, heads, rows, d_q),
        "keys": (batch, key_heads, keys, d_k),
    }
    return kept | ({"values": (batch, key_heads, keys, None)} if keep == "steps" else {})


def optional_tensors(facts: CallFacts, sums: int) -> dict[str, Shape]:
    """Return the names and shapes of the tensors that some calls have; `sums` is how many sums of
    each head.
    """
    batch, key_heads, _, _ = facts.shape
    queries, keys = facts.size
    rows = queries if facts.rows is None else len(facts.rows)
    return {
        "query_ids": (batch, queries),
        "key_ids": (batch, keys),
        "lse": (batch, len(facts.heads), rows),
        "map": (batch, len(facts.heads), *(facts.recorded or (None, None))),
        "shares": (batch, len(facts.heads), sums),
        "norms": (batch, len(facts.heads), keys),
        "gradients": (batch, key_heads, keys),
        "context_gradients": (batch, len(facts.heads), rows, None),
        "streaming": (batch, len(facts.heads), rows),
        # An attention cannot tell the width of the residual stream, and the beams of a search are
        # queries of one attention and rows of the stream.
        "before": (None, None, None),
        "after": (None, None, None),
    }


def facts_to_json(facts: CallFacts) -> dict[str, Any]:
    """Return the entry of a call in recording.json, without its definition, file and checksums."""
    return {
        "heads": list(facts.heads),
        "dropout": facts.dropout,
        "queries": facts.size[0],
        "keys": facts.size[1],
        "rows": facts.rows,
        "batch": facts.shape[0],
        "key_heads": facts.shape[1],
        "d_q": facts.shape[2],
        "d_k": facts.shape[3],
        "dtype": str(facts.dtype).removeprefix("torch."),
        "engine": facts.engine,
        "map": None if facts.recorded is None else list(facts.recorded),
        "across": facts.across,
        "prompt": facts.prompt,
        "given": [list(stretch) for stretch in facts.written.given],
        "ends": list(facts.written.ends),
    }


def facts_from_json(
    name: str, entry: Any, attention: Attention, where: str, kinds: Sequence[TokenKind] = ()
) -> CallFacts:
    """Return the facts of a call from its entry in recording.json; `kinds` are those of tokens.

    Raise a LoadError that begins with `where` if the entry is incomplete or does not fit the
    definition.
    """
    # Check all types and ranges before any number is used.
    match entry:
        case {
            "heads": [*heads],
            "dropout": int() | float() as dropout,
            "queries": queries,
            "keys": keys,
            "rows": None | list() as rows,
            "batch": batch,
            "key_heads": key_heads,
            "d_q": d_q,
            "d_k": d_k,
            "dtype": str(dtype),
            "engine": None | str() as engine,
            "map": None | [_, _] as pooled,
        } if (
            all(
                _is_size(number)
                for number in (*heads, queries, keys, batch, key_heads, d_q, d_k, *(pooled or ()))
            )
            and 0 <= dropout <= 1
            and len(set(heads)) == len(heads)
            and dtype in FLOATS
            and all(_is_size(row) and row < queries for row in rows or ())
            and isinstance(entry.get("across"), bool | None)  # older recordings have no such key
            and (entry.get("prompt") is None or _is_size(entry["prompt"]))
            and _is_written(entry.get("given", []), entry.get("ends", []))
        ):
            pass
        case _:
            raise LoadError(f"{where} is no complete description of a call: {str(entry)[:80]}")

    # An opened recording computes on the CPU, wherever the model ran.
    facts = CallFacts(
        name=name,
        heads=tuple(heads),
        dropout=float(dropout),
        attention=attention,
        size=(queries, keys),
        rows=rows,
        shape=(batch, key_heads, d_q, d_k),
        dtype=FLOATS[dtype],
        device=torch.device("cpu"),
        engine=engine,
        recorded=None if pooled is None else (pooled[0], pooled[1]),
        across=entry.get("across"),
        prompt=entry.get("prompt"),
        written=Written(
            tuple((start, stop) for start, stop in entry.get("given", [])),
            tuple(entry.get("ends", [])),
        ),
        tokens=sides_from_json(entry, kinds, (queries, keys), where),
    )

    # Check that the sizes fit one another, and that the definition fits the sizes.
    if len(heads) % max(key_heads, 1) or (heads and not key_heads):
        raise LoadError(f"{where}: key_heads={key_heads} does not divide its {len(heads)} heads")
    if batch * max(len(heads), 1) * max(queries, keys, 1) * max(d_q, d_k, 1) >= LARGEST**2:
        raise LoadError(f"{where} describes a tensor with more numbers than a tensor can hold")
    sizes = {"batch": batch, "heads": len(heads), "queries": queries, "keys": keys}
    try:
        attention.check(**sizes, d_q=d_q, d_k=d_k)
        for part in (attention.mask, attention.bias):
            _check_numbers(part, **sizes)
    except (TypeError, ValueError) as problem:
        raise LoadError(f"{where}: its definition does not fit it: {problem}") from None
    return facts


def _is_written(given: Any, ends: Any) -> bool:
    """Return whether a field tells stretches of queries in rising order, and the other one token
    ids.
    """
    match given:
        case [*stretches] if all(isinstance(one, list) and len(one) == 2 for one in stretches):
            borders = [border for stretch in stretches for border in stretch]
        case _:
            return False
    # Rising borders: stretches neither overlap nor run backwards.
    if not all(map(_is_size, borders)) or borders != sorted(borders):
        return False
    return isinstance(ends, list) and all(map(_is_size, ends))


def _is_size(number: object) -> bool:
    # `type(...) is int` refuses True, which isinstance would accept.
    return type(number) is int and 0 <= number < LARGEST


def _check_numbers(part: object, **size: int) -> None:
    """Raise a ValueError if a mask or bias that was restricted to some heads, queries or sequences
    has another size.
    """
    # Check the parts of a combination, then the restriction itself.
    for inner in _inside(part):
        _check_numbers(inner, **size)
    if not isinstance(part, Renumbered | RenumberedBias):
        return

    # A restriction selects as many heads, queries or sequences as there are.
    axes: dict[type[Restriction], str] = {
        SomeHeads: "heads",
        SomeQueries: "queries",
        SomeSequences: "batch",
    }
    axis = axes.get(type(part.numbering))
    numbering = part.numbering
    which: Any = getattr(numbering, "which", ())
    if axis is not None and len(which) != size[axis]:
        raise ValueError(
            f"{type(numbering).__name__} selects {len(which)} {axis}, and there are {size[axis]}"
        )
    if isinstance(numbering, SomeQueries) and numbering.of[1] != size["keys"]:
        raise ValueError(
            f"{type(numbering).__name__} is made for {numbering.of[1]} keys, and there are "
            f"{size['keys']}"
        )
    # Inside, the sizes are those before the restriction.
    _check_numbers(
        part.mask if isinstance(part, Renumbered) else part.bias, **numbering.full_size(**size)
    )


def _inside(part: object) -> Iterator[Mask | Bias]:
    """Yield the masks of which a mask is made."""
    if isinstance(part, Combination):
        yield from part.masks
    elif isinstance(part, Opposite):
        yield part.mask


def sums_from_json(entry: Mapping[str, Any], where: str) -> list[str]:
    """Return the names of the sums of each head of a call; raise a LoadError if they are none."""
    names = entry.get("sums", [*SUMS_OF_0_1])
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        raise LoadError(f'{where}: "sums" is not a list of different names: {str(names)[:80]}')
    return names


def check_tensors(
    keep: str,
    facts: CallFacts,
    header: dict[str, tuple[str, tuple[int, ...]]],
    sums: int,
    where: str,
) -> None:
    """Raise a LoadError if the tensors of a file are not those that its entry in recording.json
    describes.
    """
    needed = required_tensors(keep, facts)
    possible = optional_tensors(facts, sums)
    # What this kind of recording needs must be there.
    for name, shape in needed.items():
        if name not in header:
            raise LoadError(f'{where} has no tensor "{name}", which keep="{keep}" keeps')
        _check_shape(name, header[name][1], shape, where)
    # What is there must be known, in shape and type.
    for name, (kind, shape) in header.items():
        if name.startswith("attention."):
            continue
        if name in possible:
            _check_shape(name, shape, possible[name], where)
        elif name not in needed:
            raise LoadError(f'{where} has a tensor "{name}", which is no part of a recording')
        if (kind[0] == "I") != (name in IDS) or (name not in IDS and kind not in DTYPES):
            expected = "whole numbers" if name in IDS else f"one of {', '.join(DTYPES)}"
            raise LoadError(f'{where}: tensor "{name}" is {kind}, and {expected} would be right')
    # Tensors that belong together must agree.
    if keep == "summaries" and header["top_keys"][1] != header["top_weights"][1]:
        raise LoadError(f'{where}: tensors "top_keys" and "top_weights" have different shapes')
    if (facts.recorded is None) != ("map" not in header):
        raise LoadError(f"{where} and {FILE} disagree about whether there is a map")


def _check_shape(name: str, shape: tuple[int, ...], wanted: Shape, where: str) -> None:
    if len(shape) != len(wanted) or any(
        want not in (None, have) for have, want in zip(shape, wanted, strict=True)
    ):
        expected = ["any" if size is None else size for size in wanted]
        raise LoadError(
            f'{where}: tensor "{name}" has shape {list(shape)}, and {FILE} describes {expected}'
        )
