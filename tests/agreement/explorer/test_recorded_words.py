"""The words of recorded translations, saved and opened again: with a tokenizer, and with names that one wrote."""

import pytest
import torch

import telescope as ts
from support import writers
from support.exploring import got
from telescope.decoding import beam, generate
from telescope.explorer.api import Api
from telescope.explorer.joined_words import join_names, plain
from telescope.explorer.library import Library

TEXT = "How are you?"
WROTE = ["Wie", "geht", "es", "dir", "?"]


def opened(recording, folder):
    recording.save(folder)
    library = Library({})
    return Api(library), library.open(folder)


def words_of(view):
    return [view.names("q", 0)[at] for at in view.real("q", 0)]


def test_a_recorded_translation_has_words(tmp_path):
    """Generated, saved, opened: the words of what was read and written, in every attention and in Sources."""
    with ts.watch(writers.learnt(), keep="queries-keys") as recording:
        generate(writers.learnt(), TEXT, temperature=0)
    api, run = opened(recording, tmp_path / "recorded")
    read = {view.kind: words_of(view) for view in run.views}
    assert read["encoder"] == TEXT.replace("?", " ?").split()
    assert read["decoder"][: len(WROTE)] == WROTE
    assert read["cross"][: len(WROTE)] == WROTE
    answer = got(api, f"/runs/{run.name}/answer")
    words = ["" for _ in range(max(answer["words"]) + 1)]
    for text, number in zip(answer["tokens"], answer["words"], strict=True):
        words[number] += text
    assert [word.strip() for word in words][: len(WROTE)] == WROTE


def test_the_table_of_tokens_has_the_spaces(tmp_path):
    with ts.watch(writers.learnt()) as recording:
        generate(writers.learnt(), TEXT, temperature=0)
    for one in (recording, ts.open(_saved(recording, tmp_path / "recorded"))):
        table = one.table("tokens")
        assert "".join(table[table.side == "queries"].text).strip() == TEXT


def _saved(recording, folder):
    recording.save(folder)
    return folder


def test_the_table_of_tokens_of_a_decoder_that_drops_spaces():
    """Metaspace drops the space of a token that is decoded alone; the end of the text has no text."""
    from telescope.recording.tables import _added_texts

    pieces = {1: "▁the", 2: "▁tele", 3: "scope", 4: "", 5: "▁"}

    def decode(ids):
        return "".join(pieces[one] for one in ids).replace("▁", " ").removeprefix(" ")

    assert _added_texts([1, 2, 3, 4], decode) == ["the", " tele", "scope", ""]
    assert _added_texts([4, 1, 3], decode) == ["", "the", "scope"]
    assert _added_texts([4], decode) == [""]


def test_a_recorded_beam_search_opens(tmp_path):
    """Beams are rows of the stream and queries of one attention: their shapes differ."""
    with ts.watch(writers.learnt(), keep="steps") as recording:
        beam(writers.learnt(), TEXT, beams=3)
    api, run = opened(recording, tmp_path / "beams")
    assert any(view.kind == "cross" for view in run.views)
    assert got(api, f"/runs/{run.name}")["attentions"]


# ------------------------------------------------------------------- names that a tokenizer wrote


@pytest.mark.parametrize(
    ("names", "words", "texts"),
    [
        (["ĠTele", "skop", "Ġsah", "</s>"], ["Teleskop", "sah", "</s>"], (" Tele", "skop", " sah", "</s>")),
        (["▁Tele", "skop", "▁sah", "."], ["Teleskop", "sah", "."], (" Tele", "skop", " sah", ".")),
        (["ĠmÃ¼", "de", "Ċ", "Ġich"], ["müde", "ich"], (" mü", "de", "\n", " ich")),
        (["[CLS]", "▁a", "▁b"], ["[CLS]", "a", "b"], ("[CLS]", " a", " b")),
    ],
)
def test_signs_of_tokenizers_become_spaces(names, words, texts):
    assert plain(names) == texts
    assert list(join_names(names).names) == words


@pytest.mark.parametrize("names", [["a", "b"], ["Ġorġ", "jiekol", "il-", "ħobż", "kuljum"], [], ["1", "2"]])
def test_other_names_stay_as_they_are(names):
    """One Ġ among five names is a letter, as in Maltese."""
    assert plain(names) == tuple(names)
    assert join_names(names) is None


def test_tokens_that_were_named_by_a_tokenizer_are_words_on_the_page(tmp_path):
    model = writers.gpt()
    named = ["ĠTele", "skop", "Ġsah", "Ġden", "ĠMann"]
    with ts.watch(model, tokens=named, keep="queries-keys") as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]))
    api, run = opened(recording, tmp_path / "named")
    assert run.views[0].names("q", 0) == ["Teleskop", "sah", "den", "Mann"]
    assert got(api, f"/runs/{run.name}/tokens", l=0, axis="q")["tokens"] == ["Tele", "·skop", "sah", "den", "Mann"]
    answer = got(api, f"/runs/{run.name}/answer")
    assert len(set(answer["words"])) == len(answer["words"])
    assert not any("Ġ" in text for text in answer["tokens"])
