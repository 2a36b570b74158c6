"""The page as one file, which opens without a server: its files, the answers inside of it, and how
their numbers are packed: float32 and float64 as base64, and what several answers share only once.

`web/transport/inline.js` puts the answers together again: of /heads by words, /alignment and
/perspectives from the weights between words, and of /trace, /cell and /cells from the traces.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files as resources
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording import RecordedCall
from ..recording.row_in_float64 import RowInFloat64, row_in_float64
from ..traces import json_number, json_numbers, round_numbers
from .maps import Picture
from .run import AttentionView
from .walk import stream_at
from .weights import WordWeights, known_share

# Nothing may be loaded from elsewhere; only the scripts and styles with these hashes run.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

# Media types by the ending of a name; other files are not served.
KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# What is shown where the page was not built.
MISSING = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Telescope</title></head>
<body><p>This copy of Telescope has no page yet; <code>make page</code> builds it. The numbers are under /api/v1.</p>
</body></html>
"""
OUTSIDE = b"\x00\x7e" * 256  # a row of a tile below the last query: NaN in half precision


# ----------------------------------------------------------------------------------------- the page


@cache
def page_files() -> dict[str, bytes]:
    """Return the contents of the page's files, by name, read once. No other file on the disk can be
    requested.
    """
    folder = resources(__package__).joinpath("page")
    found = {
        file.name: file.read_bytes()
        for file in (folder.iterdir() if folder.is_dir() else ())
        if file.is_file() and file.name.rpartition(".")[2] in KINDS
    }
    # The built page, where there is one, replaces the notice.
    return {"index.html": MISSING} | found


def media_type(name: str) -> str:
    """Return the media type of a page's file, by the ending of its name."""
    return KINDS[name.rpartition(".")[2]]


def html_page(file: dict[str, Any]) -> bytes:
    """Return the page and its data as one HTML file; its policy allows only the script and style
    with these hashes.
    """
    script, style = (joined_files(ending) for ending in (".js", ".css"))
    # What would end the script's element, or begin a comment in it, is escaped in its strings.
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    # Hash the script as it stands in the file: after escaping.
    policy = POLICY.format(scripts=hash_of(script), styles=hash_of(style))
    title = escape(file["answers"]["/runs"]["runs"][0]["title"])
    # The licences of the libraries in the script, as text that is not shown.
    notices = joined_files(".txt").replace("</script", "<\\/script")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · Telescope</title><style>{style}</style></head>"
        '<body><div class="telescope" id="telescope"></div>'
        f'<script type="application/json" id="telescope-answers">{json_for_html(file)}</script>'
        f'<script type="module">{script}</script>'
        f'<script type="text/plain" id="telescope-notices">\n{notices}</script></body></html>\n'
    ).encode("utf-8", "replace")


def json_for_html(contents: object) -> str:
    """Return JSON that cannot end the HTML element around it, whatever text a token holds."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # JSON may write any character as \\u…; U+2028 and U+2029 would end a line of JavaScript.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def joined_files(ending: str) -> str:
    """Return the page's files with an ending, as one text."""
    files = sorted(page_files().items())
    return "\n".join(body.decode() for name, body in files if name.endswith(ending))


def hash_of(text: str) -> str:
    """Return the source by which a policy allows a script or style of this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


# ----------------------------------------------------------------------------------- packed answers


def pack_words(words: WordWeights, call: RecordedCall, b: int) -> dict[str, Any]:
    """Return the weights between words of all heads, stacked: (head, row) x column."""
    return {
        "known": round_numbers(known_share(call, b)),
        "heads": list(call.heads),
        "rows": words.rows,
        "columns": words.columns,
        "real_rows": words.real_rows,
        "real_columns": words.real_columns,
        "weights": _rows(words.weights.flatten(0, 1), call),
    }


def without_shares(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer to /heads by words without its pictures, which are the weights between
    words.
    """
    return answer | {"maps": [{"h": one["h"]} for one in answer["maps"]]}


def pack_picture(found: Any) -> Any:
    """Return an answer as JSON: pictures in base64, without what lies below the last query;
    `length` is the whole.
    """
    if not isinstance(found, Picture):
        return found
    # A short text fills the upper rows of its tile alone.
    end = len(found.numbers)
    while end and found.numbers.endswith(OUTSIDE, 0, end):
        end -= len(OUTSIDE)
    packed = {
        "base64": b64encode(found.numbers[:end]).decode(),
        "exact": int(found.exact),
        "samples": found.samples,
    }
    return packed | ({} if end == len(found.numbers) else {"length": len(found.numbers)})


def pack_traces(
    view: AttentionView, layer: int, h: int, b: int
) -> Iterator[tuple[str, dict[str, int], dict[str, Any]]]:
    """Yield the traces of all queries of one head: a name, a place and an answer each.

    What the traces share, the keys and values of the head, is yielded once as "shared", and the
    residual stream of each query as "stream" of head 0, since it belongs to all heads.
    """
    one = view.head(h, b)
    values = None if one.values is None else _rows(one.values[0, 0], view.call)
    yield (
        "shared",
        {"l": layer, "h": h, "i": 0, "b": b},
        {"key": _rows(one.keys[0, 0], view.call), "value": values},
    )
    for i in range(view.size[0]):
        place = {"l": layer, "h": h, "i": i, "b": b}
        stream = stream_at(view, b, i)
        if stream is not None:
            packed = {name: _rows(vector[None], view.call) for name, vector in vars(stream).items()}
            yield "stream", place | {"h": 0}, packed
        # A trace of the file has all keys: a file holds no longer text.
        seen = row_in_float64(one, i)
        token = view.tokens("q", b, [i])[0]
        facts = {
            "token": token,
            "n_k": view.size[1],
            "formula": one.attention.formula(one.keys.shape[-1]),
        }
        scale = one.attention.scale_for(one.keys.shape[-1])
        yield (
            "trace",
            place,
            place
            | facts
            | {"score": one.attention.score.formula}
            | _pack_row(seen, scale, view.call),
        )


def _pack_row(seen: RowInFloat64, scale: float, call: RecordedCall) -> dict[str, Any]:
    """Return the numbers of one query, whose keys are all keys of the text."""
    factors = seen.factors
    # Of other products, such as q·W·k, the factors are not the query and the key.
    is_dot = (
        factors is not None
        and torch.equal(factors[0], seen.query)
        and torch.equal(factors[1], seen.key)
    )
    return {
        "scale": scale,
        "query": _rows(seen.query[None], call),
        # The terms of a dot product are products of a query and a key, which the page computes.
        "terms": None if is_dot else json_numbers(seen.terms),
        "factors": None if is_dot or factors is None else _factors(*factors),
        "steps": list(_pack_steps(seen, scale)),
        "lse": json_number(seen.lse),
        "sink": json_number(seen.sink),
        "context": None if seen.context is None else _float64(seen.context),
    }


def _factors(query: Tensor, key: Tensor) -> dict[str, Any]:
    return {"query": json_numbers(query), "key": json_numbers(key)}


def _pack_steps(seen: RowInFloat64, scale: float) -> Iterator[dict[str, Any]]:
    """Yield each step of a query, as a change of the step before where that gives the same
    numbers.
    """
    before: Tensor | None = None
    for name, formula in seen.formulas.items():
        if name not in seen.steps:
            continue
        numbers = seen.steps[name]
        # Export how scores are scaled and masked: the page computes both again, to the same bits.
        hidden = numbers == -torch.inf
        if before is not None and torch.equal(before * scale, numbers):
            packed: dict[str, Any] = {"times": scale}
        elif before is not None and torch.equal(before.masked_fill(hidden, -torch.inf), numbers):
            packed = {"hidden": _runs(hidden)}
        else:
            packed = _float64(numbers)
        yield {"name": name, "formula": formula, **packed}
        before = numbers


def _runs(hidden: Tensor) -> list[list[int]]:
    """Return where the runs of True begin and end."""
    # With a zero at both ends, the difference is 1 where a run begins and -1 after its last.
    edges = hidden.int().diff(prepend=hidden.new_zeros(1).int(), append=hidden.new_zeros(1).int())
    begin = (edges == 1).nonzero()[:, 0]
    end = (edges == -1).nonzero()[:, 0]
    return torch.stack([begin, end], 1).tolist()


def _rows(rows: Float[Tensor, "row width"], call: RecordedCall) -> dict[str, Any]:
    """Return rows of numbers as base64, with the length of a row: in float32, in which models
    compute, or with 64 bits where the attention was computed so.
    """
    if call._facts.dtype == torch.float64:
        return {
            "base64": _base64(rows, torch.float64, "<f8"),
            "width": rows.shape[-1],
            "bits": 64,
        }
    return {"base64": _base64(rows, torch.float32, "<f4"), "width": rows.shape[-1]}


def _float64(numbers: Float[Tensor, " n"]) -> dict[str, Any]:
    """Return numbers as base64 of float64 without the zeros at their end; `length` counts all."""
    # A causal row ends with zeros, half of all weights.
    used = numbers.nonzero()
    end = int(used[-1]) + 1 if len(used) else 0
    return {"base64": _base64(numbers[:end], torch.float64, "<f8"), "length": len(numbers)}


def _base64(numbers: Tensor, dtype: torch.dtype, order: str) -> str:
    # The byte order is fixed, whatever machine writes the file.
    return b64encode(numbers.detach().to(dtype).cpu().numpy().astype(order).tobytes()).decode()
