"""A wrong command gets one sentence on standard error, exit code 2, and nothing else."""

import os
import re
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
        # When the page starts, and not when somebody has typed a sentence.
        (
            ["serve", "--model", "no-such"],
            'there is no model "no-such". Shipped: induction, shakespeare, summarizer, translator-en',
        ),
        (["serve", "--model", "translator-en-fr"], 'did you mean "translator-en-de"?'),
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


def _leaves(group, path=()):
    for name, command in group.commands.items():
        yield from _leaves(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]


def test_every_help_has_examples_that_the_command_understands(command):
    """Each example names its command, and options that the command has."""
    import typer

    from telescope.cli import app

    for path in _leaves(typer.main.get_command(app)):
        code, printed, _ = command(*path, "--help")
        assert code == 0
        examples = printed.partition("Examples:")[2].strip().splitlines()
        assert examples, f"telescope {' '.join(path)} --help has no examples"
        for example in examples:
            assert example.strip().startswith(f"telescope {' '.join(path)}")
            assert set(re.findall(r" (--[a-z-]+)", example)) <= set(
                re.findall(r"(--[a-z-]+)", printed.partition("Examples:")[0])
            )


def test_shells_complete_commands_and_options(monkeypatch, tmp_path):
    """As bash asks for it: the words so far in the environment, a line for each completion."""
    monkeypatch.setenv("_TELESCOPE_COMPLETE", "complete_bash")
    for words, expected in (("telescope tr", {"train", "translate"}), ("telescope train --ch", {"--check"})):
        environment = os.environ | {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        code = "import sys; sys.argv = ['telescope']; from telescope.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        assert set(done.stdout.split()) == expected, done.stderr
