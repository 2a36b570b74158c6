"""The entry of a call in recording.json, and the tensors that the file of such a call must have."""

from collections.abc import Iterator
from typing import Any

import torch

from ...attention import (
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
from ...files.errors import LoadError
from ...files.safetensors import DTYPES
from ..call_facts import CallFacts
from ..head_shares import COUNTS, NAMES, Written

FILE = "recording.json"
KIND = "telescope recording"
VERSION = 1

Shape = tuple[int | None, ...]  # None is any size
IDS = ("top_keys", "query_ids", "key_ids")  # integers; all other tensors are floating-point
LARGEST = 2**31  # the limit of each size


FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def required_tensors(keep: str, facts: CallFacts) -> dict[str, Shape]:
    """Return the names and shapes of the tensors that every call of this kind has."""
    batch, key_heads, d_q, d_k = facts.shape
    heads = len(facts.heads)
    keys = facts.size[1]
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


def optional_tensors(keep: str, facts: CallFacts) -> dict[str, Shape]:
    """Return the names and shapes of the tensors that some calls have."""
    batch, key_heads, _, _ = facts.shape
    queries, keys = facts.size
    rows = queries if facts.rows is None else len(facts.rows)
    return {
        "query_ids": (batch, queries),
        "key_ids": (batch, keys),
        "lse": (batch, len(facts.heads), rows),
        "map": (batch, len(facts.heads), *(facts.recorded or (None, None))),
        "shares": (batch, len(facts.heads), len(NAMES) + len(COUNTS)),
        "norms": (batch, len(facts.heads), keys),
        "gradients": (batch, key_heads, keys),
        "streaming": (batch, len(facts.heads), rows),
        "before": (batch, None, None),
        "after": (batch, None, None),
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


def facts_from_json(name: str, entry: Any, attention: Attention, where: str) -> CallFacts:
    """Return the facts of a call from its entry in recording.json.

    Raise a LoadError that begins with `where` if the entry is incomplete or does not fit the
    definition.
    """
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
    )
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
    if not all(map(_is_size, borders)) or borders != sorted(borders):
        return False
    return isinstance(ends, list) and all(map(_is_size, ends))


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < LARGEST


def _check_numbers(part: object, **size: int) -> None:
    """Raise a ValueError if a mask or bias that was restricted to some heads, queries or sequences
    has another size.
    """
    for inner in _inside(part):
        _check_numbers(inner, **size)
    if not isinstance(part, Renumbered | RenumberedBias):
        return
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
    _check_numbers(
        part.mask if isinstance(part, Renumbered) else part.bias, **numbering.full_size(**size)
    )


def _inside(part: object) -> Iterator[Mask | Bias]:
    """Yield the masks of which a mask is made."""
    if isinstance(part, Combination):
        yield from part.masks
    elif isinstance(part, Opposite):
        yield part.mask


def check_tensors(
    keep: str, facts: CallFacts, header: dict[str, tuple[str, tuple[int, ...]]], where: str
) -> None:
    """Raise a LoadError if the tensors of a file are not those that its entry in recording.json
    describes.
    """
    needed = required_tensors(keep, facts)
    possible = optional_tensors(keep, facts)
    for name, shape in needed.items():
        if name not in header:
            raise LoadError(f'{where} has no tensor "{name}", which keep="{keep}" keeps')
        _check_shape(name, header[name][1], shape, where)
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
