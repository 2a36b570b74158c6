"""Whether a definition says what a model computed: some rows of its output are computed once more and compared.

A model may do what nobody here has heard of. It is better to say so than to show numbers that are not its own.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...engines.exact import share_heads
from ...recording.attention_call import AttentionCall
from ...survey.exact_rows import masked_rows

_proved: "WeakKeyDictionary[nn.Module, set[Any]]" = WeakKeyDictionary()  # once for each kind of call is enough


class Proofs:
    """Comparisons are made while the model runs and looked at when it is over, so that nobody waits for a GPU."""

    def __init__(self) -> None:
        self._open: list[tuple[str, nn.Module, Any, str, Tensor]] = []

    def add(self, name: str, module: nn.Module, ran: AttentionCall, output: Tensor, implementation: str) -> None:
        masks = tuple(type(part).__name__ for part in getattr(ran.attention.mask, "masks", (ran.attention.mask,)))
        kind = (implementation, ran.queries.shape[-2] == 1, ran.gone > 0, masks, ran.queries.dtype)
        known = any(held[1] is module and held[2] == kind for held in self._open)
        if ran.dropout or 0 in ran.queries.shape or known or kind in _proved.get(module, ()):
            return
        self._open.append((name, module, kind, str(ran.attention), _error(ran, output, implementation == "eager")))

    def must_hold(self) -> None:
        if not self._open:
            return
        found = torch.stack([found.cpu() for *_, found in self._open]).tolist()
        for (name, module, kind, definition, _), (error, finite) in zip(self._open, found, strict=True):
            if not error <= 1.0:
                if not finite:
                    raise ValueError(
                        f'the activations of "{name}" are NaN or infinite: its queries, keys or values hold such '
                        "numbers, and so does what was recorded of it; look at what runs before it"
                    )
                raise ValueError(
                    f'"{name}" computes something other than {definition}, which is what its arguments say; '
                    f"what was recorded of it is not its own (its output is off by {error:.2g} times what rounding is)"
                )
            _proved.setdefault(module, set()).add(kind)


def _error(ran: AttentionCall, output: Tensor, rounds_scores: bool) -> Float[Tensor, " 2"]:
    """The largest difference, in units of what rounding explains; 1 at most where all is well. Then 1 if all that went
    in is finite, or 0."""
    (batch, heads, queries, _), keys = ran.queries.shape, ran.keys.shape[-2]
    rows = torch.tensor(sorted({0, queries // 2, queries - 1}), device=ran.queries.device)
    some = range(0, batch, max(1, batch - 1))
    attention = ran.here
    scores = masked_rows(ran.queries, ran.keys, attention, rows, range(keys), some, range(heads))
    seeing = (scores != -torch.inf).any(-1, keepdim=True)  # of a row that sees nothing, everyone makes something else
    few = slice(some.start, some.stop, some.step)
    values = share_heads(ran.values[few], ran.queries[few]).to(scores.dtype)
    context = attention.weights(scores) @ values
    told = output[few][:, rows].transpose(1, 2).to(scores.dtype)
    most = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax() if rounds_scores else scores.new_zeros(())
    slack = (1e-3 + (8.0 + most) * torch.finfo(ran.queries.dtype).eps) * values.abs().amax()
    error = (context - told).abs().where(seeing, 0.0).amax() / slack.clamp(min=1e-30)
    finite = torch.stack([part.isfinite().all() for part in (ran.queries, ran.keys, ran.values)]).all()
    return torch.stack([error, finite.to(error.dtype)])
