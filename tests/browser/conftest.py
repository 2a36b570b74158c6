"""A real server and a real browser. Whatever the page complains about, or asks of another machine, fails the test."""

import pytest
import torch

import telescope as ts
import writers

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")
from browsing import CHROMIUM, SENTENCES, Page, Served  # noqa: E402


def pytest_collection_modifyitems(items):
    if CHROMIUM is None:
        for item in items:
            if "tests/browser" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="there is no chromium here: apt-get install chromium"))


@pytest.fixture(scope="session")
def recording():
    """1,100 tokens: more than a tile, and ragged."""
    torch.manual_seed(0)
    model = writers.gpt(d_model=32, blocks=2, heads=2, max_positions=1100)
    ids = torch.randint(len(model.tokenizer.get_vocab()), (1, 1100))
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as kept:
        model(ids)
    return kept


@pytest.fixture(scope="session")
def served(recording):
    from telescope.explorer.library import Library

    library = Library({"translator": writers.learnt()})
    served = Served(library)
    served.long = library.add(recording, "long", "1").name
    served.runs = {text: library.read(text) for text in SENTENCES}
    served.run = library.read(writers.NOTES).name
    yield served
    served.stop()


@pytest.fixture(scope="session")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, args=["--disable-gpu", "--no-first-run"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, served):
    """open_page("walk", l=0, h=1): a tab. What it complained about comes up at the end."""
    pages = []

    def opened(screen, run=None, *, how=None, **query):
        page = Page(browser, served, **(how or {}))
        pages.append(page)
        tab = page.open(screen, run, **query)
        tab.page = page
        return tab

    yield opened
    for page in pages:
        page.close()
