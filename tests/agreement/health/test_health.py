"""The health of attention in training: measured numbers, qk_clip, key biases, wrappers and other people's trainers."""

import re
import warnings

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import telescope as ts
from support.huggingface import GPT2, LLAMA, MARIAN, transformers
from telescope.health import HeadHealth, Rule, drifted_key_biases, remove_key_bias
from telescope.health.remedies import projections_of

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
        "GPTNeoX": "GPTNeoXForCausalLM",
        "Phi3": "Phi3ForCausalLM",
        "ModernBert": "ModernBertForMaskedLM",
        "Albert": "AlbertForMaskedLM",
        "T5": "T5ForConditionalGeneration",
        "DeepseekV3": "DeepseekV3ForCausalLM",
        "Olmo": "OlmoForCausalLM",
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
        assert_close(torch.tensor(layer.one_key), (received.amax(-1) / received.sum(-1)).mean(0), atol=1e-5, rtol=1e-4)


SIZES = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
ALBERT = {**SIZES, "num_hidden_layers": 3, "embedding_size": 16}
T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
MODELS = {
    "gpt": gpt,
    "gpt, rotary": lambda: gpt(positions="rotary"),
    "llama": lambda: hf("Llama", LLAMA),
    "llama with biases": lambda: hf("Llama", LLAMA, attention_bias=True),
    "gpt2": lambda: hf("GPT2", GPT2),
    "gpt-neox, fused by head": lambda: hf("GPTNeoX", SIZES),
    "phi3, fused, grouped": lambda: hf("Phi3", LLAMA),
    "modernbert, fused": lambda: hf("ModernBert", SIZES, attention_bias=True),
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
        assert after[head] == pytest.approx(min(logit, tau), rel=1e-5)
    assert clipped[first] == {head: tau / logit for head, logit in enumerate(before[first]) if logit > tau}
    again = ts.qk_clip(model, 2 * tau, {first: after})
    assert again == {}


def test_qk_clip_leaves_the_values_of_a_fused_projection():
    """Head 0 alone: its rows of queries and of keys are multiplied by √γ = 1/2, and nothing else changes."""
    model = hf("GPTNeoX", SIZES)
    layer = model.gpt_neox.layers[0].attention.query_key_value
    before = layer.weight.detach().clone().view(4, 3, 8, 32)  # heads; queries, keys, values; width; features
    ts.qk_clip(model, 1.0, {"gpt_neox.layers.0.attention": (4.0, 1.0, 0.5, -3.0)})
    factors = torch.ones(4, 3, 1, 1)
    factors[0, :2] = 0.5
    assert torch.equal(layer.weight.view(4, 3, 8, 32), before * factors)


def test_qk_clip_scales_a_shared_layer_once_by_its_largest_logits():
    model = hf("Albert", ALBERT)
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    layer = model.get_submodule(name)
    with torch.no_grad():
        for parameter in model.albert.encoder.embedding_hidden_mapping_in.parameters():
            parameter.mul_(0.1)  # the first pass has the smallest inputs
    health = ts.Health(model, rules=())
    before = health.measure(IDS).logits
    assert [*before] == [name, f"{name}.2", f"{name}.3"]
    largest = torch.tensor([*before.values()]).amax(0)
    assert float((largest - torch.tensor(before[name])).max()) > 1.0  # of a later pass
    tau = float(largest.min()) / 3
    weight = layer.query.weight.detach().clone()
    clipped = ts.qk_clip(model, tau, before)
    assert clipped == {
        name: {head: pytest.approx(tau / logit, rel=1e-6) for head, logit in enumerate(largest.tolist())}
    }
    roots = (tau / largest).sqrt().repeat_interleave(8)[:, None]
    assert_close(layer.query.weight, weight * roots, rtol=1e-6, atol=1e-7)
    after = torch.tensor(health.measure(IDS).logits[name])  # the inputs of the first pass do not change
    assert_close(after, torch.tensor(before[name]) * tau / largest, rtol=1e-5, atol=1e-5)


def test_qk_clip_scales_the_cross_attention_of_t5():
    """T5 does not divide by √d, and its cross-attention has no bias by position."""
    model = hf("T5", T5)
    health = ts.Health(model, rules=())
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    name = "decoder.block.0.layer.1.EncDecAttention"
    before = health.measure(**inputs).logits
    tau = sorted(before[name])[1]
    ts.qk_clip(model, tau, {name: before[name]})
    expected = [min(logit, tau) for logit in before[name]]
    assert health.measure(**inputs).logits[name] == pytest.approx(expected, rel=1e-5)


def test_qk_clip_with_alibi_stays_below_the_limit():
    layer = ts.layers.MultiHeadAttention(16, 2, attention=ts.Attention(mask=ts.causal, bias=ts.alibi(2)))
    x = 6.0 * torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
    health = ts.Health(layer, rules=())
    before = health.measure(x).logits
    tau = min(before["attention"]) / 2
    ts.qk_clip(layer, tau, before)
    assert max(health.measure(x).logits["attention"]) <= tau * (1 + 1e-6)


def with_adapter():
    """Return a Llama whose last query projection is wrapped as an adapter wraps it."""

    class Lora(torch.nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer

        def forward(self, x):
            return self.base_layer(x)

    model = hf("Llama", LLAMA)
    model.model.layers[1].self_attn.q_proj = Lora(model.model.layers[1].self_attn.q_proj)
    return model


def with_numbers_of_its_own():
    """Return a Llama with a kind of nn.Linear that adds a product of two more parameters to its output."""

    class LowRank(torch.nn.Linear):
        def __init__(self, base):
            super().__init__(base.in_features, base.out_features, bias=False)
            self.low = torch.nn.Parameter(torch.zeros(2, base.in_features))

    model = hf("Llama", LLAMA)
    model.model.layers[1].self_attn.q_proj = LowRank(model.model.layers[1].self_attn.q_proj)
    return model


def with_parametrisation():
    model = hf("Llama", LLAMA)
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[1].self_attn.k_proj)
    return model


ADDITIVE = ts.additive(torch.ones(4, 4), torch.ones(4, 4), torch.ones(4))


def defined(**parts):
    """Return a GPT whose last block attends by another definition."""
    model = gpt()
    model.blocks[1].self_attention.attention = ts.Attention(mask=ts.causal, **parts)
    return model


MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
LAST = "model.layers.1.self_attn"
REFUSED = {
    "norm": (lambda: hf("Qwen3", LLAMA, head_dim=8), LAST, "q_norm normalises them after the projection"),
    "clipped": (lambda: hf("Olmo", LLAMA, clip_qkv=3.0), LAST, "clip_qkv bounds them after the projection"),
    "adapter": (with_adapter, LAST, "an adapter, Lora, is added to q_proj of LlamaAttention; merge the adapter first"),
    "parametrised": (
        with_parametrisation,
        LAST,
        "k_proj of LlamaAttention is ParametrizedLinear, not a plain nn.Linear",
    ),
    "low rank": (with_numbers_of_its_own, LAST, "q_proj of LlamaAttention is LowRank, not a plain nn.Linear"),
    "latent": (lambda: hf("DeepseekV3", SIZES, **MLA), LAST, "DeepseekV3Attention has none that are known: q_proj and"),
    "bias": (
        lambda: hf("T5", T5),
        "decoder.block.1.layer.0.SelfAttention",
        "a bias by position is added to the scores",
    ),
    "relative": (
        lambda: defined(bias=ts.relative(torch.zeros(4, 5))),
        "blocks.1.self",
        "a bias is added to the scores",
    ),
    "score": (lambda: defined(score=ADDITIVE), "blocks.1.self", "is not linear in them"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_qk_clip_refuses_by_name_and_changes_nothing(kind):
    make, name, why = REFUSED[kind]
    model = make()
    others = [layer for layer, own in projections_of(model).items() if not own.cannot_scale and layer != name]
    logits = dict.fromkeys([*others, name], (9.0,) * 4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=re.escape(name)) as problem:
        ts.qk_clip(model, 1.0, logits)
    assert why in str(problem.value)
    assert str(problem.value).endswith("; leave this layer out of logits, or do without tau")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_qk_clip_refuses_wrong_names_numbers_and_limits():
    for logits, why in (
        ({"blocks.0.self": (9.0,) * 4, "blocks.0.slf": (9.0,) * 4}, r'no layer "blocks\.0\.slf" .* "blocks\.\d\.self"'),
        ({"blocks.0.self": (9.0,) * 4, "blocks.1.self": (9.0,) * 3}, "has 4 heads, and logits of 3 were given"),
    ):
        model = gpt()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with pytest.raises(ValueError, match=why):
            ts.qk_clip(model, 1.0, logits)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match="no attention of this model has projections that are known"):
        ts.qk_clip(torch.nn.Linear(2, 2), 1.0, {"attention": (9.0,)})
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
    additive = ts.layers.MultiHeadAttention(8, 2, attention=ts.Attention(score=ADDITIVE))
    additive.projections()["W_k"].bias.data.fill_(1.0)
    for model in (rotary, llama, softcap, sink, additive):
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
            rows.parameter[rows.numbers] = 6.0 * torch.randn(len(rows.numbers))
            own.query_bias.parameter[own.query_bias.numbers] = torch.randn(len(own.query_bias.numbers))
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


def test_the_former_name_of_one_key_still_works():
    layer = HeadHealth(logit=(3.0,), entropy=(1.2,), one_key=(0.99,))
    with pytest.warns(DeprecationWarning, match="one_key"):
        assert layer.sink == (0.99,)
    with pytest.warns(DeprecationWarning, match="one_key"):
        assert Rule("sink", above=0.9).broken_by(layer)
