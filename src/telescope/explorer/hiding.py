"""Hide a segment of the context while the model runs again: what the answer loses, and what is
written instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..decoding import generate
from ..editing import Edit, divergence, falls_when_hidden, hiding_edits, log_probability
from ..interception import watch
from ..models import Transformer
from ..recording import Question, RecordedCall
from ..tasks import translate_whole
from .answers import Answer, Refusal, bad_parameter, not_kept
from .context import NO_MODEL, names_at, question_about, span_of, written_tokens
from .output import EDITING, Candidate, Output
from .run import Run, RunRequest

MOST_HIDDEN = 128  # segments: the model runs once for each
CONTINUED = 12  # tokens that a GPT writes after its text


@dataclass(frozen=True)
class HiddenToken(Answer):
    """A token of the answer, its log-probability before and after, and the likeliest one if that is
    now another.
    """

    text: str
    before: float
    after: float
    instead: str | None


@dataclass(frozen=True)
class LikeliestBeforeAfter(Answer):
    """The five likeliest tokens at one place of the answer."""

    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class WroteBeforeAfter(Answer):
    """The whole translation, or the next words of a GPT; null where the model cannot write."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class HiddenAnswer(Answer):
    """The tokens first to end - 1 when the model cannot see the tokens start to stop - 1 of the
    context.

    before  their log-probability, in nats; after: with the segment hidden
    kl      of the next token, the mean over the tokens, in nats
    """

    first: int
    end: int
    start: int
    stop: int
    before: float
    after: float
    kl: float
    tokens: Sequence[HiddenToken]
    likeliest: Sequence[LikeliestBeforeAfter]
    wrote: WroteBeforeAfter


def hide(request: RunRequest) -> HiddenAnswer:
    """Answer what happens to the tokens first to end - 1 when the model cannot see the tokens start
    to stop - 1 of the context.
    """
    run = request.run
    span = span_of(request)
    segment = range(request.number("start"), request.number("stop"))
    # A run without a model is refused before anything else.
    output_of(run)
    question = question_about(request, span, None)
    if not 0 <= segment.start < segment.stop <= question.context:
        raise bad_parameter(
            f"start={segment.start}, stop={segment.stop} is no segment of the context, which has "
            f"{question.context:,} tokens"
        )
    return hidden_segment(run, question, segment, names_at(request, question.span))


def output_of(run: Run, how: str = '"hidden"') -> Output:
    """Return the model's output of a run, or raise Refusal 409: a recording has no model."""
    if run.output is None:
        raise not_kept(NO_MODEL.format(how=how))
    return run.output


def falls(made: Output, question: Question) -> list[float]:
    """Return how much the span's log-probability falls, in nats, when each segment alone is
    hidden.
    """
    count = len(question.segments.tokens())
    if count > MOST_HIDDEN:
        raise not_kept(
            f"the model would run once for each of {count:,} segments; cut the text into "
            f"at most {MOST_HIDDEN}"
        )
    tokens = written_tokens(made, question.span)
    try:
        with EDITING:
            # The model is edited inside of this call, which one thread may do at a time.
            return falls_when_hidden(question, made.model, made.inputs, tokens, count=len(made.ids))
    except ValueError as problem:
        raise not_kept(str(problem)) from None


def hidden_segment(
    run: Run, question: Question, segment: range, names: Sequence[str]
) -> HiddenAnswer:
    """Return what hiding one segment does to the answer; `names` are the span's tokens as the page
    shows them.
    """
    made = output_of(run)
    span = question.span
    # The continuation must not see the segment either.
    length = len(made.ids) + (CONTINUED if made.kind == "gpt" else 0)
    edits = hiding_edits(question, list(segment), length)
    with made.edited(edits):
        states = made.run()

    # Each token of the span is predicted one position before it.
    places = [at - 1 for at in span]
    tokens = written_tokens(made, span)
    before, after = (made.log_probabilities(one[places]) for one in (made.hidden, states))
    rows = []
    likeliest = []
    for place, name, token, old, new in zip(places, names, tokens, before, after, strict=True):
        # The likeliest token now, if that is no longer the one that was written.
        now = int(new.argmax())
        instead = None if now == token else made.name_of(place, now)
        rows.append(HiddenToken(name, float(old[token]), float(new[token]), instead))
        both = (made.likeliest(logs, place) for logs in (old, new))
        likeliest.append(LikeliestBeforeAfter(*both))
    return HiddenAnswer(
        first=span.start,
        end=span.stop,
        start=segment.start,
        stop=segment.stop,
        before=log_probability(before, tokens),
        after=log_probability(after, tokens),
        # Rounding may make the divergence of nearly equal rows slightly negative.
        kl=float(divergence(before, after).clamp(min=0).mean()),
        tokens=rows,
        likeliest=likeliest,
        wrote=WroteBeforeAfter(_writes(run, made, ()), _writes(run, made, edits)),
    )


def _writes(run: Run, made: Output, edits: Sequence[Edit]) -> str | None:
    """Return what the model writes, edited: a translation of the text, or the next words after
    it.
    """
    # The translation without an edit is known.
    if not edits and made.kind == "translator":
        return run.written
    assert run.text is not None
    try:
        with made.edited(edits):
            if isinstance(made.model, Transformer):
                return translate_whole(made.model, run.text).text
            # Greedy, so that what is written before and after differs by the edit alone.
            prompt = [list(made.ids)]
            return generate(made.model, prompt, max_new_tokens=CONTINUED, temperature=0)[0].text
    except Refusal:
        return None


def calls_with_gradients(run: Run, span: range) -> dict[str, list[RecordedCall]]:
    """Run the model and a backward pass of the span's log-probability, and return the recorded
    calls.
    """
    made = output_of(run, '"gradient"')
    tokens = torch.tensor(written_tokens(made, span))
    # A backward pass adds to the gradients of a user's own training in place: set them aside.
    trainable = [one for one in made.model.parameters() if one.requires_grad]
    kept = [one.grad for one in trainable]
    for parameter in trainable:
        parameter.grad = None
    try:
        with (
            EDITING,
            torch.enable_grad(),
            watch(made.model, keep="queries-keys", also="gradients") as recording,
        ):
            states = made.run()
            # Each token of the span is predicted one position before it.
            rows = made.model.logits(states[None, [at - 1 for at in span]])[0].log_softmax(-1)
            torch.autograd.backward(rows.gather(-1, tokens.to(rows.device)[:, None]).sum())
    finally:
        for parameter, gradient in zip(trainable, kept, strict=True):
            parameter.grad = gradient
    return {name: watched.calls for name, watched in recording.items()}
