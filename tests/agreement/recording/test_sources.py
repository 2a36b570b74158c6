"""Where an answer comes from, compared with whole matrices, with autograd through eager attention, and by hand."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.recording.sources import ANSWER

IDS = torch.randint(1, 40, (2, 23), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    config = ts.models.GPTConfig(vocabulary=40, d_model=32, blocks=3, heads=4, key_heads=2, max_positions=64)
    return spread_out(ts.models.GPT(config).double().eval())


def spread_out(model):
    """Scale the weights, so that attention is far from even."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12.0 if parameter.ndim > 1 else 1.0)
    return model


def watched(model, *inputs, keep="queries-keys", **options):
    with ts.watch(model, keep=keep, **options) as recording, torch.no_grad():
        model(*inputs)
    return recording


def matrices(model, *inputs):
    """Return the weights (batch, heads, query, key) of every attention, by name."""
    recording = watched(model, *inputs, keep="steps")
    return {name: seen.trace().weights for name, seen in recording.items()}


# --------------------------------------------------------------------------------------------------------- weights


def test_weights_are_the_mean_of_the_rows(gpt):
    found = watched(gpt, IDS).sources(range(15, 21), sequence=1)
    mean = torch.stack([*matrices(gpt, IDS).values()])[:, 1].mean((0, 1))[14:20].mean(0)
    assert_close(found.scores, mean[:15])
    assert found.shares[ANSWER] == pytest.approx(float(mean[15:].sum()))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert [row.score for row in found] == sorted((row.score for row in found), reverse=True)


def test_layers_and_heads_can_be_chosen(gpt):
    found = watched(gpt, IDS).sources((15, 21), layers=1, heads=[2])
    mean = matrices(gpt, IDS)["blocks.1.self"][0, 2, 14:20].mean(0)
    assert_close(found.scores, mean[:15])


def test_few_kept_queries_suffice(gpt):
    recording = watched(gpt, IDS, queries=[18, 19])
    assert_close(recording.sources((19, 21)).scores, watched(gpt, IDS).sources((19, 21)).scores)
    with pytest.raises(ValueError, match=r"needs the query of token 18 .* not kept: leave queries= out of ts.watch"):
        recording.sources((18, 21))


def test_segments_sum_their_tokens(gpt):
    recording = watched(gpt, IDS)
    by_token = recording.sources((15, 21)).scores
    found = recording.sources((15, 21), segments={"a": (0, 4), "b": [5, 7], "c": slice(8, 11)})
    assert found.shares["a"] == pytest.approx(float(by_token[:4].sum()))
    assert found.shares["b"] == pytest.approx(float(by_token[[5, 7]].sum()))
    assert found.shares["other"] == pytest.approx(float(by_token[[4, 6, 11, 12, 13, 14]].sum()))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    numbered = recording.sources((15, 21), segments=[0] * 4 + [1] * 11)
    assert numbered.shares["0"] == pytest.approx(found.shares["a"])


# --------------------------------------------------------------------------------------------------------- carried


def test_carried_is_weight_times_the_norm_of_the_projected_value(gpt):
    found = watched(gpt, IDS, also="norms").sources((15, 21), "carried")
    steps, layers = watched(gpt, IDS, keep="steps"), []
    for i, (name, weights) in enumerate(matrices(gpt, IDS).items()):
        W_O = gpt.blocks[i].self_attention.W_O.weight.detach()
        values = steps[name].call.values[0].repeat_interleave(2, 0)
        norms = torch.stack([(values[h] @ W_O[:, 8 * h : 8 * h + 8].mT).norm(dim=-1) for h in range(4)])
        carried = (weights[0, :, 14:20] * norms[:, None]).sum((0, 1))
        layers.append(carried / carried.sum())
    assert_close(found.scores, torch.stack(layers).mean(0)[:15])


def test_norms_of_some_heads_and_of_a_text_that_grows(gpt):
    recording = watched(gpt, IDS, heads=[1, 3], also="norms")
    whole = watched(gpt, IDS, also="norms")
    part, full = (each["blocks.1.self"].call._kept["norms"].tensor for each in (recording, whole))
    assert_close(part, full[:, [1, 3]])
    with ts.watch(gpt, keep="summaries", also="norms") as grown, torch.no_grad():
        cache = gpt.cache(2, 23)
        gpt(IDS[:, :9], cache=cache)
        for i in range(9, 23):
            gpt(IDS[:, i : i + 1], cache=cache)
    assert_close(grown["blocks.1.self"].call._kept["norms"].tensor, full)


# --------------------------------------------------------------------------------------------------------- rollout


def test_rollout_is_the_product_of_whole_matrices(gpt):
    found = watched(gpt, IDS).sources((15, 21), "rollout", sequence=1)
    product = torch.eye(23, dtype=torch.float64)
    for weights in matrices(gpt, IDS).values():
        product = (0.5 * weights[1].mean(0) + 0.5 * torch.eye(23)) @ product
    rows = product[14:20].mean(0)
    assert_close(found.scores, rows[:15], atol=1e-9, rtol=1e-5)
    assert found.shares[ANSWER] == pytest.approx(float(rows[15:].sum()))


def test_rollout_in_float32(gpt):
    exact = watched(gpt, IDS).sources((15, 21), "rollout").scores
    model = ts.models.GPT(gpt.config).eval()
    model.load_state_dict(gpt.state_dict())
    assert_close(watched(model.float(), IDS).sources((15, 21), "rollout").scores, exact, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(1)
    config = ts.models.TransformerConfig(vocabulary=40, d_model=32, encoder_blocks=2, decoder_blocks=2, heads=4)
    return spread_out(ts.models.Transformer(config).double().eval())


def test_rollout_through_an_encoder_and_a_decoder(translator):
    source, target = IDS[:, :11], IDS[:, 11:20]
    found = watched(translator, source, target).sources((3, 7), "rollout")
    weights = {name: part[0].mean(0) for name, part in matrices(translator, source, target).items()}
    answer = torch.zeros(9, dtype=torch.float64)
    answer[2:6], context = 0.25, torch.zeros(11, dtype=torch.float64)
    for i in (1, 0):
        context = context + 0.5 * weights[f"decoder.{i}.cross"].mT @ answer
        answer = 0.5 * answer
        answer = 0.5 * answer + 0.5 * weights[f"decoder.{i}.self"].mT @ answer
    for i in (1, 0):
        context = 0.5 * context + 0.5 * weights[f"encoder.{i}.self"].mT @ context
    assert_close(found.scores, context, atol=1e-9, rtol=1e-5)
    assert ANSWER not in found.shares


def test_cross_attention_reads_the_source(translator):
    source, target = IDS[:, :11], IDS[:, 11:20]
    found = watched(translator, source, target).sources((1, 10))
    weights = matrices(translator, source, target)
    mean = torch.stack([weights[f"decoder.{i}.cross"][0] for i in (0, 1)]).mean((0, 1, 2))
    assert_close(found.scores, mean)
    assert len(found.context) == 11


def test_what_a_sink_takes_stays_with_the_token():
    torch.manual_seed(2)
    attention = ts.Attention(mask=ts.causal, sink=0.7)
    config = ts.models.GPTConfig(vocabulary=40, d_model=16, blocks=2, heads=2)
    model = spread_out(ts.models.GPT(config).double().eval())
    for block in model.blocks:
        block.self_attention.attention = attention
    found = watched(model, IDS).sources((15, 21), "rollout")
    product = torch.eye(23, dtype=torch.float64)
    for weights in matrices(model, IDS).values():
        mean = weights[0].mean(0)
        product = (0.5 * mean + torch.diag(1.0 - 0.5 * mean.sum(-1))) @ product
    assert_close(found.scores, product[14:20].mean(0)[:15], atol=1e-9, rtol=1e-5)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_rollout_of_some_layers_and_heads(gpt):
    """The mean of the chosen heads; other layers leave everything where it is."""
    recording = watched(gpt, IDS)
    found = recording.sources((15, 21), "rollout", layers=[0, 2], heads=[1, -1])
    product = torch.eye(23, dtype=torch.float64)
    for name in ("blocks.0.self", "blocks.2.self"):
        mean = matrices(gpt, IDS)[name][0, [1, 3]].mean(0)
        product = (0.5 * mean + 0.5 * torch.eye(23)) @ product
    assert_close(found.scores, product[14:20].mean(0)[:15], atol=1e-9, rtol=1e-5)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_rollout_of_a_head_with_a_sink_of_its_own():
    """One layer, by hand: half of the weight that head 1 gives to keys is passed on, the rest stays."""
    torch.manual_seed(2)
    config = ts.models.GPTConfig(vocabulary=40, d_model=16, blocks=1, heads=2)
    model = spread_out(ts.models.GPT(config).double().eval())
    sink = torch.tensor([9.0, 0.7]).double()
    model.blocks[0].self_attention.attention = ts.Attention(mask=ts.causal, sink=sink)
    weights = matrices(model, IDS)["blocks.0.self"][0, 1, 14:20]
    expected = 0.5 * weights.mean(0)
    expected[14:20] += (1.0 - 0.5 * weights.sum(-1)) / 6
    found = watched(model, IDS).sources((15, 21), "rollout", heads=1)
    assert_close(found.scores, expected[:15], atol=1e-9, rtol=1e-5)


def test_rollout_of_some_layers_of_an_encoder_decoder(translator):
    source, target = IDS[:, :11], IDS[:, 11:20]
    recording = watched(translator, source, target)
    found = recording.sources((3, 7), "rollout", layers=["encoder.0", "decoder.1.cross"])
    weights = {name: part[0].mean(0) for name, part in matrices(translator, source, target).items()}
    answer = torch.zeros(9, dtype=torch.float64)
    answer[2:6] = 0.25
    context = 0.5 * weights["decoder.1.cross"].mT @ answer
    context = 0.5 * context + 0.5 * weights["encoder.0.self"].mT @ context
    assert_close(found.scores, context, atol=1e-9, rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"selects no cross-attention, .* add one of decoder\.0\.cross, decoder\.1\.cross"
    ):
        recording.sources((3, 7), "rollout", layers="encoder.*")


# -------------------------------------------------------------------------------------------------------- gradient


def test_gradient_is_weight_times_gradient(gpt):
    with ts.watch(gpt, keep="steps", also="gradients") as recording:
        chances = gpt(IDS).log_softmax(-1)
        chances[0, 14:20].gather(-1, IDS[0, 15:21, None]).sum().backward()
    found = recording.sources((15, 21), "gradient")
    total, leaves = torch.zeros(23, dtype=torch.float64), eager_weights(gpt)
    for weights in leaves:
        total += (weights.detach() * weights.grad)[0].sum((0, 1))
    assert_close(found.scores, total[:15])
    assert float(found.scores.min()) < 0.0 < float(found.scores.max())
    assert sum(abs(share) for share in found.shares.values()) == pytest.approx(1.0)


def eager_weights(model, mutes=None):
    """Run the model with the weights of every attention formed, and return them with their gradients.

    `mutes` are factors of the heads of every layer.
    """
    leaves = []

    def eager(module, args, kwargs, output):
        q, k, v, attention = args
        hidden = ~attention.mask.block(q.shape[-2], k.shape[-2], batch=len(q))
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * attention.scale_for(k.shape[-1])
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        weights.retain_grad()
        leaves.append(weights)
        context = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return context if mutes is None else context * mutes[:, None, None]

    hooks = [block.self_attention.attend.register_forward_hook(eager, with_kwargs=True) for block in model.blocks]
    log_probability_of_answer(model).backward()
    for hook in hooks:
        hook.remove()
    return leaves


def log_probability_of_answer(model, ids=IDS):
    out = model(ids)
    chances = (out if torch.is_tensor(out) else out.logits).log_softmax(-1)
    return chances[0, 14:20].gather(-1, ids[0, 15:21, None]).sum()


def gradients_by_head(leaves):
    """Return Σ weight · gradient over the queries, (layer, batch, head, key)."""
    return torch.stack([(weights.detach() * weights.grad).sum(2) for weights in leaves])


@pytest.mark.parametrize("heads", [[1], [0, 2], [3, 0], [0, 1], [2, 1, 0], [3, 1, 2, 0], [-1]])
def test_gradients_of_some_heads_leave_out_those_that_share_their_values(gpt, heads):
    """Two heads share values: the gradient of a value is the sum of both, and each has its own here."""
    expected = gradients_by_head(eager_weights(gpt))[:, :, heads].sum(2)
    with ts.watch(gpt, heads=heads, also="gradients") as recording:
        log_probability_of_answer(gpt).backward()
    for seen, of_layer in zip(recording.values(), expected, strict=True):
        assert_close(seen.call._kept["gradients"].tensor.sum(1), of_layer, rtol=1e-9, atol=1e-12)
    assert_close(recording.sources((15, 21), "gradient").scores, expected[:, 0, :15].sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("edit_first", [True, False])
def test_gradients_of_a_head_under_an_edit_of_its_context(gpt, edit_first):
    """A head that is halved gets half the gradient, whether the edit or the watch was entered first."""
    blocks = [lambda: ts.edit(gpt, ts.mute(heads=[1], times=0.5)), lambda: ts.watch(gpt, heads=[1], also="gradients")]
    with contextlib.ExitStack() as stack:
        entered = [stack.enter_context(block()) for block in (blocks if edit_first else blocks[::-1])]
        recording = entered[1 if edit_first else 0]
        log_probability_of_answer(gpt).backward()
    expected = gradients_by_head(eager_weights(gpt, torch.tensor([1.0, 0.5, 1.0, 1.0])))[:, 0, 1].sum(0)
    assert_close(recording.sources((15, 21), "gradient").scores, expected[:15], rtol=1e-9, atol=1e-12)


def test_gradients_of_a_head_with_a_sink_a_bias_and_padding():
    """Against autograd through every step, in float64: rows of padding count as they do in v · dv."""
    torch.manual_seed(3)
    sink = torch.tensor([0.3, -0.2, 0.1, 0.7])
    attention = ts.Attention(mask=ts.causal & ts.window(7), bias=ts.alibi(4), sink=sink.double())
    layer = ts.layers.MultiHeadAttention(16, 4, key_heads=2, attention=attention).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    target = torch.randn(2, 9, 16, dtype=torch.float64)
    padding = ts.padding(lengths=[9, 7])
    with ts.watch(layer, heads=[2], also="gradients", keep="steps") as recording:
        (layer(x, mask=padding) * target).sum().backward()
    with ts.watch(layer, keep="steps") as whole:
        layer(x, mask=padding)
    weights = whole["attention"].trace().weights.detach().requires_grad_()
    values = whole["attention"].call.values.repeat_interleave(2, 1)
    context = (weights @ values).transpose(1, 2).flatten(-2)
    (layer.W_O(context) * target).sum().backward()
    expected = (weights.detach() * weights.grad).sum(2)[:, 2:3]
    assert_close(recording["attention"].call._kept["gradients"].tensor, expected, rtol=1e-9, atol=1e-12)


def test_gradients_of_a_head_where_autocast_is_on_in_the_backward_pass():
    """The loss is a product with the context, so that its gradient is exact: only the recorded numbers could round."""
    torch.manual_seed(4)
    layer = ts.layers.MultiHeadAttention(16, 4, key_heads=2)
    x = torch.randn(1, 30, 16)
    target = torch.randn(1, 4, 30, 4)
    contexts = []
    layer.attend.register_forward_hook(lambda module, inputs, context: contexts.append(context))
    with ts.watch(layer, heads=[3], also="gradients") as recording:
        layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            (contexts[0] * target).sum().backward()
    with ts.watch(layer, keep="steps") as whole:
        layer(x)
    weights = whole["attention"].trace().weights[0, 3].double()
    values = whole["attention"].call.values[0, 1].double()
    expected = (weights * (target[0, 3].double() @ values.mT)).sum(0)
    found = recording["attention"].call._kept["gradients"].tensor[0, 0].double()
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_some_heads_of_a_hugging_face_model():
    transformers = pytest.importorskip("transformers")
    from support.huggingface import LLAMA

    torch.manual_seed(0)
    model = spread_out(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).double().eval())
    model.set_attn_implementation("eager")
    out = model(IDS, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    out.logits.log_softmax(-1)[0, 14:20].gather(-1, IDS[0, 15:21, None]).sum().backward()
    expected = gradients_by_head(out.attentions)[:, 0]
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with ts.watch(model, heads=[1, 2], also="gradients") as recording:
            log_probability_of_answer(model).backward()
        for heads in ([1], [2], [1, 2], [-1]):
            found = recording.sources((15, 21), "gradient", heads=heads).scores
            numbers = [2] if heads == [-1] else heads
            # The softmax of transformers' eager attention is in float32.
            assert_close(found, expected[:, numbers].sum((0, 1))[:15], rtol=1e-5, atol=1e-6)


def test_gradients_of_heads_that_cannot_be_told_apart(gpt):
    model = ts.models.GPT(replace(gpt.config, dropout=0.5)).train()
    together = r"share their values, and dropout=0\.5 hides the part of each; call model\.eval\(\), or leave heads= out"
    with pytest.raises(ValueError, match=together), ts.watch(model, heads=[1], also="gradients"):
        model(IDS)
    with ts.watch(model, heads=[0, 1], also="gradients"):
        model(IDS)  # all heads of a group: nothing is to be told apart


def test_gradients_of_layers_and_heads_can_be_chosen(gpt):
    """Two heads share values: both together can be chosen, and one alone if it was recorded alone."""
    expected = gradients_by_head(eager_weights(gpt))[:, 0, :, :15]
    with ts.watch(gpt, also="gradients") as recording:
        log_probability_of_answer(gpt).backward()
    found = recording.sources((15, 21), "gradient", layers=1, heads=[3, 2]).scores
    assert_close(found, expected[1, 2:].sum(0), rtol=1e-9, atol=1e-12)
    found = recording.sources((15, 21), "gradient", layers=[0, -1]).scores
    assert_close(found, expected[[0, 2]].sum((0, 1)), rtol=1e-9, atol=1e-12)
    one_sum = (
        r'heads 0, 1 of "blocks\.0\.self" share .* one sum; ts\.watch\(model, heads=\[1\], also="gradients"\) keeps'
    )
    with pytest.raises(ValueError, match=one_sum):
        recording.sources((15, 21), "gradient", heads=[1, 2, 3])


def test_a_text_in_several_calls_has_no_gradients(gpt):
    """An early value gets gradients from the later calls too, through the cache: counting both would be wrong."""
    transformers = pytest.importorskip("transformers")
    from support.huggingface import LLAMA

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval()
    several = "ran a text in several calls, .* run the whole text in one call"
    with ts.watch(model, also="gradients"):
        cache = model(IDS[:, :9], use_cache=True).past_key_values
        with pytest.raises(ValueError, match=several):
            model(IDS[:, 9:], past_key_values=cache)


# ---------------------------------------------------------------------------------------------------------- hidden

SEGMENTS = {"a": (0, 3), "b": [5, 8, 9], "c": (10, 15)}


def test_hidden_is_the_fall_of_the_log_probability(gpt):
    """A mask that is written out hides the same edges, in every layer."""
    found = watched(gpt, IDS[:1]).sources((15, 21), "hidden", segments=SEGMENTS, model=gpt)
    tokens = {"a": [0, 1, 2], "b": [5, 8, 9], "c": [*range(10, 15)], "other": [3, 4, 6, 7]}
    plain = log_probability(gpt)
    for name, own in tokens.items():
        seen = torch.ones(23, 23, dtype=torch.bool)
        outside = [i for i in range(23) if i not in own]
        for i in outside:
            seen[i, own] = False
        fall = plain - log_probability(gpt, ts.from_tensor(seen))
        assert {row.name: row.score for row in found}[name] == pytest.approx(fall, abs=1e-8)
    assert found.scores is None
    assert "<span" in found._repr_html_()
    assert abs(found[0].score) > 1e-3


def test_hidden_from_some_layers_and_heads(gpt):
    """Against a mask that is written out for each head, in one layer."""
    recording = watched(gpt, IDS[:1])
    found = recording.sources((15, 21), "hidden", segments={"a": (0, 3)}, layers=1, heads=[0, -1], model=gpt)
    seen = torch.ones(1, 4, 23, 23, dtype=torch.bool)
    for head in (0, 3):
        seen[0, head, 3:, :3] = False
    fall = log_probability(gpt) - log_probability(gpt, ts.from_tensor(seen), layers=[1])
    assert {row.name: row.score for row in found}["a"] == pytest.approx(fall, abs=1e-8)
    assert abs(fall) > 1e-3


def test_a_source_hidden_from_some_layers(translator):
    """Layer 1 is a layer of the encoder and one of the decoder, whose cross-attention reads the source."""
    source, target = IDS[:1, :11], IDS[:1, 11:20]
    recording = watched(translator, source, target)
    options = {"segments": [0] * 4 + [1] * 7, "model": translator}
    found = recording.sources((3, 7), "hidden", layers=1, **options)
    assert {row.name: row.score for row in found}["0"] == pytest.approx(
        falls_without(translator, source, target, [*range(4)], layers=[1]), abs=1e-8
    )
    encoder = recording.sources((3, 7), "hidden", layers="encoder.*", **options)
    assert {row.name: row.score for row in encoder}["0"] == pytest.approx(
        falls_without(translator, source, target, [*range(4)], across=False), abs=1e-8
    )


def log_probability(model, mask=ts.everyone, layers=(0, 1, 2)):
    before = [block.self_attention.attention for block in model.blocks]
    for block in [model.blocks[layer] for layer in layers]:
        block.self_attention.attention = block.self_attention.attention.with_extra_mask(mask)
    with torch.no_grad():
        chances = model(IDS[:1]).log_softmax(-1)
    for block, attention in zip(model.blocks, before, strict=True):
        block.self_attention.attention = attention
    return float(chances[0, 14:20].gather(-1, IDS[0, 15:21, None]).sum())


def test_hidden_source_of_an_encoder_decoder(translator):
    source, target = IDS[:1, :11], IDS[:1, 11:20]
    found = watched(translator, source, target).sources((3, 7), "hidden", segments=[0] * 4 + [1] * 7, model=translator)
    shorter = falls_without(translator, source, target, [*range(4)])
    assert {row.name: row.score for row in found}["0"] == pytest.approx(shorter, abs=1e-8)
    assert len(found) == 2


def falls_without(model, source, target, own, layers=(0, 1), across=True):
    """Return how much the log-probability falls if the edges to these source tokens are hidden by a dense mask."""

    def chance():
        with torch.no_grad():
            chances = model(source, target).log_softmax(-1)
        return float(chances[0, 2:6].gather(-1, target[0, 3:7, None]).sum())

    plain, changed = chance(), []
    seen = torch.ones(11, 11, dtype=torch.bool)
    for i in range(11):
        seen[i, own] = i in own
    crossing = torch.ones(1, 11, dtype=torch.bool)
    crossing[:, own] = not across
    for module in model.modules():
        if isinstance(module, ts.layers.MultiHeadAttention):
            changed.append((module, module.attention))
    for block in [model.encoder[layer] for layer in layers]:
        layer = block.self_attention
        layer.attention = layer.attention.with_extra_mask(ts.from_tensor(seen))
    for block in [model.decoder[layer] for layer in layers]:
        layer = block.cross_attention
        layer.attention = layer.attention.with_extra_mask(ts.from_tensor(crossing))
    fall = plain - chance()
    for module, attention in changed:
        module.attention = attention
    return fall


def test_hidden_needs_the_model_and_the_tokens(gpt):
    recording = watched(gpt, IDS[:1])
    with pytest.raises(ValueError, match=r"runs the model again: give the model that was recorded, model=\.\.\."):
        recording.sources((15, 21), "hidden")
    with pytest.raises(ValueError, match="knows the tokens 0 to 22; end the span at 23"):
        recording.sources((20, 24), "hidden", model=gpt)


# ------------------------------------------------------------------------------------------ generated, and Hugging Face


def test_a_model_that_wrote_its_answer(gpt):
    with ts.watch(gpt, keep="queries-keys", also="norms") as recording:
        ts.decoding.generate(gpt, IDS[:1, :9], max_new_tokens=6)
    call = recording["blocks.0.self"].call
    assert call._facts.prompt == 9
    for how in ("weights", "carried", "rollout"):
        found = recording.sources(slice(9, None), how)
        assert len(found.context) == 9
        assert sum(found.shares.values()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="begins in the prompt, which is tokens 0 to 8; the answer begins at 9"):
        recording.sources((5, 12))


def test_hugging_face_with_grouped_heads():
    transformers = pytest.importorskip("transformers")
    from support.huggingface import LLAMA

    torch.manual_seed(0)
    model = spread_out(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).eval())
    model.set_attn_implementation("eager")
    ids = IDS[:1]
    eager = torch.stack(model(ids, output_attentions=True).attentions)[:, 0].double()
    model.set_attn_implementation("sdpa")
    with ts.watch(model, keep="queries-keys", also=("norms", "gradients")) as recording:
        chances = model(ids).logits.log_softmax(-1)
        chances[0, 14:20].gather(-1, ids[0, 15:21, None]).sum().backward()
    assert_close(recording.sources((15, 21)).scores, eager.mean((0, 1))[14:20].mean(0)[:15], atol=1e-5, rtol=1e-4)
    product = torch.eye(23, dtype=torch.float64)
    for weights in eager:
        product = 0.5 * (weights.mean(0) + torch.eye(23)) @ product
    rollout = recording.sources((15, 21), "rollout").scores
    assert_close(rollout, product[14:20].mean(0)[:15].detach(), atol=1e-5, rtol=1e-4)
    W_O = model.model.layers[0].self_attn.o_proj.weight.detach()
    with ts.watch(model, keep="steps") as steps, torch.no_grad():
        model(ids)
    name = next(iter(steps))
    values = steps[name].call.values[0].repeat_interleave(2, 0)
    norms = torch.stack([(values[h] @ W_O[:, 8 * h : 8 * h + 8].mT).norm(dim=-1) for h in range(4)])
    assert_close(recording[name].call._kept["norms"].tensor[0], norms, atol=1e-4, rtol=1e-4)
    assert recording.sources((15, 21), "gradient").scores.abs().sum() > 0
    hidden = recording.sources((15, 21), "hidden", segments={"a": (2, 9)}, model=model)
    mask = torch.ones(23, 23).tril().bool()
    mask[9:, 2:9] = False
    dense = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        chances = [model(ids, attention_mask=each).logits[0, 14:20].log_softmax(-1) for each in (None, dense)]
    plain, without = (float(each.gather(-1, ids[0, 15:21, None]).sum()) for each in chances)
    assert {row.name: row.score for row in hidden}["a"] == pytest.approx(plain - without, abs=1e-4)


# ------------------------------------------------------------------------------------------------ shown, saved, refused


def test_printed_and_drawn(gpt):
    recording = watched(gpt, IDS)
    recording.decode = lambda ids: "".join("<b>" if token == int(IDS[0, 0]) else f" w{token}" for token in ids)
    found = recording.sources((15, 21), segments={"start": (0, 3)})
    lines = repr(found).splitlines()
    assert lines[0].startswith('sources of "w')
    assert lines[2].split() == ["segment", "tokens", "score", "share", "text"]
    assert any(line.startswith("start") and "0 to 2" in line and "<b> w" in line for line in lines)
    page = found._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<span") == 15
    assert found.to_dict()["rows"][0]["name"] == found[0].name
    assert len(repr(watched(gpt, IDS).sources((22, 23))).splitlines()) == 24  # 20 rows, and how many more


def test_saved_and_opened(gpt, tmp_path):
    recording = watched(gpt, IDS, also="norms")
    recording.save(tmp_path / "run")
    opened = ts.open(tmp_path / "run")
    for how in ("weights", "carried", "rollout"):
        assert_close(opened.sources((15, 21), how).scores, recording.sources((15, 21), how).scores)


def test_a_frame(gpt):
    pytest.importorskip("pandas")
    table = watched(gpt, IDS).sources((15, 21), segments={"a": (0, 4)}).table()
    assert set(table["name"]) == {"a", "other", ANSWER}
    assert table.share.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((20, 30), "is not in the text, whose tokens are numbered 0 to 23"),
        ((5, 5), "holds no token; it takes the positions of the tokens that were written"),
        ([5, 9], "has gaps; ask for one stretch of tokens at a time"),
        ((0, 3), "begins at the first token, which no token comes before"),
    ],
)
def test_spans_that_do_not_fit(gpt, span, message):
    with pytest.raises(ValueError, match=message):
        watched(gpt, IDS).sources(span)


@pytest.mark.parametrize(
    ("keep", "how", "message"),
    [
        ("summaries", "weights", r'needs queries, which were not kept: ts.watch\(model, keep="queries-keys"\)'),
        ("queries-keys", "carried", r'needs norms, .* ts.watch\(model, keep="queries-keys", also="norms"\) keeps them'),
        ("summaries", "rollout", r'needs queries, which were not kept: ts.watch\(model, keep="queries-keys"\)'),
        (
            "steps",
            "gradient",
            r'no gradients of "blocks.0.self": use ts.watch\(model, also="gradients"\), and call back',
        ),
        ("steps", "rolout", 'there is no how="rolout"; did you mean "rollout"'),
    ],
)
def test_what_was_not_kept_names_the_option(gpt, keep, how, message):
    with pytest.raises(ValueError, match=message):
        watched(gpt, IDS, keep=keep).sources((15, 21), how)


@pytest.mark.parametrize("how", ["weights", "rollout", "gradient", "hidden"])
@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"layers": 3}, r"layers=3 is no layer of this model; they count from 0 to 2 or from -3 to -1"),
        ({"layers": "blocks.7"}, r'layers="blocks\.7" is no attention of this model; did you mean'),
        ({"heads": [4]}, r'there is no head 4 of "blocks\.[02]\.self"; kept are 0, 1, 2, 3, and -4 to -1'),
        ({"heads": [0, -4]}, r'heads=\[0, -4\] names a head of "blocks\.[02]\.self" twice; name each once'),
        ({"heads": []}, r"heads=\[\] are not numbers of heads, each once"),
    ],
)
def test_layers_and_heads_that_do_not_exist(gpt, how, chosen, message):
    with ts.watch(gpt, keep="queries-keys", also="gradients") as recording:
        log_probability_of_answer(gpt).backward()
    with pytest.raises(ValueError, match=message):
        recording.sources((15, 21), how, model=gpt, **chosen)


def test_segments_of_the_wrong_length(gpt):
    with pytest.raises(ValueError, match="segments has 3 numbers for a text of 15 tokens; it takes one for each"):
        watched(gpt, IDS).sources((15, 21), segments=[0, 1, 2])
    with pytest.raises(ValueError, match='segments "a" and "b" overlap at token 2'):
        watched(gpt, IDS).sources((15, 21), segments={"a": (0, 3), "b": (2, 4)})


def test_texts_have_their_spaces_and_equal_tokens_are_added():
    """The tokenizer of the translator drops the space before a token that is decoded alone."""
    model = ts.load("translator-en-de", dtype=torch.float32).eval()
    source = model.tokenizer.encode("I saw the man and the bird").ids
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as recording:
        (written,) = ts.decoding.generate(model, [source], temperature=0.0)
    found = recording.sources((1, len(written.ids)))
    assert "".join(found.answer) == written.text
    assert "".join(found.context) == "I saw the man and the bird</s>"
    assert len(found.shares) == len(found) - 1  # the two tokens "the"
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.token_scores() == found.scores.tolist()


def test_the_token_after_the_text_is_named():
    """The model has not written it yet, so that it has no text."""
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode("But soft").ids])
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as recording:
        model(ids)
    assert repr(recording.sources(ids.shape[1])).startswith("sources of the next token, by weights")
