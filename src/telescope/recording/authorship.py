"""Ask the residual stream of a recording: why a head looks somewhere, what it writes, what a state
would say.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..attribution import CallColumns, Cell, Labels, LostError, StreamLog, Streams, Why, split_score
from ..attention import key_heads_of
from ..words import check_index, hint
from .names import select_layers
from .queries_keys_call import StepsCall, one_head
from .recorded_call import RecordedCall
from .row_in_float64 import row_in_float64
from .sources import token_texts

Decode = Callable[[list[int]], str] | None


class Asked:
    """One attention of a recording that keeps its residual stream."""

    def __init__(
        self,
        attentions: Mapping[str, Sequence[RecordedCall]],
        log: StreamLog | None,
        layer: str | SupportsIndex,
        sequence: SupportsIndex,
        what: str,
    ) -> None:
        names = select_layers(list(attentions), layer)  # type: ignore[arg-type]
        if len(names) > 1:
            raise ValueError(f"layer={layer!r} names {len(names)} attentions: {', '.join(names)}")
        self.name = names[0]
        calls = attentions[self.name]
        if not calls:
            raise ValueError(f'"{self.name}" was not called while it was watched')
        self.number = len(calls) - 1
        if self.number:
            raise ValueError(
                f'"{self.name}" was called for {len(calls)} sequences; {what} takes a recording of '
                "one run"
            )
        found = calls[0]
        if not isinstance(found, StepsCall):
            raise ValueError(
                f'{what} needs queries, keys, values and the residual stream, and keep="'
                f'{found.keep}" kept less; record with ts.watch(model, keep="steps")'
            )
        if log is None:
            raise ValueError(
                f"{what} reads the residual stream with the weights of the model, which a recording "
                "that was opened does not have; record the model again"
            )
        self.call = found
        self.log = log
        self.sequence = check_index("sequence", sequence, found.facts.shape[0])
        self.columns = found.text_columns(self.sequence)
        self.streams = Streams(log, self.sequence)
        self.labels = Labels(list(attentions))

    @property
    def place(self) -> CallColumns:
        return CallColumns(self.name, self.number, self.call.size, self.call.across)

    def query_column(self, position: SupportsIndex, argument: str = "query") -> int:
        """Return the column of a query, given by its position among the sequence's own tokens."""
        own = self.columns.queries
        return own[check_index(argument, position, len(own), of=f'"{self.name}"')]

    def key_column(self, position: SupportsIndex) -> int:
        own = self.columns.keys
        return own[check_index("key", position, len(own), of=f'"{self.name}"')]

    def token(self, side: str, column: int, decode: Decode, token_name: Any) -> str:
        """Return what a token is called: its text, or its position."""
        ids = self.call.query_ids if side == "query" else self.call.key_ids
        own = self.columns.queries if side == "query" else self.columns.keys
        position = column - own.start
        if ids is None or decode is None:
            return f"{side} {position}"
        row = ids[self.sequence, own.start : own.stop].tolist()
        text = token_texts(row, len(row), decode, token_name)[position].strip()
        return text or f"{side} {position}"


@torch.no_grad()
def why(
    asked: Asked,
    head: SupportsIndex,
    query: SupportsIndex,
    key: SupportsIndex,
    decode: Decode = None,
    token_name: Any = None,
) -> Why:
    """Return one score as the sum of its terms; see `Recording.why`."""
    call = asked.call
    place = call.head_index(head)
    asked_at = asked.query_column(query)
    answered_at = asked.key_column(key)
    if asked_at not in call.rows:
        raise ValueError(f"query={query} was not kept: queries= of ts.watch selects others")
    row = call.rows.index(asked_at)
    one = one_head(call, head, asked.sequence)
    steps = row_in_float64(one, row, torch.tensor([answered_at], device=one.queries.device)).steps
    count = len(call.heads)
    group = count // call.keys.shape[1] if count >= call.keys.shape[1] else 1
    cell = Cell(
        asked.place,
        place,
        call.heads[place],
        asked_at,
        answered_at,
        {"query": _ran_at_query(asked, asked_at), "key": _ran_at_key(asked, answered_at)},
        call.attention,
        group,
        float(steps["masked"][0]),
        float(steps["weights"][0]),
    )
    names = (
        asked.token("query", asked_at, decode, token_name),
        asked.token("key", answered_at, decode, token_name),
    )
    return split_score(asked.streams, cell, names, asked.labels)


def _ran_at_query(asked: Asked, column: int) -> dict[str, Tensor]:
    """Return the recorded query of a token and, in self-attention, its key."""
    call = asked.call
    found = {"query": call.queries[asked.sequence, :, call.rows.index(column)].double()}
    if not call.across:
        own = column + call.size[1] - call.size[0]
        found["key"] = call.keys[asked.sequence, :, own].double()
    return found


def _ran_at_key(asked: Asked, column: int) -> dict[str, Tensor]:
    """Return the recorded key of a token and, in self-attention, its query where it was kept."""
    call = asked.call
    found = {"key": call.keys[asked.sequence, :, column].double()}
    own = column - (call.size[1] - call.size[0])
    if not call.across and own in call.rows:
        found["query"] = call.queries[asked.sequence, :, call.rows.index(own)].double()
    return found


__all__ = ["Asked", "LostError", "hint", "key_heads_of", "why"]
