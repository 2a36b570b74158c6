"""A tokenizer.json that would make the tokenizers library hang, grow or panic is refused; those of models are read."""

import json
import struct
from base64 import b64encode

import pytest
from tokenizers import Tokenizer

import telescope as ts
from support import writers
from telescope.atlases.texts import encoder_of
from telescope.decoding import generate
from telescope.files import PanicError, panics_as_errors
from telescope.models.saved.tokenizer_file import read_tokenizer
from telescope.tasks.writing import encode_text

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
TRUNCATION = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
# Of Llama 3 and Qwen 2.
SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)


def sequence(part, *steps):
    return {"type": "Sequence", part: [*steps]}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


def precompiled(*replacements, trie=(0,) * 256):
    """Return a normalizer with a table: the size of the trie, the trie, and the texts."""
    table = struct.pack(f"<I{len(trie)}I", 4 * len(trie), *trie) + b"".join(text + b"\0" for text in replacements)
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(table).decode()}


def template(*pieces, **special):
    ids = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in special.items()}
    return {"type": "TemplateProcessing", "single": [*pieces], "pair": [*pieces], "special_tokens": ids}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def written(tmp_path, **parts):
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    whole |= {"pre_tokenizer": None, "post_processor": None, "decoder": None, "model": WORDS}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | parts))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"padding": PADDING | {"strategy": {"Fixed": 2**31}}}, "Fixed of its padding 2147483648"),
        ({"padding": PADDING | {"strategy": "BatchLongest", "pad_to_multiple_of": 2**31}}, "pad_to_multiple_of"),
        ({"truncation": TRUNCATION | {"max_length": 8, "stride": 8}}, "stride of its truncation 8"),
        (
            {"normalizer": sequence("normalizers", *[replace("a" * 10, String="a")] * 6)},
            "up to 1,000,000 times",
        ),
        ({"normalizer": sequence("normalizers", *[BYTES] * 20)}, "up to 1,048,576 times as long"),
        ({"pre_tokenizer": sequence("pretokenizers", *[BYTES] * 20)}, "up to 1,048,576 times as long"),
        ({"decoder": sequence("decoders", *[replace("aa", Regex="")] * 9)}, "up to 19,683 times as long"),
        ({"normalizer": precompiled(b"x" * 5000)}, "up to 5,000 times as long"),
        ({"normalizer": precompiled() | {"precompiled_charsmap": "AAA"}}, "table is not base 64"),
        ({"normalizer": precompiled() | {"precompiled_charsmap": "////////"}}, "table is truncated"),
        ({"normalizer": precompiled(trie=(2**32 - 1,) * 8)}, "fails at the text"),
        ({"normalizer": sequence("normalizers", *[{"type": "NFC"}] * 65)}, "has 65 steps in its normalizer"),
        ({"normalizer": {"type": "Lowercas"}}, "type 'Lowercas'; did you mean \"Lowercase\""),
        ({"normalizer": replace("", Regex="(")}, "Oniguruma error"),
        ({"pre_tokenizer": split("a" * 5000)}, "a pattern in its pre_tokenizer of more than 4,096 characters"),
        ({"pre_tokenizer": split("(a+)+$")}, "retry-limit-in-match over"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "length of FixedLength 0"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 10**15}}, "stop of Strip 1000000000000000"),
        ({"post_processor": template(*[TEXT] * 101)}, "a template of 101 tokens"),
        ({"post_processor": template(TEXT, {"SpecialToken": {"id": "x", "type_id": 0}}, x=[0] * 101)}, "of 101 tokens"),
        ({"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}}, "max_input_chars_per_word"),
        ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 1e300]]}}, "the piece"),
        ({"model": {"type": "Magic"}}, "a model of the type 'Magic'"),
        ({"model": None}, "has no model"),
    ],
)
def test_a_hostile_tokenizer_is_refused_in_one_sentence(tmp_path, parts, sentence):
    file = written(tmp_path, **parts)
    with pytest.raises(ts.LoadError) as error:
        read_tokenizer(file)
    assert str(error.value).startswith(str(file))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_sequences_that_are_nested_too_deep_are_refused(tmp_path):
    nested = {"type": "NFC"}
    for _ in range(9):
        nested = sequence("normalizers", nested)
    with pytest.raises(ts.LoadError, match="nested more than 8 deep"):
        read_tokenizer(written(tmp_path, normalizer=nested))


PIECES = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.5], ["b", -4.0]]}
LETTERS = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BERT = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": WORDS["vocab"],
    },
    "padding": PADDING | {"strategy": {"Fixed": 128}},
    "truncation": TRUNCATION | {"max_length": 128},
}
LIKE = {
    "GPT-2": {
        "pre_tokenizer": BYTES | {"use_regex": True},
        "post_processor": BYTES,
        "decoder": BYTES,
        "model": LETTERS,
    },
    "Llama 2": {
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace("▁", String=" ")),
        "post_processor": template({"SpecialToken": {"id": "b", "type_id": 0}}, TEXT, b=[1]),
        "decoder": sequence(
            "decoders",
            replace(" ", String="▁"),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
        "model": LETTERS | {"type": "BPE", "byte_fallback": True},
    },
    "Qwen 2": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": sequence("pretokenizers", split(SPLIT), BYTES),
        "post_processor": sequence("processors", BYTES, template(TEXT)),
        "decoder": BYTES,
        "model": LETTERS | {"type": "BPE"},
    },
    "BERT": BERT,
    "T5": {
        "normalizer": sequence("normalizers", precompiled("صلى الله عليه وسلم".encode()), replace("▁", Regex=" {2,}")),
        "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, METASPACE),
        "post_processor": template(TEXT, {"SpecialToken": {"id": "b", "type_id": 0}}, b=[3]),
        "decoder": METASPACE,
        "model": PIECES,
    },
}


@pytest.mark.parametrize("name", LIKE)
def test_tokenizers_like_those_of_models_are_read(tmp_path, name):
    tokenizer = read_tokenizer(written(tmp_path, **LIKE[name]))
    assert tokenizer.encode("ab a").ids


def test_the_tokenizers_that_ship_are_read():
    """Their ids are tested elsewhere."""
    for name in ("shakespeare", "summarizer", "translator-en-de"):
        assert ts.load(name).tokenizer.encode("What is this?").ids


def test_a_panic_in_a_text_is_an_error_that_can_be_caught(tmp_path):
    """The table of this normalizer has entries for digits, and none for letters."""
    parts = {"normalizer": precompiled(trie=(0,) * 64), "pre_tokenizer": split(r"\d")}
    hostile = Tokenizer.from_str(written(tmp_path, **parts).read_text())
    with pytest.raises(PanicError, match="the tokenizers library panics: index out of bounds"):
        encoder_of(hostile)("a")
    model = writers.gpt(max_positions=16, blocks=1)
    model.tokenizer = hostile
    with pytest.raises(ValueError, match="prompt 0 makes the tokenizer fail: index out of bounds"):
        generate(model, "a", max_new_tokens=1)
    with pytest.raises(ValueError, match="index out of bounds"):
        encode_text(model, "a")
    found = ts.atlas(model, ["12345", "abcde"])
    assert found.texts == 1
    assert found.skipped[1].startswith(
        "text 1: the tokenizer fails: the tokenizers library panics: index out of bounds"
    )


def test_other_exceptions_pass():
    with pytest.raises(KeyboardInterrupt), panics_as_errors("it fails"):
        raise KeyboardInterrupt
