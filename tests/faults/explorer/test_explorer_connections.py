"""Clients that stall, on real sockets: they delay no other client, and their connections are closed."""

import json
import socket
from contextlib import ExitStack, contextmanager
from threading import Thread
from time import monotonic, sleep

import pytest
import uvicorn

from support.exploring import recorded, serving
from telescope.explorer import server as connections
from telescope.explorer.app import app
from telescope.explorer.computing import MOST_WAITING
from telescope.explorer.guard import Guard
from telescope.explorer.server import uvicorn_config

TOKEN = "a-secret-of-24-bytes"
BODY = b'{"text": "Good morning."}'


@contextmanager
def served(body_seconds=10.0, wait=0.0, room=None):
    """Yield the port of a server in a thread; its answers take `wait` seconds, and the system holds `room` of them."""
    api, _ = serving(recorded(12))
    answer = api.answer
    api.answer = lambda *request: (sleep(wait), answer(*request))[1]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if room is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        bound.listen(256)
        port = bound.getsockname()[1]
        guard = Guard.at(TOKEN, port, ("127.0.0.1",))
        server = uvicorn.Server(uvicorn_config(app(api, guard, body_seconds=body_seconds)))
        thread = Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive()


@contextmanager
def connected(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        yield line


def head(port, method="GET", path="/api/v1/runs", *more):
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def posted(port, length):
    return head(port, "POST", "/api/v1/runs", "Content-Type: application/json", f"Content-Length: {length}")


def until_closed(line):
    """Return everything that arrives before the server closes the connection."""
    parts = []
    while part := line.recv(65536):
        parts.append(part)
    return b"".join(parts)


def request(port):
    """Return the status of a complete request, and how long it took."""
    began = monotonic()
    with connected(port) as line:
        line.sendall(head(port, "GET", "/api/v1/runs", "Connection: close"))
        return int(until_closed(line).split()[1]), monotonic() - began


def test_missing_bodies_do_not_block_other_clients():
    seconds = 4.0
    with served(body_seconds=seconds) as port, ExitStack() as open_lines:
        lines = [open_lines.enter_context(connected(port)) for _ in range(MOST_WAITING + 12)]
        began = monotonic()
        for line in lines:
            line.sendall(posted(port, len(BODY)) + BODY[:5])
        status, took = request(port)
        assert status == 200
        assert monotonic() - began < seconds, took  # while all of them still wait
        answers = [until_closed(line) for line in lines]
        assert {int(answer.split()[1]) for answer in answers} == {408}
        error = json.loads(answers[0].partition(b"\r\n\r\n")[2])["error"]
        assert error.pop("request") in answers[0].partition(b"\r\n\r\n")[0].decode()
        assert error == {"code": "slow", "message": "the body did not arrive within 4 seconds; send it without a pause"}
        assert request(port)[0] == 200


def test_a_body_in_pieces_is_read():
    with served() as port, connected(port) as line:
        line.sendall(posted(port, len(BODY)))
        for piece in (BODY[:5], BODY[5:]):
            sleep(0.1)
            line.sendall(piece)
        assert line.recv(65536).startswith(b"HTTP/1.1 422 ")  # there is no model here to read it


@pytest.mark.parametrize("sent", ["nothing", "half a header", "a request", "without the token"])
def test_idle_connections_are_closed(sent, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1.0)
    with served() as port, connected(port) as line:
        line.sendall(
            {
                "nothing": b"",
                "half a header": head(port)[:-2],
                "a request": head(port),
                "without the token": posted(port, 100).replace(TOKEN.encode(), b"wrong") + b"{",
            }[sent]
        )
        began = monotonic()
        until_closed(line)
        assert monotonic() - began < 10.0
        assert request(port)[0] == 200


def test_a_client_that_waits_for_an_answer_stays_connected(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.4)
    with served(wait=1.5) as port:
        status, took = request(port)
        assert status == 200
        assert took > 1.4


def test_an_answer_that_is_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 2.0)
    held = []
    made = connections.Connection.connection_made
    monkeypatch.setattr(
        connections.Connection, "connection_made", lambda self, line: (held.append(self), made(self, line))
    )
    with served(room=4096) as port, socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port))
        line.sendall(head(port, "GET", "/api/v1/runs/run/export?l=0&h=0&i=0&format=html"))
        began = monotonic()
        while not held or not held[0].transport.get_write_buffer_size():
            assert monotonic() - began < 20
            sleep(0.01)
        while held[0] in held[0].connections:  # uvicorn's set of those that are open
            assert monotonic() - began < 30
            sleep(0.01)
