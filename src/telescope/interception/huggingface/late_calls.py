"""Calls that are recorded after they ran: what is kept of a call, copies of its tensors, and the
memory that they take.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...recording import AttentionCall, Device
from ...words import format_bytes
from ..interceptor import HandledCall, StoredKeys
from ..text import version_of
from .cache_layers import CacheLayer
from .interface_call import InterfaceCall


class LateCall(InterfaceCall):
    """A call that is recorded after it ran. Its output is not kept."""

    stored: StoredKeys | None = None
    """Where the keys lie, if that is known; else the cache tells."""
    output: Tensor | None = None
    """What the call returned, if that was kept."""
    has_waited = False
    """Whether the cache may have changed since the call ran."""

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        if self.stored is not None:
            return self.stored
        layer = CacheLayer.of(handled.interceptor.text.cache(), self.module, bool(handled.across))
        if self.has_waited and (layer is None or layer.keys is not self.tensors[1]):
            return StoredKeys()
        return super().where_keys_lie(handled)

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Any) -> None:
        """Compare the definition with what the call returned or, where that was not kept, with the
        model's own function, which runs once more on the tensors of the call.
        """
        if self.output is not None:
            super().check_output(handled, call, output)
        else:
            self.compare(handled, call)


class LoggedCall(NamedTuple):
    """A call as it ran."""

    implementation: str
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    mask: Any
    options: dict[str, Any]
    lse: Tensor | None
    output: Tensor | None
    """Kept until the definition of some call of the module was compared with its output."""
    number: int
    """Which pass through its module the call is."""
    versions: tuple[int | None, int | None]
    """How often queries and keys had been written to."""


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors, those of one kind in one launch."""
    kinds: dict[Any, list[int]] = {}
    for number, one in enumerate(tensors):
        kinds.setdefault((one.shape, one.dtype, one.device), []).append(number)
    found = [*tensors]
    for numbers in kinds.values():
        own = torch.stack([tensors[number] for number in numbers])
        for number, one in zip(numbers, own.unbind(), strict=True):
            found[number] = one
    return found


def with_own_tensors(calls: list[LoggedCall]) -> list[LoggedCall]:
    """Return calls with tensors that no later run of a CUDA graph writes to."""
    is_replayed = "torch._inductor.cudagraph_trees" in sys.modules
    if not is_replayed or not calls[0].tensors[0].is_cuda:
        return calls
    own = zip(*(copies([call.tensors[place] for call in calls]) for place in range(3)), strict=True)
    return [
        call._replace(tensors=tensors, versions=(version_of(tensors[0]), version_of(tensors[1])))
        for call, tensors in zip(calls, own, strict=True)
    ]


def check_memory(recorded: Sequence[tuple[str, nn.Module]], ids: Tensor | None) -> None:
    """Raise a ValueError if compiled code would hand out more than there is memory for: queries,
    keys and values of all recorded attentions at once, of these tokens.
    """
    if ids is None:
        return
    # Layers share few configs, whose attributes take microseconds to read.
    alike: dict[tuple[int, type[nn.Module]], list[nn.Module]] = {}
    for _, module in recorded:
        alike.setdefault((id(getattr(module, "config", None)), type(module)), []).append(module)
    needed = sum(len(modules) * _handed_out(modules[0], ids) for modules in alike.values())
    if not Device().has_room(needed, ids.device):
        free, where = Device().free_bytes(ids.device)
        raise ValueError(
            f"compiled code hands out queries, keys and values of {len(recorded)} attentions at "
            f"once, {format_bytes(needed)} for {len(ids)} x {ids.shape[1]:,} tokens, and "
            f"{format_bytes(free)} of {where} are free; watch fewer attentions (layers=), or call "
            "the model as it was before torch.compile, which records them one by one"
        )


def _handed_out(module: nn.Module, ids: Tensor) -> int:
    """Return the bytes of the queries, keys and values that an attention makes of these tokens, as
    its config tells; 0 if that does not.
    """
    config: Any = getattr(module, "config", None)
    heads = getattr(config, "num_attention_heads", 0)
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    hidden = getattr(config, "hidden_size", 0)
    width = getattr(module, "head_dim", None) or (hidden // heads if heads else 0)
    weight = next(module.parameters(), None)
    if weight is None or not isinstance(width, int):
        return 0
    return ids.numel() * (heads + 2 * key_heads) * width * weight.element_size()
