"""Choose the engine that runs a survey.

An engine is a module with two functions: `cannot` returns why it cannot survey an attention, or
None; `summarize` returns the Summary. An engine that can compute a part of it without the rest has
a function for it: `pool` for a map, `weigh` for sums over weighted queries; one that checks an lse
faster than PyTorch has `row_numbers`.
"""

from types import ModuleType

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..words import hint
from . import chunked, fused, reference, triton
from .cells import Cells
from .extras import Extras

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
        names = [
            name for name in ENGINES if not (name == "fused" and has_few_scores(queries, keys))
        ]
        return next(
            name for name in names if ENGINES[name].cannot(queries, keys, attention, top) is None
        )
    if engine not in ENGINES:
        raise ValueError(f'there is no engine "{engine}"; {hint(engine, ENGINES)}')
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
    return queries.shape[:3].numel() * keys.shape[-2] <= FEW


def pool(
    engine: str,
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    cells: Cells,
) -> Float[Tensor, "batch heads rows columns"]:
    """Return the map of these cells by the engine of this name: by its `pool`, or else from its
    `summarize`.
    """
    chosen = ENGINES[engine]
    if hasattr(chosen, "pool"):
        pooled: Tensor = chosen.pool(queries, keys, attention, lse, cells)
    else:
        pooled = chosen.summarize(queries, keys, attention, lse, 0, cells).map
    return pooled


def weigh(
    engine: str,
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    query_weights: Float[Tensor, "#batch #heads sets query"],
) -> Float[Tensor, "batch heads sets key"]:
    """Return the weight each key gets from the weighted queries: by the engine's `weigh`, or from
    its `summarize`.
    """
    chosen = ENGINES[engine]
    if hasattr(chosen, "weigh"):
        weighted: Tensor = chosen.weigh(queries, keys, attention, lse, query_weights)
    else:
        extras = Extras(query_weights)
        weighted = chosen.summarize(queries, keys, attention, lse, 0, None, extras=extras).weighted
    return weighted
