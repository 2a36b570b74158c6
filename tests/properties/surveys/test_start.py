"""Kernels are launched as triton would launch them, and a kernel compiled for other arguments is never used."""

from dataclasses import dataclass, field

import pytest
import torch

import telescope as ts
from telescope.surveys.device import launch_cache_for
from telescope.surveys.matrix import Matrix

GRID = (3, 2)


@dataclass
class Kernel:
    """A stand-in for a triton kernel: it compiles for the arguments of a call, and records how it was launched."""

    compiles: bool = True
    started: list = field(default_factory=list)
    arg_names = ("x", "n", "BM", "TOP")

    def __getitem__(self, grid):
        def first(*arguments, **settings):
            self.started.append(("looked at", grid, arguments, settings))
            return self.compiled if self.compiles else None

        return first

    @property
    def compiled(self):
        started = self.started

        class Compiled:
            def __getitem__(self, grid):
                return lambda *arguments: started.append(("known", grid, arguments))

        return Compiled()


def test_a_second_launch_of_the_same_kind_uses_the_compiled_kernel():
    kernel, one, other = Kernel(), torch.zeros(4, 6), torch.ones(4, 6)
    for x in (one, other):
        launch_cache_for("kind", (x, 7, None, 0.5))(kernel, GRID, x, 7, TOP=8, num_warps=4, BM=16)
    looked, known = kernel.started
    assert looked == ("looked at", GRID, (one, 7), {"TOP": 8, "num_warps": 4, "BM": 16})
    assert known[:2] == ("known", (3, 2, 1))
    assert known[2][0] is other
    assert known[2][1:] == (7, 16, 8)  # in the order in which the kernel has them, and nothing else


MEMORY = torch.zeros(1000)
OTHERS = {
    "a number": (MEMORY[:24].view(4, 6), 8),
    "a shape": (MEMORY[:24].view(6, 4), 7),
    "no numbers": (MEMORY[:0].view(4, 0), 7),
    "strides": (MEMORY[:24].view(6, 4).T, 7),
    "a dtype": (MEMORY[:24].view(4, 6).int(), 7),
    "where it begins": (MEMORY[1:25].view(4, 6), 7),
    "none at all": (None, 7),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_launch_of_another_kind_goes_through_triton(other):
    assert MEMORY.data_ptr() % 16 == 0
    kernel, usual = Kernel(), (MEMORY[:24].view(4, 6), 7)
    for arguments in (usual, other, usual, other):
        launch_cache_for("kind", arguments)(kernel, GRID, *arguments, BM=16, TOP=8)
    assert [how for how, *_ in kernel.started] == ["looked at", "looked at", "known", "known"]
    launch_cache_for("another kind", other)(kernel, GRID, *other, BM=16, TOP=8)
    assert kernel.started[-1][0] == "looked at"


def kind(q, **definition):
    attention = ts.Attention(**definition)
    (band,) = Matrix.of(q, q, attention, 2**29).bands()
    return band.kind


Q = torch.zeros(4 * 2 * 64 * 16 + 16).half()[: 4 * 2 * 64 * 16].view(4, 2, 64, 16)
KINDS = {
    "a shape": (Q[:2], {}),
    "strides": (Q.transpose(1, 2).contiguous().transpose(1, 2), {}),
    "a dtype": (Q.bfloat16(), {}),
    "where it begins": (torch.zeros(4 * 2 * 64 * 16 + 16).half()[1 : 4 * 2 * 64 * 16 + 1].view(4, 2, 64, 16), {}),
    "a softcap": (Q, {"softcap": 2.0}),
    "slopes": (Q, {"bias": ts.alibi(2)}),
    "distances": (Q, {"bias": ts.relative(torch.zeros(2, 3))}),
    "more distances": (Q, {"bias": ts.relative(torch.zeros(2, 5))}),
    "a bias": (Q, {"bias": lambda i, j: 0.1 * (i + j)}),
    "a mask in a table": (Q, {"mask": ~ts.window(3)}),
    "spans of each sequence": (Q, {"mask": ts.padding([1, 2, 3, 4])}),
}


def test_bands_are_of_one_kind_only_if_one_kernel_serves_them():
    usual = kind(Q)
    assert usual == kind(Q.clone(), mask=ts.causal, scale=2, sink=0.5)
    others = [kind(q, **definition) for q, definition in KINDS.values()]
    assert len({usual, *others}) == 1 + len(others)


def test_a_launch_with_other_settings_goes_through_triton():
    kernel, x = Kernel(), torch.zeros(4, 6)
    for warps in (4, 8, 4):
        launch_cache_for("kind", (x, 7))(kernel, GRID, x, 7, BM=16, TOP=8, num_warps=warps)
    assert [how for how, *_ in kernel.started] == ["looked at", "looked at", "known"]


def test_interpreted_launches_always_go_through_triton():
    kernel, x = Kernel(compiles=False), torch.zeros(4, 6)
    for _ in range(3):
        launch_cache_for("kind", (x, 7))(kernel, GRID, x, 7, BM=16, TOP=8)
    assert [how for how, *_ in kernel.started] == ["looked at"] * 3
