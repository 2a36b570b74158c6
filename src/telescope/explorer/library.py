"""What can be looked at: recordings that were opened, sentences that were read, and the models that can read more."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from ..models import LoadError, Model, load
from ..models.shipped import shipped
from ..recording.recording import Recording
from ..recording.saved.open import open_recording
from .lru_cache import LruCache
from .requests import Refusal, unknown
from .run import Run, of_recording
from .sentences import name_of, read

SENTENCES, MODELS = 32, 2  # how many are kept


class Library:
    """`models` are folders or models by name; the first one reads what is typed, unless another is said."""

    def __init__(self, models: Mapping[str, str | Path | Model] | None = None) -> None:
        self.models: dict[str, str | Path | Model] = dict(shipped() if models is None else models)
        self.recordings: dict[str, Run] = {}
        self.sentences: LruCache[str, Run] = LruCache(SENTENCES)
        self._loaded: LruCache[str, Model] = LruCache(MODELS)
        self._reading = Lock()

    def add(self, recording: Recording, title: str, rev: str) -> Run:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", title).strip("-")[:40] or "recording"
        while name in self.recordings:
            name += "-2"
        run = self.recordings[name] = of_recording(recording, name, rev)
        return run

    def open(self, folder: Path) -> Run:
        """A recording that was saved; its revision changes when it is written anew."""
        recording = open_recording(folder)
        stamp = (folder / "recording.json").stat()
        return self.add(recording, folder.name.removesuffix(".telescope"), f"{stamp.st_mtime_ns:x}{stamp.st_ino:x}")

    def runs(self) -> Iterable[Run]:
        return [*self.sentences, *self.recordings.values()]

    def run(self, name: str) -> Run:
        run = self.recordings.get(name) or self.sentences.get(name)
        if run is None:
            raise Refusal(404, "unknown-run", f'there is no run "{name[:40]}"; it may have been let go: read it again')
        return run

    def read(self, text: str, model: str | None = None, target: str | None = None) -> Run:
        """One at a time: two at once would take twice as long each."""
        if not self.models:
            raise Refusal(422, "text", "there is no model here to read a text; start with one: --model FOLDER")
        model = next(iter(self.models)) if model is None else model
        if model not in self.models:
            raise unknown(f'there is no model "{model[:40]}"; there are {", ".join(self.models)}')
        name, chosen = name_of(model, text, target), model
        with self._reading:
            return self.sentences.get(name) or self.sentences.put(name, read(self._model(chosen), chosen, text, target))

    def _model(self, name: str) -> Model:
        known = self.models[name]
        if isinstance(known, Model):
            return known

        def opened() -> Model:
            try:
                return load(known, dtype=torch.float32)
            except LoadError as problem:
                raise Refusal(422, "text", str(problem)) from None

        return self._loaded.get_or(name, opened)

    def to_json(self, longest: int) -> dict[str, Any]:
        return {"models": list(self.models), "default": next(iter(self.models), None), "longest": longest}
