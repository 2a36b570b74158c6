"""Compute what each key gets from some rows of recorded calls, for `recording.sources`.

Layers that are alike are computed as one, stacked along the batch axis. Nothing here waits for a
GPU: which rows count is known on the host.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, restrict_to_queries, restrict_to_sequences
from ..engines import torch_modes
from ..surveys import choose, compute_dtype, weigh
from .recorded_call import RecordedCall
from .source_question import NotKeptError, Question
from .staging import most_at_once


class Rows(NamedTuple):
    """Some queries of a call, and how much each counts."""

    rows: Sequence[int]
    """Their numbers, rising; a range where they are neighbours."""
    factors: Float[Tensor, " row"]


class Fetched(NamedTuple):
    """What a layer's matrix is computed from."""

    queries: Tensor
    keys: Tensor
    lse: Tensor | None


def need(call: RecordedCall, how: str, part: str, keep: str) -> None:
    """Raise a NotKeptError if a recording kept too little."""
    if part not in call._kept:
        raise NotKeptError(
            f'sources(how="{how}") needs {part}, which were not kept: ts.watch(model, {keep}) '
            "keeps them"
        )


def head_places(question: Question, call: RecordedCall) -> list[int]:
    """Return the places of the heads that were asked for, all unless some were."""
    if question.heads is None:
        return list(range(len(call.heads)))
    places = [call._head_index(number) for number in question.heads]
    # Two numbers may be one head: -1 and the last.
    if len({*places}) < len(places):
        raise ValueError(
            f'heads={[*question.heads]} names a head of "{call.name}" twice; name each once'
        )
    return places


def head_index(question: Question, call: RecordedCall) -> list[int] | slice:
    """Return `head_places` as an index; all heads are a slice, which needs no copy to a GPU."""
    return slice(None) if question.heads is None else head_places(question, call)


def span_weights(
    question: Question, calls: Sequence[RecordedCall], how: str
) -> Iterator[tuple[list[RecordedCall], Float[Tensor, "call head token"]]]:
    """Yield calls that are alike, with what each key gets from the rows of the span on average, for
    the heads that were asked for.
    """
    alike: dict[Hashable, list[RecordedCall]] = {}
    for call in calls:
        need(call, how, "queries", 'keep="queries-keys"')
        alike.setdefault(_kind(call), []).append(call)
    count = len(question.rows)
    for group in alike.values():
        call = group[0]
        # The position of the first query; in cross-attention, queries have none among the keys.
        first = 0 if call.across else call.size[1] - call.size[0]
        factors = torch.full((count,), 1.0 / count, dtype=torch.float64, device=call._facts.device)
        rows = Rows(range(question.rows[0] - first, question.rows[-1] - first + 1), factors)
        # The keys of one sequence are copied where several layers are stacked.
        _, heads, length, width = call._kept["keys"].shape
        most = most_at_once(call._facts.device, heads * length * width * call._facts.dtype.itemsize)
        for start in range(0, len(group), max(most, 1)):
            some = group[start : start + max(most, 1)]
            yield some, row_weights(question, some, how, rows)


def _kind(call: RecordedCall) -> Hashable:
    """Return a key that is the same for calls whose rows can be computed as one."""
    facts = call._facts
    # A definition without tensors is compared by value, others by the identity of theirs.
    plain = facts.attention._has_no_tensors
    return (
        facts.device,
        facts.dtype,
        facts.size,
        None if facts.rows is None else tuple(facts.rows),
        facts.heads,
        call.across,
        facts.attention if plain else facts.attention._identity,
        call._kept["queries"].shape,
        call._kept["keys"].shape,
        "lse" in call._kept,
    )


def row_weights(
    question: Question,
    calls: Sequence[RecordedCall],
    how: str,
    chosen: Rows,
    fetched: Fetched | None = None,
) -> Float[Tensor, "call head token"]:
    """Return what each key of one sequence gets from some rows, each with its factor, for the heads
    that were asked for; float64.

    The calls are alike. `fetched` are queries, keys and lse of the only call, where they were
    copied to the device already.
    """
    call = calls[0]
    device = call._facts.device
    heads = head_index(question, call)
    one = slice(question.sequence, question.sequence + 1)
    which = _places(call, chosen.rows, how)
    own = [fetched] if fetched else [Fetched(each.queries, each.keys, each.lse) for each in calls]

    # Compute on the model's device, wherever the tensors were kept.
    queries = _stacked([each.queries[one][:, :, which] for each in own], device)
    keys = _stacked([each.keys[one] for each in own], device)
    lses = [each.lse[one][:, :, which] for each in own if each.lse is not None]
    lse = _stacked(lses, device) if lses else None
    attention = _restricted(question, call, chosen.rows, len(calls))
    # A caller's autocast must not change the precision of the result.
    with torch_modes.without_autocast(device):
        engine = choose(queries, keys, attention, 0, None)
        given = chosen.factors.to(device, compute_dtype(queries))[None, None, None]
        found = weigh(engine, queries, keys, attention, lse, given)
    return found[:, heads, 0].double()


def _stacked(
    parts: Sequence[Float[Tensor, "one heads *rest"]], device: torch.device
) -> Float[Tensor, "call heads *rest"]:
    """Return tensors along the batch axis, on a device."""
    moved = [part.to(device, non_blocking=True) for part in parts]
    return moved[0] if len(moved) == 1 else torch.cat(moved)


def _restricted(
    question: Question, call: RecordedCall, rows: Sequence[int], count: int
) -> Attention:
    """Return the attention of these rows for `count` calls; the same object for layers of one
    definition, whose masks are read once.
    """
    # One definition may be asked for with other rows, so that size and rows are compared, too.
    which = (call.size, rows, count)
    attention = call.attention
    known = question.restricted.get(id(attention))
    if known is None or known[0] != which:
        made = attention
        # A mask of all rows serves as it is.
        if len(rows) < call.size[0]:
            made = restrict_to_queries(made, torch.tensor(rows), call.size)
        sequences = torch.tensor([question.sequence] * count)
        made = restrict_to_sequences(made, sequences, call._facts.shape[0])
        # Keep the definition: its identity is the key of the cache.
        known = which, attention, made
        question.restricted[id(attention)] = known
    return known[2]


def _places(call: RecordedCall, rows: Sequence[int], how: str) -> slice | list[int]:
    """Return where the queries of these rows stand among those that were kept; raise a NotKeptError
    if one does not.
    """
    places = rows
    if call._facts.rows is not None:
        # The recording kept some queries: find each wanted row among them.
        place = {row: place for place, row in enumerate(call._facts.rows)}
        missing = next((row for row in rows if row not in place), None)
        if missing is not None:
            first = 0 if call.across else call.size[1] - call.size[0]
            raise NotKeptError(
                f'sources(how="{how}") needs the query of token {missing + first + 1} of '
                f'"{call.name}", which was not '
                "kept: leave queries= out of ts.watch"
            )
        places = [place[row] for row in rows]
    # A slice selects neighbours without a copy to a GPU.
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(places[0], places[-1] + 1)
    return [*places]
