"""The R-Drop loss, compared with torch's KL divergence in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div
from torch.testing import assert_close

from support.learning import gpt, luong, pairs, transformer
from telescope.training import IGNORE, Examples, Training, language, translation
from telescope.training.objectives import Learner, agreement_loss, repeat_rows

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_by_hand():
    """Probabilities of 1/2, 1/2 and of 3/4, 1/4: D = ½ (1/4)(ln 3), and L₁ + L₂ = ln 2 + ln 4/3."""
    logits = torch.tensor([[[0.0, 0.0]], [[3.0, 1.0]]], dtype=torch.float64)
    logits[1] = logits[1].log()
    loss = agreement_loss(logits, torch.tensor([[0], [0]]), label_smoothing=0.0, weight=8.0)
    two, three = torch.tensor([2.0, 3.0], dtype=torch.float64).log()
    assert_close(loss, 0.5 * (two + (2 * two - three) + 8.0 * 0.5 * 0.25 * three))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_divergence_equals_that_of_torch(smoothing):
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 5, 11, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (3, 5), generator=draw)
    targets[0, 2:] = IGNORE
    both = torch.cat([targets, targets])
    first, second = (half[targets != IGNORE].log_softmax(-1) for half in logits.chunk(2))
    apart = sum(
        kl_div(one, other, log_target=True, reduction="sum") for one, other in [(first, second), (second, first)]
    )
    losses = cross_entropy(logits.flatten(0, 1), both.flatten(), label_smoothing=smoothing, reduction="sum")
    truth = 0.5 * (losses + 5.0 * 0.5 * apart)
    loss = agreement_loss(logits, both, label_smoothing=smoothing, weight=5.0)
    assert_close(loss, truth)
    assert_close(*(torch.autograd.grad(total, logits)[0] for total in (loss, truth)))


@pytest.mark.parametrize("make", [gpt, transformer, luong])
def test_without_dropout_the_divergence_is_zero(make):
    sources, targets = pairs(8)
    data = Examples(targets) if make is gpt else Examples(sources, targets)
    model, objective = make().double(), language if make is gpt else translation
    settings = Training(steps=1, tokens=64)
    batch = data.take(data.batches(settings, 0)[0])
    assert_close(objective(model, batch, agreement=5.0), objective(model, batch))


def test_both_halves_of_the_batch_draw_their_own_dropout():
    sources, targets = pairs(8)
    data, model = Examples(sources, targets), transformer(dropout=0.5).double().train()
    batch = data.take(data.batches(Training(steps=1, tokens=64), 0)[0])
    torch.manual_seed(1)
    both = repeat_rows(batch)
    first, second = model(both.source, both.target).chunk(2)
    assert not torch.allclose(first, second)
    torch.manual_seed(1)
    little = Learner(model, translation, Training(steps=1, tokens=64, agreement=1e-9))(batch, torch.tensor(1))
    torch.manual_seed(1)
    much = Learner(model, translation, Training(steps=1, tokens=64, agreement=5.0))(batch, torch.tensor(1))
    assert much > little + 0.1
