"""Saved files: a drawing that is XML, a picture that is not blank, a page from disk with the same numbers."""

import re
from struct import unpack
from xml.etree import ElementTree
from zlib import decompress

from support.browsing import SCREENS
from telescope.explorer.notebook import StaticPage


def save(tab, label, to):
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as waited:
        tab.get_by_role("button", name=label).click()
    waited.value.save_as(to)
    return to


def colours(png):
    """Count the different bytes at every 97th pixel: enough to tell a picture from an empty one."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed = 8, b""
    while at < len(png):
        (length,), kind = unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    rows = decompress(packed)
    return {rows[i : i + 4] for i in range(0, len(rows), 97)}


def test_a_drawing_and_a_picture(page, tmp_path):
    page.open("walk", step="softmax")
    for screen in SCREENS:
        tab = page.turn(screen, step="softmax")
        root = ElementTree.parse(save(tab, "Drawing", tmp_path / "view.svg")).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        said = " ".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))
        assert tab.locator("main h2").first.inner_text() in said
        assert "man" in said or screen == "map"
        # The caption names sentence, model, layer and head, or that the heads' mean is shown.
        assert (", head " in said) == (screen not in ("sources", "alignment"))
        assert (", mean of 4 heads" in said) == (screen == "alignment")
        assert not re.search("What if|▶ play|words pieces|mean of all heads head", said)  # no controls
        picture = save(tab, "Picture", tmp_path / "view.png").read_bytes()
        assert len(colours(picture)) > 20


TURNED = """() => [...document.querySelectorAll(".matrix .columns span")].map(one => {
    const [box, root] = [one, document.querySelector("main")].map(it => it.getBoundingClientRect());
    return [one.textContent, box.left - root.left, box.bottom - root.top]; })"""
DRAWN = """(text) => {
    document.body.innerHTML = "<p></p>";
    document.querySelector("p").replaceWith(new DOMParser().parseFromString(text, "image/svg+xml").documentElement);
    const svg = document.querySelector("svg"), root = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("g[transform*=matrix] text")].map(one => {
      const box = one.getBoundingClientRect();
      return [one.textContent, box.left - root.left, box.bottom - root.top]; }); }"""


def test_headings_are_turned_in_a_drawing_as_on_the_page(page, browser, served, tmp_path):
    """The heading of each column of Alignment stands in the drawing where it stands on the page, to a few pixels."""
    tab = page.open("alignment", served.runs["How are you?"].name)
    headings = {text: place for text, *place in tab.evaluate(TURNED)}
    assert len(headings) == 5
    drawing = save(tab, "Drawing", tmp_path / "view.svg").read_text()
    other = browser.new_page()
    drawn = {text: place for text, *place in other.evaluate(DRAWN, drawing)}
    assert {*drawn} == {*headings}
    for text, (left, bottom) in headings.items():
        # Boxes of turned text follow its line height on the page, and its letters in the drawing.
        assert abs(drawn[text][0] - left) < 8, text
        assert abs(drawn[text][1] - bottom) < 8, text
    assert not page.tab.evaluate(
        "() => [...document.querySelectorAll('.columns span')].some(one => one.style.transform)"
    )


def test_a_page_from_disk_has_the_same_numbers(page, browser, served, tmp_path):
    """It opens at the same state, has every screen, and sends no request."""
    run = served.runs["Good morning."].name
    tab = page.open("alignment", run, l=0, h=1, word=1)
    shown = tab.locator("output").first.inner_text()
    tab = page.turn("positions", run, l=0, h=1, i=3)
    placed = tab.locator("main td[title]").evaluate_all("all => all.map(one => one.title)")
    tab = page.turn("walk", run, l=0, h=1, i=3, word=1, step="softmax")
    numbers = tab.locator("td[title]").evaluate_all("all => all.map(one => one.title)")
    file = save(tab, "Page that opens", tmp_path / "saved.html")
    tab = browser.new_page(offline=True)
    complaints, requests = [], []
    tab.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    tab.on("pageerror", lambda problem: complaints.append(str(problem)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(file.as_uri())
    tab.locator('.walk[data-step="softmax"][data-at="0/1/3"]').wait_for()
    assert tab.locator("td[title]").evaluate_all("all => all.map(one => one.title)") == numbers
    assert tab.get_by_role("button", name=re.compile("Run|What if|append")).count() == 0  # only what it holds
    for screen, heading in (
        ("Positions", "Where"),
        ("Heads", "All heads"),
        ("Geometry", "Before"),
        ("Alignment", "Which"),
        ("Map", "The whole"),
    ):
        tab.get_by_role("link", name=screen).click()
        tab.get_by_role("heading", name=heading).wait_for()
        assert tab.locator("main .failure").count() == 0
        if screen == "Positions":
            tab.locator("main td[title]").first.wait_for()
            assert tab.locator("main td[title]").evaluate_all("all => all.map(one => one.title)") == placed
        if screen == "Alignment":
            tab.locator("output").first.wait_for()
            assert tab.locator("output").first.inner_text() == shown
    tab.reload()
    tab.get_by_role("heading", name="The whole").wait_for()
    tab.locator('.quality[data-exact="1"]').wait_for()
    tab.get_by_label("query", exact=True).fill("2")
    tab.get_by_label("key", exact=True).fill("1")
    tab.keyboard.press("Enter")
    tab.locator("output", has_text="query 2").wait_for()
    weight = served.api.ask(f"/runs/{run}/cell", l=0, h=1, i=2, j=1)["p"]
    assert f"weight {weight:.7g} " in tab.locator("output").inner_text()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []


def test_a_page_in_a_sandboxed_frame(browser, served, tmp_path):
    """As a notebook without anywidget shows it: without an address and without storage the page works."""
    still = StaticPage(served.api, served.runs["Good morning."], 0)._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{still}", encoding="utf-8")
    tab = browser.new_page()
    complaints = []
    tab.on("pageerror", lambda problem: complaints.append(str(problem)))
    tab.goto((tmp_path / "notebook.html").as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator(".walk").wait_for()
    frame.get_by_role("button", name=re.compile("softmax")).click()
    frame.get_by_role("heading", name="Scores become shares").wait_for()
    frame.get_by_role("link", name="Heads").click()
    frame.get_by_role("heading", name="All heads").wait_for()
    assert complaints == []
