"""Texts with gaps: the rest is in order, gaps are marked, and the target is the text itself."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from telescope.training import IGNORE, Gapped, Training
from telescope.training.data import GAP_SHARE, MAX_GAP, cut_gaps

START = 2


def test_a_gap_by_hand():
    ids = torch.tensor([[10, 11, 12, 13, 14, 15, 3, 0], [20, 3, 0, 0, 0, 0, 0, 0]])
    often = GAP_SHARE * 2 / (MAX_GAP + 1)
    chances = torch.ones(2, 8)
    chances[0, 1] = 0.3 * often  # 2 ids long: 11 and 12
    chances[0, 5] = 0.9 * often  # 5 ids long, but the end is always there
    chances[1, 0] = 0.0  # 1 id
    source, lengths = cut_gaps(ids, torch.tensor([7, 2]), chances, START)
    assert source.tolist() == [[10, 2, 13, 14, 2, 3, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0]]
    assert lengths.tolist() == [6, 2]


def test_overlapping_gaps_are_merged():
    ids, chances = torch.arange(10, 20)[None], torch.ones(1, 10)
    chances[0, 2], chances[0, 3] = 0.05, 0.01  # 3 ids from the third, then 1 inside of it
    assert cut_gaps(ids, torch.tensor([10]), chances, START)[0].tolist() == [[10, 11, 2, 15, 16, 17, 18, 19, 0, 0]]


def texts_of(lengths):
    return [[*range(100 * i + 10, 100 * i + 9 + n), 3] for i, n in enumerate(lengths)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(0, 5))
def test_the_target_is_the_whole_text(lengths, epoch):
    texts = texts_of(lengths)
    data = Gapped(texts, START)
    found = []
    for spec in data.batches(Training(steps=1, tokens=200), epoch):
        for source, length, target, targets in zip(*data.take(spec), strict=True):
            n = int((targets != IGNORE).sum())
            if not n:
                continue
            assert target[0] == START
            text = [*target[1:n].tolist(), int(targets[n - 1])]
            found.append(text)
            assert source[length - 1] == 3
            left = [i for i in source[:length].tolist() if i != START]
            assert left == [i for i in text if i in set(left)]  # in order, none twice
            missing, marks = len(text) - len(left), int((source[:length] == START).sum())
            assert marks <= missing
            assert (missing == 0) == (marks == 0)
    assert sorted(found) == sorted(texts)


def test_gaps_have_the_given_share_and_differ_between_epochs():
    data = Gapped(texts_of([90] * 60), START)
    settings = Training(steps=1, tokens=2000)

    def sources(epoch):
        return {
            (int(row[1]), tuple(source.tolist()))
            for spec in data.batches(settings, epoch)
            for source, row in zip(data.take(spec).source, data.take(spec).target, strict=True)
        }

    assert sources(0) == sources(0)
    assert sources(0) != sources(1)
    left = sum(i not in (0, START) for _, source in sources(0) for i in source)
    assert 0.5 * GAP_SHARE < 1 - left / (60 * 90) < GAP_SHARE


def test_the_description_of_the_data_mentions_gaps():
    assert Gapped(texts_of([5, 9]), START).describe().endswith("with gaps")
