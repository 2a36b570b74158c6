"""Batches: every example once, in few shapes, in an order that depends on the seed and the epoch alone."""

from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from telescope.training import IGNORE, Examples, TextBatch, Training, Windows
from telescope.training.batch import process_share
from telescope.training.data import round_widths

sizes = st.lists(st.tuples(st.integers(1, 90), st.integers(2, 150)), min_size=1, max_size=60)


def made(lengths):
    """Return examples in which every id occurs in one sequence only."""
    ids = count()
    return [[[next(ids) for _ in range(n)] for n in column] for column in zip(*lengths, strict=True)]


def settings(**options):
    return Training(**{"steps": 1} | options)


def rows_of(batch):
    """Yield (source, target) of every real row, without its padding."""
    for source, length, target, targets in zip(*batch, strict=True):
        n = int((targets != IGNORE).sum())
        if n:
            assert targets[:n].ne(IGNORE).all()  # what counts comes first
            assert_close(targets[: n - 1], target[1:n], rtol=0, atol=0)
            yield tuple(source[:length].tolist()), (*target[:n].tolist(), int(targets[n - 1]))


@given(sizes, st.integers(100, 500), st.sampled_from([None, 0, 3]))
def test_every_pair_comes_once_and_fits(lengths, tokens, epoch):
    sources, targets = made(lengths)
    data = Examples(sources, targets)
    found = []
    for spec in data.batches(settings(tokens=tokens), epoch):
        batch = data.take(spec)
        (rows, n), m = batch.source.shape, batch.target.shape[1]
        assert rows * max(n, m) <= max(tokens, max(n, m))  # one row is always taken
        assert n % 8 == m % 8 == 0
        assert batch.lengths.min() >= 1  # a row that only fills up can be read too
        found += rows_of(batch)
    assert sorted(found) == sorted((tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True))


@given(sizes)
def test_all_batches_but_one_are_full(lengths):
    data = Examples(*made(lengths))
    batches = [data.take(spec) for spec in data.batches(settings(rows=5), 1)]
    full = [int((batch.targets != IGNORE).any(1).sum()) for batch in batches]
    assert sorted(full)[1:] == [5] * (len(full) - 1)
    assert {len(batch.source) for batch in batches} == {5}


def test_shapes_are_few():
    draw = torch.Generator().manual_seed(1)
    one = torch.randint(2, 100, (5000, 1), generator=draw)
    lengths = torch.cat([one, one + torch.randint(0, 9, one.shape, generator=draw)], dim=1)  # as of translations
    data = Examples(*made(lengths.tolist()))
    shapes = {spec.widths for epoch in range(3) for spec in data.batches(settings(tokens=4096), epoch)}
    assert len(shapes) < 40
    longest = lengths.amax(1, keepdim=True)
    more = round_widths(lengths.T).T - lengths
    assert ((more >= 0) & (more <= (longest / 4).clamp(min=7))).all()


def test_widths_are_rounded_to_the_multiple():
    lengths = torch.tensor([[1, 8, 9, 63, 64, 65, 81, 128, 129, 257, 512]])
    assert round_widths(lengths).tolist() == [[8, 8, 16, 64, 64, 80, 96, 128, 160, 320, 512]]
    assert round_widths(torch.tensor([[500], [30]])).tolist() == [[512], [64]]  # by the step of the longer one


def test_the_order_depends_on_seed_and_epoch_alone():
    data = Examples([[i, i + 1, i + 2] for i in range(64)])

    def order(seed, epoch):
        torch.rand(3)  # torch's own generator has no say in it
        return [data.take(spec).ids[:, 0].tolist() for spec in data.batches(settings(rows=4, seed=seed), epoch)]

    assert order(0, 0) == order(0, 0)
    different = [order(0, 0), order(0, 1), order(1, 0), order(0, None)]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])


def test_targets_of_a_gpt_are_the_next_ids():
    data = Examples([[5, 6, 7], [8, 9]])
    (spec,) = data.batches(settings(rows=3), None)
    batch = data.take(spec)
    assert batch.ids[:, :3].tolist() == [[5, 6, 7], [8, 9, 0], [5, 6, 7]]
    assert batch.targets[:, :3].tolist() == [[6, 7, IGNORE], [9, IGNORE, IGNORE], [IGNORE] * 3]


@given(st.integers(2, 70), st.integers(1, 9), st.integers(1, 5))
def test_validation_windows_have_every_id_as_target_once(length, block, rows):
    block = min(block, length - 1)
    data = Windows(torch.arange(length), block)
    batches = [data.take(spec) for spec in data.batches(settings(rows=rows), None)]
    guessed = torch.cat([batch.targets[batch.targets != IGNORE] for batch in batches])
    assert guessed.tolist() == list(range(1, length))
    for batch in batches:
        assert batch.ids.shape == (rows, block)
        assert (batch.targets[batch.targets != IGNORE] == batch.ids[batch.targets != IGNORE] + 1).all()


def test_windows_are_drawn_everywhere():
    data = Windows(torch.arange(50), 7)
    starts = [data.take(spec).ids[:, 0] for epoch in range(60) for spec in data.batches(settings(rows=4), epoch)]
    assert set(torch.cat(starts).tolist()) == set(range(50 - 7))
    assert len(data.batches(settings(rows=4), 0)) == 2  # as many as the text holds


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
def test_the_shares_of_all_processes_are_the_batch(parts):
    ids = torch.arange(15).reshape(5, 3)
    several = [process_share(TextBatch(ids, ids + 1), part, parts) for part in range(parts)]
    assert len({len(part.ids) for part in several}) == 1
    together = TextBatch(*(torch.cat(tensors) for tensors in zip(*several, strict=True)))
    assert torch.equal(together.ids[:5], ids)
    assert torch.equal(together.targets[:5], ids + 1)
    assert (together.targets[5:] == IGNORE).all()
