"""Answers about one query of one head: every step and product, single weights, and the way from the
heads to the next layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear

from ..layers import AddNorm, DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..tiles import OneHead
from .answers import ABSENT, Absent, Answer, Matrix, Scores, Vector, not_kept
from .run import AttentionView, RunRequest
from .weights import top_weights

MOST_CELLS = 32  # weights in one answer to /cells
LEAST_ACTIVE = 1e-3  # of a feature of the feed-forward network that counts as active

# -------------------------------------------------------------------------------------------- trace


@dataclass(frozen=True)
class Stream(Answer):
    """The residual stream before and after an attention, at one query."""

    before: Vector
    after: Vector


@dataclass(frozen=True)
class Factors(Answer):
    """What the terms of the scores are products of."""

    query: Vector
    key: Matrix


@dataclass(frozen=True)
class Step(Answer):
    """One step from scores to weights, with a number for each key."""

    name: str
    formula: str
    numbers: Scores


@dataclass(frozen=True)
class Rest(Answer):
    """The sum over all keys that an answer leaves out."""

    keys: int
    weight: float
    context: Vector | None


@dataclass(frozen=True)
class TraceAnswer(Answer):
    """Every step of one query: of all keys if there are at most 512; else of the 64 with the
    largest weights, by position, and the sum over all others in `rest`.

    token    the query's token; tokens: those of the keys
    n_k      how many keys there are; keys: the positions of those in the answer
    formula  of the whole attention; score: of a score
    stream   null where it was not kept
    value    null where values were not kept, as is context
    factors  null where the score is no product
    terms    their sums over the features are the scores
    steps    scores, scaled, capped, biased, masked, weights: those that the definition has
    lse      ln Σ exp(score) over all keys; null where the normaliser is not softmax
    context  Σ weight · value + rest.context
    """

    exact = True
    l: int
    h: int
    i: int
    b: int
    token: str
    n_k: int
    keys: Sequence[int]
    tokens: Sequence[str]
    formula: str
    score: str
    scale: float
    stream: Stream | None
    query: Vector
    key: Matrix
    value: Matrix | None
    factors: Factors | None
    terms: Matrix
    steps: Sequence[Step]
    lse: float | None
    sink: float | None
    context: Vector | None
    rest: Rest


def trace(request: RunRequest) -> TraceAnswer:
    """Answer every step of one query."""
    request.view.require("trace")
    one = request.one
    return trace_row(request, request.view, one, row_in_float64(one, request.i))


def trace_row(
    request: RunRequest, view: AttentionView, one: OneHead, seen: RowInFloat64
) -> TraceAnswer:
    """Return the trace of the query that was computed, in a view that may be edited."""
    b = request.b
    i = request.i
    # Of a long text, the keys with the largest weights, by position.
    keys: list[int] = seen.keys.tolist()
    d_k = one.keys.shape[-1]
    return TraceAnswer(
        l=request.layer,
        h=request.h,
        i=i,
        b=b,
        token=view.tokens("q", b, [i])[0],
        n_k=view.size[1],
        keys=keys,
        tokens=view.tokens("k", b, keys),
        formula=one.attention.formula(d_k),
        score=one.attention.score.formula,
        scale=one.attention.scale_for(d_k),
        stream=stream_at(view, b, i),
        query=seen.query,
        key=seen.key,
        value=seen.value,
        factors=None if seen.factors is None else Factors(*seen.factors),
        terms=seen.terms,
        steps=[
            Step(name, formula, seen.steps[name])
            for name, formula in seen.formulas.items()
            if name in seen.steps
        ],
        lse=seen.lse,
        sink=seen.sink,
        context=seen.context,
        rest=Rest(view.size[1] - len(keys), seen.rest_weight, seen.rest),
    )


def stream_at(view: AttentionView, b: int, i: int) -> Stream | None:
    """Return the residual stream at query i, or None where it was not kept."""
    if "geometry" in view.missing:
        return None
    row = view.row_of(i)
    return Stream(view.call.before[b, row], view.call.after[b, row])


# -------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class CellAnswer(Answer):
    """Every step of one query and one key.

    visible  whether the mask lets the query see the key
    dot      the score; null where a recording kept summaries, as are scaled and lse
    p        the weight; null where the key is not among the largest weights of a summary
    """

    exact = True
    l: int
    h: int
    i: int
    j: int
    b: int
    query: str
    key: str
    visible: bool
    dot: float | None
    scaled: float | None
    capped: float | Absent
    biased: float | Absent
    masked: float | Absent
    lse: float | None
    p: float | None


@dataclass(frozen=True)
class CellsAnswer(Answer):
    """The weights of one query on keys j to j + 31, or to the last key; null where the key is
    masked, or not among the largest weights, where a recording kept summaries.
    """

    exact = True
    l: int
    h: int
    i: int
    j: int
    b: int
    p: Sequence[float | None]


def cell(request: RunRequest) -> CellAnswer:
    """Answer every step of one query and one key."""
    # A summary has no scores, only the largest weights.
    if not request.view.call.has_queries:
        weight = cells(request).p[0]
        steps: Any = dict.fromkeys(("scores", "scaled", "lse"), None) | {"weights": weight}
        return _cell(request, steps, visible=True)
    j = _keys(request, 1)[0]
    seen = row_in_float64(request.one, request.i, torch.tensor([j]))
    steps = {name: float(step) for name, step in seen.steps.items()} | {"lse": seen.lse}
    return _cell(request, steps, visible=steps["masked"] != -torch.inf)


def _cell(request: RunRequest, steps: dict[str, Any], *, visible: bool) -> CellAnswer:
    view = request.view
    j = _keys(request, 1)[0]
    return CellAnswer(
        l=request.layer,
        h=request.h,
        i=request.i,
        j=j,
        b=request.b,
        query=view.tokens("q", request.b, [request.i])[0],
        key=view.tokens("k", request.b, [j])[0],
        visible=visible,
        dot=steps["scores"],
        scaled=steps["scaled"],
        capped=steps.get("capped", ABSENT),
        biased=steps.get("biased", ABSENT),
        masked=steps.get("masked", ABSENT),
        lse=steps["lse"],
        p=steps["weights"],
    )


def cells(request: RunRequest) -> CellsAnswer:
    """Answer the weights of one query on adjacent keys: the row is summed once for all of them."""
    keys = _keys(request, MOST_CELLS)
    call = request.view.call
    if call.has_queries:
        seen = row_in_float64(request.one, request.i, torch.tensor(keys))
        weights = seen.steps["weights"].tolist()
        visible = (seen.steps["masked"] != -torch.inf).tolist()
        # Masked is not the same as a weight that rounds to 0.
        shown = [p if seen else None for p, seen in zip(weights, visible, strict=True)]
    else:
        place = call.heads.index(request.h)
        weights, places = (part[place, request.i].tolist() for part in top_weights(call, request.b))
        # Weight 0 fills up where a query has fewer keys than the summary keeps.
        known = {key: weight for key, weight in zip(places, weights, strict=True) if weight > 0}
        shown = [known.get(key) for key in keys]
    return CellsAnswer(request.layer, request.h, request.i, keys[0], request.b, shown)


def _keys(request: RunRequest, most: int) -> range:
    """Return at most `most` keys from the parameter j on, of an attention whose weights are
    known.
    """
    view = request.view
    view.require("trace" if view.call.has_queries else "map")
    _ = request.i  # refused before j
    j = request.index("j", view.size[1], "key")
    return range(j, min(j + most, view.size[1]))


# ---------------------------------------------------------------------------------- after the heads


@dataclass(frozen=True)
class Stage(Answer):
    """One vector on the way: its name, its number of features and its length.

    heads   the lengths of the heads' parts; of "joined" and "projected"
    cosine  between the vector and the one it was added to; of "added" and "passed"
    active  the share of features that are not 0; of "hidden"
    """

    name: str
    size: int
    norm: float
    heads: Sequence[float] | Absent = ABSENT
    cosine: float | Absent = ABSENT
    active: float | Absent = ABSENT


@dataclass(frozen=True)
class AfterAnswer(Answer):
    """One query after its heads.

    stages      joined, projected, before, added, normed (post-norm only), hidden, fed, passed
    difference  the largest from the model's own vector
    follows     "feed-forward" or "cross"
    moved       the cosine between the vectors before and after
    """

    l: int
    i: int
    token: str
    pre_norm: bool
    stages: Sequence[Stage]
    difference: float
    follows: str
    moved: float


@torch.no_grad()
def after_head(request: RunRequest) -> AfterAnswer:
    """Answer the way of one query from its heads to the next layer, in sizes and lengths."""
    after = AfterHeads(request.view, request.b, request.layer)
    return after.answer(request.i)


@torch.no_grad()
def after_all(view: AttentionView, b: int, layer: int) -> list[AfterAnswer]:
    """Return the answers about all queries."""
    after = AfterHeads(view, b, layer)
    return [after.answer(i) for i in range(view.size[0])]


class AfterHeads:
    """What happens to the queries of one sequence after their heads, computed from the recorded
    vectors by the model's own layers.
    """

    def __init__(self, view: AttentionView, b: int, layer: int) -> None:
        """Raise Refusal where the model is not here, or what follows its heads is not known."""
        block = view.block
        if not isinstance(block, EncoderBlock | DecoderBlock) or not view.call.has_values:
            raise not_kept(
                "what follows the heads is shown for models of Telescope that run here, not for "
                "recordings"
            )
        # W_O is known of multi-head attention alone.
        is_cross = view.kind == "cross"
        attention = getattr(block, "cross_attention" if is_cross else "self_attention")
        if not isinstance(attention, MultiHeadAttention):
            raise not_kept(f"what follows the heads is not known for a {type(attention).__name__}")
        view.require("geometry")
        self.view = view
        self.b = b
        self.layer = layer
        self.block = block
        self.W_O = attention.W_O
        self.norm: AddNorm = block.add_norm_2 if is_cross else block.add_norm_1
        # In a decoder's block, cross-attention follows self-attention, and then the network.
        self.feeds = is_cross or isinstance(block, EncoderBlock)
        # Of all queries at once, since an export asks for each.
        self.contexts = view.call.trace().context[b]

    def answer(self, i: int) -> AfterAnswer:
        """Return the way of query i."""
        before = self.view.call.before[self.b, i]
        after = self.view.call.after[self.b, i]

        # The heads are joined, multiplied by W_O and added to the stream.
        contexts = self.contexts[:, i].to(before)
        parts = [self._part(contexts, head) for head in range(len(contexts))]
        joined = contexts.flatten()
        projected = self.W_O(joined)
        added = before + projected
        stages = [
            _stage("joined", joined, heads=[float(one.norm()) for one in contexts]),
            _stage("projected", projected, heads=[float(one.norm()) for one in parts]),
            _stage("before", before),
            _stage("added", added, cosine=_cosine(before, added)),
        ]
        # What the recorded vector should be; post-norm blocks normalise the sum.
        expected = added
        if not self.norm.pre_norm:
            expected = self.norm.norm(added)
            stages.append(_stage("normed", expected))

        # What the next layer reads: after the feed-forward network, if that comes next.
        last = after
        if self.feeds:
            last = self._feed_forward(after, stages)
        return AfterAnswer(
            l=self.layer,
            i=i,
            token=self.view.tokens("q", self.b, [i])[0],
            pre_norm=self.norm.pre_norm,
            stages=stages,
            difference=float((expected - after).abs().max()),
            follows="feed-forward" if self.feeds else "cross",
            moved=_cosine(before, last),
        )

    def _part(self, contexts: Float[Tensor, "head d_v"], head: int) -> Float[Tensor, " d_model"]:
        """Return one head's part of the projected vector: its rows of W_O."""
        alone = torch.zeros_like(contexts)
        alone[head] = contexts[head]
        # Without the bias, so that the parts of all heads and the bias add up to the whole.
        return linear(alone.flatten(), self.W_O.weight)

    def _feed_forward(self, x: Float[Tensor, " d_model"], stages: list[Stage]) -> Tensor:
        """Append the stages of the feed-forward network, and return the vector that is passed
        on.
        """
        block = self.block
        # A decoder's block has one norm more, after its cross-attention.
        norm: AddNorm = block.add_norm_3 if isinstance(block, DecoderBlock) else block.add_norm_2
        network = block.feed_forward
        assert isinstance(network, FeedForward)
        # Pre-norm normalises what the network reads, post-norm what is passed on.
        read = (norm.norm(x) if norm.pre_norm else x)[None, None]
        hidden = network.hidden(read)[0, 0]
        fed = network(read)[0, 0]
        passed: Tensor = x + fed if norm.pre_norm else norm.norm(x + fed)
        active = float((hidden.abs() > LEAST_ACTIVE).float().mean())
        stages += [
            _stage("hidden", hidden, active=active),
            _stage("fed", fed),
            _stage("passed", passed, cosine=_cosine(x, passed)),
        ]
        return passed


def _stage(name: str, vector: Float[Tensor, " d"], **more: Any) -> Stage:
    return Stage(name, len(vector), float(vector.norm()), **more)


def _cosine(before: Float[Tensor, " d"], after: Float[Tensor, " d"]) -> float:
    return float(cosine_similarity(before, after, dim=0))
