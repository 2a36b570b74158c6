"""Look inside attention while it runs at full speed: one definition, `Attention`, and functions
that all take it.

`attend` runs a definition, `plan` says on which engine, `trace` shows every step, `survey` gives
exact statistics of long texts, `watch` records a model while it runs, `edit` changes its attention.
Read attention/definition.py first.

Example:
    >>> import telescope as ts, torch
    >>> x = torch.eye(3)[None, None]
    >>> ts.attend(x, x, x, ts.Attention(mask=ts.causal)).shape
    torch.Size([1, 1, 3, 3])
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403  the names of its __all__
    from .public import open as open

__version__ = "0.1.0"

# Rooms that need more than the public names do, such as packages of an extra.
LAZY = ("callbacks", "explorer", "lessons", "plot", "tasks", "text", "training")


def __getattr__(name: str) -> Any:
    """Return a public name, or a room.

    Public names are imported at first use: `telescope --help` and completion import no torch.
    """
    if name in LAZY:
        return import_module(f".{name}", __name__)
    # Python asks for names such as __path__ by itself: they must not import torch.
    if not name.startswith("__") or name == "__all__":
        public = import_module(".public", __name__)
        if hasattr(public, name):
            # Kept, so that this function is called once for each name.
            return globals().setdefault(name, getattr(public, name))
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Other libraries have other words for what is here.
    from .field_words import missing_name

    # Only what is for callers: this module has other names, too.
    raise AttributeError(missing_name(name, [*import_module(".public", __name__).__all__, *LAZY]))


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY, *import_module(".public", __name__).__all__, "open"})


# Silent unless the program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
