"""Patches by hand: eager attention written out in float64, whose queries, keys, values, weights and contexts are kept
in one run and put into another one number by number.

Nothing here uses what patches are made of: no mask, no engine and no recording of Telescope.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from support.editing import softmax
from telescope.interception.huggingface.transformers_internals import eager_function_names
from telescope.layers import Attend

PARTS = ("output", "weights", "queries", "keys", "values")


@dataclass
class Steps:
    """Every step of one attention, each head with keys and values of its own."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    weights: Tensor
    output: Tensor


Pair = tuple[int, int, int, int]
"""row here, column here, row of the kept run, column there"""


@dataclass
class Swap:
    """Put a part of kept steps into some heads; `queries` and `keys` pair the columns of both runs."""

    kept: dict[str, Steps]
    what: str
    heads: list[int] | None = None
    layers: str = ""
    queries: list[Pair] = field(default_factory=list)
    keys: list[Pair] = field(default_factory=list)
    across: Callable[[str], bool] = lambda name: False
    """Whether an attention is skipped."""

    def put(self, name: str, what: str, tensor: Tensor) -> Tensor:
        if self.what != what or self.layers not in name or self.across(name):
            return tensor
        old, changed = getattr(self.kept[name], what), tensor.clone()
        for head in range(tensor.shape[1]) if self.heads is None else self.heads:
            for row, column, sequence, there in self.keys if what in ("keys", "values") else self.queries:
                if what != "weights":
                    changed[row, head, column] = old[sequence, head, there]
                    continue
                changed[row, head, column] = 0.0
                for _, key, _, place in [pair for pair in self.keys if pair[0] == row]:
                    changed[row, head, column, key] = old[sequence, head, there, place]
        return changed


def run(name: str, kept: dict[str, Steps], swaps: list[Swap], q: Tensor, k: Tensor, v: Tensor, weigh: Any) -> Tensor:
    """Attend, with every swap at its step, and keep the steps."""
    groups = q.shape[1] // k.shape[1]
    tensors = {"queries": q, "keys": k.repeat_interleave(groups, 1), "values": v.repeat_interleave(groups, 1)}
    for what in tensors:
        for swap in swaps:
            tensors[what] = swap.put(name, what, tensors[what])
    weights = weigh(tensors["queries"], tensors["keys"])
    for swap in swaps:
        weights = swap.put(name, "weights", weights)
    output = weights @ tensors["values"]
    for swap in swaps:
        output = swap.put(name, "output", output)
    kept[name] = Steps(tensors["queries"], tensors["keys"], tensors["values"], weights, output)
    return output


@contextmanager
def eager_steps(model: Any, names: dict[int, str], *swaps: Swap):
    """Let an eager model of transformers attend by hand while the block runs; yield the steps of each attention."""
    places, kept = {}, {}
    for module in model.modules():
        if id(module) in names:
            method = next(
                vars(owner)["forward"]
                for owner in type(module).__mro__
                if "forward" in vars(owner) and owner.__module__ != "torch"
            )
            scope = getattr(method, "__wrapped__", method).__globals__
            (own,) = eager_function_names(module)
            places[id(scope), own] = (scope, own, scope[own])

    def attend(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **options):
        def weigh(q, k):
            scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if options.get("position_bias") is not None:
                scores = scores + options["position_bias"]
            if attention_mask is not None:
                scores = scores.masked_fill(attention_mask[..., : scores.shape[-1]] < -1e30, -torch.inf)
            return softmax(scores, s_aux)

        q, k, v = query.double(), key.double(), value.double()
        context = run(names[id(module)], kept, list(swaps), q, k, v, weigh)
        return context.transpose(1, 2).contiguous().to(query.dtype), None

    for scope, own, _ in places.values():
        scope[own] = attend
    try:
        yield kept
    finally:
        for scope, own, original in places.values():
            scope[own] = original


@contextmanager
def own_steps(attends: dict[int, str], *swaps: Swap):
    """Let Telescope's layers attend by hand; mask and matrix of the model's own definition are taken."""
    own, kept = Attend.forward, {}

    def forward(self, queries, keys, values, attention, *, across=None):
        def weigh(q, k):
            from telescope.engines.reference import steps

            formed = steps(queries, keys, values, attention)
            assert attention.bias is None
            assert attention.softcap is None
            # Luong's score has a matrix between the query and the key.
            between = getattr(attention.score, "W", torch.eye(k.shape[-1], dtype=k.dtype))
            scores = q @ between @ k.mT * attention.scale_for(k.shape[-1])
            return softmax(scores.masked_fill(formed.masked == -torch.inf, -torch.inf))

        return run(attends[id(self)], kept, list(swaps), queries, keys, values, weigh)

    Attend.forward = forward
    try:
        yield kept
    finally:
        Attend.forward = own


def same(batch: int, tokens: int) -> list[Pair]:
    """Pair every token with the token of its place."""
    return [(row, column, row, column) for row in range(batch) for column in range(tokens)]
