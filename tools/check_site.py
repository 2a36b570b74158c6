"""Look at the built site in Chromium as readers do, and say what is wrong with it:

python tools/check_site.py site

1. Opened as files and from a server of this machine, no page asks another host for anything.
2. On a screen of 1280 pixels, no block of code, output or picture is wider than its column.
3. Each word of tools/keywords.toml, typed into the search, finds its page among the first three.
"""

import shutil
import sys
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEYWORDS = tomllib.loads((Path(__file__).parent / "keywords.toml").read_text(encoding="utf-8"))
WIDTH = 1280
# Of each block: whether its content is wider than the block; with the text, to find it again.
WIDE = """() => {
  const blocks = [...document.querySelectorAll(
    ".md-content pre > code, .md-content .md-typeset__scrollwrap, .md-content img")];
  const wide = blocks.filter((block) => block.scrollWidth > block.clientWidth + 1);
  return [blocks.length, wide.filter((block) => block.clientWidth > 0).map((block) =>
    `${block.tagName.toLowerCase()} of ${block.scrollWidth} in ${block.clientWidth} pixels: `
    + (block.src ? block.alt : block.textContent).trim().replace(/\\s+/g, " ").slice(0, 60))];
}"""
OPEN_ALL = "() => document.querySelectorAll('details').forEach((part) => { part.open = true; })"
HITS = """() => [...document.querySelectorAll(".md-search-result__link")]
  .map((link) => new URL(link.href)).map((link) => link.pathname)"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *_):
        pass


def pages_of(site):
    """Return the pages of a built site; lessons as files have a test of their own."""
    found = sorted(site.rglob("*.html"))
    return [page for page in found if page.name != "404.html" and "handouts" not in page.parts]


def foreign_to(address):
    """Return a list, and a function that notes there what a page asks from another host."""
    asked = []

    def note(request):
        if not request.url.startswith((address, "data:", "blob:", "about:")):
            asked.append(f"{request.frame.url} asks for {request.url}")

    return asked, note


def look(site, page, address):
    """Open every page below an address and return what is wrong with it."""
    wrong, blocks = [], 0
    asked, note = foreign_to(address)
    page.on("request", note)
    for file in pages_of(site):
        name = file.relative_to(site).as_posix()
        page.goto(f"{address}/{name}")
        page.evaluate(OPEN_ALL)
        count, wide = page.evaluate(WIDE)
        blocks += count
        wrong += [f"{name}: {block}" for block in wide]
    return blocks, wrong + search(page, address) + asked


def search(page, address):
    """Type every word of keywords.toml into the search, and return what is not found."""
    wrong = []
    page.goto(f"{address}/index.html")
    page.click(".md-search__input")
    for target, words in KEYWORDS.items():
        for word in words:
            if first := missed(page, word, target.removesuffix(".md") + ".html"):
                wrong.append(f'search: "{word}" does not find {target} first, but {first}')
    return wrong


def missed(page, word, target, tries=40):
    """Return the first three hits for a word, or nothing if the page is among them."""
    type_into_search(page, "")
    page.wait_for_function(f"() => {HITS.removeprefix('() => ')}.length === 0")
    type_into_search(page, word)
    first = []
    for _ in range(tries):  # the worker answers when it has read the index
        page.wait_for_timeout(25)
        first = list(dict.fromkeys(page.evaluate(HITS)))[:3]
        if any(hit.endswith(f"/{target}") for hit in first):
            return ""
    return ", ".join(hit.rpartition("/")[2] for hit in first) or "nothing"


def type_into_search(page, word):
    """Write a word into the search, which listens to keys."""
    page.fill(".md-search__input", word)
    page.dispatch_event(".md-search__input", "keyup")


def note_error(wrong, problem):
    """Note what a script of a page raised."""
    wrong.append(f"a page raised {problem}")


def main(site):
    """Check a site both ways, and return what is wrong."""
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wrong, blocks = [], 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        for address in (site.as_uri(), f"http://127.0.0.1:{server.server_port}"):
            page = browser.new_page(viewport={"width": WIDTH, "height": 900})
            page.on("pageerror", partial(note_error, wrong))
            blocks, found = look(site, page, address)
            wrong += found
            page.close()
        browser.close()
    server.shutdown()
    server.server_close()
    return blocks, list(dict.fromkeys(wrong))


if __name__ == "__main__":
    if CHROMIUM is None:
        print("the site was not looked at: there is no chromium")
        raise SystemExit(0)
    place = Path(sys.argv[1]).resolve()
    number, problems = main(place)
    print("\n".join(problems))
    print(
        f"{len(pages_of(place))} pages, {number} blocks and pictures, "
        f"{sum(map(len, KEYWORDS.values()))} words searched: {len(problems)} faults"
    )
    raise SystemExit(1 if problems else 0)
