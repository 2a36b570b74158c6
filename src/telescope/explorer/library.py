"""The runs that the explorer can show: opened recordings and sentences, and the models that can run more sentences."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from ..atlas import Atlas
from ..models import LoadError, Model, load
from ..models.shipped import shipped_models
from ..recording.recording import Recording
from ..recording.saved.open import open_recording
from .atlases import Atlases
from .lru_cache import LruCache
from .requests import Refusal, unknown
from .run import Run, run_of_recording
from .sentences import read, run_name

SENTENCES, MODELS = 32, 2  # how many are kept in memory


class Library:
    """Runs by name. `models` maps names to folders or models; the first runs sentences unless another is chosen."""

    def __init__(self, models: Mapping[str, str | Path | Model] | None = None) -> None:
        self.models: dict[str, str | Path | Model] = dict(shipped_models() if models is None else models)
        self.recordings: dict[str, Run] = {}
        self.sentences: LruCache[str, Run] = LruCache(SENTENCES)
        self._loaded: LruCache[str, Model] = LruCache(MODELS)
        self.atlases = Atlases()
        self._run_lock = Lock()

    def add(self, recording: Recording, title: str, rev: str) -> Run:
        """Add a recording under a name made from its title; `rev` identifies its contents, for caches."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", title).strip("-")[:40] or "recording"
        while name in self.recordings:
            name += "-2"
        run = self.recordings[name] = run_of_recording(recording, name, rev)
        return run

    def open(self, folder: Path) -> Run:
        """Open a saved recording and add it; its revision changes when the folder is written again."""
        recording = open_recording(folder)
        stamp = (folder / "recording.json").stat()
        return self.add(recording, folder.name.removesuffix(".telescope"), f"{stamp.st_mtime_ns:x}{stamp.st_ino:x}")

    def open_atlas(self, folder: Path) -> str:
        """Open a saved atlas, add it, and return its name."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-")[:40] or "atlas"
        return self.atlases.add(name, Atlas.open(folder))

    def runs(self) -> Iterable[Run]:
        """Return all runs: sentences first, the most recently used of them first, then recordings."""
        return [*self.sentences, *self.recordings.values()]

    def run(self, name: str) -> Run:
        """Return a run by name, or raise Refusal 404."""
        run = self.recordings.get(name) or self.sentences.get(name)
        if run is None:
            raise Refusal(
                404,
                "unknown-run",
                f'there is no run "{name[:40]}"; it may have been dropped from memory: run the sentence again',
            )
        return run

    def read(self, text: str, model: str | None = None, target: str | None = None) -> Run:
        """Run a model on a text and return the run. One at a time: two in parallel would each take twice as long."""
        if not self.models:
            raise Refusal(422, "text", "there is no model to read the text; start the server with --model FOLDER")
        model = next(iter(self.models)) if model is None else model
        if model not in self.models:
            raise unknown(f'there is no model "{model[:40]}"; there are {", ".join(self.models)}')
        name, chosen = run_name(model, text, target), model
        with self._run_lock:
            return self.sentences.get(name) or self.sentences.put(name, read(self._model(chosen), chosen, text, target))

    def _model(self, name: str) -> Model:
        """Return a model by name, loaded in float32 if it is a folder; at most MODELS loaded ones are kept."""
        source = self.models[name]
        if isinstance(source, Model):
            return source

        def open_model() -> Model:
            try:
                return load(source, dtype=torch.float32)
            except LoadError as problem:
                raise Refusal(422, "text", str(problem)) from None

        return self._loaded.get_or_make(name, open_model)

    def to_json(self, longest: int) -> dict[str, Any]:
        """Return the answer to GET /models; `longest` is the most tokens of a sentence."""
        return {"models": list(self.models), "default": next(iter(self.models), None), "longest": longest}
