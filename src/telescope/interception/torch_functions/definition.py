"""Read the definition of a call from the arguments of an attention function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...attention import (
    Attention,
    Bias,
    FromAdditive,
    Keep,
    Left,
    Lengths,
    Mask,
    Pairs,
    causal,
    everyone,
    from_additive,
)
from ..mask_tensors import FunctionMask, MaskFunction, Translations, read_mask
from .axes import UnreadableCallError

PROBES = (-3.0, 0.0, 1.0, 20.0)  # scores that tell what a function of scores does to them


class FunctionReader:
    """Read the calls of one model."""

    def __init__(self) -> None:
        self._translations = Translations()
        self._last = Attention()
        self._across: dict[str, bool] = {}  # by the name of the attention
        self._score_edits: WeakKeyDictionary[Any, tuple[float | None, bool]] = WeakKeyDictionary()

    def is_across(self, name: str, queries: int, keys: int, *, is_plain: bool) -> bool:
        """Return whether queries and keys of a call come from two sequences, by the name of the
        attention and by the shape of a call that hides nothing, `is_plain`.

        A single query does not tell a step over a cache from one that reads another sequence: it is
        what the attention's longer calls were.
        """
        if "cross" in name.lower():
            return True
        if queries > 1 or queries == keys:
            # Of one sequence, there are at least as many keys as queries.
            self._across[name] = queries > keys or (is_plain and queries != keys)
        return self._across.get(name, False)

    def mask_tensor(
        self,
        module: nn.Module,
        given: Tensor,
        fold: Callable[[Tensor], Tensor],
        *,
        batch: int,
    ) -> tuple[Mask, Bias | None]:
        """Translate a mask tensor, which all layers of a pass may share; `fold` gives it four axes,
        and the call has `batch` sequences.
        """
        # With gradients an edit runs this definition, and learns by the bias.
        if given.requires_grad and torch.is_grad_enabled():
            return everyone, from_additive(fold(given))
        found: tuple[Mask, Bias | None] = self._translations.once(
            module, given, lambda: _read(fold(given.detach()), batch)
        )
        return found

    def definition(
        self,
        scale: float | None,
        mask: Mask,
        bias: Bias | None = None,
        softcap: float | None = None,
    ) -> Attention:
        """Return a definition, the object of the layer before if it has the same parts.

        Reuse one object, so that the equality test is an identity test.
        """
        last = self._last
        is_same = (scale, softcap) == (last.scale, last.softcap)
        if not is_same or mask is not last.mask or bias is not last.bias:
            self._last = Attention(scale=scale, softcap=softcap, bias=bias, mask=mask)
        return self._last

    def score_edit(self, function: Any, ahead: int) -> tuple[float | None, Bias | None]:
        """Return what a `score_mod` of flex attention does: a softcap, or a bias that it adds.

        Raise an UnreadableCallError if it does anything else to a score.
        """
        known = self._score_edits.get(function)
        if known is None:
            known = self._score_edits[function] = _probe(function)
        softcap, adds = known
        return softcap, added_by(function, ahead) if adds else None


def _read(given: Tensor, batch: int) -> tuple[Mask, Bias | None]:
    """Translate a mask tensor of four axes; a causal one by its name, which kernels know."""
    # Models repeat one mask for each sequence, head or query.
    for axis in range(3):
        first = given.narrow(axis, 0, min(1, given.shape[axis]))
        if given.shape[axis] > 1 and bool((given == first).all()):
            given = first
    # Padding is of each sequence.
    if given.shape[1:3] == (1, 1):
        given = given.expand(batch, -1, -1, -1)
    mask, bias = read_mask(given)
    queries, keys = given.shape[2:]
    if bias is None and given.shape[:2] == (1, 1) and 1 < queries <= keys:
        written = torch.ones(queries, keys, dtype=torch.bool, device=given.device)
        seen = given if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
        if torch.equal(seen[0, 0], written.tril(keys - queries)):
            return causal, None
    return mask, bias


def is_alike_for_queries(attention: Attention) -> bool:
    """Return whether a definition treats all queries alike: it hides keys, or adds to their scores,
    from every query.
    """
    is_mask = attention.mask == everyone or isinstance(attention.mask, Keep | Left | Lengths)
    return is_mask and all(
        isinstance(bias, FromAdditive) and bias.tensor.shape[-2] == 1 for bias in attention.biases
    )


def causal_of_arguments(queries: int, keys: int) -> Mask:
    """Return the mask of `is_causal=True`: torch counts both from the first, and so hides the last
    keys where there are more keys than queries.
    """
    return causal if queries == keys else function_mask(_at_or_before, queries - keys)


@lru_cache(maxsize=64)
def function_mask(function: MaskFunction, ahead: int) -> FunctionMask:
    """Return one object for one mask, so that layers share their definition."""
    return FunctionMask(function, ahead)


def _at_or_before(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


@dataclass(frozen=True, eq=False)
class AddedByFunction(Bias):
    """A bias given by a `score_mod` of flex attention that adds to the score.

    The function's query positions are `ahead` of Telescope's, where the last query stands at the
    last key.
    """

    function: Callable[..., Tensor]
    ahead: int

    def __call__(self, at: Pairs) -> Tensor:
        zero = torch.zeros((), device=at.key.device)
        added = self.function(zero, at.batch, at.head, at.query + self.ahead, at.key)
        return added.reshape((1,) * (4 - added.ndim) + added.shape)

    def __repr__(self) -> str:
        return f"function({getattr(self.function, '__name__', 'score_mod')})"


@lru_cache(maxsize=64)
def added_by(function: Callable[..., Tensor], ahead: int) -> AddedByFunction:
    """Return one object for one bias, so that layers share their definition."""
    return AddedByFunction(function, ahead)


def _probe(function: Any) -> tuple[float | None, bool]:
    """Return the softcap of a `score_mod`, None if it has none, and whether it adds to the score.

    It is run on a few scores at a few positions.
    """
    places = torch.tensor([0, 1, 3])
    zero = torch.zeros((), dtype=torch.long)
    pairs = [(query, key) for query in places for key in places]

    def run(score: float, query: Tensor, key: Tensor) -> float:
        one = torch.tensor(score, dtype=torch.float64)
        return float(function(one, zero, zero, query, key))

    try:
        rows = [[run(score, *pair) for score in PROBES] for pair in pairs]
        largest = [run(1e9, *pair) for pair in pairs]
    except Exception as problem:
        raise UnreadableCallError(
            f"its score_mod cannot be run on single scores ({type(problem).__name__}: {problem})"
        ) from problem
    found = torch.tensor(rows, dtype=torch.float64)
    probes = torch.tensor(PROBES, dtype=torch.float64)
    # A hidden pair has minus infinity whatever its score.
    added = (found - probes)[found.isfinite().all(1)]
    if torch.allclose(added, added[:, :1].expand_as(added), rtol=0, atol=1e-4):
        return None, True
    cap = largest[0]
    if cap > 0 and torch.allclose(found, (cap * torch.tanh(probes / cap)).expand_as(found)):
        return cap, False
    raise UnreadableCallError(
        "its score_mod neither adds to a score nor caps it, which is all that a definition can say"
    )
