"""The output of decoding: the tokens of each text, the text decoded from them so far, and why the
text ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

from ..traces.whole_words import INCOMPLETE

Why = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Written:
    """A text that a model has generated.

    ids    the new tokens, with the one that ended the text
    text   the new text, up to a stop string; None without a tokenizer
    why    the reason for the end: "end", an id of `end`; "stop", a stop string; "length",
           max_new_tokens
    score  of a beam search: Σ log p / length^length_penalty; otherwise None

    Example:
        >>> from telescope.decoding import Written
        >>> Written(ids=[5, 6, 2], text="ab", why="end").why
        'end'
    """

    ids: list[int]
    text: str | None
    why: Why
    score: float | None = None


@dataclass(frozen=True)
class Token:
    """A generated token, and the text that it completes.

    text  None without a tokenizer. It may be empty, and come with a later token: where a token ends
          within a character, or the text might be the beginning of a stop string

    Example:
        >>> from telescope.decoding import Token
        >>> Token(id=5, text=" was").text
        ' was'
    """

    id: int
    text: str | None


class TextLine:
    """One text while it is generated.

    before  ids of the prompt that the text continues: a tokenizer needs them to keep the space
    between the two
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        before: Sequence[int],
        end: Sequence[int],
        stop: Sequence[str],
        max_new_tokens: int,
    ) -> None:
        self.ids: list[int] = []
        self.why: Why | None = None
        self.text = None if tokenizer is None else ""
        self._end = end
        self._max_new_tokens = max_new_tokens
        self._decoder = None if tokenizer is None else IncrementalDecoder(tokenizer, before, stop)

    def add(self, token: int) -> Token:
        """Append a token, set `why` if the text ends with it, and return the token with its
        text.
        """
        self.ids.append(token)
        text = "" if self._decoder is None else self._decoder.add(token)
        if token in self._end:
            self.why = "end"
        elif self._decoder is not None and self._decoder.stopped:
            self.why = "stop"
        elif len(self.ids) == self._max_new_tokens:
            self.why = "length"
        if self._decoder is None or self.text is None:
            return Token(token, None)
        if self.why is not None:
            text += self._decoder.flush()
        self.text += text
        return Token(token, text)

    def written(self, score: float | None = None) -> Written:
        """Return the text as it is now."""
        return Written(self.ids, self.text, self.why or "length", score)


class IncrementalDecoder:
    """Decode tokens to text one by one. Text once returned never changes, and all of it joined is
    the whole text.

    Text that might be the beginning of a stop string is held back; after a stop string `stopped` is
    True.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids = list(before)
        self._decoded = (
            tokenizer.decode(self._ids) if self._ids else ""
        )  # the text of the first `_read` ids
        self._read = len(self._ids)
        self._held_back = ""

    def add(self, token: int) -> str:
        """Append a token and return the new text."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        return "" if text.endswith(INCOMPLETE) else self._advance(text)

    def flush(self) -> str:
        """Return all text that was held back, when no more tokens follow."""
        if self.stopped:
            return ""
        text = self._advance(self._tokenizer.decode(self._ids))
        if self.stopped:
            return text
        text = text + self._held_back
        self._held_back = ""
        return text

    def _advance(self, text: str) -> str:
        """Return the new part of the decoded text, up to where a stop string begins or may begin.

        Only the tokens of the new part are kept, so that the cost of a step does not grow with the
        text.
        """
        self._held_back += text[len(self._decoded) :]
        self._ids = self._ids[self._read :] or self._ids
        self._decoded, self._read = self._tokenizer.decode(self._ids), len(self._ids)
        stops = [position for position in map(self._held_back.find, self._stop) if position >= 0]
        if stops:
            self.stopped = True
            new = self._held_back[: min(stops)]
            self._held_back = ""
            return new
        overlap = max((_overlap(self._held_back, stop) for stop in self._stop), default=0)
        cut = len(self._held_back) - overlap
        new = self._held_back[:cut]
        self._held_back = self._held_back[cut:]
        return new


def _overlap(text: str, stop: str) -> int:
    """Return how many of the text's last characters could be the first of a stop string."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )
