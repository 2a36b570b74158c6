"""What recording.json says of a call, and which tensors it must then have."""

from typing import Any

import torch

from ...attention import Attention
from ...models.files.errors import LoadError
from ..kept import Facts

FILE = "recording.json"
KIND, VERSION = "telescope recording", 1

Shape = tuple[int | None, ...]  # None is any


def must_have(keep: str, facts: Facts) -> dict[str, Shape]:
    """The tensors a call of this kind has at least, and their shapes."""
    (batch, key_heads, d_q, d_k), heads = facts.shape, len(facts.heads)
    keys, rows = facts.size[1], facts.size[0] if facts.rows is None else len(facts.rows)
    if keep == "summaries":
        return {
            "received": (batch, heads, keys),
            "entropy": (batch, heads, rows),
            "top_weights": (batch, heads, rows, None),
            "top_keys": (batch, heads, rows, None),
        }
    kept: dict[str, Shape] = {"queries": (batch, heads, rows, d_q), "keys": (batch, key_heads, keys, d_k)}
    return kept | ({"values": (batch, key_heads, keys, None)} if keep == "steps" else {})


def may_have(keep: str, facts: Facts) -> dict[str, Shape]:
    """Those that some have."""
    (batch, _, _, _), (queries, keys) = facts.shape, facts.size
    rows = queries if facts.rows is None else len(facts.rows)
    return {
        "query_ids": (batch, queries),
        "key_ids": (batch, keys),
        "lse": (batch, len(facts.heads), rows),
        "map": (batch, len(facts.heads), *(facts.recorded or (None, None))),
        "before": (batch, None, None),
        "after": (batch, None, None),
    }


def facts_to_json(facts: Facts) -> dict[str, Any]:
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
    }


def facts_of_json(name: str, said: Any, attention: Attention, where: str) -> Facts:
    match said:
        case {
            "heads": [*heads],
            "dropout": int() | float() as dropout,
            "queries": int(queries),
            "keys": int(keys),
            "rows": None | list() as rows,
            "batch": int(batch),
            "key_heads": int(key_heads),
            "d_q": int(d_q),
            "d_k": int(d_k),
            "dtype": str(dtype),
            "engine": None | str() as engine,
            "map": None | [int(), int()] as pooled,
        } if (
            all(type(number) is int and number >= 0 for number in heads)
            and min(queries, keys, batch, key_heads, d_q, d_k) >= 0
            and isinstance(getattr(torch, dtype, None), torch.dtype)
            and all(type(row) is int and 0 <= row < queries for row in rows or ())
        ):
            pass
        case _:
            raise LoadError(f"{where} does not say what a call of an attention is: {str(said)[:80]}")
    facts = Facts(
        name=name,
        heads=tuple(heads),
        dropout=float(dropout),
        attention=attention,
        size=(queries, keys),
        rows=rows,
        shape=(batch, key_heads, d_q, d_k),
        dtype=getattr(torch, dtype),
        device=torch.device("cpu"),
        engine=engine,
        recorded=None if pooled is None else (pooled[0], pooled[1]),
    )
    sizes = {"batch": batch, "heads": len(heads), "queries": queries, "keys": keys, "d_q": d_q, "d_k": d_k}
    try:
        attention.check(**sizes)
    except (TypeError, ValueError) as problem:
        raise LoadError(f"{where}: its definition does not fit it: {problem}") from None
    return facts


def must_be_told_right(keep: str, facts: Facts, header: dict[str, tuple[str, tuple[int, ...]]], where: str) -> None:
    """Raise a LoadError where the tensors are not those that the manifest speaks of."""
    needed, possible = must_have(keep, facts), may_have(keep, facts)
    for name, shape in needed.items():
        if name not in header:
            raise LoadError(f'{where} has no tensor "{name}", which keep="{keep}" keeps')
        _must_fit(name, header[name][1], shape, where)
    for name, (_, shape) in header.items():
        if name in possible:
            _must_fit(name, shape, possible[name], where)
        elif name not in needed and not name.startswith("attention."):
            raise LoadError(f'{where} has a tensor "{name}", which no recording has')


def _must_fit(name: str, shape: tuple[int, ...], wanted: Shape, where: str) -> None:
    if len(shape) != len(wanted) or any(want not in (None, have) for have, want in zip(shape, wanted, strict=True)):
        said = ["any" if size is None else size for size in wanted]
        raise LoadError(f'{where}: tensor "{name}" has shape {list(shape)}, and {FILE} speaks of {said}')
