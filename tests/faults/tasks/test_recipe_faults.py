"""A recipe, data or a folder that does not fit is an error of one sentence: what, where, and the way out."""

import gzip
import json
import os

import pytest

from support import corpora
from support.recipes import FILES, quiet, small
from telescope.tasks.learning.evaluate import predict, score
from telescope.tasks.learning.train import read, train
from telescope.text.corpora import SUMMARIES, TEXTS, TRANSLATIONS
from telescope.text.tokenizer import bpe_from_merges, train_bpe

TINY = next(file for file in FILES if file.stem == "multi30k-tiny")


def refused(call, *message):
    with pytest.raises(ValueError, match=r".") as problem:
        call()
    sentence = str(problem.value)
    assert "\n" not in sentence
    for words in message:
        assert words in sentence


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('task = "translate"', 'task = "tranlate"', "there is no task='tranlate'; did you mean \"translate\"?"),
        ('task = "translate"', "", "there is no task=None"),
        ("[training]", "[trianing]", 'a recipe to translate has no "trianing"; did you mean "training"?'),
        ('task = "translate"', 'task = "translate"\nmetrics = 3', 'has no "metrics"; did you mean "metric"?'),
        ("[metric]\ntokens", "[decoding.more]\ntokens", '[decoding]: Decoding has no field "more"'),
        ("lr = 0.004", "learning_rate = 0.004", '[training]: Training has no field "learning_rate"'),
        ("lr = 0.004", 'lr = "0.004"', "[training]: lr='0.004' is str; it takes float"),
        ("steps = 8000", "", "[training]: give one of steps or epochs; neither is given"),
        ("d_model = 128", "d_model = 130", "[model]: d_model=130 cannot be split into heads=4; nearest: 128 or 132"),
        ("d_model = 128", "d_mdel = 128", '[model]: TransformerConfig has no field "d_mdel"; did you mean "d_model"?'),
        ("d_model = 128", "vocabulary = 128", "[model]: vocabulary=128 is what the tokenizer says; leave it out"),
        ('kind = "Transformer"', 'kind = "Tansformer"', "[model]: kind='Tansformer' is no model; did you mean"),
        ('kind = "multi30k"', 'kind = "words"', '[tokenizer]: there is no kind="words"; there are bpe, multi30k'),
        (
            'corpus = "multi30k-tokens"',
            'corpus = "multi30k-token"',
            '[data]: there is no corpus="multi30k-token"; did you',
        ),
        ('target = "de"', 'target = "fr"', '[data]: there is no target="fr"'),
        ('target = "de"', "", "[data]: "),
        ("beams = 5", "beams = 0", "[decoding]: beams=0 must be at least 1"),
        ("lr = 0.004", "lr = ", "is not a recipe that can be read"),
        ('task = "translate"', 'task = ["generate"]', "there is no task=['generate']"),
        ('task = "translate"', 'task = "translate"\nname = 3', "name=3 is no name"),
        ('kind = "Transformer"', "kind = ['GPT']", "[model]: kind=['GPT'] is no model"),
        ("lr = 0.004", "seed = 99999999999999999999999", "[training]: seed is a whole number of 77 bits; at most 63"),
        ("lr = 0.004", "seed = 9999999999999999", "[training]: seed=9999999999999999 is too large"),
        ("lr = 0.004", "lr = 1" + "0" * 400, "[training]: lr is a whole number of 1329 bits"),
        (
            "decoder_blocks = 4",
            "decoder_blocks = 100000000",
            "[model]: decoder_blocks=100000000 is too large; at most 4,096",
        ),
        ('source = "en"\ntarget = "de"', "", '[data]: Translations needs "source" and "target", which must be given'),
        ('kind = "multi30k"', "size = 10000000000", "[tokenizer]: size=10000000000 is no size of a vocabulary"),
        ("lr = 0.004", f"lr = {'[' * 5000}", "is not a recipe that can be read"),
    ],
)
def test_recipes_with_errors(tmp_path, old, new, message):
    text = TINY.read_text()
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new))
    refused(lambda: read(file), "mine", message)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
def test_a_recipe_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    refused(lambda: read(tmp_path / "pipe.toml"), "pipe.toml is not a recipe that can be read", "is not a file")
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    refused(lambda: read(tmp_path / "link.toml"), "link.toml is not a recipe that can be read", "is not a file")
    (tmp_path / "large.toml").write_bytes(b"#" * 2_000_000)
    refused(lambda: read(tmp_path / "large.toml"), "larger than 1,000,000 bytes")


def test_batches_that_are_too_large():
    refused(lambda: small(read(TINY)).training_with(tokens=None, rows=10**10), "rows=10000000000 is too large")


def test_a_recipe_that_is_not_there():
    refused(lambda: read(TINY.with_name("multi30k-tny.toml")), "there is no recipe", 'multi30k-tiny.toml"?')


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("multi30k", "multi30k"),
        ("multi30k-tokens", "multi30k"),
        ("tatoeba", "tatoeba_de_en"),
        ("debian-descriptions", "debian_ddtp_en_de"),
        ("debian-synopsis", "debian_synopsis"),
        ("samsum", "samsum"),
        ("tiny-shakespeare", "tiny_shakespeare"),
        ("wikitext2", "wikitext2"),
    ],
)
def test_data_that_are_missing(tmp_path, name, folder):
    languages = ("en", "de") if name in TRANSLATIONS else ()
    read = (TRANSLATIONS | SUMMARIES | TEXTS)[name]
    refused(lambda: read(tmp_path, "train", *languages), f"{folder}; get it from ", "--data or TELESCOPE_DATA")


@pytest.mark.parametrize(
    ("name", "file", "contents", "message"),
    [
        ("tatoeba", "tatoeba_de_en/deu.txt", b"Hi.\tHallo!\nRun!\n", "line 2: has 1 columns separated by tabs, not 2"),
        ("tatoeba", "tatoeba_de_en/deu.txt", b"Hi.\tHallo!\nRun!\tL\xffuf!\n", "line 2: is not UTF-8"),
        ("tatoeba", "tatoeba_de_en/deu.txt.gz", b"no gzip", "deu.txt.gz cannot be read"),
        ("multi30k", "multi30k/raw/train.en", b"one\n", "has 1 lines, "),
        (
            "debian-synopsis",
            "debian_synopsis/train.jsonl",
            b'{"document": "a"}\n',
            'line 1: has no field "summary"',
        ),
        ("debian-synopsis", "debian_synopsis/train.jsonl", b'{"document"\n', "line 1: is not JSON"),
        ("samsum", "samsum/val.json", b'{"dialogue": "", "summary": ""}', "is not a list of records"),
        ("samsum", "samsum/val.json", b"[" * 100_000, "nested too deep"),
        ("samsum", "samsum/val.json", b'[{"dialogue": 3, "summary": ""}]', 'record 1: "dialogue" is no text'),
    ],
)
def test_data_that_are_broken(tmp_path, name, file, contents, message):
    corpora.make(tmp_path)
    (tmp_path / f"{file}.gz").unlink(missing_ok=True)
    (tmp_path / file).write_bytes(contents)
    languages = ("en", "de") if name in TRANSLATIONS else ()
    read = (TRANSLATIONS | SUMMARIES)[name]
    refused(lambda: read(tmp_path, "train", *languages), file.removesuffix(".gz"), message)


def test_a_packed_file_that_unpacks_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr("telescope.text.data_files.MAX_BYTES", 1 << 24)
    packed = tmp_path / "tatoeba_de_en" / "deu.txt.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(bytes(1 << 20)) * 4096)
    refused(lambda: TRANSLATIONS["tatoeba"](tmp_path, "train", "en", "de"), "holds more than 16,777,216 bytes of text")


def test_a_file_that_is_missing(tmp_path):
    corpora.make(tmp_path)
    (tmp_path / "multi30k/raw/train.en").unlink()
    refused(lambda: TRANSLATIONS["multi30k"](tmp_path, "train", "en", "de"), "train.en, and no train.en.gz beside it")


def test_source_and_target_must_differ(tmp_path):
    corpora.make(tmp_path)
    refused(lambda: TRANSLATIONS["tatoeba"](tmp_path, "train", "en", "en"), 'source and target are both "en"')


def test_tokenizers():
    refused(lambda: train_bpe(["a"], 100), "size=100 is too small for BPE", "260")
    refused(lambda: bpe_from_merges(["e i"], ["a"]), 'the codes begin with "e i"')


def test_folders_that_hold_something_else(tmp_path):
    corpora.make(tmp_path / "data")
    recipe = small(read(TINY))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("")
    refused(lambda: train(recipe, tmp_path / "mine", data=tmp_path / "data"), "holds thesis.tex", "a new folder")
    train(recipe, tmp_path / "run", data=tmp_path / "data", report=quiet)
    other = small(read(TINY.with_stem("multi30k-de-en")))
    refused(lambda: train(other, tmp_path / "run", data=tmp_path / "data"), "a run of multi30k-tiny with another data")
    more = small(read(TINY), lr=0.1)
    refused(lambda: train(more, tmp_path / "run", data=tmp_path / "data", report=quiet), "training.lr is 0.004 there")
    refused(lambda: score(tmp_path / "run"), "test.jsonl to score; telescope evaluate --predict")
    refused(lambda: predict(tmp_path / "run", data=tmp_path / "data", split="tst"), 'there is no split="tst"; did you')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "recipes/none.toml", "--out", "x"], "there is no recipe recipes/none.toml"),
        (["train", str(TINY)], "--out"),
        (["train", str(TINY), "--out", "x", "--data", "nowhere"], "there is no nowhere/multi30k; get it from"),
        (["evaluate", "nowhere"], 'there is no model "nowhere"'),
        (["evaluate", "nowhere", "--predict", "--score"], "the two halves"),
        (["evaluate", "nowhere", "nobody", "--out", "x"], "of one folder, not of 2"),
        (["evaluate", "nowhere", "--recipe", str(TINY)], "nowhere is no folder in which answers can be kept; --out"),
    ],
)
def test_commands(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, printed, complaint = command(*arguments)
    assert (code, printed) == (2, "")
    assert message in complaint
    assert len(complaint.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_commands_that_fit(command, tmp_path, monkeypatch):
    for package in ("accelerate", "sacrebleu"):
        pytest.importorskip(package, reason="the train extra is not installed")
    monkeypatch.delenv("TELESCOPE_DATA", raising=False)  # the data of the test, wherever a developer has all
    corpora.make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(small(read(TINY)).to_toml())
    assert command("train", "mine.toml", "--out", "run", "--steps", "1")[0] == 0
    code, printed, _ = command("evaluate", "run", "--predict")
    assert (code, printed) == (0, "run/evaluation/test.jsonl\n")
    code, printed, _ = command("evaluate", "run", "--score")
    assert code == 0
    assert printed.startswith("multi30k-tiny   test (4)   bleu ")
    assert '"answers": 4' in command("evaluate", "run", "--score", "--json")[1]
    printed = command("evaluate", "run", "run", "--score")[1]
    assert printed.splitlines()[2].startswith("mean of 2 runs   bleu ")
    assert command("evaluate", "run", "--out", "elsewhere", "--recipe", "mine.toml")[0] == 0
    assert (tmp_path / "elsewhere/test.json").read_text() == (tmp_path / "run/evaluation/test.json").read_text()


@pytest.mark.parametrize(
    ("recipe", "answer", "message"),
    [
        ("multi30k-tiny", {"prediction": 3, "references": ["a"]}, 'answer 1 says "prediction": 3'),
        ("multi30k-tiny", {"prediction": "a", "references": [3]}, '"references" holds something else than texts'),
        ("multi30k-tiny", {"prediction": "a", "references": []}, "no references"),
        ("recall-causal", {"places": ["Rome"]}, 'answer 1 says "answer": None'),
        ("shakespeare-char", {"loss": 1.5}, 'answer 1 says "tokens": None'),
        ("shakespeare-char", {"loss": 1e300, "tokens": 1, "characters": 1}, "a loss of 1e+300 nats"),
        ("shakespeare-char", [], "line 1: is not an object"),
    ],
)
def test_answers_of_a_wrong_form(tmp_path, recipe, answer, message):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/test.jsonl").write_text(json.dumps(answer) + "\n")
    refused(lambda: score(tmp_path, recipe=TINY.with_stem(recipe)), message)
