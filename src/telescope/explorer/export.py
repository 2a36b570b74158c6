"""One file with everything about one head of a short run: it opens from a disk, and asks nobody."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import escape
from typing import Any
from urllib.parse import urlencode

from ..recording.row_in_float64 import closely
from .maps import Picture
from .pages import files
from .requests import Refusal, RequestParams
from .run import Run
from .walk import head, sequence, told_trace

LONGEST = 256  # tokens: one tile, and as many walks
LARGEST = 2_000_000  # characters of walks; those of the attention in view come first
USUAL = {"b": "0", "fmt": "f16"}
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def exported(ask: Callable[..., Any], run: Run, asked: RequestParams) -> dict[str, Any]:
    """Every answer that a page with this head in view may want: ask("/runs/r1/heads", l=0) as an `Api` is asked."""
    layer = asked.index("l", len(run.looked), "attention", 0)
    looked = run.looked[layer]
    h = head(looked, asked) if "h" in asked.parameters else looked.call.heads[0]
    b, i = sequence(looked, asked), asked.index("i", looked.size[0], "query", 0)
    if max(looked.size) > LONGEST:
        raise Refusal(
            409,
            "too-long",
            f"a file holds {LONGEST} tokens, and there are {max(looked.size):,}; a picture can be saved",
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
        answers[key(path, given)] = _told(found)

    put("sharpest", b=b)
    for number, other in enumerate(run.looked):
        for axis in "qk":
            put("tokens", l=number, axis=axis, b=b)
        for what in ("heads", "geometry"):
            put(what, l=number, b=b)
        for which in ("mean", *other.call.heads):
            put("alignment", l=number, h=which, b=b)
    taken = 0
    for number in sorted(range(len(run.looked)), key=lambda number: number != layer):
        for which in run.looked[number].call.heads:
            for path, found in _walks(run, number, which, b):
                taken += len(json.dumps(found)) if number != layer else 0
                if taken <= LARGEST:
                    answers[path] = found
    for how in ("share", "max"):
        put("tiles/0/0/0", l=layer, h=h, agg=how, b=b)
    for kind in ("entropy", "received"):
        put("tracks/0/0", l=layer, h=h, kind=kind, b=b)
    put("map", l=layer, h=h, b=b)
    start = f"/s/{run.name}/walk?{urlencode({'l': layer, 'h': h, 'i': i})}"
    return {"version": 1, "start": start, "answers": answers}


def _walks(run: Run, layer: int, h: int, b: int) -> Iterator[tuple[str, Any]]:
    """Every query of a head. Its cells are in there too."""
    looked = run.looked[layer]
    if "trace" in looked.why_not or max(looked.size) > LONGEST:
        return
    one = looked.head(h, b)
    for i in range(looked.size[0]):
        place = {"l": layer, "h": h, "i": i, "b": b}
        yield _key(run, "trace", place), told_trace(looked, one, closely(one, i), place)


def _key(run: Run, what: str, place: dict[str, int]) -> str:
    return key(f"/runs/{run.name}/{what}", {name: str(number) for name, number in place.items()})


def key(path: str, parameters: dict[str, str]) -> str:
    """By which an answer is found: parameters sorted, those left out that have their usual value."""
    told = sorted((name, said) for name, said in parameters.items() if USUAL.get(name) != said)
    return f"{path}?{urlencode(told)}" if told else path


def page(file: dict[str, Any]) -> bytes:
    """The page and its data as one HTML file. Nothing in it runs but the script whose hash stands in its policy."""
    there = files()
    script, style = (_only(there, ending) for ending in (".js", ".css"))
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    policy = POLICY.format(scripts=_hash(script), styles=_hash(style))
    title = escape(file["answers"]["/runs"]["runs"][0]["title"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · Telescope</title><style>{style}</style></head>"
        '<body><div class="telescope" id="telescope"></div>'
        f'<script type="application/json" id="telescope-answers">{safe(file)}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    ).encode("utf-8", "replace")


def safe(contents: object) -> str:
    """JSON that cannot end the element it stands in, whatever a token says."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _told(found: Any) -> Any:
    if not isinstance(found, Picture):
        return found
    return {"base64": b64encode(found.numbers).decode(), "exact": int(found.exact), "samples": found.samples}


def _only(there: dict[str, bytes], ending: str) -> str:
    return "\n".join(body.decode() for name, body in sorted(there.items()) if name.endswith(ending))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
