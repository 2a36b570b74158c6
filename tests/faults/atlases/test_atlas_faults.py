"""Bad input of an atlas: empty corpora, broken texts, long texts, other shapes and versions, a full disk."""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from math import isnan
from threading import Event, Thread

import pytest
import torch
from safetensors.torch import load_file, save_file

import telescope as ts
from support import mapping
from support.mapping import Fragile, Letters, tiny_gpt
from telescope.atlases import folder, shared_work
from telescope.files.safetensors import manifest_checksum

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")
TEXTS = mapping.corpus(6)


def atlas(texts=TEXTS, model=None, **options):
    return ts.atlas(model or tiny_gpt(), texts, tokenizer=Letters(), **options)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([], "empty corpus"),
        (["", ""], "corpus is empty"),
        (["a"], "no text of the corpus could be read; the first: text 0: has fewer than two tokens"),
        ("no/such/file.txt", "does not exist"),
        (["#", "##"], "the tokenizer fails: no such letter: #"),
    ],
)
def test_a_corpus_without_texts_is_refused(texts, sentence):
    with pytest.raises(ValueError, match=sentence):
        atlas(texts)


def test_folders_and_files_that_hold_no_texts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no texts"):
        atlas(tmp_path)
    (tmp_path / "picture.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="cannot be read as texts"):
        atlas(tmp_path / "picture.png")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="the corpus is empty"):
        atlas(tmp_path)
    (tmp_path / "a.txt").write_text("some text of letters.")
    with pytest.raises(ValueError, match="is the file"):
        atlas([str(tmp_path / "a.txt")])


def test_broken_lines_are_named_skipped_and_counted(tmp_path):
    file = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[1:1] = ['{"text": "cut sho', '{"title": "no text"}', '{"text": "a # in it"}', ""]
    file.write_bytes("\n".join(lines).encode() + b'\n{"text": "\xff"}\n')
    found = atlas(file)
    assert found.skipped_count == 4
    assert found.texts == len(TEXTS)
    sentences = [*found.skipped.values()]
    assert "line 2: is not JSON" in sentences[0]
    assert 'line 3: has no text in the field "text"' in sentences[1]
    assert "line 4: the tokenizer fails: no such letter: #" in sentences[2]
    assert "line 11: is not UTF-8" in sentences[3]
    assert all(str(file) in sentence for sentence in sentences)
    for name, tensor in atlas(TEXTS).sums.tensors().items():
        if name != "evidence.text" and not name.startswith("group_"):  # the texts have other numbers
            assert torch.equal(tensor, found.sums.tensors()[name]), name


@pytest.mark.parametrize(("how", "reason"), [("raise", "this model has no z"), ("nan", "is not finite")])
def test_a_text_that_breaks_the_model_is_named_and_left_out(how, reason):
    model = Fragile(how)
    good = ["some letters, and some more.", "other words here."]
    found = atlas([good[0], "here is a zebra, alas", good[1]], model)
    assert found.skipped == {1: f"text 1: {reason if how == 'raise' else 'an attention in it is not finite'}"}
    alone = atlas(good, model)
    assert (alone.sums.texts, alone.tokens) == (found.sums.texts, found.tokens)
    for name in ("numerator.whole", "numerator.fraction", "distribution.count", "distribution.bins", "class_tokens"):
        assert torch.equal(alone.sums.tensors()[name], found.sums.tensors()[name]), name


def test_a_model_that_breaks_at_every_text_is_an_error():
    with pytest.raises(ValueError, match="each of the first 8 texts breaks the model: this model has no z"):
        atlas(["a zebra"] * 20, Fragile("raise"))


def test_a_text_longer_than_the_model_is_cut_and_a_longer_length_is_refused():
    text = mapping.corpus(1, least=300, most=301)[0]
    found = atlas([text])
    assert found.tokens == len(text) - (len(text) % 64 == 1)
    assert found.texts == 1
    with pytest.raises(ValueError, match="length=65 does not fit the model, which reads 2 to 64 tokens"):
        atlas(length=65)
    assert atlas(TEXTS, packed=True, batch=3).sums.distribution.count[0, 0] == -(-sum(map(len, TEXTS)) // 64)


def test_atlases_of_other_shapes_are_not_compared():
    with pytest.raises(ValueError, match=r'"blocks\.0\.self" has 2 heads in one and 4 in the other'):
        ts.compare(atlas(), atlas(model=tiny_gpt(heads=4)))
    with pytest.raises(TypeError, match=r"two atlases, not Atlas and str; ts\.open"):
        ts.compare(atlas(), "folder")


def test_a_full_disk_keeps_what_was_done(tmp_path, monkeypatch):
    calls = []

    def full(tensors, file, **options):
        calls.append(file)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return saved(tensors, file, **options)

    saved = shared_work.save_file
    monkeypatch.setattr(shared_work, "save_file", full)
    options = {"out": tmp_path / "out", "save_every": 0.0, "shard": 50}
    with pytest.raises(ValueError, match=r"the disk is full; make room, and run the same command"):
        atlas(**options)
    assert len([*(tmp_path / "out.progress").glob("part-*")]) == 1
    found = atlas(**options)
    assert len(calls) == 3 + 6 - 2  # two of the six shards were kept
    for name, tensor in atlas(shard=50).sums.tensors().items():
        assert torch.equal(tensor, found.sums.tensors()[name])


def test_going_on_with_other_settings_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        atlas(out=tmp_path / "out")
    with pytest.raises(ValueError, match="unfinished atlas with another length: 64 instead of 32;"):
        atlas(out=tmp_path / "out", length=32)


def test_an_existing_folder_is_replaced_only_if_that_is_wanted(tmp_path):
    out = tmp_path / "out"
    first = atlas(out=out)
    assert repr(atlas(out=out)) == repr(first)  # the same command again opens what is finished
    with pytest.raises(ValueError, match="holds an atlas already"):
        atlas(out=out, length=32)
    assert atlas(out=out, length=32, replace=True).about["length"] == 32
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"holds letter\.txt, which would be lost"):
        atlas(out=tmp_path / "other")


class Capitals(Letters):
    """A tokenizer that reads some letters as others."""

    def encode(self, text):
        return super().encode(text.replace("a", "b"))


def changed_bit(model, write):
    """Return a model with another last bit of the last number of its last parameter."""
    parameter = [*model.parameters()][-1]
    with torch.no_grad():
        bits = write(parameter).view(torch.int32).view(-1)
        bits[-1] ^= 1
    return model


def scaled(model):
    layer = model.blocks[1].self_attention
    layer.attention = replace(layer.attention, scale=0.1)
    return model


def other_call(what):
    """Return the model, the texts, the options and the context of a call that differs from the first in one thing."""
    model, options, context = tiny_gpt(), {}, nullcontext()
    match what:
        case "other model weights":
            model = changed_bit(model, lambda parameter: parameter)
        case "another model config":
            model = scaled(model)
        case "another tokenizer":
            options = {"tokenizer": Capitals()}
        case "another batch: 8 instead of 3":
            options = {"batch": 3}
        case "other edits":
            context = ts.edit(model, ts.mute("blocks.0.self", heads=1))
        case "another autocast":
            context = torch.autocast("cpu", torch.bfloat16)
    return model, options, context


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize(
    "what",
    [
        "other model weights",
        "another model config",
        "another tokenizer",
        "other texts",
        "another batch: 8 instead of 3",
        "other edits",
        "another autocast",
    ],
)
def test_an_atlas_of_something_else_is_not_returned(tmp_path, monkeypatch, what, finished):
    """Of another weight, setting, token, letter or edit: the error says what differs, and the folder stays as it is."""
    out, file = tmp_path / "out", tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS))
    if not finished:
        monkeypatch.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
    with nullcontext() if finished else pytest.raises(ZeroDivisionError):
        ts.atlas(tiny_gpt(), file, tokenizer=Letters(), out=out)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != file}
    if what == "other texts":
        file.write_text(file.read_text().translate({ord("a"): "b", ord("b"): "a"}))  # of the same size
    model, options, context = other_call(what)
    holds = "holds an atlas already" if finished else "holds an unfinished atlas"
    with context, pytest.raises(ValueError, match=f"{holds} with {what}; ") as error:
        ts.atlas(model, file, **{"tokenizer": Letters(), "out": out} | options)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_a_write_that_no_version_counts_is_seen(tmp_path):
    """`.data`, and tensors of inference mode, have no version: one and the same model is read anew in each call."""
    model = tiny_gpt()
    atlas(model=model, out=tmp_path / "out")
    changed_bit(model, lambda parameter: parameter.data)
    with pytest.raises(ValueError, match="other model weights"):
        atlas(model=model, out=tmp_path / "out")
    changed_bit(model, lambda parameter: parameter.data)  # as it was
    assert atlas(model=model, out=tmp_path / "out").texts == 6
    with torch.inference_mode():
        inferred = tiny_gpt()
    assert atlas(model=inferred, out=tmp_path / "out").texts == 6


def test_the_same_edits_go_on_and_others_do_not(tmp_path):
    """Edits are compared by what they do: the code of a function, the block they are in, the thread that entered it."""
    model, factor = tiny_gpt(), [0.5]
    by = lambda times: ts.redefine(None, lambda attention: replace(attention, scale=times))  # noqa: E731
    with ts.edit(model, by(factor[0])):
        first = atlas(model=model, out=tmp_path / "out")
    assert first.about["edits"][0][0].startswith("redefine")
    with ts.edit(model, by(0.5)):
        assert repr(atlas(model=model, out=tmp_path / "out")) == repr(first)
    for edits in ([by(0.25)], [by(0.5), ts.mute(0)]):
        with ts.edit(model, *edits), pytest.raises(ValueError, match="with other edits;"):
            atlas(model=model, out=tmp_path / "out")
    with pytest.raises(ValueError, match="with other edits;"):
        atlas(model=model, out=tmp_path / "out")

    # An edit that another thread entered does not change the numbers of this one.
    atlas(model=model, out=tmp_path / "plain")
    entered, leave = Event(), Event()

    def edit_elsewhere():
        with ts.edit(model, ts.mute(0)):
            entered.set()
            leave.wait(60)

    thread = Thread(target=edit_elsewhere)
    thread.start()
    entered.wait(60)
    try:
        assert atlas(model=model, out=tmp_path / "plain").about["edits"] == []
    finally:
        leave.set()
        thread.join()


def as_an_earlier_version(path):
    """Rewrite a folder as the version before wrote it: a checksum of some weights, names and sizes, no groups."""
    tensors = load_file(path / folder.SUMS)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("group_")}
    assert len(kept) == len(tensors) - 4
    save_file(kept, path / folder.SUMS)
    manifest = json.loads((path / folder.FILE).read_text())
    manifest["about"] = {
        "model": {"class": "GPT", "parameters": 1, "checksum": 1},
        "texts": ["6 texts", 7],
        "length": 64,
    }
    manifest["crc32_of_sums"] = {name: manifest["crc32_of_sums"][name] for name in kept}
    manifest["crc32"] = manifest_checksum(manifest)
    (path / folder.FILE).write_text(json.dumps(manifest))


def test_an_atlas_of_an_earlier_version_opens_and_its_errors_are_unknown(tmp_path):
    new = atlas(out=tmp_path / "old")
    as_an_earlier_version(tmp_path / "old")
    old = ts.open(tmp_path / "old")
    assert repr(old.heads()) == repr(new.heads())
    with pytest.raises(
        ValueError, match="holds an atlas already, written by an earlier version, which cannot be checked"
    ):
        atlas(out=tmp_path / "old")
    other = atlas(TEXTS[:3])
    for pair, which in (((old, other), "first"), ((other, old), "second")):
        with pytest.warns(UserWarning, match=f"unknown .NaN., since the {which} atlas was made by an earlier version"):
            changes = ts.compare(*pair)
        assert all(isnan(head.errors) for head in changes if head.change)
        assert changes.to_dict()[0]["errors"] is None
        assert "nan" not in repr(changes)
    old.save(tmp_path / "again")
    assert ts.open(tmp_path / "again").sums.group_numerator is None
    assert atlas(out=tmp_path / "old", replace=True).sums.group_numerator is not None


def test_an_unfinished_atlas_of_an_earlier_version_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        atlas(out=tmp_path / "out")
    settings = tmp_path / "out.progress" / "settings.json"
    settings.write_text(json.dumps({"model": {"class": "GPT", "parameters": 1, "checksum": 1}, "length": 64}))
    with pytest.raises(ValueError, match="an unfinished atlas, written by an earlier version, which cannot be checked"):
        atlas(out=tmp_path / "out")
    for cut in ("", "{", '{"model": {"cl', "[]"):
        settings.write_text(cut)
        message = r"settings\.json, the settings of an unfinished atlas, is cut off or damaged; delete .*out\.progress,"
        with pytest.raises(ValueError, match=message):
            atlas(out=tmp_path / "out")


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    held = shared_work.Progress(tmp_path / "out", {}, 0)
    with pytest.raises(ValueError, match="being written by another run"):
        atlas(out=tmp_path / "out")
    held.release()


def test_several_processes_need_a_folder(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="pass it as out="):
        atlas()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("atlas") / "atlas"
    atlas(out=path)
    return path


def changed(saved, tmp_path, **fields):
    shutil.copytree(saved, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / folder.FILE).read_text()) | fields
    (tmp_path / "copy" / folder.FILE).write_text(json.dumps(manifest))
    return tmp_path / "copy"


def test_folders_of_another_version_or_kind_are_refused(saved, tmp_path):
    with pytest.raises(ts.LoadError, match="is of version 2, and this Telescope reads version 1"):
        ts.open(changed(saved, tmp_path, version=2))
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(ts.LoadError, match="not of an atlas"):
        ts.open(changed(saved, tmp_path, **{"is": "cake"}))
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(ts.LoadError, match="does not match its checksum"):
        ts.open(changed(saved, tmp_path, read_texts=7))


@pytest.mark.parametrize("at", [200, -3])
def test_damaged_sums_are_refused(saved, tmp_path, at):
    shutil.copytree(saved, tmp_path / "copy")
    file = tmp_path / "copy" / folder.SUMS
    data = bytearray(file.read_bytes())
    data[at] ^= 255
    file.write_bytes(data)
    with pytest.raises(ts.LoadError):
        ts.open(tmp_path / "copy")
    os.remove(file)
    with pytest.raises(ts.LoadError, match="does not exist"):
        ts.open(tmp_path / "copy")


def test_unknown_names_are_suggested(saved):
    found = ts.open(saved)
    for call, sentence in (
        (lambda: found.statistic("blocks.0.self", 0, "entrpy"), 'did you mean "entropy"'),
        (lambda: found.evidence("blocks.0.self", 0, "inducton"), 'did you mean "induction"'),
        (lambda: found.profile("blocks.0.slf", 0), 'did you mean "blocks.0.self"'),
        (lambda: found.profile("blocks.0.self", 0, "distnce"), 'did you mean "distance"'),
        (lambda: found.map("blocks.0.self", 9), "there is no head 9"),
        (lambda: found.map("blocks.0.self", 0, 7), "no map of texts up to 7 tokens; there are"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_serve_opens_atlases(command, tmp_path, monkeypatch):
    """One, or two side by side; one of another version is refused with a sentence."""
    pytest.importorskip("uvicorn", reason="the serve extra is not installed")
    from telescope.explorer import server

    opened = []
    monkeypatch.setattr(server, "serve", lambda library, *, path, **options: opened.append(path))
    for name in ("one", "two"):
        atlas(out=tmp_path / name)
    assert command("serve", str(tmp_path / "one"))[0] == 0
    assert command("serve", str(tmp_path / "one"), str(tmp_path / "two"))[0] == 0
    assert opened == ["/atlas/one", "/atlas/one?other=two"]
    manifest = json.loads((tmp_path / "two" / "atlas.json").read_text())
    (tmp_path / "two" / "atlas.json").write_text(json.dumps(manifest | {"version": 2}))
    code, printed, complaint = command("serve", str(tmp_path / "two"))
    assert (code, printed) == (2, "")
    assert "is of version 2, and this Telescope reads version 1" in complaint
    assert len(complaint.splitlines()) == 1
