"""Read a tokenizer.json. The tokenizers library trusts its file: what would make it run, grow or
abort is refused here.

The library computes with whatever a file says: padding to 2^31 tokens ends the process, ten
replacements of a letter by ten letters fill the memory, and a bug shows as a panic, which is no
Exception. So the file is parsed and checked first, and a few texts are encoded before the tokenizer
is handed on. How long a regular expression searches cannot be told from its letters: see
docs/explanation/limits.md.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...files import LoadError, PanicError, panics_as_errors, paths
from ...words import hint

MOST_STEPS = 64  # of a normalizer, and of each other part
MOST_DEPTH = 8  # of sequences in sequences
MOST_GROWTH = 1024  # by how much all steps of a part together may lengthen a text
# Characters; the regular expressions of known models have at most a thousand.
LONGEST_PATTERN = 4096
LONGEST_TEMPLATE = 100  # tokens around a text; known models have at most four
LONGEST_PADDING = 1 << 20  # tokens
LONGEST_WORD = 1000  # characters that WordPiece splits: its time grows with the third power of them
LARGEST_SCORE = 1e30  # of a piece of a Unigram model, so that sums of them stay finite

# The types of the steps, by the part of the file, and the field in which a Sequence of the part has
# its steps.
PARTS = {
    "normalizer": (
        "normalizers",
        "BertNormalizer Strip StripAccents NFC NFD NFKC NFKD Lowercase Nmt Precompiled Replace "
        "Prepend ByteLevel",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel CharDelimiterSplit Metaspace Whitespace Split Punctuation "
        "WhitespaceSplit Digits UnicodeScripts FixedLength",
    ),
    "post_processor": (
        "processors",
        "BertProcessing RobertaProcessing ByteLevel TemplateProcessing",
    ),
    "decoder": (
        "decoders",
        "BPEDecoder ByteLevel WordPiece Metaspace CTC Replace Fuse Strip ByteFallback",
    ),
}
MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")
PROBES = (
    "",
    " ",
    "a",
    "a" * 40 + "!",
    "What is this? It's 12 o'clock,\n  isn’t it… Ein Übel: 日本 🙂\t",
    "a b " * 40,
)


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer in a tokenizer.json; a LoadError where it cannot be read or is not safe
    to use.
    """
    contents = paths.read_bytes(file, at_most=100_000_000)
    # Checked before the library sees it.
    _check(paths.parse_json(contents, str(file)), file)
    try:
        with panics_as_errors("the tokenizers library panics"):
            tokenizer = Tokenizer.from_str(contents.decode("utf-8"))
    except Exception as problem:  # the tokenizers library raises nothing narrower
        raise LoadError(f"{file} is not a tokenizer that can be read: {problem}") from None
    _probe(tokenizer, file)
    return tokenizer


def _probe(tokenizer: Tokenizer, file: Path) -> None:
    """Encode and decode a few texts; a LoadError where the library panics. An unknown character is
    no panic.
    """
    for text in PROBES:
        try:
            with panics_as_errors("the tokenizers library panics"):
                tokenizer.decode(tokenizer.encode(text).ids)
        except PanicError as problem:
            raise LoadError(
                f"{file} is a tokenizer that fails at the text {text[:20]!r}: {problem}"
            ) from None
        except Exception:  # a text that the tokenizer refuses
            continue


def _check(parsed: Mapping[str, Any], file: Path) -> None:
    """Raise a LoadError where a part of the file would take too long, too much memory, or make the
    library panic.
    """
    try:
        for part in PARTS:
            steps = list(_steps(part, parsed.get(part), 0))
            if len(steps) > MOST_STEPS:
                raise ValueError(
                    f"has {len(steps)} steps in its {part}; at most {MOST_STEPS} are read"
                )
            for step in steps:
                _check_step(part, step)
            # Steps multiply: ten harmless ones can fill the memory.
            growth = prod(map(_growth, steps))
            if growth > MOST_GROWTH:
                raise ValueError(
                    f"has a {part} that makes a text up to {growth:,} times as long; "
                    f"{MOST_GROWTH:,} fit"
                )
        _check_lengths(parsed.get("padding"), parsed.get("truncation"))
        _check_model(parsed.get("model"))
    except ValueError as problem:
        raise LoadError(f"{file} is not a tokenizer that can be read: it {problem}") from None


def _steps(part: str, value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, those of nested sequences too."""
    if value is None:
        return
    inside, names = PARTS[part]
    types = names.split()
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in (*types, "Sequence"):
        raise ValueError(
            f"has a {part} of the type {str(kind)[:80]!r}; {hint(str(kind)[:80], types)}"
        )
    # Sequences may be nested; the steps are read flat.
    if kind != "Sequence":
        yield value
        return
    if depth == MOST_DEPTH or not isinstance(value.get(inside), list):
        raise ValueError(
            f"has a {part} that is no list of steps, or nested more than {MOST_DEPTH} deep"
        )
    for step in value[inside]:
        yield from _steps(part, step, depth + 1)


def _check_step(part: str, step: dict[str, Any]) -> None:
    """Raise a ValueError where a field of a step is out of bounds. Fields of other types are left
    to the library.
    """
    for pattern in step["pattern"].values() if isinstance(step.get("pattern"), dict) else ():
        if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
            raise ValueError(
                f"has a pattern in its {part} of more than {LONGEST_PATTERN:,} characters"
            )
    limits = {"FixedLength": {"length": (1, 1 << 20)}, "Strip": {"start": (0, 8), "stop": (0, 8)}}
    for name, (least, most) in limits.get(step["type"], {}).items():
        _check_between(f"{name} of {step['type']}", step.get(name, least), least, most)
    if step["type"] == "TemplateProcessing":
        special = step.get("special_tokens")
        tokens = special.values() if isinstance(special, dict) else ()
        # A special token may stand for several ids.
        lists = [token.get("ids") for token in tokens if isinstance(token, dict)]
        for each in (step.get("single"), step.get("pair"), *lists):
            if isinstance(each, list) and len(each) > LONGEST_TEMPLATE:
                raise ValueError(
                    f"has a template of {len(each):,} tokens; at most {LONGEST_TEMPLATE} are read"
                )


def _growth(step: dict[str, Any]) -> int:
    """Return how many times as long a text can be after a step, at most; what is added once does
    not count.
    """
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if (
            pattern
        ):
            return max(1, -(-len(content) // len(pattern)))
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)  # a regular expression may match between any two characters
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            return _longest_replacement(packed)
        case {"type": "ByteLevel" | "Metaspace"}:
            return 2  # a character of each byte; a mark before each word
        case {"type": "TemplateProcessing", "single": [*single]}:
            return max(1, sum(isinstance(piece, dict) and "Sequence" in piece for piece in single))
    return 1


def _longest_replacement(packed: str) -> int:
    """Return the length of the longest text in the table of a Precompiled normalizer.

    The table, in base 64: the size of a trie as 4 bytes, the trie, and the texts, each with a zero
    byte behind it.
    """
    try:
        table = b64decode(packed, validate=True)
    except ValueError:
        raise ValueError("has a Precompiled normalizer whose table is not base 64") from None
    # The trie in front is skipped, the texts behind it are measured.
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or size > len(table) - 4:
        raise ValueError("has a Precompiled normalizer whose table is truncated")
    return max(1, *map(len, table[4 + size :].split(b"\0")))


def _check_lengths(padding: Any, truncation: Any) -> None:
    """Raise a ValueError where texts would be padded to millions of tokens, or cut into parts that
    overlap too much.
    """
    match padding:
        case {"strategy": {"Fixed": length}}:
            _check_between("Fixed of its padding", length, 0, LONGEST_PADDING)
    if isinstance(padding, dict) and padding.get("pad_to_multiple_of") is not None:
        _check_between(
            "pad_to_multiple_of of its padding", padding["pad_to_multiple_of"], 0, LONGEST_PADDING
        )
    if isinstance(truncation, dict):
        longest: Any = truncation.get("max_length")
        _check_between("max_length of its truncation", longest, 0, 2**63)
        _check_between("stride of its truncation", truncation.get("stride", 0), 0, longest // 2)


def _check_model(model: Any) -> None:
    """Raise a ValueError where the model is of an unknown type, or has numbers that it cannot
    compute with.
    """
    if not isinstance(model, dict):
        raise ValueError("has no model, which is an object")
    kind = model.get("type", "BPE")  # files of 2020, that of GPT-2 among them, name no type
    if kind not in MODELS:
        raise ValueError(
            f"has a model of the type {str(kind)[:80]!r}; there are {', '.join(MODELS)}"
        )
    longest = model.get("max_input_chars_per_word")
    if longest is not None:
        _check_between("max_input_chars_per_word of its model", longest, 0, LONGEST_WORD)
    # A list only in Unigram models; others have an object.
    pieces = model.get("vocab")
    for piece in pieces if isinstance(pieces, list) else ():
        match piece:
            case [str(), int() | float() as score] if abs(score) <= LARGEST_SCORE:
                pass
            case _:
                raise ValueError(
                    f"has the piece {str(piece)[:80]} in its model, which is no text with a score"
                )


def _check_between(what: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            f"has the {what} {str(value)[:80]}; a whole number from {least} to {most:,} fits"
        )
