"""Words of the trade have a meaning: by mouse, keyboard and touch, and for screen readers; special tokens are grey."""

import json

import pytest

from support import writers
from support.browsing import Page
from support.repository import HOME

TERMS = json.loads((HOME / "web/parts/terms.json").read_text(encoding="utf-8"))
# Where a term is met, on the screens that have one.
PLACES = [
    ("walk", "example-journey", {"l": 1, "i": 1, "step": "softmax"}, "e^(s − max)"),
    ("walk", "example-journey", {"l": 1, "i": 1, "step": "scores"}, "dot product"),
    ("variance", "example-journey", {"d": 64}, "variance"),
    ("heads", None, {"i": 2}, "head"),
    ("geometry", None, {"l": 1}, "variance in the plane"),
    ("map", None, {"l": 0}, "lift"),
]


@pytest.fixture(scope="module", params=["wide", "phone"])
def reader(request, browser, served):
    size = {"width": 1280, "height": 900} if request.param == "wide" else {"width": 375, "height": 700}
    page = Page(browser, served, reduced_motion="reduce", viewport=size, has_touch=True)
    yield page
    page.leave()


@pytest.mark.parametrize(("screen", "run", "query", "name"), PLACES)
@pytest.mark.parametrize("how", ["hover", "focus", "tap"])
def test_a_term_shows_its_meaning(reader, screen, run, query, name, how):
    tab = reader.open(screen, run, **query)
    term = tab.locator("main .term", has=tab.locator(".meaning", has_text=TERMS[name])).first
    button, meaning = term.locator("button"), term.locator(".meaning")
    button.scroll_into_view_if_needed()
    assert not meaning.is_visible()
    getattr(button, how)()
    meaning.wait_for(state="visible")
    assert meaning.inner_text() == TERMS[name]
    assert button.get_attribute("aria-describedby") == meaning.get_attribute("id")
    # Inside of the page, and below or above the word.
    box, width = meaning.bounding_box(), tab.viewport_size["width"]
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    tab.keyboard.press("Escape")
    meaning.wait_for(state="hidden")
    reader.assert_quiet()


def test_a_meaning_closes_when_something_else_is_pressed(reader):
    tab = reader.open("variance", "example-journey", d=64)
    term = tab.locator("main .term").first
    term.locator("button").tap()
    term.locator(".meaning").wait_for(state="visible")
    tab.locator("main h2").tap()
    term.locator(".meaning").wait_for(state="hidden")


def test_every_term_has_a_meaning_that_is_one_or_two_short_sentences():
    for name, meaning in TERMS.items():
        assert meaning.endswith("."), name
        assert len(meaning) <= 190, name
        assert meaning.count(". ") <= 2, name


def test_a_special_token_is_grey_and_says_what_it_is(reader):
    run = reader.served.library.read(writers.NOTES, "translator")
    tab = reader.open("walk", run.name, l=0, h=0)
    end = tab.locator(".words").first.get_by_role("button", name="</s>", exact=True)
    assert "special token" in end.get_attribute("title")
    other = tab.locator(".words").first.get_by_role("button", name="man", exact=True)
    assert other.get_attribute("title") is None
    colours = [one.evaluate("one => getComputedStyle(one).color") for one in (end, other)]
    assert colours[0] != colours[1]
    tab = reader.open("heads", run.name, l=0)
    assert tab.locator(".fan title").first.text_content().startswith("the end of the text")
