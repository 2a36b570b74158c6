"""Answers about atlases: the list of them, all heads of one, one head with its evidence, and two
compared.
"""

from collections.abc import Mapping
from typing import Any

from ..atlases import STATISTICS, Atlas, compare
from ..measures import CLEAR, HABIT_KEYS, HABITS, MEASURES
from .requests import Refusal, RequestParams, unknown

Rows = dict[tuple[str, int], dict[str, Any]]


class Atlases:
    """The atlases that the explorer can show, by name."""

    def __init__(self) -> None:
        self.opened: dict[str, Atlas] = {}
        self._rows: dict[str, Rows] = {}

    def add(self, name: str, atlas: Atlas) -> str:
        """Add an atlas under a name that no other has, and return the name."""
        while name in self.opened:
            name += "-2"
        self.opened[name] = atlas
        return name

    def answer(self, place: list[str], parameters: Mapping[str, str]) -> Any:
        """Return the answer to GET /atlases/..., as JSON would hold it."""
        params = RequestParams(parameters)
        match place:
            case []:
                return {"atlases": [self._describe(name) for name in self.opened]}
            case [name]:
                return self._describe(name) | {"heads": _heads(self.rows(name))}
            case [name, "head"]:
                return _head(self.atlas(name), self.rows(name), params)
            case [name, "compare", other]:
                return _compared(self.atlas(name), self.atlas(other))
        raise Refusal(404, "unknown", f"there is nothing at /atlases/{'/'.join(place)[:60]}")

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

    def _describe(self, name: str) -> dict[str, Any]:
        atlas = self.atlas(name)
        return {
            "atlas": name,
            "model": atlas.about.get("model", {}).get("class"),
            "texts": atlas.texts,
            "tokens": atlas.tokens,
            "skipped": atlas.skipped_count,
            "layers": [*atlas.layers],
            "columns": [*STATISTICS],
            "shares": [name for name in STATISTICS if MEASURES[name].is_share],
            "habit_keys": HABIT_KEYS,
            "clear": CLEAR,
            "maps": {str(longest): count for longest, count in atlas.map_sizes().items()},
        }


def _heads(rows: Rows) -> list[dict[str, Any]]:
    """Return a short dict for each head: its layer, number, kind, and the mean of every column;
    null if unknown.
    """
    return [
        {name: row[name] for name in ("layer", "head", "kind", *STATISTICS)}
        for row in rows.values()
    ]


def _head(atlas: Atlas, rows: Rows, params: RequestParams) -> dict[str, Any]:
    """Return everything about one head."""
    layer = atlas.layers[params.index("l", len(atlas.layers), "attention")]
    numbers = [number for own, number in atlas.places if own == layer]
    number = numbers[params.index("h", len(numbers), "head")]
    row = rows[layer, number]
    profiles = {
        by: {
            "labels": [*profile.labels],
            "shares": [None if share != share else share for share in profile.shares],
        }
        for by in ("distance", "position", "class")
        for profile in [atlas.profile(layer, number, by)]
    }
    evidence = {
        habit: [text._asdict() for text in atlas.evidence(layer, number, habit)] for habit in HABITS
    }
    sizes = atlas.map_sizes()
    maps = {str(longest): atlas.map(layer, number, longest).tolist() for longest in sizes}
    plain = {name: value for name, value in row.items() if not name.endswith("_profile")}
    return {**plain, "profiles": profiles, "evidence": evidence, "maps": maps}


def _compared(before: Atlas, after: Atlas) -> dict[str, Any]:
    try:
        return {"heads": compare(before, after).to_dict()}
    except ValueError as problem:
        raise Refusal(409, "other-shape", str(problem)) from None
