"""Tokens that hold markup or bidirectional control characters are shown as text."""

import json
from xml.etree import ElementTree

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from support.browsing import SCREENS, WIDGETS, Page, Served
from support.writers import diced
from telescope.explorer.library import Library
from telescope.models import Encoder, EncoderConfig

CORPUS = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<svg/onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "'\"><b onmouseover=window.pwned=1>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "${window.pwned=1}",
    "<!--",
    "]]>",
    "&lt;i&gt;",
    "\u202egnp.exe",
    "\u0007\u0000bell",
    "\u2028line",
    "x" * 300,
]


@pytest.fixture(scope="module")
def hostile():
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(["?", *CORPUS])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("¦")
    model = diced(Encoder(EncoderConfig(vocabulary=len(CORPUS) + 1, d_model=16, heads=2, blocks=1, max_positions=32)))
    model.tokenizer = tokenizer
    served = Served(Library({"<b>model</b>": model}))
    served.run = served.library.read("¦".join(CORPUS)).name
    yield served
    served.stop()


@pytest.fixture(scope="module")
def only_page(browser, hostile):
    page = Page(browser, hostile)
    yield page
    page.leave()


def must_be_text(tab):
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("main img, main script, main b[onmouseover]").count() == 0
    assert not set(tab.locator("main").inner_text()) & {"\u202e", "\u0007", "\u0000", "\u2028"}


@pytest.mark.parametrize("screen", SCREENS)
def test_text_stays_text(page, screen, tmp_path):
    """In the page, in tooltips and in a drawing."""
    tab = page.open(screen, step="softmax", x=3, y=3, z=5.2)
    for target in tab.locator("main button, main [tabindex]").all()[:12]:
        target.hover(force=True)
    page.settled()
    must_be_text(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as waited:
        tab.get_by_role("button", name="Drawing").click()
    waited.value.save_as(tmp_path / "view.svg")
    names = {element.tag.rsplit("}")[-1] for element in ElementTree.parse(tmp_path / "view.svg").iter()}
    assert names <= {"svg", "g", "rect", "text", "line", "path", "circle", "image"}


def test_a_saved_page_stays_text(page, browser, tmp_path):
    tab = page.open("walk", step="softmax", pieces=1)
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as waited:
        tab.get_by_role("button", name="Page that opens").click()
    waited.value.save_as(tmp_path / "saved.html")
    other = browser.new_page()
    other.goto((tmp_path / "saved.html").as_uri())
    other.locator(".walk").wait_for()
    must_be_text(other)
    assert other.locator(".words button").count() == len(CORPUS)


def test_a_cell_of_a_notebook_stays_text(page, hostile):
    tab = page.open("walk")
    for screen in SCREENS:
        tab.evaluate(WIDGETS, {"start": json.dumps({"run": hostile.run, "screen": screen}), "many": 1})
        page.settled()
        must_be_text(tab)
