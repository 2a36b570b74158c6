"""Edit Telescope's own models through PyTorch's module hooks.

A hook before each attention replaces its definition, queries and keys, so that the model, and
whoever watches it, runs and sees the edited call. A hook after it multiplies the context of muted
heads.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from ..attention import Attention
from ..interception.module_hook import AFTER, BEFORE, listen
from ..interception.run_tracker import RunTracker
from ..interception.telescope_models import ATTEND, layers_around, observer_of
from ..layers import Attend
from ..recording.attention_call import AttentionCall
from ..recording.names import Modules
from .session import EditSession


@contextmanager
def intercepting(
    modules: Modules, attends: Mapping[str, Attend], session: EditSession
) -> Iterator[None]:
    """Register the hooks of these attentions while the block runs."""
    runs = RunTracker(layers_around(modules, attends), ATTEND)
    with ExitStack() as undo:
        undo.enter_context(runs.tracking(session.is_active, session.refuse_bypass))
        for name, attend in attends.items():
            undo.callback(
                listen(attend, partial(_before_attention, session, runs, name, attend), BEFORE)
            )
            if session.edits_for(name).context:
                undo.callback(listen(attend, partial(_after_attention, session, name), AFTER))
        yield


def _before_attention(
    session: EditSession,
    runs: RunTracker,
    name: str,
    attend: Attend,
    module: Attend,
    args: Any,
    kwargs: Any,
) -> Any:
    """Return the arguments of the edited call; None leaves them as they are.

    `attend` is the model's own module, `module` the one that runs: decoding runs a copy of the
    model.
    """
    if not session.is_active():
        return None
    runs.note_call(name)
    session.called.add(name)
    observer = observer_of(attend, session.thread)
    if observer is not None:
        observer.recording.add_edits(tuple(one.edit for one in session.edits_for(name).every))
    call, across = _call(module, *args, **kwargs)
    changed = session.change(name, call)
    if changed is call:
        return None
    return (changed.queries, changed.keys, changed.values, changed.attention), {"across": across}


def _after_attention(
    session: EditSession, name: str, module: Attend, args: Any, kwargs: Any, context: Tensor
) -> Any:
    """Return the context with the muted heads multiplied."""
    if not session.is_active():
        return None
    return session.finish(name, _call(module, *args, **kwargs)[0], context)


def _call(
    module: Attend,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    *,
    across: bool | None = None,
) -> tuple[AttentionCall, bool | None]:
    """Return the arguments of Attend.forward as an AttentionCall."""
    heads = tuple(range(queries.shape[1]))
    dropout = module.dropout if module.training else 0.0
    return AttentionCall(queries, keys, values, attention, heads, dropout, across=across), across
