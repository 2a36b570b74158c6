"""`telescope watch`: from a folder and a text to a recording and a table of heads, and its errors."""

import io
import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import telescope as ts
from support.watched import FAMILIES
from telescope.models import GPT, GPTConfig

TEXT = "a man saw a man with a telescope ."
WORDS = ["[UNK]", "a", "man", "saw", "with", "telescope", "."]


def tokenizer():
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    torch.manual_seed(0)
    ours = GPT(GPTConfig(vocabulary=7, max_positions=32, d_model=16, blocks=2, heads=2))
    ours.tokenizer = tokenizer()
    ours.save(tmp_path / "ours")
    for family in ("llama", "marian"):
        FAMILIES[family].model().save_pretrained(tmp_path / family)
        tokenizer().save(str(tmp_path / family / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize(("name", "layer"), [("ours", "blocks.1.self"), ("llama", "model.layers.1.self_attn")])
def test_watch_reads_a_text(folder, command, name, layer):
    out = folder / "run.telescope"
    code, printed, complaint = command(
        "watch", "--model", f"{folder / name}", "--text", f"{folder / 'text.txt'}", "--out", f"{out}"
    )
    assert code == 0
    assert complaint.startswith("telescope: with --keep summaries the page will show")
    assert printed.splitlines()[0].endswith(f"saved as {out}")
    assert "read 9 tokens" in printed
    assert layer in printed
    recording = ts.open(out)
    assert recording[layer].call.size == (9, 9)
    assert recording.decode([2]) == "man"
    assert recording.heads()[0].punctuation >= 0


def test_a_recording_is_replaced_only_with_replace(folder, command):
    out = folder / "run.telescope"
    given = ("watch", "--model", f"{folder / 'ours'}", "--text", f"{folder / 'text.txt'}", "--out", f"{out}")
    assert command(*given)[0] == 0
    before = (out / "recording.json").read_bytes()
    code, printed, complaint = command(*given, "--keep", "steps")
    assert (code, printed) == (2, "")
    assert complaint.count("\n") == 1
    assert "holds a recording already, of GPT" in complaint
    assert complaint.endswith("--replace replaces it\n")
    assert (out / "recording.json").read_bytes() == before
    assert command(*given, "--keep", "steps", "--replace")[0] == 0
    assert ts.open(out).keep == "steps"


@pytest.mark.parametrize("way", ["words", "one long word", "pipe", "-"])
def test_watch_reads_words(folder, command, monkeypatch, way):
    """The words themselves give the numbers of a file that holds them; without --text, standard input."""
    given = ("watch", "--model", f"{folder / 'ours'}", "--json")
    code, expected, _ = command(*given, "--text", f"{folder / 'text.txt'}")
    if way == "one long word":
        code, printed, _ = command(*given, "--text", "a" * 300)
        assert json.loads(printed)["tokens"] == 1
        return
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    words = {"words": ("--text", TEXT), "pipe": (), "-": ("--text", "-")}[way]
    again, printed, complaint = command(*given, *words)
    assert (code, again, complaint) == (0, 0, "")
    assert printed == expected


def test_watch_has_a_model_of_its_own(command):
    code, printed, _ = command("watch", "--text", "To be, or not to be")
    assert code == 0
    assert printed.startswith("GPT read ")
    assert printed.splitlines()[2].split()[2] != "mixed"  # the most telling heads come first


def test_watch_generates_after_the_text(folder, command):
    code, printed, _ = command(
        "watch", "--model", f"{folder / 'llama'}", "--text", f"{folder / 'text.txt'}", "--write", "4", "--json"
    )
    assert code == 0
    heads = json.loads(printed)["heads"]
    assert len(heads) == 8
    assert {"layer", "number", "kind", "induction", "spread"} <= heads[0].keys()


def test_watch_records_a_translation(folder, command):
    code, printed, _ = command(
        "watch", "--model", f"{folder / 'marian'}", "--text", f"{folder / 'text.txt'}", "--layers", "*encoder_attn"
    )
    assert code == 0
    assert "it wrote:" in printed
    assert "model.decoder.layers.2.encoder_attn" in printed


COMPLAINTS = {
    "no model": (["--model", "no/model"], "no/model does not exist"),
    "a name": (["--model", "shakespear"], 'there is no model "shakespear"; did you mean "shakespeare"?'),
    "no text": (["--text", "no/text.txt"], 'there is no file "no/text.txt"; if that is a text, send it through a pipe'),
    "a folder": (["--text", "."], "--text . is not a file"),
    "a device without end": (["--text", "/dev/full"], "--text /dev/full is not a file"),
    "no words": (["--text", " "], "the text has no tokens"),
    "a layer": (["--layers", "9"], "layers=9 is no layer of this model; they count from 0 to 1"),
    "keep": (["--keep", "summary"], 'did you mean "summaries"?'),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_errors_are_one_sentence(folder, command, name):
    options, word = COMPLAINTS[name]
    usual = {"--model": f"{folder / 'ours'}", "--text": f"{folder / 'text.txt'}"}
    given = usual | {options[0]: options[1]}
    code, printed, complaint = command("watch", *(part for pair in given.items() for part in pair))
    assert (code, printed) == (2, "")
    assert word in complaint
    assert complaint.count("\n") == 1
