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
from .llvm_vectors import VECTOR

PACKED = 512  # keys of all heads that one thread lays out at a time
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


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function as a part of those that call it.

    A call, and a slice of an array, count references to the array, which takes longer than a short
    row of scores: what is done for each row is inlined, and indexes whole arrays.
    """
    return njit(inline="always", **OPTIONS)(function)


@inlined
def aligned(count, like):
    """Allocate so many numbers that begin at a multiple of the CPU's vectors, which are then read
    and written without crossing a line of the cache.
    """
    memory = np.empty(count + VECTOR // like.itemsize, like.dtype)
    skipped = (-memory.ctypes.data) % VECTOR // like.itemsize
    return memory[skipped : skipped + count]


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
    # A task is some tiles of all heads of a sequence: about PACKED keys.
    most = max(1, PACKED // wide)
    units = [
        [Task((0, b, 0, first, min(first + most, tiles)), heads * most * wide * features)]
        for b in range(batch)
        for first in range(0, tiles, most)
    ]
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

    tasks   (task, 5): anything, sequence b, anything, the first tile and one past the last
    """
    features = uint64(packed.shape[3])
    wide = packed.shape[4]
    numbers = packed.reshape(-1)
    for t in range(tasks.shape[0]):
        _, b, _, first, last = tasks[t]
        # All heads of a tile, one after the other: mostly their keys are neighbours in memory.
        for tile in range(first, last):
            filled = min(wide, count - tile * wide)
            for h in range(packed.shape[1]):
                # Unsigned: numba would ask of each signed index whether it counts from the end.
                own = uint64(
                    ((b * packed.shape[1] + h) * packed.shape[2] + tile) * packed.shape[3] * wide
                )
                place = uint64(b * strides[0] + h * strides[1] + tile * wide * strides[2])
                for lane in range(uint64(filled)):
                    key = place + lane * uint64(strides[2])
                    for feature in range(features):
                        numbers[own + feature * uint64(wide) + lane] = memory[key + feature]
                for lane in range(uint64(filled), uint64(wide)):
                    for feature in range(features):
                        numbers[own + feature * uint64(wide) + lane] = 0.0


@cached
def fingerprint_keys(memory, strides, factors, found):
    """Write Σ features · factors, modulo 2^64, of keys (b, head, key, feature) of int32."""
    features = uint64(factors.shape[0])
    for b in range(found.shape[0]):
        # All heads of a key, one after the other: mostly they are neighbours in memory.
        for key in range(found.shape[2]):
            for h in range(found.shape[1]):
                place = uint64(b * strides[0] + h * strides[1] + key * strides[2])
                total = int64(0)
                for feature in range(features):
                    total += int64(memory[place + feature]) * factors[feature]
                found[b, h, key] = total
