"""Span corruption of arbitrary lines, compared with strings that are cut one by one, and its probabilities."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from telescope.tasks.learning.recall import CutSpans, corrupt, draw_spans, encode, vocabulary

TEXT = "abcdefghijklmnopqrstuvwxyz"
TOKENS = vocabulary([TEXT])


def cut(line, kept, taken, start, length):
    """Corrupt a line as the hand-out says, on strings."""
    line = line[:kept]
    prefix, span, suffix = line[:start], line[start : start + taken], line[start + taken :]
    whole = f"{prefix}⁇{suffix}⁇{span}"
    return whole + "□" * (length - len(whole))


@given(st.lists(st.text(TEXT, min_size=4, max_size=40), min_size=1, max_size=6), st.integers(0, 2**32), st.data())
def test_spans_equal_strings_cut_by_hand(lines, seed, data):
    longest = data.draw(st.integers(4, 40))
    ids = encode(TOKENS, [line[:longest] for line in lines])
    lengths = torch.tensor([len(line) for line in ids])
    padded = torch.tensor([line + [0] * (longest - len(line)) for line in ids])
    chances = torch.rand(3, len(lines), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn = draw_spans(lengths, chances, longest)
    moved = corrupt(padded, drawn, longest + 2)
    for line, corrupted, *numbers in zip(lines, moved.tolist(), *(number.tolist() for number in drawn), strict=True):
        kept, taken, start = numbers
        assert 4 <= kept <= min(len(line), longest)
        assert 1 <= taken <= max(kept / 2, 1)
        assert 0 <= start <= kept - taken
        assert "".join(TOKENS.id_to_token(i) for i in corrupted) == cut(line, kept, taken, start, longest + 2)


def many(n=200_000):
    chances = torch.rand(3, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return draw_spans(torch.full((n,), 500), chances, longest=112)


def test_every_length_is_equally_likely():
    kept = many().kept
    share = torch.bincount(kept, minlength=113)[4:] / len(kept)
    assert len(share) == 109
    assert (share * 109 - 1).abs().max() < 0.12  # five standard deviations of 1,835 draws


def test_the_longest_of_several_draws_is_kept():
    """The larger of two uniform draws is below a share x with probability x²."""
    chances = torch.rand(4, 100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = draw_spans(torch.full((100_000,), 500), chances, longest=112).kept
    for x in (0.25, 0.5, 0.75):
        assert abs((kept < 4 + 109 * x).double().mean() - x**2) < 0.01


def test_a_quarter_is_removed_from_any_position():
    kept, taken, start = many()
    for length in (4, 5, 30, 63, 112):
        some = kept == length
        assert abs(taken[some].double().mean() / length - 0.25) < 0.02
    share = taken / kept
    assert ((share < 0.2).any(), (share > 0.3).any()) == (True, True)
    assert abs((start / (kept - taken)).mean() - 0.5) < 0.01


def test_the_extreme_random_numbers_stay_in_range():
    chances = torch.tensor([[0.0, 1 - 2**-53]] * 3, dtype=torch.float64)
    ends = CutSpans(*draw_spans(torch.tensor([112] * 2), chances, 112))
    assert ends.kept.tolist() == [4, 112]
    assert (ends.start + ends.taken <= ends.kept).all()
