"""The same attention over the later keys alone: the earliest are gone, as from a cache that keeps a window."""

from dataclasses import dataclass, replace

from .biases import Alibi, Relative
from .definition import Attention
from .mask import Both, Everyone, Mask
from .masks import Causal, Window, prefix
from .numbering import Numbering
from .pairs import Pairs
from .values import tensors


def of_later_keys(attention: Attention, gone: int) -> Attention:
    """What is computed when the first `gone` keys, which no query sees, are not there."""
    return LaterKeys(gone).renumber(attention) if gone else attention


def without_first_keys(mask: Mask, gone: int, of: tuple[int, int], *, batch: int, heads: int) -> Mask:
    """Return `mask` with the first `gone` keys hidden, in a matrix of size `of`: itself where it hides them already."""
    parts = mask.masks if isinstance(mask, Both) else (mask,)
    at = Pairs.block(range(of[0]), range(0), of=of, batch=batch, heads=heads)
    for part in sorted(parts, key=lambda part: next(tensors(part), None) is not None):  # numbers wait for no GPU
        spans = part.spans(at, of[1])
        if bool((spans.empty | (spans.start >= gone)).all()):
            return mask
    return mask & ~prefix(gone)


@dataclass(frozen=True, eq=False)
class LaterKeys(Numbering):
    gone: int

    alike = (Everyone, Causal, Window, Alibi, Relative)  # of the distance alone

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, query=at.query + self.gone, key=at.key + self.gone)

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"keys": size["keys"] + self.gone}
