"""The atlas on the page: scatter and grid, one head in full, its texts in Walk and Map, two atlases side by side."""

import json
import re
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

import telescope as ts
from support import mapping, writers
from support.browsing import Page, Served
from telescope.explorer.library import Library

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
AXE_RUN = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
SMALL = """() => [...document.querySelectorAll("main button, select, a")]
    .map(one => [one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.width < 24 || box.height < 24)).map(([text]) => text)"""
LINES = ["To be, or not to be, that is the question, to be.", "What is the city but the people? The people, the city."]


class AtlasPage(Page):
    def path(self, screen, run=None, **query):
        return f"/atlas/{screen}?{urlencode(query)}" if run is None else super().path(screen, run, **query)


@pytest.fixture(scope="module")
def mapped(browser, tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("atlases"), writers.gpt(max_positions=64)
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    ts.atlas(model, folder / "lines.jsonl", out=folder / "lines")
    ts.atlas(model, ["Now is the winter of our discontent made glorious summer."] * 2, out=folder / "other")
    wide = mapping.tiny_gpt(heads=32, d_model=64, blocks=32)
    ts.atlas(wide, mapping.corpus(1), tokenizer=mapping.Letters(), out=folder / "wide")
    library = Library({"gpt": model})
    for name in ("lines", "other", "wide"):
        library.open_atlas(folder / name)
    served = Served(library)
    page = AtlasPage(browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    page.atlas = ts.open(folder / "lines")
    yield page
    page.leave()
    served.stop()


def chosen(tab):
    """Return the layer and the number of the head that is shown in full."""
    return re.search(r"(blocks\.\d+\.self), head (\d+)", tab.locator(".atlas-head h3").first.inner_text()).groups()


def test_a_head_has_the_numbers_of_the_atlas(mapped):
    tab = mapped.open("lines", l=1, h=1)
    layer, number = chosen(tab)
    assert (layer, number) == ("blocks.1.self", "1")
    row = next(row for row in mapped.atlas.rows() if (row["layer"], row["head"]) == (layer, 1))
    names = tab.locator(".head-habits td:first-child").all_inner_texts()
    shown = tab.locator(".head-habits td.now").evaluate_all("all => all.map(one => Number(one.title))")
    assert len(names) >= 6
    assert shown == pytest.approx([row[name] for name in names], abs=1e-6)
    titles = "all => all.map(one => Number(one.title.split(': ')[1]))"
    bars = tab.locator(".bars").first.locator("span").evaluate_all(titles)
    assert bars == pytest.approx(list(mapped.atlas.profile(layer, 1).shares)[: len(bars)], abs=1e-6)
    tab.locator(".texts-head select").select_option("previous")
    mapped.settled()
    evidence = mapped.atlas.evidence(layer, 1, "previous")
    texts = tab.locator(".evidence li")
    assert texts.count() == len(evidence) > 0
    assert float(texts.first.locator("b").get_attribute("title")) == pytest.approx(evidence[0].share, abs=1e-6)
    mapped.assert_quiet()


def test_heads_are_chosen_by_mouse_and_keyboard(mapped):
    """In the grid, the place of a head is known: a click there chooses it, and an arrow key goes to its neighbour."""
    tab = mapped.open("wide", look="grid", l=0, h=0)
    box = tab.locator(".atlas-canvas").bounding_box()
    cell = (box["width"] - 124 - 8) / 32
    tab.mouse.click(box["x"] + 124 + 5.5 * cell, box["y"] + 26 + 2.5 * cell)
    tab.wait_for_url("**l=2&h=5**")
    mapped.settled()
    assert chosen(tab) == ("blocks.2.self", "5")
    tab.locator(".atlas-canvas").press("ArrowRight")
    tab.locator(".atlas-canvas").press("ArrowDown")
    mapped.settled()
    assert chosen(tab) == ("blocks.3.self", "6")
    tab.get_by_role("button", name="scatter").click()
    mapped.settled()
    entropy = {(head["layer"], str(head["head"])): head["entropy"] for head in answer(mapped, "wide")["heads"]}
    tab.locator(".atlas-canvas").press("ArrowUp")
    mapped.settled()
    higher = sorted(value for value in entropy.values() if value > entropy["blocks.3.self", "6"])
    assert entropy[chosen(tab)] == higher[0]
    mapped.assert_quiet()


def answer(mapped, name):
    return json.loads(mapped.served.api.answer("GET", f"/atlases/{name}", {}).body)


def test_1024_heads_stay_fluent(mapped):
    """The time from a key to the drawn picture, the median of twenty."""
    tab = mapped.open("wide", l=0, h=0)
    tab.locator(".atlas-canvas").focus()
    took = tab.evaluate(
        """async () => {
      const chart = document.querySelector(".atlas-canvas"), took = [];
      for (let at = 0; at < 20; at += 1) {
        const began = performance.now();
        chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        took.push(performance.now() - began);
      }
      return took.sort((a, b) => a - b);
    }"""
    )
    assert took[10] < 250, took
    mapped.settled()


@pytest.mark.parametrize("screen", ["Walk", "Map"])
def test_a_strong_text_opens(mapped, screen):
    """The whole text, from the corpus, at the head of the atlas; Back leads back."""
    tab = mapped.open("lines", l=1, h=1, habit="previous")
    address = tab.url
    strongest = mapped.atlas.evidence("blocks.1.self", 1, "previous")[0]
    tab.get_by_role("button", name=screen, exact=True).first.click()
    tab.wait_for_url(f"**/{screen.lower()}?l=1&h=1**")
    mapped.settled()
    run = mapped.served.library.run(tab.url.split("/s/")[1].split("/")[0])
    assert run.text == LINES[strongest.text]
    assert tab.locator("main .failure").count() == 0
    tab.go_back()
    tab.locator(".atlas-head").wait_for()
    assert tab.url == address
    mapped.settled()
    mapped.assert_quiet()


def test_the_picture_of_an_atlas_is_saved(mapped, tmp_path):
    """As a drawing that has a mark for each head, and as an image."""
    tab = mapped.open("lines", l=1, h=1)
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as waited:
        tab.get_by_text("Drawing", exact=False).first.click()
    waited.value.save_as(tmp_path / "atlas.svg")
    root = ElementTree.parse(tmp_path / "atlas.svg").getroot()
    assert root.tag.endswith("svg")
    texts = [text for one in root.iter() if (text := one.text or "")]
    assert any("entropy" in text for text in texts)
    mapped.assert_quiet()


def test_two_atlases_side_by_side(mapped):
    """The same axes and the same head in both, and what changed the most, as `ts.compare` has it."""
    tab = mapped.open("lines", other="other", l=0, h=1)
    assert tab.locator(".atlas-picture").count() == tab.locator(".atlas-head").count() == 2
    changes = json.loads(mapped.served.api.answer("GET", "/atlases/lines/compare/other", {}).body)["heads"]
    shown = tab.locator(".compared-heads td:nth-child(6)").evaluate_all(
        "all => all.map(one => Number(one.title.replace('−', '-')))"
    )
    assert shown == pytest.approx([one["change"] for one in changes[:24]], abs=1e-6)
    tab.locator(".compared-heads tbody button").first.click()
    mapped.settled()
    assert chosen(tab) == (changes[0]["layer"], str(changes[0]["number"]))
    mapped.assert_quiet()
    tab = mapped.open("lines", other="wide")
    assert "different shapes" in tab.locator("main .failure").inner_text()
    mapped.complaints.clear()


def test_an_unknown_atlas_is_said(mapped):
    tab = mapped.open("nowhere")
    assert "there are lines, other, wide" in tab.locator("main .failure").inner_text()
    mapped.complaints.clear()
    tab = mapped.open("lines", l=99, h=99, col="previous")
    assert tab.locator(".atlas-head .head-habits").count() == 1  # a head that does not exist is not chosen
    mapped.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_overflows(mapped, theme):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci --prefix web")
    mapped.tab.emulate_media(color_scheme=theme)
    for query in ({}, {"look": "grid"}, {"other": "other"}):
        tab = mapped.open("lines", **query)
        tab.evaluate(AXE.read_text())
        found = tab.evaluate(AXE_RUN)["violations"]
        assert (query, [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]) == (query, [])
        for width in (320, 768, 1440) if theme == "light" else ():
            tab.set_viewport_size({"width": width, "height": 900})
            tab.wait_for_timeout(60)
            wide = tab.evaluate("() => document.documentElement.scrollWidth")
            assert (query, width, wide <= width, tab.evaluate(SMALL)) == (query, width, True, [])
        tab.set_viewport_size({"width": 1280, "height": 900})
    mapped.assert_quiet()
