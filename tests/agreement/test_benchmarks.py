"""Benchmarks compare implementations of one model: from the same weights all have the same loss and the same tokens."""

import pytest
import torch
from benchmarks import decode, train_step
from torch.nn.functional import cross_entropy, pad
from torch.testing import assert_close


def test_nano_and_torch_are_the_same_model():
    size = train_step.Sizes(2, 7, 12, 2, 3, 100, 1)
    ours = train_step.ours(size).double()
    nano = train_step.Nano(size).double()
    theirs = train_step.TorchGPT(size).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.3)
        for other in (nano, theirs):
            other.wte.weight[:100] = ours.embedding.weight
            other.wte.weight[100:] = 0.0
            other.wpe.weight.copy_(ours.positions.P)
        nano.ln_f.load_state_dict(ours.norm.state_dict())
        theirs.stack.norm.load_state_dict(ours.norm.state_dict())
        for a, b, c in zip(ours.blocks, nano.blocks, theirs.stack.layers, strict=True):
            for mine, *others in (
                (a.add_norm_1.norm, b.ln_1, c.norm1),
                (a.add_norm_2.norm, b.ln_2, c.norm2),
                (a.self_attention.W_qkv, b.c_attn),
                (a.self_attention.W_O, b.c_proj, c.self_attn.out_proj),
                (a.feed_forward.W_1, b.mlp_fc, c.linear1),
                (a.feed_forward.W_2, b.mlp_proj, c.linear2),
            ):
                for other in others:
                    other.load_state_dict(mine.state_dict())
            c.self_attn.in_proj_weight.copy_(a.self_attention.W_qkv.weight)
            c.self_attn.in_proj_bias.copy_(a.self_attention.W_qkv.bias)
    text = torch.randint(100, (2, 8), generator=torch.Generator().manual_seed(3))
    ids, targets = text[:, :-1], text[:, 1:].contiguous()
    logits = pad(ours(ids), (0, 28))  # the peers have 128 words; the last 28 score zero, and count in their softmax
    expected = cross_entropy(logits.flatten(0, 1), targets.flatten())
    for other in (nano, theirs):
        assert_close(other.loss(ids, targets), expected, rtol=1e-10, atol=1e-10)


def test_a_step_changes_every_model():
    size = train_step.sizes(torch.device("cpu"), quick=True)
    text = torch.randint(size.words, (size.batch, size.tokens + 1))
    for name in ("telescope", "nanoGPT", "torch.nn"):
        model = train_step.MODELS[name](size)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train_step.trainer(model, text, 1)()
        changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert all(changed), name


def test_both_implementations_write_the_same_tokens():
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    for case in decode.cases(torch.device("cpu"), quick=True)[1:]:
        torch.manual_seed(0)
        model = case.make().eval()
        ids = torch.randint(1, 400, (case.batch, decode.PROMPT))
        (theirs,) = decode.theirs(model, ids, case).values()
        written = decode.ours(model, ids, case)()
        assert [len(row) for row in written] == [case.tokens] * case.batch
        assert written == theirs()


def test_the_lower_bound_counts_the_bytes_that_a_step_reads(monkeypatch):
    """GPT-2 in float32: its matrices, and 12 blocks of keys and values of 16 + 64 tokens."""
    monkeypatch.setattr(decode, "bandwidth", lambda _: 1e9)
    device = torch.device("cpu")
    case = decode.cases(device, quick=False)[0]
    with torch.device("meta"):  # its shape is enough
        model = case.make()
    matrices = 50_257 * 768 + 12 * (3 * 768**2 + 768**2 + 2 * 4 * 768**2)
    assert decode.floor(model, case, device) == pytest.approx(4e-6 * (matrices + 2 * 12 * 768 * 80))
