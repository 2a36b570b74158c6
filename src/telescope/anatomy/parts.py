"""The token embeddings of a model, the number of heads of an attention, and its output projection
W_O.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..layers import Attend
from .modules import Modules

EMBEDDINGS = ("embedding", "target_embedding")
"""The names of token embeddings in Telescope's models; those of transformers tell theirs."""
HEAD_COUNTS = ("heads", "num_heads", "n_heads", "num_attention_heads", "n_head")
"""What an attention, or its config, calls the number of its heads."""
OUTPUT_PROJECTIONS = ("W_O", "o_proj", "out_proj", "c_proj", "dense", "o", "wo", "Wo", "out_lin")
"""What models call W_O, inside of the attention; BERT's is `output.dense`, beside it."""
ROWS = 1024  # of the identity that a module is run on at a time
SLACK = 0.05  # relative error of a product that quantised inputs may explain


def token_embeddings(modules: Modules) -> Iterable[nn.Module]:
    """Return the modules of a model that are passed the token ids, those of its parts included."""
    modeling = sys.modules.get("transformers.modeling_utils")  # imported by any of its models
    base = None if modeling is None else modeling.PreTrainedModel
    models: list[Any] = [] if base is None else [*modules.instances(base).values()]
    if not models:
        return [one for path, one in modules.items() if path.rpartition(".")[2] in EMBEDDINGS]
    # A model and the base model inside of it return the same embedding: keep each once.
    found = {}
    for model in models:
        try:
            embedding = model.get_input_embeddings()
        except (NotImplementedError, AttributeError):  # a model of pixels or sound
            continue
        if isinstance(embedding, nn.Embedding):
            found[id(embedding)] = embedding
    return found.values()


def count_heads(modules: Modules, attention: nn.Module) -> int | None:
    """Return the number of heads of an attention; None if it cannot be told before the model
    runs.
    """
    if isinstance(attention, Attend):  # its layer knows, and a layer without heads has one
        path = _path(modules, attention)
        return int(getattr(modules[_above(path)], "heads", 1)) if path else None
    # The module's own count comes before that of its config.
    owners = (attention, getattr(attention, "config", None))
    counts = [getattr(owner, name, None) for owner in owners for name in HEAD_COUNTS]
    # type() rather than isinstance, which takes True for an int.
    return next((count for count in counts if type(count) is int), None)


def _path(modules: Modules, wanted: nn.Module) -> str:
    return next(path for path, module in modules.items() if module is wanted)


def _above(path: str) -> str:
    return path.rpartition(".")[0]


# ---------------------------------------------------------------------------- the output projection


def find_output_projections(
    modules: Modules, attentions: Mapping[str, nn.Module], option: str = 'also="norms"'
) -> dict[str, "OutputProjection"]:
    """Return the output projection of each attention; raise a ValueError if one is not found.

    `option` is what a user asked for that needs them, for errors.
    """
    found = {}
    for name, attention in attentions.items():
        # List the paths at which W_O may be, the attention's own children first.
        path = _path(modules, attention)
        places = [f"{path}.{part}" for part in OUTPUT_PROJECTIONS]
        if isinstance(attention, Attend):  # of Telescope, inside of the layer that projects
            places = [f"{_above(path)}.W_O"]
        places.append(f"{_above(path)}.output.dense")
        # The path of a module at the top has no parent: drop the dot that is left.
        parts = [modules[own] for place in places if (own := place.removeprefix(".")) in modules]
        module = next(filter(_is_projection, parts), None)
        if module is None and parts:
            raise ValueError(
                f'{option} cannot read the output projection of "{name}", a '
                f"{type(parts[0]).__name__}; leave it out"
            )
        if module is None:
            raise ValueError(
                f'{option} needs the output projection of "{name}", and none of '
                f"{', '.join(OUTPUT_PROJECTIONS)} is there; leave it out"
            )
        found[name] = OutputProjection(module, name, option)
    return found


def _is_projection(module: Any) -> bool:
    return _is_matrix(module) or isinstance(getattr(module, "in_features", None), int)


def _is_matrix(module: Any) -> bool:
    """Return whether a module multiplies by its weight: nn.Linear, GPT-2's Conv1D, and layers of
    Telescope.
    """
    kind = type(module)
    is_own = kind.__module__.startswith(f"{__name__.partition('.')[0]}.")
    # The second is the out_proj of torch's nn.MultiheadAttention.
    names = ("Conv1D", "NonDynamicallyQuantizableLinear")
    weight = getattr(module, "weight", None)
    is_plain = kind is nn.Linear or kind.__name__ in names or is_own
    return is_plain and isinstance(weight, Tensor) and weight.ndim == 2


class OutputProjection:
    """The output projection W_O of an attention, which tells how much of a value a head carries:
    ‖W_O v‖.

    The projection of each head is reduced to a d_v x d_v matrix, WᵀW, at its first use: a sharded
    weight is whole while the model runs. Read is the matrix that the model multiplies by. A plain
    weight is that matrix. A weight that is quantised, offloaded to another device, or part of an
    adapter is not: then the module is run on the rows of the identity.
    """

    def __init__(self, module: nn.Module, name: str, option: str) -> None:
        self.module: Any = module
        self.name = name
        self.option = option
        self.gram: Float[Tensor, "head d_v d_v"] | None = None

    def norms(
        self, values: Float[Tensor, "batch key_heads key d_v"], heads: tuple[int, ...]
    ) -> Float[Tensor, "batch heads key"]:
        """Return ‖W_O v‖ of each value, for the heads of these numbers, in float32 or float64."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        # Form WᵀW of each head once, since ‖W v‖² = vᵀ (WᵀW) v.
        if self.gram is None:
            with torch.no_grad():
                weight = self.read(values.dtype).detach().to(values.device, dtype)
                own = weight.reshape(len(weight), -1, values.shape[-1]).permute(1, 0, 2)
                self.gram = own.mT @ own
        group = max(1, len(heads) // max(values.shape[1], 1))  # heads that share a value
        found = []
        for place, head in enumerate(heads):
            value = values[:, place // group].detach().to(dtype)
            # Rounding may leave a square slightly below 0.
            found.append(((value @ self.gram[head]) * value).sum(-1).clamp(min=0.0).sqrt())
        return torch.stack(found, 1)

    def read(self, dtype: torch.dtype) -> Float[Tensor, "d_model features"]:
        """Return the weight; `dtype` is that of the values, which the module may have to be run
        with.
        """
        is_transposed = type(self.module).__name__ == "Conv1D"
        if not _is_matrix(self.module):
            return self._read_by_running(dtype)
        weight = self.module.weight
        if isinstance(weight, DTensor):
            # Divided by its heads, this process needs its own; divided otherwise, all of it.
            own = weight.to_local()
            features = 0 if is_transposed else 1
            divides_heads = own.shape[features] < weight.shape[features]
            weight = own if divides_heads else weight.full_tensor()
        is_tensor = type(weight) in (Tensor, nn.Parameter)  # not a packed kind of tensor
        # Numbers that are packed or on no device can be read only from what the module computes.
        if not is_tensor or weight.is_meta or not weight.is_floating_point():
            return self._read_by_running(dtype)
        matrix: Tensor = weight.mT if is_transposed else weight
        return matrix

    def _read_by_running(self, dtype: torch.dtype) -> Float[Tensor, "d_model features"]:
        """Return the matrix by which a linear module multiplies, from its output for the rows of
        the identity.

        Raise a ValueError if the module cannot be run so, or is not linear.
        """
        module = self.module
        width = module.in_features
        kind = type(module).__name__
        try:
            # An input of zeros returns the bias, which is subtracted from every other output.
            bias = module(torch.zeros(1, width, dtype=dtype, device=_device(module))).float()
            identity = torch.eye(width, dtype=dtype, device=bias.device)
            parts = [module(rows).float() - bias for rows in torch.split(identity, ROWS)]
            weight = torch.cat(parts).mT
            # One more vector tells whether the module is linear at all.
            probe = torch.linspace(-1.0, 1.0, width, dtype=dtype, device=bias.device)[None]
            actual = module(probe).float() - bias
            expected = probe.float() @ weight.mT
        except (RuntimeError, TypeError, ValueError, AttributeError) as problem:
            raise ValueError(
                f'{self.option} cannot read the output projection of "{self.name}", a {kind}: '
                f"{str(problem).strip().splitlines()[0][:120]}; leave it out"
            ) from None
        # Written with `not`, so that NaN is refused, too.
        if not bool((actual - expected).norm() <= SLACK * expected.norm()):
            raise ValueError(
                f"{self.option} needs an output projection that is linear, and that of "
                f'"{self.name}", a {kind}, is not; leave it out'
            )
        return weight


def _device(module: nn.Module) -> torch.device:
    """Return the device that the module's input is put on."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((tensor.device for tensor in tensors if not tensor.is_meta), torch.device("cpu"))
