"""Sources on the page: choose words, by mouse and keyboard; hide a segment; a long text with its minimap."""

import json
import re
from time import perf_counter

import pytest
import torch

import telescope as ts
from support import writers
from support.browsing import Page, Served
from support.exploring import recorded
from telescope.explorer.library import Library

AXE_TAGS = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}"
LONG = 100_000


@pytest.fixture(scope="module")
def asked(browser):
    served = Served(Library({"translator": writers.learnt(), "gpt": writers.gpt(max_positions=64)}))
    served.run = served.library.read("How are you?", "translator").name
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    yield page
    page.leave()
    served.stop()


def shares(tab):
    """Return the share of each part in the ranked list, with all digits."""
    title = "all => all.map(one => Number(one.title.split(';')[0].replace('−', '-')))"
    return tab.locator(".ranked td.now").evaluate_all(title)


def test_chosen_words_have_the_numbers_of_sources(asked):
    """By a click, by Shift and an arrow key, and by a button; the ranked list is that of `recording.sources`."""
    tab = asked.open("sources")
    output = asked.served.library.run(asked.served.run).output
    with ts.watch(output.model, keep="queries-keys") as recording, torch.no_grad():
        output.model(torch.tensor([list(output.source)]), torch.tensor([list(output.ids)]))
    view = next(view for view in asked.served.library.run(asked.served.run).views if view.call.across)
    segments, words = list(view.columns.word_ids), tab.locator(".answer-words button")

    def wanted(first, end):
        return [row.share for row in recording.sources((first, end), segments=segments)]

    words.nth(0).click()
    tab.wait_for_function("() => location.search.includes('first=1&')")
    asked.settled()
    first, end = (int(re.search(rf"{name}=(\d+)", tab.url)[1]) for name in ("first", "end"))
    assert shares(tab) == pytest.approx(wanted(first, end), abs=1e-6)
    words.nth(0).press("Shift+ArrowRight")
    asked.settled()
    tab.wait_for_function("(end) => Number(location.search.match(/end=(\\d+)/)[1]) > end", arg=end)
    longer = int(re.search(r"end=(\d+)", tab.url)[1])
    assert shares(tab) == pytest.approx(wanted(first, longer), abs=1e-6)
    assert tab.locator(".answer-words [aria-pressed=true]").count() == 2
    tab.get_by_role("button", name="+ the word after").click()
    asked.settled()
    assert tab.locator(".answer-words [aria-pressed=true]").count() == 3
    lit = tab.locator(".from-text span[title]").evaluate_all("all => all.map(one => Number(one.title))")
    assert sum(lit) == pytest.approx(sum(shares(tab)), abs=1e-6)
    asked.assert_quiet()


def test_hide_this_one_runs_the_model_again(asked):
    tab = asked.open("sources", first=1, end=3)
    tab.get_by_role("button", name="hide this one").first.click()
    tab.locator(".hidden-one dl").wait_for()
    asked.settled()
    start, stop = re.search(r"hide=(\d+)-(\d+)", tab.url).groups()
    answer = asked.served.api.ask(f"/runs/{asked.served.run}/hidden", first=1, end=3, start=start, stop=stop)
    fall = float(tab.locator("[data-fall]").get_attribute("title").replace("−", "-"))
    assert fall == pytest.approx(answer["before"] - answer["after"], abs=1e-6)
    assert "Wie geht es dir?" in tab.locator(".wrote-now").inner_text()
    assert tab.locator(".from-text .away").count() == 1
    tab.get_by_role("button", name="show it again").press("Enter")
    tab.locator(".hidden-one").wait_for(state="detached")
    assert "hide=" not in tab.url
    asked.assert_quiet()


def test_every_how_is_a_switch(asked):
    tab = asked.open("sources", first=1, end=3)
    for how in ("carried", "rollout", "gradient", "hidden"):
        tab.get_by_role("button", name=how, exact=True).click()
        tab.wait_for_url(f"**via={how}**")
        asked.settled()
        rows = asked.served.api.ask(f"/runs/{asked.served.run}/sources", first=1, end=3, how=how, by="words")["rows"]
        assert (how, shares(tab)) == (how, pytest.approx([row["share"] for row in rows], abs=1e-6))
    asked.assert_quiet()


def test_a_layer_and_a_head_of_it_are_chosen(asked):
    """The shares are those of the head alone, and the address keeps the choice."""
    tab = asked.open("sources", first=1, end=3)
    views = asked.served.library.run(asked.served.run).views
    layer = max(at for at, view in enumerate(views) if view.call.across)
    layers, heads = (tab.locator("main .labelled", has_text=name).locator("select") for name in ("layer", "head"))
    layers.select_option(str(layer))
    tab.wait_for_url(f"**sl={layer}**")
    heads.select_option("1")
    tab.wait_for_url("**sh=1**")
    asked.settled()
    path = f"/runs/{asked.served.run}/sources"
    rows = asked.served.api.ask(path, first=1, end=3, how="weights", by="words", l=layer, h=1)["rows"]
    every = asked.served.api.ask(path, first=1, end=3, how="weights", by="words")["rows"]
    assert [row["share"] for row in rows] != [row["share"] for row in every]
    assert shares(tab) == pytest.approx([row["share"] for row in rows], abs=1e-6)
    tab.reload()
    asked.settled()
    assert shares(tab) == pytest.approx([row["share"] for row in rows], abs=1e-6)
    layers.select_option("")
    asked.settled()
    assert shares(tab) == pytest.approx([row["share"] for row in every], abs=1e-6)
    asked.assert_quiet()


def test_a_gpt_shows_the_next_word(asked):
    run = asked.served.library.read("To be, or not", "gpt").name
    tab = asked.open("sources", run)
    assert tab.locator(".answer-words .unread[aria-pressed=true]").count() == 1
    tab.get_by_role("button", name="hide this one").first.click()
    tab.get_by_text("it goes on").wait_for()
    assert "␣" not in tab.locator(".wrote-now").inner_text()
    asked.settled()
    asked.assert_quiet()


@pytest.mark.parametrize(
    ("query", "says"),
    [({"first": 1, "end": 99}, "is not in the text"), ({"first": 2, "end": 2}, "holds no token")],
)
def test_a_span_that_does_not_fit_is_said(asked, query, says):
    tab = asked.open("sources", **query)
    assert says in tab.locator("main .failure").inner_text()
    asked.complaints.clear()  # the browser reports the status of the answer
    tab.locator(".answer-words button").first.click()
    tab.locator(".ranked").wait_for()
    asked.settled()


def test_a_recording_of_summaries_names_the_flag(browser):
    served = Served(Library({}))
    served.run = served.library.add(recorded(60, keep="summaries"), "small", "1").name
    page = Page(browser, served, reduced_motion="reduce")
    tab = page.open("sources")
    assert re.search(
        r"telescope watch --keep queries-keys, or ts.watch\(keep=", tab.locator("main .failure").inner_text()
    )
    page.assert_quiet()
    page.leave()
    served.stop()


def test_a_text_of_100_000_tokens(browser):
    """The first picture, the zoom by wheel and keys, the text that follows; answers stay small at any length."""
    words = [" light", " of", " a", " star", " takes", " years", ".", " It", " was", " seen", " by", " nobody", ".\n"]
    served = Served(Library({}))
    served.run = served.library.add(recorded(LONG, heads=1, d=8, tokens=words), "long", "1").name
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    sizes = []
    page.tab.on("response", lambda answer: sizes.append((answer.url, int(answer.headers.get("content-length", 0)))))
    began = perf_counter()
    tab = page.open("sources", first=LONG - 20, end=LONG - 10)
    tab.locator(".minimap canvas").wait_for()
    assert perf_counter() - began < 60
    ranges = tab.locator(".minimap-bar")
    assert "of 99,980" in ranges.inner_text()
    tab.locator(".minimap").focus()
    for _ in range(3):
        tab.keyboard.press("+")
    tab.wait_for_url("**low=**")
    page.settled()
    low, high = (int(re.search(rf"{name}=(\d+)", tab.url)[1]) for name in ("low", "high"))
    assert 0.08 * LONG < high - low < 0.2 * LONG
    answer = served.api.ask(
        f"/runs/{served.run}/sources", first=LONG - 20, end=LONG - 10, by="auto", window=400, low=low, high=high
    )
    assert f"the text below is {answer['start']:,} to {answer['stop'] - 1:,}" in ranges.inner_text()
    box = tab.locator(".minimap").bounding_box()
    tab.mouse.move(box["x"] + 100, box["y"] + 40)
    tab.mouse.wheel(0, -400)
    tab.wait_for_function("(old) => !location.search.includes(old)", arg=f"high={high}")
    page.settled()
    tab.get_by_role("button", name="all", exact=True).click()
    tab.wait_for_function("() => !location.search.includes('low=')")
    page.settled()
    assert max(size for url, size in sizes if "/sources" in url) < 150_000
    assert len(json.dumps(answer)) < 150_000
    page.assert_quiet()
    page.leave()
    served.stop()
