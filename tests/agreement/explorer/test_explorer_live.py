"""What the page moves and takes apart: planes of worked examples, products of single numbers, mixed heads, and the way
of a vector, compared with float64."""

import pytest
import torch
from torch.testing import assert_close

from support import writers
from support.exploring import SENTENCES, api, got, read
from telescope.explorer.api import Api
from telescope.explorer.library import Library


def numbers(listed):
    return torch.tensor(listed, dtype=torch.float64)


@pytest.fixture(scope="module", params=SENTENCES)
def run(request):
    return api().library.run(read(api(), request.param)["run"])


@pytest.mark.parametrize(
    ("example", "words"),
    [("bank", ["money", "bank", "river", "bank"]), ("journey", ["Your", "journey", "starts", "with", "one", "step"])],
)
def test_the_plane_of_an_example_lies_in_its_space(example, words):
    """Every point is where its vector is drawn by the axes, and its vector before is a row of x."""
    facts = got(api(), f"/runs/example-{example}")["example"]
    x = next(one for one in facts["inputs"] if one["name"] == "x")
    reply = got(api(), f"/runs/example-{example}/geometry", l=0)
    space = reply["space"]
    axes, centre = numbers(space["axes"]), numbers(space["centre"])
    assert_close(axes @ axes.mT, torch.eye(2, dtype=torch.float64), atol=1e-12, rtol=0)
    for side in ("before", "after"):
        vectors = numbers(space[side])
        assert_close((vectors - centre) @ axes.mT, numbers(reply[side]), atol=1e-12, rtol=0)
    assert [x["rows"][row] for row in space["rows"]] == words
    assert_close(numbers(space["before"]), numbers([x["numbers"][row] for row in space["rows"]]), atol=1e-7, rtol=0)


def test_the_plane_of_a_model_holds_no_vectors(run):
    assert got(api(), f"/runs/{run.name}/geometry", l=0)["space"] is None


def test_every_number_of_q_k_and_v_is_a_row_times_a_column(run):
    for l, view in enumerate(run.views):  # noqa: E741
        call = view.call
        for of, recorded in (("q", call.queries), ("k", call.keys), ("v", call.values)):
            if view.kind == "cross" and of != "q":
                continue
            for h in call.heads:
                at, m = recorded.shape[2] - 1, h % recorded.shape[3]
                place = {"i" if of == "q" else "j": at}
                reply = got(api(), f"/runs/{run.name}/product", l=l, h=h, of=of, m=m, **place)
                summed = numbers(reply["row"]) @ numbers(reply["column"]) + (reply["bias"] or 0)
                assert_close(summed.item(), reply["sum"], atol=1e-12, rtol=1e-12)
                assert_close(reply["sum"], float(recorded[0, h, at, m]), atol=1e-5, rtol=1e-5)
                assert not reply["turned"]


def test_rotary_positions_turn_a_number_after_the_product():
    model = writers.gpt(positions="rotary", max_positions=64)
    library = Library({"gpt": model})
    run = library.read("To be, or not to", "gpt")
    replies = {of: Api(library).ask(f"/runs/{run.name}/product", l=0, h=0, of=of, i=3, j=3, m=1) for of in "qkv"}
    assert {of: reply["turned"] for of, reply in replies.items()} == {"q": True, "k": True, "v": False}
    assert replies["v"]["sum"] == pytest.approx(replies["v"]["number"], abs=1e-5)
    first = {of: Api(library).ask(f"/runs/{run.name}/product", l=0, h=0, of=of, i=0, j=0, m=1) for of in "qk"}
    assert first["q"]["sum"] == pytest.approx(first["q"]["number"], abs=1e-5)  # position 0 is not turned


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        ("example-journey/product", {"l": 1, "h": 0, "i": 0, "of": "q", "m": 0}, 409, "models of Telescope"),
        ("{run}/product", {"l": 0, "h": 0, "i": 0, "of": "o", "m": 0}, 400, "not known"),
        ("{run}/product", {"l": 0, "h": 0, "i": 0, "of": "q", "m": 999}, 404, "there is no feature 999"),
        ("{run}/product", {"l": 0, "h": 0, "of": "k", "m": 0, "j": 4000}, 404, "there is no key 4000"),
        ("{run}/product", {"l": "cross", "h": 0, "of": "k", "m": 0, "j": 0}, 409, "output of the encoder"),
        ("example-journey/flow", {"l": 0, "i": 0}, 409, "models of Telescope"),
        ("{run}/flow", {"l": 0, "i": 999}, 404, "there is no query 999"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_apart_says_why(path, query, status, said):
    run = api().library.run(read(api(), SENTENCES[1])["run"])
    if query["l"] == "cross":
        query = query | {"l": next(at for at, view in enumerate(run.views) if view.kind == "cross")}
    given = {name: str(value) for name, value in query.items()}
    answer = api().answer("GET", "/runs/" + path.format(run=run.name), given)
    assert (answer.status, said in answer.body.decode()) == (status, True), answer.body


def test_the_parts_of_all_heads_sum_to_what_is_added(run):
    for l, view in enumerate(run.views):  # noqa: E741
        i = view.size[0] - 1
        reply = got(api(), f"/runs/{run.name}/after", l=l, i=i)
        mixed = reply["mixed"]
        parts, bias = numbers(mixed["parts"]), numbers(mixed["bias"])
        assert_close(parts.sum(0) + bias, numbers(mixed["sum"]), atol=1e-5, rtol=1e-5)
        contexts = view.call.trace().context[0, :, i].double()
        assert_close(numbers(mixed["contexts"]), contexts, atol=1e-5, rtol=1e-5)
        lengths = next(stage["heads"] for stage in reply["stages"] if stage["name"] == "projected")
        assert_close(parts.norm(dim=1), numbers(lengths), atol=1e-5, rtol=1e-5)


def test_the_largest_hidden_units_are_those_of_the_network(run):
    view = next(view for view in run.views if view.kind == "encoder")
    reply = got(api(), f"/runs/{run.name}/after", l=0, i=1)
    stage = next(stage for stage in reply["stages"] if stage["name"] == "hidden")
    with torch.no_grad():
        norm = view.block.add_norm_2
        x = view.call.after[:, 1:2]
        hidden = view.block.feed_forward.hidden(norm.norm(x) if norm.pre_norm else x)[0, 0]
    order = hidden.abs().argsort(descending=True)[:8]
    assert [one["unit"] for one in stage["largest"]] == order.tolist()
    assert_close(numbers([one["value"] for one in stage["largest"]]), hidden[order].double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_vector_visits_every_station_of_its_stack(run, kind):
    l = next(at for at, view in enumerate(run.views) if view.kind == kind)  # noqa: E741
    reply = got(api(), f"/runs/{run.name}/flow", l=l, i=1)
    stations = reply["stations"]
    kinds = [one["kind"] for one in stations]
    blocks = sum(view.kind == ("encoder" if kind == "encoder" else "decoder") for view in run.views)
    block = ["self", "feed-forward"] if kind == "encoder" else ["self", "cross", "feed-forward"]
    assert kinds == ["embedding", "position", *block * blocks, *([] if kind == "encoder" else ["output"])]
    # What one block passes on is what the next one reads.
    for place, station in enumerate(stations[:-1]):
        follows = stations[place + 1]
        if follows["kind"] in ("self", "cross"):
            read = run.views[follows["l"]].call.before[0, 1]
            assert station["norm"] == pytest.approx(float(read.norm()), rel=1e-5)
    if kind != "encoder":
        assert stations[-1]["norm"] == pytest.approx(float(run.output.hidden[1].norm()), rel=1e-5)
