"""The sentences that browsers have typed: whose each is, what makes its run, and the runs that are
in memory.

A run takes about a megabyte, and a long text a hundred; what makes one, a recipe, takes as much as
its text. A server keeps the recipes of a whole course, and as many runs as fit: a run that was
dropped is made again for whoever asks for it.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor, nn

from .answers import LruCache, RunFacts
from .run import Run

MOST_RUNS = 256  # in memory
MOST_RUN_BYTES = 2**29
MOST_RECIPES = 4096
MOST_RECIPE_BYTES = 2**26
MOST_BROWSERS = 1024  # whose sentences are known
MOST_OF_BROWSER = 512  # sentences that are known to be of one browser
MOST_LISTED = 32  # of them in its list


@dataclass(frozen=True)
class Recipe:
    """What makes a run, and how many bytes that takes; `facts` describe the run."""

    make: Callable[[], Run]
    nbytes: int
    facts: RunFacts


class Sentences:
    """Runs by name, each known to the browsers that made it; one that was made without a browser,
    from Python, is known to all.

    Where no browser is named, every run is known: a notebook has one reader.
    """

    def __init__(self) -> None:
        self._runs: LruCache[str, Run] = LruCache(MOST_RUNS, MOST_RUN_BYTES, run_bytes)
        self._recipes: LruCache[str, Recipe] = LruCache(
            MOST_RECIPES, MOST_RECIPE_BYTES, lambda recipe: recipe.nbytes
        )
        # The names of a browser's runs, the most recently used last.
        self._names: OrderedDict[str | None, OrderedDict[str, None]] = OrderedDict()
        self._names_lock = Lock()
        self.making = Lock()
        """Held while a model reads a text: two readings in parallel would each take twice as long,
        and change the tokenizer's settings for each other."""

    def make(self, browser: str | None, name: str, make: Callable[[], Run], nbytes: int) -> Run:
        """Return the run of this name, made unless it is in memory, and note whose it is.

        One run is made at a time, so that two browsers that ask for the same one share it.
        """
        run = self._run(name, make)
        if name not in self._recipes:
            self._recipes.put(name, Recipe(make, nbytes, run.describe()))
        self._note(browser, name)
        return run

    def find(self, browser: str | None, name: str) -> Run | None:
        """Return a run that this browser knows, made again where it was dropped; else None."""
        if not self.knows(browser, name):
            return None
        recipe = self._recipes.get(name)
        if recipe is None:
            return None
        # Python may look at a run of a browser, as an export does: it is not everybody's by that.
        if browser is not None:
            self._note(browser, name)
        return self._run(name, recipe.make)

    def knows(self, browser: str | None, name: str) -> bool:
        """Return whether a run is known to a browser."""
        with self._names_lock:
            if browser is None:
                return name in self._recipes
            return any(name in self._names.get(one, ()) for one in (browser, None))

    def is_ready(self, name: str) -> bool:
        """Return whether a run is in memory."""
        return name in self._runs

    def describe(self, browser: str | None) -> list[RunFacts]:
        """Return the facts of the runs that a browser knows, the most recently used first."""
        if browser is None:
            names = self._recipes.keys()
        else:
            with self._names_lock:
                names = [
                    name
                    for one in (browser, None)
                    for name in reversed(self._names.get(one, OrderedDict()))
                ]
        recipes = (self._recipes.get(name) for name in list(dict.fromkeys(names))[:MOST_LISTED])
        return [recipe.facts for recipe in recipes if recipe is not None]

    def keep_models(self, names: Container[str]) -> None:
        """Drop the runs of all other models: a run keeps its model in memory."""
        self._runs.drop(lambda run: run.model not in names)

    def _run(self, name: str, make: Callable[[], Run]) -> Run:
        found = self._runs.get(name)
        if found is not None:
            return found
        # Whoever waited for the lock may find that the run was made meanwhile.
        with self.making:
            return self._runs.get_or_make(name, make)

    def _note(self, browser: str | None, name: str) -> None:
        """Note that a browser has used a run of its own."""
        with self._names_lock:
            names = self._names.setdefault(browser, OrderedDict())
            names[name] = None
            names.move_to_end(name)
            self._names.move_to_end(browser)
            if len(names) > MOST_OF_BROWSER:
                names.popitem(last=False)
            # What was made from Python is kept: its link was printed.
            if len(self._names) > MOST_BROWSERS:
                oldest = next(one for one in self._names if one is not None)
                del self._names[oldest]


def run_bytes(run: Run) -> int:
    """Return the bytes of a run's tensors, without those of its model."""
    model = None if run.output is None else run.output.model
    seen: set[int] = set()
    if model is not None:
        seen = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    total = 0
    # Each object is visited once; `visited` keeps them alive, so that no id is used twice.
    visited: dict[int, Any] = {}
    left: list[Any] = [run.views, run.output, run.recording]
    while left:
        one = left.pop()
        if id(one) in visited or isinstance(one, nn.Module | type | str | int | float | None):
            continue
        visited[id(one)] = one
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        else:
            left += getattr(one, "__dict__", {}).values()
    return total
