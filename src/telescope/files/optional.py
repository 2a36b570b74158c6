"""Import packages of the optional extras when they are first used."""

from importlib import import_module
from typing import Any


def import_optional(module: str, what: str, extra: str) -> Any:
    """Import a module of an optional extra; raise a ValueError that says what needs it and how to
    install it.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ValueError(
            f"{what} needs {package}: pip install 'telescope-attention[{extra}]'"
        ) from None
