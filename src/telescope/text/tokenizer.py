"""Text to ids and back, by the tokenizers library: BPE learnt from texts, BPE by given merges, and characters.

For texts that become other texts four ids are no words: padding, the unknown, the start and the end. Every text then
ends with the end, source or target; the start is what a decoder is given first.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..models import Special

PAD, UNKNOWN, START, END = "<pad>", "<unk>", "<s>", "</s>"
IDS = {PAD: 0, UNKNOWN: 1, START: 2, END: 3}
MOST = 10_000_000  # pieces
WORD_END = "</w>"  # subword-nmt's mark behind a piece that ends a word


def check_size(size: int) -> None:
    """Raise a ValueError where no vocabulary can be as large: memory for all of it is taken before it is learnt."""
    if not 0 < size <= MOST:
        raise ValueError(f"size={size} is no size of a vocabulary; 1 to {MOST:,} pieces can be")


def bpe(texts: Iterable[str], size: int, *, lower: bool = False, special: bool = True) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016) of `size` pieces, learnt from the texts.

    It starts from bytes, so nothing is unknown; digits stand alone, so that a number is copied and not remembered.
    Without `special` ids a text is kept to the letter, to be written on; with them its spaces are tidied, and it gets
    one in front, so that the first word is the same piece as any other.
    """
    check_size(size)
    least = len(IDS) * special + 256
    if size < least:
        raise ValueError(f"size={size} is too small for BPE: its bytes and special ids alone are {least}")
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN if special else None))
    tokenizer.normalizer = normalizers.Sequence([*_tidied(special), *([normalizers.Lowercase()] if lower else [])])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *([decoders.Strip(" ", 1, 0)] if special else [])])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(IDS) if special else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _ending(tokenizer) if special else tokenizer


def from_codes(codes: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """BPE by the merges of subword-nmt, for text whose words have spaces between them, made of the letters of `texts`.

    Where subword-nmt writes `an@@ st@@ arrt` the pieces here are `an`, `st`, `arrt</w>`; decoding joins them.
    """
    header, *lines = codes
    if not header.startswith("#version: 0.2"):
        raise ValueError(f'the codes begin with "{header}"; those of subword-nmt, "#version: 0.2", can be read')
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    letters = sorted({letter for text in texts for letter in text} - {" "})
    pieces = [piece for letter in letters for piece in (letter, letter + WORD_END)]
    pieces += [piece for left, right in merges for piece in (left, right, left + right)]
    vocabulary = dict(IDS)
    for piece in pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, end_of_word_suffix=WORD_END, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=WORD_END)
    tokenizer.add_special_tokens(list(IDS))
    return _ending(tokenizer)


def characters(text: str, special: Sequence[str] = ()) -> Tokenizer:
    """Every character of the text is a token; one that is not in it cannot be encoded. `special` ones come first."""
    vocabulary = {character: i for i, character in enumerate([*special, *sorted(set(text) - set(special))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))  # which is no token, so it is an error
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def special(tokenizer: Tokenizer) -> Special:
    """The ids that are no words, for a model that uses this tokenizer."""
    pad, start, end = (tokenizer.token_to_id(token) for token in (PAD, START, END))
    return Special(start, () if end is None else (end,), pad)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def _tidied(special: bool) -> list[normalizers.Normalizer]:
    spaces = normalizers.Replace(Regex(r"[^\S\n]+"), " ")  # a line's end means something, in a chat
    return [normalizers.NFC(), normalizers.Strip(), spaces, normalizers.Prepend(" ")] if special else []


def _ending(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, IDS[END])])
    return tokenizer


WAYS = 8  # in which a word is cut at most, however often it occurs


def other_pieces(tokenizer: Tokenizer, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
    """The ids of each text, special ones as ever, every word cut where merges fail with this probability."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    words = _Words(tokenizer, dropout, Random(seed))
    found = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids: list[int] = []
        for word, some in groupby(zip(encoding.word_ids, encoding.ids, strict=True), key=lambda it: it[0]):
            pieces = tuple(piece for _, piece in some)
            ids += pieces if word is None else words.again(pieces)
        found.append(ids)
    return found


class _Words:
    """Words, as the ids that they usually are, and the ways in which each was cut so far."""

    def __init__(self, tokenizer: Tokenizer, dropout: float, random: Random) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise ValueError(f"a tokenizer of the kind {model['type']} has no merges that could fail; BPE has")
        self.ids: dict[str, int] = model["vocab"]
        self.names = {i: piece for piece, i in self.ids.items()}
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
        self.end: str = model["end_of_word_suffix"] or ""
        self.dropout, self.random = dropout, random
        self.cut: dict[tuple[int, ...], list[list[int]]] = {}

    def again(self, word: tuple[int, ...]) -> Sequence[int]:
        """The ids of the word cut in some way."""
        ways = self.cut.setdefault(word, [])
        if len(ways) == WAYS:
            return self.random.choice(ways)
        pieces = self._merged(self._letters("".join(self.names[piece] for piece in word)))
        known = all(piece in self.ids for piece in pieces)  # a letter that the vocabulary lacks stays unknown
        ways.append([self.ids[piece] for piece in pieces] if known else list(word))
        return ways[-1]

    def _letters(self, word: str) -> list[str]:
        letters = list(word.removesuffix(self.end))
        return [*letters[:-1], letters[-1] + self.end]

    def _merged(self, pieces: list[str]) -> list[str]:
        """The best merges first, as ever; each may fail each time, and when all do it ends."""
        while True:
            there = [(self.ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in self.ranks]
            there = [it for it in there if self.random.random() >= self.dropout]
            if not there:
                return pieces
            _, i = min(there)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
