"""Check the JSON of an atlas, and of a part of an unfinished one, field by field, before anything
is made of it.
"""

from collections.abc import Mapping
from typing import Any

from ..files.errors import LoadError

LARGEST = 2**62  # counts and numbers must be smaller, so that the sum of two fits into an int64
MOST_SHARDS = 1 << 24  # of a run: at 65,536 characters each, a terabyte of text


def check_atlas(manifest: Mapping[str, Any], where: str) -> None:
    """Raise a LoadError where a field of atlas.json is missing, or is not what an atlas writes;
    `where` is the file.
    """
    check_part(manifest, where)
    if not _is_about(manifest.get("about")):
        raise _error(where, "about", "an object with the class and the parameters of a model")
    checksums = manifest.get("crc32_of_sums")
    if not isinstance(checksums, dict) or not all(map(_is_count, checksums.values())):
        raise _error(where, "crc32_of_sums", "a checksum of each tensor")


def check_part(header: Mapping[str, Any], where: str) -> None:
    """Raise a LoadError where a field that every file of sums has is missing, or is not what an
    atlas writes.
    """
    if not _is_sums(header.get("sums")):
        raise _error(
            where,
            "sums",
            "layers, each [name, numbers of its heads, across], and counts of texts and tokens",
        )
    if not _is_skipped(header.get("skipped")):
        raise _error(where, "skipped", "a count, and texts as [number, reason]")
    evidence = header.get("evidence")
    if not isinstance(evidence, list) or not all(map(_is_evidence, evidence)):
        raise _error(where, "evidence", "a list of [text, first token, where the text is from]")
    if not _is_count(header.get("read_texts")):
        raise _error(where, "read_texts", "a count")
    left_out = header.get("left_out", [])  # atlases of earlier versions have none
    if not isinstance(left_out, list) or not all(map(_is_text, left_out)):
        raise _error(where, "left_out", "a list of names")


def check_done(ranges: Any, where: str) -> None:
    """Raise a LoadError unless these are ranges of shards, [first, stop], in ascending order."""
    stop = 0
    for each in ranges if isinstance(ranges, list) else [None]:
        match each:
            case [int(first), int(past)] if stop <= first < past <= MOST_SHARDS:
                stop = past
            case _:
                raise _error(where, "done", "a list of ranges of shards")


def _error(where: str, field: str, fits: str) -> LoadError:
    return LoadError(f'{where}: "{field}" is missing, or not {fits}')


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_text(value: Any) -> bool:
    """Return whether this is a text that can be written as UTF-8, which "\\ud800" of JSON
    cannot.
    """
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_about(about: Any) -> bool:
    """Return whether the fields of a model are there in their types; everything else is only
    compared.
    """
    model = about.get("model", {}) if isinstance(about, dict) else None
    if not isinstance(model, dict):
        return False
    return _is_text(model.get("class", "")) and _is_count(model.get("parameters", 0))


def _is_sums(sums: Any) -> bool:
    match sums:
        case {"layers": [*layers], "texts": texts, "tokens": tokens}:
            names = [layer[0] for layer in layers if _is_layer(layer)]
            return _is_count(texts) and _is_count(tokens) and len(set(names)) == len(layers)
    return False


def _is_layer(layer: Any) -> bool:
    match layer:
        case [name, [_, *_] as heads, bool()]:
            return _is_text(name) and all(map(_is_count, heads)) and len(set(heads)) == len(heads)
    return False


def _is_skipped(skipped: Any) -> bool:
    match skipped:
        case {"count": count, "texts": [*texts]} if _is_count(count):
            return all(
                isinstance(each, list)
                and len(each) == 2
                and _is_count(each[0])
                and isinstance(each[1], str)
                for each in texts
            )
    return False


def _is_evidence(evidence: Any) -> bool:
    match evidence:
        case [
            text,
            first,
            {"source": str(), "line": line, "tokens": tokens, "excerpt": str(), **rest},
        ]:
            return not rest and all(map(_is_count, (text, first, line, tokens)))
    return False
