"""`Recording`: everything that was kept of a watched model's attentions, by name."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

from jaxtyping import Bool, Float
from rich.table import Table
from torch import Tensor

from ..attention import Attention
from ..survey import Survey
from ..survey.extend import Size
from ..survey.survey import Peak, Top
from ..trace.render import render_text
from ..trace.trace import Tokens, Trace
from ..words import format_bytes, hint
from .attention_call import AttentionCall
from .heads import Heads, heads_of
from .names import attentions_inside, describe_unwatched
from .queries_keys_call import QueriesKeysCall, StepsCall
from .recorded_call import KeepOptions, MapSize, RecordedCall, nbytes_of
from .saved.save import save_recording
from .storage import STORES
from .summaries_call import SummariesCall
from .survey_queue import SurveyQueue

KEEP: dict[str, type[RecordedCall]] = {kind.keep: kind for kind in (SummariesCall, QueriesKeysCall, StepsCall)}
"""The class of recorded calls for each value of `ts.watch(keep=...)`."""


class UnknownNameError(KeyError):
    """A KeyError whose message is printed without quotes around it."""

    def __str__(self) -> str:
        return str(self.args[0])


class Watched:
    """One attention of a watched model: `recording["model.layers.11"]`.

    `calls` lists its calls; a sequence that grows token by token is one call. The other methods and properties read the
    only call, and raise a ValueError if the attention was not called, or was called for several sequences.
    """

    def __init__(self, name: str, unwatched_threads: Collection[int] = ()) -> None:
        self.name = name
        self.unwatched_threads = unwatched_threads
        """The ids of the threads that called the model and are not watched."""
        self.calls: list[RecordedCall] = []

    @property
    def call(self) -> RecordedCall:
        """The only call."""
        if not self.calls:
            why = (
                "the model ran in another thread, and watch sees only the thread that entered its block: enter it there"
                if self.unwatched_threads
                else "what torch.compile had made before is not seen"
            )
            raise ValueError(f'"{self.name}" was not called while it was watched; {why}')
        if len(self.calls) > 1:
            raise ValueError(
                f'"{self.name}" was called {len(self.calls)} times, for separate sequences; '
                f"choose one: .calls[0] to .calls[{len(self.calls) - 1}]"
            )
        return self.calls[0]

    @property
    def received(self) -> Float[Tensor, "batch heads key"]:
        """The weight that each key receives from all queries together, as in `Survey.received`."""
        return self.survey().received

    @property
    def entropy(self) -> Float[Tensor, "batch heads query"]:
        """The entropy of each query's weights, in nats, as in `Survey.entropy`."""
        return self.survey().entropy

    @property
    def peak(self) -> Peak:
        """The largest weight of each query and its key, as in `Survey.peak`."""
        return self.survey().peak

    @property
    def top(self) -> Top:
        """The largest weights of each query and their keys, as in `Survey.top`."""
        return self.survey().top

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`.

        With keep="summaries", `top` is at most the one of `ts.watch`, and `map` exactly the one of `ts.watch`.
        """
        return self.call.survey(top=top, map=map)

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; -1 is the last head that was kept.

        Raise a ValueError that lists the heads if the head was not kept.
        """
        return self.call.head(number)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step of the call, without dropout; needs keep="steps". See `ts.trace`."""
        return self.call.trace(tokens)

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream before the attention's add & norm; needs keep="steps"."""
        return self.call.before

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream after the attention's add & norm: x + output, normalised in a post-norm model."""
        return self.call.after

    def __repr__(self) -> str:
        name, heads, size, definition, calls = _cells(self)
        return f"{name}: heads {heads}, {size}, {definition}, calls {calls}" if self.calls else f"{name}: not called"


class Recording(Mapping[str, Watched]):
    """Everything that was kept of a watched model, a mapping from the name of each attention to a `Watched`.

    A name may be shortened to a path that holds one attention alone: recording["model.layers.11"] is
    recording["model.layers.11.self_attn"]. `in` and `get` accept short names too; iteration, `keys` and `len` list each
    attention once, by its full name, in the order of the model. Printed, a recording is a table.

    `ts.watch` and `ts.open` return a Recording. Its numbers are copies; the model does not write to them.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> list(recording)
        ['attention']
        >>> recording["attention"].entropy.shape  # batch, heads, queries
        torch.Size([1, 2, 5])
        >>> recording["attention"].head(-1).top.keys.shape  # batch, heads, queries, top
        torch.Size([1, 1, 5, 8])
    """

    def __init__(
        self,
        model: str,
        names: Sequence[str],
        keep: str,
        options: KeepOptions | None = None,
        decode: Callable[[list[int]], str] | None = None,
        left_out: Sequence[str] = (),
        token_name: Callable[[int], str | None] | None = None,
    ) -> None:
        self.model, self.keep, self.decode = model, keep, decode
        self.token_name = token_name
        """Returns the tokenizer's name of a token, for tokens without text, such as </s>."""
        self.left_out = tuple(left_out)
        """The paths of the model's attentions that cannot be watched."""
        self.expected_bytes = 0
        """How many bytes the latest run was expected to take when it began."""
        self.unwatched_threads: set[int] = set()
        """The ids of the threads that called the model and are not watched."""
        self.on_call: Callable[[str], object] | None = None
        """Called with the name of each attention after it ran, for a progress display."""
        self.edits: tuple[Any, ...] = ()
        """The edits of `ts.edit` that changed a recorded call, each once, in the order of their first use."""
        self._options = KeepOptions() if options is None else options
        self._queue = SurveyQueue(self._options.top, self._options.map)
        self._watched = {name: Watched(name, self.unwatched_threads) for name in names}
        self._last: str | None = None
        self._run = 0
        self._last_run: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the attentions, in the order of the model."""
        return tuple(self._watched)

    def record(self, name: str, call: AttentionCall) -> RecordedCall:
        """Append `call` to the last call of this attention if it continues that call, else record a new one.

        A run of the model ends when an attention that was called in it begins a new sequence. The number of the run
        tells one more query of a decoder from the first query of another run where both see the same keys. A new name,
        of one more pass through a shared layer, is inserted after the attention that ran before it.
        """
        if name not in self._watched:
            names = list(self._watched)
            names.insert(names.index(self._last) + 1 if self._last in self._watched else len(names), name)
            self._watched[name] = Watched(name, self.unwatched_threads)
            self._watched = {each: self._watched[each] for each in names}
        self._last = name
        calls, same_run = self._watched[name].calls, self._last_run.get(name) == self._run
        if calls and calls[-1].is_continued_by(call, same_run=same_run):
            calls[-1].append(call)
        else:
            self._run += 1 if same_run else 0
            self._check_memory(call)
            calls.append(KEEP[self.keep](name, call, self._options, self._queue))
        self._last_run[name] = self._run
        if self.on_call is not None:
            self.on_call(name)
        return calls[-1]

    def last_call(self, name: str) -> RecordedCall | None:
        """Return the latest call of an attention, if there is one."""
        calls = self._watched[name].calls if name in self._watched else []
        return calls[-1] if calls else None

    def append_like(
        self, name: str, call: AttentionCall, kind: tuple[object, ...], attention: Attention, size: Size
    ) -> bool:
        """Append `call` if the last call of this attention is of this kind, definition and size; return whether it is.

        The caller knows that `call` continues such a call, since another attention was recorded just so.
        """
        last = self.last_call(name)
        if last is None or last.attention is not attention or last.size != size or last.kind != kind:
            return False
        last.append(call)
        self._count_call(name)
        return True

    def begin_like(self, name: str, call: AttentionCall, other: SummariesCall) -> bool:
        """Record the first call of an attention; return False, and record nothing, if its name is not known yet.

        The caller knows that `other` began with a call of the same run of the model that differs from this one in
        queries, keys, values and lse alone.
        """
        if name not in self._watched:
            return False
        self._watched[name].calls.append(other.begin_like(name, call))
        self._count_call(name)
        return True

    def _count_call(self, name: str) -> None:
        self._last, self._last_run[name] = name, self._run
        if self.on_call is not None:
            self.on_call(name)

    def add_edits(self, edits: Sequence[Any]) -> None:
        """Note the edits that changed a call which is being recorded."""
        if any(edit not in self.edits for edit in edits):
            self.edits = tuple(dict.fromkeys((*self.edits, *edits)))

    def wait(self) -> None:
        """Order the current stream after every survey launched so far; surveys may remain queued."""
        self._queue.wait()

    def flush(self) -> None:
        """Run every survey that is still due, and free the memory that waits for them."""
        self._queue.flush()
        self._queue.survey_waiting()
        for calls in self._calls.values():
            for call in calls:
                call.finish()

    def _check_memory(self, call: AttentionCall) -> None:
        """When a run begins, raise a ValueError if what it will keep exceeds the free memory.

        The estimate takes all attentions to be like the first.
        """
        if self._run in self._last_run.values():
            return
        count, device = len(self), call.queries.device
        self.expected_bytes = count * KEEP[self.keep].expected_bytes(call, self._options)
        free, where = self._options.store.free_bytes(device)
        if self.expected_bytes <= free:
            return
        stores = [name for name in STORES if STORES[name]().free_bytes(device)[0] > self.expected_bytes]
        less = count * KEEP["summaries"].expected_bytes(call, self._options) <= free and self.keep != "summaries"
        way = f'store="{stores[-1]}" has room' if stores else 'keep="summaries" takes less' if less else ""
        raise ValueError(
            f'keep="{self.keep}" of {count} attentions, {call.size[0]:,} queries x {call.size[1]:,} keys, takes '
            f"{format_bytes(self.expected_bytes)}, and {format_bytes(free)} of {where} are free; "
            + (f"{way}, or " if way else "")
            + "choose fewer with layers=, heads= or queries="
        )

    def __getitem__(self, name: str) -> Watched:
        """Return the attention of this name, or the only attention inside this path of the model.

        Raise a KeyError that lists the attentions inside the path if there are several, or suggests a name.
        """
        if name in self._watched:
            return self._watched[name]
        inside = attentions_inside(self._watched, str(name))
        if len(inside) == 1:
            return self._watched[inside[0]]
        if inside:
            raise UnknownNameError(f'there are {len(inside)} attentions in "{name}": {", ".join(inside)}')
        unwatched = [path for path in self.left_out if path == name] or attentions_inside(self.left_out, str(name))
        if unwatched:
            raise UnknownNameError(f'"{name}" was not watched: {describe_unwatched(unwatched)}')
        raise UnknownNameError(f'no attention watched is "{name}"; {hint(str(name), self._watched)}')

    def __contains__(self, name: object) -> bool:
        """Return whether recording[name] works: for full names and for paths that hold one attention alone."""
        return name in self._watched or len(attentions_inside(self._watched, str(name))) == 1

    def __iter__(self) -> Iterator[str]:
        return iter(self._watched)

    def __len__(self) -> int:
        return len(self._watched)

    def heads(self) -> Heads:
        """Return a table of every head with its kind and habits, the clearest head of each kind first."""
        return heads_of(self._calls, self.decode).sort()

    def queries_without_keys(self) -> dict[str, Bool[Tensor, "batch heads query"]]:
        """Return which queries saw no key, of the attentions that have such queries: their context was zero.

        An edit may hide every key from a query. Padding does not count.
        """
        found = {}
        for name, calls in self._calls.items():
            blind = [call.queries_without_keys() for call in calls]
            for number, one in enumerate(blind):
                if one.any():
                    found[name if number == 0 else f"{name}.calls[{number}]"] = one
        return found

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write the recording to a folder that `ts.open` reads; an interrupted save leaves nothing behind.

        Raise a ValueError if the folder holds a recording and `replace` is False, or if it holds anything else.
        """
        save_recording(
            path, self.model, self.keep, self.decode, self._calls, self.token_name, edits=self.edits, replace=replace
        )

    @property
    def nbytes(self) -> int:
        """How many bytes are kept, in memory or in files."""
        return nbytes_of([call for calls in self._calls.values() for call in calls])

    @property
    def _calls(self) -> dict[str, list[RecordedCall]]:
        return {name: watched.calls for name, watched in self.items()}

    def __rich__(self) -> Table:
        title = f'{self.model}, keep="{self.keep}": {format_bytes(self.nbytes)}'
        table = Table(title=title, box=None, pad_edge=False, title_justify="left")
        for column in ("name", "heads", "queries x keys", "definition", "calls"):
            right = column in ("heads", "calls")
            table.add_column(column, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
        for watched in self.values():
            table.add_row(*_cells(watched))
        for edit in self.edits:
            table.add_row("edited", "", "", str(edit), "")
        for name in self.left_out:
            table.add_row(name, "", "", "not watched: it computes its weights by code of its own", "")
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def _cells(watched: Watched) -> list[str]:
    """Return name, heads, queries x keys and definition of the last call, and the number of calls."""
    if not watched.calls:
        return [watched.name, "", "", "", "0"]
    last = watched.calls[-1]
    dropout = f", dropout = {last.dropout:g}" if last.dropout else ""
    matrix = f"{last.size[0]:,} x {last.size[1]:,}"
    return [watched.name, str(len(last.heads)), matrix, f"{last.attention}{dropout}", str(len(watched.calls))]
