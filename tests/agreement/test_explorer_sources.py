"""The explorer's answers about sources are those of the recording."""

import json

import pytest
import torch

import telescope as ts
from exploring import api, got, read, recorded, serving


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=26, d_model=16, blocks=2, heads=2)).eval()
    with ts.watch(model, keep="queries-keys", also="norms") as recording, torch.no_grad():
        model(torch.arange(24)[None])
    recording.decode = lambda ids: "".join(f" {chr(97 + i)}" for i in ids)
    return recording, *serving(recording)


@pytest.mark.parametrize("how", ["weights", "carried", "rollout"])
def test_numbers_of_the_recording(run, how):
    recording, server, name = run
    answer = got(server, f"/runs/{name}/sources", first=18, end=22, how=how, cuts="0,5,12", start=3, stop=9)
    found = recording.sources((18, 22), how, segments=[0] * 5 + [1] * 7 + [2] * 6)
    assert {row["name"]: row["share"] for row in answer["rows"]} == found.shares
    assert answer["scores"] == found.scores[3:9].tolist()
    assert answer["tokens"] == [" d", " e", " f", " g", " h", " i"]
    assert answer["answer"] == [" s", " t", " u", " v"]
    assert sum(answer["overview"]) == pytest.approx(float(found.scores.sum()))
    assert answer["n"] == 18


def test_a_long_text_has_an_overview():
    server, name = serving(recorded(3_000))
    answer = got(server, f"/runs/{name}/sources", first=2_990, end=3_000, start=100, stop=110)
    assert len(answer["overview"]) == 512
    assert len(answer["rows"]) == 200
    assert answer["more"] == 2_990 + 1 - 200
    assert len(answer["tokens"]) == 10


def test_a_translation_reads_its_source():
    server = api()
    name = read(server, "Good morning.", model="learnt")["run"]
    for how in ("weights", "carried", "rollout"):
        answer = got(server, f"/runs/{name}/sources", first=1, end=3, how=how)
        assert sum(row["share"] for row in answer["rows"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ({"first": "18", "end": "99"}, 400, "is not in the text"),
        ({"first": "18"}, 400, "end= is missing"),
        ({"first": "18", "end": "22", "how": "gradient"}, 409, "has no gradients of"),
        ({"first": "18", "end": "22", "how": "hidden"}, 409, "a recording holds none: type the text"),
        ({"first": "18", "end": "22", "cuts": "0,x"}, 400, "cuts= takes the positions"),
        ({"first": "18", "end": "22", "b": "4"}, 400, "there is no sequence 4"),
    ],
)
def test_bad_requests(run, parameters, status, message):
    _, server, name = run
    answer = server.answer("GET", f"/runs/{name}/sources", parameters)
    assert answer.status == status
    assert message in json.loads(answer.body)["error"]["message"]
