"""A caller who guesses a name is told ours, as one who gives a wrong value is."""

import inspect
import subprocess
import sys

import pytest
import torch

import telescope as ts
from telescope.words import suggests

X = torch.randn(1, 1, 4, 8)


@pytest.fixture(scope="module")
def seen():
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode("To be, or not to be").ids])
    with torch.no_grad(), ts.watch(model) as recording:
        model(ids)
    return model, ids, recording


@pytest.mark.parametrize(
    ("guess", "told"),
    [
        (lambda: ts.attend(X, X, X, mask=ts.causal), "ts.attend(q, k, v, ts.Attention(mask=ts.causal))"),
        (lambda: ts.attend(X, X, X, is_causal=True), "ts.attend(q, k, v, ts.Attention(mask=ts.causal))"),
        (lambda: ts.attend(X, X, X, dropot=0.1), 'did you mean "dropout"?'),
        (lambda: ts.attend(X, X, X, ts.Attention(), ts.causal), "ts.Attention(mask=..., scale=...)"),
        (lambda: ts.Attention(causal=True), "Attention takes no causal=; write mask=ts.causal"),
        (lambda: ts.Attention(softmax_scale=1.0), "write scale="),
        (lambda: ts.Attention(normalise=ts.by_sum), 'did you mean "normalize"?'),
        (lambda: ts.mute(head=2), "mute takes no head=; write heads=, a number or a list"),
        (lambda: ts.hide(0, layer=1), "hide takes no layer=; write layers="),
        (lambda: ts.boost(0, factor=2), "write by="),
    ],
)
def test_an_unknown_argument_names_ours(guess, told):
    with pytest.raises(TypeError) as problem:
        guess()
    assert told in str(problem.value)


def test_guesses_about_a_recording(seen):
    model, ids, recording = seen
    guesses = {
        "with ts.watch(model) as recording": lambda: ts.watch(model, "text"),
        "write rising=False": lambda: recording.heads().sort("previous", descending=True),
        ".where(induction=0.4)": lambda: recording.heads()["induction"],
        'measure="loss"': lambda: ts.effect(model, ids, [ts.mute()], loss="loss"),
    }
    for told, guess in guesses.items():
        with pytest.raises(TypeError) as problem:
            guess()
        assert told in str(problem.value)
    with pytest.raises(AttributeError, match=r"recording\.decode"):
        recording[recording.names[0]].tokens  # noqa: B018  the guess is the test
    with pytest.raises(ValueError, match="positions do not count from the end"):
        recording.sources(-1)


def test_one_edit_is_a_list_of_one(seen):
    model, ids, _ = seen
    edit = ts.mute(0, heads=[1])
    assert repr(ts.effect(model, ids, edit)) == repr(ts.effect(model, ids, [edit]))


def test_a_model_of_a_hub_is_no_hidden_folder(tmp_path, monkeypatch):
    (tmp_path / ".gpt").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ts.LoadError, match=r'no model "gpt2"\. Shipped: .* from_pretrained'):
        ts.load("gpt2")


def test_the_signature_stays():
    for one in (ts.attend, ts.watch, ts.effect, ts.Attention, ts.boost):
        names = list(inspect.signature(one).parameters)
        assert names
        assert "args" not in names
    assert ts.attend.__name__ == "attend"


def test_a_function_that_takes_anything_has_nothing_to_suggest():
    with pytest.raises(TypeError, match="takes any argument"):
        suggests("anything")(lambda **given: given)


COMPILED = """
import torch, telescope as ts
x = torch.randn(1, 1, 4, 8)
def attended(x):
    return ts.attend(x, x, x, ts.Attention(scale=0.5, mask=ts.causal))
torch.testing.assert_close(torch.compile(attended, fullgraph=True, backend="eager")(x), attended(x))
"""


def test_a_definition_is_made_and_used_inside_of_compiled_code():
    """In a process of its own: the tests' check of types cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
