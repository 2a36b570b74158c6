"""Estimates of effects, compared with autograd through eager attention in float64, with formulas over whole matrices,
and with exact effects where these are linear or small.
"""

import math
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from support.editing import ByHand, Kept, eager_by_hand
from support.small_blocks import small_blocks
from telescope.editing import changed_weights, estimates, measured

N = 13
IDS = torch.randint(1, 60, (2, N), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=["at once", "recomputed", "small blocks", "many atoms"])
def way(request, monkeypatch):
    """The ways of computing estimates, which agree."""
    if request.param != "at once":
        monkeypatch.setattr(estimates, "LONG", 0)
    if request.param == "many atoms":
        monkeypatch.setattr(changed_weights, "DENSE", 0)
    monkeypatch.setitem(measured.LOGITS, "cpu", 200)
    with small_blocks() if request.param in ("small blocks", "many atoms") else nullcontext():
        yield request.param


def estimated(model, inputs, edits, measure="loss", **options):
    """Return the estimated change of each edit."""
    found = ts.effect(model, inputs, edits, measure, how="gradient", verify=0, **options)
    plain, *values = next(iter([*found.columns.values()][1:]))
    return torch.tensor(values, dtype=torch.float64) - plain


def exact(model, inputs, edits, measure="loss", **options):
    columns = ts.effect(model, inputs, edits, measure, progress=False, **options).columns
    name = next(name for name in ("loss", "value", "difference", "p(5)") if name in columns)
    plain, *values = columns[name]
    return torch.tensor(values, dtype=torch.float64) - plain


# -------------------------------------------------------------------------------------- autograd, by plain hooks


def plain_tensors(model, run, projections):
    """Return z, what goes into each output projection, with the gradient of run()."""
    seen = {}

    def note(name, args):
        args[0].retain_grad()
        seen[name] = args[0]

    handles = [
        module.register_forward_pre_hook(lambda module, args, name=name: note(name, args))
        for name, module in projections.items()
    ]
    run().backward()
    for handle in handles:
        handle.remove()
    model.zero_grad(set_to_none=True)
    return seen


@contextmanager
def eager(model, weights=None):
    """Let a model attend by eager code in float64 while the block runs; transformers' own computes in float32."""
    attentions = {id(one): path for path, one in model.named_modules() if path.endswith((".attn", ".self_attn"))}
    model.set_attn_implementation("eager")
    try:
        with eager_by_hand(model, attentions, weights or ByHand()):
            yield
    finally:
        model.set_attn_implementation("sdpa")


def next_token_loss(model):
    """Return the loss in float64; transformers computes it in float32."""
    logits = model(IDS).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


def heads_of(z, heads):
    return z.detach().unflatten(-1, (heads, -1)).transpose(1, 2)


def spread_out(model):
    """Scale the weights, so that attention is far from even."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12.0 if parameter.ndim > 1 else 1.0)
    return model


def own_gpt():
    torch.manual_seed(0)
    config = ts.models.GPTConfig(vocabulary=60, d_model=32, blocks=3, heads=4, key_heads=2, max_positions=64)
    return spread_out(ts.models.GPT(config).double().eval())


def check_muted(model, edits, z, heads):
    """Compare with -dz.z of every head, and that towards the mean."""
    found = estimated(model, IDS, edits)
    truth, of_means = [], []
    for one in z.values():
        part, slope = heads_of(one, heads), heads_of(one.grad, heads)
        truth.append(-(part * slope).sum((0, 2, 3)))
        of_means.append(((part.mean(2, keepdim=True) - part) * slope).sum((0, 2, 3)))
    assert_close(found, torch.cat(truth), rtol=1e-9, atol=1e-12)
    means = [ts.mute(one.layers, one.heads, by="mean", times=0.25) for one in edits]
    assert_close(estimated(model, IDS, means), 0.75 * torch.cat(of_means), rtol=1e-9, atol=1e-12)


def test_muted_heads_of_telescopes_models(way):
    model = own_gpt()
    projections = {name: one for name, one in model.named_modules() if name.endswith("W_O")}
    targets = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)
    z = plain_tensors(model, lambda: model.loss(IDS, targets), projections)
    check_muted(model, ts.mute.each(model), z, 4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2, window"])
def test_muted_heads_of_hugging_face_models(name, way):
    from support import huggingface

    model = huggingface.gpt(name).double()
    ends = ("c_proj", "o_proj")
    projections = {path: one for path, one in model.named_modules() if path.endswith(ends) and "attn" in path}
    with eager(model):
        z = plain_tensors(model, lambda: next_token_loss(model), projections)
    check_muted(model, ts.mute.each(model), z, model.config.num_attention_heads)


def test_hidden_and_boosted_keys_by_whole_matrices(way):
    """p' is formed for every head, p' v is the context, and its change is multiplied by dz."""
    from support import huggingface

    model = huggingface.gpt("llama").double()
    projections = {path: one for path, one in model.named_modules() if path.endswith("o_proj")}
    weights = Kept()
    values = {}
    handles = [
        module.register_forward_hook(lambda _, args, out, path=path: values.update({path[:-6] + "o_proj": out}))
        for path, module in model.named_modules()
        if path.endswith("v_proj")
    ]
    with eager(model, weights):
        z = plain_tensors(model, lambda: next_token_loss(model), projections)
    for handle in handles:
        handle.remove()

    segments = [range(0, 1), range(1, 4), range(4, 9), range(9, N - 1)]
    cases = [(range(2, 5), range(N), None, 0.0), (range(N), range(4, 6), [2], 0.0), (range(1, 3), range(N), [0], 5.0)]
    cases += [(own, range(own.stop, N), None, 0.0) for own in segments]
    edits, truth = [], []
    for keys, queries, heads, factor in cases:
        hidden = factor == 0.0
        where = {"queries": queries, "heads": heads}
        edits.append(ts.hide(keys, **where) if hidden else ts.boost(keys, by=factor, **where))
        total = 0.0
        for path, p in zip(z, weights.kept.values(), strict=True):
            counts = torch.ones(2, 4, N, N, dtype=torch.float64)
            for head in range(4) if heads is None else heads:
                counts[:, head, queries.start : queries.stop, keys.start : keys.stop] = factor
            edited = p.detach() * counts
            edited = (edited / edited.sum(-1, keepdim=True)).nan_to_num(0.0)
            v = heads_of(values[path], 2).repeat_interleave(2, 1)
            total += (((edited - p.detach()) @ v) * heads_of(z[path].grad, 4)).sum()
        truth.append(total)
    assert_close(estimated(model, IDS, edits), torch.stack(truth), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------ effects that are linear


DEFINITIONS = {
    "all": ts.Attention(),
    "causal": ts.Attention(mask=ts.causal),
    "window": ts.Attention(mask=ts.causal & ts.window(4), softcap=3.0),
    "sink": ts.Attention(mask=ts.causal, sink=torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)),
    "bias": ts.Attention(mask=ts.causal, bias=ts.alibi(4)),
}
EDITS = [
    ts.mute(heads=[0, 2]),
    ts.mute(times=-2.0),
    ts.mute(by="mean", heads=1),
    ts.hide(0),
    ts.hide([2, 3], slice(5, None)),
    ts.hide(slice(None), heads=3),
    ts.hide(slice(None), [1, 4]),
    ts.hide(slice(4, None), heads=[0, -1], new=False),
    ts.boost([1, 2], by=7.0),
    ts.boost(slice(3, 6), by=1e-3, queries=slice(4, 8), heads=2),
    *ts.hide.each([range(0, 2), range(2, 3), range(3, 8)]),
]


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_a_measure_that_is_linear_in_the_context(name, key_heads, way):
    """Then the estimate is the exact effect, in every definition."""
    torch.manual_seed(1)
    layer = ts.layers.MultiHeadAttention(16, 4, key_heads=key_heads, attention=DEFINITIONS[name])
    layer = spread_out(layer.double().eval())
    x, slope = torch.randn(2, 3, N, 16, dtype=torch.float64)
    inputs = {"x": x, "mask": ts.padding(lengths=[N, N - 4, N - 1])}

    def measure(output):
        # Padding queries count for nothing.
        return (output * slope)[0].sum() + (output * slope)[1, : N - 4].sum() + (output * slope)[2, : N - 1].sum()

    found = estimated(layer, inputs, EDITS, measure)
    assert_close(found, exact(layer, inputs, EDITS, measure), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [20.0, 60.0, 95.0, 2000.0])
def test_keys_with_nearly_all_weight(dtype, gap, way):
    """The score of one key is larger by far than the others', which are left with next to no weight, or none."""
    torch.manual_seed(1)
    x = torch.rand(1, 2, N, 3, dtype=dtype)
    slope = torch.randn(1, 2, N, 3, dtype=dtype)

    class Sharp(nn.Module):
        def forward(self, x):
            keys = x.clone()
            keys[:, :, 2] += gap
            return nn.functional.scaled_dot_product_attention(torch.ones_like(x), keys, x, scale=1.0 / 3.0)

    def value(output):
        return (output * slope).sum()

    edits = [ts.hide(2), ts.hide(2, heads=0), ts.hide([2, 5]), ts.hide(2, slice(4, 7)), ts.hide(slice(None))]
    found = estimated(Sharp().eval(), x, edits, value)
    assert found.abs().min() > 1e-2
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    assert_close(found, exact(Sharp().eval(), x, edits, value), **close)


# -------------------------------------------------------------------------------------- effects that are small


def small_edits(model, e):
    """Edits of a size e: their effects are linear up to e²."""
    return [
        *ts.mute.each(model, times=1 - e),
        ts.boost([1, 2], by=1 + e),
        ts.boost(0, by=1 - e, queries=slice(2, None)),
    ]


def check_small(model, inputs, measure="loss", **options):
    e = 1e-6
    found = estimated(model, inputs, small_edits(model, e), measure, **options) / e
    truth = exact(model, inputs, small_edits(model, e), measure, **options) / e
    assert truth.abs().max() > 1e-3
    assert_close(found, truth, rtol=1e-3, atol=1e-4)


def test_small_edits_of_an_encoder_decoder(way):
    torch.manual_seed(5)
    config = ts.models.TransformerConfig(
        vocabulary=60, d_model=16, heads=2, encoder_blocks=2, decoder_blocks=2, max_positions=32, dropout=0.0
    )
    model = spread_out(ts.models.Transformer(config).double().eval())
    source = (IDS, IDS[:, :9], ts.padding(lengths=[N, 8]), ts.padding(lengths=[7, 9]))
    check_small(model, source)
    check_small(model, source, "logits", tokens=[5, 7], against=[6, 9])


@pytest.mark.parametrize("name", ["marian", "bert"])
def test_small_edits_of_hugging_face_models(name, way):
    from support import huggingface

    mask = torch.ones_like(IDS)
    mask[1, -5:] = 0
    if name == "marian":
        inputs = {"input_ids": IDS, "attention_mask": mask, "decoder_input_ids": IDS[:, :7]}
        model = huggingface.marian("marian").double()
    else:
        inputs = {"input_ids": IDS, "attention_mask": mask}
        model = huggingface.bert("bert", "BertForMaskedLM").double()
    check_small(model, inputs)
    check_small(model, inputs, "logits", tokens=[5])


def test_small_edits_of_a_model_of_ones_own(way):
    """A module that calls torch's function, shared by two blocks of a ModuleList."""
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.W(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, 1)
            context = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return context.transpose(1, 2).flatten(-2)

    class Block(nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return x + self.attention(x).sin()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            shared = Attention()
            self.blocks = nn.ModuleList([Block(shared), Block(shared), Block(Attention())])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Model().double().eval()
    x = torch.randn(2, N, 8, dtype=torch.float64)
    e = 1e-6
    names = ["blocks.0.attention", "blocks.0.attention.1", "blocks.0.attention.2", "blocks.2.attention"]
    edits = [ts.mute(name, head, times=1 - e) for name in names for head in (0, 1)]
    edits += [ts.boost([1, 2], by=1 + e, layers=name) for name in names]

    def measure(output):
        return output.cos().sum()

    truth = exact(model, x, edits, measure) / e
    assert truth.abs().max() > 1e-2
    assert_close(estimated(model, x, edits, measure) / e, truth, rtol=1e-3, atol=1e-4)


# -------------------------------------------------------------------------------------------- dropped gradients


def test_dropped_gradients_by_hand(way):
    """With a block's contributions to the residual stream held constant, a loss has another gradient."""
    model = own_gpt()
    edits = ts.mute.each(model)
    projections = {name: one for name, one in model.named_modules() if name.endswith("W_O")}
    targets = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)

    def dropped(block):
        """Return -dz.z of every head, with the sublayers of one block detached."""
        parts = [] if block is None else [model.blocks[block].self_attention, model.blocks[block].feed_forward]
        handles = [part.register_forward_hook(lambda _, args, output: output.detach()) for part in parts]
        z = plain_tensors(model, lambda: model.loss(IDS, targets), projections)
        for handle in handles:
            handle.remove()
        found = []
        for one in z.values():
            slope = torch.zeros_like(one) if one.grad is None else one.grad
            found.append(-(heads_of(one, 4) * heads_of(slope, 4)).sum((0, 2, 3)))
        return torch.cat(found)

    whole = dropped(None)
    others = torch.stack([dropped(block) for block in range(3)])
    sizes = others.abs().sum(0) / 2  # of three blocks, each head's own does not count
    assert_close(estimated(model, IDS, edits, drops="all"), sizes.copysign(whole), rtol=1e-9, atol=1e-12)
    # One block, the middle one: its own heads keep their estimate.
    one = others[1].abs()
    one[4:8] = whole[4:8].abs()
    assert_close(estimated(model, IDS, edits, drops=1), one.copysign(whole), rtol=1e-9, atol=1e-12)


def test_dropped_gradients_of_a_hugging_face_model(way):
    """A block of Llama adds two sublayers to its input, and nothing normalises the sum."""
    from support import huggingface

    model = huggingface.gpt("llama").double()
    edits = ts.mute.each(model)
    layers = model.model.layers
    truth = []
    for block in (None, *range(2)):
        parts = [] if block is None else [layers[block].self_attn, layers[block].mlp]

        def detach(module, args, output):
            return (output[0].detach(), *output[1:]) if isinstance(output, tuple) else output.detach()

        projections = {path: one for path, one in model.named_modules() if path.endswith("o_proj")}
        handles = [part.register_forward_hook(detach) for part in parts]
        z = plain_tensors(model, lambda: next_token_loss(model), projections)
        for handle in handles:
            handle.remove()
        zero = torch.zeros(2, N, 32, dtype=torch.float64)
        found = [heads_of(one, 4) * heads_of(zero if one.grad is None else one.grad, 4) for one in z.values()]
        truth.append(torch.cat([-one.sum((0, 2, 3)) for one in found]))
    whole, *others = truth
    sizes = torch.stack(others).abs().sum(0)
    assert_close(estimated(model, IDS, edits, drops="all"), sizes.copysign(whole), rtol=1e-9, atol=1e-12)


def test_the_loss_in_blocks():
    """Cross-entropy and its gradient, with labels that do not count, in 16 bits too."""
    torch.manual_seed(0)
    labels = torch.randint(0, 9, (2, 7))
    labels[1, 3:] = -100
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.randn(2, 7, 9, dtype=dtype, requires_grad=True)
        measured.token_loss(logits, labels).backward()
        found, logits.grad = logits.grad, None
        truth = nn.functional.cross_entropy(
            logits.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), labels.flatten()
        )
        truth.backward()
        assert_close(measured.token_loss(logits, labels), truth)
        assert_close(found, logits.grad)
        assert not math.isnan(truth.item())
