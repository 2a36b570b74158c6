"""Steps of a model that writes: each layer is called with one query, and what is not read again costs no time.

A step of a large model spends about a millisecond of the host's time on a layer. `CacheTracker` tells whether a cache
only grew, without reading its keys. `StepTemplate` is everything that the layers of one step have in common, read from
the first of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor, nn

from ...attention import Attention
from ...engines import torch_modes
from ...recording.attention_call import AttentionCall
from ...recording.recorded_call import RecordedCall
from ...recording.summaries_call import SummariesCall
from ...survey.extend import Size
from .lazy import LazyMask
from .transformers_internals import CacheLayer


class CacheTracker:
    """Tell whether the keys of an attention's call begin with those of its call before, without reading them.

    Between two forward passes a cache may be reordered, cropped or written to. `before_forward` compares what it holds
    with what it held after each attention's latest call; `after_update` is asked when an attention has added its keys.
    """

    def __init__(self) -> None:
        self._cache: Callable[[], Any] = lambda: None  # of the running forward pass, by a weak reference
        self._held: dict[str, HeldKeys] = {}  # after the latest call of each attention, by name
        self._unchanged: set[str] = set()  # attentions whose keys the cache still held when the forward pass began

    def before_forward(self, cache: Any) -> None:
        """Note the cache of a forward pass, and which keys it holds unchanged."""
        self._cache = (lambda: None) if cache is None else ref(cache)
        self._unchanged = {name for name, held in self._held.items() if held.are_still_in_cache()}

    def after_update(self, name: str, module: nn.Module, keys: Tensor, across: bool) -> tuple[bool, bool]:
        """Return `AttentionCall.follows` and `AttentionCall.keys_stay` for the keys that an attention is passed."""
        last = self._held.pop(name, None)
        layer = CacheLayer.of(self._cache(), module, across)
        stored = None if layer is None else layer.keys
        if layer is None or stored is None or not (stored is keys or _share_memory(stored, keys)):
            return False, False
        self._held[name] = HeldKeys(ref(layer.layer), ref(stored), _version(stored))
        follows = last is not None and name in self._unchanged and last.layer() is layer.layer
        self._unchanged.discard(name)  # another call in the same pass would have to be compared again
        return follows, layer.keys_stay and stored is keys


class HeldKeys(NamedTuple):
    """The keys that a layer of a cache held at some time, and how often they had been written to.

    The references are weak: a watch does not keep a cache alive that the model has done with.
    """

    layer: "ref[Any]"
    keys: "ref[Tensor]"
    version: int | None

    def are_still_in_cache(self) -> bool:
        """Return whether the cache holds the same tensor, to which nothing was written since."""
        keys = self.keys()
        same = keys is getattr(self.layer(), "keys", None)
        return same and keys is not None and self.version == _version(keys)


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was written to; None for a tensor of inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _share_memory(stored: Tensor, keys: Tensor) -> bool:
    return stored.untyped_storage().data_ptr() == keys.untyped_storage().data_ptr()


class StepTemplate(NamedTuple):
    """The recorded call of one layer, which stands for the layers that are called alike in the same step."""

    implementation: str
    mask: Any
    options: dict[str, Any]
    config: Any
    is_causal: Any
    tensors: tuple[object, ...]
    """What `_kind_of` returns for queries, keys and values."""
    autocast: bool
    call: AttentionCall
    """Without queries, keys and values: a template keeps no tensor of the model alive."""
    kind: tuple[object, ...]
    before: tuple[Attention, Size]
    """Definition and size of the recorded call before the step."""
    check: Any
    """The kind of call, for `OutputChecks`."""

    @classmethod
    def of(
        cls,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
        recorded: RecordedCall,
        before: tuple[Attention, Size],
        check: Any,
    ) -> "StepTemplate | None":
        """Return the template of a call that was recorded; None if the call is of no use for others.

        Of no use are calls that do not wait, calls of whose tensors only a part was recorded, cross-attention, whose
        tokens are of its own layer, and calls with a mask or bias in a tensor, which may be written to between layers.
        """
        call = recorded.latest_step if isinstance(recorded, SummariesCall) else None
        if call is None or call.across or call.queries is not tensors[0] or call.keys is not tensors[1]:
            return None
        if not _never_changes(mask) or any(options.get(name) is not None for name in ("position_bias", "s_aux")):
            return None
        config, is_causal = getattr(module, "config", None), getattr(module, "is_causal", True)
        autocast, kind = torch_modes.autocast_enabled(call.queries.device), call.kind
        without: Any = {"queries": None, "keys": None, "values": None}
        call = call._replace(**without)
        return cls(
            implementation, mask, options, config, is_causal, _kind_of(tensors), autocast, call, kind, before, check
        )  # fmt: skip

    def fits(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> bool:
        """Return whether another layer's call is described alike."""
        return (
            mask is self.mask
            and implementation == self.implementation
            and _kind_of(tensors) == self.tensors
            and torch_modes.autocast_enabled(tensors[0].device) is self.autocast
            and getattr(module, "config", None) is self.config
            and getattr(module, "is_causal", True) == self.is_causal
            and options.keys() == self.options.keys()
            and all(map(_same, options.values(), self.options.values()))
            and _never_changes(mask)
        )


def _kind_of(tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[object, ...]:
    queries, keys, values = tensors
    return queries.shape, keys.shape, values.shape, queries.dtype, queries.device


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, int | float) and isinstance(other, int | float) and one == other)


def _never_changes(mask: Any) -> bool:
    return mask is None or (isinstance(mask, LazyMask) and not mask.overwritten)
