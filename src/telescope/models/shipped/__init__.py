"""Models that come with the package: a folder each, as `model.save` writes it, and its card, README.md."""

from pathlib import Path

HERE = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """The folders, by name."""
    return {config.parent.name: config.parent for config in sorted(HERE.glob("*/config.json"))}
