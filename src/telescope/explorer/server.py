"""Run the explorer's server for one person on this machine, until Ctrl-C: `telescope serve`."""

import asyncio
import logging
import os
import secrets
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..files import paths
from ..recording.saving import FILE
from .addresses import LOOPBACK, Address, bound_address, host_names, is_printed, listen
from .api import Api
from .app import app
from .computing import Computing
from .guard import Guard
from .library import Library
from .requests import Refusal

__all__ = ["Library", "Refusal", "recordings", "serve"]

logger = logging.getLogger(__name__)

AT_ONCE = 8  # most answers computed in parallel; never more than there are cores


def serve(
    library: Library,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    path: str = "/",
    browse: bool = False,
    say: Callable[[str], object] = print,
    log: Callable[[str], object] | None = None,
) -> None:
    """Serve a library until Ctrl-C; port 0 takes a free port.

    Passes the link, with the access token, to `say`; of a server on all addresses of this machine,
    a link for each. `log` is given one line for each request. Ctrl-C ends the process at once if an
    answer is still being computed.
    """
    listener = listen(host, port)
    port = listener.getsockname()[1]
    bound = bound_address(listener)
    token = secrets.token_urlsafe(24)
    names = host_names(host, bound)
    guard = Guard.at(token, port, names)
    query = f"{'&' if '?' in path else '?'}token={quote(token)}"
    printed = [name for name in names if is_printed(name)] if bound.is_unspecified else names[:1]
    links = [f"http://{name}:{port}{path}{query}" for name in printed]
    _warn(host, bound)
    at_once = min(AT_ONCE, os.cpu_count() or 1)
    torch.set_num_threads(
        max(1, (os.cpu_count() or 1) // at_once)
    )  # so that parallel tiles do not oversubscribe cores
    computing = Computing(at_once)
    config = uvicorn_config(app(Api(library), guard, computing, log=log))
    for link in links:
        say(link)
    stopped = Event()
    warming = Thread(target=library.warm_up, args=(stopped,))
    warming.start()
    if browse:
        webbrowser.open(links[-1])  # of many, the loopback
    interrupted = False
    try:
        Server(config, computing).run(sockets=[listener])
    except KeyboardInterrupt:
        interrupted = True
    finally:
        listener.close()
        stopped.set()
        warming.join(timeout=JOIN if interrupted else None)
    if interrupted and (computing.threads or warming.is_alive()):
        _end_process()


JOIN = 0.1  # seconds that the thread which loads models may take to notice that it is not needed
GRACE = 0.2  # seconds after Ctrl-C in which answers that are nearly there are still sent


class Server(uvicorn.Server):
    """uvicorn's server; at Ctrl-C it closes the connections of all who still wait, instead of
    waiting for them.
    """

    def __init__(self, config: uvicorn.Config, computing: Computing) -> None:
        super().__init__(config)
        self._computing = computing

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._computing.stopping = True
        asyncio.get_running_loop().call_later(GRACE, self._close_connections)
        await super().shutdown(sockets)

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _end_process() -> None:
    """End the process although threads still compute: Python would wait for them, and they cannot
    be ended.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _warn(host: str, bound: Address) -> None:
    """Log who can reach the server, where the user may think otherwise."""
    if not bound.is_loopback:
        told = (
            f"--host {host} is open to the network: anyone with the link can read everything, "
            "unencrypted"
        )
    elif host.strip("[]") not in (str(bound), *LOOPBACK):
        told = (
            f"{host} is {bound} here, which no other machine can reach; --host 0.0.0.0 opens "
            "the page to the network"
        )
    else:
        return
    logger.warning(told)


def uvicorn_config(application: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's settings for the explorer: HTTP only, no access log, quick shutdown."""
    return uvicorn.Config(
        application,
        http=Connection,
        log_config=None,  # uvicorn's own set-up would close the handlers of the program around it
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )


def recordings(place: Path) -> list[Path]:
    """Return the folder if it is a recording, otherwise the recordings directly in it, without
    hidden ones.
    """
    folder = paths.check_exists(place)
    if not folder.is_dir() or (folder / FILE).is_file():
        return [folder]
    found = sorted(
        child for child in folder.iterdir() if child.name[0] != "." and (child / FILE).is_file()
    )
    if not found:
        raise ValueError(
            f"{place} is not a recording and contains none; telescope watch --out "
            f"{place}/run.telescope makes one"
        )
    return found


IDLE = 60.0  # seconds


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Close, within IDLE seconds, a connection that sends no complete request or does not read its
    answer.

    uvicorn itself closes connections that are idle after an answer. A connection that never sends a
    request, or not all of its headers, would stay open without limit, and each takes one of the
    process's file descriptors.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._last_state: Any = None
        self._close_if_idle()

    def connection_lost(self, problem: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(problem)

    def _close_if_idle(self) -> None:
        """Close the connection if it has waited for its client, unchanged, since the check IDLE / 2
        seconds ago.
        """
        unsent = self.transport.get_write_buffer_size()
        waits_for_client = self.cycle is None or self.cycle.response_complete or unsent > 0
        state = (self.cycle, unsent) if waits_for_client else None
        if state is not None and state == self._last_state:
            self.transport.abort() if unsent else self.transport.close()
            return
        self._last_state = state
        self._timer = asyncio.get_running_loop().call_later(IDLE / 2, self._close_if_idle)
