"""The most common mistakes of a newcomer are answered in one sentence with the call that was probably intended."""

import numpy as np
import pytest
import torch

import telescope as ts

pytestmark = pytest.mark.usefixtures("as_users_run_it")


Q, K = torch.ones(2, 4, 6, 8), torch.ones(2, 2, 5, 8)
SEEN = torch.ones(6, 5, dtype=torch.bool)
SWAPPED = Q.transpose(1, 2), K.transpose(1, 2)

MISTAKES = {
    "a mask for a definition": (
        lambda: ts.attend(Q, K, K, ts.causal),
        TypeError,
        "attention is a mask, Causal",
        "ts.Attention(mask=ts.causal)",
    ),
    "a window for a definition": (
        lambda: ts.trace(Q, K, K, ts.window(3)),
        TypeError,
        "ts.Attention(mask=ts.window(3))",
    ),
    "masks for a definition": (
        lambda: ts.plan(Q, K, K, ts.causal & ts.window(3)),
        TypeError,
        "attention is a mask, Both",
        "ts.Attention(mask=...)",
    ),
    "a mask for the definition of a survey": (
        lambda: ts.survey(Q, K, ts.causal),
        TypeError,
        "ts.Attention(mask=ts.causal)",
    ),
    "a mask in the first place of a definition": (
        lambda: ts.Attention(ts.causal),
        TypeError,
        "score=causal is a mask",
        "ts.Attention(mask=...)",
    ),
    "`and` between masks": (
        lambda: ts.causal and ts.window(4),
        TypeError,
        "a mask, Causal, has no truth value",
        "a & b, a | b and ~a do",
    ),
    "`or` between masks": (lambda: (ts.causal & ts.window(4)) or ts.everyone, TypeError, "a mask, Both", "a | b"),
    "`not` before a mask": (lambda: not ts.everyone, TypeError, "a mask, Everyone", "~a"),
    "a bias for a definition": (lambda: ts.attend(Q, K, K, ts.alibi(4)), TypeError, "ts.Attention(bias=...)"),
    "a score for a definition": (lambda: ts.attend(Q, K, K, ts.dot), TypeError, "ts.Attention(score=...)"),
    "a bool tensor for a definition": (
        lambda: ts.attend(Q, K, K, SEEN),
        TypeError,
        "ts.from_tensor(seen)",
        "True = may attend",
        "ts.from_forbidden(hidden)",
        "True = forbidden",
    ),
    "a float tensor for a definition": (
        lambda: ts.attend(Q, K, K, torch.zeros(6, 5)),
        TypeError,
        "ts.Attention(bias=ts.from_additive(tensor))",
    ),
    "values for the definition of a survey": (
        lambda: ts.survey(Q, K, K),
        TypeError,
        "attention is a tensor of shape (2, 2, 5, 8)",
        "survey takes queries, keys and a ts.Attention",
        "values=values",
    ),
    "a bool tensor for a mask": (
        lambda: ts.Attention(mask=SEEN),
        TypeError,
        "mask is a bool tensor of shape (6, 5)",
        "ts.from_tensor(seen)",
        "True = may attend",
        "ts.from_forbidden(hidden)",
        "True = forbidden",
    ),
    "a float tensor for a mask": (
        lambda: ts.Attention(mask=torch.zeros(6, 5)),
        TypeError,
        "mask is a torch.float32 tensor of shape (6, 5)",
        "bias=ts.from_additive(tensor)",
    ),
    "a numpy array for a mask": (
        lambda: ts.Attention(mask=SEEN.numpy()),
        TypeError,
        "mask is a numpy array",
        "ts.from_tensor(torch.from_numpy(seen))",
    ),
    "three axes": (
        lambda: ts.attend(Q[0], K, K),
        ValueError,
        "queries has shape (4, 6, 8)",
        "(batch, heads, position, feature)",
        "queries.unsqueeze(1) for one head",
        "queries.unsqueeze(0) for a batch of one",
    ),
    "positions before heads": (
        lambda: ts.attend(*SWAPPED, SWAPPED[1]),
        ValueError,
        "6 query heads cannot share 5 key heads",
        "(batch, heads, position, feature)",
        ".transpose(1, 2)",
    ),
    "values with positions before heads": (
        lambda: ts.attend(Q, K, SWAPPED[1]),
        ValueError,
        "values (2, 5, 2, 8)",
        "keys (2, 2, 5, 8)",
        "values.transpose(1, 2)",
    ),
    "a numpy array": (
        lambda: ts.attend(Q.numpy(), K, K),
        TypeError,
        "queries is a ndarray",
        "torch.from_numpy(queries)",
    ),
    "a numpy array of values": (lambda: ts.attend(Q, K, np.ones((2, 2, 5, 8))), TypeError, "torch.from_numpy(values)"),
    "a list": (lambda: ts.attend(Q, K.tolist(), K), TypeError, "keys is a list", "torch.tensor(keys)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_names_the_call_that_was_intended(name):
    call, kind, *parts = MISTAKES[name]
    with pytest.raises(kind) as problem:
        call()
    message = str(problem.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert not message.endswith(".")


def test_the_calls_that_errors_suggest_run():
    """Each suggested call is run."""
    expected = ts.attend(Q, K, K)
    torch.testing.assert_close(ts.attend(*(x.transpose(1, 2) for x in (*SWAPPED, SWAPPED[1]))), expected)
    torch.testing.assert_close(ts.attend(*map(torch.from_numpy, (Q.numpy(), K.numpy(), K.numpy()))), expected)
    torch.testing.assert_close(ts.attend(Q, K, K, ts.Attention(mask=ts.from_tensor(SEEN))), expected)
    torch.testing.assert_close(ts.attend(Q, K, K, ts.Attention(mask=ts.from_forbidden(~SEEN))), expected)
    assert ts.attend(*(x[0].unsqueeze(0) for x in (Q, K, K))).shape == (1, 4, 6, 8)
    assert ts.attend(*(x[:, 0].unsqueeze(1) for x in (Q, K, K))).shape == (2, 1, 6, 8)
    assert ts.survey(Q, K, values=K).context.shape == Q.shape


def test_heads_that_do_not_divide_get_no_hint_that_does_not_fit():
    with pytest.raises(ValueError, match="cannot share 3 key heads") as problem:
        ts.attend(Q, torch.ones(2, 3, 5, 8), torch.ones(2, 3, 5, 8))
    assert "transpose" not in str(problem.value)
