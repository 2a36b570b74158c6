"""Heads: a small picture of each, and what it does by habit."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..recording.heads import heads_of
from ..recording.kept import Summaries
from ..tiles import BUDGET, Tiles
from ..trace.geometry import cosines, plane
from ..trace.numbers import plain
from .requests import Asked, not_kept
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


MOST_POINTS, SMALL = 512, 64


def geometry(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    looked.must_have("geometry")
    b, rows = sequence(looked, asked), looked.call.facts.rows
    some = asked.stretch(looked.size[0], MOST_POINTS)
    which = list(some) if rows is None else [rows[i] for i in some]
    before, after = looked.call.before[b, which], looked.call.after[b, which]
    flat = plane(before, after)
    small = len(which) <= SMALL
    return {
        "l": layer,
        "start": some.start,
        "stop": some.stop,
        "n": looked.size[0],
        "tokens": looked.tokens("q", b, some),
        "before": plain(flat.before),
        "after": plain(flat.after),
        "explained": list(flat.explained),
        "moved": plain(flat.moved),
        "cosines": {"before": plain(cosines(before)), "after": plain(cosines(after))} if small else None,
    }


MOST_TOKENS = 4096


def tokens(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    axis, b = asked.word("axis", ("q", "k")), sequence(looked, asked)
    there = looked.size[0 if axis == "q" else 1]
    some = asked.stretch(there, MOST_TOKENS)
    words = looked.words(axis)
    of = None if words is None else words.of[some.start : some.stop]
    names = None if words is None or not of else list(words.names[of[0] : of[-1] + 1])
    return {
        "l": layer,
        "axis": axis,
        "start": some.start,
        "stop": some.stop,
        "n": there,
        "tokens": looked.tokens(axis, b, some),
        "words": None if of is None else list(of),
        "names": names,
    }
