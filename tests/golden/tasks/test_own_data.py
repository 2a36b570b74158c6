"""Training on data of one's own: every kind of file, what is held out, new recipes, and `telescope train --check`."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from support.recipes import quiet, small
from telescope.tasks.learning.evaluate import evaluate
from telescope.tasks.learning.new_recipe import new_recipe
from telescope.tasks.learning.train import check, read, train
from telescope.text import data_files
from telescope.text.data_files import column_names, read_rows, read_running_text, split_of

PAIRS = [(f"I see {i} dogs.", f"Ich sehe {i} Hunde.") for i in range(200)]
QUOTED = [('She said "hi",\nand left.', 'Sie sagte "hi".'), ("a, b", "c")]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tsv(file, rows=PAIRS, header=("english", "german")):
    lines = [header, *rows] if header else rows
    file.write_text("".join("\t".join(row) + "\n" for row in lines), encoding="utf-8")


def write_every_kind(folder, rows):
    """Write these rows to a file of each kind, and return what names them."""
    write_tsv(folder / "pairs.tsv", rows)
    (folder / "packed.tsv.gz").write_bytes(gzip.compress((folder / "pairs.tsv").read_bytes()))
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("german", "english"), *((german, english) for english, german in rows)])
    records = [{"english": english, "german": german, "id": 3} for english, german in rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (folder / "pairs.json").write_text(json.dumps(records), encoding="utf-8")
    for side, name in enumerate(("english", "german")):
        (folder / f"pairs.{name}").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    return ["pairs.tsv", "packed.tsv", "pairs.csv", "pairs.jsonl", "pairs.json", "pairs.{}"]


def test_every_kind_of_file_gives_the_same_rows(here):
    for name in write_every_kind(here, PAIRS):
        assert read_rows(here / "data", name, ("english", "german")) == PAIRS, name


def test_parquet(here):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    english, german = zip(*PAIRS, strict=True)
    parquet.write_table(arrow.table({"german": german, "english": english, "id": [1] * len(PAIRS)}), "pairs.parquet")
    assert read_rows(here, "pairs.parquet", ("english", "german")) == PAIRS
    with pytest.raises(ValueError, match=r'pairs\.parquet has no column "englsh"; did you mean "english"'):
        read_rows(here, "pairs.parquet", ("englsh", "german"))
    with pytest.raises(ValueError, match='holds something else than texts in the column "id": int64'):
        read_rows(here, "pairs.parquet", ("id", "german"))
    (here / "broken.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=r"broken\.parquet is not a Parquet file that can be read"):
        read_rows(here, "broken.parquet", ("english", "german"))
    with pytest.raises(ValueError, match=r"broken\.parquet is not a Parquet file that can be read"):
        column_names(here, "broken.parquet")


def test_a_damaged_page_of_parquet_is_an_error_that_names_the_file(here):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    english, german = zip(*PAIRS, strict=True)
    options = {"compression": "gzip", "use_dictionary": False}
    parquet.write_table(arrow.table({"german": german, "english": english}), "pairs.parquet", **options)
    page = parquet.ParquetFile("pairs.parquet").metadata.row_group(0).column(0)
    past = page.data_page_offset + page.total_compressed_size
    contents = bytearray((here / "pairs.parquet").read_bytes())
    contents[past - 60 : past - 40] = bytes(20)
    (here / "pairs.parquet").write_bytes(contents)
    with pytest.raises(ValueError, match=r"pairs\.parquet cannot be read from row 1 on: ") as error:
        read_rows(here, "pairs.parquet", ("english", "german"))
    assert "\n" not in str(error.value)


def test_parquet_that_unpacks_to_more_than_a_file_of_data_holds_is_refused(here, monkeypatch):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    monkeypatch.setattr(data_files, "MAX_BYTES", 10_000)
    parquet.write_table(arrow.table({"english": ["x" * 100] * 1000}), "pairs.parquet")
    with pytest.raises(ValueError, match=r"pairs\.parquet holds more than 10,000 characters"):
        read_rows(here, "pairs.parquet", ("english",))


def test_quotes_and_line_breaks_of_csv_are_kept_and_those_of_tsv_are_letters(here):
    with (here / "quoted.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([("a", "b"), *QUOTED])
    assert read_rows(here, "quoted.csv", ("a", "b")) == QUOTED
    (here / "quoted.tsv").write_text('a\tb\n"Hi\tho\n')
    assert read_rows(here, "quoted.tsv", ("a", "b")) == [('"Hi', "ho")]


def test_a_table_without_a_header_is_read_by_number(here):
    write_tsv(here / "bare.tsv", [("0", *pair) for pair in PAIRS], header=None)
    assert read_rows(here, "bare.tsv", ("2", "3")) == PAIRS


def test_rows_with_an_empty_cell_are_left_out(here):
    write_tsv(here / "gaps.tsv", [("a", "b"), ("", "c"), ("d", " "), ("e", "f")])
    assert read_rows(here, "gaps.tsv", ("english", "german")) == [("a", "b"), ("e", "f")]


def test_files_are_found_in_the_folder_of_all_data_too(here):
    (here / "data").mkdir()
    write_tsv(here / "data" / "pairs.tsv")
    assert read_rows(here / "data", "pairs.tsv", ("english", "german")) == PAIRS


def test_running_text(here):
    (here / "novel.txt").write_text("One.\nTwo.\n")
    assert read_running_text(here, "novel.txt", None) == "One.\nTwo.\n"
    write_tsv(here / "table.tsv", [("One.", "Eins."), ("Two.", "Zwei.")])
    assert read_running_text(here, "table.tsv", "english") == "One.\nTwo.\n"


def test_equal_sources_are_held_out_together():
    parts = [split_of(f"sentence {i}", held_out=10) for i in range(2000)]
    assert 150 < parts.count("validation") < 250
    assert all(split_of(f"Sentence  {i}", held_out=10) == parts[i] for i in range(2000))


def refused(call, *message):
    with pytest.raises(ValueError, match=r".") as problem:
        call()
    assert "\n" not in str(problem.value)
    for words in message:
        assert words in str(problem.value)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("pears.tsv", None, 'there is no file pears.tsv, here or in data; did you mean "pairs.tsv"?'),
        ("folder", None, "folder is a folder; name a file in it"),
        ("empty.tsv", b"", "empty.tsv is empty"),
        ("header.tsv", b"english\tgerman\n", "header.tsv is empty"),
        ("other.tsv", b"englsh\tgerman\na\tb\n", 'did you mean "englsh"'),
        ("short.tsv", b"english\tgerman\na\n", "short.tsv, line 2: has 1 columns, and column 2 is needed"),
        ("latin.tsv", b"english\tgerman\nM\xfcll\tb\n", "latin.tsv, line 2: is not UTF-8"),
        ("open.csv", b'english,german\n"a,b\n', "open.csv, line 2: is not CSV"),
        ("no.jsonl", b'{"english": "a"}\n', 'no.jsonl, line 1: has no field "german"'),
        ("number.jsonl", b'{"english": "a", "german": 3}\n', 'number.jsonl, line 1: "german" is no text'),
        ("list.jsonl", b"[1]\n", "list.jsonl, line 1: is not an object"),
        ("broken.jsonl", b'{"english"\n', "broken.jsonl, line 1: is not JSON"),
        ("one.json", b"{}", "one.json: is not a list of records"),
        ("word.docx", b"PK", 'word.docx ends with ".docx"; tables are .tsv, .csv, .jsonl, .json, .parquet'),
        ("uneven.{}", None, "uneven.english has 2 lines, uneven.german has 1 lines"),
    ],
)
def test_bad_files_are_one_sentence(here, name, contents, message):
    write_tsv(here / "pairs.tsv")
    (here / "folder").mkdir()
    (here / "uneven.english").write_text("a\nb\n")
    (here / "uneven.german").write_text("a\n")
    if contents is not None:
        (here / name).write_bytes(contents)
    refused(lambda: read_rows(Path("data"), name, ("english", "german")), message)


def test_bad_running_text_is_one_sentence(here):
    (here / "blank.txt").write_text(" \n")
    write_tsv(here / "pairs.tsv")
    refused(lambda: read_running_text(here, "blank.txt", None), "blank.txt is empty")
    refused(lambda: read_running_text(here, "blank.txt", "text"), 'which has no column text="text"')
    refused(lambda: read_running_text(here, "pairs.tsv", None), "pairs.tsv is a table", "names its column")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('train = "pairs.tsv"', "", "neither is given"),
        ('train = "pairs.tsv"', 'train = "pairs.tsv"\ncorpus = "tatoeba"', "both are given"),
        ("held_out = 5", "held_out = 0", "[data]: held_out=0 % of the data cannot be held out; 1 to 50"),
        ('target = "german"', 'target = "english"', 'source and target are both "english"'),
        ('train = "pairs.tsv"', 'corpus = "tatoeba"\nvalidation = "x.tsv"', 'validation="x.tsv" goes with train'),
    ],
)
def test_bad_data_tables_are_one_sentence(here, old, new, message):
    write_tsv(here / "pairs.tsv")
    text = new_recipe("translate", "mine.toml", train="pairs.tsv")
    assert old in text
    (here / "mine.toml").write_text(text.replace(old, new))
    refused(lambda: read("mine.toml"), message)


def written(here, task, **options):
    (here / "mine.toml").write_text(new_recipe(task, "mine.toml", **options))
    return read(here / "mine.toml")


def test_new_recipes_read_their_columns_from_the_header(here):
    write_every_kind(here, PAIRS)
    for name in ("pairs.tsv", "pairs.jsonl", "packed.tsv"):
        recipe = written(here, "translate", train=name)
        assert (recipe.data.source, recipe.data.target) == ("english", "german")
    recipe = written(here, "translate", train="pairs.csv", source="english")
    assert (recipe.data.source, recipe.data.target) == ("english", "german")
    recipe = written(here, "translate", train="pairs.{}", source="english", target="german")
    assert len(recipe.data.read(here, "train")) + len(recipe.data.read(here, "validation")) == len(PAIRS)
    write_tsv(here / "mails.tsv", header=("id", "summary", "document"), rows=[("1", "s", "d")])
    recipe = written(here, "summarize", train="mails.tsv")
    assert (recipe.data.document, recipe.data.summary) == ("document", "summary")
    (here / "novel.txt").write_text("One. " * 100)
    assert written(here, "generate", train="novel.txt").data.text is None
    assert written(here, "generate", train="pairs.tsv").data.text == "english"
    for task in ("translate", "summarize", "generate"):
        written(here, task)  # before there is any data


def test_new_recipes_that_cannot_be_written(here):
    write_tsv(here / "pairs.tsv")
    write_tsv(here / "one.tsv", [("a",)], header=("only",))
    (here / "novel.txt").write_text("One.")
    refused(lambda: new_recipe("tranlate", "x.toml"), 'no recipe to "tranlate"; did you mean "translate"?')
    refused(lambda: new_recipe("translate", "x.toml", train="pears.tsv"), 'did you mean "pairs.tsv"')
    refused(lambda: new_recipe("translate", "x.toml", train="pairs.tsv", source="englsh"), 'did you mean "english"')
    refused(lambda: new_recipe("translate", "x.toml", train="one.tsv"), "has the columns only", "needs 2")
    (here / "empty.tsv").write_text("")
    refused(lambda: new_recipe("translate", "x.toml", train="empty.tsv"), "empty.tsv is empty; a recipe to translate")
    refused(lambda: new_recipe("translate", "x.toml", train="novel.txt"), "plain text, and a recipe to translate needs")
    refused(lambda: new_recipe("translate", "x.toml", train="a.{}"), "--source and --target say")
    refused(lambda: new_recipe("generate", "x.toml", target="b"), "has one column")


@pytest.mark.parametrize("task", ["translate", "summarize", "generate"])
def test_a_new_recipe_is_checked_trains_and_is_evaluated(here, task):
    for package in ("accelerate", "sacrebleu", "rouge_score"):
        pytest.importorskip(package, reason="the train extra is not installed")
    write_tsv(here / "pairs.tsv")
    recipe = small(
        written(here, task, train="pairs.tsv", source="english", target=None if task == "generate" else "german")
    )
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, size=300))
    lines = list(check(recipe, out="run"))
    assert not (here / "run").exists()
    assert lines[0] == f"mine: {task}"
    assert lines[1].startswith("train       ")
    if task != "generate":
        assert lines[1].endswith('pairs: "I see 0 dogs." → "Ich sehe 0 Hunde."')
        counts = [int(line.split()[1]) for line in lines[1:3]]
        assert sum(counts) == len(PAIRS)
        assert 1 <= counts[1] < 30
    assert any("parameters, " in line and "in the vocabulary" in line for line in lines)
    assert any("2 steps of" in line and "times through the data; about " in line for line in lines)
    assert lines[-2:] == ["folder      run: will be made", "nothing was written; leave out --check to train"]
    train(recipe, here / "run", report=quiet)
    assert list(check(recipe, out="run"))[-2] == "folder      run: a run that will go on"
    assert evaluate(here / "run").answers >= 1


def test_commands(here, command):
    write_tsv(here / "pairs.tsv")
    code, printed, _ = command("new", "recipe", "translate", "mine.toml", "--train", "pairs.tsv")
    assert (code, printed) == (0, "mine.toml written. Next: telescope train mine.toml --check\n")
    code, _, complaint = command("new", "recipe", "translate", "mine.toml")
    assert (code, complaint) == (
        2,
        "telescope: mine.toml exists; name another file: telescope new recipe translate FILE\n",
    )
    code, _, complaint = command("new", "recipe", "translate", "pairs.tsv/mine.toml")
    assert (code, complaint.startswith("telescope: pairs.tsv/mine.toml cannot be written: ")) == (2, True)
    code, _, complaint = command("train", "mine.toml")
    assert (code, complaint.startswith("telescope: --out is missing")) == (2, True)
    code, printed, _ = command("train", "mine.toml", "--check", "--steps", "7")
    assert code == 0
    assert "7 steps of 2,048 tokens" in printed
    assert sorted(path.name for path in here.iterdir()) == ["mine.toml", "pairs.tsv"]
    code, printed, _ = command("new")
    assert (code, "recipe" in printed) == (0, True)
