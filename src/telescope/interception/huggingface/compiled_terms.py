"""What edits add to the scores of compiled code: a tensor of each attention, filled on the host
before a run.

A run is described before it begins, by what the model is passed, so that edits find their spans. A
step over a cache of fixed size reads its term from a tensor that stays in its place, for all keys
that the cache has room for. The next step finds it there, and it is filled again only where
something changes: where a span begins or ends, and where a cache slides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from inspect import signature
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from ...attention import Attention, Pairs, rectangles_of
from ...recording import AttentionCall
from ..compiled import TAP, AttentionTap
from ..mask_tensors import pad_to, padding_mask
from ..text import version_of
from .attention_modules import OTHER_SEQUENCES
from .cache_layers import CacheLayer, cache_of, mask_sizes, static_keys
from .masks import LazyMask
from .transformers_internals import implementation_of

PLAIN = Attention()  # one object: what edits make of it is shared by its identity
# Numbers of a term that is written out for every sequence and head, whichever the edits name:
# other edits then have the same shape, and compile nothing. A larger one is as small as it can be.
WHOLE = 2**24


def why_no_terms(kind: str, configs: Sequence[Any], attentions: Mapping[str, nn.Module]) -> str:
    """Return why nothing can be added to the scores of a compiled model of this class, as a
    sentence; "" if it can.
    """
    way_out = "call the model as it was before torch.compile"
    reads_another = ("is_encoder_decoder", "add_cross_attention")
    if any(getattr(config, name, False) for config in configs for name in reads_another):
        return f"ts.hide and ts.boost cannot follow the two texts of {kind} there; {way_out}"
    names = {implementation_of(one) for one in attentions.values()} - {"sdpa", "eager"}
    if names:
        return (
            f'ts.hide and ts.boost change the mask of "sdpa" and "eager" attention there, and this '
            f'model has "{min(names)}"; model.set_attn_implementation("sdpa"), or {way_out}'
        )
    return ""


# ---------------------------------------------------------------------------------- before the run


class KeysOfRun(NamedTuple):
    """Which keys an attention reads in a run that is about to begin."""

    room: int
    """How many it is passed: as many as a cache of fixed size has room for."""
    first: int
    """The position of the first of them."""
    written: int
    """How many tokens the text has with those of this run."""


class CompiledRun:
    """A run of a model, or of one of its layers, that is about to begin.

    Raise a ValueError where the arguments do not say which tokens the run reads.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        kind: Any = type(module)
        bound = signature(kind.forward).bind_partial(module, *args, **kwargs).arguments
        self.given = {**bound, **kwargs}
        names = ("input_ids", "inputs_embeds", "hidden_states")
        read = next(
            (self.given[one] for one in names if isinstance(self.given.get(one), Tensor)), None
        )
        if read is None or read.ndim < 2:
            raise ValueError(
                f"{type(module).__name__} is compiled, and its arguments do not say which tokens "
                "it reads, as input_ids do; call the model as it was before torch.compile"
            )
        if any(self.given.get(name) is not None for name in OTHER_SEQUENCES):
            raise ValueError(
                f"ts.hide and ts.boost cannot follow the two texts of {type(module).__name__} in "
                "compiled code; call the model as it was before torch.compile"
            )
        self.ids: Tensor | None = read if read.ndim == 2 else None
        self.batch, self.queries = read.shape[:2]
        self.cache = cache_of(self.given)
        self._definitions: dict[int, Attention] = {}
        self._before: int | None = None  # how many tokens the cache holds

    @cached_property
    def padding(self) -> Tensor | None:
        """Which tokens of the text so far are no padding, (batch, token); None if none is."""
        mask = self.given.get("attention_mask")
        # There may be one mask for each type of layer, all with the same padding.
        masks = [*mask.values()] if isinstance(mask, Mapping) else [mask]
        mask = next((one for one in masks if one is not None), None)
        if isinstance(mask, LazyMask) and not mask.overwritten:
            mask = mask.arguments.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
            raise ValueError(
                "ts.hide and ts.boost need the padding of a compiled model as an attention_mask of "
                "two axes, (batch, token); pass it so, or call the model as it was before "
                "torch.compile"
            )
        return mask

    def keys_of(self, module: nn.Module) -> KeysOfRun:
        """Return which keys an attention reads."""
        layers = getattr(self.cache, "layers", None) or []
        number = getattr(module, "layer_idx", None)
        # The cache makes the layer when the attention first runs.
        is_new = self.cache is None or (isinstance(number, int) and number >= len(layers))
        if is_new:
            return KeysOfRun(self.queries, 0, self.queries)
        found = CacheLayer.of(self.cache, module, across=False)
        if found is None:
            raise ValueError(
                f"ts.hide and ts.boost do not know how {type(self.cache).__name__} keeps its keys; "
                "call the model as it was before torch.compile"
            )
        # Of a cache of fixed size the length is a tensor: to read its number, the host waits. All
        # layers of the run hold the same tokens.
        if self._before is None:
            self._before = int(found.layer.get_seq_length())
        room, first = mask_sizes(found.layer, self.queries, self._before)
        return KeysOfRun(room, first, self._before + self.queries)

    def call_of(self, module: nn.Module, heads: int) -> AttentionCall:
        """Return the call that an attention is about to make, with the sizes of its tensors; it has
        no numbers but those of the keys that a cache of fixed size holds.
        """
        keys = self.keys_of(module)
        device = device_of(module)
        present = keys.written - keys.first
        cached = static_keys(self.cache, module)
        # One number, expanded: the tensors have their shapes and take no memory.
        number = torch.zeros((), device=device)
        known = number.expand(self.batch, 1, present, 1)
        if cached is not None and self.queries == 1:
            known = cached.keys[:, :, :present]
        return AttentionCall(
            number.expand(self.batch, heads, self.queries, 1),
            known,
            known,
            self._definition(keys.written),
            tuple(range(heads)),
            0.0,
            evicted=keys.first,
            across=False,
        )

    def _definition(self, tokens: int) -> Attention:
        """Return a definition with the padding of a text of so many tokens; layers share it."""
        if tokens not in self._definitions:
            made = Attention()
            if self.padding is not None:
                made = Attention(mask=padding_mask(pad_to(self.padding, tokens)))
            self._definitions[tokens] = made
        return self._definitions[tokens]


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's weights."""
    return next((one.device for one in module.parameters()), torch.device("cpu"))


# ------------------------------------------------------------------------------------------- terms


_terms: "WeakKeyDictionary[nn.Module, dict[Any, Tensor]]" = WeakKeyDictionary()
"""The term of each attention in steps, by its shape. It lives as long as the model: CUDA graphs hold
its address.
"""


class LayerTerm(NamedTuple):
    """The term of one attention."""

    tap: AttentionTap
    edited: Attention
    """What the edits make of a definition without a mask and without a bias."""
    heads: int
    keys: KeysOfRun


class Terms:
    """The terms of all attentions of a run, and of the steps after it.

    taps  each attention that runs, with its number of heads
    """

    def __init__(self, run: CompiledRun, taps: Mapping[AttentionTap, int]) -> None:
        self.batch = run.batch
        self.queries = run.queries
        self.cache = None if run.cache is None else ref(run.cache)
        self.layers = [
            LayerTerm(tap, _edited(tap), heads, run.keys_of(tap.module))
            for tap, heads in taps.items()
        ]
        modules = [layer.tap.module for layer in self.layers]
        caches = [static_keys(run.cache, one) for one in modules]
        self.is_step = run.queries == 1 and all(one is not None for one in caches)
        self._windows = [0 if one is None else one.window for one in caches]
        self._moved = 0
        """How many steps ran since the run that was described."""
        self._version: Any = None
        self._filled: list[Any] = [None] * len(self.layers)
        self.fill()

    def fill(self) -> None:
        """Write the terms of the run that begins."""
        made: dict[Any, Tensor] = {}
        for i, layer in enumerate(self.layers):
            keys = self._keys(i)
            device = device_of(layer.tap.module)
            # A step's term is made on the host, which copies it only where it has changed.
            where = torch.device("cpu") if self.is_step else device
            dtype = _dtype_of(layer.tap.module)
            shape = (self.batch, layer.heads, self.queries, keys.room)
            key = (id(layer.edited), shape, keys.first, where, dtype)
            if key not in made:
                first_query = keys.written - self.queries
                made[key] = term_of(layer.edited, shape, first_query, keys.first, where, dtype)
            term = made[key]
            if not self.is_step:
                # Layers share the memory and not the tensor: torch.compile guards which arguments
                # are one object, and other edits may tell layers apart.
                layer.tap.term = term.data
                continue
            before = self._filled[i]
            if before is None:
                layer.tap.term = _fixed_term(layer.tap.module, term, device)
            if before is None or (before is not term and not torch.equal(before, term)):
                assert layer.tap.term is not None
                layer.tap.term.copy_(term)
            self._filled[i] = term

    def _keys(self, i: int) -> KeysOfRun:
        """Return which keys an attention reads in the step that begins."""
        keys = self.layers[i].keys
        written = keys.written + self._moved
        window = self._windows[i]
        first = max(written - window, 0) if window else keys.first
        return KeysOfRun(keys.room, first, written)

    def continues(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether the run that begins is one more step of the same texts."""
        if not self.is_step or ids is None or ids.shape != (self.batch, 1):
            return False
        if self.cache is None or cache_of(kwargs) is not self.cache():
            return False
        # Where a span begins or ends, blocks look at the run again.
        if self.length in self._borders:
            return False
        # A cache in inference mode does not tell whether anybody wrote to it.
        version = self._current_version()
        return version is not None and version == self._version

    @property
    def length(self) -> int:
        """How many tokens the texts have after the latest run."""
        return self.layers[0].keys.written + self._moved

    def advance(self) -> None:
        """Write what is another in the step that begins than in the step before."""
        self._moved += 1
        # A cache that slides has other tokens in its places.
        if any(self._windows):
            self.fill()

    @cached_property
    def _borders(self) -> frozenset[int]:
        """The positions at which some span of queries or keys begins or ends."""
        found: set[int] = set()
        for edited in {id(one.edited): one.edited for one in self.layers}.values():
            for rectangle in rectangles_of(edited):
                for table in (rectangle.keys, rectangle.queries):
                    if table is not None:
                        changed = (table[:, 1:] != table[:, :-1]).any(0)
                        found.update((changed.nonzero().flatten() + 1).tolist())
        return frozenset(found)

    def end(self) -> None:
        """Note what the cache holds after the run."""
        self._version = self._current_version()

    def _current_version(self) -> Any:
        cache = None if self.cache is None else self.cache()
        cached = static_keys(cache, self.layers[0].tap.module) if cache is not None else None
        if cached is None or version_of(cached.keys) is None:
            return None
        return id(cached.keys), version_of(cached.keys)


def _edited(tap: AttentionTap) -> Attention:
    return reduce(lambda before, one: one.apply(before), tap.score_edits, PLAIN)


def _dtype_of(module: nn.Module) -> torch.dtype:
    """Return a dtype in which a term is as exact as the scores of a module."""
    kinds = (one.dtype for one in module.parameters() if one.is_floating_point())
    return torch.promote_types(next(kinds, torch.float32), torch.float32)


@torch.inference_mode(False)  # the tensors are read outside of it, too
def term_of(
    edited: Attention,
    shape: tuple[int, int, int, int],
    first_query: int,
    first_key: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return what edits add to scores of this shape, (batch, heads, query, key), -inf where they
    hide a key.

    edited       what the edits make of a definition without a mask and without a bias
    first_query  the position of the first query, and of the first key
    """
    batch, heads, queries, keys = shape
    size = (queries, keys)
    at = Pairs.block(*size, of=size, batch=batch, heads=heads, device=device)
    at = replace(at, query=at.row + first_query, key=at.key + first_key)
    edited = edited.to(device)
    term = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)
    for bias in edited.biases:
        term = term + bias.added(at, dtype)
    hidden = ~edited.mask.sees(at)
    term = torch.where(hidden, -torch.inf, term)
    if batch * heads * queries * keys <= WHOLE:
        return term.expand(shape).contiguous()
    return term.expand(-1, -1, queries, keys)


def _fixed_term(module: nn.Module, like: Tensor, device: torch.device) -> Tensor:
    """Return the tensor in which the steps of an attention read their term."""
    known = _terms.setdefault(module, {})
    kind = (like.shape, like.dtype, device)
    if kind not in known:
        # Those of other batches would stay for nothing.
        known.clear()
        with torch.inference_mode(False):
            known[kind] = torch.zeros(like.shape, dtype=like.dtype, device=device)
        torch._dynamo.mark_static_address(known[kind], guard=False)
    return known[kind]


def prepare_terms(
    interceptors: Sequence[Any],
    module: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    heads: Mapping[int, int],
) -> Terms | None:
    """Show the run that begins to the blocks that follow the text, and let the taps add what their
    edits ask for; return None if no block adds to scores. An attention without an edit gets zeros:
    other edits need no other code then.

    heads  of each attention, by id, as far as they are known
    """
    following = [one for one in interceptors if one.handler.follows_calls]
    adds = any(one.handler.adds_to_scores for one in following)
    if not following:
        return None
    try:
        run = CompiledRun(module, args, kwargs)
        for interceptor in following:
            _follow(interceptor, run, module, heads)
    except ValueError:
        # Blocks that only note the text can do without this run.
        if adds:
            raise
        return None
    taps = {vars(one)[TAP]: heads[id(one)] for one in module.modules() if id(one) in heads}
    return Terms(run, taps) if adds and taps else None


def _follow(
    interceptor: Any, run: CompiledRun, module: nn.Module, heads: Mapping[int, int]
) -> None:
    """Show the calls of a run to the handler of a block, which says what it makes of them."""
    # The embedding of a layer that is compiled by itself has run before.
    if run.ids is not None:
        interceptor.text.inputs.add(run.ids)
    for one in module.modules():
        name = interceptor.names.get(id(one))
        if name is None or id(one) not in heads:
            continue
        edit = interceptor.handler.score_edit(name, run.call_of(one, heads[id(one)]))
        if edit is not None:
            vars(one)[TAP].score_edits += (edit,)


def cached_keys(cache: Any, attentions: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the keys that a cache holds of each attention."""
    found: Sequence[Any] = [
        (name, CacheLayer.of(cache, one, across=False)) for name, one in attentions.items()
    ]
    return {
        name: layer.keys for name, layer in found if layer is not None and layer.keys is not None
    }
