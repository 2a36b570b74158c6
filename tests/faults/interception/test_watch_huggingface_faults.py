"""Models of transformers that cannot be watched are refused with their name and the reason."""

from re import escape
from threading import Thread

import pytest
import torch
from torch import nn

import telescope as ts
from support.huggingface import numbered, transformers
from support.watched import FAMILIES, IDS
from telescope.interception.huggingface import interface_call as weights
from telescope.recording import storage as stores

pytestmark = pytest.mark.usefixtures("without_gradients")


def test_a_model_that_bypasses_the_interface_is_refused_by_name():
    """XLNet computes its relative attention by code of its own."""
    model = transformers.XLNetModel(transformers.XLNetConfig(vocab_size=61, d_model=16, n_layer=1, n_head=2, d_inner=8))
    with pytest.raises(ValueError, match="XLNetModel does not go through") as problem, ts.watch(model):
        pytest.fail("the block was entered")
    assert "ALL_ATTENTION_FUNCTIONS" in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("block", [ts.watch, ts.edit], ids=["watch", "edit"])
def test_a_model_without_attention_is_refused_as_such(block):
    """Mamba is a state-space model: nothing in it attends, so the refusal speaks of no attention calls."""
    config = transformers.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = transformers.MambaForCausalLM(config)
    with pytest.raises(ValueError, match="MambaForCausalLM has no attention to watch or edit") as problem, block(model):
        pytest.fail("the block was entered")
    assert "its attention calls" not in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_forward_that_is_kept_from_compilation_is_watched():
    """torch.compiler.disable wraps a function too, and the wrapped function is not compiled."""
    model = FAMILIES["llama"].model()
    model.forward = torch.compiler.disable(model.forward)
    with ts.watch(model) as recording:
        model(IDS)
    assert [len(watched.calls) for watched in recording.values()] == [1, 1]


def test_an_unknown_implementation_is_refused():
    model = FAMILIES["llama"].model()
    transformers.AttentionInterface.register("of my own", lambda *_, **__: None)
    model.set_attn_implementation("of my own")
    with pytest.raises(ValueError, match=r'attends by "of my own" in model\.layers\.0'), ts.watch(model):
        pytest.fail("the block was entered")


def test_a_model_that_computes_something_else_is_refused(monkeypatch):
    """An attention function that doubles its queries."""
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


def test_output_attentions_is_refused_for_long_texts(monkeypatch):
    monkeypatch.setattr(weights, "MAX_WEIGHT_BYTES", 1000)
    model = FAMILIES["llama"].model()
    with ts.watch(model), pytest.raises(ValueError, match=r"output_attentions=True would write 2\.0 KiB") as problem:
        model(IDS, output_attentions=True)
    assert "leave it out" in str(problem.value)


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
def test_a_recording_that_exceeds_the_memory_is_refused_before_it_begins(keep, monkeypatch):
    monkeypatch.setattr(stores, "SMALL", 0)
    monkeypatch.setattr(stores, "_available", lambda: 1000)
    model = FAMILIES["llama"].model()
    with ts.watch(model, keep=keep) as recording, pytest.raises(ValueError, match="are free") as problem:
        model(IDS)
    message = str(problem.value)
    assert f'keep="{keep}" of 2 attentions, 8 queries x 8 keys, takes' in message
    assert "1.0 KiB of RAM are free" in message
    assert 'store="disk" has room' in message
    assert not recording["model.layers.0"].calls
    with ts.watch(model, keep=keep, store="disk") as recording:
        model(IDS)
    assert recording._expected_bytes == sum(
        sum(part.nbytes for name, part in watched.call._kept.items() if "ids" not in name)
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


def long_t5():
    options = {"num_heads": 3, "local_radius": 3, "encoder_attention_type": "local"}
    config = transformers.LongT5Config(**(FAMILIES["t5"].options | options))
    return transformers.LongT5ForConditionalGeneration(config)


def pegasus_x():
    config = transformers.PegasusXConfig(**(FAMILIES["bart"].options | {"block_size": 4, "num_global_tokens": 2}))
    return transformers.PegasusXForConditionalGeneration(config)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (long_t5, [f"encoder.block.{i}.layer.0.LocalSelfAttention" for i in (0, 1)]),
        (pegasus_x, [f"model.encoder.layers.{i}.self_attn" for i in (0, 1)]),
    ],
)
def test_attentions_that_bypass_the_interface_are_named(make, names):
    """In a warning when the block is entered, in the printed table, and in the error; the others are watched."""
    model = numbered(make()).eval()
    given = FAMILIES["bart"].inputs
    expected = model(**given)[0]
    with pytest.warns(UserWarning, match=escape(", ".join(names))) as shown, ts.watch(model) as recording:
        assert torch.equal(model(**given)[0], expected)
    assert len(shown) == 1
    assert recording.left_out == tuple(names)
    assert all(watched.calls for watched in recording.values())
    assert repr(recording).count("not watched") == 2
    with pytest.raises(KeyError, match=escape(f'"{names[0]}" was not watched')):
        recording[names[0]]
    pattern = f"{names[0].split('.0.')[0]}.*"
    with pytest.raises(ValueError, match=escape(f'layers="{pattern}": 2 attentions')), ts.watch(model, layers=pattern):
        pytest.fail("the block was entered")
    with ts.watch(model, layers=recording.names[0]):  # no warning where layers are given
        pass


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_of_a_supported_family_is_watched(family):
    with ts.watch(FAMILIES[family].model()) as recording:
        pass
    assert not recording.left_out


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
def test_nan_activations_are_not_taken_for_a_wrong_definition(part):
    model = FAMILIES["llama"].model()
    getattr(model.model.layers[1].self_attn, part).weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r'the activations of "model\.layers\.1\.self_attn" are NaN'), ts.watch(model):
        model(IDS)


def test_dropping_a_map_that_cannot_grow_warns():
    model = FAMILIES["llama"].model()
    with (
        ts.watch(model, map=(4, 4)) as recording,
        pytest.warns(UserWarning, match=r"watch\(map=\.\.\.\) keeps the map"),
    ):
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    with pytest.raises(ValueError, match='keep="queries-keys"'):
        recording["model.layers.0"].survey().map(4, 4)


def test_another_thread_is_named_where_nothing_was_recorded():
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording:
        thread = Thread(target=lambda: model.generate(IDS, max_new_tokens=2, do_sample=False))
        thread.start()
        thread.join()
    with pytest.raises(ValueError, match="ran in another thread") as problem:
        recording["model.layers.0"].survey()
    assert "torch.compile" not in str(problem.value)
