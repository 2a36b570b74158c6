"""All screens: nothing overflows, everything can be reached, every address leads back to the same view."""

import re

import pytest
import torch

from support.browsing import SCREENS

STEPS = ("tokens", "embedding", "qkv", "scores", "scaled", "mask", "softmax", "sum", "context")
SMALL = """() => [...document.querySelectorAll("main button, header button, select, a, [role=button]")]
    .map(one => [one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.width < 24 || box.height < 24)).map(([text]) => text)"""
SHOWN = """() => [document.querySelector("main").innerHTML,
    [...document.querySelectorAll("main canvas")].map(one => one.toDataURL())]"""
IN_VIEW = """one => {
    const [a, b] = [one, one.parentElement].map((it) => it.getBoundingClientRect());
    return b.top <= a.top && a.bottom <= b.bottom; }"""
WIDE = "() => document.documentElement.scrollWidth"


@pytest.fixture
def sized(page):
    """Return a function that sets the width of the window; it is restored afterwards."""
    yield lambda width: page.tab.set_viewport_size({"width": width, "height": 800})
    page.tab.set_viewport_size({"width": 1280, "height": 800})


def test_axe_finds_nothing(page):
    page.check_by_axe([page.path(screen, step="scores") for screen in SCREENS])


def test_nothing_overflows(page, sized):
    """On a phone, a tablet and a desktop; every control is large enough for a finger."""
    page.open("walk")
    for screen in SCREENS:
        tab = page.turn(screen, step="softmax")
        for width in (320, 768, 1440):
            sized(width)
            tab.wait_for_timeout(60)
            assert (screen, width, tab.evaluate(WIDE) <= width, tab.evaluate(SMALL)) == (screen, width, True, [])
            assert width > 320 or tab.locator("main").bounding_box()["y"] <= 120, screen


def test_a_phone_reaches_every_step_and_choice(page, sized):
    """Steps by a list and by two buttons; model, run, attention and head are unfolded from one line."""
    sized(320)
    tab = page.open("walk", l=0, h=0, i=1, step="tokens")
    steps = tab.get_by_label("step", exact=True)
    for step in STEPS:
        steps.select_option(step)
        page.settled()
        assert (step, tab.evaluate(WIDE) <= 320) == (step, True)
        assert tab.locator(f'.walk[data-step="{step}"]').count() == 1
    tab.get_by_role("button", name="previous step").tap()
    tab.locator('.walk[data-step="sum"]').wait_for()
    line = tab.locator(".folded")
    assert "layer 0, head 0" in line.inner_text()
    hidden = (".chips button", ".model .attention", ".which select", ".tools button")
    assert not any(tab.locator(one).first.is_visible() for one in hidden)
    line.press("Enter")
    assert all(tab.locator(one).first.is_visible() for one in hidden)
    assert tab.evaluate(WIDE) <= 320
    tab.locator(".chips button").nth(2).tap()
    tab.wait_for_url("**h=2**")
    assert "head 2" in line.inner_text()
    line.tap()
    assert not any(tab.locator(one).first.is_visible() for one in hidden)


@pytest.mark.parametrize("screen", SCREENS)
def test_an_address_leads_back(page, screen):
    """Loaded twice: the same address, the same words and drawings, the same pixels."""
    seen = []
    for _ in range(2):
        tab = page.open(screen, **SCREENS[screen])
        tab.wait_for_timeout(100)
        seen.append((tab.url, *tab.evaluate(SHOWN)))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) > 1000
    assert all(f"{name}={value}" in tab.url for name, value in SCREENS[screen].items())


def test_back_goes_back(page):
    tab = page.open("walk")
    for name in ("Heads", "Map"):
        tab.get_by_role("link", name=name).click()
        page.settled()
    assert "/map" in tab.url
    tab.go_back()
    tab.get_by_role("heading", name="All heads").wait_for()
    tab.go_back()
    tab.locator(".walk").wait_for()


def test_number_keys_open_the_screens(page):
    tab = page.open("walk")
    for key, heading in (
        ("2", "All heads"),
        ("3", "Before and after"),
        ("4", "Which"),
        ("5", "The whole matrix"),
        ("6", "Where an answer comes from"),
        ("8", "Where a word is"),
    ):
        tab.keyboard.press(key)
        tab.get_by_role("heading", name=heading).wait_for()


def test_two_readings_are_the_rows_of_the_heads(page, served):
    tab = page.open("heads", l=0, la=0, a=1, lb=0, b=3, i=2, pieces=1)
    looked = served.library.run(served.run).views[0]
    weights = looked.call.trace().weights[0, :, 2].double()
    for card, head in ((0, 1), (1, 3)):
        shown = tab.locator(".reading").nth(card).locator("td[title]").evaluate_all("all => all.map(a => +a.title)")
        largest = weights[head].topk(14).indices.sort().values
        assert shown[:14] == pytest.approx(weights[head][largest].tolist(), rel=1e-6)
        assert shown[14] == pytest.approx(1 - weights[head][largest].sum().item(), rel=1e-5)
    tab.get_by_role("button", name="layer 0, head 2", exact=True).first.click()
    tab.wait_for_url("**a=2**")


def test_the_table_of_habits(page, served):
    """A row for each head, sorted by layer or by any other column."""
    tab = page.open("heads", l=1, h=0)
    answer = [served.api.ask(f"/runs/{served.run}/heads", l=at)["habits"] for at in (1, 2)]
    first = [one["first"] for layer in answer for one in layer]
    rows = tab.locator(".habits tbody tr")
    assert rows.count() == len(first) == 8
    assert [rows.nth(at).locator("td").nth(1).inner_text() for at in range(4)] == [one["kind"] for one in answer[0]]
    tab.get_by_role("button", name="first").click()
    column = 2 + ["itself", "previous", "first"].index("first")
    shown = [float(rows.nth(at).locator("td").nth(column).get_attribute("title")) for at in range(8)]
    assert shown == sorted(first, reverse=True)


def test_cosines_are_those_of_the_full_vectors(page, served):
    tab = page.open("geometry", l=0, i=1, pieces=1)
    call = served.library.run(served.run).views[0].call
    before, after = (torch.nn.functional.normalize(x[0].double(), dim=-1) for x in (call.before, call.after))
    shown = tab.locator(".pairs tbody tr").first.locator("td[title]").evaluate_all("all => all.map(a => a.title)")
    nearest = (after @ after[1]).scatter(0, torch.tensor(1), -2.0).argmax()
    wanted = [(before @ before[1])[nearest], (after @ after[1])[nearest]]
    assert [float(x.replace("−", "-")) for x in shown] == pytest.approx([float(x) for x in wanted], rel=1e-6)


def test_points_move_with_the_slider(page, served):
    """From each token's position before attention to that after it, in a straight line."""
    places = "all => all.map(one => ['cx', 'cy'].map(name => Number(one.getAttribute(name))))"
    seen = {}
    for alpha in (0, 0.5, 1):
        tab = page.open("geometry", l=0, i=1, alpha=alpha, pieces=1)
        seen[alpha] = torch.tensor(tab.locator("svg.scatter circle.dot").evaluate_all(places))
    assert len(seen[1]) == served.library.run(served.run).views[0].size[0]
    assert (seen[1] - seen[0]).abs().max() > 3
    torch.testing.assert_close(seen[0.5], (seen[0] + seen[1]) / 2, atol=0.01, rtol=0)


def test_the_links_of_a_word_light_up_by_hover_focus_and_tap(page):
    tab = page.open("alignment")
    word = tab.locator("svg [role=button]", has_text="Fernrohr")
    output = tab.locator("output")
    word.hover()
    hovered = output.inner_text()
    tab.mouse.move(2, 2)
    word.focus()
    focused = output.inner_text()
    tab.locator("svg [role=button]").first.focus()
    word.tap()
    assert hovered == focused == output.inner_text()
    assert "Fernrohr" in hovered
    tab.wait_for_url("**word=*")
    assert not re.search(r"[?&]i=", tab.url)  # a word is no token, and chooses none on the other screens


def test_the_alignment_opens_at_the_sharpest_layer(page, served):
    """The page says so. A layer that the reader chose stays, with a link to the sharpest; other screens open the first
    layer."""
    run = served.library.read("Good morning.", "translator").name
    best = served.api.ask(f"/runs/{run}/sharpest")
    assert (best["l"], best["h"]) == (4, 1)  # not the first of anything
    tab = page.open("alignment", run)
    output = tab.locator("[data-sharpest]")
    drawn = tab.locator(".model .attention")

    def shown():
        return [
            tab.locator(f".model {kind}[aria-pressed=true]").get_attribute(name)
            for kind, name in ((".attention", "title"), (".chips button", "data-h"))
        ]

    mean, head = (f"{100 * best[name]:.1f}".removesuffix(".0") for name in ("mean", "head"))
    assert output.inner_text() == (
        f"Layer 1 is the sharpest of 2: a word’s largest share is on average {mean} % in the "
        f"mean of all heads, {head} % in head 1"
    )
    assert shown() == ["decoder.1.cross: 4 heads, 7 queries, 7 keys", "1"]
    tab.get_by_role("button", name="head 1", exact=True).click()
    tab = page.turn("alignment", run, l=3)
    assert output.count() == 0
    closed = "all => all.filter(one => one.disabled).map(one => one.title.split(':')[0])"
    assert drawn.evaluate_all(closed) == ["encoder.0.self", "decoder.0.self", "decoder.1.self"]  # not between two texts
    tab.keyboard.press("{")  # nor is there one before
    assert output.count() == 0
    assert "l=3" in tab.url
    tab.get_by_role("button", name="sharper: layer 1").click()
    output.wait_for()
    assert "l=4&h=1" in tab.url
    page.turn("walk", run, l=0, h=0)
    assert shown() == ["encoder.0.self: 4 heads, 7 queries, 7 keys", "0"]


def test_the_matrix_of_an_alignment_by_arrow_keys(page, served):
    tab = page.open("alignment", l=3)
    answer = served.api.ask(f"/runs/{served.run}/alignment", l=3, h="mean")
    matrix = tab.get_by_role("application", name="weights")
    matrix.focus()
    matrix.press("Home")
    for _ in range(len(answer["rows"])):
        matrix.press("ArrowUp")
    matrix.press("ArrowDown")
    matrix.press("ArrowRight")
    output = tab.locator("p.figures", has_text="→").inner_text()
    assert output == f"{answer['rows'][1]} → {answer['columns'][1]} = {answer['weights'][1][1]!r}"


def test_markup_is_refused_by_the_browser_itself(page):
    """Trusted Types: not even the page's own script can turn a text into markup."""
    tab = page.open("walk")
    made = "() => { try { document.body.innerHTML = '<b>text</b>'; return 'made'; } catch (e) { return e.name; } }"
    assert tab.evaluate(made) == "TypeError"
    page.complaints.clear()  # the browser reports it too


def test_another_run_can_be_chosen(page, served):
    """Choices in one run are not carried to another. For a recording the text field is empty, and says why."""
    tab = page.open("walk", l=1, h=2, i=3)
    run = tab.locator(".which").get_by_label("run")
    assert run.input_value() == served.run
    run.select_option(served.long)
    page.settled()
    assert tab.url.endswith(f"/s/{served.long}/walk")
    field = tab.locator(".sentence input")
    assert (field.input_value(), field.get_attribute("placeholder")) == ("", "long is a recording; type a sentence")
    tab.go_back()
    page.settled()
    assert tab.locator(".which").get_by_label("run").input_value() == served.run
    field.fill("Good morning.")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_function("(old) => !location.pathname.includes(old)", arg=served.run)
    page.settled()
    chosen = tab.locator(".which").get_by_label("run").locator("option:checked")
    assert chosen.inner_text() == "Good morning."


@pytest.mark.parametrize("screen", ["walk", "heads"])
def test_every_query_of_a_long_text_can_be_reached(page, served, screen):
    """Some queries are in a list, scrolled to the chosen one; the others follow beyond its ends."""
    tab = page.open(screen, served.long)
    chosen = tab.locator(".words [aria-pressed=true]")
    assert chosen.inner_text() == tab.locator(".words [tabindex='0']").inner_text() == "eee"  # 550, the middle
    assert chosen.evaluate(IN_VIEW)
    tab.get_by_role("button", name="the 332 after").click()
    tab.wait_for_url("**i=768**")
    page.settled()
    assert tab.locator(".words [aria-pressed]").count() == 256
    tab.locator(".words [aria-pressed=true]").press("ArrowLeft")
    tab.wait_for_url("**i=767**")
    page.settled()
    tab.get_by_role("button", name="the 512 before").click()
    tab.wait_for_url("**i=511**")


def test_the_sum_of_the_other_weights_is_aligned_with_the_total(page, served, sized):
    sized(320)
    tab = page.open("walk", served.long, step="softmax")
    assert tab.evaluate(WIDE) <= 320
    rest, total = tab.locator("tr", has_text="other keys together"), tab.locator("tfoot tr")
    right = [row.locator("td", has_text="0." if row is rest else "1.").last.bounding_box() for row in (rest, total)]
    assert right[0]["x"] == pytest.approx(right[1]["x"])


def test_data_that_a_run_lacks_are_not_requested(page, served):
    page.open("walk", served.long)
    page.asked.clear()
    tab = page.turn("alignment", served.long)
    assert "too many for ribbons" in tab.locator(".failure").inner_text()
    assert not [url for url in page.asked if "alignment" in url or "sharpest" in url]
