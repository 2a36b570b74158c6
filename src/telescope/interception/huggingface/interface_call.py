"""`InterfaceCall`: one call of an attention function of transformers, as the model made it or as
edited.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from ...engines import attend, torch_modes
from ...recording import AttentionCall
from ...words import format_bytes
from ..compiled import ScoreEdit
from ..interceptor import (
    HandledCall,
    Handler,
    Interceptor,
    ModelCall,
    Route,
    SharedKey,
    StoredKeys,
)
from ..proof import OutputChecks
from ..sdpa_lse import SdpaWithLse
from ..text import KeyMemory
from .cache_layers import CacheLayer
from .definition import DefinitionReader
from .masks import LazyMask
from .transformers_internals import own_attention, weights_are_requested

LONG = 4096**2  # scores of a head beyond which an eager attention is not run again, to be compared
MAX_WEIGHT_BYTES = 2**30  # of the weights of one attention, for output_attentions=True
Result = tuple[Tensor, Tensor | None]
"""What an attention function returns: the context, (batch, query, heads, d_v), and the weights or
None.
"""


class ReadingInterceptor(Interceptor):
    """An interceptor that reads definitions from calls, and checks them."""

    def __init__(self, handler: Handler, attentions: Mapping[str, nn.Module], route: Route) -> None:
        super().__init__(handler, attentions, attentions, route)
        self.reader = DefinitionReader()
        self.checks = OutputChecks()


class InterfaceCall(ModelCall):
    """A call of an attention function by a model of transformers."""

    head_axis = 2

    def __init__(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> None:
        self.implementation = implementation
        self.module = module
        self.tensors = tensors
        self.mask = mask
        self.options = options
        self.passed = tensors[:2]
        """Queries and keys as the model passed them, before any edit."""
        self.own_keys = True
        self.runs_definition = False
        """Whether `described` is computed by `attend`, and not by the model's own function."""
        self._reads_lse = False

    def run(self, *, with_options: bool = True) -> Result:
        """Run the model's own attention function."""
        options = self.options
        if not with_options:
            options = {key: value for key, value in options.items() if key != "output_attentions"}
        own = own_attention(self.implementation, self.module)
        return own(self.module, *self.tensors, self.mask, **options)

    def run_handled(self, name: str, reader: DefinitionReader) -> Result:
        """Run the call as its handlers left it; return its context, and its weights if the caller
        of the model wants them.

        A watched implementation does not get `output_attentions`, about which some would warn.
        """
        # Run the edited definition, or the model's own function, with its lse where that is read.
        wants_weights = weights_are_requested(self.options)
        weights: Tensor | None
        if self.runs_definition:
            assert self.described is not None
            context = run_definition(self.described)
            weights = None
        elif self._reads_lse:
            with SdpaWithLse() as fused:
                context, weights = self.run(with_options=False)
            self.lse = fused.lse
        else:
            context, weights = self.run(with_options=not self.is_recorded)
        # Compute weights that were asked for and that no function returned.
        if wants_weights and weights is None and (self.is_recorded or self.runs_definition):
            weights = weights_of(name, self.described or self._read(reader))
        return context, weights

    def read(self, interceptor: Interceptor) -> AttentionCall:
        assert isinstance(interceptor, ReadingInterceptor)
        return self._read(interceptor.reader)

    def _read(self, reader: DefinitionReader) -> AttentionCall:
        return reader.read_call(
            self.implementation, self.module, self.tensors, self.mask, self.options, None
        )

    def change(self, handled: HandledCall, changed: AttentionCall, *, own_keys: bool) -> None:
        """Let the call compute `changed`: by the model's own function if the definition is the
        same, else by `attend`.
        """
        before = handled.before_change
        assert before is not None
        # Check the definition before it takes the place of the model's own function.
        self.compare(handled, before)
        self.described = changed
        self.own_keys = self.own_keys and own_keys
        # With the same definition, the model's own function runs on the changed tensors.
        is_same = changed.attention is before.attention and changed.keys.shape == before.keys.shape
        if not is_same or self.runs_definition:
            self.runs_definition = True
            return
        _, keys, values = self.tensors
        keys = _written_over(keys, changed.keys)
        if changed.values is not before.values:
            values = _written_over(values, changed.values)
        self.tensors = changed.queries, keys, values

    def describe_edited(self, handled: HandledCall, edits: Iterable[ScoreEdit]) -> None:
        """Describe a call that compiled code has run with these edits."""
        described = handled.describe()
        # There is no function of the model's own to compare the edited call with.
        self.compare(handled, described)
        attention = described.attention
        for edit in edits:
            attention = edit.apply(attention)
        self.described = described._replace(attention=attention)

    @torch.no_grad()
    def compare(self, handled: HandledCall, described: AttentionCall) -> None:
        """Compare the definition that was read with the model's own function, once for each kind of
        call.
        """
        checks = _checks_of(handled)
        if self.described is not None or checks.is_known(
            self.module, described, self.implementation
        ):
            return
        queries, keys = described.size
        if self.implementation == "eager" and queries * keys > LONG:
            return
        output, _ = self.run(with_options=False)
        checks.add(handled.name, self.module, described, output, self.implementation)

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Tensor) -> None:
        kind = "edited" if self.described is not None else self.implementation
        _checks_of(handled).add(handled.name, self.module, call, output, kind)

    def read_lse(self) -> None:
        self._reads_lse = True

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        keys = self.tensors[1]
        layer = CacheLayer.of(handled.interceptor.text.cache(), self.module, bool(handled.across))
        stored = None if layer is None else layer.keys
        if layer is None or stored is None or not self.own_keys:
            return StoredKeys()
        # Trust the layer of the cache only if the keys that were passed lie in its memory, or if it
        # slides: then they may lie in a copy.
        if not (stored is keys or layer.slides or share_memory(stored, keys)):
            return StoredKeys()
        return StoredKeys(
            (KeyMemory.held_by(layer.layer, stored),), layer.keys_stay and stored is keys
        )

    def shared_key(self) -> SharedKey | None:
        """Return what is equal for calls that are described alike.

        A mask or bias in a tensor may be written to between layers, so that such a call is like no
        other.
        """
        mask = self.mask
        options = self.options
        never_changes = mask is None or (isinstance(mask, LazyMask) and not mask.overwritten)
        if not never_changes or self.described is not None or weights_are_requested(options):
            return None
        if options.get("position_bias") is not None or options.get("s_aux") is not None:
            return None
        queries, keys, values = self.tensors
        config = getattr(self.module, "config", None)
        # Options that are objects count by identity, and are kept alive with the key.
        given = tuple((name, _as_key(value)) for name, value in options.items())
        key = (
            type(self.module),
            id(config),
            getattr(self.module, "is_causal", True),
            self.implementation,
            torch_modes.autocast_enabled(queries.device),
            (queries.shape, keys.shape, values.shape, queries.dtype, queries.device),
            id(mask),
            given,
        )
        return SharedKey(key, (config, mask, options))


def _as_key(value: Any) -> Any:
    """Return a number as it is, and any other option as its identity."""
    return value if isinstance(value, int | float) else id(value)


def _checks_of(handled: HandledCall) -> OutputChecks:
    assert isinstance(handled.interceptor, ReadingInterceptor)
    return handled.interceptor.checks


def share_memory(stored: Tensor, keys: Tensor) -> bool:
    """Return whether two tensors lie in one memory."""
    return stored.untyped_storage().data_ptr() == keys.untyped_storage().data_ptr()


def _written_over(own: Tensor, changed: Tensor) -> Tensor:
    """Return changed keys or values, at the length of the model's own."""
    written = changed.shape[-2]
    if written == own.shape[-2]:
        return changed
    # A cache of fixed size, whose end is not written yet.
    whole = own.clone()
    whole[:, :, :written] = changed
    return whole


def run_definition(call: AttentionCall) -> Tensor:
    """Run an edited call, and return its context (batch, query, heads, d_v)."""
    definition = call.attention_over_present_keys
    context = attend(call.queries, call.keys, call.values, definition, dropout=call.dropout)
    return context.transpose(1, 2).contiguous()


class SoftmaxInputs(NamedTuple):
    """Everything that the weights of a call depend on. Tensors are referred to weakly, so that none
    is kept alive.
    """

    module: nn.Module
    passed: tuple["ref[Tensor]", ...]
    versions: tuple[int | None, ...]
    """How often queries and keys had been written to; None for tensors of inference mode, which do
    not count.
    """
    mask: Any
    options: dict[str, Any]

    @classmethod
    def of(cls, call: InterfaceCall) -> "SoftmaxInputs":
        options = {name: _weak(value) for name, value in call.options.items()}
        return cls(
            call.module,
            tuple(map(ref, call.passed)),
            _versions(call.passed),
            _weak(call.mask),
            options,
        )

    def are_those_of(self, call: InterfaceCall) -> bool:
        """Return whether another call has the same weights: the same tensors, mask and options,
        whatever its values.
        """
        return (
            call.module is self.module
            and all(known() is now for known, now in zip(self.passed, call.passed, strict=True))
            and self.versions == _versions(call.passed)
            and _is_same(self.mask, call.mask)
            and self.options.keys() == call.options.keys()
            and all(_is_same(known, call.options[name]) for name, known in self.options.items())
        )


def _versions(tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
    return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def _weak(value: Any) -> Any:
    return ref(value) if isinstance(value, Tensor) else value


def _is_same(known: Any, value: Any) -> bool:
    """Return whether a value is the one that `_weak` was given; numbers need only be equal."""
    if isinstance(known, ref):
        return known() is value
    return known is value or (
        isinstance(known, int | float) and isinstance(value, int | float) and known == value
    )


def weights_of(name: str, call: AttentionCall) -> Tensor:
    """Compute the weights of a call, (batch, heads, query, key).

    Raise a ValueError if they would take more than MAX_WEIGHT_BYTES.
    """
    batch, heads, queries, _ = call.queries.shape
    keys = call.keys.shape[-2]
    # Four bytes for each weight, as in float32.
    needed = batch * heads * queries * keys * 4
    if needed > MAX_WEIGHT_BYTES:
        raise ValueError(
            f'output_attentions=True would write {format_bytes(needed)} for "{name}", {queries:,} '
            f"queries x {keys:,} "
            'keys; leave it out, and read the recording: .rows and .map of keep="queries-keys"'
        )
    return call.weights()
