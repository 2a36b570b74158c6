"""The explorer's API about atlases: the numbers of the atlases, as JSON."""

import json

import pytest
import torch

import mapping
import telescope as ts
from mapping import Letters, tiny_gpt
from telescope.explorer.api import Api
from telescope.explorer.library import Library

pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    folder, library = tmp_path_factory.mktemp("atlases"), Library({})
    for name, heads in (("one", 2), ("other", 2), ("wide", 4)):
        model = tiny_gpt(seed=len(name), heads=heads)
        ts.atlas(model, mapping.corpus(6), tokenizer=Letters(), out=folder / name)
        assert library.open_atlas(folder / name) == name
    return Api(library), ts.open(folder / "one")


def ask(api, path, status=200, **parameters):
    answer = api.answer("GET", path, {name: str(value) for name, value in parameters.items()})
    assert answer.status == status
    return json.loads(answer.body)


def test_answers_are_the_numbers_of_the_atlas(api):
    api, atlas = api
    assert [entry["atlas"] for entry in ask(api, "/atlases")["atlases"]] == ["one", "other", "wide"]
    one = ask(api, "/atlases/one")
    assert one["texts"] == 6
    rows = [*atlas.rows()]
    for entry, row in zip(one["heads"], rows, strict=True):
        assert entry == {name: row[name] for name in entry}
    head = ask(api, "/atlases/one/head", l=1, h=1)
    assert (head["layer"], head["head"]) == ("blocks.1.self", 1)
    assert head["profiles"]["distance"]["shares"] == [*atlas.profile("blocks.1.self", 1).shares]
    assert head["evidence"]["first"][0]["excerpt"] == atlas.evidence("blocks.1.self", 1, "first")[0].excerpt
    for longest, cells in head["maps"].items():
        assert torch.equal(torch.tensor(cells, dtype=torch.float64), atlas.map("blocks.1.self", 1, int(longest)))
    changes = ask(api, "/atlases/one/compare/other")["heads"]
    assert abs(changes[0]["change"]) >= abs(changes[-1]["change"])


def test_wrong_requests_are_refused(api):
    api, _ = api
    assert "there are one, other, wide" in ask(api, "/atlases/on", 404)["error"]["message"]
    assert ask(api, "/atlases/one/head", 404, l=9, h=0)["error"]["message"].startswith("there is no attention 9")
    assert ask(api, "/atlases/one/head", 400, l="x")["error"]["code"] == "bad-parameter"
    assert "different shapes" in ask(api, "/atlases/one/compare/wide", 409)["error"]["message"]
    assert ask(api, "/atlases/one/cake", 404)["error"]["code"] == "unknown"
