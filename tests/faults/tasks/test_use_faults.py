"""A text that cannot be read, or a model that cannot write: one sentence on standard error, exit code 2."""

import io
import os
import sys

import pytest
from tokenizers.models import WordLevel

import telescope as ts
from support import writers
from telescope.tasks.explaining.sentence_views import watch_translation


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    without = writers.translator()
    without.tokenizer = None
    strict = writers.gpt()
    strict.tokenizer.model = WordLevel(strict.tokenizer.get_vocab(), unk_token="<unk>")  # which is no token
    models = {"translator": writers.translator(), "gpt": writers.gpt(), "luong": writers.luong()}
    models |= {"without": without, "strict": strict}
    for name, model in models.items():
        model.save(place / name)
    return place


CASES = {
    "a character it never saw": (["generate", "日", "--model", "strict"], "does not know all characters of the text"),
    "a model of another kind": (["translate", "Hello", "--model", "gpt"], "a GPT does not make one text of another"),
    "the other way round": (["generate", "Hello", "--model", "translator"], "a Transformer does not continue a text"),
    "nor searches": (["generate", "Hello", "--model", "translator", "--beams", "2"], "does not continue a text; a GPT"),
    "no tokenizer": (["translate", "Hello", "--model", "without"], "the model has no tokenizer, so it reads no text"),
    "a sentence in a GPT": (["explain", "Hello", "--model", "gpt"], "gpt is a GPT; a sentence is explained on a Trans"),
    "nor in an LSTM": (["explain", "Hello", "--model", "luong"], "is a LuongTranslator"),
    "no such model": (["summarize", "Hello", "--model", "translatr"], 'no model "translatr"; did you mean "transl'),
    "no such file": (["translate", "notes.txt", "--model", "translator"], 'there is no file "notes.txt"'),
    "no such path": (["summarize", "./notes", "--model", "translator"], 'there is no file "./notes"'),
    "more than the beam": (["translate", "a", "--n-best", "9", "--model", "translator"], "n_best=9 of beams=5"),
    "no beam": (["translate", "a", "--beams", "0", "--model", "translator"], "beams=0 must be a whole number"),
    "a temperature below zero": (["generate", "O", "--temperature", "-1", "--model", "gpt"], "temperature=-1.0"),
    "fewer than no tokens": (
        ["generate", "O", "--max-new-tokens", "-1", "--model", "gpt"],
        "max_new_tokens=-1 must be",
    ),
    "a word that is not there": (["explain", "I am", "--query", "xam", "--model", "translator"], 'no word is "xam"'),
    "two that are not there": (["explain", "I am", "--between", "I,we", "--model", "translator"], 'no word is "we"'),
    "one word, not two": (["explain", "I am", "--between", "I", "--model", "translator"], "is not two words"),
    "no such layer": (["explain", "I am", "--layer", "2", "--model", "translator"], "there is no layer 2; there are 2"),
    "no such head": (["explain", "I am", "--head", "4", "--model", "translator"], "there is no head 4; there are 4"),
    "no word at all": (["explain", "...", "--model", "translator"], "there is no word in the sentence"),
    "nothing at all": (["explain", " ", "--model", "translator"], "there is no word in the sentence"),
    "too long to explain": (["explain", "tired " * 60, "--model", "translator"], "tokens; at most"),
    "a sentence and an example": (["explain", "I am", "--example", "bank"], "--example and --by-sum are without one"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(command, folders, monkeypatch, case):
    monkeypatch.chdir(folders)
    arguments, message = CASES[case]
    code, printed, complaint = command(*arguments)
    assert (code, printed) == (2, "")
    assert complaint.startswith("telescope: ")
    assert message in complaint
    assert len(complaint.splitlines()) == 1
    assert len(complaint) < 240


def test_bytes_that_are_not_utf8(command, folders, tmp_path, monkeypatch):
    (tmp_path / "latin").write_bytes("Müller".encode("latin-1"))
    code, printed, complaint = command("translate", str(tmp_path / "latin"), "--model", str(folders / "translator"))
    assert (code, printed) == (2, "")
    assert complaint == f"telescope: {tmp_path / 'latin'} is not UTF-8 text; iconv -t utf-8 makes it so\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert "standard input is not UTF-8 text" in command("summarize", "-", "--model", str(folders / "translator"))[2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(command, folders, tmp_path):
    (tmp_path / "secret").touch(mode=0o000)
    complaint = command("translate", str(tmp_path / "secret"), "--model", str(folders / "translator"))[2]
    assert "cannot be read: no permission" in complaint


def test_nothing_to_read_at_a_terminal(command, folders, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    code, _, complaint = command("translate", "--model", str(folders / "translator"))
    assert code == 2
    assert "there is nothing to read; give a text in quotes, a file" in complaint


def test_a_text_that_cannot_be_a_file_name(command, folders):
    """Longer than a file name may be, with a character that none may have: the argument is a text."""
    for text in ("tired " * 50, "a\0b"):
        code, _, complaint = command("translate", text, "--model", str(folders / "translator"), "--beams", "1")
        assert (code, complaint) == (0, "")


def test_interrupted(command, folders, monkeypatch):
    """Ctrl-C while the command waits for a line: no traceback."""

    class Waiting(io.StringIO):
        def __next__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Waiting())
    code, printed, complaint = command("translate", "-", "--model", str(folders / "translator"))
    assert (code, printed, complaint) == (130, "", "telescope: stopped by Ctrl-C\n")


def test_a_text_of_a_special_token_alone():
    model = writers.translator()
    written = ts.decoding.Written([writers.END], "", "end")
    encoder, decoder, cross = watch_translation(model, "I", written)
    assert cross.rows.names == ("</s>",)
    assert decoder.rows.names == ("<s>",)
    assert encoder.weights.sum(-1).allclose(cross.weights.sum(-1).mean())
