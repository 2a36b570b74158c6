"""The folder of an atlas: what other tools read in it, the command line, the hub as a local folder."""

import json
import os
import shutil
import sys

import pytest
import torch

import telescope as ts
from support import mapping
from support.mapping import Letters, tiny_gpt
from telescope.atlases import folder
from telescope.atlases.fingerprint import joined, tensor_checksums
from telescope.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("atlases") / "atlas"
    return ts.atlas(tiny_gpt(), mapping.corpus(12), tokenizer=Letters(), out=path), path


def test_an_atlas_opens_as_it_was(made):
    atlas, path = made
    opened = ts.open(path)
    assert repr(opened) == repr(atlas)
    assert [*opened.rows()] == [*atlas.rows()]
    for layer, head in atlas.places:
        assert opened.evidence(layer, head, "first") == atlas.evidence(layer, head, "first")
        assert torch.equal(opened.map(layer, head), atlas.map(layer, head))
    assert json.loads((path / folder.FILE).read_text())["version"] == folder.VERSION
    card = (path / folder.CARD).read_text()
    assert card.startswith("---\ntags: [telescope")
    assert "4 heads over 12 texts" in card


def test_other_tools_read_the_tables(made):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the atlas extra is not installed")
    atlas, path = made
    heads, evidence, maps = (
        parquet.read_table(path / f"{name}.parquet").to_pylist() for name in ("heads", "evidence", "maps")
    )
    assert heads == [*atlas.rows()]
    assert len(heads) == 4
    first = next(row for row in evidence if row["habit"] == "previous" and row["rank"] == 0)
    assert first["share"] == atlas.evidence(first["layer"], first["head"], "previous")[0].share
    assert len(maps[0]["cells"]) == 32 * 32
    assert sum(maps[0]["cells"][:32]) == pytest.approx(1.0, abs=1e-5)


def test_a_table_is_a_data_frame(made):
    pytest.importorskip("pandas", reason="the atlas extra is not installed")
    frame = made[0].table()
    assert len(frame) == 4
    assert frame["entropy.count"].tolist() == [row["entropy.count"] for row in made[0].rows()]
    changed = ts.compare(made[0], made[0]).table()
    assert changed["change"].abs().max() == 0.0


def test_texts_come_from_every_kind_of_file(tmp_path):
    texts = mapping.corpus(9)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:5]))
    kinds = [tmp_path / "a.jsonl"]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[5:]))
        kinds.append(tmp_path / "b.jsonl")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts[5:]}), tmp_path / "b.parquet", row_group_size=2)
        kinds.append(tmp_path / "b.parquet")
        with pytest.raises(ValueError, match=r'b\.parquet: has no column "words"; there are text'):
            ts.atlas(tiny_gpt(), tmp_path / "b.parquet", tokenizer=Letters(), column="words")
    expected = ts.atlas(tiny_gpt(), texts, tokenizer=Letters())
    for given in (tmp_path, kinds):
        found = ts.atlas(tiny_gpt(), given, tokenizer=Letters())
        assert found.texts == 9
        for name, tensor in expected.sums.tensors().items():
            assert torch.equal(tensor, found.sums.tensors()[name]), name
    assert found.evidence("blocks.0.self", 0, "first")[0].source.endswith((".jsonl", ".parquet"))
    (tmp_path / "whole.txt").write_text("\n".join(texts))
    one = ts.atlas(tiny_gpt(), str(tmp_path / "whole.txt"), tokenizer=Letters())
    assert (one.texts, one.tokens) == (1, len("\n".join(texts)))


def test_a_long_txt_file_is_read_in_parts_of_whole_lines(tmp_path):
    from telescope.atlases.texts import PART, Corpus

    lines = [f"line {i} of many" for i in range(3 * PART // 10)]
    file = tmp_path / "long.txt"
    file.write_text("\n".join(lines) + "\n")
    parts = [*Corpus(file)]
    assert "".join(part.text for part in parts) == file.read_text()
    assert len(parts) > 2
    assert all(lines[part.line - 1] == part.text.split("\n")[0] for part in parts)


class LocalHub:
    """The hub as a folder: what HfApi.create_repo, upload_folder and snapshot_download do, without a network."""

    def __init__(self, root):
        self.root = root

    def create_repo(self, repo, *, repo_type, private, exist_ok):
        assert (repo_type, private, exist_ok) == ("dataset", True, True)
        (self.root / repo).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id, folder_path, repo_type, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub.local/datasets/{repo_id}"


def test_an_atlas_goes_to_the_hub_and_comes_back(made, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "HfApi", lambda token=None: LocalHub(tmp_path))
    monkeypatch.setattr(hub, "snapshot_download", lambda repo, **options: str(tmp_path / repo))
    atlas, _ = made
    assert atlas.push_to_hub("someone/atlas").endswith("someone/atlas")
    assert {folder.FILE, folder.SUMS, folder.CARD} <= set(os.listdir(tmp_path / "someone" / "atlas"))
    assert repr(ts.Atlas.from_hub("someone/atlas")) == repr(atlas)


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs a command in this process: its exit code, and what it printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["telescope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_the_commands_make_and_compare_atlases(tmp_path, command):
    texts = tmp_path / "texts.jsonl"
    lines = ["To be, or not to be, that is the question.", "What's in a name? that which we call a rose", "not a #"]
    texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines) + "{broken\n")
    out = tmp_path / "atlas"
    code, printed, errors = command("atlas", "--model", "shakespeare", "--texts", texts, "--out", out, "--length", 32)
    assert code == 0, errors
    assert "GPT: 16 heads over 3 texts" in printed
    assert f"skipped {texts}, line 4: is not JSON" in errors
    _, printed, _ = command("compare", out, out, "--json")
    assert [head["change"] for head in json.loads(printed)] == [0.0] * 16
    code, _, errors = command("atlas", "--model", "shakespeare", "--texts", "none.txt", "--out", tmp_path / "other")
    assert code == 2
    assert errors.startswith("telescope: none.txt does not exist")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.bool])
def test_a_checksum_covers_every_bit_of_a_tensor(dtype):
    """In rows of 4,096 words and in the rest behind them, at any offset of memory, and the order counts."""
    draw = torch.Generator().manual_seed(0)
    size = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 2, (3 * 4096 * 4 + size * 5,), generator=draw, dtype=torch.uint8)
    (expected,) = tensor_checksums([data.view(dtype)])
    for byte in (0, 1, 4096 * 4 - 1, 4096 * 4, 3 * 4096 * 4, len(data) - 1):
        for bit in (0, 7) if dtype is not torch.bool else (0,):
            other = data.clone()
            other[byte] ^= 1 << bit
            assert tensor_checksums([other.view(dtype)]) != [expected], (byte, bit)
    moved = torch.cat([torch.zeros(size, dtype=torch.uint8), data])[size:].view(dtype)
    assert tensor_checksums([moved, data.view(dtype)]) == [expected, expected]
    assert tensor_checksums([data.view(dtype).view(-1, 1)]) != [expected]
    assert tensor_checksums([data.view(dtype).flip(0)]) != [expected]
    pair = data.view(dtype)[: 2 * (len(data) // size // 2)].view(2, -1)
    assert tensor_checksums([pair.t().contiguous().t()]) == tensor_checksums([pair])


def test_the_checksum_of_a_tensor_is_its_formula():
    """One row of three words, 1, 0 and -2: the first factor minus twice the third."""
    factors = torch.randint(-(2**62), 2**62, (4096,), generator=torch.Generator().manual_seed(0)) * 2 + 1
    total = (int(factors[0]) - 2 * int(factors[2])) % 2**64
    (found,) = tensor_checksums([torch.tensor([1, 0, -2], dtype=torch.int32)])
    assert found == joined(b"torch.int32 [3]", total.to_bytes(8, "little"))
