"""The weights that are shown for a written text are those that the model computed when it wrote it, joined to words."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import writers
from telescope.decoding import generate
from telescope.tasks.explaining.sentence_views import watch_alignment, watch_translation

close = {"rtol": 0.0, "atol": 1e-12}


def by_hand(weights, rows, columns):
    """Join tokens to words: the row of a word is the mean over its tokens, its column their sum."""
    joined = torch.zeros(*weights.shape[:-2], len(rows.names), len(columns.names), dtype=weights.dtype)
    for i, j in ((i, j) for i in range(len(rows.names)) for j in range(len(columns.names))):
        block = weights[..., rows.positions(i), :][..., columns.positions(j)]
        joined[..., i, j] = block.sum(-1).mean(-1)
    return joined


@pytest.mark.parametrize("make", [writers.translator, writers.luong])
def test_the_alignment_is_the_cross_attention_of_the_decoder(make):
    model = make().double()
    with ts.watch(model, layers="*cross", keep="steps") as recording:
        (written,) = generate(model, writers.NOTES, max_new_tokens=9, seed=3, end=())
    looking = watch_alignment(model, writers.NOTES, written)
    assert [layer.name for layer in looking.layers] == list(recording)
    for layer, name in enumerate(recording):
        kept = recording[name].trace().weights[0]
        assert kept.shape[-2:] == (9, len(looking.columns.word_ids))
        assert_close(looking.weights[layer], by_hand(kept, looking.rows, looking.columns), **close)
    assert_close(looking.alignment.sum(-1), torch.ones(len(looking.rows.names)).double(), **close)
    assert looking.rows.names != looking.columns.names
    assert len(looking.columns.names) < len(looking.columns.word_ids)  # some words are in pieces


@pytest.mark.parametrize("prompt", ["ROMEO: I am", "O", ""])
def test_a_gpt_attends_to_all_earlier_words(prompt):
    model = writers.gpt().double()
    (written,) = generate(model, prompt or "\n", max_new_tokens=9, seed=3)
    looking = watch_alignment(model, prompt, written)
    ids = [*model.tokenizer.encode(prompt or "\n").ids, *written.ids]
    with ts.watch(model, keep="steps") as recording:
        model(torch.tensor([ids[:-1]]))
    kept = torch.stack([recording[name].trace().weights[0, :, -9:] for name in recording])
    assert_close(looking.weights, by_hand(kept, looking.rows, looking.columns), **close)


def test_a_gpt_that_wrote_more_tokens_than_it_has_positions():
    model = writers.gpt(max_positions=8)
    longest = ts.decoding.Written(list(range(20)), "", "length")
    looking = watch_alignment(model, "ROMEO: I am", longest)
    assert (len(looking.rows.word_ids), len(looking.columns.word_ids)) == (8, 8)


def test_every_attention_of_a_sentence():
    model = writers.translator().double()
    (written,) = generate(model, writers.NOTES, max_new_tokens=7, seed=1, end=())
    encoder, decoder, cross = watch_translation(model, writers.NOTES, written)
    source = model.tokenizer.encode(writers.NOTES).ids
    with ts.watch(model, keep="steps") as recording:
        model(torch.tensor([source]), torch.tensor([[writers.START, *written.ids[:-1]]]))
    for looking, pattern in ((encoder, "encoder.{}.self"), (decoder, "decoder.{}.self"), (cross, "decoder.{}.cross")):
        for layer in range(2):
            weights = recording[pattern.format(layer)].trace().weights[0]
            assert_close(looking.weights[layer], by_hand(weights, looking.rows, looking.columns), **close)
            assert torch.equal(looking.trace(layer, 3).weights[0, 0], weights[3])
    assert decoder.rows.names[0] == "<s>"
    assert cross.columns.names == encoder.rows.names == (*writers.NOTES.split(), "</s>")


def test_a_head_of_a_trace_has_the_numbers_of_the_whole_trace():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 3)
    steps = ts.trace(q, k, v, ts.Attention(mask=ts.causal, bias=ts.alibi(4), sink=torch.randn(4)))
    for head in range(4):
        alone = steps.head(head)
        again = ts.trace(alone.queries, alone.keys, alone.values, alone.attention)
        for name in ("scores", "biased", "masked", "weights", "context"):
            assert torch.equal(getattr(alone, name)[:, 0], getattr(steps, name)[:, head])
            assert_close(getattr(alone, name), getattr(again, name))
        assert torch.equal(alone.keys[:, 0], k[:, head // 2])
    with pytest.raises(ValueError, match="there is no head 4; there are 4, counted from 0"):
        steps.head(4)
