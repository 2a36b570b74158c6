"""What the lessons and the checks of their exercises work with: the sentences and vectors of the
notes, the weights of layers as plain matrices.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..models import GPT, Transformer

# The sentences of the notes, word by word.
JOURNEY = ("Your", "journey", "starts", "with", "one", "step")
"""The six words of the first lessons."""
TELESCOPE = ("The", "man", "saw", "the", "astronomer", "with", "a", "telescope")
"""The sentence with two readings: who has the telescope?"""


def journey() -> Float[Tensor, "6 3"]:
    """Return the six vectors of "Your journey starts with one step" (Raschka, Build a Large
    Language Model, chapter 3).

    Example:
        >>> from telescope.lessons import journey
        >>> journey().shape
        torch.Size([6, 3])
    """
    return torch.tensor(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    )


def passages() -> list[str]:
    """Return 24 passages of Shakespeare, some 500 characters each, which the model "shakespeare"
    was not trained on.

    They stand at the beginning of the tenth of tiny Shakespeare that was held out.

    Example:
        >>> from telescope.lessons import passages
        >>> len(passages())
        24
    """
    text = Path(__file__).with_name("passages.txt").read_text(encoding="utf-8")
    # A line of three dashes stands between two passages.
    return text.rstrip("\n").split("\n\n---\n\n")


def matrices(module: nn.Module) -> dict[str, Any]:
    """Return the weights of a layer, a block or a whole model as plain matrices, for y = x W.

    An attention has W_q, W_k, W_v and W_o; a feed-forward network W_1 and W_2; a block `self`,
    `feed_forward` and, in a decoder, `cross`; a model `embedding`, `positions` where they are
    learned, and lists of blocks. Biases are left out: the models of the lessons have none.

    The matrices share the module's memory: what is trained in them, or copied into them, is in the
    module too.

    Args:
        module: a layer, a block or a model.

    Raises:
        TypeError: `module` is none of these.

    Example:
        >>> from telescope.layers import FeedForward
        >>> from telescope.lessons import matrices
        >>> matrices(FeedForward(8, 32, bias=False))["W_1"].shape
        torch.Size([8, 32])
    """
    # nn.Linear computes x Wᵀ: its weight is transposed here.
    match module:
        case MultiHeadAttention():
            named = {name: part.weight.detach().mT for name, part in module.projections().items()}
            return {
                **{name: named[name] for name in ("W_q", "W_k", "W_v")},
                "W_o": module.W_O.weight.detach().mT,
            }
        case FeedForward():
            return {name: getattr(module, name).weight.detach().mT for name in ("W_1", "W_2")}
        case EncoderBlock() | DecoderBlock():
            parts = {"self": matrices(module.self_attention)}
            if isinstance(module, DecoderBlock):
                parts["cross"] = matrices(module.cross_attention)
            return parts | {"feed_forward": matrices(module.feed_forward)}
        case GPT():
            blocks = [matrices(block) for block in module.blocks]
            learned = {}
            if module.positions is not None:
                learned["positions"] = next(module.positions.parameters()).detach()
            return {"embedding": module.embedding.weight.detach(), **learned, "blocks": blocks}
        case Transformer():
            return {
                "embedding": module.embedding.weight.detach(),
                "encoder": [matrices(block) for block in module.encoder],
                "decoder": [matrices(block) for block in module.decoder],
            }
        case _:
            raise TypeError(
                f"a {type(module).__name__} is not part of the lessons; MultiHeadAttention or GPT "
                "is"
            )


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normal random numbers, the same at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal_matrix(queries: int, keys: int) -> Tensor:
    # The diagonal is shifted so that the last query sees the last key.
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
