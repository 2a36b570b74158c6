"""Surveys of several layers in one batch have the numbers that each has alone, whenever they are read."""

from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from telescope.attention import identity_key
from telescope.layers import MultiHeadAttention
from telescope.recording import staging
from telescope.recording import survey_queue as together

D, N = 8, 6
keep = torch.ones(2, N, dtype=torch.bool)
keep[1, 3:] = False


@dataclass(frozen=True)
class Checkered(ts.Mask):
    """A mask that differs between sequences without holding a tensor."""

    def sees(self, at):
        return (at.batch + at.query + at.key) % 2 == 0


ATTENTIONS = {
    "plain": ts.Attention(),
    "causal": ts.Attention(mask=ts.causal),
    "of sequences": ts.Attention(mask=ts.causal & ts.padding(keep=keep)),
    "of somebody's own": ts.Attention(mask=Checkered()),
    "with a bias": ts.Attention(bias=ts.from_additive(torch.linspace(-1, 1, 2 * N * N).view(2, 1, N, N))),
    "with a sink": ts.Attention(sink=torch.tensor([0.5, -0.5]), mask=ts.causal),
}


class Layers(nn.Module):
    """Several layers; the i-th attends by the i-th definition."""

    def __init__(self, attentions):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(D, 2, attention=attention) for attention in attentions)

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + layer(x, mask=mask)
        return x


def made(attentions):
    torch.manual_seed(0)
    return Layers(attentions).double(), torch.randn(2, N, D, dtype=torch.float64)


@pytest.fixture
def batch_sizes(monkeypatch):
    """Return the list of how many calls were surveyed at a time."""
    sizes, found = [], together.SurveyQueue.run_survey
    monkeypatch.setattr(
        together.SurveyQueue,
        "run_survey",
        lambda self, parts, *rest: sizes.append(len(parts[0]) // 2) or found(self, parts, *rest),
    )
    return sizes


def assert_as_alone(model, x, recording):
    with ts.watch(model, keep="queries-keys") as truth:
        model(x)
    for name, watched in recording.items():
        mine, exact = watched.survey(), truth[name].survey()
        for part in ("received", "entropy", "lse"):
            assert_close(getattr(mine, part), getattr(exact, part), rtol=0, atol=1e-12)
        assert_close(mine.top.weights, exact.top.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_layers_of_one_definition(attention, batch_sizes):
    model, x = made([attention] * 11)
    with ts.watch(model) as recording:
        model(x)
    assert batch_sizes == [8, 3]
    assert_as_alone(model, x, recording)


def test_layers_of_alternating_definitions(batch_sizes):
    model, x = made([*ATTENTIONS.values(), *ATTENTIONS.values()])
    with ts.watch(model) as recording:
        model(x)
    assert batch_sizes == [1] * 12
    assert_as_alone(model, x, recording)


def test_reading_a_queued_survey_runs_it(batch_sizes):
    model, x = made([ATTENTIONS["causal"]] * 5)
    with ts.watch(model, map=(3, 3)) as recording:
        model(x)
        early = recording["layers.1"].survey()
        assert batch_sizes == [5]
        assert early.map(3, 3).shape == (2, 2, 3, 3)
        model(x)
        model(x)
    assert batch_sizes == [5, 5, 5]
    assert [len(watched.calls) for watched in recording.values()] == [3] * 5
    assert_close(recording["layers.1"].calls[2].survey().entropy, early.entropy, rtol=0, atol=0)


def test_tensors_may_be_overwritten_while_their_survey_is_queued(batch_sizes):
    model, x = made([ATTENTIONS["causal"]] * 2)

    def overwrite(module, args, output):
        args[1].zero_()  # the keys

    with torch.no_grad(), ts.watch(model) as usual:
        model(x)
    with torch.no_grad(), ts.watch(model) as recording:
        for layer in model.layers:
            layer.attend.register_forward_hook(overwrite)  # behind the one that looks
        model(x)
    assert batch_sizes == [2, 2]
    assert_close(recording["layers.0"].survey().entropy, usual["layers.0"].survey().entropy, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_definition_may_be_overwritten_while_surveys_are_queued(mode):
    """Each call is surveyed with the mask that it ran with, which is another one for the third."""
    model, x = made([ts.Attention()] * 4)
    with mode():
        keep = torch.ones(2, N, dtype=torch.bool)

        def overwrite(module, args):
            keep[1, 2:] = False

        model.layers[2].register_forward_pre_hook(overwrite)
        with ts.watch(model) as recording:
            model(x, ts.padding(keep=keep))
            keep.fill_(True)
    for i, seen in enumerate((N, N, 2, 2)):
        assert (recording[f"layers.{i}"].survey().received[1].count_nonzero(-1) == seen).all()


def test_a_new_tensor_with_the_id_of_a_freed_one_is_another_mask():
    """Python may give the id of a freed tensor to a new one."""
    model, x = made([ts.Attention()] * 2)

    def seeing(count):
        return ts.padding(keep=torch.arange(N).expand(2, N) < count)

    with torch.no_grad(), ts.watch(model) as recording:
        mask = seeing(5)
        known = identity_key(mask)
        model(x, mask)
        del mask
        others = [seeing(2)]
        while identity_key(others[-1]) != known and len(others) < 2000:
            others.append(seeing(2))
        model(x, others[-1])
    for watched in recording.values():
        assert [int(call.survey().received[0, 0].count_nonzero()) for call in watched.calls] == [5, 2]


def test_a_large_call_is_surveyed_at_once(batch_sizes, monkeypatch):
    monkeypatch.setitem(staging.STAGING_BYTES, "cpu", 1000)
    model, x = made([ATTENTIONS["causal"]] * 3)
    with ts.watch(model):
        model(x)
    assert batch_sizes == [1, 1, 1]


def test_after_an_error_the_finished_surveys_can_be_read(batch_sizes):
    model, x = made([ATTENTIONS["causal"]] * 3)
    with suppress(KeyboardInterrupt), ts.watch(model) as recording:
        model(x)
        raise KeyboardInterrupt
    assert batch_sizes == []
    assert_as_alone(model, x, recording)
    assert batch_sizes == [3]


def test_in_inference_mode_under_autocast(batch_sizes):
    model, x = made([ATTENTIONS["causal"]] * 3)
    model, x = model.float(), x.float()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), ts.watch(model) as recording:
        model(x)
    assert batch_sizes == [3]
    received = recording["layers.2"].survey().received
    assert_close(received.sum(-1), torch.full((2, 2), float(N)), rtol=0, atol=1e-4)
    assert not received.is_inference()


# ------------------------------------------------------------------------------------------- beside what the model does


class OnGpu(torch.Tensor):
    is_cuda = True


APART = {
    "causal": (ts.Attention(mask=ts.causal), True),
    "near": (ts.Attention(mask=ts.causal & ts.window(5), softcap=3.0, scale=0.1), True),
    "a sink that is a number": (ts.Attention(sink=1.0), True),
    "a sink of the model": (ATTENTIONS["with a sink"], False),
    "padding": (ATTENTIONS["of sequences"], False),
    "a bias": (ATTENTIONS["with a bias"], False),
    "a function": (ts.Attention(bias=lambda query, key: query - key), False),
    "another normaliser": (ts.Attention(normalize=ts.by_sum), False),
}


@pytest.mark.parametrize(("attention", "apart"), APART.values(), ids=APART)
def test_only_calls_whose_tensors_cannot_be_overwritten_run_concurrently(attention, apart):
    there, here = torch.zeros(2, 2, N, D).as_subclass(OnGpu), torch.zeros(2, 2, N, D)
    assert together.can_run_concurrently(staging.SurveyInputs(there, there), attention) == apart
    assert not together.can_run_concurrently(staging.SurveyInputs(here, here), attention)
