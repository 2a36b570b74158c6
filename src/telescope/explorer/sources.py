"""Answer GET /runs/{run}/sources: where the tokens of a span come from, with an overview of a text of any length."""

import re
from typing import Any

import torch

from ..recording.find_sources import NotKeptError, find_sources
from ..recording.recorded_call import RecordedCall
from ..recording.sources import KINDS, Sources
from .lru_cache import LruCache
from .requests import Refusal, RequestParams, bad_parameter, not_kept
from .run import Run

HOW = tuple(how for how in KINDS if how != "hidden")  # which would run the model again
MOST_ROWS, MOST_TOKENS, OVERVIEW = 200, 4_096, 512  # in one answer
CUTS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){0,9999}", re.ASCII)


class SourcesOfRuns:
    """Answer requests for sources; the latest results are kept, so that zooming into a text computes nothing."""

    def __init__(self) -> None:
        self.found: LruCache[tuple[Any, ...], Sources] = LruCache(16)

    def __call__(self, run: Run, params: RequestParams) -> dict[str, Any]:
        how, b = params.word("how", HOW), params.number("b", 0)
        first, end, cuts = params.number("first"), params.number("end"), params.parameters.get("cuts")
        if cuts is not None and not CUTS.fullmatch(cuts):
            raise bad_parameter("cuts= takes the positions at which segments begin, such as 0,12,40")
        key = (run.name, run.rev, how, b, first, end, cuts)
        found = self.found.get_or_make(key, lambda: self._find(run, how, b, range(first, end), cuts))
        count, scores = len(found.context), found.scores
        span = params.span(count, MOST_TOKENS)
        overview = None
        if scores is not None and count:
            pixels = min(count, OVERVIEW)
            place = torch.arange(count) * pixels // count
            overview = torch.zeros(pixels, dtype=scores.dtype).index_add_(0, place, scores).tolist()
        return {
            "how": how,
            "meaning": KINDS[how],
            "hows": list(HOW),
            "first": found.span.start,
            "end": found.span.stop,
            "answer": list(found.answer),
            "n": count,
            "overview": overview,
            "start": span.start,
            "stop": span.stop,
            "tokens": list(found.context[span.start : span.stop]),
            "scores": None if scores is None else scores[span.start : span.stop].tolist(),
            "rows": [row._asdict() for row in found.rows[:MOST_ROWS]],
            "more": max(len(found.rows) - MOST_ROWS, 0),
        }

    def _find(self, run: Run, how: str, b: int, span: range, cuts: str | None) -> Sources:
        calls: dict[str, list[RecordedCall]] = {}
        for view in run.views:
            calls.setdefault(view.name.split(" ")[0], []).append(view.call)
        crossing = [view for view in run.views if view.call.across]
        view = (crossing or list(run.views))[0]
        count = view.call.size[1] if crossing else min(span.start, view.call.size[1])
        try:
            return find_sources(
                calls,
                span,
                how=how,
                segments=None if cuts is None else _segments(cuts, count),
                layers=None,
                heads=None,
                sequence=b,
                model=None,
                decode=view.decode,
                token_name=view.token_name,
            )
        except NotKeptError as problem:
            raise not_kept(str(problem)) from None
        except ValueError as problem:
            raise Refusal(400, "bad-parameter", str(problem)) from None


def _segments(cuts: str, count: int) -> list[int]:
    """Return the number of each token's segment, given where segments begin; the first begins at 0."""
    begins = sorted({0, *map(int, cuts.split(","))})
    numbers = torch.bucketize(torch.arange(count), torch.tensor(begins[1:]), right=True)
    listed: list[int] = numbers.tolist()
    return listed
