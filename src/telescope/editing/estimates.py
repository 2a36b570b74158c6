"""Estimate what edits do to a measure, from one forward pass of the model as it is and a backward
pass: attribution patching (Nanda, 2023; Kramár et al., 2024, arXiv 2403.00745).

Let O be the context of an attention, dO the gradient of the measure by it, and O' the context that
an edit makes of this call, computed in full: the edit's effect is estimated as Σ dO · (O' - O).
What the rest of the model makes of O' - O is taken to be linear.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .edit import editing
from .edits import Edit, Mute
from .estimate_session import EXACT, Estimates, Rows
from .key_edits import Boost, Hide
from .model_inputs import ModelInputs
from .recomputed_blocks import Blocks

LONG = 1024  # tokens of a batch beyond which blocks are computed again, and keep nothing
Measure = Callable[[Any, Callable[[int, int], Tensor | None]], Tensor]
"""From the output of the model, and the function (batch, n) -> which predictions count, to a tensor
of one number.
"""


class Estimate(NamedTuple):
    """The measure of a model as it is, and what edits are estimated to change."""

    value: float
    changes: list[float]
    """How much the measure changes with each row of edits."""
    real: Tensor | None
    """At which positions a prediction counts; None if at all."""
    idle: list[Edit]
    """The edits whose attentions were not called."""


def estimate(
    model: nn.Module,
    inputs: ModelInputs,
    rows: Rows,
    tokenizer: Any,
    measure: Measure,
    drops: int | str = 0,
) -> Estimate:
    """Return the estimated effects of edits, one for each row.

    drops  of how many blocks the gradient is dropped, each in a backward pass of its own, or "all"
    """
    check_edits(model, rows)
    edits = [one for row in rows for one in row]
    with (
        editing(model, edits, tokenizer, notes_tokens=True, kind=Estimates) as session,
        _without_gradients_of_parameters(model),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        assert isinstance(session, Estimates)
        session.check_rows(rows)
        recompute = inputs.batch * inputs.longest > LONG
        blocks = session.blocks = Blocks(session.modules, session.attention_modules, recompute)
        dropped = _blocks_to_drop(drops, len(blocks.modules))
        with blocks.replaced(can_drop=bool(dropped)):
            # Run the model once, and the backward pass once for every block that is dropped.
            args, kwargs = inputs.repeated(1)
            output = model(*args, **(_without_cache(model, kwargs) if recompute else kwargs))
            value = check_value(measure(output, session.real_predictions))
            del output
            passes = []
            for left, number in enumerate((None, *dropped), -len(dropped)):
                blocks.dropped = number
                passes.append(session.differentiate(value, again=left < 0))
        found = []
        start = 0
        for row in rows:
            own = range(start, start + len(row))
            changes = [sum(one[i] for i in own) for one in passes]
            homes = {block for i in own for block in session.homes[i]}
            found.append(_averaged(changes, dropped, homes))
            start += len(row)
        return Estimate(value.item(), found, session.real, session.idle_edits())


# ------------------------------------------------------------------------------------------- checks


def check_edits(model: nn.Module, rows: Rows) -> None:
    """Raise where effects cannot be estimated."""
    for row in rows:
        for one in row:
            if isinstance(one, Edit) and not isinstance(one, Mute | Hide | Boost):
                raise ValueError(
                    f'how="gradient" estimates ts.mute, ts.hide and ts.boost, not "{one}"; {EXACT}'
                )
    if model.training:
        raise ValueError(
            f'how="gradient" takes a model in evaluation mode, and {type(model).__name__} trains; '
            "call model.eval()"
        )


def check_value(value: Any) -> Tensor:
    """Return the value of a measure if it can be differentiated."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise TypeError(
            f"measure= returned {type(value).__name__} {what}".rstrip() + ', and how="gradient" '
            "differentiates a tensor of one number; leave out .item() and float(), and let a "
            "function of several numbers be one for each call"
        )
    if not value.requires_grad:
        raise ValueError(
            'the measure does not depend on any attention by a gradient, which how="gradient" '
            'needs; leave out .detach() and torch.no_grad(), or take how="exact"'
        )
    return value.reshape(())


def _blocks_to_drop(drops: int | str, count: int) -> list[int]:
    """Return the numbers of the blocks whose gradient is dropped, spread over the model."""
    if drops == 0:
        return []
    if not count:
        raise ValueError(
            f"drops={drops!r} drops the gradient of blocks, and the model has none: no ModuleList "
            "holds its attentions; leave drops= out"
        )
    if drops == "all":
        return list(range(count))
    assert isinstance(drops, int)
    if drops > count:
        raise ValueError(f'drops={drops}: the model has {count} blocks; drops="all" takes each')
    # The middles of as many parts of the model.
    return [int((i + 0.5) * count / drops) for i in range(drops)]


def _averaged(changes: Sequence[float], dropped: Sequence[int], homes: set[int]) -> float:
    """Return the estimate of one row: the first of `changes`, of the whole gradient, or with its
    sign the mean size of the others, each without one block.

    Without its own block an edit has no gradient, so that this pass does not count.
    """
    whole, *others = changes
    own = sum(block in homes for block in dropped) / max(len(homes), 1)
    count = len(others) - own
    if count <= 0:
        return whole
    size = sum(map(abs, others)) / count
    return -size if whole < 0 else size


def _without_cache(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with use_cache=False where the model takes that: a block that is
    computed again would append its keys twice.
    """
    takes = "use_cache" in signature(model.forward).parameters
    return {**kwargs, "use_cache": False} if takes else kwargs


@contextmanager
def _without_gradients_of_parameters(model: nn.Module) -> Iterator[None]:
    """Let no parameter need a gradient while the block runs."""
    needed = [one for one in model.parameters() if one.requires_grad]
    try:
        for one in needed:
            one.requires_grad_(False)
        yield
    finally:
        for one in needed:
            one.requires_grad_(True)
