"""A survey on a GPU starts few kernels, and waits for the GPU once: to check an lse, at its end."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import telescope as ts
from support.needs import need_triton
from telescope.surveys import device, survey_unchecked
from telescope.surveys import triton as engine

need_triton()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it runs no kernel")

# Operators that start no kernel: views and allocations.
FREE = {"alias", "detach", "new_empty", "permute", "select", "slice", "split_with_sizes", "unbind", "view", "unsqueeze"}
N = 256
TEXTS = torch.arange(N) // 100
ATTENTIONS = {
    "causal": ts.Attention(mask=ts.causal),
    "window, alibi": ts.Attention(mask=ts.causal & ts.window(99), bias=ts.alibi(2)),
    "documents": ts.Attention(mask=ts.causal & ts.documents(TEXTS)),
}
# name: options of the survey, kernels, and all launches, the copy of the check's numbers included
SURVEYS = {
    "top 0": ({"top": 0}, ["statistics"], 5),
    "a map of even tiles": ({"top": 0, "map": (8, 8)}, ["statistics"], 5),
    "any other map": ({"top": 0, "map": (7, 9)}, ["statistics", "pool"], 7),
    "top 8": (
        {"top": 8},
        [
            "statistics",
            "find_blocks",
            "place_rows",
            "group_rows",
            "raise_thresholds",
            "collect_keys",
            "rank_keys",
            "search_all_keys",
        ],
        13,
    ),
}


class Launches(TorchDispatchMode):
    """Record what a GPU would have to run, in order, and the copies to the host."""

    def __init__(self):
        super().__init__()
        self.all = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.overloadpacket.__name__
        if name not in FREE:
            self.all.append(name)
        return operator(*args, **(kwargs or {}))

    def launch(self, kernel, grid, *arguments, **settings):
        self.all.append(kernel.fn.__name__)
        count = len(self.all)
        if self.all[-1] == "check_rows":
            arguments[5].fill_(1.0)  # as of a right lse
            del self.all[count:]  # operators of this test


@pytest.fixture
def launches(monkeypatch):
    """Run surveys of tensors in the host's memory by the GPU's engine, but start no kernel."""
    recorded = Launches()
    copy = torch.Tensor.tolist

    def to_host(tensor):
        recorded.all.append("copy to the host")
        return copy(tensor)

    monkeypatch.setattr(engine, "cannot", lambda *given: None)
    monkeypatch.setattr(device, "LaunchCache", lambda: recorded.launch)
    monkeypatch.setattr(torch.Tensor, "tolist", to_host)
    device._launch_cache.cache_clear()
    yield recorded
    device._launch_cache.cache_clear()


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize(("options", "kernels", "most"), SURVEYS.values(), ids=SURVEYS)
def test_few_launches_and_one_wait(launches, attention, options, kernels, most):
    q, k, lse = torch.zeros(1, 2, N, 64), torch.zeros(1, 2, N, 64), torch.zeros(1, 2, N)
    ts.survey(q, k, attention, lse=lse, **options)  # the first one computes the spans of the mask
    launches.all.clear()
    with launches:
        ts.survey(q, k, attention, lse=lse, **options)
    # What comes after the copy runs on the host.
    before = launches.all[: launches.all.index("copy to the host") + 1]
    assert launches.all.count("copy to the host") == 1
    assert [name for name in before if name in (*kernels, "check_rows")] == [*kernels, "check_rows"]
    # Slopes are brought to base two for the survey, and for the check.
    slopes = 0 if attention.bias is None else 4
    assert len(before) <= most + slopes, before
    assert not {"_local_scalar_dense", "nonzero", "equal"} & set(before)


def test_nothing_waits_where_nothing_is_checked(launches):
    q = torch.zeros(1, 2, N, 64)
    attention = ts.Attention(mask=ts.causal)
    survey_unchecked(q, q, attention, top=8, lse=q[..., 0], map=(7, 9))
    launches.all.clear()
    with launches:
        survey_unchecked(q, q, attention, top=8, lse=q[..., 0].contiguous(), map=(7, 9))
    assert not {"copy to the host", "_local_scalar_dense", "nonzero", "equal", "check_rows"} & set(launches.all)
