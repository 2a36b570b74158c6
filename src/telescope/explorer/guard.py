"""Who may ask: only a browser on this machine that was given the key, and no page of anybody else through it.

Host is compared to what was bound, so that a foreign name that resolves to this machine (DNS rebinding) gets nothing.
Origin, where it comes, must be ours; "null" is not. The token comes once in a link, and is then a cookie that scripts
do not see and other sites do not send; its name has the port in it, since cookies do not care for ports.
"""

import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .requests import Refusal

LARGEST = 1_000_000  # bytes of a body
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Guard:
    """`hosts` are the names by which it may be called, with the port."""

    token: str = field(repr=False)
    port: int
    hosts: frozenset[str]

    @classmethod
    def at(cls, token: str, port: int, names: Iterable[str]) -> "Guard":
        return cls(token, port, frozenset(f"{name}:{port}" for name in names))

    @property
    def cookie(self) -> str:
        return f"telescope-{self.port}"

    def around(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            if scope["type"] != "http":  # nothing here speaks websocket
                await send({"type": "websocket.close", "code": 1008})
                return
            try:
                self._must_be_allowed(scope)
                redirect = self._entering(scope)
                if redirect is None:
                    self._must_have_the_key(scope)
                    await app(scope, _counted(scope, receive), _with_headers(send))
                    return
                response = redirect
            except Refusal as refusal:
                response = refused(refusal)
            await response(scope, receive, _with_headers(send))

        return guarded

    def _must_be_allowed(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            raise Refusal(403, "bad-host", "this server answers only to the name under which it was started")
        for origin in headers.getlist("origin"):
            if origin.lower() not in {f"http://{host}" for host in self.hosts}:
                raise Refusal(403, "bad-origin", "no page of another site may ask here")

    def _entering(self, scope: Scope) -> Response | None:
        """A link with the token leads to the same page without it, and leaves a cookie."""
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in given if name == "token"]
        if scope["method"] != "GET" or not tokens or scope["path"].startswith("/api/"):
            return None
        if not self._fits(tokens[-1]):
            raise _no_token()
        rest = urlencode([(name, value) for name, value in given if name != "token"])
        path = quote(scope["path"], safe="/:@!$&'()*+,;=-._~")
        clean = "/" + path.lstrip("/") + (f"?{rest}" if rest else "")  # "//host" would lead away
        response = Response(status_code=303, headers={"Location": clean, "Cache-Control": "no-store"})
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    def _must_have_the_key(self, scope: Scope) -> None:
        if scope["path"] == "/healthz":
            return
        headers = Headers(scope=scope)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._fits(bearer.strip()):
            return
        for line in headers.getlist("cookie"):
            try:
                cookie = SimpleCookie(line).get(self.cookie)
            except CookieError:
                continue
            if cookie is not None and self._fits(cookie.value):
                return
        raise _no_token()

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def refused(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    said = json.dumps({"error": {"code": refusal.code, "message": refusal.message}}, ensure_ascii=False)
    return Response(
        said.encode("utf-8", "replace"),
        refusal.status,
        {"Cache-Control": "no-store", **(headers or {})},
        "application/json",
    )


def _no_token() -> Refusal:
    return Refusal(401, "no-token", "open the link that `telescope serve` printed; it has the key to this server")


def _counted(scope: Scope, receive: Receive) -> Receive:
    """A body that is too large is refused by what it says of itself, or as soon as so much has come."""
    said = Headers(scope=scope).get("content-length", "")
    if said and (not said.isdecimal() or int(said) > LARGEST):
        raise _too_large()
    come = 0

    async def counting() -> Message:
        nonlocal come
        message = await receive()
        come += len(message.get("body", b""))
        if come > LARGEST:
            raise _too_large()
        return message

    return counting


def _too_large() -> Refusal:
    return Refusal(413, "too-large", f"a body of more than {LARGEST:,} bytes is not read")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
