"""`ts.press`: a press of NVIDIA's kvpress that scores keys by their exact weights, without eager
attention.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ...anatomy import Modules, OutputProjection, find_output_projections
from ...attention import Attention, causal, window
from ...surveys import check_rules, key_scores


def press(
    compression_ratio: float = 0.0,
    *,
    score: str = "received",
    last: int | None = None,
    reduce: str = "mean",
) -> Any:
    """Return a press for kvpress, a `ScorerPress`: press(model) and kvpress' pipeline take it as
    any other.

    The keys with the lowest scores are dropped after the prompt was read. Scores are exact, and
    computed by the survey's kernels from the queries and keys of each layer, so that the model runs
    on sdpa or flash, and no n x n matrix is formed. With the default rules, the keys that are kept
    are those of kvpress' ObservedAttentionPress. As kvpress' own presses do, it takes texts without
    padding.

    Args:
        compression_ratio: the share of the keys to drop, from 0 to below 1.
        score: "received": the weight that a key gets, the mean of the queries that may see it.
            "largest": the largest weight it gets (as KVzip). "carried": "received" times ‖W_O v‖.
        last: score by the last so many queries alone; None is all.
        reduce: how the query heads that share a key are reduced to one score: "mean", "max" or
            "sum".

    Raises:
        ValueError: kvpress is not installed, or an option is unknown.

    Example:
        >>> import telescope as ts
        >>> ts.press(0.5, score="most")
        Traceback (most recent call last):
        ValueError: there is no score="most"; there are received, largest, carried
    """
    check_rules(score, reduce)
    if last is not None and (not isinstance(last, int) or isinstance(last, bool) or last < 1):
        raise ValueError(f"last={last!r} must be 1 or more, a whole number of queries; None is all")
    return _press_class()(compression_ratio, score, last, reduce)


@cache
def _press_class() -> Any:
    """Return the class of presses; kvpress is imported to make it."""
    try:
        kvpress: Any = import_module("kvpress")
        utils: Any = import_module("kvpress.utils")
    except ImportError as problem:
        raise ValueError(
            f"press needs kvpress, which cannot be imported ({problem}): pip install kvpress"
        ) from None
    base: type[Any] = kvpress.ScorerPress

    class SurveyPress(base):  # type: ignore[misc]
        """Score keys by the exact weights that they get."""

        def __init__(
            self, compression_ratio: float, rule: str, last: int | None, reduce: str
        ) -> None:
            super().__init__(compression_ratio)
            self.rule = rule
            self.last = last
            self.reduce = reduce
            self.projections: dict[int, OutputProjection] = {}

        def score(
            self,
            module: Any,
            hidden_states: Tensor,
            keys: Tensor,
            values: Tensor,
            attentions: Any,
            kwargs: Any,
        ) -> Tensor:
            """Return (batch, key_heads, key): the scores of the keys of one layer."""
            length = hidden_states.shape[1]
            # Compute the rotated queries again, of the last tokens alone if so asked.
            count = length if self.last is None else min(self.last, length)
            queries = utils.get_prerope_query_states(module, hidden_states[:, -count:])
            cos, sin = (part[:, -count:].unsqueeze(1) for part in kwargs["position_embeddings"])
            queries = _rotated(queries, cos, sin)
            norms = None
            # Find the output projection of each layer once.
            if self.rule == "carried":
                if id(module) not in self.projections:
                    name = type(module).__name__
                    modules = Modules.of(module)
                    found = find_output_projections(modules, {name: module}, 'score="carried"')
                    self.projections[id(module)] = found[name]
                heads = tuple(range(queries.shape[1]))
                norms = self.projections[id(module)].norms(values, heads)
            return key_scores(
                queries.to(keys.dtype),
                keys,
                _definition(module),
                score=self.rule,
                reduce=self.reduce,
                norms=norms,
            )

    return SurveyPress


def _definition(module: nn.Module) -> Attention:
    """Return the attention of a module of kvpress' families: causal, with the module's scale and
    window.
    """
    size = getattr(module, "sliding_window", None)
    mask = causal & window(size) if size else causal
    return Attention(scale=float(module.scaling), mask=mask)  # type: ignore[arg-type]


def _rotated(queries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the queries with rotary positions; where these have fewer features, the others stay as
    they are.
    """
    width = cos.shape[-1]
    turned = queries[..., :width]
    # Turn pairs of features that lie half of the width apart.
    first, second = turned.chunk(2, -1)
    turned = turned * cos + torch.cat([-second, first], -1) * sin
    return torch.cat([turned, queries[..., width:]], -1)
