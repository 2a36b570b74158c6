"""Random requests on every route of the explorer, through the real application: each is answered or
refused.

A request that the page could send is changed: its parameters and the fields of its body to other
types and out of range, its path, method and headers (hosts, origins, cookies, tokens, content
types, lengths, encodings, ranges), its body cut, sent in pieces, or left unsent by a client that
leaves.

A failure is a status of 500 or more, an exception, an error that is not JSON with one sentence and
the request's id, a number that JSON does not have, an answer without the security headers, a
request that gets past the guard without the token or from another host or origin, one with all of
them that does not, and more than five seconds.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from .files.changes import STRANGE, of_bytes, of_json
from .supervisor import Done, WrongError

T = TypeVar("T")
UNIT = "requests"
SECONDS = 5.0
HUNG = 60.0
BYTES = 3 << 30
STRIDE = 5000  # a worker takes seconds to start, and a request milliseconds

TOKEN = "a-secret-of-24-bytes"
PORT = 8123
HOSTS = ("127.0.0.1", "localhost", "[::1]")
RUNS = (
    "summaries",
    "queries-keys",
    "steps",
    "batch",
    "patches",
    "example-bank",
    "example-journey",
    "example-luong",
)

# What the page sends: the parameters of each resource of a run, with values that fit.
PLACE = {"l": "0", "h": "0", "i": "2", "b": "0"}
SPAN = {"first": "2", "end": "4"}
RESOURCES: dict[str, dict[str, str]] = {
    "": {},
    "tokens": {"l": "0", "axis": "q", "start": "0", "stop": "5", "b": "0"},
    "trace": PLACE,
    "after": PLACE,
    "encoding": PLACE,
    "positions": PLACE,
    "heads": {"l": "0", "b": "0", "by": "words"},
    "geometry": {"l": "0", "b": "0", "by": "words", "start": "0", "stop": "5"},
    "alignment": {"l": "0", "h": "mean", "b": "0"},
    "sharpest": {"b": "0"},
    "answer": {"at": "1", "b": "0"},
    "sources": {
        **SPAN,
        "how": "weights",
        "by": "auto",
        "window": "400",
        "b": "0",
        "low": "0",
        "high": "5",
    },
    "hidden": {**SPAN, "start": "0", "stop": "1", "b": "0"},
    "start": {"b": "0"},
    "perspectives": PLACE,
    "output": {"i": "2", "temperature": "1", "top_k": "0", "top_p": "1"},
    "draw": {"i": "2", "temperature": "1", "top_k": "0", "top_p": "1", "seed": "7"},
    "write": {
        "after": "5,6",
        "count": "2",
        "temperature": "1",
        "top_k": "0",
        "top_p": "1",
        "seed": "7",
    },
    "whatif": {**PLACE, "edits": "scale,t:2"},
    "received": {"l": "0", "h": "0", "b": "0", "start": "0", "stop": "5"},
    "top": PLACE,
    "cell": {**PLACE, "j": "1"},
    "why": {**PLACE, "j": "1", "than": "0"},
    "writes": PLACE,
    "cells": {**PLACE, "j": "1"},
    "image": PLACE,
    "map": PLACE,
    "tiles/0/0/0": {**PLACE, "how": "share", "fmt": "f16", "effort": "1"},
    "tracks/0/0": {**PLACE, "kind": "entropy"},
    "export": {**PLACE, "start": "/s/steps/walk?l=0", "format": "json"},
}
ELSEWHERE: dict[str, dict[str, str]] = {
    "/": {},
    "/s/steps/walk": {"l": "0"},
    "/atlas/one": {},
    "/favicon.ico": {},
    "/healthz": {},
    "/explorer.js": {},
    "/api/v1/models": {},
    "/api/v1/runs": {},
    "/api/v1/variance": {"d": "64"},
    "/api/v1/positions": {"kind": "rotary", "d": "64"},
    "/api/v1/atlases": {},
    "/api/v1/atlases/one": {},
    "/api/v1/atlases/one/head": {"l": "0", "h": "1"},
    "/api/v1/atlases/one/compare/other": {},
}
BODIES: tuple[dict[str, Any], ...] = (
    {"text": "Good morning.", "model": "translator", "target": "Guten Morgen."},
    {"text": "to be", "model": "gpt"},
    {"example": "journey", "inputs": {"x": [[0.5, 0.1, 0.2]] * 6}, "normalize": "by_sum"},
    {"example": "journey", "inputs": {"W_q": [[0, 0], [0, 0], [0, 0]]}, "normalize": "by_sum"},
    {"example": "bank", "inputs": None, "normalize": "softmax"},
    {"atlas": "one", "l": 0, "h": 1, "habit": "previous", "rank": 0},
)
# Values of parameters: numbers out of range and in other scripts, words of other parameters, and
# whatever is strange.
VALUES = (
    *(str(value)[:300] for value in STRANGE),
    *(
        "１",
        "٣",
        "0x1",
        "1e3",
        " 1",
        "+1",
        "-0",
        "00",
        "1_0",
        "999999999999",
        "1" * 13,
        "3",
        "5",
        "6",
        "40",
    ),
    *(
        "mean",
        "words",
        "pieces",
        "sentences",
        "paragraphs",
        "parts",
        "q",
        "k",
        "max",
        "u8",
        "received",
        "html",
    ),
    *("carried", "rollout", "gradient", "hidden", "0.5", "0.01", "1e-9", "100", "nan", "alibi"),
    *(
        "sum",
        "mask",
        "mute",
        "scale,mask,sum,mute",
        "t:0.05",
        "t:20",
        "hide:0,hide:1,hide:2,hide:3,hide:4,hide:5",
    ),
    *(
        "sum,hide:0",
        "t:0",
        "hide:9999",
        ",,,",
        "t:٣",
        "sum," * 200,
        "0,2",
        "2,0",
        "0,0,0",
        "/s/steps/map",
        "//evil",
    ),
)
PATHS = (
    *("..", "%2e%2e", "%00", "\\", "//", "é", "\u202e", "%ED%A0%80", "a" * 3000),
    *(".", ";", "?", "#", "%", " ", "\0", "-1"),
)
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "G\tT",
    "",
    "X" * 99,
)
FOREIGN_COOKIES = (
    *(b'prefs={"theme":"dark"}', b"list[0]=a", b"flag", b"a b=c"),
    *(b"=", b'q="', b"\xff=\xfe", b"telescope-1=x"),
)
HEADERS: dict[bytes, tuple[bytes, ...]] = {
    b"content-type": (
        b"text/plain",
        b"",
        b"application/json; charset=utf-16",
        b"APPLICATION/JSON",
        b"\xff",
        b";",
    ),
    b"content-length": (b"-1", b"1e9", b"99999999999", b"", b"x", b"0", b"\xb2", b"5, 5"),
    b"content-encoding": (b"gzip", b"br", b"\xff"),
    b"transfer-encoding": (b"chunked", b"gzip, chunked"),
    b"accept-encoding": (b"gzip", b"*;q=0"),
    b"accept": (b"text/html", b"\xff"),
    b"range": (b"bytes=0-1", b"bytes=-1", b"bytes=9-1", b"x"),
    b"if-none-match": (b"*", b'"rev"', b'W/"rev"', b'"a", "rev"', b"\xff"),
    b"if-modified-since": (b"yesterday",),
    b"expect": (b"100-continue",),
    b"upgrade": (b"websocket", b"h2c"),
    b"x-forwarded-host": (b"evil.example",),
    b"x-request-id": (b"mine", b"\xff"),
    b"forwarded": (b"host=evil.example",),
}
BAD_HOSTS = (
    *(
        b"evil.example",
        b"",
        b"127.0.0.1",
        b"localhost:1",
        b"0.0.0.0:8123",
        b"\xff:8123",
        b"[::]:8123",
        b" localhost:8123",
    ),
    *(
        b"localhost:8123.evil.example",
        b"evil.example@localhost:8123",
        b"localhost:08123",
        b"localhost.:8123",
    ),
)
BAD_ORIGINS = (
    b"null",
    b"",
    b"https://localhost:8123",
    b"http://localhost",
    b"http://evil.example",
    b"file://",
    b"\xff",
)
BAD_TOKENS = ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é")


@dataclass
class Request:
    """One request, and what the guard must make of it."""

    path: str
    query: list[tuple[str, str]]
    method: str = "GET"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_from_here: bool = True
    """Whether its Host and its Origin are the server's."""
    has_token: bool = True

    @property
    def query_string(self) -> bytes:
        return urlencode(self.query, errors="replace").encode()


# --------------------------------------------------------------------------------- drawing requests


def drawn(dice: Random) -> Request:
    """Return a request that the page could send, with some changes."""
    request = _proper(dice)
    shares = [share for _, share in CHANGES]
    for change, _ in dice.choices(CHANGES, shares, k=dice.choice((0, 1, 1, 1, 2, 2, 3))):
        change(request, dice)
    _sign(request, dice)
    return request


def _proper(dice: Random) -> Request:
    kind = dice.random()
    if kind < 0.2:
        path, parameters = dice.choice(list(ELSEWHERE.items()))
        return Request(path, list(parameters.items()))
    if kind < 0.4:
        body = json.dumps(dice.choice(BODIES)).encode()
        return Request("/api/v1/runs", [], "POST", [(b"content-type", b"application/json")], body)
    resource, parameters = dice.choice(list(RESOURCES.items()))
    run = dice.choice(runs())
    return Request(f"/api/v1/runs/{run}/{resource}".rstrip("/"), list(parameters.items()))


def _change_query(request: Request, dice: Random) -> None:
    names = [name for name, _ in request.query] or ["l", "x"]
    name = dice.choice(names)
    kept = [pair for pair in request.query if pair[0] != name]
    match dice.randrange(6):
        case 0:
            request.query = kept
        case 1:
            request.query = [*request.query, (name, dice.choice(VALUES))]
        case 2:
            request.query = [
                *request.query,
                (dice.choice(("x", "L", "", "l[]", "__class__")), dice.choice(VALUES)),
            ]
        case _:
            request.query = [*kept, (name, dice.choice(VALUES))]


def _change_body(request: Request, dice: Random) -> None:
    if not request.body:
        request.body = json.dumps(dice.choice(BODIES)).encode()
    change: Callable[[bytes, Random], bytes] = of_json if dice.random() < 0.85 else of_bytes
    with suppress(
        RecursionError
    ):  # a body that an earlier change has nested too deeply for json stays as it is
        request.body = change(request.body, dice)


def _change_path(request: Request, dice: Random) -> None:
    parts = request.path.split("/")
    at = dice.randrange(len(parts))
    new = dice.choice((*PATHS, *VALUES))
    match dice.randrange(4):
        case 0:
            parts.insert(at, new)
        case 1:
            parts[at] += new
        case 2:
            del parts[at]
        case _:
            parts[at] = new
    request.path = "/" + "/".join(parts).lstrip("/")


def _change_method(request: Request, dice: Random) -> None:
    request.method = dice.choice(METHODS)


def _change_header(request: Request, dice: Random) -> None:
    name = dice.choice(list(HEADERS))
    if dice.random() < 0.7:
        request.headers = [pair for pair in request.headers if pair[0] != name]
    request.headers.append((name, dice.choice(HEADERS[name])))


def _leave_here(request: Request, dice: Random) -> None:
    request.is_from_here = False


def _lose_token(request: Request, dice: Random) -> None:
    request.has_token = False


CHANGES: tuple[tuple[Callable[[Request, Random], None], int], ...] = (
    (_change_query, 10),
    (_change_body, 6),
    (_change_path, 4),
    (_change_method, 2),
    (_change_header, 4),
    (_leave_here, 1),
    (_lose_token, 1),
)


def _sign(request: Request, dice: Random) -> None:
    """Add hosts, origins and the token, or wrong ones, as the request says."""
    host = dice.choice(HOSTS).encode() + f":{PORT}".encode()
    hosts = [host.upper() if dice.random() < 0.1 else host]
    origins = [b"http://" + host] if dice.random() < 0.4 else []
    if not request.is_from_here:
        wrong = dice.randrange(4)
        hosts = {0: [], 1: [dice.choice(BAD_HOSTS)], 2: [host, dice.choice(BAD_HOSTS)]}.get(
            wrong, hosts
        )
        origins = [*origins, dice.choice(BAD_ORIGINS)] if wrong == 3 else origins
    request.headers += [(b"host", one) for one in hosts] + [(b"origin", one) for one in origins]
    token = TOKEN if request.has_token else dice.choice(BAD_TOKENS)
    cookies = dice.choices(FOREIGN_COOKIES, k=dice.choice((0, 0, 1, 2)))
    if dice.random() < 0.5:
        request.headers.append((b"authorization", f"Bearer {token}".encode()))
    else:
        cookies.insert(dice.randrange(len(cookies) + 1), f"telescope-{PORT}={token}".encode())
    if cookies:
        request.headers.append((b"cookie", b"; ".join(cookies)))
    dice.shuffle(request.headers)


# --------------------------------------------------------------------------------- sending requests


@cache
def application() -> Any:
    """Return the application around a library of small models, recordings of every kind and
    atlases.
    """
    import telescope as ts
    from support import mapping, seeing, writers
    from support.exploring import recorded
    from telescope.explorer.api import Api
    from telescope.explorer.app import app
    from telescope.explorer.guard import Guard
    from telescope.explorer.library import Library

    library = Library({"translator": writers.translator(), "gpt": writers.gpt(max_positions=16)})
    for keep in ("summaries", "queries-keys", "steps"):
        library.add(recorded(6, keep=keep), keep, "rev")
    library.add(recorded(6, batch=2, keep="steps"), "batch", "rev")
    vision = seeing.filled(seeing.Vision())
    with ts.watch(vision, tokens=ts.Grid(2, 2, before=["[CLS]"], name="an image")) as looked:
        vision(seeing.vectors(5))
    library.add(looked, "patches", "rev")
    folder = Path(tempfile.mkdtemp(prefix="telescope-requests-"))
    for name, heads in (("one", 2), ("other", 2), ("wide", 4)):
        model = mapping.tiny_gpt(seed=len(name), heads=heads)
        ts.atlas(model, mapping.corpus(6), tokenizer=mapping.Letters(), out=folder / name)
        library.open_atlas(folder / name)
    names = [
        library.read("Good morning.", "translator", "Guten Morgen.").name,
        library.read("to be", "gpt").name,
    ]
    return app(Api(library), Guard.at(TOKEN, PORT, HOSTS)), names


def runs() -> list[str]:
    return [*RUNS, *application()[1]]


async def send(request: Request, pieces: int, *, leaves: bool) -> tuple[int, dict[str, str], bytes]:
    """Send a request, its body in some pieces; a client that leaves sends all but the last. Return
    the answer.
    """
    step = len(request.body) // pieces + 1
    parts = [request.body[at : at + step] for at in range(0, len(request.body), step)] or [b""]
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    messages[-1]["more_body"] = False
    if leaves:
        messages[-1] = {"type": "http.disconnect"}
    sent: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not messages:
            await done.wait()
            return {"type": "http.disconnect"}
        return messages.pop(0)

    async def take(message: dict[str, Any]) -> None:
        sent.append(message)

    raw_path, _, _ = request.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": raw_path,
        "raw_path": quote(raw_path, errors="replace").encode(),
        "query_string": request.query_string,
        "headers": request.headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
        "root_path": "",
    }
    await application()[0](scope, receive, take)
    done.set()
    begun = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in begun["headers"]}
    return begun["status"], headers, body


# --------------------------------------------------------------------------------- checking answers


def check(request: Request, status: int, headers: dict[str, str], body: bytes) -> None:
    """Raise WrongError unless the answer is one that the request may have."""
    told = (
        f"{request.method[:20]} {request.path[:80]}?{request.query_string.decode()[:120]} "
        f"{request.body[:80]!r}"
    )
    if status >= 500:
        raise WrongError(f"{status} to {told}: {body[:200]!r}")
    if "default-src 'none'" not in headers.get("content-security-policy", ""):
        raise WrongError(f"no policy on {status} to {told}")
    if not request.is_from_here and status != 403:
        raise WrongError(f"{status} to a foreign host or origin: {told}, {request.headers}")
    if request.is_from_here and status == 403:
        raise WrongError(f"403 to a request from here: {told}, {request.headers}")
    is_open = request.path == "/healthz"
    if request.is_from_here and not request.has_token and status != 401 and not is_open:
        raise WrongError(f"{status} without the token: {told}, {request.headers}")
    if request.has_token and status == 401:
        raise WrongError(f"401 with the token: {told}, {request.headers}")
    if status >= 400 and status != 499:
        _check_error(headers, body, told)
    elif headers.get("content-type") == "application/json" and body:
        json.loads(body, parse_constant=_no_constant)


def _check_error(headers: dict[str, str], body: bytes, told: str) -> None:
    error = json.loads(body)["error"]
    message = error["message"]
    if not message or "\n" in message or len(message) > 1100 or not error["code"]:
        raise WrongError(f"not one sentence to {told}: {message!r}")
    if error["request"] != headers.get("x-request-id"):
        raise WrongError(f"no id in the error to {told}: {error}")


def _no_constant(name: str) -> None:
    raise WrongError(f"JSON has no {name}")


# ------------------------------------------------------------------------------------------ running

_loop: asyncio.AbstractEventLoop | None = None


def prepare() -> None:
    """Make the models and the application, and load the page and the code of most answers."""
    global _loop  # one event loop for all cases: a new one for each would start new threads
    _loop = asyncio.new_event_loop()
    # In a thread of its own: the caller's may run a loop already, as a browser's tests do.
    Thread(target=_loop.run_forever, daemon=True).start()
    for resource in RESOURCES:
        proper = Request(
            f"/api/v1/runs/steps/{resource}".rstrip("/"), list(RESOURCES[resource].items())
        )
        _sign(proper, Random(0))
        complete(send(proper, 1, leaves=False))


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, once it has run in the event loop of all cases."""
    assert _loop is not None
    return asyncio.run_coroutine_threadsafe(work, _loop).result()


def run(dice: Random, folder: Path) -> Done:
    """Send one request and check its answer."""
    request = drawn(dice)
    pieces = dice.choice((1, 1, 1, 2, 5))
    leaves = dice.random() < 0.03
    status, headers, body = complete(send(request, pieces, leaves=leaves))
    check(request, status, headers, body)
    parts = [part for part in request.path.split("/") if part]
    kind = (
        " ".join(parts[4:5])
        if parts[:3] == ["api", "v1", "runs"] and len(parts) > 3
        else "/".join(parts[:3])
    )
    known = {name.partition("/")[0] for name in RESOURCES} | {name.strip("/") for name in ELSEWHERE}
    return Done(kind or "run" if kind in known else "other paths", accepted=status < 400)
