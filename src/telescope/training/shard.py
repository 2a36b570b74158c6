"""FSDP: weights, gradients and what AdamW keeps are shared out among the processes, so that a larger model fits."""

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ..layers import DecoderBlock, EncoderBlock
from ..layers.definition import Definition


def shard(learner: nn.Module, device: torch.device) -> nn.Module:
    """In place, block by block: each is put together while it runs, and what belongs to no block for the whole step."""
    for module in learner.modules():
        if isinstance(module, nn.RNNBase):
            raise ValueError(f"shard=True does not fit a model with a {type(module).__name__}; leave it out")
        if isinstance(module, Definition) and next(module.parameters(), None) is not None:
            raise ValueError(  # blocks share one tensor, and a block is what is sharded
                "shard=True does not fit a definition of attention with learned tensors; leave it out"
            )
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for module in list(learner.modules()):
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    return learner
