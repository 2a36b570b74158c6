"""The state of torch's generators, from which dropout is drawn: of the CPU and of a GPU, in every process its own."""

from collections.abc import Mapping

import torch
from torch import Tensor


def seed(seed: int, rank: int) -> None:
    """Another one in every process, since each has rows of its own."""
    torch.manual_seed(seed + 1_000_003 * rank)


def state(rank: int, device: torch.device) -> dict[str, Tensor]:
    states = {f"{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """A process that was not there before has no state to go back to."""
    if f"{rank}/cpu" in states:
        torch.set_rng_state(states[f"{rank}/cpu"])
    if device.type == "cuda" and f"{rank}/cuda" in states:
        torch.cuda.set_rng_state(states[f"{rank}/cuda"], device)
