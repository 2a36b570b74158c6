"""Kill what saves a folder or a file: the old one or the new one is there, whole, and the next save
cleans up.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

import telescope as ts
from support import mapping
from telescope.files import atomic
from telescope.files.atomic import atomic_file
from telescope.training import checkpoint
from telescope.training.loop import RunState

from ..supervisor import Done, WrongError
from .children import Measured, contents, finish, is_killed, measure, put, start

Save = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """A kind of thing that is saved: an old one and a new one. `read` returns what is there, to be
    compared.
    """

    old: Save
    new: Save
    read: Callable[[Path], Any] = contents


@dataclass(frozen=True)
class Known:
    """What an undisturbed save of each leaves, and what that of the new one takes."""

    files: dict[str, bytes]
    old: Any
    new: Any
    taken: Measured


KINDS: dict[str, Kind] = {}
KNOWN: dict[str, Known] = {}


def prepare() -> None:
    """Make an old and a new one of each kind, and save both undisturbed."""
    for name, kind in make_kinds().items():
        KINDS[name] = kind
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            kind.old(folder / "old" / "saved")
            kind.new(folder / "new" / "saved")
            old = kind.read(folder / "old" / "saved")
            new = kind.read(folder / "new" / "saved")
            if old == new:
                raise WrongError(
                    f"the old and the new {name} are equal, so that no case can tell them apart"
                )
            files = contents(folder / "old")
            taken = measure(partial(kind.new, folder / "old" / "saved"), folder)
            KNOWN[name] = Known(files, old, new, taken)


def make_kinds() -> dict[str, Kind]:
    """Return everything that Telescope writes as a whole; training has an attack of its own."""
    models = [mapping.tiny_gpt(seed) for seed in (0, 1)]
    atlases = [mapping.make(mapping.corpus(3, seed)) for seed in (1, 2)]
    recordings = [_recording(model) for model in models]
    checkpoints = [_checkpoint(step) for step in (1, 2)]
    pictures = [
        ts.plot.heatmap(torch.eye(3), tokens=list(tokens), width="column")
        for tokens in ("abc", "abd")
    ]
    for picture in pictures:
        picture.draw_without_rendering()  # the layout settles
    texts = [str(number) * 100_000 for number in (1, 2)]

    def both(save: Callable[[Any, Path], object], things: list[Any], **options: Any) -> Kind:
        old, new = things
        return Kind(lambda place: save(old, place), lambda place: save(new, place), **options)

    return {
        "model": both(lambda model, place: model.save(place), models),
        "export": both(ts.export, models),
        "recording": both(lambda recording, place: recording.save(place, replace=True), recordings),
        "tables": both(
            lambda recording, place: recording.to_parquet(place, replace=True), recordings
        ),
        "atlas": both(lambda atlas, place: atlas.save(place, replace=True), atlases),
        "checkpoint": both(
            lambda state, place: checkpoint.write(place, state), checkpoints, read=_last_checkpoint
        ),
        "picture": both(_save_picture, pictures),
        "file": both(_write_file, texts),
    }


def _recording(model: Any) -> Any:
    with torch.no_grad(), ts.watch(model, tokenizer=mapping.Letters()) as recording:
        model(torch.arange(12)[None])
    return recording


def _checkpoint(step: int) -> checkpoint.Checkpoint:
    torch.manual_seed(step)
    state = {"recipe": {}, "standing": asdict(RunState(step=step)), "totals": [0.0], "targets": 1}
    return checkpoint.Checkpoint(step, state, {"model": {"weight": torch.randn(64, 64)}})


def _last_checkpoint(out: Path) -> Any:
    found = checkpoint.read(out, RunState)
    return found and (found.step, found.state, found.tensors["model"]["weight"].tolist())


def _save_picture(picture: Any, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    picture.save(place / "picture.png", dpi=40)


def _write_file(text: str, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    with atomic_file(place / "file.txt") as new:
        new.write_text(text)


def kill_save(dice: Random, folder: Path) -> Done:
    """Kill saves to one place, then save there undisturbed."""
    name = dice.choice([*KINDS])
    kind = KINDS[name]
    known = KNOWN[name]
    place = folder / "saved"
    expected = [None, {}]
    if dice.random() < 0.7:
        put(folder, known.files)
        expected = [known.old]
    # Some disks cannot exchange two names; between two renames the place is then empty, until the
    # next save.
    exchanges = dice.random() < 0.8
    save = partial(_save, kind.new, place, exchanges)
    kills = 0
    while not kills or dice.random() < 0.3:
        death = known.taken.draw(dice)
        kills += is_killed(save, folder, death)
        found = kind.read(place)
        if found == known.new:
            expected = [known.new]
        elif found not in expected and exchanges:
            raise WrongError(
                f"{name}: after a kill at {death} neither the old nor the new one is there, whole"
            )
    finish(start(lambda: kind.new(place), folder), folder=folder)
    if kind.read(place) != known.new:
        raise WrongError(f"{name}: the save after the kill left something else")
    left = [*folder.rglob(".*"), *(file for file in folder.iterdir() if file != place)]
    if left:
        raise WrongError(f"{name}: the save after the kill left {left[0].name} behind")
    return Done(f"save of {name}", units=kills)


def _save(save: Save, place: Path, exchanges: bool) -> None:
    """Save in a child; on a disk that cannot exchange two names, if `exchanges` is False."""
    if not exchanges:
        atomic._exchange = lambda one, other: False
    save(place)
