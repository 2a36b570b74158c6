"""Answers about sources: what can be asked of a run, where a span comes from, and what hiding a
segment changes.
"""

import re
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ..attention import Pairs
from ..recording.find_sources import find_sources, sources_of_scores, stack_of
from ..recording.names import stack_and_number
from ..recording.recorded_call import RecordedCall
from ..recording.source_question import AnswerPositions, NotKeptError, Question, ask
from ..recording.sources import ANSWER, KINDS, Sources
from .hiding import NO_MODEL, calls_with_gradients, falls, hidden_segment, output_of, written_tokens
from .lru_cache import LruCache
from .requests import Refusal, RequestParams, bad_parameter, not_kept
from .run import UNREAD, AttentionView, Run
from .segment_text import BY, Cuttable, display_texts, suggested
from .walk import sequence

HOW = tuple(KINDS)
# In one answer
MOST_ROWS = 200
MOST_TOKENS = 4_096
OVERVIEW = 512
MOST_ANSWER = 512
LONGEST_TEXT = 240  # characters of a segment
CUTS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){0,9999}", re.ASCII)
OPTIONS = {"weights": 'keep="queries-keys"', "carried": 'keep="queries-keys", also="norms"'}
READS_ALL = (
    "this model reads a whole text at once and writes none, so that there is no answer whose "
    "sources could be shown: "
    "open a translation, a summary or the text of a GPT"
)
Calls = dict[str, list[RecordedCall]]


class Found(NamedTuple):
    """The sources of a span, where its segments begin, and the context's tokens as the page shows
    them.
    """

    sources: Sources
    starts: list[int]
    by: str
    texts: list[str]
    counts: dict[str, int]


class SourcesOfRuns:
    """Answer requests for sources; the latest results are kept, so that zooming into a text
    computes nothing.
    """

    def __init__(self) -> None:
        self.found: LruCache[tuple[Any, ...], Found] = LruCache(16)
        self.contexts: LruCache[tuple[Any, ...], Cuttable] = LruCache(4)

    def __call__(self, run: Run, params: RequestParams) -> dict[str, Any]:
        """Answer GET /runs/{run}/sources."""
        found = self._found(run, params)
        how, _, _ = _asked(params)
        sources = found.sources
        scores = found.sources.scores
        starts = found.starts
        count = len(found.texts)
        span, low, high = _window(params, found), *_range(params, count)
        segment = torch.bucketize(
            torch.arange(span.start, span.stop), torch.tensor(starts[1:]), right=True
        )
        by_start = {row.start: row for row in sources.rows if row.name != ANSWER}
        rows = [_row(found, row) for row in sources.rows[:MOST_ROWS]]
        return {
            "how": how,
            "meaning": KINDS[how],
            "hows": list(HOW),
            "first": sources.span.start,
            "end": sources.span.stop,
            "answer": self._names(run, params, sources.span),
            "n": count,
            "by": found.by,
            "counts": found.counts,
            "most": max((abs(row.score) for row in by_start.values()), default=0.0),
            "low": low,
            "high": high,
            "overview": _bins(scores if scores is not None else _spread(found), low, high),
            "start": span.start,
            "stop": span.stop,
            "tokens": found.texts[span.start : span.stop],
            "scores": None if scores is None else scores[span.start : span.stop].tolist(),
            "segments": [
                [starts[number], by_start[starts[number]].score] for number in segment.tolist()
            ],
            "rows": rows,
            "more": max(len(sources.rows) - MOST_ROWS, 0),
        }

    def answer(self, run: Run, params: RequestParams) -> dict[str, Any]:
        """Answer GET /runs/{run}/answer: which tokens were written, and by which `how` their
        sources can be found.
        """
        why = _why_not(run)
        if why is not None:
            return {"why": why}
        view = _reader(run)
        b = sequence(view, params)
        call = view.call
        across = view.call.across
        columns = call.text_columns(b)
        first, begins, end, _ = AnswerPositions.of(call, columns)
        if across and call.query_ids is not None and run.output is None:
            end -= 1  # a recording does not hold the last token that was written
        at = min(max(params.number("at", end - 1), begins), end - 1)
        start = max(begins, min(at - MOST_ANSWER * 3 // 4, end - MOST_ANSWER))
        shown = range(start, min(end, start + MOST_ANSWER))
        names = self._names(run, params, shown)
        words = _words_of(view, shown, names, columns.queries.start)
        return {
            "why": None,
            "across": across,
            "n": len(columns.keys) if across else None,
            "begins": begins,
            "ends": end,
            "prompt": begins if begins > first + 1 else None,
            "start": shown.start,
            "tokens": names,
            "words": words,
            "span": _opening_span(names, words, shown, across=across),
            "hows": {how: _lacks(run, how, b) for how in HOW},
            "hide": None if run.output is not None else NO_MODEL.format(how='"hidden"'),
        }

    def hide(self, run: Run, params: RequestParams) -> dict[str, Any]:
        """Answer GET /runs/{run}/hidden: the answer's probability and the new answer, with a
        segment hidden.
        """
        _, first, end = _asked(params)
        start = params.number("start")
        stop = params.number("stop")
        output_of(run)
        question = _question(
            run, _calls(run), range(first, end), None, sequence(_reader(run), params)
        )
        if not 0 <= start < stop <= question.context:
            message = (
                f"start={start}, stop={stop} is no segment of the context, which has "
                f"{question.context:,} tokens"
            )
            raise bad_parameter(message)
        names = self._names(run, params, question.span)
        found = hidden_segment(run, question, range(start, stop), names)
        return {"first": first, "end": end, "start": start, "stop": stop, **found}

    # -------------------------------------------------------------------------------------- private

    def _found(self, run: Run, params: RequestParams) -> Found:
        how, first, end = _asked(params)
        if not run.views:
            raise not_kept(str(_why_not(run)))
        b = sequence(_reader(run), params)
        cuts = params.parameters.get("cuts")
        if cuts is not None and not CUTS.fullmatch(cuts):
            raise bad_parameter(
                "cuts= takes the positions at which segments begin, such as 0,12,40"
            )
        by = params.word("by", ("pieces", *BY, "auto"))
        key = (run.name, run.rev, how, b, first, end, cuts, by)
        return self.found.get_or_make(
            key, lambda: self._find(run, how, b, range(first, end), cuts, by)
        )

    def _find(self, run: Run, how: str, b: int, span: range, cuts: str | None, by: str) -> Found:
        why = _why_not(run)
        if why is not None:
            raise not_kept(why)
        view = _reader(run)
        try:
            _question(run, _calls(run), span, None, b)  # before anything is cut or computed
            text = self._text(run, view, b)
            texts = text.texts[: None if view.call.across else span.start]
            counts = text.counts(len(texts))
            by = suggested(counts) if by == "auto" else by
            starts = text.starts(by, len(texts))
            if cuts is not None:
                starts = sorted({0, *(at for at in map(int, cuts.split(",")) if at < len(texts))})
            numbers = torch.bucketize(
                torch.arange(len(texts)), torch.tensor(starts[1:]), right=True
            )
            return Found(
                self._sources(run, view, how, b, span, numbers.tolist()), starts, by, texts, counts
            )
        except NotKeptError as problem:
            raise not_kept(str(problem)) from None
        except ValueError as problem:
            raise Refusal(400, "bad-parameter", str(problem)) from None

    def _sources(
        self, run: Run, view: AttentionView, how: str, b: int, span: range, numbers: list[int]
    ) -> Sources:
        calls = _calls(run)
        if how == "hidden":
            question = _question(run, calls, span, numbers, b)
            return sources_of_scores(
                question, how, falls(output_of(run), question), view.decode, view.token_name
            )
        if how == "gradient" and run.output is not None:
            calls = calls_with_gradients(run, span)
        return find_sources(
            calls,
            span,
            how=how,
            segments=numbers,
            layers=None,
            heads=None,
            sequence=b,
            model=None,
            decode=view.decode,
            token_name=view.token_name,
        )

    def _text(self, run: Run, view: AttentionView, b: int) -> Cuttable:
        """Return all tokens of the context's text, without padding."""
        columns = view.call.text_columns(b).keys
        return self.contexts.get_or_make(
            (run.name, run.rev, b), lambda: Cuttable(view, "k", b, columns)
        )

    def _names(self, run: Run, params: RequestParams, span: range) -> list[str]:
        """Return the tokens at some positions of the answer's text as the page shows them."""
        view = _reader(run)
        b = sequence(view, params)
        columns = view.call.text_columns(b)
        if view.call.across:
            before = columns.queries.start - 1
            return display_texts(view, "q", b, range(span.start + before, span.stop + before))
        inside = range(span.start, min(span.stop, len(columns.keys)))
        names = self._text(run, view, b).texts[inside.start : inside.stop]
        if span.stop > len(columns.keys):
            made = run.output
            last = span.stop - 1
            names.append(
                UNREAD
                if made is None
                else made.text_of(last - 1, written_tokens(made, range(last, last + 1))[0])
            )
        return names


def _asked(params: RequestParams) -> tuple[str, int, int]:
    return params.word("how", HOW), params.number("first"), params.number("end")


def _reader(run: Run) -> AttentionView:
    """Return the view of the first attention that reads the context: a cross-attention, if there is
    one.
    """
    return next((view for view in run.views if view.call.across), run.views[0])


def _calls(run: Run) -> Calls:
    """Return the calls of each attention in the order of the model: a rollout goes through it from
    the end.

    The views of a sentence are ordered by kind: of a decoder, all self-attentions stand before all
    cross-attentions.
    """
    calls: Calls = {}
    for view in run.views:
        calls.setdefault(view.name.split(" ")[0], []).append(view.call)
    stacks = [stack_of(name) for name in calls]

    def place(name: str) -> tuple[int, int, bool]:
        found = stack_and_number(name)
        return stacks.index(stack_of(name)), found[1] if found else 0, calls[name][0].across

    return (
        calls
        if run.kind == "recording"
        else {name: calls[name] for name in sorted(calls, key=place)}
    )


def _question(run: Run, calls: Calls, span: range, segments: list[int] | None, b: int) -> Question:
    view = _reader(run)
    try:
        return ask(calls, span, segments, None, None, b, None, view.token_name)
    except ValueError as problem:
        raise Refusal(400, "bad-parameter", str(problem)) from None


def _why_not(run: Run) -> str | None:
    """Return why a run has no sources at all, or None."""
    if not run.views:
        return (
            "no attention was called while this was recorded: run the model inside the block "
            "of "
            "ts.watch"
        )
    if run.example is not None:
        return "a worked example has no model that writes"
    several = next((name for name, calls in _calls(run).items() if len(calls) > 1), None)
    if several is not None:
        return (
            f'"{several}" was called for several sequences; sources are those of a recording '
            "of "
            "one run"
        )
    view = _reader(run)
    if not view.call.across and "map" not in view.missing and _sees_ahead(view):
        return READS_ALL
    return None


def _sees_ahead(view: AttentionView) -> bool:
    """Return whether the first query of a text may see its last key."""
    queries, keys = view.call.size
    if queries < 2 or queries != keys:
        return False
    at = Pairs.block(
        range(1),
        range(keys - 1, keys),
        of=(queries, keys),
        batch=view.batch,
        heads=len(view.call.heads),
    )
    return bool(view.call.attention.mask.sees(at).any())


def _lacks(run: Run, how: str, b: int) -> str | None:
    """Return why a `how` cannot be used on a run: one sentence, with the option that keeps what is
    missing.
    """
    if run.output is not None:
        return None
    if how == "hidden":
        return NO_MODEL.format(how='"hidden"')
    call = _reader(run).call
    part = {"carried": "norms", "gradient": "gradients"}.get(how, "queries")
    if "queries" not in call.parts and how != "gradient":
        flag = "telescope watch --keep queries-keys, or " if how != "carried" else ""
        option = OPTIONS.get(how, OPTIONS["weights"])
        return (
            f"this recording kept summaries alone: {flag}ts.watch({option}), keeps what {how} needs"
        )
    if part not in call.parts:
        asks = (
            ", with a backward pass of the answer inside of the block," if how == "gradient" else ""
        )
        return (
            f'this recording kept no {part}: ts.watch(keep="queries-keys", '
            f'also="{part}"){asks} '
            "keeps them"
        )
    return None


def _words_of(view: AttentionView, shown: range, names: list[str], padding: int) -> list[int]:
    """Return the number of each written token's word, in the order of the text; `padding` tokens
    stand before it.
    """
    words = view.words("q")
    ahead = int(view.call.across) - padding
    if words is not None:
        last = len(words.word_ids)
        return [
            words.word_ids[at - ahead] if at - ahead < last else words.word_ids[-1] + 1
            for at in shown
        ]
    numbers = [0]
    for before, here in pairwise(names):
        numbers.append(
            numbers[-1] + int(here[:1].isspace() or before[-1:].isspace() or not here.isalnum())
        )
    return numbers[: len(names)]


def _opening_span(names: list[str], words: list[int], shown: range, *, across: bool) -> list[int]:
    """Return the span at which a reader begins: the last word with letters; of a GPT, what comes
    next.
    """
    place = len(names) - 1
    if across or names[-1] == UNREAD:
        found = [
            at
            for at, name in enumerate(names)
            if any(letter.isalnum() for letter in name) and "<" not in name
        ]
        place = found[-1] if found else place
    own = [at for at, word in enumerate(words) if word == words[place]]
    return [shown.start + own[0], shown.start + own[-1] + 1]


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
    if count <= wanted * 3 // 2:
        return range(count)
    low, high = _range(params, count)
    inside = (
        row
        for row in found.sources.rows
        if row.name != ANSWER and row.stop > low and row.start < high
    )
    strongest = next(inside, None)
    middle = params.number(
        "centre", 0 if strongest is None else (strongest.start + strongest.stop) // 2
    )
    start = max(0, min(middle - wanted // 2, count - wanted))
    return range(start, start + wanted)


def _range(params: RequestParams, count: int) -> tuple[int, int]:
    """Return the tokens that an overview covers, low to high - 1: all unless asked otherwise."""
    low = params.number("low", 0)
    high = min(params.number("high", count), count)
    if count and not 0 <= low < high:
        raise bad_parameter(f"low={low}, high={high} is not a range within {count:,}")
    return low, high


def _bins(scores: torch.Tensor, low: int, high: int) -> list[float] | None:
    """Return sums of scores over at most OVERVIEW bins of equal width."""
    count = high - low
    if count <= 0:
        return None
    pixels = min(count, OVERVIEW)
    place = torch.arange(count) * pixels // count
    sums: list[float] = (
        torch.zeros(pixels, dtype=scores.dtype).index_add_(0, place, scores[low:high]).tolist()
    )
    return sums


def _spread(found: Found) -> torch.Tensor:
    """Return the score of every token where only segments have one: that of its segment, divided by
    its tokens.
    """
    scores = torch.zeros(len(found.texts), dtype=torch.float64)
    for row in found.sources.rows:
        scores[row.start : row.stop] = row.score / row.tokens
    return scores


def _row(found: Found, row: Any) -> dict[str, Any]:
    """Return a row of the ranked list, with its text as the page shows it, cut."""
    own = row.name == ANSWER
    text = row.text if own else "".join(found.texts[row.start : row.stop])
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    return {**row._asdict(), "own": own, "text": short}
