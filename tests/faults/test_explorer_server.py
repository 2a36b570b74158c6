"""`telescope serve` as a process: it says its link, holds many clients, and ends at Ctrl-C."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

import writers
from exploring import recorded

CLIENTS, SECONDS = 64, float(os.environ.get("TELESCOPE_LOAD_SECONDS", "2"))


@contextmanager
def serving(*arguments):
    command = [sys.executable, "-m", "telescope.cli", "serve", *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            link = process.stdout.readline().strip()
            assert link.startswith("http://"), process.stderr.read()
            yield process, link
        finally:
            process.kill()


class Client:
    """One connection that stays open, as a browser's does, until the block is left."""

    def __init__(self, link):
        self.host, self.path, self.token = re.fullmatch(r"http://([^/]+)(/.*?)[?&]token=(.+)", link).groups()
        self.line = http.client.HTTPConnection(self.host, timeout=60)

    def __enter__(self):
        assert self.ready()
        return self

    def __exit__(self, *_):
        self.line.close()

    def get(self, path):
        self.line.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        response = self.line.getresponse()
        return response.status, response.read(), response

    def ready(self):
        for _ in range(400):
            try:
                return self.get("/healthz")[0] == 200
            except OSError:
                self.line.close()
                sleep(0.02)
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    recorded(3000).save(place / "long.telescope")
    recorded(12, keep="steps").save(place / "short.telescope")
    return place


def memory(process):
    """What is its own, in MiB; files that are mapped are given back when others need the room."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_64_clients_at_once(folder, capsys):
    """Nothing is lost, every answer is right, and memory stays where it is."""
    with serving(folder) as (process, link):
        truth, counts = {}, []

        def ask(number):
            dice, times = Random(number), []
            with Client(link) as client:
                end = monotonic() + SECONDS
                while monotonic() < end:
                    times.append(question(client, dice))
            return times

        def question(client, dice):
            z = dice.randint(0, 4)
            x, y = sorted(dice.randrange(-(-12 >> (4 - z))) for _ in range(2))
            paths = [
                f"/api/v1/runs/long/tiles/{z}/{x}/{y}?l=0&h={dice.randint(0, 1)}",
                f"/api/v1/runs/short/trace?l=0&h=0&i={dice.randrange(12)}",
                "/api/v1/runs/short/tokens?l=0&axis=k",
            ]
            path, began = dice.choice(paths), monotonic()
            status, body, response = client.get(path)
            took = monotonic() - began
            assert status == 200, body
            if response.headers.get("X-Exact") != "0":
                assert truth.setdefault(path, body) == body
            return took

        with ThreadPoolExecutor(CLIENTS) as pool:
            warm = memory(process)
            for times in pool.map(ask, range(CLIENTS)):
                counts.append(times)
            first = memory(process)
            list(pool.map(ask, range(CLIENTS, 2 * CLIENTS)))
        every = sorted(time for times in counts for time in times)
        assert min(map(len, counts)) > 0
        p99 = every[int(0.99 * len(every))]
        grown = memory(process) - first
        with capsys.disabled():
            print(f"\n{CLIENTS} clients, {SECONDS:g} s: {len(every)} answers, p50 {every[len(every) // 2]:.3f} s, "
                  f"p99 {p99:.3f} s; {warm:.0f} MiB before, {first:.0f} after, {grown:+.0f} once more")  # fmt: skip
        assert grown < 100
        assert process.poll() is None


def test_ctrl_c_frees_the_port(folder):
    with serving(folder / "long.telescope") as (process, link), Client(link) as client:
        port = int(client.host.rpartition(":")[2])
        assert client.get("/api/v1/runs")[0] == 200  # a line that is still open
        began = monotonic()
        process.send_signal(signal.SIGINT)
        while True:
            try:
                with socket.socket() as other:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # lines that ended a moment ago linger
                    other.bind(("127.0.0.1", port))
                    other.listen()
                break
            except OSError:
                assert monotonic() - began < 2.0
                sleep(0.02)
        assert process.wait(timeout=10) == 0
        assert process.stderr.read() == ""


def test_a_recording_opens_at_once_and_a_link_leads_to_it(folder):
    with serving(folder / "long.telescope") as (_, link), Client(link) as client:
        assert client.path == "/s/long/heads"
        began = monotonic()
        status, body, _ = client.get("/api/v1/runs")
        assert status == 200
        assert monotonic() - began < 2.0
        (run,) = json.loads(body)["runs"]
        assert (run["title"], run["attentions"][0]["n_q"]) == ("long", 3000)


def test_a_port_that_is_taken(folder, command):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, _, said = command("serve", str(folder), "--port", str(other.getsockname()[1]))
    assert code == 2
    assert "cannot be used" in said
    assert "--port 0" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "no recording"),
        (["--port", "70000"], "65535"),
        ([], None),
    ],
)
def test_what_cannot_be_served_is_said(arguments, part, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("telescope.explorer.server.serve", lambda library, **_: print(list(library.models)))
    code, _, said = command("serve", *arguments)
    if part is None:
        assert (code, said) == (0, "")
    else:
        assert code == 2
        assert part in said
        assert said.startswith("telescope: ")


def test_a_network_is_opened_with_a_warning(folder, monkeypatch, capsys):
    from telescope.explorer import server

    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    said = []
    server.serve(server.Library({}), host="0.0.0.0", say=said.append)
    assert "open to the network" in capsys.readouterr().err
    server.serve(server.Library({}), say=said.append)
    assert capsys.readouterr().err == ""
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", said[1])  # 192 bits


def test_a_sentence_is_opened_in_a_browser(command, monkeypatch, tmp_path):
    writers.learnt().save(tmp_path / "learnt")
    opened = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setattr("webbrowser.open", opened.append)
    code, out, said = command("explain", writers.NOTES, "--model", str(tmp_path / "learnt"), "--open", "--query", "saw")
    assert (code, said) == (0, "")
    assert opened == [out.strip()]
    assert re.search(r"/s/s[0-9a-f]{12}/walk\?l=0&h=0&i=3&token=", out)
    code, _, said = command("explain", "--open")
    assert code == 2
    assert "a sentence of your own" in said
    code, _, said = command("explain", "Good", "--model", str(tmp_path / "learnt"), "--open", "--query", "bad")
    assert code == 2
    assert 'no word is "bad"' in said
