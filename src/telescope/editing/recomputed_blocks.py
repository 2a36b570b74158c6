"""Run the blocks of a model so that a backward pass computes them again, and drops the gradient of
some.

A block is a member of a ModuleList that holds an attention, as layers of a transformer are. With
`recompute` a block keeps nothing but its input (torch.utils.checkpoint), so that the memory of a
pass grows with the number of blocks times the width of the residual stream.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ..anatomy import Modules
from ..layers import AddNorm


@dataclass(eq=False)
class Run:
    """One run of a block, and the calls of attentions that were noted in it, in their order."""

    block: int
    recompute: bool
    calls: list[Any] = field(default_factory=list)
    again: Iterator[Any] | None = None
    """The same calls, while the block is computed again."""


class Blocks:
    """The blocks of a model, for one forward pass and its backward passes."""

    def __init__(self, modules: Modules, attentions: Iterable[nn.Module], recompute: bool) -> None:
        self.modules = blocks_around(modules, attentions)
        self.recompute = recompute
        self.dropped: int | None = None
        """The number of the block whose contributions pass no gradient on."""
        self.running: list[Run] = []  # the innermost last

    @property
    def run(self) -> Run | None:
        """The run of a block that is under way."""
        return self.running[-1] if self.running else None

    @contextmanager
    def replaced(self, can_drop: bool) -> Iterator[None]:
        """Replace the forwards of the blocks while the `with` block runs."""
        undo: list[Callable[[], object]] = []
        try:
            for number, block in enumerate(self.modules):
                own = vars(block).get("forward")
                undo.append(partial(_restore_forward, block, own))
                drops_inside = can_drop and _has_add_norms(block)
                block.forward = partial(
                    self._forward, number, block.forward, can_drop and not drops_inside
                )
                for sublayer in _sublayers(block) if drops_inside else ():
                    hook = partial(self._close_gate, number)
                    undo.append(sublayer.register_forward_hook(hook).remove)
            with set_checkpoint_early_stop(False):
                yield
        finally:
            for step in reversed(undo):
                step()

    def _forward(
        self, number: int, forward: Callable[..., Any], can_drop: bool, *args: Any, **kwargs: Any
    ) -> Any:
        run = Run(number, self.recompute)
        inner = partial(self._within, run, forward, **kwargs)
        if self.recompute:
            output = checkpoint(inner, *args, use_reentrant=False, preserve_rng_state=False)
        else:
            output = inner(*args)
        if not can_drop:
            return output
        # What a block adds to its input is its output less that.
        given = next(
            one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.ndim > 2
        )
        first = output[0] if isinstance(output, tuple) else output
        joined = _ResidualGate.apply(given, first, self, number)  # type: ignore[no-untyped-call]
        return (joined, *output[1:]) if isinstance(output, tuple) else joined

    def _within(self, run: Run, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the block, for the first time or again."""
        if torch._C._current_graph_task_id() != -1:
            run.again = iter(run.calls)
        self.running.append(run)
        try:
            return forward(*args, **kwargs)
        finally:
            self.running.pop()

    def _close_gate(self, number: int, module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        passed = _Gate.apply(first, self, number)  # type: ignore[no-untyped-call]
        return (passed, *output[1:]) if isinstance(output, tuple) else passed


class _ResidualGate(torch.autograd.Function):
    """Return `output`. Its gradient goes to `given` alone where the block is dropped: then what was
    added to `given` counts as constant.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, output: Tensor, blocks: Blocks, number: int) -> Tensor:
        ctx.blocks = blocks
        ctx.number = number
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.blocks.dropped == ctx.number:
            return gradient, None, None, None
        return None, gradient, None, None


class _Gate(torch.autograd.Function):
    """Return `output`, which has no gradient where the block is dropped."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, blocks: Blocks, number: int) -> Tensor:
        ctx.blocks = blocks
        ctx.number = number
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (None if ctx.blocks.dropped == ctx.number else gradient), None, None


def _restore_forward(block: nn.Module, own: Any) -> None:
    if own is None:
        del block.forward
    else:
        block.forward = own


def _has_add_norms(block: nn.Module) -> bool:
    return any(isinstance(child, AddNorm) for child in block.children())


def _sublayers(block: nn.Module) -> list[nn.Module]:
    """Return what the add & norms of a block of Telescope's run."""
    return [child for child in block.children() if not isinstance(child, AddNorm)]


def blocks_around(modules: Modules, attentions: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the nearest member of a ModuleList around each attention, none within another."""
    paths = {id(module): path for path, module in modules.items()}
    found: dict[str, nn.Module] = {}
    for attention in attentions:
        path = paths[id(attention)]
        while path:
            above = path.rpartition(".")[0]
            is_member = isinstance(modules[above], nn.ModuleList)
            # The hooks of an attention are called around its own forward.
            if is_member and modules[path] is not attention:
                found[path] = modules[path]
                break
            path = above
    outer = [path for path in found if not any(path.startswith(f"{one}.") for one in found)]
    return [
        found[path] for path in sorted(outer, key=lambda path: modules.numbers[id(found[path])])
    ]
