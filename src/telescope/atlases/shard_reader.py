"""Read the shards of a corpus with a model, and add every head's numbers to the sums of this
process.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..interception import record_calls
from ..recording import KeepOptions, Layers, list_names
from .measure import CLASSES, TokenClasses, layers_of, measure_batch, send
from .reading import ModelReader
from .sums import AtlasSums
from .texts import Text, TokenBatch, batches_of, sequences_of

PENDING = 16  # shards whose evidence is looked up together: a GPU waits for each look
ALL_BROKEN = 8  # texts: if the first of the corpus all break, the fault is not theirs
EXCERPT = 48  # tokens of a text that are kept
NAMED = 100  # skipped texts that are named; the others are counted
Place = tuple[int, int]  # the number of a text, and the first token of a sequence within it


class Pending(NamedTuple):
    """A shard that was read, and that `ShardReader.settle` is still to look at."""

    sources: dict[int, Text]
    ids: dict[tuple[int, int], list[int]]
    """The tokens of each sequence, by its text and its first token."""
    finite: list[tuple[TokenBatch, Tensor]]


class ShardReader:
    """The sums of this process so far, and everything that adds a shard to them."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        layers: Layers,
        length: int,
        batch: int,
        packed: bool,
        encode: Any,
    ) -> None:
        self.model = model
        self.layers = layers
        self.tokenizer = tokenizer
        self.length = length
        self.batch = batch
        self.packed = packed
        self.encode = encode
        self.reader = ModelReader(model)
        self.classes = TokenClasses(tokenizer)
        self.device = _input_device(model)
        self.sums = AtlasSums([])
        self.skipped = Skipped()
        self.evidence = EvidenceTexts()
        # The attentions that were not watched, in the order of the model.
        self.left_out: dict[str, None] = {}
        self.read_texts = 0
        # Of the first texts of the corpus, those that break the model.
        self.broken: set[int] = set()
        self.pending: list[Pending] = []

    def read(self, texts: list[Text]) -> Iterator[int]:
        """Add a shard; yield the tokens of each batch after it was added."""
        sources = {text.number: text for text in texts}
        sequences = [*sequences_of(self._encoded(texts), self.length, packed=self.packed)]
        # A model that cannot be told of padding reads one sequence at a time.
        size = self.batch if self.reader.takes_padding else 1
        found = Pending(
            sources, {(sequence.text, sequence.first): sequence.ids for sequence in sequences}, []
        )
        for batch in batches_of(sequences, size, pad=0):
            found.finite.extend(self._add(batch, sources))
            yield sum(batch.lengths)

        # Look at several shards together, since a GPU has to be waited for.
        self.pending.append(found)
        if len(self.pending) == PENDING:
            self.settle()

    def settle(self) -> None:
        """Look up which of the latest texts were not finite, and which are evidence."""
        each = [
            (found.sources, batch, finite)
            for found in self.pending
            for batch, finite in found.finite
        ]
        if each:
            every = torch.cat([finite for _, _, finite in each]).cpu()  # a GPU is waited for once
            parts = torch.split(every, [len(part) for _, _, part in each])
            for (sources, batch, _), finite in zip(each, parts, strict=True):
                for i in (~finite).nonzero()[:, 0].tolist():
                    self.skipped.add(
                        sources[int(batch.places[i, 0])], "an attention in it is not finite"
                    )
                    # The measures of this text were added as zeros; its tokens were counted.
                    lost = batch.only(i)
                    self.sums.count_out(
                        batch.lengths[i], count_classes(lost, self.classes.of(lost.ids))
                    )

        # Keep the beginnings of the texts that are evidence now; others were displaced.
        needed = places_of(self.sums)
        for found in self.pending:
            self.evidence.update(needed, found.sources, found.ids, self.tokenizer)
        self.pending = []
        self.skipped.forget()

    def _encoded(self, texts: list[Text]) -> Iterator[tuple[Text, list[int]]]:
        for text in texts:
            if text.broken:
                self.skipped.add(text, text.broken)
                continue
            try:
                ids = self.encode(text.text)
            except Exception as problem:  # whatever a tokenizer raises, the other texts can be read
                self.skipped.add(text, f"the tokenizer fails: {_first_line(problem)}")
                continue
            if len(ids) < 2:
                self.skipped.add(text, "has fewer than two tokens")
                continue
            self.read_texts += 1
            yield text, ids

    def _add(
        self, batch: TokenBatch, sources: dict[int, Text]
    ) -> Iterator[tuple[TokenBatch, Tensor]]:
        """Add a batch; if it breaks the model, its texts one by one. Yield which texts are
        finite.
        """
        try:
            yield batch, self._measure(batch)
        except (torch.OutOfMemoryError, RuntimeError, ValueError, IndexError) as problem:
            # Out of memory with a single text: no smaller batch is left to try.
            if isinstance(problem, torch.OutOfMemoryError) and len(batch.lengths) == 1:
                raise
            # Find the texts that break the model by reading each alone.
            if len(batch.lengths) > 1:
                for i in range(len(batch.lengths)):
                    yield from self._add(batch.only(i), sources)
                return
            text = sources[int(batch.places[0, 0])]
            self.skipped.add(text, _first_line(problem))
            # The first texts of the corpus, not of this process: a run that goes on may begin
            # anywhere.
            if text.number < ALL_BROKEN and not self.sums.texts:
                self.broken.add(text.number)
            if len(self.broken) == ALL_BROKEN:
                raise ValueError(
                    f"each of the first {ALL_BROKEN} texts breaks the model: {problem}"
                ) from problem

    def _measure(self, batch: TokenBatch) -> Tensor:
        """Run the model on a batch and add its numbers; nothing is added if the model raises."""
        # What `prepare` runs, such as the writing of an encoder-decoder, is not recorded.
        moved = batch._replace(ids=send(batch.ids, self.device))
        forward = self.reader.prepare(moved)
        # `measure_batch` needs the strongest key of each query, and a sample of rows.
        options = KeepOptions(top=1, sample=True)
        with record_calls(
            self.model, options, layers=self.layers, tokenizer=self.tokenizer
        ) as recording:
            forward()
        self.left_out |= dict.fromkeys(recording.left_out)
        if not any(watched.calls for watched in recording.values()):
            missing = (
                f": {list_names(recording.left_out)} ran past the watch"
                if recording.left_out
                else ""
            )
            raise ValueError(f"no attention could be recorded{missing}")
        # The first batch shows which attentions there are, and where the sums should live.
        if not self.sums.layers:
            self.sums = AtlasSums(layers_of(recording))
            device = (
                next(iter(recording.values())).calls[0]._facts.device
                if len(recording)
                else self.device
            )
            self.sums = self.sums.to(device)
        read = self.classes.of(batch.ids)
        table = read
        # The decoder of a model that writes reads other tokens than its encoder.
        for watched in recording.values() if self.reader.writes else ():
            if watched.calls and watched.calls[0].key_ids is not None:
                table = self.classes.of(watched.calls[0].key_ids)
        # Tokens of whitespace count as punctuation; without `decode` no class is known.
        marks = [self.classes.known and name in ("punctuation", "space") for name in CLASSES]
        measures = measure_batch(recording, self.sums.layers, table, marks)
        self.sums.add(measures, batch.places, batch.lengths, count_classes(batch, read))

        # A text is finite if all of its attentions are; `settle` waits for the answer.
        finite = torch.ones(
            len(batch.lengths), dtype=torch.bool, device=self.sums.class_tokens.device
        )
        for part in measures:
            finite &= part.finite.to(finite.device)
        return finite

    def rest(self) -> dict[str, Any]:
        """Return what belongs to the sums and is no tensor, for JSON."""
        return {
            "skipped": self.skipped.to_json(),
            "evidence": self.evidence.to_json(),
            "read_texts": self.read_texts,
            "left_out": [*self.left_out],
        }


def count_classes(batch: TokenBatch, table: Int[Tensor, " id"]) -> Int[Tensor, " class"]:
    """Return how many tokens of each class a batch has, without its padding; `table` has the class
    of each id.
    """
    real = torch.arange(batch.ids.shape[1]) < torch.tensor(batch.lengths)[:, None]
    return torch.bincount(table[batch.ids[real]], minlength=len(CLASSES))


def _input_device(model: nn.Module) -> torch.device:
    """Return the device that token ids are put on: that of the first parameter, also of a model on
    several devices.
    """
    parameter = next((each for each in model.parameters() if not each.is_meta), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().split("\n")[0] or type(problem).__name__)[:200]


# -------------------------------------------------------------------- texts that an atlas refers to


class EvidenceTexts:
    """Where the texts come from that are evidence at the moment, and how they begin. Others are
    forgotten.
    """

    def __init__(self) -> None:
        self.found: dict[Place, dict[str, Any]] = {}

    def update(
        self,
        needed: set[Place],
        sources: Mapping[int, Text],
        ids: Mapping[Place, list[int]],
        tokenizer: Any,
    ) -> None:
        """Keep the texts of a shard that are needed, and forget those that are no more."""
        self.found = {place: text for place, text in self.found.items() if place in needed}
        for place in needed & ids.keys():
            text = sources[place[0]]
            tokens = ids[place]
            # Without `decode`, the beginning of the text stands for that of the sequence.
            excerpt = (
                tokenizer.decode(tokens[:EXCERPT])
                if hasattr(tokenizer, "decode")
                else text.text[:200]
            )
            about = {
                "source": text.source,
                "line": text.line,
                "tokens": len(tokens),
                "excerpt": excerpt,
            }
            self.found[place] = about

    def to_json(self) -> list[list[Any]]:
        """Return [text, first token, where it is from] of each."""
        return [[*place, about] for place, about in sorted(self.found.items())]


def places_of(sums: AtlasSums) -> set[Place]:
    """Return the places of all texts that are evidence."""
    found = torch.unique(sums.evidence_text.reshape(-1, 2), dim=0).tolist()
    return {(text, first) for text, first in found if text >= 0}


class Skipped:
    """The texts that could not be read: how many, and the first of them by name."""

    def __init__(self) -> None:
        self.named: dict[int, str] = {}
        self.count = 0
        self._counted: set[int] = set()

    def forget(self) -> None:
        """Forget which texts were counted, once nothing more can be found out about them."""
        self._counted = set()

    def add(self, text: Text, reason: str) -> None:
        """Count a text that could not be read, once however many of its sequences break; name the
        first texts.
        """
        if text.number in self._counted:
            return
        self._counted.add(text.number)
        self.count += 1
        self.named[text.number] = f"{text.where}: {reason}"
        # Keep the lowest numbers: the first texts of the corpus, in whatever order it is read.
        if len(self.named) > NAMED:
            del self.named[max(self.named)]

    def to_json(self) -> dict[str, Any]:
        """Return the number of skipped texts, and the sentences about the first of them."""
        return {
            "count": self.count,
            "texts": [[number, why] for number, why in sorted(self.named.items())],
        }


def merge_skipped(parts: Iterable[Mapping[str, Any]]) -> tuple[int, dict[int, str]]:
    """Return how many texts were skipped in all parts of a corpus, and why the first of them
    were.
    """
    parts = [*parts]
    named = {number: why for part in parts for number, why in part["texts"]}
    return sum(part["count"] for part in parts), {
        number: named[number] for number in sorted(named)[:NAMED]
    }
