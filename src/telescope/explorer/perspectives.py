"""Answers about the heads of a run together: where a reader should begin, and which heads differ on
one word.
"""

from typing import Any

import torch

from ..tasks.explaining.perspectives import (
    HeadPerspective,
    head_perspectives,
    most_different,
    most_telling,
)
from ..traces import json_numbers
from .requests import Refusal, RequestParams, not_kept
from .run import AttentionView, Run
from .views import EXACT, WordWeights, word_weights
from .walk import sequence

Place = tuple[
    int, int
]  # the index of an attention in the run, and the number of a head in the model


def start(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/start: the attention, head and query that a reader should see
    first.
    """
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
    places, heads, words = _all_heads(run, _weights_of_kind(run, view.kind, b, row), view.kind, row)
    best = most_telling(heads, row, words.real_columns)
    layer, h = places[best]
    return {"l": layer, "h": h, "i": _query(view, row)}


def perspectives(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/perspectives: one word in every head, and the two heads that differ
    most.
    """
    layer = params.index("l", len(run.views), "attention", 0)
    view = run.views[layer]
    b = sequence(run.views[layer], params)
    view.require("alignment")
    i = params.index("i", view.size[0], "query")
    named = view.words("q")
    row = i if named is None else named.word_ids[i]
    places, heads, words = _all_heads(run, _weights_of_kind(run, view.kind, b, row), view.kind, row)
    return {
        "l": layer,
        "i": i,
        "word": row,
        "names": words.rows,
        "columns": words.columns,
        "heads": [
            {
                "l": at,
                "h": h,
                "habit": one.habit,
                "share": one.share,
                "weights": json_numbers(one.weights.double()),
            }
            for (at, h), one in zip(places, heads, strict=True)
        ],
        "pair": most_different(heads, _other_columns(words, row, view.kind)),
    }


def perspectives_of_all_words(run: Run, kind: str, b: int) -> dict[str, Any] | None:
    """Return what the answers to /perspectives about all words share: {"layers": [the attentions
    that are compared], "heads": [{"l", "h", "habit", "share"}, …], "pairs": [the pair of each
    word]}.

    With the weights between words, these are the answers. Returns None where the attentions differ
    in their words.
    """
    found = _weights_of_kind(run, kind, b, 0)
    counts = {len(words.rows) for _, words in found}
    if len(counts) != 1:
        return None
    places, heads, words = _all_heads(run, found, kind, 0)
    weights = torch.cat([words.weights.cpu() for _, words in found])
    pairs = []
    for row in range(*counts):
        of_row = [one._replace(weights=weights[at, row]) for at, one in enumerate(heads)]
        pairs.append(most_different(of_row, _other_columns(words, row, kind)))
    described = [
        {"l": at, "h": h, "habit": one.habit, "share": one.share}
        for (at, h), one in zip(places, heads, strict=True)
    ]
    return {"layers": [at for at, _ in found], "heads": described, "pairs": pairs}


def _other_columns(words: WordWeights, row: int, kind: str) -> list[int]:
    """Return the columns of words other than that of the row; in cross-attention none is the row
    itself.
    """
    return [at for at in words.real_columns if at != row or kind == "cross"]


def _weights_of_kind(run: Run, kind: str, b: int, row: int) -> list[tuple[int, WordWeights]]:
    """Return the weights between words of the attentions of one kind that have this row, each with
    its index.
    """
    able = [at for at, view in enumerate(run.views) if view.kind == kind and _small(view)]
    found = [(at, word_weights(run.views[at], b)) for at in able]
    return [(at, words) for at, words in found if row < len(words.rows)]


def _all_heads(
    run: Run, found: list[tuple[int, WordWeights]], kind: str, row: int
) -> tuple[list[Place], list[HeadPerspective], WordWeights]:
    """Return all heads of the attentions of one kind, each with its place, and the words of the
    last attention.
    """
    if not found:
        raise Refusal(
            409, "too-long", "the text is too long to compare all heads; choose two heads by hand"
        )
    places = list[Place]()
    heads = list[HeadPerspective]()
    for at, words in found:
        some = head_perspectives(words.weights[None].cpu(), row, across=kind == "cross")
        heads += [one._replace(habit=None) for one in some] if run.example is not None else some
        places += [(at, h) for h in run.views[at].call.heads]
    return places, heads, found[-1][1]


def _small(view: AttentionView) -> bool:
    """Return whether the weights between all words can be computed at once."""
    scores = view.batch * len(view.call.heads) * view.size[0] * view.size[1]
    return "alignment" not in view.missing and scores <= EXACT


def _last_word(view: AttentionView, b: int) -> int | None:
    """Return the last row that is a word with a letter or digit."""
    words = view.words("q")
    names = view.tokens("q", b, range(view.size[0])) if words is None else words.names
    real = view.real("q", b) if words is None else words.text_words
    able = (
        [at for at in real if any(character.isalnum() for character in names[at])]
        if _small(view)
        else []
    )
    return able[-1] if able else None


def _query(view: AttentionView, row: int) -> int:
    """Return the query of a word's last token."""
    words = view.words("q")
    return row if words is None else words.positions(row)[-1]
