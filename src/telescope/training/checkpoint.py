"""Checkpoints: folders OUT/checkpoints/step-00001000, written atomically; only the last one is
kept.

state.json holds the run's progress and identity; every other file holds tensors (safetensors). None
is a pickle.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..files import (
    LoadError,
    WriteError,
    atomic_folder,
    check_savable,
    paths,
    scan_file,
    to_json,
    write_json,
)
from ..layers import DefinedLayer
from ..models import Model, custom_attention
from ..words import one_line
from .batch import Data
from .settings import Training, TrainingError

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A saved run: `state` as JSON, and `tensors` by the name of their file and their name in the
    file.
    """

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
    except WriteError as error:
        kept = "there is no earlier checkpoint"
        if earlier:
            kept = f"the checkpoint of step {earlier[-1]:,} is kept"
        raise TrainingError(
            f"{folder} cannot be written: {str(error.strerror).lower()}; {kept}; run the same "
            "command again to go on"
        ) from None
    remove_others(out, checkpoint.step)
    return folder


def read(out: Path, standing: type) -> Checkpoint | None:
    """Return the last checkpoint, or None if there is none; `standing` is the class of the run's
    progress.

    Raise a LoadError if a file is damaged, or state.json has not the fields of a run.
    """
    steps = saved_steps(out)
    if not steps:
        return None
    # Whatever is wrong with the files, say how to go on.
    folder = _folder(out, steps[-1])
    try:
        state = paths.read_json(folder / STATE)
        if not _is_state(state, standing):
            raise LoadError(
                f"{folder / STATE} is damaged: its fields are not those of a run's progress"
            )
        files = [name for name in paths.list_names(folder) if name.endswith(".safetensors")]
        tensors = {
            name.removesuffix(".safetensors"): scan_file(folder / name).read_all() for name in files
        }
    except LoadError as problem:
        rest = f"go on from the one of step {steps[-2]:,}" if len(steps) > 1 else "start anew"
        raise LoadError(
            f"{problem}; this checkpoint cannot be resumed: delete {folder} to {rest}"
        ) from None
    return Checkpoint(steps[-1], state, tensors)


def _is_state(state: Any, standing: type) -> bool:
    """Return whether state.json has the fields of a run."""
    # Whatever a file holds, it is not used before it has this form.
    match state:
        case {"recipe": dict(), "standing": dict(fields), "totals": list(totals), "targets": int()}:
            return _fits(fields, get_type_hints(standing)) and all(
                type(total) in (int, float) for total in totals
            )
    return False


def check_tensors(found: Checkpoint, out: Path, model: nn.Module) -> None:
    """Raise a LoadError unless the checkpoint has the tensors of a run of this model, by their
    names and shapes.
    """
    folder = _folder(out, found.step)
    # The shapes that each file should have.
    weights = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    parameters = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    optimiser: dict[str, tuple[int, ...]] = {}
    for name, shape in parameters.items():
        optimiser |= {f"{name}/exp_avg": shape, f"{name}/exp_avg_sq": shape, f"{name}/step": ()}
    # Snapshots are numbered: 0/blocks.0.norm.weight.
    snapshots = {name.partition("/")[0] for name in found.tensors.get("average", {})}
    average = {
        f"{i}/{name}": shape for i in snapshots if i.isdecimal() for name, shape in weights.items()
    }
    expected = {"weights": weights, "optimiser": optimiser, "average": average, "best": weights}
    for name, shapes in expected.items():
        if name not in found.tensors and name in ("average", "best"):
            continue  # a run need not have them
        given = {part: tuple(tensor.shape) for part, tensor in found.tensors.get(name, {}).items()}
        # In both directions: a tensor may be missing, or too many.
        for part in shapes.keys() | given.keys():
            if given.get(part) != shapes.get(part):
                raise _damaged(
                    folder / f"{name}.safetensors", f'its tensor "{part}" is not of this model'
                )
    if not found.tensors.get("random"):
        raise _damaged(folder / "random.safetensors", "it has no state of a random generator")


def _fits(fields: Mapping[str, Any], types: Mapping[str, Any]) -> bool:
    """Return whether the fields have these names and types, and no number is negative or huge."""
    if fields.keys() != types.keys():
        return False
    for name, value in fields.items():
        # Exact types: True is no number of steps.
        if type(value) not in (get_args(types[name]) or (types[name],)):
            return False
        if type(value) is int and not 0 <= value < 2**62:
            return False
    return True


def _damaged(file: Path, problem: str) -> LoadError:
    return LoadError(f"{file} is damaged: {problem}; delete {file.parent} to train from the start")


def saved_steps(out: Path) -> list[int]:
    """Return the steps of all complete checkpoints, in ascending order."""
    try:
        names = os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


# ---------------------------------------------------------------------------------------- same run?

# Settings that may differ when a run is resumed: none of them changes a number.
FREE_SETTINGS = {"compile", "capture", "shard", "log_every", "watch_every", "save_every"}


def run_identity(model: Model, data: Data, settings: Training) -> dict[str, Any]:
    """Return all that must be equal for a run to be resumed: settings that change numbers, model
    and data, as JSON.

    Raises a ValueError, before training and not after it, if an attention definition of the model
    cannot be saved.
    """
    for name, module in model.named_modules():
        if isinstance(module, DefinedLayer):
            check_savable(f"{name}.attention", module.attention)
    every = settings.to_dict()
    config = {"kind": type(model).__name__, **model.config.to_dict()}
    attention = custom_attention(model)
    if attention is not None:
        config["attention"] = to_json(attention, {})
    return {
        "training": {name: every[name] for name in every if name not in FREE_SETTINGS},
        "model": config,
        "data": data.describe(),
    }


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = ""
) -> Iterable[str]:
    """Yield where a run's identity differs from a checkpoint's: "training.lr is 0.001 there and
    0.002 here".
    """
    # Each name once, those of the file first.
    for name in dict.fromkeys((*theirs, *ours)):
        our_value = ours.get(name)
        their_value = theirs.get(name)
        if isinstance(our_value, Mapping) and isinstance(their_value, Mapping):
            yield from differences(our_value, their_value, f"{path}{name}.")
        elif our_value != their_value:
            yield one_line(f"{path}{name} is {their_value!r} there and {our_value!r} here")


def _folder(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def remove_others(out: Path, kept: int) -> None:
    """Delete all checkpoints but that of step `kept`, and what a run has left that was killed while
    writing.
    """
    # Hidden folders are what `atomic_folder` had not finished.
    others = [_folder(out, step) for step in saved_steps(out) if step != kept]
    for folder in (*others, *(out / "checkpoints").glob(".step-*")):
        shutil.rmtree(folder, ignore_errors=True)


# -------------------------------------------------------------------------------- random generators


def seed_generators(seed: int, rank: int) -> None:
    """Seed torch's generators, differently in every process: each has its own rows and needs its
    own dropout.
    """
    # The same prime as that of `generator`: far from the seeds of other runs.
    torch.manual_seed(seed + 1_000_003 * rank)


def generator_states(rank: int, device: torch.device) -> dict[str, Tensor]:
    """Return the states of this process's random generators, by rank and device."""
    states = {f"{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    """Set this process's random generators to saved states, unless the saved run had no process of
    this rank.
    """
    try:
        # A run may be resumed by more processes than have saved it.
        if f"{rank}/cpu" in states:
            torch.set_rng_state(states[f"{rank}/cpu"])
        if device.type == "cuda" and f"{rank}/cuda" in states:
            torch.cuda.set_rng_state(states[f"{rank}/cuda"], device)
    except (RuntimeError, TypeError) as problem:
        raise LoadError(
            f"the checkpoint has no state of a random generator: {str(problem).splitlines()[0]}"
        ) from None
