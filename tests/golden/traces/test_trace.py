"""What a trace keeps, prints, draws and saves."""

import json
from math import inf

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import telescope as ts
from telescope.traces import round_numbers

TOKENS = ["a", "b", "c"]
ONE_HOT = torch.eye(3)[None, None]


def test_every_step_of_a_definition_that_uses_them_all():
    """By hand: identity inputs score 1 with themselves and 0 otherwise."""
    attention = ts.Attention(scale=2.0, softcap=4.0, bias=lambda i, j: (j - i).float(), mask=ts.causal, sink=0.0)
    steps = ts.trace(ONE_HOT, ONE_HOT, ONE_HOT, attention, TOKENS)
    cap = 4 * torch.tensor(0.5).tanh()
    assert_close(steps.scores[0, 0], torch.eye(3))
    assert_close(steps.scaled[0, 0], 2 * torch.eye(3))
    assert_close(steps.capped[0, 0], cap * torch.eye(3))
    assert_close(steps.biased[0, 0, 2], torch.tensor([-2.0, -1.0, cap]))
    assert_close(steps.masked[0, 0, 1], torch.tensor([-1.0, cap, -torch.inf]))
    exponentials = torch.tensor([-1.0, cap]).exp()
    assert_close(steps.weights[0, 0, 1, :2], exponentials / (exponentials.sum() + 1))  # the sink's exp(0)
    assert_close(steps.context[0, 0, 1], steps.weights[0, 0, 1])
    assert [step.name for step in steps.walk()] == list(steps.axes)


def test_steps_that_are_not_taken_are_left_out():
    steps = ts.trace(ONE_HOT, ONE_HOT, ONE_HOT, ts.Attention(scale=1.0))
    assert [step.name for step in steps.walk()] == ["queries", "keys", "values", "scores", "weights", "context"]
    assert steps.axes["weights"] == ("batch", "head", "query", "key")


def test_row_writes_every_product_out():
    x = torch.tensor([[0.5, -2.0], [3.0, 0.25]])[None, None]
    row = ts.trace(x, x, x, ts.Attention(scale=1.0), ["left", "right"]).row("right")
    assert_close(row.terms, torch.tensor([[1.5, -0.5], [9.0, 0.0625]]))
    assert_close(row.terms.sum(-1), torch.tensor([1.0, 9.0625]))
    assert_close(row.parts.sum(0), row.context)
    printed = str(row)
    assert "3.00·0.50 + 0.25·(-2.00) = 1.0000" in printed
    assert "3.00·3.00 + 0.25·0.25" in printed
    assert "0.0003·[0.50 -2.00]" in printed
    assert "0.9997·[3.00 0.25]" in printed


def test_row_of_grouped_heads_takes_the_heads_own_keys():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 3), torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 4)
    steps = ts.trace(q, k, v)
    for head in range(6):
        row = steps.row(-1, head=head, batch=1)
        assert_close(row.terms.sum(-1), steps.scores[1, head, 4])
        assert_close(row.parts.sum(0), steps.context[1, head, 4])


def test_row_of_an_additive_score_sums_its_terms():
    torch.manual_seed(0)
    score = ts.additive(torch.randn(3, 5), torch.randn(4, 5), torch.randn(5))
    steps = ts.trace(
        torch.randn(1, 1, 2, 3), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4), ts.Attention(score, 1.0)
    )
    row = steps.row(1)
    assert row.factors is None
    assert_close(row.terms.sum(-1), steps.scores[0, 0, 1])
    assert "v·tanh(W_q q + W_k k)" in str(row)


def test_a_trace_prints_every_step():
    printed = str(ts.trace(ONE_HOT, ONE_HOT, ONE_HOT, ts.Attention(mask=ts.causal), TOKENS))
    assert printed.startswith("softmax(mask(q·k / √3)) v")
    titles = [
        "1  inputs = x",
        "2  scores = q·k",
        "3  scaled = scores / √3",
        "4  masked = scaled where causal, else -inf",
    ]
    titles += ["5  weights = softmax(masked)", "6  context = weights · v"]
    assert [printed.index(title) for title in titles] == sorted(printed.index(title) for title in titles)
    assert "   b  0.0000  0.5774    -inf" in printed
    assert "\x1b" not in printed


def test_a_long_trace_is_printed_on_one_page():
    q = torch.randn(1, 1, 300, 8)
    printed = str(ts.trace(q, q, q))
    assert len(printed.splitlines()) < 150
    assert "299" in printed
    assert "…" in printed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_json_loses_no_digit(dtype):
    torch.manual_seed(0)
    q = (torch.randn(2, 2, 5, 3) * 10 ** torch.linspace(-30, 3, 3)).to(dtype)
    steps = ts.trace(q, q, q, ts.Attention(mask=ts.causal), list("abcde"))
    read = json.loads(steps.to_json())
    for saved in read["steps"]:
        kept = getattr(steps, saved["name"])
        numbers = torch.tensor(_numbers(saved["numbers"]), dtype=torch.float64).to(getattr(torch, saved["dtype"]))
        assert torch.equal(numbers, kept), saved["name"]
        assert saved["axes"] == list(steps.axes[saved["name"]])
    assert read["key_tokens"] == list("abcde")
    assert read["formula"] == "softmax(mask(q·k / √3)) v"
    assert "-inf" in steps.to_json()
    assert "Infinity" not in steps.to_json()


def test_json_has_no_digits_that_the_dtype_lacks():
    """0.7 in float32 is 0.699999988079071 in float64; the shortest decimal that is the same in float32 is 0.7."""
    steps = ts.trace(*3 * [torch.tensor([[[[0.7, -0.1], [1 / 3, 1e-8]]]])])
    assert json.loads(steps.to_json())["steps"][0]["numbers"] == [[[[0.7, -0.1], [0.33333334, 1e-8]]]]


def test_numbers_are_rounded_for_people():
    given = {"p": 0.699999988079071, "n": 123456789, "rows": [(1 / 3, None, "0.123456789"), [True, -inf]]}
    assert round_numbers(given) == {"p": 0.7, "n": 123456789, "rows": [[0.3333333, None, "0.123456789"], [True, -inf]]}
    assert round_numbers(0.1 + 0.2, 15) == 0.3


def test_html_shows_the_numbers_and_never_runs_a_token():
    token = "</td><script>alert(1)</script>"
    page = ts.trace(ONE_HOT, ONE_HOT, ONE_HOT, tokens=[token, "b", "c"])._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    weight = ts.trace(ONE_HOT, ONE_HOT, ONE_HOT).weights[0, 0, 0, 0].item()
    assert f'title="{weight:.7g}"' in page
    double = ts.trace(*3 * [ONE_HOT.double()])
    assert f'title="{double.weights[0, 0, 0, 0].item():.15g}"' in double._repr_html_()
    assert page.count("background:rgb") == 9


def test_rich_markup_in_a_token_is_text():
    assert "[bold]" in str(ts.trace(ONE_HOT, ONE_HOT, ONE_HOT, tokens=["[bold]", "[/]", "c"]))


def test_tokens_of_two_sequences_and_of_a_cache():
    q, k = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 3, 3)
    crossed = ts.trace(q, k, k, tokens=(["x", "y"], TOKENS))
    assert (crossed.query_tokens, crossed.key_tokens) == (("x", "y"), ("a", "b", "c"))
    assert ts.trace(q, k, k, tokens=TOKENS).query_tokens == ("b", "c")


def test_score_variance_before_and_after_scaling():
    before, after = ts.trace(
        torch.ones(1, 1, 1, 64), torch.tensor([1.75, 1.5])[:, None].expand(1, 1, 2, 64), torch.eye(2)[None, None]
    ).score_variance
    assert (before, after) == (64.0, 1.0)  # 112 and 96; 14 and 12


def _numbers(saved):
    return [_numbers(part) for part in saved] if isinstance(saved, list) else float(saved)


def test_json_is_converted_tensor_by_tensor():
    """Converting number by number would take seconds for a small trace."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            self.count += 1
            return function(*arguments, **(keywords or {}))

    q = torch.randn(1, 2, 16, 4)
    steps = ts.trace(q, q, q, ts.Attention(mask=ts.causal))
    with Counting() as counting:
        parsed = json.loads(steps.to_json())
    assert counting.count < 100 < steps.weights.numel()
    masked = next(step for step in parsed["steps"] if step["name"] == "masked")
    read = torch.tensor([[float(number) for number in row] for row in masked["numbers"][0][0]])
    assert torch.equal(read, steps.masked[0, 0])
    assert masked["numbers"][0][0][0][1] == "-inf"


@pytest.mark.parametrize("number", [np.int64(1), np.uint8(1), torch.tensor(1)], ids=["int64", "uint8", "tensor"])
def test_a_head_number_may_be_an_integer_of_any_library(number):
    q = torch.randn(1, 2, 4, 3)
    steps, seen = ts.trace(q, q, q), ts.survey(q, q)
    assert_close(steps.head(number).weights, steps.weights[:, 1:])
    assert_close(steps.row(number, head=number).context, steps.context[0, 1, 1])
    assert_close(seen.head(number).received, seen.received[:, 1:])
    assert_close(seen.cell(number, number), seen.cell(1, 1))


@pytest.mark.parametrize("number", ["1", 1.0, None, True, torch.tensor(1.0)], ids=str)
def test_a_head_number_of_another_type_is_an_error(unchecked, number):
    q = torch.randn(1, 2, 4, 3)
    steps, seen = ts.trace(q, q, q), ts.survey(q, q)
    for ask in (steps.head, seen.head, lambda head: steps.row(0, head=head)):
        with pytest.raises(TypeError, match=rf"head=.* is {type(number).__name__}; it takes a whole number"):
            ask(number)
