"""What a head does by habit, measured on its summary: where its largest weights go, and how many keys it looks at.

Shares are means over the queries that have something to choose from. Those by place and by token are sums over the
`top` weights that were kept: what is larger than 1/(top + 1) is always among them, so a habit does not escape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import nan
from string import punctuation

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kept import Call

Decode = Callable[[list[int]], str]
IsMark = Callable[[int], bool]
FAR = 64  # tokens back, or a quarter of a shorter text
HABITS = ("itself", "previous", "first", "same", "induction", "punctuation", "far")


@dataclass(frozen=True)
class Measured:
    """Of every head of a call: (heads,) each, NaN where it has no meaning or the tokens are not known."""

    itself: Float[Tensor, " heads"]
    """at its own place"""
    previous: Float[Tensor, " heads"]
    """at the token before"""
    first: Float[Tensor, " heads"]
    """at the first token there is, where weight goes that nothing needs"""
    same: Float[Tensor, " heads"]
    """at the same token, earlier"""
    induction: Float[Tensor, " heads"]
    """at what followed the same token, earlier"""
    punctuation: Float[Tensor, " heads"]
    """at punctuation, of all that is given"""
    far: Float[Tensor, " heads"]
    """more than 64 tokens back, or a quarter of a shorter text"""
    spread: Float[Tensor, " heads"]
    """exp(entropy): at about how many keys it looks"""
    queries: int
    """how many were measured"""


def measured(call: Call, is_mark: IsMark | None) -> Measured:
    """Where the model ran, wherever its numbers are kept: a CPU would take longer for this than a GPU for the model."""
    seen, device = call.survey().summary, call.facts.device
    weights, received, entropy = (it.to(device) for it in (seen.top_weights, seen.received, seen.entropy))
    keys = seen.top_keys.to(device).long()
    batch, heads, rows, top = weights.shape
    (queries, count), across = call.size, _looks_across(call)
    kept = torch.arange(queries) if call.facts.rows is None else torch.tensor(call.facts.rows)
    place = kept.to(device).reshape(1, 1, -1, 1) + (count - queries)
    looked_at = received.sum(1) > 0
    first = looked_at.int().argmax(-1).reshape(-1, 1, 1, 1)  # behind padding
    chooses = torch.ones_like(first) > 0 if across else place > first
    chooses = (chooses & (entropy[..., None] >= 0)).expand(batch, heads, rows, 1)
    if top:
        chooses = chooses & (keys[..., :1] >= 0)
    if not across:  # padding asks too, and nobody looks at it
        chooses = chooses & looked_at[:, place[0, 0, :, 0]][:, None, :, None]
    total = chooses.sum((0, 2, 3)).clamp(min=1)
    counted = weights * (chooses & (keys >= 0))
    unknown = entropy.new_full((heads,), nan)

    def share(where: Bool[Tensor, "#batch #heads row top"]) -> Float[Tensor, " heads"]:
        return (counted * where).sum((0, 2, 3)) / total if top else unknown

    tokens = _tokens(call, place[0, 0, :, 0])
    shares = {
        "itself": unknown if across else share(keys == place),
        "previous": unknown if across else share(keys == place - 1),
        "first": share(keys == first),
        "same": unknown if tokens is None else share(_same(keys, place, *tokens)),
        "induction": unknown if tokens is None else share(_followed(keys, place, *tokens)),
        "punctuation": _punctuation(call, received, is_mark),
        "far": unknown if across else share(place - keys > min(FAR, count // 4)),
        "spread": (entropy.exp()[..., None] * chooses).sum((0, 2, 3)) / total,
    }
    return Measured(**{name: it.cpu() for name, it in shares.items()}, queries=int(chooses[:, :1].sum()))


def _looks_across(call: Call) -> bool:
    """Whether its keys are another sequence."""
    return "key_ids" in call.parts or call.size[0] > call.size[1] or (call.size[0] < call.size[1] and _open(call))


def _open(call: Call) -> bool:
    return call.attention.mask.keys_alone


Tokens = tuple[Int[Tensor, "batch row"], Int[Tensor, "batch key"]]


def _tokens(call: Call, place: Int[Tensor, " row"]) -> Tokens | None:
    """Those of the queries that were kept, and of all keys, where both are one text."""
    if _looks_across(call) or call.key_ids is None:
        return None
    ids = call.key_ids.to(place.device)
    return ids[:, place], ids


def _of(ids: Int[Tensor, "batch key"], keys: Int[Tensor, "batch heads row top"]) -> Int[Tensor, "batch heads row top"]:
    flat = keys.clamp(min=0).flatten(1)
    return ids.gather(1, flat).view(keys.shape)


def _same(keys: Tensor, place: Tensor, asking: Tensor, ids: Tensor) -> Bool[Tensor, "batch heads row top"]:
    return (_of(ids, keys) == asking[:, None, :, None]) & (keys < place)


def _followed(keys: Tensor, place: Tensor, asking: Tensor, ids: Tensor) -> Bool[Tensor, "batch heads row top"]:
    return (_of(ids, keys - 1) == asking[:, None, :, None]) & (keys > 0) & (keys < place)


def _punctuation(
    call: Call, received: Float[Tensor, "batch heads key"], is_mark: IsMark | None
) -> Float[Tensor, " heads"]:
    if is_mark is None or call.key_ids is None:
        return received.new_full((received.shape[1],), nan)
    ids = call.key_ids.to(received.device)
    marks = [number for number in torch.unique(ids).tolist() if is_mark(number)]
    at_mark = torch.isin(ids, ids.new_tensor(marks))
    return (received * at_mark[:, None]).sum((0, 2)) / received.sum((0, 2)).clamp(min=1e-30)


def marks_of(decode: Decode) -> IsMark:
    """Which tokens are punctuation. Each is decoded once, since every layer asks."""
    return cache(lambda number: _is_mark(decode([number])))


def _is_mark(text: str) -> bool:
    bare = text.strip(" \t\r\nĠ▁Ċ")
    return bool(text) and all(letter in punctuation + "…–—«»“”‘’„" for letter in bare)
