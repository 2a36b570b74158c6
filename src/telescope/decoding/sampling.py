"""Choose the next token: the likeliest, or one drawn from what the filters leave of the
distribution.

A filter is a function from choices to choices. A list is applied in order: [temperature(0.8),
top_k(50), top_p(0.95)].
"""

from collections.abc import Callable, Sequence
from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

# Logits of some tokens, and the ids of these tokens, likeliest first. Ids of None stand for the
# whole vocabulary, in order of ids.
Choices = tuple[Float[Tensor, "rows _"], Int[Tensor, "rows _"] | None]
Filter = Callable[[Choices], Choices]


def temperature(t: float) -> Filter:
    """Return a filter that divides logits by t: below 1 likely tokens become likelier."""
    return lambda choices: (choices[0] / t, choices[1])


def top_k(k: int) -> Filter:
    """Return a filter that keeps the k likeliest tokens."""
    return lambda choices: _keep_likeliest(choices, k)


def top_p(p: float) -> Filter:
    """Return a filter that keeps the fewest tokens whose probabilities sum to p (Holtzman et al.
    2020).
    """

    def filtered(choices: Choices) -> Choices:
        # Sorted, so that a running sum tells where p is reached.
        logits, ids = _keep_likeliest(choices, choices[0].shape[1])
        probabilities = logits.softmax(-1)
        # The token that crosses p still belongs to the nucleus.
        before = probabilities.cumsum(-1) - probabilities
        return logits.masked_fill(before >= p, -torch.inf), ids

    return filtered


def min_p(p: float) -> Filter:
    """Return a filter that keeps tokens at least p times as likely as the likeliest (Nguyen et al.
    2024).
    """

    def filtered(choices: Choices) -> Choices:
        logits, ids = choices
        # p times as likely is log p below the largest logit.
        least = logits.amax(-1, keepdim=True) + log(p)
        return logits.masked_fill(logits < least, -torch.inf), ids

    return filtered


def _keep_likeliest(choices: Choices, k: int) -> Choices:
    logits, ids = choices
    if ids is not None:  # sorted already
        return logits[:, :k], ids[:, :k]
    if k < logits.shape[1]:
        return largest(logits, k)
    return logits.sort(dim=-1, descending=True, stable=True)


# ----------------------------------------------------------------------------------- the next token


def greedy(logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
    """Return the likeliest token of each row."""
    return largest(logits, 1)[1][:, 0]


def draw(
    logits: Float[Tensor, "rows vocabulary"],
    filters: Sequence[Filter],
    noise: Float[Tensor, " rows"],
) -> Int[Tensor, " rows"]:
    """Return a token of each row, drawn by inversion: the first whose cumulative probability
    exceeds the noise.

    noise  uniform in [0, 1)
    """
    choices: Choices = (logits, None)
    for apply_filter in filters:
        choices = apply_filter(choices)
    kept, ids = choices
    # Inversion needs one number for each row, so that a row never depends on another.
    sums = kept.softmax(-1).cumsum(-1)
    place = torch.searchsorted(sums, (noise.to(sums) * sums[:, -1])[:, None], right=True)
    # The noise may round up to the whole sum: never go beyond the last token that is left.
    last = (kept > -torch.inf).cumsum(-1).argmax(-1, keepdim=True)
    place = place.minimum(last)
    return (place if ids is None else ids.gather(1, place))[:, 0]


class TokenChooser:
    """Choose a token of each row from the logits of a step.

    Shapes are static and state is changed in place, so that a CUDA graph can capture the call.

    filters             None is greedy
    forbidden           ids that are never chosen
    repetition_penalty  positive logits of tokens seen before are divided by it, negative ones
                        multiplied (Keskar et al. 2019)
    seen                which tokens were seen, updated in place; None without a penalty
    """

    def __init__(
        self,
        filters: Sequence[Filter] | None,
        forbidden: Sequence[int] = (),
        repetition_penalty: float = 1.0,
        seen: Bool[Tensor, "rows vocabulary"] | None = None,
    ) -> None:
        self.filters = filters
        self.forbidden = list(forbidden)
        self.penalty = repetition_penalty
        self.seen = seen

    def __call__(
        self, logits: Float[Tensor, "rows vocabulary"], noise: Float[Tensor, " rows"]
    ) -> Int[Tensor, " rows"]:
        """Return the chosen tokens. May overwrite the logits."""
        # Sums over a vocabulary lose too much in half precision.
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.seen is not None:
            # Dividing a negative logit would make its token likelier.
            penalised = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
            logits = torch.where(self.seen, penalised, logits)
        for token in self.forbidden:
            # In place: the logits of a step are used once.
            logits[:, token] = -torch.inf
        tokens = greedy(logits) if self.filters is None else draw(logits, self.filters, noise)
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        return tokens

    @property
    def state(self) -> list[Tensor]:
        """Return the tensors that a call changes."""
        return [] if self.seen is None else [self.seen]

    def keep_rows(self, rows: Int[Tensor, " fewer"]) -> None:
        """Drop the state of all other rows."""
        if self.seen is not None:
            self.seen = self.seen.index_select(0, rows)


def mark_seen(
    prompts: Sequence[Sequence[int]], vocabulary: int, device: torch.device
) -> Bool[Tensor, "rows vocabulary"]:
    """Return which ids of the vocabulary occur in each prompt."""
    seen = torch.zeros(len(prompts), vocabulary, dtype=torch.bool)
    for row, ids in zip(seen, prompts, strict=True):
        row[list(ids)] = True
    return seen.to(device)


# Numbers of a block of `largest`. On a Neoverse core 40 rows of 58,101 take 1.5 ms, with torch.topk
# 5 ms, with argmax 11 ms.
BLOCK = 64


def largest(
    numbers: Float[Tensor, "rows n"], k: int
) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Return the k largest numbers of each row in descending order, and their indices; all if there
    are fewer than k.

    On a CPU faster than torch.topk: the k largest lie in the k blocks with the largest maxima, and
    only those are sorted.
    """
    n = numbers.shape[1]
    k = min(k, n)
    whole = n // BLOCK
    # Few blocks, or a GPU: torch.topk is as fast.
    if numbers.device.type != "cpu" or whole <= 4 * k:
        return numbers.topk(k)
    rest = numbers[:, whole * BLOCK :]
    maxima = numbers[:, : whole * BLOCK].view(-1, whole, BLOCK).amax(-1)
    if rest.shape[1]:
        # The rest that fills no block is one more.
        maxima = torch.cat([maxima, rest.amax(-1, keepdim=True)], dim=1)
    blocks = maxima.topk(k).indices
    where = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    # Slots beyond the last number must never win.
    in_blocks = numbers.gather(1, where.clamp(max=n - 1)).masked_fill(where >= n, -torch.inf)
    values, chosen = in_blocks.topk(k)
    return values, where.gather(1, chosen)


def pad_candidates(
    numbers: Float[Tensor, "rows k"], where: Int[Tensor, "rows k"], n: int
) -> tuple[Float[Tensor, "rows n"], Int[Tensor, "rows n"]]:
    """Return n numbers and indices in each row: if there are fewer, the rest are -inf with
    index 0.
    """
    missing = max(0, n - numbers.shape[1])
    return pad(numbers, (0, missing), value=-torch.inf), pad(where, (0, missing))
