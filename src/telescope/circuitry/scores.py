"""The scores of heads and of pairs of heads, from weights alone; each is computed once."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import CLEAR
from .factors import positive_share
from .layer_weights import LayerWeights
from .vocabulary import Pair, small_products, through_vocabulary

HeadKey = tuple[str, int]
"""The name of a layer and the number of a head."""
COLUMNS = ("copying", "previous_token", "induction", "qk_norm", "ov_norm")
"""The columns of numbers of a table."""


class Scores:
    """The scores of the heads of these layers. Those that were computed are kept in `known`, by
    name and head.
    """

    def __init__(self, layers: Mapping[str, LayerWeights]) -> None:
        self.layers = layers
        self.known: dict[str, dict[HeadKey, Any]] = {name: {} for name in COLUMNS}
        self._met: dict[HeadKey, Tensor] = {}

    def check_order(self, earlier: HeadKey, later: HeadKey, by: str) -> None:
        """Raise a ValueError unless the later head can read what the earlier one writes."""
        writes = self.layers[earlier[0]].sides
        reads = self.layers[later[0]].sides
        if writes.is_post_norm or reads.is_post_norm:
            raise ValueError(
                "the model normalises its stream after every addition, so that what a head writes "
                "reaches later heads through their norms, not as it was written"
            )
        stream = reads.queries_from if by == "q" else reads.keys_from
        names = list(self.layers)
        is_later = names.index(earlier[0]) < names.index(later[0])
        if writes.queries_from != stream or not is_later:
            raise ValueError(
                f'what head {earlier[1]} of "{earlier[0]}" writes is not what the {by} of head '
                f'{later[1]} of "{later[0]}" reads; take an earlier head of the same stream'
            )

    @torch.no_grad()
    def copying(self, keys: Sequence[HeadKey]) -> list[float | None]:
        """Return the copying scores of heads; all that are missing pass through the vocabulary
        together.
        """
        known = self.known["copying"]
        # Heads that read and write the same tokens are computed together.
        groups: dict[tuple[int, int], list[HeadKey]] = {}
        for key in keys:
            vocabulary = self.layers[key[0]].tokens.vocabulary
            if vocabulary is None:
                known[key] = None
            elif key not in known:
                ends = vocabulary.embedding.data_ptr(), vocabulary.unembedding.data_ptr()
                groups.setdefault(ends, []).append(key)
        for group in groups.values():
            vocabulary = self.layers[group[0][0]].tokens.vocabulary
            assert vocabulary is not None
            pairs = [partial(self._pair, key) for key in group]
            products = small_products(pairs, vocabulary.embedding, vocabulary.unembedding)
            for key, product in zip(group, products, strict=True):
                known[key] = positive_share(product)
        return [known[key] for key in keys]

    def _pair(self, key: HeadKey) -> Pair:
        """Return what a head reads of the tokens, and what it writes for the unembedding."""
        own = self.layers[key[0]]
        factors = own.ov(key[1])
        vocabulary = own.tokens.vocabulary
        assert vocabulary is not None
        norm = vocabulary.norm
        written = factors.left if norm is None else norm.after(factors.left)
        return Pair(factors.right, written)

    @torch.no_grad()
    def previous_token(self, key: HeadKey) -> float | None:
        """Return the score of a head by positions alone; None where there are none."""
        known = self.known["previous_token"]
        if key not in known:
            own = self.layers[key[0]]
            known[key] = None if own.positions.why_not else own.previous_token(key[1])
        found: float | None = known[key]
        return found

    @torch.no_grad()
    def match(self, earlier: HeadKey, later: HeadKey) -> float:
        """Return the matching score of two heads, the later of which reads the earlier one."""
        reading = self.layers[later[0]].qk(later[1])
        writing = self.layers[earlier[0]].ov(earlier[1])
        met = self._read_by_tokens(earlier) @ reading.left.mT
        return positive_share((reading.right @ writing.left.mT) @ met)

    def _read_by_tokens(self, key: HeadKey) -> Float[Tensor, "d_v d_model"]:
        """Return W_v W_Eᵀ W_E of a head: what its values hold of each token, met by that token."""
        if key not in self._met:
            own = self.layers[key[0]]
            if own.tokens.vocabulary is None:
                raise ValueError(own.tokens.why_not)
            tokens = own.tokens.vocabulary.embedding
            self._met[key] = through_vocabulary(own.ov(key[1]).right, tokens, tokens)
        return self._met[key]

    def no_induction(self, key: HeadKey, *, positions: bool) -> str:
        """Return why a head has no induction score, or nothing.

        positions   whether the previous-token heads are to be found by the positions
        """
        own = self.layers[key[0]]
        if own.projections.not_bilinear:
            return f"its scores are no product: {own.projections.not_bilinear}"
        if own.tokens.vocabulary is None:
            return own.tokens.why_not
        if own.sides.keys_from != own.sides.queries_from:
            return "it reads another sequence, in which its own tokens do not occur"
        if positions and own.positions.why_not:
            return (
                f"{own.positions.why_not}; circuits.induction(head, previous=[...]) takes the "
                "heads that recording.heads() finds"
            )
        return ""

    def induction(
        self, key: HeadKey, previous: Mapping[HeadKey, float] | None = None
    ) -> float | None:
        """Return the induction score of a head, with previous-token heads and how clear each is;
        None where `no_induction` says why.
        """
        if self.no_induction(key, positions=previous is None):
            return None
        names = list(self.layers)
        earlier = names[: names.index(key[0])]
        stream = self.layers[key[0]].sides.keys_from
        earlier = [name for name in earlier if self.layers[name].sides.queries_from == stream]
        if previous is None:
            previous = self._previous_token_heads(earlier)
        matches = [
            share * max(0.0, self.match(one, key))
            for one, share in previous.items()
            if one[0] in earlier
        ]
        (copying,) = self.copying([key])
        assert copying is not None
        return max(matches, default=0.0) * max(0.0, copying)

    def _previous_token_heads(self, layers: Iterable[str]) -> dict[HeadKey, float]:
        """Return the heads of these layers that attend to the position before, by the positions
        alone, and how clearly.
        """
        keys = [(name, head) for name in layers for head in range(self.layers[name].heads)]
        found = {key: self.previous_token(key) or 0.0 for key in keys}
        return {key: share for key, share in found.items() if share >= CLEAR}

    def why_not(self, key: HeadKey) -> dict[str, str]:
        """Return why a score of a head is None, by its name."""
        own = self.layers[key[0]]
        reasons = {
            "copying": own.tokens.why_not,
            "previous_token": own.positions.why_not,
            "induction": self.no_induction(key, positions=True),
        }
        return {name: reason for name, reason in reasons.items() if reason}
