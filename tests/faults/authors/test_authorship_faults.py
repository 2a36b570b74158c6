"""Questions about the residual stream that cannot be answered: one sentence each, which names the way out."""

import gc

import pytest
import torch
from torch import nn

import telescope as ts
from support.huggingface import LLAMA, numbered, transformers


def gpt(**options):
    torch.manual_seed(0)
    sizes = {"vocabulary": 20, "d_model": 16, "blocks": 2, "heads": 2} | options
    return numbered(ts.models.GPT(ts.models.GPTConfig(**sizes)))


def llama(**options):
    return numbered(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | options)))


def recorded(model, ids=None, **options):
    with ts.watch(model, **{"keep": "steps"} | options) as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]) if ids is None else ids)
    return recording


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
@pytest.mark.parametrize("ask", [lambda r: r.why(-1, 0, 3, 1), lambda r: r.writes(), lambda r: r.lens()])
def test_too_little_was_kept(keep, ask):
    model = gpt()
    with pytest.raises(ValueError, match=f'keep="{keep}" kept less; record with ts.watch'):
        ask(recorded(model, keep=keep))


def test_a_recording_that_was_opened(tmp_path):
    model = gpt()
    recorded(model).save(tmp_path / "run")
    with pytest.raises(ValueError, match="a recording that was opened does not have; record the model again"):
        ts.open(tmp_path / "run").why(-1, 0, 3, 1)


def test_a_position_that_was_not_selected():
    model = gpt()
    recording = recorded(model, queries=[2, 4])
    assert recording.why(-1, 0, 4, 2).terms.ndim == 2
    with pytest.raises(ValueError, match=r"query=3 was not kept: queries= of ts.watch selects others"):
        recording.why(-1, 0, 3, 2)
    with pytest.raises(ValueError, match=r"no residual stream at position 1: .* where queries= selects positions"):
        recording.why(-1, 0, 4, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 0, 3, 1), "layer=7 is no layer|layers=7 is no layer"),
        ((-1, 2, 3, 1), "there is no head 2"),
        ((-1, 0, 5, 1), "there is no query 5"),
        ((-1, 0, 3, 9), "there is no key 9"),
        (("blocks", 0, 3, 1), "names 2 attentions"),
    ],
)
def test_no_such_place(arguments, message):
    model = gpt()
    with pytest.raises((ValueError, KeyError), match=message):
        recorded(model).why(*arguments)


def test_no_such_sequence():
    model = gpt()
    with pytest.raises(ValueError, match="there is no sequence 1"):
        recorded(model).why(-1, 0, 3, 1, sequence=1)


def test_tokens_that_are_not_in_the_vocabulary():
    model = gpt()
    recording = recorded(model)
    with pytest.raises(ValueError, match="tokens=20 is no token: the vocabulary has ids 0 to 19"):
        recording.writes(tokens=20)
    with pytest.raises(ValueError, match="against=-1 is no token"):
        recording.writes(tokens=2, against=-1)
    with pytest.raises(ValueError, match="is text, and the recording has no tokenizer; give the id"):
        recording.writes(tokens="king")
    shakespeare = ts.load("shakespeare")
    named = recorded(shakespeare)
    assert named.writes(tokens="king").tokens == ("king",)
    with pytest.raises(ValueError, match="against='kingdomly' is no single token of the vocabulary"):
        named.writes(tokens="king", against="kingdomly")


def test_a_head_without_its_layer():
    model = gpt()
    with pytest.raises(ValueError, match="head= needs layer="):
        recorded(model).writes(head=1)


def test_weights_that_have_changed_since():
    model = gpt()
    recording = recorded(model)
    with torch.no_grad():
        model.blocks[1].self_attention.W_qkv.weight.mul_(torch.rand(48, 16))
    with pytest.raises(ValueError, match="the weights have changed since"):
        recording.why(-1, 0, 3, 1)
    with torch.no_grad():
        model.blocks[0].self_attention.W_O.weight.mul_(torch.rand(16, 16))
    with pytest.raises(ValueError, match="its weights have changed since"):
        recording.writes()


def test_a_model_that_is_gone():
    recording = recorded(gpt())
    gc.collect()
    with pytest.raises(ValueError, match="the model that was recorded is gone"):
        recording.why(-1, 0, 3, 1)


class Squashed(nn.Module):
    """A norm that is none."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.tanh(x) * self.weight


class SquashedNorm(Squashed):
    pass


def test_a_norm_that_is_neither_layer_norm_nor_rms_norm():
    model = llama()
    for layer in model.model.layers:
        layer.input_layernorm = SquashedNorm(32)
    with pytest.raises(
        ValueError, match="a SquashedNorm, does more than centre, divide and multiply, so that its output is no sum"
    ):
        recorded(model).why(-1, 0, 3, 1)


def test_a_stream_that_is_no_sum():
    """A product between two layers: the module behind it is named."""
    model = llama()
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * torch.linspace(1, 2, 32))
    with pytest.raises(ValueError, match=r'cannot be followed: what "model.layers.1.input_layernorm" is given'):
        recorded(model).why(-1, 0, 3, 1)
    # The first layer is not concerned.
    assert recorded(model).why(0, 0, 3, 1).score


def test_dropout_is_refused():
    model = gpt(dropout=0.5).train()
    with pytest.raises(ValueError, match="cannot be followed"):
        recorded(model).why(-1, 0, 3, 1)


def test_models_without_an_unembedding():
    model = numbered(transformers.LlamaModel(transformers.LlamaConfig(**LLAMA)))
    recording = recorded(model)
    assert recording.why(-1, 0, 3, 1).score
    for ask in (recording.writes, recording.lens):
        with pytest.raises(ValueError, match="LlamaModel has no unembedding"):
            ask()


def test_more_than_a_product_before_the_logits():
    config = transformers.BertConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3)
    model = numbered(transformers.BertForMaskedLM(config))
    with pytest.raises(ValueError, match=r"cls.predictions.transform.LayerNorm|computes more than a product"):
        recorded(model).writes()


def test_the_end_of_a_text_was_not_kept():
    model = llama()
    with ts.watch(model, keep="steps", queries=[1]) as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]), logits_to_keep=1)
    with pytest.raises(ValueError, match="let them hold the last position"):
        recording.writes(position=1)


def test_scores_that_are_no_products():
    model = gpt(attention="synthesizer", max_positions=8)
    with pytest.raises(ValueError, match="no projections of queries and keys"):
        recorded(model).why(-1, 0, 3, 1)


def test_an_encoder_has_no_logits():
    model = numbered(ts.models.Transformer(ts.models.TransformerConfig(vocabulary=20, d_model=16, heads=2)))
    with ts.watch(model, keep="steps", layers="encoder.*") as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="is of the encoder"):
        recording.writes("encoder.0.self")


def test_a_source_that_was_not_recorded():
    model = numbered(ts.models.Transformer(ts.models.TransformerConfig(vocabulary=20, d_model=16, heads=2)))
    with ts.watch(model, keep="steps", layers="decoder.*.cross") as recording, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="reads another sequence, whose residual stream was not recorded"):
        recording.why(-1, 0, 1, 1)


@pytest.mark.parametrize("many", [0, 2])
def test_one_run_at_a_time(many):
    model = gpt()
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        for _ in range(many):
            model(torch.tensor([[1, 2, 3, 4, 5]]))
    message = "was not called while it was watched" if many == 0 else "takes a recording of one run"
    with pytest.raises(ValueError, match=message):
        recording.why(-1, 0, 3, 1)


def test_a_model_that_writes_to_its_stream():
    model = llama()
    model.model.layers[0].mlp.register_forward_pre_hook(lambda module, args: (args[0].add_(0.0),))
    with pytest.raises(ValueError, match="the model has written to its residual stream since"):
        recorded(model).why(-1, 0, 3, 1)
    assert recorded(model, queries=[1, 3]).why(-1, 0, 3, 1).score
