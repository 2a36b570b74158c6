"""The same attention over the later keys alone: the earliest are gone, as from a cache that keeps a window."""

from dataclasses import dataclass, replace

from .biases import Alibi, Relative
from .definition import Attention
from .mask import Everyone
from .masks import Causal, Window
from .numbering import Numbering
from .pairs import Pairs


def of_later_keys(attention: Attention, gone: int) -> Attention:
    """What is computed when the first `gone` keys, which no query sees, are not there."""
    return LaterKeys(gone).renumber(attention) if gone else attention


@dataclass(frozen=True, eq=False)
class LaterKeys(Numbering):
    gone: int

    alike = (Everyone, Causal, Window, Alibi, Relative)  # of the distance alone

    def __call__(self, at: Pairs) -> Pairs:
        return replace(at, query=at.query + self.gone, key=at.key + self.gone)

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"keys": size["keys"] + self.gone}
