"""What if: run the model again with one attention changed, through `ts.edit`, and compare one query
and the output.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, by_sum, everyone, padding
from ..editing import Edit, edit, hide, mute, redefine
from ..interception.watch import watch
from ..recording.queries_keys_call import QueriesKeysCall, StepsCall, one_head
from ..recording.recorded_call import RecordedCall
from ..recording.row_in_float64 import row_in_float64
from ..tiles import OneHead
from ..traces.numbers import round_numbers
from .output import EDITING, Output, log_probability
from .requests import Refusal, RequestParams, bad_parameter, not_kept
from .run import AttentionView, Run
from .walk import head, sequence, trace_json

TEMPERATURE = re.compile(r"t:([0-9]{1,2}(?:\.[0-9]{1,3})?)", re.ASCII)
HIDDEN = re.compile(r"hide:([0-9]{1,4})", re.ASCII)
SHOWN = 5  # likeliest tokens


@dataclass(frozen=True)
class Changes:
    """What is changed in one attention: the scale, the mask, the normaliser, the temperature, a
    head, some keys.
    """

    unscaled: bool = False
    unmasked: bool = False
    by_sum: bool = False
    temperature: float = 1.0
    mute: bool = False
    hidden: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, view: AttentionView) -> "Changes":
        """Return the changes that the parameter `edits` names, separated by commas: scale, mask,
        sum, t:2, hide:3.
        """
        changes = cls()
        for word in filter(None, text.split(",")):
            hot = TEMPERATURE.fullmatch(word)
            covered = HIDDEN.fullmatch(word)
            if word in SWITCHES:
                changes = SWITCHES[word](changes)
            elif hot is not None and 0.05 <= float(hot[1]) <= 20:
                changes = replace(changes, temperature=float(hot[1]))
            elif covered is not None and int(covered[1]) < view.size[1]:
                changes = replace(
                    changes, hidden=(*changes.hidden, *_keys_of_word(view, int(covered[1])))
                )
            else:
                raise bad_parameter(
                    f'edits="{word[:40]}" is not known; known: scale, mask, sum, mute, t:0.5, '
                    "hide:3"
                )
        return changes

    def redefined(self, attention: Attention, d_k: int) -> Attention:
        """Return a definition with its scale, mask, normaliser and temperature changed."""
        scale = (1.0 if self.unscaled else attention.scale_for(d_k)) / self.temperature
        attention = replace(
            attention, scale=scale, mask=everyone if self.unmasked else attention.mask
        )
        return replace(attention, normalize=by_sum) if self.by_sum else attention

    @property
    def redefines(self) -> bool:
        return self.unscaled or self.unmasked or self.by_sum or self.temperature != 1.0

    def edits(self, name: str, h: int, d_k: int) -> list[Edit]:
        """Return the changes as edits of `ts.edit`."""
        made: list[Edit] = []
        if self.redefines:
            made.append(redefine(name, self._function(d_k)))
        if self.hidden:
            made.append(hide(list(self.hidden), layers=name))
        if self.mute:
            made.append(mute(name, heads=[h]))
        return made

    def _function(self, d_k: int) -> Callable[[Attention], Attention]:
        return lambda attention: self.redefined(attention, d_k)


SWITCHES: dict[str, Callable[[Changes], Changes]] = {
    "scale": lambda changes: replace(changes, unscaled=True),
    "mask": lambda changes: replace(changes, unmasked=True),
    "sum": lambda changes: replace(changes, by_sum=True),
    "mute": lambda changes: replace(changes, mute=True),
}


@torch.no_grad()
def what_if(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/whatif: one query and the output, with one attention changed."""
    layer = params.index("l", len(run.views), "attention")
    view = run.views[layer]
    h = head(view, params)
    b = sequence(view, params)
    i = params.index("i", view.size[0], "query")
    if not isinstance(view.call, QueriesKeysCall):
        raise not_kept(
            "a what-if needs queries and keys: telescope watch --keep queries-keys keeps them"
        )
    changes = Changes.parse(params.parameters.get("edits", ""), view)
    call, hidden = _edited(run, view, changes, h)
    one = one_head(call, h, b)
    if run.output is None:
        one = _edited_alone(one, changes)
    place = {"l": layer, "h": h, "i": i, "b": b}
    seen = row_in_float64(one, i)
    before = row_in_float64(view.head(h, b), i, seen.keys)
    change = (seen.steps["weights"] - before.steps["weights"]).abs()
    return {
        **place,
        "trace": trace_json(replace(view, call=call), one, seen, place),
        "before": before.steps["weights"].tolist(),
        "after": seen.steps["weights"].tolist(),
        "changed": int(change.argmax()) if float(change.max()) > 0 else None,
        "output": None
        if hidden is None or run.output is None
        else round_numbers(_compare(run.output, hidden)),
        "reaches": run.output is not None,
    }


def _edited(
    run: Run, view: AttentionView, changes: Changes, h: int
) -> tuple[RecordedCall, Tensor | None]:
    """Run the model edited; return what was recorded of the attention, and the hidden states before
    the head.

    Without a model the attention is changed alone: only its own call is returned.
    """
    made = run.output
    if made is None:
        return view.call, None
    edits = changes.edits(view.name, h, view.call.facts.shape[3])
    try:
        with (
            EDITING,
            torch.no_grad(),
            edit(made.model, *edits),
            watch(made.model, layers=view.name, keep=StepsCall.keep) as recording,
        ):
            hidden = made.run_again()
    except ValueError as problem:
        raise Refusal(409, "not-kept", str(problem)) from None
    return recording[view.name].call, hidden


def _edited_alone(one: OneHead, changes: Changes) -> OneHead:
    """Return a head with a changed definition: of an example or a recording, without its model."""
    attention = (
        changes.redefined(one.attention, one.keys.shape[-1]) if changes.redefines else one.attention
    )
    if changes.hidden:
        kept = torch.ones(1, one.keys.shape[2], dtype=torch.bool)
        kept[0, list(changes.hidden)] = False
        attention = replace(attention, mask=attention.mask & padding(keep=kept))
    values = one.values
    if changes.mute and values is not None:
        values = torch.zeros_like(values)
    return one._replace(attention=attention, values=values, lse=None)


def _compare(made: Output, hidden: Float[Tensor, "n d_model"]) -> dict[str, Any]:
    """Return what the edit does to the output: to every written word, or to the next token."""
    before, after = (
        made.model.logits(states[None])[0].double().log_softmax(-1)
        for states in (made.hidden, hidden)
    )
    kl = (before.exp() * (before - after)).sum(-1)
    last = len(hidden) - 1
    return {
        "kind": made.kind,
        "kl": float(kl[last] if made.kind == "gpt" else kl.mean()),
        "before": _likeliest(made, before[last], last) if made.kind == "gpt" else [],
        "after": _likeliest(made, after[last], last) if made.kind == "gpt" else [],
        "words": [
            {**word, **_word_change(made, word["word"], before, after)}
            for word in made.to_json()["words"]
        ],
    }


def _likeliest(made: Output, logs: Float[Tensor, " vocabulary"], i: int) -> list[dict[str, Any]]:
    found = logs.topk(SHOWN)
    pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
    return [{"text": made.name_of(i, token), "p": p} for token, p in pairs]


def _word_change(made: Output, word: int, before: Tensor, after: Tensor) -> dict[str, Any]:
    """Return the probability of a written word, before and after the edit, and what would now be
    written instead.
    """
    assert made.words is not None
    queries = made.words.positions(word)
    tokens = [made.written[i] for i in queries]
    return {
        "before": exp(log_probability(before[queries], tokens)),
        "after": exp(log_probability(after[queries], tokens)),
        "instead": _instead(made, queries, after),
    }


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
