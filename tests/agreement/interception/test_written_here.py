"""Models in the shape of well-known small ones, written for these tests: watched by torch's functions alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import telescope as ts
from support.foreign import assert_edited, assert_watched, numbered

WIDTH, HEADS, LENGTH, VOCABULARY = 24, 3, 11, 37
IDS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


class CausalSelfAttention(nn.Module):
    """One projection to queries, keys and values, as nanoGPT has it."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.by_hand = by_hand

    def split(self, x):
        return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1)]

    def forward(self, x):
        queries, keys, values = self.split(x)
        y = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=0.1 if self.training else 0, is_causal=True
        )
        return self.c_proj(y.transpose(1, 2).flatten(2))


class AttentionByHand(CausalSelfAttention):
    """The same with a softmax of its own, as minGPT has it."""

    def forward(self, x):
        queries, keys, values = self.split(x)
        scores = queries @ keys.mT / math.sqrt(keys.shape[-1])
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        y = functional.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ values
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = attention(False)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, attention=CausalSelfAttention) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Block(attention) for _ in range(2)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def test_a_gpt_that_calls_torch():
    recording = assert_watched(numbered(GPT()), (IDS,))
    assert [*recording] == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert str(recording["transformer.h.0.attn"].call.attention.mask) == "causal"


def test_a_gpt_that_calls_torch_is_edited():
    assert_edited(numbered(GPT()), (IDS,))


def test_the_effect_of_every_head_is_tabulated_by_default():
    model = numbered(GPT())
    heads = assert_watched(model, (IDS,)).heads()
    effects = ts.effect(model, IDS, [ts.mute(head.layer, head.number) for head in heads])
    assert len(effects) == 1 + 2 * HEADS
    assert min(effects.columns["kl"][1:]) > 0


@pytest.mark.parametrize("verb", ["watch", "edit"])
def test_a_softmax_by_hand_is_refused_in_one_sentence(verb):
    model = GPT(AttentionByHand)
    with pytest.raises(ValueError, match="by hand") as problem:  # noqa: SIM117
        with ts.watch(model) if verb == "watch" else ts.edit(model, ts.mute()):
            pass
    assert str(problem.value) == (
        "GPT: 2 modules compute their weights by hand, with a softmax that cannot be seen: transformer.h.0.attn, "
        "transformer.h.1.attn; call torch.nn.functional.scaled_dot_product_attention there, or ts.attend, which are "
        "recorded"
    )


SOURCE = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(2))
TARGET = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(3))


def translator(**options):
    sizes = {"d_model": WIDTH, "nhead": HEADS, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return numbered(nn.Transformer(**sizes, dim_feedforward=40, batch_first=True, **options))


MASK = nn.Transformer.generate_square_subsequent_mask(5)
INPUTS = {
    "plain": {"src": SOURCE, "tgt": TARGET},
    "causal": {"src": SOURCE, "tgt": TARGET, "tgt_mask": MASK, "tgt_is_causal": True},
    "padded": {"src": SOURCE, "tgt": TARGET, "tgt_mask": MASK.isinf()}
    | dict.fromkeys(
        ("src_key_padding_mask", "memory_key_padding_mask"), torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_own_transformer(kind, norm_first):
    real = None if kind != "padded" else ~INPUTS[kind]["src_key_padding_mask"]
    recording = assert_watched(translator(norm_first=norm_first), INPUTS[kind], real)
    assert "decoder.layers.1.multihead_attn" in recording
    assert recording["decoder.layers.1.multihead_attn"].call.across
    assert not recording["decoder.layers.1.self_attn"].call.across


def test_padding_of_a_source_as_long_as_the_target_hides_no_query():
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    inputs = {"src": SOURCE[:, :5], "tgt": TARGET, "memory_key_padding_mask": hidden}
    recording = assert_watched(translator(), inputs)
    assert recording["decoder.layers.0.multihead_attn"].call.across
    assert not recording["decoder.layers.0.self_attn"].call.across


class Twice(nn.Module):
    """Self-attention whose layer computes its normed input twice, for queries and for keys."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x, hidden):
        return self.attend(self.norm(x), self.norm(x), x, key_padding_mask=hidden, need_weights=False)[0]


def test_equal_queries_and_keys_are_one_sequence():
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    recording = assert_watched(numbered(Twice()), (TARGET, hidden), ~hidden)
    assert not recording["attend"].call.across


@pytest.mark.parametrize("kind", ["plain", "causal"])
def test_torchs_own_transformer_is_edited(kind):
    assert_edited(translator(), INPUTS[kind])


class Loss(nn.Module):
    """A model that returns its mean loss, a single number for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GPT()

    def forward(self, ids):
        return functional.cross_entropy(self.net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_the_effects_on_a_single_number_are_those_of_each_edit():
    assert_edited(numbered(Loss()), (IDS,))


class Windows(nn.Module):
    """Attention within windows of an image, which are rows of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(False)

    def forward(self, x):
        batch = len(x)
        return self.attn(x.unflatten(1, (4, 3)).flatten(0, 1)).unflatten(0, (batch, 4)).flatten(1, 2)


def test_the_effects_of_edits_within_windows_are_those_of_each_edit():
    assert_edited(numbered(Windows()), (torch.randn(2, 12, WIDTH, generator=torch.Generator().manual_seed(4)),))
