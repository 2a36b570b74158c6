"""One line of text while it is written: its tokens, what can be read of them already, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

Why = Literal["end", "stop", "length"]
INCOMPLETE = "\ufffd"  # what a decoder shows for the first bytes of a character


@dataclass(frozen=True)
class Written:
    """What a model wrote.

    ids    the new tokens alone, with the one that ended it
    text   the new text, up to a stop string; None without a tokenizer
    why    it ended: "end", a token that ends a text; "stop", a stop string; "length", max_new_tokens
    score  of a beam: Σ log p / length^length_penalty
    """

    ids: list[int]
    text: str | None
    why: Why
    score: float | None = None


@dataclass(frozen=True)
class Token:
    """One token as it is written. A text may wait for the next tokens: half a character, or half a stop string."""

    id: int
    text: str | None


class TextLine:
    """`before` are the tokens that it goes on from, so that a space between them is not lost."""

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
        self._end, self._most = end, max_new_tokens
        self._reader = None if tokenizer is None else IncrementalDecoder(tokenizer, before, stop)

    def add(self, token: int) -> Token:
        self.ids.append(token)
        text = "" if self._reader is None else self._reader.add(token)
        if token in self._end:
            self.why = "end"
        elif self._reader is not None and self._reader.stopped:
            self.why = "stop"
        elif len(self.ids) == self._most:
            self.why = "length"
        if self._reader is None or self.text is None:
            return Token(token, None)
        if self.why is not None:
            text += self._reader.rest()
        self.text += text
        return Token(token, text)

    def written(self, score: float | None = None) -> Written:
        return Written(self.ids, self.text, self.why or "length", score)


class IncrementalDecoder:
    """Tokens to text, token by token. What is shown is never taken back, and joined it is the whole text."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, stop
        self._ids = list(before)
        self._known = tokenizer.decode(self._ids) if self._ids else ""
        self._unread = len(self._ids)  # tokens from here on have given no text yet
        self._waiting = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        return "" if text.endswith(INCOMPLETE) else self._show(text)

    def rest(self) -> str:
        """All that still waits, when no more tokens come."""
        if self.stopped:
            return ""
        text = self._show(self._tokenizer.decode(self._ids))
        if self.stopped:
            return text
        text, self._waiting = text + self._waiting, ""
        return text

    def _show(self, text: str) -> str:
        """The new text, as far as no stop string can begin in it. Of the tokens only the last few are kept."""
        self._waiting += text[len(self._known) :]
        self._ids = self._ids[self._unread :] or self._ids
        self._known, self._unread = self._tokenizer.decode(self._ids), len(self._ids)
        found = [at for at in map(self._waiting.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            shown, self._waiting = self._waiting[: min(found)], ""
            return shown
        wait = max((_overlap(self._waiting, stop) for stop in self._stop), default=0)
        cut = len(self._waiting) - wait
        shown, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters could be the first of a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
