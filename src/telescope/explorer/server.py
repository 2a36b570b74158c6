"""`telescope serve`: a server for one person on this machine, until Ctrl-C."""

import asyncio
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..files import paths
from ..recording.saved.manifest import FILE
from .api import Api
from .app import app
from .guard import Guard
from .library import Library
from .requests import Refusal

__all__ = ["Library", "Refusal", "recordings", "serve"]

AT_ONCE = 8  # answers that are computed side by side, where there are as many cores
HERE = ("127.0.0.1", "localhost", "[::1]")


def serve(
    library: Library,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    path: str = "/",
    browse: bool = False,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until Ctrl-C. The link that is said has the key in it; port 0 is any that is free."""
    bound = _bound(host, port)
    port = bound.getsockname()[1]
    token = secrets.token_urlsafe(24)
    named = f"[{host}]" if ":" in host else host
    guard = Guard.at(token, port, {*HERE, named} if _loopback(host) else {named})
    link = f"http://{named}:{port}{path}{'&' if '?' in path else '?'}token={quote(token)}"
    if not _loopback(host):
        print(
            f"telescope: --host {host} is open to the network: who has the link sees everything, unencrypted",
            file=sys.stderr,
        )
    at_once = min(AT_ONCE, os.cpu_count() or 1)
    torch.set_num_threads(
        max(1, (os.cpu_count() or 1) // at_once)
    )  # tiles side by side: threads of one wait for others
    config = configured(app(Api(library), guard, at_once))
    say(link)
    if browse:
        webbrowser.open(link)
    try:
        uvicorn.Server(config).run(sockets=[bound])
    except KeyboardInterrupt:
        pass
    finally:
        bound.close()


def configured(served: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        served,
        http=Connection,
        log_config=None,  # to set up logging would close what others have set up for theirs
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )


def recordings(place: Path) -> list[Path]:
    """The folder itself where it is a recording; otherwise those in it. Hidden ones are skipped."""
    there = paths.existing(place)
    if not there.is_dir() or (there / FILE).is_file():
        return [there]
    found = sorted(name for name in there.iterdir() if name.name[0] != "." and (name / FILE).is_file())
    if not found:
        raise ValueError(
            f"{place} is no recording and holds none; telescope watch --out {place}/run.telescope makes one"
        )
    return found


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as problem:
        bound.close()
        raise ValueError(f"port {port} of {host} cannot be used: {problem}; --port 0 takes one that is free") from None
    return bound


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


IDLE = 60.0  # seconds


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Close a connection without a whole request, or with an answer that nobody reads, within IDLE seconds.

    uvicorn closes those that are idle after an answer. Those that never sent a request, or all of its headers, would
    stay for as long as they like, and each takes one of the files that a process may have open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._seen: Any = None
        self._look()

    def connection_lost(self, problem: Exception | None) -> None:
        self._again.cancel()
        super().connection_lost(problem)

    def _look(self) -> None:
        """Twice in IDLE seconds: what waits for the client, and is the same as before, has waited for half of them."""
        unsent = self.transport.get_write_buffer_size()
        waits = self.cycle is None or self.cycle.response_complete or unsent > 0
        seen = (self.cycle, unsent) if waits else None
        if seen is not None and seen == self._seen:
            self.transport.abort() if unsent else self.transport.close()
            return
        self._seen = seen
        self._again = asyncio.get_running_loop().call_later(IDLE / 2, self._look)
