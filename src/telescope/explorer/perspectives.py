"""Answers about the heads of a run together: where a reader should begin, and which heads differ on one word."""

from typing import Any

from ..tasks.explaining.perspectives import HeadPerspective, head_perspectives, most_different, most_telling
from ..trace.numbers import json_numbers
from .requests import Refusal, RequestParams, not_kept
from .run import AttentionView, Run
from .views import EXACT, WordWeights, word_weights
from .walk import sequence

Place = tuple[int, int]  # the index of an attention in the run, and the number of a head in the model


def start(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/start: the attention, head and query that a reader should see first."""
    b = params.index("b", max((view.batch for view in run.views), default=1), "sequence", 0)
    if not run.views:
        raise not_kept("no attention was called while this was recorded")
    first = next((at for at, view in enumerate(run.views) if "trace" not in view.missing), 0)
    if run.example is not None:
        return {"l": 0, "h": 0, "i": run.example["scenes"][0]["query"]}
    view = run.views[first]
    row = _last_word(view, b)
    if row is None or not _small(view):
        return {"l": first, "h": view.call.heads[0], "i": view.size[0] // 2}
    places, heads, words = _all_heads(run, view.kind, b, row)
    best = most_telling(heads, row, words.real_columns)
    layer, h = places[best]
    return {"l": layer, "h": h, "i": _query(view, row)}


def perspectives(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/perspectives: one word in every head, and the two heads that differ most."""
    layer = params.index("l", len(run.views), "attention", 0)
    view, b = run.views[layer], sequence(run.views[layer], params)
    view.require("alignment")
    i = params.index("i", view.size[0], "query")
    named = view.words("q")
    row = i if named is None else named.word_ids[i]
    places, heads, words = _all_heads(run, view.kind, b, row)
    return {
        "l": layer,
        "i": i,
        "word": row,
        "names": words.rows,
        "columns": words.columns,
        "heads": [
            {"l": at, "h": h, "habit": one.habit, "share": one.share, "weights": json_numbers(one.weights.double())}
            for (at, h), one in zip(places, heads, strict=True)
        ],
        "pair": most_different(heads, [at for at in words.real_columns if at != row or view.kind == "cross"]),
    }


def _all_heads(run: Run, kind: str, b: int, row: int) -> tuple[list[Place], list[HeadPerspective], WordWeights]:
    """Return all heads of the attentions of one kind, each with its place, and the words of the last attention."""
    places, heads, words = list[Place](), list[HeadPerspective](), None
    for at, view in enumerate(run.views):
        if view.kind != kind or "alignment" in view.missing or not _small(view):
            continue
        found = word_weights(view, b)
        if row >= len(found.rows):
            continue
        words = found
        some = head_perspectives(found.weights[None].cpu(), row, across=kind == "cross")
        heads += [one._replace(habit=None) for one in some] if run.example is not None else some
        places += [(at, h) for h in view.call.heads]
    if words is None:
        raise Refusal(409, "too-long", "the text is too long to compare all heads; choose two heads by hand")
    return places, heads, words


def _small(view: AttentionView) -> bool:
    """Return whether the weights between all words can be computed at once."""
    scores = view.batch * len(view.call.heads) * view.size[0] * view.size[1]
    return "alignment" not in view.missing and scores <= EXACT


def _last_word(view: AttentionView, b: int) -> int | None:
    """Return the last row that is a word with a letter or digit."""
    words = view.words("q")
    names = view.tokens("q", b, range(view.size[0])) if words is None else words.names
    real = view.real("q", b) if words is None else words.text_words
    able = [at for at in real if any(character.isalnum() for character in names[at])] if _small(view) else []
    return able[-1] if able else None


def _query(view: AttentionView, row: int) -> int:
    """Return the query of a word's last token."""
    words = view.words("q")
    return row if words is None else words.positions(row)[-1]
