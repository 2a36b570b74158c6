"""`recording.sources(how="hidden")`: hide each segment of the context from the model, and see what
its answer loses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Modules
from ..interception import huggingface
from ..recording import Calls, Question, head_places, source_kind, stack_of
from .edits import Edit
from .effect import effect
from .key_edits import hide
from .measured import log_probability


@source_kind("hidden")
def by_hiding(question: Question, model: Any) -> list[float]:
    """Return how much the log-probability of the span falls, in nats, when each segment alone is
    hidden.

    A segment is hidden from every token outside of it, in every layer that reads the context, or in
    the layers and heads that were asked for; the weights of the other keys sum to one again. The
    model runs once for each segment, several at a time where texts are short.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            'sources(how="hidden") runs the model again: give the model that was recorded, '
            "model=..."
        )
    # Call the model with the recorded tokens, by keyword where it is one of transformers.
    read, written = _ids(question)
    inputs: Any = written if read is None else (read, written)
    if huggingface.owns(Modules.of(model)):
        inputs = {"input_ids": written}
        if read is not None:
            inputs = {"input_ids": read, "decoder_input_ids": written}
    tokens = written[0, list(question.span)].tolist()
    return falls_when_hidden(question, model, inputs, tokens, count=len(written[0]))


def falls_when_hidden(
    question: Question, model: nn.Module, inputs: Any, tokens: Sequence[int], *, count: int
) -> list[float]:
    """Return how much the log-probability of `tokens` falls, in nats, when each segment of a
    question is hidden alone.

    inputs  what the model is called with, as in `ts.effect`
    tokens  the tokens at the positions of the question's span, each predicted one position before
    count   how many tokens the text has that the model reads, or writes
    """
    # The logits at one position predict the token at the next.
    places = [position - 1 for position in question.span]

    def measure(output: Any) -> float:
        logits = output if isinstance(output, Tensor) else output.logits
        return log_probability(logits[0, places].double().log_softmax(-1), tokens)

    # The first row of the table is the model as it is, each other row hides one segment.
    edits = [hiding_edits(question, segment, count) for segment in question.segments.tokens()]
    plain, *hidden = effect(model, inputs, edits, measure, progress=False).columns["value"]
    return [plain - one for one in hidden]


def _ids(question: Question) -> tuple[Tensor | None, Tensor]:
    """Return the token ids of the source, if there is one, and of the text, (1, token) each, on the
    model's device.

    Padding is left out: the model runs on the sequence alone.
    """
    read, ids = question.own_ids()
    if ids is None or (question.across and read is None):
        raise ValueError('sources(how="hidden") needs the token ids, and the model was given none')
    if question.span.stop > len(ids):
        raise ValueError(
            f'sources(how="hidden") knows the tokens 0 to {len(ids) - 1}; end the span at '
            f"{len(ids)}, since "
            "the model did not read the last token that it wrote"
        )
    device = question.reader._facts.device
    source = torch.tensor([read], device=device) if question.across else None
    return source, torch.tensor([ids], device=device)


def hiding_edits(question: Question, segment: list[int], count: int) -> list[Edit]:
    """Return the edits that hide a segment from every token outside of it, in a text of `count`
    tokens.

    They are made in the layers and heads that were asked for, or else in every layer that reads the
    context.
    """
    # In one text, the tokens of the segment still see each other.
    hidden = {*segment}
    if not question.across:
        outside = [token for token in range(count) if token not in hidden]
        return _hide(question, segment, outside, question.select(question.readers))

    # The source is read by the cross-attentions and, before them, by the layers of the encoder.
    decoding = {stack_of(name) for name in question.readers}
    encoding = {
        name: call
        for name, call in question.calls.items()
        if not call.across and stack_of(name) not in decoding
    }
    # Select layers among both, then tell them apart: their queries belong to different sequences.
    selected = question.select({**encoding, **question.readers})
    readers = {name: call for name, call in selected.items() if name not in encoding}
    encoders = {name: call for name, call in selected.items() if name in encoding}
    edits = _hide(question, segment, None, readers)
    # In the encoder, a segment that is the whole source has no token outside.
    outside = [token for token in range(question.context) if token not in hidden]
    return edits + _hide(question, segment, outside, encoders) if outside else edits


def _hide(
    question: Question, segment: list[int], queries: list[int] | None, calls: Calls
) -> list[Edit]:
    """Return the edits that hide a segment from these queries (None is all) in these calls'
    layers.
    """
    # Let one edit cover all layers of which the same heads are edited.
    by_heads: dict[tuple[int, ...] | None, list[str]] = {}
    for name, call in calls.items():
        numbers = (
            None
            if question.heads is None
            else tuple(call.heads[i] for i in head_places(question, call))
        )
        by_heads.setdefault(numbers, []).append(name)
    # Without a choice of layers, one edit also covers the layers of a decoder that were not
    # recorded.
    everywhere = question.layers is None and not question.across and len(by_heads) == 1
    return [
        hide(segment, queries, layers=None if everywhere else names, heads=numbers)
        for numbers, names in by_heads.items()
    ]
