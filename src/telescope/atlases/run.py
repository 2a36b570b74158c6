"""`atlas`: read a corpus with a model, and add up every head's statistics.

fingerprint.py    fingerprint           tell whether a folder holds the atlas of this very call
texts.py          Corpus, shards        read texts, and cut the corpus into shards
batches.py        sequences_of, ...     cut a shard into sequences of tokens, and pad them into
                  batches
reading.py        ModelReader           run the model on a batch, while it is recorded
measure.py        measure_batch         measure every head, text by text
sums.py           AtlasSums.add         add the numbers to exact sums
shared_work.py    Progress              write the sums of finished shards to a file
atlas.py          Atlas                 the tables, profiles, maps and evidence that the sums amount
                  to
"""

import json
import os
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..files.atomic import recover, resolve_path
from ..interception.watch import record_calls
from ..recording.call_facts import KeepOptions
from ..recording.names import Layers, list_names
from .atlas import Atlas
from .batches import TokenBatch, batches_of, default_length, encoder_of, longest_input, sequences_of
from .evidence import EvidenceTexts, Skipped, places_of
from .fingerprint import check_same_run, fingerprint
from .folder import REPLACE, check_can_save, is_atlas
from .measure import CLASSES, TokenClasses, layers_of, measure_batch, send
from .processes import Share
from .reading import ModelReader
from .shared_work import SETTINGS, Heartbeat, Progress, remove_finished
from .sums import AtlasSums
from .texts import Corpus, Text, Texts, shards

SHARD = 1 << 16  # characters of the texts that are one shard
PENDING = 16  # shards whose evidence is looked up together: a GPU waits for each look
ALL_BROKEN = 8  # texts: if the first of the corpus all break, the fault is not theirs


@dataclass(frozen=True)
class AtlasProgress:
    """How far a run of `atlas` is: the texts and tokens this process has read, and estimates for
    all of its share.
    """

    texts: int
    tokens: int
    skipped: int
    done: float
    """The share of the corpus that is read, from 0 to 1."""
    tokens_per_second: float
    seconds_left: float


Report = Callable[[AtlasProgress], object]


@torch.no_grad()
def atlas(
    model: nn.Module,
    texts: Texts,
    *,
    tokenizer: Any = None,
    out: str | os.PathLike[str] | None = None,
    layers: Layers = None,
    length: int | None = None,
    batch: int = 8,
    packed: bool = False,
    column: str = "text",
    replace: bool = False,
    save_every: float = 20.0,
    shard: int = SHARD,
    report: Report | None = None,
) -> Atlas:
    """Measure every head of a model over a corpus, in memory that does not grow with the corpus.

    Under `torchrun` or `accelerate launch` the processes share the texts and write one atlas, which
    is the same for any number of processes: `out` is then a folder that all of them see. A run that
    was stopped, even by kill -9, goes on when it is called again with the same model, tokenizer,
    texts, settings and edits; one that is finished is opened. If anything differs, down to one bit
    of a weight, an error names what. A text that cannot be read, or breaks the model, is named in
    `atlas.skipped` and counted, and left out.

    Args:
        model: a model of Telescope, or of transformers. An encoder-decoder reads each text and
        writes its own. texts: a file or folder (.txt, .jsonl, .parquet), several of them as
        `Path`s, or a list of texts. tokenizer: an object with `encode` and `decode`; Telescope's
        models have their own. out: the folder to write the atlas to; None keeps it in memory, and
        cannot go on after a stop. layers: the attentions to measure, as in `ts.watch`; None is all.
        length: longest sequence in tokens; a longer text is cut. None: what the model was trained
        on, at most 2,048. batch: how many sequences the model reads at once. packed: whether to
        join texts to sequences of exactly `length` tokens, as in pretraining. column: the field of
        a .jsonl line, or the column of a .parquet file, that holds the text. replace: whether to
        replace an atlas that `out` holds. save_every: seconds between two savings of what is done.
        shard: characters of the texts that are one unit of work. report: called with an
        `AtlasProgress` after each batch.

    Returns:
        The `Atlas`.

    Raises:
        ValueError: if an argument does not fit, `out` holds an atlas of something else, the corpus
            is empty, every text breaks, or the disk is full.
        RuntimeError: if another process of the run has died.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> atlas = ts.atlas(model, ["To be, or not to be, that is the question.", "What is in a name? That is all."])
        >>> atlas.texts, len(atlas.heads())
        (2, 16)
    """
    corpus = Corpus(texts, column=column)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    encode = encoder_of(tokenizer)
    length = _check_length(model, length)
    layers = _ordered(layers)
    if batch < 1:
        raise ValueError(
            f"batch={batch} is how many sequences the model reads at once; it takes 1 or more"
        )
    share = Share.of(model)
    if out is None and share.count > 1 and not share.together:
        raise ValueError(
            "several processes join their results in a folder that all of them see; pass it as out="
        )
    settings = fingerprint(model, tokenizer)
    settings |= {
        "model": share.agree(settings["model"]),
        "texts": corpus.describe(),
        "layers": repr(layers),
        "length": length,
        "batch": batch,
        "packed": packed,
        "column": column,
        "shard": shard,
    }
    if out is not None:
        if share.rank == 0:
            recover(resolve_path(out))
        if not replace and is_atlas(out):
            finished = Atlas.open(out)
            check_same_run(
                f"{out} holds an atlas already", finished.about, _about(settings), REPLACE
            )
            if share.rank == 0:  # the same command again; perhaps it was killed at its very end
                remove_finished(out, settings)
            return finished
        check_can_save(out, replace=replace)
    work = Work(model, tokenizer, layers, length, batch, packed, encode)
    writers = 1 if share.together else share.count
    progress = (
        Progress(out, settings, share.rank, writers) if out is not None and share.writes else None
    )
    heart = None
    was_training = model.training
    model.eval()
    try:
        done = share.broadcast(progress.finished() if progress is not None else set())
        # A sign of life also tells the first process that this one has seen what is done: the
        # folder may then go.
        heart = None if progress is None else Heartbeat(progress.folder, share.rank, writers)
        clock = Stopwatch(corpus.size, report)
        saved = perf_counter()
        count = 0
        for count, texts_of_shard in enumerate(shards(corpus, shard), 1):
            number = count - 1
            if number in done or not share.has(number):
                clock.skip(texts_of_shard)
                continue
            for tokens in work.read(texts_of_shard):
                clock.read(tokens, work)
                if heart is not None:
                    heart.check()
            clock.finish(texts_of_shard)
            if progress is not None:
                progress.done.numbers.add(number)
            if share.broadcast(perf_counter() - saved >= save_every):
                _save(work, progress, share)
                saved = perf_counter()
        _save(work, progress, share)
        found = _merge(work, progress, heart, share, count, out, replace, settings)
    finally:
        model.train(was_training)
        if heart is not None:
            heart.stop()
        if progress is not None:
            progress.release()
    return found


class Pending(NamedTuple):
    """A shard that was read, and that `Work.settle` is still to look at."""

    sources: dict[int, Text]
    ids: dict[tuple[int, int], list[int]]
    """The tokens of each sequence, by its text and its first token."""
    finite: list[tuple[TokenBatch, Tensor]]


class Work:
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
        self.left_out: dict[
            str, None
        ] = {}  # the attentions that were not watched, in the order of the model
        self.read_texts = 0
        self.broken: set[int] = (
            set()
        )  # of the first texts of the corpus, those that break the model
        self.pending: list[Pending] = []

    def read(self, texts: list[Text]) -> Iterator[int]:
        """Add a shard; yield the tokens of each batch after it was added."""
        sources = {text.number: text for text in texts}
        sequences = [*sequences_of(self._encoded(texts), self.length, packed=self.packed)]
        size = self.batch if self.reader.takes_padding else 1
        found = Pending(
            sources, {(sequence.text, sequence.first): sequence.ids for sequence in sequences}, []
        )
        for batch in batches_of(sequences, size, pad=0):
            found.finite.extend(self._add(batch, sources))
            yield sum(batch.lengths)
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
                    lost = batch.only(i)
                    self.sums.count_out(
                        batch.lengths[i], count_classes(lost, self.classes.of(lost.ids))
                    )
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
            if isinstance(problem, torch.OutOfMemoryError) and len(batch.lengths) == 1:
                raise
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
        moved = batch._replace(ids=send(batch.ids, self.device))
        forward = self.reader.prepare(moved)
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
        if not self.sums.layers:
            self.sums = AtlasSums(layers_of(recording))
            device = (
                next(iter(recording.values())).calls[0].facts.device
                if len(recording)
                else self.device
            )
            self.sums = self.sums.to(device)
        read = self.classes.of(batch.ids)
        table = read
        for watched in (
            recording.values() if self.reader.writes else ()
        ):  # its decoder reads other tokens
            if watched.calls and watched.calls[0].key_ids is not None:
                table = self.classes.of(watched.calls[0].key_ids)
        marks = [self.classes.known and name in ("punctuation", "space") for name in CLASSES]
        measures = measure_batch(recording, self.sums.layers, table, marks)
        self.sums.add(measures, batch.places, batch.lengths, count_classes(batch, read))
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


class Stopwatch:
    """Measure the speed of a run, and estimate the time left from the characters that remain."""

    def __init__(self, size: int, report: Report | None) -> None:
        self.size = max(size, 1)
        self.report = report
        self.began = perf_counter()
        self.passed = self.own = self.tokens = 0

    def skip(self, texts: list[Text]) -> None:
        """Count the characters of a shard that is done, or another process's."""
        self.passed += sum(len(text.text) for text in texts)

    def read(self, tokens: int, work: Work) -> None:
        """Count a batch, and report."""
        self.tokens += tokens
        if self.report is not None:
            seconds = max(perf_counter() - self.began, 1e-9)
            done = min(1.0, self.passed / self.size)
            left = seconds * (1 - done) / done if self.own and done > 0 else float("nan")
            figures = (
                work.read_texts,
                self.tokens,
                work.skipped.count,
                done,
                self.tokens / seconds,
                left,
            )
            self.report(AtlasProgress(*figures))

    def finish(self, texts: list[Text]) -> None:
        """Count the characters of a shard that this process has read."""
        self.own += sum(len(text.text) for text in texts)
        self.passed += sum(len(text.text) for text in texts)


def _save(work: Work, progress: Progress | None, share: Share) -> None:
    """Write what is done; the processes of a tensor-parallel model first join their heads."""
    work.settle()
    sums = share.join_heads(work.sums)
    rest = work.rest()
    rest["evidence"] = share.gather(rest["evidence"])
    if progress is not None:
        progress.save(sums, rest)


def _merge(
    work: Work,
    progress: Progress | None,
    heart: Heartbeat | None,
    share: Share,
    count: int,
    out: Any,
    replace: bool,
    settings: dict[str, Any],
) -> Atlas:
    """Return the atlas of all processes; process 0 writes it, and the others wait for it."""
    about = _about(settings)
    if out is None:
        sums = share.join_heads(work.sums)
        rest = work.rest()
        atlas = Atlas(sums, about, {**rest, "evidence": share.gather(rest["evidence"])})
        atlas.check_not_empty()
        return atlas
    place = Path(out)
    if (
        progress is None or heart is None
    ):  # of a model that all processes run together, another than the first
        share.barrier()
        return Atlas.open(place)
    if share.rank == 0:
        heart.wait(lambda: progress.is_complete(count) and heart.all_came())
        progress.check_disjoint(count)
        sums, headers = progress.merged()
        atlas = Atlas(sums, about, *headers)
        atlas.check_not_empty()
        atlas.save(place, replace=replace)
        progress.remove()
        share.barrier()
        return atlas
    heart.wait(lambda: not (progress.folder / SETTINGS).exists())
    return Atlas.open(place)


def _ordered(layers: Layers) -> Layers:
    """Return layers with one order in every process, which a set does not have, and that can be
    read twice.
    """
    if isinstance(layers, Set):
        return sorted(layers, key=repr)
    return [*layers] if isinstance(layers, Iterator) else layers


def _about(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that an atlas keeps, as JSON gives them back."""
    about: dict[str, Any] = json.loads(
        json.dumps({name: settings[name] for name in settings if name != "shard"})
    )
    return about


def _check_length(model: nn.Module, length: int | None) -> int:
    longest = longest_input(model)
    length = default_length(model) if length is None else length
    if length < 2 or (longest is not None and length > longest):
        limit = "2 or more" if longest is None else f"2 to {longest:,}"
        raise ValueError(
            f"length={length:,} does not fit the model, which reads {limit} tokens at once; texts "
            "are cut"
        )
    return length


def _input_device(model: nn.Module) -> torch.device:
    """Return the device that token ids are put on: that of the first parameter, also of a model on
    several devices.
    """
    parameter = next((each for each in model.parameters() if not each.is_meta), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().split("\n")[0] or type(problem).__name__)[:200]
