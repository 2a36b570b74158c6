"""Beam search for all prompts at once: keep the likeliest few continuations of each prompt, step by
step.

Which texts count as finished, and when a search ends, is as in transformers, so that equal weights
give equal texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Model
from . import request
from .request import TextLine, Written
from .sampling import largest, pad_candidates
from .writers import Prompts, Writer, start_writer


def beam(
    model: Model,
    prompts: Prompts,
    *,
    beams: int = 5,
    max_new_tokens: int = 128,
    length_penalty: float = 1.0,
    n_best: int = 1,
    early_stopping: bool = False,
    end: Sequence[int] | None = None,
) -> list[list[Written]]:
    """Search for the likeliest texts after each prompt, and return the `n_best` of each, the best
    first.

    Args:
        model: a GPT, Transformer, LuongTranslator or any model with a registered writer.
        prompts: a text or a list of ids, several of them, or an int64 tensor (batch, n).
        beams: texts kept at each step.
        max_new_tokens: longest text, in tokens.
        length_penalty: a text of n new tokens scores Σ log p / n^length_penalty: above 0 long texts
            are preferred.
        n_best: texts returned for each prompt, at most `beams`.
        early_stopping: stop as soon as `beams` texts have ended; otherwise when no unfinished text
            could become better.
        end: ids that end a text, model.special.end unless given; the id of padding is never chosen.

    Raises:
        ValueError, TypeError: if the model cannot decode, or if a prompt or an option does not fit
            the model.

    Example:
        >>> from telescope.decoding import beam
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(
        ...     GPTConfig(vocabulary=8, max_positions=16, d_model=8, blocks=1, heads=2)
        ... )
        >>> best, second = beam(model, [1, 2, 3], beams=4, n_best=2, max_new_tokens=5)[
        ...     0
        ... ]
        >>> len(best.ids), best.why, best.score >= second.score
        (5, 'length', True)
    """
    request.check_search(beams=beams, n_best=n_best, length_penalty=length_penalty)
    checked = request.check_request(model, prompts, max_new_tokens, end)
    if not checked.prompts:
        return []
    # Nothing to search: one empty text for each prompt.
    if not max_new_tokens:
        return [
            [Written([], None if model.tokenizer is None else "", "length", 0.0)]
            for _ in checked.prompts
        ]
    with torch.no_grad():
        writer = start_writer(model, checked.prompts, max_new_tokens - 1, beams)
        options = SearchOptions(
            beams, max_new_tokens, length_penalty, early_stopping, checked.end, checked.forbidden
        )
        found = search(writer, len(checked.prompts), options)

    def to_written(before: list[int], ids: list[int], score: float) -> Written:
        # The text is decoded as a stream would, so that both agree.
        line = TextLine(model.tokenizer, before, checked.end, (), max_new_tokens)
        for token in ids:
            line.add(token)
        return line.written(score)

    return [
        [to_written(before, ids, score) for ids, score in best[:n_best]]
        for before, best in zip(checked.before, found, strict=True)
    ]


@dataclass(frozen=True)
class SearchOptions:
    """Options of `beam`, with `steps` for max_new_tokens and the ids that are never chosen in
    `forbidden`.
    """

    beams: int
    steps: int
    length_penalty: float
    early_stopping: bool
    end: tuple[int, ...]
    forbidden: tuple[int, ...]

    @property
    def candidates(self) -> int:
        """Return how many continuations to consider, so that `beams` go on even if all others
        end.
        """
        return max(2, 1 + len(self.end)) * self.beams


@dataclass(frozen=True, eq=False)
class FinishedTexts:
    """The best texts that have ended, for each prompt, in descending order. A score of -inf marks
    an empty place.
    """

    scores: Float[Tensor, "batch beams"]
    ids: Int[Tensor, "batch beams steps"]
    lengths: Int[Tensor, "batch beams"]

    @classmethod
    def empty(cls, batch: int, options: SearchOptions, like: Tensor) -> "FinishedTexts":
        """Return no texts, on the device and in the dtype of `like`."""
        ids = torch.zeros(
            batch, options.beams, options.steps, dtype=torch.int64, device=like.device
        )
        return cls(like.new_full((batch, options.beams), -torch.inf), ids, ids[..., 0])

    def merge(
        self, scores: Float[Tensor, "batch more"], ids: Int[Tensor, "batch more steps"], length: int
    ) -> "FinishedTexts":
        """Return the best of these texts and of new ones, which all have the same length."""
        beams = self.scores.shape[1]
        # The new texts compete with those that have ended before.
        best, chosen = torch.cat([self.scores, scores], dim=1).topk(beams)
        lengths = torch.cat([self.lengths, torch.full_like(ids[..., 0], length)], dim=1)
        return FinishedTexts(
            best,
            _select_beams(torch.cat([self.ids, ids], dim=1), chosen),
            lengths.gather(1, chosen),
        )

    def select(self, items: Int[Tensor, " subset"]) -> "FinishedTexts":
        """Return the texts of some prompts."""
        return FinishedTexts(self.scores[items], self.ids[items], self.lengths[items])

    @property
    def full(self) -> Bool[Tensor, " batch"]:
        """Return whether as many texts as beams have ended, for each prompt."""
        return self.scores[:, -1] > -torch.inf

    def texts(self) -> list[list[tuple[list[int], float]]]:
        """Return the ids and the score of each text, for each prompt."""
        return [
            [(ids[:n], score) for score, ids, n in zip(*item, strict=True) if score > -torch.inf]
            for item in zip(
                self.scores.tolist(), self.ids.tolist(), self.lengths.tolist(), strict=True
            )
        ]


def search(
    writer: Writer, batch: int, options: SearchOptions
) -> list[list[tuple[list[int], float]]]:
    """Return the finished texts of each prompt with their scores, the best first."""
    logits = writer.logits
    # Σ log p of the unfinished texts, the best first.
    running = logits.new_zeros(batch, 1, dtype=torch.float32)
    ids = torch.zeros(batch, 1, options.steps, dtype=torch.int64, device=logits.device)
    found = FinishedTexts.empty(batch, options, running)
    ends = torch.tensor(options.end, dtype=torch.int64, device=logits.device)
    items = list(range(batch))  # the prompts whose search goes on
    results: list[list[tuple[list[int], float]]] = [[] for _ in items]

    for step in range(options.steps):
        # One step for all prompts: extend, finish, keep the best, go on.
        scores, parents, tokens = best_continuations(logits, running, options)
        candidates = _select_beams(ids, parents)
        candidates[:, :, step] = tokens
        is_last = step + 1 == options.steps
        ended = torch.isin(tokens, ends) | is_last

        # a text that ends counts only if it is among the best `beams`; the other candidates replace
        # those that end
        penalty = (step + 1) ** options.length_penalty
        ended_scores = (scores / penalty).masked_fill(~ended, -torch.inf)[:, : options.beams]
        found = found.merge(ended_scores, candidates[:, : options.beams], step + 1)

        running, chosen = scores.masked_fill(ended, -torch.inf).topk(options.beams)
        # The best unfinished text bounds what can still come.
        may_improve = ~found.full | (running[:, 0] / penalty > found.scores[:, -1])
        stops = found.full & options.early_stopping
        open_items = may_improve & ~stops & (not is_last)
        # Prompts whose search has ended leave the batch.
        left = open_items.nonzero().flatten()
        if len(left) < len(items):
            closed = (~open_items).nonzero().flatten()
            for i, texts in zip(closed.tolist(), found.select(closed).texts(), strict=True):
                results[items[i]] = texts
            items = [items[i] for i in left.tolist()]
        if not items:
            return results

        # The row of the writer from which each surviving text goes on.
        first_rows = torch.arange(len(parents), device=parents.device)[:, None] * ids.shape[1]
        rows = first_rows + parents.gather(1, chosen)
        kept_items = left if len(left) < len(parents) else None
        if kept_items is not None:
            rows, running, chosen, candidates, tokens = (
                t[left] for t in (rows, running, chosen, candidates, tokens)
            )
            found = found.select(left)
        ids = _select_beams(candidates, chosen)
        # The cache follows its texts.
        writer.reorder(rows.flatten(), kept_items)
        logits = writer.step(tokens.gather(1, chosen).flatten())
    return results


def best_continuations(
    logits: Float[Tensor, "rows vocabulary"],
    running: Float[Tensor, "batch width"],
    options: SearchOptions,
) -> tuple[Float[Tensor, "batch n"], Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """Return the best one-token continuations of each prompt's texts: Σ log p, index of the text
    continued, token.

    Overwrites the logits.
    """
    batch, width = running.shape
    n = options.candidates
    logits = logits.float()
    forbidden = [(token, logits[:, token].clone()) for token in options.forbidden]
    for token, _ in forbidden:
        logits[:, token] = -torch.inf
    # A vocabulary may be smaller than the number of candidates.
    best, tokens = pad_candidates(*largest(logits, n), n)
    for token, logit in forbidden:  # never chosen, but part of the softmax's sum
        logits[:, token] = logit
    maximum = logits.amax(-1, keepdim=True)
    # In place: the logits are not used again.
    log_sum = maximum + logits.sub_(maximum).exp_().sum(-1, keepdim=True).log()
    scores = (best - log_sum).view(batch, width, n) + running[..., None]
    # The best over all beams of a prompt together.
    scores, where = scores.flatten(1).topk(n)
    return scores, where // n, tokens.view(batch, -1).gather(1, where)


def _select_beams(
    ids: Int[Tensor, "batch width steps"], chosen: Int[Tensor, "batch n"]
) -> Int[Tensor, "batch n steps"]:
    return ids.gather(1, chosen[..., None].expand(-1, -1, ids.shape[2]))
