"""An encoder without a decoder: bidirectional blocks, and pooling to one vector for each text
(Devlin et al. 2019).
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention, Mask
from ..layers import (
    Activation,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Positions,
    States,
)
from .model import (
    Ids,
    Model,
    ModelConfig,
    Norm,
    check_heads,
    check_ids,
    modules_to_initialise,
    norm_factory,
    real_tokens,
)


@dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """The config of an Encoder; the defaults are a small BERT.

    The meaning of None: d_hidden = 4 · d_model, attention_dropout = dropout.

    Args:
        vocabulary: how many token ids there are.
        max_positions: the longest text.
        types: token types, such as first and second text; 0 for a model without types.
        d_model: the width of the residual stream.
        blocks: the number of blocks.
        heads: the number of heads of a block.
        d_hidden: the width of the feed-forward network; None is 4 · d_model.
        norm: "layer" or "rms".
        norm_eps: what is added to the variance before its root.
        activation: as in `layers.FeedForward`.
        pooling: "mean" of the tokens, "cls" is the state of the first token, "bert" is tanh(W
            h_cls).
        dropout: of features, in training only.
        attention_dropout: of attention weights; None is `dropout`.

    Raises:
        TypeError, ValueError: with one sentence where a field does not fit.

    Example:
        >>> from telescope.models import EncoderConfig
        >>> EncoderConfig(d_model=64).pooling
        'mean'
    """

    vocabulary: int = 256
    max_positions: int = 512
    types: int = 2  # token types: first or second text; 0 for a model without types
    d_model: int = 256
    blocks: int = 4
    heads: int = 4
    d_hidden: int | None = None
    norm: Norm = "layer"
    norm_eps: float = 1e-12
    activation: Activation = "gelu"
    pooling: Literal["mean", "cls", "bert"] = "mean"  # "bert" is tanh(W h_cls)
    dropout: float = 0.1
    attention_dropout: float | None = None

    may_be_zero = ("types",)

    def _check_fields(self) -> None:
        super()._check_fields()
        check_heads(self.d_model, self.heads)
        if self.types < 0:
            raise ValueError(f"types={self.types} must not be negative; 0 is none")


class Encoder(Model, config_type=EncoderConfig):
    """ids → embedding ⊕ positions ⊕ types → norm → blocks → hidden states; `pool` returns one
    vector for each text.

    Args:
        config: sizes and options.
        attention: the definition for every block.

    Attributes:
        config: the sizes and options that the model was built with.
        tokenizer: converts text to ids and back, or None.
        special: the special ids: start, end and padding.

    Example:
        >>> import torch
        >>> from telescope.models import Encoder, EncoderConfig
        >>> model = Encoder(EncoderConfig(vocabulary=10, d_model=8, heads=2, blocks=1))
        >>> hidden = model(torch.tensor([[3, 1, 4]]))
        >>> hidden.shape, model.pool(hidden).shape
        (torch.Size([1, 3, 8]), torch.Size([1, 8]))
        >>> model.attention
        Attention()
    """

    config: EncoderConfig

    def __init__(
        self, config: EncoderConfig = EncoderConfig(), *, attention: Attention = Attention()
    ) -> None:
        super().__init__()
        self.config = config
        norm = norm_factory(config.norm, config.norm_eps)
        d_hidden = config.d_hidden or 4 * config.d_model
        # What a token is, where it stands, and which text it belongs to are added up.
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.positions = LearnedPositions(config.max_positions, config.d_model)
        self.types = nn.Embedding(config.types, config.d_model) if config.types else None
        self.norm = norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                MultiHeadAttention(
                    config.d_model,
                    config.heads,
                    attention=attention,
                    dropout=config._weight_dropout,
                ),
                FeedForward(config.d_model, d_hidden, activation=config.activation),
                norm=norm,
                dropout=config.dropout,
            )
            for _ in range(config.blocks)
        )
        # BERT passes the state of its first token through one more layer.
        self.pooler = (
            nn.Linear(config.d_model, config.d_model) if config.pooling == "bert" else None
        )
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that the blocks were built with."""
        return cast(MultiHeadAttention, cast(EncoderBlock, self.blocks[0]).self_attention).attention

    def forward(
        self,
        ids: Ids,
        mask: Mask | None = None,
        types: Ids | None = None,
        positions: Positions | None = None,
    ) -> States:
        """Return the hidden state of each token.

        Args:
            mask: hides padding, e.g. ts.padding(lengths).
            types: the type of each token, 0 unless given.
            positions: the position of each token; unless given, 0, 1, 2, ….
            ids: (batch, n), token ids.

        Raises:
            ValueError: where ids are not in the vocabulary, too many, or types are given to a model
                without types.
        """
        # Before the lookup, whose own error names no id.
        check_ids("ids", ids, self.config.vocabulary)
        x = self.embedding(ids)
        if self.types is not None:
            # All tokens are of type 0, the first text, unless said otherwise.
            x = x + self.types(torch.zeros_like(ids) if types is None else types)
        elif types is not None:
            raise ValueError("types were given, but this model has none: its config has types=0")
        # BERT normalises the embeddings, once.
        x = self.dropout(self.norm(self.positions(x, 0 if positions is None else positions)))
        for block in self.blocks:
            x = block(x, mask)
        y: Tensor = x
        return y

    def pool(self, hidden: States, mask: Mask | None = None) -> Float[Tensor, "batch d_model"]:
        """Return one vector for each text: the mean over tokens that `mask` shows, or the state of
        the first token.

        Args:
            hidden: (batch, n, d_model), from `forward`.
            mask: hides padding, e.g. ts.padding(lengths).

        Returns:
            (batch, d_model).
        """
        if self.config.pooling == "mean":
            # Padding must not enter the mean; a text of padding alone gives zeros.
            real = real_tokens(mask, hidden)[..., None].to(hidden.dtype)
            return (hidden * real).sum(1) / real.sum(1).clamp(min=1.0)
        # The first token, which BERT calls [CLS].
        first = hidden[:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler(first))

    def _initialise(self) -> None:
        """Draw weights from N(0, 0.02), truncated at two standard deviations as in Devlin et al.'s
        code.
        """
        for _, module in modules_to_initialise(self):
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
