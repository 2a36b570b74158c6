"""Which token comes next: the likeliest, or one that is drawn from what the filters leave of the distribution.

A filter is a function of the choices, and filters are composed in a list: [temperature(0.8), top_k(50), top_p(0.95)].
"""

from collections.abc import Callable, Sequence
from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

# Logits of some tokens, and which tokens they are: None is the whole vocabulary, otherwise the likeliest stand first.
Choices = tuple[Float[Tensor, "rows _"], Int[Tensor, "rows _"] | None]
Filter = Callable[[Choices], Choices]


def temperature(t: float) -> Filter:
    """Below 1 the likely becomes likelier."""
    return lambda choices: (choices[0] / t, choices[1])


def top_k(k: int) -> Filter:
    """The k likeliest."""
    return lambda choices: _likeliest(choices, k)


def top_p(p: float) -> Filter:
    """The fewest that together have a probability of p (Holtzman et al. 2020)."""

    def filtered(choices: Choices) -> Choices:
        logits, ids = _likeliest(choices, choices[0].shape[1])
        probabilities = logits.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        return logits.masked_fill(before >= p, -torch.inf), ids

    return filtered


def min_p(p: float) -> Filter:
    """Those that are at least p times as likely as the likeliest (Nguyen et al. 2024)."""

    def filtered(choices: Choices) -> Choices:
        logits, ids = choices
        least = logits.amax(-1, keepdim=True) + log(p)
        return logits.masked_fill(logits < least, -torch.inf), ids

    return filtered


def _likeliest(choices: Choices, k: int) -> Choices:
    logits, ids = choices
    if ids is not None:  # they are in order already
        return logits[:, :k], ids[:, :k]
    return top(logits, k) if k < logits.shape[1] else logits.sort(dim=-1, descending=True, stable=True)


# ------------------------------------------------------------------------------------------------- the next token


def greedy(logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
    return top(logits, 1)[1][:, 0]


def draw(
    logits: Float[Tensor, "rows vocabulary"], filters: Sequence[Filter], noise: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """The token at which the summed probabilities pass the noise, a number from 0 to 1 for each row."""
    choices: Choices = (logits, None)
    for filtered in filters:
        choices = filtered(choices)
    left, ids = choices
    sums = left.softmax(-1).cumsum(-1)
    place = torch.searchsorted(sums, (noise.to(sums) * sums[:, -1])[:, None], right=True)
    last = (left > -torch.inf).cumsum(-1).argmax(-1, keepdim=True)  # the noise may round up to the whole sum
    place = place.minimum(last)
    return (place if ids is None else ids.gather(1, place))[:, 0]


class Chooser:
    """What is done with the logits at every step. Static in shape, and it writes in place: a step can be captured.

    forbidden           tokens that are never written
    repetition_penalty  logits of tokens that were seen are divided by it, or multiplied where they are negative
                        (Keskar et al. 2019)
    """

    def __init__(
        self,
        filters: Sequence[Filter] | None,
        *,
        forbidden: Sequence[int] = (),
        repetition_penalty: float = 1.0,
        seen: Bool[Tensor, "rows vocabulary"] | None = None,
    ) -> None:
        self.filters = filters
        self.forbidden = list(forbidden)
        self.penalty = repetition_penalty
        self.seen = seen

    def __call__(self, logits: Float[Tensor, "rows vocabulary"], noise: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.seen is not None:
            penalised = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
            logits = torch.where(self.seen, penalised, logits)
        for token in self.forbidden:
            logits[:, token] = -torch.inf
        tokens = greedy(logits) if self.filters is None else draw(logits, self.filters, noise)
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        return tokens

    @property
    def state(self) -> list[Tensor]:
        """What a call writes into."""
        return [] if self.seen is None else [self.seen]

    def keep(self, rows: Int[Tensor, " fewer"]) -> None:
        if self.seen is not None:
            self.seen = self.seen.index_select(0, rows)


def seen_in(prompts: Sequence[Sequence[int]], vocabulary: int, device: torch.device) -> Bool[Tensor, "rows vocabulary"]:
    seen = torch.zeros(len(prompts), vocabulary, dtype=torch.bool)
    for row, ids in zip(seen, prompts, strict=True):
        row[list(ids)] = True
    return seen.to(device)


BLOCK = 64  # on a Neoverse core 40 rows of 58,101 take 1.5 ms, with torch.topk 5 ms, with argmax 11 ms


def top(numbers: Float[Tensor, "rows n"], k: int) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """The k largest of each row, largest first, and where they stand; all of them if there are fewer.

    They stand in the k blocks with the largest maxima, so only those are looked at closely.
    """
    n = numbers.shape[1]
    k, whole = min(k, n), n // BLOCK
    if numbers.device.type != "cpu" or whole <= 4 * k:
        return numbers.topk(k)
    rest = numbers[:, whole * BLOCK :]
    maxima = numbers[:, : whole * BLOCK].view(-1, whole, BLOCK).amax(-1)
    if rest.shape[1]:
        maxima = torch.cat([maxima, rest.amax(-1, keepdim=True)], dim=1)
    blocks = maxima.topk(k).indices
    where = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    looked_at = numbers.gather(1, where.clamp(max=n - 1)).masked_fill(where >= n, -torch.inf)
    largest, chosen = looked_at.topk(k)
    return largest, where.gather(1, chosen)


def filled_up(
    numbers: Float[Tensor, "rows k"], where: Int[Tensor, "rows k"], n: int
) -> tuple[Float[Tensor, "rows n"], Int[Tensor, "rows n"]]:
    """n of them: where there were fewer to choose from, the rest is worth nothing."""
    more = n - numbers.shape[1]
    return (pad(numbers, (0, more), value=-torch.inf), pad(where, (0, more))) if more > 0 else (numbers, where)
