"""What compiled code leaves behind for a watch, and how an edit reaches into compiled code.

torch.compile traces a model once and runs what it made of it many times. Python that is traced runs
at no later time, but two things that it does last: what it writes to a tensor in place, and what it
stores as an attribute of an object. So while a compiled model runs, each of its modules has a
`Tap`, whose methods are traced with the module. A tap notes what ran as an event of the `RunLog`
that all taps of a block share, and the block reads the log when the run is over.

A step of a model that writes has its query copied into a buffer of the tap instead: nothing is
handed out of the graph, so that CUDA graphs replay the step as if nobody watched.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

TAP = "_telescope_tap"
"""The attribute of a module that holds its tap."""
OPTIONS = (
    "is_causal",
    "scaling",
    "softcap",
    "s_aux",
    "dropout",
    "position_bias",
    "sliding_window",
    "cu_seq_lens_q",
)
"""The options of an attention function that its definition depends on."""


class RunLog:
    """What the running compiled code has noted so far."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether a compiled run of the block is under way. Traced code is guarded by it."""
        self.events: tuple[Any, ...] = ()
        self.prepared: Any = None
        """The block that the latest run has prepared the taps for, as a weak reference."""


class Tap:
    """Stand for a module in a log. Dynamo traces `note` before the module's forward."""

    def __init__(self, module: nn.Module, log: RunLog) -> None:
        self.module = module
        self.log = log

    def note(self, args: Any, kwargs: Any) -> None:
        """Note that the module runs with these arguments."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Copy and pickle as None: a copy of the module is in no block."""
        return type(None), ()


class TokenIds(NamedTuple):
    """The event of an embedding: the token ids that it was passed."""

    ids: Tensor


class EmbeddingTap(Tap):
    """Note the token ids that an embedding is passed."""

    def note(self, args: Any, kwargs: Any) -> None:
        if len(args) > 0 and isinstance(args[0], Tensor) and args[0].ndim == 2:
            self.log.events = (*self.log.events, TokenIds(args[0]))


class Pass(NamedTuple):
    """The event of an attention that begins to run."""

    tap: "AttentionTap"
    across: bool | None
    """Whether the keys come from another sequence; None if the arguments cannot tell."""


class Call(NamedTuple):
    """The event of a call of an attention function, with what it was passed."""

    tap: "AttentionTap"
    tensors: tuple[Tensor, Tensor, Tensor]
    mask: Any
    options: dict[str, Any]


class Step(NamedTuple):
    """The event of a call whose query was copied into the tap's buffer."""

    tap: "AttentionTap"
    mask: Any
    options: dict[str, Any]


_factors: "WeakKeyDictionary[nn.Module, tuple[list[float], Tensor]]" = WeakKeyDictionary()
"""The factors of the heads of each attention, and the tensor that compiled code reads them from. A
tensor lives as long as its model, so that other factors need no other code.
"""


class Ran(NamedTuple):
    """The event of a call that no block records."""

    tap: "AttentionTap"


class AttentionTap(Tap):
    """Hand out what an attention was passed, or copy the query of a step into a buffer.

    own         the model's own attention function
    parameters  the names of the parameters of the module's forward, if its keys may come from
                another sequence; else ()
    others      which of these parameters hold the other sequence
    """

    def __init__(
        self,
        module: nn.Module,
        log: RunLog,
        own: Any,
        parameters: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(module, log)
        self.own = own
        self.parameters = parameters
        self.others = others
        self.clear()

    def clear(self) -> None:
        """Take back what the blocks of an earlier run have asked for."""
        self.is_kept = False
        """Whether a block records the attention."""
        self.queries: Tensor | None = None
        """(batch, heads, step, width), the buffer of queries; None to hand tensors out."""
        self.keys: Tensor | None = None
        """The buffer of new keys, where the cache does not keep them; likewise `values`."""
        self.values: Tensor | None = None
        self.slot: Tensor | None = None
        """The place of this step in the buffers, (1,)."""
        self.place: Tensor | None = None
        """The place of the newest key in the cache, (1,)."""
        self.factors: Tensor | None = None
        """What the context of each head is multiplied by, (heads, 1); None for no edit."""
        self.asked: list[float] = []
        """The same numbers on the host; [] for no edit."""

    def multiply(self, factors: list[float]) -> None:
        """Multiply the context of each head by a number, besides what other blocks multiply by."""
        before = self.asked or [1.0] * len(factors)
        factors = self.asked = [one * other for one, other in zip(before, factors, strict=True)]
        known = _factors.get(self.module)
        if known is None or len(known[0]) != len(factors):
            device = next((one.device for one in self.module.parameters()), None)
            tensor = torch.tensor(factors, dtype=torch.float32, device=device)[:, None]
            torch._dynamo.mark_static_address(tensor, guard=False)
            known = _factors[self.module] = ([*factors], tensor)
        elif known[0] != factors:
            known[1].copy_(torch.tensor(factors)[:, None])
            known = _factors[self.module] = ([*factors], known[1])
        self.factors = known[1]

    def note(self, args: Any, kwargs: Any) -> None:
        # A step is of an attention that is known to read its own sequence, once in a pass.
        if self.queries is not None:
            return
        across = None
        if len(self.parameters) > 0:
            # Without another sequence, keys come from the module's own hidden states.
            across = False
            hidden = args[0] if len(args) > 0 else kwargs.get("hidden_states")
            for name in self.others:
                other = kwargs.get(name)
                position = self.parameters.index(name)
                if position < len(args):
                    other = args[position]
                if other is not None and other is not hidden:
                    across = True
        self.log.events = (*self.log.events, Pass(self, across))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
    ) -> Any:
        """Run the model's own attention, and leave behind what it was passed."""
        output, weights = self.own(self.module, query, key, value, mask, **options)
        kept = {name: options[name] for name in OPTIONS if name in options}
        if not self.is_kept:
            self.log.events = (*self.log.events, Ran(self))
        elif self.queries is not None and self.slot is not None:
            self.queries.index_copy_(2, self.slot, query.detach())
            if self.keys is not None and self.values is not None and self.place is not None:
                self.keys.index_copy_(2, self.slot, key.detach().index_select(2, self.place))
                self.values.index_copy_(2, self.slot, value.detach().index_select(2, self.place))
            self.log.events = (*self.log.events, Step(self, mask, kept))
        else:
            tensors = (query.detach(), key.detach(), value.detach())
            self.log.events = (*self.log.events, Call(self, tensors, mask, kept))
        if self.factors is not None:
            # The context is (batch, query, heads, width). Not times 0: 0 · NaN would be NaN.
            factors = self.factors.to(output.dtype)
            output = torch.where(factors == 0.0, 0.0, output * factors)
        return output, weights


def tap_of(module: Any) -> Tap | None:
    """Return the tap of a module, if a compiled run of a block is under way."""
    tap = getattr(module, TAP, None)
    return tap if tap is not None and tap.log.is_open else None


def traced_attention(
    own: Callable[..., Any] | None, find: Callable[[nn.Module], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return the attention function that compiled code calls in the place of a model's own.

    own    the function in whose place it stands; None if each module has one of its own
    find   finds that function for a module
    """

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> Any:
        tap = tap_of(module)
        if isinstance(tap, AttentionTap):
            return tap.attend(query, key, value, attention_mask, options)
        # A module of another model, which runs in another thread.
        function = find(module) if own is None else own
        return function(module, query, key, value, attention_mask, **options)

    attention.own = own  # type: ignore[attr-defined]
    return attention
