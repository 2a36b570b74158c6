"""What is kept of a call: its summary alone, its queries and keys, or everything its steps are made of."""

from .call import TOP, Call, Facts, Keeping, MapSize, nbytes_of
from .steps import QueriesKeys, Steps
from .summaries import Summaries

KEEP: dict[str, type[Call]] = {kind.keep: kind for kind in (Summaries, QueriesKeys, Steps)}

__all__ = ["KEEP", "TOP", "Call", "Facts", "Keeping", "MapSize", "QueriesKeys", "Steps", "Summaries", "nbytes_of"]
