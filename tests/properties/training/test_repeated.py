"""Windows that repeat: some say their first tokens again, the others are the text; validation reads the text alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.learning import gpt
from telescope.tasks.learning.repeats import ONCE, measure_repeats
from telescope.training import Repeated, Spec, Training, Windows
from telescope.training.data import DRAWN_SHARE, SHORTEST_PERIOD

TEXT = list(range(100, 400))


def test_three_windows_by_hand():
    """One repeats 9 tokens of the text, one repeats 8 that are drawn, one is the text."""
    data = Repeated(TEXT, block=20, share=0.5)
    tokens = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.999, 0.1, 0.2, 0.3, 0.4, 0.6])
    # Which of the three it is, the period from 8 to 10, and the drawn tokens.
    chances = torch.stack([torch.tensor([x, y]) for x, y in [(0.4, 0.34), (0.05, 0.0), (0.6, 0.9)]])
    spec = Spec(torch.tensor([0, 5, 10]), (20,), 3, torch.cat([chances, tokens.expand(3, 10)], 1))
    batch = data.take(spec)
    said = [100, 101, 102, 103, 104, 105, 106, 107, 108]
    drawn = [int(x * 400) for x in tokens[:8]]
    assert batch.ids.tolist() == [(said * 3)[:20], (drawn * 3)[:20], list(range(110, 130))]
    assert batch.targets.tolist() == [(said * 3)[1:21], (drawn * 3)[1:21], list(range(111, 131))]


def period_of(row):
    """Return after how many tokens a row says the same again; 0 if it never does."""
    return next((n for n in range(SHORTEST_PERIOD, len(row)) if torch.equal(row[n:], row[:-n])), 0)


@given(st.integers(16, 40), st.sampled_from([0.3, 0.8]), st.integers(0, 3))
def test_the_share_and_the_periods(block, share, seed):
    data = Repeated(torch.randperm(4000), block, share)
    settings = Training(steps=1, rows=50, seed=seed)
    batches = [data.take(spec) for spec in data.batches(settings, epoch=1)]
    rows = torch.cat([torch.cat([batch.ids, batch.targets[:, -1:]], 1) for batch in batches])
    # No token of this text comes twice by itself.
    periods = torch.tensor([period_of(row) for row in rows])
    repeat = periods > 0
    assert periods[repeat].min() >= SHORTEST_PERIOD
    assert periods[repeat].max() <= block // 2
    deviation = (share * (1 - share) / len(rows)) ** 0.5
    assert abs(repeat.double().mean() - share) < 5 * deviation
    assert all(torch.equal(batch.ids[:, 1:], batch.targets[:, :-1]) for batch in batches)


def test_epochs_and_seeds_draw_anew_and_the_same_numbers_draw_the_same():
    data = Repeated(TEXT, 32, 1.0)

    def ids(seed, epoch):
        return torch.cat([data.take(spec).ids for spec in data.batches(Training(steps=1, rows=4, seed=seed), epoch)])

    assert torch.equal(ids(0, 0), ids(0, 0))
    assert not torch.equal(ids(0, 0), ids(0, 1))
    assert not torch.equal(ids(0, 0), ids(1, 0))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_validation_reads_the_text(share):
    data, plain = Repeated(TEXT, 32, share), Windows(TEXT, 32)
    settings = Training(steps=1, rows=4)
    for one, other in zip(data.batches(settings, None), plain.batches(settings, None), strict=True):
        for part, wanted in zip(data.take(one), plain.take(other), strict=True):
            assert torch.equal(part, wanted)
    if not share:
        first, wanted = data.batches(settings, 0)[0], plain.batches(settings, 0)[0]
        assert torch.equal(data.take(first).ids, plain.take(wanted).ids)


def test_some_windows_repeat_what_was_drawn():
    data = Repeated([7] * 399 + [399], 64, 1.0)
    settings = Training(steps=1, rows=100)
    batches = [data.take(spec) for epoch in range(60) for spec in data.batches(settings, epoch)]
    drawn = (torch.cat([batch.ids for batch in batches]) != 7).double().mean(1) > 0.5
    deviation = (DRAWN_SHARE * (1 - DRAWN_SHARE) / len(drawn)) ** 0.5
    assert abs(drawn.double().mean() - DRAWN_SHARE) < 5 * deviation


@pytest.mark.parametrize(
    ("block", "share", "sentence"),
    [
        (15, 0.5, "block=15 is too short to repeat 8 tokens; 16 is enough"),
        (20, 1.5, "a share of 1.5 of the windows is not possible; 0 to 1 is"),
    ],
)
def test_bad_input(block, share, sentence):
    with pytest.raises(ValueError, match=sentence):
        Repeated(TEXT, block, share)


def test_the_description_tells_it_from_the_text_alone():
    assert Repeated(TEXT, 32, 0.8).describe() == Windows(TEXT, 32).describe() + ", 80% of them repeat"


def test_a_model_that_has_learnt_nothing():
    """Its loss on the second copy is near that of guessing, and no head finds the first."""
    model = gpt(vocabulary=1000, max_positions=2 * ONCE, d_model=32)
    found = measure_repeats(model)
    assert abs(found["repeats"] - torch.log(torch.tensor(1000.0)).item()) < 0.3
    assert found["induction"] < 0.05
