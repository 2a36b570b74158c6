"""A recurrent translator: an LSTM encoder, an LSTM decoder, and attention between them (Luong et
al. 2015).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..attention import Attention, Mask
from ..layers import LuongAttention, OnlyReal, check_sizes, told_real
from .loss import Translator, check_memory_or_cache
from .model import (
    Ids,
    ModelConfig,
    Targets,
    TargetStates,
    check_batch,
    check_ids,
    modules_to_initialise,
    real_tokens,
)


@dataclass(frozen=True)
class LuongConfig(ModelConfig):
    """The config of a LuongTranslator; the defaults are a small version of the paper's.

    Where target_vocabulary is None it equals vocabulary.

    Args:
        vocabulary: how many token ids the source has.
        target_vocabulary: how many the target has; None is `vocabulary`.
        d_embedding: the width of an embedding.
        d_model: the width of both LSTMs; each direction of a bidirectional encoder has half of it.
        layers: the number of layers of each LSTM.
        bidirectional: whether the encoder also reads the source backwards.
        score: "dot", "general" or "concat", as in `layers.LuongAttention`.
        input_feeding: whether h̃ of a step is part of the next step's input.
        dropout: of features, in training only.

    Raises:
        TypeError, ValueError: with one sentence where a field does not fit.

    Example:
        >>> from telescope.models import LuongConfig
        >>> LuongConfig(d_model=64).score
        'general'
    """

    vocabulary: int = 256
    target_vocabulary: int | None = None
    d_embedding: int = 128
    # The width of both LSTMs; each direction of a bidirectional encoder has half of it.
    d_model: int = 256
    layers: int = 2
    bidirectional: bool = False
    score: Literal["dot", "general", "concat"] = "general"
    input_feeding: bool = True
    dropout: float = 0.2

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.bidirectional and self.d_model % 2:
            near = f"{self.d_model - 1} or {self.d_model + 1}"
            raise ValueError(
                f"d_model={self.d_model} cannot be split into two directions; nearest: {near}"
            )


@dataclass(frozen=True, eq=False)
class LuongMemory:
    """The encoder's output: the states of its last layer, and the final hidden and cell state of
    every layer.

    Attributes:
        states: (batch, n, d_model), of the last layer.
        hidden: (layers, batch, d_model), the last hidden state of every layer.
        cell: (layers, batch, d_model), the last cell state of every layer.

    Example:
        >>> import torch
        >>> from telescope.models import LuongConfig, LuongTranslator
        >>> model = LuongTranslator(LuongConfig(vocabulary=10, d_model=8))
        >>> model.encode(torch.tensor([[3, 1, 4]])).states.shape
        torch.Size([1, 3, 8])
    """

    states: Float[Tensor, "sources n d_model"]
    hidden: Float[Tensor, "layers sources d_model"]
    cell: Float[Tensor, "layers sources d_model"]


@dataclass(eq=False)
class LuongCache:
    """The decoder's state: hidden and cell state of its layers, and h̃, which is part of its next
    input.

    Attributes:
        memory, memory_mask: the encoder's output, and the mask that hides its padding.
        fed: h̃ of the last step.
        length: the number of tokens decoded.
        hidden, cell: (layers, batch, d_model), the states of the decoder's layers.

    Example:
        >>> import torch
        >>> from telescope.models import LuongConfig, LuongTranslator
        >>> model = LuongTranslator(LuongConfig(vocabulary=10, d_model=8))
        >>> cache = model.cache(model.encode(torch.tensor([[3, 1, 4]])), beams=2)
        >>> cache.sources, cache.batch
        (1, 2)
        >>> cache.reorder(torch.tensor([1, 1]))  # both beams go on from the second
        >>> cache.keep_sources(torch.tensor([0]), None)
    """

    memory: LuongMemory
    memory_mask: Mask | None
    hidden: Float[Tensor, "layers batch d_model"]
    cell: Float[Tensor, "layers batch d_model"]
    fed: Float[Tensor, "batch 1 d_model"]
    length: int = 0

    @property
    def batch(self) -> int:
        """The number of targets."""
        return self.fed.shape[0]

    @property
    def sources(self) -> int:
        """The number of sources; the batch is sources · beams."""
        return self.memory.states.shape[0]

    def keep_sources(self, index: Int[Tensor, " new_sources"], memory_mask: Mask | None) -> None:
        """Keep these sources alone, with the mask of their padding.

        Args:
            index: the numbers of the sources that are kept.
            memory_mask: hides their padding; None hides nothing.
        """
        # Sources are the first axis of the states, and the second of hidden and cell states.
        self.memory = LuongMemory(
            self.memory.states.index_select(0, index),
            self.memory.hidden.index_select(1, index),
            self.memory.cell.index_select(1, index),
        )
        self.memory_mask = memory_mask

    def reorder(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace sequence i by sequence index[i], for every i; see `layers.Cache`.

        Args:
            index: for each new sequence, the number of the old one.
        """
        self.hidden = self.hidden.index_select(1, index)
        self.cell = self.cell.index_select(1, index)
        self.fed = self.fed.index_select(0, index)


class LuongTranslator(Translator, config_type=LuongConfig):
    """source → LSTM → h; target → LSTM → s_t; c_t = Σ α h; h̃_t = tanh(W_c [c_t; s_t]) → head →
    logits.

    With input feeding, h̃ of a step is part of the next step's input.

    Args:
        config: sizes and options.
        attention: the definition of the attention to the encoder, except its score, which the
            config chooses.

    Attributes:
        config: the sizes and options that the model was built with.
        tokenizer: converts text to ids and back, or None.
        special: the special ids: start, end and padding.
        head_bias: None: this model adds nothing to the logits.

    Example:
        >>> import torch
        >>> from telescope.models import LuongConfig, LuongTranslator
        >>> model = LuongTranslator(LuongConfig(vocabulary=10, d_model=8))
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
        (Attention(scale=1.0), torch.Size([10, 8]))
    """

    config: LuongConfig

    def __init__(
        self, config: LuongConfig = LuongConfig(), *, attention: Attention = Attention(scale=1.0)
    ) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        d_embedding = config.d_embedding
        # torch warns about dropout between the layers of an LSTM with one.
        layer_dropout = config.dropout if config.layers > 1 else 0.0
        self.embedding = nn.Embedding(config.vocabulary, d_embedding)
        self.target_embedding = nn.Embedding(self.vocabulary, d_embedding)
        self.encoder = nn.LSTM(
            d_embedding,
            d // 2 if config.bidirectional else d,
            config.layers,
            bidirectional=config.bidirectional,
            dropout=layer_dropout,
            batch_first=True,
        )
        # h̃ of the last step is part of the next input.
        d_fed = d if config.input_feeding else 0
        self.decoder = nn.LSTM(
            d_embedding + d_fed, d, config.layers, dropout=layer_dropout, batch_first=True
        )
        self.cross_attention = LuongAttention(config.score, d, attention=attention)
        self.W_c = nn.Linear(2 * d, d, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(d, self.vocabulary, bias=False)
        self.head_bias = None
        for _, module in modules_to_initialise(self):
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -0.1, 0.1)  # Luong et al. 2015, section 4.1

    @property
    def attention(self) -> Attention:
        """The definition that the model was built with."""
        return self.cross_attention.attention

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        return self.head.weight

    # ------------------------------------------------------------------------ from source to logits

    def hidden(
        self,
        source: Ids,
        target: Targets,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> TargetStates:
        memory = self.encode(source, source_mask)
        if target_mask is None:
            return self.decode(target, memory, source_mask)
        # Check that padding is on the right: it is read last, and so changes nothing before it.
        _lengths(target_mask, target)
        # A recurrent decoder has no mask: tell hooks which queries count.
        with OnlyReal(real_tokens(target_mask, target)):
            return self.decode(target, memory, source_mask)

    def encode(self, source: Ids, mask: Mask | None = None) -> LuongMemory:
        """Return the encoder's states; each source is read up to its length, by
        mask=ts.padding(lengths).

        Args:
            source: (batch, n), token ids.
            mask: hides padding, ts.padding(lengths).
        """
        check_ids("source", source, self.config.vocabulary)
        x = self.dropout(self.embedding(source))
        lengths = _lengths(mask, source)
        # Each source is read up to its own end, also backwards.
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, (hidden, cell) = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return LuongMemory(states, self._join_directions(hidden), self._join_directions(cell))

    def decode(
        self,
        target: Targets,
        memory: LuongMemory | None = None,
        memory_mask: Mask | None = None,
        cache: LuongCache | None = None,
    ) -> TargetStates:
        """Return h̃ of every step, which `logits` turns into logits; a cache is continued, and
        updated in place.

        Args:
            target: (batch, m), token ids.
            memory: from `encode`; None with a cache.
            memory_mask: hides the padding of the source.
            cache: from `model.cache(memory)`.

        Raises:
            ValueError: unless exactly one of memory and cache is given.
        """
        check_ids("target", target, self.vocabulary)
        check_memory_or_cache(memory, cache)
        if cache is None:
            assert memory is not None
            cache = self.cache(memory, memory_mask)
        check_batch("target", target, cache.batch)
        cache.length += target.shape[1]
        x = self.dropout(self.target_embedding(target))
        # Without input feeding all steps are one call.
        if not self.config.input_feeding:
            return self._step(x, cache)
        # With input feeding each step needs h̃ of the step before.
        outputs = []
        # Each step has its own part of what is told about the whole target.
        told = told_real()
        for read, word in enumerate(torch.split(x, 1, dim=1), 1):
            with OnlyReal(None if told is None else told[:, : told.shape[1] - x.shape[1] + read]):
                cache.fed = self._step(torch.cat([word, cache.fed], dim=-1), cache)
            outputs.append(cache.fed)
        return torch.cat(outputs, dim=1)

    def cache(
        self,
        memory: LuongMemory,
        memory_mask: Mask | None = None,
        room: int | None = None,
        *,
        beams: int = 1,
    ) -> LuongCache:
        """Return the decoder's first state, the encoder's last one.

        Args:
            beams: the number of targets for each source; the batch is sources · beams, the beams of
                a source adjacent.
            room: ignored: an LSTM's state does not grow with the target.
            memory: from `encode`.
            memory_mask: hides the padding of the source.
        """
        check_sizes(beams=beams)
        # All beams of a source begin with its last state.
        hidden, cell = (
            state.repeat_interleave(beams, dim=1) for state in (memory.hidden, memory.cell)
        )
        # Nothing has been attended to before the first step.
        fed = hidden.new_zeros(hidden.shape[1], 1, self.config.d_model)
        return LuongCache(memory, memory_mask, hidden, cell, fed)

    # ---------------------------------------------------------------------------------------- parts

    def _step(self, x: Float[Tensor, "batch m d_in"], cache: LuongCache) -> TargetStates:
        """Return h̃ = tanh(W_c [c; s]) with s = LSTM(x) (equation 5), and update the cache's LSTM
        state.
        """
        states, (cache.hidden, cache.cell) = self.decoder(x, (cache.hidden, cache.cell))
        # All beams of a source are queries of one sequence.
        queries = states.reshape(cache.sources, -1, self.config.d_model)
        context = self.cross_attention(queries, cache.memory.states, cache.memory_mask).reshape(
            states.shape
        )
        # h̃ joins the context with the decoder's own state.
        attentional: Tensor = self.dropout(
            torch.tanh(self.W_c(torch.cat([context, states], dim=-1)))
        )
        return attentional

    def _join_directions(
        self, state: Float[Tensor, "layers_directions batch d"]
    ) -> Float[Tensor, "layers batch d_model"]:
        """Return the states of both directions of each layer, concatenated."""
        # torch puts the two directions of a layer one after the other.
        if not self.config.bidirectional:
            return state
        return torch.cat([state[0::2], state[1::2]], dim=-1)


def _lengths(mask: Mask | None, source: Tensor) -> Int[Tensor, " batch"]:
    """Return the number of tokens of each source; a ValueError unless all padding is on the
    right.
    """
    real = real_tokens(mask, source)
    # `pack_padded_sequence` takes lengths on the CPU.
    lengths = real.sum(-1).cpu()
    if int(lengths.min()) < 1 or not torch.equal(
        real.cpu(), torch.arange(source.shape[1]) < lengths[:, None]
    ):
        raise ValueError(
            "an LSTM reads at least one token, from the first: pad on the right, and mask by "
            "ts.padding"
        )
    return lengths
