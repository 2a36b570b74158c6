"""Read the definition of a call from the arguments of an attention function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
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
    restrict_to_written_keys,
)
from ..mask_tensors import FunctionMask, MaskFunction, Translations, read_mask
from .axes import UnreadableCallError

ROWS = 256  # of a mask that a function gives, looked at together
SHORT = 2**20  # queries times keys: all of a shorter mask is looked at
PROBES = (-3.0, 0.0, 1.0, 20.0)  # scores that tell what a function of scores does to them


class FunctionReader:
    """Read the calls of one model."""

    def __init__(self) -> None:
        self._translations = {cut: Translations() for cut in (False, True)}
        self._last = Attention()
        self._over_caches: dict[tuple[int, int], Attention] = {}  # of the last definition
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
        queries: int | None = None,
    ) -> "ReadMask":
        """Translate a mask tensor, which all layers of a pass may share; `fold` gives it four axes,
        and the call has `batch` sequences.

        queries  how many a self-attention has: keys at the end that nobody sees are then the free
                 end of a cache
        """
        # With gradients an edit runs this definition, and learns by the bias.
        if given.requires_grad and torch.is_grad_enabled():
            return ReadMask(everyone, from_additive(fold(given)))
        found: ReadMask = self._translations[queries is not None].once(
            module, given, lambda: _read(fold(given.detach()), batch, queries)
        )
        return found

    def definition(
        self,
        scale: float | None,
        mask: Mask,
        bias: Bias | None = None,
        softcap: float | None = None,
        *,
        written: int | None = None,
        keys: int = 0,
    ) -> Attention:
        """Return a definition, the object of the layer before if it has the same parts. Of a cache
        of `keys` keys, the first `written` may be all that are written.

        Reuse one object, so that the equality test is an identity test.
        """
        last = self._last
        is_same = (scale, softcap) == (last.scale, last.softcap)
        if not is_same or mask is not last.mask or bias is not last.bias:
            self._last = Attention(scale=scale, softcap=softcap, bias=bias, mask=mask)
            self._over_caches.clear()
        if written is None:
            return self._last
        known = self._over_caches.get((written, keys))
        if known is None:
            known = restrict_to_written_keys(self._last, keys, torch.tensor(written))
            self._over_caches[written, keys] = known
        return known

    def score_edit(self, function: Any, ahead: int) -> tuple[float | None, Bias | None]:
        """Return what a `score_mod` of flex attention does: a softcap, or a bias that it adds.

        Raise an UnreadableCallError if it does anything else to a score.
        """
        known = self._score_edits.get(function)
        if known is None:
            known = self._score_edits[function] = _probe(function)
        softcap, adds = known
        return softcap, added_by(function, ahead) if adds else None


class ReadMask(NamedTuple):
    """What a mask tensor says."""

    mask: Mask
    bias: Bias | None = None
    written: int | None = None
    """How many keys of a cache are written; None if that are all."""


def _read(given: Tensor, batch: int, queries: int | None) -> ReadMask:
    """Translate a mask tensor of four axes; a causal one by its name, which kernels know."""
    written = None if queries is None else _written_keys(_seen(given), queries)
    if written is not None:
        given = given[..., :written]
    # Models repeat one mask for each sequence, head or query.
    for axis in range(3):
        first = given.narrow(axis, 0, min(1, given.shape[axis]))
        if given.shape[axis] > 1 and bool((given == first).all()):
            given = first
    # Padding is of each sequence.
    if given.shape[1:3] == (1, 1):
        given = given.expand(batch, -1, -1, -1)
    mask, bias = read_mask(given)
    rows, keys = given.shape[2:]
    if bias is None and given.shape[:2] == (1, 1) and 1 < rows <= keys:
        lower = torch.ones(rows, keys, dtype=torch.bool, device=given.device).tril(keys - rows)
        if torch.equal(_seen(given)[0, 0], lower):
            mask = causal
    # A single query that sees all that is written is the last of a text.
    if written is not None and queries == 1 and mask == everyone:
        mask = causal
    return ReadMask(mask, bias, written)


def _seen(given: Tensor) -> Tensor:
    return given if given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2


def _written_keys(seen: Tensor, queries: int) -> int | None:
    """Return the number of keys up to the last that some query sees; None if that are all, or if
    the keys behind it need not be the free end of a cache.
    """
    keys = seen.shape[-1]
    # What hides the same keys from several queries is padding.
    if queries >= keys or (queries > 1 and seen.shape[-2] == 1):
        return None
    if queries > 1 and bool((seen == seen[..., :1, :]).all()):
        return None
    visible = seen.flatten(0, -2).any(0).nonzero()
    written = int(visible[-1]) + 1 if len(visible) else keys
    return written if queries <= written < keys else None


def is_alike_for_queries(attention: Attention) -> bool:
    """Return whether a definition treats all queries alike: it hides keys, or adds to their scores,
    from every query.
    """
    is_mask = attention.mask == everyone or isinstance(attention.mask, Keep | Left | Lengths)
    return is_mask and all(
        isinstance(bias, FromAdditive) and bias.tensor.shape[-2] == 1 for bias in attention.biases
    )


def causal_of_arguments(queries: int, keys: int, *, across: bool | None) -> ReadMask:
    """Return the mask of `is_causal=True`: torch counts both from the first, and so hides the last
    keys where there are more keys than queries.
    """
    if queries > keys or (across and queries < keys):
        return ReadMask(function_mask(_at_or_before, queries - keys))
    return ReadMask(causal, written=queries if queries < keys else None)


def read_mask_function(
    function: MaskFunction,
    size: tuple[int, int],
    batch: int,
    heads: int,
    device: torch.device,
    *,
    across: bool | None,
) -> ReadMask:
    """Translate a `mask_mod` of flex attention; that of a short call by its name, if it is causal,
    so that steps continue their prompt.
    """
    queries, keys = size
    mask = function_mask(function, queries - keys)

    def seen(rows: range, columns: range) -> Tensor:
        at = Pairs.block(rows, columns, of=size, batch=batch, heads=heads, device=device)
        found = mask.sees(at)
        return found.expand(*found.shape[:2], len(rows), len(columns))

    written = None
    if (
        not across
        and queries < keys
        and not bool(seen(range(queries), range(keys - 1, keys)).any())
    ):
        blocks = [range(row, min(row + ROWS, queries)) for row in range(0, queries, ROWS)]
        visible = torch.cat([seen(rows, range(keys)).any(0).any(0) for rows in blocks])
        written = _written_keys(visible, queries)
    last = keys if written is None else written
    if not across and queries <= last and queries * last <= SHORT:
        lower = torch.ones(queries, last, dtype=torch.bool, device=device).tril(last - queries)
        if bool((seen(range(queries), range(last)) == lower).all()):
            return ReadMask(causal, written=written)
    return ReadMask(function_mask(function, queries - last), written=written)


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
