"""What single numbers are made of, what each head adds, and the way of a vector: on the page, compared with Python."""

import pytest
import torch

from support.browsing import Page

TITLES = """(selector) => [...document.querySelectorAll(selector)]
  .map((cell) => Number(cell.title.replace("−", "-")))"""


@pytest.fixture
def translation(served):
    return served.runs["How are you?"]


def check_products(tab, product):
    """Check the products of a row and a column, those that are shown, what is left, the bias and the sum."""
    row, column = (torch.tensor(product[name], dtype=torch.float64) for name in ("row", "column"))
    shown = [int(text) for text in tab.locator(".row-column tbody tr td:first-child").all_inner_texts()]
    for at, name in enumerate((row, column, row * column), 2):
        numbers = torch.tensor(tab.evaluate(TITLES, f".row-column tbody td:nth-child({at})"), dtype=torch.float64)
        torch.testing.assert_close(numbers, name[shown], rtol=1e-6, atol=1e-9)
    totals = tab.evaluate(TITLES, ".row-column tfoot td[title]")
    assert totals[-1] == pytest.approx(product["sum"], rel=1e-6)
    rest = float((row * column).sum() - (row * column)[shown].sum())
    left = [rest] * (len(shown) < len(row)) + [product["bias"]] * (product["bias"] is not None)
    assert totals[:-1] == pytest.approx(left, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("of", "place"), [("q", "i"), ("k", "j"), ("v", "j")])
def test_a_number_is_a_row_times_a_column(page, served, translation, of, place):
    tab = page.open("walk", translation.name, pieces=1, l=1, h=1, i=1, step="qkv")
    if of == "q":
        tab.get_by_role("slider", name="query of").focus()
        tab.keyboard.press("ArrowRight")
    else:
        tab.get_by_role("application", name={"k": "keys: ", "v": "values: "}[of]).focus()
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowRight")
    tab.locator(".row-column").wait_for()
    page.settled()
    query = {"l": 1, "h": 1, "of": of, "m": 1, place: 1}
    check_products(tab, served.api.ask(f"/runs/{translation.name}/product", **query))


@pytest.mark.parametrize(("of", "matrix", "at"), [("query of", "W_q", 1), ("keys: ", "W_k", 0), ("values: ", "W_v", 0)])
def test_a_number_of_an_example_is_a_row_times_a_column(page, served, of, matrix, at):
    """By mouse, and by touch on a tablet: a tap is enough."""
    tab = page.open("walk", "example-journey", l=1, i=1, step="qkv")
    role = "slider" if matrix == "W_q" else "application"
    tab.get_by_role(role, name=of).tap(position={"x": 20, "y": 10})
    tab.locator(".row-column").wait_for()
    inputs = {one.name: torch.tensor(one.numbers) for one in served.library.run("example-journey").example.inputs}
    row, column = inputs["x"][at], inputs[matrix][:, 0]
    product = {"row": row.tolist(), "column": column.tolist(), "bias": None, "sum": float(row @ column)}
    check_products(tab, product)
    assert matrix in tab.locator(".row-column h3").inner_text()


def test_a_head_without_matrices_says_so(page):
    tab = page.open("walk", "example-journey", l=0, i=1, step="qkv")
    tab.get_by_role("slider", name="query of").focus()
    tab.get_by_text("No matrix stands between: q of journey is its x").wait_for()


def test_keys_of_a_cross_attention_say_why_they_have_no_row(page, translation):
    cross = next(at for at, view in enumerate(translation.views) if view.kind == "cross")
    tab = page.open("walk", translation.name, pieces=1, l=cross, h=0, i=1, step="qkv")
    tab.get_by_role("application", name="keys: ").focus()
    tab.get_by_text("made from the output of the encoder").wait_for()
    page.complaints.clear()  # the browser itself reports the 409


def test_the_numbers_of_a_short_context_stand_above_its_bars(page, served):
    context = served.library.run("example-journey").views[0].call.trace().context[0, 0, 1]
    for step in ("sum", "context"):
        tab = page.open("walk", "example-journey", l=0, i=1, step=step)
        shown = [float(text.replace("−", "-")) for text in tab.locator(".above-bars span").all_inner_texts()]
        assert shown == pytest.approx(context.tolist(), abs=5e-5)


def test_each_head_adds_its_part(page, served, translation):
    """The parts of a feature by arrow keys: their sum is what is added."""
    after = served.api.ask(f"/runs/{translation.name}/after", l=0, i=1)["mixed"]
    tab = page.open("walk", translation.name, pieces=1, l=0, h=0, i=1, step="after")
    strip = tab.get_by_role("slider", name="the sum, which is added")
    strip.focus()
    strip.press("ArrowRight")
    said = tab.locator(".mixed output").inner_text()
    assert said.startswith("feature 1:")
    assert float(said.rsplit("= ", 1)[1].replace("−", "-")) == pytest.approx(after["sum"][1], rel=1e-5)
    lengths = torch.tensor(after["parts"]).norm(dim=1)
    shown = tab.evaluate(TITLES.replace(".title", ".title.split(': ')[1]"), ".shares span")
    assert shown == pytest.approx(lengths.tolist(), rel=1e-5)


def stations(tab):
    return tab.evaluate(TITLES, ".stations .figures")


def test_a_vector_is_followed_by_mouse_and_keys(page, served, translation):
    flow = served.api.ask(f"/runs/{translation.name}/flow", l=1, i=1)
    tab = page.open("walk", translation.name, pieces=1, l=1, h=0, i=1, step="softmax")
    tab.get_by_role("button", name="follow a vector").click()
    page.settled()
    assert stations(tab) == pytest.approx([one["norm"] for one in flow["stations"]], rel=1e-6)
    current = tab.locator(".stations [aria-current]")
    assert "embedding" in current.inner_text()
    assert "embed" in tab.locator(".stack-of .flowing").inner_text()
    current.focus()
    for one in flow["stations"][1:]:
        tab.keyboard.press("ArrowRight")
        page.settled()
        said = tab.locator(".flow p[aria-live]")
        cosine = float(said.locator("b.figures").nth(1).get_attribute("title").replace("−", "-"))
        assert cosine == pytest.approx(one["cosine"], rel=1e-6)
        assert tab.evaluate("document.activeElement.ariaCurrent") == "step"
    # The last station of the encoder is its last network; its box in the drawing is marked.
    assert tab.locator(".stack-of .flowing").get_attribute("aria-label") == "feed-forward of encoder.1"
    tab.get_by_role("button", name="show it").click()
    tab.wait_for_url("**step=after**")


def test_a_feed_forward_network_is_clicked(page, served, translation):
    after = served.api.ask(f"/runs/{translation.name}/after", l=0, i=1)
    hidden = next(stage for stage in after["stages"] if stage["name"] == "hidden")
    tab = page.open("walk", translation.name, pieces=1, l=0, h=0, i=1, step="softmax")
    tab.get_by_role("button", name="feed-forward of encoder.0").tap()
    page.settled()
    shown = tab.evaluate(TITLES, ".feed-forward td[title]")
    assert shown == pytest.approx([one["value"] for one in hidden["largest"]], rel=1e-6)
    active = round(hidden["active"] * hidden["size"])
    assert f"{active} of them" in tab.locator(".feed-forward").inner_text()


def test_the_way_of_a_vector_fits_a_phone(browser, served, translation):
    phone = Page(browser, served, viewport={"width": 375, "height": 740}, has_touch=True, reduced_motion="reduce")
    tab = phone.open("walk", translation.name, l=0, i=1, step="softmax")
    tab.locator(".folded").tap()
    tab.get_by_role("button", name="follow a vector").tap()
    phone.settled()
    assert tab.get_by_role("button", name="play").count() == 0  # nothing moves by itself for who prefers that
    tab.get_by_role("button", name="next station").tap()
    assert "position" in tab.locator(".stations [aria-current]").inner_text()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    phone.assert_quiet()
    phone.leave()


def test_a_recording_has_no_way_of_a_vector(page, served):
    tab = page.open("walk", served.long, l=0, h=0, i=1)
    assert tab.get_by_role("button", name="follow a vector").count() == 0


def test_the_new_pictures_by_axe(page, translation):
    page.check_by_axe(
        [
            "/s/example-journey/walk?l=1&i=1&step=embedding",
            "/s/example-bank/geometry?i=1",
            f"/s/{translation.name}/walk?l=0&h=0&i=1&step=after",
        ]
    )


@pytest.mark.parametrize("l", [0, 1, 2])
def test_the_three_scores_of_luong_have_their_terms(page, served, l):  # noqa: E741
    """Dot, general and concat are chosen in the drawing; the terms of each sum to the score."""
    trace = served.api.ask("/runs/example-luong/trace", l=l, h=0, i=1)
    tab = page.open("walk", "example-luong", l=l, i=1, j=1, step="scores")
    assert tab.locator(".model .attention").count() == 3
    assert tab.locator(".model .attention[aria-pressed=true]").inner_text().endswith(trace["score"])
    terms = tab.locator(".products li span[title]").evaluate_all("all => all.map(one => +one.title.replace('−', '-'))")
    assert terms == pytest.approx(trace["terms"][1], rel=1e-6)
    assert sum(terms) == pytest.approx(trace["steps"][0]["numbers"][1], rel=1e-6)
    tab = page.turn("alignment", "example-luong", l=l, of="head")
    assert tab.locator(".model .attention[aria-pressed=true]").inner_text().endswith(trace["score"])
