"""Check that the output projections whose norms are kept multiply what the heads computed.

They are found by the names of modules, which may lie in a model of the user's own: an attention may
gate or norm the context before it projects it.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...anatomy import OutputProjection
from ..module_hook import BEFORE, listen


class Projections:
    """The output projections of one block, and what their attentions computed last."""

    def __init__(self, carriers: Mapping[str, OutputProjection]) -> None:
        self.carriers = carriers
        self._contexts: dict[str, Tensor] = {}  # by the name of the attention, (batch, heads, ...)

    def note(self, attention: str, context: Tensor) -> None:
        """Note the context of a call that has just run."""
        if attention in self.carriers:
            self._contexts[attention] = context

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check every input of the projections while the block runs."""
        with ExitStack() as undo:
            for name, carrier in self.carriers.items():
                undo.callback(listen([carrier.module], partial(self._check, name), BEFORE))
            yield

    def _check(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        context = self._contexts.pop(name, None)
        if context is None or not args:
            return
        joined = context.transpose(1, 2).flatten(2)
        given = args[0]
        # Some models have tokens before the batch.
        orders = [given, given.transpose(0, 1)] if given.ndim == 3 else [given]
        if given.numel() != joined.numel() or not any(
            torch.equal(one.reshape(joined.shape), joined) for one in orders
        ):
            raise ValueError(
                f'also="norms" needs the output projection of "{name}", and what goes into the '
                "module of that name is not what the heads computed; leave it out"
            )
