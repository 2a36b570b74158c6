"""Remember the token ids that a model is passed, and tell which of them an attention's queries and
keys are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..surveys import Size
from .module_hook import BEFORE, listen

INPUTS = 4  # token inputs that are remembered; an encoder-decoder needs two


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
        query_ids = next(
            (given.ids for given in self.latest if tuple(given.ids.shape) == (batch, queries)), None
        )
        if not across:
            return query_ids, None
        seen = self._seen.get(name, 0)
        self._seen[name] = self.count
        for given in self.latest[1:]:
            rows, length = given.ids.shape
            if (
                given.number > seen
                and length == keys
                and (rows == batch or (beams and rows and not batch % rows))
            ):
                return query_ids, given.ids if rows == batch else given.ids.repeat_interleave(
                    batch // rows, 0
                )
        return query_ids, None

    @contextmanager
    def listening(
        self, embeddings: Iterable[nn.Module], is_active: Callable[[], bool]
    ) -> Iterator[None]:
        """Remember, while the block runs, the token ids that are passed to these embeddings if
        `is_active()`.
        """

        def remember(module: nn.Module, args: Any, kwargs: Any) -> None:
            if is_active() and args and isinstance(args[0], Tensor) and args[0].ndim == 2:
                with torch.inference_mode(
                    False
                ):  # a copy that all calls share: the model may write to its input
                    self.count += 1
                    self.latest = [
                        TokenInput(self.count, args[0].detach().clone()),
                        *self.latest[: INPUTS - 1],
                    ]

        with ExitStack() as hooks:
            for embedding in embeddings:
                hooks.callback(listen(embedding, remember, BEFORE))
            yield
