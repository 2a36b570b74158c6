"""Training, compared with torch's own parts in float64, and with itself after a stop; and that it learns."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import telescope as ts
from support.learning import END, START, gpt, learn, losses, luong, pairs, transformer
from telescope import training
from telescope.training import (
    Examples,
    Finished,
    HeadsWatched,
    Logged,
    Started,
    Training,
    Validated,
    Windows,
    learning_rate,
    objectives,
)
from telescope.training.objectives import Learner, head_health

pytestmark = pytest.mark.usefixtures("on_cpu")


def by_hand(model, steps, settings):
    """Train on `steps`, lists of pairs that are read one at a time without padding, by torch's loss, clipping and
    AdamW."""
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False))
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    betas = settings.beta_1, settings.beta_2
    adam = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=settings.eps, weight_decay=settings.weight_decay)
    found = []
    for step, sentences in enumerate(steps, start=1):
        logits, wanted = [], []
        for source, target in sentences:
            logits.append(model(torch.tensor([source]), torch.tensor([target[:-1]]))[0])
            wanted += target[1:]
        loss = cross_entropy(torch.cat(logits), torch.tensor(wanted), label_smoothing=settings.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, settings, len(steps))
        adam.step()
        adam.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_equal_those_of_torch(accumulate, tmp_path):
    sources, targets = pairs(20)
    settings = Training(
        epochs=2, tokens=48, accumulate=accumulate, lr=0.01, warmup=2, weight_decay=0.1, clip=0.5,
        label_smoothing=0.1, log_every=1,
    )  # fmt: skip
    data, model = Examples(sources, targets), transformer().double()
    steps = []
    for epoch in range(2):
        batches = [spec.rows[: spec.real].tolist() for spec in data.batches(settings, epoch)]
        for first in range(0, len(batches), accumulate):
            together = batches[first : first + accumulate]
            steps.append([(sources[i], targets[i]) for batch in together for i in batch])
    expected_model = copy.deepcopy(model)
    expected = by_hand(expected_model, steps, settings)
    events = []
    trained = training.train(model, data, training.translation, settings, tmp_path, report=events.append)
    assert list(losses(events).values()) == pytest.approx(expected, rel=1e-6)  # added up in float32
    for mine, theirs in zip(trained.parameters(), expected_model.parameters(), strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-10)  # of key biases: Adam makes 1e-11 of their rounding noise


def test_the_bias_of_keys_does_not_drift(tmp_path):
    """Its gradient is rounding noise, of which Adam would make steps as large as those of any weight."""
    sources, targets = pairs(20)
    model = transformer()
    trained = training.train(
        model, Examples(sources, targets), training.translation, Training(epochs=2, tokens=48, lr=0.01), tmp_path
    )
    before, after = (dict(each.named_modules()) for each in (model, trained))
    layers = [name for name, layer in before.items() if isinstance(layer, ts.layers.MultiHeadAttention)]
    assert layers
    for name in layers:
        old, new = before[name].projections(), after[name].projections()
        assert torch.equal(old["W_k"].bias, new["W_k"].bias)
        assert (old["W_q"].bias - new["W_q"].bias).abs().max() > 0.01


@pytest.mark.parametrize("mode", [True, False], ids=["training", "eval"])
def test_train_does_not_change_the_given_model(mode, tmp_path):
    data, model = Examples(*pairs(20)), transformer().train(mode)
    before = copy.deepcopy(model.state_dict())
    trained, _ = learn(model, data, tmp_path, validate=validating(data))
    assert model.training is mode
    assert not trained.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(
        torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items() if tensor.ndim > 1
    )


def test_gradients_left_by_the_caller_are_ignored(tmp_path):
    data = Examples(*pairs(20))
    fresh, stale = transformer(), transformer()
    for parameter in stale.parameters():
        parameter.grad = torch.ones_like(parameter)
    models = [learn(model, data, tmp_path / name)[0] for name, model in (("fresh", fresh), ("stale", stale))]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
    assert all(bool((parameter.grad == 1).all()) for parameter in stale.parameters())


LEARNERS = {
    "GPT": (lambda: gpt(d_model=32), 60, 0.03),
    "GPT, rotary": (lambda: gpt(d_model=32, positions="rotary"), 120, 0.03),
    "GPT, Synthesizer": (lambda: gpt(d_model=32, attention="synthesizer"), 60, 0.03),
    "Transformer": (lambda: transformer(d_model=32, d_hidden=64), 60, 0.03),
    "LuongTranslator": (lambda: luong(d_model=32), 70, 0.1),
    "LuongTranslator, dot": (lambda: luong(d_model=32, score="dot", bidirectional=True), 90, 0.1),
    "LuongTranslator, concat": (lambda: luong(d_model=32, score="concat", input_feeding=False), 80, 0.1),
}


@pytest.mark.usefixtures("unchecked")  # checking every shape takes longer than learning
@pytest.mark.parametrize("kind", LEARNERS)
def test_a_dozen_examples_are_learnt_by_heart(kind, tmp_path):
    sources = [
        [3 + i, *source] for i, source in enumerate(pairs(12, longest=4)[0])
    ]  # each begins with a word of its own
    targets = [[START, *reversed(source), END] for source in sources]
    make, steps, lr = LEARNERS[kind]
    model, alone = make(), kind.startswith("GPT")
    texts = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
    data = Examples(texts) if alone else Examples(sources, targets)
    how = {"steps": steps, "lr": lr, "warmup": 5, "clip": 1.0, "beta_2": 0.95, "rows": 12, "tokens": None}
    trained, events = learn(model, data, tmp_path, log_every=10, **how)
    assert losses(events)[10] > 1.0
    assert losses(events)[steps] < 0.03
    objective = training.language if alone else training.translation
    assert training.mean_loss(trained, data, objective, Training(steps=1, rows=5)) < 0.03


def validating(data):
    def validate(model):
        torch.rand(7)  # a validation may draw what it likes
        return {"loss": training.mean_loss(model, data, training.translation, Training(steps=1, rows=7))}

    return validate


RUNS = {
    "logged in between": {"log_every": 3, "save_every": 1},
    "several batches": {"save_every": 3, "accumulate": 2},
    "averaged": {"save_every": 2, "average": 3, "average_every": 1, "validate_every": 2, "patience": 2},
    "validated": {"save_every": 2, "schedule": "inverse-sqrt", "warmup": 4, "validate_every": 3},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", RUNS)
def test_a_resumed_run_has_the_same_numbers(kind, tmp_path):
    data = Examples(*pairs(20))
    run = {"validate": validating(data), "clip": 1.0, "steps": 7} | RUNS[kind]
    whole, unbroken = learn(transformer(dropout=0.2), data, tmp_path / "whole", **run)
    for stopped in (1, 3, 5):

        def stop(event, stopped=stopped):
            if isinstance(event, Logged) and event.step >= stopped:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            learn(transformer(dropout=0.2), data, tmp_path / "out", on_event=stop, **run)
        torch.rand(13)
    again, after = learn(transformer(dropout=0.2), data, tmp_path / "out", **run)
    assert after[0].step > 0
    assert losses(after)
    assert losses(after) == {step: loss for step, loss in losses(unbroken).items() if step in losses(after)}
    reported = [event for event in after if isinstance(event, Validated | Finished)]
    assert reported == [event for event in unbroken if isinstance(event, Validated | Finished)][-len(reported) :]
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_finished_run_is_not_repeated(tmp_path):
    data = Examples(*pairs())
    first, _ = learn(transformer(), data, tmp_path, steps=3)
    again, events = learn(transformer(), data, tmp_path, steps=3)
    assert [type(event) for event in events] == [Started, Finished]
    for mine, theirs in zip(again.parameters(), first.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_validating_watching_and_saving_change_no_loss(tmp_path):
    data = Examples(*pairs(20))
    _, alone = learn(transformer(dropout=0.2), data, tmp_path / "a", steps=4)
    how = {"validate": validating(data), "validate_every": 1, "watch_every": 1, "save_every": 1, "log_every": 2}
    _, watched = learn(transformer(dropout=0.2), data, tmp_path / "b", steps=4, **how)
    _, settings = learn(transformer(dropout=0.2), data, tmp_path / "c", steps=4, log_every=2)
    assert losses(watched) == losses(settings)
    assert losses(settings)[4] != losses(alone)[4]  # the mean of two steps


def test_the_best_weights_are_kept(tmp_path):
    figures, seen = iter([3.0, 1.0, 2.0, 5.0]), []

    def validate(model):
        seen.append([parameter.clone() for parameter in model.parameters()])
        return {"loss": 0.0, "bleu": next(figures)}

    how = {"validate": validate, "validate_every": 2, "steps": 8}
    trained, events = learn(transformer(), Examples(*pairs()), tmp_path / "low", better="lowest bleu", **how)
    for mine, theirs in zip(trained.parameters(), seen[1], strict=True):
        assert torch.equal(mine, theirs)
    assert [event.best for event in events if isinstance(event, Validated)] == [True, True, False, False]
    assert events[-1] == Finished(step=8, kept=4)


def test_training_stops_when_nothing_improves(tmp_path):
    figures = iter([1.0, 2.0, 1.5, 1.9, 9.0])
    how = {"validate": lambda model: {"bleu": next(figures)}, "validate_every": 1, "patience": 2, "steps": 8}
    _, events = learn(transformer(), Examples(*pairs()), tmp_path, better="highest bleu", **how)
    assert events[-1] == Finished(step=4, kept=2)


def test_the_last_weights_are_averaged(tmp_path):
    seen, data = [], Examples(*pairs(20))

    def now(model):
        seen.append({name: tensor.double() for name, tensor in model.state_dict().items()})
        return {"loss": -float(len(seen))}

    learn(transformer(), data, tmp_path / "each", validate=now, validate_every=2, steps=8)
    trained, _ = learn(transformer(), data, tmp_path / "mean", average=3, average_every=2, steps=8)
    for name, mean in trained.state_dict().items():
        expected = (seen[1][name] + seen[2][name] + seen[3][name]) / 3
        assert_close(mean, expected.to(mean.dtype), rtol=0, atol=0)


def test_a_text_is_learnt_in_windows(tmp_path):
    """abcabc…: after the first letter of a window everything is determined."""
    text = torch.tensor([3, 4, 5] * 40)
    trained, events = learn(
        gpt(tied=False), Windows(text, 8), tmp_path, steps=60, lr=0.02, rows=4, tokens=None, log_every=20
    )
    assert losses(events)[60] < 0.02
    assert training.mean_loss(trained, Windows(text, 8), training.language, Training(steps=1, rows=3)) < 0.02


@pytest.mark.parametrize("make", [transformer, gpt, luong])
def test_health_equals_the_recorded_steps(make, tmp_path):
    sources, targets = pairs(7)
    model = make().eval()
    data = Examples(targets) if make is gpt else Examples(sources, targets)
    objective = training.language if make is gpt else training.translation
    (spec,) = data.batches(Training(steps=1, rows=8), None)
    entropy, logit = head_health(model, data.take(spec), objective)
    found = {name: ([], []) for name in entropy}
    for i in spec.rows[: spec.real].tolist():  # one by one, without padding
        with ts.watch(model, keep="steps") as recording, torch.no_grad():
            target = torch.tensor([targets[i][:-1]])
            model(target) if make is gpt else model(torch.tensor([sources[i]]), target)
        for name, watched in recording.items():
            for call in watched.calls:
                weights, masked = call.trace().weights[0], call.trace().masked[0]
                found[name][0].append(torch.special.entr(weights).sum(-1))
                found[name][1].append(masked.amax(-1))
    assert set(found) == set(entropy) == set(logit) != set()
    for name, (entropies, logits) in found.items():
        assert_close(torch.tensor(entropy[name]), torch.cat(entropies, 1).mean(1), rtol=1e-4, atol=1e-5)
        assert_close(torch.tensor(logit[name]), torch.cat(logits, 1).amax(1), rtol=1e-4, atol=1e-5)


def test_health_is_reported(tmp_path):
    _, events = learn(transformer(), Examples(*pairs()), tmp_path, steps=4, watch_every=2)
    reported = [event for event in events if isinstance(event, HeadsWatched)]
    assert [event.step for event in reported] == [2, 4]
    assert set(reported[0].entropy) == {"encoder.0.self", "decoder.0.self", "decoder.0.cross"}
    assert all(len(heads) == 2 and all(map(math.isfinite, heads)) for heads in reported[0].logit.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch, while it compiles
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make", [gpt, transformer])
def test_a_loss_compiles_to_one_graph(make):
    """Without a graph break, for every shape."""
    compiler = pytest.importorskip("torch._dynamo.testing").CompileCounterWithBackend("eager")
    sources, targets = pairs(12, longest=20)
    data = Examples(targets) if make is gpt else Examples(sources, targets)
    settings = Training(steps=1, tokens=96, label_smoothing=0.1)
    learner = Learner(make(), objectives.language if make is gpt else objectives.translation, settings)
    torch._dynamo.reset()
    compiled, shapes = torch.compile(learner, backend=compiler, fullgraph=True, dynamic=False), set()
    for spec in data.batches(settings, 0):
        batch = data.take(spec)
        shapes.add(tuple(tensor.shape for tensor in batch))
        assert_close(compiled(batch, torch.tensor(3)), learner(batch, torch.tensor(3)))
    torch._dynamo.reset()
    assert compiler.frame_count == len(shapes) == 3
