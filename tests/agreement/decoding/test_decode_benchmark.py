"""The decoding benchmark compares two implementations that write the same tokens."""

import pytest
import torch
from benchmarks import decode as bench

pytest.importorskip("transformers", reason="the hf extra is not installed")


def test_both_implementations_write_the_same_tokens():
    for case in bench.cases(torch.device("cpu"), quick=True)[1:]:
        torch.manual_seed(0)
        model = case.make().eval()
        ids = torch.randint(1, 400, (case.batch, bench.PROMPT))
        (theirs,) = bench.theirs(model, ids, case).values()
        written = bench.ours(model, ids, case)()
        assert [len(row) for row in written] == [case.tokens] * case.batch
        assert written == theirs()


def test_the_lower_bound_counts_the_bytes_that_a_step_reads(monkeypatch):
    """GPT-2 in float32: its matrices, and 12 blocks of keys and values of 16 + 64 tokens."""
    monkeypatch.setattr(bench, "bandwidth", lambda _: 1e9)
    device = torch.device("cpu")
    case = bench.cases(device, quick=False)[0]
    with torch.device("meta"):  # its shape is enough
        model = case.make()
    matrices = 50_257 * 768 + 12 * (3 * 768**2 + 768**2 + 2 * 4 * 768**2)
    assert bench.floor(model, case, device) == pytest.approx(4e-6 * (matrices + 2 * 12 * 768 * 80))
