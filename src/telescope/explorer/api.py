"""The explorer's API: its requests and answers, the same over HTTP, in a notebook and in an
exported file.

All paths are under /api/v1. Numbers that JSON lacks are the strings "-inf", "inf" and "nan". The
numbers of trace, cells, geometry and positions are computed in float64 from the recorded tensors,
and sent whole: the page computes with them. All others, such as those of heads and alignment, are
in the model's precision, and are sent with the seven digits of float32. Tiles and tracks are binary
and have fewer digits.

    l   index of an attention in the run's list `attentions`             h   number of a head in the
        model
    b   sequence of the batch, 0 by default                              i, j   query and key, from
        0

GET  /models                    {"models": ["translator-en-de"], "kinds": {"translator-en-de":
     "translator" | "gpt" |
                                "encoder" | "other"}, "default": "translator-en-de" | null, "longest": 4096}
GET  /variance                  ?d=64   {"d", "most": 512, "edge": 48.5, "dot": {"variance",
     "largest", "gradient",
                                "histogram": [97 counts], "scores": [8], "weights": [8]}, "divided": {…}}: q·k of random
                                vectors with d features, as it is and divided by √d; see tasks/explaining/variance.py
GET  /positions                 ?kind=sinusoidal|rotary|alibi&d=64   {"kind", "d", "n": 64,
     "widths", "table": [[…]],
                                "curves": [{"name", "numbers": [64]}, …], "difference": 1e-15}: a position encoding
                                without a model; see tasks/explaining/positions.py
GET  /runs                      {"runs": [RUN, …]}, the latest first
POST /runs                      {"text": "…", "model": "…"?, "target": "…"?} → 201 RUN. `target` is
                                the translation that the decoder is forced to write; without it the
                                model decodes its own {"example": "bank", "inputs": {"x": [[…]]}?,
                                "normalize": "softmax" | "by_sum"?} → 201: a worked example,
                                computed from these numbers. GET /runs/example-bank answers too
                                {"atlas": "…", "l": 0, "h": 1, "habit": "previous", "rank": 0} →
                                201: one of the texts in which a habit is strongest, with "opened":
                                {"l", "h", "whole": true}
GET  /runs/{run}                RUN = {"run": "r1", "rev": "…", "kind": "sentence" | "recording" |
     "example", "title":
                                "…",
                                "model": "…", "text": "…" | null, "written": "…" | null, "keep": "steps", "example":
                                null | {"name", "origin", "normalize", "inputs": [{"name": "x", "rows": ["money", …] |
                                null, "numbers": [[…]]}, …], "scenes": [{"title", "caption", "query": 1, "findings":
                                […], "inputs": ["x"]}, …]}, one scene for each attention, "notice": "…" | null,
                                "output": null |
                                {"kind": "gpt" | "translator", "n": 6, "words": [{"name": "Bank", "first": 6, "i": 7,
                                "word": 6}, …]}: the queries that wrote a word's first and last token, and the word's
                                row in an alignment,
                                "attentions": [{"l": 0, "name": "encoder.0.self", "title": "…" | null, "kind": "encoder"
                                | "decoder" |
                                "cross" | "self", "heads": [0, 1, 2, 3], "batch": 1, "n_q": 9, "n_k": 9, "d_k": 16,
                                "d_v": 16 | null, "formula": "softmax(mask(q·k / √16)) v", "mask": "causal",
                                "has": {"trace": true, "context": true, "map": true, "geometry": true,
                                "alignment": true, "tokens": true, "after": true, "tiles": true, "positions": true}},
                                …]}
                                what `has` lacks answers 409; `why` gives the reason: {"why": {"map": "…"}}
GET  /runs/{run}/tokens         ?l&axis=q|k&start&stop&b (at most 4,096)
                                {"l", "axis", "start", "stop", "n": 9, "tokens": ["The", "·s", …], "words": [0, 0, …] |
                                null, "names": ["Thes", …] | null}: `words` is the index of each token's word, over the
                                whole axis; `names` are the texts of the words in the range, from words[0] on.
                                A token without text is its name, such as </s>, or its id. For "cross", a query is
                                named by the token that it predicts: "…" for the last one if it was never read.
GET  /runs/{run}/trace          ?l&h&i&b   every step of one query
                                {"l", "h", "i", "b", "token": "saw", "n_k": 9, "keys": [0, 1, …], "tokens": ["The", …],
                                "formula": "softmax(q·k / √16) v", "score": "q·k", "scale": 0.25,
                                "stream": {"before": [d_model], "after": [d_model]} | null,
                                "query": [d_q], "key": [[d_k], …], "value": [[d_v], …] | null,
                                "factors": {"query": [m], "key": [[m], …]} | null,  their products
                                                                                    are the `terms`
                                "terms": [[m], …],                                  and these sum to
                                                                                    the scores
                                "steps": [{"name": "scores", "formula": "q·k", "numbers": [key]}, {"name": "scaled", …},
                                "capped", "biased", "masked", "weights"], those that the definition has,
                                "lse": 3.2 | null, "sink": 0.5 | null, "context": [d_v] | null,
                                "rest": {"keys": 0, "weight": 0.0, "context": [d_v] | null}}
                                All keys if there are at most 512; else the 64 with the largest weights, by position,
                                and the sum over all others in `rest`. context = Σ weight · value + rest.context.
GET  /runs/{run}/after          ?l&i&b   one query after its heads: {"l", "i", "token", "pre_norm":
     false, "stages":
                                [{"name":
                                "joined", "size": 256, "norm": 3.1, "heads": [norm, …]}, {"name": "projected", …},
                                "before", "added", "normed" (post-norm only), "hidden" (with "active", the share of
                                features that are not 0), "fed", "passed"], "difference": 1e-7, "follows":
                                "feed-forward" | "cross", "moved": cosine}; `difference` is that from the model's own
GET  /runs/{run}/encoding       ?l&h&b   what a model does for positions: {"l", "h", "kind":
     "sinusoidal" | "learned" |
                                "rotary" | "none" | "unknown", "bias": "alibi(8)" | null, "added": null | {"features":
                                256, "shown": [feature], "table": [[…]]}, "angles": null | {"pairs": "halves",
                                "radians": [pair]}, "by_distance": {"distances": [key - query], "scores": [mean],
                                "weights": [mean], "pairs": [count], "queries": 9}}
GET  /runs/{run}/positions      ?l&h&i&b   one query with its position and without: {"l", "h", "i",
     "tokens", "added":
                                null | {"embedded": [d], "position": [d], "dots": [n]}, "biases": null | [key],
                                "with": {"scores": [key], "weights": [key]}, "without": the same for a head
                                that does not know positions | null, "why": why not | null}
GET  /runs/{run}/heads          ?l&b&by=pieces|words (&h: that head alone)
                                {"l", "rows": 9, "columns": 9, "exact": true, "samples": 9, "maps": [{"h": 0,
                                "share": [[…]]}, …], "habits": [{"h": 0, "kind": "previous", "itself": 0.1, …,
                                "spread": 3.1}, …] | null, "habit_keys": {"itself": "the query's own position", …},
                                "clear": 0.4}: matrices of at most 48 x 48, pooled where there are more tokens; `habits`
                                is null where it would need a pass over a long text. `habit_keys` names the habits and
                                the keys whose share they are; a share of at least `clear` names a head's kind
GET  /runs/{run}/geometry       ?l&b&by=pieces|words&start&stop (at most 512 tokens)
                                {"l", "start", "stop", "n", "tokens": […], "before": [[x, y], …], "after": [[x, y], …],
                                "explained": [0.41, 0.22], "moved": [cos(before, after), …],
                                "cosines": {"before": [[…]], "after": [[…]]} | null (of at most 64 tokens)}
GET  /runs/{run}/alignment      ?l&h=3|mean&b   weights between words, or tokens where words are
     unknown; at most 512
                                {"l", "h", "rows": ["Der", …], "columns": ["The", …], "weights": [[…]],
                                "known": 1.0, "real_rows": [0, 1, …], "real_columns": […]}: indices of words of the
                                text, without
                                special tokens
GET  /runs/{run}/sharpest       ?b   the attention that aligns words most sharply, of the "cross"
     ones if there are any:
                                {"l": 4, "mean": 0.71, "h": 2, "head": 0.93, "of": 2}. Sharpness is each word's largest
                                weight on a word, averaged over words: `mean` for the mean of the heads of l, the
                                highest of `of` attentions; `head` for h, the sharpest head of l
GET  /runs/{run}/answer         ?at&b   what was written, and how its sources can be found: {"why":
     "…"} if nothing was,
                                else {"why": null, "across": true, "n": 9 | null, "begins": 1, "ends": 12, "prompt":
                                5 | null: where the answer begins, if a prompt is known, "start": 1, "tokens": ["Der",
                                " Mann", …], at most 512 around `at`, "words": [0, 1, …], "span": [8, 10]: where a
                                reader should begin, "hows": {"weights": null, "carried": "why not", …}, "hide": null |
                                "why not"}
GET  /runs/{run}/sources        ?first&end&how=weights|carried|rollout|gradient|hidden&b
                                where the tokens at the positions first to end - 1 come from. Segments of the context:
                                by=pieces|words|sentences|paragraphs|parts|auto, or cuts=0,12,40, where they begin.
                                Tokens: start&stop, at most 4,096, or window=400 around centre, else around the
                                strongest segment. Overview: low&high, all by default
                                {"how", "meaning": "the mean weight, …", "hows": ["weights", …], "first", "end",
                                "answer": ["Der", …], "n": 9, "by": "words", "counts": {"words": 9, …}, "most": the
                                largest score of a segment, "low", "high", "overview": [512 sums at most] | null,
                                "start", "stop", "tokens": ["The", …], "scores": […] | null, "segments": [[0, 0.1], …]:
                                where the segment of each token begins, and its score, "rows": [{"name", "start",
                                "stop", "tokens", "score", "share", "text", "own"}, …]: the 200 largest, `own` is what
                                comes from the answer itself, "more": 0}
GET  /runs/{run}/hidden         ?first&end&start&stop&b   the tokens first to end - 1 when the model
     cannot see the
                                tokens start to stop - 1 of the context: {"before": -0.1, "after": -4.2, their
                                log-probabilities, "kl", "tokens": [{"text", "before", "after", "instead"}, …],
                                "likeliest": [{"before": [{"text", "p"}, …], "after": […]}, …], "wrote": {"before": "…",
                                "after": "…"}}: the translation, or the next words of a GPT
GET  /runs/{run}/start          ?b   where a reader should begin: {"l": 1, "h": 2, "i": 7}, the last
     word of the text
                                and
                                the head that attends most from there to another word, heads that attend by position
                                (previous, itself, sink) left out
GET  /runs/{run}/perspectives   ?l&i&b   the word of query i in all heads of the attentions of l's
     kind: {"l", "i",
                                "word": 5,
                                "names": ["The", …], "columns": ["The", …], "heads": [{"l": 1, "h": 2, "habit": null |
                                "previous" | "itself" | "next" | "first" | "sink", "share": 0.1, "weights": [column]},
                                …], "pair": [3, 7]}: `habit` names a head that attends by position, with its `share`
                                over the text; `pair` are the two other heads that differ most in this word's weights
GET  /runs/{run}/output         ?i&temperature=1&top_k=0&top_p=1   what the model writes after query
     i, the last by
                                default:
                                {"i", "n", "kind": "gpt" | "translator", "vocabulary": 6000, "chosen": "Bank" | null,
                                "word": null | {"name", "p", "pieces": [{"i", "text", "p"}, …]}, "candidates": [{"id",
                                "text", "append", "logit", "p"}, … ten, likeliest first], "kept": 6000}
                                `p` is after temperature, top_k (0 keeps all) and top_p; `chosen` is what was written;
                                the `p` of a word is the product of those of its pieces
GET  /runs/{run}/whatif         ?l&h&i&b&edits=scale,mask,sum,mute,t:0.5,hide:3   the same query
     with the attention
                                changed: not divided by √d, not masked, by sum instead of softmax, head muted, at a
                                temperature, the word of a key hidden. The model runs edited, by `ts.edit`:
                                {"trace": as /trace, "before": [key], "after": [key], "changed": 3 | null, "output":
                                null | {"kind", "kl": 0.1, "before": [{"text", "p"}, …], "after": […], "words":
                                [{"name", "i", "word", "before": 0.9, "after": 0.2, "instead": "…" | null}, …]},
                                the probabilities of whole words, and the beginning of what would now be written,
                                "reaches": whether the model runs; without one, the attention is changed alone
GET  /runs/{run}/received       ?l&h&b&start&stop (at most 512 tokens)
                                {"l", "h", "start", "stop", "n", "tokens", "received": [weight from all queries],
                                "most"}
GET  /runs/{run}/top            ?l&h&i&b   the largest weights of a query, as in a trace: {"token",
     "n_k", "keys",
                                "tokens", "steps": [{"name": "weights", …}], "rest"}; a summary holds them too
GET  /runs/{run}/cell           ?l&h&i&j&b   {"l", "h", "i", "j", "b", "query": "saw", "key": "man",
     "visible": true,
                                "dot", "scaled", "capped", "biased", "masked", "lse": … | null, "p"}
GET  /runs/{run}/cells          ?l&h&i&j&b   the weights of query i on keys j to j + 31, or to the
     last key:
                                {"l", "h", "i", "j", "b", "p": [… | null]}, null where the key is masked, or
                                not among the largest weights, where a recording kept summaries
GET  /runs/{run}/map            ?l&h&b   {"l", "h", "n_q", "n_k", "tile": 256, "max_zoom": 9, "how":
     ["share", "max"],
                                "value": "log2", "dtype": "f16", "known": 0.25}
                                `known` is the share of queries whose softmax sum is known; every tile adds to it
GET  /runs/{run}/tiles/{z}/{x}/{y}   ?l&h&how=share|max&fmt=f16|u8&effort=1|4|16&b
                                256 x 256 numbers in row-major order; rows are queries. More effort reads more queries,
                                up to an exact tile; 1 takes a fraction of a second.
                                f16: little-endian log2 of the weight; -inf is masked, NaN is outside of the matrix.
                                u8: 0 outside, 1 masked, v ≥ 2 is log2 = (v - 255) / 8
                                X-Exact: 0 | 1, X-Samples: how many of each pixel's queries were read (2^k); below 1,
                                neighbouring rows of pixels share a query. Server-Timing.
                                At level z a pixel covers 2^(max_zoom - z) queries and keys; x counts keys, y queries.
GET  /runs/{run}/tracks/{z}/{x}      ?l&h&kind=entropy|received&b   256 float32, little-endian; NaN
     outside. Entropy in
                                nats, the mean over a pixel's queries; received is the share of all weight on a
                                pixel's keys. X-Exact and X-Samples as above.
GET  /runs/{run}/export         ?l&h&i&b&start&format=html|json   the file opens at the address
     `start`, /s/{run}/…: one
                                file of at most 4 MB with the answers about an attention of a short run, those about the
                                shown head first. RUN has "held": {"l", "h"} and, in its notice, what was left out.
                                json: {"version": 1, "start": "/s/r1/walk?…", "answers": {"/runs/r1": RUN,
                                "/runs/r1/trace?h=0&i=0&l=0": …, "/runs/r1/tiles/0/0/0?h=0&how=share&l=0":
                                {"base64": "…", "exact": 1, "samples": 1}}}: paths without /api/v1, parameters sorted,
                                b=0 and fmt=f16 left out. tokens and geometry are complete, without start and stop.
                                Traces and weights are packed; packing.py says how, and inline.js unpacks them.
                                html: the same in <script type="application/json" id="telescope-answers">
GET  /atlases                   {"atlases": [ATLAS, …]}, ATLAS = {"atlas": "name", "model": "GPT",
     "texts", "tokens",
                                "skipped", "layers": ["blocks.0.self", …], "columns": ["itself", …, "logit"],
                                "shares": the columns that are shares, "habit_keys", "clear", "maps": {"256": 160}: the
                                longest text of each averaged map, and how many texts it has}
GET  /atlases/{name}            ATLAS with "heads": [{"layer", "head", "kind", "itself": 0.1 | null,
     …, "logit"}, …]
GET  /atlases/{name}/head       ?l&h   {"layer", "head", "kind", "entropy": 1.2, "entropy.std",
     "entropy.low",
                                "entropy.q5%", …, "entropy.high", "entropy.count", … of every column, "profiles":
                                {"distance" | "position" | "class": {"labels": […], "shares": […]}}, "evidence":
                                {"previous": [{"share", "text", "first", "source", "line", "tokens", "excerpt"}, …], …},
                                "maps": {"256": [[32 numbers] x 32]}}
GET  /atlases/{name}/compare/{other}   {"heads": [{"layer", "number", "kind_before", "kind_after",
     "habit", "before",
                                "after", "change", "errors", "moved"}, …]}, those that changed the most first

Every answer over HTTP has the header X-Request-Id, which the log of `telescope serve --log` repeats.
Errors are {"error": {"code": "unknown-run", "message": "one sentence", "request": "its id, over HTTP"}}:
    400 bad-parameter, bad-json     401 no-token     403 bad-host, bad-origin     404 unknown-run,
                                    unknown, no-tile
    405 method     408 slow     409 not-kept, too-long, damaged, other-shape,
    zero-sum     413 too-large    415 not-json
    422 text     503 busy (with Retry-After)
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..attention import ZeroSumError
from ..models import LoadError
from ..traces import round_numbers
from .after_head import after_head
from .export import html_page
from .exported_run import export_answers
from .library import Library
from .maps import Maps, Picture
from .next_token import output
from .perspectives import perspectives, start
from .positions import encoding, encodings, positions
from .requests import Refusal, RequestParams
from .run import AttentionView, Run
from .sentences import LONGEST
from .sources import SourcesOfRuns
from .views import alignment, geometry, heads, largest_weights, received, sharpest, tokens
from .walk import cell, cells, trace, variance
from .what_if import what_if

Resource = Callable[..., Any]
ABOUT_RUNS: dict[str, Resource] = {
    "sharpest": sharpest,
    "start": start,
    "perspectives": perspectives,
    "output": output,
    "whatif": what_if,
}  # answers about a run as a whole, not about one of its attentions
IN_FLOAT64 = (
    "trace",
    "cell",
    "cells",
    "geometry",
    "encoding",
    "positions",
    "whatif",
)  # sent with all digits
ZERO_SUM = (
    "the scores of a query sum to zero, so they cannot be divided by their sum; choose "
    "softmax, or change the numbers"
)
JSON = "application/json"
BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Answer:
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
        self.maps = Maps()
        self.sources = SourcesOfRuns()
        self.about_sources: dict[str, Resource] = {
            "sources": self.sources,
            "answer": self.sources.answer,
            "hidden": self.sources.hide,
        }
        self.resources: dict[str, Resource] = {
            "tokens": tokens,
            "trace": trace,
            "heads": heads,
            "geometry": geometry,
            "alignment": alignment,
            "cell": cell,
            "cells": cells,
            "map": self.maps.describe,
            "after": after_head,
            "encoding": encoding,
            "positions": positions,
            "received": received,
            "top": largest_weights,
        }

    def answer(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        body: bytes = b"",
        has_left: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Return the answer to a request for a path under /api/v1. Errors are answers too; nothing
        is raised.

        An export ends early, with any answer, once `has_left` returns True.
        """
        started = perf_counter()
        try:
            answered = self._answer(method, path, parameters, body, has_left)
        except LoadError as problem:
            return _refused(Refusal(409, "damaged", str(problem)))
        except ZeroSumError:
            return _refused(Refusal(409, "zero-sum", ZERO_SUM))
        except Refusal as refusal:
            return _refused(refusal)
        timing = {"Server-Timing": f"made;dur={(perf_counter() - started) * 1000:.1f}"}
        return Answer(answered.status, answered.body, answered.kind, answered.headers | timing)

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the answer to GET /runs/... as a Python object: what JSON would hold, or a
        Picture.
        """
        run, resource, *place = path.removeprefix("/runs/").split("/")
        return self._resource(
            self.library.run(run), resource, place, {k: str(v) for k, v in parameters.items()}
        )

    def _answer(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        body: bytes,
        has_left: Callable[[], bool],
    ) -> Answer:
        if method == "POST":
            return self._post(path, body)
        if method != "GET":
            raise Refusal(
                405, "method", f"{method[:20]} is not supported; GET is, and POST of /runs"
            )
        match path.strip("/").split("/"):
            case ["models"]:
                return Answer(200, _json(self.library.to_json(LONGEST)))
            case ["variance"]:
                return Answer(200, _json(variance(RequestParams(parameters))))
            case ["positions"]:
                return Answer(200, _json(encodings(RequestParams(parameters))))
            case ["atlases", *place]:
                return Answer(
                    200, _json(round_numbers(self.library.atlases.answer(place, parameters)))
                )
            case ["runs"]:
                return Answer(200, _json({"runs": [run.to_json() for run in self.library.runs()]}))
            case ["runs", name]:
                run = self.library.run(name)
                return Answer(200, _json(run.to_json()), headers=_tag(run))
            case ["runs", name, "export"]:
                return self._export(self.library.run(name), parameters, has_left)
            case ["runs", name, resource, *place]:
                run = self.library.run(name)
                found = self._resource(run, resource, place, parameters)
                if not isinstance(found, Picture):
                    return Answer(200, _json(found), headers=_tag(run))
                labels = {"X-Exact": str(int(found.exact)), "X-Samples": f"{found.samples:g}"}
                return Answer(
                    200, found.numbers, BINARY, labels | (_tag(run) if found.exact else {})
                )
        raise Refusal(404, "unknown", f"there is nothing at /{path.strip('/')[:60]}")

    def _resource(
        self, run: Run, resource: str, place: list[str], parameters: Mapping[str, str]
    ) -> Any:
        """Return an answer about a run with the digits that are true."""
        found = self._find(run, resource, place, parameters)
        return (
            found if resource in IN_FLOAT64 or isinstance(found, Picture) else round_numbers(found)
        )

    def _find(
        self, run: Run, resource: str, place: list[str], parameters: Mapping[str, str]
    ) -> Any:
        params = RequestParams(parameters)
        if resource in ABOUT_RUNS and not place:
            return ABOUT_RUNS[resource](run, params)
        if resource in self.about_sources and not place:
            return self.about_sources[resource](run, params)
        pictures = {("tiles", 3): self.maps.tile, ("tracks", 2): self.maps.track}
        picture = pictures.get((resource, len(place)))
        if picture is None and (place or resource not in self.resources):
            raise Refusal(
                404,
                "unknown",
                f"there is nothing at /runs/{run.name}/{'/'.join([resource, *place])[:60]}",
            )
        layer = params.index("l", len(run.views), "attention")
        view: AttentionView = run.views[layer]
        return (
            picture(view, params, *place)
            if picture
            else self.resources[resource](view, params, layer)
        )

    def _post(self, path: str, body: bytes) -> Answer:
        if path.strip("/") != "runs":
            raise Refusal(405, "method", "only /runs takes a POST")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "bad-json", "the body is not JSON") from None
        if isinstance(request, dict) and isinstance(request.get("example"), str):
            if not set(request) <= {"example", "inputs", "normalize"}:
                raise Refusal(
                    400, "bad-json", 'an example takes "inputs" and "normalize", and nothing else'
                )
            return _created(self.library.make_example(request))
        if isinstance(request, dict) and isinstance(request.get("atlas"), str):
            run, opened = self.library.open_evidence(request)
            return _created(run, opened=opened)
        fits = isinstance(request, dict) and isinstance(request.get("text"), str)
        fits = fits and set(request) <= {"text", "model", "target"}
        if fits and all(value is None or isinstance(value, str) for value in request.values()):
            return _created(
                self.library.read(request["text"], request.get("model"), request.get("target"))
            )
        raise Refusal(
            400,
            "bad-json",
            'the body must be {"text": "…"}, with "model" and "target" if wanted, all of them '
            "strings",
        )

    def _export(
        self, run: Run, parameters: Mapping[str, str], has_left: Callable[[], bool]
    ) -> Answer:
        params = RequestParams(parameters)
        format = params.word("format", ("html", "json"))
        file = export_answers(self.ask, run, params, has_left)
        if format == "json":
            return Answer(200, _json(file), headers=_as_attachment(run, "json"))
        return Answer(200, html_page(file), "text/html; charset=utf-8", _as_attachment(run, "html"))


def _refused(refusal: Refusal) -> Answer:
    return Answer(refusal.status, _json(refusal.to_json()), refusal=refusal)


def _created(run: Run, **more: object) -> Answer:
    return Answer(
        201, _json(run.to_json() | more), headers={"Location": f"/api/v1/runs/{run.name}"}
    )


def _json(contents: object) -> bytes:
    return json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def _tag(run: Run) -> dict[str, str]:
    return {"ETag": f'"{run.rev}"'}


def _as_attachment(run: Run, ending: str) -> dict[str, str]:
    return {
        "Content-Disposition": f'attachment; filename="{re.sub("[^A-Za-z0-9_-]", "-", run.name)}.{ending}"'
    }
