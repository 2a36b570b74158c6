"""What compiled code leaves behind for a watch, and how an edit reaches into compiled code.

torch.compile traces a model once and runs what it made of it many times. Python that is traced runs
at no later time, but two things that it does last: what it writes to a tensor in place, and what it
stores as an attribute of an object. So while a compiled model runs, each of its modules has a
`Tap`, whose methods are traced with the module. A tap notes what ran as an event of the `RunLog`
that all taps of a block share, and the block reads the log when the run is over.

A step of a model that writes has its query copied into a buffer of the tap instead: nothing is
handed out of the graph, so that CUDA graphs replay the step as if nobody watched.

An edit reaches into a graph by two tensors of the tap: factors of the heads, and a term that is
added to the scores, -inf where a key is hidden. Other numbers in them need no other code.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..attention import Attention

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
        self.prepared: tuple[Any, ...] = ()
        """The interceptors that the latest run has prepared the taps for, as weak references."""
        self.terms: Any = None
        """The terms that the latest run has added to its scores; None if it added none."""


class Tap:
    """Stand for a module in a log. Dynamo traces `note` before the module's forward."""

    def __init__(self, module: nn.Module, log: RunLog) -> None:
        self.module = module
        self.log = log

    def note(self, args: Any, kwargs: Any) -> None:
        """Note that the module runs with these arguments."""

    def change(self, output: Any) -> Any:
        """Return what the module is to return in the place of its output; None for the output."""

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


class ScoreEdit(NamedTuple):
    """What the edits of one block make of the definition of one attention: they hide keys, or add
    to their scores.
    """

    key: Hashable
    """Equal for equal changes."""
    apply: Callable[[Attention], Attention]


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
    is_sdpa     whether that function is causal by itself if it is passed no mask
    parameters  the names of the parameters of the module's forward, if its keys may come from
                another sequence; else ()
    others      which of these parameters hold the other sequence
    """

    def __init__(
        self,
        module: nn.Module,
        log: RunLog,
        own: Any,
        is_sdpa: bool = False,
        parameters: tuple[str, ...] = (),
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(module, log)
        self.own = own
        self.is_sdpa = is_sdpa
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
        self.term: Tensor | None = None
        """What is added to the scores, (batch or 1, heads or 1, query, key); None for no edit."""
        self.score_edits: tuple[ScoreEdit, ...] = ()
        """The edits that the term stands for, those of the outer block first."""

    def multiply(self, factors: list[float]) -> None:
        """Multiply the context of each head by a number, besides what other blocks multiply by."""
        before = self.asked or [1.0] * len(factors)
        factors = self.asked = [one * other for one, other in zip(before, factors, strict=True)]
        known = _factors.get(self.module)
        if known is None or len(known[0]) != len(factors):
            device = next((one.device for one in self.module.parameters()), None)
            # A tensor of inference mode could not be written to outside of it.
            with torch.inference_mode(False):
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
        self,
        own: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        options: dict[str, Any],
    ) -> Any:
        """Run the model's own attention, and leave behind what it was passed.

        Every attribute that is read here is a guard of the compiled code, which each step checks
        for each layer: a step reads few.
        """
        added = mask
        seen = None
        if self.term is not None:
            added, seen = self._with_term(module, query, key, mask, options)
        output, weights = own(module, query, key, value, added, **options)
        if seen is not None:
            # The context of a row that sees nothing is zeros, and its weights are.
            output = torch.where(seen.transpose(1, 2)[..., None], output, 0.0)
            if weights is not None:
                weights = torch.where(seen[..., None], weights, 0.0)
        kept = {name: options[name] for name in OPTIONS if name in options}
        if self.queries is not None and self.slot is not None:
            self.queries.index_copy_(2, self.slot, query.detach())
            if self.keys is not None and self.values is not None and self.place is not None:
                self.keys.index_copy_(2, self.slot, key.detach().index_select(2, self.place))
                self.values.index_copy_(2, self.slot, value.detach().index_select(2, self.place))
            self.log.events = (*self.log.events, Step(self, mask, kept))
        elif self.is_kept:
            tensors = (query.detach(), key.detach(), value.detach())
            self.log.events = (*self.log.events, Call(self, tensors, mask, kept))
        else:
            self.log.events = (*self.log.events, Ran(self))
        if self.factors is not None:
            # The context is (batch, query, heads, width). Not times 0: 0 · NaN would be NaN.
            factors = self.factors.to(output.dtype)
            output = torch.where(factors == 0.0, 0.0, output * factors)
        return output, weights

    def _with_term(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Return the mask with the term added, as numbers, and which rows see some key,
        (batch or 1, heads or 1, query).
        """
        assert self.term is not None
        queries = query.shape[2]
        keys = key.shape[2]
        # One row would broadcast to other rows than those it was made for.
        if self.term.shape[2] != queries or self.term.shape[3] != keys:
            raise ValueError(
                f"{type(module).__name__} has {queries} queries and {keys} keys, and an edit "
                f"expected {self.term.shape[2]} and {self.term.shape[3]}; call the model as it was "
                "before torch.compile"
            )
        term = self.term.to(query.dtype)
        if mask is None:
            is_causal = options.get("is_causal")
            if is_causal is None:
                is_causal = getattr(module, "is_causal", True)
            # Without a mask, torch's attention aligns the first query with the first key.
            if self.is_sdpa and is_causal and queries > 1:
                rows = torch.arange(queries, device=query.device)[:, None]
                columns = torch.arange(keys, device=query.device)
                term = torch.where(columns <= rows, term, -torch.inf)
        elif mask.dtype == torch.bool:
            term = torch.where(mask[..., :keys], term, -torch.inf)
        else:
            term = mask[..., :keys].to(query.dtype) + term
        # Masks hide a pair by the lowest number of their dtype, or by -inf.
        seen = (term > torch.finfo(term.dtype).min / 2).any(-1)
        # A row that sees nothing would be NaN, and its gradients; let it see everything for now.
        return torch.where(seen[..., None], term, 0.0), seen


def tap_of(module: nn.Module) -> Tap | None:
    """Return the tap of a module, if a compiled run of a block is under way."""
    # Not by getattr, which would search parameters and submodules, too.
    tap = module.__dict__.get(TAP)
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
            function = tap.own if own is None else own
            return tap.attend(function, module, query, key, value, attention_mask, options)
        # A module of another model, which runs in another thread.
        function = find(module) if own is None else own
        return function(module, query, key, value, attention_mask, **options)

    attention.own = own  # type: ignore[attr-defined]
    return attention
