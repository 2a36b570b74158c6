"""The explorer's API about atlases: the numbers of the atlases, as JSON."""

import json

import pytest
import torch

import telescope as ts
from support import mapping, writers
from support.mapping import Letters, tiny_gpt
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
        texts = {name: value for name, value in entry.items() if not isinstance(value, float)}
        assert texts == {name: row[name] for name in texts}
        numbers = {name: value for name, value in entry.items() if name not in texts}
        assert numbers == {name: float(f"{row[name]:.7g}") for name in numbers}
        assert len(numbers) > 4
    head = ask(api, "/atlases/one/head", l=1, h=1)
    assert (head["layer"], head["head"]) == ("blocks.1.self", 1)
    shares = [float(f"{share:.7g}") for share in atlas.profile("blocks.1.self", 1).shares]
    assert head["profiles"]["distance"]["shares"] == shares
    assert head["evidence"]["first"][0]["excerpt"] == atlas.evidence("blocks.1.self", 1, "first")[0].excerpt
    for longest, cells in head["maps"].items():
        averaged = atlas.map("blocks.1.self", 1, int(longest))
        torch.testing.assert_close(torch.tensor(cells, dtype=torch.float64), averaged, atol=0, rtol=1e-6)
    changes = ask(api, "/atlases/one/compare/other")["heads"]
    assert abs(changes[0]["change"]) >= abs(changes[-1]["change"])


def test_wrong_requests_are_refused(api):
    api, _ = api
    assert "there are one, other, wide" in ask(api, "/atlases/on", 404)["error"]["message"]
    assert ask(api, "/atlases/one/head", 404, l=9, h=0)["error"]["message"].startswith("there is no attention 9")
    assert ask(api, "/atlases/one/head", 400, l="x")["error"]["code"] == "bad-parameter"
    assert "different shapes" in ask(api, "/atlases/one/compare/wide", 409)["error"]["message"]
    assert ask(api, "/atlases/one/cake", 404)["error"]["code"] == "unknown"


# ---------------------------------------------------------------------------------- the texts that a habit is strong in

LINES = ["To be, or not to be, that is the question. " * 2, "What is the city but the people? The people, the city."]


@pytest.fixture
def evident(tmp_path):
    """Return an API with a model and the atlas of a corpus in a file, the atlas, and the file."""
    model, file = writers.gpt(max_positions=128), tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    ts.atlas(model, file, out=tmp_path / "lines")
    library = Library({"other": tiny_gpt(), "gpt": model})
    library.open_atlas(tmp_path / "lines")
    return Api(library), ts.open(tmp_path / "lines"), file


def post(api, status=201, **request):
    asked = {"atlas": "lines", "l": 1, "h": 0, "habit": "previous", "rank": 0} | request
    answer = api.answer("POST", "/runs", {}, json.dumps(asked).encode())
    assert answer.status == status, answer.body
    return json.loads(answer.body)


def test_a_strong_text_is_read_by_the_model_of_the_atlas(evident):
    """In full, from the corpus: the share of the habit in it is that of the atlas."""
    api, atlas, _ = evident
    strongest = atlas.evidence("blocks.1.self", 0, "previous")[0]
    run = post(api)
    assert (run["model"], run["text"]) == ("gpt", LINES[strongest.text])
    assert run["opened"] == {"l": 1, "h": 0, "whole": True}
    views = api.library.run(run["run"]).views
    habits = api.ask(f"/runs/{run['run']}/heads", l=run["opened"]["l"])["habits"]
    assert views[1].name == "blocks.1.self"
    assert next(one for one in habits if one["h"] == 0)["previous"] == pytest.approx(strongest.share, abs=1e-6)


@pytest.mark.parametrize("change", ["other words", "gone", "shorter"])
def test_a_corpus_that_changed_is_not_read(evident, change):
    """The atlas holds the beginning of the text: that is opened, and never what another file says there."""
    api, atlas, file = evident
    strongest = atlas.evidence("blocks.1.self", 0, "previous")[0]
    if change == "gone":
        file.unlink()
    else:
        secret = "A secret that the atlas does not know." if change == "other words" else LINES[strongest.text][:30]
        file.write_text("".join(json.dumps({"text": secret}) + "\n" for _ in LINES))
    run = post(api)
    assert run["text"] == strongest.excerpt
    assert LINES[strongest.text].startswith(run["text"])
    assert run["opened"]["whole"] is False


def test_an_atlas_in_another_precision_finds_its_model(evident, tmp_path):
    api, _, file = evident
    model = writers.gpt(max_positions=128)
    ts.atlas(model.to(torch.bfloat16), file, out=tmp_path / "half")
    model.to(torch.float32)
    api.library.models["gpt"] = writers.gpt(max_positions=128)
    api.library.open_atlas(tmp_path / "half")
    assert post(api, atlas="half")["model"] == "gpt"


def test_wrong_texts_are_refused(evident):
    api, _, _ = evident
    for request, status, sentence in (
        ({"habit": "cake"}, 404, "there is no habit"),
        ({"l": 9}, 404, "there is no attention 9"),
        ({"h": 9}, 404, "there is no head 9"),
        ({"rank": 9}, 404, "there is no text 9"),
        ({"rank": -1}, 400, "the body must be"),
        ({"h": True}, 400, "the body must be"),
        ({"path": "/etc/passwd"}, 400, "the body must be"),
        ({"atlas": "cake"}, 404, "there is no atlas"),
    ):
        assert sentence in post(api, status, **request)["error"]["message"]
    del api.library.models["gpt"]
    assert "telescope serve ATLAS --model FOLDER" in post(api, 409)["error"]["message"]
