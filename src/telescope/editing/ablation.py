"""Mute heads by what they put out over other texts: by the mean of a recording (mean ablation), or
at each position by a random recorded position (resample ablation).

`ts.mute(by=recording)` and `ts.mute(by=ts.resample(recording))` make these edits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex
from zlib import crc32

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..recording import Recording
from ..words import whole_number
from .edits import EditedCall, Needs, Part, describe_heads, describe_layers
from .recorded_contexts import RecordedContexts
from .recorded_edits import RecordedEdit
from .token_pairs import CallTokens


class Resample(NamedTuple):
    """What `ts.resample` returns: a recording, and the seed of the draws from it.

    Attributes:
        recording: where contexts are drawn from.
        seed: of the draws.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="steps") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> ts.resample(recording, seed=3).seed
        3
    """

    recording: Recording
    seed: int


def resample(recording: Recording, seed: SupportsIndex = 0) -> Resample:
    """Return what `ts.mute(by=...)` takes for resample ablation: each position of a muted head gets
    the context of the same head at a random recorded position.

    A draw depends on the seed, the attention, the head, the sequence of the batch and the position
    alone: it is the same in every run, whether a text is read at once or token by token. All
    counted positions of all recorded texts are equally likely.

    Args:
        recording: of several texts, by ts.watch(model, keep="steps").
        seed: another seed draws other positions.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with torch.no_grad(), ts.watch(layer, keep="steps") as recording:
        ...     for _ in range(3):
        ...         _ = layer(torch.randn(1, 5, 8))
        >>> print(ts.mute(heads=1, by=ts.resample(recording, seed=7)))
        mute head 1 in every layer by random positions of a recording of ..., seed 7
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"resample takes a recording of ts.watch or ts.open, not {type(recording).__name__}"
        )
    return Resample(recording, whole_number("seed", seed))


@dataclass(frozen=True)
class Ablate(RecordedEdit):
    """Replace the context of some heads by recorded contexts, or shrink its distance from them.

    Attributes:
        times: what the distance from the recorded context is multiplied by.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="steps") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> edit = ts.mute("attention", heads=0, by=recording)
        >>> edit.times, edit.heads, edit.to_json()["times"]
        (0.0, (0,), 0.0)
    """

    kind = "mute_by"
    _made_by = "mute"
    _changes = Part.CONTEXT
    _rank = 4
    times: float = 0.0
    seed: int | None = None
    """Of the draws from the recorded positions; None is their mean."""

    def __str__(self) -> str:
        what = f"{describe_heads(self.heads)}{describe_layers(self.layers)}"
        factor = f" times {self.times:g}" if self.times else ""
        source = f"a recording of {self._model_name}"
        if self.seed is None:
            return f"mute {what}{factor} by the mean of {source}"
        return f"mute {what}{factor} by random positions of {source}, seed {self.seed}"

    @property
    def _needs(self) -> Needs:
        # The mean is the same at every position.
        if self.seed is None:
            return Needs.PASS
        return Needs.PLACE | Needs.POSITIONS | Needs.PASS

    def _select(
        self, names: Sequence[str], passes: Sequence[str], unwatched: Sequence[str]
    ) -> list[str]:
        selected = super()._select(names, passes, unwatched)
        self._require_own_contexts(selected)
        return selected

    def _change_context(
        self, at: EditedCall, context: Float[Tensor, "batch heads query d_v"]
    ) -> Float[Tensor, "batch heads query d_v"]:
        watched = self._its_recording[at.name]
        # Without a call, this raises an error that says why there is none.
        recorded = watched.calls[0] if watched.calls else watched.call
        heads, places = self._places(at, recorded, context.shape[1])
        pool = at.block.share(RecordedContexts).pool("mute", watched, places)
        if pool.mean.shape[-1] != context.shape[-1]:
            raise ValueError(
                f'mute: the values of "{at.name}" were recorded with width {pool.mean.shape[-1]}, '
                f"and this run has width {context.shape[-1]}; record a model of the same shape"
            )

        # What replaces the context of each head: one mean, or a draw for each position.
        sequences = at.own.sequences
        rows = slice(None) if sequences is None else slice(sequences.start, sequences.stop)
        base = pool.mean[None, :, None]
        if self.seed is not None:
            base = self._draw(at, pool.contexts, heads, self.seed)[rows]
        base = base.to(context.device, context.dtype)

        part = context[rows][:, heads]
        # Not times 0: 0 · NaN would be NaN.
        new = base + self.times * (part - base) if self.times else base.expand_as(part)
        # Without gradients, in place: nobody else reads the context yet.
        if context.requires_grad and torch.is_grad_enabled():
            context = context.clone()
        context[rows, heads] = new
        return context

    def _draw(
        self,
        at: EditedCall,
        contexts: Float[Tensor, "recorded chosen d_v"],
        heads: Sequence[int],
        seed: int,
    ) -> Float[Tensor, "batch chosen query d_v"]:
        """Return the context of a random recorded position for each head and query."""
        assert at.call is not None
        assert at.place is not None
        tokens = CallTokens.of(at.call.without_unwritten_keys(), at.place, "query")
        start = 0 if at.own.sequences is None else at.own.sequences.start
        sequences = torch.tensor(tokens.sequences) - start
        numbers = torch.tensor(heads) + at.own.first_head
        # One number from everything that a draw depends on.
        mixed = _mix(torch.tensor(seed ^ crc32(at.name.encode())))
        mixed = _mix(mixed + numbers)[None, :, None]
        mixed = _mix(mixed + sequences[:, None, None])
        mixed = _mix(mixed + tokens.positions[:, None])
        drawn = (mixed & MASK) % len(contexts)
        places = torch.arange(len(heads))[None, :, None]
        return contexts[drawn.to(contexts.device), places.to(contexts.device)]


MASK = (1 << 62) - 1  # the bits of a number that is drawn
# The constants of splitmix64 (Steele et al., 2014), as signed numbers.
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def _mix(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return a number of 64 bits for each number, as splitmix64 scrambles it."""
    numbers = numbers + STEP
    numbers = (numbers ^ _shifted(numbers, 30)) * FIRST
    numbers = (numbers ^ _shifted(numbers, 27)) * SECOND
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Return the numbers shifted to the right, with zeros in front: torch repeats the sign."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)
