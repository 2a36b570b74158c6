"""Who wrote what, as the explorer answers it: every field equals the recording's own `why` and `pushes`."""

import gc
import json
from itertools import product

import pytest
import torch

import telescope as ts
from support import writers
from support.exploring import got, recorded, serving
from telescope.explorer import make_run
from telescope.explorer.api import Api
from telescope.explorer.authors import LEAST_SHARE, MOST_AUTHORS, MOST_PAIRS, MOST_TOKENS
from telescope.explorer.library import Library

TEXT = "How are you?"
DIGITS = 1e-6  # the seven digits of an answer


def close(one):
    return pytest.approx(one, rel=DIGITS, abs=1e-9)


@pytest.fixture(scope="module", params=["translator", "gpt"])
def told(request):
    """Return an API, the facts of a run, and a recording of the same model on the same tokens."""
    if request.param == "gpt":
        model = writers.gpt(max_positions=64)
        library = Library({"gpt": model})
        run = library.read("to be or")
        inputs = [run.output.ids]
    else:
        model = writers.learnt()
        library = Library({"learnt": model})
        run = library.read(TEXT)
        inputs = [model.tokenizer.encode(TEXT).ids, [writers.START, *run.output.written[:-1]]]
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        model(*(torch.tensor([row]) for row in inputs))
    api = Api(library)
    return api, got(api, f"/runs/{run.name}"), recording


def places(run):
    """Yield some queries and keys of every head."""
    for attention in run["attentions"]:
        last = attention["n_q"] - 1
        for h, i, j in product(attention["heads"][::2], (0, last), (0, attention["n_k"] - 1)):
            yield attention, h, i, j


def test_a_score_is_split_as_the_recording_splits_it(told):
    api, run, recording = told
    for attention, h, i, j in places(run):
        place = {"l": attention["l"], "h": h, "i": i, "j": j}
        answer = got(api, f"/runs/{run['run']}/why", **place)
        found = recording.why(attention["name"], h, i, j)
        trace = got(api, f"/runs/{run['run']}/trace", **{name: place[name] for name in "lhi"})
        assert {name: answer[name] for name in "lhij"} == place
        assert (answer["than"], answer["other"]) == (None, None)
        assert (answer["b"], answer["reason"]) == (0, None)
        assert (answer["query"], answer["key"]) == (trace["token"], trace["tokens"][j])

        split = answer["split"]
        steps = {step["name"]: step["numbers"] for step in trace["steps"]}
        assert split["score"] == pytest.approx(steps["scaled"][j], rel=1e-4, abs=1e-5)  # the model's own, in float32
        assert split["score"] == close(found.score)
        assert float(split["masked"]) == close(found.masked)
        assert split["weight"] == close(found.weight)
        assert split["terms"] == found.terms.numel()
        for side in ("query", "key"):
            sums = found.by(side)
            named = split[side]["authors"]
            assert 0 < len(named) <= MOST_AUTHORS
            assert [one["name"] for one in named] == list(sums)[: len(named)]
            assert [one["value"] for one in named] == close(list(sums.values())[: len(named)])
            assert split[side]["left"] == len(sums) - len(named)
            assert split[side]["others"] == close(sum(list(sums.values())[len(named) :]))
            total = sum(one["value"] for one in named) + split[side]["others"]
            assert total == pytest.approx(split["score"], rel=1e-5, abs=1e-6)
            # Whoever has no name though there is room for it wrote next to nothing.
            if len(named) < MOST_AUTHORS:
                rest = list(sums.values())[len(named) :]
                assert all(abs(value) < LEAST_SHARE * abs(named[0]["value"]) for value in rest)
        pairs = [(one["query"], one["key"], close(one["value"])) for one in split["pairs"]]
        assert [tuple(term) for term in found.top(MOST_PAIRS)] == pairs

        # The names of the page, and the numbers of the recording.
        assert split["sentence"].partition(": ")[2] == found.sentence.partition(": ")[2]
        read = answer["read"]
        assert split["sentence"].startswith(f"{read} looks at {answer['key']} with a score of ")
        assert attention["kind"] == "cross" or read == answer["query"]


def test_a_score_is_compared_with_that_of_another_key(told):
    api, run, recording = told
    for attention, h, i, j in places(run):
        place = {"l": attention["l"], "h": h, "i": i, "j": j, "than": 1}
        answer = got(api, f"/runs/{run['run']}/why", **place)
        found = recording.why(attention["name"], h, i, j, against=1)
        names = got(api, f"/runs/{run['run']}/trace", l=attention["l"], h=h, i=i)["tokens"]
        assert (answer["than"], answer["other"], answer["key"]) == (1, names[1], names[j])
        split = answer["split"]
        assert split["score"] == pytest.approx(found.score, rel=DIGITS, abs=1e-6)
        masked = float(split["masked"])
        assert masked == pytest.approx(found.masked, rel=DIGITS, abs=1e-6, nan_ok=True)
        assert split["weight"] == pytest.approx(found.weight, rel=DIGITS, abs=1e-9)
        for side in ("query", "key"):
            sums = found.by(side)
            shown = {one["name"]: one["value"] for one in split[side]["authors"]}
            assert shown == {name: pytest.approx(sums[name], rel=DIGITS, abs=1e-9) for name in shown}
        if j != 1:
            assert f"looks at {names[j]} rather than at {names[1]}, by a score of" in split["sentence"]


def test_authors_that_are_heads_lead_to_their_place(told):
    api, run, _ = told
    seen = set()
    for attention, h, i, j in places(run):
        split = got(api, f"/runs/{run['run']}/why", l=attention["l"], h=h, i=i, j=j)["split"]
        for one in (*split["query"]["authors"], *split["key"]["authors"]):
            is_head = "head" in one["name"]
            assert (one["l"] is not None) == (one["h"] is not None) == is_head
            if is_head:
                where = run["attentions"][one["l"]]
                layer, number = one["name"].rpartition(" ")[2].split(".")
                assert (f".{layer}." in where["name"], int(number)) == (True, one["h"])
                assert ("cross" in one["name"]) == (where["kind"] == "cross")
                assert where["kind"] == "cross" or one["name"].startswith(where["kind"].replace("self", ""))
                seen.add((one["l"], one["h"]))
    assert len(seen) >= 4


def test_the_words_that_a_head_pushes(told):
    api, run, recording = told
    for attention, h, i, _ in places(run):
        answer = got(api, f"/runs/{run['run']}/writes", l=attention["l"], h=h, i=i)
        assert (answer["l"], answer["h"], answer["i"], answer["b"]) == (attention["l"], h, i, 0)
        if attention["kind"] == "encoder":
            assert (answer["up"], answer["down"]) == (None, None)
            assert "is of the encoder, whose end gives no logits" in answer["reason"]
            continue
        found = recording.pushes(attention["name"], h, i, top=MOST_TOKENS)
        names = got(api, f"/runs/{run['run']}/trace", l=attention["l"], h=h, i=i)
        assert answer["reason"] is None
        is_cross = attention["kind"] == "cross"
        assert answer["written"] == (names["token"] if is_cross else None)
        assert answer["after"] == (found.after if is_cross else names["token"])
        for shown, wanted in ((answer["up"], found.up), (answer["down"], found.down)):
            assert len(shown) == MOST_TOKENS
            for one, pushed in zip(shown, wanted, strict=True):
                assert (one["id"], one["text"], one["j"]) == (pushed.id, pushed.token, pushed.position)
                assert (one["value"], one["part"]) == (close(pushed.value), close(pushed.part))
                assert one["key"] == names["tokens"][one["j"]]


def reason(api, run, what, **place):
    answer = got(api, f"/runs/{run}/{what}", **place)
    assert answer.get("split") is answer.get("up") is None
    return answer["reason"]


def both(api, run, **place):
    return {reason(api, run, "why", j=0, **place), reason(api, run, "writes", **place)}


def test_what_cannot_be_split_has_one_sentence_as_its_reason(tmp_path):
    place = {"l": 0, "h": 0, "i": 1}
    # A worked example.
    api = Api(Library({}))
    (said,) = both(api, "example-journey", **place)
    assert said == "these vectors come from no model, so nobody wrote them: type a sentence of your own"
    # A recording that kept less, and one that was opened.
    model = writers.gpt()
    ids = torch.tensor([model.tokenizer.encode("to be").ids])
    for keep, wanted in (("queries-keys", "kept less"), ("steps", "which a recording that was opened does not have")):
        with ts.watch(model, keep=keep) as recording, torch.no_grad():
            model(ids)
        recording.save(tmp_path / keep)
        library = Library({})
        assert all(wanted in said for said in both(Api(library), library.open(tmp_path / keep).name, **place))
    # Vectors without a model, in a recording.
    assert len(both(*serving(recorded(6, keep="steps")), **place)) == 2
    # A model that is gone.
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        model(ids)
    api, run = serving(recording)
    assert got(api, f"/runs/{run}/why", j=0, **place)["reason"] is None
    del model
    gc.collect()
    assert all("the model that was recorded is gone" in said for said in both(api, run, **place))


def test_a_long_text_keeps_its_steps_and_not_who_wrote_them(monkeypatch):
    monkeypatch.setattr(make_run, "MOST_STREAM", 0)
    library = Library({"gpt": writers.gpt()})
    api, run = Api(library), library.read("to be").name
    assert both(api, run, l=0, h=0, i=1) == {"the text is too long to keep who wrote what: choose a shorter one"}
    assert got(api, f"/runs/{run}/trace", l=0, h=0, i=1)["stream"] is not None


def test_selected_queries_and_padding():
    """A query is counted among those that were kept, a key among all; padding has no authors."""
    model = writers.gpt()
    with ts.watch(model, keep="steps", queries=[2, 4]) as recording, torch.no_grad():
        model(torch.tensor([model.tokenizer.encode("to be").ids]))
    api, run = serving(recording)
    answer = got(api, f"/runs/{run}/why", l=1, h=1, i=1, j=2)
    found = recording.why(1, 1, 4, 2)
    assert answer["split"]["score"] == close(found.score)
    assert got(api, f"/runs/{run}/writes", l=1, h=1, i=0)["up"][0]["value"] == close(
        recording.pushes(1, 1, 2).up[0].value
    )
    # The key at position 1 was no query: who wrote it was not kept.
    assert "no residual stream at position 1" in reason(api, run, "why", l=1, h=1, i=1, j=1)

    # Two texts, the second of which is shorter.
    model = writers.translator()
    source = torch.tensor([[5, 6, 7, 8], [9, 8, 0, 0]])
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        model(source, torch.tensor([[1, 4], [1, 5]]), ts.padding([4, 2]))
    api, run = serving(recording)
    cross = next(at for at, name in enumerate(recording) if name == "decoder.1.cross")
    answer = got(api, f"/runs/{run}/why", l=cross, h=3, i=1, j=1, b=1)
    assert answer["split"]["score"] == close(recording.why("decoder.1.cross", 3, 1, 1, sequence=1).score)
    said = reason(api, run, "why", l=cross, h=3, i=1, j=3, b=1)
    assert said == "this token is padding, which is no part of the text"


def test_the_answers_are_json_without_what_json_lacks():
    library = Library({"gpt": writers.gpt()})
    run = library.read("to be").name
    answer = Api(library).answer("GET", f"/runs/{run}/why", {"l": "0", "h": "0", "i": "0", "j": "4"})
    assert json.loads(answer.body)["split"]["masked"] == "-inf"  # a key behind the query
