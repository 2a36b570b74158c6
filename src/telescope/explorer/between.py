"""Alignment: what every word gives to every word, in one head or in the mean of all; and where it is the sharpest."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..trace.numbers import plain
from .requests import Asked, Refusal
from .run import Looked, Run
from .walk import head, sequence


class Between(NamedTuple):
    """A word's row is the mean over its tokens, its column their sum. The real ones are words of the text."""

    rows: list[str]
    columns: list[str]
    weights: Float[Tensor, "heads row column"]
    real_rows: list[int]
    real_columns: list[int]

    @property
    def peaks(self) -> Float[Tensor, " heads_and_mean"]:
        """The largest share that a word gives to another, in the mean over words: of each head, and of their mean last.

        Not the entropy: that grows with the length of the text, and is low too where a head rests on the mark at the
        end, which aligns nothing. This one is the widest ribbon of a word, as it is drawn.
        """
        drawn = self.weights[:, self.real_rows][:, :, self.real_columns].double()
        return _with_mean(drawn).amax(-1).mean(-1)


def alignment(looked: Looked, asked: Asked, layer: int) -> dict[str, Any]:
    looked.must_have("alignment")
    mean, b = asked.parameters.get("h") == "mean", sequence(looked, asked)
    place = -1 if mean else looked.call.heads.index(head(looked, asked))
    found = _between(looked, b)
    return {
        "l": layer,
        "h": "mean" if mean else looked.call.heads[place],
        "rows": found.rows,
        "columns": found.columns,
        "weights": plain(_with_mean(found.weights.double())[place] if mean else found.weights[place]),
        "real_rows": found.real_rows,
        "real_columns": found.real_columns,
    }


def sharpest(run: Run, asked: Asked) -> dict[str, Any]:
    """Among those between two texts, if there are any: the attention whose heads align the most sharply in the mean."""
    kinds = {looked.kind for looked in run.looked}
    among = [layer for layer, looked in enumerate(run.looked) if looked.kind == "cross" or "cross" not in kinds]
    peaks, refused = {}, None
    for layer in among:
        try:
            peaks[layer] = _peaks(run.looked[layer], asked)
        except Refusal as refusal:
            refused = refusal
    if not peaks:
        raise refused or Refusal(409, "not-kept", "there is no attention to align by")
    layer = max(peaks, key=lambda layer: float(peaks[layer][-1]))
    *heads, mean = peaks[layer].tolist()
    place = heads.index(max(heads))
    return {"l": layer, "mean": mean, "h": run.looked[layer].call.heads[place], "head": heads[place], "of": len(peaks)}


def _peaks(looked: Looked, asked: Asked) -> Float[Tensor, " heads_and_mean"]:
    looked.must_have("alignment")
    found = _between(looked, sequence(looked, asked))
    if not found.real_rows or not found.real_columns:
        raise Refusal(409, "not-kept", f'"{looked.name}" has no words to align')
    return found.peaks


def _between(looked: Looked, b: int) -> Between:
    axes = {axis: (looked.words(axis), there) for axis, there in zip("qk", looked.size, strict=True)}
    names = [
        looked.tokens(axis, b, range(there)) if words is None else list(words.names)
        for axis, (words, there) in axes.items()
    ]
    segments = tuple(list(range(there)) if words is None else list(words.of) for words, there in axes.values())
    weights = looked.call.survey().map(segments=segments)[b]
    real = [looked.real(axis, b) if words is None else list(words.real) for axis, (words, _) in axes.items()]
    return Between(names[0], names[1], weights, real[0], real[1])


def _with_mean(weights: Float[Tensor, "heads row column"]) -> Float[Tensor, "heads_and_mean row column"]:
    return torch.cat([weights, weights.mean(0, keepdim=True)])
