"""Give every request an id, which stands in its answer, in its error and in the log; write a log if
one is wanted.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from time import perf_counter
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEFT = 499  # the status in the log of a request whose reader left before the answer
LONGEST_PATH = 300  # characters in the log

_ID = "telescope.request"


def with_ids(app: ASGIApp, log: Callable[[str], object] | None = None) -> ASGIApp:
    """Return the application with an id for every request, in the header X-Request-Id of its
    answer.

    `log` is given one line for each answered request: time, id, method, path without the token,
    status, milliseconds.
    """

    async def identified(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope[_ID] = secrets.token_hex(4)
        arrived = datetime.now()
        began = perf_counter()
        status = LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = scope[_ID]
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
                with suppress(
                    OSError, ValueError
                ):  # a log that was closed must not fail the request
                    log(line)

    return identified


def request_id(scope: Scope) -> str | None:
    """Return the id of a request; None outside of `with_ids`."""
    found: str | None = scope.get(_ID)
    return found


def described(scope: Scope) -> str:
    """Return the method and the path of a request without its token, on one line."""
    given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([(name, value) for name, value in given if name != "token"])
    path = quote(scope["path"], safe="/:@!$&'()*+,;=-._~") + (f"?{query}" if query else "")
    return f"{quote(scope['method'][:20])} {path[:LONGEST_PATH]}"
