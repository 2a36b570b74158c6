"""Which requests the explorer answers, and the exact answers to all others."""

import json
import re
from html import unescape
from itertools import count

import pytest

from support import writers
from support.exploring import HOSTILE, SENTENCES, api, got, read, recorded, serving
from telescope.explorer.api import Api
from telescope.explorer.export import html_page, json_for_html, page_files
from telescope.explorer.library import Library

pytest.importorskip("httpx2", reason="starlette's test client needs httpx2, which is not installed")
TestClient = pytest.importorskip("starlette.testclient", reason="the serve extra is not installed").TestClient
from telescope.explorer.app import app  # noqa: E402
from telescope.explorer.guard import LARGEST_BODY, Guard  # noqa: E402

TOKEN, PORT = "a-secret-of-24-bytes", 8123
HOST = f"127.0.0.1:{PORT}"
KEY = {"Authorization": f"Bearer {TOKEN}"}
COOKIE = Guard.at(TOKEN, PORT, ()).cookie_value
ONE = "/api/v1/runs/run"
NUMBERS = count()


@pytest.fixture(scope="module")
def client():
    explorer, _ = serving(recorded(300))
    explorer.library.models["learnt"] = writers.learnt()
    guard = Guard.at(TOKEN, PORT, ("127.0.0.1", "localhost"))
    with TestClient(app(explorer, guard), base_url=f"http://{HOST}", follow_redirects=False) as client:
        yield client


@pytest.fixture
def stranger(client):
    """A client at an address of its own: wrong tokens of one address are slowed down."""
    address = (f"2001:db8:0:{next(NUMBERS):x}::1", 50000)
    return TestClient(client.app, base_url=f"http://{HOST}", follow_redirects=False, client=address)


def code(response):
    return response.json()["error"]["code"]


# ------------------------------------------------------------------------------------- which requests are answered


@pytest.mark.parametrize("path", ["/", "/s/run/walk", "/index.html", "/api/v1/runs", "/healthz", "/nothing"])
@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1:{PORT}.evil.example", "",
             f"localhost:{PORT}@evil.example", f"[::1]:{PORT}"]
)  # fmt: skip
def test_other_host_names_are_refused(client, path, host):
    response = client.get(path, headers=KEY | {"Host": host})
    assert (response.status_code, code(response)) == (403, "bad-host")


def test_two_host_headers_are_refused(client):
    response = client.get("/healthz", headers=[("Host", HOST), ("Host", "evil.example")])
    assert response.status_code == 403


@pytest.mark.parametrize("origin", ["null", "http://evil.example", f"https://{HOST}", "http://127.0.0.1",
                                    f"http://{HOST}.evil.example", "file://", ""])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(client, origin, method):
    response = client.request(method, "/api/v1/runs", headers=KEY | {"Origin": origin}, json={"text": "hi"})
    assert (response.status_code, code(response)) == (403, "bad-origin")
    assert "access-control-allow-origin" not in response.headers


def test_local_host_names_are_answered(client):
    for host in (HOST, f"localhost:{PORT}", f"LOCALHOST:{PORT}"):
        headers = KEY | {"Host": host, "Origin": f"http://{host}"}
        assert client.get("/api/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/s/run/map?l=0", "/explorer.js", "/api/v1/runs", "/nothing", "/favicon.ico"])
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"},
     {"Cookie": f"telescope-{PORT}=wrong"}, {"Cookie": f"telescope-1={TOKEN}"}, {"Cookie": "=;;\x01"},
     {"Authorization": "Bearer é".encode()}],
)  # fmt: skip
def test_nothing_is_served_without_the_key(stranger, path, headers):
    response = stranger.get(path, headers=headers)
    assert (response.status_code, code(response)) == (401, "no-token")
    assert TOKEN not in response.text


FOREIGN = ['prefs={"theme":"dark"}', "list[0]=a", "flag", "a b=c d", "=", "", 'q="', "é=ü", "x=(1,2)", "@=1", "a=b=c",
           f"telescope-{PORT}=old", f"telescope-{PORT}", f"Telescope-{PORT}=1", f"x-{PORT}={TOKEN}"]  # fmt: skip


@pytest.mark.parametrize("foreign", FOREIGN)
def test_cookies_of_other_programs_do_not_hide_the_key(stranger, foreign):
    """Browsers share cookies between the ports of a host."""
    own = f"telescope-{PORT}={COOKIE}"
    for line in (f"{foreign}; {own}", f"{own}; {foreign}", f"{foreign};{own};{foreign}"):
        assert stranger.get("/api/v1/runs", headers={"Cookie": line.encode()}).status_code == 200, line
    assert stranger.get("/api/v1/runs", headers=[("Cookie", foreign.encode()), ("Cookie", own)]).status_code == 200
    stranger.cookies.clear()
    assert stranger.get("/api/v1/runs", headers={"Cookie": foreign.encode()}).status_code == 401


def test_a_link_with_the_key_redirects_and_sets_a_cookie(client):
    response = client.get(f"/s/run/walk?l=0&token={TOKEN}&h=1")
    assert (response.status_code, response.headers["location"]) == (303, "/s/run/walk?l=0&h=1")
    cookie, browser = response.headers.get_list("set-cookie")
    assert cookie.startswith(f"telescope-{PORT}={COOKIE};")
    assert re.match(f"telescope-{PORT}-browser=[A-Za-z0-9_-]{{22}};", browser)
    for line in (cookie, browser):
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in line.split(";")}
        assert "domain" not in line.lower()
    assert TOKEN not in str(response.headers)
    assert client.get("/s/run/walk?l=0&h=1", headers={"Cookie": cookie.partition(";")[0]}).status_code == 200
    client.cookies.clear()


def test_a_link_with_a_wrong_key_is_refused(stranger):
    for token in ("wrong", "", "é", TOKEN[:-1], TOKEN + "x"):
        response = stranger.get("/", params={"token": token})
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
    assert stranger.get(f"/api/v1/runs?token={TOKEN}").status_code == 401  # addresses are written into logs


@pytest.mark.parametrize("path", ["//evil.example/", "/%2Fevil.example", "/\\evil.example", "//evil.example%0d%0aX: y"])
def test_a_link_does_not_redirect_to_other_sites(client, path):
    response = client.get(f"http://{HOST}{path}?token={TOKEN}")
    assert response.status_code == 303
    assert re.match(r"/(?![/\\])", response.headers["location"])
    assert not {"x"} & set(response.headers)


def test_every_answer_has_a_content_security_policy(client):
    for path, headers in (("/", KEY), ("/api/v1/runs", KEY), ("/nothing", KEY), ("/", {}), ("/", {"Host": "evil"})):
        sent = client.get(path, headers=headers).headers
        policy = dict(part.strip().partition(" ")[::2] for part in sent["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["trusted-types"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert sent["x-content-type-options"] == "nosniff"
        assert sent["referrer-policy"] == "no-referrer"
        assert sent["cross-origin-opener-policy"] == sent["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in sent


# ------------------------------------------------------------------------------------------------ what is not there


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/..%2f..%2fpyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/page/../api.py", "/api.py",
     "/explorer.js/../api.py", "/.%2e/api.py", "/..\\api.py", "/index.html%00.py", "/etc/passwd", "/%00",
     "/api/v1/../../etc/passwd", "/api/v1/runs/..%2f..%2fetc%2fpasswd", "/api/v1/", "/api/v1/runs/run/nothing",
     "/api/v1/runs/run/tiles/0/0", "/api/v1/runs/run/tiles/0/0/0/0", "/api/v1/runs/run/tokens/1"],
)  # fmt: skip
def test_other_paths_are_not_served(client, path):
    response = client.get(path, headers=KEY)
    assert response.status_code == 404, response.text
    assert code(response) in ("unknown", "unknown-run")
    assert "root:" not in response.text


ASKED = [
    ("/runs/nobody", {}, 404, "unknown-run"),
    ("/runs/nobody/trace", {"l": 0, "h": 0, "i": 0}, 404, "unknown-run"),
    ("/runs/run/trace", {}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": 0, "h": 0}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": "x", "h": 0, "i": 0}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": "0x1", "h": 0, "i": 0}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": "٣", "h": 0, "i": 0}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": "1" * 400, "h": 0, "i": 0}, 400, "bad-parameter"),
    ("/runs/run/trace", {"l": 1, "h": 0, "i": 0}, 404, "unknown"),
    ("/runs/run/trace", {"l": -1, "h": 0, "i": 0}, 404, "unknown"),
    ("/runs/run/trace", {"l": 0, "h": 2, "i": 0}, 404, "unknown"),
    ("/runs/run/trace", {"l": 0, "h": 0, "i": 300}, 404, "unknown"),
    ("/runs/run/trace", {"l": 0, "h": 0, "i": -1}, 404, "unknown"),
    ("/runs/run/trace", {"l": 0, "h": 0, "i": 0, "b": 1}, 404, "unknown"),
    ("/runs/run/cell", {"l": 0, "h": 0, "i": 0, "j": 300}, 404, "unknown"),
    ("/runs/run/tokens", {"l": 0, "axis": "z"}, 400, "bad-parameter"),
    ("/runs/run/tokens", {"l": 0, "start": 5, "stop": 4}, 400, "bad-parameter"),
    ("/runs/run/tokens", {"l": 0, "start": -5}, 400, "bad-parameter"),
    ("/runs/run/tokens", {"l": 0, "start": 300}, 400, "bad-parameter"),
    ("/runs/run/geometry", {"l": 0}, 409, "not-kept"),
    ("/runs/run/export", {}, 409, "too-long"),
    ("/runs/run/export", {"format": "exe"}, 400, "bad-parameter"),
    ("/runs/run/tiles/0/0/0", {"l": 0, "h": 0, "how": "mean"}, 400, "bad-parameter"),
    ("/runs/run/tiles/0/0/0", {"l": 0, "h": 0, "fmt": "png"}, 400, "bad-parameter"),
    ("/runs/run/tiles/0/0/0", {"l": 0, "h": 0, "effort": "99"}, 400, "bad-parameter"),
    ("/runs/run/tiles/2/0/0", {"l": 0, "h": 0}, 404, "no-tile"),
    ("/runs/run/tiles/-1/0/0", {"l": 0, "h": 0}, 404, "no-tile"),
    ("/runs/run/tiles/1/2/0", {"l": 0, "h": 0}, 404, "no-tile"),
    ("/runs/run/tiles/0/0/99999999999", {"l": 0, "h": 0}, 404, "no-tile"),
    ("/runs/run/tiles/a/b/c", {"l": 0, "h": 0}, 400, "bad-parameter"),
    ("/runs/run/tracks/0/1", {"l": 0, "h": 0}, 404, "no-tile"),
    ("/runs/run/tracks/0/0", {"l": 0, "h": 0, "kind": "joy"}, 400, "bad-parameter"),
]


@pytest.mark.parametrize(("path", "parameters", "status", "kind"), ASKED)
def test_bad_parameters_are_explained(client, path, parameters, status, kind):
    response = client.get(f"/api/v1{path}", params=parameters, headers=KEY)
    assert (response.status_code, code(response)) == (status, kind)
    message = response.json()["error"]["message"]
    assert 5 < len(message) < 240
    assert "\n" not in message


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "bad-json"),
        (b"{", 400, "bad-json"),
        (b"\xff\xfe", 400, "bad-json"),
        (b"[]", 400, "bad-json"),
        (b'"text"', 400, "bad-json"),
        (b"{}", 400, "bad-json"),
        (b'{"text": 3}', 400, "bad-json"),
        (b'{"text": "a", "model": 3}', 400, "bad-json"),
        (b'{"text": "a", "path": "/etc/passwd"}', 400, "bad-json"),
        (b'{"text": "a", "model": "../../etc"}', 404, "unknown"),
        (b'{"text": ""}', 422, "text"),
        (b'{"text": " \\n"}', 422, "text"),
        (json.dumps({"text": "word " * 5000}).encode(), 422, "text"),
        (b'{"text": "a", "target": ""}', 422, "text"),
        (json.dumps({"text": "a", "target": "wort " * 500}).encode(), 422, "text"),
        (b"[" * 100_000, 400, "bad-json"),
    ],
)
def test_bad_bodies(client, body, status, kind):
    response = client.post("/api/v1/runs", content=body, headers=KEY | {"Content-Type": "application/json"})
    assert (response.status_code, code(response)) == (status, kind)


def test_a_post_must_be_json(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = client.post("/api/v1/runs", content=b'{"text": "a"}', headers=KEY | {"Content-Type": kind})
        assert (response.status_code, code(response)) == (415, "not-json")


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_are_not_read(client, chunked):
    body = b" " * (LARGEST_BODY + 1)
    sent = iter([body[: LARGEST_BODY // 2], body[LARGEST_BODY // 2 :]]) if chunked else body
    response = client.post("/api/v1/runs", content=sent, headers=KEY | {"Content-Type": "application/json"})
    assert (response.status_code, code(response)) == (413, "too-large")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/v1/runs", "/api/v1/runs/run/trace"])
def test_other_methods(client, method, path):
    assert client.request(method, path, headers=KEY).status_code == 405


def test_reading_changes_nothing_and_only_runs_take_a_post(client):
    response = client.post(f"{ONE}/trace", json={"text": "a"}, headers=KEY)
    assert (response.status_code, code(response)) == (405, "method")


# ------------------------------------------------------------------------------------------------- what is answered


def test_a_sentence_is_read_and_answered(client):
    response = client.post("/api/v1/runs", json={"text": SENTENCES[1]}, headers=KEY)
    assert response.status_code == 201
    assert response.headers["location"] == f"/api/v1/runs/{response.json()['run']}"
    assert response.json()["written"] == "Guten Morgen."
    runs = client.get("/api/v1/runs", headers=KEY).json()["runs"]
    assert [run["kind"] for run in runs] == ["sentence", "recording"]


def test_a_tile_has_headers_about_its_sampling(client):
    tile = client.get(f"{ONE}/tiles/1/0/1", params={"l": 0, "h": 1}, headers=KEY)
    assert len(tile.content) == 2 * 256 * 256
    assert (tile.headers["x-exact"], tile.headers["x-samples"]) == ("1", "1")
    assert tile.headers["content-type"] == "application/octet-stream"
    assert re.fullmatch(r"made;dur=\d+\.\d", tile.headers["server-timing"])
    small = client.get(f"{ONE}/tiles/1/0/1", params={"l": 0, "h": 1, "fmt": "u8"}, headers=KEY)
    assert len(small.content) == 256 * 256
    assert small.content[256 * 44] == 0  # row 300 is outside
    assert client.get(f"{ONE}/tiles/1/1/0", params={"l": 0, "h": 1, "fmt": "u8"}, headers=KEY).content[0] == 1  # masked
    again = client.get(
        f"{ONE}/tiles/1/0/1", params={"l": 0, "h": 1}, headers=KEY | {"If-None-Match": tile.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


def test_a_sampled_tile_is_not_cached(client, monkeypatch):
    monkeypatch.setattr("telescope.explorer.maps.BUDGET", 1)
    explorer, _ = serving(recorded(600))
    sampled = TestClient(app(explorer, Guard.at(TOKEN, PORT, ("127.0.0.1",))), base_url=f"http://{HOST}")
    tile = sampled.get(f"{ONE}/tiles/0/0/0", params={"l": 0, "h": 1}, headers=KEY)
    assert (tile.headers["x-exact"], tile.headers["x-samples"], tile.headers["cache-control"]) == (
        "0",
        "0.125",
        "no-store",
    )
    assert "etag" not in tile.headers


def test_health_needs_no_key(client):
    assert client.get("/healthz").text == "ok\n"


# ---------------------------------------------------------------------------------------------------- hostile tokens


def test_hostile_tokens_are_data(client):
    explorer, run = serving(recorded(len(HOSTILE), keep="steps", tokens=list(HOSTILE)))
    tokens = got(explorer, f"/runs/{run}/tokens", l=0, axis="k")["tokens"]
    shown = [token.removeprefix("·") for token in tokens]
    for text, token in zip(HOSTILE, shown, strict=True):
        assert token == " ".join(text.encode("utf-8", "replace").decode().split()) or text.isspace()
    file = explorer.answer("GET", f"/runs/{run}/export", {"l": "0", "h": "1"})
    assert file.status == 200
    html = file.body.decode()
    assert html.count("<script") == html.count("</script>") == 3
    (data,) = re.findall(r'<script type="application/json" id="telescope-answers">(.*?)</script>', html, re.S)
    assert not set("<>&\u2028\u2029") & set(data)
    answers = json.loads(data)["answers"]
    assert answers[f"/runs/{run}/tokens?axis=k&l=0"]["tokens"] == tokens


def test_an_exported_file_runs_its_own_script_alone():
    explorer, run = api(), read(api(), SENTENCES[0])["run"]
    html = explorer.answer("GET", f"/runs/{run}/export", {}).body.decode()
    policy = unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1])
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-[^']+'; style-src 'sha256-[^']+'; img-src data: blob:; "
        r"base-uri 'none'; form-action 'none'",
        policy,
    )
    page, notices = html.split('<script type="text/plain" id="telescope-notices">')
    assert "http://" not in re.sub(r"http://www\.w3\.org/[\w/]+", "", page)
    assert not re.findall(r"https?://[\w.]+", notices)


def test_json_in_a_page_cannot_end_its_element():
    for text in HOSTILE[:-1]:
        assert json.loads(json_for_html({"token": text})) == {"token": text}
        assert not set("<>&\u2028\u2029") & set(json_for_html({"token": text}))
    title = {"answers": {"/runs": {"runs": [{"title": "</title><script>window.pwned=1</script>"}]}}}
    assert html_page(title).decode().count("<script") == 3  # answers, program, notices


def test_the_files_of_the_page_are_a_fixed_list():
    assert "index.html" in page_files()
    assert all(name.rpartition(".")[2] in ("html", "js", "css", "svg", "txt") for name in page_files())


def test_a_sentence_needs_a_model():
    explorer = Api(Library({}))
    answer = explorer.answer("POST", "/runs", {}, b'{"text": "hi"}')
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "text")
    assert json.loads(explorer.answer("GET", "/models", {}).body) == {
        "models": [],
        "kinds": {},
        "default": None,
        "longest": 4096,
        "limits": {},
    }


HALVES = {
    "a text": {"text": "Good \ud800morning."},
    "a target": {"text": "Good morning.", "target": "\udfff"},
    "two the wrong way round": {"text": "\ude00\ud83d"},
}


@pytest.mark.parametrize("case", HALVES)
@pytest.mark.parametrize("raw", [False, True], ids=["escaped", "raw"])
def test_a_lone_surrogate_is_refused_as_a_text(client, case, raw):
    body = json.dumps(HALVES[case], ensure_ascii=not raw).encode("utf-8", "surrogatepass")
    headers = KEY | {"Content-Type": "application/json"}
    response = client.post("/api/v1/runs", headers=headers, content=body)
    assert (response.status_code, code(response)) == (400, "bad-json")
    assert "half of a character" in response.json()["error"]["message"]
    both = client.post("/api/v1/runs", headers=headers, content=b'{"text": "Good \\ud83d\\ude00 morning."}')
    assert both.status_code == 201  # two halves are one


@pytest.mark.parametrize("place", ["/runs?x={}", "/runs/{}", "/runs/run/tokens?l={}", "/runs/run/tokens?l=0&axis={}"])
def test_a_lone_surrogate_in_an_address(client, place):
    response = client.get("/api/v1" + place.format("%ED%A0%80"), headers=KEY)
    assert response.status_code in (200, 400, 404)
    response.json()


def test_a_lone_surrogate_as_a_model_name(client):
    headers, body = KEY | {"Content-Type": "application/json"}, json.dumps({"text": "hi", "model": "\ud800"})
    response = client.post("/api/v1/runs", headers=headers, content=body)
    assert (response.status_code, code(response)) == (404, "unknown")


def test_a_lone_surrogate_as_a_token_is_saved_and_shown(tmp_path):
    recorded(12, tokens=["\ud800", "a"]).save(tmp_path / "run.telescope")
    library = Library({})
    run = library.open(tmp_path / "run.telescope")
    assert run.views[0].tokens("q", 0, [0, 1]) == ["\ud800", "a"]
    explorer = Api(library)
    assert got(explorer, f"/runs/{run.name}/tokens", l=0, axis="q")["tokens"][:2] == ["?", "a"]
    for how in ("html", "json"):
        answer = explorer.answer("GET", f"/runs/{run.name}/export", {"l": "0", "h": "0", "i": "0", "format": how})
        assert answer.status == 200
        answer.body.decode("utf-8")
