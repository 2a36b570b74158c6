"""Corrupt one or two files of a folder."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from .changes import Files, of_bytes, of_gzip, of_json, of_safetensors, of_text, of_toml
from .hostile import of_config, of_parquet, of_tokenizer

BY_NAME: dict[str, Callable[[bytes, Random], bytes]] = {
    "tokenizer.json": of_tokenizer,
    "config.json": of_config,
}
BY_ENDING: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": of_json,
    ".safetensors": of_safetensors,
    ".toml": of_toml,
    ".gz": of_gzip,
    ".bin": of_bytes,
    ".parquet": of_parquet,
}


def corrupt(folder: Path, files: Files, dice: Random) -> str:
    """Change one or two of the files in the folder; return what was done."""
    names = sorted(files)
    done = []
    chosen = dice.sample(names, min(len(names), dice.choice((1, 1, 1, 2))))
    described = [name for name in ("recording.json", "atlas.json") if name in files]
    if described and dice.random() < 0.5:
        chosen = described  # nearly everything stands there
    for name in chosen:
        file = folder / name
        contents = files[name]
        kind = BY_NAME.get(file.name) or BY_ENDING.get(file.suffix, of_text)
        chance = dice.random()
        if chance < 0.75:
            done.append(f"{name} by {kind.__name__}")
            file.unlink(missing_ok=True)
            file.write_bytes(kind(contents, dice))
        elif chance < 0.87:
            done.append(f"{name} by of_bytes")
            file.unlink(missing_ok=True)
            file.write_bytes(of_bytes(contents, dice))
        else:
            done.append(f"{name} {_otherwise(file, names, files, dice)}")
    return ", ".join(done)


def _otherwise(file: Path, names: list[str], files: Files, dice: Random) -> str:
    """Replace the file by something that is not a file of its kind."""
    file.unlink(missing_ok=True)
    what = dice.choice(
        ("gone", "another", "folder", "pipe", "link out", "link in a circle", "empty", "device")
    )
    match what:
        case "another":
            file.write_bytes(files[dice.choice(names)])
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "link out":
            outside = file.parents[len(Path(file.name).parts)] / "outside"
            outside.write_bytes(files[dice.choice(names)])
            file.symlink_to(outside)
        case "link in a circle":
            file.symlink_to(file)
        case "empty":
            file.write_bytes(b"")
        case "device":
            file.symlink_to("/dev/zero")
    return what
