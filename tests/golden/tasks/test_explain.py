"""`telescope explain`: the five examples of the notes, printed, as JSON and as data."""

import json
import re

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.tasks.explaining.examples import EXAMPLES, draw_example
from telescope.traces import render_text


def test_journey_ends_in_the_contexts_of_the_notes():
    free, projected, masked = (scene.trace for scene in EXAMPLES["journey"](ts.softmax).scenes)
    assert_close(free.context[0, 0, 1], torch.tensor([0.4419, 0.6515, 0.5683]), atol=5e-5, rtol=0)
    assert_close(projected.context[0, 0, 1], torch.tensor([0.3061, 0.8210]), atol=5e-5, rtol=0)
    assert torch.equal(masked.weights[0, 0].triu(1), torch.zeros(6, 6))
    by_sum = EXAMPLES["journey"](ts.by_sum).scenes[0].trace
    expected = torch.tensor([0.1455, 0.2278, 0.2249, 0.1285, 0.1077, 0.1656])
    assert_close(by_sum.weights[0, 0, 1], expected, atol=5e-5, rtol=0)


def test_thinking_machines_has_the_numbers_of_the_notes():
    steps = EXAMPLES["thinking-machines"](ts.softmax).scenes[0].trace
    assert steps.scores.flatten().tolist() == [112, 96]
    assert steps.scaled.flatten().tolist() == [14, 12]
    assert_close(steps.weights.flatten(), torch.tensor([0.88, 0.12]), atol=5e-3, rtol=0)


def test_bank_is_pulled_towards_its_neighbour():
    for scene in EXAMPLES["bank"](ts.softmax).scenes:
        before, after = scene.trace.values[0, 0], scene.trace.context[0, 0]
        assert (after[0] - after[1]).norm() < 0.5 * (before[0] - before[1]).norm()
    money, river = (scene.trace.context[0, 0, 1] for scene in EXAMPLES["bank"](ts.softmax).scenes)
    assert money[0] > money[1]
    assert river[1] > river[0]  # the same word, another context


def test_the_heads_of_telescope_attend_to_man_and_astronomer():
    first, second = EXAMPLES["telescope"](ts.softmax).scenes[0].trace.weights[0, :, 7]
    assert first.argmax() == 1  # man
    assert second.argmax() == 4  # astronomer


def test_turn_is_the_sum_of_its_weighted_values():
    printed = render_text(draw_example(EXAMPLES["lights"](ts.softmax)))
    scaled = torch.tensor([0.0, 1.5, 0.5, 1.0])
    w = scaled.softmax(0).tolist()
    assert f"{w[0]:.4f}·[2 0]" in printed
    assert f"= [{2 * w[0] + w[1]:.4f} {2 * w[3]:.4f}]" in printed


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("normalize", [ts.softmax, ts.by_sum])
def test_every_example_shows_all_its_steps(name, normalize):
    example = EXAMPLES[name](normalize)
    printed = render_text(draw_example(example))
    assert printed.startswith(example.sentence)
    for scene in example.scenes:
        for step in scene.trace.walk():
            if step.name not in ("queries", "keys", "values"):
                assert f"{step.name} = {step.formula}" in printed
        for finding in scene.findings:
            assert finding in printed


def test_constructed_examples_say_so():
    for name in ("lights", "bank", "telescope"):
        assert "constructed" in EXAMPLES[name](ts.softmax).origin


def test_variance_is_shown_before_and_after():
    printed = render_text(draw_example(EXAMPLES["thinking-machines"](ts.softmax)))
    assert "variance of the scores: 64.0000 before ÷√64, 1.0000 after, 64 times less" in printed


def test_query_chooses_the_row():
    printed = render_text(draw_example(EXAMPLES["journey"](ts.softmax), "STEP"))
    assert "scores of step" in printed
    assert "scores of journey" not in printed


def test_command_prints_plain_text_when_it_is_not_a_terminal(command):
    code, printed, complaint = command("explain")
    assert (code, complaint) == (0, "")
    assert "journey    0.1385    0.2379    0.2333    0.1240    0.1082    0.1581" in printed
    assert "\x1b" not in printed
    assert not any(line.endswith(" ") for line in printed.splitlines())


def test_command_gives_json(command):
    _, printed, _ = command("explain", "--example", "journey", "--json", "--by-sum")
    scenes = json.loads(printed)["scenes"]
    weights = next(step for step in scenes[0]["trace"]["steps"] if step["name"] == "weights")["numbers"]
    kept = EXAMPLES["journey"](ts.by_sum).scenes[0].trace.weights
    assert_close(torch.tensor(weights, dtype=torch.float64), kept.double(), atol=0, rtol=1e-6)


@pytest.mark.parametrize(("name", "digits"), [("bank", 7), ("variance", 15), ("positions", 15)])
def test_json_has_the_digits_that_are_true(command, name, digits):
    """Seven of what is computed in float32, fifteen of float64; no input of an example is 0.699999988079071."""
    printed = command("explain", "--example", name, "--json")[1]
    numbers = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", re.sub(r'"(?:[^"\\]|\\.)*"', "", printed))
    lengths = [len(number.lstrip("-").split("e")[0].replace(".", "").lstrip("0")) for number in numbers]
    assert max(lengths) == digits
