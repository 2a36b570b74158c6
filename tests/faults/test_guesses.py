"""A caller who guesses a name is told ours, as one who gives a wrong value is."""

import inspect
import subprocess
import sys

import pytest
import torch

import telescope as ts
from telescope.words import suggests

pytestmark = pytest.mark.usefixtures("as_users_run_it")

X = torch.randn(1, 1, 4, 8)


class Seen:
    """What guesses are made about: a model, its ids, and what was recorded and computed of it."""

    def __init__(self):
        self.model = ts.load("shakespeare")
        self.ids = torch.tensor([self.model.tokenizer.encode("To be, or not to be: that is the question").ids])
        with torch.no_grad(), ts.watch(self.model, keep="steps") as self.recording:
            self.model(self.ids)
        self.layer = self.recording["blocks.1.self"]
        self.heads = self.recording.heads()
        self.effects = ts.effect(self.model, self.ids, [ts.mute(0, head) for head in range(4)])
        self.atlas = ts.atlas(self.model, ["To be, or not to be: that is the question."])
        self.survey = self.layer.survey()
        self.trace = ts.trace(X, X, X)
        self.sources = self.recording.sources((3, 5))


@pytest.fixture(scope="module")
def seen():
    return Seen()


# What a caller writes who knows another library, and what the error has to say.
GUESSES = {
    # PyTorch: scaled_dot_product_attention, flex_attention, nn.MultiheadAttention.
    "attend(mask=)": (lambda s: ts.attend(X, X, X, mask=ts.causal), "ts.Attention(mask=ts.causal)"),
    "attend(is_causal=)": (lambda s: ts.attend(X, X, X, is_causal=True), "ts.Attention(mask=ts.causal)"),
    "attend(attn_mask=)": (lambda s: ts.attend(X, X, X, attn_mask=None), "mask=ts.from_tensor(attn_mask)"),
    "attend(score_mod=)": (lambda s: ts.attend(X, X, X, score_mod=None), "bias=lambda query, key: ..."),
    "attend(need_weights=)": (lambda s: ts.attend(X, X, X, need_weights=True), "ts.trace(q, k, v, attention).weights"),
    "attend(enable_gqa=)": (lambda s: ts.attend(X, X, X, enable_gqa=True), "shared by themselves"),
    "attend(dropot=)": (lambda s: ts.attend(X, X, X, dropot=0.1), 'did you mean "dropout"?'),
    "attend(q, k, v, mask)": (lambda s: ts.attend(X, X, X, ts.Attention(), ts.causal), "ts.Attention(mask=..., "),
    "trace(mask=)": (lambda s: ts.trace(X, X, X, mask=ts.causal), "ts.trace(q, k, v, ts.Attention(mask=ts.causal))"),
    "survey(mask=)": (lambda s: ts.survey(X, X, mask=ts.causal), "ts.survey(q, k, ts.Attention(mask=ts.causal))"),
    "survey(topk=)": (lambda s: ts.survey(X, X, topk=3), "write top="),
    "Attention(causal=)": (lambda s: ts.Attention(causal=True), "Attention takes no causal=; write mask=ts.causal"),
    "Attention(softmax_scale=)": (lambda s: ts.Attention(softmax_scale=1.0), "write scale="),
    "Attention(normalise=)": (lambda s: ts.Attention(normalise=ts.by_sum), 'did you mean "normalize"?'),
    "window(window_size=)": (lambda s: ts.window(window_size=4), "window takes no window_size=; write size="),
    "window(left, right)": (lambda s: ts.window(4, 0), "takes 1 by position", "ts.causal & ts.window(size) looks back"),
    "tensor & mask": (lambda s: torch.ones(2, 2).bool() & ts.causal, "ts.from_tensor(seen)"),
    "MultiHeadAttention(embed_dim=)": (lambda s: ts.layers.MultiHeadAttention(embed_dim=8, num_heads=2), "d_model="),
    "ts.scaled_dot_product_attention": (lambda s: ts.scaled_dot_product_attention, "ts.attend(q, k, v, "),
    "ts.MultiheadAttention": (lambda s: ts.MultiheadAttention, "ts.layers.MultiHeadAttention(d_model, heads)"),
    "ts.sliding_window": (lambda s: ts.sliding_window, "ts.causal & ts.window(size)"),
    "a score in `or`": (lambda s: ts.dot or None, "a score, Dot, has no truth value", "`score is None`"),
    "`if bias`": (
        lambda s: bool(ts.alibi(4)),
        "a bias, Alibi, has no truth value",
        "with_extra_bias",
        "`bias is None`",
    ),
    "a function of a definition": (lambda s: bool(ts.Attention(bias=lambda q, k: q - k).bias), "a bias, OfPositions"),
    "any masks": (lambda s: any([ts.causal, ts.window(3)]), "a mask, Causal, has no truth value"),
    "a mask in a condition": (lambda s: 1 if ts.window(2) | ts.prefix(1) else 2, "a mask, Either, has no truth value"),
    # TransformerLens and nnsight.
    "ts.ablate": (lambda s: ts.ablate, "ts.mute (a head) or ts.hide (keys)"),
    "ts.HookedTransformer": (lambda s: ts.HookedTransformer, 'ts.load("shakespeare")', "ts.watch(model)"),
    "ts.LanguageModel": (lambda s: ts.LanguageModel, "ts.watch(model)"),
    "ts.run_with_cache": (lambda s: ts.run_with_cache, 'ts.watch(model, keep="steps")'),
    'cache["pattern", 0]': (lambda s: s.recording["pattern", 0], "recording[layer].weights"),
    "a hook's name": (lambda s: s.recording["blocks.0.attn.hook_pattern"], 'recording["blocks.0.self"]', ".weights"),
    "recording.stack_head_results": (lambda s: s.recording.stack_head_results(), "recording.writes()"),
    "recording.accumulated_resid": (lambda s: s.recording.accumulated_resid(), "recording.lens()"),
    "recording[l].hook_pattern": (lambda s: s.layer.hook_pattern, "is .weights"),
    "recording[l].z": (lambda s: s.layer.z, ".trace().context"),
    "recording[l].tokens": (lambda s: s.layer.tokens, "recording.decode(ids)"),
    "recording[l][0]": (lambda s: s.layer[0], ".head(number)"),
    "watch(model, text)": (lambda s: ts.watch(s.model, "text"), "with ts.watch(model) as recording"),
    "watch(text=)": (lambda s: ts.watch(s.model, text="text"), "the text into the block"),
    "watch(keep=all)": (lambda s: entered(ts.watch(s.model, keep="all")), 'keep="steps"'),
    "watch(keep=weights)": (lambda s: entered(ts.watch(s.model, keep="weights")), 'keep="queries-keys"'),
    "mute(head=)": (lambda s: ts.mute(head=2), "mute takes no head=; write heads=, a number or a list"),
    "mute(0, 1, 2)": (lambda s: ts.mute(0, 1, 2), "takes 2 by position, and was given 3", "heads=[1, 2]"),
    "hide(layer=)": (lambda s: ts.hide(0, layer=1), "hide takes no layer=; write layers="),
    "hide(token=)": (lambda s: ts.hide(token="be"), "write keys="),
    "boost(factor=)": (lambda s: ts.boost(0, factor=2), "write by="),
    "patch(model, clean, other)": (lambda s: ts.patch(s.model, s.ids, s.ids), "takes a recording", "as recording"),
    "edit(list)": (lambda s: entered(ts.edit(s.model, [ts.mute(0)])), "ts.edit(model, *edits)"),
    "edit(name)": (lambda s: entered(ts.edit(s.model, "mute")), "write ts.mute(...)"),
    "effect(loss=)": (lambda s: ts.effect(s.model, s.ids, [ts.mute()], loss="loss"), 'measure="loss"'),
    "effect(logit_diff)": (lambda s: ts.effect(s.model, s.ids, ts.mute(), "logit_diff"), "against=[wrong]"),
    "effect(a name)": (lambda s: ts.effect(s.model, s.ids, "mute"), "edits='mute' is str", "ts.mute.each(model)"),
    "effects.kl": (lambda s: s.effects.kl, 'effects["kl"]'),
    # bertviz and captum.
    "ts.head_view": (lambda s: ts.head_view, "ts.explorer.show(recording)"),
    "ts.neuron_view": (lambda s: ts.neuron_view, "ts.explorer.show(recording)"),
    "ts.LayerIntegratedGradients": (lambda s: ts.LayerIntegratedGradients, 'also="gradients"'),
    "ts.LLMAttribution": (lambda s: ts.LLMAttribution, "recording.sources(span"),
    "sources.plot()": (lambda s: s.sources.plot(), "ts.plot.sources(found)"),
    "sources[name]": (lambda s: s.sources["text"], '.shares["text"]'),
    "sources(-99)": (lambda s: s.recording.sources(-99), "numbered 0 to", "or from -"),
    # transformers.
    'ts.load("gpt2")': (lambda s: ts.load("gpt2"), 'no model "gpt2"', "from_pretrained"),
    "ts.load(owner/name)": (lambda s: ts.load("owner-of-a-hub/name"), "does not exist", "from_pretrained"),
    "ts.from_pretrained": (lambda s: ts.from_pretrained, "ts.load"),
    "ts.generate": (lambda s: ts.generate, "ts.decoding.generate(model, prompts)"),
    "generate(max_length=)": (lambda s: ts.decoding.generate(s.model, "To", max_length=3), "max_new_tokens="),
    "generate(num_beams=)": (lambda s: ts.decoding.generate(s.model, "To", num_beams=3), "ts.decoding.beam("),
    "watch(output_attentions=)": (lambda s: ts.watch(s.model, output_attentions=True), 'keep="queries-keys"'),
    "watch(a name)": (lambda s: entered(ts.watch("gpt2")), "ts.load(name)"),
    "recording.attentions": (lambda s: s.recording.attentions, "recording[layer].weights"),
    # Tables, as pandas has them.
    'heads()["induction"]': (lambda s: s.heads["induction"], '.sort("induction")', '.where(kind="induction")'),
    'heads()["blocks.0.self"]': (lambda s: s.heads["blocks.0.self"], '.where(layer="blocks.0.self")'),
    "heads()[0, 1]": (lambda s: s.heads[0, 1], ".where(layer=0, number=1)"),
    "heads().top(3)": (lambda s: s.heads.top(3), "a slice: [:5]"),
    "heads().groupby()": (lambda s: s.heads.groupby("kind"), ".table()"),
    "heads().induction": (lambda s: s.heads.induction, "[head.induction for head in heads]"),
    "heads().sort(reverse=)": (lambda s: s.heads.sort("first", reverse=True), "descending=True"),
    "heads().where(head=)": (lambda s: s.heads.where(head=1), "where takes no head=; write number="),
    "heads().where(induction='>0.4')": (lambda s: s.heads.where(induction=">0.4"), "such as induction=0.4"),
    'recording.heads("induction")': (lambda s: s.recording.heads("induction"), "takes 0 by position", ".sort(column)"),
    "recording.heads(kind=)": (lambda s: s.recording.heads(kind="first"), "heads().where(kind=...)"),
    "head.head": (lambda s: s.heads[0].head, "a Head has no attribute 'head'", "is .number"),
    "effects.to_pandas()": (lambda s: s.effects.to_pandas(), "an Effects has no attribute", ".table()"),
    "effects.sort(missing)": (lambda s: s.effects.sort("loss"), 'no column "loss"'),
    "atlas.df": (lambda s: s.atlas.df, "an Atlas has no attribute", ".table()"),
    "survey.weights": (lambda s: s.survey.weights, ".rows(slice(None))"),
    "trace.pattern": (lambda s: s.trace.pattern, "is .weights"),
    "atlas(batch_size=)": (lambda s: ts.atlas(s.model, ["a b"], batch_size=8), "write batch="),
    "atlas(a text)": (lambda s: ts.atlas(s.model, "To be, or not to be"), "texts=[text]"),
}


def entered(block):
    with block:
        raise AssertionError("the guess was taken")


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_told_ours(seen, name):
    guess, *told = GUESSES[name]
    with pytest.raises((TypeError, AttributeError, ValueError, KeyError)) as problem:
        guess(seen)
    said = str(problem.value)
    assert all(part in said for part in told), said
    assert "\n" not in said


def test_sixty_guesses_are_told():
    assert len(GUESSES) > 60


# Guesses that work: what a caller writes, and the same in full.
WORKS = {
    "recording[l].weights": (lambda s: s.layer.weights, lambda s: s.layer.trace().weights),
    "recording[1]": (lambda s: s.recording[1], lambda s: s.layer),
    "recording[-3]": (lambda s: s.recording[-3], lambda s: s.layer),
    "recording.get(1)": (lambda s: s.recording.get(1), lambda s: s.layer),
    "sort(descending=)": (lambda s: s.heads.sort("first", descending=True), lambda s: s.heads.sort("first")),
    "sort(descending=False)": (
        lambda s: s.heads.sort("first", descending=False),
        lambda s: s.heads.sort("first", rising=True),
    ),
    "effects.sort(rising=)": (
        lambda s: s.effects.sort("kl", rising=True),
        lambda s: s.effects.sort("kl", descending=False),
    ),
    "effects.sort()": (lambda s: s.effects.sort(), lambda s: s.effects.sort("kl")),
    "effects[column]": (lambda s: s.effects["kl"], lambda s: s.effects.columns["kl"]),
    "effects[row]": (lambda s: s.effects[1], lambda s: s.effects.rows[1]),
    "effects[rows]": (lambda s: s.effects[1:3].rows, lambda s: s.effects.rows[1:3]),
    "sources(-1)": (
        lambda s: s.recording.sources(-1).rows,
        lambda s: s.recording.sources([s.ids.shape[1]]).rows,  # the token after the last
    ),
    "sources((-3, -1))": (
        lambda s: s.recording.sources((-3, -1)).rows,
        lambda s: s.recording.sources((s.ids.shape[1] - 2, s.ids.shape[1])).rows,
    ),
    "sources((9, -1))": (
        lambda s: s.recording.sources((9, -1)).rows,
        lambda s: s.recording.sources(range(9, s.ids.shape[1])).rows,
    ),
    "effect(one edit)": (
        lambda s: ts.effect(s.model, s.ids, ts.mute(0, heads=[1])),
        lambda s: ts.effect(s.model, s.ids, [ts.mute(0, heads=[1])]),
    ),
    "effect(a text)": (
        lambda s: ts.effect(s.model, "To be, or not to be: that is the question", ts.mute(0, heads=[1])),
        lambda s: ts.effect(s.model, s.ids, [ts.mute(0, heads=[1])]),
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_guess_that_works(seen, name):
    guessed, in_full = (call(seen) for call in WORKS[name])
    if isinstance(guessed, torch.Tensor):
        torch.testing.assert_close(guessed, in_full)
    else:
        assert guessed is in_full or repr(guessed) == repr(in_full)


def test_a_layer_by_its_number_is_in_the_recording(seen):
    recording = seen.recording
    assert 0 in recording
    assert -4 in recording
    assert 4 not in recording
    assert True not in recording
    assert recording.get(9) is None


def test_rollout_reads_layers(seen):
    """Of one layer alone it is half of the row's own token and half of the layer's mean weights."""
    recording = seen.recording
    row = 8  # which wrote token 9
    found = recording.sources((9, 10), "rollout", layers=1)
    expected = recording[1].weights[0, :, row].double().mean(0) / 2
    expected[row] += 0.5
    torch.testing.assert_close(found.scores, expected[:9], atol=1e-6, rtol=0)
    every = recording.sources((9, 10), "rollout")
    assert not torch.allclose(found.scores, every.scores, atol=1e-3)


# Arguments that nothing would read.
UNREAD = {
    "run without corrupted": (
        lambda s: ts.effect(s.model, s.ids, ts.mute(), run="clean"),
        'run="clean" chooses between two inputs',
        "corrupted=",
    ),
    "tokens of a loss": (
        lambda s: ts.effect(s.model, s.ids, ts.mute(), "loss", tokens=[3]),
        'tokens=[3] are tabulated by measure="logits"',
    ),
    "labels of logits": (
        lambda s: ts.effect(s.model, s.ids, ts.mute(), labels=s.ids),
        'labels= are what measure="loss" predicts, and measure is "logits"',
    ),
    "labels of a function": (
        lambda s: ts.effect(s.model, s.ids, ts.mute(), lambda output: 1.0, labels=s.ids),
        "measure is a function",
    ),
    "replace without a folder": (lambda s: ts.atlas(s.model, ["To be"], replace=True), "pass the folder as out="),
    "a column of texts": (lambda s: ts.atlas(s.model, ["To be"], column="body"), 'column="body" is of .jsonl'),
    "maps in a row of a recording": (lambda s: ts.plot.heads_grid(s.recording, columns=3), "columns=3 is of one"),
    "a head of vectors": (lambda s: ts.plot.geometry(X[0, 0], X[0, 0], head=1), "head=1 is of a Trace"),
    "a batch of vectors": (lambda s: ts.plot.geometry(X[0, 0], X[0, 0], batch=1), "batch=1 is of a Trace"),
    "a head of a layer's stream": (lambda s: ts.plot.geometry(s.layer, head=1), "head=1 is of a Trace"),
    "after a trace": (lambda s: ts.plot.geometry(s.trace, X[0, 0]), "a Trace has both"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_nothing_would_read_is_refused(seen, name):
    call, *told = UNREAD[name]
    with pytest.raises(ValueError) as problem:  # noqa: PT011  the parts are asserted below
        call(seen)
    assert all(part in str(problem.value) for part in told), str(problem.value)


def test_a_model_of_a_hub_is_no_hidden_folder(tmp_path, monkeypatch):
    (tmp_path / ".gpt").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ts.LoadError, match=r'no model "gpt2"\. Shipped: .* from_pretrained'):
        ts.load("gpt2")


def test_the_signature_stays():
    for one in (ts.attend, ts.watch, ts.effect, ts.Attention, ts.boost):
        names = list(inspect.signature(one).parameters)
        assert names
        assert "args" not in names
    assert ts.attend.__name__ == "attend"


def test_a_function_that_takes_anything_has_nothing_to_suggest():
    with pytest.raises(TypeError, match="takes any argument"):
        suggests("anything")(lambda **given: given)


COMPILED = """
import torch, telescope as ts
x = torch.randn(1, 1, 4, 8)
def attended(x):
    return ts.attend(x, x, x, ts.Attention(scale=0.5, mask=ts.causal))
torch.testing.assert_close(torch.compile(attended, fullgraph=True, backend="eager")(x), attended(x))
"""


def test_a_definition_is_made_and_used_inside_of_compiled_code():
    """In a process of its own: the tests' check of types cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
