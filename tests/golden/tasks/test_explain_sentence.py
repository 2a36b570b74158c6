"""`telescope explain "..."` prints what the translator computed for a sentence."""

import json
import re

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import writers
from telescope.tasks.explaining.sentence import explain_sentence
from telescope.tasks.explaining.sentence_views import head_perspectives, most_different, most_telling
from telescope.tasks.explaining.show import draw_sentence as draw
from telescope.tasks.explaining.show import percent_table
from telescope.traces import render_text

TITLES = ("Encoder self-attention", "Decoder masked self-attention", "Encoder-decoder attention")


@pytest.fixture(scope="module")
def model():
    return writers.learnt()


@pytest.fixture(scope="module")
def notes(model):
    return explain_sentence(model, writers.NOTES, name="learnt")


def weights_of(model, name):
    """Return the weights straight from the model, for the sentence of the notes and its translation."""
    source, target = (model.tokenizer.encode(said).ids for said in (writers.NOTES, writers.PAIRS[writers.NOTES]))
    with ts.watch(model, layers=name, keep="steps") as recording, torch.no_grad():
        model(torch.tensor([source]), torch.tensor([[writers.START, *target[:-1]]]))
    return recording[name].trace().weights[0]


def test_the_attentions_shown_are_those_of_the_model(model, notes):
    assert notes.translation == writers.PAIRS[writers.NOTES]
    assert tuple(scene.title for scene in notes.scenes) == TITLES
    encoder, decoder, cross = notes.scenes
    assert (encoder.word, decoder.word) == ("with", cross.word)
    for scene, name in zip(notes.scenes, ("encoder.0.self", "decoder.1.self", "decoder.1.cross"), strict=True):
        layer = [watched.name for watched in scene.attention.layers].index(name)
        for head in range(4):
            assert_close(scene.attention.trace(layer, head).weights[0, 0], weights_of(model, name)[head])


def test_which_heads_prefer_which_word_by_hand(model, notes):
    """A head prefers a word if it gives it more than its share of the tokens; of two words, the one with the larger
    excess. A head that attends by position prefers none."""
    words = notes.scenes[0].attention.columns
    query, man, astronomer = (words.positions(words.find(word)) for word in ("with", "saw", "astronomer"))
    even = [len(man) / len(words.word_ids), len(astronomer) / len(words.word_ids)]
    assert_close(list(notes.even), even)
    rows = weights_of(model, "encoder.0.self")[:, query].mean(1)
    for head, reading in enumerate(notes.readings):
        given = [rows[head, man].sum().item(), rows[head, astronomer].sum().item()]
        times = [given[0] / even[0], given[1] / even[1]]
        assert reading.head == f"encoder.0.self head {head}"
        assert_close(list(reading.weights), given)
        none = max(times) <= 1 or reading.habit is not None
        assert reading.reads == (None if none else 0 if times[0] >= times[1] else 1)


def test_the_control_has_another_word_before_the_query(model, notes):
    assert notes.control.source == "The man saw the astronomer yesterday with a telescope"
    words = notes.control.attention.columns
    rows = [words.names[at] for at in (notes.control.row, *notes.control.columns)]
    assert rows == ["with", "saw", "astronomer", "yesterday"]
    row = notes.control.attention.weights[0, 1, words.find("with")]
    expected = [float(row[words.find(word)]) for word in ("saw", "astronomer", "yesterday")]
    assert list(notes.readings[1].control) == expected


def test_heads_that_attend_by_position_are_no_evidence():
    """A head that attends to the word before has this habit, whatever that word is; an even one has none."""
    previous = torch.eye(5).roll(-1, 1).tril() + torch.eye(5)[0] * torch.eye(5)[0][:, None]
    even = torch.full((5, 5), 0.2)
    once = even.clone()
    once[3] = torch.tensor([0.0, 0.9, 0.1, 0.0, 0.0])
    heads = head_perspectives(torch.stack([previous, even, once])[None], 3)
    assert [head.habit for head in heads] == ["previous", None, None]
    assert most_different(heads, range(5)) == (1, 2)
    assert most_telling(heads, 3, range(5)) == 2
    assert most_different(heads[:1], range(5)) is None


def test_every_head_is_listed_once(notes):
    printed = render_text(draw(notes), width=300)
    section = printed[printed.index("which heads look where") :]
    lines = {word: section[section.index(f"with → {word}") :].splitlines()[0] for word in ("saw", "astronomer")}
    for reading in notes.readings:
        for number, word in enumerate(("saw", "astronomer")):
            shown = f"{reading.head} ({reading.weights[number]:.4f} → {reading.control[number]:.4f})"
            assert (shown in lines[word]) == (reading.reads == number)
    by_position = sum(reading.habit is not None for reading in notes.readings)
    assert f"{by_position} of {len(notes.readings)} heads" in section
    neither = sum(reading.reads is None and reading.habit is None for reading in notes.readings)
    assert f"{neither} of {len(notes.readings)} heads" in section


@pytest.mark.parametrize("width", [72, 120])
def test_printed_output(notes, width):
    printed = render_text(draw(notes), width=width)
    assert printed.startswith(f"{writers.NOTES}\n{writers.PAIRS[writers.NOTES]}\n")
    assert "its row is the mean over them, its column their sum" in " ".join(printed.split())
    positions = [printed.index(title) for title in TITLES]
    assert positions == sorted(positions)
    assert max(map(len, printed.splitlines())) <= width
    assert not re.search(r"\d…", printed)  # no number is cut short


def test_numbers_of_a_row_are_hundredths_of_the_weights(notes):
    scene = notes.scenes[0]
    row = scene.attention.weights[0, 2, scene.row]
    printed = render_text(draw(notes), width=120)
    line = next(line for line in printed.splitlines() if line.strip().startswith("head 2"))
    assert line.split()[2:] == [f"{100 * weight:.0f}" for weight in row.tolist()]


def test_a_table_too_wide_becomes_a_list_of_the_largest_weights():
    rows, columns = ["hier", "dort"], [f"word{j}" for j in range(30)]
    weights = torch.full((2, 30), 0.01)
    weights[0, 7], weights[1, 3], weights[1, 29] = 0.71, 0.41, 0.31
    printed = render_text(percent_table(rows, columns, weights), width=60).splitlines()
    assert printed[0].split()[:5] == ["hier", "word7", "71", "word0", "1"]
    assert printed[1].split()[:5] == ["dort", "word3", "41", "word29", "31"]
    assert max(map(len, printed)) <= 60
    assert len(render_text(percent_table(rows, columns, weights), width=400).splitlines()) == 3  # there all of it fits


def test_later_words_have_no_weight(notes):
    weights = notes.scenes[1].attention.weights
    assert weights.triu(1).abs().max() == 0
    assert weights.tril().sum(-1).allclose(torch.ones(1))


def test_options_steps_and_every_head(notes):
    options = ({}, {"steps": True}, {"every_head": True})
    short, steps, every = (render_text(draw(notes, **option), width=120) for option in options)
    assert "product by product" not in short
    assert steps.count("product by product") == 3
    assert steps.count("7  context = weights · v") == 2
    assert steps.count("8  context = weights · v") == 1  # one more step, the mask
    assert short.count(": every row") == 3
    assert every.count(": every row") == 4 * (1 + 2 + 2)


def test_a_head_can_be_chosen(model):
    chosen = explain_sentence(model, "I am tired.", name="learnt", layer=0, head=2)
    assert all((scene.layer, scene.head) == (0, 2) for scene in chosen.scenes)
    deep = explain_sentence(model, "I am tired.", name="learnt", layer=1)  # the encoder has one layer, the decoder two
    assert [scene.layer for scene in deep.scenes] == [0, 1, 1]
    last = explain_sentence(model, "I am tired.", name="learnt", layer=-1, head=-1)
    assert [scene.layer for scene in last.scenes] == [0, 1, 1]
    assert {scene.head for scene in last.scenes} == {last.scenes[0].attention.weights.shape[1] - 1}


def test_the_default_head_has_the_largest_weight_on_one_word(model):
    first = explain_sentence(model, "I am tired.", name="learnt").scenes[0]
    assert first.word == "tired"  # the last word, not the full stop
    weights = first.attention.weights[:, :, first.row].clone()
    weights[..., [first.row, len(first.attention.columns.names) - 1]] = 0  # neither itself nor the end
    assert weights[first.layer, first.head].max() == weights.max()


def test_the_query_may_be_a_word_of_the_translation(model):
    explained = explain_sentence(model, "I am tired.", name="learnt", query="ICH")
    assert [scene.word for scene in explained.scenes[1:]] == ["Ich", "Ich"]


def test_the_command_prints_the_explanation(command, model, tmp_path):
    model.save(tmp_path / "learnt")
    code, printed, complaint = command("explain", *writers.NOTES.split(), "--model", str(tmp_path / "learnt"))
    assert (code, complaint) == (0, "")
    assert printed.startswith(f"{writers.NOTES}\n{writers.PAIRS[writers.NOTES]}\n")
    assert "\x1b" not in printed
    how = ["--model", str(tmp_path / "learnt"), "--query", "I", "--between", "am,tired", "--json"]
    numbers = json.loads(command("explain", "I am tired.", *how)[1])
    assert (numbers["sentence"], numbers["translation"]) == ("I am tired.", "Ich bin müde.")
    names = [attention["name"] for attention in numbers["attentions"]]
    assert names[0] == "encoder.0.self"
    assert names[-1].endswith("cross")
    assert {reading["from"] for reading in numbers["readings"]} == {"I"}
    kept = explain_sentence(model, "I am tired.", name="learnt").scenes[0].attention
    first = numbers["attentions"][0]
    assert_close(torch.tensor(first["word_weights"]), kept.weights[0])
    steps = {step["name"]: step["numbers"] for step in first["trace"]["steps"]}
    assert_close(torch.tensor(steps["scores"]), kept.layers[0].trace().scores, atol=0, rtol=1e-6)
