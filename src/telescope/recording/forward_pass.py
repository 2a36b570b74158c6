"""`ForwardPass`: one run of a model, and what its attentions have in common.

The layers of a model are mostly called with one mask, one definition and tensors of one shape. What
is found out about one of them holds for the others of the same pass, and for no later one: a mask
may be written to between two passes, and memory may be given to other objects.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


class ForwardPass:
    """One run of a model or of a stack of its layers, from its token inputs to its output."""

    def __init__(self) -> None:
        # For each key what was found, and the objects whose identities the key holds.
        self._memo: dict[Any, tuple[Any, tuple[object, ...]]] = {}

    def once(self, key: Any, find: Callable[[], Found], *alive: object) -> Found:
        """Return find(), called once in this pass for each key.

        A key may hold identities. The objects they are of are passed as `alive`, and kept until the
        pass ends, so that no other object gets their identity meanwhile.
        """
        if key not in self._memo:
            self._memo[key] = find(), alive
        found: Found = self._memo[key][0]
        return found

    def known(self, key: Any) -> Any:
        """Return what was found for a key; None if nothing was."""
        return self._memo.get(key, (None,))[0]

    def note(self, key: Any, found: Any, *alive: object) -> None:
        """Note what was found for a key, in the place of what was known."""
        self._memo[key] = found, alive

    def end(self) -> None:
        """Forget everything: the pass is over."""
        self._memo.clear()
