"""What the explorer says about images: the weights of the library, by patch and by head."""

import json
from itertools import chain

import pytest

import telescope as ts
from support.exploring import got, recorded, serving
from support.seeing import Captions, Vision, filled, vectors

TWO = ts.Segments(["<s>", "What"], ts.Grid(2, 3, name="image 1"), ["or"], ts.Grid(3, 2, name="image 2"), ["?"])


def seen(keep="queries-keys", tokens=TWO, mask=ts.causal, **options):
    model = filled(Vision(mask=mask))
    with ts.watch(model, keep=keep, tokens=tokens, **options) as recording:
        model(0.3 * vectors(len(tokens), batch=2))
    return recording


@pytest.mark.parametrize("keep", ["queries-keys", "steps"])
def test_weights_of_a_query_on_two_images(keep):
    recording = seen(keep)
    api, run = serving(recording)
    answer = got(api, f"/runs/{run}/image", l=1, i=15, b=1)
    weights = recording["blocks.1"].survey().rows([15])[1, :, 0].double()
    assert (answer["i"], answer["token"]) == (15, "?")
    assert [(grid["name"], grid["rows"], grid["columns"]) for grid in answer["grids"]] == [
        ("image 1", 2, 3),
        ("image 2", 3, 2),
    ]
    assert [grid["queries"] for grid in answer["grids"]] == [[*range(2, 8)], [*range(9, 15)]]
    assert [(one["i"], one["token"]) for one in answer["queries"]] == [(0, "<s>"), (1, "What"), (8, "or"), (15, "?")]
    for h, head in enumerate(answer["heads"]):
        for grid, first in zip(head["weights"], (2, 9), strict=True):
            assert grid == pytest.approx(weights[h, first : first + 6].tolist(), abs=1e-6)
        others = {"<s>": 0, "What": 1, "or": 8, "?": 15}
        for one in head["others"]:
            assert one["weight"] == pytest.approx(float(weights[h, others[one["token"]]]), abs=1e-6)
        assert [one["weight"] for one in head["others"]] == sorted(one["weight"] for one in head["others"])[::-1]
        assert (head["h"], head["known"], head["rest"]) == (h, 1, 0)


@pytest.mark.parametrize("keep", ["queries-keys", "summaries"])
def test_what_all_queries_give(keep):
    recording = seen(keep)
    api, run = serving(recording)
    answer = got(api, f"/runs/{run}/image", l=0, b=1)
    assert (answer["i"], answer["token"]) == (None, None)
    for h, head in enumerate(answer["heads"]):
        received = recording["blocks.0"].received[1, h].tolist()
        assert head["weights"][1] == pytest.approx(received[9:15], abs=1e-5)


def test_a_summary_tells_how_much_it_knows():
    recording = seen("summaries", top=3)
    api, run = serving(recording)
    whole, _ = serving(seen())
    answer = got(api, f"/runs/{run}/image", l=1, i=15)
    exact = got(whole, f"/runs/{run}/image", l=1, i=15)
    for head, truth in zip(answer["heads"], exact["heads"], strict=True):
        pairs = [*zip(chain(*head["weights"]), chain(*truth["weights"]), strict=True)]
        assert all(known in (0, pytest.approx(weight, abs=1e-6)) for known, weight in pairs)
        top = sorted([*chain(*truth["weights"]), *(one["weight"] for one in truth["others"])])[-3:]
        assert head["known"] == pytest.approx(sum(top), abs=1e-5)


def test_text_that_reads_an_image():
    model = filled(Captions())
    with ts.watch(model, keep="steps", tokens=(["What", "is", "it"], ts.Grid(2, 3))) as recording:
        model(vectors(6), vectors(3, seed=1))
    api, run = serving(recording)
    cross = [one["name"] for one in got(api, f"/runs/{run}")["attentions"]].index("cross")
    answer = got(api, f"/runs/{run}/image", l=cross, i=1)
    assert answer["token"] == "is"
    assert answer["grids"][0]["queries"] == [None] * 6
    assert [one["token"] for one in answer["queries"]] == ["What", "is", "it"]
    weights = recording["cross"].trace().weights[0, :, 1]
    assert answer["heads"][1]["weights"][0] == pytest.approx(weights[1].tolist(), abs=1e-6)


def test_some_queries_alone():
    api, run = serving(seen(queries=[0, 3, 15], tokens=TWO))
    answer = got(api, f"/runs/{run}/image", l=0, i=1)
    assert answer["token"] == "image 1 (0, 1)"
    assert answer["grids"][0]["queries"] == [None, 1, None, None, None, None]
    assert [(one["i"], one["token"]) for one in answer["queries"]] == [(0, "<s>"), (2, "?")]


def test_names_are_those_of_the_tokens_on_every_screen():
    api, run = serving(seen())
    assert got(api, f"/runs/{run}/tokens", l=0, axis="k")["tokens"] == [*TWO.names]
    assert got(api, f"/runs/{run}/trace", l=0, h=0, i=3)["token"] == "image 1 (0, 1)"
    habits = got(api, f"/runs/{run}/heads", l=0)
    heads = seen().heads().where(layer=0).sort("number", rising=True)
    assert [one["patches"] for one in habits["habits"]] == pytest.approx([head.patches for head in heads], rel=1e-5)
    assert habits["habit_keys"]["neighbours"] == "the query's own patch of an image and the eight around it"
    assert [*habits["distances"]] == ["patches", "seconds"]


def test_a_text_has_no_image():
    api, run = serving(recorded(6))
    answer = api.answer("GET", f"/runs/{run}/image", {"l": "0", "i": "0"})
    assert answer.status == 409
    assert json.loads(answer.body)["error"]["message"] == (
        "no key is said to be a patch of an image: ts.watch(model, tokens=ts.Grid(14, 14)) says it"
    )
    assert got(api, f"/runs/{run}")["attentions"][0]["has"]["image"] is False


def test_an_exported_file_says_that_it_lacks_images():
    api, run = serving(seen())
    file = json.loads(api.answer("GET", f"/runs/{run}/export", {"format": "json"}).body)
    attentions = file["answers"][f"/runs/{run}"]["attentions"]
    assert not any(one["has"]["image"] for one in attentions)
    assert attentions[0]["why"]["image"] == (
        "a file does not hold what every query sees of an image; telescope serve shows it"
    )
