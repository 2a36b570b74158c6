"""A real server and a real browser; each file of tests has one page.

A complaint of the page, or a request to another machine, fails the test in which it happens.
"""

import pytest

from support import writers
from support.exploring import recorded

try:
    from playwright import sync_api

    from support.browsing import CHROMIUM, SENTENCES, Page, Served
except (ImportError, pytest.skip.Exception):  # every file that imports `browsing` is skipped, with the reason
    CHROMIUM = None


def pytest_collection_modifyitems(items):
    for item in items:
        if CHROMIUM is None and "tests/browser" in item.path.as_posix() and "test_bundle" not in item.path.name:
            item.add_marker(pytest.mark.skip(reason="there is no chromium here: apt-get install chromium"))


@pytest.fixture(scope="session")
def served():
    from telescope.explorer.library import Library

    small = writers.translator(heads=2, encoder_blocks=2, decoder_blocks=1)
    library = Library({"translator": writers.learnt(), "small": small, "gpt": writers.gpt(max_positions=64)})
    served = Served(library)
    served.long = library.add(recorded(1100), "long", "1").name  # more than a tile, and ragged
    served.runs = {text: library.read(text, "small", writers.PAIRS[text]) for text in SENTENCES}
    served.run = library.read(writers.NOTES).name
    yield served
    served.stop()


@pytest.fixture(scope="session")
def browser():
    """Start Chromium. It is not closed, nor are its pages: it does not always answer that, and the tests would hang.

    It ends with playwright, within half a minute.
    """
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, args=["--disable-gpu", "--no-first-run"]
        )
        yield browser


@pytest.fixture(scope="module")
def only_page(browser, served):
    page = Page(browser, served, reduced_motion="reduce", has_touch=True)
    yield page
    page.leave()


@pytest.fixture
def page(only_page):
    yield only_page
    only_page.assert_quiet()
