"""Measure every head of one batch of texts, text by text, from the recording of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..recording.head_shares import COUNTS, NAMES
from ..recording.heads import HABITS
from ..recording.recording import Recording
from ..recording.row_sample import BACK, bucket_limits
from ..recording.summaries_call import SummariesCall
from .transfers import send, whole_numbers

MEASURES = (*HABITS, "spread")
"""The columns of `recording.heads()` that an atlas adds up; the others, such as streaming, are
unknown there.
"""
QUERY_STATISTICS = ("entropy", "peak", "logit")
"""Of each query: the entropy of its weights in nats, its largest weight, and its largest score
after scaling.
"""


class LayerHeads(NamedTuple):
    """One attention of the model: its name, the numbers of its heads, and whether its keys are
    another sequence.
    """

    layer: str
    heads: tuple[int, ...]
    across: bool


@dataclass(frozen=True, eq=False)
class BatchMeasures:
    """The numbers of every text of a batch, for a stretch of all heads of the model; float64 unless
    said otherwise.
    """

    heads: slice
    """Which of all heads, counted through all layers."""
    numerator: Float[Tensor, "text measure heads"]
    denominator: Float[Tensor, "text measure heads"]
    """The measures of `recording.heads()` are numerator / denominator; both 0 where a measure is
    unknown.
    """
    known: Bool[Tensor, "text measure heads"]
    queries: dict[str, Float[Tensor, "text heads query"]]
    """Each of QUERY_STATISTICS, in the model's precision."""
    counted: Bool[Tensor, "text heads query"]
    """The queries that have a choice."""
    distances: Float[Tensor, "text heads bucket"] | None
    sampled: Float[Tensor, " text"]
    """The weight at each distance of the sampled queries, and how many queries were sampled; see
    row_sample.py.
    """
    positions: Float[Tensor, "text heads place"]
    """The weight that keys receive, by their position, in the buckets of the distances."""
    classes: Float[Tensor, "text heads class"]
    """The weight that keys receive, by the class of their token."""
    map: Float[Tensor, "text heads row column"]
    """Zeros for a text that is too short for a map."""
    finite: Bool[Tensor, " text"]
    """Whether every attention of the text is finite; the numbers of one that is not are zeros."""


def layers_of(recording: Recording) -> list[LayerHeads]:
    """Return the attentions that were called, in the order of the model."""
    return [
        LayerHeads(name, watched.calls[0].heads, watched.calls[0].across)
        for name, watched in recording.items()
        if watched.calls
    ]


def measure_batch(
    recording: Recording,
    layers: Sequence[LayerHeads],
    token_classes: Int[Tensor, " token"],
    marks: Sequence[bool],
) -> list[BatchMeasures]:
    """Measure every head of a batch that was recorded with top=1 and `sample=True`; padding stands
    behind the texts.

    token_classes  the class of every token id
    marks          of each class, whether it is punctuation; all False where no token could be
                   decoded

    Neighbouring layers of one shape are measured together: on a GPU, launching kernels takes longer
    than these run.
    """
    found: list[BatchMeasures] = []
    group: list[SummariesCall] = []
    first = 0
    shape = None
    for layer in layers:
        (call,) = recording[layer.layer].calls
        assert isinstance(call, SummariesCall)
        tokens = (
            0 if call.key_ids is None else call.key_ids.data_ptr()
        )  # an encoder reads others than its decoder
        own = (
            call.across,
            call.facts.device,
            tokens,
            [tuple(part.shape) for part in _parts(call).values()],
        )
        if group and own != shape:
            found.append(_measure(first, group, token_classes, marks))
            first += sum(len(each.heads) for each in group)
            group = []
        shape = own
        group.append(call)
    return [*found, _measure(first, group, token_classes, marks)] if group else found


def _measure(
    first: int, calls: list[SummariesCall], token_classes: Tensor, marks: Sequence[bool]
) -> BatchMeasures:
    """Measure layers of one shape; `first` is the number of their first head."""
    parts = [_parts(call) for call in calls]
    joined = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
    across = calls[0].across
    ids = calls[0].key_ids
    received = joined["received"].double()
    entropy = joined["entropy"]
    heads = entropy.shape[1]
    queries, keys = (entropy.shape[2], received.shape[2])
    device = entropy.device
    real = joined["top_keys"] >= 0
    counted = real & (entropy >= 0)
    if not across:
        counted = counted & (torch.arange(queries, device=device) > 0)
    logit = (
        joined["lse"] + joined["top_weights"].log()
        if "lse" in joined
        else torch.full_like(entropy, torch.nan)
    )
    peak = joined["top_weights"]
    given = received.sum(2)
    numbers = dict(zip((*NAMES, *COUNTS), joined["shares"].unbind(-1), strict=True))
    spread = torch.where(counted, entropy.double().exp(), 0.0).sum(2)
    numbers |= {
        "sink": received[:, :, 1:].amax(2) if keys > 1 else torch.zeros_like(given),
        "spread": spread,
    }
    class_of = None if ids is None else send(token_classes, device)[send(ids, device)]
    by_class = received.new_zeros(*received.shape[:2], len(marks))
    numbers["punctuation"] = torch.full_like(given, torch.nan)
    if class_of is not None and any(marks):
        by_class = received @ torch.nn.functional.one_hot(class_of, len(marks)).double()
        which = whole_numbers([i for i, is_mark in enumerate(marks) if is_mark], device)
        numbers["punctuation"] = by_class.index_select(-1, which).sum(-1)
    choosing = counted.sum(2).double()
    below = dict.fromkeys(MEASURES, choosing)
    below |= {
        "same": numbers["repeated"],
        "induction": numbers["repeated"],
        "sink": given,
        "punctuation": given,
    }
    numerator = torch.stack([numbers[name] for name in MEASURES], 1)
    denominator = torch.stack([below[name] for name in MEASURES], 1)
    known = ~numerator.isnan() & (denominator > 0)
    finite = (
        (torch.where(real, entropy, 0.0).isfinite() & torch.where(real, peak, 0.0).isfinite())
        .all(2)
        .all(1)
    )
    finite &= received.isfinite().all(2).all(1) & (real.any(2).any(1))
    counted = counted & finite[:, None, None]
    known = known & finite[:, None, None]
    distances = None if across else _only(finite, joined["distances"])
    return BatchMeasures(
        heads=slice(first, first + heads),
        numerator=torch.where(known, numerator, 0.0),
        denominator=torch.where(known, denominator, 0.0),
        known=known,
        queries={"entropy": entropy, "peak": peak, "logit": logit},
        counted=counted,
        distances=distances,
        sampled=torch.where(finite, parts[0]["sampled"][:, 0], 0.0),
        positions=_only(finite, _by_position(received)),
        classes=_only(finite, by_class),
        map=_only(finite, joined["map"]),
        finite=finite,
    )


def _parts(call: SummariesCall) -> dict[str, Tensor]:
    """Return the kept tensors of a call that are measured; the second axis of each is the heads."""
    parts = {name: part.tensor for name, part in call.parts.items()}
    chosen: dict[str, Tensor] = {}
    chosen |= {
        name: parts[name] for name in ("received", "entropy", "shares", "lse") if name in parts
    }
    chosen |= {name: parts[name][..., 0] for name in ("top_weights", "top_keys")}
    chosen |= {name: parts[f"sample.{name}"] for name in ("distances", "map")}
    return chosen | {"sampled": parts["sample.sampled"][:, None]}


def _only(finite: Bool[Tensor, " text"], numbers: Tensor) -> Tensor:
    """Return the numbers with zeros for the texts that are not finite."""
    return torch.where(finite.reshape(-1, *[1] * (numbers.ndim - 1)), numbers, 0.0)


def _by_position(received: Float[Tensor, "text heads key"]) -> Float[Tensor, "text heads place"]:
    """Return the weight received in each bucket of positions: 0, 1, 2, 3 to 4, 5 to 8, ..."""
    keys = received.shape[2]
    running = torch.nn.functional.pad(received.cumsum(2), (1, 0))
    edges = whole_numbers([*(min(low, keys) for low, _ in bucket_limits()), keys], received.device)
    return running[:, :, edges].diff(dim=2)


POSITION_BUCKETS = BACK
