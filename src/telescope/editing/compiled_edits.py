"""What the edits of a block do inside of compiled code: multiply heads, and add to the scores.

A compiled run is described before it begins, by what its model is passed. Spans are found in that
description as they are in a call that runs uncompiled.
"""

from functools import partial
from typing import Any

from torch import Tensor

from ..anatomy import count_heads
from ..interception import AttentionTap, ScoreEdit
from ..recording import AttentionCall
from .edits import split_pass

# The session of each function is an EditSession, whose file imports this one.


def why_not_compiled(session: Any) -> str | None:
    """Return why the edits of a session cannot be done inside of compiled code, as a sentence; None
    if they can.
    """
    for one, names in session.selected:
        is_product = one.edit._factor is not None and one.sequences is None
        if not is_product and not one.edit._adds_to_scores:
            return (
                f'"{one.edit}" cannot be done inside of compiled code, which can do '
                "ts.mute(layers, heads, times=0), ts.hide and ts.boost; for this edit call the "
                "model as it was before torch.compile"
            )
        if any(split_pass(name, session.attentions).attention != name for name in names):
            return (
                f'"{one.edit}" names one pass through a layer, and compiled code tells them not '
                "apart; call the model as it was before torch.compile"
            )
    return None


def heads_here(session: Any, name: str, seen: int | None, tap: AttentionTap) -> int:
    """Return how many heads an attention has in this process, `seen` in its latest call."""
    count: int | None = session.heads.get(name) or count_heads(session.modules, tap.module) or seen
    if count is None:
        raise ValueError(
            f'how many heads "{name}" has is not known before it runs; run the model once as it '
            "was before torch.compile, inside the block"
        )
    parts: int = session.parts
    return count // parts


def factors(session: Any, name: str, count: int) -> list[float]:
    """Return what the edits multiply each head of an attention by."""
    found = [1.0] * count
    for one in session.edits_of_call(name, count).context:
        chosen = one.edit._select_heads(name, count)
        for head in range(count) if chosen is None else chosen:
            found[head] *= one.edit._factor or 0.0
    return found


def score_edit(session: Any, name: str, call: AttentionCall) -> ScoreEdit | None:
    """Return what the edits make of the definition of a call that is about to run; None if they
    leave it as it is. To be asked once for each call, in order.
    """
    place = session.find_place(name, call)
    edits = session.edits_of_call(name, call.queries.shape[1]).definition
    # The tensors of the call do not exist yet: its first keys are signed once it has run.
    if place is not None and place.reads_prompt and len(call.keys) > 1:
        place.prompt.signature = None
        session.unsigned[name] = place.prompt.sign
    changes = session.find_changes(name, call, place, edits)
    if not changes:
        return None
    keys = tuple(change.key for change in changes)
    return ScoreEdit(keys, partial(session.apply_changes, changes=changes))


def sign_prompts(session: Any, keys: dict[str, Tensor]) -> None:
    """Sign the prompts that compiled code has just read, by the keys that a cache holds, by the
    name of each attention.
    """
    for name, sign in session.unsigned.items():
        if name in keys:
            sign(keys[name])
    session.unsigned.clear()
