"""Who wrote what, asked for at places that there are not: refused in one sentence, and never an error of the server."""

import json

import pytest

from support import writers
from telescope.explorer.api import Api
from telescope.explorer.library import Library

PLACE = {"l": "0", "h": "0", "i": "1", "j": "0"}


@pytest.fixture(scope="module")
def served():
    library = Library({"gpt": writers.gpt()})
    return Api(library), library.read("to be").name


@pytest.mark.parametrize("what", ["why", "writes"])
@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"l": "9"}, 404, "there is no attention 9; there are 2, counted from 0"),
        ({"l": "-1"}, 404, "there is no attention -1"),
        ({"h": "9"}, 404, "there is no head 9; there are 0, 1, 2, 3"),
        ({"h": None}, 400, "h= is missing; it takes a whole number"),
        ({"i": "5"}, 404, "there is no query 5; there are 5, counted from 0"),
        ({"i": "nan"}, 400, 'i="nan" is not a whole number'),
        ({"b": "1"}, 404, "there is no sequence 1"),
    ],
)
def test_a_place_that_there_is_not(served, what, change, status, said):
    api, run = served
    asked = {name: text for name, text in (PLACE | change).items() if text is not None}
    answer = api.answer("GET", f"/runs/{run}/{what}", asked)
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("j", "status", "said"),
    [
        ("5", 404, "there is no key 5; there are 5, counted from 0"),
        ("-1", 404, "there is no key -1"),
        ("1.5", 400, 'j="1.5" is not a whole number'),
        (None, 400, "j= is missing"),
    ],
)
def test_a_key_that_there_is_not(served, j, status, said):
    api, run = served
    asked = {name: text for name, text in (PLACE | {"j": j}).items() if text is not None}
    answer = api.answer("GET", f"/runs/{run}/why", asked)
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"].startswith(said)


@pytest.mark.parametrize(("than", "status", "said"), [("5", 404, "there is no key 5"), ("", 400, 'than="" is not')])
def test_another_key_that_there_is_not(served, than, status, said):
    api, run = served
    answer = api.answer("GET", f"/runs/{run}/why", PLACE | {"than": than})
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"].startswith(said)
