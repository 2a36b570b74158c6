"""An exported file: the same answers as the server's, in bounded time and size; what it lacks is said."""

import json
import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path
from time import process_time

import pytest
import torch

from support import writers
from support.exploring import SENTENCES, api, got, read, recorded, serving
from telescope.explorer.api import Api
from telescope.explorer.library import Library

INLINE = Path(__file__).parents[3] / "web/transport/inline.js"
PACKED = ("trace", "heads", "alignment", "perspectives", "geometry", "cells")
ASK = """
import { readFileSync } from "node:fs";
const { fileTransport } = await import(process.argv[1]);
const { file, requests } = JSON.parse(readFileSync(0, "utf-8"));
const { ask } = fileTransport(file.answers);
const answered = ([path, query]) => ask(path, query).catch(({ message, code }) => ({ failed: message, code }));
console.log(JSON.stringify(await Promise.all(requests.map(answered))));
"""


def asked_of_file(file, requests):
    """Return what the page of an exported file answers to each (path, query), by its own script."""
    if shutil.which("node") is None:
        pytest.skip("the script of an exported file needs node")
    command = ["node", "--input-type=module", "--eval", ASK, INLINE.as_uri()]
    given = json.dumps({"file": file, "requests": requests})
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def requests_of(explorer, run):
    """Return requests about every attention and head of a run, and its first and last query, as the page sends them."""
    found = []
    for one in got(explorer, f"/runs/{run}")["attentions"]:
        place = {"l": one["l"]}
        for what, needs in (("heads", "map"), ("geometry", "geometry")):
            found += [(what, place), (what, place | {"by": "words"})] if one["has"][needs] else []
        found += [("alignment", place | {"h": h}) for h in ("mean", *one["heads"])]
        for i in (0, one["n_q"] - 1):
            found += [("perspectives", place | {"i": i})]
            found += [("trace", place | {"h": h, "i": i}) for h in one["heads"]]
        found += [("cells", place | {"h": h, "i": 0, "j": 1}) for h in one["heads"]]
    return [(f"runs/{run}/{what}", query) for what, query in found]


def assert_same(mine, theirs, path):
    """Compare an answer of a file with the server's, exactly, but for floats that float32 rounds at a tie, and those of
    worked examples, which the page computes by itself."""
    if isinstance(theirs, float) and "/example-" in str(path):
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-6), path
    elif isinstance(theirs, dict):
        assert set(mine) == set(theirs) - ({"b"} if "b" not in mine else set()), path
        for name in mine:
            assert_same(mine[name], theirs[name], (*path, name))
    elif isinstance(theirs, list):
        assert len(mine) == len(theirs), path
        for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(one, other, (*path, at))
    elif isinstance(theirs, float) and not {"steps", "context", "key", "value", "query"} & set(map(str, path)):
        assert mine == pytest.approx(theirs, rel=2e-7, abs=0), path
    else:
        assert mine == theirs, path


def by_sum(explorer):
    body = b'{"example": "journey", "normalize": "by_sum"}'
    return json.loads(explorer.answer("POST", "/runs", {}, body).body)["run"]


RUNS = {
    "a translation": lambda explorer: read(explorer, SENTENCES[1])["run"],
    "a GPT": lambda explorer: read(explorer, "one two", model="gpt")["run"],
    "an example": lambda explorer: "example-journey",
    "an example by sum": by_sum,
    "scores that are no dot products": lambda explorer: "example-luong",
}


@pytest.mark.parametrize("case", RUNS)
def test_the_page_of_a_file_has_the_answers_of_the_server(case):
    explorer = api()
    run = RUNS[case](explorer)
    file = got(explorer, f"/runs/{run}/export", format="json")
    requests = requests_of(explorer, run)
    for (path, query), mine in zip(requests, asked_of_file(file, requests), strict=True):
        theirs = explorer.answer("GET", f"/{path}", {name: str(value) for name, value in query.items()})
        if theirs.status == 200:
            assert_same(mine, json.loads(theirs.body), (path, str(query)))
        else:
            assert "failed" in mine


def test_a_recording_without_words_has_its_heads():
    explorer, run = serving(recorded(6, batch=2, keep="steps"))
    file = got(explorer, f"/runs/{run}/export", format="json")
    requests = [(f"runs/{run}/heads", {"l": 0, "by": "words"})]
    (mine,) = asked_of_file(file, requests)
    assert_same(mine, got(explorer, f"/runs/{run}/heads", l=0, by="words"), ())


def test_an_exported_file_has_the_same_answers():
    explorer, run = api(), read(api(), SENTENCES[1])["run"]
    file = got(explorer, f"/runs/{run}/export", l=1, h=2, i=1, format="json")
    assert file["start"] == f"/s/{run}/walk?l=1&h=2&i=1"
    compared = 0
    for path, answer in file["answers"].items():
        where, _, query = path.partition("?")
        what = where.rpartition("/")[2]
        if where in ("/models", "/runs", f"/runs/{run}") or what in ("shared", "stream", "words", *PACKED):
            continue
        parameters = dict(part.split("=") for part in query.split("&")) if query else {}
        again = explorer.answer("GET", where, parameters)
        compared += 1
        if "base64" in answer:
            assert answer["exact"] == 1
        else:
            # A file holds lengths of what follows the heads, and not every number.
            without = {"mixed": None} if what == "after" else {}
            assert json.loads(again.body) | without == answer
    assert compared > 20
    keys = torch.frombuffer(
        bytearray(b64decode(file["answers"][f"/runs/{run}/shared?h=2&i=0&l=1"]["key"]["base64"])), dtype=torch.float32
    )
    whole = got(explorer, f"/runs/{run}/trace", l=1, h=2, i=0)
    assert keys.double().tolist() == [x for row in whole["key"] for x in row]
    described = file["answers"][f"/runs/{run}"]
    assert described["held"] == {"l": 1, "h": 2}
    for one in described["attentions"]:  # what the file lacks is not offered
        for h in one["heads"]:
            has = f"/runs/{run}/trace?h={h}&i=0&l={one['l']}" in file["answers"]
            assert one["has"]["trace"] == has
        assert one["has"]["tiles"] == (one["l"] == 1)


@pytest.fixture(scope="module")
def long():
    """Return an API with a run of 200 tokens: 4 attentions with 4 heads of 64, as the shipped GPT has."""
    model = writers.gpt(max_positions=256, blocks=4, heads=4, d_model=256)
    explorer = Api(Library({"gpt": model}))
    text = "one two three " * 80
    ids = model.tokenizer.encode(text).ids[:200]
    run = read(explorer, model.tokenizer.decode(ids))
    assert 190 <= run["attentions"][0]["n_q"] <= 200
    return explorer, run


SHOWN = [("heads", {"by": "words"}), ("heads", {}), ("perspectives", {"i": 7}), ("alignment", {"h": "mean"}),
         ("geometry", {}), ("trace", {"h": 2, "i": 7}), ("after", {"i": 7})]  # fmt: skip


def test_an_export_of_200_tokens_is_bounded_and_says_what_it_lacks(long):
    explorer, run = long
    began = process_time()
    answer = explorer.answer("GET", f"/runs/{run['run']}/export", {"l": "1", "h": "2"})
    took = process_time() - began
    assert answer.status == 200
    assert len(answer.body) < 4_000_000
    assert took < 6.0  # of a core, on a busy machine; 17 s when every answer was computed apart
    (data,) = re.findall(rb'id="telescope-answers">(.*?)</script>', answer.body, re.S)
    answers = json.loads(data)["answers"]
    described = answers[f"/runs/{run['run']}"]
    n = described["attentions"][1]["n_q"]
    assert all(f"/runs/{run['run']}/trace?h=2&i={i}&l=1" in answers for i in range(n))
    assert described["notice"].startswith("This file leaves out ")
    for said in ("the steps of 3 other heads of blocks.1.self", "the steps of 3 other attentions", "telescope serve"):
        assert said in described["notice"]
    assert f"/runs/{run['run']}/trace?h=1&i=0&l=1" not in answers
    shown = [(f"runs/{run['run']}/{what}", {"l": 1, **query}) for what, query in SHOWN]
    assert not [one for one in asked_of_file({"answers": answers}, shown) if "failed" in one]
    assert [one["has"]["trace"] for one in described["attentions"]] == [False, True, False, False]


def test_a_short_export_lacks_nothing_and_says_nothing():
    explorer = api()
    file = got(explorer, "/runs/example-journey/export", format="json")
    assert file["answers"]["/runs/example-journey"]["notice"] is None


def test_an_export_ends_when_its_reader_leaves(long):
    explorer, run = long
    asked = 0

    def has_left():
        nonlocal asked
        asked += 1
        return asked > 20

    answer = explorer.answer("GET", f"/runs/{run['run']}/export", {}, b"", has_left)
    assert answer.status == 499
    assert asked == 21  # not one more answer is computed
