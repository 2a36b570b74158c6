"""Ask the residual stream of a recording: why a head looks somewhere, what it writes, what a state
would say.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..authors import (
    Author,
    CallColumns,
    Cell,
    Labels,
    LaterCall,
    Lens,
    Pushes,
    Readers,
    SplitHead,
    SplitKeys,
    StreamLog,
    Streams,
    Why,
    Writes,
    find_readers,
    less,
    push_logits,
    read_states,
    split_logits,
    split_score,
)
from ..traces import token_label
from ..words import check_index, hint, whole_number
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
        names = select_layers(list(attentions), layer)
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
                f"{what} reads the residual stream with the weights of the model, which a "
                "recording that was opened does not have; record the model again"
            )
        self.call = found
        self.log = log
        self.sequence = check_index("sequence", sequence, found._facts.shape[0])
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

    def next_token(self, column: int) -> int | None:
        """Return the id of the token after a query, where the text goes on."""
        ids = self.call.query_ids
        after = column + 1
        if ids is None or after >= self.columns.queries.stop:
            return None
        return int(ids[self.sequence, after])

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
    against: SupportsIndex | None,
    decode: Decode,
    token_name: Any,
) -> Why:
    """Return one score as the sum of its terms; see `Recording.why`."""
    found = _score(asked, head, query, key, decode, token_name)
    if against is None:
        return found
    return less(found, _score(asked, head, query, against, decode, token_name))


def _score(
    asked: Asked,
    head: SupportsIndex,
    query: SupportsIndex,
    key: SupportsIndex,
    decode: Decode,
    token_name: Any,
) -> Why:
    call = asked.call
    place = call._head_index(head)
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


# ------------------------------------------------------------------------------------------ readers


@torch.no_grad()
def readers(
    asked: Asked,
    attentions: Mapping[str, Sequence[RecordedCall]],
    head: SupportsIndex,
    query: SupportsIndex,
    key: SupportsIndex,
    decode: Decode,
    token_name: Any,
) -> Readers:
    """Return which later heads read what a head wrote; see `Recording.readers`."""
    query_at = asked.query_column(query)
    # Positions are those of the head's own stack, whose later attentions read themselves.
    key_at = asked.columns.queries[check_index("key", key, len(asked.columns.queries))]
    number = asked.call.heads[asked.call._head_index(head)]
    names = list(attentions)
    later = []
    for name in names[names.index(asked.name) + 1 :]:
        if not attentions[name] or not asked.streams.is_beside(name, asked.name):
            continue
        own = Asked(attentions, asked.log, name, asked.sequence, "readers()")
        call = own.call
        if call.across:
            continue
        shift = call.size[1] - call.size[0]
        later.append(
            LaterCall(
                own.place,
                query_at,
                key_at + shift,
                {
                    "query": _ran_at_query(own, query_at),
                    "key": _ran_at_key(own, key_at + shift),
                },
                call.attention,
                call.heads,
                max(len(call.heads) // call.keys.shape[1], 1),
            )
        )
    tokens = (
        asked.token("query", query_at, decode, token_name),
        asked.token("query", key_at, decode, token_name),
    )
    author = Author("head", asked.name, number)
    return find_readers(asked.streams, author, later, tokens, asked.labels)


# ------------------------------------------------------------------------------------------- writes


@torch.no_grad()
def writes(
    asked: Asked,
    layers: Collection[str],
    head: SupportsIndex | None,
    position: SupportsIndex,
    tokens: Sequence[int | str] | int | str | None,
    against: int | str | None,
    decode: Decode,
    token_name: Any,
) -> Writes:
    """Return what each author adds to the logits after a token; see `Recording.writes`."""
    column = asked.query_column(position, "position")
    words = Words(decode, token_name)
    split = None
    names: Sequence[str] = ()
    number = None
    if head is not None:
        split, names, _ = _split_head(asked, head, column, decode, token_name)
        number = asked.call.heads[asked.call._head_index(head)]
    following = asked.next_token(column)

    def choose(logits: Tensor) -> list[int]:
        count = len(logits)
        given = [tokens] if isinstance(tokens, int | str) else tokens
        if given is not None:
            chosen = [words.id_of("tokens", one, count) for one in given]
        else:
            chosen = [int(logits.argmax()) if following is None else following]
        if against is not None:
            return [chosen[0], words.id_of("against", against, count)]
        if given is not None:
            return chosen
        # The rival of a token is the likeliest of the others.
        order = logits.topk(min(2, count)).indices.tolist()
        return [chosen[0], *[one for one in order if one != chosen[0]][:1]]

    def is_shown(author: Author) -> bool:
        if number is not None:
            return author.kind == "key"
        return author.name in layers if layers else True

    is_difference = against is not None or tokens is None
    return split_logits(
        asked.streams,
        asked.place,
        column,
        choose,
        words.name,
        asked.labels,
        asked.token("query", column, decode, token_name),
        is_shown=is_shown,
        is_difference=is_difference,
        split=split,
        key_names=names,
    )


def _split_head(
    asked: Asked, head: SupportsIndex, column: int, decode: Decode, token_name: Any
) -> SplitKeys:
    """Return a head's weights times its values at one query, with the names and positions of its
    keys.
    """
    call = asked.call
    place = call._head_index(head)
    if column not in call.rows:
        raise ValueError(f'"{asked.name}" did not keep this query: queries= selects others')
    found = row_in_float64(one_head(call, head, asked.sequence), call.rows.index(column))
    assert found.value is not None
    contexts = found.steps["weights"][:, None] * found.value
    names = [asked.token("key", key, decode, token_name) for key in found.keys.tolist()]
    # Of a long text, the keys with small weights are one.
    if found.rest is not None:
        contexts = torch.cat([contexts, found.rest[None]])
        names.append("other keys")
    # One name, one key: words that stand twice have their position.
    counted = Counter(names)
    first = asked.columns.keys.start
    positions: list[int | None] = [key - first for key in found.keys.tolist()]
    positions += [None] * (len(names) - len(positions))
    names = [
        name if counted[name] == 1 else f"{name} [{at}]"
        for name, at in zip(names, positions, strict=True)
    ]
    return SplitKeys(SplitHead(asked.name, call.heads[place], contexts), names, positions)


@torch.no_grad()
def pushes(
    asked: Asked,
    head: SupportsIndex,
    position: SupportsIndex,
    top: int,
    decode: Decode,
    token_name: Any,
) -> Pushes:
    """Return the tokens that a head pushes up and down; see `Recording.pushes`."""
    if whole_number("top", top) < 1:
        raise ValueError(f"top={top} names no token; 1 is the least")
    column = asked.query_column(position, "position")
    split = _split_head(asked, head, column, decode, token_name)
    after = asked.token("query", column, decode, token_name)
    name_of = Words(decode, token_name).name
    return push_logits(asked.streams, asked.place, column, split, name_of, after, top)


class Words:
    """The tokens of a vocabulary by id, and ids by their text."""

    def __init__(self, decode: Decode, token_name: Any) -> None:
        self.decode = decode
        self.token_name = token_name

    def name(self, token: int) -> str:
        if self.decode is None:
            return str(token)
        return self.decode([token]).strip() or token_label(token, self.decode, self.token_name)

    def id_of(self, argument: str, given: int | str, count: int) -> int:
        """Return the id of a token, given by id or text; raise a ValueError if it is not in a
        vocabulary of `count`.
        """
        if not isinstance(given, str):
            if not 0 <= whole_number(argument, given) < count:
                raise ValueError(
                    f"{argument}={given} is no token: the vocabulary has ids 0 to {count - 1}"
                )
            return int(given)
        if self.decode is None:
            raise ValueError(
                f"{argument}={given!r} is text, and the recording has no tokenizer; give the id, "
                "or ts.watch(tokenizer=...)"
            )
        texts = [self.decode([token]) for token in range(count)]
        # A token with a space in front is the word within a text.
        for wanted in (given, f" {given}", given.strip()):
            found = [i for i, text in enumerate(texts) if text in (wanted, f" {wanted}")]
            if found:
                return found[-1] if f" {given}" in (texts[found[-1]],) else found[0]
        raise ValueError(
            f"{argument}={given!r} is no single token of the vocabulary; "
            f"{hint(given, [text.strip() for text in texts if text.strip()][:50_000])}"
        )


# --------------------------------------------------------------------------------------------- lens


@torch.no_grad()
def lens(
    asked: Asked,
    attentions: Mapping[str, Sequence[RecordedCall]],
    position: SupportsIndex,
    token: int | str | None,
    top: int,
    decode: Decode,
    token_name: Any,
) -> Lens:
    """Return what each state of the stream would say; see `Recording.lens`."""
    words = Words(decode, token_name)
    column = asked.query_column(position, "position")
    following = asked.next_token(column)
    calls = [
        (asked.labels.attention(name), CallColumns(name, 0, own[0].size, own[0].across), column)
        for name, own in attentions.items()
        if own
        and own[0].size[0] == asked.call.size[0]
        and asked.streams.is_beside(name, asked.name)
    ]

    def choose(logits: Tensor) -> int:
        if token is not None:
            return words.id_of("token", token, len(logits))
        return int(logits.argmax()) if following is None else following

    after = asked.token("query", column, decode, token_name)
    return read_states(asked.streams, calls, choose, words.name, after, top)
