"""Agreement with itself (R-Drop, Wu et al. 2021): a model sees a batch twice, each time with other things dropped.

It pays for guessing differently. Few examples then teach more: it cannot learn them by heart by what happened to be
there.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from .batch import IGNORE, Batch


def twice(batch: Batch) -> Batch:
    """Each row, and then each row again."""
    both: Batch = type(batch)(*(torch.cat([tensor, tensor]) for tensor in batch))
    return both


def agreeing(
    logits: Float[Tensor, "twice n vocabulary"],
    targets: Int[Tensor, "twice n"],
    *,
    label_smoothing: float,
    weight: float,
) -> Float[Tensor, ""]:
    """½ (L₁ + L₂ + weight · D), summed over the targets of a batch that is there twice.

    D = ½ KL(p₁‖p₂) + ½ KL(p₂‖p₁) = ½ Σ (p₁ - p₂)(z₁ - z₂): what turns logits z into ln p cancels.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    losses = cross_entropy(
        z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, label_smoothing=label_smoothing, reduction="sum"
    )
    (z_1, z_2), (p_1, p_2) = z.chunk(2), z.softmax(-1).chunk(2)
    apart = 0.5 * ((p_1 - p_2) * (z_1 - z_2)).sum(-1)
    return 0.5 * (losses + weight * apart.masked_fill(targets.chunk(2)[0] == IGNORE, 0.0).sum())
