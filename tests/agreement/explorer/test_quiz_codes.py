"""The code that a student hands in: the page's script and Python write and read the same, and refuse the same."""

import json
import random
import re
import shutil
import subprocess

import pytest

from support.repository import HOME
from telescope.lessons import quiz, read_code

CODE = HOME / "web/lessons/code.js"
NAMES = [
    "",
    "Ada",
    "  Ada   Lovelace ",
    "Zoë:",
    "名前 😀",
    "a\ud800b",
    "T1-A-B C",
    "x\x85y\x1cz",
    "ﬁ é",
    "n" * 200,
    ": :",
]
SCRIPT = """
import { makeLine, readLine } from %s;
import { readFileSync } from "node:fs";
const { results, lines, count } = JSON.parse(readFileSync(0, "utf8"));
const read = (line) => {
  try { return readLine(line, count); } catch (problem) { return { refused: problem.message }; }
};
const made = results.map(([results, name]) => makeLine(results, name));
console.log(JSON.stringify({ made, read: [...made, ...lines].map(read) }));
"""


def in_page(results, lines=()):
    """Return the lines that the page writes for results with names, and what it reads from these and other lines."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, "--input-type=module", "--eval", SCRIPT % json.dumps(CODE.as_uri())],
        input=json.dumps({"results": results, "lines": list(lines), "count": len(quiz.TRIES)}),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return found["made"], found["read"]


def in_python(line):
    try:
        result = read_code(line)
    except ValueError as problem:
        return {"refused": str(problem)}
    tries = [{"tried": one.tried, "isRight": one.first_guess, "solved": one.solved} for one in result.tries.values()]
    return {"name": result.name, "results": tries}


def drawn(dice):
    """Return random results; what was not tried is neither right nor solved."""
    results = []
    for _ in quiz.TRIES:
        tried = dice.random() < 0.7
        right, solved = (tried and dice.random() < 0.5 for _ in range(2))
        results.append({"tried": tried, "isRight": right, "solved": solved})
    return results


def test_python_reads_what_the_page_writes():
    dice = random.Random(0)
    given = [(drawn(dice), name) for name in NAMES for _ in range(20)]
    made, read = in_page(given)
    for (results, name), line, by_page in zip(given, made, read, strict=True):
        found = in_python(line)
        assert found["results"] == results, (name, line)
        assert found == by_page
    assert {in_python(line)["name"] for line in made} >= {"", "Ada", "Ada Lovelace", "Zoë", "名前 😀", "a\ufffdb"}


def test_every_changed_sign_and_every_other_name_is_noticed():
    """One sign of the code, or of the name, is another one: both refuse, with one sentence, the same."""
    dice = random.Random(1)
    line = in_page([(drawn(dice), "Ada Lovelace")])[0][0]
    start = line.index("T1-") + 3
    changed = [
        line[:at] + other + line[at + 1 :]
        for at in range(start, len(line))
        if line[at] != "-"
        for other in quiz.DIGITS
        if other != line[at]
    ]
    changed += [f"{name}: {line[start - 3 :]}" for name in ("ada lovelace", "Ada Lovelac", "Grace", "Ada Lovelace x")]
    changed.append(line[start - 3 :])
    _, read = in_page([], changed)
    for one, by_page in zip(changed, read, strict=True):
        assert by_page == in_python(one)
        assert "was changed or mistyped" in by_page["refused"], one


def test_signs_that_are_misread_and_small_letters_are_forgiven():
    dice = random.Random(2)
    line = in_page([(drawn(dice), "Ada")])[0][0]
    name, code = line.split(": ")
    version, *parts = code.lower().split("-")
    worn = f"{name}:  {version} - {' - '.join(part.replace('0', 'o').replace('1', 'l') for part in parts)} "
    assert in_python(worn) == in_python(line)
    assert in_page([], [worn])[1] == [in_python(line)]


def forged(payload, name):
    """Return a line whose checksum fits, as nobody but a program writes it."""
    return f"{name}: {quiz.VERSION}-{payload}-{quiz._check_of(payload, name)}"


HOSTILE = {
    "": "there is no code",
    "Ada": "there is no code",
    "Ada: T1": "there is no code",
    "T2-00000000-00000000": "another version",
    "T1-0-0": "not whole: it has 1 and 1 signs, not 8 and 8",
    "T1-" + "0" * 300 + "-0": "not whole",
    "x" * 401: "more than 400 signs",
    " " * 100_000: "more than 400 signs",
    "<script>alert(1)</script>: T1-00000000-00000000": "changed or mistyped",
    forged("ZZZZZZZZ", "Ada"): "what no page writes",
    forged("UUUUUUUU", "Ada"): "what no page writes",
    forged("00000001", "Ada"): "what no page writes",  # a try beyond the last one
}


@pytest.mark.parametrize(("line", "said"), HOSTILE.items(), ids=lambda one: one[:30])
def test_what_is_no_code_is_one_sentence(line, said):
    with pytest.raises(ValueError, match=re.escape(said)) as problem:
        read_code(line)
    assert "\n" not in str(problem.value)
    assert in_page([], [line])[1] == [{"refused": str(problem.value)}]


def test_a_code_is_counted():
    results = [{"tried": True, "isRight": at < 4, "solved": at < 6} for at in range(len(quiz.TRIES))]
    result = read_code(in_page([(results, "Ada")])[0][0])
    assert (result.name, result.solved, result.first_guesses) == ("Ada", 6, 4)
    assert list(result.tries) == list(quiz.TRIES)
