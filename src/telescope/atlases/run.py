"""`atlas`: read a corpus with a model, and add up every head's statistics.

fingerprint.py    fingerprint          tell whether a folder holds the atlas of this very call
texts.py          Corpus, shards, ...  read texts, cut them into shards, sequences and batches
shard_reader.py   ShardReader          read one shard after the other
reading.py        ModelReader          run the model on a batch, while it is recorded
measure.py        measure_batch        measure every head, text by text
sums.py           AtlasSums.add        add the numbers to exact sums
shared_work.py    Progress             write the sums of finished shards to a file
atlas.py          Atlas                the tables, profiles, maps and evidence of the sums
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ..files import recover, resolve_path
from ..recording import Layers
from ..traces import Advance, showing_progress
from ..words import counted, suggests
from .atlas import Atlas
from .fingerprint import check_same_run, fingerprint
from .folder import REPLACE, check_can_save, is_atlas
from .processes import Share
from .shard_reader import ShardReader
from .shared_work import SETTINGS, Heartbeat, Progress, remove_finished
from .texts import Corpus, Text, Texts, default_length, encoder_of, longest_input, shards

SHARD = 1 << 16  # characters of the texts that are one shard


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


@suggests(
    "atlas",
    "the rest goes by name: ts.atlas(model, texts, tokenizer=..., out=...)",
    layer="layers=",
    batch_size="batch=",
    max_length="length=",
    max_tokens="length=",
    path="out=",
    folder="out=",
    text="texts=, a list",
    dataset="texts=, a list of texts or files",
    device="model.to(device) before",
)
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
    progress: bool | None = None,
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
            writes its own.
        texts: a file or folder (.txt, .jsonl, .parquet), several of them as `Path`s, or a list of
            texts.
        tokenizer: an object with `encode` and `decode`; Telescope's models have their own.
        out: the folder to write the atlas to; None keeps it in memory, and cannot go on after a
            stop.
        layers: the attentions to measure, as in `ts.watch`; None is all.
        length: longest sequence in tokens; a longer text is cut. None: what the model was trained
            on, at most 2,048.
        batch: how many sequences the model reads at once.
        packed: whether to join texts to sequences of exactly `length` tokens, as in pretraining.
        column: the field of a .jsonl line, or the column of a .parquet file, that holds the text.
        replace: whether to replace an atlas that `out` holds.
        save_every: seconds between two savings of what is done.
        shard: characters of the texts that are one unit of work.
        report: called with an `AtlasProgress` after each batch.
        progress: whether to show how far the first process is, on standard error; None shows a bar
            on a terminal, and a line a minute elsewhere, unless `report` is given.

    Returns:
        The `Atlas`.

    Raises:
        ValueError: if an argument does not fit, `out` holds an atlas of something else, the corpus
            is empty, every text breaks, or the disk is full.
        RuntimeError: if another process of the run has died.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> atlas = ts.atlas(
        ...     model,
        ...     [
        ...         "To be, or not to be, that is the question.",
        ...         "What is in a name? That is all.",
        ...     ],
        ... )
        >>> atlas.texts, len(atlas.heads())
        (2, 16)
    """
    # Check the arguments before any work.
    corpus = Corpus(texts, column=column)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    encode = encoder_of(tokenizer)
    length = _check_length(model, length)
    layers = _ordered(layers)
    # Both are about files.
    if out is None and replace:
        raise ValueError("replace=True replaces the atlas in a folder; pass the folder as out=")
    if batch < 1:
        raise ValueError(
            f"batch={batch} is how many sequences the model reads at once; it takes 1 or more"
        )

    # Find the place of this process among those that share the run.
    share = Share.of(model)
    if out is None and share.count > 1 and not share.together:
        raise ValueError(
            "several processes join their results in a folder that all of them see; pass it as out="
        )

    # Describe everything that changes a number, to know this run again.
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

    # Open a finished atlas of this very run; refuse a folder that must not be replaced.
    if out is not None:
        if share.rank == 0:
            # Undo what a process left behind that was killed while it replaced the folder.
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

    # Prepare the reader, and the folder that keeps what is done.
    work = ShardReader(model, tokenizer, layers, length, batch, packed, encode)
    # Processes that run one model together write as one.
    writers = 1 if share.together else share.count
    checkpoint = (
        Progress(out, settings, share.rank, writers) if out is not None and share.writes else None
    )
    heart = None
    # Evaluation mode, without dropout; `finally` restores the mode.
    was_training = model.training
    model.eval()
    try:
        # What an earlier attempt has finished is not read again.
        done = share.broadcast(checkpoint.finished() if checkpoint is not None else set())
        # A sign of life also tells the first process that this one has seen what is done: the
        # folder may then go.
        heart = None if checkpoint is None else Heartbeat(checkpoint.folder, share.rank, writers)
        saved = perf_counter()
        count = 0
        # A report of the caller's own stands for the bar.
        shown = progress if report is None or progress else False
        with showing_progress("atlas", shown if share.rank == 0 else False) as advance:
            clock = Stopwatch(corpus.size, [_shown_by(advance), *([report] if report else [])])
            # Every process walks through the whole corpus, so that all number the shards alike.
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
                if checkpoint is not None:
                    checkpoint.done.numbers.add(number)
                # One clock decides where processes save together: joining heads takes all of them.
                if share.broadcast(perf_counter() - saved >= save_every):
                    _save(work, checkpoint, share)
                    saved = perf_counter()

        # Save the last shards, then merge the sums of all processes.
        _save(work, checkpoint, share)
        found = _merge(work, checkpoint, heart, share, count, out, replace, settings)
    finally:
        model.train(was_training)
        if heart is not None:
            heart.stop()
        if checkpoint is not None:
            checkpoint.release()
    return found


class Stopwatch:
    """Measure the speed of a run, and estimate the time left from the characters that remain."""

    def __init__(self, size: int, reports: Iterable[Report]) -> None:
        self.size = max(size, 1)
        self.reports = tuple(reports)
        self.began = perf_counter()
        # Characters that are done or passed over, those read here, and tokens read here.
        self.passed = self.own = self.tokens = 0

    def skip(self, texts: list[Text]) -> None:
        """Count the characters of a shard that is done, or another process's."""
        self.passed += sum(len(text.text) for text in texts)

    def read(self, tokens: int, work: ShardReader) -> None:
        """Count a batch, and report."""
        self.tokens += tokens
        seconds = max(perf_counter() - self.began, 1e-9)
        done = min(1.0, self.passed / self.size)
        # Shards that are passed over take little time: wait for one of our own to estimate.
        left = seconds * (1 - done) / done if self.own and done > 0 else float("nan")
        speed = self.tokens / seconds
        figures = (work.read_texts, self.tokens, work.skipped.count, done, speed, left)
        for report in self.reports:
            report(AtlasProgress(*figures))

    def finish(self, texts: list[Text]) -> None:
        """Count the characters of a shard that this process has read."""
        self.own += sum(len(text.text) for text in texts)
        self.passed += sum(len(text.text) for text in texts)


def _shown_by(advance: Advance) -> Report:
    """Return the report that a bar shows."""

    def report(made: AtlasProgress) -> None:
        skipped = f", {made.skipped:,} skipped" if made.skipped else ""
        read = f"{counted(made.texts, 'text')}, {counted(made.tokens, 'token')}{skipped}"
        advance(made.done, f"{read}, {made.tokens_per_second:,.0f} tokens/s")

    return report


def _save(work: ShardReader, progress: Progress | None, share: Share) -> None:
    """Write what is done; the processes of a tensor-parallel model first join their heads."""
    # Settle first: what is not finite must not be counted in the file.
    work.settle()
    sums = share.join_heads(work.sums)
    rest = work.rest()
    rest["evidence"] = share.gather(rest["evidence"])
    if progress is not None:
        progress.save(sums, rest)


def _merge(
    work: ShardReader,
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
    # In memory: one process, or several that run one model together and join their heads.
    if out is None:
        sums = share.join_heads(work.sums)
        rest = work.rest()
        atlas = Atlas(sums, about, {**rest, "evidence": share.gather(rest["evidence"])})
        atlas._check_not_empty()
        return atlas
    place = Path(out)
    # Of processes that run one model together, only the first one writes: the others wait.
    if progress is None or heart is None:
        share.barrier()
        return Atlas.open(place)
    # Wait for all shards, and until every process has seen which ones it need not read.
    if share.rank == 0:
        heart.wait(lambda: progress.is_complete(count) and heart.all_came())
        progress.check_disjoint(count)
        sums, headers = progress.merged()
        atlas = Atlas(sums, about, *headers)
        atlas._check_not_empty()
        atlas.save(place, replace=replace)
        progress.remove()
        share.barrier()
        return atlas

    # The first process removes the settings last: the atlas is then in its place.
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
    # The size of a shard belongs to the run, not to the atlas.
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
