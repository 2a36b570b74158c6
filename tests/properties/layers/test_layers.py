"""Properties of every layer, and the formulas of each."""

from copy import deepcopy
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import telescope as ts
from telescope.layers import (
    AddNorm,
    Attend,
    CachePosition,
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

BATCH, N, KEYS = 2, 5, 7
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # float64
causal = ts.Attention(mask=ts.causal)


def encoder_block(**options):
    return EncoderBlock(6, MultiHeadAttention(6, 3), FeedForward(6, 11), **options)


def decoder_block(**options):
    return DecoderBlock(
        6, MultiHeadAttention(6, 3, attention=causal), MultiHeadAttention(6, 2), FeedForward(6, 11), **options
    )


# Every layer, and the widths of the sequences it is called with.
LAYERS = {
    "self_attention": (lambda: SelfAttention(6, 3, 4), (6,)),
    "multi_head": (lambda: MultiHeadAttention(6, 3), (6,)),
    "grouped_rotary": (lambda: MultiHeadAttention(6, 4, key_heads=2, d_k=2, d_v=3, rotary=ts.rotary()), (6,)),
    "cross": (lambda: MultiHeadAttention(6, 3, d_memory=4, d_out=6), (6, 4)),
    "luong_dot": (lambda: LuongAttention("dot", 6), (6, 6)),
    "luong_general": (lambda: LuongAttention("general", 6, 4), (6, 4)),
    "luong_concat": (lambda: LuongAttention("concat", 6, 4, 3), (6, 4)),
    "synthesizer": (lambda: SynthesizerAttention(6, 3, 11), (6,)),
    "synthesizer_shared": (lambda: SynthesizerAttention(6, 3, 11, shared=True), (6,)),
    "synthesizer_without_biases": (lambda: SynthesizerAttention(6, 3, 11, bias=False), (6,)),
    "feed_forward": (lambda: FeedForward(6, 11, activation="gelu"), (6,)),
    "gated_feed_forward": (lambda: GatedFeedForward(6, 11), (6,)),
    "encoder_post": (encoder_block, (6,)),
    "encoder_pre": (lambda: encoder_block(pre_norm=True), (6,)),
    "encoder_rms": (lambda: encoder_block(pre_norm=True, norm=nn.RMSNorm), (6,)),
    "decoder_post": (decoder_block, (6, 6)),
    "decoder_pre": (lambda: decoder_block(pre_norm=True), (6, 6)),
    "learned_positions": (lambda: LearnedPositions(11, 6), (6,)),
    "sinusoidal_positions": (lambda: SinusoidalPositions(6), (6,)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def filled(layer, dtype=torch.float64):
    """Set every parameter to random numbers: parameters that start at zero would hide that they are not used."""
    torch.manual_seed(7)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.to(dtype)


def sequence(positions, width, *, batch=BATCH, dtype=torch.float64, seed=11):
    return torch.randn(batch, positions, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def made(name, dtype=torch.float64):
    make, widths = LAYERS[name]
    inputs = [sequence(n, width, dtype=dtype, seed=n) for n, width in zip((N, KEYS), widths, strict=False)]
    return filled(make(), dtype), inputs


def seen_by(attend, call):
    """Return what a forward hook on `attend` gets in one call."""
    seen = []
    handle = attend.register_forward_hook(lambda module, inputs, output: seen.append((*inputs, output)))
    call()
    handle.remove()
    return seen[0]


# --------------------------------------------------------------------------------------------------- every layer


@every_layer
def test_a_state_dict_restores_the_layer(name):
    layer, inputs = made(name)
    other = LAYERS[name][0]().double()
    other.load_state_dict(layer.state_dict())
    assert_close(other(*inputs), layer(*inputs), **EXACT)


@every_layer
def test_a_deep_copy_computes_the_same_and_is_independent(name):
    layer, inputs = made(name)
    other, before = deepcopy(layer), layer(*inputs)
    assert_close(other(*inputs), before, **EXACT)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert_close(layer(*inputs), before, **EXACT)


@every_layer
def test_bfloat16(name):
    layer, inputs = made(name, torch.bfloat16)
    exact = deepcopy(layer).double()(*(x.double() for x in inputs))
    actual = layer(*inputs)
    assert actual.dtype == torch.bfloat16
    assert (actual.double() - exact).abs().mean() < 0.02 * exact.abs().mean()


@every_layer
def test_autocast(name):
    layer, inputs = made(name, torch.float32)
    exact = layer(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual = layer(*inputs)
    assert (actual.float() - exact).abs().mean() < 0.02 * exact.abs().mean()


@every_layer
def test_gradients_equal_finite_differences(name):
    layer, inputs = made(name)
    names = [name for name, _ in layer.named_parameters()]
    inputs = [x[:1, :3].requires_grad_() for x in inputs]

    def call(*tensors):
        weights = dict(zip(names, tensors[len(inputs) :], strict=True))
        return torch.func.functional_call(layer, weights, tensors[: len(inputs)])

    assert torch.autograd.gradcheck(call, (*inputs, *layer.parameters()), fast_mode=True)


@every_layer
def test_every_parameter_changes_the_output(name):
    layer, inputs = made(name)
    before = layer(*inputs)
    for part, parameter in layer.named_parameters():
        if part.endswith("W_k.bias") and name != "grouped_rotary":
            continue  # it adds the same to every score of a row, which softmax does not see
        other = torch.func.functional_call(layer, {part: torch.randn_like(parameter)}, tuple(inputs))
        assert not torch.allclose(other, before, atol=1e-3), part


@every_layer
def test_sequences_of_a_batch_are_independent(name):
    layer, inputs = made(name)
    alone = [layer(*(x[i : i + 1] for x in inputs)) for i in range(BATCH)]
    assert_close(layer(*inputs), torch.cat(alone), **CLOSE)


@every_layer
def test_an_empty_sequence_gives_an_empty_result(name):
    layer, (x, *memory) = made(name)
    width = layer(x, *memory).shape[-1]
    assert layer(x[:, :0], *memory).shape == (BATCH, 0, width)
    assert layer(x[:0], *(m[:0] for m in memory)).shape == (0, N, width)


def test_an_empty_memory_gives_the_bias_of_the_projection():
    layer, (x, memory) = made("cross")
    assert_close(layer(x, memory[:, :0]), layer.W_O.bias.expand(BATCH, N, -1), **EXACT)


@pytest.mark.parametrize("name", ["luong_dot", "luong_general", "luong_concat"])
def test_an_empty_memory_gives_zeros(name):
    layer, (states, memory) = made(name)
    assert_close(layer(states, memory[:, :0]), torch.zeros(BATCH, N, memory.shape[-1], dtype=torch.float64), **EXACT)


# ---------------------------------------------------------------------------------------------- looking and dropout


ATTENDING = [name for name in LAYERS if isinstance(getattr(LAYERS[name][0](), "attend", None), Attend)]


@pytest.mark.parametrize("name", ATTENDING)
def test_hooks_see_the_attention_itself(name):
    layer, inputs = made(name)
    queries, keys, values, attention, context = seen_by(layer.attend, lambda: layer(*inputs))
    assert queries.shape[0] == keys.shape[0] == values.shape[0] == BATCH
    assert queries.shape[2] == N
    assert_close(ts.trace(queries, keys, values, attention).context, context, **CLOSE)


@pytest.mark.parametrize("name", ATTENDING)
def test_hooks_see_the_mask_of_the_call(name):
    layer, inputs = made(name)
    mask = ts.padding([2, 3])
    *_, attention, _ = seen_by(layer.attend, lambda: layer(*inputs, mask=mask))
    assert attention.mask == layer.attention.mask & mask


def test_every_attention_of_a_block_can_be_seen():
    block, inputs = made("decoder_post")
    places = {name: part for name, part in block.named_modules() if isinstance(part, Attend)}
    assert list(places) == ["self_attention.attend", "cross_attention.attend"]
    _, keys, *_ = seen_by(places["cross_attention.attend"], lambda: block(*inputs))
    assert keys.shape == (BATCH, 2, KEYS, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SelfAttention(6, dropout=p),
        lambda p: MultiHeadAttention(6, 3, dropout=p),
        lambda p: SynthesizerAttention(6, 3, 11, dropout=p),
    ],
    ids=["self_attention", "multi_head", "synthesizer"],
)
def test_dropout_is_for_training_alone(make):
    layer, plain, x = filled(make(1.0)), filled(make(0.0)), sequence(N, 6)
    assert_close(layer.eval()(x), plain(x), **EXACT)
    dropped = layer.train()(x)
    nothing = layer.W_O.bias if hasattr(layer, "W_O") else torch.zeros(6, dtype=torch.float64)
    assert_close(dropped, nothing.expand_as(dropped), **EXACT)


def test_dropout_of_luong_is_for_training_alone():
    layer, states, memory = LuongAttention("dot", 6, dropout=1.0), sequence(N, 6), sequence(KEYS, 6)
    assert not layer(states, memory).any()
    assert_close(layer.eval()(states, memory), LuongAttention("dot", 6)(states, memory), **EXACT)


def test_a_weight_is_dropped_with_its_probability_and_the_rest_is_scaled_up():
    torch.manual_seed(17)
    attend, one = Attend(0.25), torch.ones(1, 1, 4000, 1)
    kept = attend(one, one[:, :, :1], one[:, :, :1], ts.Attention())
    assert_close(kept.unique(), torch.tensor([0.0, 4 / 3]))
    assert (kept == 0).float().mean() == pytest.approx(0.25, abs=0.03)


def test_dropout_of_the_sublayers():
    x = sequence(N, 6)
    assert_close(AddNorm(6, pre_norm=True, dropout=1.0).double()(x, torch.exp), x, **EXACT)
    network = filled(FeedForward(6, 11, dropout=1.0))
    assert_close(network(x), network.W_2.bias.expand_as(x), **EXACT)


# ------------------------------------------------------------------------------------------- self- and multi-head


def test_identity_weights_give_attention_without_weights():
    layer, x = SelfAttention(6, attention=ts.Attention(scale=1.0)).double(), sequence(N, 6)
    for W in (layer.W_q, layer.W_k, layer.W_v):
        nn.init.eye_(W.weight)
    one = x[:, None]
    assert_close(layer(x), ts.attend(one, one, one, ts.Attention(scale=1.0))[:, 0], **CLOSE)


def test_self_attention_is_the_formula():
    layer, x = filled(SelfAttention(7, 3, 5, bias=True)), sequence(N, 7)
    q, k, v = (x @ W.weight.T + W.bias for W in (layer.W_q, layer.W_k, layer.W_v))
    assert_close(layer(x), torch.softmax(q @ k.mT / 3**0.5, dim=-1) @ v, **CLOSE)


def heads_apart(layer, x):
    """Compute each head as a SelfAttention with its rows of the weights, concatenate, and multiply by W_O."""
    contexts = []
    for s in range(layer.heads):
        head = SelfAttention(layer.d_model, layer.d_k, layer.d_v, bias=True, attention=layer.attention).to(x.dtype)
        g = s // (layer.heads // layer.key_heads)
        for own, whole, i, d in (
            (head.W_q, layer.projections()["W_q"], s, layer.d_k),
            (head.W_k, layer.projections()["W_k"], g, layer.d_k),
            (head.W_v, layer.projections()["W_v"], g, layer.d_v),
        ):
            own.weight.data, own.bias.data = whole.weight[i * d : (i + 1) * d], whole.bias[i * d : (i + 1) * d]
        contexts.append(head(x))
    return layer.W_O(torch.cat(contexts, dim=-1))


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    n=st.integers(1, 6),
    groups=st.integers(1, 3),
    key_heads=st.integers(1, 3),
    d_model=st.integers(1, 7),
    d_k=st.integers(1, 5),
    d_v=st.integers(1, 5),
    mask=st.sampled_from([ts.everyone, ts.causal, ts.causal & ts.window(2)]),
)
def test_multi_head_equals_its_heads_computed_apart(batch, n, groups, key_heads, d_model, d_k, d_v, mask):
    attention = ts.Attention(mask=mask)
    layer = filled(
        MultiHeadAttention(d_model, groups * key_heads, key_heads=key_heads, d_k=d_k, d_v=d_v, attention=attention)
    )
    x = sequence(n, d_model, batch=batch)
    assert_close(layer(x), heads_apart(layer, x), **CLOSE)


@pytest.mark.parametrize("key_heads", [1, 2, 3])
def test_grouped_queries_are_repeated_key_heads(key_heads):
    grouped = filled(MultiHeadAttention(7, 6, key_heads=key_heads, d_k=3, d_v=5))
    full = MultiHeadAttention(7, 6, d_k=3, d_v=5).double()
    full.W_O.load_state_dict(grouped.W_O.state_dict())
    with torch.no_grad():
        for name, W in grouped.projections().items():
            for some, every in zip(W, full.projections()[name], strict=True):
                served = len(every) // len(some)
                heads = some.unflatten(0, (6 // served, -1)).repeat_interleave(served, dim=0)
                every.copy_(heads.flatten(0, 1))
    x = sequence(N, 7)
    assert_close(grouped(x), full(x), **CLOSE)


def test_keys_and_values_come_from_the_memory():
    layer, x = filled(MultiHeadAttention(6, 3)), sequence(N, 6)
    assert_close(layer(x, x), layer(x), **EXACT)
    memory = sequence(KEYS, 6, seed=3)
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(5))
    assert_close(layer(x, memory[:, order]), layer(x, memory), **CLOSE)  # a set, without an order
    assert_close(layer(x[:, 2:3], memory), layer(x, memory)[:, 2:3], **CLOSE)  # the queries do not see each other


def test_the_mask_of_the_call_is_added_to_that_of_the_definition():
    layer, plain = (filled(MultiHeadAttention(6, 3, attention=attention)) for attention in (causal, ts.Attention()))
    x = sequence(N, 6)
    assert_close(layer(x, mask=ts.window(2)), plain(x, mask=ts.causal & ts.window(2)), **EXACT)
    assert not torch.allclose(layer(x, mask=ts.window(2)), layer(x))


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotary_depends_on_distances_alone(pairs):
    layer = filled(MultiHeadAttention(6, 3, d_k=4, attention=causal, rotary=ts.rotary(pairs=pairs)))
    x = sequence(N, 6)
    *_, context = seen_by(layer.attend, lambda: layer(x))
    for at in (CachePosition(1), CachePosition(1000)):
        elsewhere = ts.attend(layer.queries(x, at), *layer.keys_and_values(x, at), causal)
        assert_close(elsewhere, context, rtol=1e-9, atol=1e-9)
    apart = ts.attend(layer.queries(x, CachePosition(1)), *layer.keys_and_values(x), causal)
    assert not torch.allclose(apart, context, atol=1e-3)


def test_order_matters_with_rotary_and_not_without():
    x, back = sequence(N, 6), torch.arange(N).flip(0)
    without, with_rotary = (filled(MultiHeadAttention(6, 3, rotary=rotary)) for rotary in (None, ts.rotary()))
    assert_close(without(x[:, back])[:, back], without(x), **CLOSE)
    assert not torch.allclose(with_rotary(x[:, back])[:, back], with_rotary(x), atol=1e-3)


@pytest.mark.parametrize("rotary", [None, ts.rotary()], ids=["plain", "rotary"])
def test_keys_and_values_can_be_reused_token_by_token(rotary):
    layer, x = filled(MultiHeadAttention(6, 3, key_heads=1, attention=causal, rotary=rotary)), sequence(N, 6)
    kept = [layer.keys_and_values(x[:, i : i + 1], CachePosition(i)) for i in range(N)]
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*kept, strict=True))
    *_, context = seen_by(layer.attend, lambda: layer(x))
    for i in range(N):
        queries = layer.queries(x[:, i : i + 1], CachePosition(i))
        step = layer.attend(queries, keys[:, :, : i + 1], values[:, :, : i + 1], causal)
        assert_close(step, context[:, :, i : i + 1], **CLOSE)


# ----------------------------------------------------------------------------------------------------------- Luong


def test_luong_by_hand():
    """e = (ln 3, 0), so α = (3/4, 1/4) and c = 3/4 h_1 + 1/4 h_2. No √d: scaled, α_1 would be 0.685."""
    states, memory = torch.tensor([[[log(3), 0.0]]]), torch.tensor([[[1.0, 4.0], [0.0, 8.0]]])
    assert_close(LuongAttention("dot", 2)(states, memory), torch.tensor([[[0.75, 5.0]]]))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_luong_is_the_formula_word_by_word(score):
    layer, (states, memory) = made(f"luong_{score}")
    similarity = {
        "dot": lambda s, h: s @ h,
        "general": lambda s, h: s @ layer.W @ h,
        "concat": lambda s, h: layer.v @ torch.tanh(torch.cat([s, h]) @ torch.cat([layer.W_q, layer.W_k])),
    }[score]
    for b in range(BATCH):
        for i, s in enumerate(states[b]):
            alpha = torch.softmax(torch.stack([similarity(s, h) for h in memory[b]]), dim=0)
            c = sum(weight * h for weight, h in zip(alpha, memory[b], strict=True))
            assert_close(layer(states, memory)[b, i], c, **CLOSE)


def test_luong_with_padding():
    layer, (states, memory) = made("luong_general")
    short = layer(states[:1], memory[:1, :3])
    assert_close(layer(states, memory, ts.padding([3, KEYS]))[:1], short, **CLOSE)


# ----------------------------------------------------------------------------------------------------- Synthesizer


def synthesized(layer, x):
    """softmax(ReLU(X A_i + b1) B_i + b2) (X V_i), with the causal mask, head by head."""
    n, d_k, contexts = x.shape[1], layer.d_model // layer.heads, []
    for i in range(layer.heads):
        rows, table = slice(i * d_k, (i + 1) * d_k), i if len(layer.B) > 1 else 0
        hidden = torch.relu(x @ layer.A.weight[rows].T + layer.A.bias[rows])
        scores = hidden @ layer.B[table, :, :n] + layer.b2[table, 0, :n]
        weights = torch.softmax(scores + torch.full((n, n), -torch.inf).triu(1), dim=-1)
        contexts.append(weights @ (x @ layer.V.weight[rows].T + layer.V.bias[rows]))
    return torch.cat(contexts, dim=-1) @ layer.W_O.weight.T + layer.W_O.bias


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("n", [1, 5, 11])
def test_synthesizer_is_the_formula(shared, n):
    layer, x = filled(SynthesizerAttention(14, 2, 11, shared=shared)), sequence(n, 14)
    assert_close(layer(x), synthesized(layer, x), **CLOSE)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_synthesizer_runs_on_the_fused_kernel(shared, bias):
    layer, x = SynthesizerAttention(14, 2, 11, shared=shared, bias=bias), sequence(N, 14, dtype=torch.float32)
    queries, keys, values, attention, _ = seen_by(layer.attend, lambda: layer(x))
    assert ts.plan(queries, keys, values, attention).engine == "sdpa"


@pytest.mark.parametrize("shared", [False, True])
def test_synthesizer_does_not_see_the_future(shared):
    layer, x = filled(SynthesizerAttention(14, 2, 11, shared=shared)), sequence(N, 14)
    before = layer(x)
    x[:, 3:] = 1e3
    assert_close(layer(x)[:, :3], before[:, :3], **CLOSE)
    assert not torch.allclose(layer(x)[:, 3:], before[:, 3:])


def test_synthesizer_scores_do_not_depend_on_the_keys():
    """The weights of the last query depend on its own features alone: other tokens change the values only."""
    layer, x, other = filled(SynthesizerAttention(14, 2, 11)), sequence(N, 14), sequence(N, 14, seed=3)
    other[:, -1] = x[:, -1]
    mine, theirs = (ts.trace(*seen_by(layer.attend, lambda s=s: layer(s))[:4]).weights for s in (x, other))
    assert_close(mine[:, :, -1], theirs[:, :, -1], **CLOSE)
    assert not torch.allclose(mine[:, :, 1], theirs[:, :, 1])


def test_synthesizer_starts_as_the_assignment_says():
    layer = SynthesizerAttention(256, 8, 127)
    assert not layer.b2.any()
    assert 0.00099 < layer.B.max() <= 0.001
    assert -0.001 <= layer.B.min() < -0.00099


# -------------------------------------------------------------------------------------- feed forward, add & norm


def test_feed_forward_by_hand():
    network = FeedForward(2, 2)
    network.load_state_dict(
        {
            "W_1.weight": torch.tensor([[1.0, -1.0], [2.0, 0.0]]),
            "W_1.bias": torch.tensor([0.0, 1.0]),
            "W_2.weight": torch.tensor([[1.0, 10.0], [0.0, 1.0]]),
            "W_2.bias": torch.tensor([0.5, 0.0]),
        }
    )
    x = torch.tensor([[[1.0, 3.0]]])  # hidden: (1 - 3, 2 + 1) = (-2, 3), after ReLU (0, 3)
    assert_close(network(x), torch.tensor([[[30.5, 3.0]]]))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations(activation):
    function = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: x * torch.special.ndtr(x),
        "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }[activation]
    plain, gated = (filled(kind(6, 11, activation=activation)) for kind in (FeedForward, GatedFeedForward))
    x = sequence(N, 6)
    assert_close(plain(x), plain.W_2(function(plain.W_1(x))), **CLOSE)
    assert_close(gated(x), gated.W_2(function(gated.W_1(x)) * gated.W_3(x)), **CLOSE)


def test_add_norm_by_hand():
    """A norm takes (0, 2) and (1, 3) to (-1, 1)."""
    x = torch.tensor([[[0.0, 2.0]]])
    assert_close(AddNorm(2)(x, torch.ones_like), torch.tensor([[[-1.0, 1.0]]]), rtol=0, atol=1e-5)
    after = AddNorm(2, pre_norm=True)(x, lambda y: 10 * y)
    assert_close(after, torch.tensor([[[-10.0, 12.0]]]), rtol=0, atol=1e-3)


# --------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("pre_norm", [False, True])
def test_encoder_block_is_the_drawing(pre_norm):
    block, x = filled(encoder_block(pre_norm=pre_norm)), sequence(N, 6)
    attention, network, norm_1, norm_2 = (
        block.self_attention, block.feed_forward, block.add_norm_1.norm, block.add_norm_2.norm,
    )  # fmt: skip
    if pre_norm:
        z = x + attention(norm_1(x))
        expected = z + network(norm_2(z))
    else:
        z = norm_1(x + attention(x))
        expected = norm_2(z + network(z))
    assert_close(block(x), expected, **EXACT)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_padding_does_not_change_real_tokens(pre_norm):
    block, x = filled(encoder_block(pre_norm=pre_norm)), sequence(N, 6)
    assert_close(block(x, ts.padding([3, N]))[:1, :3], block(x[:1, :3]), **CLOSE)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_decoder_block_sees_neither_the_future_nor_the_padding_of_the_memory(pre_norm):
    block, x, memory = filled(decoder_block(pre_norm=pre_norm)), sequence(N, 6), sequence(KEYS, 6, seed=3)
    hide = ts.padding([4, 4])
    before = block(x, memory, memory_mask=hide)
    memory[:, 4:] = 1e3
    assert_close(block(x, memory, memory_mask=hide), before, **CLOSE)
    assert not torch.allclose(block(x, memory), before)
    x[:, 3:] = 1e3
    assert_close(block(x, memory, memory_mask=hide)[:, :3], before[:, :3], **CLOSE)


def test_decoder_block_takes_a_mask_for_its_own_sequence():
    block, x, memory = filled(decoder_block()), sequence(N, 6), sequence(KEYS, 6, seed=3)
    alone = torch.cat([block(x[:, i : i + 1], memory) for i in range(N)], dim=1)
    assert_close(block(x, memory, ts.window(1)), alone, **CLOSE)


def test_any_attention_fits_a_block():
    block = EncoderBlock(6, SynthesizerAttention(6, 3, 11), GatedFeedForward(6, 11), norm=nn.RMSNorm, pre_norm=True)
    x = sequence(N, 6)
    before = filled(block)(x)
    x[:, 3:] = 1e3
    assert_close(block(x)[:, :3], before[:, :3], **CLOSE)


# ------------------------------------------------------------------------------------------------------ positions


def test_learned_positions_are_added_from_the_start():
    layer, x = filled(LearnedPositions(11, 6)), sequence(N, 6)
    assert_close(layer(x), x + layer.P[:N], **EXACT)
    assert_close(layer(x, start=6), x + layer.P[6:11], **EXACT)


def test_sinusoidal_positions_by_hand():
    still, row = torch.zeros(1, 2, 4), [0.0, 1.0, 0.0, 1.0]
    step = torch.tensor([1.0, 0.01])  # the two frequencies, 1 and 1/10000^(2/4)
    second = torch.stack([step.sin(), step.cos()], dim=-1).flatten()
    assert_close(SinusoidalPositions(4)(still), torch.stack([torch.tensor(row), second])[None])


@pytest.mark.parametrize("make", [lambda: LearnedPositions(11, 6), lambda: SinusoidalPositions(6)])
def test_a_sequence_can_be_continued(make):
    layer, x = filled(make()), sequence(N, 6)
    assert_close(torch.cat([layer(x[:, :2]), layer(x[:, 2:], start=2)], dim=1), layer(x), **EXACT)


DEFINITIONS = {
    "plain": (ts.Attention(), None, True),
    "causal": (causal, None, True),
    "rotary": (causal, ts.rotary(), False),
    "softcap": (ts.Attention(softcap=2.0), None, False),
    "sink": (ts.Attention(sink=0.5), None, False),
    "by sum": (ts.Attention(normalize=ts.by_sum), None, False),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("d_memory", [None, 4])
def test_a_bias_that_no_weight_depends_on(kind, d_memory):
    """The bias of the keys shifts every score of a row alike: softmax ignores it, other definitions do not."""
    attention, rotary, ignored = DEFINITIONS[kind]
    if rotary is not None and d_memory is not None:
        pytest.skip("rotary positions are for self-attention")
    layer = MultiHeadAttention(6, 3, key_heads=1, d_memory=d_memory, attention=attention, rotary=rotary).double()
    x = torch.rand(BATCH, N, 6, dtype=torch.float64)
    memory = None if d_memory is None else torch.rand(BATCH, N, d_memory, dtype=torch.float64)
    found, before = layer._ignored_bias(), layer(x, memory)
    assert (found is not None) is ignored
    bias = layer.projections()["W_k"].bias
    with torch.no_grad():
        bias += torch.rand_like(bias)
    assert torch.allclose(layer(x, memory), before, **CLOSE) is ignored
    if found is not None:
        parameter, part = found
        assert parameter[part].data_ptr() == bias.data_ptr()
        assert parameter[part].shape == bias.shape


def test_a_layer_without_biases_has_none_to_ignore():
    assert MultiHeadAttention(6, 3, bias=False)._ignored_bias() is None
