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
from ..run_tracker import Bypass
from ..sdpa_lse import SdpaWithLse
from .attention_modules import may_be_cross_attention
from .cache_tracker import CacheTracker
from .call_template import CallTemplate
from .interception import Interceptor, ModelCall, Result, intercepting, weights_of
from .proof import OutputChecks
from .transformers_internals import cache_of, weights_are_requested

SHORT = 4096**2  # scores of a head


class WatchedModel(Interceptor):
    """One watched model: what its attention functions and hooks need while it runs."""

    order = 1

    def __init__(
        self,
        observer: Observer,
        attentions: Mapping[str, nn.Module],
        others: Mapping[str, nn.Module],
    ) -> None:
        # The tokens of attentions that are not recorded matter only to the queries of a
        # cross-attention.
        has_cross = any(may_be_cross_attention(module) for module in attentions.values())
        super().__init__({**attentions, **(others if has_cross else {})}, observer.text)
        self.recorded = {id(module) for module in attentions.values()}
        self.observer = observer
        self.checks = OutputChecks()
        self.caches = CacheTracker()
        self.template: CallTemplate | None = None  # of the layers of the running forward pass

    def is_active(self) -> bool:
        return self.observer.is_recording()

    def report_bypass(self, bypass: Bypass) -> None:
        if id(self.attentions[bypass.name]) in self.recorded:
            self.observer.note_bypass(bypass)

    def run(self, call: ModelCall, following: Callable[[ModelCall], Result]) -> Result:
        """Run the model's own attention function, record the call, and return the function's
        result.

        Implementations that return no weights do not get `output_attentions`, about which some
        would warn; if the caller wants weights, they are computed here.
        """
        if id(call.module) not in self.recorded:
            self._note(call)
            return following(call)
        module = call.module
        queries, keys, _ = call.tensors
        recording = self.observer.recording
        name = self.name(module)
        across = self.cross[id(module)]
        edited = call.described is not None
        value_set = self.count_values(call)
        if value_set:
            return self._run_with_other_values(name, call, following, value_set)
        follows, keys_stay = self.caches.after_update(name, module, keys, across)
        if call.edits:
            recording.add_edits(call.edits)
        if not call.own_keys:
            follows = False
            keys_stay = False  # what the cache holds tells nothing about them
        like = None if across or edited else self._template_of(name, call, follows)
        requested = weights_are_requested(call.options)
        if like is not None:
            with_lse = like.has_lse
        else:
            with_lse = recording.keep != SummariesCall.keep or not (
                follows or _is_short(queries, keys)
            )
        output, weights, lse = _run_following(call, following, with_lse)
        if like is not None and self._record_like(name, like, call, lse, keys_stay):
            return output, weights
        with torch.no_grad():
            described = call.describe(self.reader, lse)._replace(
                across=across, follows=follows, keys_stay=keys_stay
            )
            check = self.checks.add(
                name, module, described, output, "edited" if edited else call.implementation
            )
            last = recording.last_call(name)
            before = None if last is None else (last.attention, last.size)
            prepared, recorded = self.observer.record(name, described, output, head_axis=2)
            self.template = None
            if not requested and not edited:
                before = before if recorded is last else None
                self.template = CallTemplate.of(call, prepared, recorded, before, check)
            return output, weights_of(name, described) if requested and weights is None else weights

    @torch.no_grad()
    def _note(self, call: ModelCall) -> None:
        """Note the tokens of an attention that is not recorded."""
        if not self.cross[id(call.module)]:
            self.observer.note(call.describe(self.reader, None)._replace(across=False))

    def _run_with_other_values(
        self, name: str, call: ModelCall, following: Callable[[ModelCall], Result], value_set: int
    ) -> Result:
        """Run a call whose weights were recorded with other values just before, and record its
        values with these.
        """
        output, weights, _ = _run_following(call, following, False)
        with torch.no_grad():
            described = call.describe(self.reader, None)
            self.observer.record_values(name, described, value_set, output, head_axis=2)
            needs_weights = weights_are_requested(call.options) and weights is None
            return output, weights_of(name, described) if needs_weights else weights

    def _template_of(self, name: str, call: ModelCall, follows: bool) -> CallTemplate | None:
        """Return the template of the running forward pass if this call can be recorded by it."""
        like = self.template
        if like is None:
            return None
        begins = like.before is None
        if begins if follows else not begins or self.observer.recording.last_call(name) is not None:
            return None
        return like if like.fits(call) and self.checks.has(call.module, like.check) else None

    def _record_like(
        self, name: str, like: CallTemplate, made: ModelCall, lse: Tensor | None, keys_stay: bool
    ) -> bool:
        """Record a call by the template of a layer before it; return whether that was possible."""
        queries, keys, values = made.tensors
        if like.has_lse is (lse is None):
            return False
        call = like.call._replace(
            queries=queries, keys=keys, values=values, lse=lse, keys_stay=keys_stay
        )
        with torch_modes.recording_mode(queries.device):
            if like.before is not None:
                return self.observer.recording.append_like(name, call, like.call_kind, *like.before)
            return self.observer.recording.begin_like(name, call, like.recorded)

    def before_model(
        self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any
    ) -> None:
        """Before a model or a part of it runs: as any interceptor does, and count steps anew."""
        super().before_model(inside, model, args, kwargs)
        if self.observer.is_recording():
            self.template = None
            self.caches.before_forward(cache_of(kwargs))


def _run_following(
    call: ModelCall, following: Callable[[ModelCall], Result], with_lse: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run a call without its `output_attentions`; return its output, its weights if it has any, and
    the log-sum-exp.
    """
    if "output_attentions" in call.options:
        options = {
            name: value for name, value in call.options.items() if name != "output_attentions"
        }
        call = call._replace(options=options)
    if not with_lse:
        return *following(call), None
    with SdpaWithLse() as fused:
        output, weights = following(call)
    return output, weights, fused.lse


def _is_short(queries: Tensor, keys: Tensor) -> bool:
    """Return whether a GPU computes the log-sum-exp again in less time than the host takes to read
    it.
    """
    return queries.is_cuda and queries.shape[-2] * keys.shape[-2] <= SHORT


_watched: set[tuple[int, int]] = (
    set()
)  # the ids of attentions, each with the thread that watches it
_lock = Lock()  # held while `_watched` changes


@contextmanager
def observing(
    modules: Modules,
    attentions: Mapping[str, nn.Module],
    others: Mapping[str, nn.Module],
    observer: Observer,
) -> Iterator[None]:
    """Record each call of `attentions` while the block runs, then check the recorded definitions.

    Of the `others`, only the tokens are noted where a cross-attention is recorded. Several threads
    may watch one model, each its own calls.

    Raise a ValueError if this thread watches the model already, or if a definition does not fit the
    model's output.
    """
    watched = WatchedModel(observer, attentions, others)
    marks = {(module, observer.thread) for module in watched.names}
    with _lock:
        if any((id(module), observer.thread) in _watched for module in modules.values()):
            raise ValueError(
                f"{type(modules['']).__name__} is being watched already; leave that block first"
            )
        _watched.update(marks)
    try:
        with intercepting(modules, watched):
            yield
            watched.checks.verify()
    finally:
        with _lock:
            _watched.difference_update(marks)
