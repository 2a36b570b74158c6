"""The ids that are not words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Special:
    """The id with which a text starts, those at which it ends, and the one that fills up a batch; None: not known."""

    start: int | None = None
    end: tuple[int, ...] = ()
    pad: int | None = None
