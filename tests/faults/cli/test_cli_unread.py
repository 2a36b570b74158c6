"""Options that a command would not read are refused, and guessed names of commands lead to ours."""

import json

import pytest

import telescope as ts

UNREAD = {
    "a layer of an example": (("explain", "--layer", "0"), "--layer is of a sentence of your own"),
    "a model of an example": (
        ("explain", "--example", "bank", "--model", "translator-en-de"),
        "--model is of a sentence",
    ),
    "two words of an example": (("explain", "--between", "a,b"), "--between is of a sentence of your own"),
    "a query of a table": (("explain", "--example", "variance", "--query", "x"), "--query is of an attention"),
    "a sum of a table": (("explain", "--example", "positions", "--by-sum"), "and positions is a table"),
    "a port without a page": (("explain", "--port", "8000"), "--port is the port of the page; add --open"),
    "JSON of a page": (("explain", "--open", "--json"), "--json is of what is printed, and --open opens the page"),
    "steps of a page": (("explain", "Good morning.", "--open", "--steps"), "--steps is of what is printed"),
    "sampling a search": (
        ("generate", "ROMEO:", "--beams", "2", "--top-k", "3"),
        "--top-k samples, and --beams searches",
    ),
    "a seed of a search": (("generate", "ROMEO:", "--beams", "2", "--seed", "0"), "--seed samples"),
    "replacing nothing": (
        ("watch", "--text", "To be", "--replace"),
        "--replace replaces the recording that --out names",
    ),
    "data to score": (("evaluate", "runs/x", "--score", "--data", "."), "--data holds the texts to answer"),
    "figures of answers": (("evaluate", "runs/x", "--predict", "--json"), "--json prints figures"),
    "data without a file": (("new", "recipe", "generate", "--data", "."), "--data is the folder in which --train"),
    "a column of plain text": (
        ("atlas", "--model", "shakespeare", "--texts", "text.txt", "--column", "body", "--out", "out"),
        'column="body" is of .jsonl and .parquet files',
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_an_option_that_nothing_reads_is_refused(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be, or not to be.\n")
    given, told = UNREAD[name]
    code, printed, complaint = command(*given)
    assert (code, printed) == (2, "")
    assert told in complaint
    assert complaint.count("\n") == 1
    assert not [entry for entry in tmp_path.iterdir() if entry.name != "text.txt"]


def test_options_that_are_read_still_are(command):
    code, printed, complaint = command("explain", "--example", "journey", "--by-sum", "--query", "journey", "--plain")
    assert (code, complaint) == (0, "")
    assert "journey" in printed
    code, printed, complaint = command("generate", "ROMEO:", "--beams", "2", "--max-new-tokens", "2", "--n-best", "1")
    assert (code, complaint) == (0, "")
    assert printed.startswith("ROMEO:")


def test_json_has_as_many_heads_as_were_asked_for(command, tmp_path):
    atlas = ts.atlas(ts.load("shakespeare"), ["To be, or not to be: that is the question."])
    atlas.save(tmp_path / "one")
    given = ("compare", f"{tmp_path / 'one'}", f"{tmp_path / 'one'}", "--json")
    assert len(json.loads(command(*given)[1])) == 16
    assert len(json.loads(command(*given, "--heads", "3")[1])) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("version",), "No such command 'version'; telescope --version prints it"),
        (("show",), "No such command 'show'; telescope serve --open opens the page"),
        (("ablate",), "--mute encoder.0 switches heads off"),
        (("info",), "telescope doctor checks the engines"),
        (("qqqq",), "No such command 'qqqq'; telescope --help lists the commands"),
        (("watch", "To be"), "write it after --text, a text in quotes"),
        (("watch", "--txt", "To be"), "No such option: --txt"),
    ],
)
def test_a_guessed_command_is_told_ours(command, given, told):
    code, printed, complaint = command(*given)
    assert (code, printed) == (2, "")
    assert told in complaint
    assert complaint.count("\n") == 1


def test_the_version_is_printed(command):
    assert command("--version")[:2] == (0, f"telescope {ts.__version__}\n")
