"""Tokens that a hand can check, and the merges of Multi30k compared with the published tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from support import corpora
from support.needs import DATA, need_data
from telescope.models import Special
from telescope.recording.token_texts import TokenTexts, learn_texts
from telescope.tasks.learning.sequence_pairs import PairTokenizer
from telescope.text.corpora import TextPair, read_multi30k_merges
from telescope.text.data_files import read_lines
from telescope.text.tokenizer import bpe_from_merges, character_tokenizer, encode, special_ids, train_bpe

TEXTS = ["low lower lowest", "new newer newest 2018", "Größe\nund „Maß“"]


@pytest.fixture(scope="module")
def learnt():
    return train_bpe(TEXTS, 300)


def test_words_kept_whole():
    assert len(train_bpe(TEXTS, 300).encode("Größe astronomer").tokens) > 3
    tokenizer = train_bpe(TEXTS, 300, whole=["Größe", "astronomer"])
    assert [tokenizer.decode([i]).strip() for i in tokenizer.encode("Größe astronomer").ids[:-1]] == [
        "Größe",
        "astronomer",
    ]
    with pytest.raises(
        ValueError, match="size=262 is too small to keep 1 words whole: 1 are cut, such as 'astronomer'"
    ):
        train_bpe(TEXTS, 262, whole=["astronomer"])


def test_frequent_words_kept_whole():
    """The most frequent of the sources and of the targets, and those that are named."""
    words = [f"w{letter}{letter}{other}" for letter in "abcdefgh" for other in "ijkl"]
    pairs = [TextPair(f"the river {word}", (f"der Fluss {word}",)) for word in words]
    tokenizer = PairTokenizer(size=290, whole=2, words="telescope").learn(pairs, DATA)
    for word in ("the", "river", "der", "Fluss", "telescope"):
        assert len(tokenizer.encode(word).ids) == 2, word
    assert max(len(tokenizer.encode(word).ids) for word in words) > 2


def test_given_merges():
    tokenizer = bpe_from_merges(corpora.CODES, ["ein mann nein"])
    pieces = tokenizer.encode("Ein mann nennein x").tokens
    assert pieces == ["ein</w>", "mann</w>", "n", "e", "n", "n", "ein</w>", "<unk>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ein  mann nennein").ids) == "ein mann nennein"
    assert special_ids(tokenizer) == Special(start=2, end=(3,), pad=0)


def test_given_merges_are_as_published():
    need_data("multi30k")
    texts = {language: read_lines(DATA / f"multi30k/tok/train.lc.norm.tok.{language}") for language in ("de", "en")}
    tokenizer = bpe_from_merges(read_multi30k_merges(DATA), texts["de"] + texts["en"])
    assert tokenizer.get_vocab_size() == 10126
    for language in ("de", "en"):
        plain = read_lines(DATA / f"multi30k/tok/test_2016_flickr.lc.norm.tok.{language}") + texts[language][:1000]
        published = read_lines(DATA / f"multi30k/bpe10k/test.2016.{language}") + read_lines(
            DATA / f"multi30k/bpe10k/train.{language}"
        )
        for text, pieces in zip(plain, published[: len(plain)], strict=True):
            found = tokenizer.encode(text)
            marked = (
                piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@" for piece in found.tokens[:-1]
            )
            assert " ".join(marked) == pieces
            assert tokenizer.decode(found.ids) == text


def test_learnt_pieces(learnt):
    assert learnt.encode("low").tokens == ["Ġlow", "</s>"]
    assert learnt.encode("a low 18").tokens == ["Ġ", "a", "Ġlow", "Ġ", "1", "8", "</s>"]  # digits stand alone
    assert encode(learnt, ["low", ""]) == [[learnt.token_to_id("Ġlow"), 3], [3]]
    assert learnt.get_vocab_size() <= 300
    assert train_bpe(TEXTS, 300).to_str() == learnt.to_str()  # the same every time


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])))
def test_nothing_is_lost_but_spaces(learnt, text):
    from unicodedata import normalize

    for special_words in ("<pad>", "<unk>", "<s>", "</s>"):
        text = text.replace(special_words, "")
    decoded = learnt.decode(learnt.encode(text).ids)
    assert decoded.split() == normalize("NFC", text).split()


def test_lower_case():
    tokenizer = train_bpe(TEXTS, 300, lower=True)
    assert tokenizer.encode("LOW Größe").ids == tokenizer.encode("low größe").ids
    assert tokenizer.decode(tokenizer.encode("LOW Größe").ids) == "low größe"


@pytest.mark.parametrize(
    "make", [lambda text: character_tokenizer(text), lambda text: train_bpe([text], 256, special=False)]
)
def test_running_text_is_kept_to_the_letter(make):
    text = "  Ach,\n\tGröße!\r\n  "
    tokenizer = make(text)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert special_ids(tokenizer) == Special()


def test_characters_are_in_order():
    tokenizer = character_tokenizer("banana\n")
    assert tokenizer.encode("ban\n").ids == [2, 1, 3, 0]
    with pytest.raises(Exception, match="UNK"):
        tokenizer.encode("x")


# ---------------------------------------------------------------------------- tables that decode as a tokenizer does


def test_tables_of_texts_by_hand():
    """A space before every token but the first, a character of three tokens, and a special token without a text."""
    spoken = {1: " the", 2: " man", 3: "s"}
    bytes_of = {4: b"\xe2", 5: b"\x82", 6: b"\xac"}  # of the sign of the euro

    def decode(ids):
        joined = b"".join(bytes_of[one] if one in bytes_of else spoken.get(one, "").encode() for one in ids)
        return joined.decode("utf-8", "replace").removeprefix(" ")

    texts = learn_texts(decode, [[1, 2, 3, 9, 2, 4, 5, 6, 1]])
    assert texts.alone == {1: "the", 2: "man", 3: "s", 4: "\ufffd", 5: "\ufffd", 6: "\ufffd", 9: ""}
    assert (texts.after[1], texts.after[2], 3 in texts.after) == (" the", " man", False)
    assert texts.joined[4, 5, 6] == "€"
    assert texts.decode([1, 2, 3, 9, 2, 4, 5, 6, 1]) == "the mans man€ the"
    assert texts.decode([2, 4, 5, 6]) == "man€"
    assert (texts.decode([2]), texts.decode([9]), texts.decode([])) == ("man", "", "")
    assert TokenTexts.from_json(texts.to_json(), "here").decode([1, 2, 4, 5, 6, 2]) == "the man€ man"


def test_tables_of_an_earlier_version_have_texts_alone():
    assert TokenTexts.from_json({"tokens": {"1": "a", "2": "b"}}, "here").decode([2, 1, 7]) == "ba"


def trained(kind):
    """Return a tokenizer of a kind, trained on TEXTS."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "</s>"], show_progress=False)
    elif kind == "byte fallback":
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        pieces = {name: at for at, name in enumerate(["<unk>", *names, "▁", *"lownestr"])}
        tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>", byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
        return tokenizer
    elif kind == "end of word":
        return bpe_from_merges(["#version: 0.2", "l o", "lo w</w>", "n e"], TEXTS)
    elif kind == "bytes":
        return train_bpe(TEXTS, 300, special=False)
    else:
        return train_bpe(TEXTS, 300)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS = ("wordpiece", "metaspace", "byte fallback", "end of word", "bytes", "bytes, no space first")
TRAINED = {kind: trained(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text(st.sampled_from("lowenstr  .,!é€🔭\n"), max_size=150), max_size=3))
@settings(max_examples=30, deadline=None)
def test_tables_decode_as_the_tokenizer(kind, texts):
    """Every text, and every beginning of it that ends with a whole character. The last text is longer than a window."""
    decode = TRAINED[kind].decode
    sequences = [TRAINED[kind].encode(text).ids for text in [*texts, "low newer lowest. " * 20]]
    tables = TokenTexts.from_json(learn_texts(decode, sequences).to_json(), "here")
    for ids in sequences:
        assert tables.decode(ids) == decode(ids)
        for length in range(1, min(len(ids), 40)):
            text = decode(ids[:length])
            assert tables.decode(ids[:length]) == text or "\ufffd" in text
