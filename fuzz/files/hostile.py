"""Files made hostile: sizes that no memory holds, tokenizers that never end, tables of other
types.
"""

import json
from random import Random
from typing import Any

from .changes import dumped, of_bytes, of_json, places, reach


def of_parquet(contents: bytes, dice: Random) -> bytes:
    """Change the bytes, half of the time those of the footer; or write the table with another
    column.
    """
    chance = dice.random()
    if chance < 0.2:
        return _another_table(dice)
    if chance < 0.6:
        footer = contents[-min(len(contents), 1200) :]
        return contents[: -len(footer)] + of_bytes(footer, dice)
    return of_bytes(contents, dice)


def _another_table(dice: Random) -> bytes:
    """Return a table whose column of texts is of another type, is missing, or is there twice."""
    import pyarrow
    from pyarrow import parquet

    text = pyarrow.array(["some text", None, ""])
    column = dice.choice(
        [
            text.dictionary_encode(),
            text.cast(pyarrow.large_string()),
            text.cast(pyarrow.binary()),
            pyarrow.array([b"\xff\xfe", b"", None]),
            pyarrow.array([1, 2, 3]),
            pyarrow.array([[1], [], None]),
            pyarrow.array([{"text": "x"}] * 3),
            pyarrow.nulls(3),
            pyarrow.array(["x" * 100_000] * 3),
        ]
    )
    names = dice.choice(
        [
            ["text", "english"],
            ["english", "text"],
            ["text", "text"],
            ["english", "german"],
            ["", "\n"],
        ]
    )
    written = pyarrow.BufferOutputStream()
    table = pyarrow.table([column, column], names=names)
    parquet.write_table(table, written, compression=dice.choice(["none", "snappy", "gzip", "zstd"]))
    return bytes(written.getvalue())


HUGE = (10**5, 10**6, 10**7, 2**31, 10**9, 2**40, 10**12, 2**62, 2**63 - 1)


def of_config(contents: bytes, dice: Random) -> bytes:
    """Set a size, or two of them, to a huge number."""
    try:
        value = json.loads(contents)
    except ValueError:
        return of_bytes(contents, dice)
    sizes = [
        path for path in places(value) if path and type(reach(value, path)) in (int, type(None))
    ]
    if dice.random() < 0.5 or not sizes:
        return of_json(contents, dice)
    huge = dice.choice(HUGE)
    for *path, last in dice.sample(sizes, min(len(sizes), dice.choice((1, 2, 3)))):
        reach(value, tuple(path))[last] = huge
    return dumped(value)


PATTERNS = (
    *(
        "",
        "a",
        "(",
        "[",
        r"\1",
        "(a+)+$",
        "(a|a)*$",
        "(.*)*x",
        "(?=a*)*",
        "(" * 300 + ")" * 300,
        "a{99999}",
    ),
    *("a" * 5000, r"(?<n>a\g<n>)", "(?:a{1000}){1000}", r"\p{L}+", r"\s+(?!\S)|\s+"),
)
TABLES = ("", "AAAA", "BAAAAAAAAABhAA==", "////////", "x")  # of a Precompiled normalizer
PLAIN_STEPS = (
    "NFC",
    "NFKD",
    "Lowercase",
    "StripAccents",
    "Nmt",
    "Whitespace",
    "Fuse",
    "ByteFallback",
    "BPEDecoder",
    "Zz",
)


def _steps(dice: Random) -> list[Any]:
    """Return steps of a tokenizer, valid ones and hostile ones."""
    text = dice.choice(["", "a", " ", "aa", "▁", "a" * 50, "a" * 5000, "\n"])
    pattern = dice.choice(PATTERNS)
    patterns = [{"Regex": pattern}, {"String": text}, {"Regex": text}]
    number = dice.choice([0, 1, 2, -1, 2**31, 2**63, 10**15])
    piece = dice.choice(
        [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "a", "type_id": 0}}]
    )
    template = {
        "type": "TemplateProcessing",
        "single": [piece] * dice.choice([1, 2, 3, 50, 500]),
        "pair": [],
        "special_tokens": {
            "a": {"id": "a", "ids": [0] * dice.choice([0, 1, 50, 500]), "tokens": ["a"]}
        },
    }
    return [
        *({"type": "Replace", "pattern": each, "content": text} for each in patterns),
        *(
            {"type": "Split", "pattern": each, "behavior": "Isolated", "invert": False}
            for each in patterns
        ),
        template,
        {"type": "Prepend", "prepend": text},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Precompiled", "precompiled_charsmap": dice.choice(TABLES)},
        {"type": "Strip", "content": "a", "start": number, "stop": number},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "FixedLength", "length": number},
        {
            "type": "Metaspace",
            "replacement": dice.choice(["▁", "", "ab"]),
            "prepend_scheme": "always",
            "split": True,
        },
        {"type": "Digits", "individual_digits": True},
        {"type": "BertProcessing", "sep": ["a", number], "cls": ["a", 0]},
        {"type": "WordPiece", "prefix": text, "cleanup": True},
        {"type": "CTC", "pad_token": text, "word_delimiter_token": text, "cleanup": True},
        *({"type": kind} for kind in PLAIN_STEPS),
    ]


INSIDE = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def of_tokenizer(contents: bytes, dice: Random) -> bytes:
    """Give a tokenizer hostile steps, padding, truncation, or numbers of its model; or change it as
    any JSON.
    """
    try:
        value = json.loads(contents)
        model = value["model"]
    except (ValueError, LookupError, TypeError):
        return of_bytes(contents, dice)
    if dice.random() < 0.3:
        return of_json(contents, dice)
    number = dice.choice([0, 1, 3, 100, 2**20, 2**31, 2**32, 2**63, -1, 1.5, "1", None])
    match dice.randrange(8):
        case 0:
            strategy = dice.choice([{"Fixed": number}, "BatchLongest"])
            padding = {
                "direction": "Left",
                "pad_to_multiple_of": number,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
            value["padding"] = padding | {"strategy": strategy}
        case 1:
            truncation = {"direction": "Right", "max_length": number, "strategy": "LongestFirst"}
            value["truncation"] = truncation | {"stride": dice.choice([0, 1, number])}
        case 2:
            name = dice.choice(
                [
                    "dropout",
                    "unk_token",
                    "continuing_subword_prefix",
                    "max_input_chars_per_word",
                    "type",
                ]
            )
            model[name] = dice.choice([number, "é", "", "WordPiece", "Unigram", "BPE", "WordLevel"])
        case 3:
            token = {
                "id": number,
                "content": dice.choice(["", "a", " ", "a" * 9000]),
                "normalized": dice.random() < 0.5,
            }
            token |= dict.fromkeys(
                ("single_word", "lstrip", "rstrip", "special"), dice.random() < 0.5
            )
            value["added_tokens"] = [token] * dice.choice([1, 2, 300])
        case _:
            part = dice.choice(list(INSIDE))
            steps = [dice.choice(_steps(dice)) for _ in range(dice.choice([1, 1, 2, 3]))]
            step = {"type": "Sequence", INSIDE[part]: steps * dice.choice([1, 1, 1, 8, 70])}
            for _ in range(dice.choice([0, 0, 0, 2, 40])):
                step = {"type": "Sequence", INSIDE[part]: [step]}
            value[part] = step if dice.random() < 0.7 else steps[0]
    return dumped(value)
