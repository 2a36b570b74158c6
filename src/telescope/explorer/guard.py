"""Access control: only a browser that was given the token may send requests, and no other site's
page through it.

Host must be a name or an address of this machine, so that a foreign name that resolves to it (DNS
rebinding) is refused. Origin, where sent, must be this server; "null" is refused. The token arrives
once, in a link, and is then kept in a cookie that is hidden from scripts (HttpOnly) and not sent by
other sites (SameSite=Strict). The cookie's name contains the port, because browsers share cookies
between the ports of a host; cookies of other programs, well-formed or not, stand in the same
header.

Every request has an id, which stands in its answer, in its error and in the log.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answers import Refusal

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
# Where the id of a request stands in its ASGI scope.
REQUEST_ID = "telescope.request"


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
    """The token, and the values of the Host header that are accepted: names with the port."""

    token: str = field(repr=False)
    port: int
    hosts: frozenset[str]

    @classmethod
    def at(cls, token: str, port: int, names: Iterable[str]) -> "Guard":
        """Return the guard of a server that is reached under these names, at this port.

        Browsers leave out the port where it is 80.
        """
        accepted = {
            name if bare else f"{name}:{port}" for name in names for bare in {False, port == 80}
        }
        return cls(token, port, frozenset(accepted))

    @property
    def cookie(self) -> str:
        return f"telescope-{self.port}"

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
                # A link with the token is redirected; everything else must bring the token.
                self._check_host_and_origin(scope)
                redirect = self._redirect_with_cookie(scope)
                if redirect is None:
                    self._check_token(scope)
                    await app(scope, _limit_body(scope, receive), _with_headers(send))
                    return
                response = redirect
            except Refusal as refusal:
                response = error_response(scope, refusal)
            await response(scope, receive, _with_headers(send))

        return guarded

    def _check_host_and_origin(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # A foreign name that resolves to this machine (DNS rebinding) is no name of this server.
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            raise Refusal(
                403,
                "bad-host",
                "the Host header is not the address at which this server was started",
            )
        # Browsers name the page that sends a request; programs send no origin.
        for origin in headers.getlist("origin"):
            if origin.lower() not in {f"http://{host}" for host in self.hosts}:
                raise Refusal(
                    403, "bad-origin", "pages of other sites may not send requests to this server"
                )

    def _redirect_with_cookie(self, scope: Scope) -> Response | None:
        """Return a redirect that moves the token from the link into a cookie, or None where the
        link has no token.
        """
        # The token of a link leaves the address, where history and screenshots would keep it.
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in given if name == "token"]
        # Only pages are opened by a link; the API takes the cookie or the header.
        if scope["method"] != "GET" or not tokens or scope["path"].startswith("/api/"):
            return None
        if not self._is_token(tokens[-1]):
            raise _no_token()
        rest = urlencode([(name, value) for name, value in given if name != "token"])
        path = quote(scope["path"], safe="/:@!$&'()*+,;=-._~")
        # One slash: "//host" would redirect to another site.
        clean = "/" + path.lstrip("/") + (f"?{rest}" if rest else "")
        # The browser asks again, at the address without the token.
        response = Response(
            status_code=303, headers={"Location": clean, "Cache-Control": "no-store"}
        )
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def _check_token(self, scope: Scope) -> None:
        # Programs that check whether the server runs have no token.
        if scope["path"] == "/healthz":
            return
        headers = Headers(scope=scope)
        # Programs send the token in a header, browsers in a cookie.
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return
        # http.cookies would drop the whole header at the first cookie that it cannot parse.
        for cookie in ";".join(headers.getlist("cookie")).split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == self.cookie and self._is_token(value.strip()):
                return
        raise _no_token()

    def _is_token(self, given: str) -> bool:
        """Compare in constant time."""
        # As bytes: texts beyond ASCII would raise an error.
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


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
        401, "no-token", "the access token is missing; open the link that `telescope serve` printed"
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


def _with_headers(send: Send) -> Send:
    """Return `send`, adding the security headers to every response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
