"""Edits of the whole pattern: attend by another definition, or as a recording did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import (
    Attention,
    Pairs,
    include_padding_queries,
    restrict_to_queries,
    without_other_heads,
    without_room,
)
from ..engines import repeat_key_heads
from ..recording import AttentionCall, Layers, RecordedCall, Recording, head_numbers, select_layers
from ..words import hint
from .edits import (
    Edit,
    EditedCall,
    Heads,
    Needs,
    Part,
    Redefinition,
    describe_heads,
    describe_layers,
    read_heads,
    read_layers,
    split_pass,
)

# ----------------------------------------------------------------------------------------- redefine


@dataclass(frozen=True)
class Redefine(Edit):
    """Replace the definition of some attentions by a function of it.

    Example:
        >>> import telescope as ts
        >>> edit = ts.redefine("blocks.0.self", lambda attention: attention)
        >>> edit.layers, edit.to_json()["is"]
        (('blocks.0.self',), 'redefine')
    """

    kind = "redefine"
    _changes = Part.DEFINITION
    _rank = 0
    _kept_by_name = "function"
    function: Callable[[Attention], Attention] | str = ""
    """From Attention to Attention; its name where the edit was read from a file."""

    def __str__(self) -> str:
        name = self.function
        if not isinstance(name, str):
            name = getattr(name, "__name__", "a function")
        where = describe_layers(self.layers).removeprefix(" of ").removeprefix(" in ")
        return f"redefine {where} by {name}"

    @property
    def _needs(self) -> Needs:
        return Needs.WHOLE_BATCH

    def _redefinition(self, at: EditedCall) -> Redefinition:
        def apply(attention: Attention) -> Attention:
            # `ts.edit` refuses an edit that holds only the name of its function.
            assert not isinstance(self.function, str)
            made = self.function(attention)
            if not isinstance(made, Attention):
                raise TypeError(
                    f'redefine of "{at.name}": the function returned {type(made).__name__}, not an '
                    "Attention"
                )
            return made

        # Without a key: the function may return something else for the next call.
        return Redefinition(apply, key=None)


def redefine(layers: Layers, function: Callable[[Attention], Attention]) -> Redefine:
    """Return the edit that replaces the definition of some attentions by function(definition).

    Args:
        layers: names, patterns or numbers of attentions, as in `ts.mute`; None is all.
        function: from Attention to Attention, such as `lambda attention: replace(attention,
            scale=1.0)`, with `replace` of the module dataclasses.

    Example:
        >>> import telescope as ts
        >>> from dataclasses import replace
        >>> print(
        ...     ts.redefine(
        ...         "decoder.*.cross", lambda attention: replace(attention, scale=1.0)
        ...     )
        ... )
        redefine decoder.*.cross by <lambda>
    """
    if not callable(function):
        raise TypeError(
            f"redefine takes a function from Attention to Attention, not {type(function).__name__}"
        )
    return Redefine(read_layers(layers), None, function)


# ------------------------------------------------------------------------------------------- frozen


@dataclass(frozen=True)
class Frozen(Edit):
    """Attend as a recording did, with the values of this run.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="steps") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> edit = ts.frozen(recording, "attention")
        >>> edit.layers, edit.to_json()["is"]
        (('attention',), 'frozen')
    """

    kind = "frozen"
    _changes = Part.TENSORS
    _rank = 3
    _kept_by_name = "recording"
    recording: Recording | str = ""
    """The recording; the name of its model where the edit was read from a file."""

    def __str__(self) -> str:
        model = self.recording.model if isinstance(self.recording, Recording) else self.recording
        where = f"{describe_heads(self.heads)}{describe_layers(self.layers)}"
        return f"freeze {where} as recorded of {model}"

    @property
    def _needs(self) -> Needs:
        return Needs.PLACE | Needs.POSITIONS | Needs.PASS | Needs.WHOLE_BATCH

    @property
    def _edits_every_layer(self) -> bool:
        return False  # those that were recorded

    def _select(
        self, names: Sequence[str], passes: Sequence[str], unwatched: Sequence[str]
    ) -> list[str]:
        # An attention that was watched and never called has no pattern.
        recorded = [name for name, watched in self._recorded.items() if watched.calls]
        # The first pass is recorded by the name of its attention; a user may also call it name.1.
        first = [one for one in passes if split_pass(one, names) in [(own, 1) for own in recorded]]
        selected = select_layers([*recorded, *first], self.layers)
        # The recording may be of a model that has other attentions.
        missing = [name for name in selected if split_pass(name, names).attention not in names]
        if missing:
            raise ValueError(
                f'frozen: this model has no attention "{missing[0]}", which was recorded; '
                f"{hint(missing[0], names)}"
            )
        return selected

    def _select_heads(self, name: str, count: int) -> Sequence[int] | None:
        if self.heads is not None:
            return super()._select_heads(name, count)
        # The part of a divided model has recorded its own heads, numbered from 0.
        return range(count) if self._recorded._is_part else self._recorded[name].call.heads

    def _contradicts(self, other: Edit) -> str:
        # The context is changed after the pattern, so that both edits apply.
        if other._changes is Part.CONTEXT:
            return ""
        return "a frozen pattern is not computed anew"

    @property
    def _recorded(self) -> Recording:
        assert isinstance(self.recording, Recording)
        return self.recording

    def _change_tensors(self, at: EditedCall, call: AttentionCall) -> AttentionCall:
        """Return the call with the queries and keys of the recording in the frozen heads, and its
        own values.

        Other edits may have changed the definition for other heads. Raise a ValueError where the
        recording does not fit: another batch, fewer tokens, not all queries, missing heads.
        """
        assert at.place is not None
        assert at.call is not None
        name = at.name
        recorded = self._recorded[name].call
        count = call.queries.shape[1]
        wanted = recorded.heads if self.heads is None else head_numbers(name, self.heads, count)
        # Sizes count tokens: drop the unwritten end of a cache of fixed size.
        call = call.without_unwritten_keys()
        queries, keys = call.size

        # Where the queries and heads of this call are in the recording.
        first = keys - queries
        if call.is_cross_attention:
            first = (at.place.positions or [0])[0]
        # A part of a divided model has recorded its heads by the numbers they have there.
        before = 0 if self._recorded._is_part else at.own.first_head
        _check_fits(name, call, recorded, [before + head for head in wanted], first)
        places = [recorded.heads.index(before + head) for head in wanted]
        # Cut out the recorded queries of this call, on its device and in its dtype.
        like = call.queries
        old_queries = recorded.queries[:, :, first : first + queries].to(like.device, like.dtype)
        old_keys = recorded.keys.to(like.device, like.dtype)

        # Compare the recorded definition with the model's own, without the edits of other heads.
        own = without_other_heads(without_room(at.call.attention)[0], wanted)
        attention = _recorded_definition(recorded, call, first, own)
        values = call.values
        if attention is not call.attention and call.size != recorded.size:
            # The recorded definition is over all keys of the recording; later ones have neither
            # value nor weight.
            values = pad(values, (0, 0, call.evicted, recorded.size[1] - keys))
            call = call._replace(evicted=0)
        else:
            old_keys = old_keys[:, :, call.evicted : keys]

        # All heads are frozen, in their order: pass the recorded tensors on.
        if len(wanted) == count == len(recorded.heads) and places == list(range(count)):
            return call._replace(
                queries=_laid_out_like(old_queries, call.queries),
                keys=_laid_out_like(old_keys, call.keys),
                values=values,
                attention=attention,
            )
        # One call has one definition, by which the heads that are not frozen would attend, too.
        if attention is not call.attention:
            raise ValueError(
                f'frozen: "{name}" was recorded as {recorded.attention}, and this run attends by '
                f"{at.call.attention}; some of its heads cannot be frozen alone, leave heads= out"
            )

        # Mix recorded and own heads; each head needs keys of its own then.
        mixed = call.queries.clone()
        mixed[:, list(wanted)] = old_queries[:, places]
        all_keys = repeat_key_heads(call.keys, call.queries).clone()
        all_keys[:, list(wanted)] = repeat_key_heads(old_keys, old_queries)[:, places]
        values = repeat_key_heads(values, call.queries)
        return call._replace(queries=mixed, keys=all_keys, values=values)


def _laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor with the strides of `like`, by which the rounding of a product may
    depend.
    """
    # A stride of 0, of an expanded tensor, cannot be written to.
    if tensor.shape != like.shape or 0 in like.stride() or tensor.stride() == like.stride():
        return tensor
    return torch.empty_strided(
        like.shape, like.stride(), dtype=like.dtype, device=like.device
    ).copy_(tensor)


def _check_fits(
    name: str, call: AttentionCall, recorded: RecordedCall, wanted: Sequence[int], first: int
) -> None:
    queries, keys = call.size
    batch = len(call.queries)
    width = call.queries.shape[-1]
    if recorded._facts.rows is not None:
        raise ValueError(
            f'frozen: the recording of "{name}" keeps some queries only; record without queries='
        )
    if recorded._facts.shape[0] != batch or recorded._facts.shape[2] != width:
        raise ValueError(
            f'frozen: the recording of "{name}" is of {recorded._facts.shape[0]} sequences of '
            f"width {recorded._facts.shape[2]}, and this run of {batch} of width {width}"
        )
    missing = [head for head in wanted if head not in recorded.heads]
    if missing:
        kept = ", ".join(map(str, recorded.heads))
        raise ValueError(
            f'frozen: head {missing[0]} of "{name}" was not recorded; recorded are {kept}'
        )
    # The recording must hold every query and key that this run has reached.
    if first + queries > recorded.size[0] or keys > recorded.size[1]:
        raise ValueError(
            f'frozen: the recording of "{name}" has {recorded.size[0]:,} queries and '
            f"{recorded.size[1]:,} keys, and "
            f"this run has reached {first + queries:,} and {keys:,}; freeze a run that is no "
            "longer than the recording"
        )
    # Without a causal mask, recorded queries may have seen keys that this run lacks.
    if keys < recorded.size[1] and _last_key_seen(recorded, first, queries) > keys:
        raise ValueError(
            f'frozen: the queries of "{name}" saw up to {recorded.size[1]:,} keys when they were '
            "recorded, and this "
            f"run has {keys:,}; freeze a run of the same length"
        )


def _last_key_seen(recorded: RecordedCall, first: int, queries: int) -> int:
    """Return one past the last key that some of these queries saw in the recording."""
    heads = len(recorded.heads)
    batch = recorded._facts.shape[0]
    rows = range(first, first + queries)
    # Ask the mask for the span of each row; no pair is evaluated.
    at = Pairs.block(rows, range(0), of=recorded.size, batch=batch, heads=heads)
    return int(recorded.attention.mask.spans(at, recorded.size[1]).stop.max())


def _recorded_definition(
    recorded: RecordedCall, call: AttentionCall, first: int, own: Attention
) -> Attention:
    """Return the definition by which the recorded queries attend: that of the call if the model's
    own is the same.
    """
    # A recording hides padding queries, which the model computes: compare without that mask.
    attention = include_padding_queries(recorded.attention)
    if attention == own:
        return call.attention
    if call.size == recorded.size:
        return attention
    # Otherwise keep the rows of this call alone.
    rows = torch.arange(first, first + call.size[0])
    return restrict_to_queries(attention, rows, recorded.size)


def frozen(recording: Recording, layers: Layers = None, heads: Heads = None) -> Frozen:
    """Return the edit that attends with the queries and keys of a recording, and with the values of
    this run.

    Args:
        recording: of the same model and a text of the same length, with keep="queries-keys" or
            "steps".
        layers: the attentions to freeze, by their names in the recording; None is all that were
            recorded. The name of a layer that ran several times freezes every pass, each by its own
            pattern; see `ts.mute`.
        heads: the heads to freeze; None is all that were recorded.

    Raises:
        TypeError, ValueError: `recording` is no recording, or keeps no queries and keys.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="queries-keys") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> print(ts.frozen(recording, heads=1))
        freeze head 1 in every layer as recorded of MultiHeadAttention
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"frozen takes a recording of ts.watch or ts.open, not {type(recording).__name__}"
        )
    if recording.keep == "summaries":
        raise ValueError(
            'frozen needs queries and keys: record with ts.watch(model, keep="queries-keys")'
        )
    return Frozen(read_layers(layers), read_heads(heads), recording)
