"""Choose the answers that an exported file holds: the most important first, up to a number of
characters.

A file about 200 tokens stays below 4 MB and takes about three seconds of a core. What does not fit
is left out and named in the run's notice, which the page shows. Weights and traces are packed; see
export.py.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from ..surveys import HOW
from .after_head import after_all
from .answers import Refusal, RequestParams, to_json
from .export import pack_picture, pack_traces, pack_words, without_shares
from .run import Run, RunRequest
from .weights import perspectives_of_all_words, word_weights

MOST_TOKENS = 256  # tokens: one tile of the map, and one trace each
MOST_PLACED = 48  # tokens: beyond, a file does not hold what positions do
MOST_CHARACTERS = 3_560_000  # characters of all answers; the page around them has 420,000
MOST_OF_OTHERS = 600_000  # characters of the traces of other attentions than the shown one
SAVED_WORDS = 32  # of the answer, whose sources a file holds
MOST_OF_SOURCES = 300_000  # characters
# Reasons that the page shows for what a file lacks.
HELD = "this file holds the attention that was shown when it was saved"
WITHOUT_IMAGES = "a file does not hold what every query sees of an image; telescope serve shows it"
TOO_LARGE = "this file would be too large with it"
# Left out of keys at these values; web/transport/inline.js has the same table.
DEFAULTS = {"b": "0", "fmt": "f16"}

# The parameters of pictures by pieces and by words; of a text without words, both are the same
BY: tuple[dict[str, str], ...] = ({}, {"by": "words"})

Answers = dict[str, Any]


def export_answers(
    ask: Callable[..., Any],
    run: Run,
    params: RequestParams,
    has_left: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Return the answers that the page may request while it shows one head, as the contents of a
    file.

    `ask` is `Api.ask`. Raises Refusal 409 for a long run, and ends with Refusal 499 once `has_left`
    returns True.
    """
    # The first attention, head and query, unless others are asked for.
    request = RunRequest(run, {"l": "0", "i": "0", **params.parameters})
    layer = request.layer
    view = request.view
    h = request.h if "h" in params.parameters else view.call.heads[0]
    b = request.b
    i = request.i

    # A longer run has more tiles and traces than a file should hold.
    if max(view.size) > MOST_TOKENS:
        message = (
            f"the run has {max(view.size):,} tokens and a file holds at most {MOST_TOKENS}; save a "
            "picture instead"
        )
        raise Refusal(409, "too-long", message)
    export = Export(ask, run, b, has_left)
    others = [number for number in range(len(run.views)) if number != layer]

    # The head that is shown comes first, then what all screens show of its attention, then
    # everything else.
    export.put_basics(layer, h)
    export.put_traces(layer, [h])
    export.put_weights([layer])
    export.put_pictures([layer])
    export.put_output()
    export.put_after_heads(layer)
    export.put_positions(layer, h)
    export.put_weights(others)
    export.put_perspectives()
    export.put_pictures(others)
    export.put_sources()
    export.put_traces(layer, [one for one in view.call.heads if one != h])
    export.put_traces_of_others(others)
    export.describe({"l": layer, "h": h})

    # Open at the address that was shown, if it is one of this run; else at the head that is held.
    start = params.parameters.get("start", "")
    if not re.fullmatch(rf"/s/{re.escape(run.name)}/[a-z]+(\?[\w=&.%-]*)?", start, re.ASCII):
        start = f"/s/{run.name}/walk?{urlencode({'l': layer, 'h': h, 'i': i})}"
    return {"version": 1, "start": start, "answers": export.answers}


class Export:
    """The answers of one file. Each `put_` method adds those of one kind for which there is
    room.
    """

    def __init__(
        self, ask: Callable[..., Any], run: Run, b: int, has_left: Callable[[], bool]
    ) -> None:
        self.ask = ask
        self.run = run
        self.b = b
        self.has_left = has_left
        # A file runs no model, so that its list of models is empty.
        self.answers: Answers = {"/models": {"models": [], "default": None, "longest": 0}}
        self.room = MOST_CHARACTERS
        self.missing: dict[int, dict[str, str]] = {}
        """What the file lacks of each attention, with the reason."""
        self.left_out: list[str] = []
        """What the file lacks for its size, in words."""
        self.head_size = 0
        """Characters of the traces of one head; those of the next one need about as many."""

    # ---------------------------------------------------------------------------- what a file holds

    def put_basics(self, layer: int, h: int) -> None:
        """Put what every screen begins with, and the map of the shown head: as much as any file
        needs.
        """
        # Small answers that no screen can do without are put whatever their size.
        basics = (
            self._answer("sharpest", b=self.b)
            | self._answer("start", b=self.b)
            | self._answer("answer")
        )
        for number in range(len(self.run.views)):
            for axis in "qk":
                basics |= self._answer("tokens", l=number, axis=axis, b=self.b)
        place = {"l": layer, "h": h, "b": self.b}
        # The map of the shown head: a run this short has one tile and one part of each track.
        for how in HOW:
            basics |= self._answer("tiles/0/0/0", how=how, **place)
        for kind in ("entropy", "received"):
            basics |= self._answer("tracks/0/0", kind=kind, **place)
        self._add(basics | self._answer("map", **place))
        # Of other attentions, a file never holds tiles, positions and what follows the heads.
        for number in range(len(self.run.views)):
            if "image" not in self.run.views[number].missing:
                self._lacks(number, ("image",), WITHOUT_IMAGES)
            if number != layer:
                self._lacks(number, ("tiles", "after", "positions"), HELD)

    def put_traces(self, layer: int, which: Iterable[int]) -> None:
        """Put every step of every query of some heads of the shown attention."""
        view = self.run.views[layer]
        if "trace" in view.missing:
            return
        # Heads are put until one does not fit: the next would need as much room.
        heads_left = list(which)
        while heads_left and self.head_size <= self.room:
            packed = self._traces(layer, heads_left[0])
            self.head_size = _size(packed)
            if not self._add(packed):
                break
            heads_left.pop(0)
        # The page knows per attention whether there are traces: one head is enough.
        if heads_left and not self._holds_traces(layer):
            self._lacks(layer, ("trace", "context"), TOO_LARGE)
        if heads_left:
            self.left_out.append(
                f"the steps of {_count(len(heads_left), 'other head')} of {view.name}"
            )

    def put_traces_of_others(self, layers: Iterable[int]) -> None:
        """Put the traces of other attentions, each of them whole, up to MOST_OF_OTHERS characters
        in all.
        """
        # An attention is put as a whole or not at all: the page knows per attention what is there.
        left = min(MOST_OF_OTHERS, self.room)
        without = 0
        for layer in layers:
            view = self.run.views[layer]
            if "trace" in view.missing:
                continue
            # Guess the size from that of one head, so that nothing is packed in vain.
            packed: Answers = {}
            if max(view.size) <= MOST_TOKENS and self.head_size * len(view.call.heads) <= left:
                for h in view.call.heads:
                    packed |= self._traces(layer, h)
            left -= _size(packed)
            if not packed or left < 0 or not self._add(packed):
                without += 1
                self._lacks(layer, ("trace", "context"), HELD)
        if without:
            self.left_out.append(f"the steps of {_count(without, 'other attention')}")

    def put_weights(self, layers: Sequence[int]) -> None:
        """Put the weights between words of some attentions, which alignments and pictures of heads
        are made of.
        """
        lost = ("map", "alignment")
        self._put_each(layers, "alignment", self._words, lost, "the weights between words")

    def put_pictures(self, layers: Sequence[int]) -> None:
        """Put the geometry of some attentions, then the pictures of their heads by pieces."""
        self._put_each(layers, "geometry", self._geometry, ("geometry",), "the geometry")
        self._put_each(layers, "map", self._heads, (), "the pictures of heads by pieces")

    def _put_each(
        self,
        layers: Sequence[int],
        needs: str,
        make: Callable[[int], Answers],
        lost: Sequence[str],
        what: str,
    ) -> None:
        """Put what `make` returns of each attention that has what it needs, until the file is full;
        note what is lost of the others.
        """
        lacking = [layer for layer in layers if needs not in self.run.views[layer].missing]
        while lacking and self._add(make(lacking[0])):
            lacking.pop(0)
        for layer in lacking:
            self._lacks(layer, lost, TOO_LARGE)
        if lacking:
            self.left_out.append(f"{what} of {_count(len(lacking), 'attention')}")

    def put_perspectives(self) -> None:
        """Put the comparison of all heads on each word, for each kind of attention whose weights
        the file holds.
        """
        for kind in dict.fromkeys(view.kind for view in self.run.views):
            try:
                found = perspectives_of_all_words(self.run, kind, self.b)
            except Refusal:
                continue
            self._check_reader()
            if found is None:
                continue
            shared = to_json(found)
            # The page takes the weights of each word from these answers.
            whole = all(self._key("words", l=layer) in self.answers for layer in found.layers)
            packed = {self._key("perspectives", l=layer): shared for layer in found.layers}
            if not whole or not self._add(packed):
                self.left_out.append("the comparison of all heads")

    def put_output(self) -> None:
        """Put the likeliest tokens after every query, at the settings with which the page opens."""
        made = self.run.output
        if made is None:
            return
        # The page asks with its sliders' first positions, which are these.
        opening = {"temperature": 1, "top_k": 0, "top_p": 1}
        part = self._answer("output") | self._answer("output", **opening)
        for at in range(len(made.hidden)):
            part |= self._answer("output", i=at, **opening)
        if not self._add(part):
            self.left_out.append("the likeliest words")

    def put_after_heads(self, layer: int) -> None:
        """Put what follows the heads of the shown attention, for every query."""
        view = self.run.views[layer]
        if "after" in view.missing:
            return
        try:
            found = to_json(after_all(view, self.b, layer))
        except Refusal as refusal:
            self._lacks(layer, ("after",), refusal.message)
            return
        self._check_reader()
        if not self._add({self._key("after", l=layer, i=at): one for at, one in enumerate(found)}):
            self._lacks(layer, ("after",), TOO_LARGE)
            self.left_out.append("what follows the heads")

    def put_positions(self, layer: int, h: int) -> None:
        """Put what positions do in the shown head, of a short text."""
        view = self.run.views[layer]
        if "positions" in view.missing:
            return
        if max(view.size) > MOST_PLACED:
            self._lacks(layer, ("positions",), HELD)
            self.left_out.append("what positions do")
            return
        part = self._answer("encoding", l=layer, h=h, b=self.b)
        for at in range(view.size[0]):
            part |= self._answer("positions", l=layer, h=h, i=at, b=self.b)
        if not self._add(part):
            self._lacks(layer, ("positions",), TOO_LARGE)

    def put_sources(self) -> None:
        """Put the sources of the last words of the answer, by each `how` that is computed from what
        was recorded.
        """
        asked = self.answers[self._key("answer")]
        # A reason instead of an answer, or a refusal, which has no "why".
        if asked.get("why", "") is not None:
            return
        # The positions of each word of the answer.
        words: dict[int, list[int]] = {}
        for place, word in enumerate(asked["words"]):
            words.setdefault(word, []).append(asked["start"] + place)
        hows = [how for how in ("weights", "carried") if asked["hows"][how] is None]
        left = min(MOST_OF_SOURCES, self.room)
        saved = 0
        # From the last word backwards: the page opens with the last.
        for own in [*reversed(words.values())][:SAVED_WORDS]:
            # The page asks around the middle of a part of 256 tokens.
            part = self._answer("answer", at=own[0] // 256 * 256 + 128)
            for how in hows:
                part |= self._answer(
                    "sources", first=own[0], end=own[-1] + 1, how=how, by="auto", window=400
                )
            left -= _size(part)
            if left < 0 or not self._add(part):
                break
            saved += 1
        if saved < len(words) and hows:
            self.left_out.append(f"the sources of all words but the last {saved}")

    def describe(self, held: dict[str, int]) -> None:
        """Put the run itself, with what the file lacks; `held` is the head that it holds in
        full.
        """
        # The run says what it has; what the file lacks is added to that.
        described = to_json(self.run.describe())
        for one in described["attentions"]:
            missing = self.missing.get(one["l"], {})
            one["has"] = one["has"] | dict.fromkeys(missing, False)
            one["why"] = {**one["why"], **missing}
        if self.left_out:
            lacks = (
                f"This file leaves out {', '.join(self.left_out)}: telescope serve shows "
                "everything."
            )
            described["notice"] = " ".join(filter(None, (described["notice"], lacks)))
        described["held"] = held
        self.answers |= {f"/runs/{self.run.name}": described, "/runs": {"runs": [described]}}

    # ------------------------------------------------------------------------------ answers, packed

    def _heads(self, layer: int) -> Answers:
        """Return the pictures of all heads by pieces, and by words unless the weights between words
        are these.
        """
        found: Answers = {}
        for by in BY:
            if self._key("heads", l=layer, b=self.b, **by) not in self.answers:
                found |= self._answer("heads", l=layer, b=self.b, **by)
        return found

    def _geometry(self, layer: int) -> Answers:
        """Return the geometry, by pieces and by words."""
        first, second = (self._answer("geometry", l=layer, b=self.b, **by) for by in BY)
        return first | second

    def _words(self, layer: int) -> Answers:
        """Return the weights between words, and the pictures of heads by words, which are the same
        numbers.
        """
        view = self.run.views[layer]
        words = pack_words(word_weights(view, self.b), view.call, self.b)
        by_words = self._answer("heads", l=layer, b=self.b, by="words")
        # A text without words has the same answer by pieces: that is put with the pictures.
        pictures = {key: without_shares(one) for key, one in by_words.items() if "names" in one}
        return {self._key("words", l=layer): words} | pictures

    def _traces(self, layer: int, h: int) -> Answers:
        """Return the traces of all queries of one head, and what they share."""
        view = self.run.views[layer]
        found: Answers = {}
        for what, place, answer in pack_traces(view, layer, h, self.b):
            self._check_reader()
            found[self._key(what, **place)] = answer
        return found

    def _holds_traces(self, layer: int) -> bool:
        return any(
            self._key("shared", l=layer, h=h, i=0) in self.answers
            for h in self.run.views[layer].call.heads
        )

    # ----------------------------------------------------------------------------------------- room

    def _answer(self, what: str, **parameters: object) -> Answers:
        """Return the answer to a request about the run, by its key; a refusal is an answer too."""
        self._check_reader()
        try:
            found = pack_picture(self.ask(f"/runs/{self.run.name}/{what}", **parameters))
        except Refusal as refusal:
            found = refusal.to_json()
        return {self._key(what, **parameters): found}

    def _key(self, what: str, **parameters: object) -> str:
        return key(
            f"/runs/{self.run.name}/{what}",
            {name: str(value) for name, value in parameters.items()},
        )

    def _add(self, part: Answers) -> bool:
        """Add answers that belong together, if there is room for all of them; return whether there
        was.
        """
        size = _size(part)
        if size > self.room:
            return False
        self.room -= size
        self.answers |= part
        return True

    def _lacks(self, layer: int, what: Iterable[str], why: str) -> None:
        self.missing[layer] = self.missing.get(layer, {}) | dict.fromkeys(what, why)

    def _check_reader(self) -> None:
        if self.has_left():
            raise Refusal(499, "left", "the reader has left")


def key(path: str, parameters: dict[str, str]) -> str:
    """Return the key of an answer in the file: path and sorted parameters, without those at their
    default.
    """
    query = sorted((name, text) for name, text in parameters.items() if DEFAULTS.get(name) != text)
    return f"{path}?{urlencode(query)}" if query else path


def _size(part: Answers) -> int:
    return len(json.dumps(part))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number > 1 else "")
