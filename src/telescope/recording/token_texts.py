"""The texts of a recording's tokens as tables that can be saved, since a tokenizer cannot."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..files import LoadError
from ..traces import INCOMPLETE

Decode = Callable[[list[int]], str]
Run = tuple[int, ...]  # ids of tokens that follow each other

LONGEST = 4  # tokens of a run: a character has at most four bytes in UTF-8, and each may be a token
WINDOW = 64  # tokens that are decoded together, to see whether the tables have their text
MOST = 200_000  # runs in a table, about 8 MB of JSON
RUN = re.compile(rf"-?\d{{1,19}}( -?\d{{1,19}}){{0,{LONGEST - 1}}}", re.ASCII)


class TokenTexts:
    """Decode token ids by tables, as a tokenizer does.

    alone   id → text of a token that begins a text
    after   id → what a token adds to a text, where that is not its text alone: many tokenizers drop
            the space in front of the first token
    joined  ids → text of tokens that follow each other, where `alone` and `after` do not have it,
            such as those of the bytes of one character

    A token without a text, such as </s>, is left out, and the tokens around it follow each other.
    """

    def __init__(
        self, alone: Mapping[int, str], after: Mapping[int, str], joined: Mapping[Run, str]
    ) -> None:
        self.alone = dict(alone)
        self.after = dict(after)
        self.joined: dict[Run, str] = {}
        self._steps: dict[Run, tuple[int, str]] = {}
        """How many characters the last token of a run takes from the end of the text, and what it
        adds then.
        """
        self._sizes: tuple[int, ...] = ()
        """The lengths of all runs, the longest first."""
        for run in sorted(joined, key=len):  # the step of a run needs the text of the shorter one
            self.join(run, joined[run])

    def join(self, run: Run, text: str) -> None:
        """Set the text of tokens that follow each other."""
        # Find how far the text agrees with that of the run without its last token.
        before = self.decode(run[:-1])
        pairs = enumerate(zip(before, text, strict=False))
        same = next(
            (place for place, (left, right) in pairs if left != right), min(len(before), len(text))
        )
        self.joined[run] = text
        # The last token may replace characters before it, as the bytes of one character do.
        self._steps[run] = (len(before) - same, text[same:])
        self._sizes = tuple(sorted({*self._sizes, len(run)}, reverse=True))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        text = ""
        before: list[int] = []  # the tokens so far that have a text
        for token in ids:
            # A run that ends here goes before the tables of single tokens.
            step = self._step(before, token) if self._sizes else None
            if step is None:
                alone = self.alone.get(token, "")
                added = self.after.get(token, alone) if before else alone
                # A token without a text changes nothing, not even what counts as before.
                if not alone and token not in self.after:
                    continue
                text += added
            else:
                erased, added = step
                text = text[: len(text) - erased] + added
            before.append(token)
        return text

    def _step(self, before: list[int], token: int) -> tuple[int, str] | None:
        """Return the step of the longest run that ends with this token; None if no run does."""
        for size in self._sizes:
            step = self._steps.get((*before[1 - size :], token))
            if step is not None:
                return step
        return None

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return the fields "tokens", "after" and "joined" of recording.json."""
        return {
            "tokens": {str(token): text for token, text in sorted(self.alone.items())},
            "after": {str(token): text for token, text in sorted(self.after.items())},
            "joined": {" ".join(map(str, run)): text for run, text in sorted(self.joined.items())},
        }

    @classmethod
    def from_json(cls, manifest: Mapping[str, Any], where: str) -> "TokenTexts":
        """Return the tables that `to_json` wrote; raise a LoadError for anything else.

        Recordings of earlier versions have no "after" and no "joined".
        """
        tables: dict[str, dict[Run, str]] = {}
        for name in ("tokens", "after", "joined"):
            found = manifest.get(name, {})
            if not isinstance(found, dict) or not all(
                isinstance(text, str) for text in found.values()
            ):
                raise LoadError(f'{where}: "{name}" is not a text for each id')
            # A key is one id, or several in "joined".
            for ids in found:
                if RUN.fullmatch(ids) is None or (" " in ids) != (name == "joined"):
                    raise LoadError(
                        f'{where}: "{name}" has a text for {ids[:40]!r}, which is no id of a token'
                    )
            tables[name] = {tuple(map(int, ids.split(" "))): text for ids, text in found.items()}
        alone, after = (
            {run[0]: text for run, text in tables[name].items()} for name in ("tokens", "after")
        )
        return cls(alone, after, tables["joined"])


def learn_texts(decode: Decode, sequences: Iterable[Sequence[int]]) -> TokenTexts:
    """Return tables with which every sequence of token ids has the text that `decode` returns.

    `decode` is called for each different token, twice for each WINDOW of tokens, and for pairs and
    longer runs where the tables do not have the text of a window yet. At a part of a character the
    tables may have another number of replacement characters.
    """
    rows = list(sequences)
    texts = TokenTexts(
        {token: decode([token]) for token in {token for row in rows for token in row}}, {}, {}
    )

    # A token of a space alone is dropped at the start of a text, but not after itself: it is no
    # special token.
    for token in [token for token, text in texts.alone.items() if not text]:
        if (doubled := decode([token, token])) != "":
            texts.after[token] = doubled

    # Windows overlap, so that no run is cut in all of them.
    starts = [(row, start) for row in rows for start in range(0, len(row), WINDOW + 1 - LONGEST)]
    tried: set[Run] = set()
    for row, start in starts:
        _learn_after(texts, decode, row[start : start + WINDOW], tried)

    # Only now: a text that is right at first may be wrong once `after` holds one of its tokens.
    for row, start in starts:
        _join_runs(texts, decode, row[start : start + WINDOW], tried)
    return texts


def _learn_after(texts: TokenTexts, decode: Decode, window: Sequence[int], tried: set[Run]) -> None:
    """Learn what tokens add after others, if the tables do not have the text of a window yet.

    The first occurrence of a token decides; where another differs, `_join_runs` corrects it.
    """
    # Nothing is to be learned where the tables have the text already.
    if texts.decode(window) == decode(list(window)):
        return

    # Decode each token behind a text that ends with a whole character.
    before: list[int] = []
    for token in window:
        start = decode(before) if before else INCOMPLETE
        is_whole = not start.endswith(INCOMPLETE)
        if is_whole and (token,) not in tried:
            tried.add((token,))
            longer = decode([*before, token])
            # The token adds what follows the start, if the start stays as it was.
            if longer.startswith(start) and longer != start + texts.alone[token]:
                texts.after[token] = longer[len(start) :]
        if texts.alone[token]:
            before = [token] if is_whole else [*before, token][-LONGEST:]


def _join_runs(texts: TokenTexts, decode: Decode, window: Sequence[int], tried: set[Run]) -> None:
    """Join pairs first, then longer runs, until the tables have the text of a window.

    A part of a character is not joined: what decoders return for it depends on the tokens before
    and after it.
    """
    truth = decode(list(window))
    # Tokens without a text do not separate their neighbours.
    kept = [token for token in window if texts.alone[token] or token in texts.after]
    for size in range(2, LONGEST + 1):
        if texts.decode(window) == truth:
            return
        for run in zip(*(kept[first:] for first in range(size)), strict=False):
            # Each run is tried once for all windows.
            if run not in tried and len(texts.joined) < MOST:
                tried.add(run)
                text = decode(list(run))
                if INCOMPLETE not in text and texts.decode(run) != text:
                    texts.join(run, text)
