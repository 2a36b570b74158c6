"""The folder of an atlas: atlas.json, exact sums, Parquet tables and a card. Its format:
docs/atlas.md.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..files import import_optional, paths, safetensors
from ..files.atomic import atomic_folder, resolve_path, write_json
from ..files.errors import LoadError
from .description import check_atlas
from .sums import AtlasSums

FILE = "atlas.json"
SUMS = "sums.safetensors"
CARD = "README.md"
KIND = "telescope atlas"
VERSION = 1
TABLES = ("heads.parquet", "evidence.parquet", "maps.parquet")
REPLACE = "replace=True, or --replace, replaces it"
Rows = Iterable[Mapping[str, Any]]


def check_can_save(path: str | os.PathLike[str], *, replace: bool) -> None:
    """Raise a ValueError where `path` is a file, holds other files, or holds an atlas and `replace`
    is False.
    """
    place = resolve_path(path)
    if place.is_dir():
        names = sorted(os.listdir(place))
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
    tensors = _read_tensors(folder / SUMS, manifest["crc32_of_sums"])
    try:
        sums = AtlasSums.load(tensors, manifest["sums"])
    except ValueError as problem:
        raise LoadError(f"{folder / SUMS} does not fit {FILE}: {problem}") from None
    return sums, manifest["about"], manifest


def _read_tensors(file: Path, checksums: Mapping[str, int]) -> dict[str, Tensor]:
    stored = safetensors.scan_file(file)
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
