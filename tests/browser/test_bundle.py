"""The shipped page equals the build of its source, and holds nothing that it should not."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB, PAGE = ROOT / "web", ROOT / "src/telescope/explorer/page"
BUILT = {path.name: path.read_bytes() for path in PAGE.iterdir()}
BUNDLE = {name: body for name, body in BUILT.items() if name != "notices.txt"}


def test_the_page_equals_the_build_of_its_source(tmp_path):
    if not (WEB / "node_modules/esbuild").is_dir() or shutil.which("npm") is None:
        pytest.skip("the tools of the page are not installed: npm ci --prefix web")
    done = subprocess.run(
        ["npm", "run", "--silent", "build", "--", f"--outdir={tmp_path}"], cwd=WEB, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == BUILT


def test_the_page_is_small():
    """420,000 bytes and not 290,000, for lessons that answer and play without a server (docs/decisions)."""
    assert sum(map(len, BUNDLE.values())) <= 420_000
    assert set(BUNDLE) == {"explorer.css", "explorer.js", "index.html"}


@pytest.mark.parametrize("never", [b"Math.random", b"sourceMappingURL", b"eval(", b"@import", b"url("])
def test_the_page_never_uses(never):
    """No random numbers, nothing from other machines."""
    assert not [name for name, body in BUNDLE.items() if never in body]


def test_no_text_becomes_markup():
    """Preact can set innerHTML; the page's own code never does."""
    sources = [
        path for path in WEB.rglob("*.js*") if path.suffix in (".js", ".jsx") and "node_modules" not in path.parts
    ]
    assert len(sources) > 20
    assert not [
        path for path in sources if re.search("[iI]nnerHTML|outerHTML|insertAdjacent|document.write", path.read_text())
    ]


def test_the_page_names_no_other_machine():
    """The namespaces of XML look like addresses, but are none."""
    named = {name for body in BUNDLE.values() for name in re.findall(rb"https?://([\w.]+)", body)}
    assert named == {b"www.w3.org"}


def test_notices_name_every_library_of_the_bundle():
    notices = BUILT["notices.txt"].decode()
    for name, version in json.loads((WEB / "package.json").read_text())["dependencies"].items():
        assert f"{name} {version}\n" in notices
    assert "Copyright (c) 2015-present Jason Miller" in notices  # Preact, MIT
    assert "Google" not in notices  # htm, which is no longer in the bundle
