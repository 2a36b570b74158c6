"""Serve the explorer over HTTP: the page, its files and the API, all behind the same guard.

Answers are computed in threads, a few at a time; they stop when the reader leaves or the server
ends.
"""

import sys
from collections.abc import Callable
from threading import Event, Lock

from anyio import CapacityLimiter, create_task_group, fail_after, to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive

from .answers import Refusal
from .api import JSON, Api, HttpAnswer
from .export import media_type, page_files
from .guard import LEFT, Guard, described, error_response, request_id, with_ids

BODY_SECONDS = 10.0  # within which the body of a request must arrive
MOST_WAITING = 128  # requests that may be queued or computed


class Computing:
    """The answers that are queued or being computed: at most `at_once` of them in threads at a
    time.
    """

    def __init__(self, at_once: int) -> None:
        self.stopping = False
        """Whether the server ends: nobody waits any longer for a thread that still computes."""
        self.threads = 0
        """How many threads compute, those included that nobody waits for."""
        self._limiter = CapacityLimiter(at_once)
        self._lock = Lock()
        self._waiting = 0

    async def run(
        self, receive: Receive, compute: Callable[[Callable[[], bool]], HttpAnswer]
    ) -> HttpAnswer | None:
        """Return what `compute` returns, or None if the reader has left.

        `compute` runs in a thread and is given a function that tells whether the reader has left. A
        reader who leaves the queue is not computed for. Raises Refusal 503 if the queue is full.
        """
        # Refuse at once what would only wait: the queue must not grow without limit.
        if self._waiting >= MOST_WAITING:
            raise Refusal(503, "busy", "too many requests at once; try again in a second")
        has_left = Event()
        began = False
        answer = None
        failed: Exception | None = None  # raised outside of the task group, which would wrap it

        async def wait_for_leaving() -> None:
            nonlocal failed
            try:
                # Drop whatever else arrives until the connection ends.
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Refusal as refusal:
                failed = refusal  # a body that is too large, of a request that should have none
            has_left.set()
            # A thread cannot be ended from outside: while the server runs, its slot stays taken
            # until it returns.
            if self.stopping or not began:
                group.cancel_scope.cancel()

        # One task waits for the reader to leave while the answer is computed in a thread.
        self._waiting += 1
        try:
            async with create_task_group() as group:
                group.start_soon(wait_for_leaving)
                # Wait for a slot: for a reader who leaves before that, nothing is computed.
                async with self._limiter:
                    began = True
                    try:
                        answer = await to_thread.run_sync(
                            self._count, compute, has_left.is_set, abandon_on_cancel=True
                        )
                    except Exception as problem:
                        failed = failed or problem
                # The answer is there: end the task that waits for the reader to leave.
                group.cancel_scope.cancel()
        finally:
            self._waiting -= 1
        if failed is not None:
            raise failed
        return None if has_left.is_set() else answer

    def _count(
        self, compute: Callable[[Callable[[], bool]], HttpAnswer], has_left: Callable[[], bool]
    ) -> HttpAnswer:
        # Under a lock: `+=` of two threads at once could lose one.
        with self._lock:
            self.threads += 1
        try:
            return compute(has_left)
        finally:
            with self._lock:
                self.threads -= 1


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
        answered = await work.run(
            request.receive, lambda has_left: api.answer(asked, path, parameters, body, has_left)
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
