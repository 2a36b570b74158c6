"""Select one head of one sequence from a recorded call."""

from typing import SupportsIndex

import torch

from ..attention.restrict import key_heads_of, restrict_to_heads, restrict_to_sequences
from ..tiles.head_scores import OneHead
from ..words import check_index
from .kept import RecordedCall, StepsCall


def one_head(call: RecordedCall, number: SupportsIndex, sequence: SupportsIndex = 0) -> OneHead:
    """Return the queries, keys, values and definition of one head in one sequence, as views of the call's tensors.

    `number` is the head's number in the model. Negative numbers count from the last head kept and the last sequence.
    Raise a ValueError that names the range if there is no such head or sequence.
    """
    place, batch, heads = call.head_index(number), call.facts.shape[0], len(call.heads)
    sequence = check_index("sequence", sequence, batch, of=f'"{call.name}"')
    one = slice(sequence, sequence + 1)
    key_head = int(key_heads_of(torch.tensor([place]), heads, call.keys.shape[1]))
    own, shared = (one, slice(place, place + 1)), (one, slice(key_head, key_head + 1))
    attention = restrict_to_heads(call.kept_attention(), torch.tensor([place]), heads)
    return OneHead(
        queries=call.queries[own],
        keys=call.keys[shared],
        values=call.values[shared] if isinstance(call, StepsCall) else None,
        attention=restrict_to_sequences(attention, torch.tensor([sequence]), batch),
        lse=None if call.lse is None else call.lse[own],
    )
