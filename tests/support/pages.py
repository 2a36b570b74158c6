"""What tests need of docs/: blocks.py, which runs code blocks of pages, and names.py, which writes the reference."""

import importlib.util
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]


def _load(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", HOME / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


blocks = _load("blocks")
names = _load("names")
