"""What is asked of decoding, checked before anything is computed, and what comes back: the tokens
of each text, the text decoded from them so far, and why it ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer
from torch import Tensor

from ..models import GPT, Model, Transformer
from ..traces import INCOMPLETE
from .writers import Prompts, check_can_write, read_prompts, start_token


@dataclass(frozen=True)
class GenerationRequest:
    """A checked request.

    prompts     ids of each prompt
    before      ids that each new text continues: the prompt of a GPT, nothing for a translator
    seen        ids that count as written when decoding begins, for the repetition penalty
    vocabulary  number of ids that can be generated
    end, stop   ids and texts that end a text
    forbidden   ids that are never generated: padding
    """

    prompts: list[list[int]]
    before: list[list[int]]
    seen: list[list[int]]
    vocabulary: int
    end: tuple[int, ...]
    stop: tuple[str, ...]
    forbidden: tuple[int, ...]


def check_request(
    model: Model,
    prompts: Prompts,
    max_new_tokens: int,
    end: Sequence[int] | None = None,
    stop: str | Sequence[str] = (),
) -> GenerationRequest:
    """Return the request with its prompts as ids; raise a ValueError or TypeError where it does not
    fit the model.
    """
    # The first mistake first: a model that cannot write at all.
    check_can_write(model)
    _check_count("max_new_tokens", max_new_tokens, least=0)
    # A GPT goes on from its prompt, a translator begins anew.
    continues = isinstance(model, GPT)
    sizes = model.config.to_dict()
    ids = read_prompts(model, prompts, sizes["vocabulary"], "prompt" if continues else "source")
    _check_positions(model, ids, max_new_tokens)
    vocabulary = sizes.get("target_vocabulary") or sizes["vocabulary"]
    # An empty list is a choice: the text then ends by its length.
    end = model.special.end if end is None else tuple(end)
    for token in end:
        if not 0 <= token < vocabulary:
            raise ValueError(f"end has the id {token}; the vocabulary is 0 to {vocabulary - 1}")
    pad = model.special.pad
    return GenerationRequest(
        prompts=ids,
        before=ids if continues else [[] for _ in ids],
        seen=ids if continues else [[start_token(model)] for _ in ids],
        vocabulary=vocabulary,
        end=end,
        stop=_check_stop(model, stop),
        # Padding is never written, unless it is what ends a text.
        forbidden=() if pad is None or pad in end or pad >= vocabulary else (pad,),
    )


def _check_positions(model: Model, prompts: list[list[int]], new: int) -> None:
    """Raise a ValueError if the model has too few positions. The last token is not read, so it
    needs none.
    """
    longest = max(map(len, prompts), default=0)
    if isinstance(model, GPT) and model.is_limited and longest + max(new - 1, 0) > model.longest:
        fits = model.longest - longest + 1
        advice = f"at most max_new_tokens={fits} fit" if fits > 0 else "shorten it"
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={new} are too many: "
            f"this model has positions for {model.longest}; {advice}"
        )
    if isinstance(model, Transformer) and model.config.positions == "learned":
        most = model.config.max_positions
        if longest > most or new > most:
            raise ValueError(
                f"a source of {longest} tokens and max_new_tokens={new}: this model has positions "
                f"for {most} of each"
            )


def _check_stop(model: Model, stop: str | Sequence[str]) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"stop={stop!r} should be texts of at least one character")
    # A stop is found in decoded text.
    if texts and model.tokenizer is None:
        raise ValueError("stop is text, but the model has no tokenizer; end=[...] stops at ids")
    return texts


def check_one_prompt(prompt: Any) -> None:
    """Raise a ValueError if there are several prompts."""
    ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if not isinstance(ids, str) and any(not isinstance(i, int) for i in ids):
        raise ValueError("stream takes one prompt, a text or a list of ids; generate takes several")


def check_sampling(*, temperature: float, top_k: int | None, top_p: float, min_p: float) -> None:
    """Raise a ValueError if a sampling option is out of range."""
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be 0, which is greedy, or a number above")
    if top_k is not None:
        _check_count("top_k", top_k, least=1)
    if not 0.0 < top_p <= 1.0:
        raise ValueError(
            f"top_p={top_p} is a probability above 0, up to 1, which leaves out nothing"
        )
    if not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p={min_p} is a share from 0, which leaves out nothing, to 1")


def check_repetition_penalty(repetition_penalty: float) -> None:
    """Raise a ValueError if the penalty is not a positive number."""
    if not 0.0 < repetition_penalty < float("inf"):
        raise ValueError(f"repetition_penalty={repetition_penalty} must be above 0; 1 is none")


def check_search(*, beams: int, n_best: int, length_penalty: float) -> None:
    """Raise a ValueError if an option of beam search is out of range."""
    _check_count("beams", beams, least=1)
    _check_count("n_best", n_best, least=1)
    if n_best > beams:
        raise ValueError(
            f"n_best={n_best} of beams={beams} are too many; a search finds at most one for each "
            "beam"
        )
    if not abs(length_penalty) < float("inf"):
        raise ValueError(f"length_penalty={length_penalty} must be a finite number; 0 is none")


def _check_count(name: str, number: Any, least: int) -> None:
    # True is no count.
    if type(number) is not int or number < least:
        raise ValueError(f"{name}={number} must be a whole number, at least {least}")


Why = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Written:
    """A text that a model has generated.

    Attributes:
        ids: the new tokens, with the one that ended the text.
        text: the new text, up to a stop string; None without a tokenizer.
        why: the reason for the end: "end", an id of `end`; "stop", a stop string; "length",
            max_new_tokens.
        score: of a beam search: Σ log p / length^length_penalty; otherwise None.

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

    Attributes:
        text: None without a tokenizer. It may be empty, and come with a later token: where a token
            ends within a character, or the text might be the beginning of a stop string.
        id: its number in the vocabulary.

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
        # Without a tokenizer only ids are known.
        self._decoder = None if tokenizer is None else IncrementalDecoder(tokenizer, before, stop)

    def add(self, token: int) -> Token:
        """Append a token, set `why` if the text ends with it, and return the token with its
        text.
        """
        self.ids.append(token)
        text = "" if self._decoder is None else self._decoder.add(token)
        # An end token counts before a stop string, and both before the length.
        if token in self._end:
            self.why = "end"
        elif self._decoder is not None and self._decoder.stopped:
            self.why = "stop"
        elif len(self.ids) == self._max_new_tokens:
            self.why = "length"
        if self._decoder is None or self.text is None:
            return Token(token, None)
        if self.why is not None:
            # What was held back can become no stop string any more.
            text += self._decoder.flush()
        self.text += text
        return Token(token, text)

    def written(self, score: float | None = None) -> Written:
        """Return the text as it is now."""
        return Written(self.ids, self.text, self.why or "length", score)


class IncrementalDecoder:
    """Decode tokens to text one by one. Text once returned never changes, and all of it joined is
    the whole text, without bytes that are no character: the tokens of a model that is hardly
    trained, or that was stopped within a character, need not be text.

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
        # A token may end within a character: wait for the rest.
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
        # Only the tail is decoded: tokens whose text was returned are dropped.
        self._held_back += text[len(self._decoded) :].replace(INCOMPLETE, "")
        self._ids = self._ids[self._read :] or self._ids
        self._decoded = self._tokenizer.decode(self._ids)
        self._read = len(self._ids)
        # The stop string that begins first ends the text.
        stops = [position for position in map(self._held_back.find, self._stop) if position >= 0]
        if stops:
            self.stopped = True
            new = self._held_back[: min(stops)]
            self._held_back = ""
            return new
        # Text that may become a stop string is kept until it is decided.
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
