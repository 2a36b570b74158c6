"""The health of attention in training: measured numbers, qk_clip, key biases, wrappers and other people's trainers."""

import warnings

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import telescope as ts
from huggingface import GPT2, LLAMA, MARIAN, transformers
from telescope.health import Rule, drifted_key_biases, remove_key_bias
from telescope.health.projections import projections_of

IDS = torch.randint(1, 60, (3, 12), generator=torch.Generator().manual_seed(0))


def gpt(**options):
    torch.manual_seed(0)
    sizes = {"vocabulary": 61, "d_model": 16, "heads": 4, "key_heads": 2, "blocks": 2}
    model = ts.models.GPT(ts.models.GPTConfig(**sizes | options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=1.0)
    return model


def hf(kind, options, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**options | more)
    names = {
        "Llama": "LlamaForCausalLM",
        "GPT2": "GPT2LMHeadModel",
        "Marian": "MarianMTModel",
        "Qwen3": "Qwen3ForCausalLM",
    }
    model = getattr(transformers, names[kind])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=1.0)
    return model.eval()


def test_numbers_are_those_of_the_whole_matrix():
    model = gpt()
    report = ts.Health(model, every=1, sequences=2, rules=()).measure(IDS)
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(IDS[:2])
    for name, layer in report.layers.items():
        steps = recording[name].trace()
        rows = steps.weights[:, :, 1:].double()
        entropy = -(rows * rows.clamp(min=1e-300).log()).sum(-1).mean((0, 2))
        assert_close(torch.tensor(layer.entropy, dtype=torch.float64), entropy, atol=1e-4, rtol=1e-4)
        assert_close(torch.tensor(layer.logit), steps.masked.amax((0, 2, 3)), atol=1e-3, rtol=1e-4)
        received = steps.weights.sum(2)
        assert_close(torch.tensor(layer.sink), (received.amax(-1) / received.sum(-1)).mean(0), atol=1e-5, rtol=1e-4)


MODELS = {
    "gpt": gpt,
    "gpt, rotary": lambda: gpt(positions="rotary"),
    "llama": lambda: hf("Llama", LLAMA),
    "llama with biases": lambda: hf("Llama", LLAMA, attention_bias=True),
    "gpt2": lambda: hf("GPT2", GPT2),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_qk_clip_brings_each_head_to_the_limit_and_leaves_the_others(make):
    model = make()
    health = ts.Health(model, rules=())
    before = health.measure(IDS).logits
    tau = sorted(logit for layer in before.values() for logit in layer)[len(before)]
    first = next(iter(before))  # the inputs of the first layer do not change
    clipped = ts.qk_clip(model, tau, before)
    after = health.measure(IDS).logits[first]
    for head, logit in enumerate(before[first]):
        assert after[head] == pytest.approx(min(logit, tau), rel=1e-4)
    assert clipped[first] == {head: tau / logit for head, logit in enumerate(before[first]) if logit > tau}
    again = ts.qk_clip(model, 2 * tau, {first: after})
    assert again == {}


def test_qk_clip_refuses_what_scaling_cannot_help():
    logits = {"model.layers.0.self_attn": (9.0,) * 4}
    with pytest.raises(ValueError, match="q_norm normalises them after the projection"):
        ts.qk_clip(hf("Qwen3", LLAMA, head_dim=8), 1.0, logits)
    with pytest.raises(ValueError, match=r'did you mean "blocks\.0\.self"'):
        ts.qk_clip(gpt(), 1.0, {"blocks.0.slf": (9.0,) * 4})
    with pytest.raises(ValueError, match="tau=0 is the limit"):
        ts.qk_clip(gpt(), 0, {})


def train(model, lr, steps=70, tau=None, every=7):
    """Train a small GPT to repeat a cycle; return the largest logits and losses on the way."""
    data = torch.arange(33).remainder(7).repeat(8, 1) + torch.arange(8)[:, None]
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    health = ts.Health(model, every=every, sequences=2, rules=(), tau=tau)
    logits, losses = [], []
    for _ in range(steps):
        loss = model.loss(data[:, :-1], data[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        report = health.step(data[:, :-1])
        if report is not None:
            logits.append(max(max(layer) for layer in report.logits.values()))
        losses.append(float(loss.detach()))
    return logits, losses


@pytest.mark.usefixtures("unchecked")
def test_a_run_that_diverges_is_held_by_qk_clip():
    """At ten times the learning rate that trains well, logits explode; clipped, they stay, and the loss falls."""

    def fresh():
        torch.manual_seed(4)
        return ts.models.GPT(ts.models.GPTConfig(vocabulary=16, d_model=32, heads=2, blocks=2, max_positions=40))

    usual, _ = train(fresh(), 1e-2)
    free, loss_free = train(fresh(), 1e-1)
    held, loss_held = train(fresh(), 1e-1, tau=30.0, every=1)
    assert max(usual) < 100.0
    assert max(free) > 1000.0
    assert max(held) < 200.0  # measured before each clip, one step of the optimiser after the clip before
    assert sum(loss_held[-20:]) < sum(loss_free[-20:]) / 2


def test_key_biases_have_no_influence_where_they_are_removed():
    for model, inputs in (
        (gpt(), {"ids": IDS}),
        (hf("GPT2", GPT2), {"input_ids": IDS}),
        (hf("Marian", MARIAN), {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}),
    ):
        model = model.double().eval()
        with torch.no_grad():
            before = model(**inputs)
            removed = remove_key_bias(model)
            after = model(**inputs)
        before, after = (out if torch.is_tensor(out) else out.logits for out in (before, after))
        assert_close(after, before, rtol=1e-9, atol=1e-9)
        assert len(removed) == (8 if "decoder_input_ids" in inputs else 2)
        assert remove_key_bias(model) == []


def test_key_biases_that_matter_are_kept():
    rotary = gpt(positions="rotary")
    llama = hf("Llama", LLAMA, attention_bias=True)
    softcap = ts.layers.MultiHeadAttention(8, 2, attention=ts.Attention(softcap=5.0))
    sink = ts.layers.MultiHeadAttention(8, 2, attention=ts.Attention(sink=torch.zeros(2)))
    for model in (rotary, llama, softcap, sink):
        assert remove_key_bias(model) == []


def test_the_drift_of_a_key_bias_is_named():
    model = gpt()
    with torch.no_grad():
        for block in model.blocks:
            block.self_attention.W_qkv.bias.normal_(std=0.2)
        model.blocks[1].self_attention.projections()["W_k"].bias.normal_(std=6.0)
    assert [*drifted_key_biases(model)] == ["blocks.1.self"]
    with pytest.warns(UserWarning, match=r"blocks\.1\.self: key bias drift, .*remove_key_bias"):
        ts.Health(model, rules=()).measure(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remove_key_bias(model)
        ts.Health(model, rules=()).measure(IDS)


def test_a_translator_whose_key_biases_have_drifted_loses_nothing():
    torch.manual_seed(0)
    sizes = {"vocabulary": 61, "d_model": 32, "heads": 4, "encoder_blocks": 2, "decoder_blocks": 4}
    model = ts.models.Transformer(ts.models.TransformerConfig(**sizes)).eval()
    with torch.no_grad():
        for own in projections_of(model).values():
            rows = own.key_bias
            rows.parameter.narrow(rows.axis, rows.start, rows.count).normal_(std=6.0)
            own.query_bias.parameter.narrow(own.query_bias.axis, own.query_bias.start, own.query_bias.count).normal_()
    assert len(drifted_key_biases(model)) == 10
    source, target = torch.tensor([[10, 20, 30, 3]]), torch.tensor([[2, 50, 60]])
    health = ts.Health(model, on_alert=lambda report: None)
    with torch.no_grad():
        before, high = model(source, target), health.measure(source, target).scalars()["attention/largest_logit"]
        assert len(remove_key_bias(model)) == 10
        after, low = model(source, target), health.measure(source, target).scalars()["attention/largest_logit"]
    assert_close(after, before, atol=1e-3, rtol=1e-4)
    assert low < high / 3


def test_rules_give_alerts():
    model = gpt()
    told = []
    health = ts.Health(
        model, every=2, rules=[Rule("logit", above=1.0), Rule("entropy", below=-1.0)], on_alert=told.append
    )
    assert health.step(IDS) is None
    report = health.step(IDS)
    assert told == [report]
    assert len(report.alerts) == 2
    assert report.alerts[0].endswith("and the rule is logit above 1")
    assert "attention at step 2" in repr(report)
    with pytest.raises(ValueError, match='did you mean "entropy"'):
        Rule("entrpy", below=1.0)
    with pytest.raises(ValueError, match="either above= or below="):
        Rule("entropy")
    with pytest.warns(UserWarning, match="the rule is logit above 1"):
        ts.Health(model, rules=[Rule("logit", above=1.0)]).measure(IDS)


@pytest.fixture
def one_process(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def reports_equal(one, other):
    return dict(one.layers) == dict(other.layers)


@pytest.mark.usefixtures("one_process", "unchecked")
def test_wrapped_models_are_measured_as_bare_ones_are():
    model = gpt(dropout=0.5).train()
    expected = ts.Health(gpt(dropout=0.5).eval(), rules=()).measure(IDS)
    state = torch.random.get_rng_state()
    wrapped = DistributedDataParallel(model)
    compiled = torch.compile(model, backend="eager")
    compiled(IDS)
    for each in (wrapped, compiled):
        assert reports_equal(ts.Health(each, rules=()).measure(IDS), expected)
    compiled(IDS).sum().backward()
    assert model.training
    inside = gpt(dropout=0.5).train()
    inside.blocks[0] = torch.compile(inside.blocks[0], backend="eager")
    inside.blocks[1].compile(backend="eager")
    inside(IDS)
    assert reports_equal(ts.Health(inside, rules=()).measure(IDS), expected)
    assert "_orig_mod" in inside.blocks[0]._modules
    assert inside.blocks[1]._compiled_call_impl is not None
    torch.random.set_rng_state(state)
    drawn = torch.rand(3)
    torch.random.set_rng_state(state)
    ts.Health(wrapped, rules=()).measure(IDS)
    assert torch.equal(torch.rand(3), drawn)  # dropout drew nothing


@pytest.mark.usefixtures("one_process")
def test_models_sharded_by_fsdp_are_measured_and_clipped():
    expected = ts.Health(gpt(), rules=()).measure(IDS)
    model = gpt()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    health = ts.Health(model, rules=())
    found = health.measure(IDS)
    assert reports_equal(found, expected)
    bare = gpt()
    tau = min(found.logits["blocks.0.self"]) / 2
    assert ts.qk_clip(model, tau, found.logits) == ts.qk_clip(bare, tau, expected.logits)
    clipped = health.measure(IDS).logits["blocks.0.self"]
    assert clipped == pytest.approx((tau,) * 4, rel=1e-4)


def test_gradient_checkpointing_is_measured_too():
    model = hf("Llama", LLAMA, use_cache=False)
    expected = ts.Health(model, rules=()).measure(input_ids=IDS)
    model.gradient_checkpointing_enable()
    model.train()
    assert reports_equal(ts.Health(model, rules=()).measure({"input_ids": IDS}), expected)
    model(input_ids=IDS, labels=IDS).loss.backward()


def test_a_trainer_of_transformers_logs_attention(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    data = [{"input_ids": row, "labels": row} for row in IDS.repeat(4, 1)]
    options = {"per_device_train_batch_size": 3, "max_steps": 4, "logging_steps": 2, "report_to": [], "use_cpu": True}
    arguments = transformers.TrainingArguments(tmp_path, save_strategy="no", disable_tqdm=True, **options)
    callback = ts.callbacks.TransformersCallback(every=2, rules=())
    losses = []
    for callbacks in ([], [callback]):
        trainer = transformers.Trainer(hf("Llama", LLAMA), arguments, train_dataset=data, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]  # the training is what it is without
    logged = [entry for entry in trainer.state.log_history if "attention/largest_logit" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert "attention/entropy/model.layers.1.self_attn" in logged[0]


def test_a_trainer_of_lightning_logs_attention(tmp_path):
    lightning = pytest.importorskip("lightning", reason="the test extra is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = gpt()

        def training_step(self, batch, number):
            (ids,) = batch
            loss = self.model.loss(ids[:, :-1], ids[:, 1:])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IDS.repeat(4, 1)), batch_size=3)
    callback = ts.callbacks.LightningCallback(every=2, rules=())
    seen = []

    class Logger(lightning.pytorch.loggers.logger.Logger):
        name, version = "seen", 0

        def log_metrics(self, metrics, step=None):
            seen.append((step, metrics))

        def log_hyperparams(self, *args, **options):
            pass

    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=4, accelerator="cpu", logger=Logger(), callbacks=[callback], log_every_n_steps=1, **quiet
        )
        trainer.fit(Module(), data)
    logged = [step for step, metrics in seen if "attention/largest_logit" in metrics]
    assert logged == [2, 4]
    assert {"loss", "attention/entropy/model.blocks.0.self"} <= {name for _, metrics in seen for name in metrics}
