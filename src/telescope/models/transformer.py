"""The Transformer: an encoder, and a decoder that attends to the encoder's output (Vaswani et al.
2017).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..attention import Attention, Mask, causal
from ..layers import (
    Activation,
    Cache,
    CachePosition,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    KeysAndValues,
    LayerCache,
    LearnedPositions,
    MultiHeadAttention,
    Positions,
    SinusoidalPositions,
    StackedLinear,
    States,
    check_sizes,
)
from .loss import Translator, check_memory_or_cache
from .model import (
    Ids,
    ModelConfig,
    Norm,
    Targets,
    TargetStates,
    check_batch,
    check_heads,
    check_ids,
    modules_to_initialise,
    norm_factory,
)


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The config of a Transformer; the defaults are a small version of the paper's.

    Marian is positions="sinusoidal_halves", activation="silu", head_bias=True. The meaning of None:
    the decoder's vocabulary, heads and hidden width are the encoder's, d_hidden = 4 · d_model,
    final_norm (a norm after each stack) = pre_norm, attention_dropout = dropout.

    Args:
        vocabulary: how many token ids the source has.
        target_vocabulary: how many the target has; None is `vocabulary`.
        max_positions: the longest source and the longest target.
        d_model: the width of the residual stream.
        encoder_blocks, decoder_blocks: the number of blocks of each stack.
        heads: the number of heads of a block of the encoder.
        decoder_heads: of the decoder; None is `heads`.
        d_hidden: the width of the encoder's feed-forward network; None is 4 · d_model.
        decoder_d_hidden: of the decoder's; None is that of the encoder.
        shared: whether source and target have one embedding.
        tied: whether the head is the target's embedding.
        head_bias: whether a bias is added to the logits.
        scaled: whether embeddings are multiplied by √d_model.
        positions: "sinusoidal", "sinusoidal_halves" (sines first, then cosines) or "learned".
        pre_norm: whether the norm comes before the sublayer instead of after the sum.
        final_norm: whether each stack ends in a norm; None is `pre_norm`.
        norm: "layer" or "rms".
        norm_eps: what is added to the variance before its root.
        activation: as in `layers.FeedForward`.
        bias: whether linear layers and norms have a bias.
        dropout: of features, in training only.
        attention_dropout: of attention weights; None is `dropout`.
        hidden_dropout: of the hidden features of the feed-forward network.

    Raises:
        TypeError, ValueError: with one sentence where a field does not fit.

    Example:
        >>> from telescope.models import TransformerConfig
        >>> TransformerConfig(d_model=64, heads=4).encoder_blocks
        3
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

    def _check_fields(self) -> None:
        super()._check_fields()
        check_heads(self.d_model, self.heads)
        check_heads(self.d_model, self.decoder_heads or self.heads)
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(
                f'positions="{self.positions}" need an even width; d_model={self.d_model} is odd'
            )
        if self.shared and self.target_vocabulary not in (None, self.vocabulary):
            raise ValueError(
                f"shared=True is one embedding, but vocabulary={self.vocabulary} and "
                f"target_vocabulary={self.target_vocabulary} differ; pass shared=False"
            )


class TransformerCache(Cache):
    """The cache of a Transformer's decoder: its own keys and values, and those of the encoder's
    output.

    Args:
        rooms: one LayerCache for each decoder block, for the self-attention.
        memory: keys and values of the encoder's output for each decoder block, computed once,
            shared by all beams.
        memory_mask: hides the padding of the source.
        pads: how many of the first tokens of each target are padding.

    Example:
        >>> import torch
        >>> from telescope.models import Transformer, TransformerConfig
        >>> model = Transformer(
        ...     TransformerConfig(vocabulary=10, d_model=8, heads=2)
        ... ).eval()
        >>> cache = model.cache(
        ...     model.encode(torch.tensor([[3, 1, 4]])), room=16, beams=2
        ... )
        >>> cache.sources, cache.batch
        (1, 2)
        >>> cache.keep_sources(torch.tensor([0]), None)
    """

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
        """The number of sources; the batch is sources · beams."""
        return self.memory[0][0].shape[0]

    def keep_sources(self, index: Int[Tensor, " new_sources"], memory_mask: Mask | None) -> None:
        """Keep these sources alone, with the mask of their padding.

        Args:
            index: the numbers of the sources that are kept.
            memory_mask: hides their padding; None hides nothing.
        """
        # The keys and values of each block have the sources as first axis.
        self.memory = [
            (keys.index_select(0, index), values.index_select(0, index))
            for keys, values in self.memory
        ]
        self.memory_mask = memory_mask


class Transformer(Translator, config_type=TransformerConfig):
    """source → encoder blocks → z; target → decoder blocks, with causal attention and attention to
    z → head → logits.

    Args:
        config: sizes and options.
        attention: the definition for every layer; the decoder's self-attention is made causal.

    Attributes:
        config: the sizes and options that the model was built with.
        tokenizer: converts text to ids and back, or None.
        special: the special ids: start, end and padding.
        head_bias: (target vocabulary,), what is added to the logits; None without
            `config.head_bias`.

    Example:
        >>> import torch
        >>> from telescope.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(vocabulary=10, d_model=8, heads=2))
        >>> model(torch.tensor([[3, 1, 4]]), torch.tensor([[1, 5]])).shape
        torch.Size([1, 2, 10])
        >>> source, target = torch.tensor([[3, 1, 4]]), torch.tensor([[1, 5, 2]])
        >>> model = model.eval()
        >>> memory = model.encode(source)
        >>> model.decode(target, memory).shape == model.hidden(source, target).shape
        True
        >>> model.logits(model.decode(target[:, :1], cache=model.cache(memory))).shape
        torch.Size([1, 1, 10])
        >>> model.loss(source, target[:, :-1], target[:, 1:]).shape, model.vocabulary
        (torch.Size([]), 10)
        >>> model.attention, model.head_weight.shape
        (Attention(), torch.Size([10, 8]))
    """

    config: TransformerConfig

    def __init__(
        self, config: TransformerConfig = TransformerConfig(), *, attention: Attention = Attention()
    ) -> None:
        super().__init__()
        self.config = config
        norm = norm_factory(config.norm, config.norm_eps, config.bias)
        # With pre-norm nothing has normalised the last sum yet.
        has_final_norm = config.pre_norm if config.final_norm is None else config.final_norm
        # The decoder must not see what it has to write.
        causal_attention = replace(attention, mask=attention.mask & causal)
        # The decoder has the sizes of the encoder unless the config says otherwise.
        heads = config.decoder_heads or config.heads
        d_hidden = config.d_hidden or 4 * config.d_model
        decoder_d_hidden = config.decoder_d_hidden or d_hidden
        add_norm: dict[str, Any] = {
            "pre_norm": config.pre_norm,
            "norm": norm,
            "dropout": config.dropout,
        }

        # One table for source and target where the vocabulary is shared.
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.target_embedding = (
            None if config.shared else nn.Embedding(self.vocabulary, config.d_model)
        )
        # Two tables where positions are learned.
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                self._multi_head(config.heads, attention),
                self._feed_forward(d_hidden),
                **add_norm,
            )
            for _ in range(config.encoder_blocks)
        )
        self.encoder_norm = norm(config.d_model) if has_final_norm else nn.Identity()
        self.decoder = nn.ModuleList(
            DecoderBlock(
                config.d_model,
                self._multi_head(heads, causal_attention),
                self._multi_head(heads, attention),
                self._feed_forward(decoder_d_hidden),
                **add_norm,
            )
            for _ in range(config.decoder_blocks)
        )
        self.decoder_norm = norm(config.d_model) if has_final_norm else nn.Identity()
        self.head = None if config.tied else nn.Linear(config.d_model, self.vocabulary, bias=False)
        # Marian has a bias here, the paper has none.
        self.head_bias = nn.Parameter(torch.zeros(self.vocabulary)) if config.head_bias else None
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that the model was built with: the encoder's."""
        return cast(
            MultiHeadAttention, cast(EncoderBlock, self.encoder[0]).self_attention
        ).attention

    # ------------------------------------------------------------------------ from source to logits

    def hidden(
        self,
        source: Ids,
        target: Targets,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> TargetStates:
        return self.decode(target, self.encode(source, source_mask), target_mask, source_mask)

    def encode(
        self, source: Ids, mask: Mask | None = None, positions: Positions | None = None
    ) -> States:
        """Return z, the encoder's output for the source.

        Args:
            source: (batch, n), token ids.
            mask: hides padding, ts.padding(lengths).
            positions: the position of each token; unless given, 0, 1, 2, ….
        """
        x = self._embed("source", source, self.embedding, self.source_positions, positions)
        for block in self.encoder:
            x = block(x, mask)
        z: Tensor = self.encoder_norm(x)
        return z

    def decode(
        self,
        target: Targets,
        memory: States | None = None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Tensor, "*batch m"] | None = None,
        cache: TransformerCache | None = None,
    ) -> TargetStates:
        """Return the decoder's hidden states for the target; `logits` turns them into logits.

        Args:
            memory: z, from `encode`; None with a cache, which holds the memory's keys and values.
            positions: the position of each token; unless given, 0, 1, 2, … or, with a cache, those
                after its tokens.
            cache: from `model.cache(memory)`; the target's keys and values are appended to it.
            target: (batch, m), token ids.
            mask: hides the padding of the target.
            memory_mask: hides the padding of the source.

        Raises:
            ValueError: without either memory or cache, or with both.
        """
        # From a cache the memory comes as keys and values, else as the encoder's output.
        start: int | Tensor = 0
        memories: Sequence[Tensor | KeysAndValues]
        rooms: Sequence[LayerCache | None]
        check_memory_or_cache(memory, cache)
        if cache is not None:
            check_batch("target", target, cache.batch)
            start = cache.start(target.shape[1])
            memories = cache.memory
            rooms = cache.rooms
            mask = cache.mask(mask)
            memory_mask = cache.memory_mask
            positions = cache.positions(target.shape[1]) if positions is None else positions
        else:
            assert memory is not None
            # Every block projects the same memory.
            memories = [memory] * len(self.decoder)
            rooms = [None] * len(self.decoder)

        # target → embedding ⊕ positions → blocks with causal and cross attention → norm.
        x = self._embed("target", target, self._target_embedding, self.target_positions, positions)
        at = CachePosition(start, positions)
        for block, z, room in zip(self.decoder, memories, rooms, strict=True):
            x = block(x, z, mask, memory_mask, at=at, cache=room)
        if cache is not None:
            # After all blocks have written their keys and values.
            cache.advance(target.shape[1])
        y: Tensor = self.decoder_norm(x)
        return y

    def cache(
        self,
        memory: Float[Tensor, "sources n d_model"],
        memory_mask: Mask | None = None,
        room: int | None = None,
        *,
        beams: int = 1,
        pads: Sequence[int] | Tensor | None = None,
    ) -> TransformerCache:
        """Return a cache for up to `room` tokens of each target, max_positions unless given.

        Args:
            memory: z, from `encode`; its keys and values are computed once and shared by all beams
                of a source.
            memory_mask: hides the padding of the source.
            beams: the number of targets for each source; the batch is sources · beams, the beams of
                a source adjacent.
            pads: how many of the first tokens of each target are padding.
            room: the tokens that each target may have; None is max_positions.
        """
        check_sizes(beams=beams)
        room = self.config.max_positions if room is None else room
        self._check_length("room", room)
        blocks = cast(list[Any], self.decoder)
        # Keys and values of the source are computed here, once for all beams and steps.
        batch = memory.shape[0] * beams
        return TransformerCache(
            [block.self_attention.room(batch, room) for block in blocks],
            [block.cross_attention.keys_and_values(memory) for block in blocks],
            memory_mask,
            pads,
        )

    # ---------------------------------------------------------------------------------------- parts

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """The matrix from hidden states to logits; the target's embedding where tied."""
        return self._target_embedding.weight if self.head is None else self.head.weight

    @property
    def _target_embedding(self) -> nn.Embedding:
        return self.embedding if self.target_embedding is None else self.target_embedding

    def _embed(
        self,
        name: str,
        ids: Tensor,
        embedding: nn.Embedding,
        add_positions: nn.Module,
        positions: Tensor | None,
    ) -> Tensor:
        """Return the embeddings of ids with their positions added; `name` is for errors."""
        # Before the lookup, whose own error names no id.
        check_ids(name, ids, embedding.num_embeddings)
        # Given positions are the caller's business.
        if positions is None:
            self._check_length(name, ids.shape[1])
        # Scale up what `_initialise` draws with a variance of 1/d_model.
        x = embedding(ids) * (sqrt(self.config.d_model) if self.config.scaled else 1.0)
        y: Tensor = self.dropout(add_positions(x, 0 if positions is None else positions))
        return y

    def _multi_head(self, heads: int, attention: Attention) -> MultiHeadAttention:
        config = self.config
        return MultiHeadAttention(
            config.d_model,
            heads,
            bias=config.bias,
            attention=attention,
            dropout=config._weight_dropout,
        )

    def _feed_forward(self, d_hidden: int) -> FeedForward:
        config = self.config
        return FeedForward(
            config.d_model,
            d_hidden,
            activation=config.activation,
            bias=config.bias,
            dropout=config.hidden_dropout,
        )

    def _initialise(self) -> None:
        """Draw matrices from Xavier's uniform (Glorot & Bengio 2010), embeddings from N(0,
        1/d_model).

        `forward` scales embeddings by √d_model (Vaswani et al. 2017, 3.4; tensor2tensor).
        """
        for _, module in modules_to_initialise(self):
            if isinstance(module, StackedLinear):
                # Each matrix of a stack by its own size, as if it stood alone.
                for name in module.widths:
                    nn.init.xavier_uniform_(module[name].weight)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def _check_length(self, name: str, n: int) -> None:
        if self.config.positions == "learned" and n > self.config.max_positions:
            raise ValueError(
                f"{name}: {n} tokens are too many for max_positions={self.config.max_positions}"
            )


def _positions(config: TransformerConfig) -> LearnedPositions | SinusoidalPositions:
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model)
    return SinusoidalPositions(
        config.d_model, pairs="halves" if config.positions == "sinusoidal_halves" else "neighbours"
    )
