"""Answers about what follows the heads: the way of one query to the next layer, and through all
layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear

from ..layers import AddNorm, DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from .answers import ABSENT, Absent, Answer, Matrix, Vector, not_kept
from .run import AttentionView, RunRequest

LEAST_ACTIVE = 1e-3  # of a feature of the feed-forward network that counts as active
MOST_UNITS = 8  # hidden features in one answer
MOST_MIXED = 8192  # numbers of the heads' parts in one answer

# ---------------------------------------------------------------------------------- one attention


@dataclass(frozen=True)
class Unit(Answer):
    """One hidden feature of a feed-forward network."""

    unit: int
    value: float


@dataclass(frozen=True)
class Stage(Answer):
    """One vector on the way: its name, its number of features and its length.

    heads    the lengths of the heads' parts; of "joined" and "projected"
    cosine   between the vector and the one it was added to; of "added" and "passed"
    active   the share of features that are not 0; of "hidden"
    largest  its 8 largest features, by size; of "hidden"
    """

    name: str
    size: int
    norm: float
    heads: Sequence[float] | Absent = ABSENT
    cosine: float | Absent = ABSENT
    active: float | Absent = ABSENT
    largest: Sequence[Unit] | Absent = ABSENT


@dataclass(frozen=True)
class MixedHeads(Answer):
    """The heads, side by side, times W_O: the sum of all parts and the bias is what is added.

    contexts  of each head; parts: what its rows of W_O make of it
    """

    heads: Sequence[int]
    contexts: Matrix
    parts: Matrix
    bias: Vector | None
    sum: Vector


@dataclass(frozen=True)
class AfterAnswer(Answer):
    """One query after its heads.

    stages      joined, projected, before, added, normed (post-norm only), hidden, fed, passed
    difference  the largest from the model's own vector
    follows     "feed-forward" or "cross"
    moved       the cosine between the vectors before and after
    mixed       null in saved files, and of more than 8,192 numbers
    """

    l: int
    i: int
    token: str
    pre_norm: bool
    stages: Sequence[Stage]
    difference: float
    follows: str
    moved: float
    mixed: MixedHeads | None


@torch.no_grad()
def after_head(request: RunRequest) -> AfterAnswer:
    """Answer the way of one query from its heads to the next layer, in sizes and lengths."""
    after = AfterHeads(request.view, request.b, request.layer)
    return after.answer(request.i, mixes=True)


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
        if not isinstance(block, EncoderBlock | DecoderBlock) or not view.call._has_values:
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

    def answer(self, i: int, *, mixes: bool = False) -> AfterAnswer:
        """Return the way of query i, with the vectors of its heads where they are asked for."""
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
            last = self.feed_forward(after, stages)
        bias = self.W_O.bias
        few = (len(parts) + 2) * len(projected) <= MOST_MIXED
        mixed = MixedHeads(
            heads=self.view.call.heads,
            contexts=contexts,
            parts=torch.stack(parts),
            bias=bias,
            sum=projected,
        )
        return AfterAnswer(
            l=self.layer,
            i=i,
            token=self.view.tokens("q", self.b, [i])[0],
            pre_norm=self.norm.pre_norm,
            stages=stages,
            difference=float((expected - after).abs().max()),
            follows="feed-forward" if self.feeds else "cross",
            moved=_cosine(before, last),
            mixed=mixed if mixes and few else None,
        )

    def _part(self, contexts: Float[Tensor, "head d_v"], head: int) -> Float[Tensor, " d_model"]:
        """Return one head's part of the projected vector: its rows of W_O."""
        alone = torch.zeros_like(contexts)
        alone[head] = contexts[head]
        # Without the bias, so that the parts of all heads and the bias add up to the whole.
        return linear(alone.flatten(), self.W_O.weight)

    def feed_forward(self, x: Float[Tensor, " d_model"], stages: list[Stage]) -> Tensor:
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
        order = hidden.abs().argsort(descending=True)[:MOST_UNITS].tolist()
        largest = [Unit(unit, float(hidden[unit])) for unit in order]
        stages += [
            _stage("hidden", hidden, active=active, largest=largest),
            _stage("fed", fed),
            _stage("passed", passed, cosine=_cosine(x, passed)),
        ]
        return passed


def _stage(name: str, vector: Float[Tensor, " d"], **more: Any) -> Stage:
    return Stage(name, len(vector), float(vector.norm()), **more)


def _cosine(before: Float[Tensor, " d"], after: Float[Tensor, " d"]) -> float:
    return float(cosine_similarity(before, after, dim=0))


# ---------------------------------------------------------------------------------- all attentions


@dataclass(frozen=True)
class Station(Answer):
    """A vector at one station of its way, with its length.

    kind    "embedding", "position", "self", "cross", "feed-forward" or "output"
    l       the attention of the station; of others, the last one in front of it
    norm    the length of the vector behind the station
    cosine  between the vectors in front of the station and behind it; null of the first
    """

    kind: str
    l: int
    norm: float
    cosine: float | None


@dataclass(frozen=True)
class FlowAnswer(Answer):
    """The way of one query through its stack of blocks. In a decoder it begins with the token that
    the query reads.

    pre_norm  whether what is added is computed from the normalised vector, or their sum is
              normalised
    """

    l: int
    i: int
    token: str
    size: int
    pre_norm: bool
    stations: Sequence[Station]


@torch.no_grad()
def flow(request: RunRequest) -> FlowAnswer:
    """Answer the way of one query through its stack, from the embedding to the output."""
    chosen = request.view
    i = request.i
    stack = "decoder" if chosen.kind == "cross" else chosen.kind
    # A stack's attentions in their order: those across two texts are the decoder's, and follow the
    # self-attention of their block.
    views = [
        (number, view)
        for number, view in enumerate(request.run.views)
        if view.kind == stack or (view.kind == "cross" and stack == "decoder")
    ]
    views.sort(key=lambda one: (_block_number(one[1].name), one[1].kind == "cross"))
    path = _Path(views[0][0])
    inputs = views[0][1].inputs
    if inputs is not None and inputs.added is not None:
        path.go("embedding", inputs.embedded[i])
    if inputs is not None:
        # Rotary positions are not added: the embedding is all that the first block reads.
        path.go("embedding" if inputs.added is None else "position", inputs.read[i])
    pre_norm = False
    for number, view in views:
        after = AfterHeads(view, request.b, number)
        pre_norm = after.norm.pre_norm
        path.l = number
        path.go("cross" if view.kind == "cross" else "self", view.call.after[request.b, i])
        if after.feeds:
            path.go("feed-forward", after.feed_forward(view.call.after[request.b, i], []))
    output = request.run.output
    if output is not None and stack != "encoder":
        path.go("output", output.hidden[i])
    return FlowAnswer(
        l=request.layer,
        i=i,
        token=views[0][1].tokens("q", request.b, [i])[0],
        size=chosen.call.before.shape[-1],
        pre_norm=pre_norm,
        stations=path.stations,
    )


def _block_number(name: str) -> int:
    """Return 3 for decoder.3.cross."""
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


class _Path:
    """The stations of one vector; `l` is the attention that the next one belongs to."""

    def __init__(self, first: int) -> None:
        self.l = first
        self.last: Float[Tensor, " d"] | None = None
        self.stations: list[Station] = []

    def go(self, kind: str, vector: Float[Tensor, " d"]) -> None:
        cosine = None if self.last is None else _cosine(self.last.to(vector), vector)
        self.stations.append(Station(kind, self.l, float(vector.norm()), cosine))
        self.last = vector
