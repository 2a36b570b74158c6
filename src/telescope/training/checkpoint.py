"""Checkpoints: folders OUT/checkpoints/step-00001000, written atomically; only the last one is kept.

state.json holds the run's progress and identity; every other file holds tensors (safetensors). None is a pickle.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..files import paths
from ..files.atomic import atomic_folder, write_json
from ..files.errors import LoadError
from ..files.safetensors import scan_file
from .settings import TrainingError

STATE = "state.json"
STATE_FIELDS = "recipe", "standing", "totals", "targets"


@dataclass(frozen=True)
class Checkpoint:
    """A saved run: `state` as JSON, and `tensors` by the name of their file and their name in the file."""

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Tensor]]


def write(out: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then delete the earlier ones, and return its folder.

    Raises TrainingError if the checkpoint cannot be written; the earlier ones are then kept.
    """
    folder = _folder(out, checkpoint.step)
    earlier = saved_steps(out)
    try:
        # A run that stops at the step at which it began writes the same checkpoint again.
        with atomic_folder(folder, lambda place: None) as new:
            for name, tensors in checkpoint.tensors.items():
                save_file(dict(tensors), new / f"{name}.safetensors")
            write_json(new / STATE, checkpoint.state)
    except (OSError, SafetensorError) as error:
        kept = f"the checkpoint of step {earlier[-1]:,} is kept" if earlier else "there is no earlier checkpoint"
        raise TrainingError(
            f"{folder} cannot be written: {_reason(error)}; {kept}; run the same command again to go on"
        ) from None
    remove_others(out, checkpoint.step)
    return folder


def read(out: Path) -> Checkpoint | None:
    """Return the last checkpoint, or None if there is none."""
    steps = saved_steps(out)
    if not steps:
        return None
    folder = _folder(out, steps[-1])
    try:
        state = paths.read_json(folder / STATE)
        missing = [name for name in STATE_FIELDS if name not in state]
        if missing:
            raise LoadError(f'{folder / STATE} has no "{missing[0]}"')
        files = [name for name in paths.list_names(folder) if name.endswith(".safetensors")]
        tensors = {name.removesuffix(".safetensors"): scan_file(folder / name).read_all() for name in files}
    except LoadError as problem:
        rest = f"go on from the one of step {steps[-2]:,}" if len(steps) > 1 else "start anew"
        raise LoadError(f"{problem}; this checkpoint cannot be resumed: delete {folder} to {rest}") from None
    return Checkpoint(steps[-1], state, tensors)


def saved_steps(out: Path) -> list[int]:
    """Return the steps of all complete checkpoints, in ascending order."""
    try:
        names = os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """Yield where a run's identity differs from a checkpoint's: "training.lr is 0.001 there and 0.002 here"."""
    for name in dict.fromkeys((*theirs, *ours)):
        our_value, their_value = ours.get(name), theirs.get(name)
        if isinstance(our_value, Mapping) and isinstance(their_value, Mapping):
            yield from differences(our_value, their_value, f"{path}{name}.")
        elif our_value != their_value:
            yield f"{path}{name} is {their_value!r} there and {our_value!r} here"


def _folder(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def remove_others(out: Path, kept: int) -> None:
    """Delete all checkpoints but that of step `kept`, and what a run has left that was killed while writing."""
    others = [_folder(out, step) for step in saved_steps(out) if step != kept]
    for folder in (*others, *(out / "checkpoints").glob(".step-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception) -> str:
    """Return the system's reason of an error. The safetensors library has the system's error number in its text."""
    match = re.search(r"os error (\d+)", str(error))
    reason = os.strerror(int(match[1])) if match else getattr(error, "strerror", None) or str(error)
    return reason.lower()


def seed_generators(seed: int, rank: int) -> None:
    """Seed torch's generators, differently in every process: each has its own rows and needs its own dropout."""
    torch.manual_seed(seed + 1_000_003 * rank)


def generator_states(rank: int, device: torch.device) -> dict[str, Tensor]:
    """Return the states of this process's random generators, by rank and device."""
    states = {f"{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """Set this process's random generators to saved states, unless the saved run had no process of this rank."""
    if f"{rank}/cpu" in states:
        torch.set_rng_state(states[f"{rank}/cpu"])
    if device.type == "cuda" and f"{rank}/cuda" in states:
        torch.cuda.set_rng_state(states[f"{rank}/cuda"], device)
