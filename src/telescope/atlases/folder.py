"""The folder of an atlas: atlas.json, exact sums, Parquet tables and a card; and the hub, where a
dataset repository has these files. The format: docs/atlas.md.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..files import (
    LoadError,
    atomic_folder,
    import_optional,
    paths,
    resolve_path,
    safetensors,
    write_json,
)
from ..measures import HABIT_KEYS
from ..recording import Heads
from ..words import counted
from .sums import AtlasSums, unknown_measures

FILE = "atlas.json"
SUMS = "sums.safetensors"
CARD = "README.md"
KIND = "telescope atlas"  # the field "is" of atlas.json
VERSION = 1  # of the format of the folder
TABLES = ("heads.parquet", "evidence.parquet", "maps.parquet")
REPLACE = "replace=True, or --replace, replaces it"
CLEAREST = 12  # heads that the card lists
LARGEST = 2**62  # counts and numbers must be smaller, so that the sum of two fits into an int64
MOST_SHARDS = 1 << 24  # of a run: at 65,536 characters each, a terabyte of text
Rows = Iterable[Mapping[str, Any]]


def check_can_save(path: str | os.PathLike[str], *, replace: bool) -> None:
    """Raise a ValueError where `path` is a file, holds other files, or holds an atlas and `replace`
    is False.
    """
    place = resolve_path(path)
    if place.is_dir():
        names = sorted(os.listdir(place))
        # Replacing a folder removes all of it: refuse one with files of others.
        unknown = [name for name in names if name not in (FILE, SUMS, CARD, *TABLES)]
        if unknown:
            raise ValueError(
                f"{place} holds {unknown[0]}, which would be lost; write the atlas to a new folder"
            )
        if names and not replace:
            raise ValueError(f"{place} holds an atlas already; {REPLACE}")
    elif place.exists():
        raise ValueError(f"{place} is a file; an atlas is a folder")


def write_folder(
    path: str | os.PathLike[str],
    sums: AtlasSums,
    about: Mapping[str, Any],
    rest: Mapping[str, Any],
    tables: Mapping[str, Rows],
    card: str,
    *,
    replace: bool,
) -> None:
    """Write an atlas, as a whole or not at all. Without pyarrow the Parquet tables are left out,
    with a warning.
    """
    # A checksum of each tensor and of the manifest shows damage when the atlas is opened.
    tensors = sums.tensors()
    checksums = {name: safetensors.tensor_checksum(tensor) for name, tensor in tensors.items()}
    manifest = {
        "is": KIND,
        "version": VERSION,
        "about": dict(about),
        "sums": sums.description(),
        **rest,
    }
    manifest["crc32_of_sums"] = checksums
    with atomic_folder(path, lambda place: check_can_save(place, replace=replace)) as folder:
        save_file(tensors, folder / SUMS)
        write_json(folder / FILE, {**manifest, "crc32": safetensors.manifest_checksum(manifest)})
        (folder / CARD).write_text(card, encoding="utf-8")
        # The tables are for other programs: opening an atlas reads none of them.
        if find_spec("pyarrow") is None:
            warnings.warn(
                "the Parquet tables of the atlas are left out, since pyarrow is missing; "
                "pip install 'telescope-attention[atlas]', and save it again",
                stacklevel=4,
            )
        else:
            for name, rows in tables.items():
                _write_parquet(folder / f"{name}.parquet", rows)


def _write_parquet(file: Path, rows: Rows) -> None:
    arrow = import_optional("pyarrow", "a Parquet table", "atlas")
    parquet = import_optional("pyarrow.parquet", "a Parquet table", "atlas")
    parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), file)


def is_atlas(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an atlas."""
    return (Path(path) / FILE).is_file()


def read_folder(path: str | os.PathLike[str]) -> tuple[AtlasSums, dict[str, Any], dict[str, Any]]:
    """Return the sums of an atlas, what it is about, and the rest of its description.

    Raise a LoadError if the folder holds no atlas, is damaged, or is of another version.
    """
    folder = paths.check_exists(path)
    if not paths.is_folder(folder) or FILE not in paths.list_names(folder):
        raise LoadError(f"{folder} is no atlas: it is no folder with {FILE}")
    # Check the kind and the version first: only then the fields are known.
    manifest = paths.read_json(folder / FILE)
    where = str(folder / FILE)
    if manifest.get("is") != KIND:
        raise LoadError(
            f'{where} is not of an atlas: its "is" is {manifest.get("is")!r}, not "{KIND}"'
        )
    if manifest.get("version") != VERSION:
        raise LoadError(
            f"{where} is of version {manifest.get('version')!r}, and this Telescope reads version "
            f"{VERSION}; "
            "open it with the version that wrote it"
        )
    if manifest.get("crc32") != safetensors.manifest_checksum(manifest):
        raise LoadError(f"{where} does not match its checksum: it was damaged, or changed by hand")
    check_atlas(manifest, where)
    # Read the tensors, each against its checksum, then check their shapes.
    tensors = _read_tensors(folder / SUMS, manifest["crc32_of_sums"])
    try:
        sums = AtlasSums.load(tensors, manifest["sums"])
    except ValueError as problem:
        raise LoadError(f"{folder / SUMS} does not fit {FILE}: {problem}") from None
    # A later version may have added measures; the others can be read.
    if unknown := unknown_measures(manifest["sums"]):
        warnings.warn(
            f"{folder} was made by a later version; left out, since unknown here: "
            f"{', '.join(unknown)}",
            stacklevel=4,
        )
    return sums, manifest["about"], manifest


def _read_tensors(file: Path, checksums: Mapping[str, int]) -> dict[str, Tensor]:
    stored = safetensors.scan_file(file)
    # A tensor without a checksum, or a checksum without a tensor.
    for name in stored.keys() ^ checksums.keys():
        raise LoadError(f'{file}: tensor "{name}" and its checksum in {FILE} are not both there')
    tensors = stored.read_all()
    for name, tensor in tensors.items():
        if safetensors.tensor_checksum(tensor) != checksums[name]:
            raise LoadError(
                f'{file}: tensor "{name}" does not match its checksum: the file was damaged or '
                "changed"
            )
    return tensors


# ----------------------------------------------------------------------------- checks of atlas.json


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
            "layers, each [name, numbers of its heads, across], counts of texts and tokens, and the "
            "names of the measures",
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
            # Ranges rise without overlap; the limit bounds the memory that a damaged file asks for.
            case [int(first), int(past)] if stop <= first < past <= MOST_SHARDS:
                stop = past
            case _:
                raise _error(where, "done", "a list of ranges of shards")


def _error(where: str, field: str, fits: str) -> LoadError:
    return LoadError(f'{where}: "{field}" is missing, or not {fits}')


def _is_count(value: Any) -> bool:
    # Not isinstance: True is an int too.
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
            # A layer that is damaged, or has the name of another, makes the lengths differ.
            names = [layer[0] for layer in layers if _is_layer(layer)]
            is_counted = _is_count(texts) and _is_count(tokens)
            return is_counted and len(set(names)) == len(layers) and _is_names(sums.get("names"))
    return False


def _is_names(names: Any) -> bool:
    """Return whether these are the measures of the sums; atlases of version 0.1 do not name them."""
    match names:
        case None:
            return True
        case {"habits": [*habits], "texts": [*texts], "queries": [*queries]}:
            # Statistics of texts and of queries share one axis, so that their names must differ.
            parts = (habits, [*texts, *queries])
            return all(all(map(_is_text, part)) and len({*part}) == len(part) for part in parts)
    return False


def _is_layer(layer: Any) -> bool:
    match layer:
        # At least one head, each with a number of its own.
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
            # No further fields: `Evidence` takes exactly these.
            return not rest and all(map(_is_count, (text, first, line, tokens)))
    return False


# ----------------------------------------------------------------------------------------- the card


def write_card(
    about: Mapping[str, Any], heads: Heads, *, texts: int, tokens: int, skipped: int
) -> str:
    """Return the card as Markdown."""
    model = about.get("model", {})
    missing = []
    if heads.left_out:
        missing = ["", f"The heads of these attentions are missing: {', '.join(heads.left_out)}."]
    # The clearest heads first; "mixed" ones have no share to name.
    named = [head for head in heads if head.kind != "mixed"]
    named.sort(key=lambda head: -float(getattr(head, head.kind)))
    kinds = {kind: len(heads.where(kind=kind)) for kind in (*HABIT_KEYS, "mixed")}
    # The hub reads the block between --- and ---: each table is a configuration.
    lines = [
        "---",
        "tags: [telescope, attention, interpretability]",
        "configs:",
        *[
            f"- config_name: {name.removesuffix('.parquet')}\n  data_files: {name}"
            for name in TABLES
        ],
        "---",
        f"# Atlas of the heads of a {model.get('class', 'model')}",
        "",
        f"{len(heads):,} heads over {counted(texts, 'text')}, {tokens:,} tokens, at most "
        f"{about.get('length')} tokens at once"
        + (f"; {skipped:,} texts could not be read." if skipped else "."),
        *missing,
        "",
        "`ts.open(folder)` opens it, `ts.compare(one, other)` compares two; the tables are Parquet.",
        "",
        "| kind | heads | share of the weight that names it |",
        "|---|---|---|",
        *[
            f"| {kind} | {count} | {HABIT_KEYS.get(kind, 'none clear')} |"
            for kind, count in kinds.items()
            if count
        ],
        "",
        "## The clearest heads",
        "| layer | head | kind | share |",
        "|---|---|---|---|",
        *[
            f"| {head.layer} | {head.number} | {head.kind} | {getattr(head, head.kind):.0%} |"
            for head in named[:CLEAREST]
        ],
        "",
        "A share is the mean over all queries of the corpus that have a choice. How each is "
        "measured: docs/atlas.md",
        "of Telescope.",
    ]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------ the hub


def upload(
    folder: Path, repo: str, *, private: bool = True, token: str | None = None, **options: Any
) -> str:
    """Upload the folder of an atlas to a dataset repository, which is made if it does not exist;
    return its address.
    """
    hub = import_optional("huggingface_hub", "push_to_hub", "atlas").HfApi(token=token)
    hub.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    commit = hub.upload_folder(
        repo_id=repo,
        folder_path=os.fspath(folder),
        repo_type="dataset",
        commit_message="Atlas of heads",
        **options,
    )
    return str(getattr(commit, "commit_url", commit))


def download(
    repo: str, *, revision: str | None = None, token: str | None = None, **options: Any
) -> Path:
    """Download a dataset repository that holds an atlas, and return its folder."""
    hub = import_optional("huggingface_hub", "from_hub", "atlas")
    return Path(
        hub.snapshot_download(repo, repo_type="dataset", revision=revision, token=token, **options)
    )
