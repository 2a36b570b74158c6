"""What cannot be estimated is one sentence, and leaves the model as it was."""

import pytest
import torch
from torch import nn

import telescope as ts
from support.sentences import says
from support.watching import hooks_of

IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)).eval()


def estimated(model, edits=(), measure="loss", **options):
    return ts.effect(model, IDS, edits, measure, **{"how": "gradient", "verify": 0} | options)


def test_options_that_do_not_fit(model):
    says(lambda: estimated(model, how="gradiant"), 'there is no how="gradiant"', 'did you mean "gradient"')
    says(lambda: estimated(model, verify="most"), 'verify="most"', "a number", '"all"')
    says(lambda: estimated(model, verify=-1), "verify=-1", "from 0 on")
    says(lambda: estimated(model, drops="some"), 'drops="some"', '"all"')
    says(lambda: estimated(model, drops=3), "drops=3", "2 blocks", 'drops="all"')
    says(lambda: estimated(model, how="exact", verify=3), "verify=3", 'how="gradient"', "every edit")
    says(lambda: estimated(model, how="exact", verify=20, drops="all"), "drops='all'", 'how="gradient"')
    says(lambda: estimated(model, tokens=[1, 2], against=[3]), "1 rivals", "tokens= 2")


def test_edits_without_an_estimate(model):
    with ts.watch(model, keep="queries-keys") as recording:
        model(IDS)
    for edit in (ts.frozen(recording), ts.redefine(None, lambda attention: attention)):
        says(lambda edit=edit: estimated(model, [edit]), "ts.mute, ts.hide and ts.boost", str(edit)[:9], 'how="exact"')
    together = [ts.hide(1), ts.hide(2, heads=1)]
    says(lambda: estimated(model, [together]), "change one head", "blocks.0.self", 'how="exact"', longest=300)
    estimated(model, [[ts.hide(1, heads=0), ts.hide(2, heads=1)], [ts.mute(0), ts.mute(1)]])
    says(lambda: estimated(model, [ts.mute(heads=7)]), "heads=[7]", "has 2, numbered from 0 to 1")
    says(lambda: estimated(model, [ts.hide(99)]), "there were no keys 99", "positions 0 to 5")


def test_measures_without_a_gradient(model):
    says(
        lambda: estimated(model, [ts.mute()], "logits"),
        "divergence of the model from itself",
        "tokens=[one]",
        "against=",
        'measure="loss"',
        longest=330,
    )
    says(lambda: estimated(model, measure="logits", tokens=[1, 2]), "several tokens", "against=", longest=330)
    says(lambda: estimated(model, measure=lambda output: 3.0), "returned float", ".item()", longest=300)
    says(lambda: estimated(model, measure=lambda output: output), "(1, 6, 8)", "one number", longest=300)
    says(lambda: estimated(model, measure=lambda output: {"a": output.sum()}), "returned dict", longest=300)
    says(
        lambda: estimated(model, measure=lambda output: output.detach().sum()), ".detach()", 'how="exact"', longest=300
    )


def test_models_that_are_not_fit(model):
    says(lambda: estimated(model.train(), [ts.mute()]), "evaluation mode", "model.eval()")
    by_sum = ts.Attention(mask=ts.causal, normalize=ts.by_sum, score=ts.dot)
    layer = ts.layers.MultiHeadAttention(8, 2, attention=by_sum).eval()
    x = torch.rand(1, 4, 8)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.abs_()

    def total(output):
        return output.sum()

    def hidden():
        return ts.effect(layer, x, [ts.hide(1)], total, how="gradient", verify=0)

    says(hidden, "does not normalise by softmax", 'how="exact"')
    found = ts.effect(layer, x, [ts.mute(heads=0)], total, how="gradient", verify="all").columns
    assert found["value"] == pytest.approx(found["exact"], rel=1e-5)
    says(lambda: ts.effect(layer, x, [ts.mute()], total, how="gradient", drops="all"), "drops='all'", "no ModuleList")


def test_a_compiled_model():
    from support import huggingface

    model = huggingface.gpt("llama")
    model.forward = torch.compile(model.forward, backend="eager")
    says(
        lambda: ts.effect(model, {"input_ids": IDS}, [ts.mute()], "loss", how="gradient"),
        "is compiled",
        'how="gradient"',
        'how="exact"',
        longest=330,
    )


class Writes(nn.Module):
    """Writes into what its attention returned."""

    def forward(self, x):
        context = nn.functional.scaled_dot_product_attention(x, x, x)
        y = context * 1.0
        context.mul_(2.0)
        return y + context


def test_a_model_that_writes_into_the_context():
    x = torch.randn(1, 2, 4, 3)
    says(
        lambda: ts.effect(Writes().eval(), x, [ts.mute()], lambda output: output.sum(), how="gradient"),
        "wrote into",
        'how="exact"',
    )


def test_recall_needs_every_exact_effect(model):
    says(lambda: ts.effect(model, IDS, ts.mute.each(model)).recall(), 'how="gradient"', 'verify="all"')
    found = ts.effect(model, IDS, ts.mute.each(model), "loss", how="gradient", verify=1)
    says(lambda: found.recall(), "3 were not run", 'verify="all"')
    found = estimated(model, ts.mute.each(model), verify="all")
    says(lambda: found.recall(top=0), "top=0", "from 1 on")
    assert found.recall(2, 4) == 1.0


@pytest.mark.parametrize("long", [False, True])
def test_the_model_is_left_as_it_was(model, long, monkeypatch):
    """After a run, and after exceptions in the forward pass, in the measure and in the backward pass."""
    monkeypatch.setattr("telescope.editing.estimates.LONG", 0 if long else 1024)
    frozen = next(model.parameters()).requires_grad_(False)
    other = model.blocks[0].self_attention.W_O.weight
    other.grad = torch.ones_like(other)
    own = model.blocks[1].forward
    model.blocks[1].forward = own  # somebody's own, which has to come back

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("in the backward pass")

    def check():
        assert not hooks_of(model)
        assert "forward" not in vars(model.blocks[0])
        assert vars(model.blocks[1])["forward"] is own
        assert not frozen.requires_grad
        assert sum(not one.requires_grad for one in model.parameters()) == 1
        assert [one.grad is not None for one in model.parameters()].count(True) == 1
        assert bool((other.grad == 1).all())
        assert not model.training
        assert torch.is_grad_enabled()

    options = {"edits": [ts.mute(), ts.hide(1), ts.mute(by="mean")], "drops": "all", "verify": "all"}
    with torch.no_grad():
        estimated(model, **options)
    check()

    def refuse(output):
        raise RuntimeError("in the measure")

    for measure in (refuse, lambda output: Raises.apply(output).sum()):
        with pytest.raises(RuntimeError, match="in the"):
            estimated(model, measure=measure, **options)
        check()
    with pytest.raises((IndexError, ValueError)):
        ts.effect(model, IDS + 99, [ts.mute()], "loss", how="gradient")
    check()


def test_edits_that_change_nothing_are_told():
    """Of an attention that is not called, an estimate of zero is no finding."""

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = ts.layers.MultiHeadAttention(8, 2), ts.layers.MultiHeadAttention(8, 2)

        def forward(self, x):
            return self.one(x)

    with pytest.warns(UserWarning, match="2 of the edits changed nothing"):
        found = ts.effect(
            Unused().eval(),
            torch.randn(1, 4, 8),
            ts.mute.each(Unused()),
            lambda out: out.sum(),
            how="gradient",
            verify=0,
        )
    assert found.columns["value"][3:] == [found.columns["value"][0]] * 2
