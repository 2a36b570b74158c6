"""The model that a command is given by its name."""

from typing import Any


def load(name: str, device: str = "cpu") -> Any:
    """In float32, whatever the file has: a text then does not depend on the machine."""
    import torch

    from ..models import load

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: there is no GPU here that torch can use; leave it out")
    return load(name, device=device, dtype=torch.float32)
