"""Measure every head of one batch of texts, text by text, from the recording of the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..measures import (
    MEASURES,
    OF_QUERIES,
    OF_TEXTS,
    SUMS,
    Decode,
    HeadRows,
    bucket_limits,
    punctuation_test,
)
from ..recording import Recording, SummariesCall

CLASSES = ("word", "part of a word", "number", "punctuation", "space", "special", "other")
SPACES = " Ġ▁"  # before a word: a space, as text, in byte-level BPE and in SentencePiece


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
    """Each of OF_QUERIES, in the model's precision."""
    counted: Bool[Tensor, "text heads query"]
    """The queries that have a choice."""
    distances: Float[Tensor, "text heads bucket"] | None
    sampled: Float[Tensor, " text"]
    """The weight at each distance of the sampled queries, and how many queries were sampled; see
    measures/row_sample.py.
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
        # An encoder reads other tokens than its decoder: tell the two apart by their address.
        tokens = 0 if call.key_ids is None else call.key_ids.data_ptr()
        # Layers are measured together where all of this agrees.
        own = (
            call.across,
            call._facts.device,
            tokens,
            [tuple(part.shape) for part in _parts(call).values()],
        )
        # This layer differs: measure the layers collected so far.
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
    # Join the layers along the axis of heads.
    parts = [_parts(call) for call in calls]
    joined = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
    received = joined["received"].double()
    entropy = joined["entropy"]
    peak = joined["top_weights"]
    across = calls[0].across
    device = entropy.device

    # The first token of a text has no choice; padding stands behind, so that it is at place 0.
    seen = joined["top_keys"] >= 0
    counted = seen & (entropy >= 0)
    if not across:
        counted = counted & (torch.arange(entropy.shape[2], device=device) > 0)

    # What each class of tokens receives, punctuation among them.
    by_class = received.new_zeros(*received.shape[:2], len(marks))
    punctuation = None
    if calls[0].key_ids is not None and any(marks):
        class_of = send(token_classes, device)[send(calls[0].key_ids, device)]
        by_class = received @ torch.nn.functional.one_hot(class_of, len(marks)).double()
        which = whole_numbers([i for i, is_mark in enumerate(marks) if is_mark], device)
        punctuation = by_class.index_select(-1, which).sum(-1)

    rows = HeadRows(
        received=received,
        entropy=entropy,
        peak=peak,
        lse=joined.get("lse"),
        seen=seen,
        counted=counted,
        first=whole_numbers([0], device),
        shares=dict(zip(SUMS, joined["shares"].unbind(-1), strict=True)),
        punctuation=punctuation,
    )

    # A measure is a ratio of two sums over the queries of a text.
    sums = [MEASURES[name].sums(rows) for name in OF_TEXTS]
    numerator, denominator = (torch.stack(part, 1) for part in zip(*sums, strict=True))

    # A text with a number that is not finite counts nowhere.
    finite = received.isfinite().all(2).all(1) & seen.any(2).any(1)
    for numbers in (entropy, peak):
        finite &= torch.where(seen, numbers, 0.0).isfinite().all(2).all(1)
    known = ~numerator.isnan() & (denominator > 0) & finite[:, None, None]
    return BatchMeasures(
        heads=slice(first, first + entropy.shape[1]),
        numerator=torch.where(known, numerator, 0.0),
        denominator=torch.where(known, denominator, 0.0),
        known=known,
        queries={name: MEASURES[name].of_queries(rows) for name in OF_QUERIES},
        counted=counted & finite[:, None, None],
        distances=None if across else _only(finite, joined["distances"]),
        sampled=torch.where(finite, parts[0]["sampled"][:, 0], 0.0),
        positions=_only(finite, _by_position(received)),
        classes=_only(finite, by_class),
        map=_only(finite, joined["map"]),
        finite=finite,
    )


def _parts(call: SummariesCall) -> dict[str, Tensor]:
    """Return the kept tensors of a call that are measured; the second axis of each is the heads."""
    parts = {name: part.tensor for name, part in call._kept.items()}
    chosen: dict[str, Tensor] = {}
    chosen |= {
        name: parts[name] for name in ("received", "entropy", "shares", "lse") if name in parts
    }
    # Of top=1: the strongest key of each query and its weight.
    chosen |= {name: parts[name][..., 0] for name in ("top_weights", "top_keys")}
    chosen |= {name: parts[f"sample.{name}"] for name in ("distances", "map")}
    # All heads sample the same queries: add the axis of heads.
    return chosen | {"sampled": parts["sample.sampled"][:, None]}


def _only(finite: Bool[Tensor, " text"], numbers: Tensor) -> Tensor:
    """Return the numbers with zeros for the texts that are not finite."""
    return torch.where(finite.reshape(-1, *[1] * (numbers.ndim - 1)), numbers, 0.0)


def _by_position(received: Float[Tensor, "text heads key"]) -> Float[Tensor, "text heads place"]:
    """Return the weight received in each bucket of positions: 0, 1, 2, 3 to 4, 5 to 8, ..."""
    keys = received.shape[2]
    # A bucket is the difference of the running sum at its two edges.
    running = torch.nn.functional.pad(received.cumsum(2), (1, 0))
    edges = whole_numbers([*(min(low, keys) for low, _ in bucket_limits()), keys], received.device)
    return running[:, :, edges].diff(dim=2)


# ------------------------------------------------------------------------------------ tokens


class TokenClasses:
    """The class of each token id, an index into CLASSES; each token is decoded once, when it first
    occurs.
    """

    def __init__(self, tokenizer: Any) -> None:
        decode: Decode | None = getattr(tokenizer, "decode", None)
        # `id_to_token` is of tokenizers, `convert_ids_to_tokens` of transformers.
        name: Callable[[int], Any] | None = getattr(tokenizer, "id_to_token", None) or getattr(
            tokenizer, "convert_ids_to_tokens", None
        )
        self.known = decode is not None
        self.decode: Decode = decode or (lambda ids: "")
        self.name = name or (lambda number: None)
        self.is_mark = punctuation_test(self.decode)
        # -1 is a token that has not occurred yet.
        self.table = torch.full((0,), -1, dtype=torch.int64)
        self._filled = self.table

    def of(self, ids: Int[Tensor, "batch token"]) -> Int[Tensor, " id"]:
        """Return a table that has the class of every token in `ids`, by its id."""
        present = torch.unique(ids).cpu()
        highest = int(present[-1]) + 1 if len(present) else 0
        # Grow the table to the highest id that occurs.
        if highest > len(self.table):
            more = torch.full((highest - len(self.table),), -1, dtype=torch.int64)
            self.table = torch.cat([self.table, more])
        new = present[self.table[present] < 0]
        if len(new):
            self.table[new] = torch.tensor(
                [CLASSES.index(self._class_of(number)) for number in new.tolist()]
            )
            # A copy without -1, in which every entry is a class.
            self._filled = self.table.clamp(min=0)
        return self._filled

    def _class_of(self, number: int) -> str:
        text = self.decode([number])
        name = str(self.name(number) or text)
        bare = text.strip()
        # A special token decodes to nothing, or has a name such as <s> or </s>.
        if not text or (
            name[0] == "<" and name[-1] == ">" and any(letter.isalpha() for letter in name)
        ):
            return "special"
        if not bare:
            return "space"
        if self.is_mark(number):
            return "punctuation"
        if all(letter.isdigit() for letter in bare):
            return "number"
        if any(letter.isalpha() for letter in bare):
            # A space in front marks the beginning of a word.
            return "word" if name[:1] in SPACES or text[:1] == " " else "part of a word"
        return "other"


# -------------------------------------------------------------------------------- transfers


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device. From the CPU to a GPU it goes by pinned memory, and the host
    does not wait.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


# Keep small constants on the device: the host waits for a GPU to which it copies.
@lru_cache(maxsize=64)
def _whole_numbers(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def whole_numbers(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return a tensor of these numbers, kept for the next call: it must not be written to."""
    return _whole_numbers(tuple(numbers), device)
