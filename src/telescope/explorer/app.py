"""Serve the explorer over HTTP: the page, its files and the API, all behind the same guard."""

from anyio import CapacityLimiter, fail_after, to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .api import Answer, Api
from .export import media_type, page_files
from .guard import Guard, error_response
from .requests import Refusal

WAITING = 128  # most API requests that may be queued or running
BODY = 10.0  # seconds within which the body of a request must arrive


def app(api: Api, guard: Guard, at_once: int = 2, body_seconds: float = BODY) -> ASGIApp:
    """Return the ASGI application; it computes at most `at_once` API answers at a time, each in a thread."""
    limiter, waiting = CapacityLimiter(at_once), [0]

    def page_file(name: str) -> Response:
        return Response(page_files()[name], media_type=media_type(name), headers={"Cache-Control": "no-cache"})

    async def index(request: Request) -> Response:
        return page_file("index.html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in page_files():
            return error_response(Refusal(404, "unknown", "the page has no file of this name"))
        return page_file(name)

    async def icon(request: Request) -> Response:
        return Response(status_code=204)

    async def healthy(request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def answer(request: Request) -> Response:
        """Answer an API request in a thread, unless the client has disconnected while the request was queued.

        A request joins the queue only after its whole body has arrived, so slow clients cannot fill the queue.
        """
        path, method = request.scope["path"].removeprefix("/api/v1"), request.method
        if method == "POST" and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return error_response(Refusal(415, "not-json", "a POST needs the content type application/json"))
        try:
            with fail_after(body_seconds):
                body = await request.body() if method == "POST" else b""
        except TimeoutError:
            message = f"the body did not arrive within {body_seconds:g} seconds; send it without a pause"
            return error_response(Refusal(408, "slow", message), {"Connection": "close"})
        except ClientDisconnect:
            return Response(status_code=499)
        if waiting[0] >= WAITING:
            busy = Refusal(503, "busy", "too many requests at once; try again in a second")
            return error_response(busy, {"Retry-After": "1"})
        waiting[0] += 1
        try:
            async with limiter:
                if await request.is_disconnected():
                    return Response(status_code=499)
                answered = await to_thread.run_sync(
                    api.answer, "GET" if method == "HEAD" else method, path, dict(request.query_params), body
                )
        finally:
            waiting[0] -= 1
        return _response(request, answered)

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
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
        return error_response(Refusal(404, "unknown", "there is nothing at this address"))

    async def wrong_method(request: Request, problem: Exception) -> Response:
        return error_response(Refusal(405, "method", "this address answers only GET"))

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Refusal)
        return error_response(problem)

    inner = Starlette(routes=routes, exception_handlers={404: not_found, 405: wrong_method, Refusal: refuse})
    return guard.around(inner)


def _response(request: Request, answer: Answer) -> Response:
    """Return an answer as a response: 304 where the browser holds this revision, uncached where it was sampled."""
    tag = answer.headers.get("ETag")
    if tag is not None and tag in request.headers.get("if-none-match", "").split(", "):
        return Response(status_code=304, headers={"ETag": tag})
    caching = "private, max-age=0, must-revalidate" if tag is not None else "no-store"
    return Response(answer.body, answer.status, {**answer.headers, "Cache-Control": caching}, answer.kind)
