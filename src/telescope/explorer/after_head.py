"""What happens to one query after its heads: joined, multiplied by W_O, added, normalised, fed
forward, passed on.

Everything is computed from the recorded vectors by the model's own layers, with sizes and lengths
instead of numbers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ..layers import AddNorm, DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..recording.queries_keys_call import StepsCall
from .requests import RequestParams, not_kept
from .run import AttentionView
from .walk import sequence


@dataclass(frozen=True)
class Stage:
    """One vector on the way: its name, its number of features, its length, and what else there is
    to say.
    """

    name: str
    vector: Float[Tensor, " d"]
    more: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": len(self.vector),
            "norm": float(self.vector.norm()),
            **self.more,
        }


@torch.no_grad()
def after_head(view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
    """Answer GET /runs/{run}/after: the way of one query from its heads to the next layer."""
    call, block, attention = _require_model(view)
    b = sequence(view, params)
    i = params.index("i", view.size[0], "query")
    contexts = call.trace().context[b, :, i]
    return _after(view, call, block, attention, contexts, {"l": layer, "i": i}, b)


@torch.no_grad()
def after_all(view: AttentionView, b: int, layer: int) -> list[dict[str, Any]]:
    """Return the answers to /after about all queries."""
    call, block, attention = _require_model(view)
    contexts = call.trace().context[b].unbind(1)
    return [
        _after(view, call, block, attention, one, {"l": layer, "i": i}, b)
        for i, one in enumerate(contexts)
    ]


def _require_model(
    view: AttentionView,
) -> tuple[StepsCall, EncoderBlock | DecoderBlock, MultiHeadAttention]:
    """Return the call, the block of the model around it, and its attention, or raise Refusal."""
    block = view.block
    call = view.call
    if not isinstance(block, EncoderBlock | DecoderBlock) or not isinstance(call, StepsCall):
        raise not_kept(
            "what follows the heads is shown for models of Telescope that run here, not for "
            "recordings"
        )
    attention = getattr(block, "cross_attention" if view.kind == "cross" else "self_attention")
    if not isinstance(attention, MultiHeadAttention):
        raise not_kept(f"what follows the heads is not known for a {type(attention).__name__}")
    view.require("geometry")
    return call, block, attention


def _after(
    view: AttentionView,
    call: StepsCall,
    block: EncoderBlock | DecoderBlock,
    attention: MultiHeadAttention,
    contexts: Float[Tensor, "head d_v"],
    place: dict[str, int],
    b: int,
) -> dict[str, Any]:
    """Return the way of one query; `contexts` are the outputs of its heads and `place` is {"l",
    "i"}.
    """
    i = place["i"]
    before = call.before[b, i]
    after = call.after[b, i]
    contexts = contexts.to(before)
    joined = contexts.flatten()
    parts = [_part(attention.W_O, contexts, head) for head in range(len(contexts))]
    projected = attention.W_O(joined)
    norm = block.add_norm_2 if view.kind == "cross" else block.add_norm_1
    added = before + projected
    stages = [
        Stage("joined", joined, {"heads": [float(one.norm()) for one in contexts]}),
        Stage("projected", projected, {"heads": [float(one.norm()) for one in parts]}),
        Stage("before", before, {}),
        Stage("added", added, {"cosine": float(cosine_similarity(before, added, dim=0))}),
    ]
    if not norm.pre_norm:
        stages.append(Stage("normed", norm.norm(added), {}))
    follows = (
        "cross" if isinstance(block, DecoderBlock) and view.kind != "cross" else "feed-forward"
    )
    last = after
    if follows == "feed-forward":
        fed, last = _feed_forward(block, after)
        stages += fed
    return {
        **place,
        "token": view.tokens("q", b, [i])[0],
        "pre_norm": norm.pre_norm,
        "stages": [stage.to_json() for stage in stages],
        "difference": float(((added if norm.pre_norm else norm.norm(added)) - after).abs().max()),
        "follows": follows,
        "moved": float(cosine_similarity(before, last, dim=0)),
    }


def _part(
    W_O: nn.Linear, contexts: Float[Tensor, "head d_v"], head: int
) -> Float[Tensor, " d_model"]:
    """Return one head's part of the projected vector: its rows of W_O."""
    alone = torch.zeros_like(contexts)
    alone[head] = contexts[head]
    return nn.functional.linear(alone.flatten(), W_O.weight)


def _feed_forward(
    block: EncoderBlock | DecoderBlock, x: Float[Tensor, " d_model"]
) -> tuple[list[Stage], Tensor]:
    """Return the stages of the feed-forward network, and the vector that the next layer reads."""
    add_norm: AddNorm = block.add_norm_3 if isinstance(block, DecoderBlock) else block.add_norm_2
    network = block.feed_forward
    assert isinstance(network, FeedForward)
    read = (add_norm.norm(x) if add_norm.pre_norm else x)[None, None]
    hidden = network.hidden(read)[0, 0]
    fed = network(read)[0, 0]
    added = x + fed
    passed = added if add_norm.pre_norm else add_norm.norm(added)
    stages = [
        Stage("hidden", hidden, {"active": float((hidden.abs() > 1e-3).float().mean())}),
        Stage("fed", fed, {}),
        Stage("passed", passed, {"cosine": float(cosine_similarity(x, passed, dim=0))}),
    ]
    return stages, passed
