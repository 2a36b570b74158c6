"""A wrong answer in a notebook is one sentence; any other error keeps its traceback."""

import pytest

interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")

CELL = """
from telescope.lessons import check

def softmax(scores):
    {body}

check.softmax(softmax)
"""


@pytest.fixture
def shell():
    """Return a real shell, as that of a notebook, without colours."""
    shell = interactive.InteractiveShell()
    shell.colors = "nocolor"
    yield shell
    shell.history_manager.end_session()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise NotImplementedError", "WrongAnswer: softmax is not written yet"),
        ("return scores", "WrongAnswer: softmax"),
        ("return None", "WrongAnswer: softmax returned nothing"),
        ("return 1 / 0", "WrongAnswer: softmax(a tensor"),
    ],
)
def test_a_wrong_answer_is_one_sentence(shell, capsys, body, said):
    result = shell.run_cell(CELL.format(body=body))
    shown = "".join(capsys.readouterr()).strip()
    assert type(result.error_in_exec).__name__ == "WrongAnswer"
    assert said in shown
    # The sentence alone: nothing of the check, and no chain of errors.
    assert "Traceback" not in shown
    assert "material.py" not in shown
    assert "----" not in shown
    assert shown == f"WrongAnswer: {result.error_in_exec}"


def test_other_errors_keep_their_traceback(shell, capsys):
    shell.run_cell("def broken():\n    return undefined\n\nbroken()")
    shown = "".join(capsys.readouterr())
    assert "NameError" in shown
    assert "Traceback" in shown
    assert "broken()" in shown
