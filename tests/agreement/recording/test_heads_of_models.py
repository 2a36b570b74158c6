"""`heads()` of whole models: a padded sentence has the numbers of the sentence alone, a text that is generated those of
the whole text, and a selection of queries those of the same rows."""

from dataclasses import fields, replace
from math import isnan

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, normal, tensors
from support.watching import KEEPS, filled
from telescope.attention import RealQueries, find_padding
from telescope.layers import Attend
from telescope.measures import Head
from telescope.measures.habits import NAMES

VOCABULARY = 61
IDS = torch.randint(4, 10, (1, 12), generator=torch.Generator().manual_seed(0))
MEASURES = [field.name for field in fields(Head)][3:]


def table(recording):
    return {(head.layer, head.number): head for head in recording.heads()}


def assert_same_heads(one, other, atol=1e-4, leave_out=()):
    one, other = table(one), table(other)
    assert one.keys() == other.keys()
    for key, head in one.items():
        for name in {*MEASURES} - {*leave_out}:
            mine, theirs = getattr(head, name), getattr(other[key], name)
            assert mine == pytest.approx(theirs, abs=atol, nan_ok=True), (key, name)


def ours(kind):
    sizes = {"vocabulary": VOCABULARY, "d_model": 16, "blocks": 2, "heads": 4}
    if kind == "encoder":
        return filled(ts.models.Encoder(ts.models.EncoderConfig(**sizes)), torch.float32)
    return filled(ts.models.GPT(ts.models.GPTConfig(**sizes)), torch.float32)


def theirs(family, implementation="sdpa"):
    pytest.importorskip("transformers")
    from support.watched import FAMILIES

    return FAMILIES[family].model(implementation)


# ------------------------------------------------------------------------------------------------------------- padding


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("family", "side"), [("bert", "right"), ("llama", "left"), ("llama", "right"), ("gpt2", "right")]
)
def test_a_padded_sentence_has_the_numbers_of_the_sentence(family, side, implementation, keep):
    model = theirs(family, implementation)
    count, pad = IDS.shape[1], torch.zeros(1, 12, dtype=torch.long)
    parts = [IDS, pad] if side == "right" else [pad, IDS]
    ids, real = torch.cat(parts, 1), torch.cat([(part > 0).long() for part in parts], 1)
    own = slice(0, count) if side == "right" else slice(count, None)
    with torch.no_grad(), ts.watch(model, keep=keep) as alone:
        model(input_ids=IDS)
    with torch.no_grad(), ts.watch(model, keep=keep) as padded:
        options = {"position_ids": (real.cumsum(1) - 1).clamp(min=0)} if side == "left" else {}
        model(input_ids=ids, attention_mask=real, **options)
    for name, watched in padded.items():
        mine, exact = watched.survey(), alone[name].survey()
        assert_close(mine.received[..., own], exact.received, atol=1e-4, rtol=0)
        assert_close(mine.received.sum(), exact.received.sum(), atol=1e-3, rtol=0)
        assert_close(mine.entropy[..., own], exact.entropy, atol=1e-4, rtol=0)
        assert_close(mine.entropy.sum(), exact.entropy.sum(), atol=1e-3, rtol=0)  # padding's are 0
        assert int((mine.top.keys[..., 0] >= 0).sum()) == exact.top.keys[..., 0].numel()  # and -1
    assert_same_heads(padded, alone)


def test_a_batch_has_the_numbers_of_its_sentences():
    model, short = ours("encoder"), IDS[:, :7]
    batch = torch.cat([IDS, torch.nn.functional.pad(short, (0, 5))])
    with torch.no_grad(), ts.watch(model) as together:
        model(batch, mask=ts.padding([12, 7]))
    with torch.no_grad(), ts.watch(model) as apart:
        model(IDS)
        model(short)
    assert_same_heads(together, apart)


def test_padding_is_found_in_masks_of_other_libraries():
    """Tokens that no query sees are padding, if all others see themselves and all heads see the same."""
    size = {"batch": 2, "heads": 1, "size": (5, 5), "device": torch.device("cpu")}
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    square, strict = keep[:, None, None].expand(2, 1, 5, 5), torch.ones(5, 5).tril(-1).bool()
    expected = ts.padding(keep=keep)
    assert find_padding(ts.Attention(mask=ts.causal & ts.window(2)), **size) is None
    assert find_padding(ts.Attention(mask=ts.prefix(2)), **size) is None
    assert find_padding(ts.Attention(mask=ts.from_tensor(square)), **size) == expected
    assert find_padding(ts.Attention(mask=ts.from_tensor(square & torch.ones(5, 5).tril().bool())), **size) == expected
    assert find_padding(ts.Attention(mask=ts.from_tensor(strict)), **size) is None
    hidden = ts.from_additive(torch.zeros(2, 1, 5, 5).masked_fill(~square, -torch.inf))
    assert find_padding(ts.Attention(bias=hidden), **size) == expected
    assert find_padding(ts.Attention(bias=ts.from_additive(torch.zeros(2, 1, 5, 5))), **size) is None
    assert find_padding(ts.Attention(mask=ts.causal & ts.padding([5, 3])), **size) == ts.padding([5, 3])
    of_one_head = square.repeat(1, 2, 1, 1)
    of_one_head[:, 0] |= torch.ones(5, 5).tril().bool()
    assert find_padding(ts.Attention(mask=ts.from_tensor(of_one_head)), **size | {"heads": 2}) is None


def test_padding_queries_see_nothing():
    seen = RealQueries(ts.padding([3, 1])).block(3, 3, batch=2).expand(2, 1, 3, 3)
    assert seen[0].all()
    assert seen[1, 0].tolist() == [[True] * 3, [False] * 3, [False] * 3]


# ------------------------------------------------------------------------------------------------- texts, in any pieces


@pytest.mark.parametrize("keep", KEEPS)
def test_a_generated_text_has_the_numbers_of_the_whole_text(keep):
    model = ours("gpt")
    with ts.watch(model, keep=keep) as written:
        (answer,) = ts.decoding.generate(model, IDS.tolist(), max_new_tokens=20, temperature=0)
    whole = torch.tensor([IDS[0].tolist() + list(answer.ids)])[:, :-1]
    with torch.no_grad(), ts.watch(model, keep=keep) as read:
        model(whole)
    assert written.names == read.names
    assert len(next(iter(written.values())).calls) == 1
    assert_same_heads(written, read, 1e-3, leave_out=["retrieval"])  # of the generated tokens alone


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
@pytest.mark.parametrize("rows", [None, range(5, 15)])
def test_a_text_generated_by_transformers(family, rows):
    """Mistral's cache drops keys that its window no longer sees."""
    model = theirs(family)
    with torch.no_grad(), ts.watch(model, queries=rows) as written:
        ids = model.generate(
            IDS[:, :9], attention_mask=torch.ones(1, 9), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    with torch.no_grad(), ts.watch(model, queries=rows) as read:
        model(ids[:, :-1])
    assert_same_heads(written, read, 1e-3, leave_out=["retrieval"])  # of the generated tokens alone


@pytest.mark.parametrize("keep", KEEPS)
def test_selected_heads_and_queries(keep):
    model = ours("gpt")
    with torch.no_grad(), ts.watch(model, keep="steps") as whole:
        model(IDS)
    with torch.no_grad(), ts.watch(model, keep=keep, heads=[3, 1], queries=[4, 7, 11]) as some:
        model(IDS)
    for (layer, number), head in table(some).items():
        weights = whole[layer].trace().weights[0, number, [4, 7, 11]]
        assert head.previous == pytest.approx(float((weights[0, 3] + weights[1, 6] + weights[2, 10]) / 3), abs=1e-5)
        assert head.first == pytest.approx(float(weights[:, 0].mean()), abs=1e-5)


def test_cross_attention_has_no_positional_habits():
    model, (source, target) = ours_translator(), (IDS, IDS[:, :8])
    with torch.no_grad(), ts.watch(model) as recording:
        model(source, target)
    for head in recording.heads():
        known = [name for name in NAMES if not isnan(getattr(head, name))]
        assert known == (["first"] if head.layer.endswith("cross") else list(NAMES))


def ours_translator():
    config = ts.models.TransformerConfig(vocabulary=VOCABULARY, d_model=16, heads=2)
    return filled(ts.models.Transformer(replace(config, encoder_blocks=1, decoder_blocks=1)), torch.float32)


def test_surveys_of_several_layers_are_batched():
    """Eleven layers of one padded text are surveyed eight at a time."""
    shape = Shape(2, 2, 2, 9, 9, 4)

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 2)
            self.layers = torch.nn.ModuleList(Attend() for _ in range(11))

        def forward(self, ids, mask):
            self.embedding(ids)
            for i, attend in enumerate(self.layers):
                attend(*tensors(shape, 3 * i), ts.Attention(mask=mask))

    model, ids = Layers(), normal(2, 9, seed=1).abs().round().long()
    for mask in (ts.causal, ts.causal & ts.padding(left=[0, 3])):
        with ts.watch(model) as recording:
            model(ids, mask)
        with ts.watch(model, keep="queries-keys") as truth:
            model(ids, mask)
        assert_same_heads(recording, truth, 1e-9, leave_out=["streaming"])  # not kept by default
