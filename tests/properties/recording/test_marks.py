"""The fingerprints of keys: every bit of a key counts, and its place in memory does not."""

import pytest
import torch

from telescope.recording.continuation import fingerprints, same_bits

KINDS = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
WIDTHS = pytest.mark.parametrize("width", [1, 3, 8, 64])


def keys_of(kind: torch.dtype, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 5, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(kind)


@KINDS
@WIDTHS
def test_a_fingerprint_does_not_depend_on_the_memory_layout(kind, width):
    keys = keys_of(kind, width)
    expected = fingerprints(keys)
    elsewhere = {
        "heads behind positions": keys.transpose(1, 2).contiguous().transpose(1, 2),
        "features apart": torch.stack([keys, keys], -1)[..., 0],
        "after a single number": torch.cat([keys.new_zeros(1), keys.flatten()])[1:].view(keys.shape),
        "in rows that are longer by one": torch.nn.functional.pad(keys, (0, 1))[..., :width],
    }
    for how, moved in elsewhere.items():
        assert torch.equal(moved, keys), how
        assert same_bits(fingerprints(moved), expected), how
    alone = torch.cat([fingerprints(keys[:, :, i : i + 1]) for i in range(keys.shape[2])], -1)
    assert same_bits(alone, expected)


@KINDS
@WIDTHS
def test_every_bit_changes_the_fingerprint(kind, width):
    keys = keys_of(kind, width)
    before, bits = fingerprints(keys), 8 * keys.element_size()
    words = {16: torch.int16, 32: torch.int32, 64: torch.int64}
    for feature in {0, width // 2, width - 1}:
        for bit in range(bits):
            changed = keys.clone()
            pattern = changed.view(words[bits])
            pattern[1, 2, 3, feature] ^= torch.tensor(1, dtype=torch.int64).bitwise_left_shift(bit).to(words[bits])
            different = fingerprints(changed) != before
            assert different[1, 2, 3], f"bit {bit} of feature {feature}"
            assert different.sum() == 1


def test_many_keys_have_different_fingerprints():
    keys = torch.randn(1, 1, 2**17, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    _, alike = torch.unique(keys.view(torch.int16)[0, 0], dim=0, return_counts=True)
    _, marked = torch.unique(fingerprints(keys)[0, 0], return_counts=True)
    assert len(marked) == len(alike)


def test_equal_nans_have_equal_fingerprints():
    keys = torch.full((1, 1, 2, 4), torch.nan)
    assert same_bits(keys, keys.clone())
    assert not same_bits(keys, -keys)
