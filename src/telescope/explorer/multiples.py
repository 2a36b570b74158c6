"""Heads: a small picture of each, and what it does by habit."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..recording.heads import heads_of
from ..recording.kept import Summaries
from ..tiles import BUDGET, Tiles
from ..trace.json_numbers import plain
from .asked import Asked
from .refusal import not_kept
from .run import Looked
from .walk import head, sequence

SIDE = 48  # of a picture
EXACT = 2**25  # scores: up to so many, all are looked at


def heads(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    b = sequence(looked, asked)
    which = [head(looked, asked)] if "h" in asked.parameters else list(looked.call.heads)
    small = looked.batch * len(looked.call.heads) * looked.size[0] * looked.size[1] <= EXACT
    drawn = {h: _exact(looked, b, h) if small else _coarse(looked, b, h) for h in which}
    shares = [share for share, _ in drawn.values()]
    return {
        "l": layer,
        "rows": shares[0].shape[0],
        "columns": shares[0].shape[1],
        "exact": all(samples is None for _, samples in drawn.values()),
        "samples": max(samples or 0 for _, samples in drawn.values()),
        "maps": [{"h": h, "share": plain(share)} for h, (share, _) in drawn.items()],
        "habits": _habits(looked, which) if small or isinstance(looked.call, Summaries) else None,
    }


Drawn = tuple[Float[Tensor, "row column"], float | None]  # the picture; of how many of a pixel's queries, if not of all


def _exact(looked: Looked, b: int, h: int) -> Drawn:
    place = looked.call.heads.index(h)
    if isinstance(looked.call, Summaries):
        return _recorded(looked)[b, place], None
    rows, columns = (min(SIDE, there) for there in looked.size)
    return looked.call.survey().map(rows, columns)[b, place], None


def _coarse(looked: Looked, b: int, h: int) -> Drawn:
    if isinstance(looked.call, Summaries):
        return _recorded(looked)[b, looked.call.heads.index(h)], None
    looked.must_have("map")
    tile = Tiles(looked.head(h, b), SIDE).tile(0, 0, 0, BUDGET)
    rows, columns = (~tile.share[:, 0].isnan()).sum(), (~tile.share[0].isnan()).sum()
    return tile.share[:rows, :columns].exp2(), None if tile.exact else tile.samples


def _recorded(looked: Looked) -> Float[Tensor, "batch heads row column"]:
    recorded = looked.call.facts.recorded
    if recorded is None:
        raise not_kept(f'"{looked.name}" was kept without a map; ts.watch(map=(48, 48)) or keep="steps" has one')
    return looked.call.survey().map(*recorded)


def _habits(looked: Looked, which: list[int]) -> list[dict[str, Any]]:
    measured = heads_of({looked.name: [looked.call]}, looked.decode).to_dict()
    return [{"h": said.pop("number"), **said} for said in measured if said.pop("layer") and said["number"] in which]
