"""Watching a model of transformers changes nothing, and leaves nothing behind."""

import pickle
import threading
import weakref
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import telescope as ts
from support.huggingface import BERT, numbered, transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT
from support.watching import hooks_of
from telescope.interception import interceptor, module_hook, waiting
from telescope.interception.huggingface import implementation_switch, interception, logged_passes
from telescope.recording import Device


def state(model):
    configs = [part.config for part in model.modules() if hasattr(part, "config")]
    implementations = [
        (id(config), config._attn_implementation, type(config._attn_implementation)) for config in configs
    ]
    return implementations, hooks_of(model), getattr(model.generation_config, "disable_compile", None)


@pytest.mark.parametrize("family", ["llama", "t5", "gpt-oss", "whisper"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_the_model_is_restored(family, fails):
    model = FAMILIES[family].model()
    before = state(model)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), ts.watch(model), torch.no_grad():
        model(**FAMILIES[family].inputs)
        assert type(model.config._attn_implementation) is not str
        if fails:
            _ = 1 / 0
    assert state(model) == before
    kept = (interceptor.interceptors, implementation_switch._switched, interception._uncompiled)
    assert not any(map(len, (*kept, *module_hook._hooks.values())))

    # Our functions stay registered, one for each implementation: another thread may be about to look them up.
    known = {"eager", *ALL_MASK_ATTENTION_FUNCTIONS}
    for registry in (transformers.AttentionInterface(), ALL_MASK_ATTENTION_FUNCTIONS):
        ours = {str(name) for name in registry if "telescope" in name}
        assert ours <= {f"{implementation}_telescope" for implementation in known}


@pytest.mark.parametrize("family", ["llama", "t5", "gpt-oss", "whisper"])
def test_a_dropped_recording_is_freed(family, no_collector):
    model = FAMILIES[family].model()
    with ts.watch(model) as recording, torch.no_grad():
        model(**FAMILIES[family].inputs)
    left = [weakref.ref(recording), *(weakref.ref(watched.call) for watched in recording.values())]
    del recording
    assert [thing() for thing in left] == [None] * len(left)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_same_bits_in_every_mode(family, context):
    model = FAMILIES[family].model()
    with context():
        expected = model(IDS, attention_mask=PADDED_LEFT).logits
        with ts.watch(model) as recording:
            assert torch.equal(model(IDS, attention_mask=PADDED_LEFT).logits, expected)
    assert all(watched.survey().entropy.isfinite().all() for watched in recording.values())


def test_gradients_and_random_numbers_are_the_same_bits():
    model = FAMILIES["gpt2"].model().train()
    results = []
    for context in (nullcontext(), ts.watch(model)):
        torch.manual_seed(0)
        model.zero_grad()
        with context:
            model(IDS, labels=IDS).loss.backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *results))


def test_two_models_at_once_also_of_one_config():
    config = transformers.LlamaConfig(**FAMILIES["llama"].options)
    one, two, three = (transformers.LlamaForCausalLM(config).eval() for _ in range(3))
    other = FAMILIES["bert"].model()
    with torch.no_grad():
        expected = [model(IDS).logits for model in (one, two, three)]
        with ts.watch(one) as first, ts.watch(other) as second:
            with ts.watch(two) as third:
                got = [model(IDS).logits for model in (one, two, three)]
                other(IDS)
            assert torch.equal(two(IDS).logits, expected[1])
    assert all(map(torch.equal, got, expected))
    assert [len(recording[recording.names[0]].calls) for recording in (first, second, third)] == [1, 1, 1]
    assert config._attn_implementation == "sdpa"
    assert type(config._attn_implementation) is str


def test_watching_a_model_twice_is_refused():
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording, torch.no_grad():
        with pytest.raises(ValueError, match="LlamaForCausalLM is being watched already"), ts.watch(model):
            pytest.fail("the block was entered")
        model(IDS)
    assert all(len(watched.calls) == 1 for watched in recording.values())
    assert type(model.config._attn_implementation) is str


def test_another_thread_is_not_watched():
    model = FAMILIES["mistral"].model()
    expected, got = model(IDS).logits, []
    with ts.watch(model) as recording:
        thread = threading.Thread(target=lambda: got.append(model(IDS).logits))
        thread.start()
        thread.join()
    assert torch.equal(got[0], expected)
    assert not any(watched.calls for watched in recording.values())


def test_a_model_can_read_the_name_of_its_implementation():
    """Some models branch on it; while watched, they take the same branch."""
    for implementation in ("sdpa", "eager"):
        model = FAMILIES["llama"].model(implementation)
        with ts.watch(model):
            assert model.config._attn_implementation == implementation
            assert model.config._attn_implementation in ("eager", "sdpa")
            assert model.config._attn_implementation != "flash_attention_2"


@pytest.mark.parametrize(
    ("block", "compiles"),
    [
        (ts.watch, True),
        (lambda model: ts.edit(model, ts.mute(0)), True),
        (lambda model: ts.edit(model, ts.hide(0)), True),
        (lambda model: ts.edit(model, ts.redefine(0, lambda attention: attention)), False),
        (lambda model: ts.watch(model, also="gradients"), False),
    ],
)
def test_generate_compiles_what_compiled_code_can_do(block, compiles):
    model = FAMILIES["llama"].model()
    with block(model):
        assert bool(model.generation_config.disable_compile) != compiles
    assert not model.generation_config.disable_compile


# ---------------------------------------------------------------------------------------- what is done inside the block


@pytest.mark.parametrize("family", ["llama", "t5", "gpt-oss"])
def test_a_copy_made_inside_the_block_uses_the_models_own_attention(family):
    model, inputs = FAMILIES[family].model(), FAMILIES[family].inputs
    with torch.no_grad():
        expected = model(**inputs).logits
        with ts.watch(model) as recording:
            copies = [deepcopy(model), pickle.loads(pickle.dumps(model))]
            inside = [copy(**inputs).logits for copy in copies]
            model(**inputs)
        outside = [copy(**inputs).logits for copy in copies]
        with ts.watch(copies[0]) as again:
            copies[0](**inputs)
    for copy in copies:
        assert copy.config._attn_implementation == FAMILIES[family].own
        assert type(copy.config._attn_implementation) is str
    assert all(torch.equal(logits, expected) for logits in inside + outside)
    for one in (recording, again):
        assert all(len(watched.calls) == 1 for watched in one.values())


@pytest.mark.parametrize("by", ["model", "config"])
def test_an_implementation_chosen_inside_the_block_is_followed(by):
    model = FAMILIES["llama"].model("sdpa")
    with torch.no_grad():
        expected = FAMILIES["llama"].model("eager")(IDS, attention_mask=PADDED_LEFT).logits
        with ts.watch(model) as recording:
            model(IDS)
            if by == "model":
                model.set_attn_implementation("eager")
            else:
                model.config._attn_implementation = "eager"
            assert torch.equal(model(IDS, attention_mask=PADDED_LEFT).logits, expected)
        with ts.watch(model) as truth:
            model(IDS, attention_mask=PADDED_LEFT)
    assert model.config._attn_implementation == "eager"  # as it was chosen
    assert type(model.config._attn_implementation) is str
    for name, watched in recording.items():
        _, second = watched.calls
        assert torch.equal(second.survey().entropy, truth[name].survey().entropy)


def test_an_unknown_implementation_chosen_inside_the_block_is_refused():
    model = FAMILIES["llama"].model("sdpa")
    transformers.AttentionInterface.register("of my own", lambda *_, **__: None)
    with ts.watch(model):
        model.config._attn_implementation = "of my own"
        with pytest.raises(ValueError, match=r'attends by "of my own" in model\.layers\.0'):
            model(IDS)
    assert model.config._attn_implementation == "of my own"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")
def test_a_compiled_function_calls_a_watched_model():
    """The watched model runs uncompiled, the rest is compiled; fullgraph=True raises an error with the reason."""
    model = FAMILIES["llama"].model().requires_grad_(False)
    attention, x = model.model.layers[0].self_attn, torch.randn(2, 8, 32)
    turned = model.model.rotary_emb(x, torch.arange(8)[None])

    def attend():  # all of a model takes dynamo half a minute
        return attention(x, position_embeddings=turned, attention_mask=None)[0].sin()

    expected = attend()
    with ts.watch(model, layers=0) as recording:
        assert_close(torch.compile(attend, backend="eager")(), expected)
        assert len(recording["model.layers.0"].calls) == 1
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=r"compile the model itself"):
            torch.compile(attend, backend="eager", fullgraph=True)()
    torch._dynamo.reset()


@pytest.mark.parametrize("inside", [True, False], ids=["in the block", "after it"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_records_each_layer_once(reentrant, inside):
    model = FAMILIES["llama"].model().train()
    results = []
    # transformers 5.23 renamed it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    for watching in (False, True):
        model.zero_grad()
        with ts.watch(model) if watching else nullcontext() as recording:
            loss = model(IDS, attention_mask=PADDED_LEFT, labels=IDS, use_cache=False).loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(results[0]) > 10
    assert all(map(torch.equal, *results))
    assert [len(watched.calls) for watched in recording.values()] == [1, 1]


def test_each_pass_through_a_shared_layer_is_an_attention_of_its_own():
    """ALBERT's layers are one module: the passes are in the order in which they run, each with its own numbers."""
    options = {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
    model, eager = (numbered(transformers.AlbertModel(transformers.AlbertConfig(**(BERT | options)))) for _ in range(2))
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected, truth = model(IDS), eager(IDS, output_attentions=True).attentions
        with ts.watch(model) as recording:
            assert torch.equal(model(IDS)[0], expected[0])
            model(IDS.flip(1))
    layers = [
        f"encoder.albert_layer_groups.{group}.albert_layers.{{}}.attention{count}"
        for group in (0, 1)
        for count in ("", ".2")
    ]
    assert recording.names == tuple(layer.format(inner) for layer in layers for inner in (0, 1))
    weights = [one for layer in truth for one in (layer if isinstance(layer, tuple) else (layer,))]
    for watched, matrix in zip(recording.values(), weights, strict=True):
        first, _ = watched.calls
        assert_close(first.survey().entropy, -torch.xlogy(matrix, matrix).sum(-1), atol=1e-4, rtol=0.0)


def test_how_much_may_wait(monkeypatch):
    """256 MiB; more on a GPU with room, of texts whose surveys take no longer than a reader waits."""
    monkeypatch.setattr(Device, "free_bytes", lambda store, device: (128 * 2**30, "memory"))
    assert waiting.bytes_that_may_wait(torch.empty(1, 12, 8192, 64, device="meta")) == 2**28
    with FakeTensorMode():
        assert waiting.bytes_that_may_wait(torch.empty(1, 12, 8192, 64, device="cuda")) == 4 * 2**30
        assert waiting.bytes_that_may_wait(torch.empty(1, 12, 8193, 64, device="cuda")) == 2**28


@torch.no_grad()
def test_a_text_that_is_longer_than_may_wait(monkeypatch):
    """It is recorded layer by layer while the model runs, with the numbers of one that waits."""
    model = FAMILIES["llama"].model()
    recordings = []
    for limit in (2**28, 2**28, 5000, 0):
        monkeypatch.setattr(logged_passes, "WAITING_BYTES", limit)
        monkeypatch.setattr(waiting, "WAITING_BYTES", limit)
        with ts.watch(model) as recording:
            model(IDS)
        recordings.append(recording)
    waited = [one._queue.collect_steps is not None for one in recordings]
    assert waited == [False, True, False, False]
    for one in recordings:
        for name, watched in one.items():
            assert_close(watched.received, recordings[0][name].received)
