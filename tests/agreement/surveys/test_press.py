"""The press for kvpress: its scores against the formulas, and inside of kvpress' own pipeline."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, tensors
from telescope.surveys import key_scores


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
def test_scores_are_their_formulas(reduce):
    q, k, v = tensors(Shape(2, 4, 2, 9, 13, 8), 0)
    attention = ts.Attention(mask=ts.causal)
    weights = ts.trace(q, k, v, attention).weights
    norms = v.norm(dim=-1).repeat_interleave(2, 1)
    seen_by = torch.tensor([9] * 5 + [8, 7, 6, 5, 4, 3, 2, 1])
    join = {"mean": lambda x: x.mean(2), "max": lambda x: x.amax(2), "sum": lambda x: x.sum(2)}[reduce]
    for score, expected in {
        "received": weights.sum(2) / seen_by,
        "largest": weights.amax(2),
        "carried": weights.sum(2) / seen_by * norms,
    }.items():
        given = norms if score == "carried" else None
        found = key_scores(q, k, attention, score=score, reduce=reduce, norms=given)
        assert_close(found, join(expected.view(2, 2, 2, 13)))


def test_bad_rules():
    with pytest.raises(ValueError, match='there is no score="recieved"; did you mean "received"'):
        ts.press(0.5, score="recieved")
    with pytest.raises(ValueError, match='there is no reduce="average"'):
        ts.press(0.5, reduce="average")
    with pytest.raises(ValueError, match="last=0 must be 1 or more"):
        ts.press(0.5, last=0)


# ------------------------------------------------------------------------------------------------ inside of kvpress


@pytest.fixture(scope="module")
def kvpress():
    return pytest.importorskip("kvpress", exc_type=ImportError)


@pytest.fixture(scope="module")
def model(kvpress):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=90, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return made


def compressed(model, press, implementation):
    """Return the keys of every layer that a press keeps of one text."""
    from transformers import DynamicCache

    model.set_attn_implementation(implementation)
    cache, ids = DynamicCache(), torch.randint(0, 90, (1, 120), generator=torch.Generator().manual_seed(1))
    with press(model), torch.no_grad():
        model(ids, past_key_values=cache)
    return [layer.keys for layer in cache.layers]


def test_keys_of_eager_observed_attention(kvpress, model):
    theirs = compressed(model, kvpress.ObservedAttentionPress(0.6), "eager")
    ours = compressed(model, ts.press(0.6), "sdpa")
    for one, other in zip(theirs, ours, strict=True):
        assert one.shape == other.shape == (1, 2, 48, 8)
        assert_close(one.sort(2).values, other.sort(2).values)  # the same keys, in any order


@pytest.mark.parametrize(("score", "last"), [("largest", None), ("carried", None), ("received", 16)])
def test_other_rules_keep_their_keys(kvpress, model, score, last):
    """The keys that are kept have the largest scores, computed from eager weights."""
    found = {}

    class Eager(kvpress.ScorerPress):
        def score(self, module, hidden_states, keys, values, attentions, kwargs):
            rows = attentions if last is None else attentions[:, :, -last:]
            scores = rows.amax(2) if score == "largest" else rows.sum(2)
            if score != "largest":
                scores = scores / torch.arange(120, 0, -1).clamp(max=rows.shape[2])
            if score == "carried":
                W_O = module.o_proj.weight.view(64, 8, 8).permute(1, 2, 0)
                scores = scores * (values.repeat_interleave(4, 1) @ W_O).norm(dim=-1)
            found[module.layer_idx] = scores.view(1, 2, 4, 120).mean(2)
            return found[module.layer_idx]

    theirs = compressed(model, Eager(0.5), "eager")
    for one, other in zip(theirs, compressed(model, ts.press(0.5, score=score, last=last), "sdpa"), strict=True):
        assert_close(one.sort(2).values, other.sort(2).values)
    assert len(found) == 3


def test_inside_of_its_pipeline(kvpress, model, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz .,?!")} | {"<unk>": 40}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<unk>", eos_token="?")
    answers = {}
    for name, press, implementation in (
        ("theirs", kvpress.ObservedAttentionPress(0.5), "eager"), ("ours", ts.press(0.5), "sdpa"),
    ):  # fmt: skip
        model.set_attn_implementation(implementation)
        pipe = kvpress.KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
        context = "the man saw the astronomer with a telescope. " * 3
        answers[name] = pipe(context, question="who saw whom?", press=press, max_new_tokens=8)["answer"]
    assert answers["ours"] == answers["theirs"]
