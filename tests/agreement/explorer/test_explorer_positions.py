"""What the explorer says about positions, compared with models that have none, and with formulas."""

import copy
import json

import pytest
import torch
from torch import nn

import telescope as ts
from support import writers
from support.exploring import got, read, recorded, serving
from telescope.explorer.api import Api
from telescope.explorer.library import Library
from telescope.models import GPT, Encoder, EncoderConfig, Transformer
from telescope.tasks.explaining.tables import ENCODINGS

TEXT, TARGET = "How are you?", "Wie geht es dir?"


class Unplaced(nn.Module):
    """Add nothing for positions."""

    def forward(self, x, start=0):
        return x


def encoder():
    tokenizer = writers.byte_level()
    config = EncoderConfig(vocabulary=tokenizer.get_vocab_size(), d_model=16, heads=4, blocks=2, d_hidden=32)
    model = writers.diced(Encoder(config))
    model.tokenizer = tokenizer
    return model


MODELS = {
    "pre-norm": lambda: writers.translator(pre_norm=True),
    "post-norm, halves": lambda: writers.translator(pre_norm=False, positions="sinusoidal_halves"),
    "learned": lambda: writers.translator(positions="learned"),
    "gpt": writers.gpt,
    "encoder": encoder,
}


def without_positions(model):
    """Return a copy in float64 whose positions add nothing."""
    other = copy.deepcopy(model).double()
    for name in ("positions", "source_positions", "target_positions"):
        if getattr(other, name, None) is not None:
            setattr(other, name, Unplaced())
    return other


def run_again(model, run):
    """Run a model on the tokens of a run, and return what was recorded."""
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        if isinstance(model, Transformer):
            source = torch.tensor([model.tokenizer.encode(TEXT).ids])
            model(source, torch.tensor([list(run.output.ids)]))
        else:
            model(torch.tensor([model.tokenizer.encode(TEXT).ids]))
    return recording


@pytest.mark.parametrize("made", MODELS)
def test_scores_without_positions_are_those_of_a_model_without_positions(made):
    """And what the first layer reads is embedding plus position."""
    model = MODELS[made]()
    api = Api(Library({"model": model}))
    run = api.library.read(TEXT, target=TARGET if isinstance(model, Transformer) else None)
    seen = run_again(without_positions(model), run)
    known = 0
    for layer, view in enumerate(run.views):
        if "positions" in view.missing:
            continue
        answer = got(api, f"/runs/{run.name}/positions", l=layer, h=1, i=2)
        assert answer["with"]["weights"] == pytest.approx(view.call.trace().weights[0, 1, 2].tolist(), abs=1e-6)
        if answer["without"] is None:
            assert "before the first layer" in answer["why"]
            continue
        known += 1
        torch.testing.assert_close(view.inputs.read, view.call.before[0], atol=1e-5, rtol=1e-5)
        assert view.inputs.kind == ("learned" if made in ("learned", "gpt", "encoder") else "sinusoidal")
        steps = seen[view.name].trace()
        assert answer["without"]["weights"] == pytest.approx(steps.weights[0, 1, 2].tolist(), abs=1e-5)
        visible = steps.weights[0, 1, 2] > 0
        wanted, shown = steps.scaled[0, 1, 2][visible], torch.tensor(answer["without"]["scores"])[visible]
        assert shown.tolist() == pytest.approx(wanted.tolist(), abs=1e-4)
        assert answer["without"]["weights"] != pytest.approx(answer["with"]["weights"], abs=1e-3)
    assert known == (2 if isinstance(model, Transformer) else 1)


@pytest.mark.parametrize(("pairs", "fraction"), [("halves", 1.0), ("neighbours", 0.5)])
def test_rotary_scores_without_rotation(pairs, fraction):
    """Queries and keys of every layer, from its own input, in float64 and not rotated."""
    model = writers.gpt(positions="rotary", rotary_pairs=pairs, rotary_fraction=fraction, d_k=8)
    api = Api(Library({"model": model}))
    run = api.library.run(read(api, TEXT)["run"])
    plain: GPT = copy.deepcopy(model).double()
    for layer, view in enumerate(run.views):
        answer = got(api, f"/runs/{run.name}/positions", l=layer, h=3, i=5)
        block = plain.blocks[layer]
        block.self_attention.rotary = None
        x = block.add_norm_1.norm(view.call.before.double())
        queries, (keys, _) = block.self_attention.queries(x), block.self_attention.keys_and_values(x)
        scores = (keys[0, 3] @ queries[0, 3, 5]) / 8**0.5
        assert answer["without"]["scores"] == pytest.approx(scores.tolist(), abs=1e-4)
        assert answer["without"]["weights"][:6] == pytest.approx(scores[:6].softmax(-1).tolist(), abs=1e-5)
        radians = got(api, f"/runs/{run.name}/encoding", l=layer, h=3)["angles"]["radians"]
        turned = int(8 * fraction)
        assert radians == pytest.approx([10_000 ** (-2 * m / turned) for m in range(turned // 2)])


def test_a_model_without_positions_says_so():
    api = Api(Library({"model": writers.gpt(positions="none")}))
    run = read(api, TEXT)["run"]
    answer = got(api, f"/runs/{run}/positions", l=0, h=0, i=1)
    assert (answer["added"], answer["without"]) == (None, None)
    assert "no positions" in answer["why"]


@pytest.mark.parametrize("bias", [ts.alibi(2), ts.relative(torch.tensor([[-1.0, 0.0, 2.0], [0.5, 0.0, -0.5]]))])
def test_biases_of_a_recording(bias):
    """What is added to the scores by distance, and the weights without it."""
    recording = recorded(9, attention=ts.Attention(mask=ts.causal, bias=bias), keep="steps")
    api, run = serving(recording)
    answer = got(api, f"/runs/{run}/positions", l=0, h=1, i=6)
    added = bias(ts.Pairs.block(9, 9, of=(9, 9), heads=2))[0, 1, 6]
    assert answer["biases"] == pytest.approx(added.tolist(), abs=1e-6)
    q, k = (
        tensor[0, 1].double()
        for tensor in (recording["blocks.0.self"].call.queries, recording["blocks.0.self"].call.keys)
    )
    plain = (k @ q[6] / 4)[:7].softmax(-1)
    assert answer["without"]["weights"] == pytest.approx([*plain.tolist(), 0.0, 0.0], abs=1e-6)
    assert got(api, f"/runs/{run}/encoding", l=0, h=1)["bias"] == repr(bias)


@pytest.mark.parametrize("attention", [ts.Attention(), ts.Attention(mask=ts.causal)])
def test_means_by_distance(attention):
    """Over visible pairs; the distance is key minus query."""
    recording = recorded(11, attention=attention, keep="steps")
    api, run = serving(recording)
    found = got(api, f"/runs/{run}/encoding", l=0, h=0)["by_distance"]
    steps = recording["blocks.0.self"].call.trace()
    columns = (found[name] for name in ("distances", "scores", "weights", "pairs"))
    for distance, score, weight, pairs in zip(*columns, strict=True):
        at = [(i, i + distance) for i in range(11) if 0 <= i + distance < 11]
        assert pairs == len(at)
        assert weight == pytest.approx(sum(float(steps.weights[0, 0, i, j]) for i, j in at) / pairs, abs=1e-6)
        assert score == pytest.approx(sum(float(steps.scaled[0, 0, i, j]) for i, j in at) / pairs, abs=1e-5)
    assert found["distances"] == list(range(-10, 1 if attention.mask == ts.causal else 11))


@pytest.mark.parametrize("d", [4, 64])
def test_encodings_without_a_model(d):
    """Closed forms: a sum of cosines of distance · frequency; e^(-slope · distance) over its sum."""
    frequencies = 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cosines = (torch.arange(64)[:, None] * frequencies).cos()
    api = Api(Library({}))
    waves, turned, faded = (got(api, "/positions", kind=kind, d=d) for kind in ENCODINGS)
    for curve in waves["curves"]:
        assert curve["numbers"] == pytest.approx(cosines.sum(-1).tolist(), abs=1e-9)
    for curve in turned["curves"]:
        assert curve["numbers"] == pytest.approx((cosines.mean(-1)).tolist(), abs=1e-9)
    assert max(waves["difference"], turned["difference"]) < 1e-10
    assert torch.tensor(turned["table"])[7].tolist() == pytest.approx((7 * frequencies).tolist(), abs=1e-5)
    shares = (-0.5 * torch.arange(64, dtype=torch.float64)).softmax(-1)
    assert faded["curves"][0]["numbers"] == pytest.approx(shares.tolist())
    assert len(waves["table"]) == 64
    assert len(waves["table"][0]) == d


def test_what_cannot_be_shown_is_refused():
    api, run = serving(recorded(12, keep="summaries"))
    for resource in ("positions", "encoding"):
        answer = api.answer("GET", f"/runs/{run}/{resource}", {"l": "0", "h": "0", "i": "0"})
        assert answer.status == 409
        assert "--keep queries-keys" in json.loads(answer.body)["error"]["message"]
    for wrong in ({"d": "3"}, {"d": "0"}, {"d": "9999"}, {"kind": "cosine"}):
        assert api.answer("GET", "/positions", wrong).status == 400
    other = Api(Library({"model": writers.translator()}))
    read_run = read(other, TEXT, target=TARGET)
    cross = next(one for one in read_run["attentions"] if one["kind"] == "cross")
    answer = other.answer("GET", f"/runs/{read_run['run']}/positions", {"l": str(cross["l"]), "h": "0", "i": "0"})
    assert answer.status == 409
    assert "two texts" in json.loads(answer.body)["error"]["message"]
