"""`telescope serve` as a process: it prints its link, serves many clients, and ends at Ctrl-C."""

import json
import logging
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest
from benchmarks import explore as bench  # it starts the server and sends requests as these tests do

from support import writers
from support.exploring import recorded

pytest.importorskip("starlette", reason="the serve extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    recorded(3000).save(place / "long.telescope")
    recorded(12, keep="steps").save(place / "short.telescope")
    return place


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_64_clients_at_once(folder):
    """No request is lost, every answer is right, and memory does not grow."""

    def paths(dice):
        z = dice.randint(0, 4)
        x, y = sorted(dice.randrange(-(-12 >> (4 - z))) for _ in range(2))
        return dice.choice(
            [
                f"/api/v1/runs/long/tiles/{z}/{x}/{y}?l=0&h={dice.randint(0, 1)}",
                f"/api/v1/runs/short/trace?l=0&h=0&i={dice.randrange(12)}",
                "/api/v1/runs/short/tokens?l=0&axis=k",
            ]
        )

    with bench.serving(folder) as server:
        printed = bench.load(server, 4.0, paths)
        assert server.process.poll() is None
    assert printed.problems == []
    assert len(printed.times) > bench.CLIENTS
    assert printed.mib[1] - printed.mib[0] < 100


def test_ctrl_c_frees_the_port(folder):
    with bench.serving(folder / "long.telescope") as server, bench.Client(server) as client:
        process, port = server.process, int(server.host.rpartition(":")[2])
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


BUSY = """
import os, sys, threading, time, torch
from telescope.explorer import server
def compute(*request):
    os.write(1, b"computing\\n")  # at once: two threads say it
    began = time.monotonic()
    while time.monotonic() < began + 60:
        {work}
server.Api.answer = compute
server.Library.warm_up = lambda self, stopped: None
server.serve(server.Library({{}}), say=lambda link: print(link, flush=True), log=lambda line: print(line, flush=True))
"""
WORK = {"in Python": "sum(range(10_000))", "in torch": "torch.randn(900, 900) @ torch.randn(900, 900)"}


@pytest.mark.parametrize("work", WORK)
def test_ctrl_c_ends_whatever_is_being_computed(work):
    """Two answers are computed, a third is queued, and one client has not sent all of its body."""
    command = [sys.executable, "-c", BUSY.format(work=WORK[work])]
    with ExitStack() as opened:
        process = opened.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        opened.callback(process.kill)
        host, port, token = re.match(r"http://(.+):(\d+)/\?token=(.+)", process.stdout.readline()).groups()
        key = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        asked = f"GET /api/v1/runs HTTP/1.1\r\n{key}\r\n"
        unsent = f"POST /api/v1/runs HTTP/1.1\r\n{key}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
        for request in (asked, asked, asked, unsent):
            line = opened.enter_context(socket.create_connection((host, int(port))))
            line.sendall(request.encode())
        assert process.stdout.readline() == "computing\n"
        sleep(0.5)
        began = monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        took = monotonic() - began
        assert process.stderr.read() == ""
        assert took < 2.0  # half a second where little else runs
        logged = [line for line in process.stdout.read().splitlines() if " /api/" in line]
    assert [line.split()[5] for line in logged] == ["499"] * 4


def test_a_recording_opens_at_once_and_a_link_leads_to_it(folder):
    with bench.serving(folder / "long.telescope") as server, bench.Client(server) as client:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/s/long/heads\?token=[\w-]{32}", server.link)
        began = monotonic()
        status, body, _ = client.get("/api/v1/runs")
        assert status == 200
        assert monotonic() - began < 2.0
        (run,) = json.loads(body)["runs"]
        assert (run["title"], run["attentions"][0]["n_q"]) == ("long", 3000)


def test_a_broken_recording_is_named_and_the_others_are_served(tmp_path, command, monkeypatch):
    for name in ("one", "broken", ".one.new-0123abcd"):
        recorded(12).save(tmp_path / f"{name}.telescope")
    (tmp_path / "broken.telescope" / "0.safetensors").unlink()
    (tmp_path / ".one.new-0123abcd.telescope" / "0.safetensors").unlink()
    monkeypatch.setattr("telescope.explorer.server.serve", lambda library, **_: print(list(library.recordings)))
    code, printed, complaint = command("serve", str(tmp_path))
    assert (code, printed) == (0, "['one']\n")
    assert complaint.count("\n") == 1
    assert "broken.telescope/0.safetensors does not exist" in complaint
    code, printed, complaint = command("serve", str(tmp_path / "broken.telescope"))
    assert (code, printed) == (2, "")
    assert "broken.telescope/0.safetensors does not exist" in complaint


def test_a_port_that_is_taken(folder, command):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, _, complaint = command("serve", str(folder), "--port", str(other.getsockname()[1]))
    assert code == 2
    assert "cannot be used" in complaint
    assert "--port 0" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "not a recording"),
        (["--port", "70000"], "65535"),
        ([], None),
    ],
)
def test_paths_that_cannot_be_served_are_named(arguments, part, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("telescope.explorer.server.serve", lambda library, **_: print(list(library.models)))
    code, _, complaint = command("serve", *arguments)
    if part is None:
        assert (code, complaint) == (0, "")
    else:
        assert code == 2
        assert part in complaint
        assert complaint.startswith("telescope: ")


def test_serving_to_the_network_logs_a_warning(folder, monkeypatch, caplog):
    from telescope.explorer import server

    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    complaint = []
    server.serve(server.Library({}), host="0.0.0.0", say=complaint.append)
    assert "open to the network" in caplog.text
    caplog.clear()
    server.serve(server.Library({}), say=complaint.append)
    assert caplog.text == ""
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", complaint[-1])  # 192 bits


def test_a_sentence_is_opened_in_a_browser(command, monkeypatch, tmp_path):
    writers.learnt().save(tmp_path / "learnt")
    opened = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setattr("webbrowser.open", opened.append)
    code, out, complaint = command(
        "explain", writers.NOTES, "--model", str(tmp_path / "learnt"), "--open", "--query", "saw"
    )
    assert (code, complaint) == (0, "")
    assert opened == [out.strip()]
    assert re.search(r"/s/s[0-9a-f]{12}/walk\?i=3&token=", out)  # layer and head are left to each screen
    code, out, _ = command("explain", writers.NOTES, "--model", str(tmp_path / "learnt"), "--open", "--head", "1")
    assert code == 0
    assert re.search(r"/walk\?h=1&i=\d+&token=", out)
    code, out, _ = command("explain", "--example", "bank", "--open")
    assert code == 0
    assert "/s/example-bank/geometry?token=" in out
    for table in ("variance", "positions"):
        code, out, _ = command("explain", "--example", table, "--open")
        assert code == 0
        assert f"/{table}?token=" in out
    code, _, complaint = command("explain", "--example", "bonk", "--open")
    assert code == 2
    assert 'there is no example "bonk"' in complaint
    code, _, complaint = command("explain", "Good", "--model", str(tmp_path / "learnt"), "--open", "--query", "bad")
    assert code == 2
    assert 'no word is "bad"' in complaint


def test_logging_handlers_of_other_libraries_are_kept(monkeypatch):
    """absl's handler, which rouge-score installs, would close the stream that it was made with."""
    from telescope.explorer import server

    class Handler(logging.Handler):
        closed = False

        def close(self):
            self.closed = True
            super().close()

    theirs = Handler()
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    server.serve(server.Library({}), say=lambda link: None)
    assert not theirs.closed
