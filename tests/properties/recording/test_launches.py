"""What reading a recording costs: torch operations, which are a GPU's launches, and copies to the host."""

import pytest
import torch
from tests.support.huggingface import LLAMA, transformers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import telescope as ts

# The host waits for a GPU wherever it reads a number of a tensor, or a size that depends on one.
READS = {"item", "tolist", "numpy", "nonzero", "unique", "equal", "__bool__", "__int__", "__float__", "__index__"}


class Launches(TorchDispatchMode):
    """Count operations; a view launches nothing."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Note the functions by which numbers reach the host, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in READS | {"cpu"}:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Words:
    def decode(self, ids):
        return "".join("." if token % 5 == 0 else "a" for token in ids)


def recorded(blocks, **options):
    torch.manual_seed(0)
    config = ts.models.GPTConfig(vocabulary=20, d_model=16, blocks=blocks, heads=4)
    model = ts.models.GPT(config).eval()
    with torch.no_grad(), ts.watch(model, **options) as recording:
        model(torch.randint(20, (2, 50)))
    return recording


def launches(read):
    with Launches() as counted:
        read()
    return counted.count


@pytest.mark.parametrize("options", [{}, {"tokenizer": Words()}, {"also": "streaming"}, {"top": 0}])
def test_heads_take_as_many_launches_for_any_number_of_layers(options):
    few, many = (recorded(blocks, **options) for blocks in (4, 12))
    assert len(many.heads()) == 3 * len(few.heads())
    assert launches(many.heads) == launches(few.heads) < 150
    segments = {"start": (0, 10)}
    assert launches(lambda: many.heads(segments=segments)) == launches(lambda: few.heads(segments=segments))


@pytest.mark.parametrize("tokenizer", [None, Words()])
def test_heads_are_copied_to_the_host_once(tokenizer):
    """With a tokenizer the tokens are read besides: of each text it is asked which are punctuation."""
    recording = recorded(12, tokenizer=tokenizer)
    with Reads() as reads:
        recording.heads()
    assert reads.names.count("cpu") == 1
    before = reads.names[: reads.names.index("cpu")]
    assert before == ([] if tokenizer is None else ["numpy", "tolist"])


@pytest.mark.parametrize("how", ["weights", "carried"])
def test_sources_of_alike_layers_are_computed_together(how):
    """A CPU stacks at most eight layers: twelve take two stretches."""
    few, many = (recorded(blocks, keep="queries-keys", also="norms") for blocks in (4, 12))
    assert launches(lambda: many.sources((30, 40), how)) < 2.5 * launches(lambda: few.sources((30, 40), how))


def waiting_steps(layers):
    """Return a recording of a prompt that was read, and of steps behind it that wait."""
    config = transformers.LlamaConfig(**LLAMA | {"num_hidden_layers": layers})
    model = transformers.LlamaForCausalLM(config).eval()
    cache = transformers.DynamicCache(config=config)
    ids = torch.randint(LLAMA["vocab_size"], (1, 24), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # the first time, the definitions are compared
        with torch.no_grad(), ts.watch(model) as recording:
            cache = transformers.DynamicCache(config=config)
            model(ids[:, :16], past_key_values=cache)
            recording.heads()
            for i in range(16, 24):
                model(ids[:, i : i + 1], past_key_values=cache)
    return recording


def test_steps_that_wait_are_stored_for_all_layers_at_once():
    """The host waits for one comparison of keys, and launches what joins the queries of each layer, and copies them."""
    few, many = (waiting_steps(layers) for layers in (2, 6))
    with Reads() as reads:
        more = launches(many._flush) - launches(few._flush)
    assert reads.names.count("equal") == 2
    assert more <= 3 * 4
    assert all(watched.call.size == (24, 24) for watched in many.values())
