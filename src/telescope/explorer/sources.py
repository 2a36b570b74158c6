"""Answers about sources: where a span of the answer comes from, segment by segment."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..recording import ANSWER, KINDS, NotKeptError, Source, Sources
from ..recording.find_sources import find_sources, sources_of_scores
from .answers import Answer, RequestParams, bad_parameter, not_kept
from .context import (
    BY,
    HOW,
    calls_of,
    context_of,
    names_at,
    question_about,
    read_context,
    reader,
    sequence_of,
    span_of,
    suggested,
    why_no_sources,
)
from .hiding import calls_with_gradients, falls, output_of
from .run import RunRequest

# The most that one answer holds
MOST_ROWS = 200
MOST_TOKENS = 4_096
MOST_BINS = 512
LONGEST_TEXT = 240  # characters of a segment
OF_ONE_HEAD = ("weights", "carried")  # the values of how= that one head can answer
# At most 10,000 positions, separated by commas.
CUTS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){0,9999}", re.ASCII)


@dataclass(frozen=True)
class SourceRow(Answer):
    """A segment of the context, and what the span takes from it.

    start   the position of its first token; stop: one past its last
    tokens  how many
    share   the score divided by the sum of all scores, each without its sign
    own     whether this is what comes from the answer's own tokens
    """

    name: str
    start: int
    stop: int
    tokens: int
    score: float
    share: float
    text: str
    own: bool


@dataclass(frozen=True)
class SourcesAnswer(Answer):
    """Where the tokens at the positions first to end - 1 come from.

    meaning   of the scores; hows: all that can be asked for
    answer    the texts of the span
    n         tokens of the context
    by        how it was cut; counts: how many segments each way has
    most      the largest score of a segment
    overview  sums of scores over at most 512 equal parts of low to high
    start     the first of `tokens`; stop: one past the last
    scores    of each token; null where only segments have one
    segments  for each token, where its segment begins and the segment's score
    rows      the 200 largest; more: how many are left out
    """

    how: str
    meaning: str
    hows: Sequence[str]
    first: int
    end: int
    answer: Sequence[str]
    n: int
    by: str
    counts: dict[str, int]
    most: float
    low: int
    high: int
    overview: Sequence[float] | None
    start: int
    stop: int
    tokens: Sequence[str]
    scores: Sequence[float] | None
    segments: Sequence[tuple[int, float]]
    rows: Sequence[SourceRow]
    more: int


class Found(NamedTuple):
    """The sources of a span, where its segments begin, and the context's tokens as the page shows
    them.
    """

    sources: Sources
    starts: list[int]
    by: str
    texts: list[str]
    counts: dict[str, int]


def sources(request: RunRequest) -> SourcesAnswer:
    """Answer where the tokens first to end - 1 come from.

    Segments of the context: by, or cuts=0,12,40, where they begin. Tokens: start to stop, at most
    4,096, or window=400 of them around centre, else around the strongest segment. Overview: low to
    high, all by default. Weights and what they carry: of all heads, of a layer l, or of its head h.
    """
    found = _found(request)
    how = request.word("how", HOW)
    scores = found.sources.scores
    span = found.sources.span
    count = len(found.texts)
    shown = _window(request, found)
    low, high = _range(request, count)
    # The answer's own part has no place in the context.
    by_start = {row.start: row.score for row in found.sources.rows if row.name != ANSWER}
    return SourcesAnswer(
        how=how,
        meaning=KINDS[how],
        hows=HOW,
        first=span.start,
        end=span.stop,
        answer=names_at(request, span),
        n=count,
        by=found.by,
        counts=found.counts,
        most=max(map(abs, by_start.values()), default=0.0),
        low=low,
        high=high,
        overview=_bins(scores if scores is not None else _spread(found), low, high),
        start=shown.start,
        stop=shown.stop,
        tokens=found.texts[shown.start : shown.stop],
        scores=None if scores is None else scores[shown.start : shown.stop].tolist(),
        segments=[
            (found.starts[number], by_start[found.starts[number]])
            for number in _segment_numbers(shown, found.starts)
        ],
        rows=[_row(found, row) for row in found.sources.rows[:MOST_ROWS]],
        more=max(len(found.sources.rows) - MOST_ROWS, 0),
    )


def _found(request: RunRequest) -> Found:
    """Return the sources that a request asks for, from memory if they were found lately."""
    run = request.run
    how = request.word("how", HOW)
    span = span_of(request)
    # Without an attention there is no batch whose sequences could be checked.
    if not run.views:
        raise not_kept(str(why_no_sources(run)))
    b = sequence_of(request)
    cuts = request.parameters.get("cuts")
    if cuts is not None and not CUTS.fullmatch(cuts):
        raise bad_parameter("cuts= takes the positions at which segments begin, such as 0,12,40")
    by = request.word("by", ("pieces", *BY, "auto"))
    # Windows and overviews are not part of the key: they are cut from one result.
    head = _chosen_head(request, how)
    key = (run.name, run.rev, how, b, span, cuts, by, head)
    found: Found = request.memory.sources.get_or_make(
        key, lambda: _find(request, how, span, cuts, by, head)
    )
    return found


class ChosenHead(NamedTuple):
    """The attention whose weights count, by name, and the numbers of its heads; None is all."""

    layers: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None


def _chosen_head(request: RunRequest, how: str) -> ChosenHead:
    """Return the layer l= and its head h= that a request asks for: all of them without."""
    chosen = [name for name in ("l", "h") if name in request.parameters]
    if not chosen:
        return ChosenHead()
    if how not in OF_ONE_HEAD:
        raise bad_parameter(
            f'how="{how}" goes through the whole model; l= and h= choose a layer and a head of '
            f"{' and '.join(OF_ONE_HEAD)}"
        )
    if "l" not in chosen:
        raise bad_parameter("h= is a head of a layer; l= says of which")
    view = request.view
    if view.name not in read_context(request.run):
        raise bad_parameter(f'"{view.name}" does not read the context')
    return ChosenHead((view.name,), (request.h,) if "h" in chosen else None)


def _find(
    request: RunRequest, how: str, span: range, cuts: str | None, by: str, head: ChosenHead
) -> Found:
    run = request.run
    why = why_no_sources(run)
    if why is not None:
        raise not_kept(why)
    view = reader(run)
    question_about(request, span, None)  # refused before anything is cut or computed
    text = context_of(request)
    # Across, the context is the whole other text; else what was read before the span.
    texts = text.texts[: None if view.call.across else span.start]
    counts = text.counts(len(texts))
    by = suggested(counts) if by == "auto" else by
    starts = text.starts(by, len(texts))
    if cuts is not None:
        # Given cuts come first; a segment always begins at 0.
        starts = sorted({0, *(at for at in map(int, cuts.split(",")) if at < len(texts))})
    numbers = _segment_numbers(range(len(texts)), starts)
    try:
        return Found(_sources(request, how, span, numbers, head), starts, by, texts, counts)
    # 409 for what the run lacks, 400 for what does not fit the run.
    except NotKeptError as problem:
        raise not_kept(str(problem)) from None
    except ValueError as problem:
        raise bad_parameter(str(problem)) from None


def _segment_numbers(tokens: range, starts: list[int]) -> list[int]:
    """Return the number of each token's segment."""
    places = torch.arange(tokens.start, tokens.stop)
    numbers: list[int] = torch.bucketize(places, torch.tensor(starts[1:]), right=True).tolist()
    return numbers


def _sources(
    request: RunRequest, how: str, span: range, numbers: list[int], head: ChosenHead
) -> Sources:
    run = request.run
    view = reader(run)
    # Run the model once for each segment, with that segment hidden.
    if how == "hidden":
        question = question_about(request, span, numbers)
        scores = falls(output_of(run), question)
        return sources_of_scores(question, how, scores, view.decode, view.token_name)
    # Where the model is here, gradients are computed now; else they must have been recorded.
    with_gradients = how == "gradient" and run.output is not None
    return find_sources(
        calls_with_gradients(run, span) if with_gradients else calls_of(run),
        span,
        how=how,
        segments=numbers,
        layers=head.layers,
        heads=head.heads,
        sequence=sequence_of(request),
        model=None,
        decode=view.decode,
        token_name=view.token_name,
    )


def _window(params: RequestParams, found: Found) -> range:
    """Return the tokens to send: start= to stop=, or window= of them around centre=, else around
    the strongest segment.

    Only segments between low= and high= count. A text that is hardly longer than the window is sent
    whole.
    """
    count = len(found.texts)
    if "window" not in params.parameters:
        return params.span(count, MOST_TOKENS)
    wanted = params.number("window")
    if not 1 <= wanted <= MOST_TOKENS // 2:
        raise bad_parameter(f"window={wanted} tokens cannot be sent; 1 to {MOST_TOKENS // 2:,} can")
    # Half a window more is read faster than it is searched.
    if count <= wanted * 3 // 2:
        return range(count)
    low, high = _range(params, count)
    # Rows are ordered by score: the first one inside is the strongest.
    inside = (
        row
        for row in found.sources.rows
        if row.name != ANSWER and row.stop > low and row.start < high
    )
    strongest = next(inside, None)
    middle = params.number(
        "centre", 0 if strongest is None else (strongest.start + strongest.stop) // 2
    )
    # Shift the window into the text where it would reach beyond an end.
    start = max(0, min(middle - wanted // 2, count - wanted))
    return range(start, start + wanted)


def _range(params: RequestParams, count: int) -> tuple[int, int]:
    """Return the tokens that an overview covers, low to high - 1: all unless asked otherwise."""
    low = params.number("low", 0)
    high = min(params.number("high", count), count)
    if count and not 0 <= low < high:
        raise bad_parameter(f"low={low}, high={high} is not a range within {count:,}")
    return low, high


def _bins(scores: Tensor, low: int, high: int) -> list[float] | None:
    """Return sums of scores over at most MOST_BINS bins of equal width."""
    count = high - low
    if count <= 0:
        return None
    pixels = min(count, MOST_BINS)
    # The bin of each token: bins differ by at most one token.
    place = torch.arange(count) * pixels // count
    sums: list[float] = (
        torch.zeros(pixels, dtype=scores.dtype).index_add_(0, place, scores[low:high]).tolist()
    )
    return sums


def _spread(found: Found) -> Tensor:
    """Return the score of every token where only segments have one: that of its segment, divided by
    its tokens.
    """
    scores = torch.zeros(len(found.texts), dtype=torch.float64)
    for row in found.sources.rows:
        scores[row.start : row.stop] = row.score / row.tokens
    return scores


def _row(found: Found, row: Source) -> SourceRow:
    """Return a row of the ranked list, with its text as the page shows it, cut."""
    own = row.name == ANSWER
    # The page shows spaces as they are; the library joins them.
    text = row.text if own else "".join(found.texts[row.start : row.stop])
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    return SourceRow(*row._replace(text=short), own=own)
