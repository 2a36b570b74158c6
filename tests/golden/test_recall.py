"""The recall task as its hand-out states it: vocabulary, span corruption, and the course's own example."""

import torch

from data import folder
from telescope.tasks.recall.corpus import read
from telescope.tasks.recall.corruption import Spans, corrupt, spans
from telescope.tasks.recall.vocabulary import MASK, PAD, encode, tokenizer


def written(tokens, ids):
    return "".join(tokens.id_to_token(i) for i in ids)


def test_characters_come_after_the_two_that_are_none():
    tokens = tokenizer("bad\ncab")
    assert tokens.get_vocab() == {"□": 0, "⁇": 1, "\n": 2, "a": 3, "b": 4, "c": 5, "d": 6}
    assert encode(tokens, ["cab⁇\n□"]) == [[5, 3, 4, 1, 2, 0]]
    assert tokens.decode([5, 3, 4, 1, 2, 0]) == "cab\n"  # what stands for no character is not read out


def test_a_span_goes_to_the_end():
    tokens = tokenizer("Khatchig Mouradian is")
    line = torch.tensor(encode(tokens, ["Khatchig Mouradian is"]))

    def cut(kept, taken, start):
        numbers = (torch.tensor([number]) for number in (kept, taken, start))
        return written(tokens, corrupt(line, Spans(*numbers), 26)[0].tolist())

    assert cut(21, 5, 9) == "Khatchig ⁇dian is⁇Moura□□□"
    assert cut(21, 5, 0) == "⁇hig Mouradian is⁇Khatc□□□"
    assert cut(21, 5, 16) == "Khatchig Mouradi⁇⁇an is□□□"
    assert cut(8, 2, 3) == "Kha⁇hig⁇tc" + 16 * PAD
    assert cut(4, 1, 3) == "Kha⁇⁇t" + 20 * PAD


def test_three_chances_decide():
    lengths, half = torch.tensor([300, 60, 300, 300]), 0.5
    chances = torch.tensor([[0.0, 1.0, half, 1.0], [0.0, 0.0, half, 1.0], [0.0, 1.0, half, 1.0]]).double()
    kept, taken, start = spans(lengths, chances.clamp(max=1 - 1e-9), longest=112)
    assert kept.tolist() == [4, 60, 58, 112]
    assert taken.tolist() == [1, 1, 15, 55]  # 58 / 2 - 1 = 28 choices beside the first; the one in the middle
    assert start.tolist() == [0, 59, 22, 57]


def test_the_files_of_the_course():
    corpus = read(folder("cs224n_a5"))
    assert (len(corpus.lines), len(corpus.train), len(corpus.dev)) == (2937, 2000, 500)
    tokens = tokenizer(corpus.text)
    assert tokens.get_vocab_size() == 256
    assert [tokens.id_to_token(i) for i in range(5)] == [PAD, MASK, "\n", " ", "!"]
    assert (corpus.dev[0].text, corpus.dev[0].place) == ("Where was Bryan Dubreuiel born?", "Atlanta")
    everything = encode(tokens, [question.text + question.place for question in (*corpus.train, *corpus.dev)])
    assert max(map(len, everything)) == 68
