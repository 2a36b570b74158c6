"""`Atlas`: every head of a model over a corpus, with its statistics, profiles, maps and
evidence.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..field_words import FieldNames
from ..files import import_optional
from ..guesses import OF_ATLAS
from ..measures import BUCKETS, HABITS, OF_TEXTS, Head, bucket_limits, kinds_of
from ..recording import Heads, list_names, natural_order, open_recording
from ..traces import FirstThatFits, PlainTable, PrintedTable
from ..words import check_index, counted, hint
from .exact import ExactSum
from .folder import download, is_atlas, read_folder, upload, write_card, write_folder
from .measure import CLASSES
from .shard_reader import merge_skipped, places_of
from .sums import MAP_BITS, STATISTICS, AtlasSums, error_of_sum

EXCERPTS = (60, 40, 20, 10, 0)  # characters of a text in a printed table, as many as fit
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # the share of numbers below each


@dataclass(frozen=True)
class Statistic:
    """One statistic of one head over a corpus; NaN where it is unknown.

    Of the measures of `heads()` the mean is over all queries of the corpus, and all other numbers
    are of the texts' values. Of entropy, peak and logit, everything is over all queries.

    Attributes:
        count: how many texts, or how many queries, were counted.
        mean, std: the mean and the standard deviation.
        low, high: the smallest and the largest value.

    Example:
        >>> import telescope as ts
        >>> text = "To be, or not to be: that is the question."
        >>> atlas = ts.atlas(ts.load("shakespeare"), [text])
        >>> entropy = atlas.statistic("blocks.0.self", 0, "entropy")
        >>> entropy.low <= entropy.mean <= entropy.high
        True
    """

    count: int
    mean: float
    std: float
    low: float
    quantiles: tuple[float, ...]
    """At 5, 25, 50, 75 and 95 %; each is off by at most the width of a bin of the sketch, 1/256 for
    shares.
    """
    high: float


class Evidence(NamedTuple):
    """A text in which a habit of a head is strong: the share of the weight, and where the text is
    from.

    Attributes:
        share: of the head's weight in this text, 0 to 1.
        source: the file of the text; "" if it was given as a string.
        line: of the file, from 1.
        tokens: the length of the sequence.
        excerpt: the beginning of the text.

    Example:
        >>> import telescope as ts
        >>> text = "To be, or not to be: that is the question."
        >>> atlas = ts.atlas(ts.load("shakespeare"), [text])
        >>> best = atlas.evidence("blocks.0.self", 0, "previous")[0]
        >>> best.text, best.first, best.excerpt[:6]
        (0, 0, 'To be,')
    """

    share: float
    text: int
    """The number of the text in the corpus."""
    first: int
    """The first token of the sequence within the text."""
    source: str
    line: int
    tokens: int
    excerpt: str


class Profile(NamedTuple):
    """Shares of a head's weight by distance, position or token class, and the name of each.

    Attributes:
        labels: the name of each share, such as "3 to 4" tokens.
        shares: sum to one; NaN where nothing is known.

    Example:
        >>> import telescope as ts
        >>> text = "To be, or not to be: that is the question."
        >>> atlas = ts.atlas(ts.load("shakespeare"), [text])
        >>> profile = atlas.profile("blocks.0.self", 0)
        >>> profile.labels[:3], round(sum(profile.shares), 6)
        (('0', '1', '2'), 1.0)
    """

    labels: tuple[str, ...]
    shares: tuple[float, ...]


class Atlas(PrintedTable, FieldNames):
    """Every head of a model, measured over a corpus. `ts.atlas` makes one, `ts.open` opens a saved
    one.

    heads() is the table of `recording.heads()`, over the whole corpus; statistic(), profile(),
    evidence() and map() are of one head; table() is everything as a data frame. Printed, an atlas
    is a summary of its heads by kind.

    Example:
        >>> import tempfile, telescope as ts
        >>> speech = "To be, or not to be: that is the question. "
        >>> atlas = ts.atlas(ts.load("shakespeare"), [speech * 3, speech * 2])
        >>> atlas.texts, atlas.layers[0], len(atlas.heads()) == len([*atlas.rows()])
        (2, 'blocks.0.self', True)
        >>> atlas.statistic(
        ...     "blocks.0.self", 0, "entropy"
        ... ).count == atlas.tokens - atlas.texts
        True
        >>> atlas.profile("blocks.0.self", 0, "distance").labels[:5]
        ('0', '1', '2', '3 to 4', '5 to 8')
        >>> best = atlas.evidence("blocks.0.self", 0, "previous")[0]
        >>> best.excerpt[:6]
        'To be,'
        >>> longest = max(atlas.map_sizes())
        >>> atlas.map("blocks.0.self", 0, longest).shape
        torch.Size([32, 32])
        >>> len(atlas.standard_error("previous")) == len(atlas.table())
        True
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     atlas.save(f"{folder}/my.atlas")
        ...     ts.Atlas.open(f"{folder}/my.atlas").texts
        2
        >>> atlas.push_to_hub("me/my-atlas")  # doctest: +SKIP
        >>> ts.Atlas.from_hub("me/my-atlas")  # doctest: +SKIP
    """

    _theirs = OF_ATLAS

    def __init__(
        self, sums: AtlasSums, about: Mapping[str, Any], *rests: Mapping[str, Any]
    ) -> None:
        """Make the atlas of these sums; `rests` are the descriptions of the texts, from one process
        or several.
        """
        self.sums = sums.to("cpu")
        self.about = dict(about)
        """The model, the texts and the settings of the run."""
        self.skipped_count, self.skipped = merge_skipped(rest["skipped"] for rest in rests)
        """How many texts could not be read, and why, by number; the first hundred."""
        self.read_texts = sum(rest["read_texts"] for rest in rests)
        self.left_out = tuple(
            sorted({name for rest in rests for name in rest.get("left_out", ())}, key=natural_order)
        )
        """The attentions whose heads are missing, since they cannot be watched or ran past the
        watch, by name.
        """
        # Each process kept the evidence of its own texts; much of it is weaker than that of the
        # others.
        needed = places_of(self.sums)
        known = {(text, first): about for rest in rests for text, first, about in rest["evidence"]}
        self._texts = {place: known[place] for place in sorted(needed & known.keys())}
        self.places = [
            (layer, number) for layer, numbers, _ in self.sums.layers for number in numbers
        ]
        """The layer and the number of each head, in the order of the model."""

    # -------------------------------------------------------------------------------------- reading

    @property
    def texts(self) -> int:
        """How many texts were read."""
        return int(self.read_texts)

    @property
    def tokens(self) -> int:
        """How many tokens were read."""
        return self.sums.tokens

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the attentions, in the order of the model."""
        return tuple(layer.layer for layer in self.sums.layers)

    def heads(self) -> Heads:
        """Return the table of all heads with their kinds, each share a mean over all queries of the
        corpus.
        """
        queries = _positive(self.sums.denominator.value)  # NaN where no query counts
        shares = self.sums.numerator.value / queries
        counts = dict(zip(OF_TEXTS, queries, strict=True))
        kinds = kinds_of(shares[: len(HABITS)], counts["induction"] / counts["first"])
        found = [
            Head(*place, kind, **dict(zip(OF_TEXTS, values, strict=True)))
            for place, kind, values in zip(self.places, kinds, shares.T.tolist(), strict=True)
        ]
        return Heads(found, self.layers, left_out=self.left_out).sort()

    def statistic(self, layer: str, head: int, name: str) -> Statistic:
        """Return one statistic of a head: a habit, "spread", "entropy", "peak" or "logit".

        Args:
            layer: the name of the attention.
            head: the number of the head; -1 is the last.
            name: a habit of `recording.heads()`, "spread", "entropy", "peak" or "logit".

        Raises:
            ValueError: the atlas has no such attention, head or statistic.
        """
        if name not in STATISTICS:
            raise ValueError(f'there is no statistic "{name}"; {hint(name, STATISTICS)}')
        i = STATISTICS.index(name)
        place = self._index(layer, head)
        own = {part: float(numbers[i, place]) for part, numbers in self._numbers.items()}
        return Statistic(
            count=int(self.sums.distribution.count[i, place]),
            mean=own["mean"],
            std=own["std"],
            low=own["low"],
            quantiles=tuple(own[f"q{share:.0%}"] for share in QUANTILES),
            high=own["high"],
        )

    def profile(self, layer: str, head: int, by: str = "distance") -> Profile:
        """Return where the weight of a head goes: by "distance", by "position" in the text, or by
        token "class".

        Distances are measured on at most 32 queries of each sequence, spread evenly over it;
        positions and classes on all queries. In cross-attention distances are unknown, and NaN.

        Args:
            layer: the name of the attention.
            head: the number of the head; -1 is the last.
            by: "distance", "position" or "class".

        Raises:
            ValueError: the atlas has no such attention, head or profile.
        """
        place = self._index(layer, head)
        labels, sums = self._profiles(by)
        weight = sums.value[place]
        total = float(weight.sum())
        return Profile(
            labels, tuple((weight / total).tolist()) if total > 0 else (nan,) * len(labels)
        )

    def evidence(self, layer: str, head: int, habit: str) -> list[Evidence]:
        """Return the texts in which a habit of a head is strongest, the strongest first: at most
        five.

        Texts with fewer than eight queries that count are left out; four for "same" and
        "induction".

        Args:
            layer: the name of the attention.
            head: the number of the head; -1 is the last.
            habit: such as "induction".

        Raises:
            ValueError: the atlas has no such attention or head, or there is no such habit.
        """
        if habit not in HABITS:
            raise ValueError(f'there is no habit "{habit}"; {hint(habit, HABITS)}')
        i = HABITS.index(habit)
        place = self._index(layer, head)
        found = []
        pairs = zip(
            self.sums.evidence_share[i, place].tolist(),
            self.sums.evidence_text[i, place].tolist(),
            strict=True,
        )
        for share, (text, first) in pairs:
            if text >= 0 and share >= 0:  # -1 is a place that no text has taken
                about = self._texts.get(
                    (text, first), {"source": "", "line": 0, "tokens": 0, "excerpt": ""}
                )
                found.append(Evidence(share, text, first, **about))
        return found

    def map_sizes(self) -> dict[int, int]:
        """Return the classes of lengths that maps exist for: the longest text of each, and how many
        texts it has.
        """
        return {2**k: int(count.max()) for k, count in sorted(self.sums.map_texts.items())}

    def map(self, layer: str, head: int, longest: int | None = None) -> Float[Tensor, "row column"]:
        """Return the map of a head, 32 x 32, averaged over texts of longest/2 + 1 to `longest`
        tokens.

        A row is one query of each text, and rows sum to one. Without `longest`, the class with the
        most texts.

        Args:
            layer: the name of the attention.
            head: the number of the head; -1 is the last.
            longest: one of `map_sizes()`; None is the class with the most texts.

        Raises:
            ValueError: there is no map of texts of this length, or none at all.
        """
        sizes = self.map_sizes()
        if not sizes:
            raise ValueError("no text of this atlas has 32 tokens, so there is no map")
        longest = max(sizes, key=lambda size: sizes[size]) if longest is None else longest
        if longest not in sizes:
            raise ValueError(
                f"there is no map of texts up to {longest} tokens; there are "
                f"{', '.join(map(str, sizes))}"
            )
        k = (longest - 1).bit_length()  # the class whose longest text has 2^k tokens
        place = self._index(layer, head)
        cells: Tensor = self.sums.maps[k][place].double() / 2**MAP_BITS
        return cells / max(int(self.sums.map_texts[k][place]), 1)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dict for each head, in the order of the model: layer, head, kind, numbers; None
        where unknown.
        """
        numbers = {name: part.T.tolist() for name, part in self._numbers.items()}
        counts = self.sums.distribution.count.T.tolist()
        kinds = {(head.layer, head.number): head.kind for head in self.heads()}
        for place, (layer, number) in enumerate(self.places):
            row: dict[str, Any] = {"layer": layer, "head": number, "kind": kinds[layer, number]}
            for i, name in enumerate(STATISTICS):
                own = {part: values[place][i] for part, values in numbers.items()}
                row[name] = own.pop("mean")  # the mean has the plain name of the statistic
                row |= {f"{name}.{part}": value for part, value in own.items()}
                row[f"{name}.count"] = counts[place][i]
            for by in ("distance", "position", "class"):
                row[f"{by}_profile"] = [*self.profile(layer, number, by).shares]
            yield {
                name: None if isinstance(value, float) and isnan(value) else value
                for name, value in row.items()
            }

    def table(self) -> Any:
        """Return a pandas data frame with a row for each head; see `rows`."""
        return import_optional("pandas", "table()", "atlas").DataFrame([*self.rows()])

    def _check_not_empty(self) -> None:
        """Raise a ValueError if no text could be read."""
        if not self.sums.texts:
            first = next(iter(self.skipped.values()), "it has no texts")
            raise ValueError(f"no text of the corpus could be read; the first: {first}")

    # ---------------------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write the atlas to a folder, as a whole or not at all: JSON, Parquet tables and a card.
        See docs/atlas.md.

        Args:
            path: the folder.
            replace: whether an atlas that is there already is written over.
        """
        rest = {
            "skipped": {
                "count": self.skipped_count,
                "texts": [[*each] for each in self.skipped.items()],
            },
            "evidence": [[*place, about] for place, about in self._texts.items()],
            "read_texts": self.read_texts,
            "left_out": [*self.left_out],
        }
        tables = {"heads": self.rows(), "evidence": self._evidence_rows(), "maps": self._map_rows()}
        numbers = {"texts": self.texts, "tokens": self.tokens, "skipped": self.skipped_count}
        card = write_card(self.about, self.heads(), **numbers)
        write_folder(path, self.sums, self.about, rest, tables, card, replace=replace)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Atlas":
        """Open a folder that `save` wrote; a LoadError if it holds no atlas, is damaged, or is of
        another version.

        Args:
            path: the folder.

        Raises:
            LoadError: the folder holds no atlas, a damaged one, or one of another version.
        """
        return cls(*read_folder(path))

    def push_to_hub(self, repo: str, **options: Any) -> str:
        """Upload the atlas to a dataset repository of the Hugging Face hub, private unless
        private=False.

        Return the address of the upload. Further options are those of `HfApi.upload_folder`.

        Args:
            repo: the name of the repository, "account/name".
            options: those of `HfApi.upload_folder`, and `private`.
        """
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "atlas")
            return upload(Path(folder) / "atlas", repo, **options)

    @classmethod
    def from_hub(cls, repo: str, **options: Any) -> "Atlas":
        """Download an atlas from the Hugging Face hub, and open it; the options are those of
        `snapshot_download`.

        Args:
            repo: the name of the repository, "account/name".
            options: those of `snapshot_download`.
        """
        return cls.open(download(repo, **options))

    def _evidence_rows(self) -> Iterator[dict[str, Any]]:
        for layer, number in self.places:
            for habit in HABITS:
                for rank, text in enumerate(self.evidence(layer, number, habit)):
                    place = {"layer": layer, "head": number, "habit": habit, "rank": rank}
                    yield place | text._asdict()

    def _map_rows(self) -> Iterator[dict[str, Any]]:
        for longest in self.map_sizes():
            k = (longest - 1).bit_length()
            for place, (layer, number) in enumerate(self.places):
                cells = self.map(layer, number, longest).flatten().tolist()
                count = int(self.sums.map_texts[k][place])
                place_of = {"layer": layer, "head": number}
                yield place_of | {"longest": longest, "texts": count, "cells": cells}

    # ------------------------------------------------------------------------------------- printing

    def __rich__(self) -> FirstThatFits:
        return FirstThatFits(lambda: map(self._table, EXCERPTS))

    def _table(self, length: int) -> PlainTable:
        model = self.about.get("model", {}).get("class", "a model")
        skipped = f", {self.skipped_count:,} skipped" if self.skipped_count else ""
        title = (
            f"{model}: {len(self.places):,} heads over {counted(self.texts, 'text')}, "
            f"{counted(self.tokens, 'token')}{skipped}"
        )
        caption = f"not measured: {list_names(self.left_out)}" if self.left_out else None
        table = PlainTable(title=title, caption=caption, box=None, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        for name in ("kind", "heads", "clearest", "share", "strongest text"):
            table.add_column(
                name, justify="right" if name in ("heads", "share") else "left", no_wrap=True
            )
        heads = self.heads()
        for kind in (*HABITS, "mixed"):
            own = heads.where(kind=kind)
            if not own:
                continue
            best = own[0]  # the clearest of its kind
            share = "" if kind == "mixed" else f"{getattr(best, kind):.0%}"
            texts = [] if kind == "mixed" else self.evidence(best.layer, best.number, kind)
            excerpt = " ".join(texts[0].excerpt.split())[:length] if texts else ""
            table.add_row(kind, str(len(own)), f"{best.layer} head {best.number}", share, excerpt)
        return table

    # -------------------------------------------------------------------------------------- private

    def _index(self, layer: str, head: int) -> int:
        if layer not in self.layers:
            raise ValueError(
                f'there is no attention "{layer}" in this atlas; {hint(str(layer), self.layers)}'
            )
        numbers = [number for own, number in self.places if own == layer]
        if head < 0:
            head = numbers[check_index("head", head, len(numbers), f'"{layer}"')]
        if (layer, head) not in self.places:
            raise ValueError(
                f'there is no head {head} of "{layer}"; there are {numbers[0]} to {numbers[-1]}'
            )
        return self.places.index((layer, head))

    @cached_property
    def _numbers(self) -> dict[str, Float[Tensor, "statistic heads"]]:
        """Mean, std, extremes and quantiles of every statistic; NaN where nothing was counted."""
        spread = self.sums.distribution
        shares = self.sums.numerator.value / _positive(self.sums.denominator.value)
        ends = {"low": spread.low, "high": spread.high}
        return {
            # The mean of a share is over all queries of the corpus, not over its texts.
            "mean": torch.cat([shares, spread.mean[len(OF_TEXTS) :]]),
            "std": spread.variance.sqrt(),
            **{name: torch.where(spread.count > 0, end, nan) for name, end in ends.items()},
            **{f"q{share:.0%}": spread.quantile(share) for share in QUANTILES},
        }

    def standard_error(self, name: str) -> Float[Tensor, " heads"]:
        """Return the standard error of each head's share of a habit, from how much groups of texts
        differ.

        NaN where fewer than two groups have queries that count, and in an atlas of an earlier
        version.

        Args:
            name: a habit.

        Raises:
            ValueError: there is no such habit.
        """
        if name not in HABITS:
            raise ValueError(f'there is no standard error of "{name}"; {hint(str(name), HABITS)}')
        return error_of_sum(self.sums.influences(name))

    def _profiles(self, by: str) -> tuple[tuple[str, ...], ExactSum]:
        ranges = tuple(
            f"{low}" if low == high else f"{low} to {high}" for low, high in bucket_limits()[:-1]
        )
        ranges = (*ranges, f"{bucket_limits()[-1][0]} and more")  # the last bucket has no end
        known = {
            "distance": ((*ranges, "ahead")[:BUCKETS], self.sums.distances),
            "position": (ranges, self.sums.positions),
            "class": (CLASSES, self.sums.classes),
        }
        if by not in known:
            raise ValueError(f'there is no profile by "{by}"; {hint(str(by), known)}')
        return known[by]


def _positive(count: Tensor) -> Tensor:
    return torch.where(count > 0, count, torch.nan)  # a share of nothing is NaN


def open_saved(path: str | os.PathLike[str]) -> Any:
    """Open a recording that `Recording.save` wrote, or an atlas that `ts.atlas` or `Atlas.save`
    wrote.

    Args:
        path: the folder.

    Returns:
        The `Recording` or the `Atlas`. Tensors of a recording are read from the files when they are
        first used, so that its folder has to stay.

    Raises:
        LoadError: if the folder holds neither, or if a file is damaged, does not fit the
            description, or is of another version. Damage to a tensor of a recording is found when
            the tensor is read.

    Example:
        >>> import tempfile, torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(f"{folder}/run.telescope")
        ...     opened = ts.open(f"{folder}/run.telescope")
        ...     opened["attention"].entropy.shape
        torch.Size([1, 2, 5])
    """
    return Atlas.open(path) if is_atlas(path) else open_recording(path)
