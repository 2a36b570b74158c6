"""Patched models of transformers, on sdpa, against eager attention in float64 that is patched by hand."""

from functools import cache

import pytest
import torch

import telescope as ts
from support.patching import PARTS, Swap, eager_steps, same
from support.watched import CROSS, FAMILIES, IDS, PADDED_LEFT, WRITERS
from telescope.anatomy import Modules
from telescope.interception.huggingface.attention_modules import attentions

pytestmark = pytest.mark.usefixtures("without_gradients")
OTHER = IDS.flip(1) + torch.tensor([[1], [0]])


@cache
def model_of(family):
    """Return the family's model; one for all tests, since edits leave a model as it was.

    Gemma is eager, and its weights of a query that sees nothing are NaN in float64.
    """
    model = FAMILIES[family].model()
    return model if family in ("gpt-oss", "gemma2") else model.double()


@cache
def eager_of(family):
    """Return the eager model in float64; gpt-oss has no experts in float64, and only its attention is computed so."""
    model = FAMILIES[family].model("eager")
    return model if family == "gpt-oss" else model.double()


def names_of(model):
    return {id(module): name for name, module in attentions(Modules.of(model)).items()}


def doubled(inputs, dtype):
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def by_hand(family, inputs, *swaps):
    """Return the logits of the eager model in float64, and the steps of its attentions."""
    model = eager_of(family)
    with eager_steps(model, names_of(model), *swaps) as kept:
        return model(**doubled(inputs, next(model.parameters()).dtype)).logits, kept


def run(family, inputs):
    model = model_of(family)
    return model(**doubled(inputs, next(model.parameters()).dtype)).logits


def another(family):
    """Return inputs of the same shape with another content."""
    swapped = {}
    for name, value in FAMILIES[family].inputs.items():
        swapped[name] = value if name.endswith("mask") else value.flip(1)
    return swapped


def record(family, inputs, **options):
    with ts.watch(model_of(family), keep="steps", **options) as recording:
        run(family, inputs)
    return recording


def error(logits, truth):
    return float((logits.double() - truth).norm() / truth.norm())


def pairs_of(kept, name, side, batch):
    """Pair the tokens of equal places of one attention."""
    return same(batch, getattr(kept[name], "queries" if side == "queries" else "keys").shape[2])


def swaps_of(family, kept, what, heads):
    """Return a swap for each attention: they may have different numbers of queries and keys."""
    batch = len(next(iter(kept.values())).queries)
    mask = FAMILIES[family].inputs.get("attention_mask")
    swaps = []
    for name in kept:
        queries, keys = (pairs_of(kept, name, side, batch) for side in ("queries", "keys"))
        # Padding stays as it runs: of the source, and of the encoder's own queries.
        if mask is not None:
            reads_source = name.endswith(CROSS) or "decoder" not in name
            keys = [pair for pair in keys if not reads_source or mask[pair[0], pair[1]]]
            own_text = "decoder" not in name
            queries = [pair for pair in queries if not own_text or mask[pair[0], pair[1]]]
        only = lambda other, name=name: other != name  # noqa: E731
        swaps.append(Swap(kept, what, heads, queries=queries, keys=keys, across=only))
    return swaps


@pytest.mark.parametrize("heads", [None, [1]], ids=["all", "one head"])
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, what, heads):
    """All positions of texts of equal length; one head of a group leaves the others their keys and values."""
    inputs = FAMILIES[family].inputs
    _, kept = by_hand(family, another(family))
    truth, _ = by_hand(family, inputs, *swaps_of(family, kept, what, heads))
    expected = run(family, inputs)
    edit = ts.patch(record(family, another(family)), heads=heads, what=what)
    with ts.edit(model_of(family), edit):
        logits = run(family, inputs)
    keep = inputs["attention_mask"].bool() if family == "bert" else slice(None)
    assert error(logits[keep], truth[keep]) < 1e-5
    assert float((logits - expected).abs().max()) > 1e-4  # the edit changed something
    assert torch.equal(run(family, inputs), expected)


@pytest.mark.parametrize("what", ["output", "weights", "queries"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral", "gpt-oss"])
def test_some_queries(family, what):
    """A recording of one text serves both sequences; the other queries stay, and a watch sees what ran."""
    other = {"input_ids": OTHER[:1]}
    _, kept = by_hand(family, other)
    queries = [(row, column, 0, column) for row in range(2) for column in (2, 3, 6)]
    keys = [(row, column, 0, column) for row in range(2) for column in range(8)]
    inputs = {"input_ids": IDS}
    truth, steps = by_hand(family, inputs, Swap(kept, what, [0, 2], queries=queries, keys=keys))
    with (
        ts.edit(model_of(family), ts.patch(record(family, other), heads=[0, 2], what=what, queries=[2, 3, 6])),
        ts.watch(model_of(family), keep="queries-keys") as seen,
    ):
        logits = run(family, inputs)
    assert error(logits, truth) < 1e-5
    for name, watched in seen.items():
        assert error(watched.survey().received, steps[name].weights.sum(2)) < 1e-5


@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("family", WRITERS)
def test_padding_on_the_left(family, what):
    """Positions count from the first token that is no padding, of each text, in both runs."""
    inputs = {"input_ids": IDS, "attention_mask": PADDED_LEFT}
    # Texts of 8 and 5 tokens again, with one column of padding more.
    wide = torch.cat([torch.zeros_like(OTHER[:, :1]), OTHER], 1)
    padded = torch.cat([torch.zeros_like(PADDED_LEFT[:, :1]), PADDED_LEFT], 1)
    other = {"input_ids": wide, "attention_mask": padded}
    pairs = [(row, column, row, column + 1) for row in range(2) for column in range(8) if PADDED_LEFT[row, column]]
    _, kept = by_hand(family, other)
    truth, _ = by_hand(family, inputs, Swap(kept, what, [1], queries=pairs, keys=pairs))
    with ts.edit(model_of(family), ts.patch(record(family, other), heads=1, what=what)):
        logits = run(family, inputs)
    keep = PADDED_LEFT.bool()
    assert error(logits[keep], truth[keep]) < 1e-5


@pytest.mark.parametrize("what", ["output", "queries", "keys", "values"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_texts_of_other_lengths(family, what):
    """A map of positions; those that are not in it stay."""
    inputs, other = {"input_ids": IDS}, {"input_ids": OTHER[:, :5]}
    align = {1: 4, 2: 0, 7: 3}
    pairs = [(row, here, row, there) for row in range(2) for here, there in align.items()]
    _, kept = by_hand(family, other)
    truth, _ = by_hand(family, inputs, Swap(kept, what, queries=pairs, keys=pairs))
    with ts.edit(model_of(family), ts.patch(record(family, other), what=what, align=align)):
        logits = run(family, inputs)
    assert error(logits, truth) < 1e-5


CACHES = [
    ("llama", None),
    ("llama", "static"),
    ("mistral", "static"),
    ("gpt2", None),
    ("gemma2", None),
    ("qwen2", None),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize(("family", "cache"), CACHES)
def test_generate(family, cache, what):
    """A patched prompt, then two steps whose positions were recorded, then three that stay as they run."""
    model = model_of(family)
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {} if cache is None else {"cache_implementation": cache}
    with ts.watch(model, keep="steps") as recording:
        told = model.generate(OTHER, max_new_tokens=3, **options)  # the last token is not read
    _, kept = by_hand(family, {"input_ids": told[:, :-1]})
    with ts.edit(model, ts.patch(recording, heads=[0, 2], what=what)):
        written = model.generate(IDS, max_new_tokens=5, **options)
    ids = IDS
    for _ in range(5):
        pairs = same(2, min(ids.shape[1], 10))
        logits, _ = by_hand(family, {"input_ids": ids}, Swap(kept, what, [0, 2], queries=pairs, keys=pairs))
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    assert written.tolist() == ids.tolist()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("what", ["output", "values"])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_translators_generate(family, what, beams):
    """Encoders are patched with the text of another source, row by row, and beams read on from there."""
    model, eager = model_of(family), eager_of(family)
    inputs = {name: FAMILIES[family].inputs[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False, "min_new_tokens": 4}
    recording = record(family, another(family), layers="*encoder.*")
    _, kept = by_hand(family, another(family))
    mask = inputs["attention_mask"]
    pairs = [pair for pair in same(2, 8) if mask[pair[0], pair[1]]]
    swap = Swap(kept, what, [0], queries=pairs, keys=pairs, across=lambda name: not name.startswith(ENCODERS))
    with eager_steps(eager, names_of(eager), swap):
        truth = eager.generate(**inputs, **options)
    layers = [name for name in recording if name.startswith(ENCODERS)]
    with ts.edit(model, ts.patch(recording, layers, 0, what=what)):
        assert model.generate(**inputs, **options).tolist() == truth.tolist()


ENCODERS = ("encoder.", "model.encoder.")


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_gradients_flow(family):
    """Through what is patched: to the inputs of every token that stays."""
    models = model_of(family), eager_of(family)
    inputs = FAMILIES[family].inputs
    _, kept = by_hand(family, another(family))
    recording = record(family, another(family))
    names = [name for name in kept if name.endswith(CROSS) or family == "llama"]
    found = []
    for what in ("output", "values"):
        length = {"output": "queries", "values": "keys"}[what]
        mask = inputs.get("attention_mask")
        pairs = [
            pair
            for pair in pairs_of(kept, names[0], length, 2)
            if mask is None or what == "output" or mask[pair[0], pair[1]]
        ]
        swap = Swap(kept, what, [1], queries=pairs, keys=pairs, across=lambda name: name not in names)
        with torch.enable_grad():
            with ts.edit(models[0], ts.patch(recording, names, 1, what=what)):
                models[0](**inputs).logits.square().sum().backward()
            with eager_steps(models[1], names_of(models[1]), swap):
                models[1](**inputs).logits.square().sum().backward()
        for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
            if one.grad is not None:
                found.append(error(one.grad, two.grad.double()))
        for model in models:
            model.zero_grad()
    assert max(found) < 1e-5


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_effects_in_one_batch(family):
    """Patches of single heads run together, each on its own copy of the inputs."""
    model, inputs = model_of(family), FAMILIES[family].inputs
    edits = ts.patch.each(model, record(family, another(family)))[:6]
    edits += ts.patch.each(model, record(family, another(family)), what="values")[:3]
    together = ts.effect(model, inputs, edits)
    for row, edit in zip(together.rows[1:], edits, strict=True):
        with ts.edit(model, edit):
            logits = run(family, inputs)
        alone = ts.effect(model, inputs, [edit]).rows[1]
        assert row["kl"] == pytest.approx(alone["kl"], rel=1e-9, abs=1e-12)
        assert not torch.equal(logits, run(family, inputs))


@pytest.mark.parametrize("into", ["queries", "keys", "values"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_a_path(family, into):
    """From a head of the first layer to one of the second: held by hand is everything but the sender."""
    inputs, other = {"input_ids": IDS}, {"input_ids": OTHER}
    _, kept = by_hand(family, other)
    expected, clean = by_hand(family, inputs)
    first, second = kept
    heads = kept[first].queries.shape[1]
    tokens = same(2, 8)
    rest = [head for head in range(heads) if head != 1]
    swaps = [
        Swap(kept, "output", [1], first, queries=tokens),
        Swap(clean, "output", rest, first, queries=tokens),
        Swap(clean, "output", None, second, queries=tokens),
    ]
    _, held = by_hand(family, inputs, *swaps)
    truth, _ = by_hand(family, inputs, Swap(held, into, [2], second, queries=tokens, keys=tokens))
    model = model_of(family)
    edit = ts.patch.path(model, inputs, record(family, other), (0, 1), (1, 2), into)
    with ts.edit(model, edit):
        logits = run(family, inputs)
    assert error(logits, truth) < 1e-5
    assert float((truth - expected).abs().max()) > 1e-6


def test_a_module_that_calls_torchs_attention():
    """nn.MultiheadAttention, whose calls are intercepted by the function of torch, with a batch and padding."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).double().eval()
    one, two = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    attention = layer.self_attn

    def contexts(x):
        """Return the context of each head, (batch, query, head, feature), from the projections written out."""
        q, k, v = (x @ attention.in_proj_weight.mT + attention.in_proj_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v))
        return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2)

    patched = contexts(one)
    patched[:, 1:3, 1] = contexts(two)[:, 1:3, 1]
    output = attention.out_proj(patched.flatten(-2))
    x = layer.norm1(one + output)
    truth = layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))
    with ts.watch(layer, keep="steps") as recording:
        layer(two)
    with ts.edit(layer, ts.patch(recording, heads=1, queries=[1, 2])):
        torch.testing.assert_close(layer(one), truth, rtol=1e-12, atol=1e-12)


def test_compiled_code_says_that_it_cannot():
    model = FAMILIES["llama"].model()
    with ts.watch(model, keep="steps") as recording:
        model(OTHER)
    compiled = torch.compile(model, backend="eager")
    for edit in (ts.patch(recording), ts.patch(recording, what="values"), ts.mute(by=recording)):
        with (
            pytest.raises(ValueError, match=r"cannot be done inside of compiled code, which can do .*torch\.compile"),
            ts.edit(compiled, edit),
        ):
            compiled(IDS)


def test_a_prompt_in_chunks():
    """`generate` says how long the prompt is; it is patched as if it were read at once."""
    model = FAMILIES["llama"].model()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with ts.watch(model, keep="steps") as recording:
        model(OTHER)
    for edit in (ts.patch(recording, heads=[1, 2]), ts.mute(0, 1, by=ts.resample(recording))):
        with ts.edit(model, edit):
            written = model.generate(IDS, **options)
            assert model.generate(IDS, **options, prefill_chunk_size=3).tolist() == written.tolist()


@pytest.mark.parametrize("by", ["mean", "resampled"])
@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_muted_by_a_recording(family, by):
    """The mean of every counted position of two runs, against that of contexts by hand."""
    model = model_of(family)
    with ts.watch(model, keep="steps") as recording:
        run(family, FAMILIES[family].inputs)
        run(family, another(family))
    runs = [by_hand(family, inputs)[1] for inputs in (FAMILIES[family].inputs, another(family))]
    name = [name for name in runs[0] if not name.endswith(CROSS)][-1]
    mask = FAMILIES[family].inputs.get("attention_mask") if family == "bert" else None
    pool = [kept[name].output.transpose(1, 2) for kept in runs]
    pool = torch.cat([one.flatten(0, 1) if mask is None else one[mask.bool()] for one in pool])
    edit = ts.mute(name, 1, by=recording if by == "mean" else ts.resample(recording, seed=5))
    with ts.edit(model, edit), ts.watch(model, keep="steps") as seen:
        logits = run(family, FAMILIES[family].inputs)
    assert seen.edits == (edit,)
    if by == "mean":
        steps = by_hand(family, FAMILIES[family].inputs)[1]
        steps[name].output = pool.mean(0)[None, :, None].expand_as(steps[name].output)
        tokens = same(2, steps[name].output.shape[2])
        truth, _ = by_hand(family, FAMILIES[family].inputs, Swap(steps, "output", [1], name, queries=tokens))
        keep = slice(None) if mask is None else mask.bool()
        assert error(logits[keep], truth[keep]) < 1e-5
    else:
        assert error(logits, run(family, FAMILIES[family].inputs)) > 1e-4


def test_restored_of_a_translator():
    """Another source, of other padding; the logit difference after the last word that is written."""
    model, inputs = model_of("t5"), FAMILIES["t5"].inputs
    other = inputs | {"input_ids": inputs["input_ids"].flip(1)}
    recording = record("t5", inputs)
    found = ts.effect(model, inputs, ts.patch.each(model, recording), tokens=[7], against=9, corrupted=other)
    _, kept = by_hand("t5", inputs)
    values = [by_hand("t5", one)[0] for one in (inputs, other)]
    for name, steps in kept.items():
        for head in range(steps.queries.shape[1]):
            pairs = same(2, steps.queries.shape[2])
            if name.startswith("encoder"):
                pairs = [pair for pair in pairs if inputs["attention_mask"][pair[0], pair[1]]]
            swap = Swap(kept, "output", [head], queries=pairs, across=lambda one, name=name: one != name)
            values.append(by_hand("t5", other, swap)[0])
    truth = [float((logits[:, -1, 7] - logits[:, -1, 9]).mean()) for logits in values]
    restored = [(value - truth[1]) / (truth[0] - truth[1]) for value in truth]
    assert found.columns["difference"] == pytest.approx(truth, rel=1e-5, abs=1e-5)
    assert found.columns["restored"] == pytest.approx(restored, rel=1e-4, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", PARTS)
def test_padding_in_a_static_cache(what):
    """The same words as with a cache that grows, of a padded batch, which the recording has in another padding."""
    model = FAMILIES["llama"].model()
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"output_scores": True, "return_dict_in_generate": True, "attention_mask": PADDED_LEFT}
    wide = torch.cat([torch.zeros_like(OTHER[:, :1]), OTHER], 1)
    padded = torch.cat([torch.zeros_like(PADDED_LEFT[:, :1]), PADDED_LEFT], 1)
    with ts.watch(model, keep="steps") as recording:
        model.generate(wide, attention_mask=padded, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with ts.edit(model, ts.patch(recording, heads=[0, 2], what=what)):
        growing = model.generate(IDS, **options)
        fixed = model.generate(IDS, **options, cache_implementation="static")
    plain = model.generate(IDS, **options)
    for one, two, three in zip(growing.scores, fixed.scores, plain.scores, strict=True):
        assert error(two, one.double()) < 1e-5
        assert error(three, one.double()) > 1e-4
    # Row by row, without any padding: what each text gives alone.
    for row, start in enumerate((0, 3)):
        with ts.watch(model, keep="steps") as alone:
            model.generate(OTHER[row : row + 1, start:], max_new_tokens=3, do_sample=False, pad_token_id=0)
        with ts.edit(model, ts.patch(alone, heads=[0, 2], what=what)):
            one = model.generate(
                IDS[row : row + 1, start:], **options | {"attention_mask": PADDED_LEFT[row : row + 1, start:]}
            )
        assert one.sequences[0, -5:].tolist() == growing.sequences[row, -5:].tolist()
