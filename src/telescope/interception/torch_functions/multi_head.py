"""The calls of torch.nn.MultiheadAttention: the one that computes weights, and the fast path."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...attention import Attention, Mask, everyone, padding
from ..mask_tensors import padding_mask
from .axes import UnreadableCallError
from .calls import FunctionCall
from .definition import FunctionReader


class Weighing:
    """A call of nn.MultiheadAttention that runs and returns its weights."""

    def __init__(self, module: nn.Module, heads: int, dropout: float) -> None:
        self.module = module
        self.heads = heads
        self.dropout = dropout
        self.scored: tuple[Tensor, ...] | None = None
        """The arguments of the product before the softmax: (queries · scale, keysᵀ), or a mask and
        these; None until it was computed.
        """
        self.edited: Tensor | None = None
        """The weights (batch, heads, query, key), if an edit changed them."""


class WeighingCall(FunctionCall):
    """The part of nn.MultiheadAttention, with need_weights=True, that multiplies the weights by the
    values: `torch.bmm(weights, values)`, whose arguments are `weighed`.
    """

    function = "nn.MultiheadAttention"

    def __init__(
        self,
        original: Callable[..., Any],
        weighing: Weighing,
        weighed: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__(original, weighing.module)
        assert weighing.scored is not None
        *mask, queries, transposed = weighing.scored
        self._passed = weighed
        self._weighing = weighing
        self._heads = weighing.heads
        self._mask = mask[0] if mask else None
        self.dropout = weighing.dropout
        self._set_tensors(*map(self._by_heads, (queries, transposed.mT, weighed[1])))

    def _by_heads(self, part: Tensor) -> Tensor:
        return part.view(-1, self._heads, *part.shape[1:])

    @property
    def is_plain(self) -> bool:
        return self._mask is None

    def run(self) -> Tensor:
        self.returned = self.original(*self._passed)
        return self._by_heads(self.returned)

    def run_described(self) -> Tensor:
        assert self.described is not None
        self._weighing.edited = self.described.weights()
        return super().run_described()

    def result(self, context: Tensor) -> Tensor:
        return context.flatten(0, 1)

    def _definition(self, reader: FunctionReader) -> Attention:
        mask = self._mask
        if mask is None:
            return reader.definition(1.0, everyone)
        # One mask for all sequences and heads, or one for each.
        fold = self._by_heads if len(mask) == len(self._passed[0]) else lambda one: one[None]
        found, bias, _ = self._read_mask(reader, mask, fold)
        return reader.definition(1.0, found, bias)


class FastCall(FunctionCall):
    """A call of torch's fused forward pass of nn.MultiheadAttention, or of a layer around it.

    It returns no context: queries, keys and values are projected once more, to be recorded.

    tokens   what the attention reads, (batch, token, feature), maybe a nested tensor
    hidden   which keys are hidden, as torch's function takes it, and its `mask_type`
    """

    function = "nn.MultiheadAttention"

    def __init__(
        self,
        original: Callable[..., Any],
        module: Any,
        tokens: Tensor,
        run: Callable[[], Any],
        hidden: Tensor | None,
        hidden_type: int | None,
    ) -> None:
        super().__init__(original, module)
        self._run = run
        self._hidden = hidden
        self._hidden_type = hidden_type
        self._lengths: Tensor | None = None
        with torch.no_grad():
            # Padded sentences may come as a nested tensor, whose sentences have their own lengths.
            if tokens.is_nested:
                self._lengths = tokens._nested_tensor_size()[:, 0]
                tokens = torch.nested.to_padded_tensor(tokens, 0.0)
            projected = linear(tokens, module.in_proj_weight, module.in_proj_bias)
            parts = projected.view(*projected.shape[:2], 3, module.num_heads, -1)
            parts = parts.permute(2, 0, 3, 1, 4)
            self._set_tensors(*parts.unbind())

    @property
    def is_plain(self) -> bool:
        return self._hidden is None and self._lengths is None

    def run(self) -> Tensor:
        self.returned = self._run()
        # No handler looks at it: edits switch the fast path off.
        return self.tensors[0]

    def result(self, context: Tensor) -> Any:
        raise UnreadableCallError("torch's fast path cannot be edited")

    def check_output(self, *_: Any) -> None:
        """Do nothing: there is no context to compare."""

    def _definition(self, reader: FunctionReader) -> Attention:
        return reader.definition(None, self._mask(reader))

    def _mask(self, reader: FunctionReader) -> Mask:
        if self._lengths is not None:
            return padding(self._lengths.to(self.tensors[0].device))
        hidden = self._hidden
        if hidden is None:
            return everyone
        # Any number but 0 hides a pair, as torch's function reads it.
        if self._hidden_type == 1:
            return padding_mask(~hidden.bool())
        seen = ~hidden.bool()
        fold = (lambda one: one[None, None]) if seen.ndim == 2 else (lambda one: one)
        return self._read_mask(reader, seen, fold).mask
