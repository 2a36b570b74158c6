"""telescope lessons: the notebooks are copied, and a notebook with answers is not overwritten by accident."""

import json

import pytest

from support.repository import HOME
from telescope.lessons import notebooks

NAMES = sorted(path.name for path in (HOME / "lessons").glob("*.ipynb"))


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_notebooks_are_copied(command, own_folder):
    code, printed, complaint = command("lessons", "deep/my lessons")
    assert (code, complaint) == (0, "")
    copies = sorted((own_folder / "deep" / "my lessons").iterdir())
    assert [path.name for path in copies] == NAMES
    for copy in copies:
        assert json.loads(copy.read_text(encoding="utf-8"))["cells"]
        assert copy.read_bytes() == (HOME / "lessons" / copy.name).read_bytes()
    assert printed.startswith(f"{len(NAMES)} notebooks written to deep/my lessons. Next: ")
    assert printed.rstrip().endswith("jupyter lab 'deep/my lessons'")


def test_answers_are_overwritten_with_force_alone(command, own_folder):
    mine = own_folder / NAMES[3]
    mine.write_text("my answers")
    code, printed, complaint = command("lessons", ".")
    assert (code, printed) == (2, "")
    assert complaint == (
        f"telescope: {NAMES[3]} exists, and may hold your answers; name another folder, or overwrite it with --force\n"
    )
    # Nothing was written, not even what was missing.
    assert [path.name for path in own_folder.iterdir()] == [NAMES[3]]
    assert mine.read_text() == "my answers"
    assert command("lessons", ".", "--force")[0] == 0
    assert mine.read_bytes() == (HOME / "lessons" / NAMES[3]).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        ([], 2, "Missing argument 'folder'"),
        (["file"], 2, "file is a file; name a folder for the notebooks"),
        (["file/inside"], 1, "file/inside: not a directory"),
        (["one", "two"], 2, "two"),
        (["/proc/telescope"], 1, "/proc/telescope"),
        (["a" * 300], 1, "file name too long"),
    ],
)
def test_a_folder_that_cannot_be_is_one_sentence(command, own_folder, arguments, exit_code, said):
    (own_folder / "file").write_text("")
    code, printed, complaint = command("lessons", *arguments)
    assert (code, printed) == (exit_code, "")
    assert complaint.startswith("telescope: ")
    assert said in complaint
    assert len(complaint.splitlines()) == 1


def test_an_installation_without_notebooks_says_what_brings_them(command, own_folder, monkeypatch):
    monkeypatch.setattr(notebooks, "IN_PACKAGE", own_folder / "none")
    monkeypatch.setattr(notebooks, "IN_CLONE", own_folder / "neither")
    code, printed, complaint = command("lessons", "mine")
    assert (code, printed) == (2, "")
    assert "pip install 'telescope-attention[lessons]' brings them" in complaint
    assert not (own_folder / "mine").exists()
