"""Answers about atlases: the list of them, all heads of one, one head with its evidence, two
compared; and the texts in which a habit of a head is strong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..atlases import (
    EXCERPT,
    STATISTICS,
    Atlas,
    Evidence,
    compare,
    encoder_of,
    text_at,
    weights_checksum,
)
from ..measures import CLEAR, HABIT_KEYS, HABITS, MEASURES
from ..models import Model
from .answers import (
    Answer,
    Columns,
    Matrix,
    Refusal,
    RequestParams,
    bad_parameter,
    not_kept,
    unknown,
)

MODEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in which the model may be read
# The fields of a request that opens a text of an atlas.
EVIDENCE_FIELDS = {"atlas", "l", "h", "habit", "rank"}

# The row of each head, by layer and number.
Rows = dict[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True)
class AtlasFacts(Answer):
    """An atlas.

    model       the name of its class
    skipped     texts that were not read
    columns     the measures of each head; shares: those that are shares of one
    habit_keys  the keys whose share of the weight is each habit, in words
    clear       the share from which on a habit names the kind of a head
    maps        the longest text of each averaged map, and how many texts it has
    """

    atlas: str
    model: str | None
    texts: int
    tokens: int
    skipped: int
    layers: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[str]
    habit_keys: dict[str, str]
    clear: float
    maps: dict[str, int]


@dataclass(frozen=True)
class AtlasList(Answer):
    """All atlases that are open."""

    atlases: Sequence[AtlasFacts]


@dataclass(frozen=True)
class HeadOfAtlas(Answer):
    """A head of an atlas: the mean of every column by name, null where it is unknown."""

    layer: str
    head: int
    kind: str
    means: Columns


@dataclass(frozen=True)
class AtlasAnswer(AtlasFacts):
    """An atlas with all of its heads.

    model       the name of its class
    skipped     texts that were not read
    columns     the measures of each head; shares: those that are shares of one
    habit_keys  the keys whose share of the weight is each habit, in words
    clear       the share from which on a habit names the kind of a head
    maps        the longest text of each averaged map, and how many texts it has
    """

    heads: Sequence[HeadOfAtlas]


@dataclass(frozen=True)
class AtlasProfile(Answer):
    """The share of a head's weight by distance, by position or by the class of a token; null where
    it is unknown.
    """

    labels: Sequence[str]
    shares: Sequence[float | None]


@dataclass(frozen=True)
class EvidenceText(Answer):
    """A text in which a habit of a head is strong.

    text    its number in the corpus
    first   the first token of the sequence within the text
    line    of the file `source`
    """

    share: float
    text: int
    first: int
    source: str
    line: int
    tokens: int
    excerpt: str


@dataclass(frozen=True)
class AtlasHeadAnswer(Answer):
    """Everything about one head: of every column its mean, such as entropy, and entropy.std,
    entropy.low, entropy.q5%, …, entropy.high, entropy.count.

    profiles  by "distance", "position" and "class"
    evidence  the strongest texts of each habit
    maps      the averaged map of texts up to each length, 32 x 32
    """

    layer: str
    head: int
    kind: str
    measures: Columns
    profiles: dict[str, AtlasProfile]
    evidence: dict[str, Sequence[EvidenceText]]
    maps: dict[str, Matrix]


@dataclass(frozen=True)
class HeadChange(Answer):
    """A head in two atlases.

    habit   the one that changed the most: its share before and after
    errors  the change in units of its standard error; below 3 it may be chance
    moved   the share of the weight that went to other distances
    """

    layer: str
    number: int
    kind_before: str
    kind_after: str
    habit: str
    before: float
    after: float
    errors: float | None
    moved: float | None
    change: float


@dataclass(frozen=True)
class AtlasComparison(Answer):
    """The heads of two atlases of one shape, those that changed the most first."""

    heads: Sequence[HeadChange]


class Atlases:
    """The atlases that the explorer can show, by name."""

    def __init__(self) -> None:
        self.opened: dict[str, Atlas] = {}
        self._rows: dict[str, Rows] = {}

    def add(self, name: str, atlas: Atlas) -> str:
        """Add an atlas under a name that no other has, and return the name."""
        # A second atlas of the same name gets a number, and both can be compared.
        while name in self.opened:
            name += "-2"
        self.opened[name] = atlas
        return name

    def atlas(self, name: str) -> Atlas:
        """Return an atlas by name, or raise Refusal 404."""
        if name not in self.opened:
            raise unknown(
                f'there is no atlas "{name[:40]}"; there are {", ".join(self.opened) or "none"}'
            )
        return self.opened[name]

    def rows(self, name: str) -> Rows:
        """Return the row of every head, by layer and number, computed once: 1,024 heads take a
        second.
        """
        if name not in self._rows:
            self._rows[name] = {(row["layer"], row["head"]): row for row in self.atlas(name).rows()}
        return self._rows[name]

    def describe_all(self) -> AtlasList:
        """Answer all atlases that are open."""
        return AtlasList([self._describe(name) for name in self.opened])

    def describe(self, name: str) -> AtlasAnswer:
        """Answer an atlas with the means of all heads."""
        facts = self._describe(name)
        heads = [
            HeadOfAtlas(
                row["layer"],
                row["head"],
                row["kind"],
                Columns({column: row[column] for column in STATISTICS}),
            )
            for row in self.rows(name).values()
        ]
        return AtlasAnswer(**vars(facts), heads=heads)

    def describe_head(self, params: RequestParams, name: str) -> AtlasHeadAnswer:
        """Answer everything about one head of an atlas."""
        atlas = self.atlas(name)
        # l counts the layers of the atlas, h the heads that the atlas has of this layer.
        layer = atlas.layers[params.index("l", len(atlas.layers), "attention")]
        numbers = [number for own, number in atlas.places if own == layer]
        number = numbers[params.index("h", len(numbers), "head")]
        row = self.rows(name)[layer, number]
        # Everything that is a number; profiles have a field of their own.
        measures = {
            column: value
            for column, value in row.items()
            if column not in ("layer", "head", "kind") and not column.endswith("_profile")
        }
        # What lies in no class or at no distance is NaN, which JSON lacks.
        profiles = {}
        for by in ("distance", "position", "class"):
            profile = atlas.profile(layer, number, by)
            shares = [None if share != share else share for share in profile.shares]
            profiles[by] = AtlasProfile(profile.labels, shares)
        return AtlasHeadAnswer(
            layer=layer,
            head=number,
            kind=row["kind"],
            measures=Columns(measures),
            profiles=profiles,
            evidence={
                habit: [EvidenceText(*text) for text in atlas.evidence(layer, number, habit)]
                for habit in HABITS
            },
            maps={str(longest): atlas.map(layer, number, longest) for longest in atlas.map_sizes()},
        )

    def compare(self, name: str, other: str) -> AtlasComparison:
        """Answer the heads of two atlases of one shape, those that changed the most first."""
        before = self.atlas(name)
        after = self.atlas(other)
        try:
            return AtlasComparison([HeadChange(**row) for row in compare(before, after).to_dict()])
        # Only atlases of one shape can be compared head by head.
        except ValueError as problem:
            raise Refusal(409, "other-shape", str(problem)) from None

    def _describe(self, name: str) -> AtlasFacts:
        atlas = self.atlas(name)
        return AtlasFacts(
            atlas=name,
            model=atlas.about.get("model", {}).get("class"),
            texts=atlas.texts,
            tokens=atlas.tokens,
            skipped=atlas.skipped_count,
            layers=[*atlas.layers],
            columns=[*STATISTICS],
            shares=[column for column in STATISTICS if MEASURES[column].is_share],
            habit_keys=HABIT_KEYS,
            clear=CLEAR,
            maps={str(longest): count for longest, count in atlas.map_sizes().items()},
        )


def find_evidence(atlas: Atlas, request: Mapping[str, Any]) -> Evidence:
    """Return the text that {"l": 0, "h": 1, "habit": "previous", "rank": 0} names, or raise
    Refusal.
    """
    layer, number, rank, habit = (request.get(name) for name in ("l", "h", "rank", "habit"))
    # type and not isinstance: True is an int, too.
    if set(request) != EVIDENCE_FIELDS or not all(
        type(one) is int and one >= 0 for one in (layer, number, rank)
    ):
        raise bad_parameter(
            'the body must be {"atlas": "…", "l": 0, "h": 0, "habit": "previous", "rank": 0}'
        )

    # Then the habit, the attention, the head and the rank must exist.
    if habit not in HABITS:
        raise unknown(f'there is no habit "{str(habit)[:40]}"; there are {", ".join(HABITS)}')
    assert isinstance(layer, int)
    assert isinstance(rank, int)
    if layer >= len(atlas.layers):
        raise unknown(
            f"there is no attention {layer}; there are {len(atlas.layers)}, counted from 0"
        )
    numbers = [own for name, own in atlas.places if name == atlas.layers[layer]]
    if number not in numbers:
        raise unknown(f'there is no head {number} of "{atlas.layers[layer]}"')
    # An atlas keeps at most five texts of each habit, the strongest first.
    found = atlas.evidence(atlas.layers[layer], number, habit)
    if rank >= len(found):
        raise unknown(
            f'there is no text {rank} of this head for "{habit}"; there are {len(found)}, counted '
            "from 0"
        )
    return found[rank]


def find_model(atlas: Atlas, names: list[str], open_model: Callable[[str], Model]) -> str:
    """Return the name of the model that an atlas is of, by a checksum of its weights, or raise
    Refusal 409.

    A model of transformers is found by its size: Telescope's own classes give its weights other
    names.
    """
    wanted = atlas.about.get("model", {})
    of_the_size = []
    for name in names:
        # A model that cannot be loaded is passed over: another may be the right one.
        try:
            model = open_model(name)
        except Refusal:
            continue
        # Sizes are compared first: a checksum reads all weights.
        if sum(parameter.numel() for parameter in model.parameters()) != wanted.get("parameters"):
            continue
        # Of another class, a model of the same size may be the same model under other names.
        if type(model).__name__ != wanted.get("class"):
            of_the_size.append(name)
        elif "weights" not in wanted:
            raise not_kept(
                "this atlas was written by an earlier version, so its model cannot be told; make "
                "it again"
            )
        elif any(weights_checksum(model, dtype) == wanted["weights"] for dtype in MODEL_DTYPES):
            return name
    # Two of one size cannot be told apart, so neither is taken.
    if len(of_the_size) == 1:
        return of_the_size[0]
    raise not_kept(
        f"the model of this atlas, a {wanted.get('class')} with {wanted.get('parameters', 0):,} "
        "parameters, is not "
        "here: telescope serve ATLAS --model FOLDER opens it"
    )


def read_evidence(atlas: Atlas, evidence: Evidence, model: Model) -> tuple[str, bool]:
    """Return the text, and whether it is all that the atlas read: else it is the beginning, which
    the atlas holds.

    The corpus is read only where its file still begins at that place as the atlas says. A file that
    an atlas names can so not be made to show anything that the atlas does not know.
    """
    tokenizer = model.tokenizer
    # Line 0 is a text without a place in a file.
    found = (
        text_at(evidence.source, evidence.line, str(atlas.about.get("column", "text")))
        if evidence.line
        else None
    )
    # Cut the tokens that the atlas read, and compare their beginning with the excerpt.
    if found is not None and tokenizer is not None:
        ids = encoder_of(tokenizer)(found)[evidence.first : evidence.first + evidence.tokens]
        if tokenizer.decode(ids[:EXCERPT]) == evidence.excerpt and len(ids) == evidence.tokens:
            return tokenizer.decode(ids), True
    return evidence.excerpt, evidence.tokens <= EXCERPT
