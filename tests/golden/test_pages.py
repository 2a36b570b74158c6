"""Every page of the site is run: its blocks, its commands, its claims; and the tools that run them do what they say.

What a page gave is remembered in .cache/pages/, where `make docs` finds it. Lessons have tests of their own.
"""

import pytest

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
from tools import pages

from support.repository import HOME, blocks

DOCS = HOME / "docs"
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.parent.name != "lessons" and pages.runs(page.read_text(encoding="utf-8"))
]
COMMAND = "```console\n$ telescope --help\n{}```\n"


@pytest.fixture(scope="module")
def pool():
    with pages.open_pool() as processes:
        yield processes


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_page_runs_and_claims_what_holds(page, pool):
    """In order, in one namespace and one folder, as a reader would; a block that is not run says why."""
    text = page.read_text(encoding="utf-8")
    for package in blocks.missing(text):
        pytest.importorskip(package, reason="a page needs it")
    # A page of which no block is run still has its claims checked.
    assert len(pages.results_of(page, pool)) == sum(map(blocks.is_run, blocks.blocks(text)))


def results_of(text):
    with pages.fresh_state(), pages.working_folder(blocks.reads(text)):
        return [result for _, result in blocks.run_page(text)]


def test_a_page_shows_what_its_blocks_gave():
    text = "# A\n\n```python\nprint(1 + 1)\n[3]\n```\n\ntext\n"
    shown = blocks.with_results(text, results_of(text))
    assert shown.startswith(text[:-6])
    assert '\n```{ .text .output title="output" }\n2\n[3]\n```\n' in shown
    assert shown.endswith("\n\ntext\n")


def test_a_hidden_block_runs_and_is_not_shown():
    text = "# A\n\n## B\n\n```python {.hidden}\nx = 3\n```\n\n<!-- assert: x == 3 -->\n```python\nx\n```\n"
    shown = blocks.with_results(text, results_of(text))
    assert "x = 3" not in shown
    assert "\n3\n" in shown
    cells = ["".join(cell["source"]) for cell in blocks.notebook(text)["cells"]]
    assert "x" in [cell.splitlines()[-1] for cell in cells]
    assert not any("x = 3" in cell for cell in cells)


@pytest.mark.parametrize("claim", ["x == 4", "\nx\n== 4"])
def test_a_claim_that_does_not_hold_names_its_line(claim):
    text = f"```python\nx = 3\n```\n\n<!-- assert: {claim} -->\n"
    with pytest.raises(AssertionError, match=r"page, line 5 claims what does not hold"):
        results_of(text)


def test_a_command_is_shown_with_what_it_printed(tmp_path):
    text = COMMAND.format("")
    (result,) = results_of(text)
    assert result.printed.startswith("$ telescope --help\n")
    assert "Usage: telescope" in result.printed
    assert "Usage: telescope" in blocks.with_results(text, [result])


def test_output_that_a_page_gives_must_be_the_real_one():
    excerpt = "\n...\nUsage: telescope ...\n...\n"
    (result,) = results_of(COMMAND.format(excerpt))
    assert result.printed == "$ telescope --help\n...\nUsage: telescope ...\n...\n"
    with pytest.raises(AssertionError, match="Usage: microscope"):
        results_of(COMMAND.format("...\nUsage: microscope\n...\n"))


def test_a_command_that_fails_is_an_error():
    with pytest.raises(AssertionError, match="ended with 2"):
        results_of("```console\n$ telescope explain --example nothing\n```\n")
    with pytest.raises(ValueError, match="`jupyter` is not run; say why"):
        results_of("```console\n$ jupyter lab\n```\n")


def test_a_block_that_is_not_run_tells_the_reader_why():
    text = "<!-- not run: it needs a GPU -->\n```python\n1 / 0\n```\n"
    assert results_of(text) == []
    assert "Not run when this page was built: it needs a GPU." in blocks.with_results(text, [])


def test_a_page_whose_packages_are_absent_says_so():
    text = "# A\n\n<!-- needs: torch nobody_has_this -->\n```python\nimport nobody_has_this\n```\n"
    assert blocks.missing(text) == ["nobody_has_this"]
    shown = blocks.without_results(text, blocks.missing(text))
    assert shown.startswith('# A\n\n!!! note "Built without results"\n')
    assert "absent when the site was built: `nobody_has_this`." in shown


def test_a_page_that_fails_names_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nx = 1\nx / 0\n```\n", encoding="utf-8")
    with pytest.raises(pages.PageError, match=r"page\.md, line 5: ZeroDivisionError"):
        pages.results_of(page)


def test_each_run_of_a_page_draws_the_same_random_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "CACHE", tmp_path)
    text = "```python\nimport torch, random\nprint(torch.rand(2), random.random())\n```\n"
    assert results_of(text) == results_of(text)


def test_results_are_remembered_by_what_they_depend_on(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    pages.surroundings.cache_clear()
    data, page = tmp_path / "data.json", tmp_path / "page.md"
    data.write_text("[1]", encoding="utf-8")
    page.write_text(
        "<!-- reads: data.json -->\n```python\nfrom pathlib import Path\nprint(Path('data.json').read_text())\n```\n"
    )
    monkeypatch.setattr(pages, "surroundings", lambda: "the library")
    monkeypatch.setattr(pages, "set_warnings", lambda: None)
    assert pages.results_of(page)[0].printed == "[1]\n"
    monkeypatch.setattr(pages, "run_file", None)  # would raise if the page were run again
    assert pages.results_of(page)[0].printed == "[1]\n"
    before = pages.key_of(page.read_text())
    data.write_text("[2]", encoding="utf-8")
    changed = pages.key_of(page.read_text())
    monkeypatch.setattr(pages, "surroundings", lambda: "another library")
    assert len({before, changed, pages.key_of(page.read_text())}) == 3


def test_output_with_long_lines_is_set_in_smaller_letters():
    for length, name in ((96, ""), (97, " .wide"), (122, " .wider"), (123, " .wrapped")):
        first = blocks.output("x" * length, "text").splitlines()[0]
        assert first == f"```{{ .text .output{name} }}"


def test_most_blocks_are_run():
    found = [block for page in DOCS.rglob("*.md") for block in blocks.blocks(page.read_text(encoding="utf-8"))]
    code = [block for block in found if block.language in ("python", "console")]
    skipped = [block for block in code if block.skipped is not None]
    assert len(code) > 250
    assert len(skipped) <= 26
    assert all(len(block.skipped) > 10 for block in skipped)
