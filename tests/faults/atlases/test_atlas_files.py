"""Files of an atlas that were damaged or made by someone else: texts in Parquet, atlas.json, sums, unfinished runs."""

import json
import math
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import telescope as ts
from support import mapping
from support.mapping import Letters, tiny_gpt
from telescope.atlases import folder, shared_work, text_at
from telescope.files.safetensors import manifest_checksum, tensor_checksum
from telescope.measures import HABITS

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")
TEXTS = mapping.corpus(6)


def atlas(texts=TEXTS, **options):
    return ts.atlas(tiny_gpt(), texts, tokenizer=Letters(), **options)


def write_damaged_parquet(file, texts):
    """Write a Parquet file of which the second of two row groups has a page that cannot be unpacked."""
    arrow = pytest.importorskip("pyarrow", reason="the atlas extra is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the atlas extra is not installed")
    options = {"row_group_size": 256, "compression": "gzip", "use_dictionary": False}
    parquet.write_table(arrow.table({"text": texts}), file, **options)
    page = parquet.ParquetFile(file).metadata.row_group(1).column(0)
    past = page.data_page_offset + page.total_compressed_size
    contents = bytearray(file.read_bytes())
    contents[past - 60 : past - 40] = bytes(20)
    file.write_bytes(contents)


def test_a_damaged_parquet_file_is_named_and_the_rest_is_read(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_damaged_parquet(corpus / "a.parquet", ["abc"] * 256 + TEXTS[1:])
    (corpus / "b.parquet").write_bytes(b"PAR1 nothing")
    (corpus / "c.jsonl").write_text(json.dumps({"text": TEXTS[2]}))
    found = atlas(corpus, out=tmp_path / "out", batch=64)
    assert found.texts == 256 + 1
    first, second = found.skipped.values()
    assert first.startswith(f"{corpus / 'a.parquet'}, line 257: cannot be read from row 257 on: ")
    assert second.startswith(f"{corpus / 'b.parquet'}: is not a Parquet file that can be read: ")
    assert atlas(corpus, out=tmp_path / "out", batch=64).texts == found.texts


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("atlas") / "atlas"
    atlas(out=path)
    return path


def rewrite(place, fields):
    """Change fields of atlas.json, and make its checksum right again."""
    manifest = json.loads((place / folder.FILE).read_text()) | fields
    (place / folder.FILE).write_text(json.dumps(manifest | {"crc32": manifest_checksum(manifest)}))


LAYER = ["blocks.0.self", [0, 1], False]
EVIDENCE = {"source": "a.txt", "line": 1, "tokens": 5, "excerpt": "abc"}


def test_a_part_of_a_file_with_a_broken_line_is_found_again(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"one\n\xff\xfe\ntwo\n")
    assert text_at(str(file), 1) == "one\ntwo\n"
    assert text_at(str(file), 2) is None


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("about", [None, [], {"model": "GPT"}, {"model": {"class": 1}}, {"model": {"parameters": "many"}}]),
        ("sums", [None, {}, {"layers": [LAYER], "texts": 1}, {"layers": [LAYER] * 2, "texts": 1, "tokens": 9}]),
        (
            "sums",
            [{"layers": [["a", heads, False]], "texts": 1, "tokens": 9} for heads in ([], [0, 0], [-1], 2)],
        ),
        ("sums", [{"layers": [LAYER], "texts": count, "tokens": 9} for count in (-1, 1.0, "1", 10**30, True)]),
        (
            "sums",
            [
                {"layers": [LAYER], "texts": 1, "tokens": 9, "names": names}
                for names in (
                    [],
                    {"habits": ["far"]},
                    {"habits": ["far", "far"], "texts": ["far"], "queries": ["peak"]},
                    {"habits": [1], "texts": ["far"], "queries": ["peak"]},
                    {"habits": ["far"], "texts": ["far", "peak"], "queries": ["peak"]},
                )
            ],
        ),
        ("skipped", [None, {"count": 1}, {"count": 1, "texts": [[0]]}, {"count": 1, "texts": [["0", "x"]]}]),
        ("evidence", [None, {}, [[0, 0]], [[0, 0, EVIDENCE | {"line": "1"}]], [[0, 0, EVIDENCE | {"more": 1}]]]),
        ("read_texts", [None, "6", -1, [6]]),
        ("left_out", [None, "blocks.0.self", [1], ["\ud800"]]),
        ("crc32_of_sums", [None, [], {"class_tokens": "x"}]),
    ],
)
def test_every_field_of_a_description_is_checked(saved, tmp_path, field, values):
    """Also where the checksum is right: whoever writes the file can compute it."""
    for number, value in enumerate(values):
        copy = tmp_path / str(number)
        shutil.copytree(saved, copy)
        rewrite(copy, {field: value})
        with pytest.raises(ts.LoadError) as error:
            ts.open(copy)
        assert str(copy) in str(error.value)
        assert field in str(error.value)


def with_tensors(saved, place, change):
    """Return a copy of an atlas with other sums, and the right checksums of them."""
    copy = shutil.copytree(saved, place / "copy")
    tensors = load_file(copy / folder.SUMS)
    change(tensors)
    save_file(tensors, copy / folder.SUMS)
    rewrite(copy, {"crc32_of_sums": {name: tensor_checksum(tensor) for name, tensor in tensors.items()}})
    return copy


def renamed(saved, place, names):
    """Return a copy of an atlas whose measures have other names: as of a version that has those."""
    copy = shutil.copytree(saved, place)
    sums = json.loads((copy / folder.FILE).read_text())["sums"]
    other = {axis: [names.get(name, name) for name in own] for axis, own in sums["names"].items()}
    rewrite(copy, {"sums": sums | {"names": other}})
    return copy


def test_measures_of_another_version_are_found_by_name(saved, tmp_path):
    """An atlas of a later version opens, names what is left out, and has the other numbers; what it lacks is NaN."""
    known = {(head.layer, head.number): head for head in ts.open(saved).heads()}
    with pytest.warns(UserWarning, match="left out, since unknown here: ahead, surprise$"):
        opened = ts.open(renamed(saved, tmp_path / "later", {"far": "ahead", "peak": "surprise"}))
    for head in opened.heads():
        twin = known[head.layer, head.number]
        assert math.isnan(head.far)
        for name in HABITS[:-1]:
            assert getattr(head, name) == pytest.approx(getattr(twin, name), rel=0, abs=0, nan_ok=True)
            assert opened.evidence(head.layer, head.number, name) == ts.open(saved).evidence(
                head.layer, head.number, name
            )
        assert opened.evidence(head.layer, head.number, "far") == []
        assert opened.statistic(head.layer, head.number, "peak").count == 0
    # Another order of the same measures changes nothing.
    swapped = ts.open(renamed(saved, tmp_path / "swapped", {"same": "first", "first": "same"}))
    for head in swapped.heads():
        twin = known[head.layer, head.number]
        assert (head.first, head.same) == pytest.approx((twin.same, twin.first), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda sums: sums.pop("class_tokens"), 'its tensor "class_tokens" is missing'),
        (lambda sums: sums.update(more=torch.zeros(1)), 'it has a tensor "more"'),
        (lambda sums: sums.update(class_tokens=torch.zeros(1, dtype=torch.int64)), 'its tensor "class_tokens" is'),
        (
            lambda sums: sums.update({"sampled.whole": torch.zeros(9)}),
            r'its tensor "sampled.whole" is torch.float32 of shape \[9\]',
        ),
        (lambda sums: sums.pop("map_texts.6"), 'its tensor "map_texts.6" is missing'),
        (lambda sums: sums.update({"map.x": sums["map.6"].clone()}), 'it has a tensor "map.x"'),
        (lambda sums: sums.update({"map.6": sums["map.6"][:1].clone()}), 'its tensor "map.6" is'),
    ],
)
def test_sums_of_other_shapes_are_refused(saved, tmp_path, change, sentence):
    with pytest.raises(ts.LoadError, match=f"does not fit atlas.json: {sentence}"):
        ts.open(with_tensors(saved, tmp_path, change))


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """Return the file of sums of an atlas whose run was stopped before they were added up."""
    with monkeypatch.context() as patched:
        patched.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            atlas(out=tmp_path / "out")
    (file,) = (tmp_path / "out.progress").glob("part-*")
    return file


@pytest.mark.parametrize(
    "change",
    [{"done": [[0, 10**12]]}, {"done": [[3, 1]]}, {"done": 7}, {"read_texts": None}, {"sums": {}}],
)
def test_a_damaged_part_of_an_unfinished_atlas_is_named(unfinished, tmp_path, change):
    file = unfinished
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["atlas"])
    tensors = load_file(file)
    save_file(tensors, file, metadata={"atlas": json.dumps(header | change)})
    with pytest.warns(UserWarning, match=f"{file.name} is damaged, so its shards are read again: "):
        whole = atlas(out=tmp_path / "out")
    assert whole.sums.tensors().keys() == tensors.keys()
    assert not (tmp_path / "out.progress").exists()


def test_damaged_sums_of_an_unfinished_atlas_are_named(unfinished, tmp_path):
    file = unfinished
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(file) | {"class_tokens": torch.zeros(1)}, file, metadata=metadata)
    with pytest.raises(ts.LoadError, match=f'{file.name} is damaged: its tensor "class_tokens" is'):
        atlas(out=tmp_path / "out")
    file.unlink()
    (tmp_path / "out.progress" / "settings.json").write_text("[]")
    with pytest.raises(ValueError, match=r"settings\.json, the settings of an unfinished atlas, is cut off"):
        atlas(out=tmp_path / "out")


def test_a_run_that_was_stopped_after_its_last_shard_goes_on(tmp_path, monkeypatch):
    """The second process has nothing to read: its file holds sums of nothing, whatever its name sorts before."""
    expected = atlas()
    for number, name in enumerate(("ffffffff", "00000000")):
        monkeypatch.setattr(shared_work, "token_hex", lambda _, name=name: name)
        with monkeypatch.context() as patched:
            if number == 0:
                patched.setattr(shared_work.Progress, "merged", lambda self: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    atlas(out=tmp_path / "out")
            else:
                assert repr(atlas(out=tmp_path / "out")) == repr(expected)


def test_a_lock_that_cannot_be_opened_is_an_error_of_one_sentence(tmp_path):
    (tmp_path / "out.progress" / "lock-00000-of-00001").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"out\.progress cannot be written: Is a directory"):
        atlas(out=tmp_path / "out")
