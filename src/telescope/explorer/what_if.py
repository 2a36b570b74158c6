"""Answers to what if one attention were changed, by running the model again through `ts.edit`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, by_sum, everyone, padding
from ..editing import Edit, divergence, hide, log_probability, mute, redefine
from ..interception import watch
from ..recording import one_head
from ..recording.row_in_float64 import row_in_float64
from ..tiles import OneHead
from .answers import Answer, Vector, WrittenWord, bad_parameter, not_kept
from .output import Candidate, Output
from .run import AttentionView, RunRequest
from .walk import TraceAnswer, trace_row

# The edits t:0.5, a temperature, and hide:3, a key.
TEMPERATURE = re.compile(r"t:([0-9]{1,2}(?:\.[0-9]{1,3})?)", re.ASCII)
HIDDEN = re.compile(r"hide:([0-9]{1,4})", re.ASCII)


@dataclass(frozen=True)
class WordChange(WrittenWord):
    """A written word, its probability before and after, and the beginning of what would now be
    written; null if nothing else.
    """

    before: float
    after: float
    instead: str | None


@dataclass(frozen=True)
class OutputChange(Answer):
    """What an edit does to the output.

    kl      of the next token after a GPT's text; of a translation, the mean over its tokens; nats
    before  the likeliest next tokens, of a GPT; after: edited
    words   of a translation
    """

    # Within an exact answer, these need no more digits than the model has.
    exact = False
    kind: str
    kl: float
    before: Sequence[Candidate]
    after: Sequence[Candidate]
    words: Sequence[WordChange]


@dataclass(frozen=True)
class WhatIfAnswer(Answer):
    """One query and the output, with one attention changed.

    before   the weight of each key of the trace; after: edited
    changed  the key that changed the most, by its place in the trace
    output   null without a model
    reaches  whether the model runs; without one, the attention is changed alone
    """

    exact = True
    l: int
    h: int
    i: int
    b: int
    trace: TraceAnswer
    before: Vector
    after: Vector
    changed: int | None
    output: OutputChange | None
    reaches: bool


@dataclass(frozen=True)
class Changes:
    """What is changed in one attention: the scale, the mask, the normaliser, a head, the
    temperature, some keys.
    """

    scale: bool = False
    mask: bool = False
    sum: bool = False
    mute: bool = False
    temperature: float = 1.0
    hidden: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, view: AttentionView) -> "Changes":
        """Return the changes that the parameter `edits` names, separated by commas: scale, mask,
        sum, mute, t:2, hide:3.
        """
        changes = cls()
        for word in filter(None, text.split(",")):
            hot = TEMPERATURE.fullmatch(word)
            covered = HIDDEN.fullmatch(word)
            if word in ("scale", "mask", "sum", "mute"):
                switched: dict[str, Any] = {word: True}
                changes = replace(changes, **switched)
            elif hot is not None and 0.05 <= float(hot[1]) <= 20:
                changes = replace(changes, temperature=float(hot[1]))
            elif covered is not None and int(covered[1]) < view.size[1]:
                # Of a word in several tokens, all are hidden.
                keys = _keys_of_word(view, int(covered[1]))
                changes = replace(changes, hidden=(*changes.hidden, *keys))
            else:
                raise bad_parameter(
                    f'edits="{word[:40]}" is not known; known: scale, mask, sum, mute, t:0.5, '
                    "hide:3"
                )
        return changes

    @property
    def redefines(self) -> bool:
        return self.scale or self.mask or self.sum or self.temperature != 1.0

    def redefined(self, attention: Attention, d_k: int) -> Attention:
        """Return a definition with its scale, mask, normaliser and temperature changed."""
        if not self.redefines:
            return attention
        return replace(
            attention,
            # Scores divided by the temperature, as in sampling.
            scale=(1.0 if self.scale else attention.scale_for(d_k)) / self.temperature,
            mask=everyone if self.mask else attention.mask,
            normalize=by_sum if self.sum else attention.normalize,
        )

    def edits(self, name: str, h: int, d_k: int) -> list[Edit]:
        """Return the changes as edits of `ts.edit`."""
        edits: list[Edit] = []
        if self.redefines:
            edits.append(redefine(name, lambda attention: self.redefined(attention, d_k)))
        if self.hidden:
            edits.append(hide(list(self.hidden), layers=name))
        if self.mute:
            edits.append(mute(name, heads=[h]))
        return edits

    def applied(self, one: OneHead) -> OneHead:
        """Return a head with a changed definition: of an example or a recording, without its
        model.
        """
        attention = self.redefined(one.attention, one.keys.shape[-1])
        if self.hidden:
            # Hidden keys are masked as padding is.
            kept = torch.ones(1, one.keys.shape[2], dtype=torch.bool)
            kept[0, list(self.hidden)] = False
            attention = replace(attention, mask=attention.mask & padding(keep=kept))
        values = one.values
        # A muted head writes zeros, as if all of its values were zero.
        if self.mute and values is not None:
            values = torch.zeros_like(values)
        # The recorded log-sum-exp is of the unchanged scores.
        return one._replace(attention=attention, values=values, lse=None)


@torch.no_grad()
def what_if(request: RunRequest) -> WhatIfAnswer:
    """Answer the same query with the attention changed: not divided by √d (scale), not masked
    (mask), by sum instead of softmax (sum), the head muted (mute), at a temperature (t:0.5), the
    word of a key hidden (hide:3).
    """
    view = request.view
    h = request.h
    b = request.b
    i = request.i
    made = request.run.output
    if not view.call._has_queries:
        raise not_kept(
            "a what-if needs queries and keys: telescope watch --keep queries-keys keeps them"
        )
    changes = Changes.parse(request.parameters.get("edits", ""), view)

    # Run the model edited, and record the attention; without a model, change the head alone.
    change: OutputChange | None = None
    if made is None:
        one = changes.applied(request.one)
    else:
        edits = changes.edits(view.name, h, view.call._facts.shape[3])
        with made.edited(edits), watch(made.model, layers=view.name, keep="steps") as recording:
            states = made.run(encodes=view.kind == "encoder")
        view = replace(view, call=recording[view.name].call)
        one = one_head(view.call, h, b)
        change = _compare(made, states)

    # Compare the query with itself, on the same keys.
    seen = row_in_float64(one, i)
    before = row_in_float64(request.one, i, seen.keys).steps["weights"]
    after = seen.steps["weights"]
    moved = (after - before).abs()
    return WhatIfAnswer(
        l=request.layer,
        h=h,
        i=i,
        b=b,
        trace=trace_row(request, view, one, seen),
        before=before,
        after=after,
        # The first of the largest: of two keys, both change alike but for rounding.
        changed=int((moved >= moved.max() - 1e-12).int().argmax())
        if float(moved.max()) > 0
        else None,
        output=change,
        reaches=made is not None,
    )


def _compare(made: Output, states: Float[Tensor, "n d_model"]) -> OutputChange:
    """Return what the edit does to the output: to every written word, or to the next token."""
    before, after = (made.log_probabilities(one) for one in (made.hidden, states))
    kl = divergence(before, after)
    last = len(states) - 1
    # A GPT wrote nothing: compare the token that it would write next.
    if made.words is None:
        was, now = (made.likeliest(logs[last], last) for logs in (before, after))
        return OutputChange(made.kind, float(kl[last]), was, now, [])
    words = [_word_change(made, word, before, after) for word in made.describe().words]
    return OutputChange(made.kind, float(kl.mean()), [], [], words)


def _word_change(made: Output, word: WrittenWord, before: Tensor, after: Tensor) -> WordChange:
    """Return the probability of a written word, before and after the edit, and what would now be
    written instead.
    """
    assert made.words is not None
    queries = made.words.positions(word.word)
    tokens = [made.written[i] for i in queries]
    return WordChange(
        **vars(word),
        before=exp(log_probability(before[queries], tokens)),
        after=exp(log_probability(after[queries], tokens)),
        instead=_instead(made, queries, after),
    )


def _instead(made: Output, queries: Sequence[int], after: Tensor) -> str | None:
    """Return the word up to its first token that is no longer the likeliest, and the likeliest;
    None if all still are.

    What follows that token is not known: the model read the tokens that it had written before the
    edit.
    """
    kept = ""
    for i in queries:
        likeliest = int(after[i].argmax())
        if likeliest != made.written[i]:
            name = made.name_of(i, likeliest)
            return (kept + (made.text_of(i, likeliest) or name)).strip(" ") or name
        kept += made.text_of(i, likeliest)
    return None


def _keys_of_word(view: AttentionView, key: int) -> Sequence[int]:
    """Return all tokens of the word that a key belongs to."""
    words = view.words("k")
    return [key] if words is None else words.positions(words.word_ids[key])
