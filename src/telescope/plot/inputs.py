"""What the functions of `ts.plot` accept: weights and tracks of traces, surveys, recorded
attentions and tensors.
"""

from typing import NamedTuple, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording import RecordedCall, Watched
from ..surveys import Survey
from ..token_kinds import Tokens, names_of_sides
from ..traces import Trace
from ..words import check_index

Seen = Trace | Survey | Watched | RecordedCall | Tensor

MOST_SINGLE = 512  # queries and keys up to which single weights are drawn; more are pooled to a map
POOLED_SIDE = 256  # rows and columns of that map


class Matrices(NamedTuple):
    """The weights of every head of one sequence, and the names of queries and keys, where they are
    known.

    numbers  (heads, rows, columns)
    pooled   how many queries and keys a cell holds; (1, 1) for single weights
    """

    numbers: Float[Tensor, "heads row column"]
    rows: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    pooled: tuple[float, float]
    names: tuple[int, ...]


def matrices_of(
    seen: Seen,
    tokens: Tokens | None,
    batch: SupportsIndex,
) -> Matrices:
    """Return the matrices to draw: exact weights up to 512 tokens, a pooled map of longer texts.

    Raises TypeError for anything that holds no weights, and ValueError for tokens of another
    number.
    """
    # Take the weights, and the numbers of queries and keys before any pooling.
    given = known_names(seen)
    seen, names = _unwrapped(seen, traced=True)
    if isinstance(seen, Trace):
        numbers = seen.weights
        size = (seen.weights.shape[-2], seen.weights.shape[-1])
        given = (seen.query_tokens, seen.key_tokens)
    elif isinstance(seen, Survey):
        numbers = _survey_map(seen)
        size = (seen.queries.shape[-2], seen.keys.shape[-2])
    elif isinstance(seen, Tensor):
        if not 2 <= seen.ndim <= 4:
            raise TypeError(
                f"a tensor of shape {tuple(seen.shape)} is no matrix; (query, key) or (heads, "
                "query, key) is"
            )
        numbers = with_batch_and_heads(seen)
        size = (seen.shape[-2], seen.shape[-1])
    else:
        raise TypeError(
            f"{type(seen).__name__} holds no weights to draw; a Trace, a Survey, an attention of a "
            "recording, such as "
            'recording["blocks.0.self"], or a tensor does'
        )

    # Keep one sequence, in float64 on the CPU, where matplotlib can read the numbers.
    number = check_index("batch", batch, len(numbers))
    matrices = numbers[number].detach().double().cpu()
    rows, columns = given if tokens is None else names_of_sides(tokens, *size)
    pooled = size[0] / max(1, matrices.shape[-2]), size[1] / max(1, matrices.shape[-1])
    # A pooled cell covers several tokens, so that it has no name.
    if pooled != (1.0, 1.0):
        rows = columns = None
    return Matrices(matrices, rows, columns, pooled, names or tuple(range(len(matrices))))


def known_names(seen: Seen) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the names of the queries that were kept and of the keys of a recorded attention; None
    where they are not known.
    """
    if isinstance(seen, Watched):
        seen = seen.call
    if not isinstance(seen, RecordedCall):
        return None, None
    return seen._all_names("query"), seen._all_names("key")


def _unwrapped(
    seen: Seen, *, traced: bool
) -> tuple[Trace | Survey | Tensor, tuple[int, ...] | None]:
    """Return what was seen of a recorded attention, and the numbers of its heads in the model;
    anything else as it is.

    `traced` asks for every step where it was kept, and not for a survey.
    """
    if isinstance(seen, Watched):
        seen = seen.call
    if not isinstance(seen, RecordedCall):
        return seen, None
    # Only a call that kept its values can be traced; any other gives its survey.
    return seen.trace() if traced and seen._has_values else seen.survey(), seen.heads


def with_batch_and_heads(weights: Tensor) -> Float[Tensor, "batch heads query key"]:
    return weights[(None,) * (4 - weights.ndim)]


def _survey_map(survey: Survey) -> Float[Tensor, "batch heads rows cols"]:
    queries = survey.queries.shape[-2]
    keys = survey.keys.shape[-2]
    # Queries on the meta device were not kept: only a recorded map can be drawn.
    if survey.queries.is_meta:
        if survey.recorded is None:
            raise ValueError(
                'this recording kept no map: ts.watch(model, keep="queries-keys") or map=(128, '
                "128) does"
            )
        return survey.map(*survey.recorded)
    # Draw every weight of a short text; pool those of a longer one.
    if max(queries, keys) <= MOST_SINGLE:
        return survey.rows(slice(None))
    return survey.map(min(queries, POOLED_SIDE), min(keys, POOLED_SIDE))


def track_of(
    seen: Seen, kind: str, batch: SupportsIndex
) -> tuple[Float[Tensor, "heads place"], tuple[int, ...]]:
    """Return what each key receives, or the entropy of each query, for every head of one sequence;
    and head numbers.
    """
    seen, names = _unwrapped(seen, traced=False)
    if isinstance(seen, Trace):
        seen = seen.weights
    if isinstance(seen, Survey):
        numbers = seen.received if kind == "received" else seen.entropy
    elif isinstance(seen, Tensor) and 2 <= seen.ndim <= 4:
        weights = with_batch_and_heads(seen).double()
        # xlogy counts 0 · log 0 as 0, so that a masked key adds no entropy.
        numbers = weights.sum(-2) if kind == "received" else -torch.xlogy(weights, weights).sum(-1)
    else:
        raise TypeError(
            f"{type(seen).__name__} holds no weights to draw; a Survey or an attention of a "
            "recording does"
        )
    track = numbers[check_index("batch", batch, len(numbers))].detach().double().cpu()
    return track, names or tuple(range(len(track)))
