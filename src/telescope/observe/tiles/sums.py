"""The sums of some rows, in one pass over all keys: what their weights are divided by, and how even they are."""

from math import e, log2

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .scores import Scores

LOW = -1e4  # 2^LOW is 0, and 0 · LOW is 0, which 0 · -inf is not


def sums(scores: Scores, rows: Int[Tensor, " row"]) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """log2 Σ 2^score, the sink included, and the entropy -Σ w log2 w over the keys: both in bits.

    Kept while the largest score so far grows: Σ 2^(score - largest), and Σ 2^(score - largest) · (score - largest).
    """
    sink = scores.attention.sink
    largest = torch.full((len(rows),), -torch.inf, dtype=scores.kind, device=rows.device)
    total, weighed = torch.zeros_like(largest), torch.zeros_like(largest)
    seen = range(int(scores.start[rows].min()), int(scores.stop[rows].max()))
    for part, _, block in scores.blocks(rows, seen):
        old, new = largest[part], torch.maximum(largest[part], block.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0.0)
        fell = (old - shift).clamp(min=LOW)
        before = torch.exp2(fell)
        block = block.sub_(shift[:, None]).clamp_(min=LOW)
        powers = torch.exp2(block)
        weighed[part] = before * (weighed[part] + fell * total[part]) + torch.linalg.vecdot(powers, block)
        total[part] = before * total[part] + powers.sum(-1)
        largest[part] = new
    lse = (largest + total.log2()).masked_fill(total == 0.0, -torch.inf)
    if sink is not None:
        lse = torch.logaddexp2(lse, torch.as_tensor(sink, dtype=lse.dtype, device=lse.device).reshape(-1) * log2(e))
    below = (largest - lse).masked_fill(total == 0.0, 0.0)  # w = 2^(score - largest) · 2^below
    entropy = -below.exp2() * (weighed + below * total)
    return lse, entropy.clamp(min=0.0)
