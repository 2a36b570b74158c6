"""Access control: only a browser that was given the token may send requests, and no other site's
page through it.

Host must be a name or an address of this machine, or one that `--name` added, so that a foreign
name that resolves to it (DNS rebinding) is refused. Origin, where sent, must be this server; "null"
is refused. The token arrives once, in a link or in the form of the page that asks for it. A cookie
that is made from it, hidden from scripts (HttpOnly) and not sent by other sites (SameSite=Strict),
then stands for it. A second cookie of this kind is a random id of the browser: whose sentence a run
is. The names of both contain the port, because browsers share cookies between the ports of a host;
cookies of other programs, well-formed or not, stand in the same header.

Every request has an id, which stands in its answer, in its error and in the log.
"""

import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import pbkdf2_hmac
from math import ceil
from time import monotonic, perf_counter
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answers import Refusal
from .sign_in import WRONG, WrongTokens, is_form, read_form, sign_in_page, wants_page

BODY_SECONDS = 10.0  # within which the body of a request must arrive
LARGEST_BODY = 1_000_000  # bytes of a request's body
# Only this server's scripts and styles run, and no script may turn a text into HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# On every response, whatever its status.
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
LEFT = 499  # the status in the log of a request whose reader left before the answer
LONGEST_PATH = 300  # characters in the log
# Where the id of a request stands in its ASGI scope, and the id of its browser.
REQUEST_ID = "telescope.request"
BROWSER = "telescope.browser"
BROWSER_ID = re.compile(r"[A-Za-z0-9_-]{22,64}", re.ASCII)
PROGRAMS = "programs"  # the browser id of what sends the token in a header and has no cookie
# Hashes that make the cookie of a token. They take time, so that guessing tokens by their cookies
# is slow.
ROUNDS = 100_000
REFRESH_SECONDS = 5.0  # after which this machine may have got another address


# ---------------------------------------------------------------------------------- ids and the log


def with_ids(app: ASGIApp, log: Callable[[str], object] | None = None) -> ASGIApp:
    """Return the application with an id for every request, in the header X-Request-Id of its
    answer.

    `log` is given one line for each answered request: time, id, method, path without the token,
    status, milliseconds.
    """

    async def identified(scope: Scope, receive: Receive, send: Send) -> None:
        # The server's start and end are no requests, and have no id.
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope[REQUEST_ID] = secrets.token_hex(4)
        arrived = datetime.now()
        began = perf_counter()
        # Until a response begins: a reader who leaves early gets none.
        status = LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope[REQUEST_ID]
            await send(message)

        try:
            await app(scope, receive, sending)
        finally:
            if log is not None:
                milliseconds = (perf_counter() - began) * 1000
                line = (
                    f"{arrived:%Y-%m-%d %H:%M:%S} {request_id(scope)} {described(scope)} "
                    f"{status} {milliseconds:.0f} ms"
                )
                # A log that was closed must not fail the request.
                with suppress(OSError, ValueError):
                    log(line)

    return identified


def request_id(scope: Scope) -> str | None:
    """Return the id of a request; None outside of `with_ids`."""
    found: str | None = scope.get(REQUEST_ID)
    return found


def browser_of(scope: Scope) -> str | None:
    """Return the id of the browser that sent a request; None outside of the guard."""
    found: str | None = scope.get(BROWSER)
    return found


def described(scope: Scope) -> str:
    """Return the method and the path of a request without its token, on one line."""
    given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([(name, value) for name, value in given if name != "token"])
    # Quoted again, so that no path can put a line break into the log.
    path = quote(scope["path"], safe="/:@!$&'()*+,;=-._~") + (f"?{query}" if query else "")
    return f"{quote(scope['method'][:20])} {path[:LONGEST_PATH]}"


# ------------------------------------------------------------------------------------------- access


@dataclass(frozen=True)
class Guard:
    """The token, and the values of the Host header that are accepted: names with the port.

    origins        values of the Origin header that are accepted
    addresses_now  returns the hosts of this machine's addresses, which may change while it runs
    """

    token: str = field(repr=False)
    port: int
    hosts: frozenset[str]
    origins: frozenset[str]
    addresses_now: Callable[[], Iterable[str]] | None = None
    wrong: WrongTokens = field(default_factory=WrongTokens, compare=False)
    _late: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def at(
        cls,
        token: str,
        port: int,
        names: Iterable[str],
        elsewhere: Iterable[str] = (),
        addresses_now: Callable[[], Iterable[str]] | None = None,
    ) -> "Guard":
        """Return the guard of a server that is reached under these names, at this port, and at the
        origins `elsewhere`, such as https://school.example.

        Browsers leave out the port where it is 80.
        """
        hosts = {
            name if bare else f"{name}:{port}" for name in names for bare in {False, port == 80}
        }
        others = set(elsewhere)
        origins = {f"http://{host}" for host in hosts} | others
        hosts |= {origin.partition("://")[2] for origin in others}
        return cls(token, port, frozenset(hosts), frozenset(origins), addresses_now)

    @property
    def cookie(self) -> str:
        return f"telescope-{self.port}"

    @property
    def browser_cookie(self) -> str:
        return f"telescope-{self.port}-browser"

    @cached_property
    def cookie_value(self) -> str:
        """What the cookie of a browser with the token holds: the same after a restart."""
        return pbkdf2_hmac("sha256", self.token.encode(), b"telescope's cookie", ROUNDS).hex()

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with every request checked first, and the security headers on
        every response.
        """

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            # The server's own start and end are no requests.
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            if scope["type"] != "http":  # there are no websockets
                await send({"type": "websocket.close", "code": 1008})
                return
            try:
                # A link or a form with the token is redirected; all else must bring the token.
                self._check_host_and_origin(scope)
                response = await self._sign_in(scope, receive)
                if response is None:
                    self._check_token(scope)
                    cookies = self._name_browser(scope)
                    limited = _limit_body(scope, receive)
                    await app(scope, limited, _with_headers(send, cookies))
                    return
            except Refusal as refusal:
                asks = refusal.status == 401 and wants_page(scope)
                retry = {"Retry-After": str(ceil(self.wrong.wait(scope)))}
                headers = retry if refusal.status == 429 else None
                response = sign_in_page() if asks else error_response(scope, refusal, headers)
            await response(scope, receive, _with_headers(send))

        return guarded

    # ------------------------------------------------------------------------------ who is here

    def _check_host_and_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # A foreign name that resolves to this machine (DNS rebinding) is no name of this server.
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_host(hosts[0].lower()):
            raise Refusal(
                403,
                "bad-host",
                "this server was not started for the name in the address; telescope serve "
                "--name adds a name",
            )
        # Browsers name the page that sends a request; programs send no origin.
        for origin in headers.getlist("origin"):
            scheme, _, host = origin.lower().partition("://")
            is_late = scheme == "http" and host in self._late
            if origin.lower() not in self.origins and not is_late:
                raise Refusal(
                    403, "bad-origin", "pages of other sites may not send requests to this server"
                )

    def _is_host(self, host: str) -> bool:
        """Return whether a host is one of this server's, perhaps of an address that this machine
        has got since: a laptop may be carried into another network.
        """
        if host in self.hosts:
            return True
        # Addresses are read again now and then, and are forgotten as soon as they are gone.
        if self.addresses_now is None or self._late.get("", 0.0) + REFRESH_SECONDS < monotonic():
            now = self.addresses_now() if self.addresses_now is not None else ()
            self._late.clear()
            self._late.update({f"{name}:{self.port}": 0.0 for name in now} | {"": monotonic()})
        return host != "" and host in self._late

    # ------------------------------------------------------------------------------- the token

    async def _sign_in(self, scope: Scope, receive: Receive) -> Response | None:
        """Return a redirect with the cookies for a link or a form with the token, and the page that
        asks for the token for a wrong one; None for every other request.
        """
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        links = [value for name, value in given if name == "token"]
        # Only pages are opened by a link; the API takes the cookie or the header.
        is_link = scope["method"] == "GET" and links and not scope["path"].startswith("/api/")
        is_posted = is_form(scope)
        if not is_link and not is_posted:
            return None
        wait = self.wrong.wait(scope)
        if wait:
            told = f"Too many wrong tokens came from your network. Wait {ceil(wait)} seconds."
            return sign_in_page(told, wait)
        token = await read_form(receive, BODY_SECONDS) if is_posted else links[-1]
        if not self._is_token(token):
            # A browser that sends no token yet has none wrong.
            if token:
                self.wrong.count(scope)
            if is_posted or wants_page(scope):
                return sign_in_page(WRONG)
            raise _no_token()
        self.wrong.know(scope)
        # The token of a link leaves the address, where history and screenshots would keep it.
        rest = urlencode([(name, value) for name, value in given if name != "token"])
        path = quote(scope["path"], safe="/:@!$&'()*+,;=-._~")
        # One slash: "//host" would redirect to another site.
        clean = "/" + path.lstrip("/") + (f"?{rest}" if rest else "")
        # The redirect drops the token from the address. The fragment stays: browsers keep it.
        response = Response(
            status_code=303, headers={"Location": clean, "Cache-Control": "no-store"}
        )
        cookies = {self.cookie: self.cookie_value} | self._name_browser(scope)
        for name, value in cookies.items():
            response.set_cookie(name, value, httponly=True, samesite="strict", path="/")
        return response

    def _check_token(self, scope: Scope) -> None:
        # Programs that check whether the server runs have no token.
        if scope["path"] == "/healthz":
            return
        # Programs send the token in a header, browsers its cookie.
        cookies = [value for name, value in _cookies(scope) if name == self.cookie]
        scheme, _, bearer = Headers(scope=scope).get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        wait = self.wrong.wait(scope)
        # A class behind one address does not wait for the guesses of one of it.
        is_compared = not wait or self.wrong.is_known(scope)
        if is_compared and any(_is_same(value, self.cookie_value) for value in cookies):
            self.wrong.know(scope)
            return
        if wait and (is_bearer or cookies):
            raise Refusal(
                429, "wrong-token", f"too many wrong tokens; wait for {ceil(wait)} seconds"
            )
        if is_bearer and self._is_token(bearer.strip()):
            return
        if is_bearer or cookies:
            self.wrong.count(scope)
        raise _no_token()

    def _is_token(self, given: str) -> bool:
        return _is_same(given, self.token)

    def _name_browser(self, scope: Scope) -> dict[str, str]:
        """Note in the scope which browser sends a request; return the cookie that it lacks."""
        cookies = dict(_cookies(scope))
        known = cookies.get(self.browser_cookie, "")
        if BROWSER_ID.fullmatch(known):
            scope[BROWSER] = known
            return {}
        if "authorization" in Headers(scope=scope) or scope["path"] == "/healthz":
            scope[BROWSER] = PROGRAMS
            return {}
        scope[BROWSER] = secrets.token_urlsafe(16)
        return {self.browser_cookie: scope[BROWSER]}


def _is_same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    # As bytes: texts beyond ASCII would raise an error.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the cookies of a request."""
    # http.cookies would drop the whole header at the first cookie that it cannot parse.
    for cookie in ";".join(Headers(scope=scope).getlist("cookie")).split(";"):
        name, _, value = cookie.partition("=")
        yield name.strip(), value.strip()


def error_response(
    scope: Scope, refusal: Refusal, headers: dict[str, str] | None = None
) -> Response:
    """Return a refusal of a request as a JSON response that is not cached."""
    body = json.dumps(refusal.to_json(request_id(scope)), ensure_ascii=False)
    return Response(
        body.encode("utf-8", "replace"),
        refusal.status,
        {"Cache-Control": "no-store", **(headers or {})},
        "application/json",
    )


def _no_token() -> Refusal:
    return Refusal(
        401,
        "no-token",
        "the access token is missing; open the link that `telescope serve` printed, or reload the "
        "page and type the token",
    )


def _limit_body(scope: Scope, receive: Receive) -> Receive:
    """Return `receive`, raising Refusal 413 if Content-Length, or the bytes received so far, exceed
    LARGEST_BODY.
    """
    # Refuse a body by its announced length, and count it too: a length may be missing or wrong.
    length = Headers(scope=scope).get("content-length", "")
    if length and (not length.isdecimal() or int(length) > LARGEST_BODY):
        raise _too_large()
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise _too_large()
        return message

    return counted


def _too_large() -> Refusal:
    return Refusal(413, "too-large", f"the body is larger than {LARGEST_BODY:,} bytes")


def _with_headers(send: Send, cookies: Mapping[str, str] | None = None) -> Send:
    """Return `send`, adding the security headers to every response, unless it has stricter ones,
    and some cookies.
    """
    lines = [
        f"{name}={value}; HttpOnly; Path=/; SameSite=strict"
        for name, value in (cookies or {}).items()
    ]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            for line in lines:
                headers.append("Set-Cookie", line)
        await send(message)

    return sending
