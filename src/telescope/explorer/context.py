"""The text that a run wrote and the context that it read: which tokens they are, how they are
named, and how the context is cut into segments.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..attention import Pairs
from ..models import Transformer
from ..recording import (
    KINDS,
    AnswerPositions,
    Question,
    RecordedCall,
    ask,
    stack_and_number,
    stack_of,
)
from .answers import Answer, bad_parameter
from .lacks import READS_ALL
from .output import Output
from .run import UNREAD, AttentionView, Run, RunRequest

# The values of how=, the first being the default, and of by=.
HOW = tuple(KINDS)
BY = ("words", "sentences", "paragraphs", "parts", "pieces")
EQUAL_PARTS = 64  # segments of a context that is cut into "parts"
MANY_WORDS = 400  # a text with more words opens by sentences
MOST_ANSWER = 512  # tokens of one answer
CLOSING = re.compile(r"[.,;:!?…)\]}»”’%']+", re.ASCII)  # signs that follow a word without a space
SENTENCE_END = re.compile(r"[.!?…][\"'»”’)\]]*$")  # a full stop, and what closes after it
SAMPLE = 256  # tokens that are decoded together, to see whether a token's own text has its spaces
# What ts.watch must keep for a `how`.
OPTIONS = {"weights": 'keep="queries-keys"', "carried": 'keep="queries-keys", also="norms"'}
NO_MODEL = (
    "hiding a segment runs the model again, and a recording holds none: type the text into the "
    "page of telescope serve --model FOLDER, or use recording.sources(span, how={how}, model=model)"
)
Calls = dict[str, list[RecordedCall]]

# ----------------------------------------------------------------------------------------- cutting


def display_texts(view: AttentionView, axis: str, b: int, indices: range) -> list[str]:
    """Return the texts of tokens with the spaces between them, so that joined they are readable."""
    plain = view.tokens(axis, b, indices)
    # Most tokenizers keep the space before a word in the token's own text.
    raw = _decoded(view, axis, b, indices)
    if raw is not None:
        return [text or name for text, name in zip(raw, plain, strict=True)]
    found = []
    for number, text in enumerate(plain):
        # Others mark a piece that continues a word; punctuation stands close to the word before.
        continues = text.startswith("·") and len(text) > 1
        close = CLOSING.fullmatch(text) is not None
        found.append(text[1:] if continues else text if number == 0 or close else f" {text}")
    return found


def _decoded(view: AttentionView, axis: str, b: int, indices: range) -> list[str] | None:
    """Return the text of each token by itself, if the tokenizer keeps spaces in it; None
    otherwise.
    """
    ids = view.ids(axis)
    decode = view.decode
    # Across, a query is shown as the token after the one that it read: ids do not fit.
    if ids is None or decode is None or (axis == "q" and view.kind == "cross"):
        return None
    tokens: list[int] = ids[b, indices.start : indices.stop].tolist()
    if len(tokens) < len(indices):
        return None
    # Each different token is decoded once: a long text has few of them.
    known = {token: decode([token]) for token in {*tokens}}
    texts = [known[token] for token in tokens]
    # Tokens decoded one by one must give the same text as decoded together.
    return texts if "".join(texts[:SAMPLE]) == decode(tokens[:SAMPLE]) else None


class Cuttable:
    """The tokens of a text as the page shows them, and where its words, sentences and paragraphs
    begin.
    """

    def __init__(self, view: AttentionView, axis: str, b: int, columns: range) -> None:
        self.texts = display_texts(view, axis, b, columns)
        self._starts = {
            "words": _word_starts(view, axis, self.texts, columns),
            "sentences": _breaks(self.texts, "sentences"),
            "paragraphs": _breaks(self.texts, "paragraphs"),
        }

    def starts(self, by: str, count: int) -> list[int]:
        """Return the tokens at which the segments of the first `count` tokens begin, the first at
        0.
        """
        if by == "pieces" or not count:
            return list(range(count))
        if by == "parts":
            # Fewer tokens than parts: equal starts are merged.
            return [*dict.fromkeys(part * count // EQUAL_PARTS for part in range(EQUAL_PARTS))]
        return self._starts[by][: bisect_left(self._starts[by], count)]

    def counts(self, count: int) -> dict[str, int]:
        """Return how many segments of each kind the first `count` tokens have."""
        return {by: len(self.starts(by, count)) for by in BY}


def _word_starts(view: AttentionView, axis: str, texts: Sequence[str], columns: range) -> list[int]:
    words = view.words(axis)
    count = len(texts)
    if words is not None:
        ids = words.word_ids[columns.start : columns.stop]
        return [at for at in range(count) if at == 0 or ids[at] != ids[at - 1]]
    # Where words are unknown, a space between two tokens begins one.
    return [
        at
        for at in range(count)
        if at == 0 or texts[at][:1].isspace() or texts[at - 1][-1:].isspace()
    ]


def _breaks(texts: Sequence[str], by: str) -> list[int]:
    """Return where sentences or paragraphs begin: after a full stop and a space, after a line break
    or after two.
    """
    starts = [0]
    ended = False
    for at in range(1, len(texts)):
        before = texts[at - 1]
        here = texts[at]
        # A paragraph needs an empty line, a sentence a full stop or a line break.
        lines = before.endswith("\n") if by == "sentences" else _blank_line(texts, at)
        ended = SENTENCE_END.search(before.strip()) is not None or (ended and not before.strip())
        spaced = here[:1].isspace() or before[-1:].isspace()
        if here.strip() and (lines or (by == "sentences" and ended and spaced)):
            starts.append(at)
    return starts


def _blank_line(texts: Sequence[str], at: int) -> bool:
    """Return whether two line breaks stand before a token."""
    breaks = 0
    place = at - 1
    while place >= 0 and breaks < 2:
        text = texts[place]
        breaks += (text[len(text.rstrip()) :]).count("\n")
        # Only white space directly before the token counts.
        if text.strip():
            break
        place -= 1
    return breaks >= 2


def suggested(counts: dict[str, int]) -> str:
    """Return how a text should be cut at first: into words where they are few, else sentences, else
    equal parts.
    """
    if counts["words"] <= MANY_WORDS:
        return "words"
    # Sentences of three words or more on average; else punctuation tells little about the text.
    return "sentences" if 8 <= counts["sentences"] <= counts["words"] // 3 else "parts"


# ------------------------------------------------------------------------------ what can be asked


@dataclass(frozen=True)
class NoAnswer(Answer):
    """Why a run has no sources at all."""

    why: str


@dataclass(frozen=True)
class AnswerOfRun(Answer):
    """What was written, and by which `how` its sources can be found.

    across  whether the answer is in another text than its context
    n       tokens of the context, where that is another text
    begins  the first position that was written; ends: one past the last
    prompt  where the answer begins, if a prompt is known
    start   the position of the first of `tokens`, at most 512 around `at`
    words   the number of each token's word
    span    first and end of the tokens with which a reader should begin
    readers the attentions that read the context, by their place in the run
    hows    why each `how` cannot be used; null if it can
    hide    why no segment can be hidden; null if one can
    """

    why: None
    across: bool
    n: int | None
    begins: int
    ends: int
    prompt: int | None
    start: int
    tokens: Sequence[str]
    words: Sequence[int]
    span: Sequence[int]
    readers: Sequence[int]
    hows: dict[str, str | None]
    hide: str | None


def answer(request: RunRequest) -> AnswerOfRun | NoAnswer:
    """Answer which tokens were written, and how their sources can be found."""
    run = request.run
    why = why_no_sources(run)
    if why is not None:
        return NoAnswer(why)
    view = reader(run)
    call = view.call
    b = sequence_of(request)
    columns = call.text_columns(b)
    first, begins, end, _ = AnswerPositions.of(call, columns)
    if call.across and call.query_ids is not None and run.output is None:
        end -= 1  # a recording does not hold the last token that was written

    # A part of a long answer, with more of it before `at` than after.
    at = min(max(request.number("at", end - 1), begins), end - 1)
    start = max(begins, min(at - MOST_ANSWER * 3 // 4, end - MOST_ANSWER))
    shown = range(start, min(end, start + MOST_ANSWER))
    names = names_at(request, shown)
    words = _words_of(view, shown, names, columns.queries.start)
    return AnswerOfRun(
        why=None,
        across=call.across,
        n=len(columns.keys) if call.across else None,
        begins=begins,
        ends=end,
        prompt=begins if begins > first + 1 else None,
        start=shown.start,
        tokens=names,
        words=words,
        span=_opening_span(names, words, shown, across=call.across),
        readers=[at for at, one in enumerate(run.views) if one.name in read_context(run)],
        hows={how: _lacks(run, how) for how in HOW},
        hide=None if run.output is not None else NO_MODEL.format(how='"hidden"'),
    )


def why_no_sources(run: Run) -> str | None:
    """Return why a run has no sources at all, or None."""
    if not run.views:
        return (
            "no attention was called while this was recorded: run the model inside the block of "
            "ts.watch"
        )
    if run.example is not None:
        return "a worked example has no model that writes"
    several = next((name for name, calls in calls_of(run).items() if len(calls) > 1), None)
    if several is not None:
        return (
            f'"{several}" was called for several sequences; sources are those of a recording of '
            "one run"
        )
    view = reader(run)
    if not view.call.across and "map" not in view.missing and _sees_ahead(view):
        return READS_ALL
    return None


def _sees_ahead(view: AttentionView) -> bool:
    """Return whether the first query of a text may see its last key."""
    queries, keys = view.call.size
    if queries < 2 or queries != keys:
        return False
    # Ask the mask about one pair alone: the first query and the last key.
    at = Pairs.block(
        range(1),
        range(keys - 1, keys),
        of=(queries, keys),
        batch=view.batch,
        heads=len(view.call.heads),
    )
    return bool(view.call.attention.mask.sees(at).any())


def _lacks(run: Run, how: str) -> str | None:
    """Return why a `how` cannot be used on a run: one sentence, with the option that keeps what is
    missing.
    """
    if run.output is not None:
        return None
    if how == "hidden":
        return NO_MODEL.format(how='"hidden"')
    call = reader(run).call
    # What each `how` reads: queries of all, and what `also` keeps of some.
    part = {"carried": "norms", "gradient": "gradients"}.get(how, "queries")
    if "queries" not in call._kept and how != "gradient":
        flag = "telescope watch --keep queries-keys, or " if how != "carried" else ""
        option = OPTIONS.get(how, OPTIONS["weights"])
        return (
            f"this recording kept summaries alone: {flag}ts.watch({option}), keeps what {how} needs"
        )
    if part not in call._kept:
        asks = (
            ", with a backward pass of the answer inside of the block," if how == "gradient" else ""
        )
        return (
            f'this recording kept no {part}: ts.watch(keep="queries-keys", also="{part}"){asks} '
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
    # Without words, a token begins one if a space or a sign is before it.
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
    # A GPT's next token is what readers ask for; of a translation, its last word.
    if across or names[-1] == UNREAD:
        found = [
            at
            for at, name in enumerate(names)
            if any(letter.isalnum() for letter in name) and "<" not in name
        ]
        place = found[-1] if found else place
    # The whole word, of which that token may be one piece.
    own = [at for at, word in enumerate(words) if word == words[place]]
    return [shown.start + own[0], shown.start + own[-1] + 1]


# ------------------------------------------------------------------------ the context of an answer


def context_of(request: RunRequest) -> Cuttable:
    """Return all tokens of the context's text, without padding."""
    run = request.run
    view = reader(run)
    b = sequence_of(request)
    columns = view.call.text_columns(b).keys
    text: Cuttable = request.memory.contexts.get_or_make(
        (run.name, run.rev, b), lambda: Cuttable(view, "k", b, columns)
    )
    return text


def names_at(request: RunRequest, span: range) -> list[str]:
    """Return the tokens at some positions of the answer's text as the page shows them."""
    view = reader(request.run)
    b = sequence_of(request)
    columns = view.call.text_columns(b)
    if view.call.across:
        # Across, the token at a position is the label of the query before it.
        before = columns.queries.start - 1
        return display_texts(view, "q", b, range(span.start + before, span.stop + before))
    names = context_of(request).texts[span.start : min(span.stop, len(columns.keys))]
    # The token after the last one that was read: what the model would write there.
    if span.stop > len(columns.keys):
        made = request.run.output
        last = span.stop - 1
        if made is None:
            names.append(UNREAD)
        else:
            (token,) = written_tokens(made, range(last, last + 1))
            names.append(made.text_of(last - 1, token))
    return names


def written_tokens(made: Output, span: range) -> list[int]:
    """Return the token at each position of a span; after the last one that a GPT read, the
    likeliest.
    """
    if isinstance(made.model, Transformer):
        return [made.written[at - 1] for at in span]
    return [
        made.ids[at] if at < len(made.ids) else int(made.logits(at - 1).argmax()) for at in span
    ]


def span_of(request: RunRequest) -> range:
    request.word("how", HOW)
    return range(request.number("first"), request.number("end"))


def reader(run: Run) -> AttentionView:
    """Return the view of the first attention that reads the context: a cross-attention, if there is
    one.
    """
    return next((view for view in run.views if view.call.across), run.views[0])


def read_context(run: Run) -> set[str]:
    """Return the names of the attentions that read the context: cross-attentions, or else all."""
    crossing = {view.name for view in run.views if view.call.across}
    return crossing or {view.name for view in run.views}


def sequence_of(request: RunRequest) -> int:
    return request.index("b", reader(request.run).batch, "sequence", 0)


def calls_of(run: Run) -> Calls:
    """Return the calls of each attention in the order of the model: a rollout goes through it from
    the end.

    The views of a sentence are ordered by kind: of a decoder, all self-attentions stand before all
    cross-attentions.
    """
    calls: Calls = {}
    for view in run.views:
        # "blocks.0.self call 1" is the second call of blocks.0.self.
        calls.setdefault(view.name.split(" ")[0], []).append(view.call)
    stacks = [stack_of(name) for name in calls]

    def place(name: str) -> tuple[int, int, bool]:
        found = stack_and_number(name)
        return stacks.index(stack_of(name)), found[1] if found else 0, calls[name][0].across

    # A recording has the model's order already.
    if run.kind == "recording":
        return calls
    return {name: calls[name] for name in sorted(calls, key=place)}


def question_about(request: RunRequest, span: range, segments: list[int] | None) -> Question:
    run = request.run
    name = reader(run).token_name
    try:
        return ask(calls_of(run), span, segments, None, None, sequence_of(request), None, name)
    except ValueError as problem:
        raise bad_parameter(str(problem)) from None
