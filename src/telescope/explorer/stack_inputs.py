"""What the first block of a model reads: the embedding of every token, and what is added for its
position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Rotary
from ..models import GPT, Encoder, Model, Transformer


@dataclass(frozen=True, eq=False)
class StackInputs:
    """The inputs of one stack of blocks, of one text.

    kind      how the stack knows positions: "sinusoidal", "learned", "rotary" or "none"
    embedded  the embeddings, scaled as the model scales them
    added     what is added for the positions; None where nothing is
    read      what the first block reads; `unplaced` what it would read if no position were added
    rotary    rotates the queries and keys of every block, where kind is "rotary"
    """

    kind: str
    embedded: Float[Tensor, "n d_model"]
    added: Float[Tensor, "n d_model"] | None
    read: Float[Tensor, "n d_model"]
    unplaced: Float[Tensor, "n d_model"]
    rotary: Rotary | None = None

    @classmethod
    @torch.no_grad()
    def of_text(
        cls, model: Model, ids: Sequence[int], side: str = "source"
    ) -> "StackInputs | None":
        """Return the inputs of a model's stack for token ids; `side` is "source" or "target" of a
        Transformer.
        """
        tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)
        if isinstance(model, Transformer):
            target = side == "target"
            table = (
                model.target_embedding
                if target and model.target_embedding is not None
                else model.embedding
            )
            scale = sqrt(model.config.d_model) if model.config.scaled else 1.0
            embedded = table(tokens) * scale
            place = model.target_positions if target else model.source_positions
            added = place(torch.zeros_like(embedded))[0]
            kind = model.config.positions.partition("_")[0]
            return cls(kind, embedded[0], added, embedded[0] + added, embedded[0])
        if isinstance(model, GPT):
            embedded = model.embedding(tokens)[0]
            if model.positions is None:
                kind = "none" if model.rotary is None else "rotary"
                return cls(kind, embedded, None, embedded, embedded, model.rotary)
            added = model.positions(torch.zeros_like(embedded)[None])[0]
            return cls("learned", embedded, added, embedded + added, embedded)
        if isinstance(model, Encoder):
            embedded = model.embedding(tokens)[0]
            if model.types is not None:
                embedded = embedded + model.types.weight[0]
            added = model.positions(torch.zeros_like(embedded)[None])[0]
            return cls(
                "learned", embedded, added, model.norm(embedded + added), model.norm(embedded)
            )
        return None
