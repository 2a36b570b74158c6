"""Make the checksums of a corrupted folder right again, as whoever writes a file can do."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .changes import Files, dumped


def left_out(files: Files, dice: Random) -> Files:
    """Return a recording, sometimes as earlier versions wrote it: without checksums."""
    if dice.random() < 0.7:
        return files
    parsed = json.loads(files["recording.json"])
    for part in (
        parsed,
        *(call for attention in parsed["attentions"] for call in attention["calls"]),
    ):
        part.pop("crc32", None)
    return files | {"recording.json": dumped(parsed)}


def mend_recording(folder: Path) -> None:
    """Compute the checksums of each call's tensors, and that of the description."""

    def mend(manifest: dict[str, Any]) -> None:
        for attention in manifest["attentions"]:
            for call in attention["calls"]:
                if "crc32" in call:
                    call["crc32"] = tensor_checksums(folder / call["file"])

    mend_manifest(folder / "recording.json", mend)


def mend_atlas(folder: Path) -> None:
    """Compute the checksums of the sums, and that of the description."""

    def mend(manifest: dict[str, Any]) -> None:
        if "crc32_of_sums" in manifest:
            manifest["crc32_of_sums"] = tensor_checksums(folder / "sums.safetensors")

    mend_manifest(folder / "atlas.json", mend)


def mend_manifest(file: Path, mend: Callable[[dict[str, Any]], None]) -> None:
    """Change a description by `mend`, as far as the description can be read, and make its own
    checksum right.
    """
    from telescope.files import paths
    from telescope.files.safetensors import manifest_checksum
    from telescope.models import LoadError

    try:
        manifest = paths.read_json(file)
    except LoadError:
        return
    with suppress(LookupError, TypeError, ValueError):  # corrupted beyond that
        mend(manifest)
    if "crc32" in manifest:
        file.unlink()
        file.write_bytes(dumped(manifest | {"crc32": manifest_checksum(manifest)}))


def tensor_checksums(file: Path) -> dict[str, int]:
    from telescope.files.safetensors import scan_file, tensor_checksum

    return {name: tensor_checksum(tensor) for name, tensor in scan_file(file).read_all().items()}
