"""The number of parameters of layers and models, by the formulas of the notes. All sizes are different primes."""

import pytest
import torch
from torch import nn

from telescope.layers import (
    AddNorm,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    LuongAttention,
    MultiHeadAttention,
    SelfAttention,
    SinusoidalPositions,
    SynthesizerAttention,
)
from telescope.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    LuongConfig,
    LuongTranslator,
    Transformer,
    TransformerConfig,
)

d, T, m, l = 13, 3, 5, 7  # noqa: E741  the notes' letters: d x m queries and keys, d x l values, T heads


def count(layer):
    return sum(parameter.numel() for parameter in layer.parameters())


def test_the_example_of_the_notes_is_three_matrices_of_3x2():
    assert count(SelfAttention(3, 2)) == 18


def test_self_attention():
    assert count(SelfAttention(d, m, l)) == d * (2 * m + l) == 221
    assert count(SelfAttention(d, m, l, bias=True)) == d * (2 * m + l) + 2 * m + l
    assert count(SelfAttention(d)) == 3 * d * d


def test_multi_head_is_the_notes_formula():
    weights = d * (2 * m + l) * T + T * l * d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, bias=False)) == weights == 936
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l)) == weights + 2 * m * T + l * T + d == 1000


def test_multi_head_biases_apart():
    weights = d * (2 * m + l) * T + T * l * d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, bias=False, out_bias=True)) == weights + d
    assert count(MultiHeadAttention(d, T, d_k=m, d_v=l, out_bias=False)) == weights + 2 * m * T + l * T


def test_the_paper_base_model():
    assert count(MultiHeadAttention(512, 8, bias=False)) == 4 * 512 * 512


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_grouped_queries_have_fewer_keys_and_values(key_heads):
    layer = MultiHeadAttention(d, 6, key_heads=key_heads, d_k=m, d_v=l, bias=False)
    assert count(layer) == d * m * 6 + d * (m + l) * key_heads + 6 * l * d


def test_a_memory_and_an_output_of_other_widths():
    d_memory, d_out = 17, 19
    layer = MultiHeadAttention(d, T, d_k=m, d_v=l, d_memory=d_memory, d_out=d_out)
    assert count(layer) == d * m * T + d_memory * (m + l) * T + T * l * d_out + 2 * m * T + l * T + d_out


def test_luong():
    assert count(LuongAttention("dot", d)) == 0
    assert count(LuongAttention("general", d, 17)) == d * 17
    assert count(LuongAttention("general", d)) == d * d
    assert count(LuongAttention("concat", d, 17, 11)) == d * 11 + 17 * 11 + 11
    assert count(LuongAttention("concat", d, 17)) == d * 17 + 17 * 17 + 17


@pytest.mark.parametrize(("shared", "tables"), [(False, T), (True, 1)])
def test_synthesizer(shared, tables):
    width, block = T * m, 11
    maps = 3 * width * width  # A, V and W_O
    assert count(SynthesizerAttention(width, T, block, shared=shared, bias=False)) == maps + tables * m * block
    assert count(SynthesizerAttention(width, T, block, shared=shared)) == (
        maps + 3 * width + tables * (m * block + block)
    )


def test_feed_forward():
    assert count(FeedForward(d, 29)) == 2 * d * 29 + 29 + d
    assert count(FeedForward(d, 29, bias=False)) == 2 * d * 29
    assert count(GatedFeedForward(d, 29)) == 3 * d * 29


def test_add_norm_and_positions():
    assert count(AddNorm(d)) == 2 * d
    assert count(AddNorm(d, norm=nn.RMSNorm)) == d
    assert count(LearnedPositions(17, d)) == 17 * d
    assert count(SinusoidalPositions(d + 1)) == 0


def test_the_transformer_of_the_paper():
    """Vaswani et al. 2017, base: d_model 512, d_ff 2048, six blocks each (their 65 million with the embeddings)."""
    attention, hidden, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder = EncoderBlock(512, MultiHeadAttention(512, 8), FeedForward(512, 2048))
    decoder = DecoderBlock(512, MultiHeadAttention(512, 8), MultiHeadAttention(512, 8), FeedForward(512, 2048))
    assert count(encoder) == attention + hidden + 2 * norm == 3_152_384
    assert count(decoder) == 2 * attention + hidden + 3 * norm == 4_204_032


# ---------------------------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize(
    ("attention", "whole_model"),
    [
        ({"attention": "causal"}, 3_323_392),
        ({"attention": "synthesizer", "synthesizer_block": 127, "synthesizer_shared": True}, 3_076_988),
    ],
    ids=["vanilla", "synthesizer"],
)
def test_stanford_assignment_5(attention, whole_model):
    """Four blocks of width 256, 256 characters, 128 learned positions, a final norm and a head without bias."""
    assert count(GPT(GPTConfig(max_positions=128, tied=False, **attention))) == whole_model


def meta(kind, config):
    """Build a model on the meta device: only the shapes of its weights count here."""
    with torch.device("meta"):
        return kind(config)


def test_gpt_2():
    """Radford et al. 2019, the smallest: 50,257 words, 1,024 positions, twelve blocks."""
    d, blocks = 768, 12
    config = GPTConfig(vocabulary=50_257, max_positions=1024, d_model=d, blocks=blocks, heads=12)
    each = 4 * (d * d + d) + 2 * 4 * d * d + 5 * d + 2 * 2 * d
    assert count(meta(GPT, config)) == 50_257 * d + 1024 * d + blocks * each + 2 * d == 124_439_808


@pytest.mark.parametrize(
    ("changes", "published"),
    [
        (
            {"vocabulary": 32_000, "d_model": 4096, "blocks": 32, "heads": 32, "d_hidden": 11_008, "tied": False},
            6_738_415_616,
        ),
        (
            {
                "vocabulary": 128_256, "d_model": 2048, "blocks": 16, "heads": 32, "key_heads": 8, "d_hidden": 8192,
                "rotary_scaling": "llama3", "rotary_factor": 32.0, "rotary_base": 500_000.0,
            },
            1_235_814_400,
        ),
        (
            {
                "vocabulary": 151_936, "d_model": 896, "blocks": 24, "heads": 14, "key_heads": 2, "d_hidden": 4864,
                "attention_bias": True,
            },
            494_032_768,
        ),
        (
            {"vocabulary": 49_152, "d_model": 576, "blocks": 30, "heads": 9, "key_heads": 3, "d_hidden": 1536},
            134_515_008,
        ),
        (
            {
                "vocabulary": 32_000, "d_model": 4096, "blocks": 32, "heads": 32, "key_heads": 8, "d_hidden": 14_336,
                "tied": False, "window": 4096,
            },
            7_241_732_096,
        ),
        ({"vocabulary": 512, "d_model": 64, "blocks": 5, "heads": 8, "key_heads": 4, "d_hidden": 172}, 260_032),
    ],
    ids=["Llama 2 7B", "Llama 3.2 1B", "Qwen2 0.5B", "SmolLM2 135M", "Mistral 7B", "stories260K"],
)  # fmt: skip
def test_the_llama_family(changes, published):
    llama = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
    config = GPTConfig(**llama | {"out_bias": False} | changes)
    assert count(meta(GPT, config)) == published


def test_the_transformer_of_the_paper_with_its_words():
    """Base, with 37,000 pieces shared by both languages and the head: the paper's 65 million are 63 in our count."""
    config = TransformerConfig(vocabulary=37_000, d_model=512, encoder_blocks=6, decoder_blocks=6, heads=8)
    assert count(meta(Transformer, config)) == 37_000 * 512 + 6 * 3_152_384 + 6 * 4_204_032 == 63_082_496


def test_transformer_parts():
    small = {"vocabulary": 17, "d_model": 6, "encoder_blocks": 1, "decoder_blocks": 1, "heads": 2}
    plain = count(Transformer(TransformerConfig(**small)))
    for changes, more in (
        ({"shared": False}, 17 * 6),
        ({"shared": False, "target_vocabulary": 19}, 19 * 6),
        ({"tied": False}, 17 * 6),
        ({"head_bias": True}, 17),
        ({"pre_norm": True}, 2 * 2 * 6),
        ({"final_norm": True}, 2 * 2 * 6),
        ({"pre_norm": True, "final_norm": False}, 0),
        ({"positions": "learned", "max_positions": 11}, 2 * 11 * 6),
        ({"decoder_d_hidden": 25}, 6 + 6 + 1),
    ):
        assert count(Transformer(TransformerConfig(**small | changes))) == plain + more, changes


def test_bert_and_minilm():
    """Devlin et al. 2019, base, with its pooler; and all-MiniLM-L6, a sixth of it."""
    bert = EncoderConfig(vocabulary=30_522, d_model=768, blocks=12, heads=12, pooling="bert")
    assert count(meta(Encoder, bert)) == 109_482_240
    minilm = EncoderConfig(vocabulary=30_522, d_model=384, blocks=6, heads=12, pooling="bert")
    assert count(meta(Encoder, minilm)) == 22_713_216


def test_luong_translator():
    V, W, e, d = 17, 19, 5, 6
    lstm = lambda d_in, d_out: 4 * (d_in * d_out + d_out * d_out + 2 * d_out)  # noqa: E731  four gates, two biases
    outside = V * e + W * e + 2 * d * d + W * d  # embeddings, W_c, head
    sizes = {"vocabulary": V, "target_vocabulary": W, "d_embedding": e, "d_model": d}
    one = LuongTranslator(LuongConfig(**sizes, layers=1, score="dot"))
    assert count(one) == outside + lstm(e, d) + lstm(e + d, d)
    two = LuongTranslator(LuongConfig(**sizes, layers=2, bidirectional=True, input_feeding=False, score="general"))
    assert count(two) == outside + 2 * lstm(e, d // 2) + 2 * lstm(d, d // 2) + lstm(e, d) + lstm(d, d) + d * d
