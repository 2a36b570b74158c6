"""Answers about whole attentions: pictures of heads, geometry of the stream, tokens, and alignment
of words.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import CLEAR, HABIT_KEYS
from ..recording.heads import heads_of
from ..recording.summaries_call import SummariesCall
from ..tiles import BUDGET, Tiles
from ..traces import Words, cosines, json_numbers, plane
from .requests import Refusal, RequestParams
from .run import AttentionView, Run
from .summaries import dense_weights, known_share, pooled_weights, top_weights
from .walk import head, sequence

BY = ("pieces", "words")
SIDE = 48  # pixels of a head's picture
EXACT = (
    2**25
)  # most scores of an attention for which every score is computed; beyond, pictures are sampled


def heads(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/heads: a small picture and the measured habits of each head."""
    b = sequence(view, params)
    which = [head(view, params)] if "h" in params.parameters else list(view.call.heads)
    small = view.batch * len(view.call.heads) * view.size[0] * view.size[1] <= EXACT
    if (
        params.word("by", BY) == "words"
        and small
        and view.words("q") is not None
        and "alignment" not in view.missing
    ):
        words = word_weights(view, b)
        shares = [words.weights[view.call.heads.index(h)] for h in which]
        return _heads_json(view, layer, dict(zip(which, shares, strict=True)), which) | {
            "names": words.rows,
            "columns_of": words.columns,
            "exact": not isinstance(view.call, SummariesCall),
        }
    drawn = {h: _exact(view, b, h) if small else _coarse(view, b, h) for h in which}
    return _heads_json(
        view, layer, {h: share for h, (share, _) in drawn.items()}, which if small else []
    ) | {
        "exact": all(samples is None for _, samples in drawn.values()),
        "samples": max(samples or 0 for _, samples in drawn.values()),
    }


def _heads_json(
    view: AttentionView, layer: int, shares: dict[int, Tensor], measured: list[int]
) -> dict[str, Any]:
    """Return pictures of heads, by number, with the habits of those in `measured`."""
    height, width = next(iter(shares.values())).shape
    known = measured or isinstance(view.call, SummariesCall)
    return {
        "l": layer,
        "rows": height,
        "columns": width,
        "exact": True,
        "samples": 0,
        "maps": [{"h": h, "share": json_numbers(share)} for h, share in shares.items()],
        "habits": _habits(view, list(shares)) if known else None,
        "habit_keys": HABIT_KEYS,
        "clear": CLEAR,
    }


Drawn = tuple[
    Float[Tensor, "row column"], float | None
]  # the picture, and how many of a pixel's queries it samples; None for all


def _exact(view: AttentionView, b: int, h: int) -> Drawn:
    """Return a head's picture from all of its scores."""
    place = view.call.heads.index(h)
    rows, columns = (min(SIDE, length) for length in view.size)
    if isinstance(view.call, SummariesCall):
        return _recorded(view, b, place, rows, columns)
    return view.call.survey().map(rows, columns)[b, place], None


def _coarse(view: AttentionView, b: int, h: int) -> Drawn:
    """Return a head's picture from its coarsest tile, which may be sampled."""
    if isinstance(view.call, SummariesCall):
        return _recorded(
            view, b, view.call.heads.index(h), *(min(SIDE, length) for length in view.size)
        )
    view.require("map")
    tile = Tiles(view.head(h, b), SIDE).tile(0, 0, 0, BUDGET)
    rows = (~tile.share[:, 0].isnan()).sum()
    columns = (~tile.share[0].isnan()).sum()
    return tile.share[:rows, :columns].exp2(), None if tile.exact else tile.samples


def _recorded(view: AttentionView, b: int, place: int, rows: int, columns: int) -> Drawn:
    """Return the map that was recorded with a summary, else one of the largest weights of each
    query.
    """
    recorded = view.call.facts.recorded
    if recorded is not None:
        return view.call.survey().map(*recorded)[b, place], None
    view.require("map")
    share = pooled_weights(view.call, b, place, rows, columns, view.size[1])
    return share, known_share(view.call, b)


def _habits(view: AttentionView, which: list[int]) -> list[dict[str, Any]]:
    """Return the measured habits of some heads, by their numbers in the model."""
    measured = heads_of({view.name: [view.call]}, view.decode).to_dict()
    return [
        {"h": habit.pop("number"), **habit}
        for habit in measured
        if habit.pop("layer") and habit["number"] in which
    ]


# Tokens
MOST_POINTS = 512
MOST_COSINES = 64


def geometry(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/geometry: the stream before and after the attention, projected onto a
    plane.
    """
    view.require("geometry")
    b = sequence(view, params)
    rows = view.call.facts.rows
    span = params.span(view.size[0], MOST_POINTS)
    which = list(span) if rows is None else [rows[i] for i in span]
    tokens = view.tokens("q", b, span)
    before = view.call.before[b, which]
    after = view.call.after[b, which]
    words = (
        view.words("q") if params.word("by", BY) == "words" and len(span) == view.size[0] else None
    )
    if words is not None:
        tokens = list(words.names)
        before, after = (_mean_by_word(vectors, words) for vectors in (before, after))
        span = range(len(tokens))
    if view.beside:
        span, tokens, before, after = _geometry_of_all(view.beside)
    flat = plane(before, after)
    few = len(tokens) <= MOST_COSINES
    return {
        "l": layer,
        "start": span.start,
        "stop": span.stop,
        "n": max(span.stop, view.size[0]) if len(tokens) == len(which) else len(tokens),
        "tokens": tokens,
        "before": json_numbers(flat.before),
        "after": json_numbers(flat.after),
        "explained": list(flat.explained),
        "moved": json_numbers(flat.moved),
        "cosines": {"before": json_numbers(cosines(before)), "after": json_numbers(cosines(after))}
        if few
        else None,
    }


def _mean_by_word(vectors: Float[Tensor, "token d"], words: Words) -> Float[Tensor, "word d"]:
    """Return the mean vector of each word's tokens."""
    ids = torch.tensor(words.word_ids)
    means = vectors.new_zeros(len(words.names), vectors.shape[1]).index_add(0, ids, vectors.cpu())
    return means / ids.bincount(minlength=len(words.names))[:, None]


def _geometry_of_all(views: tuple[AttentionView, ...]) -> tuple[range, list[str], Tensor, Tensor]:
    """Return the tokens and vectors of several views, one after the other; a word of several views
    is told apart.
    """
    owners = [
        (token, view.title) for view in views for token in view.tokens("q", 0, range(view.size[0]))
    ]
    tokens = [token for token, _ in owners]
    named = [str(title) if tokens.count(token) > 1 and title else token for token, title in owners]
    before, after = (
        torch.cat([getattr(view.call, what)[0] for view in views]) for what in ("before", "after")
    )
    return range(len(tokens)), named, before, after


MOST_TOKENS = 4096  # in one answer
MOST_RECEIVED = 512  # tokens in one answer
LARGEST = 14  # weights of one query


def received(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/received: how much weight each token of a part of the text gets from
    all queries.
    """
    view.require("map")
    h = head(view, params)
    b = sequence(view, params)
    span = params.span(view.size[1], MOST_RECEIVED)
    seen = view.call.survey() if isinstance(view.call, SummariesCall) else view.call.head(h)
    place = view.call.heads.index(h) if isinstance(view.call, SummariesCall) else 0
    weights = seen.received[b, place].double().cpu()
    return {
        "l": layer,
        "h": h,
        "start": span.start,
        "stop": span.stop,
        "n": view.size[1],
        "tokens": view.tokens("k", b, span),
        "received": json_numbers(weights[span.start : span.stop]),
        "most": float(weights.max()),
    }


def largest_weights(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/top: the largest weights of one query, which a summary holds too."""
    view.require("map")
    h = head(view, params)
    b = sequence(view, params)
    i = params.index("i", view.size[0], "query")
    weights, keys = (
        part[view.call.heads.index(h), i, :LARGEST] for part in top_weights(view.call, b)
    )
    kept = weights > 0
    weights = weights[kept]
    keys = keys[kept]
    return {
        "l": layer,
        "h": h,
        "i": i,
        "token": view.tokens("q", b, [i])[0],
        "n_k": view.size[1],
        "keys": keys.tolist(),
        "tokens": view.tokens("k", b, keys.tolist()),
        "steps": [{"name": "weights", "formula": "weights", "numbers": json_numbers(weights)}],
        "rest": {
            "keys": view.size[1] - len(keys),
            "weight": max(0.0, 1.0 - float(weights.sum())),
            "context": None,
        },
    }


def tokens(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/tokens: the texts of queries or keys, and the words that they belong
    to.
    """
    axis = params.word("axis", ("q", "k"))
    b = sequence(view, params)
    count = view.size[0 if axis == "q" else 1]
    span = params.span(count, MOST_TOKENS)
    words = view.words(axis)
    word_of = None if words is None else words.word_ids[span.start : span.stop]
    names = (
        None if words is None or not word_of else list(words.names[word_of[0] : word_of[-1] + 1])
    )
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
    """Weights between words: the mean over a word's query tokens of the sum over a word's key
    tokens.

    `real_rows` and `real_columns` are the indices of words of the text, without special tokens.
    """

    rows: list[str]
    columns: list[str]
    weights: Float[Tensor, "heads row column"]
    real_rows: list[int]
    real_columns: list[int]

    @property
    def peaks(self) -> Float[Tensor, " heads_and_mean"]:
        """Return each word's largest weight on a word, averaged over words: for each head, then for
        the heads' mean.

        This is the widest ribbon of a word, as it is drawn. Entropy would not do: it grows with the
        length of the text, and it is also low where a head rests on the end-of-sequence token,
        which aligns nothing.
        """
        drawn = self.weights[:, self.real_rows][:, :, self.real_columns].double()
        return _with_mean(drawn).amax(-1).mean(-1)


def alignment(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/alignment: weights between words, of one head or of the mean of all
    heads.
    """
    view.require("alignment")
    mean = params.parameters.get("h") == "mean"
    b = sequence(view, params)
    place = -1 if mean else view.call.heads.index(head(view, params))
    found = word_weights(view, b)
    return {
        "known": known_share(view.call, b) if isinstance(view.call, SummariesCall) else 1.0,
        "l": layer,
        "h": "mean" if mean else view.call.heads[place],
        "rows": found.rows,
        "columns": found.columns,
        "weights": json_numbers(
            _with_mean(found.weights.double())[place] if mean else found.weights[place]
        ),
        "real_rows": found.real_rows,
        "real_columns": found.real_columns,
    }


def sharpest(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/sharpest: the attention whose heads, in the mean, align most sharply.

    Only cross-attention is considered where the run has any.
    """
    kinds = {view.kind for view in run.views}
    candidates = [
        layer
        for layer, view in enumerate(run.views)
        if view.kind == "cross" or "cross" not in kinds
    ]
    peaks = {}
    refused = None
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
    return {
        "l": layer,
        "mean": mean,
        "h": run.views[layer].call.heads[place],
        "head": heads[place],
        "of": len(peaks),
    }


def _peaks(view: AttentionView, params: RequestParams) -> Float[Tensor, " heads_and_mean"]:
    view.require("alignment")
    found = word_weights(view, sequence(view, params))
    if not found.real_rows or not found.real_columns:
        raise Refusal(409, "not-kept", f'"{view.name}" has no words to align')
    return found.peaks


def word_weights(view: AttentionView, b: int) -> WordWeights:
    axes = {axis: (view.words(axis), length) for axis, length in zip("qk", view.size, strict=True)}
    names = [
        view.tokens(axis, b, range(length)) if words is None else list(words.names)
        for axis, (words, length) in axes.items()
    ]
    segments = tuple(
        list(range(length)) if words is None else list(words.word_ids)
        for words, length in axes.values()
    )
    if isinstance(view.call, SummariesCall):
        weights = _join(dense_weights(view.call, b, view.size[1]), *segments)
    else:
        weights = view.call.survey().map(segments=segments)[b]
    real = [
        view.real(axis, b) if words is None else list(words.text_words)
        for axis, (words, _) in axes.items()
    ]
    return WordWeights(names[0], names[1], weights, real[0], real[1])


def _join(weights: Float[Tensor, "heads query key"], rows: list[int], columns: list[int]) -> Tensor:
    """Return weights between words: the mean over a word's queries of the sum over a word's
    keys.
    """
    row = torch.tensor(rows)
    column = torch.tensor(columns)
    heads = len(weights)
    summed = weights.new_zeros(heads, len(rows), int(column.max()) + 1).index_add_(
        2, column, weights
    )
    means = weights.new_zeros(heads, int(row.max()) + 1, summed.shape[2]).index_add_(1, row, summed)
    return means / row.bincount()[:, None]


def _with_mean(
    weights: Float[Tensor, "heads row column"],
) -> Float[Tensor, "heads_and_mean row column"]:
    return torch.cat([weights, weights.mean(0, keepdim=True)])
