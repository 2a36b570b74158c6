"""Run the pages of the site side by side, each in a folder of its own, and remember what they gave.

A page is run again when its text, a file that it reads, the library, the way of running or a package
that it builds on has changed; otherwise what it gave is read from .cache/pages/. The site
(tools/hooks.py) and the tests (tests/golden/test_pages.py) share that folder.

`python tools/pages.py docs/how-to/draw.md` runs one page and prints what its blocks gave.
"""

import builtins
import hashlib
import inspect
import json
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

TOOLS = str(Path(__file__).parent)
sys.path.insert(0, TOOLS)
import blocks  # noqa: E402

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LIBRARY = ROOT / "src" / "telescope"
CACHE = ROOT / ".cache" / "pages"
# What a page's numbers and pictures depend on, besides the library.
PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "matplotlib", "pandas", "rich", "typer")
PROCESSES = 2
# Set for the processes that run pages; None takes a variable away.
ENVIRONMENT = {
    "COLUMNS": str(blocks.COLUMNS),
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "FORCE_COLOR": None,
    "TRITON_INTERPRET": None,
}


class PageError(Exception):
    """A page cannot be run: its name, the line, and what was raised there."""


def runs(text):
    """Return whether a page has a block to run or a claim to check."""
    return bool(blocks.CLAIM.search(text)) or any(map(blocks.is_run, blocks.blocks(text)))


def results_of(page, pool=None):
    """Return the results of a page's blocks in order, from the cache or by running the page.

    page  a Path
    pool  what `open_pool` returns; without one, the page is run in this process
    """
    text = page.read_text(encoding="utf-8")
    file = CACHE / f"{key_of(text)}.json"
    if not file.exists():
        found = pool.submit(run_file, page).result() if pool else run_file(page)
        if "error" in found:
            raise PageError(found["error"])
        _write(file, found)
    return _results(json.loads(file.read_text(encoding="utf-8")))


def all_results(pages):
    """Return the results of many pages by path, run in PROCESSES processes, slow pages first.

    Raises a PageError that names every page that failed.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    files = {page: CACHE / f"{key_of(text)}.json" for page, text in texts.items()}
    waiting = [page for page in pages if not files[page].exists()]
    begun, wrong, took = time.perf_counter(), [], {}
    if waiting:
        waiting.sort(key=lambda page: -_expected_seconds(page, texts[page]))
        with open_pool(PROCESSES) as pool:
            running = {page: pool.submit(run_file, page) for page in waiting}
            for page, task in running.items():
                found = task.result()
                if "error" in found:
                    wrong.append(found["error"])
                else:
                    took[page] = found["seconds"]
                    _write(files[page], found)
        _remember_seconds(took)
        slow = sorted(took, key=took.get, reverse=True)[:3]
        names = ", ".join(f"{_name(page)} {took[page]:.0f} s" for page in slow)
        seconds = time.perf_counter() - begun
        print(f"{len(waiting)} pages were run in {seconds:.0f} s; the slowest: {names}")
    if wrong:
        raise PageError("\n\n".join(wrong))
    return {
        page: _results(json.loads(file.read_text(encoding="utf-8"))) for page, file in files.items()
    }


def open_pool(processes=1):
    """Return a pool of new processes that run pages. A process loads SmolLM2 once."""
    if TOOLS not in sys.path:  # mkdocs takes away what a hook put there; the processes need it
        sys.path.insert(0, TOOLS)
    return ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=set_environment
    )


def set_environment():
    """Set the variables of a process that runs pages, before it imports torch."""
    for name, value in ENVIRONMENT.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def run_file(page):
    """Run a page in an empty folder, and return its results as JSON has them, or its error."""
    begun, results = time.perf_counter(), []
    text = page.read_text(encoding="utf-8")
    try:
        with fresh_state(), working_folder(blocks.reads(text)):
            for _, result in blocks.run_page(text, str(page)):
                results.append(vars(result))
    except BaseException as problem:
        return {"error": _describe(page, problem)}
    return {"seconds": time.perf_counter() - begun, "results": results}


@contextmanager
def fresh_state():
    """Start with the same random numbers for each page, and restore what a page may change."""
    import numpy as np
    import torch

    argv, environment = sys.argv, dict(os.environ)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    try:
        with warnings.catch_warnings():
            set_warnings()
            yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        torch.set_default_dtype(torch.float32)
        torch.set_printoptions(profile="default")
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def set_warnings():
    """Treat warnings as the tests do: one that comes from a page is an error."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for line in settings["tool"]["pytest"]["ini_options"]["filterwarnings"]:
        action, message, category, module = (*line.split(":"), "", "", "")[:4]
        kind = getattr(builtins, category) if category else Warning
        warnings.filterwarnings(action, message, kind, module)


@contextmanager
def working_folder(files):
    """Go to an empty folder that holds copies of these files of the repository."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            copy = Path(folder) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def key_of(text):
    """Return the name under which the results of a page with this text are remembered."""
    parts = [text.encode(), surroundings().encode()]
    parts += [(ROOT / name).read_bytes() for name in blocks.reads(text)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


@cache
def surroundings():
    """Return a digest of the library, of the functions that run pages and of the packages' versions."""
    digest = hashlib.sha256()
    files = [path for path in sorted(LIBRARY.rglob("*")) if path.is_file()]
    for file in [path for path in files if "__pycache__" not in path.parts]:
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    for function in WAY:
        digest.update(inspect.getsource(function).encode())
    digest.update(repr(ENVIRONMENT).encode())
    digest.update(platform.python_version().encode())
    for package in PACKAGES:
        digest.update(f"{package} {_version(package)}".encode())
    return digest.hexdigest()


# The functions that decide what a page gives; others only show it.
WAY = (
    *(blocks.blocks, blocks.run, blocks.png_of, blocks.run_page),
    *(blocks.run_console, blocks.run_command, blocks.matches),
    *(run_file, fresh_state, set_warnings, working_folder),
)


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _results(found):
    return [blocks.Result(**result) for result in found["results"]]


def _write(file, found):
    """Write a file so that nobody reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(found), encoding="utf-8")
    half.replace(file)


def _seconds_file():
    return CACHE / "seconds.json"


def _expected_seconds(page, text):
    """Return how long a page took the last time; a new page is taken to be slow."""
    file = _seconds_file()
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return known.get(_name(page), 60.0 if "smollm2" in text else 20.0)


def _remember_seconds(took):
    file = _seconds_file()
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    _write(file, known | {_name(page): seconds for page, seconds in took.items()})


def _name(page):
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def _describe(page, problem):
    """Return the sentence about a failed page: its line, and what was raised there."""
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if frame.filename == str(page)
    ]
    line = f", line {frames[-1].lineno}" if frames else ""
    raised = "".join(traceback.format_exception_only(problem)).strip()
    return f"{_name(page)}{line}: {raised}"


if __name__ == "__main__":
    set_environment()
    for argument in sys.argv[1:]:
        path = Path(argument).resolve()
        started = time.perf_counter()
        try:
            given = results_of(path)
        except PageError as problem:
            raise SystemExit(str(problem)) from None
        print(blocks.with_results(path.read_text(encoding="utf-8"), given, with_pictures=False))
        print(f"{argument}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
