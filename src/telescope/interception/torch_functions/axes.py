"""Queries, keys, values and masks of any number of axes as tensors of four."""

from typing import NamedTuple

import torch
from torch import Tensor


class UnreadableCallError(ValueError):
    """The arguments of a call say something that cannot be recorded. The message is a reason: it
    follows "ran and cannot be recorded".
    """


class FourAxes(NamedTuple):
    """Queries, keys and values, (batch, heads, token, feature), and the axes they had before."""

    tensors: tuple[Tensor, Tensor, Tensor]
    lead: tuple[int, ...]
    """The sizes of the axes before (token, feature), as the queries have them."""

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, values: Tensor, *, grouped: bool) -> "FourAxes":
        """Broadcast as scaled_dot_product_attention does; `grouped` if heads may share keys.

        Without an axis of heads there is one head; axes before the batch are folded into the batch.
        """
        parts = (queries, keys, values)
        leads = [part.shape[:-2] for part in parts]
        # As nearly every call has it.
        batch = [lead[0] for lead in leads if len(lead) == 2 and (grouped or lead == leads[0])]
        if len(batch) == 3 and batch[0] == batch[1] == batch[2]:
            return cls(parts, leads[0])
        if not leads[0] == leads[1] == leads[2]:
            # Heads that share keys stay apart; every other axis is broadcast.
            own = 1 if grouped else 0
            common = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                *(lead[: len(lead) - own] for lead in leads)
            )
            parts = tuple(
                part.expand(*common, *part.shape[part.ndim - 2 - own :]) for part in parts
            )  # type: ignore[assignment]
        lead = tuple(parts[0].shape[:-2])
        folded = tuple(fold(part) for part in parts)
        return cls(folded, lead)  # type: ignore[arg-type]

    def fold_mask(self, mask: Tensor) -> Tensor:
        """Return a mask as (batch, heads, query, key), where batch, heads and query may have size
        1. Raise an UnreadableCallError if the mask has more axes than the queries.
        """
        missing = len(self.lead) + 2 - mask.ndim
        if missing < 0:
            raise UnreadableCallError(
                f"its mask has {mask.ndim} axes, and its queries have {len(self.lead) + 2}"
            )
        mask = mask.reshape((1,) * missing + mask.shape)
        mask = mask.expand(*mask.shape[:-1], self.tensors[1].shape[-2])
        if len(self.lead) > 2:
            mask = mask.expand(*self.lead, *mask.shape[-2:])
        return fold(mask)

    def unfold(self, context: Tensor) -> Tensor:
        """Return a context of four axes with the axes that the queries had."""
        return context.reshape(*self.lead, *context.shape[-2:])


def fold(part: Tensor) -> Tensor:
    """Return a tensor with the axes (batch, heads, token, feature)."""
    lead = part.ndim - 2
    if lead == 2:
        return part
    if lead == 0:
        return part[None, None]
    if lead == 1:
        return part.unsqueeze(1)
    return part.reshape(-1, *part.shape[-3:])
