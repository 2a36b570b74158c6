"""The heads of a model's attentions, told without running the model."""

from typing import Any

from torch import nn

from ..interception.find_attentions import FoundAttentions, find_attentions
from ..recording.names import Layers, select_layers

COUNTS = (
    "heads",
    "num_heads",
    "n_heads",
    "num_attention_heads",
    "n_head",
)  # what modules call their number of heads


def count_heads(model: nn.Module, layers: Layers = None) -> dict[str, int]:
    """Return the number of heads of the attentions that `layers` selects, by name.

    Raise a ValueError if a number of heads cannot be told before the model runs.
    """
    found = find_attentions(model, "edit")
    counts = {}
    for name in select_layers(list(found.attentions), layers, found.unwatched):
        count = heads_of(found, name)
        if count is None:
            raise ValueError(
                f'how many heads "{name}" has is not known before it runs; list them: '
                "ts.mute(name, head)"
            )
        counts[name] = count
    return counts


def heads_of(found: FoundAttentions, name: str) -> int | None:
    """Return the number of heads of an attention; None if it cannot be told before the model
    runs.
    """
    module: Any = found.attentions[name]
    if type(module).__name__ == "Attend":  # its layer knows, and a layer without heads has one
        path = next(path for path, other in found.modules.items() if other is module)
        return int(getattr(found.modules[path.rpartition(".")[0]], "heads", 1)) if path else None
    counts = [
        getattr(owner, key, None)
        for owner in (module, getattr(module, "config", None))
        for key in COUNTS
    ]
    return next((count for count in counts if type(count) is int), None)
