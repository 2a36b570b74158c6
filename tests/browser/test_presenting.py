"""The page on a projector and on paper, and the title of the browser's tab."""

import pytest

HEIGHTS = """() => {
  const box = (of) => document.querySelector(of).getBoundingClientRect();
  return { picture: box("main").top, caption: box(".lesson").top, bottom: box(".lesson").bottom, page: innerHeight };
}"""
# texts that stand on the page but are cut by the box around them
CUT = """(of) => [...document.querySelectorAll(of)]
  .filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.textContent)"""
SHOWN = "(of) => [...document.querySelectorAll(of)].filter((one) => one.offsetParent).length"
CHROME = ".masthead, .tabs, .which, .model, .foot"
CAPTION = "document.querySelector('.caption p').textContent"


@pytest.fixture
def projector(page):
    page.tab.set_viewport_size({"width": 1024, "height": 768})
    yield page
    page.tab.set_viewport_size({"width": 1280, "height": 800})


def open_lesson(page, **state):
    return page.open("walk", "example-journey", l=0, h=0, i=1, step="scores", card="journey", at=1, **state)


def test_presenting_shows_the_picture_above_and_the_caption_below(projector):
    tab = open_lesson(projector, present=1)
    assert tab.evaluate(SHOWN, CHROME) == 0
    at = tab.evaluate(HEIGHTS)
    assert at["picture"] < at["page"] / 8
    assert at["page"] / 2 < at["caption"] < at["bottom"] <= at["page"] + 1
    labels = tab.locator(".rail .label").all_inner_texts()
    assert labels[:3] == ["inputs", "Q K V", "q·k"]
    assert tab.evaluate(CUT, ".rail button, .ledger td, .ledger th") == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1024


@pytest.mark.parametrize("screen", ["walk", "heads", "geometry", "alignment", "map", "sources", "output", "positions"])
def test_no_screen_is_wider_than_the_projector(projector, screen):
    tab = projector.open(screen, present=1)
    assert tab.evaluate(SHOWN, CHROME) == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1024


def test_a_key_begins_and_ends_presenting(projector):
    tab = open_lesson(projector)
    before = tab.evaluate("history.length")
    tab.keyboard.press("p")
    tab.locator("[data-presenting]").wait_for()
    tab.wait_for_url("**present=1**")
    tab.keyboard.press("p")
    tab.locator(".masthead").wait_for()
    tab.wait_for_url(lambda url: "present" not in url)
    assert tab.evaluate("history.length") == before


def test_a_button_begins_and_a_button_ends_presenting(projector):
    tab = open_lesson(projector)
    tab.get_by_role("button", name="present", exact=True).tap()
    tab.get_by_role("button", name="end presenting").tap()
    tab.locator(".masthead").wait_for()
    assert tab.locator("[data-presenting]").count() == 0


def test_a_presenter_turns_captions(projector):
    tab = open_lesson(projector, present=1)
    said = [tab.evaluate(CAPTION)]
    for key, place in (("PageDown", 1), (" ", 2), ("PageUp", 1), ("Shift+ ", 0)):
        tab.keyboard.press(key if key != "Shift+ " else "Shift+Space")
        if place == len(said):
            tab.wait_for_function(f"(said) => {CAPTION} !== said", arg=said[-1])
            said.append(tab.evaluate(CAPTION))
        else:
            tab.wait_for_function(f"(said) => {CAPTION} === said", arg=said[place])
    assert len(set(said)) == 3


def test_the_keys_of_a_presenter_scroll_a_page_that_is_not_presented(projector):
    tab = open_lesson(projector)
    said = tab.evaluate(CAPTION)
    tab.keyboard.press("PageDown")
    tab.wait_for_function("() => scrollY > 0")
    assert tab.evaluate(CAPTION) == said


def test_space_presses_the_focused_button(projector):
    tab = open_lesson(projector, present=1)
    said = tab.evaluate(CAPTION)
    tab.get_by_role("button", name="Back", exact=True).focus()
    tab.keyboard.press(" ")
    tab.wait_for_function(f"(said) => {CAPTION} !== said", arg=said)
    assert "at=0" in tab.url


def test_paper_has_the_text_the_picture_the_caption_and_the_address(page):
    tab = open_lesson(page)
    address = tab.url
    tab.emulate_media(media="print", color_scheme="dark")
    try:
        assert tab.evaluate(SHOWN, f"{CHROME}, .turns, main .button") == 0
        assert tab.locator(".presented p").inner_text() == "Your journey starts with one step"
        assert "dot product" in tab.locator(".caption").inner_text()
        assert tab.locator(".ledger tbody tr").count() == 6
        printed = tab.locator(".printed").inner_text()
        assert printed.splitlines()[0].startswith("Journey 2/5 · Walk · Your journey starts with one step")
        assert printed.splitlines()[-1] == address
        assert (
            tab.evaluate("getComputedStyle(document.querySelector('.telescope')).backgroundColor")
            == "rgb(255, 255, 255)"
        )
    finally:
        tab.emulate_media(media="screen", color_scheme="light")


@pytest.mark.parametrize(
    ("screen", "title"),
    [
        ("walk", "Walk · Where are the keys? · layer 0, head 1 · Telescope"),
        ("geometry", "Geometry · Where are the keys? · Telescope"),
        ("output", "Output · Where are the keys? · Telescope"),
    ],
)
def test_the_title_says_what_is_shown(page, served, screen, title):
    run = served.api.library.read("Good morning.").name
    tab = page.open(screen, run, l=0, h=1)
    assert tab.title() == title.replace("Where are the keys?", "Good morning.")


def test_the_title_of_the_first_page(page):
    page.tab.goto(page.served.at + "/")
    assert page.settled().title() == "Look inside attention · Telescope"


def test_every_tab_says_what_it_shows(page):
    tab = page.open("walk")
    said = [one.get_attribute("title") for one in tab.locator(".tabs a").all()]
    assert all(said)
    assert len(set(said)) == len(said)
