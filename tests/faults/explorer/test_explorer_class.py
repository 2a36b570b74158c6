"""A class on one server: the token and the page that asks for it, whose a run is, memory, and turns."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Thread
from time import monotonic, sleep

import pytest
import torch

from support import writers
from support.exploring import recorded
from telescope.explorer.answers import LruCache, Refusal
from telescope.explorer.api import Api
from telescope.explorer.library import Library

pytest.importorskip("httpx2", reason="starlette's test client needs httpx2, which is not installed")
TestClient = pytest.importorskip("starlette.testclient", reason="the serve extra is not installed").TestClient
from telescope.explorer import computing, links, sentences, sign_in  # noqa: E402
from telescope.explorer.app import app  # noqa: E402
from telescope.explorer.computing import Computing, Turns  # noqa: E402
from telescope.explorer.guard import Guard  # noqa: E402

TOKEN, PORT = "orion-3-sirius", 8123
HOST = f"127.0.0.1:{PORT}"
PAGE = {"Accept": "text/html,application/xhtml+xml"}
ADDRESS = "/s/run/walk?l=0&h=1"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def api():
    library = Library({"learnt": writers.learnt(), "gpt": writers.gpt(max_positions=64)})
    library.add(recorded(12), "run", "rev")
    return Api(library)


@pytest.fixture
def browser(api):
    """Return new browsers, each at an address of its own; `enters` sends the form with the token."""
    application = app(api, Guard.at(TOKEN, PORT, ("127.0.0.1",), ["https://school.example"]))

    def made(enters=True, number=None):
        address = (f"2001:db8:1:{next(NUMBERS) if number is None else number:x}::7", 50000)
        client = TestClient(application, base_url=f"http://{HOST}", follow_redirects=False, client=address)
        if enters:
            assert form(client, TOKEN).status_code == 303
        return client

    return made


def form(client, token, path=ADDRESS, **headers):
    return client.post(path, data={"token": token}, headers=PAGE | headers)


def finished(coroutine):
    """Run a coroutine in a thread of its own: the browser that other tests of this process opened holds a loop here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def code(response):
    return response.json()["error"]["code"]


def runs(client):
    return [run["text"] for run in client.get("/api/v1/runs").json()["runs"] if run["kind"] == "sentence"]


def read(client, text, **more):
    response = client.post("/api/v1/runs", json={"text": text, **more})
    assert response.status_code == 201, response.text
    return response.json()["run"]


# --------------------------------------------------------------------------------------------------- the token's page


def test_a_browser_without_the_token_is_asked_for_it(browser):
    stranger = browser(enters=False)
    for path in ("/", ADDRESS, "/atlas/one", "/nothing", "/?token=wrong"):
        response = stranger.get(path, headers=PAGE)
        assert response.status_code == 401
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        policy = response.headers["content-security-policy"]
        assert "form-action 'self'" in policy
        assert "script-src" not in policy
        assert "<script" not in response.text
        assert response.headers["cache-control"] == "no-store"
        assert response.text.count("<form") == 1
        assert ("This is not the token" in response.text) == ("wrong" in path)
    # What is no page has its errors as JSON, and the page of those who are in has no form.
    for path, headers in (("/api/v1/runs", PAGE), (ADDRESS, {}), ("/explorer.js", {"Accept": "*/*"})):
        assert code(stranger.get(path, headers=headers)) == "no-token"
    assert "form-action 'none'" in browser().get(ADDRESS, headers=PAGE).headers["content-security-policy"]


def test_the_form_leads_where_the_address_led(browser):
    student = browser(enters=False)
    response = form(student, f"  {TOKEN} ")  # as phones type
    assert (response.status_code, response.headers["location"]) == (303, ADDRESS)
    assert student.get(ADDRESS).status_code == 200
    assert runs(student) == []


@pytest.mark.parametrize("path", ["//evil.example/", "/%2Fevil.example", "/\\evil.example", "//evil.example?token=x"])
def test_the_form_does_not_redirect_to_other_sites(browser, path):
    response = form(browser(enters=False), TOKEN, f"http://{HOST}{path}")
    assert response.status_code == 303
    assert re.match(r"/(?![/\\])", response.headers["location"])


def test_a_hostile_address_is_not_in_the_page(browser):
    text = '"><script>window.pwned=1</script>'
    response = browser(enters=False).get(f"/s/{text}/walk", params={"x": text, "token": text}, headers=PAGE)
    assert response.status_code == 401
    assert "pwned" not in response.text


@pytest.mark.parametrize(
    "body", [b"", b"token", b"token=", b"token=%ff%00", b"x=" + TOKEN.encode(), b"token=" + b"x" * 9000, b"\xff" * 50]
)
def test_other_forms_are_no_token(browser, body):
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    response = browser(enters=False).post(ADDRESS, content=body, headers=kind)
    assert (response.status_code, "set-cookie" in response.headers) == (401, False)


def test_the_form_is_taken_from_this_server_alone(browser):
    for origin in ("null", "http://evil.example", f"https://{HOST}"):
        assert code(form(browser(enters=False), TOKEN, Origin=origin)) == "bad-origin"
    assert code(form(browser(enters=False), TOKEN, Host="evil.example")) == "bad-host"
    assert form(browser(enters=False), TOKEN, Origin=f"http://{HOST}").status_code == 303
    # A form is no request of the API.
    assert browser(enters=False).post("/api/v1/runs", data={"token": TOKEN}).status_code == 401


def test_wrong_tokens_are_slowed_down_by_address(browser, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(sign_in, "monotonic", lambda: now[0])
    guesser, neighbour = browser(enters=False, number=0xAAAA), browser(enters=False)
    answers = [form(guesser, f"guess-{n}") for n in range(sign_in.FREE_GUESSES)]
    assert {answer.status_code for answer in answers} == {401}
    # Then not even the right one is compared, in whatever way it comes.
    ways = {
        "form": lambda: form(guesser, TOKEN),
        "link": lambda: guesser.get(f"/?token={TOKEN}"),
        "header": lambda: guesser.get("/api/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"}),
        "cookie": lambda: guesser.get("/api/v1/runs", headers={"Cookie": f"telescope-{PORT}=x"}),
    }
    for name, way in ways.items():
        answer = way()
        assert (name, answer.status_code, "set-cookie" in answer.headers) == (name, 429, False)
        assert 1 <= int(answer.headers["retry-after"]) <= 2
    # One machine has a whole network of IPv6; the others are not kept waiting.
    elsewhere = browser(enters=False, number=0xAAAA)
    assert form(elsewhere, TOKEN).status_code == 429
    assert form(neighbour, TOKEN).status_code == 303
    # One guess in two seconds is left, for ever.
    now[0] += 2.0
    assert form(guesser, "guess").status_code == 401
    assert form(guesser, "guess").status_code == 429
    now[0] += 2.0
    assert form(guesser, TOKEN).status_code == 303


def test_guesses_do_not_lock_out_a_class_behind_one_address(browser):
    students = [browser(number=0xBBBB) for _ in range(3)]
    guesser = browser(enters=False, number=0xBBBB)
    while form(guesser, "guess").status_code != 429:
        pass
    assert [student.get("/api/v1/runs").status_code for student in students] == [200] * 3


def test_a_cookie_of_another_token_counts_and_is_refused(browser):
    old = Guard.at("another-token", PORT, ()).cookie_value
    stranger = browser(enters=False)
    answers = [stranger.get("/", headers=PAGE | {"Cookie": f"telescope-{PORT}={old}"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [401] * 3
    assert "This is not the token" not in answers[0].text  # nothing was typed


@pytest.mark.parametrize(
    ("token", "part"),
    [("short", "8 to 128"), ("with space in it", "8 to 128"), ("größe-im-wald", "8 to 128"), ("a" * 129, "8 to 128"),
     ("abababababab", "different letters"), ("12121212", "different letters"), ("", "8 to 128")],
)  # fmt: skip
def test_weak_tokens_are_refused(token, part, command):
    code, printed, complaint = command("serve", "--token", token)
    assert (code, printed) == (2, "")
    assert part in complaint
    assert complaint.count("\n") == 1
    assert not token or token not in complaint


# ------------------------------------------------------------------------------------------------------------- names


def test_names_of_a_proxy_are_accepted_as_they_are_given(browser):
    student = browser()
    names = {"Host": "school.example", "Origin": "https://school.example"}
    assert student.get("/api/v1/runs", headers=names).status_code == 200
    for host in ("evil.example", "school.example.evil.example", f"school.example:{PORT}", "www.school.example"):
        assert code(student.get("/api/v1/runs", headers={"Host": host})) == "bad-host"
    for origin in ("http://school.example", "https://school.example:444", "https://evil.example"):
        assert code(student.get("/api/v1/runs", headers={"Host": HOST, "Origin": origin})) == "bad-origin"


def test_names_that_are_added():
    assert links.origins_of("School.Example") == ["http://school.example", "https://school.example"]
    assert links.origins_of("https://school.example:8443/") == ["https://school.example:8443"]
    assert links.origins_of("[2001:db8::7]:80") == ["http://[2001:db8::7]:80", "https://[2001:db8::7]:80"]
    assert [links.is_bare(name) for name in ("a.example", "a.example:80", "http://a.example")] == [True, False, False]
    for wrong in (
        "",
        "*",
        "*.example",
        "a b",
        "https://",
        "ftp://a",
        "a/b",
        "a@b",
        "a:port",
        "http://a/b",
        "\u0430.example",
    ):
        with pytest.raises(ValueError, match="is not a name such as"):
            links.origins_of(wrong)


def test_an_address_that_the_machine_gets_later_is_accepted(api, monkeypatch):
    """A laptop is carried into another network; names, which could be foreign, are never added."""
    now, own = [100.0], ["192.168.7.20"]
    monkeypatch.setattr("telescope.explorer.guard.monotonic", lambda: now[0])
    guard = Guard.at(TOKEN, PORT, ("127.0.0.1",), addresses_now=lambda: own)
    client = TestClient(app(api, guard), base_url=f"http://{HOST}")

    def status(host):
        return client.get("/healthz", headers={"Host": host, "Origin": f"http://{host}"}).status_code

    assert [status(f"192.168.7.20:{PORT}"), status("192.168.7.20"), status(f"10.0.0.9:{PORT}")] == [200, 403, 403]
    own[:] = ["10.0.0.9"]
    now[0] += 10
    assert [status(f"10.0.0.9:{PORT}"), status(f"192.168.7.20:{PORT}"), status(HOST)] == [200, 403, 200]
    assert [status(f"evil.example:{PORT}"), status(""), status(f":{PORT}")] == [403, 403, 403]


def test_a_qr_code_is_dark_on_light_and_fits_a_terminal():
    pytest.importorskip("segno", reason="the serve extra is not installed")
    drawn = links.qr_code("http://192.168.178.120:8000/?token=orion-3-sirius", 80)
    lines = drawn.splitlines()
    assert all(line.startswith("\x1b[38;5;16;48;5;231m") and line.endswith("\x1b[0m") for line in lines)
    rows = [line[len("\x1b[38;5;16;48;5;231m") : -len("\x1b[0m")] for line in lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows[0]) <= 80
    assert len(rows) <= 23  # a terminal of 24 lines
    # The code is read again: two modules to a character, and the finder patterns in three corners.
    dark = [[one in pair for one in pairs] for row in rows for pair in ("▀█", "▄█") for pairs in [row]]
    finder = ["1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111"]
    size = len(rows[0]) - 4
    for top, left in ((2, 2), (2, 2 + size - 7), (2 + size - 7, 2)):
        assert ["".join(str(int(one)) for one in row[left : left + 7]) for row in dark[top : top + 7]] == finder
    assert not any(any(row[:2]) or any(row[-2:]) for row in dark)
    assert links.qr_code("http://192.168.178.120:8000/?token=orion-3-sirius", 20) is None


# -------------------------------------------------------------------------------------------------------- whose runs


def test_a_run_is_known_to_the_browser_that_made_it(browser):
    one, two = browser(), browser()
    run = read(one, "Good morning.")
    assert (runs(one), runs(two)) == (["Good morning."], [])
    for path in ("", "/start", "/heads?l=0", "/tiles/0/0/0?l=0&h=0", "/export?l=0&h=0", "/output?i=0"):
        assert one.get(f"/api/v1/runs/{run}{path}").status_code in (200, 400)
        refused = two.get(f"/api/v1/runs/{run}{path}")
        assert (refused.status_code, code(refused)) == (404, "unknown-run")
    # Nor does an answer tell that another has it: the words are those for a run that nobody made.
    unknown = two.get("/api/v1/runs/s000000000000").json()["error"]["message"]
    refused = two.get(f"/api/v1/runs/{run}").json()["error"]["message"]
    assert refused == unknown.replace("s000000000000", run)
    # Whoever types the same text has the same run.
    assert read(two, "Good morning.") == run
    assert runs(two) == ["Good morning."]
    assert two.get(f"/api/v1/runs/{run}/start").status_code == 200


def test_a_tag_of_another_browser_tells_nothing(browser):
    one, two = browser(), browser()
    run = read(one, "How are you?")
    tag = one.get(f"/api/v1/runs/{run}").headers["etag"]
    assert one.get(f"/api/v1/runs/{run}", headers={"If-None-Match": tag}).status_code == 304
    assert two.get(f"/api/v1/runs/{run}", headers={"If-None-Match": tag}).status_code == 404


def test_edited_examples_are_a_browsers_own(browser):
    one, two = browser(), browser()
    body = {"example": "journey", "inputs": {"W_q": [[0, 0], [1, 0], [0, 2]]}}
    run = one.post("/api/v1/runs", json=body).json()["run"]
    assert one.get(f"/api/v1/runs/{run}").status_code == 200
    # Its name holds its numbers, so that a link to it opens everywhere; only the list is one's own.
    assert (
        two.get(f"/api/v1/runs/{run}").json()["example"]["inputs"]
        == one.get(f"/api/v1/runs/{run}").json()["example"]["inputs"]
    )
    assert run not in [listed["run"] for listed in two.get("/api/v1/runs").json()["runs"]]


@pytest.mark.parametrize("cookie", ["", "short", "x" * 65, "a b" * 10, "../" * 10, "é" * 30, "%0d%0aX:y" + "x" * 20])
def test_a_strange_id_of_a_browser_is_replaced(browser, cookie):
    student = browser()
    own = f"telescope-{PORT}={Guard.at(TOKEN, PORT, ()).cookie_value}"
    student.cookies.clear()
    sent = f"{own}; telescope-{PORT}-browser={cookie}".encode()
    response = student.get("/", headers={"Cookie": sent})
    assert response.status_code == 200
    assert re.fullmatch(
        rf"telescope-{PORT}-browser=[A-Za-z0-9_-]{{22}}; HttpOnly; Path=/; SameSite=strict",
        response.headers["set-cookie"],
    )


def test_programs_have_a_list_of_their_own(browser):
    student, program = browser(), browser(enters=False)
    program.headers["Authorization"] = f"Bearer {TOKEN}"
    read(program, "I am tired.")
    assert (runs(program), runs(student)) == (["I am tired."], [])
    assert "set-cookie" not in program.get("/api/v1/runs").headers


def test_what_python_made_is_known_to_all(api, browser):
    run = api.library.read("Good morning.", "learnt", "Guten Morgen.").name
    student = browser()
    assert student.get(f"/api/v1/runs/{run}").json()["target"] == "Guten Morgen."
    assert runs(student) == ["Good morning."]


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.fixture
def readings(monkeypatch):
    """Count how often a model reads, in a library of its own."""
    library = Library({"learnt": writers.learnt(), "gpt": writers.gpt(max_positions=64)})
    made = []
    plain = sentences.Sentences._run

    def noted(self, name, make):
        return plain(self, name, lambda: (made.append(name), make())[1])

    monkeypatch.setattr(sentences.Sentences, "_run", noted)
    return library, made


def small(library, capacity, most=2**40):
    library.sentences._runs = LruCache(capacity, most, sentences.run_bytes)


def test_a_run_that_was_dropped_is_made_again(readings):
    library, made = readings
    small(library, 2)
    texts = [f"to be {'be ' * n}" for n in range(5)]
    names = [library.read(text, "gpt", browser="one").name for text in texts]
    assert len(library.sentences._runs.keys()) == 2
    assert [run.text for run in library.describe_runs("one").runs] == texts[::-1]
    del made[:]
    assert [library.run(name, "one").text for name in names] == texts
    assert made == names[:3] + names[3:]  # each one was dropped by the others before its turn
    with pytest.raises(Refusal, match="there is no run"):
        library.run(names[0], "two")


def test_an_edited_example_is_made_again(readings):
    library, _ = readings
    small(library, 1)
    body = {"example": "journey", "inputs": {"W_q": [[0, 0], [1, 0], [0, 2]]}}
    run = library.make_example(body, "one")
    weights = Api(library).ask(f"/runs/{run.name}/trace", l=0, h=0, i=1)
    library.read("to be", "gpt", browser="one")
    assert not library.sentences.is_ready(run.name)
    assert Api(library).ask(f"/runs/{run.name}/trace", l=0, h=0, i=1) == weights


def test_many_who_ask_for_a_dropped_run_make_it_once(readings):
    library, made = readings
    small(library, 1)
    name = library.read("to be or not", "gpt", browser="one").name
    library.read("to be", "gpt", browser="two")
    library.sentences._note("two", name)
    del made[:]
    found = []
    threads = [Thread(target=lambda who=who: found.append(library.run(name, who))) for who in ("one", "two") * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [name]
    assert len({id(run) for run in found}) == 1
    assert len(found) == 16


def test_runs_are_bounded_by_their_bytes(readings):
    library, _ = readings
    one = sentences.run_bytes(library.read("to be or not to be", "gpt"))
    assert one > 10_000
    small(library, 1000, 3 * one)
    for n in range(12):
        library.read("to be or not to be " + "be " * n, "gpt")
        held = [sentences.run_bytes(run) for run in library.sentences._runs]
        assert sum(held) <= 3 * one
        assert held
    small(library, 1000, one // 2)  # the run that is looked at stays, whatever it takes
    library.read("to be or not to be", "gpt")
    assert len(library.sentences._runs.keys()) == 1


def test_the_bytes_of_a_run_are_those_of_its_tensors_without_the_model():
    run = Library({"gpt": writers.gpt(max_positions=64)}).read("to be or not to be")
    kept = sum(one.nbytes for view in run.views for one in (view.call.queries, view.call.keys, view.call.values))
    assert kept < sentences.run_bytes(run) < 20 * kept
    bare = Library({"gpt": writers.gpt(max_positions=64)}).read("to be or not to be")
    bare.output.model.register_buffer("more", torch.zeros(10**6))
    assert sentences.run_bytes(bare) == sentences.run_bytes(run)


def test_a_model_that_is_dropped_takes_its_runs_along(tmp_path, monkeypatch):
    """A run keeps its model in memory: three models of one place each would all stay."""
    models = {}
    for name in ("one", "two", "three"):
        models[name] = tmp_path / name
        writers.gpt(max_positions=64).save(models[name])
    library = Library(models)
    library._loaded = LruCache(2)
    runs = [library.read("to be", name, browser="me").name for name in models]
    assert [library.sentences.is_ready(name) for name in runs] == [False, True, True]
    assert library.run(runs[0], "me").text == "to be"


def test_many_browsers_and_sentences_are_bounded(readings, monkeypatch):
    library, _ = readings
    monkeypatch.setattr(sentences, "MOST_BROWSERS", 3)
    monkeypatch.setattr(sentences, "MOST_OF_BROWSER", 2)
    shared = library.read("to be", "gpt").name
    for browser in "abcde":
        for text in ("to", "be", "or"):
            library.read(text, "gpt", browser=browser)
    assert len(library.sentences._names) == 3
    assert [run.text for run in library.describe_runs("e").runs] == ["or", "be", "to be"]
    assert [run.text for run in library.describe_runs("a").runs] == ["to be"]
    assert library.run(shared, "a").text == "to be"


# ------------------------------------------------------------------------------------------------------------- turns


async def forever():
    await asyncio.Event().wait()


def test_browsers_take_turns():
    """One browser sends twenty requests; the one that comes last does not wait for them."""
    order = []

    async def ask(turns, browser, reads=False):
        async with turns.slot(browser, reads=reads):
            order.append(browser)
            await asyncio.sleep(0)

    async def held():
        turns = Turns(1, 1)
        many = [asyncio.ensure_future(ask(turns, "flood")) for _ in range(20)]
        await asyncio.sleep(0)
        few = [asyncio.ensure_future(ask(turns, name)) for name in ("a", "b", "a")]
        await asyncio.gather(*many, *few)
        assert (turns._free, turns._queues) == (1, {})

    finished(held())
    assert len(order) == 23
    assert order.index("a") <= 4
    assert order.index("b") <= 4


def test_questions_do_not_wait_for_sentences():
    order = []

    async def ask(turns, browser, reads):
        async with turns.slot(browser, reads=reads):
            order.append((browser, reads))
            await asyncio.sleep(0.2 if reads else 0)

    async def held():
        turns = Turns(2, 1)
        reading = [asyncio.ensure_future(ask(turns, name, True)) for name in "abc"]
        await asyncio.sleep(0.01)
        await asyncio.gather(*(ask(turns, name, False) for name in "abd"))
        assert [reads for _, reads in order] == [True, False, False, False]
        await asyncio.gather(*reading)

    finished(held())


def test_who_leaves_the_queue_gives_up_the_place():
    async def held():
        turns = Turns(1, 1)

        async def hold(seconds):
            async with turns.slot("one", reads=True):
                await asyncio.sleep(seconds)

        holding = asyncio.ensure_future(hold(0.1))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(hold(0)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting[:4]:
            task.cancel()
        await asyncio.gather(holding, waiting[4], *waiting[:4], return_exceptions=True)
        assert (turns._free, turns._free_to_read, turns._queues) == (1, 1, {})

    finished(held())


def test_400_requests_at_once_are_answered_or_refused_politely():
    """Of one browser, a share waits; the rest is told to come again, and nobody else is."""

    def compute(has_left):
        sleep(0.002)
        return "answer"

    async def held():
        work = Computing(2)

        async def ask(browser):
            try:
                return await work.run(forever_receive, compute, browser)
            except Refusal as refusal:
                return (refusal.status, refusal.code)

        async def forever_receive():
            await forever()

        began = monotonic()
        many = [asyncio.ensure_future(ask("flood")) for _ in range(400)]
        await asyncio.sleep(0.01)
        others = await asyncio.gather(*(ask(f"student-{n}") for n in range(39)))
        took = monotonic() - began
        found = await asyncio.gather(*many)
        assert work._waiting == {}
        return found, others, took

    found, others, took = finished(held())
    assert others == ["answer"] * 39
    assert found.count("answer") == computing.MOST_OF_ONE
    assert found.count((503, "busy")) == 400 - computing.MOST_OF_ONE
    assert took < 5


def test_a_refusal_says_when_to_come_again(api, browser, monkeypatch):
    monkeypatch.setattr(computing, "MOST_OF_ONE", 0)
    response = browser().get("/api/v1/runs")
    assert (response.status_code, response.headers["retry-after"], code(response)) == (503, "1", "busy")


def test_a_reading_is_told_from_a_question(api):
    run = json.loads(api.answer("POST", "/runs", {}, b'{"text": "to be", "model": "gpt"}', browser="me").body)["run"]
    assert api.reads("POST", "/runs", "me")
    asked = (
        "/runs",
        f"/runs/{run}",
        f"/runs/{run}/start",
        "/runs/nobody",
        "/runs/run",
        "/runs/example-bank",
        "/models",
    )
    assert [path for path in asked if api.reads("GET", path, "me")] == []
    api.library.sentences._runs.drop(lambda held: held.name == run)
    assert [path for path in asked if api.reads("GET", path, "me")] == [f"/runs/{run}", f"/runs/{run}/start"]
    assert not api.reads("GET", f"/runs/{run}", "another")
