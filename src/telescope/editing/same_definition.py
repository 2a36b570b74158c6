"""Whether a recorded pattern can be computed by the definition of a running call."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..attention import (
    Attention,
    Pairs,
    everyone,
    include_padding_queries,
    restrict_to_heads,
    without_other_heads,
)
from ..recording import AttentionCall, RecordedCall
from .edits import Block, EditedCall
from .token_pairs import TokenPairs

MAX_CACHED = 64  # definitions that were found to agree
SAMPLE = 64  # queries of each sequence whose masks are compared, where padding differs


class CheckedDefinitions:
    """The definitions of one block that were found to agree."""

    def __init__(self, block: Block) -> None:
        self.keys: set[tuple[object, ...]] = set()
        self.alive: list[object] = []
        """Whose identities are keys."""


def check_same_definition(
    at: EditedCall,
    call: AttentionCall,
    recorded: RecordedCall,
    heads: Sequence[int],
    queries: TokenPairs,
    keys: TokenPairs,
) -> None:
    """Raise a ValueError unless the recorded queries attended by the definition of this call.

    Where padding differs, so do the masks as values: which keys a query may see is then compared
    for the first and the last query, and for some between them.
    """
    known = at.block.share(CheckedDefinitions)
    key = (id(recorded), call.attention._identity, call.size, recorded.size)
    if key in known.keys:
        return
    # A recording hides padding queries, which the model computes.
    then = include_padding_queries(recorded.attention)
    now = without_other_heads(call.attention, heads)
    count = call.queries.shape[1]
    if len(recorded.heads) != count:
        now = restrict_to_heads(now, torch.tensor(recorded.heads), count)
    same = then == now or (
        replace(then, mask=everyone) == replace(now, mask=everyone)
        and _see_the_same(call, now, recorded, then, queries, keys)
    )
    if not same:
        raise ValueError(
            f'patch: "{at.name}" was recorded as {recorded.attention}, and this run attends by '
            f"{call.attention}; a pattern is patched where both are one definition"
        )
    # Steps of decoding have definitions of their own: drop those of old steps.
    if len(known.keys) >= MAX_CACHED:
        known.keys.clear()
        known.alive.clear()
    known.keys.add(key)
    known.alive += [recorded, call.attention]


def _see_the_same(
    call: AttentionCall,
    now: Attention,
    recorded: RecordedCall,
    then: Attention,
    queries: TokenPairs,
    keys: TokenPairs,
) -> bool:
    """Return whether paired queries see the same paired keys in both."""
    for row in {*queries.rows.tolist()}:
        own = (queries.rows == row).nonzero().flatten()
        chosen = own[torch.linspace(0, len(own) - 1, min(SAMPLE, len(own))).long()]
        columns = keys.rows == row
        sequence = int(queries.sequences[chosen[0]])
        batch = len(call.queries)
        # Keys that a cache has evicted are counted by the mask.
        here = _seen(
            now,
            row,
            queries.columns[chosen],
            keys.columns[columns] + call.evicted,
            batch,
            len(recorded.heads),
            call.size,
            call.queries.device,
        )
        there = _seen(
            then,
            sequence,
            queries.recorded[chosen],
            keys.recorded[columns],
            recorded._facts.shape[0],
            len(recorded.heads),
            recorded.size,
            recorded._facts.device,
        )
        if not torch.equal(here, there):
            return False
    return True


def _seen(
    attention: Attention,
    sequence: int,
    rows: Tensor,
    columns: Tensor,
    batch: int,
    heads: int,
    size: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """Return which of some keys some queries of one sequence may see, (head, query, key)."""
    found = []
    for row in rows.tolist():
        at = Pairs.block(
            range(row, row + 1), range(size[1]), of=size, batch=batch, heads=heads, device=device
        )
        seen = attention.mask.sees(at).cpu().expand(batch, heads, 1, size[1])
        found.append(seen[sequence, :, 0][:, columns])
    return torch.stack(found, 1)
