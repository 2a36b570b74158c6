"""A disk that is full while something is written: one sentence, nothing is lost, and the next run finishes."""

import shutil
from contextlib import contextmanager

import pytest
import torch
from fuzz.kills import saves
from fuzz.kills.children import contents

import telescope as ts
from support import mapping
from telescope.atlases import shared_work
from telescope.atlases.folder import is_atlas

resource = pytest.importorskip("resource", reason="Windows has no limits of files")
pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")


def make(out):
    return mapping.make(mapping.corpus(6), out=out, save_every=0.0)


@contextmanager
def small_disk(size):
    """Let no file grow beyond so many bytes: then writing fails as on a full disk, whichever library writes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 100, 10_000])
def test_a_full_disk_stops_an_atlas_with_one_sentence(tmp_path, monkeypatch, size):
    """While settings, sums and tables are written."""
    make(tmp_path / "undisturbed")
    undisturbed = contents(tmp_path / "undisturbed")
    shutil.rmtree(tmp_path / "undisturbed")
    out = tmp_path / "out"
    for progress in ("new", "done"):
        if progress == "done":
            with monkeypatch.context() as patched:
                patched.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    make(out)
        with pytest.raises(ValueError, match=r"^\S+ cannot be written: File too large$"), small_disk(size):
            make(out)
        assert not out.exists()
        assert [file.name for file in tmp_path.iterdir()] == ["out.progress"]
        assert not [*(tmp_path / "out.progress").glob(".*")]
    make(out)
    assert contents(out) == undisturbed
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_the_command_tells_of_a_full_disk_in_one_sentence(tmp_path, monkeypatch, command):
    (tmp_path / "texts.txt").write_text("To be, or not to be, that is the question.")

    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_work, "save_file", full)
    options = ("--model", "shakespeare", "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out"))
    code, printed, complaint = command("atlas", *options)
    assert (code, printed) == (1, "")
    assert complaint.endswith("cannot be written: the disk is full; make room, and run the same command again\n")
    monkeypatch.undo()
    assert command("atlas", *options)[0] == 0
    assert is_atlas(tmp_path / "out")


def test_a_save_on_a_full_disk_leaves_what_was_there(tmp_path):
    """Of everything that is saved as a whole, at the first of its files or at a larger one."""
    for name, kind in saves.make_kinds().items():
        place = tmp_path / name / "saved"
        kind.old(place)
        before = kind.read(place)
        for size in (0, 600):
            says = r"^\S+ cannot be written: [Ff]ile too large"
            with pytest.raises(ValueError, match=says) as error, small_disk(size):
                kind.new(place)
            assert "\n" not in str(error.value)
            assert kind.read(place) == before, name
            assert [*(tmp_path / name).rglob(".*")] == [], name
        kind.new(place)
        assert kind.read(place) != before, name


def test_a_recording_on_a_full_disk_is_one_sentence():
    model = mapping.tiny_gpt()
    sentence = pytest.raises(ValueError, match=r"^\S+ cannot be written: File too large$")
    with sentence, small_disk(0), ts.watch(model, keep="queries-keys", store="disk"):
        model(torch.arange(9)[None])
