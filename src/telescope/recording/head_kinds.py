"""What heads do by habit: which part of their weight goes where, and at how many keys they look."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import punctuation

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .head_shares import COUNTS, NAMES, Places, Text, counted
from .kept import Call, Summaries

Decode = Callable[[list[int]], str]
IsMark = Callable[[int], bool]
HABITS = ("itself", "previous", "first", "sink", "same", "induction", "punctuation", "far")


@dataclass(frozen=True)
class Measured:
    """Of every head of a call: what is averaged, summed up, and the weights of the average. Those of several calls add
    up. NaN where a habit has no meaning or is not known."""

    sums: dict[str, Float[Tensor, " heads"]]
    of: dict[str, Float[Tensor, " heads"]]


def measured(call: Call, is_mark: IsMark | None) -> Measured:
    """Measure where the model ran, wherever its numbers are kept: a CPU would take longer for this than a GPU for the
    model."""
    seen, device = call.survey().summary, call.facts.device
    places = _places(call)
    shares = call.shares(places)
    received, entropy = (it.to(device, torch.float64) for it in (seen.received, seen.entropy))
    chooses = counted(call.kept_attention(), seen, places).to(device)
    sums = dict(zip((*NAMES, *COUNTS), shares.to(device).sum(0).T, strict=True))
    choosing, repeated, given = chooses.sum((0, 2)).double(), sums.pop("repeated"), received.sum((0, 2))
    del sums["queries"]
    sums["sink"] = _sink(received, places.first)
    sums["punctuation"] = _punctuation(call, received, is_mark)
    sums["spread"] = entropy.exp().masked_fill(~chooses, 0.0).sum((0, 2))
    of = dict.fromkeys(NAMES, choosing) | {"same": repeated, "induction": repeated}
    of |= {"sink": given, "punctuation": given, "spread": choosing}
    return Measured(*({name: it.cpu() for name, it in some.items()} for some in (sums, of)))


def _places(call: Call) -> Places:
    """Where its queries and keys stand; of a call that was summed up while it ran, no more than is needed to count."""
    (batch, *_), (queries, keys), rows, told = call.facts.shape, call.size, call.facts.rows, isinstance(call, Summaries)
    return Places.of(
        call.attention,
        batch=batch,
        heads=len(call.heads),
        size=call.size,
        positions=None if rows is None else tuple(keys - queries + row for row in rows),
        across=call.across,
        text=None if told or call.key_ids is None else Text(call.key_ids.to(call.facts.device)),
        lists=not told,
        device=call.facts.device,
    )


def _sink(received: Float[Tensor, "batch heads key"], first: Int[Tensor, "#batch"]) -> Float[Tensor, " heads"]:
    """What the key that receives most is given, the first left out."""
    key = torch.arange(received.shape[-1], device=received.device)
    others = received.masked_fill((key == first.to(received.device)[:, None])[:, None], 0.0)
    return others.amax(-1).sum(0) if others.shape[-1] else others.sum((0, 2))


def _punctuation(
    call: Call, received: Float[Tensor, "batch heads key"], is_mark: IsMark | None
) -> Float[Tensor, " heads"]:
    if is_mark is None or call.key_ids is None:
        return received.new_full((received.shape[1],), torch.nan)
    ids = call.key_ids.to(received.device)
    marks = [number for number in torch.unique(ids).tolist() if is_mark(number)]
    at_mark = torch.isin(ids, ids.new_tensor(marks))
    return (received * at_mark[:, None]).sum((0, 2))


def marks_of(decode: Decode) -> IsMark:
    """Which tokens are punctuation. Each is decoded once, since every layer asks."""
    return cache(lambda number: _is_mark(decode([number])))


def _is_mark(text: str) -> bool:
    bare = text.strip(" \t\r\nĠ▁Ċ")
    return bool(text) and all(letter in punctuation + "…–—«»“”‘’„" for letter in bare)
