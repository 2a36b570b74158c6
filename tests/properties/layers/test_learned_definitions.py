"""The tensors of a definition belong to the layer: trained, moved, converted, copied, saved and loaded with it."""

import json
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from support.learning import END, START, WORDS, learn, learned, pairs, transformer
from telescope import layers, training
from telescope.models import GPT, Encoder, EncoderConfig, GPTConfig, LoadError, LuongConfig, LuongTranslator
from telescope.training import Examples
from telescope.training.processes import shard

HEADS = 2


def definition(heads=HEADS, **more):
    """Return a definition with a learned table, and a sink that is not learned."""
    table = nn.Parameter(torch.linspace(-1, 1, heads * 5).reshape(heads, 5))
    return ts.Attention(bias=ts.relative(table), sink=torch.linspace(-1, 1, heads), **more)


LAYERS = {
    "SelfAttention": lambda: layers.SelfAttention(8, attention=definition(1)),
    "MultiHeadAttention": lambda: layers.MultiHeadAttention(8, HEADS, attention=definition()),
    "LuongAttention": lambda: layers.LuongAttention("general", 8, attention=definition(1)),
    "SynthesizerAttention": lambda: layers.SynthesizerAttention(8, HEADS, 6, attention=definition(mask=ts.causal)),
    "EncoderBlock": lambda: layers.EncoderBlock(
        8, layers.MultiHeadAttention(8, HEADS, attention=definition()), layers.FeedForward(8, 16)
    ),
}


def made(kind):
    torch.manual_seed(1)
    return LAYERS[kind]()


def run(layer, x):
    return layer(x, x) if isinstance(layer, layers.LuongAttention) else layer(x)


def attention_of(layer):
    return getattr(layer, "self_attention", layer).attention


def named(layer, name):
    """Return the one registered tensor of this name."""
    everything = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    (found,) = [tensor for path, tensor in everything.items() if path.endswith(f"definition.{name}")]
    return found


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_registered_is_what_the_definition_uses(kind):
    layer = made(kind)

    def same():
        attention = attention_of(layer)
        return attention.bias.table is named(layer, "bias_table") and attention.sink is named(layer, "sink")

    assert isinstance(named(layer, "bias_table"), nn.Parameter)
    assert not isinstance(named(layer, "sink"), nn.Parameter)
    assert same()
    assert attention_of(layer) is attention_of(layer)  # made once
    for convert in (layer.double, layer.half, layer.float, lambda: layer.to(torch.bfloat16), lambda: layer.to("meta")):
        convert()
        assert same()
        assert attention_of(layer).sink.dtype == attention_of(layer).bias.table.dtype == next(layer.parameters()).dtype
    assert attention_of(layer).bias.table.is_meta


@pytest.mark.parametrize("kind", LAYERS)
def test_an_optimiser_step_changes_the_table(kind):
    layer, x = made(kind), torch.randn(2, 6, 8)
    before, table = run(layer, x), attention_of(layer).bias.table
    was, sink = table.detach().clone(), attention_of(layer).sink.clone()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("definition" in name)
    loss = (run(layer, x) - torch.randn(before.shape)).square().sum()
    loss.backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert attention_of(layer).bias.table is table
    assert_close(table, was - 0.1 * table.grad)
    assert (run(layer, x) - before).abs().max() > 1e-4
    assert torch.equal(attention_of(layer).sink, sink)


@pytest.mark.parametrize("kind", LAYERS)
def test_copies_and_states_of_a_layer(kind):
    layer, x = made(kind), torch.randn(2, 6, 8)
    copied = deepcopy(layer)
    assert torch.equal(run(copied, x), run(layer, x))
    with torch.no_grad():
        attention_of(copied).bias.table.mul_(-2)
        attention_of(copied).sink.add_(1)
    assert attention_of(copied).bias.table is named(copied, "bias_table")
    assert (run(copied, x) - run(layer, x)).abs().max() > 1e-4
    layer.load_state_dict(copied.state_dict())
    assert torch.equal(run(copied, x), run(layer, x))
    other = made(kind)
    other.load_state_dict(copied.state_dict(), assign=True)
    assert torch.equal(run(other, x), run(copied, x))
    swapped = {name: torch.zeros_like(tensor) for name, tensor in layer.state_dict().items() if "bias_table" in name}
    without = torch.func.functional_call(layer, swapped, (x, x) if kind == "LuongAttention" else (x,))
    with torch.no_grad():
        attention_of(layer).bias.table.zero_()
    assert torch.equal(without, run(layer, x))


def test_the_definition_may_be_changed_afterwards():
    layer = made("MultiHeadAttention")
    usual = {name for name, _ in layers.MultiHeadAttention(8, HEADS).named_parameters()}
    layer.attention = ts.Attention(mask=ts.causal)
    assert {name for name, _ in layer.named_parameters()} == usual
    assert layer.attention == ts.Attention(mask=ts.causal)
    assert "definition" not in dict(layer.named_children())
    layer.attention = definition()
    assert "definition.bias_table" in layer.state_dict()


def test_a_tensor_with_requires_grad_that_is_no_parameter_is_refused():
    with pytest.raises(ValueError, match=r"attention.bias.table requires a gradient but is not an nn.Param"):
        layers.MultiHeadAttention(
            8, HEADS, attention=ts.Attention(bias=ts.relative(torch.zeros(2, 5).requires_grad_()))
        )
    raw = nn.Parameter(torch.zeros(2, 5))  # of another module, which computes a table from it
    layer = layers.MultiHeadAttention(8, HEADS, attention=ts.Attention(bias=ts.relative(raw.exp())))
    layer(torch.randn(1, 4, 8)).sum().backward()
    assert raw.grad.abs().max() > 0


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, query, key):
        return self.line((query - key).float()[..., None])[..., 0]


def test_a_bias_that_is_a_module_is_a_part_of_the_layer():
    slope = Slope()
    before = deepcopy(slope.state_dict())
    model = GPT(
        GPTConfig(vocabulary=9, d_model=8, heads=2, blocks=2), attention=ts.Attention(mask=ts.causal, bias=slope)
    )
    assert "blocks.0.self_attention.definition.bias_function.line.weight" in model.state_dict()
    for name, tensor in slope.state_dict().items():
        assert torch.equal(tensor, before[name])  # a new model draws its own weights alone
    model.loss(torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])).backward()
    assert slope.line.weight.grad.abs().max() > 0
    copied = deepcopy(model).double()
    assert copied.attention.bias.function.line.weight.dtype == torch.float64
    assert slope.line.weight.dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------- models

IDS = torch.tensor([[3, 7, 5, 4], [9, 6, 8, 3]])
MODELS = {
    "GPT": lambda: GPT(
        GPTConfig(vocabulary=WORDS, d_model=8, heads=HEADS, blocks=2), attention=definition(mask=ts.causal)
    ),
    "GPT, Synthesizer": lambda: GPT(
        GPTConfig(vocabulary=WORDS, d_model=8, heads=HEADS, blocks=2, attention="synthesizer"),
        attention=definition(mask=ts.causal, scale=1.0),
    ),
    "Encoder": lambda: Encoder(
        EncoderConfig(vocabulary=WORDS, d_model=8, heads=HEADS, blocks=2), attention=definition()
    ),
    "Transformer": lambda: transformer(definition(), d_model=8, decoder_blocks=2),
    "LuongTranslator": lambda: LuongTranslator(
        LuongConfig(vocabulary=WORDS, d_embedding=8, d_model=8, layers=1), attention=definition(1)
    ),
}


def answer(model):
    with torch.no_grad():
        return model(IDS, IDS) if isinstance(model, LuongTranslator | ts.models.Transformer) else model(IDS)


def model_of(kind):
    torch.manual_seed(2)
    return MODELS[kind]().eval()


@pytest.mark.parametrize("kind", MODELS)
def test_models_are_saved_and_loaded_with_their_definition(kind, tmp_path):
    model, at_first = model_of(kind), definition(1 if kind == "LuongTranslator" else HEADS)
    assert torch.equal(model.attention.bias.table, at_first.bias.table)  # a new model draws its own weights alone
    with torch.no_grad():
        model.attention.bias.table.mul_(-1.5)
    model.save(tmp_path / "model")
    loaded = ts.load(tmp_path / "model")
    assert torch.equal(answer(loaded), answer(model))
    assert (answer(loaded) - answer(model_of(kind))).abs().max() > 1e-6  # which differs in nothing but the table
    assert isinstance(loaded.attention.bias.table, nn.Parameter)
    tables = [tensor for name, tensor in loaded.named_parameters(remove_duplicate=False) if "bias_table" in name]
    assert all(table is loaded.attention.bias.table for table in tables)  # shared, as it was
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "model" / "config.json").read_bytes()
    assert torch.equal(answer(ts.load(tmp_path / "again")), answer(model))
    half = ts.load(tmp_path / "model", dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_and_biases_of_tensors_are_saved(dtype, tmp_path):
    """Buffers of other dtypes, one tensor in two places, -inf, and copies of it in every block after a conversion."""
    keep, added = torch.ones(4, 4, dtype=torch.bool).tril(), torch.zeros(4, 4)
    keep[3, 0], added[2, 1] = False, -torch.inf
    mask = ts.from_tensor(keep) & (ts.from_tensor(keep) | ts.documents([0, 0, 1, 1]))
    attention = ts.Attention(mask=mask, bias=ts.from_additive(added))
    config = GPTConfig(vocabulary=WORDS, d_model=8, heads=HEADS, blocks=3)
    model = GPT(config, attention=attention).eval().to(dtype)
    model.save(tmp_path / "model")
    loaded = ts.load(tmp_path / "model")
    assert torch.equal(answer(loaded), answer(model))
    assert loaded.attention == model.attention


def test_a_model_that_matches_its_config_is_saved_without_a_definition(tmp_path):
    GPT(GPTConfig(vocabulary=9, d_model=8, heads=2, blocks=1, window=3)).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["telescope"] == 1
    assert set(config) == {"telescope", "model", "config", "special"}


BROKEN = {
    "a text": lambda definition_json: "causal",
    "nothing": lambda definition_json: None,
    "a mask": lambda definition_json: definition_json["mask"],
    "a tensor that is not there": lambda definition_json: definition_json | {"sink": {"tensor": "attention.9"}},
    "a bias that was a function": lambda definition_json: (
        definition_json | {"bias": {"untold": "bias", "name": "bias"}}
    ),
    "no mask": lambda definition_json: definition_json | {"mask": {"is": "Everyone"}},
    "a tensor left over": lambda definition_json: definition_json | {"sink": None},
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_invalid_definition_is_not_loaded(case, tmp_path):
    model_of("GPT").save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config["attention"] = BROKEN[case](config["attention"])
    file.write_text(json.dumps(config))
    with pytest.raises(LoadError) as problem:
        ts.load(tmp_path / "model")
    assert "\n" not in str(problem.value)


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.usefixtures("on_cpu")
def test_training_learns_the_table_and_saves_it(tmp_path):
    data, model = Examples(*pairs(12)), transformer(learned())
    trained, _ = learn(model, data, tmp_path / "run", steps=20, lr=0.02, average=2, average_every=5, save_every=10)
    table, was = trained.attention.bias.table, model.attention.bias.table
    assert (table - was).abs().max() > 0.01
    assert torch.equal(was, learned().bias.table)
    assert torch.equal(trained.attention.sink, learned().sink)
    trained.save(tmp_path / "model")
    assert torch.equal(ts.load(tmp_path / "model").attention.bias.table, table)
    other = ts.Attention(bias=ts.relative(nn.Parameter(torch.zeros(2, 5))))
    with pytest.raises(
        training.TrainingError, match=r"another run: model.attention.sink is \{.*\} there and None here"
    ):
        learn(transformer(other), data, tmp_path / "run", steps=20, lr=0.02, average=2, average_every=5, save_every=10)


@pytest.mark.usefixtures("on_cpu")
def test_a_mask_of_minus_infinity_is_not_taken_for_a_diverged_weight(tmp_path):
    added = torch.zeros(1, 1, 16, 16).masked_fill(torch.ones(16, 16).tril() == 0, -torch.inf)
    config = GPTConfig(vocabulary=WORDS, d_model=8, heads=HEADS, blocks=1)
    attention = ts.Attention(mask=ts.causal, bias=ts.from_additive(added))
    texts = [[START, 3, 4, 5, 6, 7, 8, 9, 10, END]] * 4
    trained, _ = learn(GPT(config, attention=attention), Examples(texts), tmp_path, steps=2)
    assert torch.equal(trained.attention.bias.tensor, added)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    "attention",
    [ts.Attention(bias=lambda i, j: (i - j) * 0.1), ts.Attention(normalize=lambda scores: scores.softmax(-1))],
    ids=["bias", "normalize"],
)
def test_a_model_that_cannot_be_saved_is_not_trained(attention, tmp_path):
    model = transformer(attention)
    with pytest.raises(
        ValueError, match=r"encoder.0.self_attention.attention: .* so the model could not be saved; a te"
    ):
        learn(model, Examples(*pairs(12)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"attention: .* so the model could not be saved; a tensor can be"):
        model.save(tmp_path / "model")


def test_sharding_a_definition_with_learned_tensors_is_refused():
    with pytest.raises(ValueError, match="shard=True does not fit a definition of attention with learned tensors"):
        shard(transformer(learned()), torch.device("cpu"))
