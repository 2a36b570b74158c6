"""The explorer over HTTP: the page, its files, and the API, each asked through the same guard."""

from anyio import CapacityLimiter, fail_after, to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .api import Answer, Api
from .guard import Guard, refused
from .pages import files, kind_of
from .requests import Refusal

WAITING = 128  # answers that wait to be computed
BODY = 10.0  # seconds in which the body of a request has to come


def app(api: Api, guard: Guard, at_once: int = 2, body_seconds: float = BODY) -> ASGIApp:
    limiter, waiting = CapacityLimiter(at_once), [0]

    async def index(request: Request) -> Response:
        return Response(files()["index.html"], media_type=kind_of("index.html"), headers={"Cache-Control": "no-cache"})

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files():
            return refused(Refusal(404, "unknown", "there is no such file of the page"))
        return Response(files()[name], media_type=kind_of(name), headers={"Cache-Control": "no-cache"})

    async def icon(request: Request) -> Response:
        return Response(status_code=204)

    async def healthy(request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def answer(request: Request) -> Response:
        """In a thread, some at a time. Who has gone away while waiting is not computed for.

        Only whole requests take a place among those that wait: a body that does not come shuts nobody out.
        """
        path, method = request.scope["path"].removeprefix("/api/v1"), request.method
        if method == "POST" and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refused(Refusal(415, "not-json", "a POST is of content type application/json"))
        try:
            with fail_after(body_seconds):
                body = await request.body() if method == "POST" else b""
        except TimeoutError:
            said = f"the body did not come within {body_seconds:g} seconds; send it at once"
            return refused(Refusal(408, "slow", said), {"Connection": "close"})
        except ClientDisconnect:
            return Response(status_code=499)
        if waiting[0] >= WAITING:
            return refused(Refusal(503, "busy", "too many ask at once; ask again in a second"), {"Retry-After": "1"})
        waiting[0] += 1
        try:
            async with limiter:
                if await request.is_disconnected():
                    return Response(status_code=499)
                made = await to_thread.run_sync(
                    api.answer, "GET" if method == "HEAD" else method, path, dict(request.query_params), body
                )
        finally:
            waiting[0] -= 1
        return _response(request, made)

    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    routes = [
        Route("/", index),
        Route("/s/{rest:path}", index),
        Route("/favicon.ico", icon),
        Route("/healthz", healthy),
        Route("/api/v1/{rest:path}", answer, methods=every),
        Route("/{name}", file),
    ]

    async def lost(request: Request, problem: Exception) -> Response:
        return refused(Refusal(404, "unknown", "there is nothing here"))

    async def other_method(request: Request, problem: Exception) -> Response:
        return refused(Refusal(405, "method", "only GET is answered here"))

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Refusal)
        return refused(problem)

    inner = Starlette(routes=routes, exception_handlers={404: lost, 405: other_method, Refusal: refuse})
    return guard.around(inner)


def _response(request: Request, made: Answer) -> Response:
    """What the browser has already in this revision is not sent again; what was sampled is never kept."""
    tag = made.headers.get("ETag")
    if tag is not None and tag in request.headers.get("if-none-match", "").split(", "):
        return Response(status_code=304, headers={"ETag": tag})
    keep = "private, max-age=0, must-revalidate" if tag is not None else "no-store"
    return Response(made.body, made.status, {**made.headers, "Cache-Control": keep}, made.kind)
