"""drag: from a move of the mouse to the next painted frame with the new number, in a real browser;
and the first paint of the landing.

Numbers of worked examples are dragged, and a point of Geometry; where a model runs, its temperature
slider is moved and words are hidden. Each move waits until the one before it is painted; a steady
drag does not.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import torch

from .explore import CHROMIUM, Server
from .measure import Row, work_before

SENTENCE = "The money is in the bank."
VISITS = 15  # of the landing
QUERIES = 6  # whose What if is changed
CHANGES = 4
# A watched element changes, then the frame with the change is painted: the time since the event
# that changed it.
WATCH = """([watched, events]) => {
    window.painted = [];
    window.begun = null;
    for (const name of events)
      addEventListener(name, (event) => { window.begun ??= event.timeStamp; }, true);
    const after = new MessageChannel();
    let frame = null;
    after.port1.onmessage = () => {
      if (frame === null) return;
      window.painted.push(performance.now() - frame);
      frame = null;
    };
    const isNew = (one) => one.type !== "characterData" || one.oldValue !== one.target.data;
    new MutationObserver((found) => {
      if (window.begun === null || frame !== null || !found.some(isNew)) return;
      frame = window.begun;
      window.begun = null;
      requestAnimationFrame(() => after.port2.postMessage(null));
    }).observe(document.querySelector(watched), {
      subtree: true, childList: true, attributes: true, characterDataOldValue: true,
    });
}"""
PAINTED = "(many) => window.painted.length > many"


def about(device: torch.device, quick: bool) -> str:
    return f"one page of 1280 x 800 in Chromium, without a GPU{work_before()}"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    if CHROMIUM is None or shutil.which("chromium") is None:
        yield Row("page", "chromium", note="there is no chromium here")
        return
    many = 10 if quick else 60
    with _serving() as server, _page(server) as (tab, at):
        yield _first_paint(tab, server.link, at, 3 if quick else VISITS)
        for name, path, cell in CELLS:
            tab.goto(at + path)
            yield from _dragged(tab, name, cell, LIVE, many)
        tab.goto(at + "/s/example-bank/geometry?i=0")
        yield from _dragged(tab, "a point, Geometry", ".movable", "svg.scatter .own", many)
        made = tab.evaluate(POST, {"text": SENTENCE, "model": "translator-en-de"})
        path = f"/s/{made}/walk?kind=cross&i={{}}&edits={{}}"
        queries = range(2 if quick else QUERIES)
        yield from _changed(tab, "temperature of a head", queries, at, path, "t:2", _slide)
        yield from _changed(tab, "hide a word", queries, at, path, "hide:0", _hide)


# When the page painted its first text or picture, in milliseconds.
CONTENT = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime"""
LIVE = "[data-live=weights]"
CELLS = (
    ("a number, 6 words", "/s/example-journey/walk?l=1&i=1&step=embedding", "x, starts, column 1"),
    (
        "a number, 2 words of 64",
        "/s/example-thinking-machines/walk?l=0&i=0&step=embedding",
        "k, Machines, column 1",
    ),
)
POST = """async (body) => {
    const answer = await fetch("/api/v1/runs", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    return (await answer.json()).run;
}"""


def _first_paint(tab: Any, link: str, at: str, many: int) -> Row:
    """Open the landing in new contexts, whose caches are empty, until it paints its content."""
    times = []
    for _ in range(many):
        context = tab.context.browser.new_context(viewport={"width": 1280, "height": 800})
        visit = context.new_page()
        # The cookie comes with another address, so that the page itself is not known yet.
        visit.goto(f"{at}/healthz?{urlsplit(link).query}")
        visit.goto(at)
        visit.locator(".lesson-card").first.wait_for()
        visit.wait_for_function(CONTENT)
        times.append(visit.evaluate(CONTENT))
        context.close()
    return _row("the landing", f"first paint, {many} visits", times)


def _dragged(tab: Any, case: str, what: str, watched: str, many: int) -> Iterator[Row]:
    """Drag a cell by its label, or an element by its selector: step by step, then steadily."""
    handle = (tab.locator(what) if what[0] == "." else tab.get_by_label(what, exact=True)).first
    handle.wait_for()
    tab.locator(watched).wait_for()
    box = handle.bounding_box()
    x = box["x"] + box["width"] / 2
    y = box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 8, y)
    tab.wait_for_timeout(400)
    tab.evaluate(WATCH, [watched, ["pointermove"]])
    for step in range(many):
        tab.mouse.move(x + 10 + step % 40 + step // 40, y)
        tab.wait_for_function(PAINTED, arg=step)
    yield _row(case, f"each of {many} moves", tab.evaluate("window.painted"))
    tab.evaluate("() => { window.painted = []; window.begun = null; }")
    for step in range(2 * many):
        tab.mouse.move(x + 10 + step % 40 + step // 40, y)
        tab.wait_for_timeout(8)
    tab.wait_for_timeout(300)
    yield _row(case, f"{2 * many} moves, steady", tab.evaluate("window.painted"))
    tab.mouse.up()


def _slide(tab: Any, step: int) -> None:
    tab.locator(".what-if input[type=range]").press("ArrowRight")


def _hide(tab: Any, step: int) -> None:
    tab.locator(".what-if select").select_option(index=2 + step)


def _changed(
    tab: Any,
    case: str,
    queries: range,
    at: str,
    path: str,
    edit: str,
    change: Callable[[Any, int], None],
) -> Iterator[Row]:
    """Change a control of What if at several queries, so that no answer is known from before: the
    model runs for each.
    """
    times: list[float] = []
    for i in queries:
        tab.goto(at + path.format(i, edit))
        tab.locator(".compared").wait_for()
        tab.wait_for_timeout(500)
        tab.evaluate(WATCH, [".compared", ["input", "change"]])
        for step in range(CHANGES):
            change(tab, step)
            tab.wait_for_function(PAINTED, arg=step)
        times += tab.evaluate("window.painted")
    yield _row(case, f"{CHANGES} changes of {len(queries)} queries", times)


def _row(case: str, runner: str, times: list[float]) -> Row:
    times = sorted(times)
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    note = f"median; p95 {p95:.1f}, most {times[-1]:.1f}, of {len(times)} painted"
    return Row(case, runner, median(times), note=note)


@contextmanager
def _serving() -> Iterator[Server]:
    """Run `telescope serve` with the shipped models alone."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "telescope.cli", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline().strip())
        finally:
            process.kill()


@contextmanager
def _page(server: Server) -> Iterator[tuple[Any, str]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, args=["--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(server.link)
        link = urlsplit(server.link)
        yield tab, f"{link.scheme}://{link.netloc}"
        browser.close()
