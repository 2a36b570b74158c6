"""The circuits of every head against d_model x d_model products that are written out in float64.

The matrices are found by running each projection of a model on the rows of the identity; the norms are written out as
a gain and a centring.
"""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import telescope as ts
from support import huggingface
from support.huggingface import BERT, GPT2, LLAMA, MARIAN, VOCABULARY, transformers
from telescope.circuitry import layer_weights, vocabulary

LIMIT = 1e-10  # relative error
GEMMA = LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8}
NEOX = {key: LLAMA[key] for key in LLAMA if key != "num_key_value_heads"}
OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "word_embed_proj_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 40,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "num_layers": 2, "num_heads": 3, "d_ff": 40}
GPT = {"vocabulary": VOCABULARY, "max_positions": 40, "d_model": 24, "blocks": 2, "heads": 6}
ROTARY = {"positions": "rotary", "key_heads": 2, "norm": "rms", "window": 5, "tied": False, "d_k": 6, "gated": True}
TRANSFORMER = {"vocabulary": VOCABULARY, "d_model": 24, "heads": 3, "encoder_blocks": 2, "decoder_blocks": 2}


def hf(kind, config, **sizes):
    settings = getattr(transformers, config)(**sizes)
    return huggingface.numbered(getattr(transformers, f"{kind}")(settings)).double()


def own(model):
    return huggingface.numbered(model).double()


MODELS = {
    "gpt": lambda: own(ts.models.GPT(ts.models.GPTConfig(**GPT))),
    "gpt rotary, grouped, window": lambda: own(ts.models.GPT(ts.models.GPTConfig(**GPT | ROTARY))),
    "transformer": lambda: own(
        ts.models.Transformer(ts.models.TransformerConfig(**TRANSFORMER, pre_norm=True, positions="learned"))
    ),
    "gpt2": lambda: hf("GPT2LMHeadModel", "GPT2Config", **GPT2),
    "llama": lambda: hf("LlamaForCausalLM", "LlamaConfig", **LLAMA),
    "qwen2": lambda: hf("Qwen2ForCausalLM", "Qwen2Config", **LLAMA),
    "mistral": lambda: hf("MistralForCausalLM", "MistralConfig", **LLAMA),
    "gemma2": lambda: hf("Gemma2ForCausalLM", "Gemma2Config", **GEMMA),
    "gpt_neox": lambda: hf("GPTNeoXForCausalLM", "GPTNeoXConfig", **NEOX, bos_token_id=0, eos_token_id=0),
    "phi3": lambda: hf("Phi3ForCausalLM", "Phi3Config", **LLAMA, bos_token_id=0, eos_token_id=0),
    "opt": lambda: hf("OPTForCausalLM", "OPTConfig", **OPT),
    "t5": lambda: hf("T5ForConditionalGeneration", "T5Config", **T5),
    "glm4": lambda: hf("Glm4ForCausalLM", "Glm4Config", **LLAMA | {"head_dim": 8}, eos_token_id=0),
    "qwen3": lambda: hf("Qwen3ForCausalLM", "Qwen3Config", **LLAMA | {"head_dim": 8}),
    "olmo2": lambda: hf("Olmo2ForCausalLM", "Olmo2Config", **LLAMA, bos_token_id=0, eos_token_id=0),
    "bert": lambda: hf("BertForMaskedLM", "BertConfig", **BERT),
    "bart": lambda: hf(
        "BartForConditionalGeneration",
        "BartConfig",
        **{key: value for key, value in MARIAN.items() if key != "decoder_attention_heads"},
        decoder_attention_heads=3,
        bos_token_id=0,
    ),
    "mbart": lambda: hf("MBartForConditionalGeneration", "MBartConfig", **MARIAN, bos_token_id=0),
    "vit": lambda: hf(
        "ViTForImageClassification",
        "ViTConfig",
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        image_size=32,
        patch_size=16,
    ),
}
BEFORE = {  # the attention of the second layer, its norm before, and the norm of its keys where that is another
    "gpt": ("blocks.1.self", "blocks.1.add_norm_1.norm", None),
    "gpt rotary, grouped, window": ("blocks.1.self", "blocks.1.add_norm_1.norm", None),
    "transformer": ("decoder.1.cross", "decoder.1.add_norm_2.norm", "encoder_norm"),
    "gpt2": ("transformer.h.1.attn", "transformer.h.1.ln_1", None),
    "gpt_neox": ("gpt_neox.layers.1.attention", "gpt_neox.layers.1.input_layernorm", None),
    "opt": ("model.decoder.layers.1.self_attn", "model.decoder.layers.1.self_attn_layer_norm", None),
    "t5": ("decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.1.layer_norm", "encoder.final_layer_norm"),
    "olmo2": ("model.layers.1.self_attn", None, None),
    "bert": ("bert.encoder.layer.1.attention.self", None, None),
    "bart": ("model.decoder.layers.1.encoder_attn", None, None),
    "mbart": (
        "model.decoder.layers.1.encoder_attn",
        "model.decoder.layers.1.encoder_attn_layer_norm",
        "model.encoder.layer_norm",
    ),
    "vit": ("vit.layers.1.attention", "vit.layers.1.layernorm_before", None),
}
FINAL = {
    "gpt": ("norm", "embedding", None),
    "gpt rotary, grouped, window": ("norm", "embedding", "head"),
    "transformer": ("decoder_norm", "embedding", None),
    "gpt2": ("transformer.ln_f", "transformer.wte", "lm_head"),
    "gpt_neox": ("gpt_neox.final_layer_norm", "gpt_neox.embed_in", "lm_head"),
    "opt": ("model.decoder.final_layer_norm", "model.decoder.embed_tokens", "lm_head"),
    "t5": ("decoder.final_layer_norm", "shared", "lm_head"),
}
LLAMAS = ("llama", "qwen2", "mistral", "gemma2", "glm4", "phi3", "qwen3")
BEFORE |= dict.fromkeys(LLAMAS, ("model.layers.1.self_attn", "model.layers.1.input_layernorm", None))
FINAL |= dict.fromkeys((*LLAMAS, "olmo2"), ("model.norm", "model.embed_tokens", "lm_head"))


def linear(module):
    """Return the matrix of a module, by running it on the rows of the identity."""
    width = getattr(module, "in_features", None) or module.weight.shape[0]  # Conv1D is transposed
    with torch.no_grad():
        zeros = torch.zeros(1, width, dtype=torch.float64)
        return (module(torch.eye(width, dtype=torch.float64)) - module(zeros)).T


def norm_matrix(model, path, d_model):
    """Return the linear part of a norm, written out."""
    if path is None or isinstance(model.get_submodule(path), nn.Identity):
        return torch.eye(d_model, dtype=torch.float64)
    module = model.get_submodule(path)
    gain = module.weight.detach()
    if type(module).__name__.startswith("Gemma"):
        gain = 1 + gain
    matrix = torch.diag(gain)
    if isinstance(module, nn.LayerNorm):
        matrix = matrix @ (torch.eye(d_model, dtype=torch.float64) - 1 / d_model)
    return matrix


def matrices(name, model):
    """Return W_q, W_k, W_v and W_O of the attention, with queries of all heads stacked."""
    path, *_ = BEFORE[name]
    if name in ("gpt", "gpt rotary, grouped, window", "transformer"):
        layer = model.get_submodule(path.replace(".self", ".self_attention").replace(".cross", ".cross_attention"))
        q, k, v = linear(layer.W_qkv).split([*layer.W_qkv.widths.values()])
        return q, k, v, linear(layer.W_O), layer.heads, layer.key_heads
    layer = model.get_submodule(path)
    config = model.config
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    if name == "mbart":
        heads = key_heads = config.decoder_attention_heads
    if name == "gpt2":
        return *linear(layer.c_attn).split(24), linear(layer.c_proj), heads, heads
    if name == "gpt_neox":
        whole = linear(layer.query_key_value).view(heads, 3, -1, 32)
        return *(whole[:, i].flatten(0, 1) for i in range(3)), linear(layer.dense), heads, heads
    if name == "phi3":
        return *linear(layer.qkv_proj).split([32, 16, 16]), linear(layer.o_proj), heads, key_heads
    kinds = {
        "t5": "q k v o",
        "bert": "query key value",
        "opt": "q_proj k_proj v_proj out_proj",
        "bart": "q_proj k_proj v_proj out_proj",
        "mbart": "q_proj k_proj v_proj out_proj",
    }
    parts = [linear(getattr(layer, part)) for part in kinds.get(name, "q_proj k_proj v_proj o_proj").split()]
    if name == "bert":
        parts.append(linear(model.bert.encoder.layer[1].attention.output.dense))
    return *parts, heads, key_heads


def explicit(name, model, head):
    """Return W_qᵀ W_k and W_O W_v of a head, d_model x d_model, with the norms."""
    q, k, v, o, heads, key_heads = matrices(name, model)
    _, before, of_keys = BEFORE[name]
    d_model = q.shape[1]
    width = len(q) // heads
    key_head = head * key_heads // heads
    n = norm_matrix(model, before, d_model)
    m = norm_matrix(model, of_keys, d_model) if of_keys else n
    own = slice(head * width, (head + 1) * width)
    group = slice(key_head * width, (key_head + 1) * width)
    after = {"gemma2": "post_attention", "olmo2": "post_attention", "glm4": "post_self_attn"}.get(name)
    a = norm_matrix(model, after and f"model.layers.1.{after}_layernorm", d_model)
    return (q[own] @ n).T @ (k[group] @ m), a @ o[:, own] @ v[group] @ m


def close(found, truth):
    assert (found - truth).norm() <= LIMIT * truth.norm()


@pytest.mark.parametrize("name", MODELS)
def test_the_factors_are_those_of_the_written_out_products(name):
    model = MODELS[name]()
    layer, *_ = BEFORE[name]
    circuits = ts.circuits(model)
    for head in (0, 2):
        one = circuits[layer, head]
        qk, ov = explicit(name, model, head)
        close(one.ov.matrix(), ov)
        close(one.ov.singular_values, torch.linalg.svdvals(ov)[: len(one.ov.singular_values)])
        if name in ("qwen3", "olmo2"):
            with pytest.raises(ValueError, match=r"q_norm normalises them after the projection; \.ov is there"):
                _ = one.qk
            continue
        close(one.qk.matrix(), qk)
        close(one.qk.singular_values, torch.linalg.svdvals(qk)[: len(one.qk.singular_values)])
        left, right = one.qk.directions
        close(left.T @ torch.diag(one.qk.singular_values) @ right, qk)
        close(left @ left.T, torch.eye(len(left)).double())


@pytest.mark.parametrize("name", FINAL)
def test_copying_is_that_of_the_vocabulary_squared(name, monkeypatch):
    """The eigenvalues of a matrix of tokens x tokens, by torch, against those of d_v x d_v."""
    monkeypatch.setattr(vocabulary, "ROWS", 7)
    monkeypatch.setattr(vocabulary, "WIDTH", 5)
    model = MODELS[name]()
    layer, *_ = BEFORE[name]
    norm, embedding, unembedding = FINAL[name]
    _, ov = explicit(name, model, 1)
    e = model.get_submodule(embedding).weight.detach()
    u = e if unembedding is None else model.get_submodule(unembedding).weight.detach()
    eigenvalues = torch.linalg.eigvals(u @ norm_matrix(model, norm, e.shape[1]) @ ov @ e.T)
    truth = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
    circuits = ts.circuits(model)
    assert circuits[layer, 1].copying == pytest.approx(truth, abs=1e-9)
    # All heads together take another way through the vocabulary.
    rows = {(row["layer"], row["head"]): row["copying"] for row in ts.circuits(model).rows}
    assert rows[layer, 1] == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama", "gemma2", "gpt_neox", "opt"])
def test_compositions_are_ratios_of_written_out_norms(name):
    model = MODELS[name]()
    layer, *_ = BEFORE[name]
    circuits = ts.circuits(model)
    earlier = circuits[0, 1].ov.matrix()
    qk, ov = explicit(name, model, 0)
    for by, matrix in {"q": qk.T, "k": qk, "v": ov}.items():
        truth = (matrix @ earlier).norm() / (matrix.norm() * earlier.norm())
        found = circuits.composition((0, 1), (layer, 0), by)
        assert found.ratio == pytest.approx(float(truth), rel=1e-10)
        assert found.by_chance == pytest.approx(len(qk) ** -0.5)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama"])
def test_matching_is_that_of_the_vocabulary_squared(name):
    model = MODELS[name]()
    layer, *_ = BEFORE[name]
    _, embedding, _ = FINAL[name]
    e = model.get_submodule(embedding).weight.detach()
    circuits = ts.circuits(model)
    qk, _ = explicit(name, model, 2)
    eigenvalues = torch.linalg.eigvals(e @ qk @ circuits[0, 0].ov.matrix() @ e.T)
    truth = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
    assert circuits.matching((0, 0), (layer, 2)) == pytest.approx(truth, abs=1e-9)


def test_chance_is_the_mean_over_rotations():
    random = torch.Generator().manual_seed(3)
    model = MODELS["gpt"]()
    circuits = ts.circuits(model)
    qk = circuits[1, 0].qk.matrix()
    ov = circuits[0, 0].ov.matrix()
    turns = torch.linalg.qr(torch.randn(4000, 24, 24, generator=random, dtype=torch.float64)).Q
    squares = (qk @ turns @ ov).flatten(1).norm(dim=1) ** 2 / (qk.norm() * ov.norm()) ** 2
    found = circuits.composition((0, 0), (1, 0), "k")
    assert float(squares.mean()) ** 0.5 == pytest.approx(found.by_chance, rel=0.02)
    assert float(squares.max()) ** 0.5 < found.at_most


@pytest.mark.parametrize("name", ["gpt", "gpt2", "opt"])
def test_positions_alone_are_scored_row_by_row(name, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK", 7)
    model = MODELS[name]()
    table = {
        "gpt": lambda: model.positions.P,
        "gpt2": lambda: model.transformer.wpe.weight,
        "opt": lambda: model.model.decoder.embed_positions.weight[2:],
    }[name]().detach()
    for layer, head in ((0, 0), (1, 2)):
        one = ts.circuits(model)[layer, head]
        bias = one.biases.query
        hits = []
        for i in range(1, len(table)):
            scores = [(table[i] @ one.qk.left.T + bias) @ (one.qk.right @ table[j]) for j in range(i + 1)]
            hits.append(float(max(scores) == scores[i - 1]))
        assert one.previous_token == pytest.approx(sum(hits) / len(hits))


def test_biases_come_through_the_norm():
    """Queries, keys and values of the mean token are what is added to all of them."""
    model = MODELS["gpt"]()
    block = model.blocks[1]
    one = ts.circuits(model)[1, 2]
    x = torch.randn(1, 3, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    with torch.no_grad():
        keys, values = block.self_attention.keys_and_values(
            block.add_norm_1.norm.bias + x * block.add_norm_1.norm.weight
        )
        queries = block.self_attention.queries(block.add_norm_1.norm.bias + x * block.add_norm_1.norm.weight)
    close(x @ one.qk.left.T + one.biases.query, queries[:, 2])
    close(x @ one.qk.right.T + one.biases.key, keys[:, 2])
    close(x @ one.ov.right.T + one.biases.value, values[:, 2])


class Largest(TorchFunctionMode):
    """Note the largest tensor that any function of torch returns, views of the weights left out."""

    def __init__(self, weights):
        self.memory = {weight.untyped_storage().data_ptr() for weight in weights}
        self.numbers = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self.memory:
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return found


def test_no_large_matrix_is_formed(monkeypatch):
    """Of the width of a model of 1.5 billion parameters, with two of its layers and few tokens and hidden features."""
    monkeypatch.setattr(vocabulary, "ROWS", 256)
    monkeypatch.setattr(vocabulary, "WIDTH", 128)
    torch.manual_seed(0)
    sizes = {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 64}
    config = transformers.Qwen2Config(vocab_size=3000, num_hidden_layers=2, **sizes, tie_word_embeddings=True)
    model = transformers.Qwen2ForCausalLM(config).eval()
    with Largest([*model.parameters()]) as seen:
        circuits = ts.circuits(model, previous=[(0, 3)])
        head = circuits[1, 7]
        assert head.qk.directions.left.shape == head.ov.directions.right.shape == (128, 1536)
        assert head.qk.singular_values.shape == (128,)
        assert abs(head.copying) < 0.2
        assert circuits.composition((0, 3), (1, 7), "k").at_most > 0
        assert len(circuits.rows) == 24  # all heads pass through the vocabulary together
    # The largest are a block of tokens, and a factor of one head.
    assert seen.numbers <= 1536 * 256 < 1536 * 1536 / 4
