"""GPT: one stack of blocks that look back only, and say which token comes next (Radford et al. 2019; Llama; Qwen2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Attention, Mask, causal, everyone, window
from ..attention.positions import LinearScaling, Llama3Scaling, Pairing, Rotary
from ..layers import (
    Cache,
    CachePosition,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    MultiHeadAttention,
    SynthesizerAttention,
)
from ..layers.blocks import Activation
from . import config as fits
from .config import Config
from .loss import Reduction, cross_entropy
from .model import Model, Norm, check_ids, normaliser, to_initialise


@dataclass(frozen=True)
class GPTConfig(Config):
    """GPT-2's shape, small. Llama's: positions="rotary", norm="rms", gated=True, activation="silu", bias=False.

    None is the usual: key_heads = heads, d_k = d_model / heads, d_hidden = 4 · d_model, the biases of attention (those
    of queries, keys and values, and of W_O) = bias, dropout of the weights = dropout.
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
    rotary_factor: float = 8.0  # of the scaling; the next three are llama3's
    rotary_low: float = 1.0
    rotary_high: float = 4.0
    rotary_original: int = 8192

    attention: Literal["causal", "synthesizer"] = "causal"
    window: int | None = None  # a token sees itself and the window - 1 before it
    synthesizer_block: int | None = None  # the length of the Synthesizer's table; max_positions unless given
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

    def check(self) -> None:
        sizes = ("vocabulary", "max_positions", "d_model", "blocks", "heads", "key_heads", "d_k", "d_hidden")
        fits.at_least_one(self, *sizes, "window", "synthesizer_block", "rotary_original")
        fits.positive(self, "rotary_base", "rotary_fraction", "rotary_factor", "rotary_low", "rotary_high", "norm_eps")
        fits.probabilities(self, "dropout", "attention_dropout")
        fits.heads(self.d_model, self.heads, self.key_heads, self.d_k)
        if self.rotary_low >= self.rotary_high:
            raise ValueError(f"rotary_low={self.rotary_low} must be below rotary_high={self.rotary_high}")
        turn = self.rotary()  # says what is wrong with it
        if self.attention == "synthesizer":
            self._check_synthesizer()
        elif self.positions == "rotary":
            turn.check(self.width)

    def _check_synthesizer(self) -> None:
        """It has no keys, so nothing can be said about them."""
        for name in ("key_heads", "d_k", "attention_bias", "out_bias"):
            if getattr(self, name) is not None:
                raise ValueError(f'attention="synthesizer" has no {name}={getattr(self, name)}; leave it out')
        if self.positions == "rotary":
            raise ValueError('attention="synthesizer" has no keys to turn; positions="learned" or "none" fit')

    @property
    def width(self) -> int:
        """d_k: that of a head's queries and keys."""
        return self.d_model // self.heads if self.d_k is None else self.d_k

    def rotary(self) -> Rotary:
        scaling: LinearScaling | Llama3Scaling | None = None
        if self.rotary_scaling == "linear":
            scaling = LinearScaling(self.rotary_factor)
        if self.rotary_scaling == "llama3":
            scaling = Llama3Scaling(self.rotary_factor, self.rotary_low, self.rotary_high, self.rotary_original)
        return Rotary(self.rotary_base, self.rotary_fraction, self.rotary_pairs, scaling)


class GPT(Model, config_type=GPTConfig):
    """ids → embedding ⊕ positions → blocks → norm → head → logits of the next token.

    `attention` is that of every block: unless given, causal with the config's window. One that is given has a mask of
    its own: GPT(config, attention=ts.Attention(mask=ts.causal, softcap=30.0)).
    """

    config: GPTConfig

    def __init__(self, config: GPTConfig = GPTConfig(), *, attention: Attention | None = None) -> None:
        super().__init__()
        self.config = config
        if attention is not None and attention.mask == everyone:
            raise ValueError(
                "attention has no mask, so a GPT would see the token it has to guess; add mask=ts.causal to it"
            )
        norm = normaliser(config.norm, config.norm_eps, config.bias)
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.positions = (
            LearnedPositions(config.max_positions, config.d_model) if config.positions == "learned" else None
        )
        self.rotary = config.rotary() if config.positions == "rotary" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                config.d_model,
                self._self_attention(attention),
                self._feed_forward(),
                pre_norm=True,
                norm=norm,
                dropout=config.dropout,
            )
            for _ in range(config.blocks)
        )
        self.norm = norm(config.d_model)
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocabulary, bias=False)
        self._initialise()

    @property
    def attention(self) -> Attention:
        """The definition that its blocks were made with."""
        return self._attentions()[0].attention

    # ------------------------------------------------------------------------------------------- from ids to logits

    def forward(
        self,
        ids: Int[Tensor, "batch n"],
        mask: Mask | None = None,
        positions: Int[Tensor, "*batch n"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch n vocabulary"]:
        """The logits of what comes after each token.

        mask       beside that of the definition, e.g. ts.padding(keep=...); with a cache, over all its keys
        positions  where the tokens stand, if not at 0, 1, 2, … or, with a cache, behind what is in it
        cache      what was seen before, and where these go; see `cache`
        """
        return self.logits(self.hidden(ids, mask, positions, cache))

    def hidden(
        self,
        ids: Int[Tensor, "batch n"],
        mask: Mask | None = None,
        positions: Int[Tensor, "*batch n"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch n d_model"]:
        """All but the head: `logits(hidden[:, -1:])` are those of the last token alone."""
        self._check(ids, cache)
        n = ids.shape[1]
        if cache is not None:
            mask = cache.mask(mask)
            positions = cache.positions(n) if positions is None else positions
        at = self._place(n, positions, cache)

        x = self.embedding(ids)
        if self.positions is not None:
            x = self.positions(x, 0 if positions is None else positions)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, at=at, cache=None if cache is None else cache[i])
        if cache is not None:
            cache.advance(n)
        y: Tensor = self.norm(x)
        return y

    def loss(
        self,
        ids: Int[Tensor, "batch n"],
        targets: Int[Tensor, "batch n"],
        mask: Mask | None = None,
        positions: Int[Tensor, "*batch n"] | None = None,
        *,
        ignore: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, ""]:
        """How badly it guesses `targets`, what comes after each of the ids: the mean, or sum, over all but `ignore`."""
        hidden = self.hidden(ids, mask, positions)
        return cross_entropy(
            hidden, self.head_weight, targets, ignore=ignore, label_smoothing=label_smoothing, reduction=reduction
        )

    def logits(self, hidden: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n vocabulary"]:
        return linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """What turns a hidden state into logits: the embedding, if they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def cache(self, batch: int = 1, room: int | None = None, pads: Sequence[int] | Tensor | None = None) -> Cache:
        """An empty cache for `room` tokens of each sequence, max_positions unless given.

        `pads` says how many of the first tokens of each sequence are padding: nobody sees them, and the first real
        token stands at position 0.
        """
        room = self.longest if room is None else room
        self._check_length(room)
        return Cache([attention.room(batch, room) for attention in self._attentions()], pads)

    @property
    def longest(self) -> int:
        """The longest sequence: only learned positions and the Synthesizer's table end; others may go beyond it."""
        block = self.config.synthesizer_block if self.config.attention == "synthesizer" else None
        return self.config.max_positions if block is None else min(block, self.config.max_positions)

    # ----------------------------------------------------------------------------------------------- how it is made

    def _attentions(self) -> list[MultiHeadAttention | SynthesizerAttention]:
        return [cast(Any, block).self_attention for block in self.blocks]

    def _self_attention(self, attention: Attention | None) -> nn.Module:
        config = self.config
        mask = causal if config.window is None else causal & window(config.window)
        dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        if config.attention == "synthesizer":
            return SynthesizerAttention(
                config.d_model,
                config.heads,
                config.max_positions if config.synthesizer_block is None else config.synthesizer_block,
                shared=config.synthesizer_shared,
                bias=config.bias,
                attention=Attention(scale=1.0, mask=mask) if attention is None else attention,
                dropout=dropout,
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
            dropout=dropout,
        )

    def _feed_forward(self) -> FeedForward:
        config = self.config
        kind = GatedFeedForward if config.gated else FeedForward
        d_hidden = 4 * config.d_model if config.d_hidden is None else config.d_hidden
        return kind(config.d_model, d_hidden, activation=config.activation, bias=config.bias)

    def _initialise(self) -> None:
        """N(0, 0.02), and the projections into the residual stream smaller by √(2 · blocks): its variance stays the
        same however many add to it (Radford et al. 2018, 4.1; Radford et al. 2019, 2.3)."""
        for name, module in to_initialise(self):
            if isinstance(module, nn.Linear | nn.Embedding):
                into_stream = name.endswith(("W_O", "W_2"))
                nn.init.normal_(module.weight, std=0.02 / (sqrt(2 * self.config.blocks) if into_stream else 1.0))
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _place(self, n: int, positions: Tensor | None, cache: Cache | None) -> CachePosition:
        """Where the tokens stand, and how that turns them: once, for all blocks."""
        start = 0 if cache is None else cache.start(n)
        if self.rotary is None:
            return CachePosition(start, positions)
        weight = self.embedding.weight
        where = torch.arange(n, device=weight.device) if positions is None else positions
        exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return CachePosition(start, positions, self.rotary.at(where, self.config.width, exact))

    def _check(self, ids: Tensor, cache: Cache | None) -> None:
        check_ids("ids", ids, self.config.vocabulary)
        if cache is None:
            self._check_length(ids.shape[1])
        elif ids.shape[0] != cache.batch:
            raise ValueError(f"ids has a batch of {ids.shape[0]}, the cache one of {cache.batch}")

    def _check_length(self, n: int) -> None:
        ends = self.config.positions == "learned" or self.config.attention == "synthesizer"
        if ends and n > self.longest:
            raise ValueError(f"{n} tokens are too many: this model has positions for {self.longest}")
