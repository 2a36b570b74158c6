"""Watch a model of transformers: run each of its attention calls as it is, and record it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...engines import torch_modes
from ...recording.names import Modules
from ...recording.summaries_call import SummariesCall
from ..observer import Observer
from ..sdpa_lse import SdpaWithLse
from .interception import Interceptor, ModelCall, Result, intercepting, weights_of
from .proof import OutputChecks
from .steps import CacheTracker, StepTemplate
from .transformers_internals import cache_of, weights_are_requested

SHORT = 4096**2  # scores of a head


class WatchedModel(Interceptor):
    """One watched model: what its attention functions and hooks need while it runs."""

    order = 1

    def __init__(self, observer: Observer, attentions: Mapping[str, nn.Module]) -> None:
        super().__init__(attentions)
        self.observer, self.checks, self.caches = observer, OutputChecks(), CacheTracker()
        self.template: StepTemplate | None = None  # of the running step of generation

    def is_active(self) -> bool:
        return self.observer.is_recording()

    def run(self, call: ModelCall, following: Callable[[ModelCall], Result]) -> Result:
        """Run the model's own attention function, record the call, and return the function's result.

        Implementations that return no weights do not get `output_attentions`, about which some would warn; if the
        caller wants weights, they are computed here.
        """
        implementation, module, tensors, mask, options = call[:5]
        name, across, edited = self.name(module), self.cross[id(module)], call.described is not None
        follows, keys_stay = self.caches.after_update(name, module, tensors[1], across)
        if call.edits:
            self.observer.recording.add_edits(call.edits)
        if not call.own_keys:
            follows, keys_stay = False, False  # what the cache holds tells nothing about them
        like = self.template if follows and not edited else None
        if like is not None and like.fits(implementation, module, tensors, mask, options) and not across:
            options.pop("output_attentions", None)
            output, weights = following(call)
            if self.checks.has(module, like.check) and self._record_like(name, like, tensors, keys_stay):
                return output, weights
            given, requested, lse = options, False, None
        else:
            given, requested = dict(options), weights_are_requested(options)
            options.pop("output_attentions", None)
            if self.observer.recording.keep == SummariesCall.keep and (follows or _is_short(*tensors[:2])):
                lse, (output, weights) = None, following(call)
            else:
                with SdpaWithLse() as fused:
                    output, weights = following(call)
                lse = fused.lse
        with torch.no_grad():
            described = call.describe(self.reader, lse)._replace(across=across, follows=follows, keys_stay=keys_stay)
            check = self.checks.add(name, module, described, output, "edited" if edited else implementation)
            last = self.observer.recording.last_call(name)
            before = None if last is None else (last.attention, last.size)
            recorded = self.observer.record(name, described)
            self.template = None
            if follows and not requested and before is not None and not edited:
                self.template = StepTemplate.of(implementation, module, tensors, mask, given, recorded, before, check)
            return output, weights_of(name, described) if requested and weights is None else weights

    def _record_like(
        self, name: str, like: StepTemplate, tensors: tuple[Tensor, Tensor, Tensor], keys_stay: bool
    ) -> bool:
        """Record a step by the template of a layer before it; return whether that was possible."""
        queries, keys, values = tensors
        call = like.call._replace(queries=queries, keys=keys, values=values, keys_stay=keys_stay)
        with torch_modes.recording_mode(queries.device):
            return self.observer.recording.record_like(name, call, like.kind, *like.before)

    def before_model(self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any) -> None:
        """Before a model or a part of it runs: as any interceptor does, and count steps anew."""
        super().before_model(inside, model, args, kwargs)
        if self.observer.is_recording():
            self.template = None
            self.caches.before_forward(cache_of(kwargs))


def _is_short(queries: Tensor, keys: Tensor) -> bool:
    """Return whether a GPU computes the log-sum-exp again in less time than the host takes to read it."""
    return queries.is_cuda and queries.shape[-2] * keys.shape[-2] <= SHORT


_watched: dict[int, WatchedModel] = {}  # by the id of each attention
_lock = Lock()  # held while `_watched` changes


@contextmanager
def observing(modules: Modules, attentions: Mapping[str, nn.Module], observer: Observer) -> Iterator[None]:
    """Record each call of these attentions while the block runs, then check the recorded definitions.

    Raise a ValueError if the model is being watched already, or if a definition does not fit the model's output.
    """
    with _lock:
        if not _watched.keys().isdisjoint(map(id, modules.values())):
            raise ValueError(f"{type(modules['']).__name__} is being watched already; leave that block first")
        watched = WatchedModel(observer, attentions)
        _watched.update(dict.fromkeys(watched.names, watched))
    try:
        with intercepting(modules, watched):
            yield
            watched.checks.verify()
    finally:
        with _lock:
            for module in watched.names:
                _watched.pop(module, None)
