"""Tell whether a key-value cache only grew between two calls of an attention, without reading its
keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor, nn

from .transformers_internals import CacheLayer


class CacheTracker:
    """Tell whether the keys of an attention's call begin with those of its call before, without
    reading them.

    Between two forward passes a cache may be reordered, cropped or written to. `before_forward`
    compares what it holds with what it held after each attention's latest call; `after_update` is
    asked when an attention has added its keys.
    """

    def __init__(self) -> None:
        self._cache: Callable[[], Any] = lambda: (
            None
        )  # of the running forward pass, by a weak reference
        self._held: dict[str, HeldKeys] = {}  # after the latest call of each attention, by name
        self._unchanged: set[str] = (
            set()
        )  # attentions whose keys the cache still held when the forward pass began

    def before_forward(self, cache: Any) -> None:
        """Note the cache of a forward pass, and which keys it holds unchanged."""
        self._cache = (lambda: None) if cache is None else ref(cache)
        self._unchanged = {name for name, held in self._held.items() if held.are_still_in_cache()}

    def after_update(
        self, name: str, module: nn.Module, keys: Tensor, across: bool
    ) -> tuple[bool, bool]:
        """Return `AttentionCall.follows` and `AttentionCall.keys_stay` for the keys that an
        attention is passed.
        """
        last = self._held.pop(name, None)
        layer = CacheLayer.of(self._cache(), module, across)
        stored = None if layer is None else layer.keys
        if layer is None or stored is None or not (stored is keys or _share_memory(stored, keys)):
            return False, False
        self._held[name] = HeldKeys(ref(layer.layer), ref(stored), _version(stored))
        follows = last is not None and name in self._unchanged and last.layer() is layer.layer
        self._unchanged.discard(
            name
        )  # another call in the same pass would have to be compared again
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
    """Return how often a tensor was written to; None for a tensor of inference mode, which does not
    count.
    """
    return None if tensor.is_inference() else tensor._version


def _share_memory(stored: Tensor, keys: Tensor) -> bool:
    return stored.untyped_storage().data_ptr() == keys.untyped_storage().data_ptr()
