"""Checksums of a saved recording: CRC-32, which finds accidental damage and is no protection against forgery."""

import json
from typing import Any
from zlib import crc32

import torch
from jaxtyping import Shaped
from torch import Tensor


def of_tensor(tensor: Shaped[Tensor, "..."]) -> int:
    """Of its dtype, its shape and its bytes, so that the header of the file is covered too."""
    told = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    numbers = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return crc32(numbers, crc32(told.encode()))


def of_manifest(said: dict[str, Any]) -> int:
    """Return the checksum of the manifest's content, independent of its layout and without its own checksum."""
    rest = {name: value for name, value in said.items() if name != "crc32"}
    return crc32(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
