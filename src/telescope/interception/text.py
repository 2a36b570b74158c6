"""`Text`: what a model reads and writes, pass by pass, and which of its tokens count.

One rule holds for every number: a sentence in a padded batch has the numbers of the sentence alone.
This module decides which queries, keys and predictions count, for recordings, edits and effects.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import ref

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..attention import Keep, Mask, Pairs, find_padding
from ..layers import told_real
from ..recording import AttentionCall, ForwardPass
from ..surveys import Size
from .module_hook import BEFORE, listen

INPUTS = 4  # token inputs that are remembered; an encoder-decoder needs two


class Text:
    """The text of one model, followed through its forward passes.

    Padding is told by the mask of each self-attention. The queries of a cross-attention are the
    tokens of the self-attention that ran before it. Tokens are given to the model, the prompt, or
    written by it; `reading_prompt` tells which where a library says so, and else several tokens at
    once are given, and one at a time is written.
    """

    def __init__(self) -> None:
        self.forward_pass = ForwardPass()
        """The pass that runs, or that ran last."""
        self.cache: Callable[[], Any] = _no_cache
        """Returns the cache that the pass was given; a weak reference, since the model may be done
        with it.
        """
        self.inputs = TokenInputs()
        self.is_reading_prompt = False
        self.is_stepping = False
        """Whether each query of the call that is recorded was a step of its own."""
        self.prompt_ids: Int[Tensor, "batch token"] | None = None
        """The whole prompt that is being read, maybe in several forward passes; None if it is not
        known.
        """
        self._ends: tuple[int, ...] | None = None
        self._latest: SelfAttentionTokens | None = None
        self._asked: tuple[int, int, torch.device, RealTokens] | None = None
        self._held: dict[str, tuple[KeyMemory, ...]] = {}  # by name: keys of the latest call
        self._unchanged: set[str] = set()  # attentions whose keys were unchanged at the beginning

    # --------------------------------------------------------------------------------------- passes

    def begin_pass(self, cache: Any = None) -> None:
        """Begin a forward pass, which is given this cache, and end the pass before it.

        Between two passes a cache may be reordered, cropped or written to; what it holds is
        compared with what it held after each attention's latest call.
        """
        # What the layers of the pass before have shared is freed.
        self.forward_pass.end()
        self.forward_pass = ForwardPass()
        self.cache = _no_cache if cache is None else ref(cache)
        # Compare now, before the pass writes to its cache.
        self._unchanged = {
            name for name, held in self._held.items() if all(one.is_unchanged() for one in held)
        }

    @contextmanager
    def listening(
        self, embeddings: Iterable[nn.Module], is_active: Callable[[], bool]
    ) -> Iterator[None]:
        """Remember, while the block runs, the token ids that are passed to these embeddings if
        `is_active()`.
        """

        def remember(module: nn.Module, args: Any, kwargs: Any) -> None:
            # Token ids have two axes: batch and token.
            if is_active() and args and isinstance(args[0], Tensor) and args[0].ndim == 2:
                self.inputs.add(args[0])

        with ExitStack() as hooks:
            # Whichever pass is the last when the block is left.
            hooks.callback(lambda: self.forward_pass.end())
            hooks.callback(listen(embeddings, remember, BEFORE))
            yield

    @contextmanager
    def reading_prompt(
        self, ids: Int[Tensor, "batch token"] | None, ends: Sequence[int]
    ) -> Iterator[None]:
        """Take the forward passes of the block as reading one prompt; later ones write, until an id
        of `ends`.
        """
        self.is_reading_prompt = True
        self.prompt_ids = ids
        self._ends = tuple(ends)
        try:
            yield
        finally:
            self.is_reading_prompt = False
            self.prompt_ids = None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Take the calls of the block as several steps each, in which the model wrote."""
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False

    # ----------------------------------------------------------------------------------------- keys

    def holds(self, name: str, layer: Any) -> bool:
        """Return whether the keys of an attention's latest call still lie in this layer of a cache,
        unchanged when the pass began.
        """
        held = self._held.get(name, ())
        holder = held[0].holder if held else None
        return name in self._unchanged and holder is not None and holder() is layer

    def has_keys(self, name: str, now: "KeyMemory", tokens: int) -> bool:
        """Return whether the keys of an attention's latest call were the first `tokens` of these,
        by where they lie.
        """
        held = self._held.get(name, ())
        last = held[0].tensor() if held else None
        return last is not None and last is now.tensor() and held[0].tokens == tokens

    def keys_follow(self, name: str, now: "tuple[KeyMemory, ...]", queries: int) -> bool:
        """Return whether the keys of a call are known to begin with those of the attention's call
        before; to be asked for each call.

        `now` is where keys, and values if they matter, lie; () if that tells nothing.
        """
        last = self._held.pop(name, ())
        unchanged = name in self._unchanged
        # Another call in the same pass would have to be compared again.
        self._unchanged.discard(name)
        if now:
            self._held[name] = now
        if not now or not last:
            return False
        # Where a cache replaces its tensors, its layer must be the same, and unchanged since.
        if now[0].holder is not None:
            held = last[0].holder
            return unchanged and held is not None and held() is now[0].holder()
        # Where steps write to a cache in place, versions and lengths tell what was written.
        return all(one.extends(before, queries) for one, before in zip(now, last, strict=True))

    # --------------------------------------------------------------------------------------- tokens

    def ends(self, call: AttentionCall) -> tuple[int, ...] | None:
        """Return the ids that end the text which the call's queries write; None if the queries
        belong to the prompt.

        To be asked after `real_tokens`.
        """
        if self.is_reading_prompt:
            return None
        queries, keys = call.size
        # A cross-attention stands where the self-attention before it stood.
        if call.is_cross_attention:
            known = self._latest
            same_pass = known is not None and known.sequences == (len(call.queries), queries)
            begins = queries > 1 if known is None or not same_pass else known.begins
        else:
            begins = queries == keys
        # Outside of `generate`, several tokens at once are given to the model, not written by it.
        if begins or (self._ends is None and queries > 1 and not self.is_stepping):
            return None
        return self._ends or ()

    def real_tokens(self, call: AttentionCall) -> "RealTokens":
        """Return the tokens that count of the sequence of the call's queries; to be asked for each
        call, in order.
        """
        found = self._find(call)
        batch, heads = call.queries.shape[:2]
        # Remember the tokens of the latest call for `real_predictions`.
        self._asked = batch, heads, call.queries.device, found
        return found

    def real_predictions(self, batch: int, tokens: int) -> Bool[Tensor, "batch token"] | None:
        """Return at which of the latest tokens a prediction counts; None if at all, or if that is
        not known.

        Ask after a forward pass. What a model returns belongs to the last tokens of its last
        attention.
        """
        if self._asked is None:
            return None
        sequences, heads, device, found = self._asked
        # What is known of another batch, or of fewer tokens, says nothing of these.
        if found.mask is None or sequences != batch or found.tokens < tokens:
            return None
        table = found.table(batch, heads, device)
        return None if table is None else table[:, found.tokens - tokens :]

    def _find(self, call: AttentionCall) -> "RealTokens":
        queries, keys = call.size
        batch, heads = call.queries.shape[:2]
        # A layer may have been told which tokens are real; ignore what was told of another batch.
        told = told_real()
        if told is not None and len(told) != batch:
            told = None
        # The queries of a cross-attention are the tokens of the latest self-attention.
        if call.is_cross_attention:
            known = self._latest
            if known is not None and known.sequences == (batch, queries):
                return known.real
            if told is None:
                return RealTokens(None, queries)
            return RealTokens(Keep(told.to(call.queries.device)), told.shape[1])
        # Self-attention: all layers of a pass that are called alike share one result.
        if queries == keys and not self.is_reading_prompt:
            self._ends = None  # another text, which no `generate` writes
        key = ("real", call.attention._identity, call.size, batch, heads, id(told))
        real = self.forward_pass.once(key, lambda: _find_real(call, told), call.attention, told)
        self._latest = SelfAttentionTokens((batch, queries), queries == keys, real)
        return real


def _no_cache() -> None:
    return None


def _find_real(call: AttentionCall, told: Bool[Tensor, "batch some"] | None) -> "RealTokens":
    """Return the tokens that count of a self-attention; `told` are those that a layer was told
    of.
    """
    keys = call.size[1]
    batch, heads = call.queries.shape[:2]
    device = call.queries.device
    # Combine the padding that the mask shows with what a layer was told.
    mask = find_padding(call.attention, batch=batch, heads=heads, size=call.size, device=device)
    if told is not None:
        kept = _last_tokens(told, keys, device)
        mask = kept if mask is None else mask & kept
    return RealTokens(mask, keys)


def _last_tokens(told: Bool[Tensor, "batch some"], tokens: int, device: torch.device) -> Keep:
    """Return the mask of all tokens of a text, of which `told` are the last."""
    # Tokens before those that were told count.
    keep = torch.ones(len(told), tokens, dtype=torch.bool, device=device)
    count = min(tokens, told.shape[1])
    keep[:, tokens - count :] = told[:, told.shape[1] - count :].to(device)
    return Keep(keep)


class RealTokens(NamedTuple):
    """The tokens that count of the sequence that the queries of a call belong to."""

    mask: Mask | None
    """Sees the tokens that count; None if all do."""
    tokens: int
    """How many tokens the sequence has so far. The last query of the call is the last of them."""

    def table(
        self, batch: int, heads: int, device: torch.device
    ) -> Bool[Tensor, "batch token"] | None:
        """Return whether each token counts; None if all do."""
        if self.mask is None:
            return None
        # Evaluate the mask for a single query; a token counts if some head sees it.
        size = (1, self.tokens)
        at = Pairs.block(
            range(1), range(self.tokens), of=size, batch=batch, heads=heads, device=device
        )
        return self.mask.sees(at).any(1)[:, 0].expand(batch, self.tokens)


class SelfAttentionTokens(NamedTuple):
    """The tokens of the latest self-attention, which a cross-attention after it has as queries."""

    sequences: tuple[int, int]
    """Batch and queries."""
    begins: bool
    """Whether the text begins with these queries."""
    real: RealTokens


class KeyMemory(NamedTuple):
    """The tensor in which the keys or values of a call lie, and how often it had been written to.

    The references are weak: a watch does not keep a cache alive that the model has done with.
    """

    tensor: "ref[Tensor]"
    version: int | None
    """None for a tensor of inference mode, which does not count."""
    tokens: int
    holder: "ref[Any] | None" = None
    """The layer of a cache that replaces its tensor, attribute `keys`, in each step; None where
    steps write to one tensor.
    """

    @classmethod
    def of(cls, tokens: Tensor) -> "KeyMemory":
        """Return the memory of keys or values that a step of decoding writes to in place."""
        # Cached keys are often a new view in each call: refer to the tensor below, which stays.
        tensor = tokens if tokens._base is None else tokens._base
        return cls(ref(tensor), version_of(tensor), tokens.shape[-2])

    @classmethod
    def held_by(cls, layer: Any, keys: Tensor) -> "KeyMemory":
        """Return the memory of the keys that a layer of a cache holds."""
        return cls(ref(keys), version_of(keys), keys.shape[-2], ref(layer))

    def is_unchanged(self) -> bool:
        """Return whether the tensor is still in its place, and nothing was written to it since."""
        tensor = self.tensor()
        if tensor is None or self.version != version_of(tensor):
            return False
        return self.holder is None or getattr(self.holder(), "keys", None) is tensor

    def extends(self, last: "KeyMemory", queries: int) -> bool:
        """Return whether these are known to begin with those of the call before.

        A step of decoding writes its own keys to the cache, and nothing else; cross-attention
        writes none.
        """
        same = self.tensor() is not None and self.tensor() is last.tensor()
        if not same or self.version is None or last.version is None:
            return False
        # A write in place raises the version by one.
        written = self.version - last.version
        more = self.tokens - last.tokens
        # Either nothing was written, or one write has appended the keys of the queries.
        return (written, more) in ((0, 0), (1, queries))


def version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor was written to; None for one of inference mode, which does not
    count.
    """
    return None if tensor.is_inference() else tensor._version


class TokenInput(NamedTuple):
    """Token ids that were passed to the model, and how many inputs there were with it."""

    number: int
    ids: Tensor


class TokenInputs:
    """The latest token ids that were passed to a model's embeddings."""

    def __init__(self) -> None:
        self.latest: list[TokenInput] = []  # the latest first
        self.count = 0
        self._seen: dict[str, int] = {}  # by each cross-attention: `count` when it last ran
        self._of_steps: list[Tensor] = []
        self._are_steps = False

    def add(self, ids: Int[Tensor, "batch token"]) -> None:
        """Remember token ids: a copy that all calls share, since the model may write to its
        input.
        """
        self.count += 1
        # A copy that is no inference tensor can be used outside of inference mode, too.
        with torch.inference_mode(False):
            own = ids.detach().clone()
        if self._are_steps:
            self._of_steps.append(own)
        else:
            self._note(own)

    def _note(self, ids: Int[Tensor, "batch token"]) -> None:
        self.latest = [TokenInput(self.count, ids), *self.latest[: INPUTS - 1]]

    def begin_steps(self) -> None:
        """Remember the inputs that come now as those of steps, which are recorded together; the
        latest are those of the pass before, which may wait to be recorded, too.
        """
        self._of_steps = []
        self._are_steps = True

    def end_steps(self, count: int) -> None:
        """Take the inputs of the first `count` steps as one, and the last as that of the running
        pass.
        """
        inputs = self._of_steps
        self._of_steps = []
        self._are_steps = False
        steps = inputs[:count]
        is_known = len(steps) == count and all(one.shape == steps[0].shape for one in steps)
        if steps and is_known:
            self._note(torch.cat(steps, 1))
        if len(inputs) > count:
            self._note(inputs[-1])

    def of_call(
        self, name: str, batch: int, size: Size, across: bool, *, beams: bool = False
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the ids of the queries and, in cross-attention, of the keys; None where they are
        not known.

        The queries are the latest input of their shape. The keys of cross-attention are an input
        before that, which came after this attention last ran: if the other sequence is no text,
        such as sound, then the inputs of an earlier run are not mistaken for it. With `beams`, the
        ids of a source are repeated for its beams.
        """
        queries, keys = size
        # The queries are the latest input of their shape.
        shape = (batch, queries)
        alike = (given.ids for given in self.latest if tuple(given.ids.shape) == shape)
        query_ids = next(alike, None)
        if not across:
            return query_ids, None
        # The keys are an input before that, and later than the attention's last call.
        seen = self._seen.get(name, 0)
        self._seen[name] = self.count
        for given in self.latest[1:]:
            rows, length = given.ids.shape
            # Beams repeat each row of the source.
            fits = rows == batch or (beams and rows and not batch % rows)
            if given.number > seen and length == keys and fits:
                each = batch // rows if rows else 1
                return query_ids, given.ids if each == 1 else given.ids.repeat_interleave(each, 0)
        return query_ids, None
