"""The Transformer: an encoder that reads, a decoder that writes and looks at what was read (Vaswani et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Attention, Mask, causal
from ..layers import (
    Cache,
    CachePosition,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    SinusoidalPositions,
)
from ..layers.blocks import Activation
from ..layers.cache import LayerCache
from ..layers.check_sizes import sizes
from ..layers.multi_head import KeysAndValues, StackedLinear
from . import config as fits
from .config import Config
from .loss import Reduction, cross_entropy
from .model import Model, Norm, check_ids, normaliser, to_initialise


@dataclass(frozen=True)
class TransformerConfig(Config):
    """The paper's shape, small. Marian's: positions="sinusoidal_halves", activation="silu", head_bias=True.

    None is the usual: the decoder's vocabulary, heads and hidden width are the encoder's, d_hidden = 4 · d_model, a
    final norm after each stack if pre_norm, and the dropout of the weights is `dropout`.
    """

    vocabulary: int = 256
    target_vocabulary: int | None = None
    max_positions: int = 512
    d_model: int = 256
    encoder_blocks: int = 3
    decoder_blocks: int = 3
    heads: int = 4
    decoder_heads: int | None = None
    d_hidden: int | None = None
    decoder_d_hidden: int | None = None

    shared: bool = True  # one embedding for source and target
    tied: bool = True  # the head is the target's embedding
    head_bias: bool = False
    scaled: bool = True  # embeddings · √d_model
    positions: Literal["sinusoidal", "sinusoidal_halves", "learned"] = "sinusoidal"

    pre_norm: bool = False
    final_norm: bool | None = None
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    bias: bool = True
    dropout: float = 0.1
    attention_dropout: float | None = None
    hidden_dropout: float = 0.0

    def check(self) -> None:
        fits.at_least_one(self, "vocabulary", "target_vocabulary", "max_positions", "d_model", "encoder_blocks")
        fits.at_least_one(self, "decoder_blocks", "heads", "decoder_heads", "d_hidden", "decoder_d_hidden")
        fits.positive(self, "norm_eps")
        fits.probabilities(self, "dropout", "attention_dropout", "hidden_dropout")
        fits.heads(self.d_model, self.heads)
        fits.heads(self.d_model, self.heads if self.decoder_heads is None else self.decoder_heads)
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(f'positions="{self.positions}" come in pairs; d_model={self.d_model} is odd')
        if self.shared and self.target_vocabulary not in (None, self.vocabulary):
            raise ValueError(
                f"shared=True is one embedding, but vocabulary={self.vocabulary} and "
                f"target_vocabulary={self.target_vocabulary} differ; say shared=False"
            )


class TransformerCache(Cache):
    """What the decoder keeps: its own keys and values, and those of the source, projected once, for all its beams."""

    def __init__(
        self,
        rooms: Sequence[LayerCache],
        memory: Sequence[KeysAndValues],
        memory_mask: Mask | None,
        pads: Sequence[int] | Tensor | None = None,
    ) -> None:
        super().__init__(rooms, pads)
        self.memory = list(memory)
        self.memory_mask = memory_mask

    @property
    def sources(self) -> int:
        return self.memory[0][0].shape[0]


class Transformer(Model, config_type=TransformerConfig):
    """source → encoder blocks → z; target → decoder blocks, which look back, and at z → head → logits.

    `attention` is that of every block: in the encoder as it is, in the decoder looking back only, and between the two.
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig = TransformerConfig(), *, attention: Attention = Attention()) -> None:
        super().__init__()
        self.config = config
        norm = normaliser(config.norm, config.norm_eps, config.bias)
        final = config.pre_norm if config.final_norm is None else config.final_norm
        looking_back = replace(attention, mask=attention.mask & causal)
        heads = config.heads if config.decoder_heads is None else config.decoder_heads
        d_hidden = 4 * config.d_model if config.d_hidden is None else config.d_hidden
        decoder_d_hidden = d_hidden if config.decoder_d_hidden is None else config.decoder_d_hidden
        around: dict[str, Any] = {"pre_norm": config.pre_norm, "norm": norm, "dropout": config.dropout}

        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.target_embedding = None if config.shared else nn.Embedding(self.vocabulary, config.d_model)
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                self._multi_head(config.heads, attention),
                self._feed_forward(d_hidden),
                **around,
            )
            for _ in range(config.encoder_blocks)
        )
        self.encoder_norm = norm(config.d_model) if final else nn.Identity()
        self.decoder = nn.ModuleList(
            DecoderBlock(
                config.d_model,
                self._multi_head(heads, looking_back),
                self._multi_head(heads, attention),
                self._feed_forward(decoder_d_hidden),
                **around,
            )
            for _ in range(config.decoder_blocks)
        )
        self.decoder_norm = norm(config.d_model) if final else nn.Identity()
        self.head = None if config.tied else nn.Linear(config.d_model, self.vocabulary, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(self.vocabulary)) if config.head_bias else None
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that its blocks were made with: the encoder has it as it is."""
        return cast(MultiHeadAttention, cast(EncoderBlock, self.encoder[0]).self_attention).attention

    # -------------------------------------------------------------------------------------------- source to logits

    def forward(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> Float[Tensor, "batch m vocabulary"]:
        """The logits of what comes after each token of the target, given the source. Masks hide their padding."""
        return self.logits(self.decode(target, self.encode(source, source_mask), target_mask, source_mask))

    def encode(
        self, source: Int[Tensor, "batch n"], mask: Mask | None = None, positions: Int[Tensor, "*batch n"] | None = None
    ) -> Float[Tensor, "batch n d_model"]:
        """z: what the encoder makes of the source."""
        x = self._embed("source", source, self.embedding, self.source_positions, positions)
        for block in self.encoder:
            x = block(x, mask)
        z: Tensor = self.encoder_norm(x)
        return z

    def decode(
        self,
        target: Int[Tensor, "batch m"],
        memory: Float[Tensor, "batch n d_model"] | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Tensor, "*batch m"] | None = None,
        cache: TransformerCache | None = None,
    ) -> Float[Tensor, "batch m d_model"]:
        """What the decoder makes of the target so far: hidden states, which `logits` turns into words.

        It looks at the memory z, or, with a cache, at the one the cache was made for.
        """
        start: int | Tensor = 0
        kept: Sequence[Tensor | KeysAndValues]
        rooms: Sequence[LayerCache | None]
        if cache is not None:
            self._check_cache(target, memory, cache)
            start, kept, rooms = cache.start(target.shape[1]), cache.memory, cache.rooms
            mask, memory_mask = cache.mask(mask), cache.memory_mask
            positions = cache.positions(target.shape[1]) if positions is None else positions
        elif memory is not None:
            kept, rooms = [memory] * len(self.decoder), [None] * len(self.decoder)
        else:
            raise ValueError("decode needs the memory, model.encode(source), or a cache that was made for one")

        x = self._embed("target", target, self._target_embedding, self.target_positions, positions)
        at = CachePosition(start, positions)
        for block, z, room in zip(self.decoder, kept, rooms, strict=True):
            x = block(x, z, mask, memory_mask, at=at, cache=room)
        if cache is not None:
            cache.advance(target.shape[1])
        y: Tensor = self.decoder_norm(x)
        return y

    def loss(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        targets: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        *,
        ignore: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, ""]:
        """How badly it guesses `targets`, what follows each of `target`: the mean, or sum, over all but `ignore`."""
        hidden = self.decode(target, self.encode(source, source_mask), target_mask, source_mask)
        W, b = self.head_weight, self.head_bias
        return cross_entropy(hidden, W, targets, b, ignore=ignore, label_smoothing=label_smoothing, reduction=reduction)

    def logits(self, hidden: Float[Tensor, "batch m d_model"]) -> Float[Tensor, "batch m vocabulary"]:
        return linear(hidden, self.head_weight, self.head_bias)

    def cache(
        self,
        memory: Float[Tensor, "sources n d_model"],
        memory_mask: Mask | None = None,
        room: int | None = None,
        *,
        beams: int = 1,
        pads: Sequence[int] | Tensor | None = None,
    ) -> TransformerCache:
        """An empty cache for `room` tokens of each target (or max_positions), and the memory's keys and values.

        With `beams`, that many targets of each source stand below each other: a batch of sources · beams. They share
        the source's keys and values. `pads`: how many of the first tokens of each target are padding.
        """
        sizes(beams=beams)
        room = self.config.max_positions if room is None else room
        self._check_length("room", room)
        blocks, batch = cast(list[Any], self.decoder), memory.shape[0] * beams
        return TransformerCache(
            [block.self_attention.room(batch, room) for block in blocks],
            [block.cross_attention.keys_and_values(memory) for block in blocks],
            memory_mask,
            pads,
        )

    # ---------------------------------------------------------------------------------------------------- its parts

    @property
    def vocabulary(self) -> int:
        """The target's."""
        return self.config.vocabulary if self.config.target_vocabulary is None else self.config.target_vocabulary

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """What turns a hidden state into logits: the target's embedding, if they are tied."""
        return self._target_embedding.weight if self.head is None else self.head.weight

    @property
    def _target_embedding(self) -> nn.Embedding:
        return self.embedding if self.target_embedding is None else self.target_embedding

    def _embed(
        self, name: str, ids: Tensor, embedding: nn.Embedding, add: nn.Module, positions: Tensor | None
    ) -> Tensor:
        check_ids(name, ids, embedding.num_embeddings)
        if positions is None:
            self._check_length(name, ids.shape[1])
        x = embedding(ids) * (sqrt(self.config.d_model) if self.config.scaled else 1.0)
        y: Tensor = self.dropout(add(x, 0 if positions is None else positions))
        return y

    def _multi_head(self, heads: int, attention: Attention) -> MultiHeadAttention:
        config = self.config
        dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        return MultiHeadAttention(config.d_model, heads, bias=config.bias, attention=attention, dropout=dropout)

    def _feed_forward(self, d_hidden: int) -> FeedForward:
        config = self.config
        return FeedForward(
            config.d_model, d_hidden, activation=config.activation, bias=config.bias, dropout=config.hidden_dropout
        )

    def _initialise(self) -> None:
        """Xavier's uniform for every matrix (Glorot & Bengio 2010), N(0, 1/d_model) for embeddings, which are then
        scaled by √d_model (Vaswani et al. 2017, 3.4; tensor2tensor)."""
        for _, module in to_initialise(self):
            if isinstance(module, StackedLinear):
                for name in module.widths:
                    nn.init.xavier_uniform_(module[name].weight)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def _check_cache(self, target: Tensor, memory: Tensor | None, cache: TransformerCache) -> None:
        if memory is not None:
            raise ValueError("memory is in the cache already; leave one of them out")
        if target.shape[0] != cache.batch:
            raise ValueError(f"target has a batch of {target.shape[0]}, the cache one of {cache.batch}")

    def _check_length(self, name: str, n: int) -> None:
        if self.config.positions == "learned" and n > self.config.max_positions:
            raise ValueError(f"{name}: {n} tokens are too many for max_positions={self.config.max_positions}")


def _positions(config: TransformerConfig) -> LearnedPositions | SinusoidalPositions:
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model)
    return SinusoidalPositions(
        config.d_model, pairs="halves" if config.positions == "sinusoidal_halves" else "neighbours"
    )
