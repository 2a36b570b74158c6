"""`Recording`: everything that was kept of a watched model's attentions, by name."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

from jaxtyping import Bool
from torch import Tensor

from ..authors import StreamLog
from ..field_words import FieldNames
from ..files import frame
from ..guesses import OF_RECORDING
from ..measures import IsMark, punctuation_test
from ..token_kinds import TokenNames, space_of_sides
from ..traces import PlainTable, PrintedTable
from ..words import format_bytes, suggests
from .attention_call import AttentionCall, KeepOptions
from .call_tokens import with_kinds
from .find_sources import find_sources
from .heads import Heads
from .measured_heads import heads_of
from .memory import check_memory
from .names import HeadNumbers, Layers, UnknownNameError, attention_named
from .printing import table_of
from .queries_keys_call import QueriesKeysCall, StepsCall
from .recorded_call import RecordedCall, nbytes_of
from .saving import save_recording
from .sources import Sources, segments_of_calls
from .stream_answers import StreamAnswers
from .summaries_call import SummariesCall
from .survey_queue import SurveyQueue
from .tables import joined, table_parts, write_tables
from .watched import Watched

KEEP: dict[str, type[RecordedCall]] = {
    kind.keep: kind for kind in (SummariesCall, QueriesKeysCall, StepsCall)
}
"""The class of recorded calls for each value of `ts.watch(keep=...)`."""


class Recording(PrintedTable, StreamAnswers, FieldNames, Mapping[str, Watched]):
    """Everything that was kept of a watched model, a mapping from the name of each attention to a
    `Watched`.

    A name may be shortened to a path that holds one attention alone: recording["model.layers.11"]
    is recording["model.layers.11.self_attn"]. `in` and `get` accept short names too; iteration,
    `keys` and `len` list each attention once, by its full name, in the order of the model. Printed,
    a recording is a table.

    `ts.watch` and `ts.open` return a Recording. Its numbers are copies; the model does not write to
    them.

    Attributes:
        model: the class of the model.
        keep: what was kept: "summaries", "queries-keys" or "steps".
        tokens: what the tokens are, as `ts.watch(tokens=...)` was told; None where nothing was
            told.
        decode: returns the text of token ids; None without a tokenizer.
        token_name: returns the name of a token without text, such as `</s>`; None without a
            tokenizer.

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
        >>> recording.names, recording.left_out, recording.nbytes > 0
        (('attention',), (), True)
        >>> len(recording.heads()), recording.queries_without_keys()
        (2, {})
        >>> len(recording.table("queries"))  # 2 heads of 5 queries
        10
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(f"{folder}/run.telescope")
        ...     recording.to_parquet(f"{folder}/tables")
        ...     list(ts.open(f"{folder}/run.telescope"))
        ['attention']
    """

    _theirs = OF_RECORDING
    _rest = ".names lists them all"

    def __init__(
        self,
        model: str,
        names: Sequence[str],
        keep: str,
        options: KeepOptions | None = None,
        decode: Callable[[list[int]], str] | None = None,
        left_out: Sequence[str] = (),
        token_name: Callable[[int], str | None] | None = None,
        tokens: TokenNames | None = None,
    ) -> None:
        self.tokens = tokens
        self.model = model
        self.keep = keep
        self.decode = decode
        self.token_name = token_name
        """Returns the tokenizer's name of a token, for tokens without text, such as </s>."""
        self.other_layers: tuple[str, ...] = ()
        """The paths of layers that mix tokens without an attention, beside layers that hold one."""
        self._is_mark: tuple[Any, IsMark | None] = (None, None)  # by the `decode` it is made of
        self._left_out: dict[str, str] = {}
        self._expected_bytes = 0
        """How many bytes the latest run was expected to take when it began."""
        self._unwatched_threads: set[int] = set()
        """The ids of the threads that called the model and are not watched."""
        self.on_call: Callable[[str], object] | None = None
        """Called with the name of each attention after it ran, for a progress display."""
        self.edits: tuple[Any, ...] = ()
        """The edits that changed a recorded call, each once, in the order of their first use."""
        self._is_part = False
        """Whether several processes divide the heads of the model, and these are those of one."""
        self._stream = None
        self._options = KeepOptions() if options is None else options
        self._queue = SurveyQueue(self._options)
        self._watched = {
            name: Watched(name, self._unwatched_threads, self._queue) for name in names
        }
        # The latest attention, the number of the run, and the run in which each was called last.
        self._last: str | None = None
        self._run = 0
        self._last_run: dict[str, int] = {}
        for name in left_out:
            self._leave_out(name, "it computes its weights by code of its own")

    # Edits hold recordings, and are compared and looked up: as the objects that they are.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the attentions, in the order of the model."""
        return tuple(self)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The paths of the model's attentions that were not watched, or not in every run."""
        return tuple(self._left_out)

    def _leave_out(self, name: str, reason: str) -> None:
        """Note an attention that cannot be watched, or that ran and could not be recorded."""
        self._left_out.setdefault(name, reason)
        if name in self._watched:
            self._watched[name].left_out = reason

    def _record(self, name: str, call: AttentionCall) -> RecordedCall:
        """Append `call` to the last call of this attention if it continues that call, else record a
        new one.

        A run of the model ends when an attention that was called in it begins a new sequence. The
        number of the run tells one more query of a decoder from the first query of another run
        where both see the same keys. A new name, of one more pass through a shared layer, is
        inserted after the attention that ran before it.
        """
        if name not in self._watched:
            # Insert the name after the attention that ran before.
            names = list(self._watched)
            names.insert(
                names.index(self._last) + 1 if self._last in self._watched else len(names), name
            )
            self._watched[name] = Watched(name, self._unwatched_threads, self._queue)
            self._watched = {each: self._watched[each] for each in names}
            # What its code did not tell, its run did.
            self._left_out.pop(name, None)
        self._last = name
        # Continue the last call of this attention, or begin another.
        calls = self._watched[name]._recorded
        same_run = self._last_run.get(name) == self._run
        if calls and calls[-1]._is_continued_by(call, same_run=same_run):
            calls[-1]._append(call._replace(space=space_of_sides(calls[-1]._facts.tokens)))
        else:
            # An attention that begins anew shows that the run before is over.
            self._run += 1 if same_run else 0
            self._check_memory(call)
            call, sides = with_kinds(self.tokens, name, call)
            calls.append(KEEP[self.keep](name, call, self._options, self._queue))
            calls[-1]._facts.tokens = sides
        self._last_run[name] = self._run
        if self._stream is not None:
            self._note_stream(self._stream, calls, len(call.queries), call.size[0])
        if self.on_call is not None:
            self.on_call(name)
        return calls[-1]

    def _note_stream(
        self, log: StreamLog, calls: list[RecordedCall], batch: int, queries: int
    ) -> None:
        """Note in which pass of the residual stream the latest call of an attention ran."""
        last = calls[-1]
        before = last.size[0] - queries
        rows = [row - before for row in last.rows if row >= before]
        if isinstance(last, StepsCall):
            last._stream = log, len(calls) - 1
        log.note_call(last.name, len(calls) - 1, (batch, queries), before, rows)

    def _last_call(self, name: str) -> RecordedCall | None:
        """Return the latest call of an attention, if there is one."""
        calls = self._watched[name]._recorded if name in self._watched else []
        return calls[-1] if calls else None

    def _add_edits(self, edits: Sequence[Any]) -> None:
        """Note the edits that changed a call which is being recorded."""
        if any(edit not in self.edits for edit in edits):
            self.edits = tuple(dict.fromkeys((*self.edits, *edits)))

    def _wait(self) -> None:
        """Order the current stream after every survey launched so far; surveys may remain
        queued.
        """
        self._queue.wait()

    def _flush(self, *, collects: bool = True) -> None:
        """Run every survey that is still due, and free the memory that waits for them.

        collects   whether calls that wait elsewhere are recorded before
        """
        if collects:
            self._queue.collect()
        # Survey first queries that are queued, then the rows that wait behind them.
        self._queue.flush()
        self._queue.survey_waiting()
        for watched in self._watched.values():
            for call in watched._recorded:
                call._finish()

    def _check_memory(self, call: AttentionCall) -> None:
        """When a run begins, raise a ValueError if what it will keep exceeds the free memory."""
        if self._run not in self._last_run.values():
            count = len(self._watched)
            self._expected_bytes = check_memory(KEEP, self.keep, count, call, self._options)

    def __getitem__(self, name: str | SupportsIndex) -> Watched:
        """Return the attention of this name, the only attention inside this path of the model, or
        the only attention of the layer with this number, -1 for the last.

        Raise a KeyError that lists the attentions if there are several, or suggests a name.
        """
        # A further pass through a shared layer has a name once it is recorded.
        self._queue.collect()
        return self._watched[attention_named(name, [*self._watched], self.left_out)]

    def __contains__(self, name: object) -> bool:
        """Return whether recording[name] works: for full names, paths that hold one attention
        alone, and numbers of layers with one attention.
        """
        self._queue.collect()
        try:
            return attention_named(name, [*self._watched], self.left_out) in self._watched
        except UnknownNameError:
            return False

    def __iter__(self) -> Iterator[str]:
        self._queue.collect()
        return iter(self._watched)

    def __len__(self) -> int:
        self._queue.collect()
        return len(self._watched)

    @suggests(
        "heads",
        "it is a table of every head: .where(kind=...) or .sort(column) selects",
        kind="heads().where(kind=...)",
        layer="heads().where(layer=...)",
        layers="heads().where(layer=...)",
        number="heads().where(number=...)",
        sort="heads().sort(column)",
        top="heads()[:5]",
    )
    def heads(self, *, segments: Any = None) -> Heads:
        """Return a table of every head with its kind and habits, the most telling heads first; see
        `Heads.sort`.

        Args:
            segments: names of spans of the text, or a number for each token: adds the share of the
                weight that each segment receives. A span is a range, a slice, a position, a pair
                (start, stop) or a list. Positions count the tokens of each sequence from 0, without
                padding. Tokens in no span are "other".

        Raises:
            ValueError: if segments overlap or do not fit the text, or if no attention was called
                while it was watched.
        """
        # Of a recording without any call, say why: a table without rows would look like an answer.
        if self._watched and not any(self._calls.values()):
            next(iter(self._watched.values())).call  # noqa: B018
        named = None
        if segments is not None:
            every = [call for calls in self._calls.values() for call in calls]
            named = segments_of_calls(segments, every)
        # The test of punctuation decodes each token once: keep it for the next table.
        if self._is_mark[0] != self.decode:
            self._is_mark = self.decode, self.decode and punctuation_test(self.decode)
        return heads_of(self._calls, self._is_mark[1], named, self.left_out).sort()

    def queries_without_keys(self) -> dict[str, Bool[Tensor, "batch heads query"]]:
        """Return which queries saw no key, of the attentions that have such queries: their context
        was zero.

        An edit may hide every key from a query. Padding does not count.
        """
        found = {}
        for name, calls in self._calls.items():
            blind = [call.queries_without_keys() for call in calls]
            for number, one in enumerate(blind):
                if one.any():
                    found[name if number == 0 else f"{name}.calls[{number}]"] = one
        return found

    def sources(
        self,
        span: Any,
        how: str = "weights",
        *,
        segments: Any = None,
        layers: Layers = None,
        heads: HeadNumbers = None,
        sequence: int = 0,
        model: Any = None,
    ) -> Sources:
        """Return how much of the tokens written in a span comes from every token before them, and
        from every segment.

        The context is the text before the span or, in an encoder-decoder, the source. Each token of
        the span was written by the query before it.

        Args:
            span: the positions of the tokens, a range, a slice or a pair (start, stop), counted
                from the first token of the sequence or, in an encoder-decoder, of the decoder's
                input; padding does not count. It may include the token after the last query, which
                the last query wrote: that is -1, the last.
            how: "weights": the mean weight of layers, heads and rows; keep="queries-keys".
                "carried": weights times ‖W_O v‖; keep="queries-keys", also="norms".
                "rollout": weights multiplied through all layers, with the residual connection
                (Abnar and Zuidema, 2020): r ← r / 2 + Aᵀr / 2 from the last layer to the first;
                keep="queries-keys".
                "gradient": weight times gradient; also="gradients", and a backward pass inside of
                the block.
                "hidden": how much the answer's log-probability falls when a segment is hidden from
                all later tokens; takes `model`, and runs it once for each segment.
            segments: names of spans of the context, a list of spans, or a number for each of its
                tokens; None is every token by itself. Tokens in no span are "other".
            layers, heads: which attentions and heads; None is all that were recorded and read the
                context. "rollout" takes the mean of these heads, and the other layers leave every
                token's share where it is. "hidden" hides segments in these alone. Heads that share
                their values have one gradient, unless `ts.watch(heads=...)` recorded some of them
                alone.
            sequence: which sequence of the batch.
            model: for "hidden", the model that was recorded; the others do not run it.

        Raises:
            ValueError: if the span or the segments do not fit the text, or if too little was kept,
                with the option of `ts.watch` that keeps it.

        Example:
            >>> import torch, telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> model = ts.models.GPT(config).eval()
            >>> with ts.watch(model, keep="queries-keys") as recording:
            ...     _ = model(torch.tensor([[1, 2, 3, 4, 5]]))
            >>> found = recording.sources(
            ...     range(4, 6), "rollout", segments={"question": (0, 2), "text": (2, 4)}
            ... )
            >>> round(sum(found.shares.values()), 4)
            1.0
        """
        # Rollout multiplies all layers, so that none may be missing.
        if how == "rollout" and self._left_out:
            name, reason = next(iter(self._left_out.items()))
            raise ValueError(
                f'sources(how="rollout") needs every layer, and "{name}" was not watched: {reason}'
            )
        return find_sources(
            self._calls,
            span,
            how=how,
            segments=segments,
            layers=layers,
            heads=heads,
            sequence=sequence,
            model=model,
            decode=self.decode,
            token_name=self.token_name,
        )

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write the recording to a folder that `ts.open` reads; an interrupted save leaves nothing
        behind.

        Args:
            path: the folder.
            replace: whether a recording that is there already is written over.

        Raises:
            ValueError: if the folder holds a recording and `replace` is False, or if it holds
                anything else.
        """
        save_recording(
            path,
            self.model,
            self.keep,
            self.decode,
            self._calls,
            self.token_name,
            edits=self.edits,
            left_out=self._left_out,
            replace=replace,
        )

    def table(self, of: str = "queries", *, library: str = "pandas") -> Any:
        """Return the numbers of every attention as one long frame of pandas or polars.

        Args:
            of: "queries", "keys", "top": as in `Survey.table`, with the columns layer and call
                before them "heads": a row for each head, as in `heads()` "tokens": a row for each
                token: call, side, batch, position, token and, with a tokenizer, text.
            library: "pandas" or "polars".

        Raises:
            ValueError: if the library is not installed, or if there is no such table.
        """
        return frame(joined(list(table_parts(of, self._calls, self.heads, self.decode))), library)

    def to_parquet(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write all tables to a folder, as heads.parquet, queries.parquet, keys.parquet,
        top.parquet, tokens.parquet.

        An attention is a row group.

        Args:
            path: the folder.
            replace: whether tables that are there already are written over.

        Raises:
            ValueError: if pyarrow is not installed, if the folder holds tables and `replace` is
                False, or if it holds anything else.
        """
        parts = lambda of: table_parts(of, self._calls, self.heads, self.decode)  # noqa: E731
        write_tables(path, parts, replace=replace)

    @property
    def nbytes(self) -> int:
        """How many bytes are kept, in memory or in files."""
        stream = 0 if self._stream is None else self._stream.nbytes
        return stream + nbytes_of([call for calls in self._calls.values() for call in calls])

    @property
    def _calls(self) -> dict[str, list[RecordedCall]]:
        return {name: watched.calls for name, watched in self.items()}

    def __rich__(self) -> PlainTable:
        title = f'{self.model}, keep="{self.keep}": {format_bytes(self.nbytes)}'
        watched = dict(self)
        return table_of(title, watched, self.edits, self._left_out, self.other_layers)
