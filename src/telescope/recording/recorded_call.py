"""`RecordedCall`: what a recording keeps of one call of an attention, and how the call grows token
by token.

The subclasses, one for each value of `ts.watch(keep=...)`, are in summaries_call.py and
queries_keys_call.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, SupportsIndex

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import (
    Attention,
    Keep,
    Pairs,
    SelectedQueries,
    everyone,
    identity_key,
    include_padding_queries,
    key_heads_of,
    real_query_masks,
    real_tokens,
    restrict_to_queries,
    tensors,
)
from ..engines import torch_modes
from ..measures import BatchTokens, Places, Written
from ..surveys import Size, Summary, Survey
from ..token_kinds import Tokens, known_names, space_of_sides
from ..traces import Trace
from ..words import whole_number
from .attention_call import (
    AttentionCall,
    CallFacts,
    KeepOptions,
    MapSize,
    TextColumns,
    all_queries,
    range_of,
    seems_cross_attention,
)
from .continuation import continues, fingerprints, same_bits
from .row_in_float64 import shares_with_unrecorded, weight_times_gradient
from .storage import GrowingTensor, StoredParts, StoredTensor, on_device
from .survey_queue import SurveyQueue

# The names of cross-attentions, for recordings that do not say `across`.
CROSS = ("cross", "cross_attn", "encoder_attn", "EncDecAttention", "crossattention")


class RecordedCall(ABC):
    """What was kept of one call of an attention.

    Calls that continue a sequence, as decoding token by token does, are appended to the first and
    count as one call.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> call = recording["blocks.0.self"].call
        >>> call.name, call.heads, call.size, call.rows
        ('blocks.0.self', (0, 1), (4, 4), [0, 1, 2, 3])
        >>> call.attention, call.dropout, call.across
        (Attention(mask=causal), 0.0, False)
        >>> call.queries.shape, call.keys.shape, call.values.shape
        (torch.Size([1, 2, 4, 4]), torch.Size([1, 2, 4, 4]), torch.Size([1, 2, 4, 4]))
        >>> call.weights.shape, call.query_ids.tolist(), call.key_ids.tolist()
        (torch.Size([1, 2, 4, 4]), [[1, 2, 3, 4]], [[1, 2, 3, 4]])
        >>> call.before.shape, call.after.shape  # the residual stream
        (torch.Size([1, 4, 8]), torch.Size([1, 4, 8]))
        >>> call.survey(top=2).top.keys.shape, call.head(1).entropy.shape
        (torch.Size([1, 2, 4, 2]), torch.Size([1, 1, 4]))
        >>> (
        ...     call.trace(list("abcd")).query_tokens,
        ...     call.queries_without_keys().any().item(),
        ... )
        (('a', 'b', 'c', 'd'), False)
        >>> call.lse is None or call.lse.shape == (1, 2, 4), call.nbytes > 0
        (True, True)
        >>> [*call.text_columns(0).keys]
        [0, 1, 2, 3]
    """

    keep: ClassVar[str]
    _has_queries: ClassVar[bool] = True
    """Whether queries and keys are kept, so that every score can be computed again."""
    _has_values: ClassVar[bool] = False
    """Whether values are kept, so that the output of every query can be computed again."""
    _fingerprints_of_keys_come_late: ClassVar[bool] = False
    """Whether the survey computes the fingerprints of the keys, and not the constructor."""

    _facts: CallFacts
    _parts: StoredParts
    _fingerprints: list[GrowingTensor]
    """Of each of `AttentionCall.identifying_tensors`."""
    _queue: SurveyQueue
    """Shared by all calls of a recording."""
    _first_query: Tensor | None = None
    """Tells sequences apart whose keys are equal, as in cross-attention."""
    _selected: Bool[Tensor, "batch query"] | None = None
    """Which queries `ts.watch(queries=...)` selects of each sequence, where that differs between
    sequences.
    """
    _kept_attention: tuple[tuple[Size, int], Attention] | None = None
    """What `kept_attention` returned, and of what."""

    def __init__(
        self, name: str, call: AttentionCall, options: KeepOptions, queue: SurveyQueue
    ) -> None:
        # A recording counts every key of the text, evicted ones included.
        call = call.with_evicted_keys()
        self._options = options
        self._kind = call.kind
        self._queue = queue

        # Note the facts; the definition is copied, since the model may write to its tensors.
        batch, key_heads, _, d_k = call.keys.shape
        d_q = call.queries.shape[-1]
        self._facts = CallFacts(
            name=name,
            heads=call.heads,
            dropout=call.dropout,
            attention=_own_definition(call),
            size=call.size,
            rows=None if options.queries is all_queries else [],
            shape=(batch, key_heads, d_q, d_k),
            dtype=call.queries.dtype,
            device=call.queries.device,
            across=call.is_cross_attention,
            prompt=call.size[0],
            written=Written(((0, call.size[0]),), call.ends or ()),
        )
        self._parts = StoredParts(options.store)

        # Where all queries see the same keys, two texts may have equal keys: keep the first query.
        if include_padding_queries(call.attention).mask.same_for_all_queries:
            self._first_query = call.queries[:, :, :1].detach().clone()

        # Fingerprints tell later whether a call continues this one.
        identifying = (
            call.identifying_tensors[1:]
            if self._fingerprints_of_keys_come_late
            else call.identifying_tensors
        )
        if options.sample:  # each text is one call, which nothing continues
            identifying = ()
        self._fingerprints = [
            GrowingTensor(fingerprints(tensor), 2, owned=True) for tensor in identifying
        ]

        # Store what the subclass keeps, then token ids and norms.
        self._store_first(self._select_queries(call, 0), queue)
        if call.key_ids is not None:
            self._parts.grow("key_ids", call.key_ids, 1, owned=True)
        self._store_ids(call.query_ids, 0)
        self._store_norms(call, 0)

    @classmethod
    def _opened(cls, facts: CallFacts, parts: Mapping[str, StoredTensor]) -> "RecordedCall":
        """Return a call that was read from a file; nothing can be appended to such a call."""
        # Skip the constructor, which takes a call of a running model.
        call = cls.__new__(cls)
        call._facts = facts
        call._parts = StoredParts(on_device, parts)
        call._fingerprints = []
        return call

    # -------------------------------------------------------------------------------------- growing

    def _is_continued_by(self, call: AttentionCall, *, same_run: bool) -> bool:
        """Return whether `call` is the rest of this one.

        Over the same keys, `call` may also begin another sequence: if it belongs to another run of
        the model, or if its first query is the one this call began with. Where the caller knows
        that the keys are unchanged (`call.follows`), no key is read, so that the host does not wait
        for a GPU.
        """
        # Another batch, type or set of heads is another sequence.
        if call.kind != self._kind:
            return False
        has_new_keys = call.size[1] > self.size[1]

        # Trust the caller, and read no key.
        if call.follows and (same_run or has_new_keys):
            return self._continues(call)

        # Otherwise compare fingerprints, for which queued surveys have to run first.
        self._wait()
        is_next = has_new_keys or (same_run and self._began_with_another_query(call))
        if not is_next or not self._continues(call):
            return False
        # Compare the keys that both have: those kept so far, without the evicted ones.
        old = slice(0, self.size[1] - call.evicted)
        return all(
            same_bits(known.tensor[:, :, call.evicted :], fingerprints(now[:, :, old]))
            for known, now in zip(self._fingerprints, call.identifying_tensors, strict=True)
        )

    def _continues(self, call: AttentionCall) -> bool:
        """Return `continuation.continues`, found once for all layers that are alike."""
        before = self.attention
        size = self.size
        # Layers of one shape and one definition have the same answer.
        shapes = (call.queries.shape, call.keys.shape, call.queries.device)
        key = ("continues", id(before), call.attention._identity, size, call.evicted, shapes)
        return call.once(key, lambda: continues(before, size, call), before, call.attention)

    def _began_with_another_query(self, call: AttentionCall) -> bool:
        return self._first_query is not None and not same_bits(
            self._first_query, call.queries[:, :, :1]
        )

    def _append(self, call: AttentionCall) -> None:
        """Append a call for which `is_continued_by` is true."""
        # All steps count from the sizes before the call, so that `_grow` comes last.
        self._note_written(call)
        queries, keys = self.size
        self._store_more(self._select_queries(call, queries), keys - call.evicted)
        self._store_ids(call.query_ids, queries)
        self._store_norms(call, keys - call.evicted)
        self._append_fingerprints(call, keys - call.evicted)
        self._grow(call)

    def _grow(self, call: AttentionCall) -> None:
        """Count the queries and keys of a call that was appended, and take over its definition."""
        self._facts.size = (self.size[0] + call.size[0], call.size[1])
        # An equal definition need not be copied again.
        if call.attention is not self.attention and call.attention != self.attention:
            self._facts.attention = _own_definition(call)

    def _note_written(self, call: AttentionCall) -> None:
        """Note, before a call is appended, whether its queries were given to the model or written
        by it.
        """
        facts = self._facts
        before = self.size[0]
        after = before + call.size[0]
        given, ends = facts.written
        if call.ends is None and given[-1][1] == before:  # the prompt, in several passes
            facts.written = Written((*given[:-1], (given[-1][0], after)), ends)
            facts.prompt = after if facts.prompt == before else facts.prompt
        elif call.ends is None:
            # A user appended to the text after the model had written.
            facts.written = Written((*given, (before, after)), ends)
        elif call.ends != ends:
            # The model writes: note what ends its text.
            facts.written = Written(given, call.ends)

    def _append_fingerprints(self, call: AttentionCall, known: int) -> None:
        """Append the fingerprints of the keys after the first `known` ones."""
        for stored, now in zip(self._fingerprints, call.identifying_tensors, strict=True):
            stored.append(fingerprints(now[:, :, known:]))

    @abstractmethod
    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        """Store the first queries of a sequence."""

    @abstractmethod
    def _store_more(self, call: AttentionCall, known: int) -> None:
        """Store queries that continue the sequence; the first `known` of the call's keys are stored
        already.
        """

    @classmethod
    @abstractmethod
    def _expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        """Return how many bytes would be kept of the call."""

    def _select_queries(self, call: AttentionCall, before: int) -> AttentionCall:
        """Return the call with the queries that are to be kept; `before` queries came earlier."""
        if self._facts.rows is None:
            return call
        # A query is kept if some sequence selects it; in the others the query sees nothing.
        which = self._selected_rows(call, before)
        return self._without_unselected(call).select_queries(torch.tensor(which, dtype=torch.long))

    def _selected_rows(self, call: AttentionCall, before: int) -> Sequence[int]:
        """Return which queries of the call are to be kept of some sequence, and note them.

        Where a position stands in another column in one sequence than in another, `_selected` tells
        whose it is.
        """
        # The rows of each sequence, and of all of them together.
        own = call.select_rows(self._options.queries, before)
        which = sorted({row for rows in own for row in rows})
        if self._facts.rows is not None:
            self._facts.rows += [before + row for row in which]
        batch = len(call.queries)
        count = before + call.size[0]

        # Sequences differ from here on; earlier queries that were kept count in all of them.
        if self._selected is None and any(rows != own[0] for rows in own):
            self._selected = torch.ones(batch, before, dtype=torch.bool)
        if self._selected is not None:
            # Mark the selected columns of each sequence, behind those of earlier calls.
            longer = torch.zeros(batch, count, dtype=torch.bool)
            longer[:, : self._selected.shape[1]] = self._selected
            for sequence, rows in enumerate(own * batch if len(own) == 1 else own):
                longer[sequence, [before + row for row in rows]] = True
            self._selected = longer
        return which

    def _without_unselected(self, call: AttentionCall) -> AttentionCall:
        """Return the call in which queries see nothing that are selected of other sequences
        alone.
        """
        if self._selected is None:
            return call
        # The table ends with the last query, as the keys do; see `RealQueries`.
        selected = Keep(self._selected.to(call.queries.device))
        return call.without_padding_queries(
            SelectedQueries(selected, self._selected.shape[1] - call.size[1])
        )

    def _saved_attention(self) -> Attention:
        """Return the definition over all queries, in which queries that were not selected see
        nothing.
        """
        if self._selected is None:
            return self.attention
        ahead = self._selected.shape[1] - self.size[1]
        return self.attention.with_extra_mask(
            SelectedQueries(Keep(self._selected.to(self._facts.device)), ahead)
        )

    def _store_ids(self, ids: Int[Tensor, "batch query"] | None, before: int) -> None:
        """Store the token ids of queries, as long as those of every query are known; `before`
        queries came earlier.
        """
        # Ids with gaps would be assigned to the wrong tokens: keep all, or none.
        if ids is not None and (before == 0 or "query_ids" in self._parts):
            self._parts.grow("query_ids", ids, 1, owned=True)
        else:
            self._parts.pop("query_ids", None)

    def _store_norms(self, call: AttentionCall, known: int) -> None:
        """Store ‖W_O v‖ of the keys after the first `known` ones."""
        if call.carrier is not None:
            self._parts.grow(
                "norms", call.carrier.norms(call.values[:, :, known:], call.heads), owned=True
            )

    def _add_values(self, call: AttentionCall, number: int) -> None:
        """Store one more set of values that the weights of the latest queries are multiplied by;
        the first is set 0.

        Raise a ValueError if norms are kept: which rows of W_O belong to a set is not known.
        """
        if call.carrier is not None:
            raise ValueError(
                f'also="norms": "{self.name}" multiplies its weights by {number + 1} sets of '
                "values, and which part of "
                "the output projection belongs to which is not known; leave it out"
            )

    def _keep_gradient(
        self, call: AttentionCall, context: Float[Tensor, "..."], head_axis: int
    ) -> None:
        """Store weight times gradient of each key when a backward pass reaches a call, given with
        all its heads.

        The numbers are summed over the queries and over the recorded heads that share a key.
        `context` is the tensor that the attention returned, with its heads along `head_axis`. Raise
        a ValueError if the call continues another.
        """
        # A call outside of autograd has no gradients.
        of_values = call.values.requires_grad and context.requires_grad
        of_context = self._has_values and context.requires_grad
        if not (of_values or of_context):
            return
        if self.size[0] > call.size[0]:
            raise ValueError(
                f'also="gradients": "{self.name}" ran a text in several calls, and an earlier key '
                "gets gradients from "
                "each; run the whole text in one call"
            )
        if of_context:
            self._keep_context_gradient(context, head_axis)
        if not of_values:
            return

        # A hook that refers to its own tensor would form a cycle: refer to a detached one.
        values = call.values.detach()

        # The hooks read `key_heads`, or `whole` and `attention`, which are assigned below.
        def store_all(gradient: Tensor) -> None:
            """Store v · dv, which is summed over all heads that share the value."""
            # Products of 16-bit numbers are summed in float32.
            dtype = torch.promote_types(values.dtype, torch.float32)
            with torch_modes.recording_mode(gradient.device):
                self._add_gradient((values.to(dtype) * gradient.to(dtype)).sum(-1)[:, key_heads])

        def store_some(gradient: Tensor) -> None:
            """Store the part of the recorded heads, from the gradient of the context."""
            with torch_modes.recording_mode(gradient.device):
                part = whole.select_heads(self.heads)._replace(attention=attention)
                self._add_gradient(
                    weight_times_gradient(part, gradient.movedim(head_axis, 1)[:, self.heads])
                )

        # A value's gradient mixes all heads that share the value; the context's does not.
        if shares_with_unrecorded(self.heads, call):
            # The recording's own copy, to which the model does not write.
            attention = include_padding_queries(self.attention)
            # Detached tensors, so that the hook keeps no graph of autograd alive.
            whole = call._replace(
                queries=call.queries.detach(), keys=call.keys.detach(), values=values, lse=None
            )
            context.register_hook(store_some)  # type: ignore[no-untyped-call]
        else:
            key_heads = key_heads_of(
                torch.tensor(self.heads), call.queries.shape[1], values.shape[1]
            ).tolist()
            call.values.register_hook(store_all)  # type: ignore[no-untyped-call]

    def _keep_context_gradient(self, context: Float[Tensor, "..."], head_axis: int) -> None:
        """Store the gradient of the context of the recorded heads and queries.

        Of several sets of values, whose joined width is another, the sum is of no use.
        """

        def store(gradient: Tensor) -> None:
            with torch_modes.recording_mode(gradient.device):
                own = gradient.movedim(head_axis, 1)[:, self.heads]
                if self._facts.rows is not None:
                    own = own[:, :, self._facts.rows]
                held = self._parts.get("context_gradients")
                own = own.clone() if held is None else own + held.tensor.to(own.device)
                self._parts["context_gradients"] = GrowingTensor(
                    own, 2, self._options.store, owned=True
                )

        context.register_hook(store)  # type: ignore[no-untyped-call]

    def _add_gradient(self, product: Float[Tensor, "batch key_heads key"]) -> None:
        """Add weight times gradient of one backward pass to that of the passes before."""
        held = self._parts.get("gradients")
        # Several backward passes add up, as gradients do.
        if held is not None:
            product = product + held.tensor.to(product.device)
        self._parts["gradients"] = GrowingTensor(product, 2, self._options.store, owned=True)

    # -------------------------------------------------------------------------------------- reading

    @abstractmethod
    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`.

        Args:
            top: how many of each query's largest weights; None is what was kept.
            map: (rows, columns) of a map to pool; None is what was kept.
        """

    def _summary(self) -> Summary:
        """Return the summary of the survey of all heads; its tensors must not be written to."""
        return self.survey().summary

    @abstractmethod
    def _shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """Return the share of each habit of each head, summed over the queries; see
        `measures.head_sums`.
        """

    def queries_without_keys(self) -> Bool[Tensor, "batch heads query"]:
        """Return which of the kept queries saw no key and are no padding."""
        seen = self.survey()
        attention = self._attention_of_kept()
        top = seen.summary.top_keys

        # A query without a largest key saw none; with top=0, its lse tells the same.
        if top.shape[-1]:
            blind = top[..., 0] == -1
        else:
            assert seen.summary.lse is not None
            blind = seen.summary.lse == -torch.inf

        # Padding queries see nothing, too: leave them out.
        batch, heads, rows = blind.shape
        at = Pairs.block(
            range(rows),
            range(0),
            of=(rows, self.size[1]),
            batch=batch,
            heads=heads,
            device=blind.device,
        )
        for real in real_query_masks(attention):
            blind = blind & real.sees(at)[..., 0]
        return blind

    def _streaming(self) -> Float[Tensor, "batch heads query"] | None:
        """Return the share of each query's weight within the first and the last keys; None if it
        was not kept.
        """
        part = self._kept.get("streaming")
        return None if part is None else part.tensor

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; -1 is the last head that was
        kept.

        Args:
            number: the number of the head in the model; -1 is the last that was kept.

        Raises:
            ValueError: the head was not kept.
        """
        return self.survey().head(self._head_index(number))

    def _head_index(self, number: SupportsIndex) -> int:
        """Return the index of a head among those kept; raise a ValueError that lists the heads if
        it was not kept.

        `number` is the head's number in the model; a negative number counts from the last head that
        was kept.
        """
        number = whole_number("head", number)
        count = len(self.heads)
        if -count <= number < 0:
            return count + number
        if number not in self.heads:
            negative = f", and -{count} to -1 count from the last" if count else ""
            kept = ", ".join(map(str, self.heads))
            raise ValueError(
                f'there is no head {number} of "{self.name}"; kept are {kept}{negative}'
            )
        return self.heads.index(number)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step; see `ts.trace`. The random dropout of a training step is not
        applied.

        Args:
            tokens: the names of the tokens, or (query tokens, key tokens); None is their positions.

        Raises:
            ValueError: the recording was not made with keep="steps".
        """
        raise self._not_kept("trace()", "steps")

    @property
    def _kept(self) -> dict[str, StoredTensor]:
        """The tensors that are kept, by name."""
        queue = getattr(self, "_queue", None)  # a call that was read from a file has none
        if queue is not None and queue.collect_steps is not None:
            queue.collect()
        # A queued survey has to run before its numbers are read.
        self._wait()
        return self._parts

    @abstractmethod
    def _finish(self) -> None:
        """Compute what is still due once the model has run."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until `_parts` and `_fingerprints` are complete."""

    @property
    def name(self) -> str:
        """The name of the attention in the model."""
        return self._facts.name

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of each head in the model."""
        return self._facts.heads

    @property
    def size(self) -> Size:
        """The number of queries and of keys."""
        return self._facts.size

    @property
    def across(self) -> bool:
        """Whether queries and keys come from two sequences, as in the cross-attention of a
        decoder.
        """
        if self._facts.across is not None:
            return self._facts.across
        # An older recording does not say: judge by the name, the ids and the mask.
        named = self.name.rpartition(".")[2] in CROSS
        return named or "key_ids" in self._parts or seems_cross_attention(self.attention, self.size)

    @property
    def attention(self) -> Attention:
        """The definition, over all queries."""
        return self._facts.attention

    @property
    def dropout(self) -> float:
        """The probability with which the model dropped weights."""
        return self._facts.dropout

    @property
    def rows(self) -> list[int]:
        """The numbers of the queries that were kept."""
        return list(range(self.size[0])) if self._facts.rows is None else self._facts.rows

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        """The queries; keep="summaries" does not keep them."""
        raise self._not_kept("queries", "queries-keys")

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        """The keys; keep="summaries" does not keep them."""
        raise self._not_kept("keys", "queries-keys")

    @property
    def lse(self) -> Float[Tensor, "batch heads query"] | None:
        """ln Σ exp(score) of each query, if kept: part of a summary, or as the engine that ran
        returned it.
        """
        return self._kept["lse"].tensor if "lse" in self._kept else None

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        """The values; only keep="steps" keeps them."""
        raise self._not_kept("values", "steps")

    @property
    def _value_sets(self) -> int:
        """How many sets of values, joined along the features, the weights were multiplied by; 1 in
        a recording that was read from a file.
        """
        return 1

    @property
    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """The attention pattern; see `Watched.weights`."""
        raise ValueError(
            f'"{self.name}" has no weights: keep="{self.keep}" keeps no queries and keys, from '
            'which they are computed; keep="queries-keys" does. .top has the largest of each '
            "query, and .received what each key gets"
        )

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream before the attention's add & norm."""
        raise self._not_kept("before", "steps")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream after the attention's add & norm: x + output, normalised in a
        post-norm model.
        """
        raise self._not_kept("after", "steps")

    @property
    def query_ids(self) -> Int[Tensor, "batch query"] | None:
        """The token ids of the queries, if the model was given any."""
        return self._ids("query_ids", self.size[0])

    @property
    def key_ids(self) -> Int[Tensor, "batch key"] | None:
        """The token ids of the keys: those of the queries, or of the other sequence."""
        if "key_ids" in self._kept:
            return self._ids("key_ids", self.size[1])
        # In self-attention over a whole text, keys and queries are the same tokens.
        return self.query_ids if self.size[0] == self.size[1] and not self.across else None

    @property
    def nbytes(self) -> int:
        """How many bytes are kept, in memory or in files."""
        return nbytes_of([self])

    def _other_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are kept besides the parts and the fingerprints."""
        yield from tensors(self.attention)
        if self._first_query is not None:
            yield self._first_query
        if self._selected is not None:
            yield self._selected

    def _ids(self, name: str, count: int) -> Tensor | None:
        part = self._kept.get(name)
        if part is None:
            return None
        # Ids that do not cover all tokens cannot be assigned to them.
        ids = part.tensor
        return ids if ids.shape[1] == count else None

    def _attention_of_kept(self) -> Attention:
        """Return the definition over the queries that were kept, in which queries after the end of
        a text see nothing.

        The result is the same object until the text grows.
        """
        # A text that grows has another size, and may have another definition.
        if self._kept_attention is None or self._kept_attention[0] != (
            self.size,
            id(self.attention),
        ):
            # Hide queries first: these masks number all queries, and not only those kept.
            attention = self._without_ended(self._saved_attention())
            if self._facts.rows is not None:
                attention = restrict_to_queries(
                    attention, torch.tensor(self._facts.rows).long(), self.size
                )
            self._kept_attention = ((self.size, id(self.attention)), attention)
        return self._kept_attention[1]

    def _without_ended(self, attention: Attention) -> Attention:
        """Return a definition in which queries after the end of their text see nothing."""
        ids = self.query_ids
        if ids is None or not self._facts.written.ends:
            return attention
        return BatchTokens(ids).without_ended(attention, self.size, self._facts.written)

    def _real_tokens(self) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]]:
        """Return which queries and keys are tokens that count: neither padding nor after the end of
        their text.
        """
        return real_tokens(
            self._without_ended(self.attention),
            batch=self._facts.shape[0],
            heads=len(self.heads),
            size=self.size,
            across=self.across,
            device=torch.device("cpu"),
        )

    def text_columns(self, sequence: int) -> "TextColumns":
        """Return the columns of one sequence's own tokens, padding left out.

        A position counts these tokens from 0: `columns.keys[position]` is its index into a tensor
        of the recording.

        Args:
            sequence: which sequence of the batch.
        """
        return self._all_text_columns()[sequence]

    def _all_text_columns(self) -> "list[TextColumns]":
        """Return `text_columns` of every sequence, whose masks are read once."""
        queries, keys = self.size
        # Without padding, every column is a token of the sequence.
        if not self._has_padding():
            return [TextColumns(range(queries), range(keys))] * self._facts.shape[0]
        own = zip(*self._real_tokens(), strict=True)
        return [TextColumns(range_of(rows), range_of(columns)) for rows, columns in own]

    def _all_names(self, side: str) -> tuple[str, ...] | None:
        """Return the names of the kept queries, side "query", or of the keys, "key"; positions are
        the names of tokens behind those that were named. None where that side is not named.
        """
        known = known_names(self._facts.tokens, side, self.size, across=self.across)
        if known is None:
            return None
        which = self.rows if side == "query" else range(self.size[1])
        first = 0 if side == "key" or self.across else self.size[1] - self.size[0]
        return tuple(known[i] if i < len(known) else str(first + i) for i in which)

    def _has_padding(self) -> bool:
        """Return whether some tokens may not count."""
        if self._facts.written.ends or real_query_masks(self.attention):
            return True
        # In cross-attention, the mask may hide padding of the source.
        return self.across and include_padding_queries(self.attention).mask != everyone

    def _places(self, *, lists: bool = True) -> Places:
        """Return the positions of the kept queries; `lists=False` saves what only the shares of
        habits need.
        """
        queries, keys = self.size
        rows = self._facts.rows
        return Places.of(
            self.attention,
            batch=self._facts.shape[0],
            heads=len(self.heads),
            size=self.size,
            # Rows number the queries; positions number the keys, of which queries are the last.
            positions=None if rows is None else tuple(keys - queries + row for row in rows),
            across=self.across,
            # Only the lists of keys need the tokens.
            text=BatchTokens(self.key_ids.to(self._facts.device))
            if lists and self.key_ids is not None
            else None,
            lists=lists,
            device=self._facts.device,
            space=space_of_sides(self._facts.tokens),
        )

    def _not_kept(self, what: str, keep: str) -> ValueError:
        return ValueError(
            f'"{self.name}" has no {what}: keep="{self.keep}" did not keep it, keep="{keep}" does'
        )


def _own_definition(call: AttentionCall) -> Attention:
    """Return a copy of a call's definition that owns its tensors, one object for all layers that
    pass the same one.
    """
    attention = call.attention
    # Nothing can be written to a definition without tensors: share it.
    if attention._has_no_tensors:
        return attention
    return call.once(("own", identity_key(attention)), attention._clone, attention)


def nbytes_of(calls: Sequence[RecordedCall]) -> int:
    """Return how many bytes these calls keep, in memory or in files; shared memory is counted
    once.
    """
    # Parts are in files or in memory; tensors besides the parts are in memory.
    parts = [part for call in calls for part in (*call._kept.values(), *call._fingerprints)]
    in_files = sum(part.nbytes for part in parts if not isinstance(part, GrowingTensor))
    in_memory = [part.memory for part in parts if isinstance(part, GrowingTensor)]

    # Add up the distinct views of each storage, up to the size of the storage.
    views: dict[int, set[tuple[int, int]]] = {}
    storages: dict[int, int] = {}
    for tensor in (*in_memory, *(tensor for call in calls for tensor in call._other_tensors())):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        views.setdefault(storage.data_ptr(), set()).add(
            (int(tensor.storage_offset()), tensor.nbytes)
        )
    return in_files + sum(
        min(total, sum(size for _, size in views[at])) for at, total in storages.items()
    )
