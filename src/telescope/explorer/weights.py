"""Answers about weights between words: one alignment, the sharpest one, where to begin, and all
heads on one word.

A recording that kept summaries holds the largest weights of each query alone. What is not among
them is unknown: `known_share` says how much of the weight is known, and the rest counts as nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording import RecordedCall
from ..tasks import (
    HeadPerspective,
    head_perspectives,
    most_different,
    most_telling,
)
from .answers import Answer, Refusal, Vector, Weights, not_kept
from .run import AttentionView, Run, RunRequest

# Scores of an attention up to which every one is computed; beyond, pictures are sampled
MOST_SCORES = 2**25

# ------------------------------------------------------------------------- known weights of queries


def top_weights(call: RecordedCall, b: int) -> tuple[Float[Tensor, "heads query top"], Tensor]:
    """Return the largest weights of each query, and their keys; keys of weight 0 fill up where
    there are too few.
    """
    top = call.survey().top
    # A missing key is -1; as key 0 with weight 0 it changes no sum.
    return top.weights[b].double().cpu(), top.keys[b].cpu().clamp(min=0)


def known_share(call: RecordedCall, b: int) -> float:
    """Return the share of all weight that is known: of a summary, what the largest weights hold."""
    if call._has_queries:
        return 1.0
    weights, _ = top_weights(call, b)
    return float(weights.sum(-1).mean()) if weights.numel() else 0.0


def pooled_weights(
    call: RecordedCall, b: int, head: int, rows: int, columns: int, n_k: int
) -> Tensor:
    """Return one head's known weights pooled to rows x columns: the mean over queries of the sum
    over keys.
    """
    weights, keys = (part[head] for part in top_weights(call, b))
    n_q = weights.shape[0]
    # The row of pixels of each query, and the pixel of each of its keys.
    row = torch.arange(n_q) * rows // n_q
    place = row[:, None] * columns + keys * columns // n_k
    summed = weights.new_zeros(rows * columns).scatter_add_(0, place.flatten(), weights.flatten())
    # Divide by the number of queries in each row of pixels.
    return summed.view(rows, columns) / row.bincount(minlength=rows)[:, None]


# ---------------------------------------------------------------------------- weights between words


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
        return torch.cat([drawn, drawn.mean(0, keepdim=True)]).amax(-1).mean(-1)


def word_weights(view: AttentionView, b: int) -> WordWeights:
    """Return the weights between the words of a view, or between its tokens where it has no
    words.
    """
    # The number of each token's word; without words, each token stands for itself.
    rows, columns = (
        list(range(length)) if words is None else list(words.word_ids)
        for words, length in zip(map(view.words, "qk"), view.size, strict=True)
    )
    # Exact from queries and keys; of a summary, as far as weights are known.
    if view.call._has_queries:
        weights = view.call.survey().map(segments=(rows, columns))[b]
    else:
        weights = _join_known(view, b, rows, columns)
    return WordWeights(
        rows=view.names("q", b),
        columns=view.names("k", b),
        weights=weights,
        real_rows=view.real("q", b),
        real_columns=view.real("k", b),
    )


def _join_known(view: AttentionView, b: int, rows: list[int], columns: list[int]) -> Tensor:
    """Return the weights between words of a summary, with 0 for every weight that is not known."""
    weights, keys = top_weights(view.call, b)
    row = torch.tensor(rows)
    column = torch.tensor(columns)
    # First the whole matrix, then sums over the keys of a word, then means over its queries.
    dense = weights.new_zeros(*weights.shape[:2], view.size[1]).scatter_add_(-1, keys, weights)
    heads, queries, _ = dense.shape
    summed = dense.new_zeros(heads, queries, int(column.max()) + 1).index_add_(2, column, dense)
    means = dense.new_zeros(heads, int(row.max()) + 1, summed.shape[2]).index_add_(1, row, summed)
    return means / row.bincount()[:, None]


def is_small(view: AttentionView) -> bool:
    """Return whether all scores of an attention can be computed at once."""
    return view.batch * len(view.call.heads) * view.size[0] * view.size[1] <= MOST_SCORES


# ---------------------------------------------------------------------------------------- alignment


@dataclass(frozen=True)
class AlignmentAnswer(Answer):
    """The weights between words, of one head or of the mean of all heads.

    known      the share of all weight that is known: less than 1 where a recording kept summaries
    h          a head's number, or "mean"
    real_rows  the rows that are words of the text, without special tokens; real_columns likewise
    """

    known: float
    l: int
    h: int | str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: Weights
    real_rows: Sequence[int]
    real_columns: Sequence[int]


@dataclass(frozen=True)
class Sharpest(Answer):
    """The attention whose heads, in the mean, align most sharply.

    mean  each word's largest weight in the mean of the heads, averaged over words
    h     the sharpest head; head: the same number of it
    of    how many attentions were compared
    """

    l: int
    mean: float
    h: int
    head: float
    of: int


def alignment(request: RunRequest) -> AlignmentAnswer:
    """Answer the weights between words, of one head or of the mean of all heads (h=mean)."""
    view = request.view
    view.require("alignment")
    mean = request.parameters.get("h") == "mean"
    b = request.b
    h = "mean" if mean else request.h
    found = word_weights(view, b)
    weights = (
        found.weights.double().mean(0) if mean else found.weights[view.call.heads.index(request.h)]
    )
    return AlignmentAnswer(
        known=known_share(view.call, b),
        l=request.layer,
        h=h,
        rows=found.rows,
        columns=found.columns,
        weights=weights,
        real_rows=found.real_rows,
        real_columns=found.real_columns,
    )


def sharpest(request: RunRequest) -> Sharpest:
    """Answer the attention whose heads, in the mean, align most sharply: of the cross-attentions,
    if the run has any.
    """
    views = request.run.views
    # An attention that cannot be aligned is left out, unless none can.
    kinds = {view.kind for view in views}
    peaks: dict[int, Tensor] = {}
    refused: Refusal | None = None
    for layer, view in enumerate(views):
        if view.kind != "cross" and "cross" in kinds:
            continue
        try:
            view.require("alignment")
            found = word_weights(view, request.index("b", view.batch, "sequence", 0))
            if not found.real_rows or not found.real_columns:
                raise not_kept(f'"{view.name}" has no words to align')
            peaks[layer] = found.peaks
        except Refusal as refusal:
            refused = refusal
    if not peaks:
        raise refused or not_kept("no attention of this run can be aligned")
    # The last peak of an attention is that of its heads' mean.
    layer = max(peaks, key=lambda layer: float(peaks[layer][-1]))
    *heads, mean = peaks[layer].tolist()
    place = heads.index(max(heads))
    return Sharpest(layer, mean, views[layer].call.heads[place], heads[place], len(peaks))


# ---------------------------------------------------------------------------- all heads on one word


@dataclass(frozen=True)
class Start(Answer):
    """The attention, head and query that a reader should see first."""

    l: int
    h: int
    i: int


@dataclass(frozen=True)
class HeadHabit(Answer):
    """A head among those that are compared.

    habit  "previous", "itself", "next", "first" or "sink" of a head that attends by position
    share  of all weight that goes there, over the text
    """

    l: int
    h: int
    habit: str | None
    share: float


@dataclass(frozen=True)
class HeadOnWord(HeadHabit):
    """A head among those that are compared, and its weights from one word to every column.

    habit  "previous", "itself", "next", "first" or "sink" of a head that attends by position
    share  of all weight that goes there, over the text
    """

    weights: Vector


@dataclass(frozen=True)
class PerspectivesAnswer(Answer):
    """The word of query i in all heads of the attentions of l's kind.

    word   the word's row; names: of all rows
    pair   the two heads that differ most in this word's weights, of those without a habit
    """

    l: int
    i: int
    word: int
    names: Sequence[str]
    columns: Sequence[str]
    heads: Sequence[HeadOnWord]
    pair: Sequence[int] | None


@dataclass(frozen=True)
class PerspectivesOfWords(Answer):
    """What the answers about all words share, for an exported file: the attentions that are
    compared, their heads, and the pair of each word. The weights between words are the rest.
    """

    layers: Sequence[int]
    heads: Sequence[HeadHabit]
    pairs: Sequence[Sequence[int] | None]


def start(request: RunRequest) -> Start:
    """Answer where a reader should begin: the last word of the text and the head that attends most
    from there to another word, heads that attend by position left out.
    """
    run = request.run
    batch = max((view.batch for view in run.views), default=1)
    b = request.index("b", batch, "sequence", 0)
    if not run.views:
        raise not_kept("no attention was called while this was recorded")
    # An example names the query to look at first.
    if run.example is not None:
        return Start(0, 0, run.example.scenes[0].query)
    # The first attention whose steps can be shown.
    first = next((at for at, view in enumerate(run.views) if "trace" not in view.missing), 0)
    view = run.views[first]
    row = _last_word(view, b)
    if row is None:
        return Start(first, view.call.heads[0], view.size[0] // 2)
    compared = ComparedHeads(run, view.kind, b, row)
    # Among all attentions of this kind, the head that says most about the last word.
    best = most_telling(compared.on_word(row), row, compared.words.real_columns)
    words = view.words("q")
    # A walk shows one token: the last one of the word.
    return Start(*compared.places[best], row if words is None else words.positions(row)[-1])


def perspectives(request: RunRequest) -> PerspectivesAnswer:
    """Answer one word in every head, and the two heads that differ most."""
    layer = request.index("l", len(request.run.views), "attention", 0)
    view = request.run.views[layer]
    b = request.index("b", view.batch, "sequence", 0)
    view.require("alignment")
    i = request.index("i", view.size[0], "query")
    words = view.words("q")
    row = i if words is None else words.word_ids[i]
    compared = ComparedHeads(request.run, view.kind, b, row)
    heads = compared.on_word(row)
    return PerspectivesAnswer(
        l=layer,
        i=i,
        word=row,
        names=compared.words.rows,
        columns=compared.words.columns,
        heads=[
            HeadOnWord(*place, one.habit, one.share, one.weights)
            for place, one in zip(compared.places, heads, strict=True)
        ],
        pair=compared.pair(heads, row),
    )


def perspectives_of_all_words(run: Run, kind: str, b: int) -> PerspectivesOfWords | None:
    """Return what the answers about all words share; None where the attentions differ in their
    words.
    """
    compared = ComparedHeads(run, kind, b, 0)
    counts = {len(words.rows) for _, words in compared.found}
    if len(counts) != 1:
        return None
    heads = compared.on_word(0)
    described = [
        HeadHabit(*place, one.habit, one.share)
        for place, one in zip(compared.places, heads, strict=True)
    ]
    # Habits are those of whole heads: of each word only the weights differ.
    weights = torch.cat([words.weights.cpu() for _, words in compared.found])
    pairs = []
    for row in range(*counts):
        of_row = [one._replace(weights=weights[at, row]) for at, one in enumerate(heads)]
        pairs.append(compared.pair(of_row, row))
    return PerspectivesOfWords([at for at, _ in compared.found], described, pairs)


class ComparedHeads:
    """All heads of the attentions of one kind that have a row; Refusal 409 where there are none.

    found   the index of each attention, and its weights between words
    places  the index of the attention and the number in the model, of each head
    """

    def __init__(self, run: Run, kind: str, b: int, row: int) -> None:
        able = [
            at
            for at, view in enumerate(run.views)
            if view.kind == kind and "alignment" not in view.missing and is_small(view)
        ]
        every = [(at, word_weights(run.views[at], b)) for at in able]
        # Calls of a recording may differ in length: some may lack the row.
        self.found = [(at, words) for at, words in every if row < len(words.rows)]
        if not self.found:
            message = "the text is too long to compare all heads; choose two heads by hand"
            raise Refusal(409, "too-long", message)
        self.across = kind == "cross"
        self.is_example = run.example is not None
        self.places = [(at, h) for at, _ in self.found for h in run.views[at].call.heads]
        # Rows and columns are named as in the last attention.
        self.words = self.found[-1][1]

    def on_word(self, row: int) -> list[HeadPerspective]:
        """Return what every head attends to from one word; heads of an example have no habits."""
        heads = [
            one
            for _, words in self.found
            for one in head_perspectives(words.weights[None].cpu(), row, across=self.across)
        ]
        return [one._replace(habit=None) for one in heads] if self.is_example else heads

    def pair(self, heads: list[HeadPerspective], row: int) -> tuple[int, int] | None:
        """Return the two heads that differ most on other words than that of the row; in
        cross-attention none is the row itself.
        """
        others = [at for at in self.words.real_columns if at != row or self.across]
        return most_different(heads, others)


def _last_word(view: AttentionView, b: int) -> int | None:
    """Return the last row that is a word with a letter or digit, of a text that is small enough."""
    if "alignment" in view.missing or not is_small(view):
        return None
    names = view.names("q", b)
    able = [at for at in view.real("q", b) if any(map(str.isalnum, names[at]))]
    return able[-1] if able else None
