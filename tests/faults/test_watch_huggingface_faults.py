"""What cannot be watched of transformers is refused with its name and the reason; what is not its own is not shown."""

from re import escape

import pytest
import torch
from torch import nn

import telescope as ts
from huggingface import numbered, transformers
from telescope.observe import stores
from telescope.observe.huggingface import weights
from watched import FAMILIES, IDS


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def test_a_model_past_the_interface_is_refused_by_name():
    config = transformers.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = transformers.MambaForCausalLM(config)
    with pytest.raises(ValueError, match="MambaForCausalLM does not go through") as problem, ts.watch(model):
        pytest.fail("the block was entered")
    assert "ALL_ATTENTION_FUNCTIONS" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_an_implementation_nobody_knows_is_refused():
    model = FAMILIES["llama"].model()
    transformers.AttentionInterface.register("of my own", lambda *_, **__: None)
    model.set_attn_implementation("of my own")
    with pytest.raises(ValueError, match=r'attends by "of my own" in model\.layers\.0'), ts.watch(model):
        pytest.fail("the block was entered")


def test_what_its_arguments_do_not_say_is_found_out(monkeypatch):
    """An attention that doubles its queries behind everybody's back."""
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward
    monkeypatch.setattr(
        modeling_llama,
        "eager_attention_forward",
        lambda module, query, *rest, **more: own(module, 2 * query, *rest, **more),
    )
    model = FAMILIES["llama"].model("eager")
    with pytest.raises(ValueError, match="computes something other than"), ts.watch(model):
        model(IDS)
    assert type(model.config._attn_implementation) is str


def test_names_and_heads_are_checked():
    model = FAMILIES["llama"].model()
    for options, word in (
        ({"layers": "model.layers.7"}, 'layers="model.layers.7" is no attention'),
        ({"layers": 2}, "they count from 0 to 1"),
        ({"queries": []}, "are not numbers of queries"),
        ({"queries": "last"}, "are not numbers of queries"),
        ({"queries": [1, 1]}, "each once"),
        ({"queries": slice(-3, None)}, "counts from the end"),
        ({"store": "cloud"}, 'there is no store="cloud"'),
    ):
        with pytest.raises(ValueError, match=escape(word)), ts.watch(model, **options):
            pytest.fail("the block was entered")
    with pytest.raises(ValueError, match=r'heads=\[9\]: "model.layers.0.self_attn" has 4'), ts.watch(model, heads=9):
        model(IDS)
    assert type(model.config._attn_implementation) is str


def test_weights_are_written_for_short_texts_alone(monkeypatch):
    monkeypatch.setattr(weights, "MOST", 1000)
    model = FAMILIES["llama"].model()
    with ts.watch(model), pytest.raises(ValueError, match=r"output_attentions=True would write 2\.0 KiB") as problem:
        model(IDS, output_attentions=True)
    assert "leave it out" in str(problem.value)


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
def test_what_has_no_room_is_refused_before_it_is_kept(keep, monkeypatch):
    monkeypatch.setattr(stores, "_available", lambda: 1000)
    model = FAMILIES["llama"].model()
    with ts.watch(model, keep=keep) as recording, pytest.raises(ValueError, match="are free") as problem:
        model(IDS)
    told = str(problem.value)
    assert f'keep="{keep}" of 2 attentions, 8 queries x 8 keys, takes' in told
    assert "1.0 KiB of RAM are free" in told
    assert 'store="disk" has room' in told
    assert not recording["model.layers.0"].calls
    with ts.watch(model, keep=keep, store="disk") as recording:
        model(IDS)
    assert recording.foretold == sum(
        sum(part.nbytes for name, part in watched.call.parts.items() if "ids" not in name)
        for watched in recording.values()
    )


def test_a_model_within_a_model_is_found():
    outer = nn.ModuleDict(
        {"inner": numbered(transformers.BertModel(transformers.BertConfig(**FAMILIES["bert"].options)))}
    )
    with ts.watch(outer) as recording:
        outer["inner"](IDS)
    assert recording["inner.encoder.layer.0"].call.size == (8, 8)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1)])
def test_a_single_token(shape):
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording:
        model(IDS[:1, : shape[1]].expand(shape))
    assert recording["model.layers.0"].survey().peak.weight.flatten().tolist() == pytest.approx([1.0] * 4 * shape[0])
