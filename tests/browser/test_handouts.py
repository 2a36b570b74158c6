"""Handouts: each lesson as one file, opened from disk with the network off, is read to its end and can be changed."""

import re
from math import exp
from statistics import median, quantiles
from time import perf_counter
from urllib.parse import urlsplit

import pytest

from support.browsing import AXE, COUNTED, RULES, SETTLED
from telescope.explorer.api import Api
from telescope.explorer.handouts import HANDOUTS
from telescope.explorer.library import Library

MOST_BYTES = 400_000
WITH_RECORDED = [name for name, made in HANDOUTS.items() if made.texts]
WIDE = "() => document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each lesson as a file, made by the shipped models when it is first asked for."""
    folder = tmp_path_factory.mktemp("handouts")
    api = Api(Library())

    def make(lesson):
        path = folder / f"{lesson}.html"
        if not path.exists():
            answer = api.answer("GET", f"/handouts/{lesson}", {})
            assert answer.status == 200, answer.body
            path.write_bytes(answer.body)
        return path

    return make


class Opened:
    """A file in a tab whose context is offline."""

    def __init__(self, browser, path, **how):
        self.context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | how))
        self.context.set_offline(True)
        self.context.set_default_timeout(60_000)
        self.context.add_init_script(f"({COUNTED})()")
        self.tab = self.context.new_page()
        self.asked, self.complaints = [], []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.tab.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.tab.goto(path.as_uri())
        self.settled()

    def settled(self):
        self.tab.evaluate("() => { window.still = 0; }")
        self.tab.wait_for_function(SETTLED)
        return self.tab

    def leave(self):
        assert self.complaints == []
        # Nothing was asked for but the file itself.
        assert {urlsplit(url).scheme for url in self.asked} <= {"file", "blob", "data"}
        self.tab.goto("about:blank")


@pytest.fixture
def opened(browser, files, request):
    page = Opened(browser, files(getattr(request, "param", "journey")), reduced_motion="reduce")
    yield page
    page.leave()


@pytest.mark.parametrize("opened", HANDOUTS, indirect=True)
def test_a_handout_is_read_to_its_end(opened, request):
    """Every caption shows its screen without an error, as on the served page; Back goes back."""
    lesson = request.node.callspec.params["opened"]
    tab = opened.tab
    assert tab.title().startswith(HANDOUTS[lesson].title)
    assert tab.locator(".said-by b").inner_text() == HANDOUTS[lesson].title
    captions = [tab.locator(".caption p").first.inner_text()]
    while tab.get_by_role("button", name="Next", exact=True).count():
        tab.get_by_role("button", name="Next", exact=True).click()
        tab.wait_for_function(
            "(before) => document.querySelector('.caption p')?.textContent !== before", arg=captions[-1]
        )
        opened.settled()
        captions.append(tab.locator(".caption p").first.inner_text())
        assert tab.locator("main .failure").count() == 0, (captions[-1], tab.locator("main .failure").all_inner_texts())
        assert tab.locator("[role=alert]").count() == 0, captions[-1]
        assert tab.evaluate(WIDE) <= 1440
    assert 4 <= len(captions) == len(set(captions))
    tab.get_by_role("button", name="Back", exact=True).click()
    tab.wait_for_function("(said) => document.querySelector('.caption p').innerText === said", arg=captions[-2])


@pytest.mark.parametrize("lesson", HANDOUTS)
def test_a_handout_is_small_and_runs_nothing_else(files, lesson):
    body = files(lesson).read_bytes()
    assert len(body) <= MOST_BYTES
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', body.decode())[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy
    assert "://" not in re.sub(r'<script type="text/plain"[^>]*>.*?</script>', "", body.decode(), flags=re.S)


def test_a_changed_number_is_redrawn_at_once(opened):
    """Every step follows; the address holds the change, and opens it again; the change can be undone."""
    tab = opened.tab
    tab.get_by_label("x, starts, column 1").fill("−0,57")
    tab.get_by_label("x, starts, column 1").press("Enter")
    tab.wait_for_url("**example-journey~x.2.0_-0.57/**")
    tab.get_by_role("button", name="Next", exact=True).click()
    opened.settled()
    score = -0.57 * 0.55 + 0.85 * 0.87 + 0.64 * 0.66
    tab.evaluate("() => { location.hash = location.hash.replace('step=scores', 'step=softmax'); }")
    tab.reload()
    opened.settled()
    shown = tab.locator(".ledger tbody tr").nth(2).locator("td").all_inner_texts()
    assert float(shown[1].replace("−", "-")) == pytest.approx(score, abs=5e-4)
    tab.get_by_role("button", name="Back", exact=True).click()
    opened.settled()
    tab.get_by_role("button", name="undo all changes").click()
    tab.wait_for_url("**example-journey/**")


# What a change takes until the numbers of all steps are in the page, and painted.
CHANGE = """async () => {
  const cell = () => document.querySelector("[aria-label='x, starts, column 1']");
  const numbers = () => document.querySelector("main").textContent;
  const took = [];
  for (let at = 0; at < 40; at += 1) {
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    const before = numbers();
    const began = performance.now();
    cell().focus();
    set.call(cell(), String(0.01 * (at + 1)));
    cell().dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => setTimeout(done));  // the page keeps what was typed
    cell().blur();
    for (let turn = 0; (numbers() === before || !cell()) && turn < 1000; turn += 1)
      await new Promise((done) => setTimeout(done));
    if (numbers() === before) throw new Error("nothing was redrawn");
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    took.push(performance.now() - began);
  }
  return took;
}"""


def test_a_change_is_redrawn_soon(opened, record_property):
    """Half of all changes within a quarter of a second, on a machine that may be busy; the p95 is printed."""
    took = opened.tab.evaluate(CHANGE)
    p95 = quantiles(took, n=20)[-1]
    record_property("milliseconds", p95)
    print(f"change to redraw: median {median(took):.1f} ms, p95 {p95:.1f} ms")
    assert median(took) < 250


@pytest.mark.parametrize("opened", ["scale"], indirect=True)
def test_what_if_is_computed_in_the_file(opened):
    tab = opened.tab
    for _ in range(2):
        tab.get_by_role("button", name="Next", exact=True).click()
        opened.settled()
    after = tab.locator(".compared td.now").first.get_attribute("title")
    assert float(after) == pytest.approx(1 / (1 + exp(-16)), abs=1e-7)
    tab.get_by_label("hide").select_option(label="Machines")
    tab.get_by_role("button", name="not ÷ √d").click()
    opened.settled()
    after = tab.locator(".compared td.now").evaluate_all("all => all.map(one => Number(one.title))")
    assert after == [1, 0]


@pytest.mark.parametrize("opened", WITH_RECORDED, indirect=True)
def test_recorded_answers_say_that_they_are(opened, request):
    """The sentences to choose from are named, and so are the two commands for others."""
    lesson = request.node.callspec.params["opened"]
    tab = opened.tab
    note = tab.get_by_role("region", name="recorded answers")
    while not note.count():
        tab.get_by_role("button", name="Next", exact=True).click()
        opened.settled()
    assert "recorded answers of" in note.inner_text()
    assert note.locator("code").all_inner_texts() == [
        'pip install "telescope-attention[all]"',
        "telescope serve --open",
    ]
    texts = note.locator("option").all_inner_texts()
    assert tuple(texts) == HANDOUTS[lesson].texts
    for text in texts[1:]:
        note.get_by_label("the recorded sentence").select_option(label=text)
        opened.settled()
        assert tab.locator("main .failure").count() == 0, (text, tab.locator("main .failure").all_inner_texts())


@pytest.mark.parametrize("opened", ["heads"], indirect=True)
def test_a_recorded_what_if_is_shown(opened):
    """The last caption of "Two heads" mutes head A: each written word has its probability before and after."""
    tab = opened.tab
    while tab.get_by_role("button", name="Next", exact=True).count():
        tab.get_by_role("button", name="Next", exact=True).click()
        opened.settled()
    tab.get_by_text("Recorded for this change alone: mute.").wait_for()
    words = tab.locator(".compared .pairs tbody tr td:first-child").all_inner_texts()
    assert words[:3] == ["Der", "Mann", "sah"]
    chances = tab.locator(".compared .pairs td[title]").evaluate_all("all => all.map(one => Number(one.title))")
    assert len(chances) == 2 * len(words)
    assert all(0 <= chance <= 1 for chance in chances)
    # Each word can be the query: its own answer is recorded.
    for word in ("man", "saw", "astronomer"):
        tab.locator(".words").first.get_by_role("button", name=word, exact=True).click()
        opened.settled()
        assert tab.locator("main [role=alert]").count() == 0, word


@pytest.mark.parametrize("opened", ["journey", "bank"], indirect=True)
def test_all_lessons_of_a_handout(opened):
    """Lessons on worked examples can be read from any handout; others say what they need."""
    tab = opened.tab
    while tab.get_by_role("button", name="Next", exact=True).count():
        tab.get_by_role("button", name="Next", exact=True).click()
        opened.settled()
    tab.evaluate("() => { location.hash = '/'; }")
    tab.reload()
    opened.settled()
    cards = tab.locator(".lesson-card")
    assert cards.count() == 8
    assert [card.is_disabled() for card in cards.all()][:6] == [False] * 6
    assert all(card.is_disabled() for card in cards.all()[6:])
    cards.nth(3).click()
    opened.settled()
    assert tab.locator(".said-by b").inner_text() == "Mask"
    assert tab.locator("main .failure").count() == 0


def test_on_a_phone_and_by_axe(browser, files):
    for lesson in ("journey", "bank"):
        page = Opened(browser, files(lesson), viewport={"width": 375, "height": 700}, has_touch=True)
        while page.tab.get_by_role("button", name="Next", exact=True).count():
            page.tab.get_by_role("button", name="Next", exact=True).click()
            page.settled()
            assert page.tab.evaluate(WIDE) <= 375
        if AXE.is_file():
            page.tab.evaluate(AXE.read_text())
            found = page.tab.evaluate("(rules) => axe.run(document, {runOnly: rules})", RULES["light"])
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == []
        page.leave()


# An old browser: no way to unpack, or no modules at all.
@pytest.mark.parametrize(
    "old",
    [
        "delete globalThis.DecompressionStream",
        "Object.defineProperty(HTMLScriptElement.prototype, 'noModule', {get: undefined}); "
        "delete HTMLScriptElement.prototype.noModule",
    ],
)
def test_an_old_browser_is_told_so(browser, files, old):
    context = browser.new_context()
    context.set_offline(True)
    context.add_init_script(old)
    tab = context.new_page()
    tab.goto(files("journey").as_uri())
    shown = tab.locator("#telescope")
    assert shown.inner_text().startswith("This browser is too old for this handout: it needs Chrome")
    context.close()


def test_without_scripts_a_handout_says_so(browser, files):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(files("journey").as_uri())
    assert "it needs JavaScript" in tab.locator("noscript").inner_text()
    context.close()


def test_a_hostile_text_stays_text(browser, files, tmp_path):
    """A handout whose recorded texts are markup runs none of it."""
    from telescope.explorer.handouts import handout_page

    evil = "</script><img src=x onerror=document.title='owned'>"
    run = {"run": "s1", "rev": "1", "kind": "sentence", "title": evil, "model": evil, "text": evil}
    facts = run | {"written": None, "keep": "steps", "example": None, "notice": evil, "output": None, "attentions": []}
    recorded = [{"text": evil, "run": "s1", "model": evil}]
    made = {"lesson": "bank", "recorded": recorded, "commands": [evil]}
    answers = {
        "/runs": {"runs": [facts]},
        "/runs/s1": facts,
        "/models": {"models": [evil], "kinds": {}, "default": None},
    }
    path = tmp_path / "evil.html"
    path.write_bytes(handout_page(evil, {"handout": made, "answers": answers}))
    page = Opened(browser, path)
    page.tab.evaluate("() => { location.hash = '/s/s1/walk?card=bank&at=3'; }")
    page.tab.reload()
    page.settled()
    assert page.tab.locator("img").count() == 0
    assert "</script><img src=x" in page.tab.title()
    assert evil in page.tab.get_by_role("region", name="recorded answers").inner_text()
    page.leave()


def test_the_menu_saves_the_lesson(browser, served, tmp_path):
    """On the served page, while a lesson is open."""
    from support.browsing import Page

    page = Page(browser, served, reduced_motion="reduce", accept_downloads=True)
    tab = page.open("walk", "example-journey", l=0, h=0, i=1, step="embedding", card="journey", at=0)
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="This lesson as a file (HTML)").click()
    assert downloading.value.suggested_filename == "telescope-journey.html"
    path = tmp_path / "saved.html"
    downloading.value.save_as(path)
    saved = Opened(browser, path)
    assert saved.tab.locator(".said-by b").inner_text() == "Journey"
    saved.leave()
    page.assert_quiet()
    page.leave()


def test_unknown_lessons_and_missing_models_are_refused():
    api = Api(Library({}))
    for lesson, said in (("bonk", "there is no lesson"), ("heads", "needs a translator"), ("next", "needs a gpt")):
        answer = api.answer("GET", f"/handouts/{lesson}", {})
        assert answer.status in (404, 409)
        assert said in answer.body.decode()
    # The lesson that only ends with a model is handed out without that end.
    assert api.answer("GET", "/handouts/bank", {}).status == 200


def test_a_handout_is_made_within_seconds_without_a_model():
    began = perf_counter()
    assert Api(Library({})).answer("GET", "/handouts/journey", {}).status == 200
    assert perf_counter() - began < 5
