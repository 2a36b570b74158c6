"""The landing and its eight cards: every caption is reached, by mouse and by keyboard, and nothing overflows."""

import json
import re
from math import prod
from pathlib import Path
from time import perf_counter

import pytest

from support import writers
from support.browsing import TURN, Page
from telescope.explorer.library import Library
from telescope.recording import Recording
from telescope.recording.attention_call import KeepOptions

LESSONS = Path(__file__).parents[2] / "web/lessons"
CARDS = [
    title
    for name in ("by_hand.jsx", "by_model.jsx")
    for title in re.findall(r'\n    title: "(.*)"', (LESSONS / name).read_text())
]
WIDE = "() => document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def lessons(browser, served):
    """A page whose models are small: one has learnt two sentences of the cards, the other writes single characters."""
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1440, "height": 900})
    yield page
    page.leave()


@pytest.fixture
def home(lessons):
    lessons.tab.goto(lessons.served.at + "/")
    lessons.settled()
    yield lessons
    lessons.assert_quiet()


def test_there_are_eight_cards(home):
    assert len(CARDS) == 8
    shown = home.tab.locator(".lesson-card b").all_inner_texts()
    assert shown == [f"{at}. {title}" for at, title in enumerate(CARDS, 1)]


@pytest.mark.parametrize("title", CARDS)
def test_a_card_is_walked_to_its_end(home, title):
    """Every caption shows a screen without an error, some have something to try; Back goes back; the last leads on."""
    tab = home.tab
    tab.locator(".lesson-card", has_text=title).focus()
    tab.keyboard.press("Enter")
    tab.locator(".lesson").wait_for()
    home.settled()
    captions = [tab.locator(".caption p").first.inner_text()]
    tries = tab.locator(".attempt").all_inner_texts()
    assert tab.get_by_role("button", name="Back", exact=True).is_disabled()
    while tab.get_by_role("button", name="Next", exact=True).count():
        tab.get_by_role("button", name="Next", exact=True).click()
        tab.wait_for_function(
            "(before) => document.querySelector('.caption p')?.innerText !== before", arg=captions[-1]
        )
        home.settled()
        captions.append(tab.locator(".caption p").first.inner_text())
        tries += tab.locator(".attempt").all_inner_texts()
        assert tab.locator("main .failure").count() == 0, captions[-1]
        assert tab.evaluate(WIDE) <= 1440
    assert 4 <= len(captions) == len(set(captions)) <= 6
    assert tries
    assert all(one.startswith("Try:") for one in tries)
    on = CARDS.index(title) + 1
    following = f"next lesson: {CARDS[on]}" if on < len(CARDS) else "your result"
    assert tab.get_by_role("button", name=following, exact=True).is_visible()
    assert tab.get_by_role("button", name="All lessons", exact=True).is_visible()
    tab.get_by_role("button", name="Back", exact=True).click()
    tab.wait_for_function("(said) => document.querySelector('.caption p').innerText === said", arg=captions[-2])
    tab.get_by_role("button", name="close the lesson").click()
    assert tab.locator(".lesson").count() == 0


STATES = (
    "/",
    "/?card=quiz",
    "/s/example-journey/walk?l=1&h=0&i=1&step=embedding&card=qkv&at=0",
    "/s/example-journey/walk?l=1&h=0&i=1&step=qkv",
    "/s/example-journey/walk?l=2&h=0&i=1&step=mask&card=mask&at=1",
    "/s/example-thinking-machines/variance?d=512&card=scale&at=4",
    "/s/example-telescope/heads?i=7&card=heads&at=0",
    "/s/example-bank/geometry?i=1&card=bank&at=1",
    "/s/example-journey/positions?encoding=sinusoidal",
    "/s/example-journey/positions?encoding=rotary&d=8",
    "/s/example-luong/positions?encoding=alibi",
)


def test_axe_finds_nothing_on_the_landing_and_in_a_card(home):
    home.check_by_axe(STATES)


def test_nothing_overflows(home):
    for path in STATES:
        home.tab.evaluate(TURN, path)
        home.settled()
        for width in (320, 768):
            home.tab.set_viewport_size({"width": width, "height": 800})
            home.tab.wait_for_timeout(40)
            assert (path, home.tab.evaluate(WIDE) <= width) == (path, True)
    home.tab.set_viewport_size({"width": 1440, "height": 900})


def test_the_landing_paints_soon(home):
    """Within half a second on a machine that has nothing else to do; here within two."""
    began = perf_counter()
    home.tab.goto(home.served.at + "/")
    home.tab.locator(".lesson-card").first.wait_for()
    assert perf_counter() - began < 2


def test_the_numbers_of_the_notes_are_shown(home):
    """Weights and context of journey, without weight matrices and with them; 112, 96, 14, 12, 0.88 and 0.12."""
    tab = home.open("walk", "example-journey", l=0, h=0, i=1, step="softmax")
    weights = tab.locator(".ledger td.now").evaluate_all("all => all.map(one => Number(one.title))")
    assert weights == pytest.approx([0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581], abs=5e-5)
    tab = home.open("walk", "example-journey", l=0, h=0, i=1, step="context")
    context = [0.4419, 0.6515, 0.5683]
    shown = tab.get_by_role("slider", name="context")
    shown.focus()
    for number in context:
        assert float(shown.get_attribute("aria-valuetext").split(": ")[1]) == pytest.approx(number, abs=5e-5)
        shown.press("ArrowRight")
    tab = home.open("walk", "example-thinking-machines", l=0, h=0, i=0, step="softmax")
    rows = [row.inner_text().split() for row in tab.locator(".ledger tbody tr").all()]
    assert [row[1:3] for row in rows] == [["112.0", "14.00"], ["96.00", "12.00"]]
    assert [float(row[-1]) for row in rows] == pytest.approx([0.88, 0.12], abs=5e-3)


def test_a_cell_is_edited(home):
    """Every step follows; what is no number is refused, and the cell keeps its old one; the change can be undone."""
    tab = home.open("walk", "example-journey", l=0, h=0, i=1, step="embedding")
    cell = tab.get_by_label("x, starts, column 1")
    cell.fill("three")
    cell.press("Enter")
    tab.get_by_role("alert").wait_for()
    assert "is not a number" in tab.get_by_role("alert").inner_text()
    assert cell.input_value() == "0.57"
    cell.fill("−0,57")
    cell.press("Enter")
    tab.wait_for_url("**/example-journey~*/**")
    home.settled()
    assert tab.get_by_label("x, starts, column 1").input_value() == "−0.57"
    run = re.search(r"/s/([^/]+)/", tab.url)[1]
    trace = home.served.api.ask(f"/runs/{run}/trace", l=0, h=0, i=1)
    assert trace["steps"][0]["numbers"][2] == pytest.approx(-0.57 * 0.55 + 0.85 * 0.87 + 0.64 * 0.66, rel=1e-6)
    tab.get_by_role("button", name="divide by the sum").click()
    tab.wait_for_url("**~by_sum/**")
    home.settled()
    made = home.served.library.run(re.search(r"/s/([^/]+)/", tab.url)[1])
    assert made.example.normalize == "by_sum"
    tab.get_by_role("button", name="undo all changes").click()
    tab.wait_for_url("**/example-journey/**")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"example": "bonk"}, "there is no example"),
        ({"example": "bank", "inputs": {"y": [[1]]}}, 'no input "y"'),
        ({"example": "bank", "inputs": {"x": [[1, 2], [3, 4], [5, 6]]}}, "3 rows of 3 numbers"),
        ({"example": "bank", "inputs": {"x": [[1, 2, None]] * 3}}, "row 0, column 2"),
        ({"example": "bank", "inputs": {"x": [[1, 2, True]] * 3}}, "is not a number"),
        ({"example": "bank", "inputs": {"x": [[1, 2, 1e9]] * 3}}, "from -1e6 to 1e6"),
        ({"example": "bank", "inputs": [1]}, "rows of numbers by name"),
        ({"example": "bank", "normalize": "hard"}, "normalize must be"),
        ({"example": "bank", "more": 1}, "nothing else"),
    ],
)
def test_bad_examples_are_refused(lessons, body, said):
    answer = lessons.served.api.answer("POST", "/runs", {}, json.dumps(body).encode())
    assert answer.status in (400, 404)
    assert said in json.loads(answer.body)["error"]["message"]


def test_a_worked_example_with_two_texts_says_what_its_screens_need(home):
    """Luong's vectors are computed on the page: no screen sends their reader to a command."""
    names = home.open("geometry", "example-luong").locator("nav a, nav button").all_inner_texts()
    for screen in {"walk", "heads", "geometry", "alignment", "map"} & {name.lower() for name in names}:
        tab = home.turn(screen, "example-luong")
        assert "telescope watch" not in tab.locator("main").inner_text()


def test_next_words_as_bars_and_append(home):
    """The probabilities are those of the library's own sampling; what is appended is read by the model."""
    run = home.served.library.read("To be, or", "gpt")
    tab = home.open("output", run.name, temperature=0.5, top_k=3)
    logits = run.output.logits(len(run.output.hidden) - 1).double()
    kept = (logits / 0.5).topk(3).values.softmax(0)
    shown = tab.locator(".next td.now").evaluate_all("all => all.map(one => Number(one.title))")
    assert shown == pytest.approx([*kept.tolist(), *[0.0] * 7], rel=1e-6)
    assert tab.locator(".next .share", has_text="left out").count() == 7
    tab.get_by_role("button", name="append").first.click()
    tab.wait_for_function("(old) => !location.pathname.includes(old)", arg=run.name)
    home.settled()
    longer = home.served.library.run(re.search(r"/s/([^/]+)/", tab.url)[1])
    assert longer.text.startswith("To be, or")
    assert len(longer.text) == len("To be, or") + 1


def test_the_probability_of_a_written_word_is_the_product_of_its_pieces(home):
    """At the word's last piece at first; a click on another piece shows the tokens there, of the same word."""
    run = home.served.library.read(writers.NOTES, "translator")
    tab = home.open("output", run.name)
    tab.locator("main").get_by_role("button", name="Fernrohr", exact=True).click()
    shown = tab.locator("[aria-label='the probability of the word']")
    shown.locator("b", has_text="Fernrohr").wait_for()
    chances = [run.output.logits(i).double().softmax(0)[run.output.written[i]].item() for i in (13, 14, 15)]
    titles = "all => all.map(one => Number(one.title))"
    assert shown.locator("b [title]").evaluate_all(titles) == pytest.approx([prod(chances)], rel=1e-6)
    assert shown.locator("button [title]").evaluate_all(titles) == pytest.approx(chances, rel=1e-6)
    shown.get_by_role("button").first.click()
    tab.wait_for_url("**i=13**")
    home.settled()
    written = tab.locator("tr.chosen td.now").evaluate_all(titles)
    assert written == pytest.approx(chances[:1], rel=1e-6)
    assert tab.locator(".wrote [aria-pressed=true]").inner_text() == "Fernrohr"


def test_a_written_word_leads_to_the_words_it_comes_from(home):
    run = home.served.library.read(writers.NOTES, "translator")
    tab = home.open("walk", run.name)
    tab.locator(".wrote").get_by_role("button", name="Fernrohr").click()
    tab.get_by_role("heading", name="Which words each written word attends to").wait_for()
    home.settled()
    assert "Fernrohr" in tab.locator("output").inner_text()
    assert tab.locator(".wrote [aria-pressed=true]").inner_text() == "Fernrohr"


def test_words_are_followed_and_their_pieces_are_a_switch_away(home):
    """The weight of a word is the sum of its pieces' weights; the walk opens at softmax, at a word."""
    run = home.served.library.read(writers.NOTES, "translator")
    tab = home.open("walk", run.name, l=0, h=0)
    assert tab.locator('.walk[data-step="softmax"]').count() == 1
    assert tab.locator(".words [aria-pressed=true]").inner_text() == "telescope"
    words = tab.locator(".ledger td.now").evaluate_all("all => all.map(one => Number(one.title))")
    looked = run.views[0]
    i = looked.rows.positions(looked.rows.find("telescope"))[-1]
    weights = looked.call.trace().weights[0, 0, i].double().tolist()
    summed = [sum(weights[at] for at in looked.columns.positions(word)) for word in range(len(looked.columns.names))]
    assert words == pytest.approx(summed, rel=1e-6)
    tab.get_by_role("button", name="pieces", exact=True).click()
    tab.wait_for_url("**pieces=1**")
    pieces = tab.locator(".ledger td.now").evaluate_all("all => all.map(one => Number(one.title))")
    assert pieces == pytest.approx(weights, rel=1e-6)


def test_an_empty_recording_says_so(home):
    recording = Recording("Empty", ["blocks.0.self"], "steps", KeepOptions())
    run = home.served.library.add(recording, "empty", "1")
    for screen in ("walk", "heads", "map"):
        tab = home.open(screen, run.name)
        assert "No attention was called" in tab.locator(".failure").inner_text()
    answer = home.served.api.answer("GET", f"/runs/{run.name}/start", {})
    assert answer.status == 409


@pytest.mark.parametrize("text", ["नमस्ते दुनिया", "Good 🐱 morning 👩‍🚀!", "Привет"])
def test_other_scripts_and_emoji(home, text):
    """Words stay whole, and what the model does not read is said."""
    run = home.served.library.read(text, "translator", "Guten Morgen.")
    tab = home.open("walk", run.name)
    shown = tab.locator(".words button").all_inner_texts()
    assert shown[0] == text.split()[0]
    notice = tab.locator(".notice").inner_text()
    assert ("no token for 🐱, 👩, 🚀" if "Good" in text else "hardly read this script") in notice


def test_go_takes_words(home):
    run = home.served.library.read(writers.NOTES, "translator")
    tab = home.open("map", run.name, l=0, h=0)
    tab.get_by_label("query", exact=True).fill("telescope")
    tab.get_by_label("key", exact=True).fill("man")
    tab.get_by_role("button", name="go", exact=True).click()
    tab.locator("output", has_text="query").wait_for()
    columns = run.views[0].columns
    places = [columns.positions(columns.find(word))[0] for word in ("telescope", "man")]
    tab.wait_for_function(
        "(said) => document.querySelector('output').innerText.includes(said)", arg=f"query {places[0]}"
    )
    assert f"key {places[1]}" in tab.locator("output").inner_text()
    tab.get_by_label("key", exact=True).fill("nowhere")
    tab.get_by_role("button", name="go", exact=True).click()
    tab.get_by_role("alert").wait_for()


def test_what_follows_a_head_is_what_the_model_computes(home):
    """The feed-forward network's output, added, is what the next layer of the encoder reads."""
    model = writers.translator(heads=2, encoder_blocks=2, decoder_blocks=1)
    library = Library({"small": model})
    run = library.read("How are you?", "small")
    api = home.served.api.__class__(library)
    for i in range(run.views[0].size[0]):
        answer = api.ask(f"/runs/{run.name}/after", l=0, i=i)
        assert answer["difference"] < 1e-5
        passed = next(stage["norm"] for stage in answer["stages"] if stage["name"] == "passed")
        assert passed == pytest.approx(float(run.views[1].call.before[0, i].norm()), rel=1e-5)
