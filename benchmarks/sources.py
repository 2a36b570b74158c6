"""sources: which way of telling where an answer comes from can be trusted, and what each costs.

Quality, on a CPU: the shipped models read real texts and write greedily. Every segment of the
source (sentences of a description, words of a sentence) gets a score by each `how`, and the truth
is "hidden": the fall of the answer's log-probability when the segment alone is hidden. `rank` is
Spearman's correlation with the truth, the mean of all texts; `area` the share of the
log-probability that is lost, on average, when segments are hidden one after the other in the order
of their scores, summed over the texts: 1 would be all of it at once. "in turn" is the order of the
text.

Cost: sources of an answer after a long text, beside the plain forward pass; on a GPU also
statistics of a survey.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from re import finditer
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import telescope as ts
from telescope.decoding.writers import start_token
from telescope.text.corpora import SUMMARIES, TRANSLATIONS
from telescope.text.data_files import data_folder

from .measure import Row, race
from .survey import CAUSAL, _cudnn
from .watch import _model, _read, _text, gpt2, qwen2

HOW = ("weights", "carried", "rollout", "gradient")
ANSWER = 64  # tokens
SEGMENTS = 64


def about(device: torch.device, quick: bool) -> str:
    small = ", small models" if quick else ""
    if device.type == "cuda":
        return (
            f"statistics: causal, 16 heads of 128; sources: Qwen2 1.5B's shape{small}; "
            "bfloat16; x: of the first"
        )
    return (
        f"shipped models on real texts; then GPT-2's shape, float32{small}; x is times the "
        "plain forward pass"
    )


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if device.type == "cuda":
        yield from _statistics(2_048 if quick else 131_072, device)
        for length in (512,) if quick else (5_010 - ANSWER, 32_768):
            yield from _costs("qwen2", qwen2(quick), length, device, torch.bfloat16)
        return
    yield from _quality("summarizer", _descriptions(4 if quick else 24), _sentences)
    yield from _quality("translator-en-de", _captions(4 if quick else 24), _words)
    yield from _costs(
        "gpt2", gpt2(quick), (256 if quick else 4_096) - ANSWER, device, torch.float32
    )


# ------------------------------------------------------------------------------------------ quality


def _descriptions(count: int) -> list[str]:
    """Return descriptions of Debian's packages with at least four sentences."""
    pairs = SUMMARIES["debian-synopsis"](data_folder(), "validation")
    texts = [
        pair.source for pair in pairs if pair.source.count(". ") >= 3 and len(pair.source) < 1_000
    ]
    return texts[:count]


def _captions(count: int) -> list[str]:
    pairs = TRANSLATIONS["multi30k"](data_folder(), "test", "en", "de")
    return [pair.source for pair in pairs][:count]


def _sentences(text: str) -> list[int]:
    """Return where the sentences of a text begin."""
    return [0, *(found.end() for found in finditer(r"[.!?]\s+", text) if found.end() < len(text))]


def _words(text: str) -> list[int]:
    """Return where the words of a text begin."""
    return [found.start() for found in finditer(r"\S+", text)]


def _numbers(encoded: Any, begins: Sequence[int]) -> list[int]:
    """Return the segment of each token; a token without text, such as </s>, belongs to the segment
    before it.
    """
    numbers: list[int] = []
    for start, stop in encoded.offsets:
        own = bisect_right(begins, stop - 1) - 1 if stop > start else -1
        numbers.append(max(own, numbers[-1] if numbers else 0))
    return numbers


def _quality(name: str, texts: Sequence[str], cut: Callable[[str], list[int]]) -> Iterator[Row]:
    model: Any = ts.load(name).float().eval()
    ranks: dict[str, list[float]] = {how: [] for how in HOW}
    areas: dict[str, list[float]] = {how: [] for how in (*HOW, "hidden", "in turn")}
    times: dict[str, list[float]] = {how: [] for how in (*HOW, "hidden")}
    lost = 0.0
    for text in texts:
        one = Answered(model, text, cut)
        if one.segments < 4 or not one.written:
            continue
        scores: dict[str, list[float]] = {}
        for how in (*HOW, "hidden"):
            began = perf_counter()
            scores[how] = one.scores(how)
            times[how].append(perf_counter() - began)
        for how in HOW:
            ranks[how].append(_spearman(scores[how], scores["hidden"]))
        scores["in turn"] = [float(-i) for i in range(one.segments)]
        losses, most = one.losses(scores)
        lost += most
        for how, loss in losses.items():
            areas[how].append(loss)
    case = f"{name.partition('-')[0]}, {len(ranks['weights'])} texts"
    for how, own in areas.items():
        rank = f"rank {_mean(ranks[how]):.2f}, " if how in ranks else ""
        ms = 1e3 * _mean(times[how]) if how in times else None
        yield Row(case, how, ms, note=f"{rank}area {sum(own) / lost if lost else 0.0:.2f}")


class Answered:
    """A text that a model has read, its answer, and the recording of both."""

    def __init__(self, model: Any, text: str, cut: Callable[[str], list[int]]) -> None:
        self.model = model
        encoded = model.tokenizer.encode(text)
        source = encoded.ids
        self.written = ts.decoding.generate(model, [source], temperature=0.0)[0].ids
        numbers = _numbers(encoded, cut(text))
        self.segments = max(numbers) + 1
        self.numbers = numbers
        self.source = torch.tensor([source])
        self.target = torch.tensor([[start_token(model), *self.written]])
        self.span = range(1, 1 + len(self.written))
        with ts.watch(model, keep="queries-keys", also=("norms", "gradients")) as self.recording:
            self._log_probability(model(self.source, self.target)).backward()
        model.zero_grad(set_to_none=True)

    def _log_probability(self, logits: Tensor) -> Tensor:
        chances = logits[0, :-1].log_softmax(-1)
        return chances.gather(-1, self.target[0, 1:, None]).sum()

    def scores(self, how: str) -> list[float]:
        """Return the score of each segment."""
        found = self.recording.sources(self.span, how, segments=self.numbers, model=self.model)
        by_name = {row.name: row.score for row in found}
        return [by_name[str(i)] for i in range(self.segments)]

    def losses(self, scores: Mapping[str, Sequence[float]]) -> tuple[dict[str, float], float]:
        """Return the mean loss of log-probability while segments are hidden in the order of each
        way, and all of it.
        """
        orders = {
            how: sorted(range(self.segments), key=lambda i, own=own: -own[i])
            for how, own in scores.items()
        }
        hidden = {
            how: [frozenset(order[:count]) for count in range(1, self.segments + 1)]
            for how, order in orders.items()
        }
        sets = list(dict.fromkeys(some for each in hidden.values() for some in each))
        measured = ts.effect(
            self.model,
            (self.source, self.target),
            [self._edits(some) for some in sets],
            lambda logits: float(self._log_probability(logits)),
            progress=False,
        ).columns["value"]
        plain = measured[0]
        chances = dict(zip(sets, measured[1:], strict=True))
        most = plain - chances[sets[self.segments - 1]]
        means = {
            how: _mean([plain - chances[some] for some in each[:-1]])
            for how, each in hidden.items()
        }
        return means, most

    def _edits(self, segments: Collection[int]) -> list[Any]:
        """Return the edits that hide some segments from everything outside of them."""
        tokens = [i for i, number in enumerate(self.numbers) if number in segments]
        outside = [i for i in range(len(self.numbers)) if i not in {*tokens}]
        edits: list[Any] = [ts.hide(tokens, layers="decoder.*.cross")]
        return [*edits, ts.hide(tokens, outside, layers="encoder.*")] if outside else edits


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of the ranks; equal numbers share the mean of their ranks."""
    ranks = torch.stack([_ranks(torch.tensor(each, dtype=torch.float64)) for each in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1].nan_to_num(0.0))


def _ranks(numbers: Tensor) -> Tensor:
    below = (numbers[:, None] > numbers).double().sum(1)
    return below + 0.5 * ((numbers[:, None] == numbers).double().sum(1) - 1.0)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(len(numbers), 1)


# --------------------------------------------------------------------------------------------- cost


def _costs(
    name: str, options: dict[str, Any], length: int, device: torch.device, dtype: torch.dtype
) -> list[Row]:
    """Compare sources of an answer of ANSWER tokens with the forward pass over the text and the
    answer.

    "record and ..." runs the model, records and asks; the others ask of a recording that is there.
    The first row's memory is beside the weights, as everywhere; the note of "record and rollout"
    has the weights too.
    """
    model = _model(name, options, "sdpa", device, dtype)
    ids = _text(length + ANSWER, device)
    span = range(length, length + ANSWER)
    kept: dict[str, Any] = {"keep": "queries-keys", "also": "norms"}
    with ts.watch(model, **kept) as recording:
        _read(model, ids)
    rows_of_span = list(range(length - 1, length + ANSWER - 1))

    def recorded(how: str, **rest: Any) -> None:
        with ts.watch(model, **kept | rest) as own:
            _read(model, ids)
        own.sources(span, how)

    runners: dict[str, Callable[[], object]] = {
        "sdpa": partial(_read, model, ids),
        "sources, weights": lambda: recording.sources(span, "weights"),
        "sources, carried": lambda: recording.sources(span, "carried"),
        "sources, rollout": lambda: recording.sources(span, "rollout"),
        "record and weights": lambda: recorded("weights", queries=rows_of_span, also=()),
        "record and carried": lambda: recorded("carried", queries=rows_of_span),
        "record and rollout": lambda: recorded("rollout", also=()),
    }
    if device.type == "cuda":
        runners["record in ram and rollout"] = lambda: recorded("rollout", also=(), store="ram")
    if length <= (8_192 if device.type == "cuda" else 1_024):  # eager keeps every matrix
        eager = _model(name, options, "eager", device, dtype)
        runners["peer: eager rollout"] = partial(_eager_rollout, eager, ids)
    rows = race(f"{name}, {ANSWER} after {length:,}", runners, device, rounds=3)
    weights = sum(part.nbytes for part in model.parameters()) / 2**30
    return [
        replace(
            row,
            note=_note(row, rows[0])
            + (f", {weights:.1f} GiB of weights" if row is rows[0] else ""),
        )
        for row in rows
    ]


def _note(row: Row, plain: Row) -> str:
    return row.note if row.ms is None or plain.ms is None else f"{row.ms / plain.ms:.2f} x"


@torch.no_grad()
def _eager_rollout(model: Any, ids: Tensor) -> Tensor:
    """Compute the rollout as is usual: every layer's matrix kept, their product formed."""
    product = None
    for weights in model(ids, output_attentions=True).attentions:
        mixed = weights[0].float().mean(0)
        mixed = 0.5 * mixed + 0.5 * torch.eye(len(mixed), device=mixed.device)
        product = mixed if product is None else mixed @ product
    assert product is not None
    return product


def _statistics(length: int, device: torch.device) -> Iterator[Row]:
    """Compare single statistics with the cuDNN forward pass, which gives the lse, and with a survey
    without them.
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 16, length, 128, device=device, dtype=torch.bfloat16)
    lse = _cudnn(q, k, v)[1].reshape(q.shape[:3])
    plain = ts.survey(q, k, CAUSAL, top=0, lse=lse)
    weights = torch.rand(8, length, device=device)
    norms = torch.rand(1, 16, length, device=device)
    window = ts.window(min(4_096, length // 4)) | ts.prefix(4)
    segments = (torch.arange(length, device=device) * SEGMENTS // length).tolist()
    survey = partial(ts.survey, q, k, CAUSAL, lse=lse)
    runners: dict[str, Callable[[], object]] = {
        "forward: cudnn": lambda: _cudnn(q, k, v),
        "Aᵀw for 8 w": lambda: plain.weigh(weights),
        "Aᵀw for 1 w": lambda: plain.weigh(weights[0]),
        "survey top=0": lambda: survey(top=0),
        "survey top=0, norms": lambda: survey(top=0, norms=norms),
        "survey top=0, largest": lambda: survey(top=0, largest=True),
        "survey top=0, within": lambda: survey(top=0, within=window),
        "survey top=0, all three": lambda: survey(top=0, norms=norms, largest=True, within=window),
        "survey top=8": lambda: survey(top=8),
        "survey top=8, all three": lambda: survey(top=8, norms=norms, largest=True, within=window),
        f"shares of {SEGMENTS} segments": lambda: plain.map(segments=(range(length), segments)),
    }
    rows = race(f"n = {length:,}", runners, device, rounds=7)
    yield from (replace(row, note=_note(row, rows[0])) for row in rows)
