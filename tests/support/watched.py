"""Small models of transformers, one of each family that can be watched, and their inputs."""

from dataclasses import dataclass, field

import torch

from support.huggingface import BERT, GPT2, LLAMA, MARIAN, VOCABULARY, numbered, transformers

IDS = torch.tensor([[1, 5, 2, 58, 3, 9, 9, 17], [4, 4, 7, 60, 12, 6, 33, 2]])
PADDED_LEFT = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
PADDED_RIGHT = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
DECODER = torch.tensor([[0, 8, 21, 4, 5], [0, 3, 3, 40, 11]])


@dataclass(frozen=True)
class Family:
    """A class of transformers with its config and its usual input."""

    kind: str
    config: str
    options: dict
    inputs: dict = field(default_factory=lambda: {"input_ids": IDS})
    own: str = "sdpa"  # the implementation by default

    def model(self, implementation=None):
        torch.manual_seed(0)  # of what `numbered` leaves as it is
        config = getattr(transformers, self.config)(**self.options)
        made = numbered(getattr(transformers, self.kind)(config))
        if implementation is not None:
            made.set_attn_implementation(implementation)
        return made


SEQ2SEQ = {"input_ids": IDS, "attention_mask": PADDED_RIGHT, "decoder_input_ids": DECODER}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
WHISPER = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 8,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_source_positions": 10,
    "max_target_positions": 24,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 5,
}
GPT_OSS = LLAMA | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
PIXELS = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
SOUND = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(1))

FAMILIES = {
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "mistral": Family("MistralForCausalLM", "MistralConfig", LLAMA | {"sliding_window": 4}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        LLAMA | {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 11},
        own="eager",
    ),
    "gpt-oss": Family("GptOssForCausalLM", "GptOssConfig", GPT_OSS, own="eager"),
    "bert": Family("BertForMaskedLM", "BertConfig", BERT, {"input_ids": IDS, "attention_mask": PADDED_RIGHT}),
    "vit": Family("ViTForImageClassification", "ViTConfig", VIT, {"pixel_values": PIXELS}),
    "t5": Family("T5ForConditionalGeneration", "T5Config", T5, SEQ2SEQ),
    "bart": Family("BartForConditionalGeneration", "BartConfig", MARIAN | {"bos_token_id": 2}, SEQ2SEQ),
    "marian": Family("MarianMTModel", "MarianConfig", MARIAN, SEQ2SEQ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        {"input_features": SOUND, "decoder_input_ids": DECODER},
    ),
}
WRITERS = ("gpt2", "llama", "qwen2", "mistral", "gemma2", "gpt-oss")
TRANSLATORS = ("t5", "bart", "marian")


CROSS = ("encoder_attn", "EncDecAttention", "crossattention")


def weights_by_name(output, names):
    """Return name of an attention → its weights, from the output of a model with output_attentions=True."""
    cross = [name for name in names if name.endswith(CROSS)]
    decoder = [name for name in names if "decoder" in name and name not in cross]
    encoder = [name for name in names if name not in (*cross, *decoder)]
    kinds = {"attentions": names, "encoder_attentions": encoder, "decoder_attentions": decoder}
    if "decoder_attentions" in output:
        kinds["cross_attentions"] = cross
    found = {}
    for kind, of_kind in kinds.items():
        if output.get(kind):
            found |= dict(zip(of_kind, output[kind], strict=True))
    assert sorted(found) == sorted(names)
    return found
