"""Run the explorer's server for one person on this machine, until Ctrl-C: `telescope serve`.

Where it listens, and every name and address of this machine that leads there.
"""

import asyncio
import logging
import os
import secrets
import shutil
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EADDRNOTAVAIL
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..files import paths
from ..recording import FILE
from ..words import describe_error
from .answers import Refusal
from .api import Api
from .app import app
from .computing import Computing
from .guard import Guard
from .library import Library
from .links import check_token, is_bare, origins_of, qr_code

__all__ = ["Library", "Refusal", "recordings", "serve"]

logger = logging.getLogger(__name__)

AT_ONCE = 8  # most answers computed in parallel; never more than there are cores
# Seconds that the thread which loads models may take to notice that it is not needed.
JOIN_SECONDS = 0.1
GRACE_SECONDS = 0.2  # after Ctrl-C, in which answers that are nearly there are still sent
IDLE_SECONDS = 60.0  # after which a connection that waits for its client is closed
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Where Linux lists its own addresses; other systems have no such files.
IPV4_ROUTES = Path("/proc/net/fib_trie")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
QUEUED = 2048  # connections that may wait to be accepted, as many as uvicorn asks for
OUTSIDE = ("192.0.2.1", 9)  # an address that is in no network, reserved for documentation
NAME_SECONDS = 1.0  # that a name server may take to tell this machine's full name

Address = IPv4Address | IPv6Address


def serve(
    library: Library,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    path: str = "/",
    token: str | None = None,
    names: Sequence[str] = (),
    browse: bool = False,
    say: Callable[[str], object] = print,
    log: Callable[[str], object] | None = None,
) -> None:
    """Serve a library until Ctrl-C; port 0 takes a free port.

    Passes the link, with the access token, to `say`; of a server on all addresses of this machine,
    a link for each, the best for others first, and on a terminal its QR code. `token` is one of the
    user's own, so that links outlive the server. `names` are further names under which a proxy or a
    router leads here: school.example, or https://school.example where the address differs. `log` is
    given one line for each request. Ctrl-C ends the process at once if an answer is still being
    computed.
    """
    # Refused before a port is taken.
    if token is not None:
        check_token(token)
    for name in names:
        origins_of(name)
    # Listen before anything else: then the port is known, and early requests wait.
    listener = listen(host, port)
    port = listener.getsockname()[1]
    bound = bound_address(listener)
    # The link carries the token: who has it may ask, and nobody else.
    token = secrets.token_urlsafe(24) if token is None else token
    hosts = host_names(host, bound)
    # A bare name leads here at this port, and by a proxy of either scheme.
    bare = [name for name in names if is_bare(name)]
    elsewhere = [origin for name in names for origin in origins_of(name)]
    is_open = bound.is_unspecified and IPV4_ROUTES.exists()
    guard = Guard.at(
        token,
        port,
        [*hosts, *map(str.lower, bare)],
        elsewhere,
        (lambda: network_addresses(bound)) if is_open else None,
    )
    query = f"{'&' if '?' in path else '?'}token={quote(token)}"
    # On all addresses a link for each is printed, on one address the best link alone.
    printed = [name for name in hosts if is_printed(name)] if bound.is_unspecified else hosts[:1]
    places = [origins_of(name)[0] for name in names if not is_bare(name)]
    places += [f"http://{name}:{port}" for name in (*bare, *printed)]
    links = [f"{place}{path}{query}" for place in places]
    _warn(host, bound)
    # Several answers at a time, each on its share of the cores.
    at_once = min(AT_ONCE, os.cpu_count() or 1)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // at_once))
    computing = Computing(at_once)
    config = uvicorn_config(app(Api(library), guard, computing, log=log))
    for link in links:
        say(link)
    if sys.stdout.isatty() and (names or not bound.is_loopback):
        code = qr_code(links[0], shutil.get_terminal_size().columns)
        if code is not None:
            say(code)
    # Load the models in a thread while the page opens.
    stopped = Event()
    warming = Thread(target=library.warm_up, args=(stopped,))
    warming.start()
    if browse:
        webbrowser.open(links[-1])  # of many, the loopback
    # Serve until Ctrl-C; then the thread that loads models is told to stop.
    interrupted = False
    try:
        Server(config, computing).run(sockets=[listener])
    except KeyboardInterrupt:
        interrupted = True
    finally:
        listener.close()
        stopped.set()
        warming.join(timeout=JOIN_SECONDS if interrupted else None)
    # Python would wait for threads that still compute.
    if interrupted and (computing.threads or warming.is_alive()):
        _end_process()


class Server(uvicorn.Server):
    """uvicorn's server; at Ctrl-C it closes the connections of all who still wait, instead of
    waiting for them.
    """

    def __init__(self, config: uvicorn.Config, computing: Computing) -> None:
        super().__init__(config)
        self._computing = computing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # After a short grace, connections are closed whether or not their answers were sent.
        self._computing.stopping = True
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._close_connections)
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
    # A folder that is a recording is opened even if it holds others.
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


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Close, within IDLE_SECONDS, a connection that sends no complete request or does not read its
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
        """Close the connection if it has waited for its client, unchanged, since the last check,
        half of IDLE_SECONDS ago.
        """
        # The client is waited for: no request yet, the answer complete, or not all of it read.
        unsent = self.transport.get_write_buffer_size()
        waits_for_client = self.cycle is None or self.cycle.response_complete or unsent > 0
        state = (self.cycle, unsent) if waits_for_client else None
        # Nothing has changed since the last check; close() would wait for unsent bytes to be read.
        if state is not None and state == self._last_state:
            self.transport.abort() if unsent else self.transport.close()
            return
        self._last_state = state
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS / 2, self._close_if_idle)


# ---------------------------------------------------------------------------------------- addresses


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host name or address and a port; "::" takes IPv4
    connections as well.

    Whoever opens the link at once, before the server runs, waits instead of being refused.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as problem:
        raise _not_here(host, problem) from None
    # IPv4, if a name has addresses of both versions.
    chosen = min(found, key=lambda one: one[0] != socket.AF_INET)
    family, kind, protocol, _, place = chosen
    listener = socket.socket(family, kind, protocol)
    # A port can be taken again right after its last server has ended.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        # "::" is then all addresses of both versions, as users expect.
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind(place)
        listener.listen(QUEUED)
    except (OSError, OverflowError) as problem:
        listener.close()
        if isinstance(problem, OSError) and problem.errno == EADDRNOTAVAIL:
            raise _not_here(host, problem) from None
        reason = describe_error(problem)
        raise ValueError(
            f"port {port} of {host} cannot be used: {reason}; --port 0 takes a free one"
        ) from None
    return listener


def bound_address(listener: socket.socket) -> Address:
    """Return the address that a socket is bound to, without the name of an interface."""
    return ip_address(listener.getsockname()[0].partition("%")[0])


def host_names(host: str, bound: Address) -> list[str]:
    """Return the hosts of all addresses that lead to a listener, in the form they have in a URL,
    the best one first.

    `host` is what the user asked for. A listener on one address is reached by that address and by
    `host`; a listener on all addresses by every address of this machine's interfaces, by its names,
    and from itself by the loopback.
    """
    # The loopback has several names, all of which lead here.
    if bound.is_loopback:
        return _distinct([_in_url(host), *LOOPBACK])
    # One address, and the name under which the user knows it.
    if not bound.is_unspecified:
        return _distinct([_in_url(host), _in_url(str(bound))])
    # All addresses: those that others can type first.
    return _distinct([*network_addresses(bound), *machine_names(), *LOOPBACK])


def network_addresses(bound: Address) -> list[str]:
    """Return the hosts of this machine's addresses, as they are now, without the loopback: first
    that by which it reaches other networks, and IPv6 only if the listener takes it.
    """
    main = main_address()
    own = [
        one for one in interface_addresses() if not one.is_loopback and one.version <= bound.version
    ]
    return [_in_url(str(one)) for one in sorted(own, key=lambda one: one != main)]


def main_address() -> Address | None:
    """Return the address of the interface that leads to other networks, or None; nothing is sent.

    Others, such as those of containers, lead nowhere for a class.
    """
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(OUTSIDE)  # of UDP: this only chooses the interface
        return ip_address(asking.getsockname()[0])
    return None


def is_printed(name: str) -> bool:
    """Return whether a link with this host is printed.

    Of the loopback one link is enough, and browsers cannot open link-local addresses of IPv6.
    """
    try:
        return name not in LOOPBACK[1:] and not ip_address(name.strip("[]")).is_link_local
    except ValueError:
        return True


def interface_addresses() -> list[Address]:
    """Return the addresses of this machine's network interfaces, IPv4 first; where they are
    unknown, those of its name.

    Linux lists every address of IPv4 that is its own in the routing table, as "|-- 192.0.2.1" above
    "/32 host LOCAL".
    """
    found: list[Address] = []
    if IPV4_ROUTES.exists():
        lines = [line.split() for line in IPV4_ROUTES.read_text().splitlines()]
        found += [
            IPv4Address(above[1])
            for above, line in pairwise(lines)
            if line == ["/32", "host", "LOCAL"]
        ]
    else:
        with suppress(OSError, ValueError):  # a machine that cannot resolve its own name
            found += [
                ip_address(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)
            ]
    # The first column of each line is an address, as 32 hexadecimal digits.
    if IPV6_ADDRESSES.exists():
        found += [
            IPv6Address(int(line.split()[0], 16))
            for line in IPV6_ADDRESSES.read_text().splitlines()
        ]
    return sorted(set(found), key=lambda one: (one.version, int(one)))


def machine_names() -> list[str]:
    """Return the names of this machine: its own, with .local for networks without a name server,
    and its full name.
    """
    name = socket.gethostname().lower()
    full: list[str] = []
    # In a thread: a name server that does not answer must not hold up the start.
    asking = Thread(target=lambda: full.append(socket.getfqdn().lower()), daemon=True)
    asking.start()
    asking.join(NAME_SECONDS)
    local = [] if "." in name else [f"{name}.local"]
    return [one for one in _distinct([name, *local, *full]) if not one.startswith("localhost")]


def _not_here(host: str, problem: Exception) -> ValueError:
    return ValueError(
        f'--host "{host[:80]}" is no name or address of this machine ({describe_error(problem)}); '
        "--host 0.0.0.0 listens on all of its addresses"
    )


def _in_url(host: str) -> str:
    """Return a host as it stands in a URL: an address of IPv6 in its shortest form, in brackets."""
    bare = host.strip("[]").partition("%")[0].lower()
    return f"[{IPv6Address(bare)}]" if ":" in bare else bare


def _distinct(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))
