"""A real server in a thread, and a page in a real browser that remembers what it asked for and complained about."""

import shutil
import socket
import threading
import time
from urllib.parse import urlsplit

import uvicorn

from telescope.explorer.api import Api
from telescope.explorer.app import app
from telescope.explorer.guard import Guard

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOKEN = "only-for-tests"
SENTENCES = ("Good morning.", "How are you?", "I am tired.")


class Served:
    """A library behind a real port, in a thread."""

    def __init__(self, library):
        self.library, self.api = library, Api(library)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        guard = Guard.at(TOKEN, self.port, {"127.0.0.1"})
        self.server = uvicorn.Server(uvicorn.Config(app(self.api, guard), log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [bound]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    @property
    def at(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.server.should_exit = True
        self.thread.join(10)


class Page:
    """A page with what it asked for and what it complained about."""

    def __init__(self, browser, served, **how):
        self.served = served
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | how))
        self.tab = self.context.new_page()
        self.asked, self.complaints = [], []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.tab.on("pageerror", lambda problem: self.complaints.append(str(problem)))

    def open(self, screen, run=None, **query):
        """With the key at first, as the link has it."""
        said = "&".join(f"{name}={value}" for name, value in query.items())
        path = f"/s/{run or self.served.run}/{screen}?{said}"
        if not self.context.cookies():
            self.tab.goto(f"{self.served.at}/?token={TOKEN}")
        self.tab.goto(self.served.at + path)
        return self.settled()

    def settled(self):
        self.tab.wait_for_load_state("networkidle")
        self.tab.locator("main h2").first.wait_for()
        return self.tab

    def close(self):
        self.context.close()
        foreign = [url for url in self.asked if urlsplit(url).hostname not in ("127.0.0.1", None, "")]
        assert not foreign, foreign
        assert not self.complaints, self.complaints
