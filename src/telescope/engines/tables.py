"""Masks and biases as a fused kernel takes them: one table that is added to the scores.

Every layer and step needs the same tables of positions and small tensors again. Those are cached under their content,
not under the object that holds it, so that writing to a tensor never leaves a stale table behind.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..attention import Attention, Bias, Pairs, everyone
from ..attention.biases import Alibi, Relative
from ..attention.mask import Both, Either, Everyone, Opposite
from ..attention.masks import Causal, Left, Lengths, Prefix, Window
from ..attention.pairs import traced
from ..attention.restrict import WrittenMask
from ..attention.values import Value, contents, has_numbers, readable

LARGEST = 2**21  # numbers of a table that is remembered, at most
BYTES = 2**25  # of all that are remembered
NEAR = 8.0  # a row whose largest number is beyond that is shifted to zero, which softmax does not feel
FAR = 2.0**24  # beyond that it is left alone: float32 has lost the scores anyhow, and all keys of the row are alike
FEW = 1024  # numbers of a tensor that is read to know it again
PURE = (Everyone, Causal, Window, Prefix, Lengths, Left, Both, Either, Opposite, Alibi, Relative)


class ScoreTable(NamedTuple):
    """What is added to the scores of a block, or a bool mask; and what the kernel must not be trusted with.

    blind   queries that see nothing. They are shown everything, and zeroed afterwards: kernels differ in what they make
            of an empty row and of its gradient.
    broken  whether there is a NaN or an infinity, of which kernels make this or that
    far     whether a row's largest number is beyond `FAR`: the kernel, which keeps that number and the logarithm of the
            sum as one, has lost the sum when it computes gradients
    """

    added: Shaped[Tensor, "#batch #heads #query #key"] | None
    blind: Bool[Tensor, "#batch #heads #query 1"] | None
    broken: bool = False
    far: bool = False


def table(
    queries: Float[Tensor, "batch heads some d_k"],
    rows: int | range,
    columns: int | range,
    of: tuple[int, int],
    attention: Attention,
) -> ScoreTable:
    """Return the table of these rows and columns. Axes on which nothing depends have size one."""
    if attention.mask == everyone and attention.bias is None:
        return ScoreTable(None, None)
    if torch.compiler.is_compiling() or not has_numbers(queries):
        return _new(queries, rows, columns, of, attention)
    asked = (*queries.shape[:2], rows, columns, of, queries.dtype, queries.device)
    if isinstance(attention.mask, WrittenMask):  # of a cache of fixed size: made for one step, it serves all layers
        known = attention.mask.known
        if asked not in known or known[asked][0] is not attention.bias:
            known[asked] = attention.bias, _added(_new(queries, rows, columns, of, attention), queries)
        made: ScoreTable = known[asked][1]
        return made
    if queries.device.type != "cpu" or traced():
        return _new(queries, rows, columns, of, attention)
    name = _name(attention.mask), _name(attention.bias)
    if None in name:
        return _new(queries, rows, columns, of, attention)
    found = _remembered.get((name, asked))
    if found is None:
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be saved for a gradient
            found = _remembered.put((name, asked), _added(_new(queries, rows, columns, of, attention), queries))
    return found


def _new(
    queries: Tensor, rows: int | range, columns: int | range, of: tuple[int, int], attention: Attention
) -> ScoreTable:
    batch, heads = queries.shape[:2]
    mask, bias = attention.mask, attention.bias
    if bias is None and mask.keys_alone:
        rows = range(1)  # one row does for all
    at = Pairs.block(rows, columns, of=of, batch=batch, heads=heads, device=queries.device)
    if bias is None:
        seen = mask.sees(at)
        sighted = seen.any(-1, keepdim=True)
        if readable(sighted) and bool(sighted.all()):
            return ScoreTable(seen, None)
        return ScoreTable(seen | ~sighted, ~sighted)
    assert isinstance(bias, Bias)
    added = bias.added(at, torch.float32 if queries.element_size() < 4 else queries.dtype)  # halves round too much
    if mask != everyone:
        added = torch.where(mask.sees(at), added, -torch.inf)
    if readable(added) and mask == everyone and _within(added, NEAR):
        return ScoreTable(added, None)
    most = added.detach().amax(-1, keepdim=True)
    if readable(most) and _within(most, NEAR):
        return ScoreTable(added, None)
    blind, shift = most == -torch.inf, torch.where(most.abs() <= FAR, most, 0.0)
    added = (added - shift).masked_fill(blind, 0.0)
    if not readable(most):
        return ScoreTable(added, blind)
    far = not bool((blind | (most.abs() <= FAR)).all())
    return ScoreTable(added, blind if bool(blind.any()) else None, broken=not bool((most < torch.inf).all()), far=far)


def _within(numbers: Tensor, bound: float) -> bool:
    """Whether all numbers are nearer to zero than `bound`; a NaN is not."""
    low, high = numbers.detach().aminmax()
    return -bound < low.item() and high.item() < bound


def _added(made: ScoreTable, queries: Tensor) -> ScoreTable:
    """The same with a mask as numbers, which the kernel otherwise makes of it in every call."""
    if made.added is None or made.added.dtype != torch.bool:
        return made
    zeros = torch.zeros_like(made.added, dtype=queries.dtype)
    return made._replace(added=zeros.masked_fill(~made.added, -torch.inf))


def _name(value: Any) -> Any:
    """Return what a mask or bias says as something that can be looked up, or None where that is not known for sure."""
    if value is None:
        return "none"
    if type(value) not in PURE:
        return None
    parts = [type(value), *(_part(content) for content in contents(value))]
    return None if None in parts else tuple(parts)


def _part(content: Any) -> Any:
    if isinstance(content, Value):
        return _name(content)
    if isinstance(content, tuple):
        parts = tuple(map(_name, content))
        return None if None in parts else parts
    if not isinstance(content, Tensor):
        return content
    plain = content.device.type == "cpu" and not content.requires_grad and has_numbers(content)
    return (content.dtype, content.shape, *content.flatten().tolist()) if plain and content.numel() <= FEW else None


class _Remembered:
    """The tables used last, as many as fit into `BYTES`. Threads may ask at once."""

    def __init__(self) -> None:
        self.tables: OrderedDict[Any, tuple[ScoreTable, int]] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, asked: Any) -> ScoreTable | None:
        with self.lock:
            found = self.tables.get(asked)
            if found is None:
                return None
            made, version = found
            if made.added is not None and made.added._version != version:  # the table was written to
                self._drop(asked)
                return None
            self.tables.move_to_end(asked)
            return made

    def put(self, asked: Any, made: ScoreTable) -> ScoreTable:
        added = made.added
        if added is None or type(added) is not Tensor or added.numel() > LARGEST:
            return made
        with self.lock:
            if asked not in self.tables:
                self.tables[asked] = made, added._version
                self.bytes += added.untyped_storage().nbytes()
            while self.bytes > BYTES:
                self._drop(next(iter(self.tables)))
        return made

    def _drop(self, asked: Any) -> None:
        made, _ = self.tables.pop(asked)
        assert made.added is not None
        self.bytes -= made.added.untyped_storage().nbytes()


_remembered = _Remembered()
