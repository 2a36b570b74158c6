"""A score and a logit are split by their authors: each part is what goes missing when the author writes nothing.

The truth is a model made affine by plain hooks, in float64; see support/frozen.py.
"""

import pytest
import torch

import telescope as ts
from support.frozen import Affine, close, features_of
from support.huggingface import BERT, GPT2, LLAMA, MARIAN, numbered, transformers

WIDE = LLAMA | {"num_hidden_layers": 3}
NEOX = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
OPT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
}
T5 = {
    "vocab_size": 61,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
}
GRANITE = {
    "residual_multiplier": 0.22,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1,
    "logits_scaling": 1.0,
}
PHI = {"bos_token_id": 0, "eos_token_id": 0}
GEMMA2 = {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": None}

# The class, its config, and the output projection, the feed-forward and the embedding of a layer.
ROPED = ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.embed_tokens")
DECODERS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", WIDE, ROPED),
    "llama with biases": ("LlamaForCausalLM", "LlamaConfig", WIDE | {"attention_bias": True, "mlp_bias": True}, ROPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", WIDE, ROPED),
    "qwen3, norms of queries": ("Qwen3ForCausalLM", "Qwen3Config", WIDE | {"head_dim": 8}, ROPED),
    "mistral, window": ("MistralForCausalLM", "MistralConfig", WIDE | {"sliding_window": 5}, ROPED),
    "gemma2, softcap": ("Gemma2ForCausalLM", "Gemma2Config", WIDE | GEMMA2, ROPED),
    "olmo2, norms behind": ("Olmo2ForCausalLM", "Olmo2Config", WIDE | PHI, ROPED),
    "granite, scaled stream": ("GraniteForCausalLM", "GraniteConfig", WIDE | GRANITE, ROPED),
    "phi3, one projection": ("Phi3ForCausalLM", "Phi3Config", WIDE | PHI, ROPED),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2 | {"n_layer": 3},
        ("transformer.h.{}.attn.c_proj", "transformer.h.{}.mlp", "transformer.wte"),
    ),
    "gpt-neox, parallel": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        NEOX,
        ("gpt_neox.layers.{}.attention.dense", "gpt_neox.layers.{}.mlp", "gpt_neox.embed_in"),
    ),
    "opt, scaled queries": (
        "OPTForCausalLM",
        "OPTConfig",
        OPT,
        ("model.decoder.layers.{}.self_attn.out_proj", "model.decoder.layers.{}.fc2", "model.decoder.embed_tokens"),
    ),
}


def made(kind, config, options, dtype=torch.float64):
    torch.manual_seed(0)
    return numbered(getattr(transformers, kind)(getattr(transformers, config)(**options))).to(dtype)


def affine_of(model, call, layers, names):
    projection, feed_forward, embedding = names
    contexts = {f"heads {i}": model.get_submodule(projection.format(i)) for i in range(layers)}
    outputs = {f"feed-forward {i}": model.get_submodule(feed_forward.format(i)) for i in range(layers)}
    return Affine(model, call, contexts, outputs | {"word": model.get_submodule(embedding)})


def watched(model, ids, name):
    """Return the scaled products of the queries and keys of the last layer, with the run's logits."""
    with ts.watch(model, keep="queries-keys", layers=name) as recording:
        logits = model(ids).logits
    return recording[name].call, logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_parts_are_what_goes_missing(family):
    kind, config, options, names = DECODERS[family]
    model = made(kind, config, options)
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        expected = model(ids).logits
    name, layers = recording.names[-1], len(recording.names)
    heads = len(recording[name].call.heads)
    affine = affine_of(model, lambda: watched(model, ids, name), layers, names)
    call = affine.whole[0]
    group = heads // call.keys.shape[1]
    scale = call.attention.scale_for(call.queries.shape[-1])
    sequence, head, query, key = 1, 3 % heads, 7, 4
    found = recording.why(name, head, query, key, sequence=sequence)
    q, k = call.queries[sequence, head, query], call.keys[sequence, head // group, key]
    assert close(found.score, scale * (q @ k), abs(found.score))
    assert found.score == pytest.approx(float(found.terms.sum()), rel=1e-12, abs=1e-12)
    logits = recording.writes(tokens=[5, 9], position=query, sequence=sequence)
    assert logits.logits["5"] == pytest.approx(float(expected[sequence, query, 5]), rel=1e-6, abs=1e-6)

    authors = ["word", *(f"feed-forward {i}" for i in range(layers - 1))]
    authors += [f"head {i}.{j}" for i in range(layers - 1) for j in range(heads)]
    missing = {}
    for author in authors:
        layer, _, number = author.removeprefix("head ").partition(".")
        if author.startswith("head"):
            width = affine.contexts[f"heads {layer}"].weight.numel() // model.config.hidden_size
            missing[author] = affine.without(f"heads {layer}", features_of(int(number), heads, width))
        else:
            missing[author] = affine.without(author)
    by_query, by_key = found.by("query"), found.by("key")
    table = dict(zip(logits.authors, logits.values[:, 0].tolist(), strict=True))
    for author, (own, without) in missing.items():
        of_query = scale * (q - own.queries[sequence, head, query]) @ k
        of_key = scale * q @ (k - own.keys[sequence, head // group, key])
        size = sum(map(abs, by_query.values())) + sum(map(abs, by_key.values()))
        assert close(by_query[author], of_query, size), author
        assert close(by_key[author], of_key, size), author
        lost = affine.whole[1][sequence, query, 5] - without[sequence, query, 5]
        assert close(table[author], lost, logits.values.abs().sum()), author


BOTH = {
    "bert": ("BertModel", "BertConfig", BERT | {"num_hidden_layers": 3}, None),
    "modern bert": (
        "ModernBertModel",
        "ModernBertConfig",
        {
            "vocab_size": 61,
            "hidden_size": 24,
            "num_attention_heads": 3,
            "num_hidden_layers": 3,
            "intermediate_size": 40,
            "pad_token_id": 0,
            "eos_token_id": 0,
            "bos_token_id": 0,
            "cls_token_id": 0,
            "sep_token_id": 0,
        },
        None,
    ),
    "marian": ("MarianMTModel", "MarianConfig", MARIAN, 6),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, 6),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", BOTH)
@torch.no_grad()
def test_every_score_of_every_attention_adds_up(family, dtype):
    """Encoders that normalise behind each sum, and both sides of a cross-attention; rounding is small."""
    kind, config, options, target = BOTH[family]
    model = made(kind, config, options, dtype)
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    more = {} if target is None else {"decoder_input_ids": ids[:, :target]}
    with ts.watch(model, keep="steps") as recording:
        model(ids, **more)
    allowed = {torch.float32: 1e-5, torch.float64: 1e-6, torch.bfloat16: 0.1}[dtype]
    for name in recording.names:
        call = recording[name].call
        assert recording[name].before.shape[:2] == recording[name].after.shape[:2] == (2, call.size[0])
        scale = call.attention.scale_for(call.queries.shape[-1])
        for query, key in ((0, 0), (4, 2), (call.size[0] - 1, call.size[1] - 1)):
            found = recording.why(name, -1, query, key, sequence=1)
            ran = scale * call.queries[1, -1, query].double() @ call.keys[1, -1, key].double()
            assert found.score == pytest.approx(float(ran), rel=1e-9, abs=1e-9)
            assert float(found.terms.sum()) == pytest.approx(found.score, rel=1e-9, abs=1e-9)
            rest = [found.by("query").get("rounding", 0.0), found.by("key").get("rounding", 0.0)]
            assert max(map(abs, rest)) <= allowed * float(found.terms.abs().sum())


def own_models():
    made = {}
    for name, options in {
        "learned positions": {"positions": "learned"},
        "rotary, grouped": {"positions": "rotary", "key_heads": 1, "norm": "rms", "gated": True, "bias": False},
        "rotary of half the features": {"positions": "rotary", "rotary_fraction": 0.5, "rotary_pairs": "neighbours"},
        "no positions": {"positions": "none", "window": 3},
    }.items():
        config = ts.models.GPTConfig(vocabulary=40, d_model=16, blocks=3, heads=2, **options)
        made[name] = ts.models.GPT, config
    for name, options in {"post-norm": {"pre_norm": False}, "pre-norm": {"pre_norm": True}}.items():
        config = ts.models.TransformerConfig(vocabulary=40, d_model=16, heads=2, **options)
        made[name] = ts.models.Transformer, config
    return made


OWN = own_models()


@pytest.mark.parametrize("kind", OWN)
@torch.no_grad()
def test_models_of_telescope(kind):
    """Every author of every score of the last layer, by weights taken away by hand: heads of the first layers."""
    make, config = OWN[kind]
    torch.manual_seed(0)
    model = numbered(make(config)).double()
    ids = torch.randint(1, 40, (2, 8), generator=torch.Generator().manual_seed(1))
    inputs = (ids,) if make is ts.models.GPT else (ids, ids[:, :6])

    def run():
        with ts.watch(model, keep="queries-keys", layers=-1) as recording:
            logits = model(*inputs)
        return recording[recording.names[-1]].call, logits

    with ts.watch(model, keep="steps") as recording:
        model(*inputs)
    name = recording.names[-1]
    blocks = model.blocks if make is ts.models.GPT else model.decoder
    contexts = {"heads": blocks[0].self_attention.W_O}
    outputs = {"feed-forward": blocks[0].feed_forward}
    # Everything that is not linear is frozen, in every block and in the encoder.
    for path, module in model.named_modules():
        if path.endswith("W_O") and module not in contexts.values():
            contexts[path] = module
        if path.endswith("feed_forward") and module not in outputs.values():
            outputs[path] = module
    affine = Affine(model, run, contexts, outputs)
    call = affine.whole[0]
    scale = call.attention.scale_for(call.queries.shape[-1])
    found = recording.why(name, 1, 5, 3, sequence=1)
    logits = recording.writes(tokens=7, position=5, sequence=1)
    size = float(found.terms.abs().sum())
    stack = "" if make is ts.models.GPT else "decoder "
    group = len(call.heads) // call.keys.shape[1]
    q, k = call.queries[1, 1, 5], call.keys[1, 1 // group, 3]
    table = dict(zip(logits.authors, logits.values[:, 0].tolist(), strict=True))
    for author, taken in {
        f"{stack}head 0.1": affine.without("heads", features_of(1, 2, 16)),
        f"{stack}feed-forward 0": affine.without("feed-forward"),
    }.items():
        own, without = taken
        assert close(found.by("query")[author], scale * (q - own.queries[1, 1, 5]) @ k, size)
        if not call.across:
            assert close(found.by("key")[author], scale * q @ (k - own.keys[1, 1 // group, 3]), size)
        assert close(table[author], (affine.whole[1] - without)[1, 5, 7], logits.values.abs().sum())


@torch.no_grad()
def test_keys_of_a_head_add_up_to_what_it_wrote():
    model = made("LlamaForCausalLM", "LlamaConfig", WIDE)
    ids = torch.randint(1, 60, (1, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        model(ids)
    whole = recording.writes(tokens=[5, 9])
    for layer, name in enumerate(recording.names):
        keys = recording.writes(name, 2, tokens=[5, 9])
        own = torch.stack([keys.values[i] for i in keys.shown]).sum(0)
        place = whole.authors.index(f"head {layer}.2")
        torch.testing.assert_close(own, whole.values[place], rtol=1e-6, atol=1e-8)
        assert len(keys.shown) == 9


@torch.no_grad()
def test_a_difference_of_two_keys_has_no_term_that_both_have():
    model = made("GPT2LMHeadModel", "GPT2Config", GPT2)
    ids = torch.randint(1, 60, (1, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        model(ids)
    one, other = (recording.why(-1, 0, 8, key) for key in (5, 2))
    found = recording.why(-1, 0, 8, 5, against=2)
    assert found.score == pytest.approx(one.score - other.score)
    assert float(found.terms.sum()) == pytest.approx(found.score)
    assert found.masked == pytest.approx(float(torch.tensor(one.weight / other.weight).log()))
    assert abs(one.by("key")["bias of W_k"]) > 1e-3 > abs(found.by("key")["bias of W_k"]) * 1e12
    for author, part in found.by("key").items():
        assert part == pytest.approx(one.by("key").get(author, 0) - other.by("key").get(author, 0), abs=1e-12)


@torch.no_grad()
def test_a_text_that_grew_is_the_text_read_at_once():
    """Steps over a cache, left padding, and positions that were selected: the same terms."""
    model = made("Qwen2ForCausalLM", "Qwen2Config", WIDE)
    ids = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with ts.watch(model, keep="steps") as grown:
        text = model.generate(ids, attention_mask=mask, **options)
    longer = torch.cat([mask, torch.ones(2, 4, dtype=mask.dtype)], 1)
    positions = (longer.cumsum(1) - 1).clamp(min=0)
    with ts.watch(model, keep="steps") as whole:
        model(text, attention_mask=longer, position_ids=positions)
    with ts.watch(model, keep="steps", queries=[2, 7, 10]) as some:
        model(text, attention_mask=longer, position_ids=positions)
    assert some.nbytes < whole.nbytes / 2
    for sequence in (0, 1):
        expected = whole.why(-1, 1, 10, 2, sequence=sequence)
        for other in (grown, some):
            found = other.why(-1, 1, 10, 2, sequence=sequence)
            assert found.query_authors == expected.query_authors
            torch.testing.assert_close(found.terms, expected.terms, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            grown.writes(position=10, tokens=3, sequence=sequence).values,
            whole.writes(position=10, tokens=3, sequence=sequence).values,
            rtol=1e-5,
            atol=1e-6,
        )


@torch.no_grad()
def test_the_lens_is_the_last_norm_and_the_unembedding():
    model = made("LlamaForCausalLM", "LlamaConfig", WIDE)
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        out = model(ids, output_hidden_states=True)
    found = recording.lens(6, token=8, sequence=1)
    states = [model.model.norm(state[1, 6]) for state in out.hidden_states[:-1]] + [out.hidden_states[-1][1, 6]]
    logs = model.lm_head(torch.stack(states)).log_softmax(-1)
    assert found.probability == pytest.approx(logs[:, 8].exp().tolist(), rel=1e-6)
    assert found.rank == tuple((logs > logs[:, [8]]).sum(-1).tolist())
    kl = (logs[-1].exp() * (logs[-1] - logs)).sum(-1)
    assert found.divergence == pytest.approx(kl.tolist(), rel=1e-5, abs=1e-9)


@torch.no_grad()
def test_before_and_after_are_the_states_between_layers():
    model = made("LlamaForCausalLM", "LlamaConfig", WIDE)
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        out = model(ids, output_hidden_states=True)
    for layer, name in enumerate(recording.names):
        state = out.hidden_states[layer]
        torch.testing.assert_close(recording[name].before, state)
        added = model.model.layers[layer].self_attn(
            model.model.layers[layer].input_layernorm(state),
            position_embeddings=model.model.rotary_emb(state, torch.arange(9)[None]),
            attention_mask=None,
        )[0]
        torch.testing.assert_close(recording[name].after, state + added)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3, norms of queries", "gemma2, softcap"])
@torch.no_grad()
def test_readers_are_the_terms_of_why(family):
    """From the other end: a head's rows and columns in the tables of all later heads."""
    kind, config, options, _ = DECODERS[family]
    model = made(kind, config, options)
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    with ts.watch(model, keep="steps") as recording:
        model(ids)
    heads = len(recording[recording.names[0]].call.heads)
    found = recording.readers(0, 1, 7, 4, sequence=1)
    assert len(found.rows) == heads * (len(recording.names) - 1)
    for row in found.rows:
        whole = recording.why(row.layer, row.head, 7, 4, sequence=1)
        one = whole.query_authors.index("head 0.1")
        other = whole.key_authors.index("head 0.1")
        assert row.score == pytest.approx(whole.score, abs=1e-9)
        assert row.by_query == pytest.approx(whole.by("query")["head 0.1"], rel=1e-5, abs=1e-7)
        assert row.by_key == pytest.approx(whole.by("key")["head 0.1"], rel=1e-5, abs=1e-7)
        assert row.by_both == pytest.approx(float(whole.terms[one, other]), rel=1e-5, abs=1e-7)
    sizes = [abs(row.by_query + row.by_key - row.by_both) for row in found.top(3)]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(ValueError, match='there is no column "score"'):
        found.sort("score")
