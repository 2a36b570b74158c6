"""The page's files, and the export of a short run: one file with the page and all answers about one head.

The exported file opens from disk without a server.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files as resources
from typing import Any
from urllib.parse import urlencode

import torch

from ..recording.row_in_float64 import row_in_float64
from ..survey.cells import HOW
from .maps import Picture
from .requests import Refusal, RequestParams
from .run import Run
from .walk import head, sequence, trace_json

LONGEST = 256  # tokens: one tile of the map, and one trace each
PLACED = 48  # tokens: beyond, a file does not hold what positions do
LARGEST = 600_000  # characters of the traces of other attentions than the shown one
HELD = "this file holds the attention that was shown when it was saved"
DEFAULTS = {"b": "0", "fmt": "f16"}
OUTSIDE = b"\x00\x7e" * 256  # a row of a tile below the last query: NaN in half precision
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
MISSING = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Telescope</title></head>
<body><p>This copy of Telescope has no page yet; <code>make page</code> builds it. The numbers are under /api/v1.</p>
</body></html>
"""


@cache
def page_files() -> dict[str, bytes]:
    """Return the contents of the page's files, by name, read once. No other file on the disk can be requested."""
    folder = resources(__package__).joinpath("page")
    found = {
        file.name: file.read_bytes()
        for file in (folder.iterdir() if folder.is_dir() else ())
        if file.is_file() and file.name.rpartition(".")[2] in KINDS
    }
    return {"index.html": MISSING} | found


def media_type(name: str) -> str:
    """Return the media type of a page's file, by the ending of its name."""
    return KINDS[name.rpartition(".")[2]]


def export_answers(
    ask: Callable[..., Any], run: Run, params: RequestParams, has_left: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Return every answer that the page may request while it shows this head. `ask` is `Api.ask`."""
    layer = params.index("l", len(run.views), "attention", 0)
    view = run.views[layer]
    h = head(view, params) if "h" in params.parameters else view.call.heads[0]
    b, i = sequence(view, params), params.index("i", view.size[0], "query", 0)
    if max(view.size) > LONGEST:
        raise Refusal(
            409,
            "too-long",
            f"the run has {max(view.size):,} tokens and a file holds at most {LONGEST}; save a picture instead",
        )
    answers: dict[str, Any] = {f"/runs/{run.name}": run.to_json(), "/runs": {"runs": [run.to_json()]}}
    answers["/models"] = {"models": [], "default": None, "longest": 0}

    def put(what: str, **parameters: object) -> None:
        path = f"/runs/{run.name}/{what}"
        given = {k: str(v) for k, v in parameters.items()}
        try:
            found = ask(path, **given)
        except Refusal as refusal:
            found = {"error": {"code": refusal.code, "message": refusal.message}}
        answers[key(path, given)] = _as_json(found)

    put("sharpest", b=b)
    put("start", b=b)
    for at in range(0 if run.output is None else len(run.output.hidden)):
        put("output", i=at, temperature=1, top_k=0, top_p=1)
    if run.output is not None:
        put("output")
        put("output", temperature=1, top_k=0, top_p=1)
    _put_sources(put, answers, run)
    for number, other in enumerate(run.views):
        for axis in "qk":
            put("tokens", l=number, axis=axis, b=b)
        for what in ("heads", "geometry"):
            put(what, l=number, b=b)
            if other.words("q") is not None:
                put(what, l=number, b=b, by="words")
        if number == layer:
            for at in range(other.size[0]):
                put("perspectives", l=number, i=at, b=b)
                put("after", l=number, i=at, b=b)
                if max(other.size) <= PLACED and "positions" not in other.missing:
                    put("positions", l=number, h=h, i=at, b=b)
        for which in ("mean", *other.call.heads):
            put("alignment", l=number, h=which, b=b)
    left = LARGEST
    for number in sorted(range(len(run.views)), key=lambda number: number != layer):
        traces = dict(_traces(run, number, b)) if left > 0 else {}
        size = 0 if number == layer else sum(len(json.dumps(found)) for found in traces.values())
        left -= size
        if left > 0:
            answers |= traces
        else:
            _leave_out(answers, run, number, ("trace", "context"))
        if number != layer:
            _leave_out(answers, run, number, ("tiles", "after", "positions"))
    if max(view.size) > PLACED:
        _leave_out(answers, run, layer, ("positions",))
    else:
        put("encoding", l=layer, h=h, b=b)
    for how in HOW:
        put("tiles/0/0/0", l=layer, h=h, how=how, b=b)
    for kind in ("entropy", "received"):
        put("tracks/0/0", l=layer, h=h, kind=kind, b=b)
    put("map", l=layer, h=h, b=b)
    for described in (answers[f"/runs/{run.name}"], answers["/runs"]["runs"][0]):
        described["held"] = {"l": layer, "h": h}
    start = params.parameters.get("start", "")
    if not re.fullmatch(rf"/s/{re.escape(run.name)}/[a-z]+(\?[\w=&.%-]*)?", start, re.ASCII):
        start = f"/s/{run.name}/walk?{urlencode({'l': layer, 'h': h, 'i': i})}"
    return {"version": 1, "start": start, "answers": answers}


SAVED_WORDS = 32  # of the answer, whose sources a file holds


def _put_sources(put: Callable[..., None], answers: dict[str, Any], run: Run) -> None:
    """Put the sources of each word of a short answer, by the two `how` that are computed from what was recorded."""
    put("answer")
    asked = answers[f"/runs/{run.name}/answer"]
    if asked.get("why", "") is not None:
        return
    words: dict[int, list[int]] = {}
    for place, word in enumerate(asked["words"]):
        words.setdefault(word, []).append(asked["start"] + place)
    for own in [*words.values()][-SAVED_WORDS:]:
        put("answer", at=own[0] // 256 * 256 + 128)
        for how in ("weights", "carried"):
            if asked["hows"][how] is None:
                put("sources", first=own[0], end=own[-1] + 1, how=how, by="auto", window=400)


def _traces(run: Run, layer: int, b: int) -> Iterator[tuple[str, Any]]:
    """Yield the trace of every query of every head, with its key; the page reads cells from the traces.

    What the traces of a head share, its keys and values, is yielded once, and so is the stream of each query; numbers
    that were float32 are base64. `web/transport/inline.js` puts the traces together again.
    """
    view = run.views[layer]
    if "trace" in view.missing or max(view.size) > LONGEST:
        return
    for h in view.call.heads:
        one = view.head(h, b)
        for i in range(view.size[0]):
            place = {"l": layer, "h": h, "i": i, "b": b}
            whole = trace_json(view, one, row_in_float64(one, i), place)
            if i == 0:
                shared = {"key": whole["key"], "value": whole["value"]}
                yield _key(run, "shared", place), {name: _float32(rows) for name, rows in shared.items()}
            if h == view.call.heads[0] and whole["stream"] is not None:
                yield (
                    _key(run, "stream", place | {"h": 0}),
                    {name: _float32([x]) for name, x in whole["stream"].items()},
                )
            compact = {name: part for name, part in whole.items() if name not in ("key", "value", "stream", "tokens")}
            if whole["factors"] is not None:  # a dot product: its terms are products, which the page computes
                compact |= {"factors": None, "terms": None}
            compact["query"] = _float32([whole["query"]])
            yield _key(run, "trace", place), compact


def _float32(rows: list[list[float]] | None) -> dict[str, Any] | None:
    """Return rows of numbers that are exact in float32 as base64, with the length of a row."""
    if rows is None:
        return None
    numbers = torch.tensor(rows, dtype=torch.float32)
    return {"base64": b64encode(numbers.numpy().astype("<f4").tobytes()).decode(), "width": numbers.shape[-1]}


def _leave_out(answers: dict[str, Any], run: Run, layer: int, what: tuple[str, ...]) -> None:
    """Say in the run's JSON that the file does not hold some answers about an attention."""
    for described in (answers[f"/runs/{run.name}"], answers["/runs"]["runs"][0]):
        one = described["attentions"][layer]
        one["has"] = one["has"] | dict.fromkeys(what, False)
        one["why"] = {**one["why"], **dict.fromkeys(what, HELD)}


def _key(run: Run, what: str, place: dict[str, int]) -> str:
    return key(f"/runs/{run.name}/{what}", {name: str(number) for name, number in place.items()})


def key(path: str, parameters: dict[str, str]) -> str:
    """Return the key of an answer in the file: path and sorted parameters, without those at their default."""
    query = sorted((name, text) for name, text in parameters.items() if DEFAULTS.get(name) != text)
    return f"{path}?{urlencode(query)}" if query else path


def html_page(file: dict[str, Any]) -> bytes:
    """Return the page and its data as one HTML file; its policy allows only the script and style with these hashes."""
    files = page_files()
    script, style = (_joined(files, ending) for ending in (".js", ".css"))
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    policy = POLICY.format(scripts=_hash(script), styles=_hash(style))
    title = escape(file["answers"]["/runs"]["runs"][0]["title"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · Telescope</title><style>{style}</style></head>"
        '<body><div class="telescope" id="telescope"></div>'
        f'<script type="application/json" id="telescope-answers">{json_for_html(file)}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    ).encode("utf-8", "replace")


def json_for_html(contents: object) -> str:
    """Return JSON that cannot end the HTML element around it, whatever text a token holds."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _as_json(found: Any) -> Any:
    """Return an answer as JSON: pictures in base64, without what lies below the last query; `length` is the whole."""
    if not isinstance(found, Picture):
        return found
    end = len(found.numbers)
    while end and found.numbers.endswith(OUTSIDE, 0, end):
        end -= len(OUTSIDE)
    packed = {"base64": b64encode(found.numbers[:end]).decode(), "exact": int(found.exact), "samples": found.samples}
    return packed | ({} if end == len(found.numbers) else {"length": len(found.numbers)})


def _joined(files: dict[str, bytes], ending: str) -> str:
    return "\n".join(body.decode() for name, body in sorted(files.items()) if name.endswith(ending))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
