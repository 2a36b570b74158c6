"""Shipped models: found by name, small, described, and writing the same text everywhere."""

import math
from pathlib import Path

import pytest
import torch

import telescope as ts
from support import corpora, writers
from telescope.files import safetensors as tensors
from telescope.models.saved import load

HERE = Path(__file__).parents[1]
MEGABYTES = {"translator-en-de": 20, "summarizer": 16, "shakespeare": 16, "induction": 4}
ALTOGETHER = 45
CARD = ("data", "licence", "recipe", "figure", "limits")  # what a model card has a heading for


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """Install a package with one shipped model, seen from an empty folder."""
    writers.translator().to(torch.bfloat16).save(tmp_path / "package" / "translator-xx")
    (tmp_path / "package" / "no-model").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(load, "FOLDER", tmp_path / "package")
    return tmp_path


def test_a_shipped_model_loads_by_name(shelf):
    """In float32, though its file is in half precision."""
    model = ts.load("translator-xx")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.tokenizer is not None
    half = ts.load("translator-xx", dtype=torch.bfloat16)
    assert torch.equal(half.embedding.weight.float(), model.embedding.weight)
    assert torch.equal(half.embedding.weight, writers.translator().embedding.weight.bfloat16())


def test_a_folder_of_the_same_name_has_priority(shelf):
    other = writers.translator(d_model=24)
    other.save("translator-xx")
    assert ts.load("translator-xx").config.d_model == 24
    assert ts.load("./translator-xx").config.d_model == 24
    with pytest.raises(ts.LoadError, match="does not exist"):
        ts.load("elsewhere/translator-xx")  # a path is no name


def test_an_unknown_name(shelf):
    with pytest.raises(ts.LoadError) as caught:
        ts.load("translator-xy")
    assert str(caught.value) == (
        'there is no model "translator-xy"; did you mean "translator-xx"? Shipped: translator-xx. A folder works '
        "too; of a model on a hub, transformers' from_pretrained makes one that ts.watch takes."
    )
    with pytest.raises(ts.LoadError, match=r'no model "qqq"\. Shipped: translator-xx\. A folder works too;'):
        ts.load("qqq")
    with pytest.raises(ts.LoadError, match=r'no model "xx"; did you mean "translator-xx"\?'):
        ts.load("xx")
    Path("qqq.md").touch()  # no model
    with pytest.raises(ts.LoadError, match=r'no model "qqq"\. Shipped'):
        ts.load("qqq")
    Path("my-gpt").mkdir()
    with pytest.raises(ts.LoadError, match=r'did you mean "my-gpt"\?'):
        ts.load("my_gpt")


def test_commands_take_the_name(shelf, command):
    Path("text.txt").write_text("Good morning.")
    code, printed, complaint = command("watch", "--model", "translator-xx", "--text", "text.txt")
    assert (code, complaint) == (0, "")
    assert "encoder.0.self" in printed
    code, _, complaint = command("translate", "Good morning.", "--model", "translator-xx", "--beams", "1")
    assert (code, complaint) == (0, "")
    code, printed, complaint = command("translate", "Good morning.", "--model", "translator-en-fr")
    assert (code, printed) == (2, "")
    assert 'there is no model "translator-en-fr"' in complaint


# --------------------------------------------------------------------------------------------------- what really ships


def folder(name):
    return load.shipped_models()[name]


@pytest.mark.parametrize("name", MEGABYTES)
def test_a_shipped_model_is_small_and_in_half_precision(name):
    place = folder(name)
    assert sum(file.stat().st_size for file in place.iterdir()) <= MEGABYTES[name] * 1_000_000
    assert {entry.kind for entry in tensors.scan_folder(place).values()} == {"BF16"}


@pytest.mark.parametrize("name", MEGABYTES)
def test_its_card_has_every_heading(name):
    card = (folder(name) / "README.md").read_text(encoding="utf-8").lower()
    headings = [line.lstrip("# ") for line in card.splitlines() if line.startswith("#")]
    assert not [part for part in CARD if not any(part in heading for heading in headings)]


def test_all_of_them_together_are_small():
    sizes = [file.stat().st_size for place in load.shipped_models().values() for file in place.iterdir()]
    assert sum(sizes) <= ALTOGETHER * 1_000_000


@pytest.mark.parametrize("name", ["translator-en-de", "summarizer"])
def test_evaluate_takes_a_shipped_name(command, tmp_path, monkeypatch, name):
    """The answers are not written into the package, nor to a folder that would be taken for the model."""
    corpora.make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    before = sorted(folder(name).iterdir())
    code, printed, complaint = command("evaluate", name, "--data", "data")
    assert (code, complaint) == (0, "")
    assert printed.startswith(f"{name}   test (")
    assert (tmp_path / "evaluation" / name / "test.json").exists()
    assert sorted(folder(name).iterdir()) == before


def test_ten_translations_are_as_recorded(command):
    """Recorded by: telescope translate tests/golden/translations.en > tests/golden/translations.de"""
    code, printed, complaint = command("translate", str(HERE / "translations.en"))
    assert (code, complaint) == (0, "")
    assert printed == (HERE / "translations.de").read_text(encoding="utf-8")


def test_the_translator_reads_whole_words_and_has_no_bias_of_keys():
    """Softmax ignores that bias; where it has drifted, scores are in the thousands."""
    model = ts.load("translator-en-de")
    words = "bank river money telescope astronomer teacher student bird camera journey walks station friend"
    assert len(model.tokenizer.encode(words, add_special_tokens=False).ids) == len(words.split())
    layers = [layer for layer in model.modules() if isinstance(layer, ts.layers.MultiHeadAttention)]
    assert len(layers) == 10
    for layer in layers:
        bias, keys = layer._ignored_bias()
        assert not bias[keys].any()
        assert bias.any()


INDUCTION = ("blocks.2.self", 5)


def repeated(seed, distinct=False):
    """Return 60 random tokens that come twice, in 8 rows, or 120 of which none comes twice."""
    draw = torch.Generator().manual_seed(seed)
    if distinct:
        return torch.stack([torch.randperm(1024, generator=draw)[:120] for _ in range(8)])
    once = torch.randint(1024, (8, 60), generator=draw)
    return torch.cat([once, once], 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_induction_head_is_one(seed):
    """It reads what followed the earlier copy; where nothing repeats, it does not look at that place."""
    model = ts.load("induction")
    with torch.no_grad(), ts.watch(model) as recording:
        model(repeated(seed))
    best, second = recording.heads().sort("induction")[:2]
    assert (best.layer, best.number) == INDUCTION
    assert best.induction >= 0.75
    assert second.induction <= 0.05
    previous = recording.heads().sort("previous")[0]
    assert previous.layer == "blocks.1.self"
    assert previous.previous >= 0.95
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as control:
        model(repeated(seed, distinct=True))
    weights = control["blocks.2.self"].weights[:, INDUCTION[1]]
    # From query 60 on: the key after the one that is 60 tokens back.
    there = weights.diagonal(-59, 1, 2)[:, 1:]
    assert there.mean() <= 0.05


def test_without_its_head_the_model_guesses():
    model, ids = ts.load("induction"), repeated(3)
    targets = torch.full_like(ids, -100)
    targets[:, 60:-1] = ids[:, 61:]
    with torch.no_grad():
        loss = model.loss(ids, targets).item()
        with ts.edit(model, ts.mute(INDUCTION[0], heads=INDUCTION[1])):
            muted = model.loss(ids, targets).item()
    assert loss <= 0.2
    assert muted - loss >= 1
    assert muted > 0.95 * math.log(1024)


def test_the_notes_sentence_is_explained(command):
    code, printed, complaint = command("explain", writers.NOTES)
    assert (code, complaint) == (0, "")
    assert "with → saw" in printed
    assert "with → astronomer" in printed


def test_a_description_becomes_a_line(command):
    described = "This package contains a program that looks at the attention of a model. It draws it in colour."
    code, printed, complaint = command("summarize", described)
    assert (code, complaint) == (0, "")
    assert 0 < len(printed.strip().split()) < 20


def test_shakespeare_continues_a_prompt(command):
    code, printed, complaint = command("generate", "ROMEO:", "--max-new-tokens", "80")
    assert (code, complaint) == (0, "")
    assert printed.startswith("ROMEO:")
    assert len(printed) > 60
