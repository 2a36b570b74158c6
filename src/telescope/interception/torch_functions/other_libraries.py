"""The calls of the attention functions of flash-attn and xformers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...attention import Alibi, Attention, Bias, Mask, causal, everyone, window
from .axes import UnreadableCallError
from .calls import FunctionCall
from .definition import FunctionReader


class FlashCall(FunctionCall):
    """A call of flash_attn.flash_attn_func, whose tensors are (batch, token, heads, feature)."""

    function = "flash_attn_func"
    follows_autocast = False

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        *more: Any,
        **options: Any,
    ) -> None:
        super().__init__(original, module)
        self._set_tensors(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        self.passed: tuple[Any, ...] = (q, k, v)
        self.dropout = float(dropout_p)
        self.scale = softmax_scale
        self.is_causal = causal
        self.window = window_size
        self.softcap = softcap or None
        self.slopes = alibi_slopes
        self._options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
        self._more = more
        self._by_name = options

    @property
    def is_plain(self) -> bool:
        return not self.is_causal and self.window == (-1, -1)

    def run(self) -> Tensor:
        self.returned = self.original(*self.passed, *self._options, *self._more, **self._by_name)
        first: Tensor = self.returned[0] if isinstance(self.returned, tuple) else self.returned
        return first.transpose(1, 2)

    def result(self, context: Tensor) -> Any:
        if isinstance(self.returned, tuple):
            return (context.transpose(1, 2), *self.returned[1:])
        return context.transpose(1, 2)

    def _definition(self, reader: FunctionReader) -> Attention:
        mask: Mask = causal if self.is_causal else everyone
        before, after = self.window
        if self.is_causal and before >= 0:
            mask = mask & window(before + 1)
        elif not self.is_causal and (before >= 0 or after >= 0):
            if before != after:
                raise UnreadableCallError(f"its window {self.window} differs before and after")
            mask = window(before + 1)
        bias: Bias | None = None
        if self.slopes is not None:
            if self.slopes.ndim != 1:
                raise UnreadableCallError("its ALiBi slopes differ between sequences")
            bias = Alibi(self.slopes)
        return reader.definition(self.scale, mask, bias, self.softcap)


class FlashPackedCall(FlashCall):
    """A call of flash_attn.flash_attn_qkvpacked_func: queries, keys and values in one tensor."""

    function = "flash_attn_qkvpacked_func"

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        qkv: Tensor,
        *more: Any,
        **options: Any,
    ) -> None:
        queries, keys, values = qkv.unbind(2)
        super().__init__(original, module, queries, keys, values, *more, **options)
        self.passed = (qkv,)


class XformersCall(FunctionCall):
    """A call of xformers.ops.memory_efficient_attention, whose tensors are (batch, token, heads,
    feature), or (batch, token, feature).
    """

    function = "memory_efficient_attention"
    follows_autocast = False

    def __init__(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Any = None,
        p: float = 0.0,
        scale: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(original, module)
        self.passed = (query, key, value)
        if query.ndim == 5:
            raise UnreadableCallError("its queries have five axes, of groups and heads")
        self._has_heads = query.ndim == 4
        parts = [one.transpose(1, 2) if self._has_heads else one for one in self.passed]
        self._set_tensors(parts[0], parts[1], parts[2])
        self.mask = attn_bias
        self.dropout = float(p)
        self.scale = scale
        self._options = options

    @property
    def is_plain(self) -> bool:
        return self.mask is None

    def run(self) -> Tensor:
        self.returned = self.original(
            *self.passed, self.mask, self.dropout, self.scale, **self._options
        )
        context: Tensor = self.returned
        return context.transpose(1, 2) if self._has_heads else context.unsqueeze(1)

    def result(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2) if self._has_heads else context[:, 0]

    def _definition(self, reader: FunctionReader) -> Attention:
        kind = type(self.mask).__name__
        if self.mask is None:
            return reader.definition(self.scale, everyone)
        if isinstance(self.mask, Tensor):
            return self._with_tensor(reader, self.scale, self.mask)
        if kind == "LowerTriangularMask":
            return self._causal_from_first(reader, self.scale)
        if kind == "LowerTriangularFromBottomRightMask":
            return reader.definition(self.scale, causal)
        raise UnreadableCallError(f"its mask is a {kind} of xformers, which is not known here")
