"""What a model adds to its scores, as a bias of ours."""

import torch
from jaxtyping import Float
from torch import Tensor

from ...attention import Bias, from_additive
from ...attention.biases import Relative

ROWS = 1024  # looked at together


def bias_of(added: Float[Tensor, "#batch heads query key"], known: Bias | None) -> Bias | None:
    """By the distance alone where that says all, in memory that grows with n; None where nothing is added.

    A row that is written says nothing of the distances ahead of it, which `known`, the bias before it, may know.
    """
    if not added.any():
        return None
    if len(added) > 1 or not _of_distance(added[0]):
        return from_additive(added)
    heads, queries, keys = added.shape[1:]
    ahead = added[0, :, 0, keys - queries + 1 :]
    if isinstance(known, Relative) and known.table.shape[0] == heads:
        ahead = torch.cat([ahead, known.table[:, known.table.shape[1] // 2 + 1 :][:, ahead.shape[1] :]], 1)
    table = torch.cat([added[0, :, -1], ahead[:, : keys - 1]], 1)
    missing = 2 * keys - 1 - table.shape[1]
    return Relative(torch.cat([table, table[:, -1:].expand(heads, missing)], 1))


def _of_distance(added: Float[Tensor, "heads query key"]) -> bool:
    """Whether every diagonal is one number."""
    last = added.shape[1] - 1
    return all(
        torch.equal(added[:, row + 1 : min(row + ROWS, last) + 1, 1:], added[:, row : min(row + ROWS, last), :-1])
        for row in range(0, last, ROWS)
    )
