"""The page computes worked examples by itself: its engine, run by node, gives what Python gives."""

import base64
import importlib.util
import json
from pathlib import Path
from random import Random

import pytest
import torch

from telescope.explorer.api import RUN_ROUTES, Api
from telescope.explorer.library import Library
from telescope.tasks import EXAMPLES

TOOL = Path(__file__).parents[3] / "tools/page_engine.py"
spec = importlib.util.spec_from_file_location("page_engine", TOOL)
engine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engine)
MOST = 1e-6

pytestmark = pytest.mark.skipif(engine.unavailable() is not None, reason=engine.unavailable() or "")
api = Api(Library({}))

EDITED = (
    "example-journey~x.2.0_-0.57~x.2.1_-0.85~by_sum",
    "example-journey~W_q.0.0_0~W_q.0.1_0~W_q.1.0_0~W_q.1.1_0~W_q.2.0_0~W_q.2.1_0",
    "example-thinking-machines~k.0.0_-1000000~k.1.0_0.00001",
    "example-bank~x.2.0_2~x.2.1_0~x.2.2_0",
    "example-bank~x.0.0_3.25~by_sum",
    "example-telescope~W_q-of-head-1.5.1_4~x.0.0_0.5",
    "example-luong~v_a.0.1_-0.5~W_a.2.0_1e-7",
    "example-synthesizer~b1.0.1_-5",
)
EDITS = ("scale", "mask", "sum", "mute", "t:0.5", "hide:0", "scale,sum,t:2,hide:1", "t:0.125,mask", "bonk", "hide:99")


def test_random_definitions_equal_the_trace():
    """A sample of `python tools/page_engine.py --cases 10000`."""
    dice = Random(11)
    cases = [engine.draw(dice) for _ in range(200)]
    assert any(case.trace() is None for case in cases)  # some scores sum to zero, and both refuse
    where, apart = engine.compare(cases)
    assert apart <= MOST, where


def farthest(found, expected):
    """Return where two answers differ most, and by how much."""
    return max(engine.differences(found, expected), key=lambda one: one[1], default=("", 0.0))


def requests(run):
    """Yield every resource of every scene, head and query, and what-ifs."""
    facts = api.ask(f"/runs/{run}")
    yield "", {}
    yield from ((name, {}) for name in ("start", "sharpest", "answer", "output", "bonk"))
    yield "hidden", {"first": 0, "end": 1, "start": 0, "stop": 1}
    yield "trace", {"l": 0, "h": 99, "i": 0}
    yield "trace", {"l": "x", "h": 0, "i": 0}
    yield "trace", {"h": 0, "i": 0}
    yield from (("draw", {"seed": 1}), ("write", {"seed": 1}), ("readings", {"word": "bonk"}))
    for one in facts["attentions"]:
        layer = one["l"]
        yield from (("tokens", {"l": layer, "axis": axis}) for axis in "qk")
        yield "tokens", {"l": layer, "start": 1, "stop": 2}
        yield from (("heads", {"l": layer, "by": by}) for by in ("pieces", "words"))
        yield from (("geometry", {"l": layer}), ("geometry", {"l": layer, "start": 0, "stop": 2}))
        yield "alignment", {"l": layer, "h": "mean"}
        queries, keys = (api.ask(f"/runs/{run}/tokens", l=layer, axis=axis)["tokens"] for axis in "qk")
        between = ("", keys[0], f"{keys[0]},{keys[-1].upper()}", f"{keys[-1]},bonk")
        yield from (("readings", {"l": layer, "word": queries[-1], "between": few}) for few in between)
        for h in one["heads"]:
            place = {"l": layer, "h": h}
            yield from ((name, place) for name in ("alignment", "received", "encoding", "heads", "map"))
            for i in range(one["n_q"]):
                place = {"l": layer, "h": h, "i": i}
                names = ("trace", "positions", "top", "writes", "after", "flow", "product", "image", "perspectives")
                yield from ((name, place) for name in names)
                yield from (("whatif", place | {"edits": edits}) for edits in EDITS)
                for j in range(one["n_k"]):
                    yield from ((name, place | {"j": j}) for name in ("cell", "cells", "why"))


@pytest.mark.parametrize("runs", [[f"example-{name}" for name in EXAMPLES], EDITED], ids=["own", "edited"])
def test_every_answer_about_an_example_equals_pythons(runs):
    """Numbers to 1e-6, and all texts: captions, findings, formulas, refusals."""
    every = [(f"runs/{run}/{name}".rstrip("/"), query) for run in runs for name, query in requests(run)]
    answers = engine.ask_engine([{"ask": path, "query": query} for path, query in every])
    asked = set()
    for (path, query), found in zip(every, answers, strict=True):
        asked.add(path.split("/", 2)[2] if path.count("/") > 1 else "")
        said = api.answer("GET", f"/{path}", {name: str(value) for name, value in query.items()})
        expected = json.loads(said.body)
        if path.endswith("/map") and "known" in expected:
            expected["known"] = found["known"]  # which sums a server happens to know already
        for mine, own in zip(found.get("habits", ()), expected.get("habits", ()), strict=True):
            if mine["kind"] != own["kind"]:  # of two equal shares, rounding chooses the larger
                assert mine[mine["kind"]] == pytest.approx(mine[own["kind"]], rel=1e-6)
                mine["kind"] = own["kind"]
        apart = farthest(found, expected)
        assert apart[1] <= MOST, (path, query, apart)
    pictures = {"tiles/{z}/{x}/{y}", "tracks/{z}/{x}"}
    assert asked - {"bonk"} == set(RUN_ROUTES) - pictures - {"sources"}


def test_tables_without_a_run_equal_pythons():
    """Also the random scores: the page has torch's generator, with the same seed."""
    every = [("variance", {"d": d}) for d in (0, 1, 4, 63, 512, 513)]
    every += [("positions", {"kind": kind, "d": d}) for kind in ("sinusoidal", "rotary", "alibi") for d in (2, 64, 65)]
    every.append(("positions", {"kind": "bonk"}))
    answers = engine.ask_engine([{"ask": path, "query": query} for path, query in every])
    for (path, query), found in zip(every, answers, strict=True):
        said = api.answer("GET", f"/{path}", {name: str(value) for name, value in query.items()})
        apart = farthest(found, json.loads(said.body))
        assert apart[1] <= MOST, (path, query, apart)


def test_maps_of_examples_equal_pythons():
    """Half precision to its last bit but one; tracks to float32; what is masked or outside is the same."""
    every = []
    for name in EXAMPLES:
        for layer, one in enumerate(api.ask(f"/runs/example-{name}")["attentions"]):
            for h in one["heads"]:
                place = {"l": layer, "h": h}
                every += [(f"runs/example-{name}/tiles/0/0/0", place | {"fmt": fmt}) for fmt in ("f16", "u8")]
                kinds = ("entropy", "received")
                every += [(f"runs/example-{name}/tracks/0/0", place | {"kind": kind}) for kind in kinds]
    answers = engine.ask_engine([{"bytes": path, "query": query} for path, query in every])
    for (path, query), found in zip(every, answers, strict=True):
        said = api.answer("GET", f"/{path}", {name: str(value) for name, value in query.items()})
        kind = torch.float32 if "tracks" in path else torch.float16 if query["fmt"] == "f16" else torch.uint8
        mine, own = (
            torch.frombuffer(bytearray(body), dtype=kind).double() for body in (base64.b64decode(found), said.body)
        )
        assert torch.equal(mine.isnan(), own.isnan())
        assert torch.equal(mine.isinf(), own.isinf())
        near = {torch.float32: 1e-6, torch.float16: 2e-3, torch.uint8: 1.0}[kind]
        seen = own.isfinite()
        apart = ((mine - own)[seen].abs() / own[seen].abs().clamp(min=1)).max()
        assert apart <= near, (path, query)


def test_what_is_sent_equals_pythons():
    """Also the name of the run, which holds what was changed, and the refusals."""
    x = [[0.1, 2.0, 3.5e-7], [1e-4, 0.0, -1.25], [1e6, 0.00001, 7.0]]
    bodies = [
        {"example": "bank", "inputs": {"x": x}},
        {"example": "bank", "inputs": {"x": x}, "normalize": "by_sum"},
        {"example": "bank", "inputs": {"x": [[2, 0, 0], [0, 2, 0], [0.7, 0.7, 1]]}, "normalize": "softmax"},
        {"example": "bank", "inputs": {"x": [[0, 0, 0]] * 3}, "normalize": "by_sum"},
        {"example": "bonk"},
        {"example": "bank", "inputs": {"y": [[1]]}},
        {"example": "bank", "inputs": {"x": [[1, 2], [3, 4], [5, 6]]}},
        {"example": "bank", "inputs": {"x": [[1, 2, 1e7]] * 3}},
        {"example": "bank", "inputs": [1]},
        {"example": "bank", "normalize": "hard"},
        {"example": "bank", "more": 1},
        {"example": "bank~x.0.0_1.5"},
    ]
    for body, found in zip(bodies, engine.ask_engine([{"send": body} for body in bodies]), strict=True):
        expected = json.loads(api.answer("POST", "/runs", {}, json.dumps(body).encode()).body)
        apart = farthest(found, expected)
        if "error" in expected:  # Python writes 10000000.0 where JavaScript writes 10000000
            expected["error"]["message"] = expected["error"]["message"].replace("000.0 is", "000 is")
            assert found == expected
        else:
            assert apart[1] <= MOST, (body, apart)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("example-journey~x.9.0_1", "is no change of example-journey"),
        ("example-journey~x.0.0_1e9", "is no change of"),
        ("example-journey~x.0.0_9999999", "is not a number from -1e6 to 1e6"),
        ("example-journey~y.0.0_1", "is no change of"),
        ("example-journey~<script>", "is no change of"),
        ("example-journey~__proto__.0.0_1", "is no change of"),
        ("example-journey~", "is no change of"),
        ("example-journey" + "~x.0.0_1" * 1000, "at most 6,000 characters"),
    ],
)
def test_hostile_names_are_refused_by_both(run, said):
    """In one sentence, the same in Python and in the page."""
    (found,) = engine.ask_engine([{"ask": f"runs/{run.replace('%', '%25')}"}])
    answer = api.answer("GET", f"/runs/{run}", {})
    assert answer.status in (400, 404)
    expected = json.loads(answer.body)
    assert said in expected["error"]["message"]
    assert found["error"]["message"].replace("9999999 is", "9999999.0 is") == expected["error"]["message"]


def test_a_name_keeps_every_digit():
    """What is sent under a name is what the name opens, on any machine."""
    x = [[1 / 3, 1e-300, -0.0], [123456.789, 1e-6, 1e-7], [5e-324, 0.1 + 0.2, 1e6]]
    made = json.loads(
        api.answer("POST", "/runs", {}, json.dumps({"example": "bank", "inputs": {"x": x}}).encode()).body
    )
    opened = Api(Library({})).ask(f"/runs/{made['run']}")
    assert opened == made
    assert opened["example"]["inputs"][0]["numbers"] == x
