"""`ts.patch`: make edits that patch heads from a recording: one, one for each head, or one for a
path from one head to another.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch import nn

from ..interception import watch
from ..interception.found import find_attentions
from ..recording import Layers, Recording, head_numbers, select_layers
from ..words import hint
from .edit import edit
from .edits import Heads
from .model_inputs import ModelInputs
from .patching import OF_QUERIES, Align, Patch, make_patch
from .spans import Given
from .token_pairs import recorded_texts

KINDS_OF_EACH = ("head", "layer", "position")
RECEIVED = ("queries", "keys", "values")
HeadOf = tuple[str | SupportsIndex, SupportsIndex]
"""The layer and the number of one head."""


class PatchEdits:
    """`ts.patch`: make edits that take a part of some heads from a recording of another text."""

    def __call__(
        self,
        recording: Recording,
        layers: Layers = None,
        heads: Heads = None,
        *,
        what: str = "output",
        queries: Given | None = None,
        align: Align = None,
    ) -> Patch:
        """Return the edit that takes a part of some heads from a recording of another text.

        Positions count the tokens of each sequence from 0, without padding. Texts of equal length
        are patched position by position; others need `align`. A recording of one text serves every
        sequence of a batch; a recording of a batch serves a batch of the same size, row by row.
        What a model generates is patched as long as the recording has the position, and stays as
        it runs after that.

        Args:
            recording: of the same model, by ts.watch(model, keep="steps"); "queries-keys" is enough
                for weights, queries and keys.
            layers: names, patterns or numbers of attentions, as in `ts.mute`; None is all that were
                recorded.
            heads: the numbers of the heads, -1 for the last; None is all that were recorded.
            what: "output": the context of the head, before W_O, as it was recorded.
                "values": the values of its keys, with the weights of this run.
                "weights": its pattern, by the recorded queries and keys, with the values of this
                run. "queries", "keys": these alone. Where heads share keys and values, those of the
                other heads stay as they are.
            queries: the queries at which output, weights or queries are taken: positions, text or
                `ts.tokens(...)`, as in `ts.hide`; None is all.
            align: {position here: recorded position}, or a list with the recorded position of each
                position, None for none; other positions stay as they run. In cross-attention, keys
                are tokens of the source, and queries those of the target. Not for "weights".

        Raises:
            TypeError, ValueError: `recording` is no recording or kept too little, an argument is
                none of the above, or, while the model runs, texts differ in length and there is no
                map, or the recording lacks a head or a position.

        Example:
            >>> import torch, telescope as ts
            >>> layer = ts.layers.MultiHeadAttention(8, 2)
            >>> with torch.no_grad(), ts.watch(layer, keep="steps") as recording:
            ...     expected = layer(torch.randn(1, 5, 8))
            >>> with torch.no_grad(), ts.edit(layer, ts.patch(recording)):
            ...     torch.allclose(layer(torch.randn(1, 5, 8)), expected, atol=1e-5)
            True
        """
        return make_patch(recording, layers, heads, what=what, queries=queries, align=align)

    def each(
        self,
        model: nn.Module,
        recording: Recording,
        layers: Layers = None,
        *,
        what: str = "output",
        by: str = "head",
        queries: Given | None = None,
        align: Align = None,
    ) -> list[Patch]:
        """Return one patch for each head of a model, for `ts.effect`.

        Args:
            model: the model that will run.
            recording, layers, what, queries, align: as in `ts.patch`.
            by: "head": one edit for each head; "layer": for all heads of each attention;
                "position": for all heads of each attention at each position of the recorded text.

        Returns:
            One edit for each head, layer or position, in the order of the model.

        Raises:
            ValueError: as `ts.patch`; or the recording lacks a layer.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
            >>> model = ts.models.GPT(config)
            >>> with ts.watch(model, keep="steps") as clean:
            ...     _ = model(torch.tensor([[1, 2, 3]]))
            >>> (
            ...     len(ts.patch.each(model, clean)),
            ...     len(ts.patch.each(model, clean, by="layer")),
            ... )
            (2, 1)
        """
        if by not in KINDS_OF_EACH:
            raise ValueError(f'there is no by="{by}"; {hint(str(by), KINDS_OF_EACH)}')
        if by == "position" and (queries is not None or align is not None):
            raise ValueError(
                'by="position" has one edit for each position; leave queries= and align= out, or '
                "make the edits one by one with ts.patch"
            )
        given: dict[str, Any] = {"what": what, "queries": queries, "align": align}
        whole = make_patch(recording, layers, **given)
        found = find_attentions(model, "edit")
        edits = []
        for name in whole._select([*found.attentions], [], found.unwatched):
            recorded = recording[name].call
            if by == "head":
                edits += [make_patch(recording, name, head, **given) for head in recorded.heads]
            elif by == "layer":
                edits.append(make_patch(recording, name, **given))
            else:
                side: Any = "query" if what in OF_QUERIES else "key"
                length = max(text.length for text in recorded_texts(recorded, side))
                # Keys are chosen by a map of one position.
                at = "queries" if side == "query" else "align"
                chosen: list[dict[str, Any]] = [
                    {at: i if side == "query" else {i: i}} for i in range(length)
                ]
                edits += [make_patch(recording, name, what=what, **one) for one in chosen]
        return edits

    def path(
        self,
        model: nn.Module,
        inputs: Any,
        recording: Recording,
        sender: HeadOf,
        receiver: HeadOf,
        into: str = "queries",
        *,
        align: Align = None,
        tokenizer: Any = None,
    ) -> Patch:
        """Return the edit that gives one head what reaches it from another head alone, of a
        recorded text: path patching (Wang et al., 2022).

        The inputs run twice. First as they are. Then with the sender's output taken from
        `recording`, and every head that runs after the sender held at its output of the first run;
        feed-forward layers run. The receiver's queries, keys or values of the second run are what
        the returned edit patches, into a run of the same inputs.

        Args:
            model: a model that `ts.edit` takes.
            inputs: what the model is called with, as in `ts.effect`.
            recording: of the other text, by ts.watch(model, keep="steps").
            sender, receiver: (layer, head) of each, the layer by its name or number.
            into: "queries", "keys" or "values": by which of its inputs the receiver is reached.
            align: as in `ts.patch`, where the recorded text has another length.
            tokenizer: for inputs that are text.

        Raises:
            ValueError: as `ts.patch`; or the receiver does not run after the sender.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> ids, other = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]])
            >>> with torch.no_grad(), ts.watch(model, keep="steps") as recording:
            ...     _ = model(other)
            >>> print(ts.patch.path(model, ids, recording, sender=(0, 1), receiver=(1, 0)))
            patch the queries of head 0 of blocks.1.self from a recording of GPT
        """
        if into not in RECEIVED:
            raise ValueError(f'there is no into="{into}"; {hint(str(into), RECEIVED)}')
        names = [*find_attentions(model, "edit").attentions]
        source = _one_layer(names, sender, "sender")
        target = _one_layer(names, receiver, "receiver")
        call = ModelInputs.of(model, inputs, tokenizer or getattr(model, "tokenizer", None))
        args, kwargs = call.repeated(1)
        patched = make_patch(recording, source, sender[1], align=align)

        # As it is: what every head puts out, and the order in which attentions run.
        order: list[str] = []
        with torch.no_grad(), watch(model, keep="steps") as clean:
            clean.on_call = order.append
            model(*args, **kwargs)
        for name, layer, head in (("sender", source, sender), ("receiver", target, receiver)):
            if layer not in order:
                raise ValueError(f'{name}: "{layer}" was not called by these inputs')
            head_numbers(layer, [head[1].__index__()], len(clean[layer].call.heads))
        later = order[order.index(source) + 1 :]
        if target not in later:
            raise ValueError(
                f'the receiver "{target}" does not run after the sender "{source}", so that '
                f"nothing of it arrives there; after it run {', '.join(later) or 'none'}"
            )

        # With the sender patched, and everything after it held.
        held = make_patch(clean, later)
        changed = edit(model, patched, held, tokenizer=tokenizer)
        with torch.no_grad(), watch(model, layers=target, keep="steps") as read, changed:
            model(*args, **kwargs)
        return make_patch(read, target, receiver[1], what=into)


def _one_layer(names: Sequence[str], head: HeadOf, argument: str) -> str:
    """Return the attention that (layer, head) names."""
    if not isinstance(head, Sequence) or isinstance(head, str) or len(head) != 2:
        raise ValueError(f"{argument}={head!r} is no head; it takes (layer, head), such as (3, 7)")
    found = select_layers(names, head[0], argument=argument)
    if len(found) > 1:
        raise ValueError(
            f"{argument}={head!r} names {len(found)} attentions, {', '.join(found)}; name one"
        )
    return found[0]


patch = PatchEdits()
