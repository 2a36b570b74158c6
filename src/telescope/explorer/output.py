"""Both ends of a model on one text: the embeddings and positions that it reads, and what it makes
of the text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Rotary
from ..decoding import start_token
from ..editing import Edit, edit, likeliest
from ..models import GPT, Encoder, Model, Transformer
from ..traces import SPACE, Words, token_label
from .answers import Answer, OutputFacts, WrittenWord, not_kept

SHOWN_LIKELIEST = 5  # tokens that are compared before and after an edit
EDITING = Lock()  # one model runs edited at a time


@dataclass(frozen=True)
class Candidate(Answer):
    """A token that may come next, and its probability."""

    text: str
    p: float


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
        tokens = _batch(model, ids)
        if isinstance(model, Transformer):
            # A shared vocabulary has one table for both sides.
            own_table = model.target_embedding if side == "target" else None
            table = model.embedding if own_table is None else own_table
            scale = sqrt(model.config.d_model) if model.config.scaled else 1.0
            embedded = (table(tokens) * scale)[0]
            encoding = model.target_positions if side == "target" else model.source_positions
            # Called on zeros, an encoding returns what it adds.
            added = encoding(torch.zeros_like(embedded)[None])[0]
            kind = model.config.positions.partition("_")[0]
            return cls(kind, embedded, added, embedded + added, embedded)
        if not isinstance(model, GPT | Encoder):
            return None
        embedded = model.embedding(tokens)[0]
        # Rotary positions turn queries and keys; nothing is added.
        if isinstance(model, GPT) and model.positions is None:
            kind = "none" if model.rotary is None else "rotary"
            return cls(kind, embedded, None, embedded, embedded, model.rotary)
        # All tokens of one text are of the first type.
        if isinstance(model, Encoder) and model.types is not None:
            embedded = embedded + model.types.weight[0]
        assert model.positions is not None
        added = model.positions(torch.zeros_like(embedded)[None])[0]
        # An encoder normalises what its first block reads; a GPT does not.
        norm: Any = model.norm if isinstance(model, Encoder) else torch.nn.Identity()
        return cls("learned", embedded, added, norm(embedded + added), norm(embedded))


@dataclass(frozen=True, eq=False)
class Output:
    """The hidden states before the head, of a GPT or of a Transformer's decoder; logits are
    computed on request.

    ids     the tokens that the queries read; `source` those that the encoder read
    words   what a translator wrote; None for a GPT
    memory  the encoder's output for the source
    """

    model: GPT | Transformer
    hidden: Float[Tensor, "n d_model"]
    ids: Sequence[int]
    written: Sequence[int]
    words: Words | None
    source: Sequence[int] = ()
    memory: Float[Tensor, "1 key d_model"] | None = None

    @classmethod
    @torch.no_grad()
    def of_gpt(cls, model: GPT, ids: Sequence[int]) -> "Output":
        """Run a GPT on token ids."""
        return cls(model, model.hidden(_batch(model, ids))[0], ids, (), None)

    @classmethod
    @torch.no_grad()
    def of_translation(
        cls, model: Transformer, source: Sequence[int], written: Sequence[int], words: Words
    ) -> "Output":
        """Run a Transformer on a source and on what it has written."""
        # The decoder has read all that it wrote but the last token.
        read = [start_token(model), *written[:-1]]
        memory = model.encode(_batch(model, source))
        hidden = model.decode(_batch(model, read), memory)[0]
        return cls(model, hidden, read, written, words, source, memory)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What the model is called with: the source, if it has one, and the tokens that it read."""
        sides = [self.ids] if isinstance(self.model, GPT) else [self.source, self.ids]
        return tuple(_batch(self.model, side) for side in sides)

    def run(self, *, encodes: bool = True) -> Float[Tensor, "n d_model"]:
        """Run the model on the same tokens, edited if it is, and return its hidden states. Where
        the encoder is not edited, its output is known: `encodes` False.
        """
        if self.memory is not None and not encodes:
            assert isinstance(self.model, Transformer)
            return self.model.decode(_batch(self.model, self.ids), self.memory)[0]
        return self.model.hidden(*self.inputs)[0]

    @contextmanager
    def edited(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Edit the model while the block runs, without gradients; raise Refusal 409 for what cannot
        be edited.
        """
        try:
            with EDITING, torch.no_grad(), edit(self.model, *edits):
                yield
        except ValueError as problem:
            raise not_kept(str(problem)) from None

    @property
    def kind(self) -> str:
        return "gpt" if self.words is None else "translator"

    def describe(self) -> OutputFacts:
        """Return what the model made of the text, for the facts of its run."""
        words = [] if self.words is None else list(map(self._word, self.words.text_words))
        return OutputFacts(self.kind, len(self.hidden), words)

    def _word(self, number: int) -> WrittenWord:
        assert self.words is not None
        queries = self.words.positions(number)
        return WrittenWord(self.words.names[number], queries[0], queries[-1], number)

    @torch.no_grad()
    def logits(self, i: int) -> Float[Tensor, " vocabulary"]:
        """Return the logits of the token after query i."""
        # Of one query only: logits of all would be a row of the vocabulary for each.
        return self.model.logits(self.hidden[None, i : i + 1])[0, 0]

    @torch.no_grad()
    def log_probabilities(
        self, states: Float[Tensor, "place d_model"]
    ) -> Float[Tensor, "place vocabulary"]:
        """Return the log-probabilities of all tokens after some hidden states, in float64."""
        return self.model.logits(states[None])[0].double().log_softmax(-1)

    def likeliest(self, logs: Float[Tensor, " vocabulary"], i: int) -> list[Candidate]:
        """Return the likeliest tokens after query i, from their log-probabilities."""
        found = likeliest(logs, SHOWN_LIKELIEST)
        return [Candidate(self.name_of(i, one.token), one.probability) for one in found]

    def text_of(self, i: int, token: int) -> str:
        """Return the characters that a token adds after query i, with the space before it, if
        any.
        """
        # Before its query i a translator wrote i tokens; a GPT has read i + 1.
        before = self.written[:i] if self.written else self.ids[: i + 1]
        return self.added_text(before, token)

    def added_text(self, before: Sequence[int], token: int) -> str:
        """Return the characters that a token adds behind other tokens."""
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        # Decoded with what is before it: a tokenizer may join or space tokens.
        text = tokenizer.decode(list(before))
        longer = tokenizer.decode([*before, token])
        # A token may change the text before it; then it is decoded alone.
        return longer[len(text) :] if longer.startswith(text) else tokenizer.decode([token])

    def name_of(self, i: int, token: int) -> str:
        """Return a token as it is shown: its text, or its name if it has none."""
        return self.label(token, self.text_of(i, token))

    def label(self, token: int, text: str) -> str:
        """Return a token that adds a text as it is shown."""
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        if text:
            return text.strip(" ") or SPACE
        return token_label(token, tokenizer.decode, tokenizer.id_to_token)


def _batch(model: Model, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=next(model.parameters()).device)
