"""The weights of one attention, read head by head, with the gains of the norms folded in."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..anatomy import (
    Modules,
    OutputProjection,
    QueryKeyProjections,
    Rows,
    StreamSides,
    Vocabulary,
    find_output_projections,
    find_positions,
    find_query_key,
    find_sides,
    find_vocabulary,
    unknown_parts,
    why_unknown,
)
from ..attention import Attention
from ..layers import Attend, MultiHeadAttention
from .factors import Factors

BLOCK = 1024  # rows of a matrix of position scores that are formed at a time


class Biases(NamedTuple):
    """What is added to the queries, keys and values of a head, the bias of the norm included; None
    where nothing is.

    Attributes:
        query, key, value: (d_k,), (d_k,) and (d_v,).

    Example:
        >>> import telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> ts.circuits(ts.models.GPT(config))[0, 0].biases.value.shape
        torch.Size([4])
    """

    query: Float[Tensor, " d_k"] | None
    key: Float[Tensor, " d_k"] | None
    value: Float[Tensor, " d_v"] | None


class Tokens(NamedTuple):
    """The tokens that an attention reads and writes, or the sentence that says why there are
    none.
    """

    vocabulary: Vocabulary | None
    why_not: str


class Positions(NamedTuple):
    """The vectors of a model's positions, or the sentence that says why there are none."""

    table: Float[Tensor, "position d_model"] | None
    why_not: str


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Where the weights of one attention are. A head is read when somebody asks."""

    name: str
    modules: Modules
    attention: nn.Module
    projections: QueryKeyProjections
    sides: StreamSides
    output: OutputProjection

    @classmethod
    def of(cls, modules: Modules, name: str, attention: nn.Module) -> "LayerWeights":
        """Return the weights of an attention.

        Raise a ValueError if they are not known; its sentence continues the name.
        """
        # A model of Telescope names an attention after its `attend` module, inside of the layer.
        layer = attention
        if isinstance(attention, Attend):
            path = next(path for path, module in modules.items() if module is attention)
            layer = modules[path.rpartition(".")[0]]
        projections = find_query_key(layer)
        if projections is None:
            raise ValueError(f"has projections that are not known: {why_unknown(layer)}")
        # Gates and norms inside of an attention change what its heads write.
        part = "" if layer is not attention else unknown_parts(layer)
        if part:
            kind = type(layer).__name__
            raise ValueError(f"has {part}, and what that does to its heads is not known: {kind}")
        if projections.value is None:
            raise ValueError(f"has values that are not known: {type(layer).__name__}")
        sides = find_sides(modules, attention)
        try:
            output = find_output_projections(modules, {name: attention}, "ts.circuits")[name]
        except ValueError:
            kind = type(layer).__name__
            raise ValueError(f"has no output projection that is known: {kind}") from None
        return cls(name, modules, attention, projections, sides, output)

    @property
    def heads(self) -> int:
        return self.projections.heads

    @torch.no_grad()
    def qk(self, head: int) -> Factors:
        """Return W_qᵀ W_k of a head; raise a ValueError if the scores are no such product."""
        own = self.projections
        if own.not_bilinear:
            raise ValueError(
                f'the scores of "{self.name}" are no product of two projections: '
                f"{own.not_bilinear}; .ov is there"
            )
        left = _read(own.query, own.heads, head)
        right = _read(own.key, own.key_heads, self._key_head(head))
        query_norm = self.sides.query_norm
        key_norm = self.sides.key_norm
        return Factors(
            left if query_norm is None else query_norm.before(left),
            right if key_norm is None else key_norm.before(right),
        )

    @torch.no_grad()
    def ov(self, head: int) -> Factors:
        """Return W_O W_v of a head."""
        own = self.projections
        assert own.value is not None
        right = _read(own.value, own.key_heads, self._key_head(head))
        weight = self.output.read(own.value.parameter.dtype).detach()
        width = len(right)
        if weight.shape[1] != own.heads * width:
            raise ValueError(
                f'the output projection of "{self.name}" reads {weight.shape[1]:,} features, and '
                f"its {own.heads} heads write {own.heads * width:,}; a model whose heads are "
                "divided among processes is read where it is whole"
            )
        left = weight[:, head * width : (head + 1) * width].mT.to(right)
        key_norm = self.sides.key_norm
        output_norm = self.sides.output_norm
        return Factors(
            left if output_norm is None else output_norm.after(left),
            right if key_norm is None else key_norm.before(right),
        )

    @torch.no_grad()
    def biases(self, head: int) -> Biases:
        """Return what is added to queries, keys and values whatever the stream holds."""
        own = self.projections
        key_head = self._key_head(head)
        key_norm = self.sides.key_norm
        query_norm = self.sides.query_norm
        added = []
        for weight, bias, count, number, norm in (
            (own.query, own.query_bias, own.heads, head, query_norm),
            (own.key, own.key_bias, own.key_heads, key_head, key_norm),
            (own.value, own.value_bias, own.key_heads, key_head, key_norm),
        ):
            assert weight is not None
            parts = [] if bias is None else [_read(bias, count, number)]
            if norm is not None and norm.bias is not None:
                rows = _read(weight, count, number)
                parts.append(rows @ norm.bias.to(rows))
            added.append(torch.stack(parts).sum(0) if parts else None)
        return Biases(*added)

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens that the attention reads and writes, or why there are none."""
        try:
            return Tokens(find_vocabulary(self.modules, self.attention, self.sides), "")
        except ValueError as problem:
            return Tokens(None, str(problem))

    @cached_property
    def positions(self) -> Positions:
        """The vectors of the positions, or why these alone tell nothing of the heads."""
        own = self.projections
        if own.not_bilinear:
            why_not = f"its scores are no product of two projections: {own.not_bilinear}"
            return Positions(None, why_not)
        definition = self._definition
        if definition is not None and definition.bias is not None:
            return Positions(None, "a bias by position is added to its scores")
        try:
            table = find_positions(self.modules, self.attention, self.sides)
        except ValueError as problem:
            return Positions(None, str(problem))
        return Positions(table, "")

    @torch.no_grad()
    def previous_token(self, head: int) -> float:
        """Return the share of the positions whose largest score, by positions alone, is that of the
        position before; where several are equal, none is the largest.
        """
        table = self.positions.table
        assert table is not None
        factors = self.qk(head)
        table = table.to(factors.left)
        queries = table @ factors.left.mT
        keys = table @ factors.right.mT
        # A bias of the queries prefers some keys over others; a bias of the keys does not.
        bias = self.biases(head).query
        if bias is not None:
            queries = queries + bias

        # Position 0 has none before it.
        count = len(table)
        hits = 0
        for start in range(1, count, BLOCK):
            places = range(start, min(start + BLOCK, count))
            scores = queries[places.start : places.stop] @ keys.mT
            seen = self._visible(places, count, head).to(scores.device)
            # A tie is no preference: the score of the position before exceeds all others.
            before = torch.arange(start - 1, places.stop - 1, device=scores.device)[:, None]
            own = scores.gather(-1, before)[:, 0]
            others = scores.masked_fill(~seen, -torch.inf).scatter(-1, before, -torch.inf)
            hits += int((own > others.amax(-1)).sum())
        return hits / max(count - 1, 1)

    def _visible(self, places: range, count: int, head: int) -> Bool[Tensor, "query key"]:
        """Return which positions the queries at these places see."""
        definition = self._definition
        if definition is not None:
            block = definition.mask.block(places, range(count), of=(count, count), heads=self.heads)
            return block[0, head % block.shape[1]]
        keys = torch.arange(count)
        queries = torch.arange(places.start, places.stop)[:, None]
        # BERT and an encoder of BART see both sides.
        is_causal = getattr(self.attention, "is_causal", True)
        return keys <= queries if is_causal else keys >= 0 * queries

    @property
    def _definition(self) -> Attention | None:
        """The definition of a layer of Telescope; None of other layers."""
        if not isinstance(self.attention, Attend):
            return None
        path = next(path for path, module in self.modules.items() if module is self.attention)
        layer = self.modules[path.rpartition(".")[0]]
        assert isinstance(layer, MultiHeadAttention)
        return layer.attention

    def _key_head(self, head: int) -> int:
        return head * self.projections.key_heads // self.projections.heads


def _read(rows: Rows, count: int, head: int) -> Tensor:
    """Return the rows of one of `count` heads, with the rows as first axis, in float64."""
    width = len(rows.numbers) // count
    own = replace(rows, numbers=rows.numbers[head * width : (head + 1) * width]).values()
    own = own.mT if rows.axis == 1 else own
    # A device of Apple has no float64.
    device = "cpu" if own.device.type == "mps" else own.device
    return own.to(device, torch.float64)
