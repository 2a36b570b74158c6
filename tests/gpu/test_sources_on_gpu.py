"""On a GPU, what `survey` is asked for besides, and sources, have the numbers of a CPU in float64."""

import pytest
import torch
from test_survey_on_gpu import CASES, inputs
from torch.testing import assert_close

import telescope as ts
from telescope.surveys import reference
from telescope.surveys import triton as engine
from telescope.surveys.requests import Extras, segments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("sizes", "dtype", "attention"), CASES.values(), ids=CASES)
def test_statistics_agree(sizes, dtype, attention):
    q, k = inputs(sizes, dtype)
    batch, heads, _, queries, keys, _ = sizes
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(1, heads, 9, queries, generator=generator).cuda()
    extras = Extras(weights, torch.rand(batch, heads, keys, generator=generator).cuda(), True)
    cells = segments((torch.arange(queries), torch.arange(keys) // 37), "share", of=(queries, keys), batch=batch,
                     device=q.device)  # fmt: skip
    truth = reference.summarize(q.double(), k.double(), attention, None, 0, cells, extras)
    for top in (0, 4):
        got = engine.summarize(q, k, attention, None, top, cells, extras)
        scale = truth.weighted.abs().amax().clamp(min=1.0)
        assert_close(got.weighted.double() / scale, truth.weighted / scale, atol=2e-4, rtol=1e-3)
        assert_close(got.carried.double(), truth.carried, atol=2e-4, rtol=1e-3)
        assert_close(got.largest_weight.double(), truth.largest_weight, atol=2e-4, rtol=2e-3)
        assert_close(got.map.double(), truth.map, atol=2e-4, rtol=1e-3)
        matrix = reference._weights(
            reference._masked_scores(q.double(), k.double(), attention), attention, truth.lse
        )  # fmt: skip
        there = matrix.gather(2, got.largest_query.long().clamp(min=0)[:, :, None])[:, :, 0]
        assert_close(there, truth.largest_weight, atol=2e-4, rtol=2e-3)
    alone = engine.weigh(q, k, attention, got.lse, weights)
    assert_close(alone, got.weighted, atol=1e-4, rtol=1e-4)


def test_sums_over_many_queries_do_not_drift():
    """Tensor cores cut off what they add up, always towards zero: a sum of 32,768 rows would show it."""
    torch.manual_seed(0)
    n, attention = 32_768, ts.Attention(mask=ts.causal)
    q, k = (
        (3.0 * torch.randn(1, 2, n, 64, device="cuda")).bfloat16(),
        torch.randn(1, 2, n, 64, device="cuda").bfloat16(),
    )
    weights = torch.rand(1, 1, 9, n, device="cuda")
    exact, largest = torch.zeros(1, 2, 9, n, device="cuda").double(), torch.zeros(1, 2, n, device="cuda").double()
    query = torch.full((1, 2, n), -1, device="cuda")
    for rows in torch.arange(n, device="cuda").split(1_024):
        scores = q[:, :, rows].double() @ k.double().mT / 8.0
        chances = scores.masked_fill(torch.arange(n, device="cuda") > rows[:, None], -torch.inf).softmax(-1)
        exact += weights[..., rows].double() @ chances
        best, where = chances.max(2)
        query = torch.where(best > largest, rows[where], query)
        largest = torch.maximum(largest, best)
    seen = ts.survey(q, k, attention, top=0, largest=True, query_weights=weights[0, 0])
    assert seen.engine == "triton"
    assert_close(seen.weighted.double(), exact, atol=0.0, rtol=3e-5)
    alone = engine.weigh(q, k, attention, seen.lse, weights[:, :, :1])
    assert_close(alone.double(), exact[:, :, :1], atol=0.0, rtol=1e-5)
    assert_close(seen.largest.weight.double(), largest, atol=0.0, rtol=1e-5)
    assert (seen.largest.query != query).float().mean() < 1e-3  # where two weights are equal but for their rounding


@pytest.mark.parametrize("mask", [ts.window(99) | ts.prefix(4), ts.window(50), ~ts.window(9)], ids=str)
def test_the_share_within_a_mask(mask):
    q, k = inputs((2, 4, 2, 700, 700, 64), torch.bfloat16)
    attention = ts.Attention(mask=ts.causal & ts.padding([0, 600]), sink=0.5)
    seen = ts.survey(q, k, attention, within=mask, values=k)
    truth = ts.survey(q.double(), k.double(), attention, within=mask, values=k.double(), engine="reference")
    assert seen.engine == "triton"
    assert_close(seen.within.double(), truth.within, atol=1e-3, rtol=1e-3)
    assert_close(seen.lost.double(), truth.lost, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("store", ["device", "ram"])
@pytest.mark.parametrize("how", ["weights", "carried", "rollout"])
def test_sources_are_those_of_a_cpu(how, store):
    torch.manual_seed(0)
    config = ts.models.GPTConfig(vocabulary=40, d_model=128, blocks=3, heads=4, key_heads=2, max_positions=600)
    model = ts.models.GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    ids, found = torch.randint(0, 40, (1, 500)), []
    for device in ("cpu", "cuda"):
        model.to(device)
        options = {"store": store} if device == "cuda" else {}
        with ts.watch(model, keep="queries-keys", also="norms", **options) as recording, torch.no_grad():
            model(ids.to(device))
        found.append(recording.sources((480, 500), how).scores)
    assert_close(*found, atol=1e-4, rtol=1e-3)
