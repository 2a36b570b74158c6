"""The runs that the explorer can show: opened recordings and sentences, and the models that can run
more sentences.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import torch

from ..atlases import Atlas
from ..models import LoadError, Model, find_shipped, load, shipped_models
from ..recording import Recording, open_recording
from .answers import Answer, LruCache, OpenedText, Refusal, RunFacts, not_kept, unknown
from .atlases import Atlases, find_evidence, find_model, read_evidence
from .limits import most_tokens
from .make_run import LONGEST_SENTENCE, example_name, example_run, read, run_name
from .run import Run, run_of_recording
from .sentences import Sentences

CARD_KINDS = ("translator", "gpt")  # of the models that the landing's cards need
MOST_EXAMPLES = 32  # worked examples that are kept in memory
# Models that are kept: the four that are shipped take 86 MB, and loading one half a second.
MOST_MODELS = 8
MOST_MODEL_BYTES = 2**32
# The kinds of models, by the class or the model_type of a config
KINDS = {"Transformer": "translator", "GPT": "gpt", "Encoder": "encoder"}
KINDS |= {"marian": "translator", "bert": "encoder"}
KINDS |= dict.fromkeys(("gpt2", "llama", "mistral", "qwen2"), "gpt")


@dataclass(frozen=True)
class ModelsAnswer(Answer):
    """The models that can read a text.

    kinds    "translator", "gpt", "encoder" or "other", of each
    longest  the most tokens of a typed text; limits: of one that each model reads at once
    """

    models: Sequence[str]
    kinds: dict[str, str]
    default: str | None
    longest: int
    limits: dict[str, int]


@dataclass(frozen=True)
class RunsAnswer(Answer):
    """The runs that the reader may open: sentences that were typed in this browser, the most
    recently used of them first, then recordings.
    """

    runs: Sequence[RunFacts]


class Library:
    """Runs by name. `models` maps names to folders or models; the first runs sentences unless
    another is chosen.
    """

    def __init__(self, models: Mapping[str, str | Path | Model] | None = None) -> None:
        if models is None:
            shipped = shipped_models()
            models = {name: shipped[name] for name in sorted(shipped, key=_order)}
        self.models: dict[str, str | Path | Model] = dict(models)
        self.recordings: dict[str, Run] = {}
        self.sentences = Sentences()
        self.examples: LruCache[str, Run] = LruCache(MOST_EXAMPLES)
        self._loaded: LruCache[str, Model] = LruCache(MOST_MODELS, MOST_MODEL_BYTES, model_bytes)
        self.atlases = Atlases()

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

    def run(self, name: str, browser: str | None = None) -> Run:
        """Return a run by name, or raise Refusal 404; a sentence of another browser is unknown."""
        run = self.recordings.get(name)
        # A worked example needs no request before: its link opens it.
        if run is None and example_name(name) is not None:
            run = self.examples.get_or_make(name, lambda: example_run(name))
        if run is None:
            run = self.sentences.find(browser, name)
        if run is None:
            raise Refusal(
                404,
                "unknown-run",
                f'there is no run "{name[:40]}" here; type its sentence again, or open the '
                "recording with telescope serve",
            )
        return run

    def is_ready(self, name: str, browser: str | None = None) -> bool:
        """Return whether no model has to read a text before this run can answer."""
        return not self.sentences.knows(browser, name) or self.sentences.is_ready(name)

    def read(
        self,
        text: str,
        model: str | None = None,
        target: str | None = None,
        browser: str | None = None,
    ) -> Run:
        """Run a model on a text and return the run, which is then known to this browser."""
        if not self.models:
            raise Refusal(
                422,
                "text",
                "there is no model to read the text; start the server with --model FOLDER",
            )
        chosen = next(iter(self.models)) if model is None else model
        if chosen not in self.models:
            raise unknown(f'there is no model "{chosen[:40]}"; there are {", ".join(self.models)}')
        # The same text is the same run, and is not read twice.
        name = run_name(chosen, text, target)
        nbytes = len(text) + len(target or "")
        return self.sentences.make(
            browser, name, lambda: read(self._model(chosen), chosen, text, target), nbytes
        )

    def record(self, kind: str, text: str) -> Run | None:
        """Return a run of the first model of a kind on a text, which is not added to the runs; None
        without such a model.
        """
        named = (name for name, model in self.models.items() if model_kind(model) == kind)
        name = next(named, None)
        if name is None:
            return None
        with self.sentences.making:
            return read(self._model(name), name, text)

    def open_evidence(
        self, request: Mapping[str, Any], browser: str | None = None
    ) -> tuple[Run, OpenedText]:
        """Run the model of an atlas on a text in which a habit of a head is strong.

        Return the run, and the head there.
        """
        atlas = self.atlases.atlas(str(request.get("atlas")))
        # Find the text and the model first; both may be refused.
        evidence = find_evidence(atlas, request)
        name = find_model(atlas, list(self.models), self._model)
        text, whole = read_evidence(atlas, evidence, self._model(name))
        run = self.read(text, name, browser=browser)
        layer = request["l"]
        # The model may be another class with other names of the same layers, in the same order.
        names = [view.name for view in run.views]
        place = names.index(atlas.layers[layer]) if atlas.layers[layer] in names else layer
        if place >= len(names):
            raise not_kept(f'the model that is here has no attention "{atlas.layers[layer]}"')
        return run, OpenedText(place, request["h"], whole)

    def make_example(self, request: Mapping[str, Any], browser: str | None = None) -> Run:
        """Return a worked example as a run: {"example": "bank", "inputs": {"x": [[…]]}?,
        "normalize": "by_sum"?}.
        """

        def make() -> Run:
            return example_run(request["example"], request.get("inputs"), request.get("normalize"))

        # Its name is a hash of the numbers, once they have been checked.
        run = make()
        return self.sentences.make(browser, run.name, make, len(str(request)))

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
                    with self.sentences.making:
                        read(self._model(name), name, "Good morning.")
            # Whoever asks for a model that cannot be loaded is told why.
            except (Refusal, LoadError):
                continue

    def _model(self, name: str) -> Model:
        """Return a model by name, loaded in float32 if it is a folder; those used last are kept."""
        source = self.models[name]
        # A model that is in memory already is used as it is.
        if isinstance(source, Model):
            return source

        def open_model() -> Model:
            try:
                return load(source, dtype=torch.float32)
            except LoadError as problem:
                raise Refusal(422, "text", str(problem)) from None

        found = self._loaded.get(name)
        if found is None:
            found = self._loaded.put(name, open_model())
            in_memory = {one for one, model in self.models.items() if isinstance(model, Model)}
            self.sentences.keep_models({*self._loaded.keys(), *in_memory})
        return found

    def describe_models(self) -> ModelsAnswer:
        """Answer the models that can read a text."""
        return ModelsAnswer(
            models=list(self.models),
            kinds={name: model_kind(source) for name, source in self.models.items()},
            default=next(iter(self.models), None),
            longest=LONGEST_SENTENCE,
            limits={name: most_tokens(source) for name, source in self.models.items()},
        )

    def describe_runs(self, browser: str | None = None) -> RunsAnswer:
        """Answer the runs that this browser may open, the latest first."""
        recordings = [run.describe() for run in self.recordings.values()]
        return RunsAnswer([*self.sentences.describe(browser), *recordings])


def model_bytes(model: Model) -> int:
    """Return the bytes of a model's parameters."""
    return sum(one.nbytes for one in model.parameters())


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


def _order(name: str) -> tuple[bool, bool]:
    """Sort shipped models: a translator first, since the notes' sentences are translated, and the
    model with an induction head last, since lessons take the first GPT.
    """
    return not name.startswith("translator"), name == "induction"
