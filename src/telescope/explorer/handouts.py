"""Handouts: one lesson as one file, which opens from disk without a network and without a server.

The page computes worked examples by itself. What a lesson asks of a model is recorded here, for a
few sentences, and the page says so. The page's style, script and answers are packed by gzip, and
`open_handout.js` unpacks them.
"""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files as resources
from typing import Any

from .answers import Refusal, unknown
from .export import POLICY, hash_of, joined_files
from .exported_run import Answers, Export
from .library import Library
from .run import Run

MODEL_COMMANDS = ('pip install "telescope-attention[all]"', "telescope serve --open")
ELSEWHERE = "a handout holds what its lesson shows; telescope serve shows everything"


@dataclass(frozen=True)
class Handout:
    """A lesson, and what of it is recorded.

    title    as on its card
    kind     of the model whose answers are recorded: "translator" or "gpt"; None without a model
    texts    the sentences that are recorded; the first is the lesson's own
    screens  the screens that the lesson shows of them
    """

    title: str
    kind: str | None = None
    texts: tuple[str, ...] = ()
    screens: tuple[str, ...] = ()


# By the names of the lessons, in the order of their cards; see web/lessons/.
HANDOUTS = {
    "journey": Handout("Journey"),
    "qkv": Handout("Queries, keys, values"),
    "scale": Handout("Why √d"),
    "mask": Handout("Mask"),
    "bank": Handout(
        "Money and bank",
        "translator",
        (
            "The money is in the bank.",
            "The man sits on the bank of the river.",
            "The woman brings her money to the bank.",
        ),
        ("alignment",),
    ),
    "heads": Handout(
        "Two heads",
        "translator",
        (
            "The man saw the astronomer with a telescope",
            "The boy saw the dog with a stick.",
            "The woman saw the man with a red hat.",
        ),
        ("heads", "whatif"),
    ),
    "translate": Handout(
        "Translate",
        "translator",
        (
            "The money is in the bank.",
            "The teacher reads a book.",
            "A dog runs through the snow.",
        ),
        ("output", "alignment", "walk", "heads"),
    ),
    "next": Handout(
        "Next word",
        "gpt",
        ("To be, or not to", "My lord, the king is", "O, Romeo, Romeo, where"),
        ("output", "heads", "walk"),
    ),
}


def handout(
    lesson: str,
    library: Library,
    ask: Callable[[Run, str, Mapping[str, str]], Any],
    has_left: Callable[[], bool] = lambda: False,
) -> bytes:
    """Return a lesson as one HTML file.

    `ask` answers a request about a run, as JSON holds it. Raises Refusal for an unknown lesson, and
    where a model is needed that the library lacks.
    """
    if lesson not in HANDOUTS:
        raise unknown(f'there is no lesson "{lesson[:40]}"; there are {", ".join(HANDOUTS)}')
    made = HANDOUTS[lesson]
    answers: Answers = {}
    recorded = []
    runs = []
    kinds: dict[str, str] = {}
    for text in made.texts:
        assert made.kind is not None
        run = library.record(made.kind, text)
        # A lesson that only ends with a model is handed out without that end.
        if run is None and lesson == "bank":
            break
        if run is None:
            raise Refusal(
                409, "no-model", f'the lesson "{made.title}" needs a {made.kind}, and none is here'
            )
        part = RecordedText(ask, run, has_left)
        part.put(made.screens)
        answers |= part.answers
        runs.append(part.answers[f"/runs/{run.name}"])
        kinds[run.model] = made.kind
        recorded.append({"text": text, "run": run.name, "model": run.model})
    answers |= {
        "/models": {
            "models": list(kinds),
            "kinds": kinds,
            "default": next(iter(kinds), None),
            "longest": 0,
        },
        "/runs": {"runs": runs},
        "/atlases": {"atlases": []},
    }
    facts = {"lesson": lesson, "recorded": recorded, "commands": list(MODEL_COMMANDS)}
    return handout_page(f"{made.title} · Telescope", {"handout": facts, "answers": answers})


class RecordedText(Export):
    """The answers about one sentence that a lesson shows, and what a click further asks for."""

    def __init__(
        self,
        ask: Callable[[Run, str, Mapping[str, str]], Any],
        run: Run,
        has_left: Callable[[], bool],
    ) -> None:
        def ask_run(path: str, **parameters: object) -> Any:
            resource = path.removeprefix(f"/runs/{run.name}").lstrip("/")
            return ask(run, resource, {name: str(value) for name, value in parameters.items()})

        super().__init__(ask_run, run, 0, has_left)
        self.answers = {}

    def put(self, screens: tuple[str, ...]) -> None:
        """Put what some screens ask for."""
        views = self.run.views
        every = range(len(views))
        # The head that the page begins with: the sharpest between two texts, or the suggested one.
        across = any(view.kind == "cross" for view in views)
        first = self.ask(f"/runs/{self.run.name}/{'sharpest' if across else 'start'}")
        layer = first["l"]
        h = first["h"]
        self.put_basics(layer, h)
        self.put_weights(every)
        self.put_perspectives()
        if "walk" in screens:
            self.put_traces(layer, [h])
        if "output" in screens:
            self.put_output()
            self._put_temperatures()
        if "whatif" in screens:
            self._put_mute()
        # What the lesson does not show is left out, with the reason.
        for number in every:
            lost = ["geometry", "after", "positions", "tiles", "image"]
            if "walk" not in screens or number != layer:
                lost += ["trace", "context"]
            self.missing[number] = dict.fromkeys(lost, ELSEWHERE)
        self.left_out = []
        self.describe({"l": layer, "h": h})
        del self.answers["/runs"]

    def _put_temperatures(self) -> None:
        """Put the likeliest tokens after a GPT's text at every place of the page's slider."""
        made = self.run.output
        if made is None or made.written:
            return
        for tenths in range(1, 31):
            self._add(self._answer("output", temperature=f"{tenths / 10:g}", top_k=0, top_p=1))

    def _put_mute(self) -> None:
        """Put what happens without the first of the two heads that differ most, for each word, in
        the kind of attention with which the page begins.
        """
        start = self.ask(f"/runs/{self.run.name}/start")
        view = self.run.views[start["l"]]
        compared = self.answers[self._key("perspectives", l=start["l"])]
        for i in range(view.size[0]):
            words = view.words("q")
            pair = compared["pairs"][i if words is None else words.word_ids[i]]
            if pair is None:
                continue
            place = compared["heads"][pair[0]]
            part = self._answer("whatif", l=place["l"], h=place["h"], i=i, edits="mute")
            # The page shows weights and words; all else is left out.
            for found in part.values():
                if "trace" in found:
                    found["trace"] = {"tokens": found["trace"]["tokens"]}
            self._add(part)


def handout_page(title: str, file: dict[str, Any]) -> bytes:
    """Return the page and its answers as one HTML file, packed; its policy allows only the scripts
    and the style with these hashes.
    """
    script = joined_files(".js")
    style = joined_files(".css")
    opener = resources(__package__).joinpath("open_handout.js").read_text(encoding="utf-8")
    policy = POLICY.format(scripts=f"{hash_of(opener)} {hash_of(script)}", styles=hash_of(style))
    answers = json.dumps(file, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # The licences of the libraries in the script, as text that is not shown.
    notices = joined_files(".txt").replace("</script", "<\\/script")
    parts = {"style": style, "answers": answers, "script": script}
    packed = "\n".join(
        f'<script type="text/plain" id="telescope-{name}">{_packed(text)}</script>'
        for name, text in parts.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title></head>"
        '<body><div class="telescope" id="telescope">opening…</div>'
        "<noscript>This handout computes its numbers in your browser; it needs JavaScript."
        f"</noscript>\n{packed}\n<script>{opener}</script>"
        f'<script type="text/plain" id="telescope-notices">\n{notices}</script></body></html>\n'
    ).encode()


def _packed(text: str) -> str:
    # Without a time, so that equal contents are equal files. Base64 cannot end an element.
    return b64encode(gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)).decode()
