"""Loops over keys that numba compiles for a CPU: lay keys out for the survey's kernel, and compute
their fingerprints.

A tensor is passed as its memory and its strides, so that one compiled function reads every layout;
the features of a key are neighbours.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import int64, njit, uint64
from torch import Tensor

from .device import Task, run_tasks

FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
OPTIONS = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "boundscheck": False}


def cached(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, and keep the code on disk where a folder can be written
    to.
    """
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written to
        return njit(**OPTIONS)(function)


def memory_of(tensor: Tensor) -> tuple[Any, Any]:
    """Return the memory of a tensor (b, h, row, feature) as numpy's array, whose first element is
    the tensor's, and the strides of all axes but the last, whose elements are neighbours.
    """
    if tensor.stride(-1) != 1 or tensor.numel() == 0:
        tensor = tensor.contiguous()
    steps = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    length = sum(steps) + 1 if tensor.numel() else 0
    return tensor.as_strided((length,), (1,)).numpy(), np.array(tensor.stride()[:-1])


def pack(keys: Tensor, size: int) -> Tensor:
    """Return keys (batch, key_heads, tile, feature, key) in tiles that are `size` bytes wide,
    padded with zeros.
    """
    # The keys of a tile are neighbours for each feature: one load reads a vector of them.
    batch, heads, columns, features = keys.shape
    wide = size // keys.element_size()
    tiles = -(-columns // wide)
    packed = keys.new_empty(batch, heads, tiles, features, wide)
    memory, strides = memory_of(keys)
    array = packed.numpy()
    numbers = columns * features
    units = [[Task((0, b, h, 0, tiles), numbers)] for b in range(batch) for h in range(heads)]
    run_tasks(lambda places: pack_keys(places, memory, strides, columns, array), units)
    return packed


def fingerprint(keys: Tensor, factors: Tensor) -> Tensor:
    """Return Σ features · factors, modulo 2^64, of keys (batch, head, key, feature) of int32."""
    found = torch.empty(keys.shape[:-1], dtype=torch.int64)
    memory, strides = memory_of(keys)
    fingerprint_keys(memory, strides, factors.numpy(), found.numpy())
    return found


@cached
def pack_keys(tasks, memory, strides, count, packed):
    """Write keys (b, head, key, feature) as tiles (b, head, tile, feature, key), and zeros after
    the last key.

    tasks   (task, 5): anything, sequence b, head h, the first tile and one past the last
    """
    features = uint64(packed.shape[3])
    wide = uint64(packed.shape[4])
    for t in range(tasks.shape[0]):
        _, b, h, first, last = tasks[t]
        tiles = packed[b, h].reshape(-1)
        for key in range(first * packed.shape[4], last * packed.shape[4]):
            # Unsigned: numba would ask of each signed index whether it counts from the end.
            tile, lane = divmod(key, packed.shape[4])
            own = uint64(tile) * features * wide + uint64(lane)
            if key < count:
                place = uint64(b * strides[0] + h * strides[1] + key * strides[2])
                for feature in range(features):
                    tiles[own + feature * wide] = memory[place + feature]
            else:
                for feature in range(features):
                    tiles[own + feature * wide] = 0.0


@cached
def fingerprint_keys(memory, strides, factors, found):
    """Write Σ features · factors, modulo 2^64, of keys (b, head, key, feature) of int32."""
    features = uint64(factors.shape[0])
    for b in range(found.shape[0]):
        for h in range(found.shape[1]):
            for key in range(found.shape[2]):
                place = uint64(b * strides[0] + h * strides[1] + key * strides[2])
                total = int64(0)
                for feature in range(features):
                    total += int64(memory[place + feature]) * factors[feature]
                found[b, h, key] = total
