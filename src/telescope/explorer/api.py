"""What can be asked of the explorer, and what it answers. HTTP, a notebook and an exported file ask in the same words.

Everything below stands under /api/v1. Numbers that JSON does not have are the strings "-inf", "inf" and "nan". Those of
trace, cells and geometry are computed in float64 of what was recorded; of heads and alignment as `survey` does it, in
the precision of the model. All are sent with all their digits. Tiles and tracks are pictures, of fewer digits.

    l   the number of an attention in the run's list `attentions`        h   a head, by its number in the model
    b   a sequence of the batch, 0 unless given                          i, j   a query and a key, from 0

GET  /models                    {"models": ["translator-en-de"], "default": "translator-en-de" | null, "longest": 4096}
GET  /runs                      {"runs": [RUN, …]}, the latest first
POST /runs                      {"text": "…", "model": "…"?, "target": "…"?} → 201 RUN. `target` is what a translator is
                                made to write; without it, what it writes by itself
GET  /runs/{run}                RUN = {"run": "r1", "rev": "…", "kind": "sentence" | "recording", "title": "…",
                                "model": "…", "text": "…" | null, "written": "…" | null, "keep": "steps",
                                "attentions": [{"l": 0, "name": "encoder.0.self", "kind": "encoder" | "decoder" |
                                "cross" | "self", "heads": [0, 1, 2, 3], "batch": 1, "n_q": 9, "n_k": 9, "d_k": 16,
                                "d_v": 16 | null, "formula": "softmax(mask(q·k / √16)) v", "mask": "causal",
                                "has": {"trace": true, "context": true, "map": true, "geometry": true,
                                "alignment": true, "tokens": true}}, …]}
                                what is not `has` would answer 409, and `why` says so: {"why": {"map": "…"}}
GET  /runs/{run}/tokens         ?l&axis=q|k&start&stop&b (at most 4,096)
                                {"l", "axis", "start", "stop", "n": 9, "tokens": ["The", "·s", …], "words": [0, 0, …] |
                                null, "names": ["Thes", …] | null}: `words` numbers the word of each token, counted
                                over the whole axis, `names` are those that begin in the range, from words[0] on.
                                A token without a text is its name, such as </s>, or its number. Of "cross", q is the
                                token that is written by the look, "…" the last one, where nobody has read it.
GET  /runs/{run}/trace          ?l&h&i&b   one query, every step
                                {"l", "h", "i", "b", "token": "saw", "n_k": 9, "keys": [0, 1, …], "tokens": ["The", …],
                                "formula": "softmax(q·k / √16) v", "score": "q·k", "scale": 0.25,
                                "stream": {"before": [d_model], "after": [d_model]} | null,
                                "query": [d_q], "key": [[d_k], …], "value": [[d_v], …] | null,
                                "factors": {"query": [m], "key": [[m], …]} | null,  their products are `terms`
                                "terms": [[m], …],                                  which sum to the scores
                                "steps": [{"name": "scores", "formula": "q·k", "numbers": [key]}, {"name": "scaled", …},
                                "capped", "biased", "masked", "weights"], only those that this definition has,
                                "lse": 3.2 | null, "sink": 0.5 | null, "context": [d_v] | null,
                                "rest": {"keys": 0, "weight": 0.0, "context": [d_v] | null}}
                                All keys where there are at most 512; else the 64 with the largest weights, by place,
                                and all others together are the `rest`. context = Σ weight · value + rest.context.
GET  /runs/{run}/heads          ?l&b (&h: that one alone)
                                {"l", "rows": 9, "columns": 9, "exact": true, "samples": 9, "maps": [{"h": 0,
                                "share": [[…]]}, …], "habits": [{"h": 0, "kind": "previous", "itself": 0.1, …,
                                "spread": 3.1}, …] | null}: matrices of at most 48 x 48, pooled
                                where there are more tokens; habits null where that would take a pass over a long text
GET  /runs/{run}/geometry       ?l&b&start&stop (at most 512 tokens)
                                {"l", "start", "stop", "n", "tokens": […], "before": [[x, y], …], "after": [[x, y], …],
                                "explained": [0.41, 0.22], "moved": [cos(before, after), …],
                                "cosines": {"before": [[…]], "after": [[…]]} | null (of at most 64 tokens)}
GET  /runs/{run}/alignment      ?l&h=3|mean&b   between words where they are known, otherwise tokens; at most 512
                                {"l", "h", "rows": ["Der", …], "columns": ["The", …], "weights": [[…]],
                                "real_rows": [0, 1, …], "real_columns": […]}: the real ones are words of the text
GET  /runs/{run}/sharpest       ?b   where words align the most sharply, among the "cross" ones if there are any:
                                {"l": 4, "mean": 0.71, "h": 2, "head": 0.93, "of": 2}: of each word the largest share
                                that goes to a word, in the mean over words; highest for the mean of all heads of l,
                                compared with `of` attentions, and in it for the head h
GET  /runs/{run}/cell           ?l&h&i&j&b   {"l", "h", "i", "j", "b", "query": "saw", "key": "man", "visible": true,
                                "dot", "scaled", "capped", "biased", "masked", "lse": … | null, "p"}
GET  /runs/{run}/cells          ?l&h&i&j&b   the weights of query i and 32 keys, from j on, or as many as there are:
                                {"l", "h", "i", "j", "b", "p": [… | null]}, null where the key may not be seen
GET  /runs/{run}/map            ?l&h&b   {"l", "h", "n_q", "n_k", "tile": 256, "max_zoom": 9, "aggs": ["share", "max"],
                                "value": "log2", "dtype": "f16", "known": 0.25}
                                `known` is the share of rows whose sum is known: it grows with every tile and effort
GET  /runs/{run}/tiles/{z}/{x}/{y}   ?l&h&agg=share|max&fmt=f16|u8&effort=1|4|16&b
                                256 x 256 numbers, row by row, a row is a query. With more effort a tile that was
                                sampled may become exact, or better; 1 takes a fraction of a second.
                                f16: little-endian log2 of the weight; -inf is masked, NaN outside of the matrix.
                                u8: 0 outside, 1 masked, v ≥ 2 is log2 = (v - 255) / 8
                                X-Exact: 0 | 1, X-Samples: how many of each pixel's queries were looked at (2^k);
                                below one, neighbouring rows of pixels share a query. Server-Timing.
                                Level z has 2^(max_zoom - z) queries and keys in a pixel; x counts keys, y queries.
GET  /runs/{run}/tracks/{z}/{x}      ?l&h&kind=entropy|received&b   256 float32, little-endian; NaN outside. Entropy in
                                nats, the mean of a pixel's queries; received is the share of all weight that falls
                                on a pixel's keys. X-Exact and X-Samples as above.
GET  /runs/{run}/export         ?l&h&i&b&format=html|json   a file with everything about an attention of a short run,
                                and as much about the others as there is room for. Cells are in the traces.
                                json: {"version": 1, "start": "/s/r1/walk?…", "answers": {"/runs/r1": RUN,
                                "/runs/r1/trace?h=0&i=0&l=0": …, "/runs/r1/tiles/0/0/0?agg=share&h=0&l=0":
                                {"base64": "…", "exact": 1, "samples": 1}}}: paths without /api/v1, parameters sorted,
                                b=0 and fmt=f16 left out. tokens and geometry are whole, without start and stop.
                                html: the same in <script type="application/json" id="telescope-answers">

Errors are {"error": {"code": "unknown-run", "message": "one sentence"}}:
    400 bad-parameter, bad-json     401 no-token     403 bad-host, bad-origin     404 unknown-run, unknown, no-tile
    405 method     408 slow     409 not-kept, too-long, damaged     413 too-large    415 not-json     422 text
    503 busy (with Retry-After)
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..models import LoadError
from .export import exported, page
from .library import Library
from .maps import Maps, Picture
from .requests import Refusal, RequestParams
from .run import AttentionView, Run
from .sentences import LONGEST
from .views import alignment, geometry, heads, sharpest, tokens
from .walk import cell, cells, trace

Resource = Callable[..., Any]
JSON, BINARY = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    kind: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


class Api:
    """answer("GET", "/runs/r1/trace", {"l": "0", "h": "3", "i": "2"})"""

    def __init__(self, library: Library) -> None:
        self.library, self.maps = library, Maps()
        self.of_attention: dict[str, Resource] = {
            "tokens": tokens,
            "trace": trace,
            "heads": heads,
            "geometry": geometry,
            "alignment": alignment,
            "cell": cell,
            "cells": cells,
            "map": self.maps.told,
        }

    def answer(self, method: str, path: str, parameters: Mapping[str, str], body: bytes = b"") -> Answer:
        """What stands at this path, under /api/v1; whatever goes wrong is an answer too."""
        began = perf_counter()
        try:
            answered = self._answer(method, path, parameters, body)
        except LoadError as problem:
            said = {"error": {"code": "damaged", "message": str(problem)}}
            return Answer(409, _json(said))
        except Refusal as refusal:
            said = {"error": {"code": refusal.code, "message": refusal.message}}
            return Answer(refusal.status, _json(said))
        timing = {"Server-Timing": f"made;dur={(perf_counter() - began) * 1000:.1f}"}
        return Answer(answered.status, answered.body, answered.kind, answered.headers | timing)

    def ask(self, path: str, **parameters: object) -> Any:
        """The same for who wants to have it as Python: JSON, or a Picture."""
        run, resource, *place = path.removeprefix("/runs/").split("/")
        return self._asked(self.library.run(run), resource, place, {k: str(v) for k, v in parameters.items()})

    def _answer(self, method: str, path: str, parameters: Mapping[str, str], body: bytes) -> Answer:
        if method == "POST":
            return self._posted(path, body)
        if method != "GET":
            raise Refusal(405, "method", f"{method[:20]} is not answered; GET is, and POST of /runs")
        match path.strip("/").split("/"):
            case ["models"]:
                return Answer(200, _json(self.library.to_json(LONGEST)))
            case ["runs"]:
                return Answer(200, _json({"runs": [run.to_json() for run in self.library.runs()]}))
            case ["runs", name]:
                run = self.library.run(name)
                return Answer(200, _json(run.to_json()), headers=_tag(run))
            case ["runs", name, "export"]:
                return self._exported(self.library.run(name), parameters)
            case ["runs", name, resource, *place]:
                run = self.library.run(name)
                found = self._asked(run, resource, place, parameters)
                if not isinstance(found, Picture):
                    return Answer(200, _json(found), headers=_tag(run))
                labels = {"X-Exact": str(int(found.exact)), "X-Samples": f"{found.samples:g}"}
                return Answer(200, found.numbers, BINARY, labels | (_tag(run) if found.exact else {}))
        raise Refusal(404, "unknown", f"nothing can be asked at /{path.strip('/')[:60]}")

    def _asked(self, run: Run, resource: str, place: list[str], parameters: Mapping[str, str]) -> Any:
        asked = RequestParams(parameters)
        if resource == "sharpest" and not place:
            return sharpest(run, asked)
        pictures = {("tiles", 3): self.maps.tile, ("tracks", 2): self.maps.track}
        picture = pictures.get((resource, len(place)))
        if picture is None and (place or resource not in self.of_attention):
            raise Refusal(
                404, "unknown", f"nothing can be asked at /runs/{run.name}/{'/'.join([resource, *place])[:60]}"
            )
        layer = asked.index("l", len(run.looked), "attention")
        looked: AttentionView = run.looked[layer]
        return picture(looked, asked, *place) if picture else self.of_attention[resource](looked, asked, layer)

    def _posted(self, path: str, body: bytes) -> Answer:
        if path.strip("/") != "runs":
            raise Refusal(405, "method", "only /runs takes a POST")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "bad-json", "the body is no JSON") from None
        known = (
            isinstance(said, dict) and set(said) <= {"text", "model", "target"} and isinstance(said.get("text"), str)
        )
        if known and all(it is None or isinstance(it, str) for it in said.values()):
            run = self.library.read(said["text"], said.get("model"), said.get("target"))
            return Answer(201, _json(run.to_json()), headers={"Location": f"/api/v1/runs/{run.name}"})
        raise Refusal(400, "bad-json", 'the body takes {"text": "…"}, and "model" and "target" if you like, all texts')

    def _exported(self, run: Run, parameters: Mapping[str, str]) -> Answer:
        how = RequestParams(parameters).word("format", ("html", "json"))
        file = exported(self.ask, run, RequestParams(parameters))
        if how == "json":
            return Answer(200, _json(file), headers=_saved(run, "json"))
        return Answer(200, page(file), "text/html; charset=utf-8", _saved(run, "html"))


def _json(contents: object) -> bytes:
    return json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _tag(run: Run) -> dict[str, str]:
    return {"ETag": f'"{run.rev}"'}


def _saved(run: Run, ending: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{re.sub("[^A-Za-z0-9_-]", "-", run.name)}.{ending}"'}
