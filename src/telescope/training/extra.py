"""What training needs besides: telescope[train]. It is imported where it is used, so that nothing else waits for it."""

from importlib import import_module
from typing import Any


def needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0].replace("_", "-")
        raise ValueError(
            f"training needs {name}, which is not installed: pip install telescope-attention[train]"
        ) from None
