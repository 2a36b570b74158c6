"""Compiled code is watched and edited: the numbers are those of the same model run uncompiled."""

from threading import Thread

import pytest
import torch
from torch._dynamo.utils import counters
from torch.testing import assert_close

import telescope as ts
from support.compiling import compiled, config, graphs
from support.huggingface import transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT

pytestmark = [
    pytest.mark.usefixtures("without_gradients", "own_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch"),
]
TOKENS = 9


# These run with "aot_eager", one of each kind: attention by sdpa, eager attention, a translator, steps with padding,
# and caches that slide.
FUNCTIONALIZED = {"llama", "gemma2", "t5"}
FUNCTIONALIZED_WRITERS = {("mistral", 8)}


def calls_of(recording):
    return [(name, call) for name, watched in recording.items() for call in watched.calls]


def watched(model, run, **options):
    with ts.watch(model, **options) as recording:
        returned = run()
    return recording, returned


def assert_same(one, other):
    """Compare every number of two recordings."""
    assert list(one) == list(other)
    assert [(name, call.size) for name, call in calls_of(one)] == [(name, call.size) for name, call in calls_of(other)]
    for (name, mine), (_, theirs) in zip(calls_of(one), calls_of(other), strict=True):
        assert (mine.rows, mine._facts.prompt, mine.across) == (theirs.rows, theirs._facts.prompt, theirs.across), name
        assert mine._facts.written == theirs._facts.written, name
        assert mine._kept.keys() == theirs._kept.keys() - {"lse"} | ({"lse"} & mine._kept.keys()), name
        for part, stored in mine._kept.items():
            close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
            assert_close(stored.tensor, theirs._kept[part].tensor, **close, msg=lambda said, at=part: f"{at}: {said}")
    for mine, theirs in zip(one.heads(), other.heads(), strict=True):
        assert (mine.layer, mine.number, mine.kind) == (theirs.layer, theirs.number, theirs.kind)


def in_float64(model, inputs):
    """Return the weights of a copy of the model in float64, by eager attention."""
    twin = type(model)(model.config).double().eval()
    twin.load_state_dict({name: one.double() for name, one in model.state_dict().items()})
    twin.set_attn_implementation("eager")
    return twin(**inputs, output_attentions=True).attentions


def assert_float64(recording, weights):
    """Compare received weight, entropy and the largest weights with those of whole matrices."""
    for (_, call), matrix in zip(calls_of(recording), weights, strict=True):
        close = {"check_dtype": False, "rtol": 1e-5, "atol": 1e-5}
        assert_close(call.survey().received, matrix.sum(2), **close)
        assert_close(call.survey().entropy, -torch.xlogy(matrix, matrix).sum(-1), **close)
        assert_close(call.survey(top=3).top.weights, matrix.topk(3).values, **close)


# ---------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss", "gpt2", "bert", "t5"])
def test_prompts_of_every_family(family):
    model, inputs = FAMILIES[family].model(), FAMILIES[family].inputs
    plain, expected = watched(model, lambda: model(**inputs))
    code = compiled(model, backend="aot_eager" if family in FUNCTIONALIZED else "eager")
    recording, output = watched(model, lambda: code(**inputs))
    assert_close(output.logits, expected.logits)
    assert_same(recording, plain)
    assert not counters["graph_break"]


def test_a_prompt_against_float64():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    recording, _ = watched(model, lambda: code(IDS))
    assert_float64(recording, in_float64(model, {"input_ids": IDS}))


def in_place(model):
    model.compile(backend="eager", fullgraph=True)
    return model


def by_forward(model):
    model.forward = compiled(model.forward)
    return model


def by_layer(model):
    for layer in model.model.layers:
        layer.compile(backend="eager", fullgraph=True)
    return model


def replaced_layers(model):
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = compiled(layer)
    return model


COMPILED = {
    "torch.compile(model)": compiled,
    "model.compile()": in_place,
    "model.forward": by_forward,
    "regions": by_layer,
    "replaced regions": replaced_layers,
    "a base model": lambda model: in_place(model.model) and model,
}


@pytest.mark.parametrize("way", COMPILED)
def test_every_way_to_compile(way):
    plain, expected = watched(model := FAMILIES["llama"].model(), lambda: model(IDS, attention_mask=PADDED_LEFT))
    model = FAMILIES["llama"].model()
    code = COMPILED[way](model)
    before = [sorted(vars(module)) for module in model.modules()]
    for subject in dict.fromkeys([code, model]):
        recording, output = watched(subject, lambda: code(IDS, attention_mask=PADDED_LEFT))
        assert_close(output.logits, expected.logits)
        assert_same(recording, plain)
        assert recording.model in ("LlamaForCausalLM", "LlamaModel")
    assert not counters["graph_break"]
    # After the block the model is as it was, its compiled code too.
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert type(model.config._attn_implementation) is str
    assert torch.equal(code(IDS, attention_mask=PADDED_LEFT).logits, output.logits)


def test_ten_blocks_compile_once():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    code(IDS)
    assert graphs() == 1
    for _ in range(10):
        recording, _ = watched(model, lambda: code(IDS))
        assert recording["model.layers.1"].received.shape == (2, 4, 8)
        code(IDS)
    assert graphs() == 2


def test_what_is_kept_from_compilation_is_recorded_in_order():
    """A disabled part runs as Python, in the middle of a compiled run."""
    model = FAMILIES["llama"].model()
    plain, _ = watched(model, lambda: model(IDS))
    attention = model.model.layers[1].self_attn
    attention.forward = torch.compiler.disable(attention.forward)
    code = compiled(model, fullgraph=False)
    recording, _ = watched(model, lambda: code(IDS))
    assert_same(recording, plain)


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 1},
        {"heads": [0, 3]},
        {"queries": -1},
        {"keep": "queries-keys"},
        {"keep": "steps"},
        {"also": "norms"},
        {"store": "ram"},
        {"map": (4, 4)},
    ],
    ids=str,
)
def test_what_is_kept(options):
    model = FAMILIES["llama"].model()
    plain, _ = watched(model, lambda: model(IDS), **options)
    code = compiled(model)
    assert_same(watched(model, lambda: code(IDS), **options)[0], plain)


# ---------------------------------------------------------------------------------------------------------- writing


def generated(model, inputs=None, **options):
    torch.manual_seed(0)
    given = {"input_ids": IDS[:, :5], "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return model.generate(**(given | (inputs or {}) | options))


STATIC = {"cache_implementation": "static"}
WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"num_beams": 2},
    "several": {"do_sample": True, "num_return_sequences": 2},
    "padded": {"input_ids": IDS, "attention_mask": PADDED_LEFT},
    "ends early": {"min_new_tokens": 1, "eos_token_id": [*range(20, 45)]},
    "a prompt of one token": {"input_ids": IDS[:, :1]},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_write(way):
    model = FAMILIES["llama"].model()
    plain, expected = watched(model, lambda: generated(model, **STATIC, disable_compile=True, **WAYS[way]))
    assert not graphs()
    options = STATIC | WAYS[way] | {"compile_config": config("aot_eager" if way == "padded" else "eager")}
    recording, ids = watched(model, lambda: generated(model, **options))
    assert bool(graphs()) == (way != "beams")  # transformers compiles no search
    assert not counters["graph_break"]
    assert torch.equal(ids, expected)
    assert_same(recording, plain)


@pytest.mark.parametrize(
    ("family", "prompt"), [("mistral", 3), ("mistral", 8), ("gemma2", 3), ("gpt-oss", 8), ("gpt2", 8)]
)
def test_families_write(family, prompt):
    """Windows of four keys, over prompts that are shorter and longer than the window."""
    model = FAMILIES[family].model()
    inputs = {"input_ids": IDS[:, :prompt]}
    backend = "aot_eager" if (family, prompt) in FUNCTIONALIZED_WRITERS else "eager"
    plain, expected = watched(model, lambda: generated(model, inputs, **STATIC, disable_compile=True))
    recording, ids = watched(model, lambda: generated(model, inputs, **STATIC, compile_config=config(backend)))
    assert graphs() > 0
    assert torch.equal(ids, expected)
    assert_same(recording, plain)


def test_a_translator_writes():
    model = FAMILIES["t5"].model()
    inputs = {"input_ids": IDS, "attention_mask": PADDED_LEFT.flip(1)}
    plain, expected = watched(model, lambda: generated(model, inputs, **STATIC, disable_compile=True))
    options = STATIC | {"compile_config": config("aot_eager")}
    recording, ids = watched(model, lambda: generated(model, inputs, **options))
    assert torch.equal(ids, expected)
    assert_same(recording, plain)


@pytest.mark.parametrize("inputs", [{}, WAYS["padded"]], ids=["alike", "padded"])
@pytest.mark.parametrize("queries", [-1, [2, 6], slice(1, 9, 3)], ids=str)
def test_queries_of_steps_that_are_recorded_together(queries, inputs):
    """Each step is selected as if it were recorded alone: -1 is every token that was written."""
    model = FAMILIES["llama"].model()
    how = STATIC | inputs
    plain, _ = watched(model, lambda: generated(model, **how, disable_compile=True), queries=queries)
    recording, _ = watched(model, lambda: generated(model, **how, compile_config=config()), queries=queries)
    assert graphs()
    assert_same(recording, plain)


def test_writing_against_float64():
    model = FAMILIES["qwen2"].model()
    recording, ids = watched(model, lambda: generated(model, **STATIC, compile_config=config("inductor")))
    assert {call.size for _, call in calls_of(recording)} == {(ids.shape[1] - 1,) * 2}
    assert_float64(recording, in_float64(model, {"input_ids": ids[:, :-1]}))


def test_ten_generations_compile_once(monkeypatch):
    """Steps wait in buffers: three at most here, so that a generation records them four times."""
    from telescope.interception.huggingface import compiled_steps

    monkeypatch.setattr(compiled_steps, "ROOM", 3)
    model = FAMILIES["llama"].model()
    plain, _ = watched(model, lambda: generated(model, **STATIC, disable_compile=True))
    for _ in range(10):
        recording, _ = watched(model, lambda: generated(model, **STATIC, compile_config=config()))
    assert_same(recording, plain)
    assert graphs() == 1


def test_reading_while_the_model_writes():
    model = FAMILIES["llama"].model()
    sizes = []

    class Reader(transformers.generation.streamers.BaseStreamer):
        def put(self, value):
            call = reading["model.layers.0"].calls
            sizes.append((call[0].size, call[0].survey().entropy.shape[-1]) if call else None)

        def end(self):
            pass

    plain, _ = watched(model, lambda: generated(model, {"input_ids": IDS[:1, :5]}, **STATIC, disable_compile=True))
    with ts.watch(model) as reading:
        generated(model, {"input_ids": IDS[:1, :5]}, **STATIC, compile_config=config(), streamer=Reader())
    assert sizes[-1] == ((4 + TOKENS, 4 + TOKENS), 4 + TOKENS)
    assert_same(reading, plain)


def test_two_texts_in_one_block():
    """The second generation resets the cache, or takes another, while steps of the first wait."""
    model = FAMILIES["llama"].model()
    texts = ({"input_ids": IDS[:, :5]}, {"input_ids": IDS[:, 2:7]})

    def both(**options):
        return [generated(model, text, **STATIC, **options) for text in texts]

    plain, _ = watched(model, lambda: both(disable_compile=True))
    recording, _ = watched(model, lambda: both(compile_config=config()))
    assert [len(one.calls) for one in recording.values()] == [2, 2]
    assert_same(recording, plain)


@pytest.mark.parametrize("change", ["reset", "reorder_cache"])
def test_a_cache_that_changes_between_steps(change):
    """A loop of the user's own, over a compiled model."""
    model = FAMILIES["llama"].model()
    code = compiled(model)

    def run(model):
        cache = transformers.StaticCache(config=FAMILIES["llama"].model().config, max_cache_len=16)
        plain_model(IDS[:, :4], past_key_values=cache)
        for token in range(4, 6):
            model(IDS[:, token : token + 1], past_key_values=cache)
        if change == "reset":
            cache.reset()
            plain_model(IDS[:, :4], past_key_values=cache)
        else:
            cache.reorder_cache(torch.tensor([1, 0]))
        for token in range(6, 8):
            model(IDS[:, token : token + 1], past_key_values=cache)

    plain_model = model
    plain, _ = watched(model, lambda: run(model))
    recording, _ = watched(model, lambda: run(code))
    assert_same(recording, plain)


# ----------------------------------------------------------------------------------------------------------- editing


def test_heads_are_switched_without_compiling_again():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    for edits in (
        [ts.mute(0, 1)],
        [ts.mute(1, [0, 2])],
        [ts.mute(times=0.5)],
        [ts.mute(0, -1), ts.mute(1, 0, times=2)],
    ):
        with ts.edit(model, *edits):
            expected = model(IDS).logits
            assert_close(code(IDS).logits, expected)
    assert graphs() == 1
    assert_close(code(IDS).logits, model(IDS).logits)


def test_edits_of_two_blocks_add_up():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    with ts.edit(model, ts.mute(0, 1)), ts.edit(model, ts.mute(0, [1, 2], times=0.5)):
        expected = model(IDS).logits
        assert_close(code(IDS).logits, expected)
    with ts.edit(model, ts.mute(0, [1, 2], times=0.5)):
        assert not torch.allclose(model(IDS).logits, expected)


def test_an_edit_of_compiled_generation():
    model = FAMILIES["llama"].model()
    edit = ts.mute(1, [0, 2])
    with ts.edit(model, edit):
        plain, expected = watched(model, lambda: generated(model, **STATIC, disable_compile=True))
    with ts.edit(model, edit):
        recording, ids = watched(model, lambda: generated(model, **STATIC, compile_config=config()))
    assert graphs() == 1
    assert torch.equal(ids, expected)
    assert recording.edits == plain.edits == (edit,)
    assert_same(recording, plain)


def test_two_threads_are_told():
    """Compiled code can be in the blocks of one thread at a time; the block is whole afterwards."""
    model = FAMILIES["llama"].model()
    code = compiled(model)
    problems = []

    def elsewhere():
        with ts.watch(model), pytest.raises(RuntimeError, match="another thread watches or edits it too") as problem:
            code(IDS)
        problems.append(str(problem.value))

    with ts.watch(model) as recording:
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        with torch.no_grad():
            code(IDS)
    assert len(problems) == 1
    assert "\n" not in problems[0]
    assert [len(watched.calls) for watched in recording.values()] == [1, 1]


def test_an_exception_inside_a_step_loses_no_other():
    """The third step is interrupted: the recording has the two before, and the model is as it was."""
    model = FAMILIES["llama"].model()
    plain, _ = watched(model, lambda: generated(model, max_new_tokens=3, min_new_tokens=3))
    before = [sorted(vars(module)) for module in model.modules()]
    ran = []

    def fail(ids, scores):
        ran.append(ids)
        if len(ran) == 3:
            raise ZeroDivisionError
        return scores

    with pytest.raises(ZeroDivisionError), ts.watch(model) as recording:
        generated(model, **STATIC, compile_config=config(), logits_processor=[fail])
    assert_same(recording, plain)
    after = [sorted(vars(module)) for module in model.modules()]
    assert [{*one} - {"_compiled_call", "_last_compile_config", "_previous_max_cache_length"} for one in after] == [
        {*one} for one in before
    ]


def test_gradients_are_refused_by_name():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    with ts.watch(model, also="gradients"), pytest.raises(ValueError, match='LlamaForCausalLM is compiled: also="grad'):
        code(IDS)


@pytest.mark.parametrize("edit", [ts.redefine(0, lambda attention: attention), ts.mute(by="mean")], ids=str)
def test_other_edits_run_uncompiled_or_are_refused(edit):
    model = FAMILIES["llama"].model()
    code = compiled(model)
    with ts.edit(model, edit), pytest.raises(ValueError, match="cannot be done inside of compiled code") as problem:
        code(IDS)
    assert "\n" not in str(problem.value)
    with ts.edit(model, edit):
        expected = generated(model)
        assert torch.equal(generated(model, **STATIC, compile_config=config()), expected)
    assert not graphs()
