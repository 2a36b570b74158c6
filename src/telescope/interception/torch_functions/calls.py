"""The calls of attention functions: what each computes, read from its arguments, and how it is run.

A class here belongs to one function. Its constructor has the parameters of the function after the
original and the module that calls it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from ...attention import Attention, Mask, causal, everyone
from ...engines import attend, torch_modes
from ...recording import AttentionCall
from ..interceptor import HandledCall, Interceptor, ModelCall, StoredKeys
from ..observer import SHORT
from ..proof import OutputChecks
from ..sdpa_lse import attend_with_lse
from ..text import KeyMemory
from .axes import FourAxes, UnreadableCallError, fold
from .definition import (
    FunctionReader,
    ReadMask,
    causal_of_arguments,
    read_mask_function,
)

# What a call that has run needs, to be recorded.
KEPT = {"module", "tensors", "known", "lse", "across", "is_recorded", "has_waited", "dropout"}


class FunctionCall(ModelCall):
    """A call of an attention function by a module."""

    function: ClassVar[str]
    """The function, as a sentence names it."""
    follows_autocast: ClassVar[bool] = True
    """Whether the function computes in the dtype of autocast."""
    head_axis = 1

    axes: FourAxes
    dropout: float = 0.0
    returned: Any = None
    """What the function returned, once it has run."""
    known: AttentionCall | None = None
    """What the call computes, once that was read."""
    is_fixed: ClassVar[bool] = True
    """Whether what was read of the call holds nothing that others may change."""

    def __init__(self, original: Callable[..., Any], module: nn.Module) -> None:
        self.original = original
        self.module = module
        self.has_waited = False
        """Whether the call is recorded later than it ran."""

    def _set_tensors(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, grouped: bool = True
    ) -> None:
        """Take queries, keys and values of any number of axes."""
        self.axes = FourAxes.of(queries, keys, values, grouped=grouped)
        self.tensors = self.axes.tensors
        # As the function takes them: where definitions are read, autocast is off.
        if self.follows_autocast:
            self.tensors = torch_modes.cast_for_autocast(*self.tensors)  # type: ignore[assignment]

    @property
    def size(self) -> tuple[int, int]:
        """How many queries and keys the call has."""
        queries, keys, _ = self.tensors
        return queries.shape[-2], keys.shape[-2]

    # ----------------------------------------------------------------------------- of each function

    @property
    def is_plain(self) -> bool:
        """Whether the call hides nothing."""
        return False

    @abstractmethod
    def run(self) -> Tensor:
        """Run the function as the model called it, keep what it returned, and return the context
        with four axes.
        """

    @abstractmethod
    def result(self, context: Tensor) -> Any:
        """Return what the function would return with this context of four axes in the place of its
        own, which need not have been computed.
        """

    @abstractmethod
    def _definition(self, reader: FunctionReader) -> Attention:
        """Return the definition of the call."""

    # ------------------------------------------------------------------------------- of all of them

    def _read_mask(
        self,
        reader: FunctionReader,
        given: Tensor,
        fold: Callable[[Tensor], Tensor],
        *,
        may_have_room: bool = False,
    ) -> ReadMask:
        """Translate a mask tensor; `fold` gives it four axes."""
        rows, _ = self.size
        queries = rows if may_have_room and not self.across else None
        batch = len(self.tensors[0])
        return reader.mask_tensor(self.module, given, fold, batch=batch, queries=queries)

    def _with_tensor(self, reader: FunctionReader, scale: float | None, given: Tensor) -> Attention:
        """Return the definition of a call with a mask tensor, over a cache maybe."""
        fold = self.axes.fold_mask
        mask, bias, written = self._read_mask(reader, given, fold, may_have_room=True)
        return reader.definition(scale, mask, bias, written=written, keys=self.size[1])

    def _causal_from_first(self, reader: FunctionReader, scale: float | None) -> Attention:
        """Return the definition of a causal call that counts queries and keys from the first."""
        mask, _, written = causal_of_arguments(*self.size, across=self.across)
        return reader.definition(scale, mask, written=written, keys=self.size[1])

    def release(self) -> None:
        """Let go of everything but queries, keys, values and what was read of the call."""
        for name in vars(self).keys() - KEPT:
            delattr(self, name)
        # Tensors of our own in the place of those that others may hold, too.
        queries, keys, values = (one.detach() for one in self.tensors)
        self.tensors = (queries, keys, values)
        if self.known is not None:
            self.known = self.known._replace(queries=queries, keys=keys, values=values)

    def read(self, interceptor: Interceptor) -> AttentionCall:
        if self.known is None:
            assert isinstance(interceptor, ReadingInterceptor)
            queries, keys, values = self.tensors
            attention = self._definition(interceptor.reader)
            heads = tuple(range(queries.shape[1]))
            self.known = AttentionCall(queries, keys, values, attention, heads, self.dropout)
        return self.known

    def change(self, handled: HandledCall, changed: AttentionCall, *, own_keys: bool) -> None:
        self.described = changed

    def run_described(self) -> Tensor:
        """Run the call as edited; return the context with four axes."""
        call = self.described
        assert call is not None
        definition = call.attention_over_present_keys
        return attend(call.queries, call.keys, call.values, definition, dropout=call.dropout)

    def read_lse(self) -> None:
        """Do nothing: the log-sum-exp is kept in any case where the function gives it."""

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Tensor) -> None:
        # Compared when it ran: what the call returned has not been kept.
        if self.has_waited:
            return
        assert isinstance(handled.interceptor, ReadingInterceptor)
        kind = "edited" if self.described is not None else self.function
        context = output.transpose(1, 2)
        handled.interceptor.checks.add(handled.name, self.module, call, context, kind)

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        _, keys, values = self.tensors
        return StoredKeys((KeyMemory.of(keys), KeyMemory.of(values)))


class ReadingInterceptor(Interceptor):
    """An interceptor that reads definitions from calls, and checks them."""

    reader: FunctionReader
    checks: OutputChecks


class SdpaCall(FunctionCall):
    """A call of torch.nn.functional.scaled_dot_product_attention."""

    function = "scaled_dot_product_attention"

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        super().__init__(original, module)
        self.passed = (query, key, value)
        self._set_tensors(query, key, value, grouped=enable_gqa)
        self.mask = attn_mask
        self.dropout = float(dropout_p)
        self.is_causal = is_causal
        self.scale = scale
        self.grouped = enable_gqa

    @property
    def is_plain(self) -> bool:
        return self.mask is None and not self.is_causal

    def run(self) -> Tensor:
        options = (self.mask, self.dropout, self.is_causal)
        more: dict[str, Any] = {"scale": self.scale, "enable_gqa": self.grouped}
        queries, keys, _ = self.tensors
        # A GPU computes the log-sum-exp of a short call faster than a host reads it. Only with four
        # axes is it that of the heads.
        is_short = queries.is_cuda and queries.shape[-2] * keys.shape[-2] <= SHORT
        if len(self.axes.lead) == 2 and not is_short:
            self.returned, self.lse = attend_with_lse(*self.passed, *options, **more)
        else:
            self.returned = self.original(*self.passed, *options, **more)
        return fold(self.returned)

    def result(self, context: Tensor) -> Tensor:
        return self.axes.unfold(context)

    def _definition(self, reader: FunctionReader) -> Attention:
        if self.mask is not None:
            return self._with_tensor(reader, self.scale, self.mask)
        if self.is_causal:
            return self._causal_from_first(reader, self.scale)
        # A single query over a cache sees every key, as a causal one does.
        is_step = self.size[0] == 1 and not self.across
        return reader.definition(self.scale, causal if is_step else everyone)


class FlexCall(FunctionCall):
    """A call of torch.nn.attention.flex_attention.flex_attention, maybe compiled."""

    function = "flex_attention"
    is_fixed = False  # functions of the user may read tensors

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        *more: Any,
        **options: Any,
    ) -> None:
        super().__init__(original, module)
        self._set_tensors(query, key, value, grouped=enable_gqa)
        self.score_mod = score_mod
        self.block_mask = block_mask
        self.scale = scale
        self._passed = (query, key, value, score_mod, block_mask, scale, enable_gqa, *more)
        self._options = options

    @property
    def is_plain(self) -> bool:
        return self.block_mask is None and self.score_mod is None

    def run(self) -> Tensor:
        self.returned = self.original(*self._passed, **self._options)
        # With the log-sum-exp or more, the context comes first.
        first: Tensor = self.returned[0] if isinstance(self.returned, tuple) else self.returned
        return first

    def result(self, context: Tensor) -> Any:
        if self._passed[7:8] == (True,) or self._options.get("return_lse"):
            raise UnreadableCallError(
                "it asks flex_attention for the log-sum-exp, which an edited call does not give"
            )
        if self._options.get("return_aux") is not None:
            raise UnreadableCallError(
                "it asks flex_attention for more than the context, which an edited call does not "
                "give"
            )
        return context

    def _definition(self, reader: FunctionReader) -> Attention:
        rows, columns = self.size
        mask: Mask = everyone
        written = None
        if self.block_mask is not None:
            batch, heads = self.tensors[0].shape[:2]
            device = self.tensors[0].device
            mask, _, written = read_mask_function(
                self.block_mask.mask_mod, self.size, batch, heads, device, across=self.across
            )
        softcap = bias = None
        if self.score_mod is not None:
            softcap, bias = reader.score_edit(self.score_mod, rows - (written or columns))
        return reader.definition(self.scale, mask, bias, softcap, written=written, keys=columns)


class TelescopeCall(FunctionCall):
    """A call of ts.attend."""

    function = "ts.attend"
    is_fixed = False  # so may a definition of the user

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        attention: Attention = Attention(),
        *,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        super().__init__(original, module)
        self.passed = (queries, keys, values)
        self._set_tensors(queries, keys, values)
        self.attention = attention
        self.dropout = dropout
        self._engine = engine

    @property
    def is_plain(self) -> bool:
        return bool(self.attention.mask == everyone)

    def run(self) -> Tensor:
        self.returned = self.original(
            *self.passed, self.attention, dropout=self.dropout, engine=self._engine
        )
        return self.returned  # type: ignore[no-any-return]

    def result(self, context: Tensor) -> Tensor:
        return context

    def _definition(self, reader: FunctionReader) -> Attention:
        return self.attention
