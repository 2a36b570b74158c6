"""Solutions as text, and what a student changes in them."""

import linecache
from math import log, sqrt

import torch
from torch.nn import functional as F  # noqa: N812  as everyone writes it


def edited(source, *edits):
    """Return the last function of a source after its edits, pairs of what is replaced and what comes in its place."""
    for old, new in edits:
        assert old in source, f"{old!r} does not stand in the solution"
        source = source.replace(old, new)
    # Tracebacks find a line of the source, as they do in a notebook.
    file = f"<solution {len(linecache.cache)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {"torch": torch, "F": F, "sqrt": sqrt, "log": log}
    exec(compile(source, file, "exec"), names)
    return names[source.rsplit("\ndef ", 1)[1].split("(")[0]]


def edits(source, *rows):
    """Return rows of a table from rows of (label, edits, words), in which one edit needs no list."""
    return [
        (label, edited(source, *([change] if isinstance(change, tuple) else change)), words)
        for label, change, words in rows
    ]
