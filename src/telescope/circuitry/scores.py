"""The scores of heads and of pairs of heads, from weights alone; each is computed once."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import CLEAR
from .factors import Factors, compose, positive_share
from .layer_weights import LayerWeights
from .vocabulary import Pair, small_products, through_vocabulary

HeadKey = tuple[str, int]
"""The name of a layer and the number of a head."""
COLUMNS = ("copying", "previous_token", "induction", "qk_norm", "ov_norm")
"""The columns of numbers of a table."""


class Writer(NamedTuple):
    """What a head writes, for the heads that read it."""

    ov: Factors
    met: Float[Tensor, "d_v d_model"]
    """W_v W_Eᵀ W_E: what its values hold of each token, met by that token."""


class Scores:
    """The scores of the heads of these layers. Those that were computed are kept in `known`, by
    name and head.
    """

    def __init__(self, layers: Mapping[str, LayerWeights]) -> None:
        self.layers = layers
        self.known: dict[str, dict[HeadKey, Any]] = {name: {} for name in COLUMNS}
        self.previous: Mapping[HeadKey, float] | None = None
        """The previous-token heads and how clear each is; None where the positions tell."""
        self._writers: dict[HeadKey, Writer] = {}

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
        return self._match(self._writer(earlier), self.layers[later[0]].qk(later[1]))

    def _match(self, writer: Writer, reading: Factors) -> float:
        met = writer.met @ reading.left.mT
        return positive_share((reading.right @ writer.ov.left.mT) @ met)

    def _writer(self, key: HeadKey) -> Writer:
        """Return what an earlier head writes; it is kept, since many heads may read it."""
        if key not in self._writers:
            own = self.layers[key[0]]
            if own.tokens.vocabulary is None:
                raise ValueError(own.tokens.why_not)
            ov = own.ov(key[1])
            tokens = own.tokens.vocabulary.embedding
            self._writers[key] = Writer(ov, through_vocabulary(ov.right, tokens, tokens))
        return self._writers[key]

    def no_induction(self, key: HeadKey) -> str:
        """Return why a head has no induction score, or nothing."""
        own = self.layers[key[0]]
        if own.projections.not_bilinear:
            return f"its scores are no product: {own.projections.not_bilinear}"
        if own.tokens.vocabulary is None:
            return own.tokens.why_not
        if own.sides.keys_from != own.sides.queries_from:
            return "it reads another sequence, in which its own tokens do not occur"
        if self.previous is None and own.positions.why_not:
            return (
                f"{own.positions.why_not}; ts.circuits(model, previous=...) takes the heads that "
                "recording.heads() finds"
            )
        return ""

    @torch.no_grad()
    def induction(self, key: HeadKey) -> float | None:
        """Return the induction score of a head; None where `no_induction` says why."""
        if self.no_induction(key):
            return None
        names = list(self.layers)
        earlier = names[: names.index(key[0])]
        stream = self.layers[key[0]].sides.keys_from
        earlier = [name for name in earlier if self.layers[name].sides.queries_from == stream]
        previous = self.previous
        if previous is None:
            previous = self._previous_token_heads(earlier)
        (copying,) = self.copying([key])
        assert copying is not None
        if copying <= 0:
            return 0.0
        # How much of each previous-token head is read, and whether the same token is looked for.
        reading = self.layers[key[0]].qk(key[1])
        best = 0.0
        for one, share in previous.items():
            if one[0] in earlier:
                writer = self._writer(one)
                read = compose(reading, writer.ov).share
                matching = self._match(writer, reading) if read > 0 else 0.0
                best = max(best, share * max(0.0, read) * max(0.0, matching))
        return best * copying

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
            "induction": self.no_induction(key),
        }
        return {name: reason for name, reason in reasons.items() if reason}
