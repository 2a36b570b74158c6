"""Every try of every lesson, with the shipped models: failed and solved, by mouse, by keyboard and by touch.

What the page says about a try is compared with what the API computes.
"""

import json
import re
from typing import NamedTuple

import pytest

from support.browsing import Page, Served
from telescope.explorer.library import Library
from telescope.lessons import quiz, read_code

READING = {"l": 0, "word": "with", "between": "saw,astronomer"}
SHAPES = {
    "mouse": {"viewport": {"width": 1280, "height": 900}},
    "keyboard": {"viewport": {"width": 1024, "height": 768}},
    "touch": {"viewport": {"width": 375, "height": 700}, "has_touch": True, "is_mobile": True},
}


def percent(x):
    """Return a share as the page writes it."""
    x = 100 * x
    if x == 0:
        return "0 %"
    if x < 0.01:
        return "< 0.01 %"
    if x >= 99.95:
        return "100 %"
    return f"{float(f'{x:.1f}' if x >= 10 else f'{x:.2g}'):g} %"


def short(x):
    return f"{x:#.4g}".replace("-", "−")


class Student:
    """Press, type and slide by one kind of input."""

    def __init__(self, page, how):
        self.page, self.tab, self.how = page, page.tab, how
        self.api = page.served.api

    def press(self, place):
        place.scroll_into_view_if_needed()
        if self.how == "mouse":
            place.click()
        elif self.how == "touch":
            place.tap()
        else:
            place.focus()
            place.press("Enter")
        self.page.settled()

    def button(self, name, **how):
        self.press(self.tab.get_by_role("button", name=name, **{"exact": True} | how).first)

    def word(self, name):
        """Choose a query in the list of words."""
        self.press(self.tab.locator(".words").first.get_by_role("button", name=name, exact=True))

    def type(self, values):
        """Type numbers into cells, each by its name."""
        for name, value in values.items():
            cell = self.tab.get_by_label(name, exact=True)
            old = re.search(r"/s/([^/]+)/", self.tab.url)[1]
            if float(cell.input_value().replace("−", "-")) == float(value):
                continue
            cell.fill(value)
            cell.press("Enter")
            self.tab.wait_for_function("(old) => !location.pathname.includes(`/${old}/`)", arg=old)
            self.page.settled()

    def slide(self, name, text):
        """Move a slider until it says a text."""
        slider = self.tab.get_by_role("slider", name=name)
        if self.how != "keyboard":
            self.press(slider)  # somewhere in its middle
        slider.focus()
        slider.press("Home")
        for _ in range(40):
            shown = slider.get_attribute("aria-valuetext") or slider.input_value()
            if shown == text:
                break
            slider.press("ArrowRight")
        self.page.settled()

    @property
    def run(self):
        return re.search(r"/s/([^/]+)/", self.tab.url)[1]

    def trace(self, run, i, l=0):  # noqa: E741
        return self.api.ask(f"/runs/{run}/trace", l=l, h=0, i=i)

    def weights(self, run, i, l=0):  # noqa: E741
        return next(step["numbers"] for step in self.trace(run, i, l)["steps"] if step["name"] == "weights")


def go_there(student):
    there = student.tab.get_by_role("button", name="go there")
    if there.count():
        student.press(there)


# ------------------------------------------------------------------------------ what is done, and what is then said


def choose_starts(student):
    student.press(student.tab.locator(".ledger .pick", has_text="starts"))
    scores = student.trace("example-journey", 1)["steps"][0]["numbers"]
    return [short(scores[2]), short(scores[1])]


def turn_starts(student):
    go_there(student)
    student.type({f"x, starts, column {at}": x for at, x in enumerate(("-0.57", "-0.85", "-0.64"), 1)})
    return [percent(student.weights("example-journey", 1)[2]), percent(student.weights(student.run, 1)[2])]


def follow_one(student):
    student.word("one")
    weights = student.weights("example-journey", 4, 1)
    return [f"journey gets {percent(weights[1])}", f"one itself {percent(weights[4])}"]


def clear_queries(student):
    go_there(student)
    student.type({f"W_q, row {i}, column {j}": "0" for i in (1, 2, 3) for j in (1, 2)})
    return [percent(1 / 6)]


def undivide(student):
    student.press(student.tab.locator(".what-if .fold"))
    student.button("not ÷ √d")
    edited = student.api.ask("/runs/example-thinking-machines/whatif", l=0, h=0, i=0, edits="scale")
    return [percent(edited["before"][1]), f"{100 * edited['after'][1]:.2g}".split("e")[0]]


def slide_to_the_winner(student):
    student.slide("d, the number of features", "d = 96")
    said = []
    for d in (96, 64):
        answer = student.api.answer("GET", "/variance", {"d": str(d)})
        said.append(percent(json.loads(answer.body)["dot"]["largest"]))
    return said


def follow_your(student):
    student.word("Your")
    return ["1 of 6 words", percent(1)]


def choose_step(student):
    student.press(student.tab.locator(".ribbons [role=button], .ribbons button, svg [role=button]").last)
    return [percent(0), percent(sum(student.weights("example-journey", 0, 1)[1:]))]


def make_bank_money(student):
    go_there(student)
    student.type({f"x, bank, column {at}": x for at, x in enumerate(("2", "0", "0"), 1)})
    trace = student.trace("example-bank", 1)
    moved = sum((x - y) ** 2 for x, y in zip(trace["context"], trace["value"][1], strict=True)) ** 0.5
    return [short(moved), "and now by 0"]


def follow_saw(student):
    student.word("saw")
    found = student.api.ask("/runs/example-telescope/perspectives", l=0, i=2)
    return ["astronomer", percent(max(found["heads"][0]["weights"]))]


def insert_yesterday(student):
    student.button("insert “yesterday”")
    student.tab.get_by_role("button", name="take it out again").wait_for()
    control = re.search("control=([^&]+)", student.tab.url)[1]
    before = student.api.ask(f"/runs/{student.run}/readings", **READING)
    after = student.api.ask(f"/runs/{control}/readings", **READING | {"between": "saw,astronomer,yesterday"})
    # The head that reads one of the words most.
    at = max(
        (one for one in range(len(before["heads"])) if before["heads"][one]["reads"] is not None),
        key=lambda one: max(before["heads"][one]["weights"]),
    )
    head, then = before["heads"][at], after["heads"][at]
    return [percent(head["weights"][head["reads"]]), percent(then["weights"][head["reads"]])]


def sharpest(student):
    return student.api.ask(f"/runs/{student.run}/sharpest")["l"]


def choose_geld(student):
    student.press(student.tab.locator("main").get_by_role("button", name="Geld").first)
    found = student.api.ask(f"/runs/{student.run}/alignment", l=sharpest(student), h="mean")
    return ["Geld gives", f"{percent(max(found['weights'][1]))} to money"]


def type_a_crossing(student):
    field = student.tab.get_by_role("textbox", name="a sentence for the model")
    field.fill("Yesterday I saw a dog.")
    old = student.run
    field.press("Enter")
    student.tab.wait_for_function("(old) => !location.pathname.includes(old)", arg=old)
    student.page.settled()
    found = student.api.ask(f"/runs/{student.run}/alignment", l=sharpest(student), h="mean")
    letters = re.compile(r"[^\W\d_]")
    rows = [at for at in found["real_rows"] if letters.search(found["rows"][at])]
    columns = [at for at in found["real_columns"] if letters.search(found["columns"][at])]
    from_ = [max(columns, key=lambda column: found["weights"][row][column]) for row in rows]
    at = next(at for at in range(1, len(rows)) if from_[at] < from_[at - 1])
    (first, source), (second, earlier) = (
        (found["rows"][rows[place]], found["columns"][from_[place]]) for place in (at - 1, at)
    )
    return [f"{first} comes from {source}", f"{second}, written after it, from {earlier}"]


def heat(student):
    student.slide("temperature", "2.0")
    cold, hot = (student.api.ask(f"/runs/{student.run}/output", temperature=t)["candidates"][0]["p"] for t in (1, 2))
    return [percent(cold), percent(hot)]


def follow_the_first(student):
    student.word("To")
    return [f"it gives itself {percent(1)}", percent(0)]


class Try(NamedTuple):
    """How a try is solved: the right guess, a wrong one with a part of the reason, what is said before, the deed."""

    right: str
    wrong: str
    reason: str
    before: str
    do: object


TRIES = {
    "journey/alike": Try("starts", "step", "step scores 1.087", "another word scores more", choose_starts),
    "journey/opposite": Try(
        "it becomes small, but stays above 0", "it becomes negative", "e to any power", "23.3 %", turn_starts
    ),
    "qkv/most": Try("journey", "one", "the query of a word is not its key", "another query", follow_one),
    "qkv/nothing": Try("the same of every word", "itself alone", "nothing sets it apart", "6 of six", clear_queries),
    "scale/undivided": Try("hardly anything", "as much as now", "16 when they are not", "11.9 %", undivide),
    "scale/winner": Try("about 96", "about 8", "At d = 8", "at d = 512 it is 95 %", slide_to_the_winner),
    "mask/first": Try("itself alone", "all six words", "the mask hides what comes later", "another", follow_your),
    "mask/taken": Try("nothing", "about half", "No word stands after step", "another word", choose_step),
    "bank/same": Try(
        "no", "yes, as far as before", "which is that vector again", "bank is 0.7, 0.7, 1", make_bank_money
    ),
    "heads/agree": Try("saw", "with", "A looks at saw and B at astronomer", "A looks at man", follow_saw),
    "heads/control": Try("clearly less", "about as much", "nearness", "still as it was", insert_yesterday),
    "translate/from": Try("money", "bank", "bank gets", "another word", choose_geld),
    "translate/order": Try(
        "no: ribbons may cross",
        "yes: a translation keeps the order",
        "differently",
        "no ribbons cross",
        type_a_crossing,
    ),
    "next/heat": Try("it becomes less likely", "nothing", "their probabilities do not", "temperature is 0.5", heat),
    "next/beginning": Try("nothing", "equal shares", "one word after another", "another word", follow_the_first),
}


@pytest.fixture(scope="module")
def shipped():
    served = Served(Library())
    yield served
    served.stop()


@pytest.fixture(scope="module", params=SHAPES)
def student(request, browser, shipped):
    page = Page(browser, shipped, reduced_motion="reduce", **SHAPES[request.param])
    yield Student(page, request.param)
    page.leave()


def open_try(student, name):
    """Open the caption of a try from the list of all, with nothing tried before."""
    student.tab.goto(student.page.served.at + "/?card=quiz")
    student.tab.evaluate("localStorage.clear()")
    student.tab.reload()
    student.page.settled()
    row = student.tab.locator(f'tr[data-try="{name.split("/")[1]}"]')
    assert row.locator("td").nth(3).inner_text() == "—"
    student.press(row.get_by_role("button"))
    student.tab.locator(".attempt").wait_for()
    student.page.settled()


def said(student):
    return student.tab.locator(".verdict").inner_text()


def guess(student, text):
    choice = student.tab.locator(".guesses").get_by_role("button", name=text, exact=True)
    student.press(choice)
    assert choice.get_attribute("aria-pressed") == "true"


def test_the_tries_are_those_of_the_code(student):
    """In the order in which the page lists them."""
    student.tab.goto(student.page.served.at + "/?card=quiz")
    student.page.settled()
    shown = student.tab.locator("tr[data-try]").evaluate_all("all => all.map(one => one.dataset.try)")
    assert shown == [name.split("/")[1] for name in quiz.TRIES]
    assert list(TRIES) == list(quiz.TRIES)


@pytest.mark.parametrize("name", TRIES)
def test_a_try_is_failed_and_solved(student, name):
    """A wrong guess gets its reason, what is not done yet its numbers; then the same with the right guess."""
    one = TRIES[name]
    for is_right in (False, True):
        open_try(student, name)
        assert said(student) == ""
        guess(student, one.right if is_right else one.wrong)
        assert "Not yet:" in said(student)
        assert one.before in said(student)
        numbers = one.do(student)
        student.tab.locator(".verdict .done").wait_for()
        for number in numbers:
            assert number in said(student), (name, number)
        assert ("You guessed it." in said(student)) is is_right
        if not is_right:
            assert f"You guessed “{one.wrong}”." in said(student)
            assert one.reason in said(student)
        student.tab.goto(student.page.served.at + "/?card=quiz")
        student.page.settled()
        row = student.tab.locator(f'tr[data-try="{name.split("/")[1]}"] td').all_inner_texts()
        assert row[2:] == ["right" if is_right else "not right", "✓ solved"]
        # The code says the same.
        result = read_code(student.tab.locator(".hand-in .code").inner_text())
        assert result.tries[name] == quiz.TryResult(tried=True, first_guess=is_right, solved=True)
        assert result.solved == 1
    student.page.assert_quiet()
