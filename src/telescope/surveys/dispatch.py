"""Choose the engine that runs a survey; `plan` says which one, and why.

An engine is a module with two functions: `cannot` returns why it cannot survey an attention, or
None; `summarize` returns the Summary. An engine that can compute a part of it without the rest has
a function for it: `pool` for a map, `weigh` for sums over weighted queries; one that checks an lse
faster than PyTorch has `row_numbers`; one that computes an lse without the rest has `log_sum_exp`.
"""

from dataclasses import replace
from types import ModuleType
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..engines import Plan, plan_attend, torch_modes
from ..words import hint
from . import chunked, fused, reference, triton
from .requests import Cells, Extras, Marks, QueryWeights
from .summary import Keys, Map, PerQuery, PerSet, Queries, Summary

ENGINES: dict[str, ModuleType] = {  # in order of preference
    "triton": triton,
    "fused": fused,
    "chunked": chunked,
    "reference": reference,
}
FEW = 2**18  # scores up to which `fused` is not chosen: its compiler takes half a second to import


def choose(
    queries: Tensor, keys: Tensor, attention: Attention, top: int, engine: str | None
) -> str:
    """Return the name of the engine: `engine` if given, else the first that can survey this
    attention.
    """
    if engine is None:
        # Take the first engine that can, in the order of preference.
        skipped = "fused" if has_few_scores(queries, keys) else None
        return next(
            name
            for name, module in ENGINES.items()
            if name != skipped and module.cannot(queries, keys, attention, top) is None
        )
    if engine not in ENGINES:
        raise ValueError(f'there is no engine "{engine}"; {hint(engine, ENGINES)}')
    # An engine that was asked for by name is not replaced by another.
    obstacle = ENGINES[engine].cannot(queries, keys, attention, top)
    if obstacle:
        formula = attention.formula(keys.shape[-1])
        raise ValueError(
            f'engine="{engine}" cannot survey {formula}: {obstacle}; leave engine out, or use '
            '"chunked"'
        )
    return engine


def has_few_scores(queries: Tensor, keys: Tensor) -> bool:
    """Return whether a survey is over sooner than the compiler of `fused` is imported."""
    # Counted without a mask: finding out what it hides would take longer.
    return queries.shape[:3].numel() * keys.shape[-2] <= FEW


def summarize(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    *,
    top: int,
    lse: PerQuery | None = None,
    cells: Cells | None = None,
    engine: str | None = None,
    marks: Marks | None = None,
    extras: Extras = Extras(),
) -> tuple[str, Summary]:
    """Return the name of the engine that was chosen, and its summary."""
    chosen = choose(queries, keys, attention, top, engine)
    # Only these two form all weights; the others leave the marks out.
    marked = marks is not None and chosen in ("chunked", "fused")
    options: dict[str, Any] = {"marks": marks} if marked else {}
    options |= {"extras": extras} if extras else {}
    return chosen, ENGINES[chosen].summarize(queries, keys, attention, lse, top, cells, **options)


def pool(
    engine: str,
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    cells: Cells,
) -> Map:
    """Return the map of these cells by the engine of this name: by its `pool`, or else from its
    `summarize`.
    """
    chosen = ENGINES[engine]
    if hasattr(chosen, "pool"):
        pooled: Tensor = chosen.pool(queries, keys, attention, lse, cells)
    else:
        # top=0: only the map is wanted.
        pooled = chosen.summarize(queries, keys, attention, lse, 0, cells).map
    return pooled


def weigh(
    engine: str,
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    query_weights: QueryWeights,
) -> PerSet:
    """Return the weight each key gets from the weighted queries: by the engine's `weigh`, or from
    its `summarize`.
    """
    chosen = ENGINES[engine]
    if hasattr(chosen, "weigh"):
        weighted: Tensor = chosen.weigh(queries, keys, attention, lse, query_weights)
    else:
        extras = Extras(query_weights)
        # top=0 and no map: only the weighted sums are wanted.
        weighted = chosen.summarize(queries, keys, attention, lse, 0, None, extras=extras).weighted
    return weighted


def log_sum_exp(engine: str, queries: Queries, keys: Keys, attention: Attention) -> PerQuery:
    """Return ln Σ exp(score) by the engine of this name, or by `chunked` where it cannot."""
    chosen = ENGINES[engine]
    # The mask is another than that of the survey, and may be one that the engine cannot take.
    chosen = chosen if chosen.cannot(queries, keys, attention) is None else chunked
    if hasattr(chosen, "log_sum_exp"):
        lse: Tensor = chosen.log_sum_exp(queries, keys, attention)
    else:
        lse = chosen.summarize(queries, keys, attention, None, 0, None).lse
    return lse


# -------------------------------------------------------------------------------------------- plans

# Of a survey, measured by `python -m benchmarks survey`; `telescope doctor` measures this machine.
COST = {
    "triton": "the GPU's kernels read each tile of scores once, about 0.7 to 1.5 times a forward "
    "pass of a long text",
    "fused": "compiled loops read each strip of scores in the CPU's cache, about 0.7 to 1.3 times "
    "a forward pass",
    "chunked": "PyTorch computes it block by block, about 3 to 8 times a forward pass",
    "reference": "it forms every weight",
}


def plan(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention = Attention(),
    *,
    dropout: float = 0.0,
    engine: str | None = None,
) -> Plan:
    """Return the engine that `attend` takes for these arguments, and why, without running it; the
    survey's likewise.

    Args:
        queries: (batch, heads, query, d_q).
        keys: (batch, key_heads, key, d_k).
        values: (batch, key_heads, key, d_v).
        attention: The definition.
        dropout: As for `attend`.
        engine: As for `attend`.

    Returns:
        A Plan with `.engine` and `.why`; print it. Its `.survey` is the plan for
        `ts.survey(queries, keys, attention)`: which engine, what it costs beside a forward pass,
        and what keeps faster engines from running.

    Raises:
        TypeError, ValueError: As for `attend`.

    Example:
        >>> import telescope as ts, torch
        >>> x = torch.ones(1, 2, 3, 4)
        >>> print(ts.plan(x, x, x, ts.Attention(mask=ts.causal)))
        sdpa: torch's fused attention computes softmax(mask(q·k / √4)) v ...
        >>> print(ts.plan(x, x, x).survey)
        chunked: PyTorch computes it block by block...
    """
    # The survey sees what autocast makes of queries and keys.
    attended = plan_attend(queries, keys, values, attention, dropout, engine)
    queries, keys = torch_modes.cast_for_autocast(queries, keys)
    return replace(attended, survey=plan_survey(queries, keys, attention))


def plan_survey(queries: Tensor, keys: Tensor, attention: Attention, top: int = 8) -> Plan:
    """Return the engine that `survey` takes for these arguments, and why, without running it."""
    chosen = choose(queries, keys, attention, top, None)
    # Say what keeps each faster engine from running.
    obstacles = []
    for name in ENGINES:
        if name == chosen:
            break
        obstacle = ENGINES[name].cannot(queries, keys, attention, top)
        if obstacle is None and has_few_scores(queries, keys):
            obstacle = (
                f"it begins at {FEW:,} scores, since loading its compiler would take longer "
                "than fewer scores do"
            )
        obstacles.append(f"{name} cannot: {obstacle}")
    because = f", because {' and '.join(obstacles)}" if obstacles else ""
    return Plan(chosen, COST[chosen] + because)
