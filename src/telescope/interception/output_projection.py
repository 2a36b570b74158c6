"""Find the output projection W_O of an attention, for the norms ‖W_O v‖ of what each head carries.

Read is the matrix that the model multiplies by. A plain weight is that matrix. A weight that is
quantised, offloaded to another device, or part of an adapter is not: then the module is run on the
rows of the identity.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..recording.attention_call import Carrier
from ..recording.names import Modules

NAMES = ("W_O", "o_proj", "out_proj", "c_proj", "dense", "o", "wo", "out_lin")
"""How models call the projection, inside of the attention; BERT's is `output.dense`, beside it."""
ROWS = 1024  # of the identity that a module is run on at a time


def carriers(modules: Modules, attentions: Mapping[str, nn.Module]) -> dict[str, Carrier]:
    """Return the output projection of each attention; raise a ValueError if one is not found."""
    paths = {id(module): path for path, module in modules.items()}
    found = {}
    for name, module in attentions.items():
        read = _reader(name, modules, paths[id(module)])
        if read is None:
            raise ValueError(
                f'also="norms" needs the output projection of "{name}", and none of '
                f"{', '.join(NAMES)} is there; "
                "leave it out"
            )
        found[name] = Carrier(read)
    return found


def _reader(name: str, modules: Modules, path: str) -> Callable[[torch.dtype], Tensor] | None:
    """Return a function that reads the weight (d_model, heads · d_v) of the projection after an
    attention.
    """
    above = path.rpartition(".")[0]
    places = [f"{path}.{name}" for name in NAMES]
    if type(modules[path]).__name__ == "Attend":  # of Telescope, inside of the layer that projects
        places = [f"{above}.W_O" if above else "W_O"]
    places.append(f"{above}.output.dense" if above else "output.dense")
    found = (projection_reader(name, modules.get(place.removeprefix("."))) for place in places)
    return next((read for read in found if read is not None), None)


def projection_reader(name: str, module: Any) -> Callable[[torch.dtype], Tensor] | None:
    """Return a function that reads the weight (d_model, features) of a module; None if that is no
    projection.

    `name` is that of the attention, for errors.
    """
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 2 and _is_plain(module):
        return partial(_plain_weight, name, module)
    return (
        partial(_weight_by_running, name, module)
        if isinstance(getattr(module, "in_features", None), int)
        else None
    )


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module multiplies by its weight: nn.Linear, GPT-2's Conv1D, and layers of
    Telescope.
    """
    kind = type(module)
    return (
        kind is nn.Linear
        or kind.__name__ in ("Conv1D", "NonDynamicallyQuantizableLinear")
        or _is_own(kind)
    )


def _is_own(kind: type) -> bool:
    return kind.__module__.startswith(f"{__name__.partition('.')[0]}.")


def _plain_weight(name: str, module: Any, dtype: torch.dtype) -> Float[Tensor, "d_model features"]:
    """Return the weight of a plain module; a quantised or offloaded one by running the module."""
    weight = module.weight
    if isinstance(weight, DTensor):
        own = weight.to_local()
        columns = 0 if type(module).__name__ == "Conv1D" else 1
        weight = (
            own if own.shape[columns] < weight.shape[columns] else weight.full_tensor()
        )  # divided by its heads
    if (
        type(weight) not in (Tensor, nn.Parameter)
        or weight.is_meta
        or not weight.is_floating_point()
    ):
        return _weight_by_running(name, module, dtype)
    return weight.mT if type(module).__name__ == "Conv1D" else weight  # type: ignore[no-any-return]


def _weight_by_running(
    name: str, module: Any, dtype: torch.dtype
) -> Float[Tensor, "d_model features"]:
    """Return the matrix by which a linear module multiplies, from its output for the rows of the
    identity.

    Raise a ValueError if the module cannot be run so, or is not linear.
    """
    width = module.in_features
    try:
        bias = module(torch.zeros(1, width, dtype=dtype, device=_device(module))).float()
        identity = torch.eye(width, dtype=dtype, device=bias.device)
        weight = torch.cat([module(rows).float() - bias for rows in torch.split(identity, ROWS)]).mT
        probe = torch.linspace(-1.0, 1.0, width, dtype=dtype, device=bias.device)[None]
        actual = module(probe).float() - bias
        expected = probe.float() @ weight.mT
    except (RuntimeError, TypeError, ValueError, AttributeError) as problem:
        raise ValueError(
            f'also="norms" cannot read the output projection of "{name}", a '
            f"{type(module).__name__}: "
            f"{str(problem).strip().splitlines()[0][:120]}; leave it out"
        ) from None
    if not bool((actual - expected).norm() <= SLACK * expected.norm()):
        raise ValueError(
            f'also="norms" needs an output projection that is linear, and that of "{name}", a '
            f"{type(module).__name__}, "
            "is not; leave it out"
        )
    return weight


SLACK = 0.05  # relative error of a product that quantised inputs may explain


def _device(module: nn.Module) -> torch.device:
    """Return the device that the module's input is put on."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((tensor.device for tensor in tensors if not tensor.is_meta), torch.device("cpu"))
