"""Recordings of another version, truncated or inconsistent: one clear sentence, and nothing is read wrong."""

import json
import os
from functools import reduce
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import telescope as ts
from support.strategies import definitions, shapes
from support.watching import KEEPS, Museum, Translator, filled, sequence
from telescope.attention import drop_first_keys, restrict_to_heads, restrict_to_sequences
from telescope.files.definitions import from_json, to_json
from telescope.layers import Attend
from telescope.recording import saving as save


def run(keep="summaries", make=Translator, **options):
    model = filled(make(), torch.float32)
    with ts.watch(model, keep=keep, **options) as recording, torch.no_grad():
        model(sequence(5).float(), sequence(4, seed=1).float())
    return recording


def saved(folder, **options):
    run(**options).save(folder / "run.telescope")
    return folder / "run.telescope"


# ----------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("make", [Translator, Museum])
@pytest.mark.parametrize("options", [{}, {"heads": [0]}, {"queries": [0, -1]}], ids=str)
def test_a_saved_recording_opens_with_the_same_numbers(tmp_path, keep, make, options):
    recording = run(keep, make, **options)
    recording.save(tmp_path / "run.telescope")
    opened = ts.open(tmp_path / "run.telescope")
    assert opened.names == recording.names
    for name, watched in recording.items():
        one, two = opened[name].call, watched.call
        assert one.attention == two.attention
        assert (one.size, one.heads, one.rows) == (two.size, two.heads, two.rows)
        for number in ("received", "entropy", "top_weights", "top_keys", "lse"):
            got, kept = getattr(one.survey().summary, number), getattr(two.survey().summary, number)
            assert torch.equal(got, kept)
        if keep == "steps":
            assert torch.equal(one.trace().context, two.trace().context)
            if make is Translator:
                assert torch.equal(opened[name].before, watched.before)
        if keep == "queries-keys":
            assert_close(one.survey().map(1, 2), two.survey().map(1, 2))
    assert repr(opened.heads()) == repr(recording.heads())


def test_a_map_is_saved_too(tmp_path):
    opened = ts.open(saved(tmp_path, map=(2, 2)))
    assert torch.equal(opened["encoder.0"].survey().map(2, 2), run(map=(2, 2))["encoder.0.self"].survey().map(2, 2))


def test_tensors_are_read_on_first_use(tmp_path):
    folder = saved(tmp_path)
    opened = ts.open(folder)
    before = opened["encoder.0"].survey().entropy
    os.remove(folder / "3.safetensors")
    assert before.isfinite().all()
    with pytest.raises(ts.LoadError, match=r"3\.safetensors"):
        opened[opened.names[3]].survey()


def test_a_function_is_saved_by_its_name(tmp_path):
    attend, q = Attend(), torch.rand(1, 1, 3, 2)
    attention = ts.Attention(bias=lambda i, j: -0.1 * (i - j).abs(), mask=ts.causal)
    with ts.watch(attend, keep="queries-keys") as recording:
        attend(q, q, q, attention)
    recording.save(tmp_path / "run")
    opened = ts.open(tmp_path / "run")
    assert "bias" in repr(opened)
    with pytest.raises(ValueError, match="its bias was a function"):
        opened["attention"].survey()


# ------------------------------------------------------------------------------------------------- whole or not at all


def test_saving_is_atomic(tmp_path, monkeypatch):
    folder = saved(tmp_path)
    before = sorted(os.listdir(folder))
    monkeypatch.setattr(save, "write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(keep="steps").save(folder, replace=True)
    assert sorted(os.listdir(folder)) == before
    assert os.listdir(tmp_path) == ["run.telescope"]
    assert ts.open(folder).keep == "summaries"
    with pytest.raises(ZeroDivisionError):
        run().save(tmp_path / "another")
    assert os.listdir(tmp_path) == ["run.telescope"]


def test_saving_replaces_recordings_and_nothing_else(tmp_path):
    folder = saved(tmp_path)
    run(keep="steps").save(folder, replace=True)
    assert ts.open(folder).keep == "steps"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("work")
    for name in ("mine", "file"):
        with pytest.raises(ValueError, match="is no recording, so it is left alone"):
            run().save(tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (folder / "notes.txt").write_text("what I saw")
    with pytest.raises(ValueError, match=r"holds notes\.txt beside a recording, which would be lost"):
        run().save(folder, replace=True)


def test_a_recording_is_replaced_only_with_replace(tmp_path):
    folder = saved(tmp_path, keep="steps")
    with pytest.raises(ValueError, match=r"holds a recording already, of Translator, keep='steps'.*replace=True"):
        run().save(folder)
    assert ts.open(folder).keep == "steps"
    run().save(folder, replace=True)
    assert ts.open(folder).keep == "summaries"
    (tmp_path / "empty").mkdir()
    run().save(tmp_path / "empty")


# ---------------------------------------------------------------------------------------------------------- checksums


def flipped(file, at):
    contents = bytearray(file.read_bytes())
    contents[at] ^= 0x10
    file.write_bytes(contents)


@pytest.mark.parametrize("keep", KEEPS)
def test_every_byte_of_a_recording_counts(tmp_path, keep):
    """A flipped byte is found when the numbers are read, wherever in a file it is."""
    folder, dice = saved(tmp_path, keep=keep), Random(0)
    for name in sorted(os.listdir(folder)):
        file = folder / name
        whole = file.read_bytes()
        for at in [*dice.sample(range(len(whole)), 5), len(whole) - 1]:
            if name == "recording.json" and whole[at : at + 1].isspace():
                continue
            flipped(file, at)
            with pytest.raises(ts.LoadError) as problem:
                everything(ts.open(folder))
            assert "\n" not in str(problem.value)
            file.write_bytes(whole)
    everything(ts.open(folder))


def everything(recording):
    return {name: [part.tensor for part in watched.call._kept.values()] for name, watched in recording.items()}


def test_unused_tensors_are_not_read(tmp_path):
    """Opening checks the manifest alone; a tensor is compared with its checksum when it is read."""
    folder = saved(tmp_path, keep="queries-keys")
    flipped(folder / "1.safetensors", -1)
    opened = ts.open(folder)
    opened[opened.names[0]].survey()
    with pytest.raises(ts.LoadError, match=r'1\.safetensors: tensor "\w+" does not match its checksum'):
        opened[opened.names[1]].survey()


def test_a_recording_without_checksums_still_opens(tmp_path):
    """Earlier versions wrote such recordings."""
    folder = saved(tmp_path)
    manifest(lambda contents: None)(folder)
    assert "crc32" not in (folder / "recording.json").read_text()
    assert len(everything(ts.open(folder))) == 6


def test_measures_of_another_version_are_found_by_name(tmp_path):
    """A recording of a later version opens, names what is left out, and has the other numbers."""
    folder = saved(tmp_path)

    def rename(contents):
        for attention in contents["attentions"]:
            for call in attention["calls"]:
                call["sums"] = [{"far": "ahead"}.get(name, name) for name in call["sums"]]

    known = {(head.layer, head.number): head for head in ts.open(folder).heads()}
    assert any(head.far == head.far for head in known.values())
    manifest(rename)(folder)
    with pytest.warns(UserWarning, match="left out, since unknown here: ahead$"):
        opened = ts.open(folder)
    for head in opened.heads():
        twin = known[head.layer, head.number]
        assert head.far != head.far
        for name in ("itself", "previous", "first", "sink", "spread"):
            assert getattr(head, name) == pytest.approx(getattr(twin, name), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("names", [None, "far", [1], ["far", "far"], {}], ids=str)
def test_names_of_sums_are_checked(tmp_path, names):
    folder = saved(tmp_path)
    manifest(lambda contents: call_of(contents).update(sums=names))(folder)
    with pytest.raises(ts.LoadError, match='"sums" is not a list of different names'):
        ts.open(folder)


def test_sums_without_a_name_are_refused(tmp_path):
    folder = saved(tmp_path)
    manifest(lambda contents: call_of(contents)["sums"].pop())(folder)
    with pytest.raises(ts.LoadError, match='tensor "shares" has shape'):
        ts.open(folder)


def test_a_head_is_surveyed_alone(tmp_path, monkeypatch):
    """`head` of queries and keys computes that head and no other."""
    opened, other = (ts.open(saved(tmp_path / name, keep="queries-keys")) for name in "ab")
    heads = []

    def counted(queries, *rest, **options):
        heads.append(queries.shape[1])
        return ts.survey(queries, *rest, **options)

    monkeypatch.setattr("telescope.recording.queries_keys_call.survey", counted)
    for name, watched in opened.items():
        for number in watched.call.heads:
            one, of_all = watched.head(number), other[name].survey().head(number)
            for numbers in ("lse", "received", "entropy", "top_weights"):
                assert_close(getattr(one.summary, numbers), getattr(of_all.summary, numbers))
            assert torch.equal(one.top.keys, of_all.top.keys)
            assert_close(one.map(1, 2), of_all.map(1, 2))
            assert watched.head(number) is one
    assert set(heads) == {1, 4, 2}
    assert heads.count(1) == sum(len(watched.call.heads) for watched in opened.values())


# ------------------------------------------------------------------------------------------------------ what is refused


def manifest(change):
    """Change recording.json and remove its checksums, so that the change itself is found."""

    def corrupt(folder):
        contents = json.loads((folder / "recording.json").read_text())
        for part in (contents, *(call for attention in contents["attentions"] for call in attention["calls"])):
            part.pop("crc32", None)
        change(contents)
        (folder / "recording.json").write_text(json.dumps(contents))

    return corrupt


def call_of(contents):
    return contents["attentions"][0]["calls"][0]


def setting(name, value):
    return manifest(lambda contents: call_of(contents).__setitem__(name, value))


def cut(folder):
    file = folder / "0.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def reshaped(folder):
    tensors = load_file(folder / "0.safetensors")
    tensors["entropy"] = tensors["entropy"][..., :-1].contiguous()
    save_file(tensors, folder / "0.safetensors")


def without(name):
    def corrupt(folder):
        tensors = load_file(folder / "0.safetensors")
        del tensors[name]
        save_file(tensors, folder / "0.safetensors")

    return corrupt


CORRUPTED = {
    "a newer version": (manifest(lambda contents: contents.update(version=2)), "version 2", "reads version 1"),
    "no version": (manifest(lambda contents: contents.pop("version")), "version None"),
    "something else": (manifest(lambda contents: contents.update({"is": "a model"})), "is not of a recording"),
    "no JSON": (lambda folder: (folder / "recording.json").write_text("{"), "is not JSON"),
    "no manifest": (lambda folder: (folder / "recording.json").unlink(), "is no recording"),
    "cut short": (cut, "truncated"),
    "a file is missing": (lambda folder: (folder / "0.safetensors").unlink(), "does not exist"),
    "fewer queries": (setting("queries", 4), "entropy", "shape [2, 4, 5]"),
    "more keys": (setting("keys", 50), "received", "describes [2, 4, 50]"),
    "a batch that is none": (setting("batch", -1), "is no complete description of a call"),
    "heads that are none": (setting("heads", ["one"]), "is no complete description of a call"),
    "another number of heads": (setting("heads", [0, 1]), "received"),
    "a dtype that is none": (setting("dtype", "nn"), "is no complete description of a call"),
    "numbers that are cut": (reshaped, "entropy", "shape [2, 4, 4]"),
    "numbers that are gone": (without("top_keys"), 'no tensor "top_keys"'),
    "a path out of it": (setting("file", "../0.safetensors"), "no safetensors file in the same folder"),
    "a definition of nothing": (setting("attention", {"is": "Everything"}), "no part of one"),
    "a definition that runs": (setting("attention", {"is": "Attention", "scale": {"is": "eval"}}), "no part of one"),
    "a definition that does not fit": (
        setting("attention", {"is": "Attention", "mask": {"is": "Window", "size": -3}}),
        "hides every key",
    ),
    "no definition": (setting("attention", {"is": "Causal"}), "has no definition"),
    "an attention without a name": (manifest(lambda contents: contents["attentions"][0].pop("name")), "without a name"),
    "two of one name": (
        manifest(lambda contents: contents["attentions"].append(contents["attentions"][0])),
        "two attentions",
    ),
    "a text for no token": (
        manifest(lambda contents: contents.update(joined={"5 x": "a"})),
        "\"joined\" has a text for '5 x', which is no id of a token",
    ),
    "a token for a run": (manifest(lambda contents: contents.update(after={"5 6": "a"})), '"after"', "'5 6'"),
    "a number for a text": (manifest(lambda contents: contents.update(after={"5": 1})), '"after" is not a text'),
    "keep that is none": (manifest(lambda contents: contents.update(keep="all")), "lacks its model, keep"),
}


HOSTILE = {
    "a text for a mask": ("mask", "causal", "field \"mask\" of Attention is 'causal', which is of another type"),
    "a mask for a score": ("score", {"is": "Causal"}, 'field "score" of Attention'),
    "a function for a bias": ("bias", {"normalizer": "softmax"}, 'field "bias" of Attention'),
    "a base": ("mask", {"is": "Mask"}, "no part of one"),
    "a truth for a number": ("scale", True, 'field "scale" of Attention'),
    "a number of 1,300 bits": ("scale", 10**400, 'field "scale" of Attention'),
    "a window of a third": ("mask", {"is": "Window", "size": 1 / 3}, 'field "size" of Window'),
    "no masks together": ("mask", {"is": "Both", "masks": []}, "combines no masks"),
    "a field too much": ("mask", {"is": "Window", "sizes": 3}, 'Window has no field "sizes"; did you mean "size"?'),
    "a field too few": ("mask", {"is": "Window"}, 'Window lacks its field "size"'),
    "a mask nested deep": (
        "mask",
        reduce(lambda mask, _: {"is": "Opposite", "mask": mask}, range(300), {"is": "Causal"}),
        "nested more than 32 deep",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_fields_of_a_definition_must_have_their_declared_types(name, tmp_path):
    field, value, word = HOSTILE[name]
    folder = saved(tmp_path)
    manifest(lambda contents: call_of(contents)["attention"].__setitem__(field, value))(folder)
    with pytest.raises(ts.LoadError) as problem:
        ts.open(folder)
    assert word in str(problem.value)
    assert "\n" not in str(problem.value)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_definition_survives_a_round_trip(data):
    """Also definitions restricted to heads, sequences and later keys."""
    shape = data.draw(shapes())
    attention = data.draw(definitions(shape))
    for part in (
        attention,
        restrict_to_heads(attention, torch.tensor([shape.heads - 1]), shape.heads),
        restrict_to_sequences(attention, torch.tensor([shape.batch - 1]), shape.batch),
        drop_first_keys(attention, 3),
    ):
        tensors = {}
        contents = json.loads(json.dumps(to_json(part, tensors)))
        assert from_json(contents, tensors, "here") == part or "untold" in str(contents)


@pytest.mark.parametrize("name", ["recording.json", "0.safetensors"])
def test_links_out_of_a_recording_are_refused(name, tmp_path):
    folder = saved(tmp_path)
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ts.LoadError, match=r"is a link to .*secret, out of the recording"):
        ts.open(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ts.LoadError, match=r"is not a file"):
        ts.open(folder)


def test_top_keys_out_of_range_are_refused_when_they_are_read(tmp_path):
    folder = saved(tmp_path)
    manifest(lambda contents: None)(folder)
    tensors = load_file(folder / "0.safetensors")
    tensors["top_keys"][0, 0, 0, 0] = 10**6
    save_file(tensors, folder / "0.safetensors")
    with pytest.raises(ts.LoadError, match=r'"top_keys" names keys beyond the 5'):
        ts.open(folder).heads()


@pytest.mark.parametrize("name", CORRUPTED)
def test_corrupted_recordings_are_refused(name, tmp_path):
    corrupt, *words = CORRUPTED[name]
    folder = saved(tmp_path)
    corrupt(folder)
    with pytest.raises(ts.LoadError) as problem:
        ts.open(folder)
    for word in words:
        assert word in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_missing_recording():
    with pytest.raises(ts.LoadError, match="does not exist"):
        ts.open("no/such.telescope")
