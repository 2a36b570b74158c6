"""Beam search: of all continuations of a few texts the likeliest few, again and again, for all prompts at once.

What counts as found, and when a search ends, is as in transformers, so that the same weights give the same texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Model
from . import request
from .line import TextLine, Written
from .sampling import filled_up, top
from .writers import Prompts, Writer, start


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
    """The n_best texts found for each prompt, the best first.

    length_penalty  a text of n new tokens scores Σ log p / n^length_penalty: above 0 long ones are preferred
    early_stopping  end as soon as there are `beams` texts; otherwise when none that is left could become better
    end             ids at which a text ends, model.special.end unless given; the id of padding is never written
    """
    request.searching(beams=beams, n_best=n_best, length_penalty=length_penalty)
    asked = request.asked(model, prompts, max_new_tokens, end)
    if not asked.prompts:
        return []
    if not max_new_tokens:
        return [[Written([], None if model.tokenizer is None else "", "length", 0.0)] for _ in asked.prompts]
    with torch.no_grad():
        writer = start(model, asked.prompts, max_new_tokens - 1, beams)
        rules = Rules(beams, max_new_tokens, length_penalty, early_stopping, asked.end, asked.forbidden)
        found = search(writer, len(asked.prompts), rules)
    return [
        [_written(TextLine(model.tokenizer, before, asked.end, (), max_new_tokens), *one) for one in best[:n_best]]
        for before, best in zip(asked.before, found, strict=True)
    ]


def _written(line: TextLine, ids: list[int], score: float) -> Written:
    for token in ids:
        line.add(token)
    return line.written(score)


@dataclass(frozen=True)
class Rules:
    beams: int
    steps: int
    length_penalty: float
    early_stopping: bool
    end: tuple[int, ...]
    forbidden: tuple[int, ...]

    @property
    def candidates(self) -> int:
        """So many that `beams` go on even if all others end."""
        return max(2, 1 + len(self.end)) * self.beams


@dataclass(frozen=True, eq=False)
class FinishedTexts:
    """The best texts that have ended; a score of -inf says that there is none yet."""

    scores: Float[Tensor, "batch beams"]
    ids: Int[Tensor, "batch beams steps"]
    lengths: Int[Tensor, "batch beams"]

    @classmethod
    def nothing(cls, batch: int, rules: Rules, like: Tensor) -> "FinishedTexts":
        ids = torch.zeros(batch, rules.beams, rules.steps, dtype=torch.int64, device=like.device)
        return cls(like.new_full((batch, rules.beams), -torch.inf), ids, ids[..., 0])

    def with_more(
        self, scores: Float[Tensor, "batch more"], ids: Int[Tensor, "batch more steps"], length: int
    ) -> "FinishedTexts":
        beams = self.scores.shape[1]
        best, chosen = torch.cat([self.scores, scores], dim=1).topk(beams)
        lengths = torch.cat([self.lengths, torch.full_like(ids[..., 0], length)], dim=1)
        return FinishedTexts(best, _of_beams(torch.cat([self.ids, ids], dim=1), chosen), lengths.gather(1, chosen))

    def of(self, items: Int[Tensor, " some"]) -> "FinishedTexts":
        return FinishedTexts(self.scores[items], self.ids[items], self.lengths[items])

    @property
    def full(self) -> Bool[Tensor, " batch"]:
        return self.scores[:, -1] > -torch.inf

    def texts(self) -> list[list[tuple[list[int], float]]]:
        return [
            [(ids[:n], score) for score, ids, n in zip(*item, strict=True) if score > -torch.inf]
            for item in zip(self.scores.tolist(), self.ids.tolist(), self.lengths.tolist(), strict=True)
        ]


def search(writer: Writer, batch: int, rules: Rules) -> list[list[tuple[list[int], float]]]:
    """The texts of each prompt with their scores, the best first."""
    logits = writer.logits
    running = logits.new_zeros(batch, 1, dtype=torch.float32)  # Σ log p of the texts that go on, the best first
    ids = torch.zeros(batch, 1, rules.steps, dtype=torch.int64, device=logits.device)
    found = FinishedTexts.nothing(batch, rules, running)
    ends = torch.tensor(rules.end, dtype=torch.int64, device=logits.device)
    items = list(range(batch))
    results: list[list[tuple[list[int], float]]] = [[] for _ in items]

    for step in range(rules.steps):
        scores, parents, tokens = continuations(logits, running, rules)
        candidates = _of_beams(ids, parents)
        candidates[:, :, step] = tokens
        ended = torch.isin(tokens, ends) if step + 1 < rules.steps else torch.ones_like(tokens, dtype=torch.bool)

        # only one of the best `beams` counts as found; the others are there to go on if those end
        penalty = (step + 1) ** rules.length_penalty
        just = (scores / penalty).masked_fill(~ended, -torch.inf)[:, : rules.beams]
        found = found.with_more(just, candidates[:, : rules.beams], step + 1)

        running, chosen = scores.masked_fill(ended, -torch.inf).topk(rules.beams)
        better = ~found.full | (running[:, 0] / penalty > found.scores[:, -1])
        open_items = better & ~(found.full & rules.early_stopping) & (step + 1 < rules.steps)
        left = open_items.nonzero().flatten()
        if len(left) < len(items):
            closed = (~open_items).nonzero().flatten()
            for i, texts in zip(closed.tolist(), found.of(closed).texts(), strict=True):
                results[items[i]] = texts
            items = [items[i] for i in left.tolist()]
        if not items:
            return results

        rows = torch.arange(len(parents), device=parents.device)[:, None] * ids.shape[1] + parents.gather(1, chosen)
        fewer = left if len(left) < len(parents) else None
        if fewer is not None:
            rows, running, chosen, candidates, tokens = (t[left] for t in (rows, running, chosen, candidates, tokens))
            found = found.of(left)
        ids = _of_beams(candidates, chosen)
        writer.reorder(rows.flatten(), fewer)
        logits = writer.step(tokens.gather(1, chosen).flatten())
    return results


def continuations(
    logits: Float[Tensor, "rows vocabulary"], running: Float[Tensor, "batch width"], rules: Rules
) -> tuple[Float[Tensor, "batch n"], Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """The best continuations of each prompt's texts: their Σ log p, which text they go on from, and the token."""
    batch, width = running.shape
    n, logits = rules.candidates, logits.float()
    forbidden = [(token, logits[:, token].clone()) for token in rules.forbidden]
    for token, _ in forbidden:
        logits[:, token] = -torch.inf
    best, tokens = filled_up(*top(logits, n), n)
    for token, logit in forbidden:  # it is not chosen, but a part of the whole
        logits[:, token] = logit
    largest = logits.amax(-1, keepdim=True)
    all_of_it = largest + logits.sub_(largest).exp_().sum(-1, keepdim=True).log()  # nobody needs the logits any more
    scores = (best - all_of_it).view(batch, width, n) + running[..., None]
    scores, where = scores.flatten(1).topk(n)
    return scores, where // n, tokens.view(batch, -1).gather(1, where)


def _of_beams(ids: Int[Tensor, "batch width steps"], chosen: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n steps"]:
    return ids.gather(1, chosen[..., None].expand(-1, -1, ids.shape[2]))
