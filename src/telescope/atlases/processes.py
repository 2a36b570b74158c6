"""The place of this process among those that share a run, and models that several processes run
together.
"""

import os
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from ..interception import tensor_parallel_size
from .fingerprint import checksum
from .measure import LayerHeads
from .sums import AtlasSums, heads_axis


class Share:
    """Which shards of a corpus are this process's.

    rank, count  of this process, as torchrun and accelerate launch say
    together     whether all processes run one model together (tensor parallelism, FSDP): then all
                 of them read every text, and the first alone writes
    """

    def __init__(
        self, rank: int = 0, count: int = 1, *, together: bool = False, splits_heads: bool = False
    ) -> None:
        self.rank = rank
        self.count = count
        self.together = together
        self.splits_heads = splits_heads

    @classmethod
    def of(cls, model: nn.Module) -> "Share":
        """Return the place of this process; of a process group if there is one, else of the
        environment.
        """
        if distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank()
            count = distributed.get_world_size()
            # Tensor parallelism divides the heads; FSDP divides parameters, as DTensors.
            divided = tensor_parallel_size(model) > 1
            together = divided or any(
                isinstance(parameter, DTensor) for parameter in model.parameters()
            )
            return cls(
                rank, count, together=together and count > 1, splits_heads=divided and count > 1
            )

        # Without a process group, torchrun and accelerate launch still set these variables.
        rank, count = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
        )
        return cls(rank, count)

    @property
    def writes(self) -> bool:
        """Whether this process writes files."""
        return not self.together or self.rank == 0

    def has(self, shard: int) -> bool:
        """Return whether a shard is this process's."""
        return self.together or shard % self.count == self.rank

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value, if all processes run the model together; else this
        process's own.
        """
        if not self.together:
            return value
        values = [value]
        distributed.broadcast_object_list(values, 0)
        return values[0]

    def agree(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Return the fingerprint of a model that several processes run together, the same in all of
        them.

        Each may hold other parts of the weights: their checksums are joined.
        """
        if not self.together:
            return fingerprint
        gathered: list[dict[str, Any]] = [{}] * self.count
        distributed.all_gather_object(gathered, fingerprint)
        if all(each == gathered[0] for each in gathered):
            return fingerprint
        return gathered[0] | {
            name: checksum([each[name] for each in gathered]) for name in ("weights", "config")
        }

    def barrier(self) -> None:
        """Wait for the other processes, if all run the model together."""
        if self.together:
            distributed.barrier()

    def join_heads(self, sums: AtlasSums) -> AtlasSums:
        """Return, in the first process, the sums of the heads of all processes; elsewhere those of
        this one.
        """
        parts = self.gather([sums.to("cpu")]) if self.splits_heads else [sums]
        return join_heads(parts) if len(parts) > 1 else sums

    def gather(self, items: list[Any]) -> list[Any]:
        """Return, in the first process, the items of all processes that divide the heads; elsewhere
        its own.
        """
        if not self.splits_heads:
            return items
        # `gather_object` takes a list where it receives, and None everywhere else.
        gathered: list[Any] | None = [None] * self.count if self.rank == 0 else None
        distributed.gather_object(items, gathered, 0)
        return items if gathered is None else [item for part in gathered for item in part]


def join_heads(parts: list[AtlasSums]) -> AtlasSums:
    """Return the sums of a model whose heads are divided among processes: in each layer, those of
    the first come first.

    All processes read the same texts.
    """
    # The order of the joined heads: by layer, then by process, then by number.
    first = parts[0]
    layers = []
    order = []
    for i, (layer, _, across) in enumerate(first.layers):
        sizes = [len(part.layers[i].heads) for part in parts]
        layers.append(LayerHeads(layer, tuple(range(sum(sizes))), across))
        for number, size in enumerate(sizes):
            # In the sums of one process, the heads of earlier layers come first.
            before = sum(len(own.heads) for own in parts[number].layers[:i])
            order += [(number, before + head) for head in range(size)]
    joined = AtlasSums(layers)

    # Where the heads of each process begin, once all tensors are joined end to end.
    base = [
        sum(len(own.heads) for part in parts[:number] for own in part.layers)
        for number in range(len(parts))
    ]
    index = torch.tensor([base[part] + head for part, head in order])
    tensors = [part.tensors() for part in parts]
    merged = {}
    for name, tensor in tensors[0].items():
        # Every process has read the same tokens, so that the count of one process is enough.
        if name == "class_tokens":
            merged[name] = tensor
            continue
        axis = heads_axis(name)
        merged[name] = torch.cat([each[name] for each in tensors], axis).index_select(axis, index)
    return AtlasSums.load(
        merged, {**joined.description(), "texts": first.texts, "tokens": first.tokens}
    )
