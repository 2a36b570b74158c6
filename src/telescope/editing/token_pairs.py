"""Which tokens of a running call stand for which tokens of a recording.

Positions count the tokens of each sequence from 0, without padding, on both sides. Without a map, a
token stands for the recorded token at its position, and the two texts have to be equally long.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import WrittenMask, real_tokens
from ..recording import AttentionCall, RecordedCall
from .edits import EditedCall
from .prompts import Place

Side = Literal["query", "key"]
"""Whether tokens are meant as queries or as keys."""
Alignment = tuple[int, ...]
"""The recorded position of each position of this run; -1 for positions that stay as they are."""


class TokenPairs(NamedTuple):
    """Tokens of a running call, and the recorded tokens that stand for them."""

    rows: Int[Tensor, " pair"]
    """Rows of the call's batch."""
    columns: Int[Tensor, " pair"]
    """Indices of the call's queries, or of its keys."""
    sequences: Int[Tensor, " pair"]
    """Sequences of the recorded batch."""
    recorded: Int[Tensor, " pair"]
    """Indices of the recorded queries, or keys."""

    def to(self, device: torch.device) -> "TokenPairs":
        """Return the pairs on a device."""
        return TokenPairs(*(part.to(device) for part in self))

    def of_call(self, heads: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices into (batch, head, token) of the call, which select (pair, head)."""
        return self.rows[:, None], _row(heads, self.rows), self.columns[:, None]

    def of_recording(self, heads: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices into (sequence, head, token) of the recording, likewise."""
        return self.sequences[:, None], _row(heads, self.rows), self.recorded[:, None]


def _row(heads: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(list(heads), dtype=torch.long, device=like.device)[None]


class CallTokens(NamedTuple):
    """The queries, or the keys, of a running call, as tokens of their texts."""

    indices: Int[Tensor, " token"]
    """Where each token stands in its whole text, padding included."""
    positions: Int[Tensor, "row token"]
    """Where each token stands in its text, without padding in front, whose positions are
    negative.
    """
    counts: Bool[Tensor, "row token"] | None
    """Which tokens are no padding; None if all are none, or if their text goes on."""
    sequences: list[int]
    """The sequence of the prompt that each row of the batch belongs to."""
    begins: bool
    """Whether the text begins with this call."""
    lengths: list[int]
    """How many tokens the text of each row has that the model was given, as far as is known."""

    @classmethod
    def of(cls, call: AttentionCall, place: Place, side: Side) -> "CallTokens":
        """Read the tokens of a call, which has no unwritten keys."""
        batch, heads = call.queries.shape[:2]
        queries, keys = call.size
        prompt = place.prompt
        across = call.is_cross_attention
        device = call.queries.device
        of_queries = side == "query"

        # Where the tokens stand in their whole text.
        # Where a mask is made for the whole of a cache of fixed size, the text ends before it.
        mask = call.attention.mask
        end = int(mask.numbering.length) if isinstance(mask, WrittenMask) else keys
        first_query = (place.positions or [0])[0] if across else end - queries
        if not of_queries:
            indices = torch.arange(call.evicted, keys)
        elif across:
            indices = torch.tensor(place.positions or range(queries))
        else:
            indices = torch.arange(first_query, end)

        # Subtract the padding in front, of the sequence that each row continues.
        first = prompt.first_query if across and of_queries else prompt.first
        rows = place.rows(call) if prompt.batch > 1 else [0] * batch
        sequences = list(range(batch)) if rows is None else rows
        padding = torch.tensor([0 if first is None else first[own] for own in sequences])
        positions = indices[None] - padding[:, None]

        # Padding behind the text is known while the prompt is read.
        counts: Tensor | None = None
        if place.reads_prompt and of_queries:
            real = place.real_queries(call)
            counts = None if real is None else real[:, 0, :, 0].expand(batch, queries)
        elif place.reads_prompt and across:
            size = call.size
            counts = real_tokens(
                call.attention, batch=batch, heads=heads, size=size, across=True, device=device
            )[1]
        elif place.reads_prompt:
            table = place.real.table(batch, heads, device)
            counts = None if table is None else table[:, call.evicted :]
        counts = None if counts is None else counts.cpu()

        # Count the tokens of each text.
        if counts is not None and (place.reads_all or (across and not of_queries)):
            lengths = counts.sum(1).tolist()
        else:
            whole = prompt.queries if across and of_queries else prompt.keys
            lengths = (whole - padding).tolist()
        return cls(indices, positions, counts, sequences, first_query == 0, lengths)


def pair_tokens(
    kind: str,
    at: EditedCall,
    call: AttentionCall,
    recorded: RecordedCall,
    side: Side,
    align: Alignment | None,
    ranges: Sequence[Sequence[tuple[int, int | None]]] | None = None,
) -> TokenPairs:
    """Return the pairs of tokens for an edit of a call; those without a recorded token are left
    out.

    Args:
        kind: of the edit, for errors.
        call: without unwritten keys.
        align: the recorded position of each position; None where they are the same.
        ranges: the tokens that are meant, by their indices in each sequence of the prompt; None
            is all.

    Raises:
        ValueError: the texts differ in length and there is no map, the map names a position that
            was not recorded, or the batches do not fit.
    """
    assert at.place is not None
    tokens = CallTokens.of(call, at.place, side)
    texts = recorded_texts(recorded, side)
    own = at.own.sequences
    running = range(at.place.prompt.batch) if own is None else own
    if len(texts) not in (1, len(running)):
        raise ValueError(
            f'{kind}: the recording of "{at.name}" has {len(texts)} sequences, and this run has '
            f"{len(running)}; record one text for all, or one for each"
        )

    parts: list[TokenPairs] = []
    for row, sequence in enumerate(tokens.sequences):
        if sequence not in running:
            continue
        number = 0 if len(texts) == 1 else sequence - running.start
        text = texts[number]
        if align is None:
            if tokens.begins:
                _check_length(kind, at.name, tokens.lengths[row], text)
            wanted = tokens.positions[row]
        else:
            _check_map(kind, at.name, align, text)
            wanted = _look_up(align, tokens.positions[row])
        # Leave out padding, what the recording has not, and what is not meant.
        there = wanted + text.first
        kept = (tokens.positions[row] >= 0) & (wanted >= 0)
        kept &= (there >= 0) & (there < text.stop)
        if tokens.counts is not None:
            kept &= tokens.counts[row]
        if ranges is not None:
            kept &= _inside(tokens.indices, ranges[sequence])
        columns = kept.nonzero().flatten()
        parts.append(
            TokenPairs(
                torch.full_like(columns, row),
                columns,
                torch.full_like(columns, number),
                there[columns],
            )
        )
    if not parts:
        return TokenPairs(*(torch.zeros(0, dtype=torch.long) for _ in range(4)))
    return TokenPairs(*map(torch.cat, zip(*parts, strict=True)))


class RecordedText(NamedTuple):
    """The queries, or the keys, of one recorded sequence."""

    first: int
    """Index of the token at position 0; negative if the recording began after it."""
    stop: int
    """Index after the last token."""
    given: int
    """How many tokens the model was given; those after them were generated."""

    @property
    def length(self) -> int:
        """How many tokens the text has."""
        return self.stop - self.first


def recorded_texts(recorded: RecordedCall, side: Side) -> list[RecordedText]:
    """Return where the tokens of each recorded sequence are."""
    queries, keys = recorded.size
    # In self-attention the last query is the last key.
    ahead = 0 if recorded.across else keys - queries
    given = recorded._facts.prompt
    texts = []
    for columns in recorded._all_text_columns():
        # In self-attention, the columns of the keys count the tokens before the first query, too.
        own = columns.queries if recorded.across and side == "query" else columns.keys
        shift = ahead if side == "query" else 0
        end = own.stop if given is None else min(own.stop, given + ahead)
        if recorded.across and side == "key":
            end = own.stop
        texts.append(RecordedText(own.start - shift, own.stop - shift, end - own.start))
    return texts


def _check_length(kind: str, name: str, length: int, text: RecordedText) -> None:
    """Raise a ValueError unless a text is as long as the recorded one, or as its prompt."""
    if length not in (text.length, text.given):
        raise ValueError(
            f'{kind}: "{name}" reads a text of {length:,} tokens, and the recorded one has '
            f"{text.given:,}; give align={{position here: position there}}, such as "
            f"align=range({min(length, text.given)}) for the first ones"
        )


def _check_map(kind: str, name: str, align: Alignment, text: RecordedText) -> None:
    """Raise a ValueError if a map names a position that was not recorded."""
    there = max(align)
    if there >= text.length:
        raise ValueError(
            f"{kind}: align={{{align.index(there)}: {there}}} names position {there} of the "
            f'recorded text, which has positions 0 to {text.length - 1} in "{name}"'
        )


def _look_up(align: Alignment, positions: Tensor) -> Tensor:
    """Return the recorded position of each position; -1 where there is none."""
    table = torch.tensor([*align, -1])
    known = (positions >= 0) & (positions < len(align))
    return table[torch.where(known, positions, len(align))]


def _inside(indices: Tensor, ranges: Sequence[tuple[int, int | None]]) -> Bool[Tensor, " token"]:
    inside = torch.zeros_like(indices, dtype=torch.bool)
    for start, stop in ranges:
        inside |= (indices >= start) & (indices < stop if stop is not None else True)
    return inside
