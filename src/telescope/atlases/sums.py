"""`AtlasSums`: everything that an atlas adds up over a corpus, in memory that does not grow with
the corpus.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..measures import BACK, BUCKETS, HABITS, OF_QUERIES, OF_TEXTS, ROWS
from .exact import Distribution, ExactSum, edges_table, linear_edges, log_edges, signed_log_edges
from .measure import CLASSES, BatchMeasures, LayerHeads, send, whole_numbers

STATISTICS = (*OF_TEXTS, *OF_QUERIES)
"""The measures of `recording.heads()`, distributed over the texts, and those of each query, over
all queries.
"""
EVIDENCE = 5  # texts that are kept for each head and habit
LEAST_QUERIES = {"same": 4, "induction": 4}  # that must count in a text, for it to be evidence
LEAST = 8  # of all other habits
GROUPS = 64  # of texts, whose sums tell how much a share varies from text to text
MAP_BITS = 32  # of the fraction of a map's cell
# The sums that have a row for each group of texts.
GROUPED = ("group_numerator", "group_denominator")
# The bins of the quantile sketch of each statistic; those that are not here are shares.
BINS_OF = {
    "spread": log_edges(1.0, 2.0**20),
    "entropy": linear_edges(0.0, 16.0),
    "logit": signed_log_edges(0.01, 1e6),
}
EDGES = edges_table(BINS_OF.get(name) or linear_edges(0.0, 1.0) for name in STATISTICS)
# The habits of version 0.1, whose files do not name their measures.
OLD_HABITS = ("itself", "previous", "first", "sink", "same", "induction", "punctuation", "far")
NAMES = {"habits": HABITS, "texts": OF_TEXTS, "queries": OF_QUERIES}
"""The measures in the order of the tensors; a file has its own, so that measures can be added."""
NAMES_OF_0_1 = {
    "habits": OLD_HABITS,
    "texts": (*OLD_HABITS, "spread"),
    "queries": ("entropy", "peak", "logit"),
}
"""Those of a file that has none."""


class AtlasSums:
    """Sums over the texts read so far, of every head of a model. Two of them merge exactly; see
    exact.py.
    """

    def __init__(self, layers: Sequence[LayerHeads]) -> None:
        self.layers = [*layers]
        heads = sum(len(layer.heads) for layer in self.layers)
        self.distribution = Distribution(EDGES, heads)
        self.numerator = ExactSum.zeros(len(OF_TEXTS), heads)
        self.denominator = ExactSum.zeros(len(OF_TEXTS), heads)
        self.group_numerator: ExactSum | None = ExactSum.zeros(GROUPS, len(HABITS), heads)
        self.group_denominator: ExactSum | None = ExactSum.zeros(GROUPS, len(HABITS), heads)
        """Of the habits, by group of texts, see `group_of`; None in a file of an earlier version,
        which has none.
        """
        # The weight by distance, position and token class; distances are of `sampled` queries.
        self.distances = ExactSum.zeros(heads, BUCKETS)
        self.sampled = ExactSum.zeros(heads)
        self.positions = ExactSum.zeros(heads, BACK)
        self.classes = ExactSum.zeros(heads, len(CLASSES))
        self.maps: dict[int, Int[Tensor, "heads row column"]] = {}
        """The sum of the maps of the texts of 2^(k - 1) + 1 to 2^k tokens, by k, in units of 2^-32.
        """
        self.map_texts: dict[int, Int[Tensor, " heads"]] = {}
        # -1 marks a place that no text has taken yet.
        self.evidence_share = torch.full((len(HABITS), heads, EVIDENCE), -1.0, dtype=torch.float64)
        self.evidence_text = torch.full((len(HABITS), heads, EVIDENCE, 2), -1, dtype=torch.int64)
        """The number of the text, and its first token within the text."""
        self.class_tokens = torch.zeros(len(CLASSES), dtype=torch.int64)
        self.texts = self.tokens = 0

    def add(
        self,
        measures: Sequence[BatchMeasures],
        places: Int[Tensor, "text 2"],
        lengths: Sequence[int],
        class_tokens: Int[Tensor, " class"],
    ) -> None:
        """Add a batch: its measures, the place of each text in the corpus, its tokens, and how many
        of each class.
        """
        device = self.evidence_share.device
        # The places come from the host, and the sums may live on a GPU.
        groups = send(group_of(places[:, 0]), device)
        places = send(places, device)
        for part in measures:
            own = part.heads
            self._add_measures(part, groups)
            # In the distribution, the statistics of queries stand behind those of texts.
            for i, name in enumerate(OF_QUERIES):
                numbers = part.queries[name].to(device)
                counted = part.counted.to(device)
                self.distribution.add(len(OF_TEXTS) + i, own, numbers[None], counted)
            sampled = part.sampled.to(device)
            # Cross-attention has no distances: its keys are another sequence.
            if part.distances is not None:
                self.distances[own].add(part.distances.to(device))
                self.sampled[own].add(sampled[:, None].expand(-1, own.stop - own.start))
            self.positions[own].add(part.positions.to(device))
            self.classes[own].add(part.classes.to(device))
            self._add_maps(own, part.map.to(device), lengths)
            self._add_evidence(part, places)
        self.class_tokens += send(class_tokens, device)
        self.texts += len(lengths)
        self.tokens += sum(lengths)

    def count_out(self, tokens: int, class_tokens: Int[Tensor, " class"]) -> None:
        """Uncount a text that turned out not to be finite; its measures were zeros."""
        self.texts -= 1
        self.tokens -= tokens
        self.class_tokens -= class_tokens.to(self.class_tokens.device)

    def _add_measures(self, part: BatchMeasures, groups: Int[Tensor, " text"]) -> None:
        device = self.evidence_share.device
        own = part.heads
        numerator, denominator, known = (
            numbers.to(device) for numbers in (part.numerator, part.denominator, part.known)
        )
        for sums, numbers in ((self.numerator, numerator), (self.denominator, denominator)):
            sums[:, own].add(numbers)
        # Habits come first among the measures; they alone have sums by group of texts.
        for by_group, numbers in (
            (self.group_numerator, numerator),
            (self.group_denominator, denominator),
        ):
            if by_group is not None:
                by_group[..., own].add_to_rows(groups, numbers[:, : len(HABITS)])

        # The distribution over texts takes each text's own share; NaN is not counted.
        share = torch.where(known, numerator / denominator, torch.nan)
        self.distribution.add(0, own, share.transpose(0, 1)[..., None])

    def _add_maps(
        self, own: slice, maps: Float[Tensor, "text heads row column"], lengths: Sequence[int]
    ) -> None:
        heads = self.evidence_share.shape[1]
        # Texts of fewer than ROWS tokens have no map; the others are grouped by length.
        for k in sorted({_length_class(length) for length in lengths if length >= ROWS}):
            which = [
                i
                for i, length in enumerate(lengths)
                if length >= ROWS and _length_class(length) == k
            ]
            if k not in self.maps:
                empty = torch.zeros(heads, ROWS, ROWS, dtype=torch.int64, device=maps.device)
                self.maps[k] = empty
                self.map_texts[k] = empty[:, 0, 0].clone()
            # Spare the copy where all texts of the batch are of one class.
            chosen = (
                maps if len(which) == len(maps) else maps[send(torch.tensor(which), maps.device)]
            )
            # Round each cell once and add integers, so that the order of texts does not matter.
            self.maps[k][own] += (chosen * 2**MAP_BITS).round().long().sum(0)
            # Count only maps with weight: `lengths` are of an encoder's texts, not its decoder's.
            self.map_texts[k][own] += (chosen.sum((2, 3)) > 0).sum(0)

    def _add_evidence(self, part: BatchMeasures, places: Int[Tensor, "text 2"]) -> None:
        device = self.evidence_share.device
        own = part.heads
        numerator = part.numerator.to(device)
        denominator = part.denominator.to(device)
        habits = len(HABITS)
        # A share over few queries is no evidence: -1 ranks such a text last.
        least = whole_numbers([LEAST_QUERIES.get(name, LEAST) for name in HABITS], device)[:, None]
        enough = part.known.to(device)[:, :habits] & (denominator[:, :habits] >= least)
        share = torch.where(enough, numerator[:, :habits] / denominator[:, :habits], -1.0).permute(
            1, 2, 0
        )
        # Keep the strongest of the texts so far and of this batch.
        where = places[None, None].expand(habits, share.shape[1], -1, -1)
        self.evidence_share[:, own], self.evidence_text[:, own] = _strongest(
            torch.cat([self.evidence_share[:, own], share], 2),
            torch.cat([self.evidence_text[:, own], where], 2),
        )

    def merge(self, other: "AtlasSums") -> None:
        """Add the sums of other texts of the same model."""
        if self.layers != other.layers:
            raise ValueError("these sums are of models with other attentions, and cannot be merged")
        self.distribution.merge(other.distribution)
        # Groups of only some of the texts would give a wrong error: keep no groups.
        if self.group_numerator is None or other.group_numerator is None:
            self.group_numerator = self.group_denominator = None
        its = other._sums()
        for name, mine in self._sums().items():
            mine.merge(its[name])
        # A class of lengths may be new here.
        for k, cells in other.maps.items():
            self.maps[k] = self.maps[k] + cells if k in self.maps else cells.clone()
            more = other.map_texts[k]
            self.map_texts[k] = self.map_texts[k] + more if k in self.map_texts else more.clone()
        self.evidence_share, self.evidence_text = _strongest(
            torch.cat([self.evidence_share, other.evidence_share], 2),
            torch.cat([self.evidence_text, other.evidence_text], 2),
        )
        self.class_tokens = self.class_tokens + other.class_tokens
        self.texts += other.texts
        self.tokens += other.tokens

    def influences(self, habit: str) -> Float[Tensor, "group heads"]:
        """Return by how much each group of texts moves each head's share of a habit; the influences
        sum to zero.

        A share is a ratio R = Y / X of two sums over texts: of the weight, and of the queries that
        count. To first order, a group with the sums y and x contributes (y - R x) / X to the
        deviation of R. NaN for a group without queries that count, and for all groups where a file
        of an earlier version has none.
        """
        if self.group_numerator is None or self.group_denominator is None:
            return torch.full(
                (GROUPS, self.evidence_share.shape[1]), torch.nan, dtype=torch.float64
            )
        i = HABITS.index(habit)
        weight = self.group_numerator.value[:, i]
        queries = self.group_denominator.value[:, i]
        total = queries.sum(0)
        # y - R x of each group, with R of the whole corpus.
        deviation = weight - weight.sum(0) / total * queries
        return torch.where(queries > 0, deviation / total, torch.nan)

    def _sums(self) -> dict[str, ExactSum]:
        return {name: part for name, part in vars(self).items() if isinstance(part, ExactSum)}

    def to(self, device: torch.device | str) -> "AtlasSums":
        """Return the sums on a device; ints are copied as they are."""
        # Skip __init__, which would allocate zeros of the full size first.
        moved = AtlasSums.__new__(AtlasSums)
        moved.__dict__ = {
            name: value.to(device) if isinstance(value, Tensor | ExactSum | Distribution) else value
            for name, value in vars(self).items()
        }
        # Tensors in a dict are moved one by one.
        moved.maps = {k: cells.to(device) for k, cells in self.maps.items()}
        moved.map_texts = {k: count.to(device) for k, count in self.map_texts.items()}
        moved.layers = [*self.layers]
        return moved

    # ------------------------------------------------------------------------------------- as files

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors, for a safetensors file; `description` has the rest."""
        found = {f"distribution.{name}": part for name, part in self.distribution.tensors().items()}
        for name, sums in self._sums().items():
            found |= {f"{name}.{part}": tensor for part, tensor in sums.tensors().items()}
        # In the order of k: the order in which lengths came up depends on how many processes shared
        # the corpus.
        found |= {f"map.{k}": cells for k, cells in sorted(self.maps.items())}
        found |= {f"map_texts.{k}": count for k, count in sorted(self.map_texts.items())}
        found |= {"evidence.share": self.evidence_share, "evidence.text": self.evidence_text}
        found["class_tokens"] = self.class_tokens
        return {name: tensor.cpu().contiguous() for name, tensor in found.items()}

    def description(self) -> dict[str, Any]:
        """Return what is no tensor, for JSON."""
        layers = [[layer, [*heads], across] for layer, heads, across in self.layers]
        names = {axis: [*own] for axis, own in NAMES.items()}
        return {"layers": layers, "texts": self.texts, "tokens": self.tokens, "names": names}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> "AtlasSums":
        """Return the sums of a file, whose description was checked; a ValueError where the tensors
        do not fit it.

        Measures that the file lacks have no sums, and those that are unknown here are left out: see
        `unknown_measures`.
        """
        layers = [
            LayerHeads(layer, tuple(heads), across)
            for layer, heads, across in description["layers"]
        ]
        heads = sum(len(layer.heads) for layer in layers)
        # Before memory is taken: each head needs tens of kilobytes, and may be a few characters of
        # JSON.
        _check_tensor("sampled.whole", tensors, (heads,), torch.int64)
        sums = cls(layers)
        if f"{GROUPED[0]}.whole" not in tensors:  # of an earlier version
            sums.group_numerator = sums.group_denominator = None

        # A class of lengths has a map and its number of texts.
        for k in map(str, range(64)):
            if f"map.{k}" in tensors:
                sums.maps[int(k)] = torch.zeros(heads, ROWS, ROWS, dtype=torch.int64)
                sums.map_texts[int(k)] = torch.zeros(heads, dtype=torch.int64)
        # On the CPU these share their memory with `sums`: copying into them fills the sums.
        own = sums.tensors()
        for name in tensors.keys() - own.keys():
            raise ValueError(f'it has a tensor "{name}", which sums do not have')

        # Rows of measures are found by name.
        mine = _names_of_tensors(NAMES)
        theirs = _names_of_tensors(description.get("names", NAMES_OF_0_1))
        for name, tensor in own.items():
            part = name.partition(".")[0]
            axis = heads_axis(name) - 1
            shape = list(tensor.shape)
            if part in mine:
                # The file may have more or fewer measures than this version.
                shape[axis] = len(theirs[part])
            _check_tensor(name, tensors, tuple(shape), tensor.dtype)
            if part not in mine or mine[part] == theirs[part]:
                tensor.copy_(tensors[name])
                continue
            # Copy the measures that both versions know, each to its own row.
            common = [each for each in mine[part] if each in theirs[part]]
            here, there = (
                torch.tensor([names.index(each) for each in common], dtype=torch.long)
                for names in (mine[part], theirs[part])
            )
            tensor.index_copy_(axis, here, tensors[name].index_select(axis, there))
        sums.texts = description["texts"]
        sums.tokens = description["tokens"]
        return sums


def _names_of_tensors(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the measures along the axis before the heads, by the first part of a tensor's name."""
    habits = [*names["habits"]]
    texts = [*names["texts"]]
    found = {"distribution": [*texts, *names["queries"]], "numerator": texts, "denominator": texts}
    return found | dict.fromkeys(("evidence", *GROUPED), habits)


def heads_axis(name: str) -> int:
    """Return the axis of the heads in a tensor of AtlasSums; in front of it stand the measures."""
    part = name.partition(".")[0]
    if part in GROUPED:
        return 2
    return 1 if part in ("distribution", "numerator", "denominator", "evidence") else 0


def has_own_measures(description: Mapping[str, Any]) -> bool:
    """Return whether a file has the measures of this version, neither more nor fewer."""
    names = description.get("names", NAMES_OF_0_1)
    return _names_of_tensors(names) == _names_of_tensors(NAMES)


def unknown_measures(description: Mapping[str, Any]) -> list[str]:
    """Return the measures of a file that this version does not know, by its description."""
    found = _names_of_tensors(description.get("names", NAMES_OF_0_1))["distribution"]
    return [name for name in found if name not in STATISTICS]


def _check_tensor(
    name: str, tensors: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Raise a ValueError unless there is a tensor of this name, shape and dtype."""
    if name not in tensors:
        raise ValueError(f'its tensor "{name}" is missing')
    given = tensors[name]
    if tuple(given.shape) != shape or given.dtype != dtype:
        raise ValueError(
            f'its tensor "{name}" is {given.dtype} of shape {list(given.shape)}, and should be '
            f"{dtype} of {list(shape)}"
        )


def error_of_sum(influences: Float[Tensor, "group heads"]) -> Float[Tensor, " heads"]:
    """Return the standard error of a share, or of a difference of shares, from the influences of n
    groups of texts.

    It is √(n / (n - 1) · Σ influence²); NaN for fewer than two groups. Influences that are NaN are
    left out.
    """
    count = (~influences.isnan()).sum(0)
    squares = influences.square().nansum(0)
    # The clamp avoids a division by zero where the result is NaN anyway.
    return torch.where(count > 1, (squares * count / (count - 1).clamp(min=1)).sqrt(), torch.nan)


def group_of(texts: Int[Tensor, " text"]) -> Int[Tensor, " text"]:
    """Return the group of each text, from its number in the corpus.

    Of each 64 texts in a row, every group gets one. The first 64 texts are in the groups 0 to 63;
    later ones are permuted anew each time, so that a corpus whose kinds of text alternate has all
    kinds in every group.
    """
    # Multiply by 2^32 over the golden ratio, so that the high bits of neighbours differ.
    mixed = texts // GROUPS * 2654435761 % 2**32
    # An odd factor permutes the 64 groups, and a shift rotates them; both come from high bits.
    factor = 2 * (mixed >> 26 & 31) + 1
    shift = mixed >> 20 & 63
    return (texts * factor + shift) % GROUPS


def _length_class(length: int) -> int:
    """Return k for a text of 2^(k - 1) + 1 to 2^k tokens."""
    return max(length - 1, 0).bit_length()


def _strongest(
    share: Float[Tensor, "habit heads candidate"], text: Int[Tensor, "habit heads candidate 2"]
) -> tuple[Tensor, Tensor]:
    """Return the EVIDENCE candidates with the largest shares; of equal ones, the first in the
    corpus.

    A text that is there twice, which merging a corpus with itself brings about, stays twice.
    """
    # Sort by first token, then stably by text: this is the order of the corpus.
    for axis in (1, 0):
        order = text[..., axis].sort(dim=2, stable=True).indices
        share = share.gather(2, order)
        text = text.gather(2, order[..., None].expand_as(text))
    # A stable sort keeps that order among equal shares.
    order = share.sort(dim=2, descending=True, stable=True).indices[..., :EVIDENCE]
    return share.gather(2, order), text.gather(2, order[..., None].expand(*order.shape, 2))
