"""Take the pictures of the explorer for the documentation, docs/screens/*.png, with the shipped models:

python docs/screens.py
"""

import argparse
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import sync_playwright

from telescope.explorer.api import Api
from telescope.explorer.app import app
from telescope.explorer.guard import Guard
from telescope.explorer.library import Library

TOKEN = "of-this-minute"
SENTENCE = "The man saw the astronomer with a telescope"
SONNET = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
"""
SIZE = {"width": 1180, "height": 760}


def pictures(library: Library, translator: str, writer: str, folder: Path) -> None:
    """Write one PNG for each screen into the folder."""
    sentence, sonnet = library.read(SENTENCE, translator), library.read(SONNET, writer)
    query, port = sentence.place("with"), serve(library)
    views: dict[str, tuple[str, str, dict[str, Any]]] = {
        "walk": ("light", sentence.name, {"l": 1, "h": 2, "i": query, "step": "softmax"}),
        "heads": ("dark", sentence.name, {"l": 1, "h": 2, "la": 1, "a": 2, "lb": 2, "b": 2, "i": query}),
        "geometry": ("light", sentence.name, {"l": 1, "i": query}),
        "alignment": ("dark", sentence.name, {}),
        "map": ("light", sonnet.name, {"l": 1, "h": 0}),
    }
    folder.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=False, args=["--disable-gpu"]
        )
        for screen, (theme, run, state) in views.items():
            page = chromium.new_page(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")
            page.goto(f"http://127.0.0.1:{port}/healthz?token={TOKEN}")
            page.goto(f"http://127.0.0.1:{port}/s/{run}/{screen}?{urlencode(state)}")
            page.wait_for_load_state("networkidle")
            # The table of all heads is long: the picture ends above it.
            end = page.locator("h2:has-text('Habits'), footer").first.bounding_box()
            clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": end["y"] - 12}
            page.screenshot(path=folder / f"{screen}.png", full_page=True, clip=clip)
            page.close()
        chromium.close()


def serve(library: Library) -> int:
    """Serve the library from a thread that ends with this process; return the port."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port: int = bound.getsockname()[1]
    config = uvicorn.Config(app(Api(library), Guard.at(TOKEN, port, {"127.0.0.1"})), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return port


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--translator", default="translator-en-de", help="a model that ships, or a folder")
    parser.add_argument("--writer", default="shakespeare", help="the same")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "screens", help="where the pictures go")
    arguments = parser.parse_args()
    models = Library({name: name for name in (arguments.translator, arguments.writer)})
    pictures(models, arguments.translator, arguments.writer, arguments.out)
