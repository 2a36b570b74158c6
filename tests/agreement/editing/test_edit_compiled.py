"""Keys are hidden and raised inside of compiled code: the numbers are those of the same edit uncompiled."""

import gc
from random import Random
from weakref import ref

import pytest
import torch
from torch._dynamo.utils import counters
from torch.testing import assert_close

import telescope as ts
from support.compiling import compiled, config, graphs
from support.huggingface import transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT, PADDED_RIGHT
from telescope.interception.huggingface import compiled_runs, compiled_terms

pytestmark = [
    pytest.mark.usefixtures("without_gradients", "own_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch"),
]
TOKENS = 9
STATIC = {"cache_implementation": "static"}
PADDED = {"input_ids": IDS, "attention_mask": PADDED_LEFT}


def made(family, implementation=None):
    """Return a model in float64; one of experts takes no more than float32."""
    model = FAMILIES[family].model(implementation)
    return model if family == "gpt-oss" else model.double()


# These run with "aot_eager", one of each kind: attention by sdpa, eager attention, caches that slide, and gradients.
FUNCTIONALIZED = {"llama", "gemma2"}
FUNCTIONALIZED_WRITERS = {("llama", "padded"), ("mistral", "padded")}


def generated(model, inputs=None, **options):
    torch.manual_seed(0)
    given = {"input_ids": IDS[:, :5], "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return model.generate(**(given | (inputs or {}) | options))


def both(model, inputs, edits, backend):
    """Return what `generate` writes under edits and their recordings: uncompiled, and compiled."""
    found = []
    for options in ({"disable_compile": True}, {"compile_config": config(backend)}):
        with ts.edit(model, *edits), ts.watch(model) as recording:
            ids = generated(model, inputs, **STATIC, **options)
        found.append((ids, recording))
    return found


def assert_same_recordings(one, other):
    assert list(one) == list(other)
    assert one.edits == other.edits
    for name, watched in one.items():
        mine, theirs = watched.calls, other[name].calls
        assert [call.size for call in mine] == [call.size for call in theirs]
        for this, that in zip(mine, theirs, strict=True):
            assert this._facts.prompt == that._facts.prompt
            mine_of, theirs_of = this.survey(top=2), that.survey(top=2)
            close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
            assert_close(mine_of.received, theirs_of.received, **close)
            assert_close(mine_of.entropy, theirs_of.entropy, **close)
            assert_close(mine_of.top.weights, theirs_of.top.weights, **close)


def tolerance(family):
    # Eager attention of transformers runs its softmax in float32.
    return {"rtol": 1e-5, "atol": 1e-5} if FAMILIES[family].own == "eager" else {"rtol": 1e-10, "atol": 1e-10}


EDITS = {
    "hide": [ts.hide(0)],
    "boost": [ts.boost(2, 4.0, queries=slice(3, None), heads=[1])],
    "two": [ts.hide(range(3), heads=0), ts.boost([4, 5], 0.3, layers=1)],
    "nothing left": [ts.hide(slice(0, None), queries=[3])],
    "with a mute": [ts.hide([1, 2], layers=0), ts.mute(1, 0, times=0.5)],
    "tokens": [ts.hide(ts.tokens(9, 33))],
}

# ---------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma2", "gpt-oss", "gpt2", "bert"])
def test_prompts_of_every_family(family):
    model, inputs = made(family), FAMILIES[family].inputs
    real = inputs.get("attention_mask", torch.ones_like(IDS)).bool()
    code = compiled(model, backend="aot_eager" if family in FUNCTIONALIZED else "eager")
    plain = model(**inputs).logits
    for edits in EDITS.values():
        with ts.edit(model, *edits):
            expected, found = model(**inputs).logits, code(**inputs).logits
        assert_close(found[real], expected[real], **tolerance(family))
        assert not torch.allclose(found[real], plain[real], rtol=1e-4, atol=1e-4)
    assert not counters["graph_break"]
    assert graphs() == 1  # for all edits
    assert_close(code(**inputs).logits[real], plain[real], **tolerance(family))
    with ts.edit(model, ts.hide(1)):
        code(**inputs)
    assert graphs() == 2  # the version without edits is the second


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", [PADDED_LEFT, PADDED_RIGHT], ids=["left", "right"])
def test_random_edits(implementation, padding):
    """Spans count each sequence's own tokens, so that a padded batch has one term for each sequence."""
    random = Random(3)
    # Eager attention in float64 has NaN in rows of padding: its softmax in float32 gets no finite number.
    model = made("llama") if implementation == "sdpa" else FAMILIES["llama"].model(implementation)
    code = compiled(model)
    real = padding.bool()
    for _ in range(12):
        edits = [random_edit(random) for _ in range(random.randint(1, 3))]
        with ts.edit(model, *edits):
            expected = model(IDS, attention_mask=padding).logits
            found = code(IDS, attention_mask=padding).logits
        assert_close(found[real], expected[real], rtol=1e-5, atol=1e-5, msg=lambda said, of=edits: f"{of}: {said}")
    assert graphs() == 1


def random_edit(random):
    def some(whole):
        start = random.randrange(5)
        return random.choice([start, range(start, start + 2), slice(start, None), whole])

    options = {
        "queries": some(None),
        "heads": random.choice([None, 1, [0, -1]]),
        "layers": random.choice([None, 0, 1]),
        "new": random.random() < 0.5,
    }
    keys = some([1, 4])
    return ts.hide(keys, **options) if random.random() < 0.5 else ts.boost(keys, random.choice([0.25, 8.0]), **options)


def assert_equal_at_lengths(model, code, lengths):
    for length in lengths:
        for edit in (ts.hide(1), ts.boost(slice(2, 4), 3.0, heads=2)):
            with ts.edit(model, edit):
                expected = model(IDS[:, :length]).logits
                assert_close(code(IDS[:, :length]).logits, expected, rtol=1e-5, atol=1e-5)


def test_lengths():
    model = made("llama")
    assert_equal_at_lengths(model, compiled(model, backend="aot_eager"), (8, 5, 7))
    assert graphs() <= 2  # the second for every length


def test_inductor():
    """The compiler that is used by default. It takes half a minute for a graph, so that it compiles one length."""
    model = made("llama")
    assert_equal_at_lengths(model, compiled(model, backend="inductor"), (8,))
    assert graphs() == 1


@pytest.mark.parametrize("padding", [None, PADDED_LEFT], ids=["one", "padded"])
def test_terms_that_are_not_written_out(padding, monkeypatch):
    """A large term has an axis only where the edits differ along it."""
    monkeypatch.setattr(compiled_terms, "WHOLE", 0)
    model = made("llama")
    code = compiled(model, backend="eager" if padding is None else "aot_eager")
    real = slice(None) if padding is None else padding.bool()
    for edits in EDITS.values():
        with ts.edit(model, *edits):
            expected = model(IDS, attention_mask=padding).logits[real]
            assert_close(code(IDS, attention_mask=padding).logits[real], expected, **tolerance("llama"))


def test_text_is_found():
    class Tokenizer:
        def decode(self, ids):
            return "".join(f" t{one}" for one in ids)

    model = made("llama")
    code = compiled(model)
    with ts.edit(model, ts.hide("t9 t9"), tokenizer=Tokenizer()):
        assert_close(code(IDS).logits, expected := model(IDS).logits)
    with ts.edit(model, ts.hide([5, 6])):
        assert_close(model(IDS[:1]).logits, expected[:1])
    unknown = ts.edit(model, ts.hide("t99"), tokenizer=Tokenizer())
    with pytest.raises(ValueError, match='no text that was read holds "t99"'), unknown:
        code(IDS)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradients_of_rows_that_see_nothing(implementation):
    model = made("llama", implementation)
    code = compiled(model, backend="aot_eager")  # whose graph is that of the gradients too
    edits = [ts.hide(slice(0, None), queries=[2, 5]), ts.boost(1, 3.0)]
    found = []
    with torch.enable_grad():
        for run in (model, code):
            model.zero_grad()
            with ts.edit(model, *edits):
                run(IDS).logits.square().sum().backward()
            found.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    assert len(found[0]) > 10
    for expected, gradient in zip(*found, strict=True):
        assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_layers_that_are_compiled_one_by_one():
    model = made("llama")
    edits = [ts.hide(1, queries=slice(4, None)), ts.boost(3, 5.0, layers=1, heads=0)]
    with ts.edit(model, *edits):
        expected = model(**PADDED).logits
    for layer in model.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    with ts.edit(model, *edits):
        found = model(**PADDED).logits
    assert graphs() > 0
    assert_close(found[PADDED_LEFT.bool()], expected[PADDED_LEFT.bool()])


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "bert"])
def test_recordings_of_prompts(family):
    """A watch inside of the edit, or around it, records the call as edited."""
    model, inputs = FAMILIES[family].model(), FAMILIES[family].inputs
    code = compiled(model)
    for edits in EDITS.values():
        with ts.edit(model, *edits), ts.watch(model) as plain:
            model(**inputs)
        with ts.edit(model, *edits), ts.watch(model) as inside:
            code(**inputs)
        with ts.watch(model) as around, ts.edit(model, *edits):
            code(**inputs)
        assert_same_recordings(inside, plain)
        assert_same_recordings(around, plain)


# ---------------------------------------------------------------------------------------------------------- writing

WRITTEN = {
    "hide": [ts.hide(0)],
    "boost some steps": [ts.boost(2, 40.0, queries=slice(7, 8), heads=[1])],
    "two": [ts.hide(range(3)), ts.boost([4, 5], 0.3, layers=1), ts.mute(0, 1)],
    "of the prompt": [ts.hide(slice(2, None), new=False)],
    "of what is written": [ts.hide(slice(6, None), queries=[8], heads=0)],
}


WAYS = {"greedy": {}, "padded": PADDED, "sampling": {"do_sample": True, "top_k": 5}}


@pytest.mark.parametrize(
    ("family", "way"),
    [
        *((family, "padded") for family in ("llama", "qwen2", "gpt2", "mistral", "gemma2", "gpt-oss")),
        ("mistral", "greedy"),
        ("gemma2", "sampling"),
    ],
)
def test_families_write(family, way):
    """Mistral, gemma2 and gpt-oss have windows of four keys, so that their caches slide."""
    model = FAMILIES[family].model()
    inputs = {"max_new_tokens": 11, "min_new_tokens": 11} | WAYS[way]
    backend = "aot_eager" if (family, way) in FUNCTIONALIZED_WRITERS else "eager"
    compilations = []
    for edits in WRITTEN.values():
        (expected, plain), (ids, recording) = both(model, inputs, edits, backend)
        assert torch.equal(ids, expected)
        assert_same_recordings(recording, plain)
        compilations.append(graphs())
    assert compilations[0] > 0
    assert compilations[-1] == compilations[0]  # other edits compile nothing


def test_steps_find_their_term_in_its_place(monkeypatch):
    """A step where no span begins or ends is prepared by nobody, and recorded with those before."""
    prepared = []
    own = compiled_runs._prepare
    monkeypatch.setattr(compiled_runs, "_prepare", lambda *args: prepared.append(1) or own(*args))
    model = FAMILIES["llama"].model()
    with ts.edit(model, ts.hide(0)):
        generated(model, **STATIC, compile_config=config())
    assert len(prepared) == 1
    with ts.edit(model, ts.hide(0)), ts.watch(model) as recording:
        generated(model, **STATIC, compile_config=config())
    assert len(prepared) == 2
    addresses = [[one.data_ptr() for one in terms.values()] for terms in compiled_terms._terms.values()]
    with ts.edit(model, ts.boost(0, 2.0, queries=slice(8, 10))):
        generated(model, **STATIC, compile_config=config())
    assert len(prepared) == 2 + 3  # the first step, and those with which the span begins and ends
    assert addresses == [[one.data_ptr() for one in terms.values()] for terms in compiled_terms._terms.values()]
    assert recording.edits == (ts.hide(0),)


def test_inference_mode():
    model = FAMILIES["llama"].model()
    for edit in (ts.hide(0), ts.boost(1, 9.0, queries=slice(6, 9))):
        with torch.inference_mode(), ts.edit(model, edit):
            expected = generated(model, PADDED, **STATIC, disable_compile=True)
            found = generated(model, PADDED, **STATIC, compile_config=config())
        assert torch.equal(found, expected)
    with ts.edit(model, edit):
        assert torch.equal(generated(model, PADDED, **STATIC, compile_config=config()), expected)


@pytest.mark.parametrize("change", ["reorder_cache", "reset"])
def test_a_cache_that_changes_between_steps(change):
    """Sequences with other padding have other keys, and are found again after they were reordered."""
    model = made("llama")
    code = compiled(model)

    def run(model):
        cache = transformers.StaticCache(config=plain.config, max_cache_len=16)
        mask = torch.cat([PADDED_LEFT, torch.ones(2, 4, dtype=torch.long)], 1)
        found = [plain(IDS, attention_mask=PADDED_LEFT, past_key_values=cache).logits[:, -1:]]
        for token in range(4):
            if token == 2 and change == "reset":
                cache.reset()
                plain(IDS, attention_mask=PADDED_LEFT, past_key_values=cache)
                mask = mask[:, :10]
            elif token == 2:
                cache.reorder_cache(torch.tensor([1, 0]))
                mask = mask.flip(0)
            given = {"attention_mask": mask[:, : 9 + token % (2 if change == "reset" else 4)]}
            found.append(model(IDS[:, token : token + 1], past_key_values=cache, **given).logits)
        return torch.cat(found, 1)

    plain = model
    with ts.edit(model, ts.hide(0)):
        assert_close(run(code), run(model))


def test_a_compiled_prompt_is_found_again():
    """Compiled code reads the prompt, whose keys are signed behind it."""
    model = made("llama")
    code = compiled(model)

    def run(model):
        cache = transformers.DynamicCache(config=plain.config)
        model(IDS, attention_mask=PADDED_LEFT, past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 0]))
        mask = torch.cat([PADDED_LEFT.flip(0), torch.ones(2, 1, dtype=torch.long)], 1)
        return plain(IDS[:, :1], attention_mask=mask, past_key_values=cache).logits

    plain = model
    with ts.edit(model, ts.boost(0, 7.0)):
        assert_close(run(code), run(model))


# ----------------------------------------------------------------------------------------------------------- blocks


def test_edits_of_two_blocks_add_up():
    model = made("llama")
    code = compiled(model)
    with ts.edit(model, ts.boost([1, 2], 3.0)), ts.edit(model, ts.hide(2), ts.boost(1, 2.0, heads=0)):
        expected = model(IDS).logits
        assert_close(code(IDS).logits, expected)
        with ts.watch(model) as recording:
            code(IDS)
        with ts.watch(model) as plain:
            model(IDS)
    assert_same_recordings(recording, plain)
    with ts.edit(model, ts.boost(1, 6.0, heads=0), ts.boost(1, 3.0, heads=[1, 2, 3]), ts.hide(2)):
        assert_close(code(IDS).logits, expected)
    assert not torch.allclose(code(IDS).logits, expected)


def test_the_model_is_as_it_was():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    before = [sorted(vars(module)) for module in model.modules()]
    expected = code(IDS).logits
    with ts.edit(model, ts.hide(0)):
        assert not torch.equal(code(IDS).logits, expected)
    with pytest.raises(ValueError, match="input_ids"), ts.edit(model, ts.hide(0)):
        code(None)
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert torch.equal(code(IDS).logits, expected)


def test_the_model_is_freed():
    model = FAMILIES["llama"].model()
    code = compiled(model, backend="eager")
    with ts.edit(model, ts.hide(0)):
        code(IDS)
    known = ref(model)
    del model, code
    torch._dynamo.reset()
    gc.collect()
    assert known() is None


def test_effects_of_a_compiled_model():
    model = made("llama")
    edits = [ts.hide(1), ts.boost(2, 5.0), ts.hide(3, heads=1)]
    for inputs in (IDS, PADDED):
        expected = ts.effect(model, inputs, edits).columns["kl"]
        found = ts.effect(compiled(model), inputs, edits).columns["kl"]
        assert graphs() > 0
        assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- refused


def test_translators_are_refused():
    model, inputs = FAMILIES["t5"].model(), FAMILIES["t5"].inputs
    with ts.edit(model, ts.hide(0)), pytest.raises(ValueError, match="two texts of T5ForCond") as problem:
        compiled(model)(**inputs)
    assert "\n" not in str(problem.value)
    # `generate` runs uncompiled by itself.
    source = {"input_ids": IDS, "attention_mask": PADDED_RIGHT}
    with ts.edit(model, ts.hide(0)):
        expected = generated(model, source)
        assert torch.equal(generated(model, source, **STATIC, compile_config=config()), expected)
    assert not graphs()


def test_other_masks_are_refused():
    model = FAMILIES["llama"].model()
    code = compiled(model)
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
    with ts.edit(model, ts.hide(0)), pytest.raises(ValueError, match="an attention_mask of two axes"):
        code(IDS, attention_mask=mask)
    model.set_attn_implementation("flex_attention")
    with ts.edit(model, ts.hide(0)), pytest.raises(ValueError, match='this model has "flex_attention"; model'):
        code(IDS)


def test_contradictions_are_refused_as_uncompiled():
    model = FAMILIES["llama"].model()
    with pytest.raises(ValueError, match="has 4, numbered from 0 to 3"), ts.edit(model, ts.hide(0, heads=4)):
        compiled(model)(IDS)
    beyond = ts.edit(model, ts.hide(0, queries=20))
    with pytest.raises(ValueError, match="queries 20; the longest text had positions 0 to 12"), beyond:
        generated(model, **STATIC, compile_config=config())
