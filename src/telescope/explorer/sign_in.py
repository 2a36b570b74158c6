"""The page that asks for the token, and the count of wrong tokens by address.

The page has no script, and nothing of the request stands in it: its form is posted to the address
that the reader wanted, so that this address needs no field.
"""

from base64 import b64encode
from collections import OrderedDict
from hashlib import sha256
from html import escape
from ipaddress import IPv6Address, ip_address
from math import ceil
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

FORM = "application/x-www-form-urlencoded"
LONGEST_FORM = 4096  # bytes
FREE_GUESSES = 20  # wrong tokens that an address may send at once
SECONDS_PER_GUESS = 2.0  # after these
MOST_ADDRESSES = 4096

WRONG = "This is not the token. Small and capital letters differ; look at the link once more."
STYLE = """
:root { color-scheme: light dark; font: 18px/1.5 system-ui, sans-serif }
body { display: grid; min-height: 90vh; margin: 0 20px; place-content: center }
main { max-width: 26em }
h1 { font-size: 1.5em; margin: 0 }
label { display: block; margin: 1em 0 .3em }
input, button { box-sizing: border-box; width: 100%; min-height: 46px; padding: 8px 12px;
  border: 1px solid #767676; border-radius: 8px; font: inherit }
button { margin-top: 12px; border-color: #1d4ed8; background: #1d4ed8; color: #fff }
input:focus-visible, button:focus-visible { outline: 3px solid #f59e0b; outline-offset: 2px }
[role=alert] { padding: 8px 12px; border-left: 4px solid #d97706; margin: 1em 0 }
"""
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>Telescope: token</title>
    <style>{style}</style>
  </head>
  <body>
    <main>
      <h1>Telescope</h1>
      <p>This page is open to those who have its token: the word at the end of the link, or what
      your teacher says.</p>
      {alert}<form method="post">
        <label for="token">Token</label>
        <input id="token" name="token" required autofocus autocomplete="off" autocapitalize="none"
          spellcheck="false" maxlength="200"{invalid}>
        <button>Open the page</button>
      </form>
    </main>
  </body>
</html>
"""
# Stricter than the page's own: there is no script, and the form may be sent to this server alone.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    # Without a referrer browsers send the form with the origin "null", which is refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def sign_in_page(problem: str | None = None, wait: float = 0.0) -> Response:
    """Return the page that asks for the token, and says what was wrong with the last one."""
    alert = f'<p role="alert" id="problem">{escape(problem)}</p>\n      ' if problem else ""
    invalid = ' aria-invalid="true" aria-describedby="problem"' if problem else ""
    page = PAGE.format(style=STYLE, alert=alert, invalid=invalid)
    headers = {**HEADERS, "Retry-After": str(ceil(wait))} if wait else HEADERS
    return Response(page, 429 if wait else 401, headers, "text/html; charset=utf-8")


def wants_page(scope: Scope) -> bool:
    """Return whether a request is a browser's for a page, and not a program's or a script's."""
    is_page = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/api/")
    return is_page and "text/html" in Headers(scope=scope).get("accept", "")


def is_form(scope: Scope) -> bool:
    """Return whether a request is the form of the page that asks for the token."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    is_posted = scope["method"] == "POST" and not scope["path"].startswith("/api/")
    return is_posted and kind == FORM


async def read_form(receive: Receive, seconds: float) -> str:
    """Return the token in a form; "" where there is none, or it is too long or late."""
    body = b""
    with anyio.move_on_after(seconds):
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > LONGEST_FORM or message["type"] == "http.disconnect":
                return ""
            if not message.get("more_body"):
                break
    return parse_qs(body.decode("latin-1")).get("token", [""])[-1].strip()


class WrongTokens:
    """The wrong tokens of each address: after FREE_GUESSES of them, it may send one in
    SECONDS_PER_GUESS.

    An address from which a right token came may be that of a whole class.
    """

    def __init__(self) -> None:
        # When an address would have no wrong token left, had it sent them one by one.
        self._until: OrderedDict[str, float] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def wait(self, scope: Scope) -> float:
        """Return how many seconds the sender of a request must wait before its next token."""
        ahead = self._until.get(_sender(scope), 0.0) - monotonic()
        return max(0.0, ahead - (FREE_GUESSES - 1) * SECONDS_PER_GUESS)

    def count(self, scope: Scope) -> None:
        """Count a wrong token."""
        sender = _sender(scope)
        since = max(monotonic(), self._until.pop(sender, 0.0))
        self._until[sender] = since + SECONDS_PER_GUESS
        _limit(self._until)

    def know(self, scope: Scope) -> None:
        """Note that a right token came from the address of a request."""
        self._known[_sender(scope)] = None
        _limit(self._known)

    def is_known(self, scope: Scope) -> bool:
        """Return whether a right token came from the address of a request."""
        return _sender(scope) in self._known


def _limit(addresses: OrderedDict[str, Any]) -> None:
    if len(addresses) > MOST_ADDRESSES:
        addresses.popitem(last=False)


def _sender(scope: Scope) -> str:
    """Return the address of a sender; of IPv6 its network, of which one machine may use every
    address.
    """
    host = (scope.get("client") or ("",))[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return str(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> 64)
    return str(address)
