"""Hide a segment of the context while the model runs again: what the answer loses, and what is
written instead.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..decoding import generate
from ..editing import Edit, edit
from ..editing.hidden_sources import hiding_edits
from ..interception.watch import watch
from ..models import Transformer
from ..recording.recorded_call import RecordedCall
from ..recording.source_question import Question
from ..tasks.explaining.sentence_views import translate_whole
from .output import EDITING, Output, log_probability
from .requests import Refusal, not_kept
from .run import Run

MOST_HIDDEN = 128  # segments: the model runs once for each
SHOWN = 5  # likeliest tokens
CONTINUED = 12  # tokens that a GPT writes after its text
NO_MODEL = (
    "hiding a segment runs the model again, and a recording holds none: type the text into the "
    "page of "
    "telescope serve --model FOLDER, or use recording.sources(span, how={how}, model=model)"
)


def output_of(run: Run, how: str = '"hidden"') -> Output:
    """Return the model's output of a run, or raise Refusal 409: a recording has no model."""
    if run.output is None:
        raise not_kept(NO_MODEL.format(how=how))
    return run.output


def written_tokens(made: Output, span: range) -> list[int]:
    """Return the token at each position of a span; after the last one that a GPT read, the
    likeliest.
    """
    if isinstance(made.model, Transformer):
        return [made.written[at - 1] for at in span]
    return [
        made.ids[at] if at < len(made.ids) else int(made.logits(at - 1).argmax()) for at in span
    ]


@torch.no_grad()
def log_probabilities(
    made: Output, states: Float[Tensor, "n d"], span: range
) -> Float[Tensor, "token vocabulary"]:
    """Return the log-probabilities of all tokens at each position of a span, in float64."""
    rows = states[[at - 1 for at in span]]
    return made.model.logits(rows[None])[0].double().log_softmax(-1)


def run_hidden(made: Output, edits: Sequence[Edit]) -> Float[Tensor, "n d_model"]:
    """Run the model on the same tokens with these edits, and return its hidden states."""
    try:
        with EDITING, torch.no_grad(), edit(made.model, *edits):
            return made.run_again()
    except ValueError as problem:
        raise Refusal(409, "not-kept", str(problem)) from None


def falls(made: Output, question: Question) -> list[float]:
    """Return how much the span's log-probability falls, in nats, when each segment alone is
    hidden.
    """
    segments = question.segments.tokens()
    if len(segments) > MOST_HIDDEN:
        raise not_kept(
            f"the model would run once for each of {len(segments):,} segments; cut the text into "
            f"at most {MOST_HIDDEN}"
        )
    tokens = written_tokens(made, question.span)
    plain = log_probability(log_probabilities(made, made.hidden, question.span), tokens)
    found = []
    for own in segments:
        states = run_hidden(made, hiding_edits(question, own, len(made.ids)))
        found.append(
            plain - log_probability(log_probabilities(made, states, question.span), tokens)
        )
    return found


def hidden_segment(
    run: Run, question: Question, segment: range, names: Sequence[str]
) -> dict[str, Any]:
    """Return what hiding one segment does to the answer; `names` are the span's tokens as the page
    shows them.
    """
    made = output_of(run)
    span = question.span
    edits = hiding_edits(
        question, list(segment), len(made.ids) + (CONTINUED if made.kind == "gpt" else 0)
    )
    states = run_hidden(made, edits)
    tokens = written_tokens(made, span)
    before, after = (log_probabilities(made, one, span) for one in (made.hidden, states))
    rows = []
    for place, (at, token) in enumerate(zip(span, tokens, strict=True)):
        now = int(after[place].argmax())
        chance = {"before": float(before[place, token]), "after": float(after[place, token])}
        rows.append(
            {
                "text": names[place],
                **chance,
                "instead": None if now == token else made.name_of(at - 1, now),
            }
        )
    kl = (before.exp() * (before - after)).sum(-1).clamp(min=0)
    return {
        "before": log_probability(before, tokens),
        "after": log_probability(after, tokens),
        "kl": float(kl.mean()),
        "tokens": rows,
        "likeliest": [
            {"before": _likeliest(made, old, at - 1), "after": _likeliest(made, new, at - 1)}
            for at, old, new in zip(span, before, after, strict=True)
        ],
        "wrote": {"before": _writes(run, made, ()), "after": _writes(run, made, edits)},
    }


def _likeliest(made: Output, logs: Float[Tensor, " vocabulary"], i: int) -> list[dict[str, Any]]:
    found = logs.topk(SHOWN)
    pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
    return [{"text": made.name_of(i, token), "p": p} for token, p in pairs]


def _writes(run: Run, made: Output, edits: Sequence[Edit]) -> str | None:
    """Return what the model writes, edited: a translation of the text, or the next words after
    it.
    """
    if not edits and made.kind == "translator":
        return run.written
    assert run.text is not None
    try:
        with EDITING, torch.no_grad(), _edited(made, edits):
            if isinstance(made.model, Transformer):
                return translate_whole(made.model, run.text).text
            written = generate(
                made.model, [list(made.ids)], max_new_tokens=CONTINUED, temperature=0
            )
            return written[0].text
    except ValueError:
        return None


@contextmanager
def _edited(made: Output, edits: Sequence[Edit]) -> Iterator[None]:
    if not edits:
        yield
        return
    with edit(made.model, *edits):
        yield


def calls_with_gradients(run: Run, span: range) -> dict[str, list[RecordedCall]]:
    """Run the model and a backward pass of the span's log-probability, and return the recorded
    calls.
    """
    made = output_of(run, '"gradient"')
    tokens = torch.tensor(written_tokens(made, span))
    trainable = [one for one in made.model.parameters() if one.requires_grad]
    kept = [one.grad for one in trainable]
    with (
        EDITING,
        torch.enable_grad(),
        watch(made.model, keep="queries-keys", also="gradients") as recording,
    ):
        states = made.run()
        rows = made.model.logits(states[None, [at - 1 for at in span]])[0].log_softmax(-1)
        torch.autograd.backward(rows.gather(-1, tokens.to(rows.device)[:, None]).sum())
        for parameter, gradient in zip(trainable, kept, strict=True):
            parameter.grad = gradient
    return {name: watched.calls for name, watched in recording.items()}
