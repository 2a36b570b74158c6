"""Check that the definition read from a call computes what the model computed, by comparing rows of
the output.

A model may do something to its attention that its arguments do not show. Then the recording would
hold numbers that are not the model's, so the block ends with an error instead.
"""

from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Both
from ..engines import repeat_key_heads
from ..recording import AttentionCall
from ..surveys import masked_rows

_verified: "WeakKeyDictionary[nn.Module, set[Any]]" = WeakKeyDictionary()
"""The kinds of call that were verified for each module: one check of each is enough. Weak, so that
a model that was watched can be freed: tests/properties/test_recording_convention.py,
test_a_watched_model_can_be_freed.
"""
_lock = Lock()  # held while `_verified` changes


class OutputChecks:
    """The checks of one watch: computed while the model runs, read at the end, so that the host
    waits for no GPU.
    """

    def __init__(self) -> None:
        self._pending: list[PendingCheck] = []
        # The modules and kinds of call that need no further check.
        self._added: set[tuple[Any, ...]] = set()

    def has(self, module: nn.Module, kind: Any) -> bool:
        """Return whether a call of this kind needs no further check."""
        return (id(module), kind) in self._added or kind in _verified.get(module, ())

    def add(
        self, name: str, module: nn.Module, call: AttentionCall, output: Tensor, implementation: str
    ) -> Any:
        """Compare some rows of the output with the definition, unless a call of this kind was
        compared before.

        Calls with dropout are not compared: their output is random. Return the kind of the call.
        """
        kind = _kind_of(call, implementation)
        if call.dropout or 0 in call.queries.shape or self.has(module, kind):
            return kind
        # Later calls of this kind are not compared; the result is read when the block ends.
        self._added.add((id(module), kind))
        result = _compare(call, output, implementation == "eager")
        self._pending.append(PendingCheck(name, module, kind, str(call.attention), result))
        return kind

    def is_known(self, module: nn.Module, call: AttentionCall, implementation: str) -> bool:
        """Return whether a call would not be compared: one of its kind was, or its output is random
        or empty.
        """
        known = self.has(module, _kind_of(call, implementation))
        return known or call.dropout > 0.0 or 0 in call.queries.shape

    def is_verified(self, module: nn.Module) -> bool:
        """Return whether some call of a module was compared, and all comparisons were read."""
        return not self._pending and bool(_verified.get(module))

    def verify(self) -> None:
        """Raise a ValueError that names the first attention whose output differs from its
        definition.
        """
        if not self._pending:
            return
        # Copy each result by itself: layers may be on different devices.
        pending = self._pending
        self._pending = []
        results = torch.stack([check.result.cpu() for check in pending]).tolist()
        for (name, module, kind, definition, _), (error, finite) in zip(
            pending, results, strict=True
        ):
            # Written with `not`, so that NaN is an error, too.
            if not error <= 1.0:
                if not finite:
                    raise ValueError(
                        f'the activations of "{name}" are NaN or infinite: its queries, keys or '
                        "values hold such "
                        "numbers, and so does what was recorded of it; look at what runs before it"
                    )
                raise ValueError(
                    f'"{name}" computes something other than {definition}, which its arguments '
                    "describe; what was "
                    f"recorded of it is not its own (its output is off by {error:.2g} times what "
                    "rounding explains)"
                )
            with _lock:
                _verified.setdefault(module, set()).add(kind)


def _kind_of(call: AttentionCall, implementation: str) -> tuple[object, ...]:
    """Return everything that tells calls apart of which one comparison is enough."""
    mask = call.attention.mask
    one = call.queries.shape[-2] == 1
    masks = (type(mask),) if type(mask) is not Both else tuple(map(type, mask.masks))
    return implementation, one, call.evicted > 0, masks, call.queries.dtype


class PendingCheck(NamedTuple):
    """A comparison whose result has not been read."""

    name: str
    module: nn.Module
    kind: Any
    definition: str
    result: Float[Tensor, " 2"]


def _compare(call: AttentionCall, output: Tensor, rounds_scores: bool) -> Float[Tensor, " 2"]:
    """Return the largest difference in units of what rounding explains, so at most 1 if the
    definition is right, and 1 if queries, keys and values are finite, else 0.

    Compared are the first, the middle and the last query of the first and the last sequence.
    """
    batch, heads, queries, _ = call.queries.shape
    keys = call.keys.shape[-2]
    rows = torch.tensor(sorted({0, queries // 2, queries - 1}), device=call.queries.device)
    sequences = range(0, batch, max(1, batch - 1))
    attention = call.attention_over_present_keys

    # Compute these rows by the definition, from scores in float32 or float64.
    scores = masked_rows(
        call.queries, call.keys, attention, rows, range(keys), sequences, range(heads)
    )
    # Implementations differ in rows that see nothing.
    sees = (scores != -torch.inf).any(-1, keepdim=True)
    chosen = slice(sequences.start, sequences.stop, sequences.step)
    values = repeat_key_heads(call.values[chosen], call.queries[chosen]).to(scores.dtype)
    expected = attention.weights(scores) @ values
    actual = output[chosen][:, rows].transpose(1, 2).to(scores.dtype)
    # Eager attention rounds the scores, by more the larger they are.
    largest = (
        scores.masked_fill(scores == -torch.inf, 0.0).abs().amax()
        if rounds_scores
        else scores.new_zeros(())
    )
    # The slack grows with the rounding of the dtype and with the largest value.
    slack = (1e-3 + (8.0 + largest) * torch.finfo(call.queries.dtype).eps) * values.abs().amax()
    error = (expected - actual).abs().where(sees, 0.0).amax() / slack.clamp(min=1e-30)
    # Tell activations that are NaN or infinite from a definition that is wrong.
    finite = torch.stack(
        [part.isfinite().all() for part in (call.queries, call.keys, call.values)]
    ).all()
    return torch.stack([error, finite.to(error.dtype)])
