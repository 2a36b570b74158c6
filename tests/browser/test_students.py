"""Four questions of a new student, answered with nothing but the page; no answer takes more than three clicks."""

import pytest

from support.browsing import Page, Served
from telescope.explorer.library import Library


class Student:
    """Click as a student would, and count the clicks from the landing on."""

    def __init__(self, page):
        self.page, self.tab, self.clicks = page, page.tab, 0
        self.tab.goto(page.served.at + "/")
        page.settled()

    def click(self, name, role="button"):
        self.tab.get_by_role(role, name=name).first.click()
        self.clicks += 1
        self.tab.locator(".lesson").wait_for()
        self.page.settled()
        return self


@pytest.fixture(scope="module")
def page(browser):
    """The shipped models: the questions are about what a student sees."""
    served = Served(Library())
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    yield page
    page.leave()
    served.stop()


def test_why_does_one_divide_by_the_root_of_d(page):
    """Three clicks: of two keys, the second is gone."""
    student = Student(page).click("Why √d").click("Next").click("Next")
    tab = student.tab
    tab.locator(".compared").wait_for()
    rows = tab.locator(".compared .ledger tbody tr")
    titles = [rows.nth(1).locator("td[title]").nth(at).get_attribute("title") for at in (0, 1)]
    before, after = (float(title.replace("−", "-")) for title in titles)
    assert before > 0.1
    assert after < 1e-6
    assert "gone" in tab.locator(".caption").inner_text()
    assert student.clicks <= 3


def test_what_does_a_mask_do(page):
    """Two clicks: later words are −∞ and hatched."""
    student = Student(page).click("Mask").click("Next")
    hidden = student.tab.locator(".ledger tbody tr:has(td.hatch)")
    assert hidden.count() == 4
    assert all("−∞" in row.inner_text() for row in hidden.all())
    assert student.clicks <= 3


def test_how_do_two_heads_differ_on_one_word(page):
    """One click: two fans from one word, to two words."""
    student = Student(page).click("Two heads")
    fans = [fan.get_attribute("aria-label") for fan in student.tab.locator("svg.fan").all()]
    assert len(fans) == 2
    assert all(fan.startswith("telescope attends to") for fan in fans)
    assert fans[0] != fans[1]
    said = student.tab.locator("p.said").inner_text()
    assert "A attends most to man" in said
    assert "B to astronomer" in said
    assert student.clicks <= 3


def test_where_does_bank_come_from(page):
    """Two clicks: the strongest ribbon of Bank leads to bank."""
    student = Student(page).click("Translate").click("Next")
    output = student.tab.locator("output.readout")
    assert output.locator("b").inner_text() == "Bank"
    assert output.locator("tbody tr").first.locator("td").first.inner_text() == "bank"
    assert student.clicks <= 3
    page.assert_quiet()


def test_a_sentence_is_exported_in_less_than_two_megabytes(page):
    run = page.served.library.read("The man saw the astronomer with a telescope")
    answer = page.served.api.answer("GET", f"/runs/{run.name}/export", {"l": "0", "h": "0", "i": "0", "format": "html"})
    assert answer.status == 200
    assert len(answer.body) < 2_000_000
