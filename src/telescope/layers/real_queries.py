"""Tell hooks which queries of a running attention are real, where no mask of the attention says so.

A text that has ended goes on in its batch until the others end, and a recurrent decoder has no self-attention whose
mask could hide the padding of its targets. Such queries change no number of another token; only what counts queries
has to know about them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jaxtyping import Bool
from torch import Tensor

_running: ContextVar[Tensor | None] = ContextVar("real_queries", default=None)


@contextmanager
def only_real(tokens: Bool[Tensor, "batch token"] | None) -> Iterator[None]:
    """Tell hooks, while the block runs, which of the latest tokens of each sequence count; None tells nothing.

    The last token is that of the last query. Tokens before those given count as their masks say.
    """
    if tokens is None:
        yield
        return
    before = _running.set(tokens)
    try:
        yield
    finally:
        _running.reset(before)


def told_real() -> Bool[Tensor, "batch token"] | None:
    """Return what `only_real` tells now."""
    return _running.get()
