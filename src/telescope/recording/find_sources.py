"""Compute where an answer comes from: the score of every token of the context, by each `how`.

A token is written by the query before it: the rows of a span are those of its tokens less one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import is_causal
from ..surveys import StreamEvent, record_event, side_stream
from ..words import hint
from .names import HeadNumbers, Layers, stack_and_number
from .recorded_call import RecordedCall
from .row_weights import (
    Fetched,
    Rows,
    head_index,
    head_places,
    need,
    row_weights,
    span_weights,
)
from .source_question import NotKeptError, Question, ask
from .sources import ANSWER, KINDS, Sources, token_texts

How = Callable[[Question, Any], "Float[Tensor, ' token'] | list[float]"]
HOW: dict[str, How] = {}
"""The function of each `how`: it returns a score for every key, or for every segment."""


def source_kind(name: str) -> Callable[[How], How]:
    """Register a function for `recording.sources(how=name)`."""

    def register(function: How) -> How:
        HOW[name] = function
        return function

    return register


def find_sources(
    attentions: Mapping[str, Sequence[RecordedCall]],
    span: Any,
    *,
    how: str,
    segments: Any,
    layers: Layers,
    heads: HeadNumbers,
    sequence: int,
    model: Any,
    decode: Any,
    token_name: Any,
) -> Sources:
    """Return the sources of a span; see `Recording.sources`."""
    # An unknown name is an error; a known one may lack its function here.
    if how not in KINDS:
        raise ValueError(f'there is no how="{how}"; {hint(str(how), KINDS)}')
    if how not in HOW:
        raise ValueError(
            f'how="{how}" is not available here; use "weights", "carried", "rollout" or "gradient"'
        )

    # Find the rows, the columns and the calls, then let the function of `how` score them.
    question = ask(attentions, span, segments, layers, heads, sequence, decode, token_name)
    with torch.no_grad():
        found = HOW[how](question, model)
    return sources_of_scores(question, how, found, decode, token_name)


def sources_of_scores(
    question: Question, how: str, found: Tensor | list[float], decode: Any, token_name: Any
) -> Sources:
    """Return the ranked table of scores that were found: one for every key, or a list of one for
    every segment.
    """
    # Collect the texts of the context and of the answer, for the printed table.
    count = question.context
    read, written = question.own_ids()
    context = token_texts(None if read is None else read[:count], count, decode, token_name)
    own = (
        None
        if written is None
        else [written[token] for token in question.span if token < len(written)]
    )
    answer = token_texts(own, len(question.span), decode, token_name)
    segments = question.segments

    # One score for each segment needs no sum over tokens.
    if isinstance(found, list):
        by_segment = torch.tensor(found, dtype=torch.float64)
        return Sources(
            how, question.span, segments, by_segment, None, tuple(context), tuple(answer)
        )

    # Leave out the padding of the sequence, then sum the scores of its tokens by segment.
    keys = question.columns.keys
    scores = found.double().cpu()[keys.start : keys.stop]
    # In self-attention the answer's own earlier tokens are keys, too: give them a segment.
    if not question.across and len(scores) > count:
        segments = segments._with_rest(ANSWER, len(scores))
    by_segment = torch.zeros(len(segments.names), dtype=torch.float64).index_add_(
        0, segments.ids, scores
    )
    return Sources(
        how, question.span, segments, by_segment, scores[:count], tuple(context), tuple(answer)
    )


# --------------------------------------------------------------------- weights, and what they carry


@source_kind("weights")
def by_weights(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return the weight of every key, the mean of the span's rows, the heads and the layers."""
    calls = [*question.select(question.readers).values()]
    found = [weights.mean(1) for _, weights in span_weights(question, calls, "weights")]
    return torch.cat(found).mean(0)


@source_kind("carried")
def by_norms(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return Σ weight · ‖W_O v‖ of every key over rows and heads, as shares of each layer; the mean
    of the layers.
    """
    calls = [*question.select(question.readers).values()]
    for call in calls:
        need(call, "carried", "norms", 'keep="queries-keys", also="norms"')
    found = []
    for alike, weights in span_weights(question, calls, "carried"):
        # The norms are kept for each head; take those that were asked for.
        norms = torch.stack([call._kept["norms"].tensor[question.sequence] for call in alike])
        norms = norms[:, head_index(question, alike[0])]
        carried = (weights * norms.to(weights.device).double()).sum(1)
        # Divide by the layer's total: layers with large values must not outweigh the others.
        total = carried.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        found.append(carried / total)
    return torch.cat(found).mean(0)


# ------------------------------------------------------------------------------------------ rollout


@source_kind("rollout")
def by_rollout(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return the attention rollout of the span's rows, exactly, from the last layer to the first.

    A layer passes half of a token's relevance on to what its heads attend to, on average, and
    leaves half with the token itself, for the residual connection: r ← r / 2 + Aᵀr / 2, with A the
    mean of the heads, as by Abnar and Zuidema (2020, "Quantifying Attention Flow in Transformers",
    equation 1). What a head gives to an attention sink stays with the token. A cross-attention
    passes its half on to the source, through which the encoder's layers lead further. Every layer
    takes one pass over its matrix, which is never formed. With `heads`, A is the mean of these
    heads; layers that `layers` leaves out leave the relevance where it is.
    """
    calls = question.select(question.calls)
    # Only a cross-attention leads from the answer to the source.
    if question.across and not any(call.across for call in calls.values()):
        raise ValueError(
            f"layers={question.layers!r} selects no cross-attention, and the answer reaches the "
            "source through no "
            f"other; add one of {', '.join(question.readers)}"
        )

    # Start with all relevance on the rows that wrote the span.
    decoding = {stack_of(name) for name in question.readers}
    device = question.reader._facts.device
    answer = torch.zeros(_length(question.reader), dtype=torch.float64, device=device)
    answer[question.rows[0] : question.rows[-1] + 1] = 1.0 / len(question.rows)
    # The source has relevance of its own, which the cross-attentions fill.
    context = torch.zeros(
        question.reader.size[1] if question.across else 0, dtype=torch.float64, device=device
    )
    # The tokens of the answer and of the source that may have relevance, known on the host.
    live = range(question.rows[0], question.rows[-1] + 1)
    live_context = range(0)
    for name, call, fetched in _fetched_ahead([*reversed([*calls.items()])]):
        # The relevance of every token is followed, which takes a query for each.
        if call.size[0] != call.size[1] and not call.across:
            raise ValueError(
                f'sources(how="rollout") needs every query of "{name}"; record the text from its '
                "start"
            )
        # Layers of the decoder move relevance in the answer, those of the encoder in the source.
        of_answer = call.across or not question.across or stack_of(name) in decoding
        relevance = answer if of_answer else context
        rows = live if of_answer else live_context
        # Pass half on along the weights; what a sink would take stays with the token.
        passed_on = 0.5 * _passed_on(question, call, relevance, rows, fetched).to(device)
        given = _given(call, question)
        stays = relevance * (1.0 - 0.5 * (1.0 if given is None else given.to(device)))
        # Under a causal mask no later token gets anything.
        reached = range(rows.stop if is_causal(call.attention.mask) else call.size[1])
        # Cross-attention moves relevance from the answer to the source.
        if call.across:
            answer = stays
            context = context + passed_on
            live_context = range(call.size[1])
        elif of_answer:
            answer = stays + passed_on
            live = reached
        else:
            context = stays + passed_on
            live_context = reached if rows else rows
    return context if question.across else answer


def _fetched_ahead(
    calls: Sequence[tuple[str, RecordedCall]],
) -> Iterator[tuple[str, RecordedCall, Fetched | None]]:
    """Yield the calls; with tensors that a GPU reads from RAM, copied while the call before is
    computed.
    """

    def fetch(call: RecordedCall) -> tuple[Fetched, StreamEvent | None] | None:
        # Only a copy from RAM to a GPU is worth a second stream.
        device = call._facts.device
        if device.type != "cuda" or "queries" not in call._kept or call.queries.is_cuda:
            return None
        kept = (call.queries, call.keys, call.lse)
        # Allocate in the current stream, which uses and frees the memory.
        mine = [None if part is None else torch.empty_like(part, device=device) for part in kept]
        with side_stream(torch.empty(0, device=device), copies=True):
            for part, source in zip(mine, kept, strict=True):
                if part is not None and source is not None:
                    part.copy_(source, non_blocking=True)
            return Fetched(*mine), record_event(device)  # type: ignore[arg-type]

    # Keep one copy under way: start the next before the current layer is computed.
    upcoming = fetch(calls[0][1]) if calls else None
    for (name, call), following in zip(calls, [*calls[1:], None], strict=True):
        current = upcoming
        # The current stream waits for this layer's copy, and the host does not.
        if current is not None and current[1] is not None:
            current[1].wait()
        upcoming = None if following is None else fetch(following[1])
        yield name, call, None if current is None else current[0]


def stack_of(name: str) -> str:
    """Return the stack of layers that an attention belongs to: decoder of decoder.0.cross."""
    found = stack_and_number(name)
    return found[0] if found else name


def _length(reader: RecordedCall) -> int:
    """Return how many tokens of the answer's sequence have a query."""
    return reader.size[0]


def _passed_on(
    question: Question, call: RecordedCall, relevance: Tensor, live: range, fetched: Fetched | None
) -> Float[Tensor, " token"]:
    """Return Aᵀr, the mean of the heads; only the tokens of `live` may have relevance."""
    relevance = relevance.to(call._facts.device)  # a model's layers may be on several
    rows: Sequence[int] = live
    # Look which rows count where that costs nothing, or where not every query was kept.
    if relevance.device.type == "cpu" or call._facts.rows is not None:
        rows = relevance.nonzero().flatten().tolist()
    # Relevance that is 0 everywhere needs no pass over the matrix.
    if not rows:
        return relevance.new_zeros(call.size[1])
    need(call, "rollout", "queries", 'keep="queries-keys"')
    # If most rows count, zeros for the others cost less than a copy of those that count.
    if 2 * len(rows) > call.size[0] and call._facts.rows is None:
        rows = range(call.size[0])
    factors = relevance[rows.start : rows.stop] if isinstance(rows, range) else relevance[rows]
    chosen = Rows(rows, factors)
    return row_weights(question, [call], "rollout", chosen, fetched)[0].mean(0)


def _given(call: RecordedCall, question: Question) -> Tensor | None:
    """Return the weight that each query gives to keys, the mean of the heads: what a sink leaves;
    None is all.
    """
    if call.attention.sink is None:
        return None
    # The lse may not have been kept; a survey without top keys computes it.
    lse = call.lse if call.lse is not None else call.survey(top=0).lse
    assert lse is not None
    sink = torch.as_tensor(call.attention.sink, dtype=torch.float64, device=lse.device).reshape(
        -1, 1
    )
    # exp(sink - lse) is the weight of the sink.
    return (1.0 - torch.exp(sink - lse[question.sequence].double()))[
        head_index(question, call)
    ].mean(0)


# ----------------------------------------------------------------------------------------- gradient


@source_kind("gradient")
def by_gradient(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return Σ weight · gradient of every key over layers, heads and queries: v · dv, of the loss
    that ran backward.
    """
    found = []
    for call in question.select(question.readers).values():
        if "gradients" not in call._kept:
            raise NotKeptError(
                f'sources(how="gradient") has no gradients of "{call.name}": use ts.watch(model, '
                'also="gradients"), '
                "and call backward() of the answer's log-probability inside of the block"
            )
        # The kept number is summed over the queries already.
        gradients = call._kept["gradients"].tensor[question.sequence].double().cpu()
        found.append(gradients[_gradient_rows(question, call, len(gradients))].sum(0))
    return torch.stack(found).sum(0)


def _gradient_rows(question: Question, call: RecordedCall, count: int) -> list[int]:
    """Return which of `count` rows of gradients belong to the heads that were asked for.

    A row is the sum of neighbouring heads that share their values. Raise a NotKeptError if some
    heads of a row were asked for, and others were not.
    """
    # How many neighbouring heads share one row.
    shared = len(call.heads) // max(count, 1)
    asked = {*head_places(question, call)}
    rows = sorted({place // shared for place in asked})
    for row in rows:
        together = range(row * shared, (row + 1) * shared)
        if not asked.issuperset(together):
            numbers = ", ".join(str(call.heads[place]) for place in together)
            alone = next(call.heads[place] for place in together if place in asked)
            raise NotKeptError(
                f'sources(how="gradient"): heads {numbers} of "{call.name}" share their values, '
                "and their gradients "
                f'were kept as one sum; ts.watch(model, heads=[{alone}], also="gradients") keeps '
                f"those of head {alone}"
            )
    return rows
