"""The runs that the explorer can show: opened recordings and sentences, and the models that can run
more sentences.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch

from ..atlases import Atlas
from ..models import LoadError, Model, find_shipped, load, shipped_models
from ..recording import Recording, open_recording
from .answers import Answer, LruCache, OpenedText, Refusal, RunFacts, not_kept, unknown
from .atlases import Atlases, find_evidence, find_model, read_evidence
from .make_run import LONGEST_SENTENCE, example_name, example_run, read, run_name
from .run import Run, run_of_recording

CARD_KINDS = ("translator", "gpt")  # of the models that the landing's cards need
# How many are kept in memory
MOST_SENTENCES = 32
MOST_MODELS = 2
# The kinds of models, by the class or the model_type of a config
KINDS = {"Transformer": "translator", "GPT": "gpt", "Encoder": "encoder"}
KINDS |= {"marian": "translator", "bert": "encoder"}
KINDS |= dict.fromkeys(("gpt2", "llama", "mistral", "qwen2"), "gpt")


@dataclass(frozen=True)
class ModelsAnswer(Answer):
    """The models that can read a text.

    kinds    "translator", "gpt", "encoder" or "other", of each
    longest  the most tokens of a typed text
    """

    models: Sequence[str]
    kinds: dict[str, str]
    default: str | None
    longest: int


@dataclass(frozen=True)
class RunsAnswer(Answer):
    """All runs: sentences first, the most recently used of them first, then recordings."""

    runs: Sequence[RunFacts]


class Library:
    """Runs by name. `models` maps names to folders or models; the first runs sentences unless
    another is chosen.
    """

    def __init__(self, models: Mapping[str, str | Path | Model] | None = None) -> None:
        if models is None:  # a translator first: the notes' sentences are translated
            shipped = shipped_models()
            names = sorted(shipped, key=lambda name: not name.startswith("translator"))
            models = {name: shipped[name] for name in names}
        self.models: dict[str, str | Path | Model] = dict(models)
        self.recordings: dict[str, Run] = {}
        self.sentences: LruCache[str, Run] = LruCache(MOST_SENTENCES)
        self.examples: LruCache[str, Run] = LruCache(MOST_SENTENCES)
        self._loaded: LruCache[str, Model] = LruCache(MOST_MODELS)
        self.atlases = Atlases()
        self._run_lock = Lock()

    def add(self, recording: Recording, title: str, rev: str) -> Run:
        """Add a recording under a name made from its title; `rev` identifies its contents, for
        caches.
        """
        name = _name_for(title, "recording")
        # A second recording of the same title gets another name.
        while name in self.recordings:
            name += "-2"
        run = self.recordings[name] = run_of_recording(recording, name, rev)
        return run

    def open(self, folder: Path) -> Run:
        """Open a saved recording and add it; its revision changes when the folder is written
        again.
        """
        recording = open_recording(folder)
        # A recording is written as a whole, and this file with it.
        stamp = (folder / "recording.json").stat()
        rev = f"{stamp.st_mtime_ns:x}{stamp.st_ino:x}"
        return self.add(recording, folder.name.removesuffix(".telescope"), rev)

    def open_atlas(self, folder: Path) -> str:
        """Open a saved atlas, add it, and return its name."""
        return self.atlases.add(_name_for(folder.name, "atlas"), Atlas.open(folder))

    def runs(self) -> Iterable[Run]:
        """Return all runs: sentences first, the most recently used of them first, then
        recordings.
        """
        return [*self.sentences, *self.recordings.values()]

    def run(self, name: str) -> Run:
        """Return a run by name, or raise Refusal 404."""
        # A worked example needs no request before: its link opens it.
        run = self.recordings.get(name) or self.sentences.get(name)
        if run is None and example_name(name) is not None:
            run = self.examples.get_or_make(name, lambda: example_run(name))
        if run is None:
            raise Refusal(
                404,
                "unknown-run",
                f'there is no run "{name[:40]}"; it may have been dropped from memory: run the '
                "sentence again",
            )
        return run

    def read(self, text: str, model: str | None = None, target: str | None = None) -> Run:
        """Run a model on a text and return the run. One at a time: two in parallel would each take
        twice as long.
        """
        if not self.models:
            raise Refusal(
                422,
                "text",
                "there is no model to read the text; start the server with --model FOLDER",
            )
        model = next(iter(self.models)) if model is None else model
        if model not in self.models:
            raise unknown(f'there is no model "{model[:40]}"; there are {", ".join(self.models)}')
        # The same text is the same run, and is not read twice.
        name = run_name(model, text, target)
        chosen = model
        with self._run_lock:
            return self.sentences.get_or_make(
                name, lambda: read(self._model(chosen), chosen, text, target)
            )

    def record(self, kind: str, text: str) -> Run | None:
        """Return a run of the first model of a kind on a text, which is not added to the runs; None
        without such a model.
        """
        named = (name for name, model in self.models.items() if model_kind(model) == kind)
        name = next(named, None)
        if name is None:
            return None
        with self._run_lock:
            return read(self._model(name), name, text)

    def open_evidence(self, request: Mapping[str, Any]) -> tuple[Run, OpenedText]:
        """Run the model of an atlas on a text in which a habit of a head is strong.

        Return the run, and the head there.
        """
        atlas = self.atlases.atlas(str(request.get("atlas")))
        # Find the text and the model first; both may be refused.
        evidence = find_evidence(atlas, request)
        name = find_model(atlas, list(self.models), self._model)
        text, whole = read_evidence(atlas, evidence, self._model(name))
        run = self.read(text, name)
        layer = request["l"]
        # The model may be another class with other names of the same layers, in the same order.
        names = [view.name for view in run.views]
        place = names.index(atlas.layers[layer]) if atlas.layers[layer] in names else layer
        if place >= len(names):
            raise not_kept(f'the model that is here has no attention "{atlas.layers[layer]}"')
        return run, OpenedText(place, request["h"], whole)

    def make_example(self, request: Mapping[str, Any]) -> Run:
        """Return a worked example as a run: {"example": "bank", "inputs": {"x": [[…]]}?,
        "normalize": "by_sum"?}.
        """
        run = example_run(request["example"], request.get("inputs"), request.get("normalize"))
        return self.sentences.put(run.name, run)

    def warm_up(self, stopped: Event) -> None:
        """Load the models of the landing's cards, and run each once: the first sentence then takes
        no longer.

        Ends early once `stopped` is set.
        """
        # The first model of each kind that a card needs.
        firsts = [
            next((n for n, m in self.models.items() if model_kind(m) == kind), None)
            for kind in CARD_KINDS
        ]
        for name in filter(None, firsts):
            try:
                if not stopped.wait(0.5):  # the page itself comes first
                    self._model(name)
                if not stopped.is_set():
                    with self._run_lock:
                        read(self._model(name), name, "Good morning.")
            # Whoever asks for a model that cannot be loaded is told why.
            except (Refusal, LoadError):
                continue

    def _model(self, name: str) -> Model:
        """Return a model by name, loaded in float32 if it is a folder; at most MOST_MODELS are
        kept.
        """
        source = self.models[name]
        # A model that is in memory already is used as it is.
        if isinstance(source, Model):
            return source

        def open_model() -> Model:
            try:
                return load(source, dtype=torch.float32)
            except LoadError as problem:
                raise Refusal(422, "text", str(problem)) from None

        return self._loaded.get_or_make(name, open_model)

    def describe_models(self) -> ModelsAnswer:
        """Answer the models that can read a text."""
        return ModelsAnswer(
            models=list(self.models),
            kinds={name: model_kind(source) for name, source in self.models.items()},
            default=next(iter(self.models), None),
            longest=LONGEST_SENTENCE,
        )

    def describe_runs(self) -> RunsAnswer:
        """Answer all runs, the latest first."""
        return RunsAnswer([run.describe() for run in self.runs()])


def _name_for(title: str, default: str) -> str:
    """Return a name for an address: letters, digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", title).strip("-")[:40] or default


def model_kind(source: str | Path | Model) -> str:
    """Return "translator", "gpt", "encoder" or "other", from a model or from the config in its
    folder.
    """
    if isinstance(source, Model):
        return KINDS.get(type(source).__name__, "other")
    # The config tells the kind, without loading any weights.
    folder = find_shipped(source) or Path(source)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "other"
    # Telescope's own configs name the class as "model", those of transformers a "model_type".
    kind = str(config.get("model") or config.get("model_type")) if isinstance(config, dict) else ""
    return KINDS.get(kind, "other")
