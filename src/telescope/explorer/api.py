"""The explorer's API: its requests and answers, the same over HTTP, in a notebook and in an
exported file.

All paths are under /api/v1. A route names the function that answers it; the function's docstring
and the type that it returns are the route's reference (docs/reference/explorer_api.md and
web/types.d.ts, which tools/api_types.py writes).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

from ..attention import ZeroSumError
from ..models import LoadError
from .answers import (
    ABSENT,
    Absent,
    Memory,
    OpenedText,
    Refusal,
    RequestParams,
    RunFacts,
    json_bytes,
    to_json,
)
from .authors import why, writes
from .context import answer
from .export import html_page
from .exported_run import export_answers
from .heads import geometry, heads, largest_weights, received, tokens
from .hiding import hide
from .images import image
from .library import Library
from .maps import Picture, describe_map, tile, track
from .positions import encoding, encodings, positions, variance
from .run import Run, RunRequest
from .sources import sources
from .walk import after_head, cell, cells, trace
from .weights import alignment, perspectives, sharpest, start
from .what_if import output, what_if

# The sentence of the answer 409 where a normaliser divides by a sum of zero.
ZERO_SUM = (
    "the scores of a query sum to zero, so they cannot be divided by their sum; choose "
    "softmax, or change the numbers"
)
JSON = "application/json"
BINARY = "application/octet-stream"


class Route(NamedTuple):
    """The function that answers GET of a path, and the parameters of its query, for the
    reference.
    """

    answer: Callable[..., Any]
    parameters: str = ""


def describe(request: RunRequest) -> RunFacts:
    """Answer everything about a run but its numbers; /runs/example-bank is a worked example."""
    return request.run.describe()


# Below /runs/{run}; each function is given the request, with the names of the path as parameters.
RUN_ROUTES = {
    "": Route(describe),
    "start": Route(start, "b"),
    "tokens": Route(tokens, "l&axis=q|k&start&stop&b"),
    "trace": Route(trace, "l&h&i&b"),
    "after": Route(after_head, "l&i&b"),
    "whatif": Route(what_if, "l&h&i&b&edits=scale,mask,sum,mute,t:0.5,hide:3"),
    "why": Route(why, "l&h&i&j&than&b"),
    "writes": Route(writes, "l&h&i&b"),
    "cell": Route(cell, "l&h&i&j&b"),
    "cells": Route(cells, "l&h&i&j&b"),
    "encoding": Route(encoding, "l&h&b"),
    "positions": Route(positions, "l&h&i&b"),
    "heads": Route(heads, "l&b&by=pieces|words&h"),
    "geometry": Route(geometry, "l&b&by=pieces|words&start&stop"),
    "alignment": Route(alignment, "l&h&b"),
    "sharpest": Route(sharpest, "b"),
    "perspectives": Route(perspectives, "l&i&b"),
    "image": Route(image, "l&i&b"),
    "output": Route(output, "i&temperature=1&top_k=0&top_p=1"),
    "answer": Route(answer, "at&b"),
    "sources": Route(
        sources,
        "first&end&how=weights|carried|rollout|gradient|hidden"
        "&by=pieces|words|sentences|paragraphs|parts|auto&cuts&start&stop&window&centre&low&high&b",
    ),
    "hidden": Route(hide, "first&end&start&stop&b"),
    "received": Route(received, "l&h&b&start&stop"),
    "top": Route(largest_weights, "l&h&i&b"),
    "map": Route(describe_map, "l&h&b"),
    "tiles/{z}/{x}/{y}": Route(tile, "l&h&how=share|max&fmt=f16|u8&effort=1|4|16&b"),
    "tracks/{z}/{x}": Route(track, "l&h&kind=entropy|received&b"),
}


def library_routes(library: Library) -> dict[str, Route]:
    """Return what is not about one run; each function is given the parameters, if it has any, and
    the names in the path.
    """
    atlases = library.atlases
    return {
        "models": Route(library.describe_models),
        "variance": Route(variance, "d=64"),
        "positions": Route(encodings, "kind=sinusoidal|rotary|alibi&d=64"),
        "runs": Route(library.describe_runs),
        "atlases": Route(atlases.describe_all),
        "atlases/{name}": Route(atlases.describe),
        "atlases/{name}/head": Route(atlases.describe_head, "l&h"),
        "atlases/{name}/compare/{other}": Route(atlases.compare),
    }


@dataclass(frozen=True)
class HttpAnswer:
    """An HTTP answer; `kind` is the media type of the body."""

    status: int
    body: bytes
    kind: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    """What the body says, if it is an error."""


class Api:
    """Answer API requests about a library: `api.answer("GET", "/runs/r1/trace", {"l": "0", "h":
    "3", "i": "2"})`.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.memory = Memory()
        self.routes = library_routes(library)
        # A browser keeps answers for longer than a server runs: after a restart the same run may
        # be of other weights, or answered by another version.
        self._started = token_hex(4)

    def reads(self, method: str, path: str, browser: str | None = None) -> bool:
        """Return whether a model has to read a text for this request, which takes long."""
        name = path.strip("/").removeprefix("runs").strip("/").partition("/")[0]
        return method == "POST" or (bool(name) and not self.library.is_ready(name, browser))

    def answer(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        body: bytes = b"",
        has_left: Callable[[], bool] = lambda: False,
        browser: str | None = None,
    ) -> HttpAnswer:
        """Return the answer to a request for a path under /api/v1. Errors are answers too; nothing
        is raised.

        An export ends early, with any answer, once `has_left` returns True. `browser` is who asks:
        the sentences of other browsers are unknown. Without it, as in a notebook, all are known.
        """
        # What a browser's developer tools show as the time that an answer took to make.
        started = perf_counter()
        try:
            if method == "POST":
                answered = self._post(path, body, browser)
            elif method == "GET":
                answered = self._get(path.strip("/"), parameters, has_left, browser)
            else:
                raise Refusal(
                    405, "method", f"{method[:20]} is not supported; GET is, and POST of /runs"
                )
        # Errors that a request can cause become answers; any other exception is a bug of ours.
        except LoadError as problem:
            return _refused(Refusal(409, "damaged", str(problem)))
        except ZeroSumError:
            return _refused(Refusal(409, "zero-sum", ZERO_SUM))
        except Refusal as refusal:
            return _refused(refusal)
        timing = {"Server-Timing": f"made;dur={(perf_counter() - started) * 1000:.1f}"}
        return replace(answered, headers=answered.headers | timing)

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the answer to GET /runs/... as a Python object: what JSON would hold, or a
        Picture.
        """
        # "/runs/r1/trace" is the resource "trace" of the run "r1".
        name, _, resource = path.removeprefix("/runs/").partition("/")
        given = {name: str(value) for name, value in parameters.items()}
        return self._about_run(self.library.run(name), resource, given)

    def _get(
        self,
        path: str,
        parameters: Mapping[str, str],
        has_left: Callable[[], bool],
        browser: str | None,
    ) -> HttpAnswer:
        # About one run: tagged by its revision, so that a browser keeps what has not changed.
        first, _, rest = path.partition("/")
        if first == "runs" and rest:
            name, _, resource = rest.partition("/")
            run = self.library.run(name, browser)
            # An export takes seconds, and ends early when its reader leaves.
            if resource == "export":
                return self._export(run, parameters, has_left)
            found = self._about_run(run, resource, parameters)
            tag = {"ETag": f'"{run.rev}-{self._started}"'}
            if not isinstance(found, Picture):
                return HttpAnswer(200, json_bytes(found), headers=tag)
            # A sampled picture has no tag: a later request may give a better one.
            labels = {"X-Exact": str(int(found.exact)), "X-Samples": f"{found.samples:g}"}
            return HttpAnswer(200, found.numbers, BINARY, labels | (tag if found.exact else {}))

        # About the library; only the list of runs differs between browsers.
        if path == "runs":
            return HttpAnswer(200, json_bytes(to_json(self.library.describe_runs(browser))))
        route, names = _find_route(self.routes, path, path)
        params = [RequestParams(parameters)] if route.parameters else []
        return HttpAnswer(200, json_bytes(to_json(route.answer(*params, *names.values()))))

    def _about_run(self, run: Run, resource: str, parameters: Mapping[str, str]) -> Any:
        """Return an answer about a run as JSON holds it, or a Picture."""
        route, names = _find_route(RUN_ROUTES, resource, f"runs/{run.name}/{resource}")
        # Names in the path, such as z of a tile, become parameters too.
        found = route.answer(RunRequest(run, {**parameters, **names}, self.memory))
        return found if isinstance(found, Picture) else to_json(found)

    def _post(self, path: str, body: bytes, browser: str | None) -> HttpAnswer:
        """Make a run: of a text, of a worked example, or of a text that an atlas names."""
        if path.strip("/") != "runs":
            raise Refusal(405, "method", "only /runs takes a POST")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "bad-json", "the body is not JSON") from None
        # Whatever JSON it was, the last sentence says what it must be.
        request = request if isinstance(request, dict) else {}

        # A worked example, with other numbers or another normaliser if given.
        if isinstance(request.get("example"), str):
            if not set(request) <= {"example", "inputs", "normalize"}:
                raise Refusal(
                    400, "bad-json", 'an example takes "inputs" and "normalize", and nothing else'
                )
            return _created(self.library.make_example(request, browser))
        # A text in which a habit of a head is strong, as an atlas lists it.
        if isinstance(request.get("atlas"), str):
            return _created(*self.library.open_evidence(request, browser))
        # A text for a model to read, and perhaps the translation that it has to write.
        fits = isinstance(request.get("text"), str) and set(request) <= {"text", "model", "target"}
        if fits and all(value is None or isinstance(value, str) for value in request.values()):
            model = request.get("model")
            target = request.get("target")
            return _created(self.library.read(request["text"], model, target, browser))
        raise Refusal(
            400,
            "bad-json",
            'the body must be {"text": "…"}, with "model" and "target" if wanted, all of them '
            "strings",
        )

    def _export(
        self, run: Run, parameters: Mapping[str, str], has_left: Callable[[], bool]
    ) -> HttpAnswer:
        """Return one file with the answers about an attention of a short run."""
        params = RequestParams(parameters)
        ending = params.word("format", ("html", "json"))
        file = export_answers(self.ask, run, params, has_left)
        # A run's name may hold what a file's name must not.
        name = re.sub("[^A-Za-z0-9_-]", "-", run.name)
        attached = {"Content-Disposition": f'attachment; filename="{name}.{ending}"'}
        # The answers alone, or inside of a page that shows them.
        if ending == "json":
            return HttpAnswer(200, json_bytes(file), headers=attached)
        return HttpAnswer(200, html_page(file), "text/html; charset=utf-8", attached)


def _find_route(routes: Mapping[str, Route], path: str, whole: str) -> tuple[Route, dict[str, str]]:
    """Return the route of a path, and the names in it: of tiles/{z}/{x}/{y}, {"z": "0", …}."""
    parts = path.split("/")
    for pattern, route in routes.items():
        wanted = pattern.split("/")
        # A part in braces matches anything, and is returned under its name.
        if len(wanted) == len(parts):
            pairs = list(zip(wanted, parts, strict=True))
            if all(want == part or want.startswith("{") for want, part in pairs):
                return route, {want[1:-1]: part for want, part in pairs if want.startswith("{")}
    raise Refusal(404, "unknown", f"there is nothing at /{whole[:60]}")


def _refused(refusal: Refusal) -> HttpAnswer:
    return HttpAnswer(refusal.status, json_bytes(refusal.to_json()), refusal=refusal)


def _created(run: Run, opened: OpenedText | Absent = ABSENT) -> HttpAnswer:
    # Describe the new run, and tell its address in the header Location.
    facts = replace(run.describe(), opened=opened)
    location = {"Location": f"/api/v1/runs/{run.name}"}
    return HttpAnswer(201, json_bytes(to_json(facts)), headers=location)
