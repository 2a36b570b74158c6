"""Cross entropy from hidden states, compared with torch's own on whole logits: the loss, and every gradient."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy as theirs
from torch.nn.functional import linear
from torch.testing import assert_close

from support.needs import need_triton
from telescope.models import loss as module
from telescope.models.loss import cross_entropy

N, D, V = 23, 7, 19


def made(dtype=torch.float64, bias=True, ignored=(3, 4, 22)):
    draw = torch.Generator().manual_seed(7)
    hidden, weight = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in [(N, D), (V, D)])
    targets = torch.randint(V, (N,), generator=draw)
    targets[list(ignored)] = -100
    given = [hidden, weight] + ([torch.randn(V, generator=draw, dtype=torch.float64)] if bias else [])
    return [tensor.to(dtype).requires_grad_() for tensor in given], targets


def expected(given, targets, **how):
    loss = theirs(linear(*given), targets, **how)
    return loss, torch.autograd.grad(3.0 * loss, given)


def actual(given, targets, **how):
    hidden, weight, *bias = given
    loss = cross_entropy(hidden, weight, targets, *bias, **how)
    return loss, torch.autograd.grad(3.0 * loss, given)


@pytest.fixture(params=[1, 5, 2**20], ids=["one", "few", "all"])
def at_a_time(request, monkeypatch):
    """Compute the logits of so many positions at a time."""
    monkeypatch.setitem(module.MAX_LOGITS, "cpu", request.param * V)


@pytest.fixture(params=[1, 8], ids=["as it is", "padded"])
def aligned(request, monkeypatch):
    monkeypatch.setitem(module.ROW_ALIGNMENT, "cpu", request.param)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.usefixtures("at_a_time", "aligned")
def test_loss_and_gradients_equal_those_of_torch(bias, smoothing, reduction):
    given, targets = made(bias=bias)
    how = {"label_smoothing": smoothing, "reduction": reduction}
    assert_close(actual(given, targets, **how), expected(given, targets, **how), rtol=1e-12, atol=1e-12)


def test_by_hand():
    """Two words with equal scores: ln 2, whichever is the target."""
    hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    assert_close(cross_entropy(hidden, weight, torch.tensor([1])), torch.tensor(2.0).log())


def test_batches_and_another_ignored_id():
    given, targets = made(bias=False, ignored=())
    targets[5] = 2
    truth = expected(given, targets, ignore_index=2)
    hidden, weight = given
    loss = cross_entropy(hidden[None], weight, targets[None], ignore=2)
    assert_close((loss, torch.autograd.grad(3.0 * loss, given)), truth)


@pytest.mark.usefixtures("aligned")
def test_enormous_scores_stay_finite():
    given, targets = made()
    large = [(1e3 * tensor).detach().requires_grad_() for tensor in given]
    assert_close(actual(large, targets), expected(large, targets))


def test_the_mean_of_no_targets_is_nan_as_in_torch():
    given, targets = made()
    targets[:] = -100
    assert cross_entropy(*given[:2], targets).isnan()
    assert theirs(linear(*given[:2]), targets).isnan()


def test_the_sum_of_no_targets_is_zero():
    given, targets = made()
    targets[:] = -100
    loss, gradients = actual(given, targets, reduction="sum")
    assert loss == 0.0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_tensors_without_requires_grad_get_no_gradient(frozen):
    given, targets = made()
    truth = expected(given, targets)[1]
    given = [tensor.detach().requires_grad_(i != frozen) for i, tensor in enumerate(given)]
    hidden, weight, bias = given
    cross_entropy(hidden, weight, targets, bias).mul(3.0).backward()
    for i, tensor in enumerate(given):
        if i == frozen:
            assert tensor.grad is None
        else:
            assert_close(tensor.grad, truth[i])


def test_gradients_equal_finite_differences():
    given, targets = made()
    assert torch.autograd.gradcheck(lambda h, w, b: cross_entropy(h, w, targets, b, label_smoothing=0.1), given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("at_a_time", "aligned")
def test_autocast_multiplies_in_half_precision_and_sums_in_float32(dtype):
    given, targets = made(torch.float32)
    truth = expected([tensor.detach().double().requires_grad_() for tensor in given], targets)
    with torch.autocast("cpu", dtype=dtype):
        loss, gradients = actual(given, targets)
    assert loss.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    assert_close(loss.double(), truth[0], rtol=1e-2, atol=1e-2)
    assert_close([gradient.double() for gradient in gradients], list(truth[1]), rtol=2e-2, atol=1e-2)


def test_a_small_gradient_survives_float16():
    """1/n of a probability is below the smallest float16; the mean is taken afterwards, in float32."""
    hidden = torch.zeros(2**14, 4, requires_grad=True)
    weight = torch.zeros(64, 4, requires_grad=True)
    targets = torch.arange(2**14) % 63
    with torch.autocast("cpu", dtype=torch.float16):
        cross_entropy(hidden + 1.0, weight, targets).backward()
    assert_close(weight.grad[63], torch.full((4,), 1.0 / 64), rtol=1e-2, atol=0.0)


@pytest.mark.usefixtures("unchecked", "aligned")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled(monkeypatch, smoothing):
    monkeypatch.setitem(module.MAX_LOGITS, "cpu", 9 * V)
    torch._dynamo.reset()
    given, targets = made()
    truth = expected(given, targets, label_smoothing=smoothing)
    compiled = torch.compile(cross_entropy, backend="aot_eager", fullgraph=True)
    hidden, weight, bias = given
    loss = compiled(hidden, weight, targets, bias, label_smoothing=smoothing)
    assert_close((loss, torch.autograd.grad(3.0 * loss, given)), truth)


def test_memory_is_that_of_one_chunk_of_logits():
    """Each chunk of logits is freed before the next is made: no tensor as large as all logits is kept."""
    saved = []
    given, targets = made(bias=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda t: t):
        cross_entropy(*given, targets)
    assert max(saved) == max(N * D, V * D) < N * V


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"targets": torch.full((N,), V)}, f"targets has the id {V}; the vocabulary is 0 to {V - 1}"),
        ({"targets": torch.full((N,), -1)}, "targets has the id -1"),
        ({"targets": torch.zeros(N - 1, dtype=torch.long)}, f"targets has shape ({N - 1},); hidden states ({N}, {D})"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"reduction": "none"}, 'there is no reduction="none"'),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_faults(change, sentence):
    (hidden, weight, _), targets = made()
    with pytest.raises(ValueError, match=re.escape(sentence)):
        module.cross_entropy(hidden, weight, **{"targets": targets, **change})


def test_a_head_learns_with_this_loss():
    torch.manual_seed(3)
    head, hidden, targets = nn.Linear(16, V), torch.randn(64, 16), torch.randint(V, (64,))
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        loss = cross_entropy(hidden, head.weight, targets, head.bias)
        loss.backward()
        optimiser.step()
    assert loss < 0.3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [-100, 2])
def test_the_kernel_differentiates_in_place(bias, smoothing, ignore, monkeypatch):
    """By triton's interpreter where there is no GPU: rows wider than the vocabulary, in several blocks."""
    need_triton()
    from telescope.models import loss_kernel

    words, width, place = 150, 192, "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator().manual_seed(5)
    logits = 30.0 * torch.randn(N, width, generator=draw)
    b = torch.randn(words, generator=draw) if bias else None
    targets = torch.randint(words, (N,), generator=draw)
    targets[[3, 22]] = ignore
    z = (logits[:, :words].double() + (0.0 if b is None else b)).requires_grad_()
    truth = theirs(z, targets, ignore_index=ignore, label_smoothing=smoothing, reduction="none")
    (d,) = torch.autograd.grad(truth.sum(), [z])
    monkeypatch.setattr(loss_kernel, "BLOCK", 64)
    given = logits.to(place)
    losses = loss_kernel.differentiate_in_place(
        given, None if b is None else b.to(place), targets.to(place), words, ignore, smoothing
    )
    assert_close(losses.cpu().double(), truth.detach(), rtol=1e-5, atol=1e-4)
    assert_close(given[:, :words].cpu().double(), d, rtol=1e-5, atol=1e-6)
    assert not given[:, words:].any()


@pytest.mark.usefixtures("unchecked")
def test_the_kernel_is_part_of_a_compiled_step(monkeypatch):
    need_triton()
    torch._dynamo.reset()
    given, targets = made(torch.float32, bias=False)
    truth = expected(given, targets)
    monkeypatch.setattr(module, "_use_kernel", lambda logits: True)
    hidden, weight = given
    compiled = torch.compile(lambda: cross_entropy(hidden, weight, targets), backend="aot_eager", fullgraph=True)
    loss = compiled()
    assert_close((loss, torch.autograd.grad(3.0 * loss, given)), truth)
