"""Edits by hand: attention written out in float64, with its scores, weights and context changed.

Nothing here uses what edits are made of: no mask, bias or engine of Telescope. Positions are counted in the text.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from telescope.interception.huggingface.transformers_internals import eager_function_names
from telescope.layers import Attend


@dataclass
class ByHand:
    """Change attentions by hand; the base class changes nothing. `name` is the attention's, `at` says where it is."""

    layers: str = ""  # part of the name of the attentions that are changed
    heads: list[int] | None = None

    def concerns(self, name: str) -> bool:
        return self.layers in name

    def scale(self, name: str, scale: float) -> float:
        return scale

    def scores(self, name: str, scores: Tensor, at: "At") -> Tensor:
        return scores

    def weights(self, name: str, weights: Tensor, at: "At") -> Tensor:
        return weights

    def context(self, name: str, context: Tensor, at: "At") -> Tensor:
        return context

    def chosen(self, scores: Tensor) -> Tensor:
        """Return which heads are changed, (1, heads, 1, 1)."""
        heads = torch.zeros(scores.shape[1], dtype=torch.bool)
        heads[list(range(scores.shape[1])) if self.heads is None else self.heads] = True
        return heads[None, :, None, None]


@dataclass
class At:
    """The position of each query and key in its own text, (batch, n); padding has negative ones."""

    queries: Tensor
    keys: Tensor

    def pairs(self, keys: range, queries: range) -> Tensor:
        """Return whether each pair is in the rectangle, (batch, 1, query, key)."""
        rows = (self.queries >= queries.start) & (self.queries < queries.stop)
        columns = (self.keys >= keys.start) & (self.keys < keys.stop)
        return (rows[:, :, None] & columns[:, None])[:, None]


ALWAYS = range(0, 1 << 30)


@dataclass
class Muted(ByHand):
    times: float = 0.0
    mean: bool = False

    def context(self, name: str, context: Tensor, at: At) -> Tensor:
        if not self.concerns(name):
            return context
        base = torch.zeros_like(context)
        if self.mean:
            real = (at.queries >= 0).to(context.dtype)[:, None, :, None]
            base = (context * real).sum(2, keepdim=True) / real.sum(2, keepdim=True)
        return torch.where(self.chosen(context), base + self.times * (context - base), context)


@dataclass
class Hidden(ByHand):
    keys: range = ALWAYS
    queries: range = ALWAYS

    def scores(self, name: str, scores: Tensor, at: At) -> Tensor:
        if not self.concerns(name):
            return scores
        return scores.masked_fill(at.pairs(self.keys, self.queries) & self.chosen(scores), -torch.inf)


@dataclass
class Boosted(ByHand):
    keys: range = ALWAYS
    queries: range = ALWAYS
    by: float = 1.0

    def scores(self, name: str, scores: Tensor, at: At) -> Tensor:
        if not self.concerns(name):
            return scores
        return scores + math.log(self.by) * (at.pairs(self.keys, self.queries) & self.chosen(scores)).to(scores)


@dataclass
class Rescaled(ByHand):
    to: float = 1.0

    def scale(self, name: str, scale: float) -> float:
        return self.to if self.concerns(name) else scale


class Kept(ByHand):
    """Keep the weights of a run, to put them into another one."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}

    def weights(self, name: str, weights: Tensor, at: At) -> Tensor:
        self.kept[name] = weights
        return weights


class Pasted(ByHand):
    def __init__(self, kept: dict[str, Tensor], heads: list[int] | None = None) -> None:
        super().__init__(heads=heads)
        self.kept = kept

    def weights(self, name: str, weights: Tensor, at: At) -> Tensor:
        return torch.where(self.chosen(weights), self.kept[name], weights)


def softmax(scores: Tensor, sink: Tensor | None = None) -> Tensor:
    """Return the weights; zeros where every key is hidden."""
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights if sink is None else weights[..., :-1]


# ---------------------------------------------------------------------------------------------- models of transformers


@contextmanager
def eager_by_hand(model: Any, names: dict[int, str], edit: ByHand, padding: Tensor | None = None):
    """Let an eager model attend by the function below while the block runs; `padding` is a (batch, key) mask."""
    places = {}
    for module in model.modules():
        if id(module) in names:
            code: Any = type(module)
            method = next(
                vars(owner)["forward"]
                for owner in code.__mro__
                if "forward" in vars(owner) and owner.__module__ != "torch"
            )
            scope = getattr(method, "__wrapped__", method).__globals__
            (own,) = eager_function_names(module)
            places[id(scope), own] = (scope, own, scope[own])

    def attend(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **options):
        name, dtype = names[id(module)], query.dtype
        query, key, value = query.double(), key.double(), value.double()
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.mT * edit.scale(name, query.shape[-1] ** -0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if options.get("position_bias") is not None:
            scores = scores + options["position_bias"]
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[..., : scores.shape[-1]] < -1e30, -torch.inf)
        at = positions(scores, padding)
        scores = edit.scores(name, scores, at)
        weights = edit.weights(name, softmax(scores, s_aux), at)
        context = edit.context(name, weights @ value, at)
        return context.transpose(1, 2).contiguous().to(dtype), weights

    for scope, own, _ in places.values():
        scope[own] = attend
    try:
        yield
    finally:
        for scope, own, original in places.values():
            scope[own] = original


def positions(scores: Tensor, padding: Tensor | None) -> At:
    """Return the positions of a text that is read at once; those of padding in front are negative."""
    batch, _, queries, keys = scores.shape
    rows, columns = torch.arange(queries).expand(batch, -1), torch.arange(keys).expand(batch, -1)
    if padding is not None and padding.shape[1] == keys:
        first = padding.int().argmax(-1, keepdim=True)
        columns = columns - first
        if queries == keys:
            rows = torch.where(padding.bool(), rows - first, -1)
    return At(rows, columns)


# ------------------------------------------------------------------------------------------------- models of Telescope


@contextmanager
def attend_by_hand(attends: dict[int, str], edit: ByHand, padding: Tensor | None = None):
    """Let Telescope's layers attend by hand; the scores of the model's own definition are the only thing taken."""
    own = Attend.forward

    def forward(self, queries, keys, values, attention, *, across=None):
        from telescope.engines.reference import steps

        name = attends[id(self)]
        scale = attention.scale_for(keys.shape[-1])
        formed = steps(queries, keys, values, attention)
        assert attention.bias is None
        assert attention.softcap is None
        scores = (formed.scores * edit.scale(name, scale)).masked_fill(formed.masked == -torch.inf, -torch.inf)
        at = positions(scores, padding)
        scores = edit.scores(name, scores, at)
        weights = edit.weights(name, softmax(scores), at)
        groups = weights.shape[1] // values.shape[1]
        return edit.context(name, weights @ values.repeat_interleave(groups, 1), at)

    Attend.forward = forward
    try:
        yield
    finally:
        Attend.forward = own
