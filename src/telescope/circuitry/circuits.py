"""`ts.circuits`: what each head of a model is for, from its weights alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import nan
from typing import Any

from torch import nn

from ..files import Columns, Names, frame
from ..interception.found import find_attentions
from ..measures import Head
from ..recording import Layers, list_names, select_layers
from ..traces import PlainTable, PrintedTable, render_text
from ..words import check_index, hint
from .factors import Composition, Factors, compose
from .layer_weights import Biases, LayerWeights
from .scores import COLUMNS, HeadKey, Scores

Key = tuple[Any, Any]
"""A layer, as `layers` of `ts.watch` names one, and the number of a head."""


class HeadCircuits:
    """What one head is for, from its weights alone. Returned by `ts.circuits(model)[layer, head]`.

    A number that has no meaning for a model is None, and `why_not` has the sentence that says why.

    Example:
        >>> import telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config)
        >>> head = ts.circuits(model)[0, 1]
        >>> head.layer, head.number, head.qk.singular_values.shape
        ('blocks.0.self', 1, torch.Size([4]))
        >>> head.ov.matrix().shape, head.biases.query.shape
        (torch.Size([8, 8]), torch.Size([4]))
        >>> -1 <= head.copying <= 1, 0 <= head.previous_token <= 1
        (True, True)
        >>> head.induction is None or "induction" not in head.why_not
        True
    """

    def __init__(self, scores: Scores, layer: str, number: int) -> None:
        self._scores = scores
        self.layer = layer
        self.number = number

    @cached_property
    def qk(self) -> Factors:
        """W_qᵀ W_k: xᵀ W_qᵀ W_k y is the score of a query at x with a key at y, before the scale
        1/√d_k and before a softcap. With rotary positions, that of a query and a key at the same
        place.

        Raises:
            ValueError: if the scores are no such product: where queries or keys are normalised.
        """
        return self._weights.qk(self.number)

    @cached_property
    def ov(self) -> Factors:
        """W_O W_v: what a key at y adds to the stream is W_O W_v y, for each unit of weight."""
        return self._weights.ov(self.number)

    @property
    def biases(self) -> Biases:
        """What is added to queries, keys and values whatever the stream holds: the biases of the
        projections, and those of the norm as they come through them.
        """
        return self._weights.biases(self.number)

    @property
    def copying(self) -> float | None:
        """Σ Re λ / Σ |λ| of W_U W_O W_v W_E, from -1 to 1: a token that the head looks at becomes
        likelier (above 0) or less likely (below 0).
        """
        return self._scores.copying([self._key])[0]

    @property
    def previous_token(self) -> float | None:
        """The share of the positions whose largest score is that of the position before, by the
        positions alone that are added to the embeddings.
        """
        return self._scores.previous_token(self._key)

    @property
    def induction(self) -> float | None:
        """How far the head is the second of an induction circuit, from 0 to 1.

        An induction head looks for the token after an earlier occurrence of its own token, and
        copies it. From weights that is the maximum over previous-token heads p of
        previous_token(p) · composition(p, head, "k").share · matching(p, head), times copying;
        negative factors count as 0. Copying follows the straight way from the head to the
        unembedding: a head whose output later layers turn around is not found.
        """
        return self._scores.induction(self._key)

    @property
    def why_not(self) -> dict[str, str]:
        """Why a number is None, by its name."""
        return self._scores.why_not(self._key)

    @property
    def _weights(self) -> LayerWeights:
        return self._scores.layers[self.layer]

    @property
    def _key(self) -> HeadKey:
        return self.layer, self.number

    def __repr__(self) -> str:
        return f"{self.layer}, head {self.number}"


class Circuits(PrintedTable, Mapping[Key, HeadCircuits]):
    """The circuits of every head of a model: circuits[layer, head]. Returned by `ts.circuits`.

    Printed, it is a table; `rows` and `table()` have its numbers:

    - `copying`: Σ Re λ / Σ |λ| of W_U W_O W_v W_E (Elhage et al. 2021), from -1 to 1.
    - `previous_token`: the share of the positions that prefer the position before, by the positions
      alone that are added to the embeddings.
    - `induction`: how far the head is the second of an induction circuit; see
      `HeadCircuits.induction`.
    - `qk_norm`, `ov_norm`: the Frobenius norms of W_qᵀ W_k and of W_O W_v.

    A number that has no meaning for a model is NaN, and the sentence below the table says why.

    Example:
        >>> import telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config)
        >>> circuits = ts.circuits(model)
        >>> len(circuits), [*circuits.rows[0]][:3]
        (4, ['layer', 'head', 'copying'])
        >>> # 1 / √d_model
        >>> round(circuits.composition((0, 1), (1, 0), "k").by_chance, 3)
        0.354
        >>> -1 <= circuits.matching((0, 1), (1, 0)) <= 1
        True
        >>> len(circuits.sort("copying").table())
        4
    """

    def __init__(
        self,
        scores: Scores,
        left_out: Mapping[str, str],
        order: Sequence[HeadKey] | None = None,
    ) -> None:
        self._scores = scores
        self.left_out = dict(left_out)
        """Why the weights of an attention are not known, by its name."""
        layers = scores.layers.items()
        every = [(name, head) for name, own in layers for head in range(own.heads)]
        self._order = every if order is None else list(order)

    # ------------------------------------------------------------------------------------ a mapping

    def __getitem__(self, key: Key) -> HeadCircuits:
        """Return the circuits of one head: a layer by name, short name or number, and the number of
        the head; -1 is the last.
        """
        return HeadCircuits(self._scores, *self._find(key))

    def __iter__(self) -> Iterator[HeadKey]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        """Return whether circuits[key] works."""
        try:
            self._find(key)
        except (TypeError, ValueError):
            return False
        return True

    def _find(self, key: Any) -> HeadKey:
        """Return the name of the layer and the number of the head that a key means."""
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(
                f"{key!r} is no head; it takes a layer and the number of a head, such as "
                "circuits[5, 1]"
            )
        layer, head = key
        if layer in self.left_out:
            raise ValueError(f'"{layer}" {self.left_out[layer]}')
        layers = self._scores.layers
        names = select_layers(list(layers), layer, argument="layer")
        if len(names) > 1:
            raise ValueError(
                f"layer={layer!r} is {len(names)} attentions: {list_names(names)}; name one"
            )
        name = names[0]
        return name, check_index("head", head, layers[name].heads, f'"{name}"')

    # ------------------------------------------------------------------------------------ two heads

    def composition(self, one: Key, other: Key, by: str) -> Composition:
        """Return how much of what the head `one` writes is read by a later head, `other`.

        Its ratio is ‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms (Elhage et al. 2021), where B is W_O W_v
        of `one` and A the matrix of `other` that reads it. The mean over all rotations of the
        stream between the two, `by_chance`, is 1/√d_model; no rotation exceeds `at_most`.

        Args:
            one: the earlier head, as a layer and a number.
            other: the later head.
            by: what reads: "q" the queries of `other`, "k" its keys, "v" its values.

        Raises:
            ValueError: if `other` does not come after `one`, or reads another stream.

        Example:
            >>> import telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
            >>> circuits = ts.circuits(ts.models.GPT(config))
            >>> found = circuits.composition((0, 0), (1, 1), by="v")
            >>> 0 < found.ratio <= found.at_most <= 1
            True
        """
        if by not in ("q", "k", "v"):
            raise ValueError(f'by="{by}" is not what a head reads with; {hint(str(by), "qkv")}')
        earlier = self._find(one)
        later = self._find(other)
        self._scores.check_order(earlier, later, by)
        reading = self._scores.layers[later[0]]
        writing = self._scores.layers[earlier[0]].ov(earlier[1])
        if by == "v":
            return compose(reading.ov(later[1]), writing)
        qk = reading.qk(later[1])
        return compose(qk if by == "k" else qk.transposed, writing)

    def matching(self, one: Key, other: Key) -> float:
        """Return how far a later head, `other`, prefers keys before which its own token stands,
        where `one` copies the token before each key: from -1 to 1. It has no size: whether the
        later head reads the earlier one at all is told by `composition`.

        It is Σ Re λ / Σ |λ| of W_Eᵀ W_qᵀ W_k W_O W_v W_E, with W_O W_v of `one`: the second half of
        the test for induction heads of Elhage et al. (2021); `copying` is the first.

        Args:
            one: (layer, number) of the earlier head.
            other: (layer, number) of the later head.
        """
        earlier = self._find(one)
        later = self._find(other)
        self._scores.check_order(earlier, later, "k")
        return self._scores.match(earlier, later)

    # ------------------------------------------------------------------------------------- a table

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row, as a mapping from the names of the columns; NaN where a number has no
        meaning.
        """
        columns = self._columns()
        return [{name: column[i] for name, column in columns.items()} for i in range(len(self))]

    def sort(self, column: str, *, descending: bool = True) -> "Circuits":
        """Return the table in the order of a column, NaN last.

        Args:
            column: such as "copying".
            descending: whether the largest number comes first.
        """
        columns = self._columns()
        if column not in columns:
            raise ValueError(f'there is no column "{column}"; {hint(str(column), columns)}')
        values = columns[column]
        places = range(len(self))
        known = [i for i in places if values[i] == values[i]]
        known.sort(key=values.__getitem__, reverse=descending)
        order = [*known, *(i for i in places if values[i] != values[i])]
        chosen = [self._order[i] for i in order]
        return Circuits(self._scores, self.left_out, chosen)

    def table(self, *, library: str = "pandas") -> Any:
        """Return the table as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        columns: Columns = self._columns()
        return frame({**columns, "layer": Names.of(columns["layer"])}, library)

    def _columns(self) -> dict[str, list[Any]]:
        """Return the columns; scores are computed once."""
        for key in self._order:
            own = self._scores.layers[key[0]]
            norms = self._scores.known["qk_norm"], self._scores.known["ov_norm"]
            if key not in norms[1]:
                norms[0][key] = None if own.projections.not_bilinear else own.qk(key[1]).norm
                norms[1][key] = own.ov(key[1]).norm
            self._scores.previous_token(key)
        self._scores.copying(self._order)
        induction = self._scores.known["induction"]
        for key in self._order:
            if key not in induction:
                induction[key] = self._scores.induction(key)
        columns: dict[str, list[Any]] = {
            "layer": [layer for layer, _ in self._order],
            "head": [head for _, head in self._order],
        }
        for name in COLUMNS:
            own_scores = [self._scores.known[name][key] for key in self._order]
            columns[name] = [nan if one is None else one for one in own_scores]
        return columns

    def __rich__(self) -> PlainTable:
        # Each sentence stands once below the table.
        reasons = {
            f"no {name}: {sentence}": None
            for layer in dict.fromkeys(layer for layer, _ in self._order)
            for name, sentence in self._scores.why_not((layer, 0)).items()
        }
        unread = [f"not read: {name} {reason}" for name, reason in self.left_out.items()]
        caption = "\n".join([*reasons, *unread]) or None
        table = PlainTable(box=None, pad_edge=False, caption=caption, caption_justify="left")
        for name in ("layer", "head", *COLUMNS):
            side: Any = "left" if name == "layer" else "right"
            table.add_column(name.replace("_", " "), justify=side, no_wrap=True)
        for row in self.rows:
            cells = ["" if row[name] != row[name] else f"{row[name]:.2f}" for name in COLUMNS]
            table.add_row(row["layer"], str(row["head"]), *cells)
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__(), width=120)


def circuits(
    model: nn.Module, *, layers: Layers = None, previous: Iterable[Head | Key] | None = None
) -> Circuits:
    """Return what each head of a model is for, from its weights alone: no text is read.

    A head is two matrices of the residual stream (Elhage et al. 2021): W_qᵀ W_k, which scores a
    query against a key, and W_O W_v, which is what a key adds to the stream. Both are kept as thin
    factors. What stands between the stream and the head is folded in: the gain of the norm before
    the attention, the centring of a LayerNorm, and the gain of a norm after W_O, as in Gemma 2. The
    rest of a norm divides by the size of the stream, one positive number for each token. Biases are
    kept apart. In cross-attention the keys and values read the encoder's stream. Weights are read
    when a number is asked for, and scores are kept: after more training, call this again.

    Args:
        model: a model of Telescope, or a decoder, encoder or encoder-decoder of transformers whose
            projections are known: with q_proj, k_proj and v_proj, with query, key and value, T5, or
            with the one projection of GPT-2, GPT-NeoX, Phi-3 or ModernBERT.
        layers: the attentions to read, as in `ts.watch`; None is all.
        previous: the heads that attend to the previous token, for `induction` where the weights do
            not tell, as with rotary positions: recording.heads().where(previous=0.4), whose shares
            count, or pairs of a layer and a number, which count as 1. None takes the heads whose
            `previous_token` is at least 0.4.

    Returns:
        The table: `circuits[layer, head]` is one head.

    Raises:
        ValueError: if the model has no attention whose weights are known, with the reason.

    Example:
        >>> import telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config)
        >>> head = ts.circuits(model)[-1, 0]
        >>> # What the head writes, the strongest direction first
        >>> head.ov.directions.left.shape
        torch.Size([4, 8])
        >>> -1 <= head.copying <= 1
        True
    """
    found = find_attentions(model, "watch")
    names = select_layers(list(found.attentions), layers, found.unwatched)
    known: dict[str, LayerWeights] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            known[name] = LayerWeights.of(found.modules, name, found.attentions[name])
        except ValueError as problem:
            left_out[name] = str(problem)
    if not known:
        name, reason = next(iter(left_out.items()))
        raise ValueError(f'"{name}" of {type(model).__name__} {reason}')
    table = Circuits(Scores(known), left_out)
    if previous is not None:
        given = {}
        for one in previous:
            if isinstance(one, Head):
                given[table._find((one.layer, one.number))] = one.previous
            else:
                given[table._find(one)] = 1.0
        table._scores.previous = given
    return table
