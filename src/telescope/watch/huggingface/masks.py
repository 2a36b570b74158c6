"""The mask functions of transformers, as masks of ours. What is not known by name stays a function, asked in blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...attention import Mask, Pairs, causal, everyone, padding, window
from ...attention.masks import Causal, Documents

Arguments = Mapping[str, Any]  # what a mask function is called with
MaskFunction = Callable[..., Tensor]  # mask_function(batch, head, query, key) -> bool, of indices that broadcast


class MaskOffsets(NamedTuple):
    """Query number 0 stands at `query`, key number 0 at `key`: before it, a cache has let them go."""

    batch: int
    queries: int
    keys: int
    query: int
    key: int

    @classmethod
    def of(cls, given: Arguments) -> "MaskOffsets":
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


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """A mask that a function tells. Its queries stand `ahead` of where ours do, whose last one is at the last key."""

    function: MaskFunction
    ahead: int

    given = True

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        seen: Tensor = self.function(at.batch, at.head, at.query + self.ahead, at.key)
        return seen.to(at.key.device).reshape((1,) * (4 - seen.ndim) + seen.shape)

    def __repr__(self) -> str:
        return f"function({getattr(self.function, '__name__', 'mask')})"


def understood(given: Arguments) -> tuple[Mask, int, int]:
    """The mask, how many of the keys are there, and how many were before them.

    A cache of fixed size hands out room that is not written yet; a causal mask hides it, so it is left out.
    """
    place = MaskOffsets.of(given)
    written = place.query + place.queries - place.key
    parts = _parts(given.get("mask_function", _theirs("causal_mask_function")))
    back = any(_name(part) == "causal_mask_function" for part in parts)
    keys = min(written, place.keys) if back else place.keys
    here = place._replace(keys=keys)
    mask = reduce(and_, (_ours(part, here, back) for part in parts))
    if given.get("attention_mask") is not None:
        mask = mask & padded(filled(given["attention_mask"], place.key + keys))
    return mask, keys, place.key


def padded(keep: Bool[Tensor, "batch key"]) -> Mask:
    """In the shortest form there is: of growing sequences only that stays the same."""
    count, keys = keep.sum(-1), keep.shape[-1]
    first = keep.int().argmax(-1)
    last = keys - keep.flip(-1).int().argmax(-1)
    all_kept, in_one, to_the_end, from_the_start = torch.stack(
        [(count == keys).all(), (last - first == count).all(), (last == keys).all(), (first == 0).all()]
    ).tolist()
    if all_kept:
        return everyone
    if in_one and to_the_end:
        return padding(left=first)
    if in_one and from_the_start:
        return padding(count)
    return padding(keep=keep)


def filled(keep: Tensor, keys: int) -> Bool[Tensor, "batch key"]:
    """As long as there are keys; what it does not speak of is padding."""
    return torch.nn.functional.pad(keep.bool(), (0, max(0, keys - keep.shape[-1])))[:, :keys]


def _parts(function: MaskFunction) -> list[MaskFunction]:
    """Those of which it is the intersection."""
    if _name(function) != "and_masks":
        return [function]
    return [part for joined in _held(function)["mask_functions"] for part in _parts(joined)]


def _ours(function: MaskFunction, place: MaskOffsets, back: bool) -> Mask:
    """`back`: another part of the mask hides the future."""
    ahead = place.query + place.queries - place.key - place.keys
    try:
        known = _known(function, _held(function), place, back)
    except KeyError:  # of another version, it holds other things
        known = None
    if known is None or (ahead and not known.keys_alone):  # masks of ours count from the last query at the last key
        return FunctionMask(function, ahead)
    return known


def _known(function: MaskFunction, held: dict[str, Any], place: MaskOffsets, back: bool) -> Mask | None:
    keys = place.key + place.keys
    match _name(function):
        case "causal_mask_function":
            return causal
        case "bidirectional_mask_function":
            return everyone
        case "and_masks":
            inner = _parts(function)
            hidden = back or any(_name(part) == "causal_mask_function" for part in inner)
            return reduce(and_, (_ours(part, place, hidden) for part in inner))
        case "or_masks":
            return reduce(or_, (_ours(part, place, False) for part in held["mask_functions"]))
        case "sliding_window_overlay":  # by itself it leaves the future open
            near = window(held["sliding_window"])
            return near if back else near | ~Causal()
        case "sliding_window_bidirectional_overlay":
            return window(held["sliding_window"] + 1)
        case "chunked_overlay":
            places = torch.arange(keys, device=held["left_padding"].device)
            chunks = (places - held["left_padding"][:, None]).div(held["chunk_size"], rounding_mode="floor")
            return Documents(chunks.long())
        case "padding_mask_function":
            return padded(filled(held["padding_mask"], keys))
        case "packed_sequence_mask_function":
            return Documents(held["packed_sequence_mask"].long()[:, :keys])
        case "blockwise_overlay":  # -1 is no block; so that it is none, queries and keys call it by other names
            ids: Int[Tensor, "batch key"] = held["block_sequence_ids"].long()
            asking = ids[:, place.query : place.query + place.queries]
            return Documents(ids[:, :keys], asking.masked_fill(asking < 0, -2))
    return None


def _name(function: Any) -> str | None:
    """Of a function of transformers, or of the one that made it; None for those of others."""
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return None
    return str(function.__qualname__).partition(".")[0]


def _held(function: Any) -> dict[str, Any]:
    """What a function that another made holds of it."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _theirs(name: str) -> MaskFunction:
    from transformers import masking_utils

    function: MaskFunction = getattr(masking_utils, name)
    return function
