"""Watched models of transformers return the same bits, and the recording equals the weights of eager attention."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import GPT2, numbered, transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT, PADDED_RIGHT, TRANSLATORS, WRITERS, weights_by_name
from support.watching import KEEPS
from telescope.interception.huggingface import masks
from telescope.interception.huggingface.definition import DefinitionReader
from telescope.interception.huggingface.interface_call import InterfaceCall
from telescope.measures import SUMS
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall

CLOSE = {"atol": 1e-4, "rtol": 0.0}
BETWEEN = {"atol": 2e-5, "rtol": 1e-4}
pytestmark = pytest.mark.usefixtures("without_gradients")


def assert_summary_of(survey, weights, seeing=None):
    """Compare every number of a survey with the matrix; rows of padding and rows that see nothing are zero."""
    if seeing is not None:
        weights = weights * seeing[:, None, :, None]
    assert_close(survey.received, weights.sum(-2), **CLOSE)
    assert_close(survey.entropy, -torch.xlogy(weights, weights).sum(-1), **CLOSE)
    top = min(survey.top.keys.shape[-1], weights.shape[-1])
    best = weights.topk(top).values
    assert_close(survey.top.weights[..., :top], best, **CLOSE)
    found = weights.gather(-1, survey.top.keys[..., :top].clamp(min=0)) * (survey.top.keys[..., :top] >= 0)
    assert_close(found, best, **CLOSE)  # equal weights may stand in another order


def implementations(family):
    return ("sdpa", "eager") if FAMILIES[family].own == "sdpa" else ("eager",)


PAIRS = [(family, implementation) for family in FAMILIES for implementation in implementations(family)]


def numbers(recording):
    calls = [(name, call) for name, watched in recording.items() for call in watched.calls]
    return [
        (name, call.size, call.heads, {kind: part.tensor for kind, part in call._kept.items()}) for name, call in calls
    ]


@pytest.mark.parametrize(("family", "implementation"), PAIRS)
def test_layers_that_are_called_alike_are_described_once(family, implementation, monkeypatch):
    """The second recording, in which each layer is described by itself, has the same numbers."""
    model, inputs, recordings, described = FAMILIES[family].model(implementation), FAMILIES[family].inputs, [], []
    read = DefinitionReader.read_call
    monkeypatch.setattr(DefinitionReader, "read_call", lambda *given: described.append(given) or read(*given))
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(InterfaceCall, "shared_key", lambda call: None)
        with ts.watch(model) as recording:
            model(**inputs)
        recordings.append(numbers(recording))
        if shared:
            taken = len(described) < len(recording)
    assert len(recordings[0]) == len(recordings[1])
    for one, other in zip(*recordings, strict=True):
        assert one[:-1] == other[:-1]
        assert one[-1].keys() == other[-1].keys()
        assert all(torch.equal(one[-1][kind].nan_to_num(), other[-1][kind].nan_to_num()) for kind in one[-1])
    if family in ("llama", "gpt2", "qwen2"):
        assert taken


@pytest.mark.parametrize(("family", "implementation"), PAIRS)
def test_every_family(family, implementation):
    """Logits bit by bit, summaries, rows, traces, and output_attentions: compared with the eager model."""
    inputs, model = FAMILIES[family].inputs, FAMILIES[family].model(implementation)
    expected = model(**inputs).logits
    eager = FAMILIES[family].model("eager")(**inputs, output_attentions=True)
    recordings = {}
    for keep in KEEPS:
        with ts.watch(model, keep=keep) as recordings[keep]:
            assert torch.equal(model(**inputs).logits, expected)
    assert torch.equal(model(**inputs).logits, expected)
    assert model.config._attn_implementation == implementation
    weights = weights_by_name(eager, recordings["steps"].names)
    for name, truth in weights.items():
        real = None if "decoder" in name else inputs.get("attention_mask")
        for recording in recordings.values():
            assert_summary_of(recording[name].survey(), truth, real)
        rows = truth if real is None else truth * real[:, None, :, None]
        assert_close(recordings["queries-keys"][name].survey().rows([0, -1]), rows[:, :, [0, -1]], **CLOSE)
        assert_close(recordings["steps"][name].trace().weights, truth, **CLOSE)
    with ts.watch(model):
        output = model(**inputs, output_attentions=True)
    assert torch.equal(output.logits, expected)
    for name, returned in weights_by_name(output, list(weights)).items():
        assert_close(returned, weights[name], **CLOSE)


def test_names_are_the_paths_in_the_model():
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording:
        model(IDS)
    assert recording.names == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert recording["model.layers.1"] is recording["model.layers.1.self_attn"]
    with pytest.raises(KeyError, match=r'there are 2 attentions in "model\.layers"'):
        recording["model.layers"]


def packed():
    return {"input_ids": IDS, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]).expand(2, -1)}


def a_block(dtype):
    """Return a 4-d mask in which the second half sees the first half whole."""
    seen = torch.ones(8, 8, dtype=torch.bool).tril()
    seen[:4, :4] = True
    seen = seen[None, None].expand(2, 1, 8, 8)
    return seen if dtype == torch.bool else torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(dtype).min)


GIVEN = {
    "left": lambda: {"input_ids": IDS, "attention_mask": PADDED_LEFT},
    "right": lambda: {"input_ids": IDS, "attention_mask": PADDED_RIGHT},
    "holes": lambda: {"input_ids": IDS, "attention_mask": PADDED_LEFT & PADDED_RIGHT.flip(0)},
    "packed": packed,
    "bool": lambda: {"input_ids": IDS, "attention_mask": a_block(torch.bool)},
    "float": lambda: {"input_ids": IDS, "attention_mask": a_block(torch.float32)},
    "bias": lambda: {"input_ids": IDS, "attention_mask": a_block(torch.float32) + torch.arange(8.0) * 0.1},
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_padding_packing_and_custom_masks(family, given, implementation):
    inputs, model = GIVEN[given](), FAMILIES[family].model(implementation)
    if implementation == "eager" and given == "bool":
        pytest.skip("eager adds its mask, True as 1")
    expected = model(**inputs).logits
    with ts.watch(model) as recording:
        assert torch.equal(model(**inputs).logits, expected)
    if given == "bool":
        inputs = GIVEN["float"]()
    eager = FAMILIES[family].model("eager")(**inputs, output_attentions=True)
    seeing = inputs["attention_mask"].bool() if given in ("left", "right", "holes") else None
    for name, truth in weights_by_name(eager, recording.names).items():
        assert_summary_of(recording[name].survey(), truth, seeing)


# ------------------------------------------------------------------------------------------------------------- writing


def assert_same(recording, truth, some=slice(None)):
    for name in truth:
        one, two = recording[name].survey(), truth[name].survey()
        for number in ("received", "entropy", "top_weights", "lse"):
            assert_close(
                getattr(one.summary, number)[some],
                getattr(two.summary, number)[some],
                **BETWEEN,
                msg=lambda text, where=(name, number): f"{where}: {text}",
            )


GROWING = [(family, "summaries", True) for family in WRITERS] + [
    ("gpt-oss", "queries-keys", False),
    ("mistral", "steps", True),
    ("llama", "steps", False),
]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("family", "keep", "padded"), GROWING)
def test_generation_is_one_growing_call(family, keep, padded, cache):
    """Prompt and each new token, with any cache: the same numbers as the whole text read at once."""
    model = FAMILIES[family].model()
    mask = PADDED_LEFT if padded else torch.ones_like(IDS)
    options = {"attention_mask": mask, "max_new_tokens": 7, "do_sample": False, "cache_implementation": cache}
    expected = model.generate(IDS, **options)
    with ts.watch(model, keep=keep) as recording:
        written = model.generate(IDS, **options)
    assert torch.equal(written, expected)
    ids = written[:, :-1]
    mask = torch.cat([mask, torch.ones(2, ids.shape[1] - 8, dtype=torch.long)], 1)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    with ts.watch(model, keep=keep) as truth:
        model(ids, attention_mask=mask, position_ids=places, use_cache=False)
    for watched in recording.values():
        assert watched.call.size == (ids.shape[1], ids.shape[1])
        assert torch.equal(watched.call.query_ids, ids)
    assert_same(recording, truth)
    if keep != "summaries":
        one, two = recording[recording.names[1]].survey(), truth[truth.names[1]].survey()
        assert_close(one.rows([4, -1]), two.rows([4, -1]), **BETWEEN)


@pytest.mark.parametrize("queries", [None, [1, 5, 9]], ids=["all", "some"])
@pytest.mark.parametrize("keep", ["queries-keys", "steps"])
def test_the_lse_of_a_fused_kernel_is_kept(keep, queries, tmp_path):
    """The lse while reading and while generating; saved and opened."""
    model = FAMILIES["llama"].model("sdpa")
    with ts.watch(model, keep=keep, queries=queries) as recording:
        model.generate(IDS, max_new_tokens=4, do_sample=False)
    recording.save(tmp_path / "run.telescope")
    opened = ts.open(tmp_path / "run.telescope")
    for name, watched in recording.items():
        assert_close(watched.call.lse, watched.survey().lse, **BETWEEN)
        assert torch.equal(opened[name].call.lse, watched.call.lse)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_the_lse_of_some_queries_is_dropped(first, second):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    recording = Recording("Made", ["a"], "queries-keys")
    for rows, given in ((slice(0, 4), first), (slice(4, 6), second)):
        seen = slice(0, rows.stop)
        lse = torch.zeros(1, 2, rows.stop - rows.start) if given else None
        attention = ts.Attention(mask=ts.causal)
        recording._record("a", AttentionCall(q[:, :, rows], k[:, :, seen], v[:, :, seen], attention, (0, 1), 0.0, lse))
    assert recording["a"].call.size == (6, 6)
    assert recording["a"].call.lse is None


@pytest.mark.parametrize("keep", ["summaries", "steps"])
@pytest.mark.parametrize("family", [*TRANSLATORS, "whisper"])
def test_translators_are_recorded_while_they_generate(family, keep):
    model = FAMILIES[family].model()
    given = {name: tensor for name, tensor in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": 1}
    expected = model.generate(**given, **options)
    with ts.watch(model, keep=keep) as recording:
        assert torch.equal(model.generate(**given, **options), expected)
    ids = FAMILIES[family].inputs["decoder_input_ids"][:, :1]
    written = (
        expected if expected.shape[1] > 6 else torch.cat([ids * 0 + model.config.decoder_start_token_id, expected], 1)
    )
    with ts.watch(model, keep=keep) as truth:
        model(**given, decoder_input_ids=written[:, :-1], use_cache=False)
    assert all(len(watched.calls) == 1 for watched in recording.values())
    assert_same(recording, truth)


def test_beam_search_is_recorded_as_it_ran():
    model = FAMILIES["llama"].model()
    expected = model.generate(IDS, num_beams=3, max_new_tokens=5, do_sample=False)
    with ts.watch(model, keep="steps") as recording:
        assert torch.equal(model.generate(IDS, num_beams=3, max_new_tokens=5, do_sample=False), expected)
    calls = recording["model.layers.0"].calls
    assert sum(call.size[0] for call in calls) >= 12
    assert all(len(call.queries) == 6 for call in calls[1:])


def test_reading_a_prompt_in_pieces():
    model, cache = FAMILIES["mistral"].model(), transformers.DynamicCache(config=FAMILIES["mistral"].model().config)
    with ts.watch(model) as truth:
        model(IDS)
    with ts.watch(model) as recording:
        for part in IDS.split([3, 4, 1], dim=1):
            model(part, past_key_values=cache)
    assert_same(recording, truth)


# -------------------------------------------------------------------------------------------- masks that stay unwritten


@pytest.mark.parametrize(("family", "padded"), [("mistral", False), ("mistral", True), ("llama", True), ("bert", True)])
def test_a_mask_is_formed_some_rows_at_a_time(family, padded, monkeypatch):
    """The same bits, also where the kernel is called for some of the queries."""
    n = 1900
    model = longer(family, n)
    ids = torch.randint(1, 60, (2, n), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, : 400 if padded else 0] = 0
    expected = model(ids, attention_mask=mask)[0]
    monkeypatch.setattr(masks, "LARGEST", 2**21)
    written = []
    rows = masks.LazyMask.rows
    monkeypatch.setattr(masks.LazyMask, "rows", lambda self, some: written.append(len(some)) or rows(self, some))
    monkeypatch.setattr(masks.LazyMask, "dense", property(lambda self: pytest.fail("the whole mask was written")))
    with ts.watch(model, top=1):
        assert torch.equal(model(ids, attention_mask=mask)[0], expected)
    assert written == [1024, 876]


def longer(family, n):
    """Return a model of one layer for many tokens."""
    given = FAMILIES[family]
    places = {"max_position_embeddings": n, "num_hidden_layers": 1}
    config = getattr(transformers, given.config)(**(given.options | places))
    return numbered(getattr(transformers, given.kind)(config))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_memory_grows_with_n(family):
    sizes = []
    for n in (32, 64, 128):
        options = {"n_positions": 128} if family == "gpt2" else {"max_position_embeddings": 128}
        given = FAMILIES[family]
        config = getattr(transformers, given.config)(**(given.options | options))
        model = numbered(getattr(transformers, given.kind)(config))
        with ts.watch(model) as recording:
            model(torch.arange(n)[None] % 61)
        sums = sum(watched.call._kept["shares"].nbytes for watched in recording.values())  # whatever the length
        assert sums <= 2 * 4 * 8 * len(SUMS)
        sizes.append(recording.nbytes - sums)
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    assert sizes[1] > 1.99 * sizes[0]  # a few bytes are the definition's, whatever the length


# ------------------------------------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(("keep", "store"), [*zip(KEEPS, ["ram", "disk", "device"], strict=True)])
@pytest.mark.parametrize("queries", [-1, [0, 5, 2], slice(2, 6), range(20)], ids=str)
def test_selected_queries_heads_and_layers(keep, store, queries):
    model = FAMILIES["gpt-oss"].model()
    with ts.watch(model, keep="queries-keys") as whole:
        model.generate(IDS, attention_mask=PADDED_LEFT, max_new_tokens=4, do_sample=False)
    with ts.watch(model, keep=keep, store=store, layers=1, heads=[3, 0], queries=queries) as some:
        model.generate(IDS, attention_mask=PADDED_LEFT, max_new_tokens=4, do_sample=False)
    (name,) = some.names
    call = some[name].call
    # Positions count the tokens of each sequence: the second begins at column 3.
    positions = range(2, 6) if isinstance(queries, slice) else queries
    own = [{7, 8, 9, 10} if queries == -1 else {first + i for i in positions if first + i < 11} for first in (0, 3)]
    assert call.rows == sorted(own[0] | own[1])
    selected = torch.tensor([[row in rows for row in call.rows] for rows in own])[:, None, :, None]
    for number in (0, 3):
        weights = whole[name].head(number).rows(call.rows) * selected
        assert_summary_of(some[name].head(number), weights)
        if keep != "summaries":
            assert_close(some[name].head(number).rows(range(len(call.rows))), weights, **CLOSE)
    if keep == "steps":
        assert_close(some[name].trace().weights[:, 1], whole[name].head(0).rows(call.rows)[:, 0], **CLOSE)


def test_gpt2_with_cross_attention():
    config = transformers.GPT2Config(**GPT2, add_cross_attention=True)
    model = numbered(transformers.GPT2LMHeadModel(config))
    memory = torch.randn(2, 5, 24)
    with ts.watch(model) as recording:
        got = model(IDS, encoder_hidden_states=memory).logits
    assert torch.equal(got, model(IDS, encoder_hidden_states=memory).logits)
    assert recording["transformer.h.1.crossattention"].call.size == (8, 5)
