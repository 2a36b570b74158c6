"""Recorded calls that keep tensors: queries and keys (keep="queries-keys"), or every step
(keep="steps").

Surveys, rows and maps are computed from them on request; `one_head` selects one head of one
sequence.
"""

from collections.abc import Iterator
from math import nan
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..attention import (
    include_padding_queries,
    key_heads_of,
    restrict_to_heads,
    restrict_to_sequences,
    tensors,
)
from ..authors import CallColumns, StreamLog, Streams
from ..engines import torch_modes
from ..measures import Places, head_sums, streaming_share
from ..surveys import Size, Survey, survey
from ..tiles import OneHead
from ..token_kinds import Tokens
from ..traces import Trace, trace
from ..words import check_index
from .attention_call import TOP, AttentionCall, KeepOptions, MapSize
from .recorded_call import RecordedCall
from .storage import GrowingTensor
from .survey_queue import SurveyQueue

# States of the residual stream that a layer keeps: what its norms, its attention and its
# feed-forward network are given and return.
STREAM = 7
MOST_WEIGHTS = 2**26  # numbers of a pattern that is formed as a whole: a quarter of a GiB


class QueriesKeysCall(RecordedCall):
    """Keep queries and keys; surveys, rows and maps are computed on request, on the model's
    device.
    """

    keep = "queries-keys"
    _surveys: dict[tuple[int, Size], Survey] | None = None
    _heads: dict[int, Survey] | None = None

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        if call.lse is not None:
            self._parts.grow("lse", call.lse)
        self._parts.grow("queries", call.queries)
        self._parts.grow("keys", call.keys)

    def _store_more(self, call: AttentionCall, known: int) -> None:
        # Surveys of the shorter text no longer hold.
        self._surveys = self._heads = None
        if call.lse is not None and "lse" in self._parts:
            self._parts.grow("lse", call.lse)
        else:  # the lse of some of the queries is of no use
            self._parts.pop("lse", None)
        self._parts.grow("queries", call.queries)
        # Earlier keys are kept already.
        self._parts.grow("keys", call.keys[:, :, known:])

    @classmethod
    def _expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        # The part of the queries that a selection keeps, as if the call began a text.
        kept = len(options.queries(call.size[0], 0)) / max(call.size[0], 1)
        lse = 0 if call.lse is None else call.lse.nbytes
        return int((call.queries.nbytes + lse) * kept) + _bytes_with_evicted(
            call.keys, call.evicted
        )

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`. A survey without a map is computed
        once.
        """
        # A text that has grown has another size, and is surveyed again.
        wanted = (TOP if top is None else top, self.size)
        if map is None and self._surveys and wanted in self._surveys:
            return self._surveys[wanted]

        # Tensors may be kept in RAM or on disk: compute where the model ran.
        queries = self._to_model_device(self.queries)
        keys = self._to_model_device(self.keys)
        with torch_modes.without_autocast(queries.device):
            seen = survey(queries, keys, self._attention_of_kept(), top=wanted[0], map=map)
        # A survey with a map serves later requests without one, too.
        self._surveys = {**(self._surveys or {}), wanted: seen}
        return seen

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; the other heads are not
        computed.
        """
        place = self._head_index(number)
        heads = len(self.heads)

        # If all heads have been surveyed, this one is known.
        if self._surveys and (TOP, self.size) in self._surveys:
            return self._surveys[TOP, self.size].head(place)
        if self._heads is None or place not in self._heads:
            # Otherwise survey the head alone, with the one key head that it reads.
            which = torch.tensor([place])
            key_heads = key_heads_of(which, heads, self.keys.shape[1]).tolist()
            queries = self._to_model_device(self.queries[:, [place]])
            keys = self._to_model_device(self.keys[:, key_heads])
            with torch_modes.without_autocast(queries.device):
                seen = survey(
                    queries,
                    keys,
                    restrict_to_heads(self._attention_of_kept(), which, heads),
                    top=TOP,
                )
            self._heads = {**(self._heads or {}), place: seen}
        return self._heads[place]

    def _shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        seen = self.survey()
        queries = self._to_model_device(self.queries)
        keys = self._to_model_device(self.keys)
        with torch_modes.without_autocast(queries.device):
            return head_sums(queries, keys, self._attention_of_kept(), seen.summary, places)

    def _streaming(self) -> Float[Tensor, "batch heads query"] | None:
        # The survey holds queries and keys on the model's device already.
        seen = self.survey()
        places = self._places(lists=False)
        with torch_modes.without_autocast(seen.queries.device):
            return streaming_share(
                seen.engine, seen.queries, seen.keys, seen.attention, seen.lse, places
            )

    def _finish(self) -> None:
        """Return at once: queries and keys are stored while the model runs."""

    def _wait(self) -> None:
        """Return at once, for the same reason."""

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        batch, heads, queries, _ = self.queries.shape
        keys = self.size[1]
        count = batch * heads * queries * keys
        if count > MOST_WEIGHTS:
            raise ValueError(
                f'the weights of "{self.name}" are {batch} x {heads} x {queries:,} x {keys:,} '
                f"numbers, and at most {MOST_WEIGHTS:,} are formed at once; .head(0).rows(i) has "
                "those of some queries of a head, .survey().map(256, 256) pools them, and .top has "
                "the largest of each query"
            )
        return self.survey().rows(slice(None))

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        return self._kept["queries"].tensor

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        return self._kept["keys"].tensor

    def _other_tensors(self) -> Iterator[Tensor]:
        """Yield also the tensors of the surveys computed so far, with the queries and keys copied
        for them.
        """
        yield from super()._other_tensors()
        for seen in (*(self._surveys or {}).values(), *(self._heads or {}).values()):
            yield from (
                part
                for part in (seen.queries, seen.keys, *vars(seen.summary).values())
                if part is not None
            )
            yield from tensors(seen.attention)

    def _to_model_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._facts.device)


class StepsCall(QueriesKeysCall):
    """Keep queries, keys and values, from which every step is computed on request, and the residual
    stream.
    """

    keep = "steps"
    _has_values = True
    _stream: tuple[StreamLog, int] | None = None
    """The log of the residual streams, and the number of this call in its recording."""
    _widths: tuple[int, ...] = ()
    """The features of each set of values, where "values" joins several that are multiplied by the
    same weights.
    """

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        super()._store_first(call, queue)
        self._parts.grow("values", call.values)

    def _store_more(self, call: AttentionCall, known: int) -> None:
        super()._store_more(call, known)
        # A read may have joined the sets, and each grows by itself.
        self._split_values()
        self._parts.grow("values", call.values[:, :, known:])

    def _add_values(self, call: AttentionCall, number: int) -> None:
        """Append the values of the keys that this set does not have yet."""
        super()._add_values(call, number)
        self._split_values()
        name = f"values.{number + 1}"
        stored = self._parts.get(name)
        if stored is None:
            # The set begins here; zeros stand for the keys that a cache has evicted.
            self._parts.grow(name, call.with_evicted_keys().values)
        else:
            # The stored set counts evicted keys, which the call's tensors lack.
            self._parts.grow(name, call.values[:, :, stored.shape[2] - call.evicted :])

    def _wait(self) -> None:
        """Join the sets of values along the features, as if the attention had been called once."""
        names = [name for name in self._parts if name.startswith("values.")]
        if not names:
            return

        # Take the sets out of the parts, and put one joined tensor back.
        sets = [self._parts["values"].tensor, *(self._parts.pop(name).tensor for name in names)]
        # A run that was interrupted between two sets leaves the later one without its last keys.
        missing = [sets[0].shape[2] - each.shape[2] for each in sets]
        whole = [
            pad(each, (0, 0, 0, count), value=nan)
            for each, count in zip(sets, missing, strict=True)
        ]
        # Remember the widths, by which the sets are split again.
        self._widths = tuple(each.shape[-1] for each in sets)
        self._parts["values"] = GrowingTensor(
            torch.cat(whole, -1), 2, self._options.store, owned=True
        )

    def _split_values(self) -> None:
        """Undo `_wait`, so that each set can grow."""
        if not self._widths:
            return
        for number, each in enumerate(
            torch.split(self._parts["values"].tensor, [*self._widths], -1)
        ):
            # The first set has no number, as where there is only one.
            name = f"values.{number + 1}" if number else "values"
            self._parts[name] = GrowingTensor(each, 2, self._options.store)
        self._widths = ()

    @classmethod
    def _expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        """Return how many bytes would be kept; the residual stream is taken to be as wide as the
        contexts of all heads.
        """
        values = _bytes_with_evicted(call.values, call.evicted)
        batch, heads, queries, _ = call.queries.shape
        kept = batch * heads * len(options.queries(queries, 0))
        stream = STREAM * kept * call.values.shape[-1] * call.values.element_size()
        return super()._expected_bytes(call, options) + values + stream

    def add_residual_stream(
        self, before: Float[Tensor, "batch n d_model"], after: Float[Tensor, "batch n d_model"]
    ) -> None:
        """Append the residual stream before and after the add & norm around the latest queries."""
        self._parts.grow("before", before, 1)
        self._parts.grow("after", after, 1)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step as it ran, queries at padding included; dropout is not applied. Without
        `tokens`, positions have the names that `ts.watch(tokens=...)` gave.
        """
        names = (self._all_names("query"), self._all_names("key"))
        # Where one side has no names, `trace` numbers its tokens.
        given: Any = names if tokens is None and self._facts.tokens is not None else tokens
        queries, keys, values = map(self._to_model_device, (self.queries, self.keys, self.values))
        with torch.no_grad(), torch_modes.without_autocast(self._facts.device):
            # A trace shows what ran, and padding queries ran.
            return trace(
                queries, keys, values, include_padding_queries(self._attention_of_kept()), given
            )

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        return self._kept["values"].tensor

    @property
    def _value_sets(self) -> int:
        # Reading the parts joins the sets.
        return len(self._widths) if "values" in self._kept and self._widths else 1

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        return self._residual_stream("before")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        return self._residual_stream("after")

    def _residual_stream(self, name: str) -> Tensor:
        if name not in self._kept:
            if self._stream is None:
                raise ValueError(
                    f'"{self.name}" has no residual stream: it was not called by an AddNorm'
                )
            log, number = self._stream
            around = Streams(log, 0).around(CallColumns(self.name, number, self.size, self.across))
            return around.before if name == "before" else around.after

        # Positions can only be assigned to queries if there is one for each.
        stream = self._kept[name].tensor
        if stream.shape[1] != self.size[0]:
            raise ValueError(
                f'"{self.name}": {stream.shape[1]} positions of the residual stream do not fit its '
                f"{self.size[0]} "
                "queries; beams run side by side, and a call that was interrupted has no stream"
            )
        return stream


def _bytes_with_evicted(tensor: Tensor, evicted: int) -> int:
    """Return the size of the tensor with a place for each evicted key."""
    batch, heads, keys, width = tensor.shape
    return batch * heads * (evicted + keys) * width * tensor.element_size()


def one_head(call: RecordedCall, number: SupportsIndex, sequence: SupportsIndex = 0) -> OneHead:
    """Return the queries, keys, values and definition of one head in one sequence, as views of the
    call's tensors.

    `number` is the head's number in the model. Negative numbers count from the last head kept and
    the last sequence. Raise a ValueError that names the range if there is no such head or sequence.
    """
    place = call._head_index(number)
    batch = call._facts.shape[0]
    heads = len(call.heads)
    sequence = check_index("sequence", sequence, batch, of=f'"{call.name}"')

    # Slices, not lists of indices: the results are views.
    one = slice(sequence, sequence + 1)
    key_head = int(key_heads_of(torch.tensor([place]), heads, call.keys.shape[1]))
    own = (one, slice(place, place + 1))
    shared = (one, slice(key_head, key_head + 1))
    # Restrict the definition to the head, then to the sequence.
    attention = restrict_to_heads(call._attention_of_kept(), torch.tensor([place]), heads)
    return OneHead(
        queries=call.queries[own],
        keys=call.keys[shared],
        values=call.values[shared] if call._has_values else None,
        attention=restrict_to_sequences(attention, torch.tensor([sequence]), batch),
        lse=None if call.lse is None else call.lse[own],
    )
