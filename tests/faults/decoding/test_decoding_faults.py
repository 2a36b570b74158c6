"""Bad arguments of decoding are an error of one sentence, before anything is computed."""

import pytest
import torch

import telescope as ts
from telescope.decoding import beam, generate, stream
from telescope.models import GPT, Encoder, GPTConfig, Special, Transformer, TransformerConfig

V = 20


@pytest.fixture
def gpt():
    return GPT(GPTConfig(vocabulary=V, max_positions=16, d_model=8, blocks=1, heads=2))


@pytest.fixture
def translator():
    model = Transformer(TransformerConfig(vocabulary=V, target_vocabulary=30, shared=False, d_model=8, heads=2))
    model.special = Special(start=25)
    return model


@pytest.mark.parametrize("write", [generate, beam])
@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1, 20]], "prompt 0 has the id 20; the vocabulary is 0 to 19"),
        ([[1], [-1, 3]], "prompt 1 has the id -1; the vocabulary is 0 to 19"),
        (torch.tensor([[3, 99]]), "prompt 0 has the id 99"),
        ([[1], []], "prompt 1 is empty; there must be at least one token"),
        (torch.zeros(2, 0, dtype=torch.long), "prompt 0 is empty"),
        (["Hello"], "prompt 0 is text, but the model has no tokenizer"),
        ("Hello", "prompt 0 is text, but the model has no tokenizer"),
        ([list(range(17))], "a prompt of 17 tokens and max_new_tokens=5 are too many: this model has positions for 16"),
        ([list(range(13))], "at most max_new_tokens=4 fit"),
    ],
)
def test_prompts(gpt, write, prompts, message):
    with pytest.raises(ValueError, match=message):
        write(gpt, prompts, max_new_tokens=5)


@pytest.mark.parametrize("prompts", [[[1.5]], [None], torch.tensor([[0.5]]), [[True]]])
def test_prompts_of_a_wrong_type(gpt, prompts, unchecked):
    with pytest.raises(TypeError, match=r"prompt 0 is .*; a prompt is text, or whole numbers"):
        generate(gpt, prompts)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens=-1 must be a whole number, at least 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5 must be a whole number"),
        ({"temperature": -0.1}, "temperature=-0.1 must be 0, which is greedy, or a number above"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0 must be a whole number, at least 1"),
        ({"top_p": 0.0}, "top_p=0.0 is a probability above 0, up to 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"min_p": -0.5}, "min_p=-0.5 is a share from 0"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0 must be above 0; 1 is none"),
        ({"stop": "."}, "stop is text, but the model has no tokenizer"),
        ({"stop": [""]}, "should be texts of at least one character"),
        ({"end": [20]}, "end has the id 20; the vocabulary is 0 to 19"),
    ],
)
@pytest.mark.parametrize("write", [generate, stream])
def test_sampling_options_out_of_range(gpt, write, how, message):
    """A stream raises when it is made, not at its first token."""
    with pytest.raises(ValueError, match=message):
        write(gpt, [1], **{"max_new_tokens": 4, **how})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"beams": 0}, "beams=0 must be a whole number, at least 1"),
        ({"n_best": 0}, "n_best=0 must be a whole number, at least 1"),
        ({"beams": 3, "n_best": 4}, "n_best=4 of beams=3 are too many"),
        ({"length_penalty": float("inf")}, "length_penalty=inf must be a finite number"),
        ({"max_new_tokens": -3}, "max_new_tokens=-3"),
    ],
)
def test_beam_options_out_of_range(gpt, how, message):
    with pytest.raises(ValueError, match=message):
        beam(gpt, [[1]], **{"max_new_tokens": 4, **how})


def test_no_tokens_and_no_prompts_give_empty_results(gpt):
    (line,) = generate(gpt, [[1, 2]], max_new_tokens=0)
    assert (line.ids, line.text, line.why) == ([], None, "length")
    assert list(stream(gpt, [1, 2], max_new_tokens=0)) == []
    assert beam(gpt, [[1, 2]], max_new_tokens=0)[0][0].ids == []
    assert generate(gpt, [], max_new_tokens=3) == beam(gpt, [], max_new_tokens=3) == []


def test_a_prompt_and_its_continuation_that_just_fit(gpt):
    (line,) = generate(gpt, [list(range(13))], max_new_tokens=4)
    assert len(line.ids) == 4


def test_stream_takes_one_prompt(gpt):
    for several in ([[1, 2], [3]], torch.tensor([[1], [2]]), ["a", "b"]):
        with pytest.raises(ValueError, match="stream takes one prompt"):
            stream(gpt, several)


def test_models_that_cannot_generate():
    with pytest.raises(TypeError, match="Encoder cannot generate text; GPT, Transformer, LuongTranslator can"):
        generate(Encoder(ts.models.EncoderConfig(vocabulary=V, d_model=8, heads=2)), [[1]])


def test_a_translator_needs_a_start_token(translator):
    assert all(0 <= token < 30 for token in generate(translator, [[1]], max_new_tokens=3)[0].ids)
    translator.special = Special()
    with pytest.raises(ValueError, match="the model has no start token"):
        beam(translator, [[1]])
    with pytest.raises(ValueError, match="source 0 has the id 25; the vocabulary is 0 to 19"):
        generate(translator, [[25]])


def test_a_synthesizer_generates_up_to_its_longest_length():
    config = GPTConfig(vocabulary=V, d_model=8, blocks=1, heads=2, attention="synthesizer", synthesizer_block=6)
    assert len(generate(GPT(config), [[1, 2, 3]], max_new_tokens=4)[0].ids) == 4
    with pytest.raises(ValueError, match="positions for 6; at most max_new_tokens=4 fit"):
        generate(GPT(config), [[1, 2, 3]], max_new_tokens=5)


def test_fewer_words_than_beams():
    """The search returns as many texts as there are, no more."""
    model = GPT(GPTConfig(vocabulary=3, max_positions=8, d_model=8, blocks=1, heads=2))
    (best,) = beam(model, [[1]], beams=5, n_best=5, max_new_tokens=1, end=())
    assert sorted(found.ids for found in best) == [[0], [1], [2]]
