"""The site is built offline; it asks no other host, and is found by the words that others use.

`make docs` also looks at the whole site in Chromium (tools/check_site.py).
"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("material", reason="the docs extra is not installed")
from tools import check_site, hooks

from support.repository import HOME

# Imported by Python itself before mkdocs: a process in which nothing can be reached.
NO_NETWORK = """
import socket

def refuse(*_):
    raise OSError("there is no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]+src="?(https?:)?//|<link[^>]+stylesheet[^>]+//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site without results, without a network and without a GPU."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    place = os.pathsep.join([str(folder), str(HOME / "src")])
    settings = {"PYTHONPATH": place, "CUDA_VISIBLE_DEVICES": "", "DOCS_WITHOUT_RESULTS": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "site")]
    environment = {name: value for name, value in os.environ.items() if name != "TELESCOPE_REPOSITORY"} | settings
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_no_page_loads_anything_from_another_host(site):
    pages = check_site.pages_of(site)
    assert len(pages) > 80
    assert not [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))]
    assert (site / "style" / "iframe-worker.js").is_file()


def test_without_a_repository_there_are_no_links_to_one(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'class="md-source"' not in page
    assert 'rel="edit"' not in page


def test_the_repository_is_named_by_one_variable():
    for address, uri in (("", None), ("https://example.org/us/telescope", "edit/main/docs/")):
        config = hooks.on_config({"repo_url": address, "edit_uri": "edit/main/docs/"})
        assert config == {"repo_url": address or None, "edit_uri": uri}
    text = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
    assert 'repo_url: !ENV [TELESCOPE_REPOSITORY, ""]' in text


def test_pages_are_searched_by_the_words_of_others(site):
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    tags = {entry["location"]: entry["tags"] for entry in found if "tags" in entry}
    for page, words in hooks.KEYWORDS.items():
        assert (HOME / "docs" / page).is_file(), page
        assert tags[page.replace(".md", ".html")] == words
    assert {"ablation", "patching", "attention pattern", "hook", "logit lens"} <= {
        word for words in tags.values() for word in words
    }


def test_search_finds_the_page_of_a_word(site):
    """From a folder, where a browser starts no worker."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if check_site.CHROMIUM is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=check_site.CHROMIUM)
        page = browser.new_page()
        asked, note = check_site.foreign_to(site.as_uri())
        page.on("request", note)
        assert check_site.search(page, site.as_uri()) == []
        assert check_site.missed(page, "ablation", "how-to/draw.html", tries=4)  # the check can fail
        browser.close()
    assert asked == []


def test_an_absent_extra_is_one_sentence(monkeypatch):
    monkeypatch.delenv("DOCS_WITHOUT_RESULTS", raising=False)
    monkeypatch.setattr(hooks, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(SystemExit, match=r"^the site needs .+\[docs\]' \(matplotlib is not installed\)$"):
        hooks.on_files(None, config=None)


def test_an_absent_model_is_a_line_and_with_docs_complete_an_error(monkeypatch, capsys, tmp_path):
    (tmp_path / "page.md").write_text(
        "# A\n\n<!-- needs: nobody_has_this -->\n```python\nimport nobody_has_this\n```\n", encoding="utf-8"
    )
    file = SimpleNamespace(abs_src_path=str(tmp_path / "page.md"), src_uri="page.md")
    files = SimpleNamespace(documentation_pages=lambda: [file])
    monkeypatch.delenv("DOCS_WITHOUT_RESULTS", raising=False)
    monkeypatch.delenv("DOCS_COMPLETE", raising=False)
    hooks.on_files(files, config=None)
    assert capsys.readouterr().err == "page.md is built without results: nobody_has_this not installed\n"
    assert "Built without results" in hooks.complete((tmp_path / "page.md").read_text(), "page.md")
    monkeypatch.setenv("DOCS_COMPLETE", "1")
    with pytest.raises(SystemExit, match="pages cannot be run"):
        hooks.on_files(files, config=None)
    hooks.ABSENT.clear()
