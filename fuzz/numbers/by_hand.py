"""Attentions by hand in `fuzz`: eager forwards in which nothing is Telescope's, to compare edits
with.

Shared layers: an ALBERT, written out pass by pass. Bypasses: one attention of a model runs a
forward that calls torch's kernel itself, so that an edit of it must be refused by name and a watch
must name it.
"""

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

import telescope as ts
from telescope.interception.found import find_attentions

from .attentions import WrongError
from .families import FAMILIES, ModelCase, texts_of

# ------------------------------------------------------------------------------------ edits by hand


@dataclass(frozen=True)
class HandEdit:
    """An edit of one attention by columns, as Telescope takes it and as it is computed by hand."""

    kind: str
    heads: tuple[int, ...]
    keys: tuple[int, ...]
    queries: tuple[int, ...]
    factor: float

    def for_telescope(self, layers: Any) -> Any:
        if self.kind in ("zero", "mean"):
            return ts.mute(layers, self.heads, times=self.factor, by=self.kind)
        if self.kind == "hide":
            return ts.hide(self.keys, self.queries, layers=layers, heads=self.heads)
        return ts.boost(
            self.keys, by=self.factor, queries=self.queries, layers=layers, heads=self.heads
        )

    def scores(self, scores: Tensor) -> Tensor:
        """Return scores (batch, head, query, key) with the keys hidden or boosted."""
        pairs = torch.zeros_like(scores[:1], dtype=torch.bool)
        for head in self.heads:
            for query in self.queries:
                pairs[0, head, query, list(self.keys)] = True
        if self.kind == "hide":
            return scores.masked_fill(pairs, -torch.inf)
        return scores + math.log(self.factor) * pairs if self.kind == "boost" else scores

    def context(self, context: Tensor) -> Tensor:
        """Return the context (batch, head, query, feature) with heads muted; no query is
        padding.
        """
        if self.kind not in ("zero", "mean"):
            return context
        rest = torch.zeros_like(context)
        if self.kind == "mean":
            rest = context.mean(2, keepdim=True).expand_as(context)
        changed = context.clone()
        for head in self.heads:
            changed[:, head] = rest[:, head] + self.factor * (context[:, head] - rest[:, head])
        return changed


def random_hand_edit(dice: random.Random, heads: int, queries: int, keys: int) -> HandEdit:
    kind = dice.choice(("zero", "mean", "hide", "boost"))
    factor = dice.choice((0.0, 0.5, 2.0)) if kind in ("zero", "mean") else dice.choice((0.2, 5.0))
    picked = [
        tuple(sorted(dice.sample(range(size), dice.randint(1, size))))
        for size in (heads, keys, queries)
    ]
    return HandEdit(kind, *picked, factor)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, edit: HandEdit | None
) -> Tensor:
    """Return the context, every step formed; `mask` is True, or 0.0, where a query sees a key."""
    groups = queries.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(groups, 1)
    values = values.repeat_interleave(groups, 1)
    scores = queries @ keys.mT * queries.shape[-1] ** -0.5
    if mask is not None:
        visible = mask if mask.dtype == torch.bool else mask > -1e30
        scores = scores.masked_fill(~visible, -torch.inf)
    if edit is not None:
        scores = edit.scores(scores)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)  # a query that sees nothing gets zeros
    context = weights @ values
    return context if edit is None else edit.context(context)


def split(features: Tensor, width: int) -> Tensor:
    """Return (batch, head, n, width)."""
    return features.unflatten(-1, (-1, width)).transpose(1, 2)


def join(context: Tensor) -> Tensor:
    return context.transpose(1, 2).flatten(2)


# ------------------------------------------------------------------------------------ shared layers


def check_shared_layers(case: ModelCase) -> Counter[str]:
    """Compare an ALBERT, edited in one pass through a layer or in all, with the model written out
    in float64.
    """
    dice = case.dice()
    texts = texts_of("albert", case.lengths, case.side, dice, case.device)
    is_alone = dice.random() < 0.5
    inputs = texts.alone(0) if is_alone else texts.batch()
    length = min(texts.source.length(i) for i in range(1 if is_alone else texts.count))
    edit = random_hand_edit(dice, case.sizes.heads, length, length)
    group = dice.randrange(case.sizes.groups)
    passes = [
        i for i in range(case.sizes.layers) if i * case.sizes.groups // case.sizes.layers == group
    ]
    number = dice.randint(0, len(passes))  # 0: all passes

    name = f"encoder.albert_layer_groups.{group}.albert_layers.0.attention"
    with (
        torch.no_grad(),
        ts.edit(case.model, edit.for_telescope(name if number == 0 else f"{name}.{number}")),
    ):
        got = inputs.run(case.model)
    edited = passes if number == 0 else [passes[number - 1]]
    # A sentence at a time, without padding, so that columns are positions.
    for i in range(len(got)):
        truth = albert_by_hand(case, texts.source.sentence(i), edit, edited)
        case.near(
            "an ALBERT by hand", got[i] if is_alone else got[i][texts.source.real(i)], truth[0]
        )
    return Counter({"shared layers": 1})


def albert_by_hand(case: ModelCase, ids: Tensor, edit: HandEdit, passes: list[int]) -> Tensor:
    """Return the hidden states of an ALBERT from its parameters alone, in float64, with the edit in
    some passes.
    """
    tensors = {name: tensor.detach().double() for name, tensor in case.model.state_dict().items()}
    eps = case.model.config.layer_norm_eps

    def project(path: str, x: Tensor) -> Tensor:
        return linear(x, tensors[f"{path}.weight"], tensors[f"{path}.bias"])

    def norm(path: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], tensors[f"{path}.weight"], tensors[f"{path}.bias"], eps)

    # The embeddings of tokens, positions and the first type.
    x = embedding(ids, tensors["embeddings.word_embeddings.weight"])
    x = x + tensors["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x)
    x = project("encoder.embedding_hidden_mapping_in", x)

    for number in range(case.sizes.layers):
        group = number * case.sizes.groups // case.sizes.layers
        path = f"encoder.albert_layer_groups.{group}.albert_layers.0"
        parts = [
            split(project(f"{path}.attention.{part}", x), 8) for part in ("query", "key", "value")
        ]
        context = attend(*parts, None, edit if number in passes else None)
        x = norm(
            f"{path}.attention.LayerNorm", x + project(f"{path}.attention.dense", join(context))
        )
        hidden = gelu(project(f"{path}.ffn", x), approximate="tanh")
        x = norm(f"{path}.full_layer_layer_norm", x + project(f"{path}.ffn_output", hidden))
    return x


# ----------------------------------------------------------------------------------------- bypasses

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]
"""(queries, keys, values, mask, is_causal) → the context."""


def _llama(attend: Attend) -> Callable[..., Any]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: Any,
        attention_mask: Any = None,
        **_: Any,
    ) -> Any:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        queries, keys, values = (split(one(hidden_states), self.head_dim) for one in projections)
        queries, keys = apply_rotary_pos_emb(queries, keys, *position_embeddings)
        return self.o_proj(join(attend(queries, keys, values, attention_mask, True))), None

    return forward


def _gpt2(attend: Attend) -> Callable[..., Any]:
    def forward(
        self: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Any = None, **_: Any
    ) -> Any:
        parts = (
            split(part, self.head_dim)
            for part in self.c_attn(hidden_states).split(self.split_size, dim=2)
        )
        return self.c_proj(join(attend(*parts, attention_mask, True))), None

    return forward


def _bert(attend: Attend) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        parts = (
            split(one(hidden_states), self.attention_head_size)
            for one in (self.query, self.key, self.value)
        )
        return join(attend(*parts, attention_mask, False)), None

    return forward


def _bart(attend: Attend) -> Callable[..., Any]:
    def forward(
        self: Any,
        hidden_states: Tensor,
        key_value_states: Any = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **_: Any,
    ) -> Any:
        memory = hidden_states if key_value_states is None else key_value_states
        parts = (self.q_proj(hidden_states), self.k_proj(memory), self.v_proj(memory))
        is_causal = self.is_causal and key_value_states is None
        context = attend(*(split(part, self.head_dim) for part in parts), attention_mask, is_causal)
        return self.out_proj(join(context)), None

    return forward


def _gpt(attend: Attend) -> Callable[..., Any]:
    def forward(
        self: Any, x: Tensor, memory: Any = None, mask: Any = None, *, at: Any, cache: Any = None
    ) -> Any:
        return self.W_O(join(attend(*self._project_all(x, at), None, True)))

    return forward


FORWARDS = {"llama": _llama, "gpt2": _gpt2, "bert": _bert, "bart": _bart, "GPT": _gpt}


def fast(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Attend by torch's kernel, past the interception."""
    alone = is_causal and mask is None
    return scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=alone, enable_gqa=True
    )


def edited_by(edit: HandEdit) -> Attend:
    """Return the attention that forms every step, with an edit."""

    def edited(
        queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if is_causal and mask is None:
            mask = torch.ones(
                queries.shape[2], keys.shape[2], dtype=torch.bool, device=queries.device
            ).tril()
        return attend(queries, keys, values, mask, edit)

    return edited


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any], way: str) -> Iterator[None]:
    """Let one module run another forward: as one of a subclass, or put into the instance."""
    kind = type(module)
    if way == "subclass":
        module.__class__ = type(f"Fast{kind.__name__}", (kind,), {"forward": forward})
    else:
        module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        module.__class__ = kind
        module.__dict__.pop("forward", None)


@torch.no_grad()
def check_bypass(case: ModelCase) -> Counter[str]:
    """Let one attention run past the interception: it is refused and named, and another is edited
    as by hand.
    """
    dice = case.dice()
    lengths = (case.lengths[0],) * len(case.lengths)  # without padding: columns are positions
    texts = texts_of(case.family, lengths, "right", dice, case.device)
    inputs = texts.alone(0)
    model = case.model
    names = [*find_attentions(model, "edit").attentions]
    name, other = dice.sample(names, 2)
    suffix = "_attention" if FAMILIES[case.family].own else ""
    modules = {each: model.get_submodule(each + suffix) for each in (name, other)}
    make = FORWARDS[case.family]
    with ts.watch(model) as recording:
        plain = inputs.run(model)
    queries, keys = recording[other].call.size
    edit = random_hand_edit(dice, case.sizes.heads, queries, keys)

    with replaced(modules[name], make(fast), dice.choice(("subclass", "instance"))):
        case.near("a forward by hand", inputs.run(model), plain)
        refused = random_hand_edit(dice, case.sizes.heads, 1, 1).for_telescope(
            dice.choice((name, None))
        )
        _expect_error(case, name, lambda: _run_edited(case, inputs, refused))
        if FAMILIES[case.family].predicts:
            _expect_error(
                case, name, lambda: ts.effect(model, inputs.for_effect, [refused], progress=False)
            )
        got = _run_edited(case, inputs, edit.for_telescope(other))
        with replaced(modules[other], make(edited_by(edit)), "instance"):
            exact = inputs.run(model)
        case.near(f"{edit.kind} of {other} beside a bypass", got, exact)

        # A watch names the attention in one warning.
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            with ts.watch(model) as recording:
                inputs.run(model)
        named = [
            str(one.message) for one in shown if f"cannot be recorded, {name}" in str(one.message)
        ]
        case.equal("warnings of a watch", len(named), 1)
        case.equal("attentions left out", recording.left_out, (name,))
    return Counter({"bypasses": 1})


def _run_edited(case: ModelCase, inputs: Any, edit: Any) -> Tensor:
    with ts.edit(case.model, edit):
        output: Tensor = inputs.run(case.model)
    return output


def _expect_error(case: ModelCase, name: str, run: Callable[[], object]) -> None:
    """Raise a WrongError unless `run` is refused by the attention's name."""
    try:
        run()
    except ValueError as refusal:
        if f'"{name}" ran, and ts.edit cannot change it' not in str(refusal):
            raise
        return
    raise WrongError("an edit of a bypass", f"{name} was not refused", "")
