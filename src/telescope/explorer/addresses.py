"""The addresses of the server: where it listens, and every name and address of this machine that
leads there.
"""

import socket
from contextlib import suppress
from errno import EADDRNOTAVAIL
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import pairwise
from pathlib import Path
from threading import Thread

from ..words import describe_error

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
IPV4_ROUTES = Path("/proc/net/fib_trie")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
QUEUED = 2048  # connections that may wait to be accepted, as many as uvicorn asks for
NAME_SECONDS = 1.0  # that a name server may take to tell this machine's full name

Address = IPv4Address | IPv6Address


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host name or address and a port; "::" takes IPv4
    connections as well.

    Whoever opens the link at once, before the server runs, waits instead of being refused.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as problem:
        raise _not_here(host, problem) from None
    family, kind, protocol, _, place = min(
        found, key=lambda one: one[0] != socket.AF_INET
    )  # IPv4 if a name has both
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
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
    if bound.is_loopback:
        return _distinct([_in_url(host), *LOOPBACK])
    if not bound.is_unspecified:
        return _distinct([_in_url(host), _in_url(str(bound))])
    own = [
        one for one in interface_addresses() if not one.is_loopback and one.version <= bound.version
    ]
    return _distinct([*(_in_url(str(one)) for one in own), *machine_names(), *LOOPBACK])


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
