"""The result that a student hands in, the table of a teacher, and what is said of sentences before they are sent."""

import json
import re

import pytest

from support import writers
from support.browsing import Page
from telescope.explorer.library import Library
from telescope.explorer.limits import most_tokens
from telescope.lessons import quiz, read_code


@pytest.fixture(scope="module")
def page_of_quiz(browser, served):
    page = Page(
        browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900}, accept_downloads=True
    )
    yield page
    page.leave()


@pytest.fixture
def result(page_of_quiz):
    """The quiz, of a student who has solved one try after a wrong guess, and guessed right in another."""
    open_with(page_of_quiz, {"journey/alike": progress(False, True), "next/heat": progress(True, False)})
    yield page_of_quiz
    page_of_quiz.assert_quiet()


def progress(is_right, solved):
    return {"guess": 0, "isRight": is_right, "solved": solved}


def open_with(page, kept):
    page.tab.goto(page.served.at + "/?card=quiz")
    page.tab.evaluate(
        "(kept) => localStorage.setItem('telescope.tries', kept)", kept if isinstance(kept, str) else json.dumps(kept)
    )
    page.tab.reload()
    page.settled()


def test_the_line_says_what_was_tried(result):
    tab = result.tab
    assert "1 of 15 tries are solved; 1 first guesses were right" in tab.locator(".quiz .lede").inner_text()
    tab.get_by_label("your name").fill("  Zoë   <b>Lovelace</b> 😀 ")
    line = tab.locator(".hand-in .code").inner_text()
    found = read_code(line)
    assert found.name == "Zoë <b>Lovelace</b> 😀"
    assert found.tries["journey/alike"] == quiz.TryResult(tried=True, first_guess=False, solved=True)
    assert found.tries["next/heat"] == quiz.TryResult(tried=True, first_guess=True, solved=False)
    assert sum(one.tried for one in found.tries.values()) == 2
    # The file holds the same.
    with tab.expect_download() as download:
        tab.get_by_role("button", name="save as a file").click()
    saved = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert saved["line"] == line
    assert [one["try"] for one in saved["tries"]] == list(quiz.TRIES)
    assert [one["try"] for one in saved["tries"] if one["solved"]] == ["journey/alike"]


def test_a_teacher_checks_a_class(result):
    """Lines of students, one that was changed by hand, and lines that are none: a table, one sentence for each."""
    tab = result.tab
    tab.get_by_label("your name").fill("Ada")
    line = tab.locator(".hand-in .code").inner_text()
    changed = line[:-1] + ("0" if line[-1] != "0" else "1")
    lines = [line, line.replace("Ada", "Grace"), changed, "<img src=x onerror=alert(1)>", "T9-0-0"]
    tab.get_by_label("codes, one in each line").fill("\n".join(lines) + "\n\n")
    rows = [row.inner_text().split("\t") for row in tab.locator(".checked tbody tr").all()]
    assert rows[0][:3] == ["Ada", "1 of 15", "1 right"]
    assert rows[0][3].split(", ") == [name for name in quiz.TRIES if name != "journey/alike"]
    for row, given in zip(rows[1:], lines[1:], strict=True):
        with pytest.raises(ValueError, match=re.escape(row[1])):
            read_code(given)
    assert tab.locator(".checked img").count() == 0


def test_progress_is_kept_shown_and_forgotten(result):
    tab = result.tab
    tab.get_by_role("button", name="All lessons").click()
    result.settled()
    cards = tab.locator(".lesson-card small").all_inner_texts()
    assert cards[0] == "1 of 2 tries solved"
    assert cards[4] == "0 of 1 tries solved"
    assert "1 of 15 tries solved" in tab.locator(".quiz-entry").inner_text()
    tab.get_by_role("button", name="Quiz: what did you understand?").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/?card=quiz")
    tab.get_by_role("button", name="start over").click()
    assert "0 of 15 tries" in tab.locator(".quiz .lede").inner_text()
    tab.reload()
    result.settled()
    assert "0 of 15 tries" in tab.locator(".quiz .lede").inner_text()
    tab.go_back()
    result.settled()
    assert tab.locator(".lesson-card").count() == 8


@pytest.mark.parametrize("kept", ["{", "7", "null", "[]", '{"journey/alike": 3}', '{"journey/alike": {"guess": "x"}}'])
def test_what_is_no_progress_counts_as_none(page_of_quiz, kept):
    open_with(page_of_quiz, kept)
    assert "0 of 15 tries" in page_of_quiz.tab.locator(".quiz .lede").inner_text()
    page_of_quiz.assert_quiet()


def test_a_browser_that_keeps_nothing_still_counts(browser, served):
    """As in a frame without a store: the progress lasts as long as the page."""
    page = Page(browser, served, reduced_motion="reduce")
    page.context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    tab = page.open("walk", "example-journey", l=0, h=0, i=1, step="scores", card="journey", at=1)
    tab.locator(".guesses").get_by_role("button", name="starts").click()
    tab.locator(".ledger .pick", has_text="starts").click()
    tab.locator(".verdict .done").wait_for()
    tab.locator("a.brand").click()
    page.settled()
    assert tab.locator(".lesson-card small").first.inner_text() == "1 of 2 tries solved"
    page.assert_quiet()
    page.leave()


# -------------------------------------------------------------------------------------------------- own sentences


@pytest.mark.parametrize(("model", "screen"), [("translator", "alignment"), ("gpt", "walk")])
def test_an_own_sentence_opens_where_it_is_understood(page_of_quiz, model, screen):
    tab = page_of_quiz.tab
    tab.goto(page_of_quiz.served.at + "/")
    page_of_quiz.settled()
    tab.get_by_label("the model that reads it").select_option(model)
    tab.get_by_label("your own sentence").fill("How are you?" if model == "translator" else "To be")
    tab.get_by_role("button", name="Run", exact=True).click()
    tab.wait_for_url(f"**/{screen}*")
    page_of_quiz.settled()
    page_of_quiz.assert_quiet()


def test_a_long_sentence_is_said_to_be_long_and_never_cut(page_of_quiz):
    """The limit is the model's; at more words than tokens nothing is sent; what may fit is sent whole."""
    tab, library = page_of_quiz.tab, page_of_quiz.served.library
    most = most_tokens(library.models["translator"])
    assert library.describe_models().limits["translator"] == most == 48
    tab.goto(page_of_quiz.served.at + "/")
    page_of_quiz.settled()
    tab.get_by_label("the model that reads it").select_option("translator")
    field = tab.get_by_label("your own sentence")
    field.fill("a " * (most + 2))
    note = tab.locator(".own [role=status]")
    assert "take 2 or more words away" in note.inner_text()
    assert tab.get_by_role("button", name="Run", exact=True).is_disabled()
    long = "x" * 9000
    field.fill(long)
    assert field.input_value() == long
    assert "Nothing is cut" in note.inner_text()
    tab.get_by_role("button", name="Run", exact=True).click()
    tab.get_by_role("alert").wait_for()
    assert re.search(r"has [\d,]+ tokens; at most 48", tab.get_by_role("alert").inner_text())
    page_of_quiz.complaints.clear()  # the browser notes the refusal


def test_limits_are_told_without_loading_a_model(tmp_path):
    """Of shipped models, of folders of transformers, and of folders that tell nothing."""
    assert {name: most_tokens(source) for name, source in Library().models.items()} == {
        "translator-en-de": 160,
        "shakespeare": 256,
        "summarizer": 256,
        "induction": 256,
    }
    (tmp_path / "config.json").write_text('{"n_positions": 77}')
    assert most_tokens(tmp_path) == 77
    for nothing in ('{"n_positions": "many"}', "[]", "{", '{"config": 3}', '{"max_positions": true}'):
        (tmp_path / "config.json").write_text(nothing)
        assert most_tokens(tmp_path) == 4096
    assert most_tokens(writers.gpt()) == 24


def test_a_number_that_is_too_large_is_called_so(page_of_quiz):
    tab = page_of_quiz.open("walk", "example-journey", l=0, h=0, i=1, step="embedding")
    cell = tab.get_by_label("x, starts, column 1", exact=True)
    for text, said in (
        ("1e30", "“1e30” is too large"),
        ("−1e9", "is too large"),
        ("1e999", "is too large"),
        ("one", "is not a number"),
    ):
        cell.fill(text)
        cell.press("Enter")
        tab.get_by_role("alert").get_by_text(said).wait_for()
        assert cell.input_value() == "0.57"
    page_of_quiz.assert_quiet()
