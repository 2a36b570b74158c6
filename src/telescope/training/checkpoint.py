"""Checkpoints: OUT/checkpoints/step-00001000, a folder that is there whole or not at all; the last one is kept.

state.json says where the run stands and what it is a run of; every other file holds tensors. None is a pickle.
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
from ..files.atomic import write_json, written_whole
from ..files.safetensors import in_file
from .settings import TrainingError

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """`state` is JSON; `tensors` are files of them, by name."""

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Tensor]]


def write(out: Path, checkpoint: Checkpoint) -> Path:
    """Beside those that are there, which go when it is whole. What cannot be written leaves them as they are."""
    folder = _folder(out, checkpoint.step)
    earlier = steps(out)
    try:
        with written_whole(folder) as new:
            for name, tensors in checkpoint.tensors.items():
                save_file(dict(tensors), new / f"{name}.safetensors")
            write_json(new / STATE, checkpoint.state)
    except (OSError, SafetensorError) as error:
        kept = f"the checkpoint of step {earlier[-1]:,} is kept" if earlier else "there is none before it"
        raise TrainingError(
            f"{folder} cannot be written: {_reason(error)}; {kept}; then the same command goes on"
        ) from None
    for step in earlier:
        if step != checkpoint.step:
            shutil.rmtree(_folder(out, step), ignore_errors=True)
    _clear(out)
    return folder


def read(out: Path) -> Checkpoint | None:
    """The last one, if there is any."""
    there = steps(out)
    if not there:
        return None
    folder = _folder(out, there[-1])
    state = paths.read_json(folder / STATE)
    files = [name for name in paths.names(folder) if name.endswith(".safetensors")]
    return Checkpoint(there[-1], state, {name.removesuffix(".safetensors"): _tensors(folder / name) for name in files})


def steps(out: Path) -> list[int]:
    """Of all that are whole, the last one last."""
    try:
        names = os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)", name)))


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """Where two recipes differ: "training.lr is 0.001 there and 0.002 here"."""
    for name in dict.fromkeys((*theirs, *ours)):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from differences(mine, other, f"{path}{name}.")
        elif mine != other:
            yield f"{path}{name} is {other!r} there and {mine!r} here"


def _folder(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def _clear(out: Path) -> None:
    """What a run that was killed while it wrote has left."""
    for left in (out / "checkpoints").glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)


def _tensors(file: Path) -> dict[str, Tensor]:
    there = in_file(file)
    with there.opened() as read:
        return {name: read(name) for name in there}


def _reason(error: Exception) -> str:
    """The safetensors library has the system's number in its text."""
    found = re.search(r"os error (\d+)", str(error))
    said = os.strerror(int(found[1])) if found else getattr(error, "strerror", None) or str(error)
    return said.lower()


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
