"""Everything in the README works, and in the pages it once held: the mechanisms, the map of the house, the picture."""

import re
import runpy
import shlex

import pytest
import torch

import telescope as ts
from support.repository import HOME, PROJECT, distributions_of, run_with_only
from telescope import layers
from telescope.attention import masks

README = (HOME / "README.md").read_text(encoding="utf-8")
MECHANISMS = (HOME / "docs" / "reference" / "mechanisms.md").read_text(encoding="utf-8")
HOUSE = (HOME / "docs" / "explanation" / "house.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\|[^|]+\| `(.+)` \|$", MECHANISMS, flags=re.M)


# Runs the commands and the blocks of the README. A page is not served: the server would run until Ctrl-C.
RUN_README = """
import webbrowser
from telescope.cli import main

def serve_nothing(server, sockets):
    print("a page is served")

def run(*arguments):
    sys.argv = ["telescope", *arguments]
    if "serve" in arguments or "--open" in arguments:
        import uvicorn
        uvicorn.Server.run = serve_nothing
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, arguments

webbrowser.open = print
for arguments in {commands!r}:
    run(*arguments)
names = {{}}
for block in {blocks!r}:
    exec(compile(block, "README.md", "exec"), names)
"""


def test_the_install_line_of_the_readme_brings_all_that_the_readme_shows(tmp_path):
    """With the packages of the install line, and no other, every command and every block runs."""
    for package in ("matplotlib", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="an extra is not installed")
    (install,) = re.findall(r"^\$ pip install (.+)$", README, flags=re.M)
    (requirement,) = shlex.split(install, comments=True)
    shown = re.findall(r"^\$ telescope (.+)$", README, flags=re.M) + re.findall(r"`telescope (.+?)`", README)
    commands = [shlex.split(line, comments=True) for line in shown]
    blocks = re.findall(r"```python\n(.+?)```", README, flags=re.S)
    assert len(commands) == 4
    assert len(blocks) == 2

    done = run_with_only(requirement, RUN_README.format(commands=commands, blocks=blocks), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a page is served") == 2
    assert "softmax(mask(q·k / √d_k)) v, mask = causal & window(4)" in done.stdout
    # What the README says of head 5: it is the first of its kind, and the loss needs it most.
    assert re.search(r"^blocks\.2\.self +5 +induction", done.stdout, flags=re.M)
    assert re.search(r"^as it is +1\.99\d*\nmute head 5 of blocks\.2\.self +2\.946$", done.stdout, flags=re.M)


def test_the_readme_names_the_pythons_of_the_package():
    versions = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert f"# Python {versions[0]} to {versions[-1]}, Linux" in README
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_all_has_every_extra_that_a_user_can_use():
    """Jupyter is left out, and what builds and tests the package itself."""
    optional = PROJECT["optional-dependencies"]
    wanted = {name for name in optional if name not in ("all", "lessons", "docs", "test")}
    reached = distributions_of("telescope-attention[all]")
    for name in wanted:
        assert distributions_of(f"telescope-attention[{name}]") <= reached, name


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_table_runs(line):
    torch.manual_seed(0)
    names = {"ts": ts, "torch": torch, "layers": layers}
    names |= {name: torch.rand(2, 6, 64) for name in "xyz"} | {name: torch.rand(2, 8, 6, 64) for name in "qkv"}
    names["cross"] = layers.MultiHeadAttention(64, 8)
    names["masked"] = layers.MultiHeadAttention(64, 8, attention=ts.Attention(mask=ts.causal))
    result = eval(line.replace("\\|", "|"), names)
    if isinstance(result, ts.Attention):
        result = ts.attend(names["q"], names["k"], names["v"], result)
    if isinstance(result, torch.nn.Module):
        result = result(names["x"])
    assert result.isfinite().all()
    assert result.abs().sum() > 0


def test_mask_and_score_of_contributing_work():
    """With the imports of the file the mask is said to go into."""
    names = dict(vars(masks)) | {"Score": ts.Score, "normalize": torch.nn.functional.normalize}
    for block in re.findall(r"```python\n(.+?)```", (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.S):
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    q = torch.rand(1, 1, 5, 3)
    steps = ts.trace(q, 2 * q, q, ts.Attention(score=names["Cosine"](), mask=names["Every"](2) & ts.causal))
    assert torch.allclose(steps.scores[0, 0].diagonal(), torch.ones(5))
    assert (steps.weights[0, 0] > 0).tolist() == [[j in (0, 2, 4) and j <= i for j in range(5)] for i in range(5)]


def test_the_readme_is_short():
    """One and a half screens, and lines that fit an editor."""
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(README.split()) < 700
    assert max(map(len, prose)) < 120


def test_the_table_was_found():
    assert len(LINES) > 20


def test_picture_is_what_the_code_draws():
    drawn = runpy.run_path(str(HOME / "tools" / "picture.py"))["picture"]()
    assert (HOME / "docs" / "explain.svg").read_text(encoding="utf-8") == drawn


@pytest.mark.parametrize(
    "page", [HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_files_that_a_page_names_exist(page):
    """As a path from the repository, from src/telescope or from the page itself."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|js|toml|md))?)`", text) + re.findall(r"\]\(([\w./-]+)\)", text)
    roots = (HOME, HOME / "src" / "telescope", page.parent)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not missing


def test_map_names_the_folders_there_are():
    named = set(re.findall(r"^  (\w+)/ ", HOUSE, flags=re.M))
    there = {
        path.name for path in (HOME / "src" / "telescope").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert named == there
