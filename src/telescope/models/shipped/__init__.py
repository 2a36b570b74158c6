"""Models shipped with the package: one folder each, as `model.save` writes it, with a model card,
README.md.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def shipped_models() -> dict[str, Path]:
    """Return the folders of the shipped models, by name."""
    return {config.parent.name: config.parent for config in sorted(FOLDER.glob("*/config.json"))}


def find_shipped(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the model shipped under this name; None if there is none, or if the path
    `name` exists.
    """
    return None if os.path.lexists(name) else shipped_models().get(os.fspath(name))
