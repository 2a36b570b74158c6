"""`telescope serve` as a process: it says its link, holds many clients, and ends at Ctrl-C."""

import json
import logging
import re
import signal
import socket
from pathlib import Path
from time import monotonic, sleep

import pytest

import writers
from exploring import recorded

pytest.importorskip("starlette", reason="the serve extra is not installed")
pytest.importorskip("uvicorn", reason="the serve extra is not installed")


@pytest.fixture
def bench(monkeypatch):
    """The benchmark serves and asks as these tests do, for a minute."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks import explore

    return explore


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    recorded(3000).save(place / "long.telescope")
    recorded(12, keep="steps").save(place / "short.telescope")
    return place


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_64_clients_at_once(folder, bench):
    """Nothing is lost, every answer is right, and memory stays where it is."""

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
        told = bench.load(server, 4.0, paths)
        assert server.process.poll() is None
    assert told.problems == []
    assert len(told.times) > bench.CLIENTS
    assert told.mib[1] - told.mib[0] < 100


def test_ctrl_c_frees_the_port(folder, bench):
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


def test_a_recording_opens_at_once_and_a_link_leads_to_it(folder, bench):
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
    code, told, said = command("serve", str(tmp_path))
    assert (code, told) == (0, "['one']\n")
    assert said.count("\n") == 1
    assert "broken.telescope/0.safetensors does not exist" in said
    code, told, said = command("serve", str(tmp_path / "broken.telescope"))
    assert (code, told) == (2, "")
    assert "broken.telescope/0.safetensors does not exist" in said


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
        (["."], "not a recording"),
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
    assert re.search(r"/s/s[0-9a-f]{12}/walk\?i=3&token=", out)  # layer and head are left to each screen
    code, out, _ = command("explain", writers.NOTES, "--model", str(tmp_path / "learnt"), "--open", "--head", "1")
    assert code == 0
    assert re.search(r"/walk\?h=1&i=\d+&token=", out)
    code, _, said = command("explain", "--open")
    assert code == 2
    assert "a sentence of your own" in said
    code, _, said = command("explain", "Good", "--model", str(tmp_path / "learnt"), "--open", "--query", "bad")
    assert code == 2
    assert 'no word is "bad"' in said


def test_the_logging_of_others_is_left_alone(monkeypatch):
    """absl's handler, which rouge-score brings, would close the stream that it was made with."""
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
