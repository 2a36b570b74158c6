"""`Watched`: one attention of a watched model, with its recorded calls."""

from collections.abc import Collection, Iterable
from typing import Any, NoReturn, SupportsIndex

from jaxtyping import Float
from torch import Tensor

from ..field_words import FieldNames
from ..guesses import OF_WATCHED
from ..surveys import Peak, Survey, Top
from ..token_kinds import Tokens
from ..traces import Trace
from .attention_call import MapSize
from .recorded_call import RecordedCall
from .survey_queue import SurveyQueue
from .weight_gradients import weight_gradients


class Watched(FieldNames):
    """One attention of a watched model: `recording["model.layers.11"]`.

    `calls` lists its calls; a sequence that grows token by token is one call. The other methods and
    properties read the only call, and raise a ValueError if the attention was not called, or was
    called for several sequences.

    Attributes:
        name: the full name of the attention in the model.
        left_out: why a run of the attention could not be recorded; None if every run was.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> attention = recording["blocks.0.self"]
        >>> len(attention.calls), attention.call.size
        (1, (4, 4))
        >>> # Of each key, of each query
        >>> attention.received.shape, attention.entropy.shape
        (torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
        >>> attention.peak.weight.shape, attention.top.keys.shape
        (torch.Size([1, 2, 4]), torch.Size([1, 2, 4, 8]))
        >>> (
        ...     attention.weights.sum(-1).allclose(torch.ones(1, 2, 4)),
        ...     attention.head(-1).entropy.shape,
        ... )
        (True, torch.Size([1, 1, 4]))
        >>> attention.survey(top=2).map(2, 2).shape, attention.trace().formula
        (torch.Size([1, 2, 2, 2]), 'softmax(mask(q·k / √4)) v')
        >>> attention.before.shape, attention.after.shape  # the residual stream
        (torch.Size([1, 4, 8]), torch.Size([1, 4, 8]))
    """

    _theirs = OF_WATCHED

    def __init__(
        self,
        name: str,
        unwatched_threads: Collection[int] = (),
        queue: SurveyQueue | None = None,
    ) -> None:
        self.name = name
        self._queue = queue
        self._unwatched_threads = unwatched_threads
        """The ids of the threads that called the model and are not watched."""
        self.left_out: str | None = None
        """Why a run of the attention could not be recorded; None if every run was."""
        self._recorded: list[RecordedCall] = []
        """The calls that are recorded already."""

    @property
    def calls(self) -> list[RecordedCall]:
        """The calls, the first first. Steps that wait in compiled code are recorded before."""
        if self._queue is not None:
            self._queue.collect()
        return self._recorded

    @property
    def call(self) -> RecordedCall:
        """The only call."""
        if not self.calls and self.left_out is not None:
            raise ValueError(f'"{self.name}" ran and was not watched: {self.left_out}')
        # Nothing was seen: say what most likely kept the call from the watch.
        if not self.calls:
            why = (
                "the model ran in another thread, and watch sees only the thread that entered its "
                "block: enter it there"
                if self._unwatched_threads
                else "run the model inside the block; what torch.compile had made before is not "
                "seen"
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

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """The attention pattern: the weight that each query gives to each key.

        Computed from queries and keys at each access, without dropout; needs keep="queries-keys"
        or "steps". It has the queries that were kept; those at padding are zeros. Raise a
        ValueError where it has more than 2**26 numbers, or where queries and keys were not kept.
        """
        return self.call.weights

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`.

        With keep="summaries", `top` is at most the one of `ts.watch`, and `map` exactly the one of
        `ts.watch`.

        Args:
            top: how many of each query's largest weights; None is what was kept.
            map: (rows, columns) of a map to pool; None is what was kept.
        """
        return self.call.survey(top=top, map=map)

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; -1 is the last head that was
        kept.

        Args:
            number: the number of the head in the model; -1 is the last that was kept.

        Raises:
            ValueError: that lists the heads if the head was not kept.
        """
        return self.call.head(number)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step of the call, without dropout; needs keep="steps". See `ts.trace`.

        Args:
            tokens: the names of the tokens, or (query tokens, key tokens); None is their positions.

        Raises:
            ValueError: the recording was not made with keep="steps".
        """
        return self.call.trace(tokens)

    def weight_gradients(
        self,
        head: SupportsIndex,
        queries: SupportsIndex | Iterable[SupportsIndex] | None = None,
        *,
        sequence: SupportsIndex = 0,
    ) -> Float[Tensor, "row key"]:
        """Return the derivative of a loss by the weights of one head, of each query and key.

        That is the gradient of a query's context times the value of a key, also for keys that the
        query may not see. Backward passes add up, as gradients do. Needs keep="steps" and
        also="gradients", and a backward pass inside of the block.

        Args:
            head: the number of the head in the model; -1 is the last that was kept.
            queries: the numbers of the queries to return, in this order; None is all that were
                kept.
            sequence: which sequence of the batch.

        Raises:
            ValueError: the gradient was not kept; there is no such head, query or sequence; or the
                matrix would take more than a GiB.

        Example:
            >>> import torch, telescope as ts
            >>> layer = ts.layers.MultiHeadAttention(8, 2)
            >>> with ts.watch(layer, keep="steps", also="gradients") as recording:
            ...     layer(torch.randn(1, 5, 8)).sum().backward()
            >>> recording["attention"].weight_gradients(0, queries=[-1]).shape
            torch.Size([1, 5])
        """
        return weight_gradients(self.call, head, queries, sequence=sequence)

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream before the attention's add & norm; needs keep="steps"."""
        return self.call.before

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream after the attention's add & norm: x + output, normalised in a
        post-norm model.
        """
        return self.call.after

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f'"{self.name}" has no [{index!r}]; .head(number) is the survey of a head, .weights '
            "are those of all heads, .calls[number] is a call"
        )

    def __repr__(self) -> str:
        name, heads, size, definition, calls = self._cells()
        if not self.calls:
            return f"{name}: {definition or 'not called'}"
        return f"{name}: heads {heads}, {size}, {definition}, calls {calls}"

    def _cells(self) -> list[str]:
        """Return name, heads, queries x keys and definition of the last call, and the number of
        calls.
        """
        if not self.calls:
            return [
                self.name,
                "",
                "",
                "" if self.left_out is None else f"not watched: {self.left_out}",
                "0",
            ]
        last = self.calls[-1]
        dropout = f", dropout = {last.dropout:g}" if last.dropout else ""
        matrix = f"{last.size[0]:,} x {last.size[1]:,}"
        return [
            self.name,
            str(len(last.heads)),
            matrix,
            f"{last.attention}{dropout}",
            str(len(self.calls)),
        ]
