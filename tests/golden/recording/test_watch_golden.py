"""A watched model of two tokens: every number can be checked by hand."""

from math import log

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from telescope.layers import EncoderBlock, FeedForward, MultiHeadAttention
from telescope.recording.names import attention_name, select_layers

# Features of a token: 1, its score as a key, its value. exp gives 1 and 3: the second token looks by 1/4 and 3/4.
TOKENS = torch.tensor([[[1.0, 0.0, 4.0], [1.0, log(3.0), 8.0]]], dtype=torch.float64)
WEIGHTS = [[1.0, 0.0], [1 / 4, 3 / 4]]
AFTER = [[1.0, 0.0, 4.0 + 4.0], [1.0, log(3.0), 8.0 + (4.0 + 3 * 8.0) / 4]]


class Two(nn.Module):
    def __init__(self, pre_norm):
        super().__init__()
        attention = ts.Attention(scale=1.0, mask=ts.causal)
        look = MultiHeadAttention(3, 1, d_k=1, d_v=1, bias=False, attention=attention)
        norm = nn.Identity if pre_norm else Doubled
        self.blocks = nn.ModuleList(
            [EncoderBlock(3, look, FeedForward(3, 3), pre_norm=pre_norm, norm=lambda _: norm())]
        )
        with torch.no_grad():
            for feature, W in enumerate(look.projections().values()):
                W.weight.copy_(torch.eye(3)[feature : feature + 1])
            look.W_O.weight.copy_(torch.eye(3)[:, 2:])
        self.double()

    def forward(self, x):
        return self.blocks[0](x)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def close(got, expected):
    assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-14, rtol=0.0)


@pytest.mark.parametrize("keep", ["summaries", "queries-keys", "steps"])
def test_survey_of_two_tokens(keep):
    model = Two(pre_norm=True)
    with ts.watch(model, keep=keep) as recording:
        model(TOKENS)
    seen = recording["blocks.0.self"].survey()
    close(seen.received[0, 0], [1.25, 0.75])
    close(seen.entropy[0, 0], [0.0, log(4) - 3 / 4 * log(3)])
    close(seen.lse[0, 0], [0.0, log(4)])
    close(seen.peak.weight[0, 0], [1.0, 3 / 4])
    assert seen.top.keys[0, 0, :, :2].tolist() == [[0, -1], [1, 0]]
    close(recording["blocks.0.self"].head(0).received[0, 0], [1.25, 0.75])


def test_trace_of_two_tokens():
    model = Two(pre_norm=True)
    with ts.watch(model, keep="steps") as recording:
        model(TOKENS)
    steps = recording["blocks.0.self"].trace(tokens=["a", "b"])
    close(steps.scores[0, 0], [[0.0, log(3)], [0.0, log(3)]])
    close(steps.weights[0, 0], WEIGHTS)
    close(steps.context[0, 0], [[4.0], [7.0]])
    assert steps.key_tokens == ("a", "b")


@pytest.mark.parametrize(("pre_norm", "scale"), [(True, 1.0), (False, 2.0)])
def test_residual_stream_of_two_tokens(pre_norm, scale):
    """In a post-norm model the stream after the attention is normalised; here the norm doubles it."""
    model = Two(pre_norm)
    with ts.watch(model, keep="steps") as recording:
        model(TOKENS)
    assert torch.equal(recording["blocks.0.self"].before, TOKENS)
    close(recording["blocks.0.self"].after[0], [[scale * number for number in token] for token in AFTER])


def test_a_map_is_recorded_while_the_model_runs():
    model = Two(pre_norm=True)
    with ts.watch(model, map=(2, 1), top=1) as recording:
        model(TOKENS)
    seen = recording["blocks.0.self"].survey()
    close(seen.map(2, 1)[0, 0], [[1.0], [1.0]])
    assert seen.top.keys.shape[-1] == 1


def test_the_recording_prints_as_a_table():
    model = Two(pre_norm=True)
    with ts.watch(model, keep="queries-keys") as recording:
        model(TOKENS)
    assert repr(recording).splitlines() == [
        'Two, keep="queries-keys": 0.1 KiB',
        "name           heads  queries x keys  definition                           calls",
        "blocks.0.self      1  2 x 2           softmax(mask(q·k)) v, mask = causal      1",
    ]
    assert repr(recording["blocks.0.self"]) == (
        "blocks.0.self: heads 1, 2 x 2, softmax(mask(q·k)) v, mask = causal, calls 1"
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("encoder.3.self_attention.attend", "encoder.3.self"),
        ("decoder.0.cross_attention.attend", "decoder.0.cross"),
        ("attention.attend", "attention"),
        ("self_attention.attend", "self"),
        ("many.attend", "many"),
        ("attend", "attention"),
        ("", "attention"),
    ],
)
def test_name(path, name):
    assert attention_name(path) == name


NAMES = ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross", "pool"]


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (None, NAMES),
        ("encoder.*", NAMES[:2]),
        ("*.cross", NAMES[3:4]),
        (["pool", "encoder.0.self"], ["encoder.0.self", "pool"]),
        (0, ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]),
        (-1, ["encoder.1.self", "decoder.0.self", "decoder.0.cross"]),
        (range(1, 2), ["encoder.1.self"]),
        ([1, "pool"], ["encoder.1.self", "pool"]),
    ],
)
def test_layers_are_chosen_by_name_pattern_and_number(layers, names):
    assert select_layers(NAMES, layers) == names
