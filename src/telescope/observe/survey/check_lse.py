"""Whether an lse that was passed in is the one of these scores: some rows are summed, to see whether they come to 1."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from ...attention import Attention
from ...attention.values import has_numbers
from .rows import masked_rows
from .summary import precision

ROWS = 3  # looked at in the first and in the last head


def check_lse(queries: Tensor, lse: Tensor) -> None:
    """Raise a TypeError or ValueError, one sentence, where it cannot be one."""
    if not isinstance(lse, Tensor) or not lse.is_floating_point():
        kind = lse.dtype if isinstance(lse, Tensor) else type(lse).__name__
        raise TypeError(f"lse is a float tensor, the log of each row's sum of exponentials, not {kind}")
    if lse.shape != queries.shape[:3]:
        raise ValueError(
            f"lse has shape {tuple(lse.shape)}; it must be (batch, heads, query) = {tuple(queries.shape[:3])}"
        )
    if lse.device != queries.device:
        raise ValueError(f"lse is on {lse.device}, queries on {queries.device}; move one of them")


def check_sums(queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor) -> None:
    """Raise a ValueError, one sentence, where the weights of some rows do not sum to one."""
    if not lse.numel() or not keys.shape[-2] or not has_numbers(lse):
        return
    (batch, heads, rows), exact = lse.shape, precision(queries)
    some = torch.tensor(sorted({i * (rows - 1) // (ROWS - 1) for i in range(ROWS)}), device=lse.device)
    corners = ((range(1), range(1)), (range(batch - 1, batch), range(heads - 1, heads)))
    every = range(keys.shape[-2])
    parts = [_with_sink(masked_rows(queries, keys, attention, some, every, b, h), attention, h) for b, h in corners]
    scores = torch.cat(parts)
    logs = torch.cat([lse[b.start, h.start, some] for b, h in corners]).to(exact)

    seen = scores.amax(-1) > -torch.inf
    sums, by_two = (torch.exp(scores - unit * logs[:, None]).sum(-1) for unit in (1.0, log(2.0)))
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    slack = 1e-3 + (8.0 + largest) * max(torch.finfo(lse.dtype).eps, torch.finfo(queries.dtype).eps)
    wrong, wrong_by_two = (~((total - 1.0).abs() <= slack) & seen for total in (sums, by_two))
    one = torch.where(wrong, sums, 1.0)[wrong.int().argmax()]
    is_wrong, total, is_other = torch.stack([wrong.any(), one, wrong_by_two.any()]).tolist()  # one wait for the GPU
    if is_wrong:
        why = (
            "it belongs to other queries, keys or another definition; leave lse out and it is computed"
            if is_other
            else "it looks like one of base 2: multiply it by ln 2"
        )
        raise ValueError(f"with this lse the weights of a row sum to {total:.4g}, not 1; {why}")


def _with_sink(masked: Tensor, attention: Attention, heads: range) -> Float[Tensor, "row key_and_sink"]:
    """The rows of one head; the sink is one more score."""
    if attention.sink is None:
        return masked[0, 0]
    sink = torch.as_tensor(attention.sink, dtype=masked.dtype, device=masked.device).flatten()
    return torch.cat([masked[0, 0], sink[heads.start % len(sink)].expand(masked.shape[-2], 1)], -1)
