"""Tokenizers, by the tokenizers library: BPE trained on texts, BPE with given merges, and
characters.

Tokenizers for sequence-to-sequence models have four special ids: padding, unknown, start and end.
They append the end to every text, source or target; the start is the first input of a decoder.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, pairwise
from random import Random

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from ..models import Special

PAD = "<pad>"
UNKNOWN = "<unk>"
START = "<s>"
END = "</s>"
SPECIAL_IDS = {PAD: 0, UNKNOWN: 1, START: 2, END: 3}
MAX_VOCABULARY = 10_000_000
# How often a word to be kept whole is added to the texts: rarer merges than this are not needed.
WHOLE_COUNT = 100
MAX_SPLITS = 8  # different splits of a word by BPE-dropout, however often it occurs
WORD_END = "</w>"  # subword-nmt's suffix of a piece that ends a word


def check_vocabulary_size(size: int) -> None:
    """Raise a ValueError if no vocabulary can have this size: its memory is allocated before
    training starts.
    """
    if not 0 < size <= MAX_VOCABULARY:
        raise ValueError(
            f"size={size} is no size of a vocabulary; 1 to {MAX_VOCABULARY:,} pieces fit"
        )


def train_bpe(
    texts: Iterable[str],
    size: int,
    *,
    lower: bool = False,
    special: bool = True,
    whole: Sequence[str] = (),
) -> Tokenizer:
    """Train byte-pair encoding (Sennrich et al. 2016) of `size` pieces on the texts.

    whole    words that become single pieces, however rare they are
    lower    lower-case all texts
    special  with special ids: spaces are normalised, and one is put in front of a text, so that its
             first word is the same piece as anywhere else. Without: texts are kept to the letter,
             for language models

    The alphabet is that of bytes, so no text is unknown. Each digit is a piece of its own, so that
    a model copies a number instead of remembering it.
    """
    check_vocabulary_size(size)
    least = len(SPECIAL_IDS) * special + 256
    if size < least:
        raise ValueError(
            f"size={size} is too small for BPE: its bytes and special ids alone are {least}"
        )
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN if special else None))
    normal: list[normalizers.Normalizer] = []
    if special:
        # Newlines stay: they separate the messages of a chat.
        spaces = normalizers.Replace(Regex(r"[^\S\n]+"), " ")
        normal = [normalizers.NFC(), normalizers.Strip(), spaces, normalizers.Prepend(" ")]
    if lower:
        normal.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(normal)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), *([decoders.Strip(" ", 1, 0)] if special else [])]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_IDS) if special else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Words to be kept whole are repeated so often that their merges are among the first.
    repeated = (" ".join([word] * WHOLE_COUNT) for word in whole)
    tokenizer.train_from_iterator(chain(texts, repeated), trainer)
    # Whether the vocabulary was large enough is seen only afterwards.
    cut = [word for word in whole if len(tokenizer.encode(word, add_special_tokens=False).ids) > 1]
    if cut:
        raise ValueError(
            f"size={size} is too small to keep {len(whole):,} words whole: {len(cut):,} are cut, "
            f"such as {cut[0]!r}"
        )
    return _append_end(tokenizer) if special else tokenizer


def bpe_from_merges(lines: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """Return BPE with the merges of a subword-nmt file, for words separated by spaces.

    lines  of the file, with its header
    texts  their characters are the alphabet

    Where subword-nmt writes `an@@ st@@ arrt` the pieces here are `an`, `st`, `arrt</w>`; decoding
    joins them.
    """
    header, *merge_lines = lines
    if not header.startswith("#version: 0.2"):
        raise ValueError(
            f'the codes begin with "{header}"; those of subword-nmt begin with "#version: 0.2"'
        )
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in merge_lines)]
    # Each letter within a word and at its end: merges start from these.
    letters = sorted({letter for text in texts for letter in text} - {" "})
    pieces = [piece for letter in letters for piece in (letter, letter + WORD_END)]
    pieces += [piece for left, right in merges for piece in (left, right, left + right)]
    vocabulary = dict(SPECIAL_IDS)
    # Letters first, then pieces in the order of their merges: each gets the next free id.
    for piece in pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, end_of_word_suffix=WORD_END, unk_token=UNKNOWN)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=WORD_END)
    tokenizer.add_special_tokens(list(SPECIAL_IDS))
    return _append_end(tokenizer)


def character_tokenizer(text: str, special: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer with one token for each character of the text; encoding any other
    character is an error.

    special  characters that come first in the vocabulary, in this order
    """
    characters = [*special, *sorted(set(text) - set(special))]
    vocabulary = {character: i for i, character in enumerate(characters)}
    # The unknown token is not in the vocabulary: hence the error.
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> Special:
    """Return the ids of padding, start and end, as far as the tokenizer has them, for a model that
    uses it.
    """
    pad, start, end = (tokenizer.token_to_id(token) for token in (PAD, START, END))
    return Special(start, () if end is None else (end,), pad)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def _append_end(tokenizer: Tokenizer) -> Tokenizer:
    """Let the tokenizer append the end to every text, in place, and return it."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, SPECIAL_IDS[END])]
    )
    return tokenizer


def encode_with_dropout(
    tokenizer: Tokenizer, texts: Sequence[str], *, dropout: float, seed: int
) -> list[list[int]]:
    """Return the ids of each text by BPE-dropout (Provilkov et al. 2020): merges fail with
    probability `dropout`.

    Special ids stay as they are. Each word gets at most MAX_SPLITS different splits, which are then
    reused.
    """
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    splitter = _WordSplitter(tokenizer, dropout, Random(seed))
    encoded = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids: list[int] = []
        tokens = zip(encoding.word_ids, encoding.ids, strict=True)
        # Special tokens belong to no word.
        for word, word_tokens in groupby(tokens, key=lambda token: token[0]):
            pieces = tuple(piece for _, piece in word_tokens)
            ids += pieces if word is None else splitter.split(pieces)
        encoded.append(ids)
    return encoded


class _WordSplitter:
    """Split words by BPE with dropout, and keep the splits of each word, by its usual ids."""

    def __init__(self, tokenizer: Tokenizer, dropout: float, random: Random) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise ValueError(
                f"a tokenizer of the kind {model['type']} has no merges that could fail; BPE has"
            )
        self.ids: dict[str, int] = model["vocab"]
        self.names = {i: piece for piece, i in self.ids.items()}
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
        self.word_end: str = model["end_of_word_suffix"] or ""
        self.dropout = dropout
        self.random = random
        self.splits: dict[tuple[int, ...], list[list[int]]] = {}

    def split(self, word: tuple[int, ...]) -> Sequence[int]:
        """Return the ids of a random split of the word."""
        splits = self.splits.setdefault(word, [])
        if len(splits) == MAX_SPLITS:
            return self.random.choice(splits)
        # The letters of the word, the last one marked as its end.
        name = "".join(self.names[piece] for piece in word)
        letters = list(name.removesuffix(self.word_end))
        letters[-1] += self.word_end
        pieces = self._merge(letters)
        # A letter outside of the vocabulary stays unknown.
        known = all(piece in self.ids for piece in pieces)
        splits.append([self.ids[piece] for piece in pieces] if known else list(word))
        return splits[-1]

    def _merge(self, pieces: list[str]) -> list[str]:
        """Merge pieces in order of rank. In each round every possible merge may fail; when all
        fail, merging ends.
        """
        while True:
            possible = [
                (self.ranks[pair], i)
                for i, pair in enumerate(pairwise(pieces))
                if pair in self.ranks and self.random.random() >= self.dropout
            ]
            if not possible:
                return pieces
            # The merge that was learnt first, the leftmost of several.
            _, i = min(possible)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
