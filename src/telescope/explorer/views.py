"""Answers about whole attentions: pictures of heads, geometry of the stream, tokens, and alignment of words."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording.heads import CLEAR, HABIT_KEYS, heads_of
from ..recording.summaries_call import SummariesCall
from ..tiles import BUDGET, Tiles
from ..trace.geometry import cosines, plane
from ..trace.numbers import json_numbers
from .requests import Refusal, RequestParams, not_kept
from .run import AttentionView, Run
from .walk import head, sequence

SIDE = 48  # pixels of a head's picture
EXACT = 2**25  # most scores of an attention for which every score is computed; beyond, pictures are sampled


def heads(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/heads: a small picture and the measured habits of each head."""
    b = sequence(view, params)
    which = [head(view, params)] if "h" in params.parameters else list(view.call.heads)
    small = view.batch * len(view.call.heads) * view.size[0] * view.size[1] <= EXACT
    drawn = {h: _exact(view, b, h) if small else _coarse(view, b, h) for h in which}
    shares = [share for share, _ in drawn.values()]
    return {
        "l": layer,
        "rows": shares[0].shape[0],
        "columns": shares[0].shape[1],
        "exact": all(samples is None for _, samples in drawn.values()),
        "samples": max(samples or 0 for _, samples in drawn.values()),
        "maps": [{"h": h, "share": json_numbers(share)} for h, (share, _) in drawn.items()],
        "habits": _habits(view, which) if small or isinstance(view.call, SummariesCall) else None,
        "habit_keys": HABIT_KEYS,
        "clear": CLEAR,
    }


Drawn = tuple[
    Float[Tensor, "row column"], float | None
]  # the picture, and how many of a pixel's queries it samples; None for all


def _exact(view: AttentionView, b: int, h: int) -> Drawn:
    """Return a head's picture from all of its scores."""
    place = view.call.heads.index(h)
    if isinstance(view.call, SummariesCall):
        return _recorded(view)[b, place], None
    rows, columns = (min(SIDE, length) for length in view.size)
    return view.call.survey().map(rows, columns)[b, place], None


def _coarse(view: AttentionView, b: int, h: int) -> Drawn:
    """Return a head's picture from its coarsest tile, which may be sampled."""
    if isinstance(view.call, SummariesCall):
        return _recorded(view)[b, view.call.heads.index(h)], None
    view.require("map")
    tile = Tiles(view.head(h, b), SIDE).tile(0, 0, 0, BUDGET)
    rows, columns = (~tile.share[:, 0].isnan()).sum(), (~tile.share[0].isnan()).sum()
    return tile.share[:rows, :columns].exp2(), None if tile.exact else tile.samples


def _recorded(view: AttentionView) -> Float[Tensor, "batch heads row column"]:
    """Return the maps that were recorded with a summary."""
    recorded = view.call.facts.recorded
    if recorded is None:
        raise not_kept(f'"{view.name}" was kept without a map; ts.watch(map=(48, 48)) or keep="steps" keeps one')
    return view.call.survey().map(*recorded)


def _habits(view: AttentionView, which: list[int]) -> list[dict[str, Any]]:
    """Return the measured habits of some heads, by their numbers in the model."""
    measured = heads_of({view.name: [view.call]}, view.decode).to_dict()
    return [
        {"h": habit.pop("number"), **habit} for habit in measured if habit.pop("layer") and habit["number"] in which
    ]


MOST_POINTS, MOST_COSINES = 512, 64  # tokens


def geometry(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/geometry: the stream before and after the attention, projected onto a plane."""
    view.require("geometry")
    b, rows = sequence(view, params), view.call.facts.rows
    span = params.span(view.size[0], MOST_POINTS)
    which = list(span) if rows is None else [rows[i] for i in span]
    before, after = view.call.before[b, which], view.call.after[b, which]
    flat = plane(before, after)
    few = len(which) <= MOST_COSINES
    return {
        "l": layer,
        "start": span.start,
        "stop": span.stop,
        "n": view.size[0],
        "tokens": view.tokens("q", b, span),
        "before": json_numbers(flat.before),
        "after": json_numbers(flat.after),
        "explained": list(flat.explained),
        "moved": json_numbers(flat.moved),
        "cosines": {"before": json_numbers(cosines(before)), "after": json_numbers(cosines(after))} if few else None,
    }


MOST_TOKENS = 4096  # in one answer


def tokens(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/tokens: the texts of queries or keys, and the words that they belong to."""
    axis, b = params.word("axis", ("q", "k")), sequence(view, params)
    count = view.size[0 if axis == "q" else 1]
    span = params.span(count, MOST_TOKENS)
    words = view.words(axis)
    word_of = None if words is None else words.word_ids[span.start : span.stop]
    names = None if words is None or not word_of else list(words.names[word_of[0] : word_of[-1] + 1])
    return {
        "l": layer,
        "axis": axis,
        "start": span.start,
        "stop": span.stop,
        "n": count,
        "tokens": view.tokens(axis, b, span),
        "words": None if word_of is None else list(word_of),
        "names": names,
    }


class WordWeights(NamedTuple):
    """Weights between words: the mean over a word's query tokens of the sum over a word's key tokens.

    `real_rows` and `real_columns` are the indices of words of the text, without special tokens.
    """

    rows: list[str]
    columns: list[str]
    weights: Float[Tensor, "heads row column"]
    real_rows: list[int]
    real_columns: list[int]

    @property
    def peaks(self) -> Float[Tensor, " heads_and_mean"]:
        """Return each word's largest weight on a word, averaged over words: for each head, then for the heads' mean.

        This is the widest ribbon of a word, as it is drawn. Entropy would not do: it grows with the length of the
        text, and it is also low where a head rests on the end-of-sequence token, which aligns nothing.
        """
        drawn = self.weights[:, self.real_rows][:, :, self.real_columns].double()
        return _with_mean(drawn).amax(-1).mean(-1)


def alignment(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/alignment: weights between words, of one head or of the mean of all heads."""
    view.require("alignment")
    mean, b = params.parameters.get("h") == "mean", sequence(view, params)
    place = -1 if mean else view.call.heads.index(head(view, params))
    found = _word_weights(view, b)
    return {
        "l": layer,
        "h": "mean" if mean else view.call.heads[place],
        "rows": found.rows,
        "columns": found.columns,
        "weights": json_numbers(_with_mean(found.weights.double())[place] if mean else found.weights[place]),
        "real_rows": found.real_rows,
        "real_columns": found.real_columns,
    }


def sharpest(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/sharpest: the attention whose heads, in the mean, align most sharply.

    Only cross-attention is considered where the run has any.
    """
    kinds = {view.kind for view in run.views}
    candidates = [layer for layer, view in enumerate(run.views) if view.kind == "cross" or "cross" not in kinds]
    peaks, refused = {}, None
    for layer in candidates:
        try:
            peaks[layer] = _peaks(run.views[layer], params)
        except Refusal as refusal:
            refused = refusal
    if not peaks:
        raise refused or Refusal(409, "not-kept", "no attention of this run can be aligned")
    layer = max(peaks, key=lambda layer: float(peaks[layer][-1]))
    *heads, mean = peaks[layer].tolist()
    place = heads.index(max(heads))
    return {"l": layer, "mean": mean, "h": run.views[layer].call.heads[place], "head": heads[place], "of": len(peaks)}


def _peaks(view: AttentionView, params: RequestParams) -> Float[Tensor, " heads_and_mean"]:
    view.require("alignment")
    found = _word_weights(view, sequence(view, params))
    if not found.real_rows or not found.real_columns:
        raise Refusal(409, "not-kept", f'"{view.name}" has no words to align')
    return found.peaks


def _word_weights(view: AttentionView, b: int) -> WordWeights:
    axes = {axis: (view.words(axis), length) for axis, length in zip("qk", view.size, strict=True)}
    names = [
        view.tokens(axis, b, range(length)) if words is None else list(words.names)
        for axis, (words, length) in axes.items()
    ]
    segments = tuple(list(range(length)) if words is None else list(words.word_ids) for words, length in axes.values())
    weights = view.call.survey().map(segments=segments)[b]
    real = [view.real(axis, b) if words is None else list(words.text_words) for axis, (words, _) in axes.items()]
    return WordWeights(names[0], names[1], weights, real[0], real[1])


def _with_mean(weights: Float[Tensor, "heads row column"]) -> Float[Tensor, "heads_and_mean row column"]:
    return torch.cat([weights, weights.mean(0, keepdim=True)])
