"""What cannot be read from weights, and mistakes of a caller: each is one sentence."""

import pytest
import torch
from torch import nn

import telescope as ts
from support import huggingface
from support.huggingface import LLAMA, transformers
from telescope.anatomy import read_norm
from telescope.circuitry import Factors


def gpt(**more):
    return ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2, **more))


def test_a_head_that_is_not_there():
    circuits = ts.circuits(gpt())
    with pytest.raises(ValueError, match=r'there is no head 2 of "blocks.0.self"; there are 2'):
        _ = circuits[0, 2]
    with pytest.raises(ValueError, match=r"layer=7 is no layer of this model; they count from 0 to 1"):
        _ = circuits[7, 0]
    with pytest.raises(TypeError, match=r"3 is no head; it takes a layer and the number of a head"):
        _ = circuits[3]
    with pytest.raises(ValueError, match=r'there is no column "copy"; did you mean "copying"\?'):
        circuits.sort("copy")


def test_a_number_that_names_several_attentions():
    model = ts.models.Transformer(ts.models.TransformerConfig(vocabulary=8, d_model=8, heads=2, pre_norm=True))
    with pytest.raises(ValueError, match=r"layer=-1 is 3 attentions: encoder.2.self, decoder.2.self, decoder.2.cross"):
        _ = ts.circuits(model)[-1, 0]


def test_heads_that_do_not_follow_each_other():
    circuits = ts.circuits(gpt())
    for one, other in [((1, 0), (0, 0)), ((0, 0), (0, 1))]:
        with pytest.raises(ValueError, match="take an earlier head of the same stream"):
            circuits.composition(one, other, "k")
    with pytest.raises(ValueError, match=r'by="w" is not what a head reads with'):
        circuits.composition((0, 0), (1, 0), "w")
    with pytest.raises(ValueError, match=r'there is no head 5 of "blocks.0.self"'):
        ts.circuits(gpt(), previous=[(0, 5)])


def test_a_stream_between_two_stacks():
    config = ts.models.TransformerConfig(
        vocabulary=8, d_model=8, heads=2, pre_norm=True, encoder_blocks=1, decoder_blocks=1
    )
    circuits = ts.circuits(ts.models.Transformer(config))
    assert circuits.composition(("encoder.0", 0), ("decoder.0.cross", 1), "k").ratio > 0
    assert circuits.composition(("decoder.0.self", 0), ("decoder.0.cross", 1), "q").ratio > 0
    with pytest.raises(ValueError, match="is not what the q of head 1"):
        circuits.composition(("encoder.0", 0), ("decoder.0.cross", 1), "q")
    why_not = circuits["decoder.0.cross", 0].why_not
    assert why_not["previous_token"] == "queries and keys stand in two sequences, which share no positions"
    assert why_not["induction"] == "it reads another sequence, in which its own tokens do not occur"
    assert circuits["encoder.0", 0].why_not["copying"].startswith("a head of the encoder writes")


def test_norms_after_the_addition_are_refused():
    model = ts.models.Encoder(ts.models.EncoderConfig(vocabulary=8, d_model=8, blocks=2, heads=2))
    with pytest.raises(ValueError, match="reaches later heads through their norms"):
        ts.circuits(model).composition((0, 0), (1, 0), "v")


def test_families_that_are_not_known():
    sizes = {key: LLAMA[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    config = transformers.DeepseekV3Config(
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
    )
    model = transformers.DeepseekV3ForCausalLM(config)
    with pytest.raises(ValueError, match=r"has projections that are not known: DeepseekV3Attention has none"):
        ts.circuits(model)


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("DiffLlama", "has lambda_q1, and what that does to its heads is not known: DiffLlamaAttention"),
        ("BitNet", "has attn_sub_norm, and what that does to its heads is not known: BitNetAttention"),
    ],
)
def test_parts_that_change_what_a_head_writes(family, part):
    config = getattr(transformers, f"{family}Config")(**LLAMA, bos_token_id=0, eos_token_id=0)
    with pytest.raises(ValueError, match=part):
        ts.circuits(getattr(transformers, f"{family}ForCausalLM")(config))


def test_a_block_that_scales_what_a_head_writes():
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.BeitConfig(**sizes, image_size=32, patch_size=16, layer_scale_init_value=0.1)
    with pytest.raises(ValueError, match="is not known"):
        ts.circuits(transformers.BeitModel(config))


def test_models_without_an_unembedding():
    model = huggingface.numbered(transformers.LlamaModel(transformers.LlamaConfig(**LLAMA)))
    head = ts.circuits(model)[1, 0]
    assert head.copying is None
    assert head.why_not["copying"] == "LlamaModel has no unembedding: it predicts no token"
    assert head.ov.singular_values.shape == (8,)


def test_an_encoder_of_sound_reads_no_tokens():
    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(vocab_size=61, d_model=16, **sizes, **ids)
    circuits = ts.circuits(transformers.WhisperForConditionalGeneration(config))
    assert circuits["model.decoder.layers.1.self_attn", 0].copying is not None
    why_not = circuits["model.decoder.layers.1.encoder_attn", 0].why_not["copying"]
    assert why_not.startswith("the encoder of WhisperForConditionalGeneration does not read the tokens")


def test_two_vocabularies_have_no_tokens_in_common():
    config = ts.models.TransformerConfig(
        vocabulary=8, target_vocabulary=9, shared=False, d_model=8, heads=2, pre_norm=True
    )
    circuits = ts.circuits(ts.models.Transformer(config))
    assert circuits["decoder.0.self", 0].copying is not None
    assert circuits["decoder.0.cross", 0].copying is None
    assert "does not read the tokens that its decoder writes" in circuits["decoder.0.cross", 0].why_not["copying"]


def test_a_large_matrix_is_not_formed():
    factors = Factors(torch.zeros(1, 2**14), torch.zeros(1, 2**13))
    with pytest.raises(ValueError, match=r"16,384 x 8,192 numbers, and at most 67,108,864 are formed; .left"):
        factors.matrix()


class Bent(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).tanh()


def test_a_norm_that_does_more_is_refused():
    assert read_norm(nn.Identity()) is None
    assert read_norm(nn.LayerNorm(8)).centres
    assert not read_norm(nn.RMSNorm(8)).centres
    assert read_norm(nn.LayerNorm(8, elementwise_affine=False)).gain.tolist() == [1.0] * 8
    with pytest.raises(ValueError, match="its norm, a Bent, does more than centre, divide and multiply"):
        read_norm(Bent(8))


def test_adapters_and_quantised_projections_are_named():
    model = huggingface.gpt("llama")
    model.model.layers[0].self_attn.v_proj = nn.Sequential(model.model.layers[0].self_attn.v_proj)
    circuits = ts.circuits(model)
    assert list(circuits.left_out) == ["model.layers.0.self_attn"]
    with pytest.raises(ValueError, match=r'"model.layers.0.self_attn" has values that are not known'):
        _ = circuits["model.layers.0.self_attn", 0]
    assert "not read: model.layers.0.self_attn" in repr(circuits)
