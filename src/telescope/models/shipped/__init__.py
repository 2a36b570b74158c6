"""Models that come with the package: a folder each, as `model.save` writes it, and its card, README.md."""

import os
from pathlib import Path

HERE = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """The folders, by name."""
    return {config.parent.name: config.parent for config in sorted(HERE.glob("*/config.json"))}


def by_name(name: str | os.PathLike[str]) -> Path | None:
    """The folder of the model that ships under this name, unless something here has it too."""
    return None if os.path.lexists(name) else shipped().get(os.fspath(name))
