"""Bad input to `watch` and to a recording gives one clear sentence, before anything runs where possible."""

import numpy as np
import pytest
import torch
from torch import nn

import telescope as ts
from support.watching import D, Museum, Translator, filled, hooks_of, sequence
from telescope.layers import Attend, MultiHeadAttention

pytestmark = pytest.mark.usefixtures("as_users_run_it")


model = filled(Translator(), torch.float32)
inputs = (sequence(5).float(), sequence(4, seed=1).float())


def compiled_in_place():
    layer = MultiHeadAttention(D, 2)
    layer.compile(backend="eager")
    return nn.Sequential(layer)


def compiled_forward(of=""):
    """Return a model in which the forward of one module is a compiled function."""
    layer = nn.Sequential(MultiHeadAttention(D, 2))
    module = layer.get_submodule(of)
    module.forward = torch.compile(module.forward, backend="eager")
    return layer


REFUSED = {
    "no module": (lambda: "model", {}, TypeError, "a torch.nn.Module, not str"),
    "no attention": (lambda: nn.Linear(2, 2), {}, ValueError, "Linear holds no attention: no module calls scaled_dot"),
    "compiled": (lambda: torch.compile(model, backend="eager"), {}, ValueError, "is compiled", "before torch.compile"),
    "a compiled part": (compiled_in_place, {}, ValueError, 'its part "0" is compiled'),
    "a compiled forward": (compiled_forward, {}, ValueError, "Sequential is compiled", "before torch.compile"),
    "a part's compiled forward": (lambda: compiled_forward("0"), {}, ValueError, 'its part "0" is compiled'),
    "keep": (lambda: model, {"keep": "step"}, ValueError, 'there is no keep="step"', 'did you mean "steps"?'),
    "a misspelt layer": (lambda: model, {"layers": "decoder.0.cros"}, ValueError, 'did you mean "decoder.0.cross"?'),
    "a pattern of nothing": (lambda: model, {"layers": ["encoder.*", "blocks.*"]}, ValueError, 'layers="blocks.*"'),
    "a number too high": (lambda: model, {"layers": 2}, ValueError, "layers=2 is no layer", "from 0 to 1"),
    "a number too low": (lambda: model, {"layers": -3}, ValueError, "layers=-3 is no layer"),
    "a number of no stack": (Museum, {"layers": 0}, ValueError, "none is numbered: alone, many, synthetic"),
    "no layer": (lambda: model, {"layers": []}, ValueError, "layers=[] leaves nothing to watch"),
    "layers of a kind": (lambda: model, {"layers": [1.5]}, TypeError, "names, patterns", "not float"),
    "layers of no kind": (lambda: model, {"layers": 1.5}, TypeError, "names, patterns", "not float"),
    "a head of no kind": (lambda: model, {"heads": 1.5}, ValueError, "heads=1.5 are not numbers of heads"),
    "a head twice": (lambda: model, {"heads": [1, 1]}, ValueError, "each once"),
    "no head": (lambda: model, {"heads": []}, ValueError, "heads=[] are not numbers of heads", "None is all"),
    "top of steps": (lambda: model, {"keep": "steps", "top": 3}, ValueError, "top=3 is of", "survey(top=3)"),
    "a negative top": (lambda: model, {"top": -1}, ValueError, "top=-1", "0 or more"),
    "a map of one number": (lambda: model, {"map": 64}, ValueError, "map=64 is not a size", "map=(128, 128)"),
    "a map of nothing": (lambda: model, {"map": (0, 4)}, ValueError, "map=(0, 4) is not a size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_runs(name, capsys):
    make, options, kind, *words = REFUSED[name]
    subject = make()
    with pytest.raises(kind) as problem, ts.watch(subject, **options):
        pytest.fail("the block was entered")
    for word in words:
        assert word in str(problem.value)
    assert "\n" not in str(problem.value)
    assert not isinstance(subject, nn.Module) or hooks_of(subject) == []
    assert capsys.readouterr() == ("", "")


def test_a_head_number_that_one_attention_lacks():
    with pytest.raises(ValueError, match=r'heads=\[0, 3\]: "decoder.0.cross" has 2'), ts.watch(model, heads=[0, 3]):
        model(*inputs)
    assert hooks_of(model) == []


def watched(keep="summaries", times=1, **options):
    with ts.watch(model, keep=keep, **options) as recording:
        for _ in range(times):
            model(*inputs)
    return recording


ASKED = {
    "a misspelt name": (lambda: watched()["decoder.0.selv"], KeyError, 'did you mean "decoder.0.self"?'),
    "a number": (lambda: watched()[0], KeyError, "layer 0 has 3 attentions: encoder.0.self, decoder.0.self"),
    "a number too high": (lambda: watched()[9], KeyError, "layer=9 is no layer of this model"),
    "a number as a text": (lambda: watched()["0"], KeyError, "without quotes: [0]"),
    "a slice": (lambda: watched()[:2], KeyError, "recording[slice(None, 2, None)] is no attention"),
    "what was left out": (lambda: watched(layers="encoder.*")["decoder.0.cross"], KeyError, '"decoder.0.cross"'),
    "nothing ran": (lambda: watched(times=0)["encoder.0.self"].survey(), ValueError, '"encoder.0.self" was not called'),
    "which of them": (
        lambda: watched(times=3)["encoder.0.self"].survey(),
        ValueError,
        "3 times",
        ".calls[0] to .calls[2]",
    ),
    "trace of summaries": (
        lambda: watched()["encoder.0.self"].trace(),
        ValueError,
        'keep="summaries" did not keep it, keep="steps" does',
    ),
    "trace of queries and keys": (
        lambda: watched("queries-keys")["encoder.0.self"].trace(),
        ValueError,
        'keep="steps"',
    ),
    "before": (lambda: watched("queries-keys")["encoder.0.self"].before, ValueError, "no before", 'keep="steps"'),
    "after": (lambda: watched()["encoder.0.self"].after, ValueError, "no after", 'keep="steps"'),
    "queries": (lambda: watched()["encoder.0.self"].call.queries, ValueError, "no queries", 'keep="queries-keys"'),
    "keys": (lambda: watched()["encoder.0.self"].call.keys, ValueError, "no keys", 'keep="queries-keys"'),
    "values": (lambda: watched("queries-keys")["encoder.0.self"].call.values, ValueError, "no values", 'keep="steps"'),
    "rows": (lambda: watched()["encoder.0.self"].head(1).rows(0), ValueError, "rows needs", 'keep="queries-keys"'),
    "cell": (lambda: watched()["encoder.0.self"].survey().cell(0, 0), ValueError, "cell needs", 'keep="queries-keys"'),
    "a map that was not recorded": (
        lambda: watched(map=(2, 2))["encoder.0.self"].survey().map(3, 3),
        ValueError,
        "map needs",
        'keep="queries-keys"',
    ),
    "a survey with another map": (
        lambda: watched(map=(2, 2))["encoder.0.self"].survey(map=(3, 3)),
        ValueError,
        "no map of 3 x 3",
        'keep="queries-keys"',
    ),
    "going on": (
        lambda: watched()["encoder.0.self"].survey().extend(torch.ones(2, 4, 1, 2), torch.ones(2, 2, 1, 2)),
        ValueError,
        "extend needs",
    ),
    "more than the top": (lambda: watched(top=2)["encoder.0.self"].survey(top=3), ValueError, "the top 2", "not 3"),
    "less than no top": (lambda: watched()["encoder.0.self"].survey(top=-1), ValueError, "not -1"),
    "a head there is not": (lambda: watched()["encoder.0.self"].head(4), ValueError, "no head 4", "0, 1, 2, 3"),
    "a head that was left out": (
        lambda: watched(heads=[1, 0], layers="encoder.*")["encoder.0.self"].head(2),
        ValueError,
        "no head 2",
        "kept are 1, 0",
    ),
}


def test_a_head_number_of_another_type_is_an_error(unchecked):
    with pytest.raises(TypeError, match="head='1' is str; it takes a whole number"):
        watched()["encoder.0.self"].head("1")


def test_head_numbers_may_be_integers_of_any_library():
    numbers = np.arange(2)
    one, other = watched(heads=numbers, layers="encoder.*"), watched(heads=torch.arange(2), layers="encoder.*")
    assert one["encoder.0.self"].call.heads == other["encoder.0.self"].call.heads == (0, 1)
    assert torch.equal(one["encoder.0.self"].head(numbers[1]).received, one["encoder.0.self"].head(1).received)


@pytest.mark.parametrize("name", ASKED)
def test_the_error_about_missing_data_names_the_option_that_keeps_it(name):
    ask, kind, *words = ASKED[name]
    with pytest.raises(kind) as problem:
        ask()
    for word in words:
        assert word in str(problem.value)
    assert "\n" not in str(problem.value)


def test_an_attention_outside_of_any_residual_stream():
    layer = filled(MultiHeadAttention(D, 2), torch.float32)
    with ts.watch(layer, keep="steps") as recording:
        layer(inputs[0])
    with pytest.raises(ValueError, match='"attention" has no residual stream'):
        _ = recording["attention"].before


def test_a_map_is_at_most_as_large_as_the_matrix():
    recording = watched(map=(64, 3))
    assert recording["decoder.0.cross"].survey().recorded == (4, 3)
    assert recording["decoder.0.cross"].survey().map(4, 3).shape == (2, 2, 4, 3)


def test_the_map_is_dropped_when_decoding_continues():
    attend = Attend()
    q = torch.ones(1, 1, 3, 2)
    with ts.watch(attend, map=(2, 2)) as recording:
        attend(q[:, :, :2], q[:, :, :2], q[:, :, :2], ts.Attention(mask=ts.causal))
        with pytest.warns(UserWarning, match="the map is dropped"):
            attend(q[:, :, 2:], q, q, ts.Attention(mask=ts.causal))
    with pytest.raises(ValueError, match="map needs queries and keys"):
        recording["attention"].survey().map(2, 2)


def test_keyword_arguments_are_recorded():
    attend, q = Attend(), torch.ones(1, 1, 2, 2)
    with ts.watch(attend, keep="steps") as recording:
        attend(q, q, attention=ts.Attention(), values=2 * q)
    assert torch.equal(recording["attention"].call.values, 2 * q)


@pytest.mark.parametrize("shape", [(0, 1, 3, 2), (1, 1, 0, 2), (2, 2, 3, 0)], ids=str)
@pytest.mark.parametrize("keep", ["summaries", "queries-keys", "steps"])
def test_empty_calls(shape, keep):
    """An empty batch, no queries, no features: numbers of the right shape."""
    attend, q = Attend(), torch.ones(shape)
    k = torch.ones(*shape[:2], 3, shape[3])
    options = {"map": (2, 2)} if keep == "summaries" else {}
    with ts.watch(attend, keep=keep, **options) as recording:
        attend(q, k, k, ts.Attention())
    assert recording["attention"].survey().received.shape == (*shape[:2], 3)
    assert "attention" in repr(recording)


def test_a_custom_score_with_tensors_cannot_be_restricted_to_heads():
    class Learned(ts.Score):
        formula = "q·W·k"

    from dataclasses import dataclass

    kind = dataclass(frozen=True, eq=False)(type("Learned", (Learned,), {"__annotations__": {"W": torch.Tensor}}))
    attend, q = Attend(), torch.ones(1, 2, 3, 2)
    with ts.watch(attend, heads=0) as recording, pytest.raises(ValueError, match="cannot be restricted to some heads"):
        attend(q, q, q, ts.Attention(score=kind(torch.ones(2))))
    assert not recording["attention"].calls
