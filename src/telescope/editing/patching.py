"""Patch a part of some heads from a recording of another text: activation patching.

    output     the context of a head, before W_O, at some positions
    weights    its pattern: queries and keys of the recording, values of this run
    queries    its queries, at some positions
    keys       its keys, for this head alone where heads share keys
    values     its values, likewise

The tokens of both texts are paired in token_pairs.py; contexts are computed again from what was
recorded in recorded_contexts.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import dot
from ..engines import repeat_key_heads
from ..recording import AttentionCall, Layers, RecordedCall, Recording
from ..words import hint, whole_number
from .edits import (
    Block,
    Edit,
    EditedCall,
    Heads,
    Needs,
    Part,
    describe_heads,
    describe_layers,
    read_heads,
    read_layers,
)
from .key_edits import Regions
from .recorded_contexts import RecordedContexts, check_whole, key_head_places
from .recorded_edits import RecordedEdit
from .same_definition import check_same_definition
from .spans import Given, Span, span
from .token_pairs import Alignment, Side, TokenPairs, pair_tokens

Align = Mapping[SupportsIndex, SupportsIndex] | Sequence[SupportsIndex | None] | None
"""The recorded position of each position of the run that is edited."""
PARTS = ("output", "weights", "queries", "keys", "values")
OF_QUERIES = ("output", "weights", "queries")  # parts of which queries= chooses rows
NEED_VALUES = ("output", "values")
# The tensors that a part replaces.
REPLACES = {
    "weights": {"queries", "keys"},
    "queries": {"queries"},
    "keys": {"keys"},
    "values": {"values"},
}


@dataclass(frozen=True)
class Patch(RecordedEdit):
    """Take a part of some heads from a recording of another text.

    Attributes:
        what: the part that is taken, such as "output".
        align: which recorded position each position takes; None where both texts are of one length.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="steps") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> edit = ts.patch(recording, "attention", heads=1)
        >>> edit.what, edit.to_json()["is"]
        ('output', 'patch')
    """

    kind = "patch"
    what: str = "output"
    queries: Span | None = None
    """The queries whose part is taken; None is all."""
    align: Alignment | None = None

    @property
    def _changes(self) -> Part:  # type: ignore[override]
        """The output is patched after the attention, everything else before."""
        return Part.CONTEXT if self.what == "output" else Part.TENSORS

    @property
    def _rank(self) -> int:  # type: ignore[override]
        return 4 if self.what == "output" else 3

    def __str__(self) -> str:
        where = f"{describe_heads(self.heads)}{describe_layers(self.layers)}"
        rows = ""
        if self.queries is not None:
            rows = f" at {self.queries._named('query', 'queries')}"
        elif self.align is not None:
            mapped = [here for here, there in enumerate(self.align) if there >= 0]
            plural = "s" if len(mapped) > 1 else ""
            rows = f" at {'token' if self.what in OF_QUERIES else 'key'}{plural} {_listed(mapped)}"
        return f"patch the {self.what} of {where}{rows} from a recording of {self._model_name}"

    @property
    def _needs(self) -> Needs:
        return Needs.PLACE | Needs.POSITIONS | Needs.PASS

    def _select(
        self, names: Sequence[str], passes: Sequence[str], unwatched: Sequence[str]
    ) -> list[str]:
        selected = super()._select(names, passes, unwatched)
        if self.what == "output":
            self._require_own_contexts(selected)
        return selected

    def _contradicts(self, other: Edit) -> str:
        if self.what == "output" and other._changes is Part.CONTEXT:
            apart = isinstance(other, Patch) and _are_apart(self.queries, other.queries)
            return "" if apart else "both say what a head puts out"
        # Nothing is left of what the head computes, unless some of its queries stay.
        if self.what == "output":
            stays = self.queries is not None or self.align is not None
            return "" if stays else "a patched output is not computed anew"
        if isinstance(other, Patch) and other.what != "output":
            shared = REPLACES[self.what] & REPLACES[other.what]
            return f"both replace its {min(shared)}" if shared else ""
        if self.what == "weights" and other._changes is Part.DEFINITION:
            return "a patched pattern is not computed anew"
        return ""

    # --------------------------------------------------------------------------- what is replaced

    def _change_context(
        self, at: EditedCall, context: Float[Tensor, "batch heads query d_v"]
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Return the context with the recorded one at the paired queries."""
        assert at.call is not None
        recorded = self._recorded_call(at)
        heads, places = self._places(at, recorded, context.shape[1])
        pairs = self._pair(at, at.call.without_unwritten_keys(), recorded, "query")
        if not len(pairs.rows):
            return context
        found = at.block.share(RecordedContexts).context(recorded, places)
        if found.shape[-1] != context.shape[-1]:
            raise ValueError(_wrong_width("values", at.name, found, context))

        # Heads of the recorded context are those that are patched, in their order.
        there = pairs.to(found.device).of_recording(range(len(heads)))
        new = found[there].to(context.device, context.dtype)
        here = pairs.to(context.device).of_call(heads)
        # Without gradients, in place: nobody else reads the context yet.
        if context.requires_grad and torch.is_grad_enabled():
            return context.index_put(here, new)
        context[here] = new
        return context

    def _change_tensors(self, at: EditedCall, call: AttentionCall) -> AttentionCall:
        """Return the call with the recorded tensors at the paired tokens of the edited heads."""
        assert at.call is not None
        recorded = self._recorded_call(at)
        heads, places = self._places(at, recorded, call.queries.shape[1])
        # Sizes count tokens: drop the unwritten end of a cache of fixed size.
        written = call.without_unwritten_keys()
        if self.what == "weights":
            return self._change_pattern(at, call, written, recorded, heads, places)
        side: Side = "query" if self.what == "queries" else "key"
        pairs = self._pair(at, written, recorded, side)
        if not len(pairs.rows):
            return call
        if self.what == "queries":
            new = _replaced(at, "queries", written.queries, recorded.queries, pairs, heads, places)
            return written._replace(queries=new, lse=None)
        return _replace_of_keys(at, written, recorded, self.what, pairs, heads, places)

    def _change_pattern(
        self,
        at: EditedCall,
        call: AttentionCall,
        written: AttentionCall,
        recorded: RecordedCall,
        heads: list[int],
        places: list[int],
    ) -> AttentionCall:
        """Return the call in which the paired queries see the recorded keys by the recorded
        queries.
        """
        pairs = self._pair(at, written, recorded, "query")
        if not len(pairs.rows):
            return call
        key_pairs = self._pair(at, written, recorded, "key")
        check_same_definition(at, written, recorded, heads, pairs, key_pairs)
        queries = _replaced(at, "queries", written.queries, recorded.queries, pairs, heads, places)
        patched = _replace_of_keys(at, written, recorded, "keys", key_pairs, heads, places)
        # Every query is patched: other queries do not miss their own keys.
        if len(pairs.rows) == written.queries.shape[2] * len({*pairs.rows.tolist()}):
            return patched._replace(queries=queries, lse=None)

        # Queries of both kinds share the keys: give each kind features of its own. The products
        # with the features of the other kind are zero, so that each score is that of one kind.
        attention = written.attention
        if attention.score != dot:
            raise ValueError(
                f'patch: "{at.name}" has the score {attention.score.formula}, by which the weights '
                "of some queries cannot be patched alone; leave queries= out"
            )
        width = written.keys.shape[-1]
        here = pairs.to(queries.device).of_call(heads)
        own = written.queries.clone()
        own[here] = 0.0
        other = torch.zeros_like(queries)
        other[here] = queries[here]
        own_keys = repeat_key_heads(written.keys, written.queries)
        keys = repeat_key_heads(patched.keys, written.queries)
        return patched._replace(
            queries=torch.cat([own, other], -1),
            keys=torch.cat([own_keys, keys], -1),
            values=repeat_key_heads(patched.values, written.queries),
            attention=replace(attention, scale=attention.scale_for(width)),
            lse=None,
        )

    # -------------------------------------------------------------------------- what is recorded

    def _recorded_call(self, at: EditedCall) -> RecordedCall:
        """Return the recorded call; raise a ValueError if it lacks what is patched."""
        if at.name not in self._recorded_names:
            raise ValueError(
                f'patch: the recording of {self._model_name} has no call of "{at.name}"; recorded '
                f"are {', '.join(self._recorded_names)}"
            )
        recorded = self._its_recording[at.name].call
        # A part of the queries is enough for the keys of all.
        if self.what in OF_QUERIES or self.what in NEED_VALUES:
            check_whole(self.kind, recorded, needs_values=self.what in NEED_VALUES)
        return recorded

    def _pair(
        self, at: EditedCall, call: AttentionCall, recorded: RecordedCall, side: Side
    ) -> TokenPairs:
        """Return the pairs of tokens; of queries, those that are meant alone."""
        ranges = None
        across = call.is_cross_attention
        if self.queries is not None and side == "query":
            regions = at.block.share(Regions)
            ranges = regions.ranges(self, at, "queries", self.queries, of_queries=across)
            assert at.place is not None
            reached = max(at.place.positions or [0]) + 1 if across else call.size[1]
            regions.note(self, "queries", ranges, reached)
        pairs = pair_tokens(self.kind, at, call, recorded, side, self.align, ranges)
        if self.align is not None:
            at.block.share(MapChecks).note(self, max(call.size))
        return pairs


class MapChecks:
    """Check, when a block ends, that the positions of its maps were in some text."""

    def __init__(self, block: Block) -> None:
        self._longest: dict[Patch, int] = {}
        block.checks.append(self.problems)

    def note(self, edit: Patch, tokens: int) -> None:
        """Note the length of a text that an edit has read."""
        self._longest[edit] = max(tokens, self._longest.get(edit, 0))

    def problems(self) -> list[str]:
        """Return a sentence for each map that names a position which no text had."""
        return [
            f"{edit}: align= names position {len(edit.align) - 1} of this run, and the longest "
            f"text had positions 0 to {longest - 1}"
            for edit, longest in self._longest.items()
            if edit.align is not None and len(edit.align) > longest
        ]


def _replace_of_keys(
    at: EditedCall,
    call: AttentionCall,
    recorded: RecordedCall,
    what: str,
    pairs: TokenPairs,
    heads: list[int],
    places: list[int],
) -> AttentionCall:
    """Return the call with recorded keys, or values, at the paired keys of some heads."""
    # Heads that are not patched keep the keys they share: each head gets keys of its own.
    keys = repeat_key_heads(call.keys, call.queries)
    values = repeat_key_heads(call.values, call.queries)
    own = key_head_places(recorded, places)
    if what == "keys":
        keys = _replaced(at, "keys", keys, recorded.keys, pairs, heads, own)
    else:
        values = _replaced(at, "values", values, recorded.values, pairs, heads, own)
    return call._replace(keys=keys, values=values, lse=None)


def _replaced(
    at: EditedCall,
    what: str,
    tensor: Float[Tensor, "batch heads token width"],
    recorded: Float[Tensor, "sequence recorded_heads recorded_token width"],
    pairs: TokenPairs,
    heads: list[int],
    places: list[int],
) -> Float[Tensor, "batch heads token width"]:
    """Return a copy with the recorded numbers at the paired tokens of some heads."""
    if recorded.shape[-1] != tensor.shape[-1]:
        raise ValueError(_wrong_width(what, at.name, recorded, tensor))
    there = pairs.to(recorded.device).of_recording(places)
    changed = tensor.clone(memory_format=torch.contiguous_format)
    here = pairs.to(tensor.device).of_call(heads)
    changed[here] = recorded[there].to(tensor.device, tensor.dtype)
    return changed


def _wrong_width(what: str, name: str, recorded: Tensor, running: Tensor) -> str:
    return (
        f'patch: the {what} of "{name}" were recorded with width {recorded.shape[-1]}, and this '
        f"run has width {running.shape[-1]}; record a model of the same shape"
    )


def _listed(positions: list[int]) -> str:
    """Return positions in words, the first and the last of many."""
    if len(positions) > 3:
        return f"{positions[0]}, {positions[1]}, … {positions[-1]}"
    return ", ".join(map(str, positions))


def _are_apart(one: Span | None, other: Span | None) -> bool:
    """Return whether two spans are known to share no position."""
    if one is None or other is None or one._needs_ids or other._needs_ids:
        return False
    return all(
        (stop is not None and stop <= begin) or (end is not None and end <= start)
        for start, stop in one.ranges
        for begin, end in other.ranges
    )


# ------------------------------------------------------------------------------ what a user gives


def make_patch(
    recording: Recording,
    layers: Layers = None,
    heads: Heads = None,
    *,
    what: str = "output",
    queries: Given | None = None,
    align: Align = None,
) -> Patch:
    """Return the edit of `ts.patch`, after a check of every argument."""
    if not isinstance(recording, Recording):
        raise TypeError(
            f"patch takes a recording of ts.watch or ts.open, not {type(recording).__name__}; "
            'with ts.watch(model, keep="steps") as recording: model(other) makes one'
        )
    if what not in PARTS:
        raise ValueError(f'there is no what="{what}"; {hint(str(what), PARTS)}')
    kept = ("steps",) if what in NEED_VALUES else ("queries-keys", "steps")
    if recording.keep not in kept:
        raise ValueError(
            f'patch of what="{what}" needs more than keep="{recording.keep}" has kept: record with '
            f'ts.watch(model, keep="{kept[0]}")'
        )
    if queries is not None and what not in OF_QUERIES:
        raise ValueError(
            f'queries= chooses queries, and what="{what}" is taken of keys; choose keys by their '
            "positions, such as align={3: 3}"
        )
    table = None if align is None else read_alignment(align)
    if table is not None and what == "weights":
        raise ValueError(
            'align= does not go with what="weights": a recorded weight belongs to a key, and keys '
            'of another text may have none here; patch "queries", "keys" or "output", or texts of '
            "equal length"
        )
    return Patch(
        read_layers(layers),
        read_heads(heads),
        recording,
        what,
        None if queries is None else span("queries", queries),
        table,
    )


def read_alignment(given: Any) -> Alignment:
    """Return `align=` as a tuple: the recorded position of each position, -1 for none."""
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise TypeError(
            f"align={given!r} is {type(given).__name__}; it takes {{position here: position "
            "there}}, or a list with the recorded position of each position, None for none"
        )
    pairs: dict[int, int | None]
    if isinstance(given, Mapping):
        pairs = {whole_number("align", here): there for here, there in given.items()}
    else:
        pairs = dict(enumerate(given))
    named = {here: whole_number("align", to) for here, to in pairs.items() if to is not None}
    if not named:
        raise ValueError("align= names no position; leave it out for texts of equal length")
    wrong = next((pair for pair in named.items() if min(pair) < 0), None)
    if wrong is not None:
        raise ValueError(
            f"align={{{wrong[0]}: {wrong[1]}}} counts from the end; count from 0, the first token"
        )
    return tuple(named.get(here, -1) for here in range(max(named) + 1))
