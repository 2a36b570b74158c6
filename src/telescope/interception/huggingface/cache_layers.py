"""The layers of transformers' key-value caches: what they hold, and whether it changes.

A model that writes passes its attentions the keys of all tokens so far, and nothing says whether
the earlier ones are those of the step before. To compare them would make each step wait for the
GPU. The layer of a cache knows: it holds its keys between two steps, and a cache that is
reordered, cropped or reset holds another tensor, or one that was written to. Only classes whose
`update` is known to append are trusted.
Fails without it: tests/agreement/test_watch_generation.py, test_steps_do_not_read_the_keys.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import signature
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_masks_for_generate

_APPENDING = {
    "DynamicLayer": True,
    "DynamicSlidingWindowLayer": False,
    "StaticLayer": False,
    "StaticSlidingWindowLayer": False,
}
"""The layers of caches that append, each with whether the keys it returned are never written to
again.
"""
# The parameters by which a model is passed its cache.
_CACHES = ("past_key_values", "past_key_value")


class CacheLayer(NamedTuple):
    """The layer of a key-value cache that belongs to one attention."""

    layer: Any
    keys_stay: bool
    """Whether the keys that the layer returned are never written to again."""

    @property
    def keys(self) -> Tensor | None:
        """The keys that the layer holds now."""
        return getattr(self.layer, "keys", None)

    @property
    def slides(self) -> bool:
        """Whether the layer moves its keys in place, and returns a copy where it drops some."""
        return type(self.layer).__name__ == "StaticSlidingWindowLayer"

    @classmethod
    def of(cls, cache: Any, module: nn.Module, across: bool) -> "CacheLayer | None":
        """Return the layer that a cache has for an attention; None if that is not known."""
        # The cache of an encoder-decoder holds two.
        cache = getattr(cache, "cross_attention_cache" if across else "self_attention_cache", cache)
        layers = getattr(cache, "layers", None)
        number = getattr(module, "layer_idx", None)
        # A number that the cache has no layer for yet is not known.
        if not isinstance(layers, list) or not isinstance(number, int) or number >= len(layers):
            return None
        kind: Any = type(layers[number])
        stay = _appending(kind)
        return None if stay is None else cls(layers[number], stay)


@cache
def _appending(kind: type) -> bool | None:
    return _APPENDING.get(kind.__name__) if kind.__module__ == "transformers.cache_utils" else None


class StaticKeys(NamedTuple):
    """A layer of a cache of fixed size."""

    layer: Any
    window: int
    """How many keys the layer holds, if it slides; else 0."""

    @property
    def keys(self) -> Tensor:
        return self.layer.keys  # type: ignore[no-any-return]

    @property
    def values(self) -> Tensor:
        return self.layer.values  # type: ignore[no-any-return]


def static_keys(cache: Any, module: nn.Module) -> StaticKeys | None:
    """Return the layer of fixed size that a cache has for an attention; None if there is none, or
    none with keys yet.
    """
    found = CacheLayer.of(cache, module, across=False)
    if found is None or found.keys is None or not type(found.layer).__name__.startswith("Static"):
        return None
    return StaticKeys(found.layer, found.layer.max_cache_len if found.slides else 0)


def mask_sizes(layer: Any, queries: int, before: int) -> tuple[int, int]:
    """Return how many keys a layer of a cache will return for these queries, and the position of
    the first.

    before  how many tokens it holds
    """
    kind: Any = type(layer)
    if _takes_positions(kind):
        keys, first = layer.get_mask_sizes(torch.arange(before, before + queries))
    else:
        keys, first = layer.get_mask_sizes(queries)
    return int(keys), int(first)


@cache
def _takes_positions(kind: type) -> bool:
    """Return whether this version of transformers passes positions, and not their number."""
    sizes: Any = getattr(kind, "get_mask_sizes", None)
    return "cache_position" in signature(sizes).parameters


def is_step(args: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether a model is passed one token for each text, and a cache of fixed size."""
    ids = arguments.get("input_ids", args[0] if args else None)
    layers = getattr(cache_of(arguments), "layers", None) or [None]
    is_static = type(layers[0]).__name__.startswith("Static")
    return is_static and isinstance(ids, Tensor) and ids.shape[-1:] == (1,)


def expected_masks(model: Any, args: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the masks that a decoder will make of these arguments, as `generate` makes them before
    it calls compiled code: the argument `attention_mask`, or {} if that is not known.
    """
    given = arguments.get("attention_mask")
    ids = arguments.get("input_ids", args[0] if args else None)
    is_plain = given is None or (isinstance(given, Tensor) and given.ndim == 2)
    is_decoder = hasattr(model, "prepare_inputs_for_generation") and hasattr(model, "config")
    if not is_decoder or not is_plain or not isinstance(ids, Tensor) or len(args) > 1:
        return {}
    if model.config.is_encoder_decoder:
        return {}
    make = getattr(model, "create_masks_for_generate", create_masks_for_generate)
    try:
        masks = make(
            config=model.config,
            # Only the shape, the dtype and the device count.
            inputs_embeds=torch.empty((*ids.shape, 0), dtype=model.dtype, device=ids.device),
            attention_mask=given,
            past_key_values=cache_of(arguments),
            position_ids=arguments.get("position_ids"),
        )
    except (TypeError, ValueError, AttributeError):  # a family that needs more to make its masks
        return {}
    return {} if masks is None else {"attention_mask": masks}


# The methods of a cache that change what it holds, besides `update`.
_CHANGES = ("reorder_cache", "reset", "crop", "batch_repeat_interleave", "batch_select_indices")


class ChangeReader:
    """Stand for a method of a cache that changes what it holds, and act before each call of it.

    A copy of the cache, made or pickled meanwhile, has its own method.
    """

    def __init__(self, cache: Any, name: str, act: Callable[[], object]) -> None:
        self.cache = cache
        self.name = name
        self.act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.act()
        return _own_method(self.cache, self.name)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _own_method(memo.get(id(self.cache), self.cache), self.name)

    def __reduce__(self) -> tuple[Any, tuple[Any, str]]:
        return _own_method, (self.cache, self.name)


def _own_method(cache: Any, name: str) -> Any:
    return MethodType(getattr(type(cache), name), cache)


@contextmanager
def before_changes(cache: Any, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` before anybody reorders, crops or resets the cache while the block runs."""
    changed = [name for name in _CHANGES if hasattr(type(cache), name)]
    if any(isinstance(vars(cache).get(name), ChangeReader) for name in changed):
        raise RuntimeError(f"{type(cache).__name__} is in two blocks at a time; leave one of them")
    before = {name: vars(cache)[name] for name in changed if name in vars(cache)}
    for name in changed:
        vars(cache)[name] = ChangeReader(cache, name, act)
    try:
        yield
    finally:
        for name in changed:
            vars(cache).pop(name, None)
        vars(cache).update(before)


def token_ids(args: Any, arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the token ids that a model is called with, (batch, token)."""
    given = arguments.get("input_ids", args[0] if args else None)
    return given if isinstance(given, Tensor) and given.ndim == 2 else None


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """Return the cache that a model is passed, or None."""
    return next((arguments[name] for name in _CACHES if arguments.get(name) is not None), None)
