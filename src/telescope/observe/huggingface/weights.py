"""True weights for whoever asks a watched model for `output_attentions=True`, as the tools of others do."""

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from ...words import size
from ..ran import Ran
from ..survey.rows import masked_rows

MOST = 2**30  # bytes for one attention

_collected: Any
try:  # what transformers collects of a call: newer models are told so by nothing else
    from transformers.utils.output_capturing import _active_collector as _collected
except ImportError:
    _collected = ContextVar("_collected", default=None)


def weights_asked_for(options: dict[str, Any]) -> bool:
    return bool(options.get("output_attentions")) or any("attentions" in name for name in _collected.get() or ())


def weights_of(name: str, ran: Ran) -> Tensor:
    """(batch, heads, query, key), in the dtype of the queries."""
    (batch, heads, queries, _), keys = ran.queries.shape, ran.keys.shape[-2]
    needed = batch * heads * queries * keys * 4
    if needed > MOST:
        raise ValueError(
            f'output_attentions=True would write {size(needed)} for "{name}", {queries:,} queries x {keys:,} keys; '
            'leave it out, and ask the recording: .rows and .map of keep="queries-keys"'
        )
    rows = torch.arange(queries, device=ran.queries.device)
    masked = masked_rows(ran.queries, ran.keys, ran.here, rows, range(keys), range(batch), range(heads))
    return ran.here.weights(masked).to(ran.queries.dtype)
