"""An atlas whose run was killed: the next run finishes, and writes what an undisturbed one would have written."""

import json
import os
import shutil
from contextlib import contextmanager

import pytest
from fuzz.kills.children import contents
from safetensors.torch import save_file

import telescope as ts
from support import mapping
from support.mapping import Fragile
from telescope.atlases.shared_work import Heartbeat, Progress, ShardSet
from telescope.atlases.sums import AtlasSums

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")
REST = {"skipped": {"count": 0, "texts": []}, "evidence": [], "read_texts": 0, "left_out": []}


def make(out, texts=None, **options):
    return mapping.make(mapping.corpus(6) if texts is None else texts, out=out, save_every=0.0, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    make(out)
    return contents(out)


class Killed(BaseException):
    """What a test raises where a process would be killed."""


@contextmanager
def killed(monkeypatch, owner, name, calls=1):
    """Stop what runs within this context at the call of a function, the first or a later one."""
    original, left = getattr(owner, name), [calls]

    def dies(*given, **named):
        left[0] -= 1
        if not left[0]:
            raise Killed
        return original(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dies)
        with pytest.raises(Killed):
            yield


def parts(tmp_path):
    return sorted((tmp_path / "out.progress").glob("part-*"))


# ---------------------------------------------------------------------------------------------------- files of sums


def test_a_part_without_texts_does_no_harm(tmp_path, monkeypatch, undisturbed):
    """Earlier versions wrote one where nothing was left to do, and took the first file by name for the sum."""
    with killed(monkeypatch, Progress, "merged"):
        make(tmp_path / "out")
    before = parts(tmp_path)
    with killed(monkeypatch, Progress, "merged"):
        make(tmp_path / "out")
    assert parts(tmp_path) == before  # a run with nothing to do writes none
    empty = AtlasSums([])
    header = {"version": 1, "done": [], "sums": empty.description(), **REST}
    for name in ("00000000", "ffffffff"):
        file = tmp_path / "out.progress" / f"part-00000-{name}.safetensors"
        save_file(empty.tensors(), file, metadata={"atlas": json.dumps(header)})
    make(tmp_path / "out")
    assert contents(tmp_path / "out") == undisturbed


def test_shards_without_a_text_that_can_be_read_are_done_too(tmp_path, monkeypatch):
    texts = ["#" * 400, *mapping.corpus(2), "#" * 400]
    whole = mapping.make(texts)
    for calls in (1, 2, 3, 4):  # the first shard alone is done, then the first two, ...
        out = tmp_path / str(calls)
        with killed(monkeypatch, os, "fsync", calls + 1) if calls < 4 else killed(monkeypatch, Progress, "merged"):
            make(out, texts)
        found = make(out, texts)
        assert (found.texts, found.skipped) == (whole.texts, whole.skipped)
        assert repr(found) == repr(whole)


@pytest.mark.parametrize("kept", [0, 7, -1])
def test_a_truncated_part_is_named_and_its_shards_are_read_again(tmp_path, monkeypatch, undisturbed, kept):
    with killed(monkeypatch, Progress, "merged"):
        make(tmp_path / "out")
    (part,) = parts(tmp_path)
    part.write_bytes(part.read_bytes()[:kept])
    with pytest.warns(UserWarning, match=rf"{part.name} is damaged, so its shards are read again") as told:
        make(tmp_path / "out")
    assert len([one for one in told if "is damaged" in str(one.message)]) == 1
    assert contents(tmp_path / "out") == undisturbed


def test_a_shard_that_two_runs_have_read_counts_once(tmp_path, monkeypatch, undisturbed):
    """On a disk without locks two runs may write at once."""
    with killed(monkeypatch, os, "fsync", 3):
        make(tmp_path / "out")
    (part,) = parts(tmp_path)
    shutil.copy(part, part.with_name("part-00001-00000000.safetensors"))
    make(tmp_path / "out")
    assert contents(tmp_path / "out") == undisturbed


def write_part(out, rank, shards):
    progress = Progress(out, {}, rank, 9)
    progress.done = ShardSet([shards])
    progress.save(AtlasSums([]), REST)
    return progress


def test_parts_that_overlap_are_refused_once_and_then_completed(tmp_path):
    """All four shards are there, and no choice of files has each once: the next run reads the missing one."""
    first = write_part(tmp_path / "out", 0, (0, 3))
    write_part(tmp_path / "out", 1, (2, 4))
    assert first.is_complete(4)
    assert first.finished() == {0, 1, 2}
    with pytest.raises(ValueError, match=r"two runs wrote to .* at once; run the same command again, which reads 1"):
        first.check_disjoint(4)
    write_part(tmp_path / "out", 2, (3, 4))
    first.check_disjoint(4)


def test_a_run_may_go_on_where_texts_break(tmp_path, monkeypatch):
    """That the first texts of a process all break says nothing: those of the corpus were read before the kill."""
    texts = ["some letters, and some more.", "other words here.", *["a zebra"] * 12]
    options = {"tokenizer": mapping.Letters(), "shard": 60}
    whole = ts.atlas(Fragile("raise"), texts, **options)
    assert whole.skipped_count == 12
    model = Fragile("raise")
    with killed(monkeypatch, os, "fsync", 2):
        ts.atlas(model, texts, out=tmp_path / "out", save_every=0.0, **options)
    found = ts.atlas(model, texts, out=tmp_path / "out", **options)
    assert (found.texts, found.skipped) == (whole.texts, whole.skipped)


# -------------------------------------------------------------------------------------------------------- leftovers


def test_what_a_killed_run_was_writing_is_removed(tmp_path, monkeypatch, undisturbed):
    with killed(monkeypatch, os, "fsync", 3):
        make(tmp_path / "out")
    folder = tmp_path / "out.progress"
    names = [".part-00000-0.safetensors.new", ".settings-00000-1", ".part-00007-2.safetensors.new"]
    others = [".part-00001-3.safetensors.new"]  # of a process of this run
    for name in names + others:
        (folder / name).write_bytes(b"half")
    Progress(tmp_path / "out", json.loads((folder / "settings.json").read_text()), 0, 3).release()
    assert sorted(file.name for file in folder.glob(".*")) == others
    make(tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert contents(tmp_path / "out") == undisturbed


def test_killed_after_the_atlas_was_written(tmp_path, monkeypatch, undisturbed):
    """The next run opens the atlas and removes the progress, but not that of another run or of one that lives."""
    with killed(monkeypatch, Progress, "remove"):
        make(tmp_path / "out")
    assert contents(tmp_path / "out") == undisturbed
    folder = tmp_path / "out.progress"
    settings = json.loads((folder / "settings.json").read_text())
    living = Progress(tmp_path / "out", settings, 1, 2)
    make(tmp_path / "out")
    assert folder.exists()
    living.release()
    (folder / "settings.json").write_text(json.dumps(settings | {"length": 32}))
    make(tmp_path / "out")
    assert folder.exists()
    (folder / "settings.json").write_text(json.dumps(settings))
    make(tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_sums_never_stay_without_their_settings(tmp_path, monkeypatch):
    """Else those of one model would be taken for those of the next."""
    path = type(tmp_path)
    for calls in range(1, 6):
        out = tmp_path / str(calls)
        progress = write_part(out, 0, (0, 1))
        write_part(out, 1, (1, 2))
        with killed(monkeypatch, path, "unlink", calls):
            progress.remove()
        assert (progress.folder / "settings.json").exists() or not [*progress.folder.glob("part-*")]


def test_a_last_sign_of_life_does_not_keep_the_folder(tmp_path, monkeypatch):
    progress = write_part(tmp_path / "out", 0, (0, 1))
    path, signs = type(tmp_path), [1, 2]
    rmdir = path.rmdir

    def too_early(folder):
        if signs:
            (folder / "alive-00001").write_text(f"beef {signs.pop()}")
        rmdir(folder)

    monkeypatch.setattr(path, "rmdir", too_early)
    progress.remove()
    assert not progress.folder.exists()


# ---------------------------------------------------------------------------------------------------- other processes


def test_a_run_with_another_number_of_processes_waits_for_the_living(tmp_path):
    survivor = Progress(tmp_path / "out", {}, 1, 3)
    with pytest.raises(ValueError, match="is being written by another run; wait for it"):
        Progress(tmp_path / "out", {}, 0, 1)
    Progress(tmp_path / "out", {}, 0, 3).release()  # of the same run
    survivor.release()
    Progress(tmp_path / "out", {}, 0, 1).release()  # the locks that are left are of nobody


def test_the_first_process_waits_for_processes_that_have_not_begun(tmp_path):
    """The folder must not vanish while one of them looks what is done; a killed process has left a sign of life."""
    (tmp_path / "alive-00001").write_text("dead 17")
    heart = Heartbeat(tmp_path, 0, 2)
    try:
        assert not heart.all_came()
        (tmp_path / "alive-00001").write_text("beef 1")
        assert heart.all_came()
    finally:
        heart.stop()
