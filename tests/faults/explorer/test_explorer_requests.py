"""Requests of every kind, changed at random and field by field: each is answered, or refused in one sentence.

See fuzz/requests.py.
"""

import asyncio
import json
import re
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("starlette", reason="the serve extra is not installed")
from fuzz import requests
from fuzz.supervisor import WrongError

from telescope.explorer.app import app
from telescope.explorer.guard import Guard

WRONG = (
    None,
    True,
    0,
    -1,
    10**30,
    10**400,
    float("nan"),
    1.5,
    "",
    "x",
    "\0",
    [],
    {},
    [[]],
    [None],
    {"x": 1},
    "a" * 5000,
)
TEXTS = ("", "x", "-1", "99", "1.5", "nan", "null", "[]", "{}", "true", "1" * 13, "٣", " 1", "\0")


@pytest.fixture(scope="module", autouse=True)
def prepared():
    requests.prepare()


def sent(request):
    """Send a request as it is, with the token; return its status and its JSON, after the checks of the fuzz."""
    requests._sign(request, Random(0))
    status, headers, body = requests.complete(requests.send(request, 1, leaves=False))
    requests.check(request, status, headers, body)
    return status, headers, body


def posted(body):
    return requests.Request(
        "/api/v1/runs", [], "POST", [(b"content-type", b"application/json")], json.dumps(body).encode()
    )


def run_cases(count):
    return [requests.run(Random(f"0/{case}"), Path()) for case in range(count)]


def test_hundreds_of_random_requests():
    kinds = run_cases(600)
    assert {done.kind for done in kinds} >= {"trace", "sources", "tiles", "api/v1/runs", "other paths"}
    assert 100 < sum(done.accepted for done in kinds) < 500  # so that both answers and refusals are tried


@pytest.mark.parametrize("gone", ["_check_token", "_check_host_and_origin"])
def test_a_hole_in_the_guard_is_found(gone, monkeypatch):
    monkeypatch.setattr(Guard, gone, lambda self, scope: None)
    with pytest.raises(WrongError):
        run_cases(600)


def test_every_parameter_of_every_route_with_every_wrong_value():
    *_, run, _ = requests.runs()  # a translation, which has every answer
    routes = {f"/api/v1/runs/{run}/{name}".rstrip("/"): given for name, given in requests.RESOURCES.items()}
    asked = 0
    for path, given in (routes | requests.ELSEWHERE).items():
        for name in given:
            for text in TEXTS:
                if "export" in path and text not in TEXTS[:4]:  # an export takes longer than all others together
                    continue
                status, _, _ = sent(requests.Request(path, list({**given, name: text}.items())))
                assert status in (200, 400, 404, 409), (path, name, text)
                asked += 1
    assert asked > 1000


def test_every_field_of_every_body_with_every_wrong_type():
    for body in (*requests.BODIES, {}):
        for name in (*body, "more"):
            for wrong in WRONG:
                status, _, _ = sent(posted({**body, name: wrong}))
                assert status in (201, 400, 404, 409, 422), (body, name, wrong)
    for wrong in WRONG:
        assert sent(posted(wrong))[0] == 400
        assert sent(posted({"example": "journey", "inputs": {"x": wrong}}))[0] == 400
        rows = [[0.5, 0.1, 0.2]] * 5
        status, _, _ = sent(posted({"example": "journey", "inputs": {"x": [*rows, [1.0, 0.5, wrong]]}}))
        assert (status == 201) == (type(wrong) in (int, float) and abs(wrong) <= 1e6), wrong


def test_scores_that_sum_to_zero_are_explained():
    """A lesson suggests W_q = 0; then every score is zero, and their sum too."""
    zero = {"example": "journey", "inputs": {"W_q": [[0, 0]] * 3}}
    status, _, body = sent(posted(zero | {"normalize": "by_sum"}))
    assert status == 409
    error = json.loads(body)["error"]
    assert error["code"] == "zero-sum"
    assert "choose softmax" in error["message"]
    status, _, body = sent(posted(zero))
    assert status == 201
    run = json.loads(body)["run"]
    place = [("l", "1"), ("h", "0"), ("i", "0"), ("edits", "sum")]
    status, _, body = sent(requests.Request(f"/api/v1/runs/{run}/whatif", place))
    assert (status, json.loads(body)["error"]["code"]) == (409, "zero-sum")


# --------------------------------------------------------------------------------------------------------- ids, the log


def ask(log, path, query="", api=None, token=requests.TOKEN, method="GET"):
    """Send one request to an application of its own; return its status, headers and JSON."""
    made = app(api, Guard.at(requests.TOKEN, requests.PORT, requests.HOSTS), log=log)
    messages = []

    async def receive():
        return {"type": "http.disconnect"} if messages else await asyncio.Event().wait()

    async def send(message):
        messages.append(message)

    headers = [(b"host", b"localhost:8123"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    problem = None
    try:
        requests.complete(made({**scope, "http_version": "1.1", "root_path": ""}, receive, send))
    except ZeroDivisionError as raised:
        problem = raised
    begun = messages[0]
    return begun["status"], dict(begun["headers"]), json.loads(messages[1]["body"] or b"null"), problem


def test_each_request_has_an_id_and_a_line_in_the_log():
    lines = []
    status, headers, body, _ = ask(lines.append, "/nothing", f"l=0&token={requests.TOKEN}&x=%0A", method="HEAD")
    (line,) = lines
    shown = re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ([0-9a-f]{8}) HEAD /nothing\?l=0&x=%0A 404 \d+ ms", line)
    assert shown, line
    assert headers[b"x-request-id"].decode() == body["error"]["request"] == shown[1]
    assert status == 404
    ask(lines.append, "/a\nb c", token="wrong")
    assert re.search(r" GET /a%0Ab%20c 401 \d+ ms$", lines[1])
    assert lines[0][20:28] != lines[1][20:28]


def test_a_log_that_cannot_be_written_fails_no_request():
    def broken(line):
        raise BrokenPipeError

    assert ask(broken, "/nothing")[0] == 404


def test_a_bug_is_answered_as_json_and_printed_with_its_id(capsys):
    class Broken:
        def reads(self, *request):
            return False

        def answer(self, *request):
            raise ZeroDivisionError

    status, headers, body, problem = ask(None, "/api/v1/runs", api=Broken())
    assert (status, body["error"]["code"]) == (500, "bug")
    assert body["error"]["request"] == headers[b"x-request-id"].decode()
    assert isinstance(problem, ZeroDivisionError)  # the server prints its traceback after this line:
    assert f"request {body['error']['request']} failed: GET /api/v1/runs" in capsys.readouterr().err
