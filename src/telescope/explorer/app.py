"""Serve the explorer over HTTP: the page, its files and the API, all behind the same guard.

Answers are computed in threads, a few at a time; they stop when the reader leaves or the server
ends.
"""

import sys
from collections.abc import Callable

from anyio import fail_after
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .answers import Refusal
from .api import JSON, Api, HttpAnswer
from .computing import Computing
from .export import media_type, page_files
from .guard import (
    BODY_SECONDS,
    LEFT,
    Guard,
    browser_of,
    described,
    error_response,
    request_id,
    with_ids,
)


def app(
    api: Api,
    guard: Guard,
    computing: Computing | None = None,
    body_seconds: float = BODY_SECONDS,
    log: Callable[[str], object] | None = None,
) -> ASGIApp:
    """Return the ASGI application: API answers are computed by `computing`, and `log` is given a
    line a request.
    """
    work = computing or Computing(2)

    def page_file(name: str) -> Response:
        # no-cache: browsers ask again each time, since files keep their names in a new version.
        return Response(
            page_files()[name], media_type=media_type(name), headers={"Cache-Control": "no-cache"}
        )

    async def index(request: Request) -> Response:
        return page_file("index.html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in page_files():
            raise Refusal(404, "unknown", "the page has no file of this name")
        return page_file(name)

    async def icon(request: Request) -> Response:
        # Browsers ask for an icon by themselves; the page has none.
        return Response(status_code=204)

    async def healthy(request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def answer(request: Request) -> Response:
        """Answer an API request in a thread.

        A request joins the queue only after its whole body has arrived, so slow clients cannot fill
        the queue.
        """
        path = request.scope["path"].removeprefix("/api/v1")
        method = request.method
        # A page of another site can send a form without asking first, but no JSON.
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if method == "POST" and kind != JSON:
            raise Refusal(415, "not-json", "a POST needs the content type application/json")
        # Read the body before the request is queued; one that trickles in is given up.
        try:
            with fail_after(body_seconds):
                body = await request.body() if method == "POST" else b""
        except TimeoutError:
            message = (
                f"the body did not arrive within {body_seconds:g} seconds; send it without a pause"
            )
            return error_response(
                request.scope, Refusal(408, "slow", message), {"Connection": "close"}
            )
        except ClientDisconnect:
            return Response(status_code=LEFT)
        # HEAD is GET without a body, which the server leaves out by itself.
        asked = "GET" if method == "HEAD" else method
        parameters = dict(request.query_params)
        browser = browser_of(request.scope)
        answered = await work.run(
            request.receive,
            lambda has_left: api.answer(asked, path, parameters, body, has_left, browser),
            browser or "",
            reads=api.reads(asked, path, browser),
        )
        if answered is None:
            return Response(status_code=LEFT)
        return _response(request, answered)

    # Every method reaches the API, which refuses those that it lacks in its own words.
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    # Addresses below /s/ and /atlas/ are views of the page, which reads them itself.
    routes = [
        Route("/", index),
        Route("/s/{rest:path}", index),
        Route("/atlas/{rest:path}", index),
        Route("/favicon.ico", icon),
        Route("/healthz", healthy),
        Route("/api/v1/{rest:path}", answer, methods=methods),
        Route("/{name}", file),
    ]

    async def not_found(request: Request, problem: Exception) -> Response:
        return error_response(
            request.scope, Refusal(404, "unknown", "there is nothing at this address")
        )

    async def wrong_method(request: Request, problem: Exception) -> Response:
        return error_response(
            request.scope, Refusal(405, "method", "this address answers only GET")
        )

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Refusal)
        return error_response(
            request.scope, problem, {"Retry-After": "1"} if problem.status == 503 else None
        )

    async def fail(request: Request, problem: Exception) -> Response:
        """Answer a request at which Telescope itself failed; its traceback is printed after this
        line.
        """
        print(
            f"telescope: request {request_id(request.scope)} failed: {described(request.scope)}",
            file=sys.stderr,
        )
        message = "Telescope failed at this request, which is a bug: report what the server printed"
        return error_response(request.scope, Refusal(500, "bug", message))

    # Every error is JSON of one form; ids are outermost, so that refusals of the guard have one.
    handlers = {404: not_found, 405: wrong_method, Refusal: refuse, Exception: fail}
    return with_ids(guard.around(Starlette(routes=routes, exception_handlers=handlers)), log)


def _response(request: Request, answer: HttpAnswer) -> Response:
    """Return an answer as a response: 304 where the browser holds this revision, uncached where it
    was sampled.
    """
    if answer.refusal is not None:
        return error_response(request.scope, answer.refusal)
    # An answer with a tag may be stored, if the browser asks at each use whether it still holds.
    tag = answer.headers.get("ETag")
    if tag is not None and tag in request.headers.get("if-none-match", "").split(", "):
        return Response(status_code=304, headers={"ETag": tag})
    caching = "private, max-age=0, must-revalidate" if tag is not None else "no-store"
    return Response(
        answer.body, answer.status, {**answer.headers, "Cache-Control": caching}, answer.kind
    )
