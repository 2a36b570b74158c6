"""Everything that relies on how transformers is written inside; of its caches, cache_layers.py.

transformers offers no way to ask which modules use its attention interface, which eager function a
module would call, or which mask a mask function stands for. Each section states the reason for its
trick and a test that fails without it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import unwrap
from itertools import takewhile
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from .cache_layers import cache_of

# ----------------------------------------------------------------------------- implementation names
# A model's config names its attention implementation. While a model is watched, the config holds a
# name of ours, under which the attention interface has our function. Many models compare that name
# with "sdpa" or "eager" and choose their masks and their code by the result, so the new name has to
# compare equal to the original.
# Fails without it: tests/properties/test_watch_huggingface_properties.py,
# test_a_model_that_asks_for_its_implementation_by_name_is_told.

# Before 5.1, transformers does not look up a name that equals "eager", so there the name equals
# itself alone.
LOOKS_UP_EVERY_NAME = hasattr(AttentionInterface, "get_interface")


class ImplementationName(str):
    """The name of a watched implementation: a string of its own that compares equal to the
    original's name.
    """

    implementation: str

    def __new__(cls, implementation: str) -> "ImplementationName":
        name = super().__new__(cls, f"{implementation}_telescope")
        name.implementation = implementation
        return name

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or (
            LOOKS_UP_EVERY_NAME and other == self.implementation
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Copy and pickle as the original's name: a copy of a watched model is an unwatched
        model.
        """
        return str, (self.implementation,)


def implementation_of(module: Any) -> str:
    """Return the name of the attention implementation that a module uses when it is not watched."""
    name = implementation_name(module.config)
    if name is None:
        name = module.config._attn_implementation
    return name.implementation if isinstance(name, ImplementationName) else str(name)


def implementation_name(config: Any) -> Any:
    """Return the implementation that a config names. Its property takes several microseconds, which
    count in each step of a model that writes.
    """
    return vars(config).get("_attn_implementation_internal")


def set_implementation(config: Any, name: str) -> None:
    """Set the implementation of one config; the public setter would change the configs inside it
    too, and any setter of a config takes several microseconds.
    """
    vars(config)["_attn_implementation_internal"] = name


# -------------------------------------------------------------------------------- attention modules
# A module uses the attention interface if the code of one of its methods mentions
# ALL_ATTENTION_FUNCTIONS. The eager function is no entry of that table: a module names the function
# in its own code.
# Fails without it: tests/agreement/test_watch_huggingface.py, test_every_family.


def uses_attention_interface(kind: type) -> bool:
    """Return whether modules of this class call an attention function by transformers' attention
    interface.
    """
    return _attention_method(kind) is not None


def eager_function_names(module: nn.Module) -> list[str]:
    """Return the names of the eager attention functions in the code of a module; one that can be
    watched has one.
    """
    return [
        name
        for name in _method_of(module).__code__.co_names
        if name.endswith("eager_attention_forward")
    ]


def own_attention(
    implementation: str, module: nn.Module
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention function that the module would call if it were not watched."""
    if implementation != "eager":
        own = attention_table(module)[implementation]
        # In a compiled run, a traced function stands in the place of the model's own.
        found: Any = getattr(own, "own", None) or own
        return found  # type: ignore[no-any-return]
    # Look the name up as the module's own code would.
    names: Any = _method_of(module).__globals__
    return names[eager_function_names(module)[0]]  # type: ignore[no-any-return]


def attention_table(module: nn.Module) -> Any:
    """Return the AttentionInterface in which the module's code looks its functions up."""
    return _method_of(module).__globals__["ALL_ATTENTION_FUNCTIONS"]


def _method_of(module: nn.Module) -> Any:
    kind: Any = type(module)
    return _attention_method(kind)


@cache
def _attention_method(kind: type) -> Any:
    """Return the method of a class that uses the attention interface, or None."""
    # A decorated method has its code below the decorators.
    methods = (
        unwrap(method)
        for owner in _own_classes(kind)
        for method in vars(owner).values()
        if callable(method)
    )
    return next(filter(_mentions_interface, methods), None)


def _own_classes(kind: type) -> Iterable[type]:
    """Return the class and its bases below PreTrainedModel, which mentions the interface for
    another purpose.
    """
    return takewhile(lambda owner: owner is not PreTrainedModel, kind.__mro__)


def _mentions_interface(method: Any) -> bool:
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(method, "__code__", None), "co_names", ())


# ----------------------------------------------------------------------------------- mask functions
# transformers describes a mask by a Python function of (batch, head, query, key), often a closure
# made by another function, such as sliding_window_overlay(sliding_window). The name of the maker
# and the variables of the closure are the only description of the mask; without them a mask could
# only be evaluated at every pair.
# Fails without it: tests/agreement/test_watch_masks.py, test_masks_are_known_by_name.


def mask_function_name(function: Any) -> str | None:
    """Return the name of a mask function of transformers, or of the function that made it; None for
    any other.
    """
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return None
    # The qualified name of a closure begins with its maker's: maker.<locals>.inner.
    return str(function.__qualname__).partition(".")[0]


def closure_variables(function: Any) -> dict[str, Any]:
    """Return the variables that a closure captured, by name."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(
        zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)
    )


# -------------------------------------------------------------------------------- requested outputs
# Newer models do not pass `output_attentions` to their attention functions: transformers collects
# outputs by hooks, and only a private context variable tells that the weights are among them.
# Fails without it: tests/agreement/test_watch_huggingface.py, test_every_family.

_collected: Any
try:
    from transformers.utils.output_capturing import _active_collector as _collected
except ImportError:
    # Other versions pass `output_attentions` to the attention functions.
    _collected = ContextVar("_collected", default=None)


def weights_are_requested(options: dict[str, Any]) -> bool:
    """Return whether the caller of the model asked for attention weights."""
    if options.get("output_attentions"):
        return True
    collected = _collected.get()
    return bool(collected) and any("attentions" in name for name in collected)


# ------------------------------------------------------------------------- the prompt of `generate`
# `generate` may read its prompt in several forward passes (prefill_chunk_size), and pads a text
# that has ended while others of the batch go on. Neither can be told from what the model is passed:
# the last chunk may be a single token, and the attention mask has a 1 for each token after the end.
# `_prefill` is the one method that reads the prompt, and it is passed the whole prompt and the ids
# that end a text. In versions without it, tokens that come one at a time count as written, and
# texts count to the end of their batch.
# Fails without it: tests/properties/test_padding.py, test_chunked_prompts and
# test_texts_that_end_early.

_PREFILL = "_prefill"


class PromptReader:
    """Stand for a model's `_prefill` while the model is intercepted, and announce each prompt to
    the interceptors.

    A copy of the model, made or pickled inside the block, has its own `_prefill`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.listeners: tuple[Callable[[Prompt], AbstractContextManager[None]], ...] = ()

    def __call__(
        self,
        input_ids: Tensor,
        generation_config: Any,
        model_kwargs: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        prompt = Prompt(
            _whole_prompt(self.model, input_ids, model_kwargs), _end_tokens(generation_config)
        )
        with ExitStack() as reading:
            for listener in self.listeners:
                reading.enter_context(listener(prompt))
            return _own_prefill(self.model)(
                input_ids, generation_config, model_kwargs, *args, **options
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A model that is copied along gets a method of its own copy.
        return _own_prefill(memo.get(id(self.model), self.model))

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _own_prefill, (self.model,)


class Prompt(NamedTuple):
    """What `generate` is about to read."""

    ids: Tensor | None
    """All tokens of the text so far, (batch, token); None if they are not known."""
    ends: tuple[int, ...]
    """The token ids that end a text."""


@contextmanager
def announcing_prompts(
    model: Any, listener: Callable[[Prompt], AbstractContextManager[None]]
) -> Iterator[None]:
    """Enter `listener(prompt)` around every prompt that `model.generate` reads while the block
    runs.

    The caller makes sure that no two threads enter or leave at a time.
    """
    # Versions without `_prefill` announce nothing.
    if not hasattr(type(model), _PREFILL):
        yield
        return
    # All blocks share one reader, which hides the method of the class.
    reader = vars(model).get(_PREFILL)
    if not isinstance(reader, PromptReader):
        reader = vars(model)[_PREFILL] = PromptReader(model)
    reader.listeners = (*reader.listeners, listener)
    try:
        yield
    finally:
        reader.listeners = tuple(one for one in reader.listeners if one is not listener)
        # Leave the model alone if somebody has replaced the reader since.
        if not reader.listeners and vars(model).get(_PREFILL) is reader:
            del vars(model)[_PREFILL]


def _own_prefill(model: Any) -> Any:
    return MethodType(getattr(type(model), _PREFILL), model)


def _whole_prompt(model: Any, input_ids: Any, model_kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the tokens of the whole text up to the end of the prompt; None where `generate` has
    only some of them.
    """
    # A prompt of embeddings has no ids; in an encoder-decoder, the decoder has them still.
    if model_kwargs.get("inputs_embeds") is not None and not model.config.is_encoder_decoder:
        return None
    # A cache that holds tokens already was filled by an earlier call.
    cache = cache_of(model_kwargs)
    known = (
        0 if cache is None or not hasattr(cache, "get_seq_length") else int(cache.get_seq_length())
    )
    if not known:
        return input_ids  # type: ignore[no-any-return]
    # Then `input_ids` may be the whole text or its end: the length of the mask tells.
    mask = model_kwargs.get(
        "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    )
    is_whole = mask is not None and mask.shape[1] == input_ids.shape[1] > known
    return input_ids if is_whole else None


def _end_tokens(generation_config: Any) -> tuple[int, ...]:
    ends = getattr(generation_config, "_eos_token_tensor", None)
    return () if ends is None else tuple(ends.reshape(-1).tolist())
