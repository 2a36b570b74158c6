"""The tokens that a head pushes up and down equal an explicit computation in float64, over the whole vocabulary."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import writers
from telescope.recording import Recording

CLOSE = {"atol": 1e-9, "rtol": 1e-9}
IDS = torch.tensor([[3, 1, 7, 7, 2, 9, 4]])


def held(norm, x, part):
    """Return what is left of a part behind a LayerNorm or an RMSNorm, whose denominator is that of the whole x."""
    if hasattr(norm, "bias") and isinstance(norm, torch.nn.LayerNorm):
        return norm.weight * (part - part.mean(-1, keepdim=True)) / (x.var(unbiased=False) + norm.eps).sqrt()
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return norm.weight * part / (x.square().mean() + eps).sqrt()


def check(found, by_key, unembedding, top, close=CLOSE):
    """Compare with parts (key, d_model) of a head, as they reach the unembedding."""
    every = by_key @ unembedding.mT
    centred = every - every.mean(-1, keepdim=True)
    total = centred.sum(0)
    assert_close(found.mean, every.sum(0).mean().item(), **close)
    order = total.argsort(descending=True).tolist()
    wanted_up = [token for token in order[:top] if total[token] > 0]
    wanted_down = [token for token in order[::-1][:top] if total[token] < 0]
    assert [one.id for one in found.up] == wanted_up
    assert [one.id for one in found.down] == wanted_down
    for one in (*found.up, *found.down):
        assert_close(one.value, total[one.id].item(), **close)
        toward = centred[:, one.id] * (1 if one.value > 0 else -1)
        assert one.position == int(toward.argmax())
        assert_close(one.part, centred[one.position, one.id].item(), **close)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(("layer", "head", "position"), [(0, 1, 6), (1, 2, 3), (-1, 0, -1)])
def test_heads_of_transformers(name, layer, head, position):
    huggingface = pytest.importorskip("support.huggingface", reason="the hf extra is not installed")
    model = huggingface.gpt(name).double().eval()
    model.config._attn_implementation = "eager"
    values, ends = [], []
    with torch.no_grad():
        if name == "gpt2":
            blocks, last = model.transformer.h, model.transformer.ln_f
            hooks = [one.attn.c_attn.register_forward_hook(lambda *a: values.append(a[2][0, :, 48:])) for one in blocks]
        else:
            blocks, last = model.model.layers, model.model.norm
            hooks = [one.self_attn.v_proj.register_forward_hook(lambda *a: values.append(a[2][0])) for one in blocks]
        hooks.append(last.register_forward_hook(lambda *a: ends.append(a[1][0][0])))
        weights = model(IDS, output_attentions=True).attentions
        for hook in hooks:
            hook.remove()
        # The head's weights times its values, through its columns of W_O and the last norm, key by key.
        width = 8
        own = head if name == "gpt2" else head // 2
        value = values[layer][:, own * width : (own + 1) * width]
        part = weights[layer][0, head, position, :, None] * value
        columns = slice(head * width, (head + 1) * width)
        written = (
            part @ blocks[layer].attn.c_proj.weight[columns]
            if name == "gpt2"
            else part @ blocks[layer].self_attn.o_proj.weight[:, columns].mT
        )
        by_key = held(last, ends[0][position], written)
        model.config._attn_implementation = "sdpa"
        with ts.watch(model, keep="steps") as recording:
            model(IDS)
        # An RMSNorm of transformers computes in float32 in a model of any dtype.
        close = {"atol": 1e-6, "rtol": 1e-6} if name == "llama" else CLOSE
        check(recording.pushes(layer, head, position, top=5), by_key, model.lm_head.weight, 5, close)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_head_of_a_post_norm_decoder(layer):
    """What a cross-attention writes goes through every norm behind it."""
    model = writers.made("transformer").eval()
    target = IDS[:, :4]
    inputs = {}
    norms = [getattr(block, f"add_norm_{at}").norm for block in model.decoder for at in (1, 2, 3)]
    hooks = [
        norm.register_forward_hook(lambda module, given, _: inputs.update({module: given[0][0]})) for norm in norms
    ]
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(IDS, target)
    for hook in hooks:
        hook.remove()
    name, head, position = f"decoder.{layer}.cross", 3, 2
    steps = recording[name].trace().head(head)
    with torch.no_grad():
        W_O = model.decoder[layer].cross_attention.W_O.weight
        by_key = (steps.weights[0, 0, position][:, None] * steps.values[0, 0]) @ W_O[:, head * 4 : head * 4 + 4].mT
        for norm in norms[3 * layer + 1 :]:
            by_key = held(norm, inputs[norm][position], by_key)
        found = recording.pushes(name, head, position, top=6)
        check(found, by_key, model.head_weight, 6)
        # The same as `writes`, token by token, but for the mean.
        split = recording.writes(name, head, position, tokens=[one.id for one in found.up])
    sums = split.values[list(split.shown)].sum(0) - found.mean
    assert_close(sums[: len(found.up)], torch.tensor([one.value for one in found.up], dtype=torch.float64), **CLOSE)


def test_names_and_the_table():
    model = writers.gpt()
    ids = torch.tensor([model.tokenizer.encode("to be or not to be").ids])
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(ids)
    found = recording.pushes(1, 2, 7, top=3)
    assert found.after == "r"
    assert [one.token for one in found.up] == [model.tokenizer.decode([one.id]).strip() or " " for one in found.up]
    assert len(found.table()) == 6
    assert found.up[0].token in repr(found)
    assert f"{found.down[0].value:+.3f}" in repr(found)


def test_what_has_no_logits_is_refused_with_the_reason():
    model = writers.made("transformer").eval()
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(IDS, IDS)
    for ask in (recording.pushes, recording.writes):
        with pytest.raises(ValueError, match=r'"encoder\.0\.self" is of the encoder, whose end gives no logits'):
            ask("encoder.0.self", 0)
    assert isinstance(recording, Recording)
    with pytest.raises(ValueError, match="top=0 names no token; 1 is the least"):
        recording.pushes("decoder.0.self", 0, top=0)
    with pytest.raises(TypeError, match=r"top=1\.5 is float; it takes a whole number"):
        recording.pushes("decoder.0.self", 0, top=1.5)
