"""An LSTM that reads, an LSTM that writes, and attention between them (Luong et al. 2015)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..attention import Attention, Mask
from ..layers import LuongAttention
from ..layers.check_sizes import sizes
from . import config as fits
from .config import Config
from .loss import Reduction, cross_entropy
from .model import Model, check_ids, real_tokens, to_initialise


@dataclass(frozen=True)
class LuongConfig(Config):
    """The paper's shape, small. The target's vocabulary is the source's unless given."""

    vocabulary: int = 256
    target_vocabulary: int | None = None
    d_embedding: int = 128
    d_model: int = 256  # of both LSTMs; each direction of a bidirectional encoder has half of it
    layers: int = 2
    bidirectional: bool = False
    score: Literal["dot", "general", "concat"] = "general"
    input_feeding: bool = True
    dropout: float = 0.2

    def check(self) -> None:
        fits.at_least_one(self, "vocabulary", "target_vocabulary", "d_embedding", "d_model", "layers")
        fits.probabilities(self, "dropout")
        if self.bidirectional and self.d_model % 2:
            near = f"{self.d_model - 1} or {self.d_model + 1}"
            raise ValueError(f"d_model={self.d_model} cannot be split into two directions; nearest: {near}")


@dataclass(frozen=True, eq=False)
class LuongMemory:
    """What the encoder makes of the source: all its states, and where each of its layers ended."""

    states: Float[Tensor, "sources n d_model"]
    hidden: Float[Tensor, "layers sources d_model"]
    cell: Float[Tensor, "layers sources d_model"]


@dataclass(eq=False)
class LuongCache:
    """Where the decoder stands: the state of its layers, and the attentional state h̃ that is fed to its next input."""

    memory: LuongMemory
    memory_mask: Mask | None
    hidden: Float[Tensor, "layers batch d_model"]
    cell: Float[Tensor, "layers batch d_model"]
    fed: Float[Tensor, "batch 1 d_model"]
    length: int = 0

    @property
    def batch(self) -> int:
        return self.fed.shape[0]

    @property
    def sources(self) -> int:
        return self.memory.states.shape[0]

    def reorder(self, index: Int[Tensor, " new_batch"]) -> None:
        """Sequence i goes on from where sequence index[i] was; see layers.Cache."""
        self.hidden, self.cell = self.hidden.index_select(1, index), self.cell.index_select(1, index)
        self.fed = self.fed.index_select(0, index)


class LuongTranslator(Model, config_type=LuongConfig):
    """source → LSTM → h; target → LSTM → s_t; c_t = Σ α h; h̃_t = tanh(W_c [c_t; s_t]) → head → logits.

    With input feeding, h̃ of a step is part of the next step's input. `attention` is that of the attention between the
    two, apart from its score, which is the config's.
    """

    config: LuongConfig

    def __init__(self, config: LuongConfig = LuongConfig(), *, attention: Attention = Attention(scale=1.0)) -> None:
        super().__init__()
        self.config = config
        d, d_embedding = config.d_model, config.d_embedding
        between = config.dropout if config.layers > 1 else 0.0
        self.embedding = nn.Embedding(config.vocabulary, d_embedding)
        self.target_embedding = nn.Embedding(self.vocabulary, d_embedding)
        self.encoder = nn.LSTM(
            d_embedding,
            d // 2 if config.bidirectional else d,
            config.layers,
            bidirectional=config.bidirectional,
            dropout=between,
            batch_first=True,
        )
        fed = d if config.input_feeding else 0
        self.decoder = nn.LSTM(d_embedding + fed, d, config.layers, dropout=between, batch_first=True)
        self.cross_attention = LuongAttention(config.score, d, attention=attention)
        self.W_c = nn.Linear(2 * d, d, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(d, self.vocabulary, bias=False)
        for _, module in to_initialise(self):
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -0.1, 0.1)  # Luong et al. 2015, section 4.1

    @property
    def attention(self) -> Attention:
        """The definition that it was made with."""
        return self.cross_attention.attention

    # -------------------------------------------------------------------------------------------- source to logits

    def forward(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
    ) -> Float[Tensor, "batch m vocabulary"]:
        """The logits of what comes after each token of the target, given the source, whose padding the mask hides."""
        return self.logits(self.decode(target, self.encode(source, source_mask), source_mask))

    def encode(self, source: Int[Tensor, "batch n"], mask: Mask | None = None) -> LuongMemory:
        """All states of the encoder. `mask` is ts.padding(lengths): an LSTM reads a sentence to its end, not beyond."""
        check_ids("source", source, self.config.vocabulary)
        x = self.dropout(self.embedding(source))
        lengths = _lengths(mask, source)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, (hidden, cell) = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return LuongMemory(states, self._both_ways(hidden), self._both_ways(cell))

    def decode(
        self,
        target: Int[Tensor, "batch m"],
        memory: LuongMemory | None = None,
        memory_mask: Mask | None = None,
        cache: LuongCache | None = None,
    ) -> Float[Tensor, "batch m d_model"]:
        """h̃ of every step, which `logits` turns into words. With a cache it goes on from there."""
        check_ids("target", target, self.vocabulary)
        if (memory is None) == (cache is None):
            raise ValueError("decode needs the memory, model.encode(source), or a cache that was made for one")
        if cache is None:
            assert memory is not None
            cache = self.cache(memory, memory_mask)
        if target.shape[0] != cache.batch:
            raise ValueError(f"target has a batch of {target.shape[0]}, the cache one of {cache.batch}")
        cache.length += target.shape[1]
        x = self.dropout(self.target_embedding(target))
        if not self.config.input_feeding:
            return self._step(x, cache)
        found = []
        for word in torch.split(x, 1, dim=1):
            cache.fed = self._step(torch.cat([word, cache.fed], dim=-1), cache)
            found.append(cache.fed)
        return torch.cat(found, dim=1)

    def loss(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        targets: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        *,
        ignore: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, ""]:
        """How badly it guesses `targets`, what follows each of `target`: the mean, or sum, over all but `ignore`."""
        hidden = self.decode(target, self.encode(source, source_mask), source_mask)
        return cross_entropy(
            hidden, self.head.weight, targets, ignore=ignore, label_smoothing=label_smoothing, reduction=reduction
        )

    def logits(self, hidden: Float[Tensor, "batch m d_model"]) -> Float[Tensor, "batch m vocabulary"]:
        y: Tensor = self.head(hidden)
        return y

    def cache(
        self, memory: LuongMemory, memory_mask: Mask | None = None, room: int | None = None, *, beams: int = 1
    ) -> LuongCache:
        """Where the decoder begins: at the encoder's end. An LSTM needs no `room`: it keeps one state, however long.

        With `beams`, that many targets of each source stand below each other, and share its states.
        """
        sizes(beams=beams)
        hidden, cell = (state.repeat_interleave(beams, dim=1) for state in (memory.hidden, memory.cell))
        fed = hidden.new_zeros(hidden.shape[1], 1, self.config.d_model)
        return LuongCache(memory, memory_mask, hidden, cell, fed)

    # ---------------------------------------------------------------------------------------------------- its parts

    @property
    def vocabulary(self) -> int:
        """The target's."""
        return self.config.vocabulary if self.config.target_vocabulary is None else self.config.target_vocabulary

    def _step(self, x: Float[Tensor, "batch m d_in"], cache: LuongCache) -> Float[Tensor, "batch m d_model"]:
        """s = LSTM(x), h̃ = tanh(W_c [c; s])  (equation 5)."""
        states, (cache.hidden, cache.cell) = self.decoder(x, (cache.hidden, cache.cell))
        side_by_side = states.reshape(cache.sources, -1, self.config.d_model)  # the beams of a source, as its queries
        context = self.cross_attention(side_by_side, cache.memory.states, cache.memory_mask).reshape(states.shape)
        attentional: Tensor = self.dropout(torch.tanh(self.W_c(torch.cat([context, states], dim=-1))))
        return attentional

    def _both_ways(self, state: Float[Tensor, "layers_ways batch d"]) -> Float[Tensor, "layers batch d_model"]:
        """The two directions of each layer side by side."""
        if not self.config.bidirectional:
            return state
        return torch.cat([state[0::2], state[1::2]], dim=-1)


def _lengths(mask: Mask | None, source: Tensor) -> Int[Tensor, " batch"]:
    real = real_tokens(mask, source)
    lengths = real.sum(-1).cpu()
    if int(lengths.min()) < 1 or not torch.equal(real.cpu(), torch.arange(source.shape[1]) < lengths[:, None]):
        raise ValueError("an LSTM reads at least one token, from the first: pad on the right, and mask by ts.padding")
    return lengths
