"""A wrong command gets one sentence on standard error, exit code 2, and nothing else."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explian"], "'explain'"),
        (["explain", "--exmple", "bank"], "--example"),
        (["explain", "--example", "jorney"], 'there is no example "jorney"; did you mean "journey"?'),
        (["explain", "--example", "xyz"], "there are journey, thinking-machines, lights, bank, telescope"),
        (["explain", "--query", "jurney"], 'no query is "jurney"; did you mean "journey"?'),
        (["explain", "--query", "xyz"], "there are Your, journey, starts, with, one, step"),
        (["explain", "--example"], "--example"),
        (["explain", "The cat sat", "--example", "bank"], "--example and --by-sum are without one"),
        (["explain", "The cat sat", "--model", "no-such"], 'there is no model "no-such". Shipped: '),
    ],
)
def test_one_sentence(command, arguments, message):
    code, printed, complaint = command(*arguments)
    assert (code, printed) == (2, "")
    assert complaint.startswith("telescope: ")
    assert message in complaint
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize(
    ("rest", "encoding", "begins"),
    [
        ("| head -n 1", "utf-8", "Your journey starts with one step\n"),  # the reader closes the pipe early
        ("", "ascii", "Your journey starts with one step\nthe numbers are"),  # a terminal that cannot write √
    ],
)
def test_commands_that_print_no_error(rest, encoding, begins):
    line = f"{sys.executable} -m telescope.cli explain {rest}"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(line, shell=True, capture_output=True, encoding=encoding, env=environment, check=False)
    assert done.stdout.startswith(begins)
    assert (done.returncode, done.stderr) == (0, "")
