"""One head in one sequence: what it asked, what it was offered, and by which definition."""

from typing import SupportsIndex

import torch

from ..attention.restrict import key_heads_of, of_heads, of_sequences
from ..tiles.head_scores import OneHead
from ..words import whole_number
from .kept import Call, StepsCall


def one_head(call: Call, number: SupportsIndex, sequence: SupportsIndex = 0) -> OneHead:
    """Views of what was kept of a call, so that it costs nothing; `number` is that of the head in the model."""
    number, sequence = whole_number("head", number), whole_number("sequence", sequence)
    if number not in call.heads:
        raise ValueError(f'there is no head {number} of "{call.name}"; kept are {", ".join(map(str, call.heads))}')
    batch, heads = call.facts.shape[0], len(call.heads)
    if not 0 <= sequence < batch:
        raise ValueError(f'there is no sequence {sequence} of "{call.name}"; there are {batch}, counted from 0')
    place, one = call.heads.index(number), slice(sequence, sequence + 1)
    serving = int(key_heads_of(torch.tensor([place]), heads, call.keys.shape[1]))
    own, shared = (one, slice(place, place + 1)), (one, slice(serving, serving + 1))
    attention = of_heads(call.kept_attention(), torch.tensor([place]), heads)
    return OneHead(
        queries=call.queries[own],
        keys=call.keys[shared],
        values=call.values[shared] if isinstance(call, StepsCall) else None,
        attention=of_sequences(attention, torch.tensor([sequence]), batch),
        lse=None if call.lse is None else call.lse[own],
    )
