"""Links outlive their server: after a restart, on another machine, with another model, and from an older version."""

import re

import pytest

from support import writers
from support.browsing import TOKEN, Page, Served
from telescope.explorer.library import Library

TEXT = "How are you?"
PLACE = {"l": 1, "h": 2, "i": 3, "step": "mask"}


@pytest.fixture(scope="module")
def translator():
    return writers.learnt()


@pytest.fixture
def room(browser, translator):
    """Open servers and pages, and close them after the test."""
    opened = []

    class Room:
        """Each server is another machine, or this one after a restart if it has the same port."""

        def serve(self, *, port=0, **models):
            served = Served(Library(models or {"translator": translator}), port=port)
            opened.append(served.stop)
            return served

        def page(self, served, **how):
            page = Page(browser, served, reduced_motion="reduce", **how)
            opened.append(page.leave)
            return page

    yield Room()
    for close in reversed(opened):
        close()


def typed(page, text):
    """Type a sentence into the landing's field, and go to a place in its walk; return the address."""
    page.tab.goto(page.served.at)
    page.tab.get_by_label("your own sentence").fill(text)
    page.tab.get_by_label("your own sentence").press("Enter")
    page.tab.locator(".tabs").wait_for()
    run = re.search(r"/s/(s[0-9a-f]{12})/", page.settled().url)[1]
    page.turn("walk", run, **PLACE)
    return page.tab.url


def words(page):
    """Return what the screen shows as text."""
    return page.settled().locator("main").inner_text()


def test_the_address_holds_the_sentence_on_every_screen(room):
    served = room.serve()
    page = room.page(served)
    typed(page, TEXT)
    for screen in ("Heads", "Alignment", "Map"):
        page.tab.get_by_role("link", name=screen, exact=True).click()
        assert page.settled().url.endswith(f"/{screen.lower()}#model=translator&text=How%20are%20you%3F") or (
            "#model=translator&text=How%20are%20you%3F" in page.tab.url
        )
    links = page.tab.locator(".tabs a").evaluate_all("links => links.map((link) => link.href)")
    assert all(link.endswith("#model=translator&text=How%20are%20you%3F") for link in links)
    # Neither a worked example nor the landing has a text behind its address.
    page.open("walk", "example-bank")
    assert "#" not in page.tab.url
    page.tab.get_by_label("Telescope: all lessons").click()
    page.tab.get_by_role("heading", name="Look inside attention").wait_for()
    assert page.tab.url == served.at + "/"
    page.assert_quiet()


def test_a_link_works_after_a_restart_and_on_another_machine(room):
    served = room.serve()
    page = room.page(served)
    address = typed(page, TEXT)
    seen = words(page)
    # After a restart the page that is still open goes on, and so does its reload.
    served.stop()
    again = room.serve(port=served.port)
    page.served = again
    page.tab.get_by_role("link", name="Heads", exact=True).click()
    page.tab.get_by_role("heading", name="All heads").wait_for()
    page.tab.go_back()
    assert words(page) == seen
    page.complaints.clear()  # of the connection that broke, and of a run that was unknown at first
    page.tab.goto("about:blank")
    page.tab.goto(address)
    assert (words(page), page.tab.url) == (seen, address)
    page.assert_quiet()
    # Another machine has another address, and no run.
    other = room.serve()
    there = room.page(other)
    there.tab.goto(address.replace(served.at, other.at))
    assert words(there) == seen
    there.assert_quiet()


def test_a_sentence_in_hand_written_links(room):
    page = room.page(room.serve())
    page.tab.goto(f"{page.served.at}/s/-/alignment#text=Good%20morning.")
    assert "Guten Morgen" in page.settled().locator(".wrote").inner_text().replace("\n", " ")
    assert re.search(r"/s/s[0-9a-f]{12}/alignment#model=translator&text=Good%20morning\.$", page.tab.url)
    page.assert_quiet()


@pytest.mark.parametrize("how", ["mouse", "keyboard", "touch"])
def test_a_model_that_is_not_here_is_named(room, how):
    page = room.page(room.serve(one=writers.learnt(), two=writers.gpt(max_positions=64)), has_touch=how == "touch")
    page.tab.goto(f"{page.served.at}/s/s0123456789ab/walk?l=1#model=folder/grown&text=Good%20morning.")
    alert = page.tab.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text() == "This link was made with the model grown, which is not here; here are one, two."
    button = page.tab.get_by_role("button", name="Open it with one")
    if how == "keyboard":
        button.focus()
        page.tab.keyboard.press("Enter")
    else:
        (button.tap if how == "touch" else button.click)()
    page.tab.locator(".walk").wait_for()
    assert "#model=one&text=Good%20morning." in page.settled().url
    page.assert_quiet()


def test_a_lesson_opens_with_the_model_of_its_kind(room):
    page = room.page(room.serve(mine=writers.learnt(), other=writers.gpt(max_positions=64)))
    page.tab.goto(f"{page.served.at}/s/s0123456789ab/alignment?card=translate&at=1#model=theirs&text=Good%20morning.")
    page.tab.locator(".alignment, main h2").first.wait_for()
    url = page.settled().url
    assert "card=translate&at=1#model=mine&text=" in url
    assert page.tab.locator(".lesson .caption").inner_text()
    page.assert_quiet()


def test_a_sentence_that_is_too_long_is_explained(room):
    page = room.page(room.serve(gpt=writers.gpt(max_positions=8)))
    page.tab.goto(f"{page.served.at}/s/s0123456789ab/walk#model=gpt&text={'to%20be%20' * 20}")
    alert = page.tab.get_by_role("alert")
    alert.wait_for()
    assert re.fullmatch(r"The text has \d+ tokens; at most 8 can be read at once\.", alert.inner_text())
    page.complaints.clear()  # the refusal
    field = page.tab.get_by_label("the sentence of this address")
    field.fill("to be")
    field.press("Enter")
    page.tab.locator(".walk").wait_for()
    assert "text=to%20be" in page.settled().url
    page.assert_quiet()


def test_an_address_of_an_older_version_asks_for_its_sentence(room):
    served = room.serve()
    address = typed(room.page(served), TEXT)
    run = re.search(r"/s/(s[0-9a-f]{12})/", address)[1]
    other = room.serve()
    page = room.page(other)
    page.tab.goto(other.at + page.path("walk", run, **PLACE))
    alert = page.tab.get_by_role("alert")
    alert.wait_for()
    assert "it comes from an older version" in alert.inner_text()
    page.complaints.clear()  # of the run that is unknown
    # Another sentence opens as itself, and this one at the place that the address names.
    page.tab.get_by_label("the sentence of this address").fill(TEXT)
    page.tab.get_by_role("button", name="Open", exact=True).click()
    page.tab.locator(".walk").wait_for()
    assert page.settled().url == address.replace(served.at, other.at)
    page.assert_quiet()


def test_a_long_text_is_in_its_address(room):
    """As long as a model reads: it is behind the #, which is not sent with a request."""
    served = room.serve(gpt=writers.gpt(max_positions=4096))
    page = room.page(served)
    page.tab.goto(f"{served.at}/s/-/map#model=gpt&text={'%74%6f%20%62%65%20' * 680}")
    page.tab.locator("main canvas").first.wait_for()
    (run,) = served.library.sentences.describe(None)
    assert (run.text, run.attentions[0].n_q) == ("to be " * 680, 4080)
    assert page.settled().url == f"{served.at}/s/{run.run}/map#model=gpt&text={'to%20be%20' * 680}"
    assert max(len(url.partition("#")[0]) for url in page.asked) < 300
    page.assert_quiet()


# --------------------------------------------------------------------------------------------------------- the token


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_who_has_no_token_is_asked_for_it(room, browser, theme):
    served = room.serve()
    address = typed(room.page(served), TEXT)
    stranger = browser.new_context(viewport={"width": 375, "height": 667}, color_scheme=theme, has_touch=True)
    tab = stranger.new_page()
    tab.goto(address)
    field = tab.get_by_label("Token")
    assert field.evaluate("(field) => field === document.activeElement")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    field.fill("wrong")
    tab.get_by_role("button", name="Open the page").tap()
    assert "This is not the token." in tab.get_by_role("alert").inner_text()
    # With the token the reader is where the address led, and the text behind the # was not lost.
    tab.get_by_label("Token").fill(TOKEN)
    tab.keyboard.press("Enter")
    tab.locator(".walk").wait_for()
    assert tab.url == address
    assert {cookie["name"] for cookie in stranger.cookies()} == {
        f"telescope-{served.port}",
        f"telescope-{served.port}-browser",
    }
    assert tab.evaluate("document.cookie") == ""
    tab.goto("about:blank")


def test_a_list_is_a_browsers_own(room):
    served = room.serve()
    one, two = room.page(served), room.page(served)
    address = typed(one, TEXT)
    typed(two, "I am tired.")
    runs = "async () => (await (await fetch('/api/v1/runs')).json()).runs.map((run) => run.text)"
    assert one.tab.evaluate(runs) == [TEXT]
    assert two.tab.evaluate(runs) == ["I am tired."]
    # A link carries the sentence: whoever opens it has it in the own list from then on.
    two.tab.goto(address)
    two.settled()
    assert two.tab.evaluate(runs) == [TEXT, "I am tired."]
    assert len(served.library.sentences.describe(None)) == 2
    for page in (one, two):
        page.assert_quiet()
