"""What edits do to one call of an attention: change its definition or its queries and keys, or its
context.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import (
    Attention,
    Pairs,
    Rectangle,
    RenumberedBias,
    WrittenMask,
    hide,
    include_padding_queries,
    raise_scores,
    restrict_to_queries,
    without_other_heads,
)
from ..engines import repeat_key_heads
from ..recording.attention_call import AttentionCall
from ..recording.names import head_numbers
from ..recording.recorded_call import RecordedCall
from ..recording.recording import Recording
from .edits import Boost, Frozen, Hide, Mute, Redefine
from .prompts import Place
from .regions import LayerEdit, Regions

MAX_CACHED = 64


class CallEditor:
    """Apply edits to calls. Definitions that are edited alike are one object, so that layers and
    steps share them.
    """

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self._definitions: dict[object, tuple[Attention, Attention]] = {}

    def change(
        self, name: str, call: AttentionCall, place: Place | None, edits: Sequence[LayerEdit]
    ) -> AttentionCall:
        """Return the call with its definition, queries and keys changed; the same object if nothing
        changes.
        """
        attention = self._definition(name, call, place, edits)
        changed = call if attention is call.attention else call._replace(attention=attention)
        for one in edits:
            if isinstance(one.edit, Frozen):
                assert place is not None
                changed = freeze(
                    name, changed, one.edit, place, call.attention, first_head=one.first_head
                )
        return changed

    def _definition(
        self, name: str, call: AttentionCall, place: Place | None, edits: Sequence[LayerEdit]
    ) -> Attention:
        """Return the definition after redefining, boosting and hiding, in this order."""
        functions = [one.edit.function for one in edits if isinstance(one.edit, Redefine)]
        raised = list[tuple[float, Rectangle]]()
        hidden = list[Rectangle]()
        for one in edits if place is not None else ():
            assert place is not None
            if isinstance(one.edit, Hide | Boost):
                rectangle = self.regions.rectangle(name, call, place, one)
                if rectangle is not None and isinstance(one.edit, Hide):
                    hidden.append(rectangle)
                elif rectangle is not None and isinstance(one.edit, Boost) and one.edit.by != 1.0:
                    raised.append((one.edit.by, rectangle))
        if not functions and not raised and not hidden:
            return call.attention
        key = (
            call.attention.identity,
            tuple((by, id(one)) for by, one in raised),
            tuple(map(id, hidden)),
        )
        if not functions and key in self._definitions:
            return self._definitions[key][1]
        attention, written = without_room(call.attention)
        for function in functions:
            assert not isinstance(function, str)
            attention = function(attention)
            if not isinstance(attention, Attention):
                raise TypeError(
                    f'redefine of "{name}": the function returned {type(attention).__name__}, not '
                    "an Attention"
                )
        for by, rectangle in raised:
            attention = raise_scores(attention, rectangle, math.log(by))
        for rectangle in hidden:
            attention = hide(attention, rectangle)
        attention = attention if written is None else written.numbering.apply(attention)
        if not functions:
            while len(self._definitions) >= MAX_CACHED:
                del self._definitions[next(iter(self._definitions))]
            self._definitions[key] = (
                call.attention,
                attention,
            )  # the first is kept, so that its identity is unique
        return attention


def without_room(attention: Attention) -> tuple[Attention, WrittenMask | None]:
    """Return the definition without the mask of a cache's unwritten keys, and that mask."""
    mask = attention.mask
    bias = attention.bias
    if not isinstance(mask, WrittenMask):
        return attention, None
    inner = bias.bias if isinstance(bias, RenumberedBias) else bias
    return replace(attention, mask=mask.mask, bias=inner), mask


# ------------------------------------------------------------------------------------------- frozen


def freeze(
    name: str,
    call: AttentionCall,
    edit: Frozen,
    place: Place,
    own: Attention,
    *,
    first_head: int = 0,
) -> AttentionCall:
    """Return the call with the queries and keys of a recording in the frozen heads, and its own
    values.

    `own` is the model's own definition, to which other edits may have added something for other
    heads. Raise a ValueError where the recording does not fit: another batch, fewer tokens, not all
    queries, missing heads. `first_head` is the number, in the whole model, of the call's first
    head.
    """
    assert isinstance(edit.recording, Recording)
    recorded = edit.recording[name].call
    count = call.queries.shape[1]
    wanted = recorded.heads if edit.heads is None else head_numbers(name, edit.heads, count)
    queries, keys = call.size
    across = call.is_cross_attention
    if isinstance(call.attention.mask, WrittenMask):
        call = call.without_unwritten_keys()
        queries, keys = call.size
    first = (place.positions or [0])[0] if across else keys - queries
    before = 0 if edit.recording.is_part else first_head
    _check_fits(name, call, recorded, [before + head for head in wanted], first)
    rows = slice(first, first + queries)
    places = [recorded.heads.index(before + head) for head in wanted]
    like = call.queries
    own_queries = recorded.queries[:, :, rows].to(like.device, like.dtype)
    own_keys = recorded.keys.to(like.device, like.dtype)
    attention = _recorded_definition(
        recorded, call, first, without_other_heads(without_room(own)[0], wanted)
    )
    whole = attention is not call.attention and (queries, keys) != recorded.size
    cut = own_keys if whole else own_keys[:, :, call.evicted : keys]
    values = call.values
    # The recorded definition is over all keys of the recording; later ones have neither value nor
    # weight.
    if whole:
        values = pad(values, (0, 0, call.evicted, recorded.size[1] - keys))
        call = call._replace(evicted=0)
    if len(wanted) == count == len(recorded.heads) and places == list(range(count)):
        own_queries = _laid_out_like(own_queries, call.queries)
        cut = _laid_out_like(cut, call.keys)
        return call._replace(queries=own_queries, keys=cut, values=values, attention=attention)
    if attention is not call.attention:
        raise ValueError(
            f'frozen: "{name}" was recorded as {recorded.attention}, and this run attends by '
            f"{own}; some of its heads "
            "cannot be frozen alone, leave heads= out"
        )
    mixed = call.queries.clone()
    all_keys = repeat_key_heads(call.keys, call.queries).clone()
    mixed[:, list(wanted)] = own_queries[:, places]
    all_keys[:, list(wanted)] = repeat_key_heads(cut, own_queries)[:, places]
    return call._replace(
        queries=mixed, keys=all_keys, values=repeat_key_heads(values, call.queries)
    )


def _laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor with the strides of `like`, by which the rounding of a product may
    depend.
    """
    if tensor.shape != like.shape or 0 in like.stride() or tensor.stride() == like.stride():
        return tensor
    return torch.empty_strided(
        like.shape, like.stride(), dtype=like.dtype, device=like.device
    ).copy_(tensor)


def _check_fits(
    name: str, call: AttentionCall, recorded: RecordedCall, wanted: Sequence[int], first: int
) -> None:
    queries, keys = call.size
    batch, width = (len(call.queries), call.queries.shape[-1])
    if recorded.facts.rows is not None:
        raise ValueError(
            f'frozen: the recording of "{name}" keeps some queries only; record without queries='
        )
    if recorded.facts.shape[0] != batch or recorded.facts.shape[2] != width:
        raise ValueError(
            f'frozen: the recording of "{name}" is of {recorded.facts.shape[0]} sequences of width '
            f"{recorded.facts.shape[2]}, and this run of {batch} of width {width}"
        )
    missing = [head for head in wanted if head not in recorded.heads]
    if missing:
        kept = ", ".join(map(str, recorded.heads))
        raise ValueError(
            f'frozen: head {missing[0]} of "{name}" was not recorded; recorded are {kept}'
        )
    if first + queries > recorded.size[0] or keys > recorded.size[1]:
        raise ValueError(
            f'frozen: the recording of "{name}" has {recorded.size[0]:,} queries and '
            f"{recorded.size[1]:,} keys, and "
            f"this run has reached {first + queries:,} and {keys:,}; freeze a run that is no "
            "longer than the recording"
        )
    if keys < recorded.size[1] and _last_key_seen(recorded, first, queries) > keys:
        raise ValueError(
            f'frozen: the queries of "{name}" saw up to {recorded.size[1]:,} keys when they were '
            "recorded, and this "
            f"run has {keys:,}; freeze a run of the same length"
        )


def _last_key_seen(recorded: RecordedCall, first: int, queries: int) -> int:
    """Return one past the last key that some of these queries saw in the recording."""
    heads = len(recorded.heads)
    batch = recorded.facts.shape[0]
    rows = range(first, first + queries)
    at = Pairs.block(rows, range(0), of=recorded.size, batch=batch, heads=heads)
    return int(recorded.attention.mask.spans(at, recorded.size[1]).stop.max())


def _recorded_definition(
    recorded: RecordedCall, call: AttentionCall, first: int, own: Attention
) -> Attention:
    """Return the definition by which the recorded queries attend: that of the call if the model's
    own is the same.
    """
    attention = include_padding_queries(recorded.attention)
    if attention == own:
        return call.attention
    if call.size == recorded.size:
        return attention
    rows = torch.arange(first, first + call.size[0])
    return restrict_to_queries(attention, rows, recorded.size)


# --------------------------------------------------------------------------------------------- mute


def finish_context(
    name: str,
    call: AttentionCall | None,
    context: Float[Tensor, "batch heads query d_v"],
    mutes: Sequence[LayerEdit],
    place: Place | None,
    value_set: int = 0,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context with the muted heads multiplied; in place unless gradients are needed.

    `value_set` tells calls apart that multiply the same weights by several sets of values: each set
    has its own mean.
    """
    count = context.shape[1]
    for one in mutes:
        edit = one.edit
        assert isinstance(edit, Mute)
        heads = (
            list(range(count))
            if edit.heads is None
            else list(head_numbers(name, edit.heads, count))
        )
        rows = (
            slice(None) if one.sequences is None else slice(one.sequences.start, one.sequences.stop)
        )
        if not context.requires_grad or not torch.is_grad_enabled():
            part = context[rows]
            if edit.by == "mean":
                part[:, heads] = _muted(part[:, heads], one, edit, call, place, rows, value_set)
            else:
                _mute_in_place(part, heads, edit.times)
            continue
        chosen = torch.zeros(len(context), count, 1, 1, dtype=torch.bool, device=context.device)
        chosen[rows, heads] = True
        muted = _muted(context[rows][:, heads], one, edit, call, place, rows, value_set)
        whole = torch.zeros_like(context)
        whole[rows, heads] = muted
        context = torch.where(chosen, whole, context)
    return context


def _mute_in_place(
    context: Float[Tensor, "some heads query d_v"], heads: list[int], times: float
) -> None:
    """Multiply these heads, each as a view: on a GPU, a list of heads would be copied there in
    every call.
    """
    views = [context] if len(heads) == context.shape[1] else [context[:, head] for head in heads]
    for view in views:
        if times:
            view.mul_(times)
        else:
            view.zero_()


def _muted(
    part: Float[Tensor, "some chosen query d_v"],
    one: LayerEdit,
    edit: Mute,
    call: AttentionCall | None,
    place: Place | None,
    rows: slice,
    value_set: int,
) -> Tensor:
    """Return the context of the muted heads after the edit."""
    if edit.by == "mean":
        assert place is not None
        assert call is not None
        mean = _mean(part, one, call, place, rows, value_set)
        return mean + edit.times * (part - mean)
    if edit.times:
        return part * edit.times
    return part.masked_fill(
        torch.ones((), dtype=torch.bool, device=part.device), 0.0
    )  # 0 · NaN would be NaN


def _mean(
    part: Tensor, one: LayerEdit, call: AttentionCall, place: Place, rows: slice, value_set: int
) -> Tensor:
    """Return the mean of each head over the queries of the prompt, (some, chosen, 1, d_v)."""
    if place.reads_prompt:
        if not place.reads_all:
            raise ValueError(
                f'"{one.edit}" needs the mean of the whole prompt, which is read in several '
                "forward passes here; let "
                "the model read it at once, in generate without prefill_chunk_size"
            )
        real = place.real_queries(call)
        if real is None:
            mean = part.mean(2, keepdim=True)
        else:
            weights = real[rows].to(part.dtype)
            mean = (part * weights).sum(2, keepdim=True) / weights.sum(2, keepdim=True).clamp(
                min=1.0
            )
        place.prompt.means[id(one), value_set] = mean.detach()
        return mean
    known = place.prompt.means[id(one), value_set]
    sequences = place.rows(call)
    return known if sequences is None else known[sequences]
