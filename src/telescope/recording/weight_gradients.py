"""The derivative of a loss by the weights of one head."""

from collections.abc import Iterable
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..engines import torch_modes
from ..surveys import compute_dtype
from ..words import check_index, format_bytes
from .queries_keys_call import one_head
from .recorded_call import RecordedCall

MAX_BYTES = 2**30  # of the derivatives that are returned at once


def weight_gradients(
    call: RecordedCall,
    head: SupportsIndex,
    queries: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    sequence: SupportsIndex = 0,
) -> Float[Tensor, "row key"]:
    """Return dA_ij = dO_i · v_j of one head; see `Watched.weight_gradients`."""
    kept = call._kept.get("context_gradients")
    if kept is None:
        raise ValueError(
            f'"{call.name}" has no gradient of its context: ts.watch(model, keep="steps", '
            'also="gradients") keeps it, with a backward pass inside of the block'
        )
    own = one_head(call, head, sequence)
    values = own.values
    assert values is not None
    if kept.shape[-1] != values.shape[-1]:
        raise ValueError(
            f'"{call.name}" multiplies its weights by several sets of values, and the gradient of '
            "each is not kept; autograd has the derivative by the weights of eager attention"
        )
    place = call._head_index(head)
    batch = call._facts.shape[0]
    slopes = kept.tensor[check_index("sequence", sequence, batch), place]
    if queries is not None:
        slopes = slopes[_places(call, queries)]

    # A matrix of a long text would fill the memory.
    dtype = compute_dtype(own.queries)
    rows = len(slopes)
    keys = values.shape[-2]
    needed = rows * keys * dtype.itemsize
    if needed > MAX_BYTES:
        raise ValueError(
            f"weight_gradients of {rows:,} queries x {keys:,} keys takes {format_bytes(needed)}, "
            f"and at most {format_bytes(MAX_BYTES)} are returned; choose queries="
        )
    device = call._facts.device
    with torch.no_grad(), torch_modes.without_autocast(device):
        found: Tensor = slopes.to(device, dtype) @ values[0, 0].to(device, dtype).mT
    return found


def _places(call: RecordedCall, queries: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    """Return where queries stand among those that were kept; -1 is the last of the text."""
    listed = queries if isinstance(queries, Iterable) else [queries]
    of = f'"{call.name}"'
    numbers = [check_index("query", one, call.size[0], of=of) for one in listed]
    place = {row: place for place, row in enumerate(call.rows)}
    missing = [number for number in numbers if number not in place]
    if missing:
        raise ValueError(
            f"query {missing[0]} of {of} was not kept: ts.watch(queries=...) left it out"
        )
    return [place[number] for number in numbers]
