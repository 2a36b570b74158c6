"""The files of the page: a fixed list, read once. Nothing else on the disk has a way out."""

from functools import cache
from importlib.resources import files as resources

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
MISSING = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Telescope</title></head>
<body><p>The page was not built into this copy of Telescope: <code>make page</code>. The numbers are under /api/v1.</p>
</body></html>
"""


@cache
def files() -> dict[str, bytes]:
    """By name."""
    folder = resources(__package__).joinpath("page")
    found = {
        file.name: file.read_bytes()
        for file in (folder.iterdir() if folder.is_dir() else ())
        if file.is_file() and file.name.rpartition(".")[2] in KINDS
    }
    return {"index.html": MISSING} | found


def kind_of(name: str) -> str:
    return KINDS[name.rpartition(".")[2]]
