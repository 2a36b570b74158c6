"""Takes the pictures of the explorer for the README, docs/explorer-*.png: python docs/screens.py [--model FOLDER]"""

import argparse
import shutil
import socket
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from telescope.explorer.api import Api
from telescope.explorer.app import app
from telescope.explorer.guard import Guard
from telescope.explorer.library import Library

SENTENCE = "The man saw the astronomer with a telescope"
SCREENS = {
    "walk": ("softmax", "light"),
    "heads": ("", "dark"),
    "geometry": ("", "light"),
    "alignment": ("", "dark"),
    "map": ("", "light"),
}


def served(library: Library, token: str) -> tuple[uvicorn.Server, int]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    config = uvicorn.Config(app(Api(library), Guard.at(token, port, {"127.0.0.1"})), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, port


def pictures(library: Library, folder: Path) -> None:
    run = library.read(SENTENCE)
    token = "of-this-minute"
    server, port = served(library, token)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=False, args=["--disable-gpu"]
        )
        for screen, (step, theme) in SCREENS.items():
            page = chromium.new_page(
                viewport={"width": 1280, "height": 860}, color_scheme=theme, reduced_motion="reduce"
            )
            page.goto(f"http://127.0.0.1:{port}/?token={token}")
            page.goto(f"http://127.0.0.1:{port}/s/{run.name}/{screen}?i={run.place('with')}&step={step}")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(600)
            page.screenshot(path=folder / f"explorer-{screen}.png")
            page.close()
        chromium.close()
    server.should_exit = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder; unless given, the translator that ships")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the pictures go")
    said = parser.parse_args()
    pictures(Library(None if said.model is None else {said.model: Path(said.model)}), said.out)
