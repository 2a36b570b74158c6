"""An epoch of the recall task is the same on a GPU as on a CPU."""

import pytest
import torch

from telescope.tasks.learning.recall import Lines
from telescope.training import Training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_the_same_rows():
    torch.manual_seed(0)
    lines = [torch.randint(2, 256, (n,)).tolist() for n in torch.randint(4, 200, (300,)).tolist()]
    settings = Training(epochs=1, rows=64)
    here = Lines(lines, 128).batches(settings, 5)
    there = Lines(lines, 128).to(torch.device("cuda")).batches(settings, 5)
    assert len(here) == len(there) == 5
    for ours, theirs in zip(here, there, strict=True):
        assert torch.equal(ours.ids, theirs.ids.cpu())
        assert torch.equal(ours.targets, theirs.targets.cpu())
