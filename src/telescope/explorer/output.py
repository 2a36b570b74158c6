"""What a model makes of a text: the words it wrote, and the likeliest next tokens after each
position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..decoding import start_token
from ..models import GPT, Transformer
from ..traces import Words

EDITING = Lock()  # one model runs edited at a time


@dataclass(frozen=True, eq=False)
class Output:
    """The hidden states before the head, of a GPT or of a Transformer's decoder; logits are
    computed on request.

    ids    the tokens that the queries read; `source` those that the encoder read
    words  what a translator wrote; None for a GPT
    """

    model: GPT | Transformer
    hidden: Float[Tensor, "n d_model"]
    ids: Sequence[int]
    written: Sequence[int]
    words: Words | None
    source: Sequence[int] = ()

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
        read = [start_token(model), *written[:-1]]
        hidden = model.hidden(_batch(model, source), _batch(model, read))[0]
        return cls(model, hidden, read, written, words, source)

    @torch.no_grad()
    def run_again(self) -> Float[Tensor, "n d_model"]:
        """Run the model on the same tokens, edited if it is, and return its hidden states."""
        return self.run()

    def run(self) -> Float[Tensor, "n d_model"]:
        """Run the model on the same tokens as `run_again` does, with gradients where they are
        enabled.
        """
        read = _batch(self.model, self.ids)
        if isinstance(self.model, GPT):
            return self.model.hidden(read)[0]
        return self.model.hidden(_batch(self.model, self.source), read)[0]

    @property
    def kind(self) -> str:
        return "gpt" if self.words is None else "translator"

    def to_json(self) -> dict[str, Any]:
        """Return the field "output" of a run's JSON: written words, and the queries of their first
        and last tokens.

        A GPT has read its words, and written none.
        """
        words: list[dict[str, Any]] = []
        if self.words is not None:
            for number in self.words.text_words:
                queries = self.words.positions(number)
                words.append(
                    {
                        "name": self.words.names[number],
                        "first": queries[0],
                        "i": queries[-1],
                        "word": number,
                    }
                )
        return {"kind": self.kind, "n": len(self.hidden), "words": words}

    @torch.no_grad()
    def logits(self, i: int) -> Float[Tensor, " vocabulary"]:
        """Return the logits of the token after query i."""
        return self.model.logits(self.hidden[None, i : i + 1])[0, 0]

    def text_of(self, i: int, token: int) -> str:
        """Return the characters that a token adds after query i, with the space before it, if
        any.
        """
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        before = list(self.written[:i]) if self.written else list(self.ids[: i + 1])
        text = tokenizer.decode(before)
        longer = tokenizer.decode([*before, token])
        return longer[len(text) :] if longer.startswith(text) else tokenizer.decode([token])

    def name_of(self, i: int, token: int) -> str:
        """Return a token as it is shown: its text, or its name if it has none."""
        assert self.model.tokenizer is not None
        return (
            self.text_of(i, token).strip(" ")
            or self.model.tokenizer.id_to_token(token)
            or str(token)
        )


def log_probability(logs: Float[Tensor, "token vocabulary"], tokens: Sequence[int]) -> float:
    """Return the log-probability of tokens that follow each other, such as those of a word: the sum
    over the tokens.

    Row k of `logs` has the log-probabilities of the whole vocabulary at the place of the k-th
    token.
    """
    chosen = torch.tensor(list(tokens), device=logs.device)
    return float(logs.gather(-1, chosen[:, None]).sum())


def _batch(model: GPT | Transformer, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=next(model.parameters()).device)
