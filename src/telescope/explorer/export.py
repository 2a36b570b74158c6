"""The page's files, and the page with the answers of an exported run as one file, which opens
without a server.
"""

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files as resources
from typing import Any

POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
MISSING = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Telescope</title></head>
<body><p>This copy of Telescope has no page yet; <code>make page</code> builds it. The numbers are under /api/v1.</p>
</body></html>
"""


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
    return {"index.html": MISSING} | found


def media_type(name: str) -> str:
    """Return the media type of a page's file, by the ending of its name."""
    return KINDS[name.rpartition(".")[2]]


def html_page(file: dict[str, Any]) -> bytes:
    """Return the page and its data as one HTML file; its policy allows only the script and style
    with these hashes.
    """
    files = page_files()
    script, style = (_joined(files, ending) for ending in (".js", ".css"))
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    policy = POLICY.format(scripts=_hash(script), styles=_hash(style))
    title = escape(file["answers"]["/runs"]["runs"][0]["title"])
    notices = _joined(files, ".txt").replace("</script", "<\\/script")
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
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _joined(files: dict[str, bytes], ending: str) -> str:
    return "\n".join(body.decode() for name, body in sorted(files.items()) if name.endswith(ending))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
