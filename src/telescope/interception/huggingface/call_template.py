"""Describe the layers of a forward pass once: most are called with one mask, one definition and
tensors of one shape.

A layer of a large model that reads a short text, or writes one token, takes the host half a
millisecond. What is not described again costs none of it.
"""

from typing import Any, NamedTuple

from ...attention import Attention
from ...engines import torch_modes
from ...recording.attention_call import AttentionCall
from ...recording.recorded_call import RecordedCall
from ...recording.summaries_call import SummariesCall
from ...surveys import Size
from .interception import ModelCall
from .lazy import LazyMask


class CallTemplate(NamedTuple):
    """The recorded call of one layer, which stands for the layers that are called alike in the same
    forward pass.

    A template keeps no tensor of the model alive.
    """

    kind: tuple[object, ...]
    mask: Any
    options: dict[str, Any]
    call: AttentionCall
    """As it was recorded, without queries, keys, values and lse."""
    has_lse: bool
    call_kind: tuple[object, ...]
    check: Any
    """The kind of call, for `OutputChecks`."""
    recorded: SummariesCall
    before: tuple[Attention, Size] | None
    """Definition and size of the recorded call before this call was appended; None if this call
    began a sequence.
    """

    @classmethod
    def of(
        cls,
        made: ModelCall,
        call: AttentionCall,
        recorded: RecordedCall,
        before: tuple[Attention, Size] | None,
        check: Any,
    ) -> "CallTemplate | None":
        """Return the template of a call that was recorded as `call`; None if the call is of no use
        for others.

        Of no use are calls of whose tensors only a part was recorded, cross-attention, whose tokens
        are of its own layer, and calls with a mask or bias in a tensor, which may be written to
        between layers.
        """
        queries, keys, _ = made.tensors
        if (
            call.across
            or call.queries is not queries
            or call.keys is not keys
            or not _never_changes(made.mask)
        ):
            return None
        if any(made.options.get(name) is not None for name in ("position_bias", "s_aux")):
            return None
        if not isinstance(recorded, SummariesCall) or not recorded.can_be_template(
            call, begins=before is None
        ):
            return None
        without: Any = {"queries": None, "keys": None, "values": None, "lse": None}
        return cls(
            _kind_of(made),
            made.mask,
            made.options,
            call._replace(**without),
            call.lse is not None,
            call.kind,
            check,
            recorded,
            before,
        )

    def fits(self, made: ModelCall) -> bool:
        """Return whether another layer's call is described alike."""
        mask = made.mask
        options = made.options
        return (
            mask is self.mask
            and options.keys() == self.options.keys()
            and all(map(_same, options.values(), self.options.values()))
            and _kind_of(made) == self.kind
            and _never_changes(mask)
        )


def _kind_of(made: ModelCall) -> tuple[object, ...]:
    """Return what is equal for layers whose calls are described alike, besides mask and options."""
    queries, keys, values = made.tensors
    module = made.module
    config = getattr(module, "config", None)
    is_causal = getattr(module, "is_causal", True)
    autocast = torch_modes.autocast_enabled(queries.device)
    shapes = queries.shape, keys.shape, values.shape, queries.dtype, queries.device
    return type(module), id(config), is_causal, made.implementation, autocast, shapes


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        isinstance(one, int | float) and isinstance(other, int | float) and one == other
    )


def _never_changes(mask: Any) -> bool:
    return mask is None or (isinstance(mask, LazyMask) and not mask.overwritten)
