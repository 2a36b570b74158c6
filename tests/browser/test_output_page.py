"""Output: one token is drawn, a text is written on, by mouse, keyboard and finger; a link draws the same again."""

import re

import pytest

from support.browsing import Page, Served
from support.exploring import got
from telescope.explorer.library import Library

LINES = """(selector) => [...document.querySelectorAll(selector)].flatMap(one => {
    const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), broken = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      for (const { 0: word, index } of node.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word);
      }
    }
    return broken; })"""
TEXT = "The astronomers of the old observatory discovered a new comet."


@pytest.fixture(scope="module")
def only_page(browser):
    served = Served(Library())
    served.run = served.library.read(TEXT, "translator-en-de").name
    served.gpt = served.library.read("ROMEO: What is fortune's reward?\n", "shakespeare").name
    page = Page(browser, served, reduced_motion="reduce", has_touch=True)
    yield page
    page.leave()
    served.stop()


@pytest.fixture
def narrow(page):
    page.tab.set_viewport_size({"width": 375, "height": 800})
    yield page
    page.tab.set_viewport_size({"width": 1280, "height": 800})


def drawn(tab):
    mark = tab.locator(".drawn-text mark")
    mark.first.wait_for()
    return mark.all_inner_texts()


def test_a_word_is_drawn_and_drawn_again_by_its_link(page, served):
    """The seed is shown and in the address; the numbers of the sentence are those of the API."""
    tab = page.open("output", i=3, temperature=2)
    assert tab.locator(".drawn-text").count() == 0
    tab.get_by_role("button", name="draw a word").click()
    tab.wait_for_url("**seed=*")
    page.settled()
    seed = int(re.search(r"seed=(\d+)", tab.url)[1])
    assert tab.get_by_label("seed").input_value() == str(seed)
    wanted = got(page.served.api, f"/runs/{page.served.run}/draw", i=3, temperature=2, seed=seed)["drawn"]
    assert drawn(tab) == [wanted["append"] if wanted["append"].strip() else wanted["text"]]
    said = tab.locator(".drawing [role=status]").inner_text()
    assert said.startswith("Die Astronom der")
    numbers = [float(one) for one in re.findall(r"\d\.\d+", said.split("is ", 1)[1])]
    assert numbers[0] == pytest.approx(wanted["u"], rel=1e-6)
    assert numbers[-1] == pytest.approx(wanted["below"] + wanted["p"], rel=1e-6)
    text = drawn(tab)
    tab.goto(tab.url)  # as whoever gets the link
    page.settled()
    assert drawn(tab) == text


def test_a_seed_is_typed(page):
    tab = page.open("output", i=3, seed=1)
    first = drawn(tab)
    field = tab.get_by_label("seed")
    field.fill("4")
    field.press("Enter")
    tab.wait_for_url("**seed=4*")
    page.settled()
    wanted = got(page.served.api, f"/runs/{page.served.run}/draw", i=3, seed=4)["drawn"]
    assert [text.strip() for text in drawn(tab)] == [wanted["text"]]
    field.fill("many")
    field.press("Enter")
    assert field.input_value() == "4"
    assert first


def test_a_translator_says_why_it_does_not_write_on(narrow):
    """Drawing works with a finger, too."""
    tab = narrow.open("output", i=0)
    assert tab.get_by_role("button", name="write on").count() == 0
    assert "it has written until its sentence ended" in tab.locator(".drawing").inner_text()
    tab.get_by_role("button", name="draw a word").tap()
    tab.wait_for_url("**seed=*")
    narrow.settled()
    assert len(drawn(tab)) == 1


def test_a_text_is_written_on(page):
    """By the keyboard; every token is marked, and the link writes the same."""
    tab = page.open("output", page.served.gpt, temperature=0.8)
    tab.get_by_label("for how many words").select_option("8")
    tab.get_by_role("button", name="write on").press("Enter")
    tab.wait_for_url("**words=8*")
    tab.locator(".drawing [role=status]").wait_for()
    seed = int(re.search(r"seed=(\d+)", tab.url)[1])
    wanted = got(page.served.api, f"/runs/{page.served.gpt}/write", seed=seed, temperature=0.8)["drawn"]
    shown = drawn(tab)
    assert [text.replace("↵\n", "\n") for text in shown][:16] == [one["append"] for one in wanted][: len(shown)]
    assert len("".join(shown).replace("↵", " ").split()) == 8
    assert tab.locator(".drawing [role=status]").inner_text().startswith("8 words in ")
    tab.goto(tab.url)
    tab.locator(".drawing [role=status]").wait_for()
    assert drawn(tab) == shown
    tab.get_by_role("button", name="run this text").click()
    tab.wait_for_function("(old) => !location.pathname.includes(old)", arg=page.served.gpt)
    page.settled()
    read = page.served.library.run(re.search(r"/s/([^/]+)/", tab.url)[1]).text
    assert read.endswith("".join(shown).replace("↵\n", "\n"))


def test_writing_is_stopped(page):
    """What is written by then stays, and the link is that of it."""
    tab = page.open("output", page.served.gpt)
    asked = []

    def hold(route):  # all but the first of its requests
        asked.append(route)
        if len(asked) == 1:
            route.continue_()

    tab.route("**/write?*", hold)
    tab.get_by_label("for how many words").select_option("64")
    tab.get_by_role("button", name="write on").click()
    tab.locator(".drawn-text mark").first.wait_for()
    tab.get_by_role("button", name="stop").click()
    for route in asked[1:]:
        route.continue_()
    tab.unroute("**/write?*")
    tab.locator(".drawing [role=status]").wait_for()
    shown = drawn(tab)
    tab.wait_for_url(re.compile(r"words=(?!64)\d"))
    words = int(re.search(r"words=(\d+)", tab.url)[1])
    assert 0 < words < 64
    tab.wait_for_timeout(700)
    assert drawn(tab) == shown


def test_what_follows_any_token_of_a_gpt(page):
    """A token that was read is chosen by a click; what follows it in the text is marked in the list."""
    tab = page.open("output", page.served.gpt)
    assert tab.get_by_role("button", name="append").count() == 10
    tab.locator("[aria-label='behind which token'] button").nth(3).click()
    tab.wait_for_url("**i=3*")
    page.settled()
    answer = got(page.served.api, f"/runs/{page.served.gpt}/output", i=3)
    assert tab.locator("tr.chosen .token").inner_text().split() == [answer["chosen"], "in", "the", "text"]
    assert tab.get_by_role("button", name="append").count() == 0  # in the middle of a text nothing is appended


@pytest.mark.parametrize("width", [375, 1024])
@pytest.mark.parametrize("screen", ["output", "alignment", "sources", "heads", "walk"])
def test_no_word_is_broken(page, width, screen):
    page.tab.set_viewport_size({"width": width, "height": 800})
    tab = page.open(screen, i=8, first=13, end=15, hide="0-2")
    selector = ".words button, .token, .pairs td:first-child, .wrote button, .ledger .pick, .ranked .name, .drawn-text"
    assert tab.locator(".words button, .ribbons g").count() > 5
    assert tab.evaluate(LINES, selector) == []
    page.tab.set_viewport_size({"width": 1280, "height": 800})


def test_the_tab_that_is_shown_is_in_view(narrow):
    for screen in ("walk", "alignment", "sources", "output", "positions"):
        tab = narrow.open(screen)
        bar, own = (tab.locator(one).bounding_box() for one in (".tabs", ".tabs [aria-current]"))
        assert bar["x"] - 1 <= own["x"], screen
        assert own["x"] + own["width"] <= bar["x"] + bar["width"] + 1, screen
        assert tab.evaluate("scrollY") == 0


def test_axe_finds_nothing_where_text_is_drawn(page):
    page.check_by_axe([page.path("output", i=3, seed=4), page.path("output", page.served.gpt, seed=4, words=4)])


def test_tokens_that_go_on_with_a_word_are_told_from_new_words(page):
    """By the dot of the word pickers: behind a letter, a token without a space goes on."""
    run = page.served.library.read("Two astronomers are playing chess.", "translator-en-de").name
    for i in (0, 2):
        tab = page.open("output", run, i=i)
        candidates = page.served.api.ask(f"/runs/{run}/output", i=i)["candidates"]
        goes_on = [i > 0 and one["append"][:1].isalnum() for one in candidates]
        shown = tab.locator(".next td.token").evaluate_all("all => all.map(one => one.firstChild.textContent)")
        assert [text.startswith("·") for text in shown] == goes_on
        assert any(goes_on) == (i > 0)
        assert ("goes on with the word" in tab.locator(".output").inner_text()) == any(goes_on)
    page.assert_quiet()
