"""Compute where an answer comes from: the score of every token of the context, by each `how`.

A token is written by the query before it: the rows of a span are those of its tokens less one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, restrict_to_queries
from ..engines import torch_modes
from ..surveys import StreamEvent, choose, record_event, side_stream, weigh
from ..words import hint
from .names import HeadNumbers, Layers, stack_and_number
from .recorded_call import RecordedCall
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
        segments = segments.with_rest(ANSWER, len(scores))
    by_segment = torch.zeros(len(segments.names), dtype=torch.float64).index_add_(
        0, segments.ids, scores
    )
    return Sources(
        how, question.span, segments, by_segment, scores[:count], tuple(context), tuple(answer)
    )


def _need(call: RecordedCall, how: str, part: str, keep: str) -> None:
    """Raise a NotKeptError if a recording kept too little."""
    if part not in call.parts:
        raise NotKeptError(
            f'sources(how="{how}") needs {part}, which were not kept: ts.watch(model, {keep}) '
            "keeps them"
        )


# --------------------------------------------------------------------- weights, and what they carry


@source_kind("weights")
def by_weights(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return the weight of every key, the mean of the span's rows, the heads and the layers."""
    found = [
        _weights(question, call, "weights", None).mean(0) for call in question.select(question.readers).values()
    ]  # fmt: skip
    return torch.stack(found).mean(0)


@source_kind("carried")
def by_norms(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return Σ weight · ‖W_O v‖ of every key over rows and heads, as shares of each layer; the mean
    of the layers.
    """
    found = []
    for call in question.select(question.readers).values():
        _need(call, "carried", "norms", 'keep="queries-keys", also="norms"')
        # The norms are kept for each head; take those that were asked for.
        norms = call.parts["norms"].tensor[question.sequence, head_places(question, call)]
        carried = (
            _weights(question, call, "carried", None) * norms.to(call.facts.device).double()
        ).sum(0)
        # Divide by the layer's total: layers with large values must not outweigh the others.
        found.append(carried / carried.sum().clamp(min=torch.finfo(torch.float64).tiny))
    return torch.stack(found).mean(0)


def head_places(question: Question, call: RecordedCall) -> list[int]:
    """Return the places of the heads that were asked for, all unless some were."""
    if question.heads is None:
        return list(range(len(call.heads)))
    places = [call.head_index(number) for number in question.heads]
    # Two numbers may be one head: -1 and the last.
    if len({*places}) < len(places):
        raise ValueError(
            f'heads={[*question.heads]} names a head of "{call.name}" twice; name each once'
        )
    return places


class Fetched(NamedTuple):
    """What a layer's matrix is computed from."""

    queries: Tensor
    keys: Tensor
    lse: Tensor | None


def _weights(
    question: Question,
    call: RecordedCall,
    how: str,
    factors: Tensor | None,
    fetched: Fetched | None = None,
) -> Float[Tensor, "head token"]:
    """Return what each key gets from some rows, each with its factor, for the heads that were asked
    for.

    Without factors, the rows are those of the span, and each counts equally. `fetched` are queries,
    keys and lse, where they were copied to the device already.
    """
    _need(call, how, "queries", 'keep="queries-keys"')
    # The position of the first query; in cross-attention, queries have none among the keys.
    first = 0 if call.across else call.size[1] - call.size[0]
    device = call.facts.device
    if factors is None:
        # Without factors, take the span's rows, and divide by their number for the mean.
        rows = torch.tensor(question.rows) - first
        share = torch.full((len(rows),), 1.0 / len(rows), dtype=torch.float64)
    else:
        # With factors, leave out the rows whose factor is 0.
        rows = factors.nonzero().flatten()
        # If most rows count, zeros for the others cost less than a copy of those that count.
        every = 2 * len(rows) > call.size[0] and call.facts.rows is None
        share = factors if every else factors[rows]
        rows = torch.arange(call.size[0]) if every else rows.cpu()

    # Select the rows; the queries may be a part of all already, the keys are all needed.
    queries, keys, lse = fetched or Fetched(call.queries, call.keys, call.lse)
    attention = call.attention
    if call.facts.rows is not None or len(rows) < queries.shape[2]:
        places = _places(call, rows, first, how).to(queries.device)
        queries = queries[:, :, places]
        lse = None if lse is None else lse[:, :, places.to(lse.device)]
    # A mask of all rows serves as it is.
    if len(rows) < call.size[0]:
        attention = _restricted(question, call, rows)

    # Compute on the model's device, wherever the tensors were kept.
    queries = queries.to(device, non_blocking=True)
    keys = keys.to(device, non_blocking=True)
    # A caller's autocast must not change the precision of the result.
    with torch_modes.without_autocast(device):
        engine = choose(queries, keys, attention, 0, None)
        given = share.to(device, torch.promote_types(queries.dtype, torch.float32))[
            None, None, None
        ]
        found = weigh(
            engine, queries, keys, attention, None if lse is None else lse.to(device), given
        )
    return found[question.sequence, head_places(question, call), 0].double()


def _restricted(question: Question, call: RecordedCall, rows: Tensor) -> Attention:
    """Return the attention of these rows; the same object for layers of one definition, whose masks
    are read once.
    """
    # One definition may be asked for with other rows, so that size and rows are compared, too.
    which = (call.size, tuple(rows.tolist()))
    attention = call.attention
    known = question.restricted.get(id(attention))
    if known is None or known[0] != which:
        # Keep the definition: its identity is the key of the cache.
        known = which, attention, restrict_to_queries(attention, rows, call.size)
        question.restricted[id(attention)] = known
    return known[2]


def _places(call: RecordedCall, rows: Tensor, first: int, how: str) -> Int[Tensor, " row"]:
    """Return where the queries of these rows stand among those that were kept; raise a NotKeptError
    if one does not.
    """
    if call.facts.rows is None:
        return rows
    # The recording kept some queries: find each wanted row among them.
    place = {row: place for place, row in enumerate(call.facts.rows)}
    wanted = rows.tolist()
    missing = next((row for row in wanted if row not in place), None)
    if missing is not None:
        raise NotKeptError(
            f'sources(how="{how}") needs the query of token {missing + first + 1} of '
            f'"{call.name}", which was not '
            "kept: leave queries= out of ts.watch"
        )
    return torch.tensor([place[row] for row in wanted])


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
    device = question.reader.facts.device
    answer = torch.zeros(_length(question.reader), dtype=torch.float64, device=device)
    answer[question.rows] = 1.0 / len(question.rows)
    # The source has relevance of its own, which the cross-attentions fill.
    context = torch.zeros(
        question.reader.size[1] if question.across else 0, dtype=torch.float64, device=device
    )
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
        # Pass half on along the weights; what a sink would take stays with the token.
        passed_on = 0.5 * _passed_on(question, call, relevance, fetched).to(device)
        given = _given(call, question)
        stays = relevance * (1.0 - 0.5 * (1.0 if given is None else given.to(device)))
        # Cross-attention moves relevance from the answer to the source.
        if call.across:
            answer = stays
            context = context + passed_on
        elif of_answer:
            answer = stays + passed_on
        else:
            context = stays + passed_on
    return context if question.across else answer


def _fetched_ahead(
    calls: Sequence[tuple[str, RecordedCall]],
) -> Iterator[tuple[str, RecordedCall, Fetched | None]]:
    """Yield the calls; with tensors that a GPU reads from RAM, copied while the call before is
    computed.
    """

    def fetch(call: RecordedCall) -> tuple[Fetched, StreamEvent | None] | None:
        # Only a copy from RAM to a GPU is worth a second stream.
        device = call.facts.device
        if device.type != "cuda" or "queries" not in call.parts or call.queries.is_cuda:
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
    question: Question, call: RecordedCall, relevance: Tensor, fetched: Fetched | None
) -> Float[Tensor, " token"]:
    """Return Aᵀr, the mean of the heads."""
    # Relevance that is 0 everywhere needs no pass over the matrix.
    if not relevance.any():
        return relevance.new_zeros(call.size[1])
    relevance = relevance.to(call.facts.device)  # a model's layers may be on several
    return _weights(question, call, "rollout", relevance, fetched).mean(0)


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
        head_places(question, call)
    ].mean(0)


# ----------------------------------------------------------------------------------------- gradient


@source_kind("gradient")
def by_gradient(question: Question, model: Any) -> Float[Tensor, " token"]:
    """Return Σ weight · gradient of every key over layers, heads and queries: v · dv, of the loss
    that ran backward.
    """
    found = []
    for call in question.select(question.readers).values():
        if "gradients" not in call.parts:
            raise NotKeptError(
                f'sources(how="gradient") has no gradients of "{call.name}": use ts.watch(model, '
                'also="gradients"), '
                "and call backward() of the answer's log-probability inside of the block"
            )
        # The kept number is summed over the queries already.
        gradients = call.parts["gradients"].tensor[question.sequence].double().cpu()
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
