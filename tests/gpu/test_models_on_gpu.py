"""On a GPU: a captured step decodes what an uncaptured one does, and compiled training has the loss of torch."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from telescope.decoding import generate
from telescope.models import GPT, GPTConfig, Special, Transformer, TransformerConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("unchecked"),  # models compile
    pytest.mark.filterwarnings("ignore"),  # torch, while it compiles
]
SMALL = {"vocabulary": 1001, "max_positions": 64, "d_model": 128, "blocks": 2, "heads": 4}
KINDS = {
    "learned": {},
    "llama": {"positions": "rotary", "key_heads": 2, "norm": "rms", "gated": True, "activation": "silu", "bias": False},
    "window": {"positions": "rotary", "window": 9},
}


def made(kind):
    torch.manual_seed(3)
    return GPT(GPTConfig(**SMALL, **KINDS[kind])).cuda().eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pads", [None, [0, 5]], ids=["alike", "padded"])
@torch.no_grad()
def test_a_fixed_step_is_captured_and_replayed(kind, pads):
    """One CUDA graph serves every length: a step neither synchronises nor allocates nor changes shapes."""
    model, text = made(kind), torch.randint(1001, (2, 24), device="cuda")
    growing, fixed = model.cache(2, 32, pads), model.cache(2, 32, pads)
    steps = [text[:, :16], *text[:, 16:].split(1, dim=1)]
    expected = torch.cat([model(some, cache=growing) for some in steps], dim=1)
    model(text[:, :16], cache=fixed)
    fixed.fixed()

    token, stream = text[:, 16:17].clone(), torch.cuda.Stream()
    length = fixed.length.clone()
    with torch.cuda.stream(stream):  # once outside, as capturing wants it
        model(token, cache=fixed)
    torch.cuda.current_stream().wait_stream(stream)
    fixed.length.copy_(length)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(token, cache=fixed)
    fixed.length.copy_(length)
    for i in range(16, 24):
        token.copy_(text[:, i : i + 1])
        graph.replay()
        assert_close(logits[:, 0], expected[:, i], rtol=1e-3, atol=1e-3)
    assert int(fixed.length) == 24


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_translator_writes_the_same_as_on_a_cpu(positions, monkeypatch):
    """Its step is captured: sources of several lengths, texts that end at different steps, up to 40 positions."""
    torch.manual_seed(4)
    model = Transformer(TransformerConfig(vocabulary=11, d_model=64, positions=positions, max_positions=40)).eval()
    model.special = Special(start=1, end=(2, 3, 4), pad=0)
    sources = [torch.randint(3, 11, (n,)).tolist() for n in (3, 9, 1, 30)]
    expected = [written.ids for written in generate(model, sources, max_new_tokens=39, temperature=0)]
    ran = []
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph, replay=torch.cuda.CUDAGraph.replay: ran.append(replay(graph))
    )
    assert [written.ids for written in generate(model.cuda(), sources, max_new_tokens=39, temperature=0)] == expected
    assert ran
    assert len({len(ids) for ids in expected}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_training_in_bf16_compiles_to_the_loss_of_torch(kind):
    model = made(kind).train()
    text = torch.randint(1001, (4, 65), device="cuda")
    ids, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    loss = cross_entropy(model(ids).float().flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(loss, list(model.parameters()))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        actual = torch.compile(model.loss, fullgraph=True)(ids, targets)
    gradients = torch.autograd.grad(actual, list(model.parameters()))
    assert_close(actual, loss, rtol=1e-2, atol=1e-2)
    for mine, theirs in zip(gradients, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert_close(mine, theirs, rtol=0.1, atol=0.03 * float(theirs.abs().max()))


@torch.no_grad()
def test_a_translator_on_a_gpu_equals_that_on_a_cpu():
    torch.manual_seed(3)
    model = Transformer(TransformerConfig(vocabulary=101, d_model=64, dropout=0.0)).eval()
    source, target = torch.randint(101, (2, 9)), torch.randint(101, (6, 5))
    expected = model(source.repeat_interleave(3, 0), target)
    model.cuda()
    cache = model.cache(model.encode(source.cuda()), room=8, beams=3).fixed()
    steps = [model.logits(model.decode(target[:, i : i + 1].cuda(), cache=cache)) for i in range(5)]
    assert_close(torch.cat(steps, dim=1).cpu(), expected, rtol=1e-3, atol=1e-3)
