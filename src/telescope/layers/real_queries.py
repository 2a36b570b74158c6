"""Tell hooks which queries of a running attention are real, where no mask of the attention says so.

A text that has ended goes on in its batch until the others end, and a recurrent decoder has no
self-attention whose mask could hide the padding of its targets. Such queries change no number of
another token; only what counts queries has to know about them.
"""

from contextvars import ContextVar, Token

from jaxtyping import Bool
from torch import Tensor

_running: ContextVar[Tensor | None] = ContextVar("real_queries", default=None)


class OnlyReal:
    """Tell hooks, while the block runs, which of the latest tokens of each sequence count; None
    tells nothing.

    The last token is that of the last query. Tokens before those given count as their masks say.
    """

    def __init__(self, tokens: Bool[Tensor, "batch token"] | None) -> None:
        self.tokens = tokens
        self._before: Token[Tensor | None] | None = None

    def __enter__(self) -> None:
        if self.tokens is not None:
            self._before = _running.set(self.tokens)

    def __exit__(self, *raised: object) -> None:
        if self._before is not None:
            _running.reset(self._before)


def told_real() -> Bool[Tensor, "batch token"] | None:
    """Return what `OnlyReal` tells now."""
    return _running.get()
