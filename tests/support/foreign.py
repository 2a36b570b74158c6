"""One test for models of any library: watched and edited in float32, against torch's attention in float64."""

from typing import Any

import torch
from torch import Tensor, nn

import telescope as ts
from support.editing import Boosted, Hidden, Muted
from support.truth import TrueCall, doubled, in_float64, plain_attention
from telescope.surveys import Top

CLOSE = 1e-5  # relative, in float32
EDITS = {
    "mute": (ts.mute(heads=[0]), Muted(heads=[0])),
    "hide": (ts.hide(range(1, 3)), Hidden(keys=range(1, 3))),
    "boost": (ts.boost([1], by=4.0), Boosted(keys=range(1, 2), by=4.0)),
}


def run(model: nn.Module, inputs: Any) -> Tensor:
    """Return the first tensor that a model returns."""
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return first_tensor(output)


def first_tensor(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


def close(found: Tensor, truth: Tensor, what: str) -> None:
    """Compare with the largest number of the truth."""
    truth = truth.double()
    assert found.shape == truth.shape, what
    error = float((found.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-30))
    assert error <= CLOSE, f"{what} is off by {error:.2g}"


@torch.no_grad()
def assert_watched(model: nn.Module, inputs: Any, real: Tensor | None = None, *, doubles: bool = True) -> ts.Recording:
    """Watch a model; compare every number that is recorded with the truth, and return the recording.

    `real` (batch, token) tells padding, whose queries are left out of self-attentions over so many tokens.
    Without `doubles`, weights alone are computed in float64, from the queries and keys of the model in float32: for
    models that cast to float32, or whose rounding between attentions is not small.
    """
    plain = run(model, inputs)
    with ts.watch(model) as recording:
        watched = run(model, inputs)
    assert torch.equal(plain, watched)
    assert torch.equal(run(model, inputs), plain)
    twin = in_float64(model) if doubles else model
    with plain_attention(twin, only_looks=not doubles) as calls:
        truth = run(twin, doubled(inputs) if doubles else inputs)
    close(plain, truth, "the output")
    recorded = {
        name if number == 0 else f"{name}.{number + 1}": call
        for name, one in recording.items()
        for number, call in enumerate(one.calls)
    }
    assert sorted(recorded) == sorted(calls)
    assert not recording.left_out
    if real is not None:
        calls = {name: without_padding(true, real) for name, true in calls.items()}
    for name, true in calls.items():
        assert_statistics(name, recorded[name].survey(), true.weights, true.lse)
    weights = {name: [calls[own].weights for own in numbers_of(name, recorded)] for name in recording}
    assert_heads(recording, {name: each for name, each in weights.items() if each})
    return recording


def numbers_of(name: str, recorded: Any) -> list[str]:
    """Return the names of all calls of one attention, where it was called for several sequences."""
    return [own for own in recorded if own == name or own.removeprefix(f"{name}.").isdigit()]


def without_padding(true: TrueCall, real: Tensor) -> TrueCall:
    if true.weights.shape[2:] != (real.shape[1], real.shape[1]):
        return true
    padding = ~real[:, None]
    return TrueCall(true.weights.masked_fill(padding[..., None], 0.0), true.lse.masked_fill(padding, -torch.inf))


def assert_statistics(name: str, survey: ts.Survey, weights: Tensor, lse: Tensor) -> None:
    close(survey.received, weights.sum(2), f"received of {name}")
    close(survey.entropy, torch.special.entr(weights).sum(-1), f"entropy of {name}")
    assert torch.equal(survey.lse.isinf(), lse.isinf())
    close(survey.lse.nan_to_num(neginf=0.0), lse.nan_to_num(neginf=0.0), f"lse of {name}")
    top = survey.top
    count = min(top.weights.shape[-1], weights.shape[-1])
    assert not top.weights[..., count:].any()
    top = Top(*(part[..., :count] for part in top))
    close(top.weights, weights.topk(count).values, f"top of {name}")
    # Weights that are equal may stand in any order: compare what the truth gives the keys that were found.
    found = weights.gather(-1, top.keys.clamp(min=0).long()).masked_fill(top.keys < 0, 0.0)
    close(top.weights, found, f"top keys of {name}")


def assert_heads(recording: ts.Recording, weights: dict[str, list[Tensor]]) -> None:
    """Compare three columns of `heads()` with the truth, which has the weights of every call."""
    heads = recording.heads().sort("layer")
    assert len(heads) == sum(each[0].shape[1] for each in weights.values())
    for name, each in weights.items():
        across = recording[name].calls[0].across
        parts = [habits(one, across) for one in each]
        count = sum(part["count"] for part in parts)
        for column in ("first", "spread", "previous"):
            found = torch.tensor([getattr(head, column) for head in heads if head.layer == name])
            if across and column == "previous":
                assert found.isnan().all()
            else:
                close(found, sum(part[column] for part in parts) / count, f"{column} of {name}")


def habits(weights: Tensor, across: bool) -> dict[str, Tensor]:
    """Return sums over the queries that have a choice, and how many these are, for each head."""
    number = torch.arange(weights.shape[2]) + weights.shape[3] - weights.shape[2]
    counted = torch.ones_like(number).bool() if across else number > 0
    own = weights[:, :, counted]
    sees = (own.sum(-1) > 0).double()
    before = (number[counted] - 1).clamp(min=0).expand(own.shape[:-1])[..., None]
    return {
        "count": sees.sum((0, 2)),
        "first": own[..., 0].sum((0, 2)),
        "spread": (torch.special.entr(own).sum(-1).exp() * sees).sum((0, 2)),
        "previous": own.gather(-1, before)[..., 0].sum((0, 2)),
    }


@torch.no_grad()
def assert_edited(model: nn.Module, inputs: Any, *, doubles: bool = True) -> None:
    """Compare the outputs of an edited model, and the effect of each edit, with the truth."""
    plain = run(model, inputs)
    twin = in_float64(model) if doubles else model
    given = doubled(inputs) if doubles else inputs
    direction = torch.randn(plain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    values = []
    for name, (edit, by_hand) in EDITS.items():
        with plain_attention(twin, by_hand):
            truth = run(twin, given).double()
        with ts.edit(model, edit):
            edited = run(model, inputs)
        close(edited, truth, name)
        assert float((edited - plain).abs().max() / plain.abs().max()) > 1e-4, f"{name} changed nothing"
        values.append(float((truth * direction).sum()))
    assert torch.equal(run(model, inputs), plain)
    effects = ts.effect(
        model,
        inputs,
        [edit for edit, _ in EDITS.values()],
        lambda output: float((first_tensor(output).double() * direction).sum()),
    )
    found = torch.tensor(effects.columns["value"][1:], dtype=torch.float64)
    scale = float((plain.double().abs() * direction.abs()).sum())
    assert float((found - torch.tensor(values, dtype=torch.float64)).abs().max()) <= CLOSE * scale


def numbered(model: nn.Module, seed: int = 0) -> nn.Module:
    """Set every parameter to random numbers: zeros, and norms of ones, would hide a mistake."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            spread = torch.randn(tensor.shape, generator=random)
            if tensor.ndim < 2:
                tensor.copy_(0.3 * spread + (1.0 if name.endswith("weight") else 0.0))
            else:
                fan_in = tensor[0].numel()
                tensor.copy_(spread * fan_in**-0.5)
    return model.eval()
