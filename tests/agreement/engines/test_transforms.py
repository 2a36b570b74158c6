"""Where torch's attention works, Telescope's does too: torch.func, torch.export with dynamic sizes, FakeTensorMode."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.func import functional_call, grad, jvp, vjp, vmap

import telescope as ts
from support.strategies import Shape, assert_near, gradients, learnable, normal, tensors
from telescope.engines import dispatch as choose
from telescope.engines import torch_modes
from telescope.layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention, SelfAttention
from telescope.models import GPT, Encoder, EncoderConfig, GPTConfig, Transformer, TransformerConfig

SHAPE = Shape(2, 4, 2, 5, 5, 4, 3)
coin = normal(2, 4, 5, 5, seed=1) < 0.5
OPEN = {  # for any batch and length
    "plain": ts.Attention(),
    "causal": ts.Attention(mask=ts.causal),
    "window": ts.Attention(mask=ts.causal & ts.window(3)),
    "prefix": ts.Attention(mask=ts.causal | ts.prefix(2), scale=-0.5),
    "alibi": ts.Attention(mask=ts.causal, bias=ts.alibi(4)),
    "relative": ts.Attention(bias=ts.relative(normal(4, 5, seed=2)), mask=~ts.window(2)),
    "function": ts.Attention(bias=lambda query, key: torch.cos((query + 2.0 * key).double())),
    "softcap and sink": ts.Attention(mask=ts.causal, softcap=2.0, sink=0.5),
    "additive": ts.Attention(score=ts.additive(normal(4, 3, seed=3), normal(4, 3, seed=4), normal(3, seed=5))),
}
DEFINITIONS = OPEN | {
    "lengths": ts.Attention(mask=ts.padding([0, 3]) & ts.causal),
    "left": ts.Attention(mask=ts.padding(left=[1, 3])),
    "keep": ts.Attention(mask=ts.padding(keep=coin[:, 0, 0]), bias=ts.alibi(4)),
    "documents": ts.Attention(mask=ts.documents([0, 0, 1, 1, 1])),
    "tensor": ts.Attention(mask=ts.from_tensor(coin)),
    "a bias that forbids": ts.Attention(
        bias=ts.from_additive(normal(2, 4, 5, 5, seed=6).masked_fill(coin, -torch.inf))
    ),
}
on_all = pytest.mark.parametrize("attention", DEFINITIONS.values(), ids=DEFINITIONS)
# torch.func.jvp compiles its decompositions by torch.jit.script, which torch has deprecated
jvp_warns = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
sizes = pytest.mark.parametrize("small", [True, False], ids=["small", "large"])


@pytest.fixture(autouse=True)
def as_small_or_large(request, monkeypatch):
    """Run a test twice: large inputs run on the engines that go block by block."""
    drawn = getattr(request.node, "callspec", None)
    if drawn is not None and not drawn.params.get("small", True):
        monkeypatch.setattr(choose, "SMALL", 0)


def stacked(count=3):
    """Return queries, keys and values with one more axis in front."""
    return [torch.stack(some) for some in zip(*(tensors(SHAPE, seed=10 * i) for i in range(count)), strict=True)]


@on_all
@sizes
def test_vmap_equals_a_loop(attention, small):
    many = stacked()
    expected = torch.stack([ts.attend(*one, attention) for one in zip(*many, strict=True)])
    assert_near(vmap(lambda *one: ts.attend(*one, attention))(*many), expected)
    q, k, v = many
    shared = vmap(lambda q: ts.attend(q, k[0], v[0], attention))(q)
    assert_near(shared, torch.stack([ts.attend(one, k[0], v[0], attention) for one in q]))


def loss(attention):
    weighing = normal(2, 4, 5, 3, seed=0)
    return lambda q, k, v: (ts.attend(q, k, v, attention) * weighing).sum()


@on_all
@sizes
def test_functional_and_per_sample_gradients(attention, small):
    many = stacked()
    leaves = [learnable(*one) for one in zip(*many, strict=True)]
    expected = [gradients(ts.attend(*one, attention), *one) for one in leaves]
    one = grad(loss(attention), argnums=(0, 1, 2))(*(some[0] for some in many))
    each = vmap(grad(loss(attention), argnums=(0, 1, 2)))(*many)
    for which in range(3):
        assert_near(one[which], expected[0][which], backward=True)
        assert_near(each[which], torch.stack([slopes[which] for slopes in expected]), backward=True)


@on_all
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch.func.jvp, inside torch
def test_forward_mode_is_the_transpose_of_backward(attention):
    """w · (J u) = (Jᵀ w) · u"""
    q, k, v = tensors(SHAPE)

    def of(q):
        return ts.attend(q, k, v, attention)

    u = normal(*q.shape, seed=7)
    context, along = jvp(of, (q,), (u,))
    w = normal(*context.shape, seed=8)
    (back,) = vjp(of, q)[1](w)
    assert_near((w * along).sum(), (back * u).sum(), backward=True)


@jvp_warns
def test_second_derivatives():
    """torch's fused kernels have no second derivatives."""
    q, k, v = tensors(Shape(1, 1, 1, 2, 3, 2, 2))
    attention = ts.Attention(mask=ts.causal, bias=ts.alibi(1))

    def of(q):
        return (ts.attend(q, k, v, attention) ** 2).sum()

    expected = torch.autograd.functional.hessian(
        lambda q: (ts.attend(q, k, v, attention, engine="reference") ** 2).sum(), q
    )
    assert_near(torch.func.hessian(of)(q), expected, backward=True)
    assert_near(torch.func.jacrev(torch.func.jacrev(of))(q), expected, backward=True)


def layers():
    torch.manual_seed(0)
    alibi = ts.Attention(mask=ts.causal, bias=ts.alibi(2))
    feed_forward, x = FeedForward(8, 12), normal(3, 2, 5, 8, seed=0)
    cross, window = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, attention=ts.Attention(mask=ts.window(2)))
    ids = torch.arange(30).view(3, 2, 5) % 11
    gpt = GPTConfig(vocabulary=11, max_positions=9, d_model=8, blocks=2, heads=2, window=3)
    rotary = GPTConfig(vocabulary=11, d_model=8, blocks=1, heads=2, key_heads=1, positions="rotary", norm="rms")
    return {
        "MultiHeadAttention": (MultiHeadAttention(8, 2, key_heads=1, attention=alibi, rotary=ts.rotary()), (x,)),
        "SelfAttention": (SelfAttention(8, attention=ts.Attention(mask=ts.causal)), (x,)),
        "EncoderBlock": (EncoderBlock(8, window, feed_forward), (x,)),
        "DecoderBlock": (DecoderBlock(8, window, cross, feed_forward), (x, x.flip(2))),
        "GPT": (GPT(gpt), (ids,)),
        "GPT, rotary": (GPT(rotary), (ids,)),
        "Encoder": (Encoder(EncoderConfig(vocabulary=11, d_model=8, blocks=1, heads=2)), (ids,)),
        "Transformer": (
            Transformer(TransformerConfig(vocabulary=11, d_model=8, encoder_blocks=1, decoder_blocks=1, heads=2)),
            (ids, ids.flip(2)),
        ),
    }


@pytest.mark.parametrize("name", layers())
def test_per_sample_gradients_of_a_layer(name):
    layer, inputs = layers()[name]
    layer = layer.double().eval()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    weighing = normal(*layer(*(some[0] for some in inputs)).shape, seed=1)

    def of(parameters, *one):
        return (functional_call(layer, parameters, one) * weighing).sum()

    each = vmap(grad(of), in_dims=(None, *[0] * len(inputs)))(parameters, *inputs)
    for i, one in enumerate(zip(*inputs, strict=True)):
        expected = torch.autograd.grad((layer(*one) * weighing).sum(), list(layer.parameters()))
        for mine, slope in zip(each.values(), expected, strict=True):
            assert_near(mine[i], slope, backward=True)


# ---------------------------------------------------------------------------------------------- shapes without numbers


@on_all
@sizes
def test_attend_of_fake_tensors_gives_shapes(attention, small):
    q, k, v = tensors(SHAPE)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = [mode.from_tensor(tensor).requires_grad_() for tensor in (q, k, v)]
        context = ts.attend(*inputs, attention)
        slopes = torch.autograd.grad(context.sum(), inputs)
    assert (type(context), context.shape, context.dtype) == (type(inputs[0]), (2, 4, 5, 3), q.dtype)
    assert [slope.shape for slope in slopes] == [q.shape, k.shape, v.shape]
    assert_near(
        ts.attend(q, k, v, attention), ts.attend(q, k, v, attention, engine="reference")
    )  # nothing fake is kept


@pytest.mark.parametrize("name", layers())
def test_layers_on_fake_tensors_give_shapes(name):
    layer, inputs = layers()[name]
    expected = layer.double()(*(some[0] for some in inputs)).shape
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(*(mode.from_tensor(some[0]) for some in inputs)).shape == expected


# ------------------------------------------------------------------------------------------------------- torch.export


class All(nn.Module):
    """Run every definition in one module, since an export takes seconds."""

    def forward(self, q, k, v, lengths, keep):
        given = {
            "lengths": ts.Attention(mask=ts.padding(lengths) & ts.causal),
            "left": ts.Attention(mask=ts.padding(left=lengths), bias=ts.alibi(4)),
            "keep": ts.Attention(mask=ts.padding(keep=keep)),
        }
        given |= {name: OPEN[name] for name in ("causal", "window", "alibi", "function", "softcap and sink")}
        return {name: ts.attend(q, k, v, attention) for name, attention in given.items()}


def drawn(batch, n, seed=0):
    lengths = torch.arange(batch) % (n + 1)
    return *tensors(Shape(batch, 4, 2, n, n, 4, 3), seed), lengths, normal(batch, n, seed=seed) < 0.5


@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="torch 2.11 takes the layout of a broadcast mask for a constraint on its length"
)
def test_an_export_has_dynamic_batch_and_length(unchecked):
    batch, n = Dim("batch", min=2, max=4096), Dim("n", min=2, max=100_000)
    rows = {0: batch, 2: n}
    exported = export(All(), drawn(2, 5), dynamic_shapes=(rows, rows, rows, {0: batch}, {0: batch, 1: n})).module()
    for size in ((2, 5), (3, 2), (2, 17), (5, 200)):
        inputs = drawn(*size, seed=size[1])
        expected = All()(*inputs)
        for name, context in exported(*inputs).items():
            assert_near(context, expected[name])


def test_an_export_takes_queries_and_keys_of_two_lengths(unchecked):
    """Except one query and many keys, which is decoding and a program of its own."""

    class Cross(nn.Module):
        def forward(self, q, k, v, keep):
            return ts.attend(q, k, v, ts.Attention(mask=ts.padding(keep=keep) & ts.window(9), bias=ts.alibi(4)))

    def of(batch, n, m):
        return *tensors(Shape(batch, 4, 2, n, m, 4, 3)), normal(batch, m, seed=1) < 0.5

    batch, n, m = Dim("batch", min=2, max=64), Dim("n", min=2, max=4096), Dim("m", min=2, max=4096)
    shapes = ({0: batch, 2: n}, {0: batch, 2: m}, {0: batch, 2: m}, {0: batch, 1: m})
    exported = export(Cross(), of(2, 3, 5), dynamic_shapes=shapes).module()
    for size in ((2, 3, 5), (4, 7, 7), (3, 9, 2)):
        assert_near(exported(*of(*size)), Cross()(*of(*size)))


@pytest.mark.parametrize("name", ["MultiHeadAttention", "GPT, rotary", "Transformer"])
def test_layers_and_models_export(name, unchecked):
    layer, inputs = layers()[name]
    layer = layer.double().eval()
    batch, n = Dim("batch", min=2, max=64), Dim("n", min=2, max=100)
    one = tuple(some[0] for some in inputs)
    exported = export(layer, one, dynamic_shapes=[{0: batch, 1: n}] * len(one)).module()
    for size in ((2, 5), (4, 3), (3, 40)):
        other = [some.flatten(0, 2)[torch.arange(size[0] * size[1]).view(size) * 7 % 30] for some in inputs]
        assert_near(exported(*other), layer(*other))


def test_a_definition_can_be_built_inside_a_compiled_function(unchecked):
    def attend(q, k, v):
        attention = ts.Attention(mask=ts.causal)
        return ts.attend(q, k, v, attention) + ts.attend(q, k, v, replace(attention, scale=0.5))

    inputs = tensors(SHAPE)
    torch._dynamo.reset()
    assert_near(torch.compile(attend, backend="eager", fullgraph=True)(*inputs), attend(*inputs))


@pytest.mark.parametrize("key_heads", [1, 4])
def test_dynamic_lengths_inside_torch_compile(unchecked, key_heads):
    """torch.compile(dynamic=True) passes symbolic sizes, and torch's kernel takes no symbolic flag."""
    torch._dynamo.reset()
    compiled = torch.compile(ts.attend, dynamic=True, backend="eager", fullgraph=True)
    attention = ts.Attention(mask=ts.causal)
    for queries, keys in ((1, 9), (1, 30), (17, 17), (5, 40)):
        q, (k, v) = torch.randn(2, 4, queries, 16), torch.randn(2, 2, key_heads, keys, 16)
        assert_near(compiled(q, k, v, attention), ts.attend(q, k, v, attention, engine="reference"))


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_function_is_not_taken_for_an_export(strict, unchecked):
    """torch 2.11 reports an export whenever it compiles; then everything would run on `reference`."""

    class Says(nn.Module):
        def forward(self, x):
            return x + torch_modes.is_exporting()

    x = torch.zeros(2)
    torch._dynamo.reset()
    assert torch.compile(Says(), backend="eager", fullgraph=True)(x).tolist() == [0.0, 0.0]
    assert export(Says(), (x,), strict=strict).module()(x).tolist() == [1.0, 1.0]
    assert Says()(x).tolist() == [0.0, 0.0]
