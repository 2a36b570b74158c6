"""Watching on a GPU: the same bits from the model's own kernels, and the numbers of a CPU in float32."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import LLAMA, numbered, transformers
from telescope.recording import staging
from telescope.recording import survey_queue as together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
WIDE = LLAMA | {"hidden_size": 256, "head_dim": 64, "max_position_embeddings": 4096}
KINDS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 100}),
}


def made(family, **more):
    kind, config, options = KINDS[family]
    return numbered(getattr(transformers, kind)(getattr(transformers, config)(**(WIDE | options | more))))


def read(n):
    return torch.randint(1, 60, (2, n), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_the_same_bits_and_the_numbers_of_a_cpu(family, padded, dtype):
    model, ids = made(family).to(dtype), read(700)
    mask = torch.ones_like(ids)
    mask[1, : 150 if padded else 0] = 0
    with ts.watch(model.float(), keep="summaries") as truth:
        model(ids, attention_mask=mask)
    model = model.to("cuda", dtype)
    expected = model(ids.cuda(), attention_mask=mask.cuda()).logits
    with ts.watch(model) as recording:
        assert torch.equal(model(ids.cuda(), attention_mask=mask.cuda()).logits, expected)
    first = recording.names[0]  # deeper ones are given what the GPU computed before
    close = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.3, "rtol": 5e-2}
    assert_close(recording[first].survey().entropy.cpu(), truth[first].survey().entropy, **close)
    assert_close(recording[first].survey().received.cpu(), truth[first].survey().received, **close)


# Of torch's compiler, which knows faster float32: over static caches transformers compiles the steps.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("store", ["device", "ram", "disk"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@torch.no_grad()
def test_generation_is_one_growing_call(cache, store):
    model, ids = made("mistral").cuda(), read(120).cuda()
    options = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 9,
        "do_sample": False,
        "cache_implementation": cache,
        "eos_token_id": None,  # the queries of a text that has ended do not count
    }
    with ts.watch(model, keep="queries-keys", store=store) as recording:
        written = model.generate(ids, **options)
    with ts.watch(model) as truth:
        model(written[:, :-1], use_cache=False)
    for name in truth:
        call = recording[name].call
        assert call.size == (128, 128)
        assert call.queries.device.type == ("cuda" if store == "device" else "cpu")
        assert_close(call.survey().received, truth[name].survey().received, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("store", ["device", "ram"])
@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
@torch.no_grad()
def test_heads_are_measured_where_the_model_ran(keep, store, tmp_path):
    """A recording that is opened again is measured on a CPU."""
    model, ids = made("mistral").cuda(), read(600).cuda()
    mask = torch.ones_like(ids)
    mask[1, :150] = 0
    with ts.watch(model, keep=keep, store=store) as recording:
        model(ids, attention_mask=mask)
    recording.decode = lambda numbers: "." if numbers[0] % 7 == 0 else "a"
    recording.save(tmp_path / "run")
    both = (recording, ts.open(tmp_path / "run"))
    found, expected = (
        {(head["layer"], head["number"]): head for head in recording.heads().to_dict()} for recording in both
    )
    for place, head in expected.items():
        assert found[place].pop("segments") == head.pop("segments") == {}
        assert found[place] == pytest.approx(head, abs=1e-3)


@pytest.mark.parametrize("store", ["device", "ram"])
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("at_once", [1, 2])
@torch.no_grad()
def test_a_late_survey_reads_what_ran(family, store, at_once, monkeypatch):
    """Its memory is neither overwritten nor reused before, and no result is read before it is written."""
    model, ids = made(family, num_hidden_layers=6).cuda(), read(1500).cuda()
    with ts.watch(model, keep="queries-keys") as truth:
        model(ids)
    monkeypatch.setitem(staging.STAGING_BYTES, "cuda", 5 * 2**20 * at_once)
    found, apart = together.SurveyQueue.run_survey, []

    def late(self, parts, *rest):
        apart.append(torch.cuda.current_stream() != torch.cuda.default_stream())
        torch.cuda._sleep(20_000_000)
        return found(self, parts, *rest)

    monkeypatch.setattr(together.SurveyQueue, "run_survey", late)
    for _ in range(2):
        with ts.watch(model, store=store) as recording:
            model(ids)
            early = recording[recording.names[0]].survey().entropy.clone()
            torch.randn(2**24, device="cuda")  # where something was given away too early
        torch.randn(2**24, device="cuda")
        assert torch.equal(early, recording[recording.names[0]].survey().entropy)
        for name in truth:
            mine, exact = recording[name].survey(), truth[name].survey()
            for part in ("lse", "received", "entropy"):
                assert_close(getattr(mine, part).cuda(), getattr(exact, part), atol=1e-4, rtol=1e-4)
            assert_close(mine.top.weights.cuda(), exact.top.weights, atol=1e-4, rtol=1e-4)
    assert apart == [True] * (12 // at_once)
