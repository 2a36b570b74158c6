"""`Recording`: what every attention of a model did while it was watched, by name."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import SupportsIndex

from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from ..survey import Survey
from ..trace.terminal import text
from ..trace.trace import Tokens, Trace
from ..words import hint, size
from .attention_call import AttentionCall
from .heads import Heads, heads_of
from .kept import KEEP, Call, KeepOptions, MapSize, nbytes_of
from .names import not_watched, within
from .saved.save import save_recording
from .storage import STORES


class UnknownNameError(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError by itself shows it in quotes


class Watched:
    """One attention of a model. `calls` are what it did; what is asked here is asked of its only call."""

    def __init__(self, name: str, elsewhere: Collection[int] = ()) -> None:
        self.name = name
        self.elsewhere = elsewhere  # threads that are not watched and called attentions of the model
        self.calls: list[Call] = []

    @property
    def call(self) -> Call:
        if not self.calls:
            why = (
                "the model ran in another thread, and watch sees only the thread that entered its block: enter it there"
                if self.elsewhere
                else "what torch.compile had made before is not seen"
            )
            raise ValueError(f'"{self.name}" was not called while it was watched; {why}')
        if len(self.calls) > 1:
            raise ValueError(
                f'"{self.name}" was called {len(self.calls)} times, for sequences apart; '
                f"choose one: .calls[0] to .calls[{len(self.calls) - 1}]"
            )
        return self.calls[0]

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Every step; see ts.trace. A training step's dropout, thrown by dice, is left out of it."""
        return self.call.trace(tokens)

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """What every query looks at and what every key is given; see ts.survey."""
        return self.call.survey(top=top, map=map)

    def head(self, number: SupportsIndex) -> Survey:
        """The survey of one head, by its number in the model."""
        return self.call.head(number)

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream as it came to the attention's add & norm."""
        return self.call.before

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream as it left the attention's add & norm: x + what was found; post-norm, normalised."""
        return self.call.after

    def __repr__(self) -> str:
        name, heads, size, definition, calls = _cells(self)
        return f"{name}: heads {heads}, {size}, {definition}, calls {calls}" if self.calls else f"{name}: not called"


class Recording(Mapping[str, Watched]):
    """The attentions that were watched, by name: recording["decoder.0.cross"].trace(). Prints as a table."""

    def __init__(
        self,
        model: str,
        names: Sequence[str],
        keep: str,
        how: KeepOptions = KeepOptions(),
        decode: Callable[[list[int]], str] | None = None,
        left_out: Sequence[str] = (),
        token_name: Callable[[int], str | None] | None = None,
    ) -> None:
        self.model, self.keep, self.decode = model, keep, decode
        self.token_name = token_name
        """What the tokenizer calls a token, for those that have no text, such as </s>."""
        self.left_out = tuple(left_out)
        """The attentions of the model that cannot be watched."""
        self.foretold = 0
        """How many bytes the run was going to take, as told when it began."""
        self.elsewhere: set[int] = set()
        """The threads, by their idents, that are not watched and called attentions of the model."""
        self.each: Callable[[str], object] | None = None
        """Called with the name of every attention that ran, for whoever counts along."""
        self._how = how
        self._watched = {name: Watched(name, self.elsewhere) for name in names}
        self._last: str | None = None
        self._run = 0
        self._last_run: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._watched)

    def record(self, name: str, ran: AttentionCall) -> Call:
        """Put a call to what is there: to the last call of this attention if it goes on with it, else as a new one.

        A run ends when an attention that was called in it starts anew. It tells one more query from another run's
        first one where both look at the same keys. A name that is new, of one more pass through a shared layer, is
        entered behind the attention that ran before it.
        """
        if name not in self._watched:
            names = list(self._watched)
            names.insert(names.index(self._last) + 1 if self._last in self._watched else len(names), name)
            self._watched[name] = Watched(name, self.elsewhere)
            self._watched = {each: self._watched[each] for each in names}
        self._last = name
        calls, in_one_run = self._watched[name].calls, self._last_run.get(name) == self._run
        if calls and calls[-1].goes_on_with(ran, in_one_run=in_one_run):
            calls[-1].go_on_with(ran)
        else:
            self._run += 1 if in_one_run else 0
            self._must_fit(ran)
            calls.append(KEEP[self.keep](name, ran, self._how))
        self._last_run[name] = self._run
        if self.each is not None:
            self.each(name)
        return calls[-1]

    def _must_fit(self, ran: AttentionCall) -> None:
        """When a run begins it is told what it will keep, if its attentions are alike; what has no room is refused."""
        if self._run in self._last_run.values():
            return
        count, device = len(self), ran.queries.device
        self.foretold = count * KEEP[self.keep].foretold(ran, self._how)
        free, where = self._how.store.free(device)
        if self.foretold <= free:
            return
        stores = [name for name in STORES if STORES[name]().free(device)[0] > self.foretold]
        less = count * KEEP["summaries"].foretold(ran, self._how) <= free and self.keep != "summaries"
        way = f'store="{stores[-1]}" has room' if stores else 'keep="summaries" takes less' if less else ""
        raise ValueError(
            f'keep="{self.keep}" of {count} attentions, {ran.size[0]:,} queries x {ran.size[1]:,} keys, takes '
            f"{size(self.foretold)}, and {size(free)} of {where} are free; "
            + (f"{way}, or " if way else "")
            + "choose fewer with layers=, heads= or queries="
        )

    def __getitem__(self, name: str) -> Watched:
        """By its name, or by the place in the model where it stands alone: model.layers.11."""
        if name in self._watched:
            return self._watched[name]
        there = within(self._watched, str(name))
        if len(there) == 1:
            return self._watched[there[0]]
        if there:
            raise UnknownNameError(f'there are {len(there)} attentions in "{name}": {", ".join(there)}')
        past = [path for path in self.left_out if path == name] or within(self.left_out, str(name))
        if past:
            raise UnknownNameError(f'"{name}" was not watched: {not_watched(past)}')
        raise UnknownNameError(f'no attention watched is "{name}"; {hint(str(name), self._watched)}')

    def __contains__(self, name: object) -> bool:
        return name in self._watched

    def __iter__(self) -> Iterator[str]:
        return iter(self._watched)

    def __len__(self) -> int:
        return len(self._watched)

    def heads(self) -> Heads:
        """Every head and what kind it is, the clearest of each kind first."""
        return heads_of(self._calls, self.decode).sort()

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write a folder, which ts.open opens, whole or not at all. A recording that is there already stays, and is a
        ValueError, unless it is to be replaced."""
        save_recording(path, self.model, self.keep, self.decode, self._calls, self.token_name, replace=replace)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return nbytes_of([call for calls in self._calls.values() for call in calls])

    @property
    def _calls(self) -> dict[str, list[Call]]:
        return {name: watched.calls for name, watched in self.items()}

    def __rich__(self) -> Table:
        title = f'{self.model}, keep="{self.keep}": {size(self.nbytes)}'
        drawn = Table(title=title, box=None, pad_edge=False, title_justify="left")
        for column in ("name", "heads", "queries x keys", "definition", "calls"):
            right = column in ("heads", "calls")
            drawn.add_column(column, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
        for watched in self.values():
            drawn.add_row(*_cells(watched))
        for name in self.left_out:
            drawn.add_row(name, "", "", "not watched: it computes its weights by code of its own", "")
        return drawn

    def __repr__(self) -> str:
        return text(self.__rich__())


def _cells(watched: Watched) -> list[str]:
    """name, heads, queries x keys and definition (those of the last call), calls"""
    if not watched.calls:
        return [watched.name, "", "", "", "0"]
    last = watched.calls[-1]
    dropout = f", dropout = {last.dropout:g}" if last.dropout else ""
    matrix = f"{last.size[0]:,} x {last.size[1]:,}"
    return [watched.name, str(len(last.heads)), matrix, f"{last.attention}{dropout}", str(len(watched.calls))]
