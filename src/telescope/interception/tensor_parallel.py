"""Models whose heads are divided among processes, as transformers does with a tp_plan: join what
each has recorded.

Every process runs the same inputs through its own heads, and records these. When a `ts.watch` block
ends, the first process gets the heads of all; the recordings of the others keep their own.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, distributed, nn

from ..recording import GrowingTensor, RecordedCall, Recording

# Parts of a call that all processes have alike.
WITHOUT_HEADS = ("query_ids", "key_ids", "before", "after")


def tensor_parallel_size(model: nn.Module) -> int:
    """Return among how many processes the heads of a model are divided; 1 for any model of one
    process.
    """
    # transformers notes the number of processes in a model that it has divided.
    size = getattr(model, "_tp_size", None)
    running = distributed.is_available() and distributed.is_initialized()
    return size if isinstance(size, int) and running else 1


def tensor_parallel_rank(model: nn.Module) -> int:
    """Return which part of the heads this process has; 0 for any model of one process."""
    size = tensor_parallel_size(model)
    # The processes of one model have neighbouring ranks.
    return distributed.get_rank() % size if size > 1 else 0


def join_recording(recording: Recording) -> None:
    """Give the first process the heads of all, in the order of the processes. All processes must
    call this together.
    """
    first = distributed.get_rank() == 0
    count = distributed.get_world_size()
    # Send the parts of every call to the first process.
    own = {name: [_tensors(call) for call in watched.calls] for name, watched in recording.items()}
    gathered: list[Any] | None = [None] * count if first else None
    distributed.gather_object(own, gathered, 0)
    # The other processes keep their own heads.
    if gathered is None:
        recording.is_part = True
        return
    left_out = []
    for name, watched in recording.items():
        for i, call in enumerate(watched.calls):
            # Sinks and biases in a definition are those of the heads of one process.
            if call.attention.sink is not None or call.attention.bias is not None:
                left_out.append(name)
            else:
                _join(call, [part[name][i] for part in gathered])
    if left_out:
        warnings.warn(
            f'the definition of "{left_out[0]}" has numbers for each head, so that {len(left_out)} '
            "recordings keep the "
            "heads of the first process alone",
            stacklevel=5,
        )


def _tensors(call: RecordedCall) -> dict[str, Tensor]:
    return {name: part.tensor.cpu() for name, part in call.parts.items()}


def _join(call: RecordedCall, parts: list[dict[str, Tensor]]) -> None:
    """Put the heads of all processes side by side in the parts of a call."""
    joined = call.parts
    # Parts with heads have them on axis 1.
    for name, tensor in parts[0].items():
        if name not in WITHOUT_HEADS and tensor.ndim > 1:
            whole = torch.cat([part[name] for part in parts], 1).to(joined[name].tensor.device)
            own = joined[name]
            axis = own.axis if isinstance(own, GrowingTensor) else 2
            joined[name] = GrowingTensor(whole, axis, call.options.store, owned=True)
    # The call now has the heads of all processes, numbered from 0.
    batch, key_heads, d_q, d_k = call.facts.shape
    call.facts.heads = tuple(range(len(call.facts.heads) * len(parts)))
    call.facts.shape = (batch, key_heads * len(parts), d_q, d_k)
