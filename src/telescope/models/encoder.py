"""The encoder alone: blocks that look both ways, and one vector for a whole sentence (Devlin et al. 2019)."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..attention import Attention, Mask
from ..layers import EncoderBlock, FeedForward, LearnedPositions, MultiHeadAttention
from ..layers.blocks import Activation
from . import config as fits
from .config import Config
from .model import Model, Norm, check_ids, normaliser, real_tokens, to_initialise


@dataclass(frozen=True)
class EncoderConfig(Config):
    """BERT's shape, small.

    None is the usual: d_hidden = 4 · d_model, and the dropout of the weights is `dropout`.
    """

    vocabulary: int = 256
    max_positions: int = 512
    types: int = 2  # kinds of text a token may belong to, the first or the second sentence; 0 is none
    d_model: int = 256
    blocks: int = 4
    heads: int = 4
    d_hidden: int | None = None
    norm: Norm = "layer"
    norm_eps: float = 1e-12
    activation: Activation = "gelu"
    pooling: Literal["mean", "cls", "bert"] = "mean"  # bert is tanh(W h_cls)
    dropout: float = 0.1
    attention_dropout: float | None = None

    def check(self) -> None:
        fits.at_least_one(self, "vocabulary", "max_positions", "d_model", "blocks", "heads", "d_hidden")
        fits.positive(self, "norm_eps")
        fits.probabilities(self, "dropout", "attention_dropout")
        fits.heads(self.d_model, self.heads)
        if self.types < 0:
            raise ValueError(f"types={self.types} must not be negative; 0 is none")


class Encoder(Model, config_type=EncoderConfig):
    """ids → embedding ⊕ positions ⊕ types → norm → blocks → one hidden state for each token; `pool` makes one of all.

    `attention` is that of every block.
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig = EncoderConfig(), *, attention: Attention = Attention()) -> None:
        super().__init__()
        self.config = config
        norm = normaliser(config.norm, config.norm_eps)
        d_hidden = 4 * config.d_model if config.d_hidden is None else config.d_hidden
        of_weights = config.dropout if config.attention_dropout is None else config.attention_dropout
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.positions = LearnedPositions(config.max_positions, config.d_model)
        self.types = nn.Embedding(config.types, config.d_model) if config.types else None
        self.norm = norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                MultiHeadAttention(config.d_model, config.heads, attention=attention, dropout=of_weights),
                FeedForward(config.d_model, d_hidden, activation=config.activation),
                norm=norm,
                dropout=config.dropout,
            )
            for _ in range(config.blocks)
        )
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooling == "bert" else None
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that its blocks were made with."""
        return cast(MultiHeadAttention, cast(EncoderBlock, self.blocks[0]).self_attention).attention

    def forward(
        self,
        ids: Int[Tensor, "batch n"],
        mask: Mask | None = None,
        types: Int[Tensor, "batch n"] | None = None,
        positions: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "batch n d_model"]:
        """`mask` hides padding, e.g. ts.padding(lengths); `types` says of which text each token is, 0 unless given."""
        check_ids("ids", ids, self.config.vocabulary)
        x = self.embedding(ids)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids) if types is None else types)
        elif types is not None:
            raise ValueError("types were given, but this model knows none: its config has types=0")
        x = self.dropout(self.norm(self.positions(x, 0 if positions is None else positions)))
        for block in self.blocks:
            x = block(x, mask)
        y: Tensor = x
        return y

    def pool(
        self, hidden: Float[Tensor, "batch n d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch d_model"]:
        """One vector for each sequence: the mean of its real tokens, or what its first token has become."""
        if self.config.pooling == "mean":
            real = real_tokens(mask, hidden)[..., None].to(hidden.dtype)
            return (hidden * real).sum(1) / real.sum(1).clamp(min=1.0)
        first = hidden[:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler(first))

    def _initialise(self) -> None:
        """N(0, 0.02) (Devlin et al. 2019's code truncates it at two deviations; so does this)."""
        for _, module in to_initialise(self):
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
