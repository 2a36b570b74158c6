"""Where queries and keys stand in a sequence, as transformers tells a mask function."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

Arguments = Mapping[str, Any]  # what a mask function is called with


class Place(NamedTuple):
    """Query number 0 stands at `query`, key number 0 at `key`: before it, a cache has let them go."""

    batch: int
    queries: int
    keys: int
    query: int
    key: int

    @classmethod
    def of(cls, given: Arguments) -> "Place":
        if "q_length" in given:
            queries, query = given["q_length"], given.get("q_offset", 0)
        else:  # before 5.0 it is given the places themselves
            queries, query = len(given["cache_position"]), given["cache_position"][0]
        return cls(given["batch_size"], queries, given["kv_length"], int(query), int(given.get("kv_offset", 0)))


def settled(given: Arguments) -> dict[str, Any]:
    """The same arguments in numbers: a cache of fixed size counts its tokens in a tensor, and counts on."""
    return {**given, "q_offset": int(given["q_offset"])} if "q_offset" in given else dict(given)


def some_rows(given: Arguments, rows: range) -> dict[str, Any]:
    """The arguments for these queries alone, of a mask that is wanted in any case."""
    if "q_length" in given:
        chosen = {"q_length": len(rows), "q_offset": given.get("q_offset", 0) + rows.start}
    else:
        chosen = {"cache_position": given["cache_position"][rows.start : rows.stop]}
    return {**given, **chosen, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


def device_of(given: Arguments) -> torch.device:
    if given.get("device") is not None:
        return torch.device(given["device"])
    return given["cache_position"].device if "cache_position" in given else torch.device("cpu")
