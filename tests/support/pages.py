"""What tests need of tools/: blocks.py, which runs code blocks of pages, and names.py, which writes the reference."""

from pathlib import Path

from tools import blocks, names

HOME = Path(__file__).parents[2]

__all__ = ["HOME", "blocks", "names"]
