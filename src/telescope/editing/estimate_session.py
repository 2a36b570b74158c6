"""`Estimates`: the session that looks at each call of an attention, waits for the gradient of its
context, and adds up what every edit is estimated to change.

    Estimates.before     describe a call, and find the regions of the edits of keys
    Estimates.after      wait for the gradient dO of the context O
    Estimates.take       add up Σ dO · (O' - O) for every edit of the call
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import softmax
from ..engines import torch_modes
from ..interception import FoundAttentions, HandledCall
from ..recording import AttentionCall
from .changed_weights import KeyChange, KeyChanges, estimate_changes
from .edits import Edit, EditedCall, LayerEdit, Mute
from .key_edits import Boost, Hide, Regions
from .prompts import Place
from .recomputed_blocks import Blocks
from .selection import check_heads, share_a_head
from .session import EditSession

EXACT = 'how="exact" runs the model with it'
Rows = Sequence[tuple[Edit, ...]]
"""Edits that are applied together, of each row of a table."""


@dataclass(eq=False)
class NotedCall:
    """A call of an attention whose gradient is awaited."""

    name: str
    mutes: list[LayerEdit]
    changes: KeyChanges | None
    """Its edits of keys; None without any."""
    place: Place | None
    value_set: int
    head_axis: int
    comes_again: bool
    """Whether the call runs again before its gradient is known, in a block that keeps nothing."""
    call: AttentionCall | None = None
    context: Tensor | None = None
    """(batch, heads, query, d_v)"""
    version: int = 0
    """How often the context had been written to when it was noted."""

    @property
    def needs_call(self) -> bool:
        """Whether the edits need more than the context."""
        return self.changes is not None or any(one.edit._needs for one in self.mutes)

    def hold(self, call: AttentionCall | None, context: Tensor) -> None:
        """Hold on to the tensors of the call."""
        if call is not None and self.needs_call:
            self.call = call._replace(
                queries=call.queries.detach(),
                keys=call.keys.detach(),
                values=call.values.detach(),
            )
        self.context = context.detach()
        self.version = context._version


class Estimates(EditSession):
    """The edits of one estimate. They change no call: their effects are computed beside it."""

    blocks: Blocks

    def __init__(
        self, found: FoundAttentions, edits: Sequence[Edit], tokenizer: Any, sequences: Any = None
    ) -> None:
        super().__init__(found, edits, tokenizer, sequences)
        if self.parts > 1:
            raise ValueError(
                'how="gradient" adds up all heads of a model in one process, and several divide '
                f'them here; how="exact" runs on {self.parts} processes'
            )
        self.attention_modules = list(found.attentions.values())
        self.real: Tensor | None = None
        self.anchors: dict[torch.device, Tensor] = {}
        """Zeros, from which the gradient flows where nothing else needs one."""
        self._numbers = {id(one): i for i, (one, _) in enumerate(self.selected)}
        self._total: Float[Tensor, " edit"] | None = None
        self._open: list[tuple[NotedCall | None, AttentionCall | None]] = []
        self.homes: list[set[int]] = [set() for _ in edits]
        """The numbers of the blocks in which each edit changes a call."""
        # Layers share the masks of as many regions as there are edits.
        self.regions = len(edits)
        self._changes: dict[Any, tuple[Any, KeyChanges]] = {}

    def check_selected(self, name: str, count: int | None) -> None:
        for one in self.edits_for(name).every if count is not None else ():
            assert count is not None
            check_heads(name, one.edit, count)

    @property
    def why_not_compiled(self) -> str | None:
        return (
            'how="gradient" needs the tensors of every call, which stay inside of compiled code; '
            'call the model as it was before torch.compile, or take how="exact"'
        )

    def check_rows(self, rows: Rows) -> None:
        """Raise a ValueError where several edits of one row change one head: what they do together
        is not the sum of what each does.
        """
        selected = iter(self.selected)
        for row in rows:
            known: list[tuple[Edit, set[str]]] = []
            for edit in row:
                names = set(next(selected)[1])
                for other, others in known:
                    for name in sorted(names & others):
                        if share_a_head(edit.heads, other.heads, self.heads.get(name)):
                            raise ValueError(
                                f'"{edit}" and "{other}" change one head of "{name}" together, '
                                'and how="gradient" adds up what each does alone; how="exact" '
                                "runs them together"
                            )
                known.append((edit, names))

    def real_predictions(self, batch: int, n: int) -> Tensor | None:
        """Return which predictions count, and remember them."""
        self.real = self.text.real_predictions(batch, n)
        return self.real

    # -------------------------------------------------------------------------------------- forward

    def before(self, call: HandledCall) -> None:
        """Note a call, and find what its edits change; while a block is computed again, find the
        call that was noted.
        """
        run = self.blocks.run
        if run is not None and run.again is not None:
            noted = next(run.again)
            described = call.describe() if noted is not None and noted.needs_call else None
            self._open.append((noted, described))
            return
        edits = self.begin(call.name)
        described = call.before_change = call.describe()
        noted = None
        place = self.places.get(call.name)
        if not call.value_set:
            place = self.find_place(call.name, described)
        if edits.every:
            local = self.edits_of_call(call.name, described.queries.shape[1])
            mutes = [one for one in local.every if isinstance(one.edit, Mute)]
            changes = self._key_changes(call.name, described, place, local.definition)
            noted = NotedCall(
                call.name,
                mutes,
                changes,
                place,
                call.value_set,
                call.made.head_axis,
                comes_again=run is not None and run.recompute,
            )
            for one in local.every if run is not None else ():
                assert run is not None
                self.homes[self._numbers[id(one)]].add(run.block)
        if run is not None:
            run.calls.append(noted)
        self._open.append((noted, described))

    def after(self, call: HandledCall, output: Tensor) -> Tensor:
        """Wait for the gradient of what the call returned."""
        noted, described = self._open.pop()
        # Nothing before the first attention needs a gradient: it begins here.
        if not output.requires_grad:
            output = output + self._anchor(output)
        if noted is None:
            return output
        run = self.blocks.run
        is_again = run is not None and run.again is not None
        if is_again or not noted.comes_again:
            noted.hold(described, output.transpose(1, noted.head_axis))
        if not is_again:
            output.register_hook(partial(self.take, noted))  # type: ignore[no-untyped-call]
        return output

    def _anchor(self, output: Tensor) -> Tensor:
        if output.device not in self.anchors:
            zero = torch.zeros((), device=output.device, requires_grad=True)
            self.anchors[output.device] = zero
        return self.anchors[output.device].to(output.dtype)

    def _key_changes(
        self, name: str, call: AttentionCall, place: Place | None, edits: Sequence[LayerEdit]
    ) -> KeyChanges | None:
        """Return what the edits of keys change in a call; layers in which they are alike share
        it.
        """
        if not edits:
            return None
        regions = self.share(Regions)
        found = []
        for one in edits:
            edit = one.edit
            assert isinstance(edit, Hide | Boost)
            at = EditedCall(name, one, self, call, place)
            rectangle = regions.rectangle(edit, at)
            if rectangle is not None:
                factor = edit.by if isinstance(edit, Boost) else 0.0
                found.append(KeyChange(self._numbers[id(one)], rectangle, factor))
        if not found:
            return None
        if call.attention.normalize is not softmax:
            raise ValueError(
                f'"{edits[0].edit}": "{name}" does not normalise by softmax, which how="gradient" '
                f"computes again; {EXACT}"
            )
        # Rectangles that are equal are one object, and are kept alive with the key.
        sizes = (call.size, call.queries.shape[:2], call.queries.device)
        key = (tuple((one.number, id(one.rectangle)) for one in found), sizes)
        if key not in self._changes:
            self._changes[key] = (found, KeyChanges.of(found, call))
        return self._changes[key][1]

    # ------------------------------------------------------------------------------------- backward

    def differentiate(self, value: Tensor, *, again: bool) -> list[float]:
        """Run a backward pass; return the estimated effect of each edit.

        again  whether another backward pass follows
        """
        self._total = None
        anchors = [*self.anchors.values()]
        torch.autograd.grad(value, anchors, allow_unused=True, retain_graph=again)
        return [0.0] * len(self.edits) if self._total is None else self._total.tolist()

    def take(self, noted: NotedCall, gradient: Tensor | None) -> None:
        """Add the effects of the edits of one call, whose context has this gradient."""
        if gradient is None:
            return
        assert noted.context is not None
        if noted.context._version != noted.version:
            raise ValueError(
                f'the model wrote into what "{noted.name}" returned, which how="gradient" needs '
                f"as it was; {EXACT}"
            )
        gradient = gradient.detach().transpose(1, noted.head_axis)
        with torch_modes.recording_mode(gradient.device):
            for numbers, changes in self._effects(noted, noted.context, gradient):
                if self._total is None:
                    self._total = changes.new_zeros(len(self.edits))
                self._total[numbers.to(self._total.device)] += changes.to(self._total.device)
        if noted.comes_again:
            noted.call = noted.context = None

    def _effects(
        self, noted: NotedCall, context: Tensor, gradient: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the numbers of some edits of a call, and the effect of each in float64."""
        if noted.changes is not None:
            assert noted.call is not None
            yield noted.changes.numbers, estimate_changes(noted.call, gradient, noted.changes)
        if not noted.mutes:
            return
        dtype = torch.promote_types(context.dtype, torch.float32)
        context = context.to(dtype)
        gradient = gradient.to(dtype)

        # Contexts times a factor: (factor - 1) Σ dO · O, of all heads at once.
        count = context.shape[1]
        heads = {id(one): one.edit._select_heads(noted.name, count) for one in noted.mutes}
        products = [one for one in noted.mutes if one.edit._factor is not None]
        if products:
            sums = (context * gradient).sum((0, 2, 3), dtype=torch.float64)
            factors = torch.zeros(len(products), count, dtype=torch.float64)
            for row, one in zip(factors, products, strict=True):
                chosen = heads[id(one)]
                row[slice(None) if chosen is None else list(chosen)] = (
                    one.edit._factor or 0.0
                ) - 1.0
            yield self._numbers_of(products), factors.to(sums.device) @ sums

        # Means: the heads of each edit by themselves.
        for one in noted.mutes:
            if one.edit._factor is None:
                assert isinstance(one.edit, Mute)
                chosen = heads[id(one)]
                which = slice(None) if chosen is None else list(chosen)
                at = EditedCall(noted.name, one, self, noted.call, noted.place, noted.value_set)
                part = context[:, which]
                muted = one.edit._muted(part, at, slice(None))
                change = ((muted - part) * gradient[:, which]).sum(dtype=torch.float64)
                yield self._numbers_of([one]), change[None]

    def _numbers_of(self, edits: Sequence[LayerEdit]) -> Tensor:
        return torch.tensor([self._numbers[id(one)] for one in edits])
