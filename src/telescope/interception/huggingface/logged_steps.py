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


class WaitingSteps:
    """The steps of one attention that wait: the query of each, and the keys and values of the last
    one alone, which hold those of the steps before.
    """

    def __init__(self, call: LoggedCall) -> None:
        self.queries = [call.tensors[0]]
        self.last = call
        self._mask_before: Any = None  # of the step before the last
        self._written: LoggedCall | None = None  # whose keys somebody wrote to before the next step

    def __len__(self) -> int:
        return len(self.queries)

    def add(self, call: LoggedCall) -> None:
        if version_of(self.last.tensors[1]) != self.last.versions[1]:
            self._written = self.last
        self.queries.append(call.tensors[0])
        self._mask_before = self.last.mask
        self.last = call

    def first(self, count: int, masks: dict[Any, Any], layer: Any) -> CallOfSteps:
        """Return the first `count` steps as one call: all of them, or all but the last one.

        masks  those made so far, which attentions of one pass share
        layer  of the cache; None if the block has ended
        """
        last = self.last
        _, keys, values = last.tensors
        mask = last.mask
        memory = () if layer is None else (KeyMemory.held_by(layer, keys),)
        if count < len(self):
            keys = keys[:, :, :-1]
            values = values[:, :, :-1]
            mask = self._mask_before
            memory = ()
        queries = torch.cat(self.queries[:count], 2)
        key = (id(mask), keys.shape)
        if key not in masks:
            masks[key] = mask_of_steps(mask, last.implementation, queries, keys.shape[2])
        stored = StoredKeys(memory, stay=True)
        return CallOfSteps(self._written or last, (queries, keys, values), masks[key], stored)


class StepLog:
    """The steps of one block that wait."""

    def __init__(self, interceptor: Any) -> None:
        self.interceptor = interceptor
        self.is_open = False
        """Whether the running pass is a step that waits with those that follow."""
        self.are_alike = False
        """Whether each attention is known to run once in a step, and to make its call."""
        self._calls: dict[int, WaitingSteps] = {}  # by the id of the attention
        self._layers: dict[int, Any] = {}  # of the cache, likewise; None once the block has ended
        self._cache: Any = None  # a weak reference
        self._ids: torch.Size | None = None

    def __len__(self) -> int:
        """Return how many steps wait, one that is not complete included."""
        return max(map(len, self._calls.values()), default=0)

    @property
    def last(self) -> list[LoggedCall]:
        """The last call of each attention."""
        return [steps.last for steps in self._calls.values()]

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
        count = set(map(len, self._calls.values()))
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
        if key in self._calls:
            self._calls[key].add(call)
        else:
            self._calls[key] = WaitingSteps(call)
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
        steps = self._calls.get(key)
        if not self.are_alike or steps is None:
            return None
        queries, keys, _ = tensors
        last = steps.last
        if implementation != last.implementation or queries.shape[-2] != 1:
            return None
        if mask is not None or last.mask is not None or not is_plain(None, options):
            return None
        module = last.module
        result: Result = own_attention(implementation, module)(module, *tensors, mask, **options)
        versions = (version_of(queries), version_of(keys))
        # Made anew: in each step of each layer, `_replace` would take several times as long.
        steps.add(
            LoggedCall(
                implementation,
                module,
                tensors,
                None,
                options,
                last.lse,
                None,
                last.number,
                versions,
            )
        )
        return result

    # ------------------------------------------------------------------------------------ recording

    def keep(self) -> None:
        """Let the steps wait although the block ends, without the cache."""
        self._layers = dict.fromkeys(self._calls)
        self._cache = None

    def end(self) -> list[CallOfSteps]:
        """Take the steps out, and return those of each attention as one call."""
        waiting = self._calls
        layers = self._layers
        self._calls = {}
        self._layers = {}
        self.are_alike = False
        # A pass that was interrupted leaves some attentions without their last query.
        count = min(map(len, waiting.values()), default=0)
        if self.is_open:
            self.is_open = False
            self.interceptor.text.inputs.end_steps(count)
        masks: dict[Any, Any] = {}
        return [
            steps.first(count, masks, layers[key]) for key, steps in waiting.items() if count > 0
        ]
