"""GPT: a decoder-only language model, one stack of causal blocks (Radford et al. 2019; also Llama
and Qwen2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import (
    Attention,
    LinearScaling,
    Llama3Scaling,
    Mask,
    Pairing,
    Rotary,
    causal,
    everyone,
    window,
)
from ..layers import (
    Activation,
    Cache,
    CachePosition,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Positions,
    States,
    SynthesizerAttention,
)
from .loss import Reduction, cross_entropy
from .model import (
    Ids,
    Logits,
    Model,
    ModelConfig,
    Norm,
    check_batch,
    check_heads,
    check_ids,
    modules_to_initialise,
    norm_factory,
)


@dataclass(frozen=True)
class GPTConfig(ModelConfig):
    """The config of a GPT; the defaults are a small GPT-2.

    Llama is positions="rotary", norm="rms", gated=True, activation="silu", bias=False. The meaning
    of None: key_heads = heads, d_k = d_model / heads, d_hidden = 4 · d_model, attention_bias (of
    W_q, W_k and W_v) = bias, out_bias (of W_O) = bias, attention_dropout = dropout,
    synthesizer_block = max_positions, no window.

    Args:
        vocabulary: how many token ids there are.
        max_positions: the longest text; a limit for learned positions and the Synthesizer alone.
        d_model: the width of the residual stream.
        blocks: the number of blocks.
        heads: the number of query heads of a block.
        key_heads: the number of key and value heads; None is `heads`.
        d_k: the width of a head's queries and keys; None is d_model / heads.
        d_hidden: the width of the feed-forward network; None is 4 · d_model.
        positions: "learned", "rotary" or "none".
        rotary_base, rotary_fraction, rotary_pairs: as in `ts.rotary`.
        rotary_scaling: for texts longer than in training: "linear", "llama3", or None.
        rotary_factor: of the scaling.
        rotary_low, rotary_high, rotary_original: of the scaling "llama3" alone.
        attention: "causal" or "synthesizer".
        window: a token sees itself and the window - 1 tokens before it; None is no window.
        synthesizer_block: columns of the Synthesizer's table; None is max_positions.
        synthesizer_shared: whether all heads share one table.
        norm: "layer" or "rms".
        norm_eps: what is added to the variance before its root.
        activation: as in `layers.FeedForward`.
        gated: whether the feed-forward network is gated, as in Llama.
        bias: whether linear layers and norms have a bias.
        attention_bias: of W_q, W_k and W_v; None is `bias`.
        out_bias: of W_O; None is `bias`.
        tied: whether the head is the embedding.
        dropout: of features, in training only.
        attention_dropout: of attention weights; None is `dropout`.

    Raises:
        TypeError, ValueError: with one sentence where a field does not fit.

    Example:
        >>> from telescope.models import GPTConfig
        >>> GPTConfig(d_model=64, heads=4, positions="rotary").width
        16
        >>> config = GPTConfig(d_model=64, heads=4, positions="rotary")
        >>> config.rotary().base
        10000.0
    """

    vocabulary: int = 256
    max_positions: int = 256
    d_model: int = 256
    blocks: int = 4
    heads: int = 8
    key_heads: int | None = None
    d_k: int | None = None
    d_hidden: int | None = None

    positions: Literal["learned", "rotary", "none"] = "learned"
    rotary_base: float = 10_000.0
    rotary_fraction: float = 1.0
    rotary_pairs: Pairing = "halves"
    rotary_scaling: Literal["linear", "llama3"] | None = None
    rotary_factor: float = 8.0  # of the scaling; the next three fields are for "llama3" only
    rotary_low: float = 1.0
    rotary_high: float = 4.0
    rotary_original: int = 8192

    attention: Literal["causal", "synthesizer"] = "causal"
    window: int | None = None  # a token sees itself and the window - 1 before it
    synthesizer_block: int | None = None  # columns of the Synthesizer's table
    synthesizer_shared: bool = False  # one table for all heads

    norm: Norm = "layer"
    norm_eps: float = 1e-5
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    attention_bias: bool | None = None
    out_bias: bool | None = None
    tied: bool = True  # the head is the embedding
    dropout: float = 0.0
    attention_dropout: float | None = None

    def _check_fields(self) -> None:
        super()._check_fields()
        check_heads(self.d_model, self.heads, self.key_heads, self.d_k)
        if self.rotary_low >= self.rotary_high:
            raise ValueError(
                f"rotary_low={self.rotary_low} must be below rotary_high={self.rotary_high}"
            )
        rotary = self.rotary()  # raises where its fields do not fit
        if self.attention == "synthesizer":
            self._check_synthesizer()
        elif self.positions == "rotary":
            rotary.check(self.width)

    def _check_synthesizer(self) -> None:
        """Raise a ValueError where a field about keys is set: the Synthesizer has no keys."""
        # Fields about keys, which are None unless somebody has set them.
        for name in ("key_heads", "d_k", "attention_bias", "out_bias"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f'attention="synthesizer" has no {name}={getattr(self, name)}; leave it out'
                )
        if self.positions == "rotary":
            raise ValueError(
                'attention="synthesizer" has no keys to rotate; positions="learned" or "none" fit'
            )

    @property
    def width(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_k or self.d_model // self.heads

    def rotary(self) -> Rotary:
        """Return the rotary positions that the fields rotary_… describe."""
        scaling: LinearScaling | Llama3Scaling | None = None
        factor = self.rotary_factor
        if self.rotary_scaling == "linear":
            scaling = LinearScaling(factor)
        if self.rotary_scaling == "llama3":
            scaling = Llama3Scaling(factor, self.rotary_low, self.rotary_high, self.rotary_original)
        return Rotary(self.rotary_base, self.rotary_fraction, self.rotary_pairs, scaling)


class GPT(Model, config_type=GPTConfig):
    """ids → embedding ⊕ positions → blocks → norm → head → logits of the next token.

    Args:
        config: sizes and options.
        attention: the definition for every block; unless given, causal with the config's window. A
            given one replaces both, so it needs a mask: ts.Attention(mask=ts.causal, softcap=30.0).

    Attributes:
        config: the sizes and options that the model was built with.
        tokenizer: converts text to ids and back, or None.
        special: the special ids: start, end and padding.

    Raises:
        ValueError: where `attention` has no mask.

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1))
        >>> model(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 3, 10])
        >>> ids = torch.tensor([[3, 1, 4]])
        >>> torch.equal(model.logits(model.hidden(ids)), model(ids))
        True
        >>> model.loss(ids[:, :-1], ids[:, 1:]).shape  # the mean, in nats
        torch.Size([])
        >>> model.head_weight.shape, model.attention
        (torch.Size([10, 8]), Attention(mask=causal))
        >>> cache = model.cache(batch=1, room=16)
        >>> model(ids, cache=cache).shape, cache.length
        (torch.Size([1, 3, 10]), 3)
        >>> model.longest, model.is_limited
        (256, True)
    """

    config: GPTConfig

    def __init__(
        self, config: GPTConfig = GPTConfig(), *, attention: Attention | None = None
    ) -> None:
        super().__init__()
        self.config = config
        # A model that sees its target learns nothing: refuse it here, not after training.
        if attention is not None and attention.mask == everyone:
            raise ValueError(
                "attention has no mask, so a GPT would see the token it has to guess; add "
                "mask=ts.causal to it"
            )
        norm = norm_factory(config.norm, config.norm_eps, config.bias)
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.positions = (
            LearnedPositions(config.max_positions, config.d_model)
            if config.positions == "learned"
            else None
        )
        # One rotation for all blocks.
        self.rotary = config.rotary() if config.positions == "rotary" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                self._self_attention(attention),
                self._feed_forward(),
                # The residual stream is normalised on the way into each sublayer, never itself.
                pre_norm=True,
                norm=norm,
                dropout=config.dropout,
            )
            for _ in range(config.blocks)
        )
        # With pre-norm nothing has normalised the last sum yet.
        self.norm = norm(config.d_model)
        self.head = (
            None if config.tied else nn.Linear(config.d_model, config.vocabulary, bias=False)
        )
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that the blocks were built with."""
        return self._attentions()[0].attention

    # --------------------------------------------------------------------------- from ids to logits

    def forward(
        self,
        ids: Ids,
        mask: Mask | None = None,
        positions: Positions | None = None,
        cache: Cache | None = None,
    ) -> Logits:
        """Return the logits of the token that follows each token.

        Args:
            mask: combined with the definition's by &, e.g. ts.padding(keep=...); with a cache, over
                all its keys.
            positions: the position of each token; unless given, 0, 1, 2, … or, with a cache, those
                after its tokens.
            cache: keys and values of earlier tokens, from `model.cache()`; those of `ids` are
                appended to it.
            ids: (batch, n), token ids.

        Raises:
            ValueError: where ids are not in the vocabulary, too many, or of another batch than the
                cache.
        """
        return self.logits(self.hidden(ids, mask, positions, cache))

    def hidden(
        self,
        ids: Ids,
        mask: Mask | None = None,
        positions: Positions | None = None,
        cache: Cache | None = None,
    ) -> States:
        """Return the hidden states before the head: `logits(hidden[:, -1:])` are the logits of the
        last token alone.

        Args:
            ids, mask, positions, cache: as in `forward`.
        """
        self._check(ids, cache)
        n = ids.shape[1]
        if cache is not None:
            # The cache knows its padding and where its tokens stand.
            mask = cache.mask(mask)
            positions = cache.positions(n) if positions is None else positions
        at = self._cache_position(n, positions, cache)

        # ids → embedding ⊕ positions → blocks → norm.
        x = self.embedding(ids)
        if self.positions is not None:
            x = self.positions(x, 0 if positions is None else positions)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, at=at, cache=None if cache is None else cache[i])
        if cache is not None:
            # After all blocks have written their keys and values.
            cache.advance(n)
        y: Tensor = self.norm(x)
        return y

    def loss(
        self,
        ids: Ids,
        targets: Ids,
        mask: Mask | None = None,
        positions: Positions | None = None,
        *,
        ignore: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, ""]:
        """Return the cross entropy of `targets`, the token that follows each id: mean or sum over
        all but `ignore`.

        See `models.loss.cross_entropy` for the options; the logits of the whole batch are never in
        memory at once.

        Args:
            ids: (batch, n), token ids.
            targets: (batch, n), the token that follows each id.
            mask, positions: as in `forward`.
            ignore: targets of this number do not count.
            label_smoothing: the share of the target's probability that is spread over all tokens.
            reduction: "mean" or "sum", over all targets that count.

        Returns:
            A scalar tensor, in nats.
        """
        hidden = self.hidden(ids, mask, positions)
        return cross_entropy(
            hidden,
            self.head_weight,
            targets,
            ignore=ignore,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def logits(self, hidden: States) -> Logits:
        """Return hidden states times the head.

        Args:
            hidden: (batch, n, d_model), from `hidden`.
        """
        return linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """The matrix that turns hidden states into logits; the embedding where they are tied."""
        # Tied: the embedding read the other way round.
        return self.embedding.weight if self.head is None else self.head.weight

    def cache(
        self, batch: int = 1, room: int | None = None, pads: Sequence[int] | Tensor | None = None
    ) -> Cache:
        """Return an empty cache for `batch` sequences of up to `room` tokens, max_positions unless
        given.

        Args:
            pads: how many of the first tokens of each sequence are padding, (batch,): these are
                masked, and the first real token has position 0.
            batch: the number of sequences.
            room: the tokens that each of them may have; None is max_positions.

        Raises:
            ValueError: where `room` exceeds the positions that the model has.
        """
        room = self.longest if room is None else room
        self._check_length(room)
        return Cache([attention.room(batch, room) for attention in self._attentions()], pads)

    @property
    def longest(self) -> int:
        """The length of the longest sequence; a limit only for learned positions and for the
        Synthesizer's table.
        """
        config = self.config
        block = config.synthesizer_block if config.attention == "synthesizer" else None
        return min(block or config.max_positions, config.max_positions)

    @property
    def is_limited(self) -> bool:
        """Whether the model has no positions beyond `longest`."""
        return self.config.positions == "learned" or self.config.attention == "synthesizer"

    # ------------------------------------------------------------------------------------- building

    def _attentions(self) -> list[MultiHeadAttention | SynthesizerAttention]:
        return [cast(Any, block).self_attention for block in self.blocks]

    def _self_attention(self, attention: Attention | None) -> nn.Module:
        """Return the attention layer of one block."""
        config = self.config
        # A window limits how far back a token sees.
        mask = causal if config.window is None else causal & window(config.window)
        if config.attention == "synthesizer":
            # The Synthesizer has one score for each column of its table, and no scale.
            return SynthesizerAttention(
                config.d_model,
                config.heads,
                config.synthesizer_block or config.max_positions,
                shared=config.synthesizer_shared,
                bias=config.bias,
                attention=Attention(scale=1.0, mask=mask) if attention is None else attention,
                dropout=config._weight_dropout,
            )
        return MultiHeadAttention(
            config.d_model,
            config.heads,
            key_heads=config.key_heads,
            d_k=config.d_k,
            bias=config.bias if config.attention_bias is None else config.attention_bias,
            out_bias=config.bias if config.out_bias is None else config.out_bias,
            attention=Attention(mask=mask) if attention is None else attention,
            rotary=self.rotary,
            dropout=config._weight_dropout,
        )

    def _feed_forward(self) -> FeedForward:
        config = self.config
        kind = GatedFeedForward if config.gated else FeedForward
        # Four times the model's width unless given, as in Vaswani et al. 2017.
        d_hidden = config.d_hidden or 4 * config.d_model
        return kind(config.d_model, d_hidden, activation=config.activation, bias=config.bias)

    def _initialise(self) -> None:
        """Draw weights from N(0, 0.02), and divide projections into the residual stream by √(2 ·
        blocks).

        So the variance of the stream does not grow with the number of blocks (Radford et al. 2018,
        4.1; Radford et al. 2019, 2.3).
        """
        for name, module in modules_to_initialise(self):
            if isinstance(module, nn.Linear | nn.Embedding):
                # W_O and W_2 write into the residual stream.
                into_stream = name.endswith(("W_O", "W_2"))
                nn.init.normal_(
                    module.weight, std=0.02 / (sqrt(2 * self.config.blocks) if into_stream else 1.0)
                )
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _cache_position(
        self, n: int, positions: Tensor | None, cache: Cache | None
    ) -> CachePosition:
        """Return the slots and the rotation of n tokens, computed once for all blocks."""
        # New tokens are written behind those of the cache.
        start = 0 if cache is None else cache.start(n)
        if self.rotary is None:
            return CachePosition(start, positions)
        weight = self.embedding.weight
        # Angles are computed once for all blocks, in float32 or better.
        rotated = torch.arange(n, device=weight.device) if positions is None else positions
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return CachePosition(start, positions, self.rotary.at(rotated, self.config.width, dtype))

    def _check(self, ids: Tensor, cache: Cache | None) -> None:
        check_ids("ids", ids, self.config.vocabulary)
        if cache is None:
            self._check_length(ids.shape[1])
        else:
            # With a cache, its room limits the length.
            check_batch("ids", ids, cache.batch)

    def _check_length(self, n: int) -> None:
        if self.is_limited and n > self.longest:
            raise ValueError(
                f"{n} tokens are too many: this model has positions for {self.longest}"
            )
