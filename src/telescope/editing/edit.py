"""`ts.edit`: apply edits to the attentions of a model while a `with` block runs, and leave the
model as it was.

One call of an attention takes this way:

    session.py      EditSession.before      describe the call as an AttentionCall
    session.py      EditSession.change      let the edits change the definition, queries and keys
    engines         attend                  run the definition as any other
    session.py      EditSession.after       let the edits change the context
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import nn

from ..interception import huggingface
from ..interception.found import find_attentions
from ..recording import SavedEdit, describe_unwatched
from ..words import hint
from .edits import KINDS, Edit, LayerEdit, from_json
from .session import EditSession


@contextmanager
def edit(model: nn.Module, *edits: Edit, tokenizer: Any = None) -> Iterator[None]:
    """Change the attentions of a model while a `with` block runs.

    Whatever the order in which edits are listed, one attention is edited in the order redefine,
    boost, hide, frozen, patch, mute; see telescope/editing/edits.py. A block inside another edits
    what the other made. Gradients flow through edits. When the block is left, also by an exception,
    the model is as it was. Only the thread that enters the block runs the model edited. Inside
    `ts.watch`, or around it, the recording holds the calls as edited, and `recording.edits`. Edits
    name heads of the whole model, also where these are divided among processes (tensor
    parallelism): all processes enter the block, and each edits the heads it has. A layer that a
    model runs several times in one forward pass, as ALBERT does, is edited in every pass by its
    name; by name.2 in the second pass alone, by name.1 in the first.

    Args:
        model: any model that `ts.watch` takes.
        edits: of `ts.mute`, `ts.hide`, `ts.boost`, `ts.frozen`, `ts.patch` and `ts.redefine`, or of
            `recording.edits`.
        tokenizer: an object with `decode`, by which texts are found; Telescope's models have their
            own.

    Raises:
        TypeError: `model` is no torch.nn.Module, or an edit is of another type.
        ValueError: the model cannot be edited (without a known attention), or an edit cannot be
            done inside of compiled code, which can do `ts.mute` of whole heads, `ts.hide` and
            `ts.boost`; a layer, head, text or position does not exist, for texts, positions and
            passes when the block is left; two edits contradict each other; or an attention that is
            edited has run past the edit, by a forward that computes its weights elsewhere.
        RuntimeError: gradient checkpointing runs passes again that are edited differently.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2, bias=False)
        >>> with ts.edit(layer, ts.mute(heads=[0, 1])):
        ...     layer(torch.randn(1, 5, 8)).abs().sum().item()
        0.0
    """
    with editing(model, edits, tokenizer):
        yield


@contextmanager
def editing(
    model: nn.Module,
    edits: Sequence[Edit | SavedEdit],
    tokenizer: Any = None,
    sequences: Sequence[range | None] | None = None,
    *,
    notes_tokens: bool = False,
    kind: type[EditSession] = EditSession,
) -> Iterator[EditSession]:
    """Do what `edit` does.

    sequences     those sequences of a batch that each edit concerns, None for all
    notes_tokens  whether the session's `text` has to know the tokens of every attention, without an
                  edit that needs it
    kind          the class of the session
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"edit takes a model, a torch.nn.Module, not {type(model).__name__}")
    # Refuse what cannot be applied before the model is touched.
    given = [_checked_edit(one) for one in edits]
    found = find_attentions(model, "edit")
    # An edit of every layer misses the attentions that cannot be intercepted: name them.
    # Level 5 is the caller's `with`: `edit`, `editing` and their two __enter__ lie in between.
    if found.unwatched and any(one._edits_every_layer for one in given):
        warnings.warn(
            f"{type(model).__name__}: {describe_unwatched(found.unwatched, 'edit')}", stacklevel=5
        )
    session = kind(found, given, tokenizer or getattr(model, "tokenizer", None), sequences)
    # A caller may ask for the tokens of every attention without an edit that needs them.
    session.follows_all |= notes_tokens
    session.follows_text |= notes_tokens
    # Intercept the edited attentions alone, unless all have to be followed.
    edited = session.edited_attentions()
    attentions = {
        name: module
        for name, module in found.attentions.items()
        if session.follows_all or name in edited
    }
    if found.backend is huggingface:
        huggingface.check_version()
    # Undo everything when the block is left, also by an exception.
    with ExitStack() as undo:
        undo.enter_context(found.intercepting(attentions, session))
        _running.append(session)
        undo.callback(_running.remove, session)
        yield session
    # Not reached after an exception, which says more than a span that was not found.
    session.check_found()


# The sessions of all blocks that are running, in every thread; an outer block before an inner one.
_running: list[EditSession] = []


def running_edits(model: nn.Module) -> list[tuple[str, LayerEdit]]:
    """Return the edits of all blocks around this call that concern a model, each with the attention
    that it changes.

    A block may also have been entered with a part of the model, or with a model that this one is a
    part of.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    found = []
    # Iterate over a copy: other threads enter and leave blocks meanwhile.
    for session in [*_running]:
        parts = {id(module) for module in session.model.modules()}
        # A block edits the calls of its own thread alone, and concerns models that share a module.
        if session.thread == get_ident() and not parts.isdisjoint(paths):
            path = paths.get(id(session.model), "a part of the edited model")
            found += [(f"{path}: {name}", one) for one, names in session.selected for name in names]
    return found


def _checked_edit(given: Any) -> Edit:
    """Return an edit that can be applied; raise where it is of another type, or holds only a
    name.
    """
    # An edit from a recording's file is still JSON.
    one = from_json(given.contents) if isinstance(given, SavedEdit) else given
    if not isinstance(one, Edit):
        makers = [*dict.fromkeys(kind._made_by or name for name, kind in KINDS.items())]
        known = f"there are ts.{', ts.'.join(makers)}"
        if isinstance(given, list | tuple):
            raise TypeError(
                f"edit takes edits one by one, not a {type(given).__name__}: ts.edit(model, *edits)"
            )
        nearest = hint(given, makers) if isinstance(given, str) else known
        nearest = f"write ts.{given}(...)" if given in makers else nearest
        raise TypeError(f"{given!r} is no edit; {nearest}")
    if one._kept_by_name and isinstance(getattr(one, one._kept_by_name), str):
        raise ValueError(
            f'"{one}" was read from a file, which holds only the name of its {one._kept_by_name}; '
            "make it again"
        )
    return one
