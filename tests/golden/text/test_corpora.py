"""The output of the readers for small files, line by line, and for the real ones, by their counts."""

import pytest

from support import corpora
from support.needs import DATA, need_data
from telescope.text.corpora import SUMMARIES, TEXTS, TRANSLATIONS, TextPair, rename_speakers, tatoeba_split
from telescope.text.data_files import data_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("data"))


def test_captions_in_both_directions(made):
    read = TRANSLATIONS["multi30k"]
    assert read(made, "test", "en", "de")[1] == TextPair("A dog runs in the grass.", ("Ein Hund läuft im Gras.",))
    assert read(made, "test", "de", "en")[1] == TextPair("Ein Hund läuft im Gras.", ("A dog runs in the grass.",))
    tokens = TRANSLATIONS["multi30k-tokens"](made, "train", "en", "de")
    assert tokens[0] == TextPair("two men stand by a fence .", ("zwei männer stehen an einem zaun .",))


def test_a_sentence_with_all_its_translations(made):
    found = [
        pair for split in ("train", "validation", "test") for pair in TRANSLATIONS["tatoeba"](made, split, "en", "de")
    ]
    assert TextPair("I see 0 dogs.", ("Null Hunde sehe ich.", "Ich sehe 0 Hunde.")) in found
    assert len(found) == 301


def test_the_english_text_determines_the_split(made):
    assert tatoeba_split("Run!") == tatoeba_split("run.")
    everything = [tatoeba_split(f"I see {i} dogs.") for i in range(3000)]
    assert [everything.count(split) for split in ("validation", "test", "train")] == [28, 57, 2915]  # of 1, 2 and 97 %
    sides = [{pair.source for pair in TRANSLATIONS["tatoeba"](made, split, "en", "de")} for split in ("train", "test")]
    assert not sides[0] & sides[1]
    assert all(sides)


def test_descriptions_and_synopses(made):
    assert TRANSLATIONS["debian-descriptions"](made, "train", "en", "de")[1] == TextPair(
        "It is 2vcard.", ("Es ist 2vcard.",)
    )
    document = "Ack is like grep.\n\nIt is for 99% of uses."
    assert SUMMARIES["debian-synopsis"](made, "validation")[0] == TextPair(document, ("grep for trees",))


def test_chats_of_other_splits_are_left_out_of_training(made):
    read = SUMMARIES["samsum"]
    chat = "Amanda: I baked  cookies. Do you want some?\nJerry: Sure!"
    assert read(made, "train")[0] == TextPair(chat, ("Amanda baked cookies. Jerry wants some.",))
    assert [len(read(made, split)) for split in ("train", "validation", "test")] == [3, 1, 1]


def test_names_of_people_are_replaced():
    pairs = [
        TextPair(f"{name}: hi {name}ed", (f"{name} says hi.",)) for name in ("Anna", "Bert", "Carl") for _ in range(3)
    ]
    for before, after in zip(pairs, rename_speakers(pairs, seed=1), strict=True):
        old, new = before.source.partition(":")[0], after.source.partition(":")[0]
        assert old != new
        assert after == TextPair(f"{new}: hi {old}ed", (f"{new} says hi.",))  # words alone, not parts of them
    assert rename_speakers(pairs, seed=1) == rename_speakers(pairs, seed=1) != rename_speakers(pairs, seed=2)


def test_running_text(made):
    whole = TEXTS["tiny-shakespeare"](made, "train") + TEXTS["tiny-shakespeare"](made, "test")
    assert whole == (made / "tiny_shakespeare/input.txt").read_text()
    assert TEXTS["wikitext2"](made, "train") == " = <unk> = \n\n a b c \n"


def test_where_data_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TELESCOPE_DATA", raising=False)
    assert str(data_folder()) == "data"
    (tmp_path / "shared/data").mkdir(parents=True)
    assert str(data_folder()) == "shared/data"
    monkeypatch.setenv("TELESCOPE_DATA", "/elsewhere")
    assert str(data_folder()) == "/elsewhere"
    assert str(data_folder("here")) == "here"


@pytest.mark.parametrize(
    ("name", "where", "counts"),
    [
        ("multi30k", "multi30k", [29000, 1014, 1000]),
        ("multi30k-tokens", "multi30k", [29000, 1014, 1000]),
        ("tatoeba", "tatoeba_de_en", [129490, 1314, 2696]),
        ("debian-descriptions", "debian_ddtp_en_de", [30108, 623, 623]),
        ("debian-synopsis", "debian_synopsis", [53005, 1773, 1773]),
        ("samsum", "samsum", [14638, 818, 819]),
    ],
)
def test_counts_of_the_real_corpora(name, where, counts):
    need_data(where)
    languages = ("en", "de") if name in TRANSLATIONS else ()
    read = (TRANSLATIONS | SUMMARIES)[name]
    splits = [read(DATA, split, *languages) for split in ("train", "validation", "test")]
    assert [len(pairs) for pairs in splits] == counts
    assert all(pair.source.strip() and all(map(str.strip, pair.targets)) for pairs in splits for pair in pairs)
    if name in ("tatoeba", "samsum"):
        train, validation, test = ({pair.source for pair in pairs} for pairs in splits)
        assert not train & (validation | test)


def test_the_real_shakespeare():
    need_data("tiny_shakespeare")
    assert [len(TEXTS["tiny-shakespeare"](DATA, split)) for split in ("train", "validation")] == [1003854, 111540]
