"""PyTorch's layers and Telescope's, of the same weights: the same numbers, for every mask that torch takes."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from jaxtyping import config
from torch import nn
from torch.nn.functional import relu, silu
from torch.testing import assert_close

import telescope as ts
from telescope.layers import DecoderBlock, EncoderBlock, MultiHeadAttention, from_torch

BATCH, HEADS, D_K, QUERIES, KEYS, D_MEMORY, D_HIDDEN = 2, 3, 5, 7, 11, 13, 17
D_MODEL = HEADS * D_K
CLOSE = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def filled(module, dtype=torch.float64):
    """Set every parameter to random numbers: a bias of zeros, torch's default, would hide a bias that is lost."""
    torch.manual_seed(7)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.to(dtype)


def sequence(positions, width=D_MODEL, dtype=torch.float64, seed=11):
    return torch.randn(BATCH, positions, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def forbidden(*shape, seed=3):
    """Return a random bool mask, True = forbidden, in which every query sees the first key."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    mask[..., 0] = False
    return mask


def added(*shape, seed=5, hidden=None):
    """Return a random float mask, with -inf where `hidden`."""
    mask = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return mask if hidden is None else mask.masked_fill(hidden, -torch.inf)


# Each form of mask: what torch is given, and the mask and the bias that mean the same here.


def bool_2d(n, k):
    mask = forbidden(n, k)
    return {"attn_mask": mask}, ts.from_forbidden(mask), None


def bool_3d(n, k):
    mask = forbidden(BATCH * HEADS, n, k)
    return {"attn_mask": mask}, ts.from_forbidden(mask, heads=HEADS), None


def float_2d(n, k):
    mask = added(n, k)
    return {"attn_mask": mask}, None, ts.from_additive(mask)


def float_3d(n, k):
    mask = added(BATCH * HEADS, n, k)
    return {"attn_mask": mask}, None, ts.from_additive(mask, heads=HEADS)


def infinite_2d(n, k):
    mask = added(n, k, hidden=forbidden(n, k))
    return {"attn_mask": mask}, None, ts.from_additive(mask)


def infinite_3d(n, k):
    mask = added(BATCH * HEADS, n, k, hidden=forbidden(BATCH * HEADS, n, k))
    return {"attn_mask": mask}, None, ts.from_additive(mask, heads=HEADS)


def padding_bool(n, k):
    mask = forbidden(BATCH, k)
    return {"key_padding_mask": mask}, ts.padding(keep=~mask), None


def padding_float(n, k):
    mask = added(BATCH, k, hidden=forbidden(BATCH, k))
    return {"key_padding_mask": mask}, None, ts.from_additive(mask[:, None, None])


def both_bool(n, k):
    mask, pad = forbidden(n, k), forbidden(BATCH, k, seed=4)
    masks = ts.from_forbidden(mask) & ts.padding(keep=~pad)
    return {"attn_mask": mask, "key_padding_mask": pad}, masks, None


def both_bool_3d(n, k):
    mask, pad = forbidden(BATCH * HEADS, n, k), forbidden(BATCH, k, seed=4)
    masks = ts.from_forbidden(mask, heads=HEADS) & ts.padding(keep=~pad)
    return {"attn_mask": mask, "key_padding_mask": pad}, masks, None


def both_float(n, k):
    mask, pad = added(n, k, hidden=forbidden(n, k)), added(BATCH, k, seed=6, hidden=forbidden(BATCH, k, seed=4))
    return {"attn_mask": mask, "key_padding_mask": pad}, None, ts.from_additive(mask + pad[:, None, None])


def no_mask(n, k):
    return {}, None, None


FORMS = [
    no_mask, bool_2d, bool_3d, float_2d, float_3d, infinite_2d, infinite_3d,
    padding_bool, padding_float, both_bool, both_bool_3d, both_float,
]  # fmt: skip


def cast(masks, dtype):
    return {name: mask.to(dtype) if mask.is_floating_point() else mask for name, mask in masks.items()}


def theirs(module, x, memory, **options):
    """Return torch's result, batch first."""
    if not module.batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    y, _ = module(x, memory, memory, **options)
    return y if module.batch_first else y.transpose(0, 1)


def ours(module, x, memory, mask=None, bias=None):
    layer = from_torch(module)
    layer.attention = replace(layer.attention, bias=bias)
    return layer(x, memory, mask)


# ------------------------------------------------------------------------------------------- nn.MultiheadAttention


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention(form, dtype, need_weights):
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True), dtype)
    x = sequence(QUERIES, dtype=dtype)
    given, mask, bias = form(QUERIES, QUERIES)
    expected = theirs(module, x, x, need_weights=need_weights, **cast(given, dtype))
    assert_close(ours(module, x, None, mask, bias), expected, **CLOSE[dtype])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("d_memory", [D_MODEL, D_MEMORY])
def test_cross_attention(form, batch_first, d_memory):
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, kdim=d_memory, vdim=d_memory, batch_first=batch_first))
    x, memory = sequence(QUERIES), sequence(KEYS, d_memory)
    given, mask, bias = form(QUERIES, KEYS)
    assert_close(ours(module, x, memory, mask, bias), theirs(module, x, memory, **given), **CLOSE[x.dtype])


@pytest.mark.parametrize("need_weights", [True, False])
def test_is_causal(need_weights):
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True))
    x = sequence(QUERIES)
    later = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    expected = theirs(module, x, x, attn_mask=later, is_causal=True, need_weights=need_weights)
    assert_close(ours(module, x, None, ts.causal), expected, **CLOSE[x.dtype])


@pytest.mark.parametrize("form", [no_mask, bool_2d, infinite_3d], ids=lambda form: form.__name__)
def test_add_zero_attn_is_a_sink_at_zero(form):
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, add_zero_attn=True, batch_first=True))
    x, memory = sequence(QUERIES), sequence(KEYS)
    given, mask, bias = form(QUERIES, KEYS)
    assert_close(ours(module, x, memory, mask, bias), theirs(module, x, memory, **given), **CLOSE[x.dtype])


def test_without_biases():
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True))
    x = sequence(QUERIES)
    assert_close(ours(module, x, None), theirs(module, x, x), **CLOSE[x.dtype])
    assert not any("bias" in name for name in from_torch(module).state_dict())


def test_a_row_that_sees_nothing_is_nan_in_torch_and_zeros_here():
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True))
    x = sequence(QUERIES)
    mask = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    mask[3] = True
    expected = theirs(module, x, x, attn_mask=mask)
    actual = ours(module, x, None, ts.from_forbidden(mask))
    assert expected[:, 3].isnan().all()
    assert_close(
        actual[:, 3], module.out_proj.bias.expand(BATCH, -1), rtol=0, atol=0
    )  # zeros, times W_O, plus its bias
    assert_close(actual[:, :3], expected[:, :3], **CLOSE[x.dtype])
    assert_close(actual[:, 4:], expected[:, 4:], **CLOSE[x.dtype])


def test_gradients_of_the_inputs_and_of_every_weight():
    module = filled(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True))
    layer = from_torch(module)
    x, memory = sequence(QUERIES).requires_grad_(), sequence(KEYS, seed=12).requires_grad_()
    weigh = sequence(QUERIES, seed=13)
    expected = torch.autograd.grad((theirs(module, x, memory) * weigh).sum(), [x, memory, *module.parameters()])
    actual = torch.autograd.grad((layer(x, memory) * weigh).sum(), [x, memory, *layer.parameters()])
    assert_close(actual, expected, **CLOSE[x.dtype])


# ------------------------------------------------------------- nn.TransformerEncoderLayer, nn.TransformerDecoderLayer


def encoder(**options):
    options = {"batch_first": True, "dropout": 0.0, **options}
    return filled(nn.TransformerEncoderLayer(D_MODEL, HEADS, D_HIDDEN, **options))


def decoder(**options):
    options = {"batch_first": True, "dropout": 0.0, **options}
    return filled(nn.TransformerDecoderLayer(D_MODEL, HEADS, D_HIDDEN, **options))


def turned(module, tensor):
    return tensor if module.self_attn.batch_first else tensor.transpose(0, 1)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layer_with_causal_and_padding(norm_first, activation, batch_first):
    module = encoder(norm_first=norm_first, activation=activation, batch_first=batch_first)
    block = from_torch(module)
    x = sequence(QUERIES).requires_grad_()
    later, pad = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1), forbidden(BATCH, QUERIES)
    expected = turned(module, module(turned(module, x), src_mask=later, src_key_padding_mask=pad))
    actual = block(x, ts.causal & ts.padding(keep=~pad))
    assert_close(actual, expected, **CLOSE[x.dtype])

    weigh = sequence(QUERIES, seed=13)
    wanted = [x, module.linear1.weight, module.norm2.bias, module.self_attn.in_proj_weight]
    matching = [x, block.feed_forward.W_1.weight, block.add_norm_2.norm.bias, block.self_attention.W_qkv.weight]
    actual = torch.autograd.grad((actual * weigh).sum(), matching)
    assert_close(actual, torch.autograd.grad((expected * weigh).sum(), wanted))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_decoder_layer_with_causal_and_padding(norm_first, activation, batch_first):
    module = decoder(norm_first=norm_first, activation=activation, batch_first=batch_first)
    block = from_torch(module)
    x, memory = sequence(QUERIES).requires_grad_(), sequence(KEYS, seed=12).requires_grad_()
    later = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    pad, memory_pad = forbidden(BATCH, QUERIES), forbidden(BATCH, KEYS, seed=4)
    expected = turned(
        module,
        module(
            turned(module, x),
            turned(module, memory),
            tgt_mask=later,
            tgt_key_padding_mask=pad,
            memory_key_padding_mask=memory_pad,
        ),
    )
    actual = block(x, memory, ts.causal & ts.padding(keep=~pad), ts.padding(keep=~memory_pad))
    assert_close(actual, expected, **CLOSE[x.dtype])

    weigh = sequence(QUERIES, seed=13)
    wanted = [x, memory, module.linear2.weight, module.norm1.weight, module.multihead_attn.out_proj.weight]
    matching = [
        x, memory, block.feed_forward.W_2.weight, block.add_norm_1.norm.weight, block.cross_attention.W_O.weight,
    ]  # fmt: skip
    assert_close(
        torch.autograd.grad((actual * weigh).sum(), matching), torch.autograd.grad((expected * weigh).sum(), wanted)
    )


def test_decoder_layer_with_a_mask_on_the_memory():
    module = decoder()
    x, memory, mask = sequence(QUERIES), sequence(KEYS, seed=12), forbidden(QUERIES, KEYS)
    expected = module(x, memory, memory_mask=mask)
    assert_close(from_torch(module)(x, memory, memory_mask=ts.from_forbidden(mask)), expected, **CLOSE[x.dtype])


@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"bias": False, "norm_first": True},
        {"layer_norm_eps": 0.5},
        {"activation": nn.ReLU()},
        {"activation": torch.relu},
        {"activation": relu},
        {"activation": nn.GELU()},
        {"activation": nn.GELU(approximate="tanh")},
        {"activation": silu},
        {"activation": nn.SiLU()},
    ],
    ids=lambda options: " ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()),
)
@pytest.mark.parametrize("make", [encoder, decoder], ids=["encoder", "decoder"])
def test_from_torch_takes_over_every_option(make, options):
    module = make(**options)
    inputs = (sequence(QUERIES),) if make is encoder else (sequence(QUERIES), sequence(KEYS, seed=12))
    assert_close(from_torch(module)(*inputs), module(*inputs), **CLOSE[torch.float64])


def test_the_fast_path_of_torch_gives_the_same_numbers():
    module = filled(nn.TransformerEncoderLayer(16, 2, D_HIDDEN, batch_first=True), torch.float32).eval()
    x, pad = sequence(QUERIES, 16, torch.float32), torch.arange(QUERIES) >= torch.tensor([[QUERIES], [4]])
    with torch.no_grad():
        expected, actual = module(x, src_key_padding_mask=pad), from_torch(module)(x, ts.padding(keep=~pad))
    assert_close(actual[~pad], expected[~pad], **CLOSE[x.dtype])


# --------------------------------------------------------------------------------------------------- the conversion


def test_from_torch_returns_the_matching_class():
    assert isinstance(from_torch(nn.MultiheadAttention(D_MODEL, HEADS)), MultiHeadAttention)
    assert type(from_torch(encoder())) is EncoderBlock
    assert type(from_torch(decoder())) is DecoderBlock


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [encoder, decoder], ids=["encoder", "decoder"])
def test_dtype_device_and_mode_are_kept(make, dtype, training):
    block = from_torch(make().to(dtype).train(training))
    assert {(p.dtype, p.device.type, p.requires_grad) for p in block.parameters()} == {(dtype, "cpu", True)}
    assert {part.training for part in block.modules()} == {training}


def test_from_torch_takes_over_each_dropout():
    module = decoder(dropout=0.25)
    module.dropout.p, module.dropout1.p, module.dropout2.p, module.dropout3.p = 0.1, 0.2, 0.3, 0.4
    block = from_torch(module)
    assert (block.self_attention.attend.dropout, block.cross_attention.attend.dropout) == (0.25, 0.25)
    assert block.feed_forward.dropout.p == 0.1
    assert [part.dropout.p for part in (block.add_norm_1, block.add_norm_2, block.add_norm_3)] == [0.2, 0.3, 0.4]


def test_the_weights_are_copies():
    module = encoder()
    x = sequence(QUERIES)
    block = from_torch(module)
    before = block(x)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert_close(block(x), before, rtol=0, atol=0)


def test_from_torch_does_not_advance_the_random_generator():
    module = decoder()
    torch.manual_seed(17)
    expected = torch.rand(3)
    torch.manual_seed(17)
    from_torch(module)
    assert torch.equal(torch.rand(3), expected)


# ----------------------------------------------------------------------------- converted attentions in layers of torch


def drop_in(module):
    """Return a copy of a layer of torch in which the attentions are Telescope's."""
    module = deepcopy(module)
    for name in ("self_attn", "multihead_attn"):
        if hasattr(module, name):
            setattr(module, name, from_torch(getattr(module, name)))
    return module


LATER = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
PAD = forbidden(BATCH, QUERIES)
TORCH_MASKS = {
    "plain": {},
    "bool": {"src_mask": LATER},
    "float": {"src_mask": added(QUERIES, QUERIES, hidden=LATER)},
    "each head": {"src_mask": forbidden(BATCH * 4, QUERIES, QUERIES)},
    "causal": {"src_mask": LATER, "is_causal": True},
    "padding": {"src_key_padding_mask": PAD},
    "causal, padding": {"src_mask": LATER, "src_key_padding_mask": PAD, "is_causal": True},
}


@pytest.mark.parametrize("masks", TORCH_MASKS.values(), ids=TORCH_MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_converted_attention_in_an_encoder_layer_of_torch(masks, batch_first):
    """In training, and in `eval`, where torch runs a kernel of its own, which reads numbers as bools."""
    theirs = filled(nn.TransformerEncoderLayer(16, 4, D_HIDDEN, dropout=0.0, batch_first=batch_first))
    ours = drop_in(theirs)
    x = turned(theirs, sequence(QUERIES, 16))
    expected = theirs(x, **masks)
    assert_close(ours(x, **masks), expected, **CLOSE[x.dtype])
    with torch.no_grad():
        if masks is not TORCH_MASKS["float"]:
            expected = theirs.eval()(x, **masks)
        with ts.watch(ours.eval()) as recording:
            assert_close(ours(x, **masks), expected, **CLOSE[x.dtype])
    assert [one.call.size for one in recording.values()] == [(QUERIES, QUERIES)]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("trains", [True, False], ids=["train", "eval"])
def test_converted_attentions_in_a_whole_encoder_and_in_a_decoder_layer_of_torch(trains):
    one = filled(nn.TransformerEncoderLayer(16, 4, D_HIDDEN, dropout=0.0, batch_first=True))
    x, memory = sequence(QUERIES, 16), sequence(KEYS, 16, seed=12)
    pad = forbidden(BATCH, QUERIES).sort(-1).values  # on the right, as torch's nested tensors need it
    expected = nn.TransformerEncoder(one, 2).train(trains)(x, src_key_padding_mask=pad)
    actual = nn.TransformerEncoder(drop_in(one), 2).train(trains)(x, src_key_padding_mask=pad)
    assert_close(actual[~pad], expected[~pad], **CLOSE[x.dtype])

    theirs = filled(nn.TransformerDecoderLayer(16, 4, D_HIDDEN, dropout=0.0, batch_first=True)).train(trains)
    masks = {"tgt_mask": LATER, "tgt_is_causal": True, "memory_key_padding_mask": forbidden(BATCH, KEYS)}
    assert_close(drop_in(theirs)(x, memory, **masks), theirs(x, memory, **masks), **CLOSE[x.dtype])


def test_causal_without_a_mask_is_causal():
    layer = from_torch(filled(nn.MultiheadAttention(16, 4, batch_first=True)))
    x = sequence(QUERIES, 16)
    y, weights = layer(x, x, x, need_weights=False, is_causal=True)
    assert weights is None
    assert_close(y, layer(x, mask=ts.causal))


def test_what_a_converted_attention_cannot_do_for_torch():
    layer = from_torch(nn.MultiheadAttention(16, 4))
    x = torch.ones(3, 2, 16)
    with pytest.raises(ValueError, match=r"need_weights=True: .* pass need_weights=False"):
        layer(x, x, x)
    with pytest.raises(ValueError, match="key and value are two sequences"):
        layer(x, x, x + 1, need_weights=False)


# ------------------------------------------------------------------------------------------------------ torch.jit.trace


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("mask", [ts.everyone, ts.causal, ts.causal & ts.window(3)], ids=str)
def test_a_layer_can_be_traced(mask, monkeypatch):
    """torch traces the layer twice and compares the graphs: what is cached, or read for a check, must not differ."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # sizes are tensors while torch traces
    layer = filled(MultiHeadAttention(16, 4, attention=ts.Attention(mask=mask)), torch.float32)
    traced = torch.jit.trace(layer, sequence(QUERIES, 16, torch.float32))
    other = sequence(QUERIES, 16, torch.float32, seed=14)
    assert_close(traced(other), layer(other))
    other[0, 0] = torch.nan  # no decision about the numbers of the first input is part of the graph
    assert traced(other)[1].isfinite().all()
