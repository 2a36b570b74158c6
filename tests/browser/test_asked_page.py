"""The panels of Walk and Heads: why a score is what it is, and which words follow a head."""

from math import exp

import pytest

from telescope.explorer.authors import MOST_TOKENS

PLACE = {"l": 4, "h": 2, "i": 3, "j": 1}  # a cross-attention of the served translator
WIDE = "() => document.documentElement.scrollWidth"


@pytest.fixture
def sized(page):
    """Return a function that sets the width of the window; it is restored afterwards."""
    yield lambda width: page.tab.set_viewport_size({"width": width, "height": 800})
    page.tab.set_viewport_size({"width": 1280, "height": 800})


def asked(served, what, run=None, **place):
    return served.api.ask(f"/runs/{run or served.run}/{what}", **place)


def number(text):
    return float(text.replace("−", "-").replace("+", ""))


def short(x):
    """Return a number in three digits, as JavaScript writes it."""
    return f"{x:#.3g}".rstrip(".")


def tables(tab):
    """Return the rows of each table of the panel: names, and numbers in full."""
    found = []
    for table in tab.locator(".asked .authors").all():
        rows = table.locator("tbody tr").all()
        cells = [(row.locator("td").first.inner_text(), row.locator("td[title]").all()) for row in rows]
        found.append([(name, [one.get_attribute("title") for one in numbers]) for name, numbers in cells])
    return found


def word(served, l, axis, position, run=None):  # noqa: E741
    """Return the word that a token belongs to."""
    tokens = asked(served, "tokens", run, l=l, axis=axis)
    return tokens["names"][tokens["words"][position]]


def check_why(tab, answer, query, key):
    """Compare what the panel shows with an answer: every name and number of both sides, and the sentence."""
    split = answer["split"]
    for table, side in zip(tables(tab), (split["query"], split["key"]), strict=True):
        wanted = [(one["name"], one["value"]) for one in side["authors"]]
        if side["left"]:
            wanted.append((f"{side['left']} others", side["others"]))
        assert [name for name, _ in table] == [name for name, _ in wanted]
        assert [number(numbers[0]) for _, numbers in table] == pytest.approx([x for _, x in wanted], rel=1e-6)
    assert split["sentence"] in tab.locator(".asked .told").inner_text()
    panels = tab.locator(".asked .panel")
    assert panels.locator("h3").all_inner_texts() == [
        f"who wrote what {query} asks with",
        f"who wrote what {key} answers with",
    ]
    for at, (name, piece) in enumerate(((query, answer["query"]), (key, answer["key"]))):
        assert (f"Of the pieces of {name}, this is {piece}." in panels.nth(at).inner_text()) == (name != piece)


def check_follows(tab, answer):
    for table, words in zip(tables(tab), (answer["up"], answer["down"]), strict=True):
        assert len(table) == len(words) == MOST_TOKENS
        for (_, (token, value, part)), one in zip(table, words, strict=True):
            assert token == f"token {one['id']}"
            assert number(value) == pytest.approx(one["value"], rel=1e-6)
            assert number(part) == pytest.approx(one["part"], rel=1e-6)


def test_why_on_a_score_of_the_walk_by_mouse(page, served):
    """Opened in the row of the key; then the pointer chooses no other key, and a click does."""
    tab = page.open("walk", step="softmax", **PLACE)
    assert tab.locator(".asked").count() == 0
    tab.locator(".ledger tr.chosen .ask").click()
    tab.wait_for_url("**ask=why**")
    check_why(page.settled(), asked(served, "why", **PLACE), word(served, 4, "q", 3), word(served, 4, "k", 1))
    assert tab.locator(".asked").evaluate("one => one.getBoundingClientRect().top < innerHeight")
    # Numbers stand beside the bars, which lie on their side of zero.
    bars = tab.locator(".asked .authors tbody rect").evaluate_all("all => all.map(one => +one.getAttribute('x'))")
    shown = [number(numbers[0]) for table in tables(tab) for _, numbers in table]
    assert [x < 50 for x in bars] == [x < 0 for x in shown]

    words = tab.locator(".ledger .pick")
    words.nth(3).hover()
    assert "j=1" in tab.url
    words.nth(3).click()
    tab.wait_for_function("() => !location.search.includes('j=1')")
    page.settled()
    assert tab.locator(".asked h2 .k").inner_text() == words.nth(3).inner_text()
    tab.get_by_role("button", name="close", exact=True).click()
    assert tab.locator(".asked").count() == 0
    assert "ask=" not in tab.url


def test_why_on_a_score_of_the_walk_by_keyboard(page, served):
    tab = page.open("walk", step="scores", **PLACE)
    tab.keyboard.press("w")
    tab.wait_for_url("**ask=why**")
    check_why(page.settled(), asked(served, "why", **PLACE), word(served, 4, "q", 3), word(served, 4, "k", 1))
    tab.keyboard.press("Escape")
    tab.wait_for_function("() => !location.search.includes('ask')")
    button = tab.get_by_role("button", name="why this score?")
    button.focus()
    button.press("Enter")
    tab.wait_for_url("**ask=why**")
    assert button.get_attribute("aria-expanded") == "true"
    assert tab.locator(f"#{button.get_attribute('aria-controls')}").count() == 1
    # Keys go to a field that is typed into.
    tab.locator(".sentence input").press("f")
    assert "ask=why" in tab.url
    tab.locator(".sentence input").blur()
    tab.keyboard.press("f")
    tab.wait_for_url("**ask=follows**")
    check_follows(page.settled(), asked(served, "writes", l=4, h=2, i=3))


def test_a_score_is_compared_with_that_of_another_key(page, served):
    """Chosen from a list, and part of the address; of keys that a mask hides, there is none to choose."""
    tab = page.open("walk", ask="why", pieces=1, **PLACE)
    choice = tab.locator(".asked").get_by_label("rather than")
    choice.select_option(value="2")
    tab.wait_for_url("**than=2**")
    answer = asked(served, "why", than=2, **PLACE)
    page.settled()
    heading = tab.locator(".asked h2").inner_text()
    assert heading == f"Why does {answer['query']} look at {answer['key']} rather than at {answer['other']}?"
    for table, side in zip(tables(tab), ("query", "key"), strict=True):
        shown = [one["value"] for one in answer["split"][side]["authors"]]
        assert [number(numbers[0]) for _, numbers in table][: len(shown)] == pytest.approx(shown, rel=1e-6)
    times = f"its weight is {short(exp(answer['split']['masked']))} times the other’s"
    assert times in tab.locator(".asked .told").inner_text()
    choice.select_option(value="")
    tab.wait_for_function("() => !location.search.includes('than')")
    page.settled()
    assert "score" in tab.locator(".asked h2").inner_text()
    page.turn("walk", l=1, h=1, i=2, j=1, ask="why", pieces=1)
    assert choice.locator("option").evaluate_all("all => all.map(one => one.value)") == ["", "0", "2"]


def test_an_author_that_is_a_head_leads_there(page, served):
    """On the query’s side at the same query, on the key’s side at the key; the panel stays open, with the focus."""
    answer = asked(served, "why", **PLACE)["split"]
    for at, (side, position) in enumerate((("query", 3), ("key", 1))):
        head = next((one for one in answer[side]["authors"] if one["l"] is not None), None)
        if head is None:
            continue
        tab = page.open("walk", step="softmax", ask="why", **PLACE)
        button = tab.locator(".asked .panel").nth(at).get_by_role("button", name=head["name"], exact=True)
        button.focus()
        button.press("Enter")
        tab.locator(f'.walk[data-at="{head["l"]}/{head["h"]}/{position}"]').wait_for()
        page.settled()
        assert "ask=why" in tab.url
        assert "step=" not in tab.url  # the same step, which is the first
        assert tab.evaluate("() => document.activeElement.tagName") == "H2"
        key = tab.locator(".ledger tr.chosen .pick").inner_text()
        assert tab.locator(".asked h2 .k").inner_text() == key
    # Networks and words are no links.
    names = tab.locator(".asked .authors button").all_inner_texts()
    assert all("head" in name for name in names)


@pytest.mark.parametrize("letter", ["a", "b"])
def test_both_questions_on_the_heads_by_mouse(page, served, letter):
    tab = page.open("heads", l=4, h=0, la=4, a=0, lb=3, b=2, i=3)
    place = {"a": {"l": 4, "h": 0}, "b": {"l": 3, "h": 2}}[letter] | {"i": 3}
    card = tab.locator(".reading").nth("ab".index(letter))
    tokens = asked(served, "tokens", l=4, axis="k")
    card.get_by_role("combobox").select_option(label=tokens["names"][2])
    tab.wait_for_url("**j=*")
    j = len(tokens["words"]) - 1 - tokens["words"][::-1].index(2)
    card.get_by_role("button", name="why this score?").click()
    tab.wait_for_url("**ask=why**")
    check_why(page.settled(), asked(served, "why", j=j, **place), word(served, 4, "q", 3), tokens["names"][2])
    card.get_by_role("button", name="what follows?").click()
    tab.wait_for_url("**ask=follows**")
    check_follows(page.settled(), asked(served, "writes", **place))
    assert ("side=b" in tab.url) == (letter == "b")
    assert "The model wrote" in tab.locator(".asked .told").inner_text()
    # A word of the fan is a key, too.
    card.locator(".fan .key").nth(1).click()
    assert card.get_by_role("combobox").locator("option:checked").inner_text() == tokens["names"][1]


def test_the_heads_by_keyboard(page, served):
    """In pieces of words, each key is a token; the panel of a head leads to the heads that wrote."""
    tab = page.open("heads", l=4, h=1, la=4, a=1, lb=3, b=2, i=3, j=2, pieces=1)
    tab.keyboard.press("f")
    tab.wait_for_url("**ask=follows**")
    check_follows(page.settled(), asked(served, "writes", l=4, h=1, i=3))
    tab.keyboard.press("w")
    tab.wait_for_url("**ask=why**")
    answer = asked(served, "why", l=4, h=1, i=3, j=2)
    check_why(page.settled(), answer, answer["query"], answer["key"])
    head = next(one for one in answer["split"]["key"]["authors"] if one["l"] is not None)
    tab.locator(".asked .panel").nth(1).get_by_role("button", name=head["name"], exact=True).press("Enter")
    tab.wait_for_url(f"**l={head['l']}&h={head['h']}&la={head['l']}&a={head['h']}**")
    page.settled()
    assert "i=2" in tab.url
    assert tab.locator(".asked .panel").count() == 2
    tab.keyboard.press("w")
    tab.wait_for_function("() => !location.search.includes('ask')")
    assert tab.locator(".asked").count() == 0


def test_touch_opens_it_on_a_phone(page, sized):
    """The button in the row is too small for a phone; below the numbers stands another one."""
    sized(375)
    tab = page.open("walk", step="softmax", **PLACE)
    assert not tab.locator(".ledger .ask").is_visible()
    tab.get_by_role("button", name="why this score?").tap()
    tab.wait_for_url("**ask=why**")
    page.settled()
    assert tab.locator(".asked .panel").count() == 2
    assert tab.evaluate(WIDE) <= 375


@pytest.mark.parametrize(("screen", "question"), [("walk", "why"), ("walk", "follows"), ("heads", "why")])
def test_the_panels_fit_everywhere(page, sized, screen, question):
    for width in (320, 375, 768, 1024, 1440):
        sized(width)
        tab = page.open(screen, ask=question, **PLACE)
        assert (width, tab.locator(".asked .panel").count()) == (width, 2)
        assert tab.evaluate(WIDE) <= width
        small = """() => [...document.querySelectorAll(".asked button, .ask")].map(one => one.getBoundingClientRect())
            .filter(box => box.width && (box.width < 24 || box.height < 24)).length"""
        assert tab.evaluate(small) == 0


def test_axe_finds_nothing_in_the_panels(page):
    page.check_by_axe(
        [page.path(screen, ask=what, **PLACE) for screen in ("walk", "heads") for what in ("why", "follows")]
    )


def test_what_cannot_be_split_says_why(page, served):
    """An encoder has no logits; a recording without a model has a sentence; an example does not ask."""
    tab = page.open("heads", l=0, h=1, la=0, a=1, ask="follows")
    assert "is of the encoder, whose end gives no logits" in tab.locator(".asked [role=status]").inner_text()
    tab = page.open("walk", served.long, ask="why")
    said = tab.locator(".asked [role=status]").inner_text()
    assert said.startswith("Why() needs") or "kept less" in said
    tab = page.open("walk", "example-journey", l=2)
    assert tab.locator(".ask").count() == 0
    tab.keyboard.press("w")
    assert "ask" not in tab.url
    tab = page.open("walk", "example-journey", l=2, ask="why")
    assert "These vectors come from no model" in tab.locator(".asked [role=status]").inner_text()


def test_another_run_closes_the_panel(page, served):
    tab = page.open("walk", ask="why", **PLACE)
    tab.locator(".which").get_by_label("run").select_option(served.long)
    page.settled()
    assert "ask" not in tab.url
    assert tab.locator(".asked").count() == 0
