"""Take the pictures of the explorer for the documentation, docs/screens/*.png, and each screen at
four sizes, docs/screens/sizes/*.webp, with the shipped models:

python tools/screens.py
"""

import argparse
import io
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
import uvicorn
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import telescope
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
PLAYERS = ("ROMEO:", "KING:", "First Citizen:", "JULIET:")
MONEY = "The money is in the bank."
PROMPT = "To be, or not to"
LESSONS: dict[str, tuple[str, dict[str, Any]]] = {  # the lesson's caption that says the most
    "journey": ("/s/example-journey/walk", {"l": 0, "h": 0, "i": 1, "step": "embedding", "at": 0}),
    "qkv": ("/s/example-journey/walk", {"l": 1, "h": 0, "i": 1, "step": "qkv", "at": 1}),
    "scale": (
        "/s/example-thinking-machines/walk",
        {"l": 0, "h": 0, "i": 0, "edits": "scale", "at": 2},
    ),
    "mask": ("/s/example-journey/walk", {"l": 2, "h": 0, "i": 1, "step": "mask", "at": 1}),
    "bank": ("/s/example-bank/geometry", {"l": 0, "i": 1, "j": 0, "at": 1}),
    "heads": (
        "/s/example-telescope/heads",
        {"l": 0, "h": 0, "la": 0, "a": 0, "lb": 0, "b": 1, "i": 7, "at": 0},
    ),
    "translate": ("/s/{money}/alignment", {"at": 1}),
    "next": ("/s/{prompt}/output", {"temperature": 0.5, "at": 1}),
}
SIZE = {"width": 1180, "height": 760}
# A window, a projector, a phone, and a sheet of A4 at 96 dots an inch
SIZES = {
    "window": {"width": 1440, "height": 900},
    "projector": {"width": 1024, "height": 768},
    "phone": {"width": 375, "height": 812},
    "paper": {"width": 794, "height": 1123},
}


def pictures(
    library: Library, translator: str, writer: str, folder: Path, only: Sequence[str] = ()
) -> None:
    """Write one PNG for each screen into the folder, or for some of them."""
    sentence, sonnet = library.read(SENTENCE, translator), library.read(SONNET, writer)
    money, prompt = library.read(MONEY, translator), library.read(PROMPT, writer)
    query, port = sentence.place("with"), serve(library)
    # The head that writes "Geld" looks at "money".
    cross = [view.name for view in money.views].index("decoder.1.cross")
    geld = {"l": cross, "h": 1, "i": 1, "j": 1}
    views: dict[str, tuple[str, str, dict[str, Any]]] = {
        "landing": ("light", "/", {}),
        "walk": ("light", f"/s/{sentence.name}/walk", {"i": query}),
        "heads": ("dark", f"/s/{sentence.name}/heads", {"i": query}),
        "geometry": ("light", "/s/example-bank/geometry", {"i": 1, "j": 0}),
        "alignment": ("dark", f"/s/{money.name}/alignment", {}),
        "map": ("light", f"/s/{sonnet.name}/map", {"l": 1, "h": 0}),
        "output": ("light", f"/s/{prompt.name}/output", {}),
        "variance": ("light", "/s/example-thinking-machines/variance", {"d": 512}),
        "positions": ("light", f"/s/{sentence.name}/positions", {}),
        "why": ("light", f"/s/{money.name}/walk", {**geld, "ask": "why", "than": 5}),
        "what-follows": (
            "light",
            f"/s/{money.name}/heads",
            {**geld, "la": cross, "a": 1, "lb": cross + 1, "b": 0, "ask": "follows"},
        ),
        "what-if": ("light", f"/s/{money.name}/walk", {"kind": "cross", "edits": "sum"}),
        **{
            f"lesson-{name}": (
                "light",
                path.format(money=money.name, prompt=prompt.name),
                {"card": name} | state,
            )
            for name, (path, state) in LESSONS.items()
        },
    }
    add_atlas(library, writer)
    views["sources"] = ("light", f"/s/{money.name}/sources", {"first": 6, "end": 7, "hide": "5-6"})
    views["atlas"] = ("light", "/atlas/plays", {})
    folder.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=False, args=["--disable-gpu"]
        )
        for screen, (theme, path, state) in views.items():
            if only and screen not in only:
                continue
            page = chromium.new_page(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")
            page.goto(f"http://127.0.0.1:{port}/healthz?token={TOKEN}")
            page.goto(f"http://127.0.0.1:{port}{path}?{urlencode(state)}")
            page.wait_for_load_state("networkidle")
            # The list of all heads is long: the picture ends above it.
            end = page.locator("h2:has-text('All heads'), footer").first.bounding_box()
            clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": end["y"] - 12}
            page.screenshot(path=folder / f"{screen}.png", full_page=True, clip=clip)
            page.close()
            if not screen.startswith("lesson-"):
                address = f"http://127.0.0.1:{port}{path}?{urlencode(state)}"
                at_four_sizes(chromium, port, address, folder / "sizes" / screen)
        chromium.close()


def at_four_sizes(chromium: Browser, port: int, address: str, path: Path) -> None:
    """Write what a window, a projector, a phone and a sheet of paper show of an address."""
    path.parent.mkdir(exist_ok=True)
    for name, size in SIZES.items():
        page = chromium.new_page(viewport=size, color_scheme="light", reduced_motion="reduce")
        page.goto(f"http://127.0.0.1:{port}/healthz?token={TOKEN}")
        presents = name == "projector" and "/s/" in address
        page.goto(address + ("&present=1" if presents else ""))
        page.wait_for_load_state("networkidle")
        if name == "paper":
            page.emulate_media(media="print")
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.save(f"{path}-{name}.webp", quality=70)
        page.close()


def add_atlas(library: Library, writer: str) -> None:
    """Add the atlas of a GPT over sixteen texts of its own."""
    model = telescope.load(writer, dtype=torch.float32)
    players = PLAYERS * 4
    written = telescope.decoding.generate(
        model, players, max_new_tokens=110, temperature=0.8, seed=1
    )
    plays = [player + one.text for player, one in zip(players, written, strict=True)]
    library.atlases.add("plays", telescope.atlas(model, plays))


def serve(library: Library) -> int:
    """Serve the library from a thread that ends with this process; return the port."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port: int = bound.getsockname()[1]
    config = uvicorn.Config(
        app(Api(library), Guard.at(TOKEN, port, {"127.0.0.1"})), log_level="error", lifespan="off"
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return port


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--translator", default="translator-en-de", help="a model that ships, or a folder"
    )
    parser.add_argument("--writer", default="shakespeare", help="the same")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "docs" / "screens",
        help="where the pictures go",
    )
    parser.add_argument("--only", nargs="+", default=(), help="the names of the pictures to take")
    arguments = parser.parse_args()
    models = Library({name: name for name in (arguments.translator, arguments.writer)})
    pictures(models, arguments.translator, arguments.writer, arguments.out, arguments.only)
