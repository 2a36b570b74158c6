"""Tensors of several layers that grow together: in one piece of memory, and with the numbers of each alone."""

import pytest
import torch

from telescope.recording.storage import SPARE, GrowingTensor, append_each, as_one, store_named


def grown(stores, lengths, batch=2):
    """Return tensors of some layers that were appended to together, and the same appended to one by one."""
    torch.manual_seed(0)
    first = torch.rand(len(stores) * batch, 3, lengths[0], 4)
    together, alone = (
        [GrowingTensor(own, 2, store) for own, store in zip(first.chunk(len(stores)), stores, strict=True)]
        for _ in range(2)
    )
    for length in lengths[1:]:
        more = torch.rand(len(stores) * batch, 3, length, 4)
        append_each(together, more)
        for one, own in zip(alone, more.chunk(len(stores)), strict=True):
            one.append(own)
    return together, alone


@pytest.mark.parametrize("name", ["device", "ram", "disk"])
@pytest.mark.parametrize("lengths", [(5, 1), (5, 2, 3, SPARE, 40, 1), (0, 4)])
def test_what_is_appended_together_is_what_is_appended_one_by_one(name, lengths):
    store = store_named(name)
    together, alone = grown([store] * 4, lengths)
    for one, own in zip(together, alone, strict=True):
        assert torch.equal(one.tensor, own.tensor)
        assert one.nbytes == own.nbytes
        assert one.shape == tuple(one.tensor.shape)


def test_layers_that_differ_are_appended_to_one_by_one():
    together, alone = grown([store_named("device"), store_named("ram")], (5, 3))
    assert all(torch.equal(one.tensor, own.tensor) for one, own in zip(together, alone, strict=True))


def test_a_layer_that_goes_on_alone_leaves_the_others_as_they_are():
    store = store_named("device")
    together, alone = grown([store] * 3, (5, 2))
    more = torch.rand(2, 3, SPARE, 4)
    for _ in range(3):
        together[1].append(more)
        alone[1].append(more)
    assert all(torch.equal(one.tensor, own.tensor) for one, own in zip(together, alone, strict=True))
    assert as_one([one.memory for one in (together[0], together[2])]) is not None
    assert as_one([one.memory for one in together]) is None


def test_tensors_are_one_only_where_they_lie_one_after_the_other():
    whole = torch.arange(24.0).view(4, 2, 3)
    parts = whole.chunk(4)
    joined = as_one(parts)
    assert joined is not None
    assert torch.equal(joined, torch.stack(parts))
    assert joined.data_ptr() == whole.data_ptr()
    # In another order, with one left out in the middle, or copied, they are not.
    for others in (parts[::-1], (parts[0], parts[1], parts[3]), (parts[0], parts[1].clone(), parts[2])):
        assert as_one(others) is None
    assert as_one((parts[0], parts[0])) is None
    # Every second one lies as far from the next.
    assert torch.equal(as_one(parts[::2]), torch.stack(parts[::2]))
