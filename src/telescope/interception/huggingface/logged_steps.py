"""Let the steps of a model that writes wait, over a cache that replaces its tensors in each step,
and record them as one call of many queries.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from ...recording import ROOM
from ..interceptor import StoredKeys
from ..text import KeyMemory, version_of
from .cache_layers import CacheLayer, cache_of
from .interface_call import Result
from .late_calls import LoggedCall
from .transformers_internals import own_attention
from .waiting_masks import is_plain, is_steady, mask_of_steps


class CallOfSteps(NamedTuple):
    """The steps of one attention as one call."""

    last: LoggedCall
    tensors: tuple[Tensor, Tensor, Tensor]
    """The queries of all steps, and the keys and values of the last one."""
    mask: Any
    stored: StoredKeys
    """Where the keys lie."""


class StepLog:
    """The steps of one block that wait: of each attention a query a step, and the keys of the last
    one.
    """

    def __init__(self, interceptor: Any) -> None:
        self.interceptor = interceptor
        self.is_open = False
        """Whether the running pass is a step that waits with those that follow."""
        self.are_alike = False
        """Whether each attention is known to run once in a step, and to make its call."""
        self._calls: dict[int, list[LoggedCall]] = {}  # by the id of the attention
        self._layers: dict[int, Any] = {}  # of the cache, likewise; None once the block has ended
        self._cache: Any = None  # a weak reference
        self._ids: torch.Size | None = None

    def __len__(self) -> int:
        """Return how many steps wait, one that is not complete included."""
        return max(map(len, self._calls.values()), default=0)

    @property
    def last(self) -> list[LoggedCall]:
        """The last call of each attention."""
        return [calls[-1] for calls in self._calls.values()]

    # --------------------------------------------------------------------------------------- passes

    def begin(self, cache: Any, ids: Tensor) -> None:
        """Begin the first step: it reads these ids over this cache, and waits with those that
        follow.
        """
        self._cache = ref(cache)
        self._ids = ids.shape
        self.is_open = True
        self.interceptor.text.inputs.begin_steps()

    def continues(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether the pass that begins is one more step beside those that wait."""
        cache = cache_of(kwargs)
        if not self.is_open or cache is None or cache is not self._cache():
            return False
        if (ids is not None and ids.shape != self._ids) or self.interceptor.text.is_reading_prompt:
            return False
        if not self._calls:
            return True
        count = {len(calls) for calls in self._calls.values()}
        if len(count) > 1 or max(count) >= ROOM:
            return False
        last = self.last
        if any(self._layers[id(call.module)].keys is not call.tensors[1] for call in last):
            return False
        # Layers share few masks.
        masks = {id(call.mask): call.mask for call in last if call.mask is not None}
        return all(map(is_steady, masks.values()))

    # ---------------------------------------------------------------------------------------- calls

    def add(self, call: LoggedCall) -> bool:
        """Let a call wait, or return False if it is no call of a step."""
        if not self.is_open or call.tensors[0].shape[-2] != 1 or call.number != 1:
            return False
        key = id(call.module)
        self._calls.setdefault(key, []).append(call)
        layer = CacheLayer.of(self._cache(), call.module, across=False)
        assert layer is not None
        self._layers[key] = layer.layer
        return True

    def run(
        self,
        key: int,
        implementation: str,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> Result | None:
        """Run one more step of an attention, like those before, without asking again what holds for
        all of them; return None if it may differ.
        """
        calls = self._calls.get(key)
        if not self.are_alike or calls is None:
            return None
        queries, keys, _ = tensors
        last = calls[-1]
        if implementation != last.implementation or queries.shape[-2] != 1:
            return None
        if mask is not None or last.mask is not None or not is_plain(None, options):
            return None
        module = last.module
        result: Result = own_attention(implementation, module)(module, *tensors, mask, **options)
        versions = (version_of(queries), version_of(keys))
        call = last._replace(tensors=tensors, options=options, output=None, versions=versions)
        calls.append(call)
        return result

    # ------------------------------------------------------------------------------------ recording

    def keep(self) -> None:
        """Let the steps wait although the block ends, without the cache."""
        self._layers = dict.fromkeys(self._calls)
        self._cache = None

    def end(self) -> list[CallOfSteps]:
        """Take the steps out, and return those of each attention as one call."""
        calls_of = self._calls
        layers = self._layers
        self._calls = {}
        self._layers = {}
        self.are_alike = False
        # A pass that was interrupted leaves some attentions without their last query.
        count = min(map(len, calls_of.values()), default=0)
        if self.is_open:
            self.is_open = False
            self.interceptor.text.inputs.end_steps(count)
        found = []
        masks: dict[Any, Any] = {}
        for calls in calls_of.values():
            last = calls[count - 1]
            queries = torch.cat([call.tensors[0] for call in calls[:count]], 2)
            key = (id(last.mask), last.tensors[1].shape)
            if key not in masks:
                masks[key] = mask_of_steps(
                    last.mask, last.implementation, queries, last.tensors[1].shape[2]
                )
            layer = layers[id(last.module)]
            memory = () if layer is None else (KeyMemory.held_by(layer, last.tensors[1]),)
            stored = StoredKeys(memory, stay=True)
            tensors = (queries, last.tensors[1], last.tensors[2])
            found.append(CallOfSteps(last, tensors, masks[key], stored))
        return found
