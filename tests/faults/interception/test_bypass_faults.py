"""Attentions that run past the interception: what every command says about them, and what is no bypass."""

import json
from re import escape
from threading import Thread

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import mapping
from support.bypassing import FORWARDS, bypassed, llama, telescope
from support.huggingface import GPT2, numbered, transformers
from support.mapping import Letters, tiny_gpt
from support.watched import FAMILIES, IDS
from telescope.decoding import generate
from telescope.files.errors import LoadError

NAME = "model.layers.1.self_attn"
UNEDITED = escape(
    f'"{NAME}" ran, and ts.edit cannot change it: the forward support.bypassing.llama made no call through'
)
UNSEEN = escape(f"ran and cannot be recorded, {NAME}: the forward support.bypassing.llama made no call through")


@pytest.fixture
def fast():
    """A Llama whose second attention calls torch's kernel by itself."""
    model = FAMILIES["llama"].model()
    with bypassed(model.get_submodule(NAME), llama, "instance"), torch.no_grad():
        yield model


def test_an_edit_is_refused_in_the_forward_pass(fast):
    """Right after the attention ran: nobody gets an unedited result, and the model is restored."""
    returned = []
    with pytest.raises(ValueError, match=UNEDITED) as problem, ts.edit(fast, ts.mute(1)):
        returned.append(fast(IDS))
    assert not returned
    assert "\n" not in str(problem.value)
    assert all(way in str(problem.value) for way in ("restore the forward", "ALL_ATTENTION_FUNCTIONS", "ts.load"))
    assert type(fast.config._attn_implementation) is str
    assert not fast.get_submodule(NAME)._forward_hooks


def test_edits_that_run_together_are_refused(fast):
    with pytest.raises(ValueError, match=UNEDITED):
        ts.effect(fast, IDS, [ts.mute(0, 0), ts.mute(1, 0), ts.hide(2, layers=1)])
    assert ts.effect(fast, IDS, [ts.mute(0, 0), ts.hide(2, layers=0)]).columns["kl"][1] > 1e-3


def test_generated_text_is_not_left_unedited(fast):
    with pytest.raises(ValueError, match=UNEDITED), ts.edit(fast, ts.mute(heads=0)):
        fast.generate(IDS, max_new_tokens=2, do_sample=False)


def test_an_edit_around_a_watch_is_refused(fast):
    with pytest.raises(ValueError, match=UNEDITED), ts.watch(fast) as recording, ts.edit(fast, ts.mute(1)):
        fast(IDS)
    assert recording.left_out == (NAME,)
    with pytest.warns(UserWarning, match=UNSEEN), ts.watch(fast) as recording, ts.edit(fast, ts.mute(0)):
        fast(IDS)
    assert recording.edits == (ts.mute(0),)


def test_many_attentions_are_one_warning():
    model = FAMILIES["bart"].model()
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        with ts.watch(model) as before:
            pass
        patch.setattr(type(model.get_submodule(before.names[0])), "forward", FORWARDS["bart"])
        sentence = r"8 attentions ran and cannot be recorded, model\.encoder.* and 5 more"
        with pytest.warns(UserWarning, match=sentence) as shown, ts.watch(model) as recording:
            model(**FAMILIES["bart"].inputs)
    assert len(shown) == 1
    assert recording.left_out == before.names


def test_sources_of_a_bypassed_layer_are_refused(fast):
    with pytest.warns(UserWarning, match=UNSEEN), ts.watch(fast, keep="queries-keys") as recording:
        fast(IDS[:1])
    with pytest.raises(ValueError, match=UNEDITED):
        recording.sources((5, 8), "hidden", model=fast)
    with pytest.raises(ValueError, match=escape(f'sources(how="rollout") needs every layer, and "{NAME}" was not')):
        recording.sources((5, 8), "rollout")
    assert recording.sources((5, 8), "weights").scores is not None  # the mean of the layers that were recorded


def test_a_saved_recording_names_what_is_missing(fast, tmp_path):
    with pytest.warns(UserWarning, match=UNSEEN), ts.watch(fast) as recording:
        fast(IDS)
    recording.save(tmp_path / "run")
    opened = ts.open(tmp_path / "run")
    assert opened.left_out == (NAME,)
    assert repr(opened).splitlines()[1:] == repr(recording).splitlines()[1:]  # below the number of bytes
    assert f"not watched: {NAME}" in repr(opened.heads())
    file = tmp_path / "run" / "recording.json"
    contents = {**json.loads(file.read_text()), "left_out": [NAME]}
    del contents["crc32"]
    file.write_text(json.dumps(contents))
    with pytest.raises(LoadError, match='"left_out" is not a reason for each attention'):
        ts.open(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:the Parquet tables")
def test_an_atlas_says_which_heads_are_missing(tmp_path):
    model, texts = tiny_gpt(), mapping.corpus(3)
    whole = ts.atlas(model, texts, tokenizer=Letters())
    name = whole.layers[0]
    layer = model.get_submodule(f"{name}_attention")
    with bypassed(layer, telescope, "instance"), pytest.warns(UserWarning, match=f"cannot be recorded, {name}"):
        ts.atlas(model, texts, tokenizer=Letters(), out=tmp_path / "atlas")
    atlas = ts.open(tmp_path / "atlas")
    assert atlas.left_out == (name,)
    assert atlas.layers == whole.layers[1:]
    assert f"not measured: {name}" in repr(atlas)
    assert f"not watched: {name}" in repr(atlas.heads())
    assert f"The heads of these attentions are missing: {name}." in (tmp_path / "atlas" / "README.md").read_text()
    assert not whole.left_out
    assert "not measured" not in repr(whole)


def test_an_atlas_of_nothing_says_why(monkeypatch):
    model = tiny_gpt()
    kind = type(model.get_submodule("blocks.0.self_attention"))
    monkeypatch.setattr(kind, "forward", telescope)
    with (
        pytest.warns(UserWarning, match="ran and cannot be recorded"),
        pytest.raises(ValueError, match=r"no attention could be recorded: blocks\.0\.self.* ran past the watch"),
    ):
        ts.atlas(model, mapping.corpus(3), tokenizer=Letters())


def test_a_measurement_of_health_says_what_is_missing(fast):
    with pytest.warns(UserWarning, match=UNSEEN):
        report = ts.Health(fast).measure(IDS)
    assert report.left_out == (NAME,)
    assert [*report.layers] == ["model.layers.0.self_attn"]
    assert f"not measured: {NAME}" in repr(report)
    with (
        bypassed(fast.model.layers[0].self_attn, llama, "instance"),
        pytest.warns(UserWarning, match="2 attentions ran and cannot be recorded"),
        pytest.raises(ValueError, match=r"no attention that can be recorded, only model\.layers"),
    ):
        ts.Health(fast).measure(IDS)


def test_an_own_model_that_decodes_is_refused():
    """Decoding runs a copy of the model, which shares its hooks."""
    model = tiny_gpt()
    layer = model.get_submodule("blocks.0.self_attention")
    sentence = (
        '"blocks.0.self" ran, and ts.edit cannot change it: the forward support.bypassing.telescope made no call of its'
    )
    with (
        bypassed(layer, telescope, "instance"),
        pytest.raises(ValueError, match=sentence) as problem,
        ts.edit(model, ts.mute(0)),
    ):
        generate(model, [[1, 2, 3]], max_new_tokens=2)
    assert "self.attend(queries, keys, values, attention)" in str(problem.value)


def test_a_forward_that_passes_its_attend_by_is_named():
    """Attend.forward, called without the module, runs no hook."""

    class Direct(ts.layers.SelfAttention):
        def forward(self, x):
            own = (self.W_q(x)[:, None], self.W_k(x)[:, None], self.W_v(x)[:, None])
            return self.attend.forward(*own, self.attention)[:, 0]

    layer = Direct(4)
    sentence = "one attention ran and cannot be recorded, attention: the forward"
    with pytest.warns(UserWarning, match=sentence), ts.watch(layer) as recording:
        layer(torch.ones(1, 3, 4))
    assert "not watched" in repr(recording["attention"])


class WeightsByHandAttention(torch.nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def test_attentions_of_unknown_code_are_named_where_every_layer_is_edited():
    model = torch.nn.ModuleDict({"ours": ts.layers.SelfAttention(4), "by hand": WeightsByHandAttention()})
    sentence = "one attention .* which edit cannot look into: by hand"
    with pytest.warns(UserWarning, match=sentence), ts.edit(model, ts.mute()):
        pass
    with ts.edit(model, ts.mute("ours")):  # no warning where layers are given
        pass


def test_an_effect_of_zero_is_no_silent_zero():
    """The forward of a layer that computes its attention without running the module, as fast decoding does."""
    model = FAMILIES["llama"].model()
    layer = model.model.layers[1]

    def forward(hidden_states, **options):
        inside, _ = llama(layer.self_attn, layer.input_layernorm(hidden_states), **options)
        hidden_states = hidden_states + inside
        return hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))

    with torch.no_grad():
        plain = model(IDS).logits
        layer.forward = forward
        assert_close(model(IDS).logits, plain)
        with pytest.warns(UserWarning, match=rf"4 of the edits changed nothing, .* mute head 0 of {escape(NAME)}, "):
            found = ts.effect(model, IDS, ts.mute.each(model))
    assert found.columns["kl"][5:] == [0.0] * 4
    assert min(found.columns["kl"][1:5]) > 1e-3


# ---------------------------------------------------------------------------------------------------- what is no bypass


def test_a_run_that_ends_by_an_exception_is_no_bypass(monkeypatch):
    model = FAMILIES["llama"].model()
    own = type(model.model.layers[0].self_attn).forward

    def fails(self, *args, **options):
        if self.layer_idx == 1:
            raise KeyError("of its own")
        return own(self, *args, **options)

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", fails)
    with torch.no_grad(), ts.watch(model) as recording, pytest.raises(KeyError, match="of its own"):
        model(IDS)
    assert not recording.left_out
    with torch.no_grad(), pytest.raises(KeyError, match="of its own"), ts.edit(model, ts.mute()):
        model(IDS)


def test_another_thread_is_no_bypass(fast):
    with ts.watch(fast) as recording, ts.edit(fast, ts.mute(1)):
        thread = Thread(target=lambda: fast(IDS))
        thread.start()
        thread.join()
    assert not recording.left_out


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_that_run_again_are_no_bypass(reentrant):
    model = FAMILIES["llama"].model().train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    with ts.watch(model) as recording, ts.edit(model, ts.mute(heads=0)):
        model(inputs_embeds=model.get_input_embeddings()(IDS), use_cache=False).logits.sum().backward()
    assert not recording.left_out
    assert all(len(watched.calls) == 1 for watched in recording.values())


def test_an_attention_that_does_not_run_is_no_bypass():
    """GPT-2's cross-attention without an encoder, and the decoder of a model whose encoder runs alone."""
    model = numbered(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, add_cross_attention=True)))
    translator = FAMILIES["bart"].model()
    with torch.no_grad(), ts.watch(model) as recording, ts.edit(model, ts.mute()):
        model(IDS)
    assert not recording.left_out
    assert not recording["transformer.h.0.crossattention"].calls
    with torch.no_grad(), ts.watch(translator) as recording:
        translator.get_encoder()(IDS)
    assert not recording.left_out
