"""A real server in a thread, and a page in a real browser that records its requests and complaints."""

import shutil
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("starlette", reason="the serve extra is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the serve extra is not installed")
from telescope.explorer.api import Api  # noqa: E402
from telescope.explorer.app import app  # noqa: E402
from telescope.explorer.guard import Guard  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# The screens of a recording, each with a state that is not its first, as its address names it.
SCREENS: dict[str, dict[str, float | str]] = {
    "walk": {"l": 1, "h": 2, "i": 3, "j": 1, "step": "mask"},
    "heads": {"l": 0, "h": 1, "la": 0, "a": 1, "lb": 0, "b": 3, "i": 2},
    "geometry": {"l": 1, "i": 2, "j": 4, "alpha": 0.4},
    "alignment": {"l": 3, "h": 1, "word": 2, "of": "head"},
    "map": {"l": 0, "h": 1, "x": 4.5, "y": 3.5, "z": 5.5, "how": "lift", "scale": "linear", "palette": "magma"},
    "sources": {"first": 2, "end": 4, "via": "carried", "cut": "pieces", "hide": "1-2"},
    "positions": {"l": 1, "h": 1, "i": 2},
}
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
RULES = {"light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "dark": ["color-contrast"]}
TOKEN = "only-for-tests"
SENTENCES = ("Good morning.", "How are you?", "I am tired.")

# how many questions are under way; `SETTLED` counts for how many frames nothing has changed in that
COUNTED = """() => {
  window.asking = window.still = 0;
  const count = (by) => { window.asking += by; window.still = 0; };
  const over = () => setTimeout(() => count(-1));
  const plain = window.fetch;
  window.fetch = (...asked) => {
    count(1);
    const answer = plain(...asked);
    answer.then((response) => response.clone().arrayBuffer()).then(over, over);
    return answer;
  };
}"""
SETTLED = """() => {
  const shown = document.querySelector("main h2, main .failure") && !document.querySelector("main .waiting");
  window.still = shown && window.asking === 0 ? window.still + 1 : 0;
  return window.still > 5;
}"""
TURN = """(path) => {
  window.still = 0;
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
}"""

# cells of a notebook, without a notebook: the requests to the kernel are sent to the server
WIDGETS = """async ({ start, many }) => {
  const { default: widget } = await import("/explorer.js");
  const tell = async (model, asked) => {
    const query = new URLSearchParams(asked.query ?? {});
    const response = await fetch(`/api/v1/${asked.path}?${query}`);
    if (!response.ok) return model.hear({ id: asked.id, ...(await response.json()) }, []);
    const json = response.headers.get("Content-Type").includes("json");
    if (json) return model.hear({ id: asked.id, body: await response.json() }, []);
    const exact = response.headers.get("X-Exact") === "1";
    return model.hear({ id: asked.id, exact, samples: 1 }, [new DataView(await response.arrayBuffer())]);
  };
  document.body.replaceChildren();
  for (let at = 0; at < many; at += 1) {
    const el = document.createElement("div");
    document.body.append(el);
    const model = {
      get: () => start,
      on: (_, hear) => { model.hear = hear; },
      send: (asked) => tell(model, asked),
    };
    widget.render({ model, el });
  }
}"""


class Served:
    """A library that is served on a real port, in a thread."""

    def __init__(self, library, port=0):
        self.library, self.api = library, Api(library)
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a server that has just ended
        bound.bind(("127.0.0.1", port))
        self.port = bound.getsockname()[1]
        guard = Guard.at(TOKEN, self.port, {"127.0.0.1"})
        self.server = uvicorn.Server(uvicorn.Config(app(self.api, guard), log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [bound]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive(), "the server did not start"
            time.sleep(0.01)

    @property
    def at(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.server.should_exit = True
        self.thread.join(10)


class Page:
    """A tab. `open` loads an address, `turn` goes there as a click would; both wait until everything is loaded."""

    def __init__(self, browser, served, **how):
        self.served = served
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | how))
        self.context.set_default_timeout(90_000)  # milliseconds: for what hangs, not for a machine that is busy
        self.context.add_init_script(f"({COUNTED})()")
        self.tab = self.context.new_page()
        self.asked, self.complaints = [], []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.tab.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.tab.goto(f"{served.at}/healthz?token={TOKEN}")  # with the key at first, as the link has it

    def open(self, screen, run=None, **query):
        self.tab.goto(self.served.at + self.path(screen, run, **query))
        return self.settled()

    def turn(self, screen, run=None, **query):
        self.tab.evaluate(TURN, self.path(screen, run, **query))
        return self.settled()

    def path(self, screen, run=None, **query):
        return f"/s/{run or self.served.run}/{screen}?{urlencode(query)}"

    def settled(self):
        self.tab.evaluate("() => { window.still = 0; }")
        self.tab.wait_for_function(SETTLED)
        return self.tab

    def check_by_axe(self, paths):
        """Check addresses by axe: all rules in light colours, then in dark ones the contrast, which alone differs."""
        if not AXE.is_file():
            pytest.skip("axe-core is not installed: npm ci --prefix web")
        for theme, rules in RULES.items():
            self.tab.emulate_media(color_scheme=theme)
            self.tab.goto(self.served.at + paths[0])
            self.settled().evaluate(AXE.read_text())
            assert self.tab.locator(f'[data-theme="{theme}"]').count() == 1
            for path in paths:
                self.tab.evaluate(TURN, path)
                found = self.settled().evaluate("(rules) => axe.run(document, {runOnly: rules})", rules)
                problems = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]
                assert (theme, path, problems) == (theme, path, [])
        self.tab.emulate_media(color_scheme="light")

    def assert_quiet(self):
        """Check that nothing was complained about, and that no other machine got a request."""
        foreign = [url for url in self.asked if urlsplit(url).hostname not in ("127.0.0.1", None, "")]
        complaints, self.complaints = self.complaints, []
        assert (foreign, complaints) == ([], [])

    def leave(self):
        """Open an empty page, so that nothing of the old one runs on."""
        self.tab.goto("about:blank")
