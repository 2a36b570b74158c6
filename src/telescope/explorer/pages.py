"""The page's files, read once into memory. No other file on the disk can be requested."""

from functools import cache
from importlib.resources import files as resources

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
    """Return the contents of the page's files, by name."""
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
