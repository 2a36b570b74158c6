"""Heads: a small picture of each, and what it does by habit."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording.heads import heads_of
from ..recording.kept import SummariesCall
from ..tiles import BUDGET, Tiles
from ..trace.geometry import cosines, plane
from ..trace.numbers import plain
from .requests import Refusal, RequestParams, not_kept
from .run import AttentionView, Run
from .walk import head, sequence

SIDE = 48  # of a picture
EXACT = 2**25  # scores: up to so many, all are looked at


def heads(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
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
        "habits": _habits(looked, which) if small or isinstance(looked.call, SummariesCall) else None,
    }


Drawn = tuple[Float[Tensor, "row column"], float | None]  # the picture; of how many of a pixel's queries, if not of all


def _exact(looked: AttentionView, b: int, h: int) -> Drawn:
    place = looked.call.heads.index(h)
    if isinstance(looked.call, SummariesCall):
        return _recorded(looked)[b, place], None
    rows, columns = (min(SIDE, there) for there in looked.size)
    return looked.call.survey().map(rows, columns)[b, place], None


def _coarse(looked: AttentionView, b: int, h: int) -> Drawn:
    if isinstance(looked.call, SummariesCall):
        return _recorded(looked)[b, looked.call.heads.index(h)], None
    looked.must_have("map")
    tile = Tiles(looked.head(h, b), SIDE).tile(0, 0, 0, BUDGET)
    rows, columns = (~tile.share[:, 0].isnan()).sum(), (~tile.share[0].isnan()).sum()
    return tile.share[:rows, :columns].exp2(), None if tile.exact else tile.samples


def _recorded(looked: AttentionView) -> Float[Tensor, "batch heads row column"]:
    recorded = looked.call.facts.recorded
    if recorded is None:
        raise not_kept(f'"{looked.name}" was kept without a map; ts.watch(map=(48, 48)) or keep="steps" has one')
    return looked.call.survey().map(*recorded)


def _habits(looked: AttentionView, which: list[int]) -> list[dict[str, Any]]:
    measured = heads_of({looked.name: [looked.call]}, looked.decode).to_dict()
    return [{"h": said.pop("number"), **said} for said in measured if said.pop("layer") and said["number"] in which]


MOST_POINTS, SMALL = 512, 64


def geometry(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
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


def tokens(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
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


class Between(NamedTuple):
    """A word's row is the mean over its tokens, its column their sum. The real ones are words of the text."""

    rows: list[str]
    columns: list[str]
    weights: Float[Tensor, "heads row column"]
    real_rows: list[int]
    real_columns: list[int]

    @property
    def peaks(self) -> Float[Tensor, " heads_and_mean"]:
        """The largest share that a word gives to another, in the mean over words: of each head, and of their mean last.

        Not the entropy: that grows with the length of the text, and is low too where a head rests on the mark at the
        end, which aligns nothing. This one is the widest ribbon of a word, as it is drawn.
        """
        drawn = self.weights[:, self.real_rows][:, :, self.real_columns].double()
        return _with_mean(drawn).amax(-1).mean(-1)


def alignment(looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
    looked.must_have("alignment")
    mean, b = asked.parameters.get("h") == "mean", sequence(looked, asked)
    place = -1 if mean else looked.call.heads.index(head(looked, asked))
    found = _between(looked, b)
    return {
        "l": layer,
        "h": "mean" if mean else looked.call.heads[place],
        "rows": found.rows,
        "columns": found.columns,
        "weights": plain(_with_mean(found.weights.double())[place] if mean else found.weights[place]),
        "real_rows": found.real_rows,
        "real_columns": found.real_columns,
    }


def sharpest(run: Run, asked: RequestParams) -> dict[str, Any]:
    """Among those between two texts, if there are any: the attention whose heads align the most sharply in the mean."""
    kinds = {looked.kind for looked in run.looked}
    among = [layer for layer, looked in enumerate(run.looked) if looked.kind == "cross" or "cross" not in kinds]
    peaks, refused = {}, None
    for layer in among:
        try:
            peaks[layer] = _peaks(run.looked[layer], asked)
        except Refusal as refusal:
            refused = refusal
    if not peaks:
        raise refused or Refusal(409, "not-kept", "there is no attention to align by")
    layer = max(peaks, key=lambda layer: float(peaks[layer][-1]))
    *heads, mean = peaks[layer].tolist()
    place = heads.index(max(heads))
    return {"l": layer, "mean": mean, "h": run.looked[layer].call.heads[place], "head": heads[place], "of": len(peaks)}


def _peaks(looked: AttentionView, asked: RequestParams) -> Float[Tensor, " heads_and_mean"]:
    looked.must_have("alignment")
    found = _between(looked, sequence(looked, asked))
    if not found.real_rows or not found.real_columns:
        raise Refusal(409, "not-kept", f'"{looked.name}" has no words to align')
    return found.peaks


def _between(looked: AttentionView, b: int) -> Between:
    axes = {axis: (looked.words(axis), there) for axis, there in zip("qk", looked.size, strict=True)}
    names = [
        looked.tokens(axis, b, range(there)) if words is None else list(words.names)
        for axis, (words, there) in axes.items()
    ]
    segments = tuple(list(range(there)) if words is None else list(words.of) for words, there in axes.values())
    weights = looked.call.survey().map(segments=segments)[b]
    real = [looked.real(axis, b) if words is None else list(words.real) for axis, (words, _) in axes.items()]
    return Between(names[0], names[1], weights, real[0], real[1])


def _with_mean(weights: Float[Tensor, "heads row column"]) -> Float[Tensor, "heads_and_mean row column"]:
    return torch.cat([weights, weights.mean(0, keepdim=True)])
