"""The state of torch's generators, from which dropout is drawn: of the CPU and of this process's GPU."""

import torch
from torch import Tensor


def seed(seed: int, process: int) -> None:
    """Another one in every process, since each has rows of its own."""
    torch.manual_seed(seed + 1_000_003 * process)


def state(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
