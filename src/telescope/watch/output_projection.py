"""Find the output projection W_O of an attention, for the norms ‖W_O v‖ of what each head carries."""

from collections.abc import Mapping

from torch import Tensor, nn

from ..recording.attention_call import Carrier
from ..recording.names import Modules

NAMES = ("W_O", "o_proj", "out_proj", "c_proj", "dense", "o", "wo", "out_lin")
"""How models call the projection, inside of the attention; BERT's is `output.dense`, beside it."""


def carriers(modules: Modules, attentions: Mapping[str, nn.Module]) -> dict[str, Carrier]:
    """Return the output projection of each attention; raise a ValueError if one is not found."""
    paths = {id(module): path for path, module in modules.items()}
    found = {}
    for name, module in attentions.items():
        weight = _weight(modules, paths[id(module)])
        if weight is None:
            raise ValueError(
                f'also="norms" needs the output projection of "{name}", and none of {", ".join(NAMES)} is there; '
                "leave it out"
            )
        found[name] = Carrier(weight)
    return found


def _weight(modules: Modules, path: str) -> Tensor | None:
    """Return the weight (d_model, heads · d_v) of the projection after an attention: inside, or around it."""
    above = path.rpartition(".")[0]
    places = [f"{path}.{name}" for name in NAMES]
    if type(modules[path]).__name__ == "Attend":  # of Telescope, inside of the layer that projects
        places = [f"{above}.W_O" if above else "W_O"]
    places.append(f"{above}.output.dense" if above else "output.dense")
    for place in places:
        module = modules.get(place.removeprefix("."))
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            return weight.mT if type(module).__name__ == "Conv1D" else weight
    return None
