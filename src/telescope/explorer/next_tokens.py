"""Answers about what a model writes next: the likeliest tokens, one that is drawn, and a text that
is drawn token by token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..decoding import Choices, largest, temperature, top_k, top_p
from ..editing import log_probability
from ..models import GPT
from ..traces import Words
from .answers import Answer, RequestParams, bad_parameter, not_kept
from .output import EDITING, Output
from .run import Run, RunRequest

SHOWN_NEXT = 10  # candidates in one answer
MOST_WRITTEN = 16  # tokens that one answer draws
MOST_SEEDS = 10**9
# Ids of tokens, separated by commas: those that were drawn before.
DRAWN_BEFORE = re.compile(r"(?:[0-9]{1,7}(?:,[0-9]{1,7}){0,511})?", re.ASCII)


@dataclass(frozen=True)
class NextToken(Answer):
    """A token that may come next.

    append  the characters that it adds to the text
    p       its probability after temperature, top_k and top_p
    """

    id: int
    text: str
    append: str
    logit: float
    p: float


@dataclass(frozen=True)
class PieceOfWord(Answer):
    """A token of a written word, and its probability."""

    i: int
    text: str
    p: float


@dataclass(frozen=True)
class WordWithChance(Answer):
    """A written word; its probability is the product of those of its pieces."""

    name: str
    p: float
    pieces: Sequence[PieceOfWord]


@dataclass(frozen=True)
class OutputAnswer(Answer):
    """What the model writes after query i.

    n           queries; vocabulary: tokens
    kind        "gpt" or "translator"
    chosen      what was written, or follows in the text that a GPT read; null behind its end
    id          of the same token
    word        the written word at `i`, of a translator
    candidates  ten, the likeliest first; behind them what was written, if it is none of these
    kept        how many tokens top_k and top_p leave
    """

    i: int
    n: int
    kind: str
    vocabulary: int
    chosen: str | None
    id: int | None
    word: WordWithChance | None
    candidates: Sequence[NextToken]
    kept: int


def output(request: RunRequest) -> OutputAnswer:
    """Answer the ten likeliest tokens after query i, the last by default; top_k=0 keeps all."""
    made = _output_of(request.run)
    i = _query(request, made)
    logits = made.logits(i).double()
    # Candidates are the likeliest of the model; a setting may leave some of them out.
    p = _probabilities(logits, request)
    tokens: list[int] = largest(logits[None], SHOWN_NEXT)[1][0].tolist()
    # A GPT has read a token behind every query but the last.
    follows = made.written[i : i + 1] or made.ids[i + 1 : i + 2]
    written = follows[0] if follows else None
    if written is not None and written not in tokens:
        tokens.append(written)
    return OutputAnswer(
        i=i,
        n=len(made.hidden),
        kind=made.kind,
        vocabulary=len(logits),
        chosen=None if written is None else made.name_of(i, written),
        id=written,
        word=None if made.words is None else _word(made, made.words, i, request),
        candidates=[_next_token(made, i, token, logits, p) for token in tokens],
        kept=int((p > 0).sum()),
    )


def _output_of(run: Run) -> Output:
    if run.output is None:
        raise not_kept(
            "this run has no output: a recording keeps attentions, not what the model wrote"
        )
    return run.output


def _query(request: RunRequest, made: Output) -> int:
    return request.index("i", len(made.hidden), "query", len(made.hidden) - 1)


def _next_token(made: Output, i: int, token: int, logits: Tensor, p: Tensor) -> NextToken:
    return NextToken(
        token,
        made.name_of(i, token),
        made.text_of(i, token),
        float(logits[token]),
        float(p[token]),
    )


def _word(made: Output, words: Words, i: int, params: RequestParams) -> WordWithChance:
    """Return the written word of query i, with its probability and those of its tokens, after the
    same settings.
    """
    number = words.word_ids[i]
    queries = words.positions(number)
    tokens = [made.written[query] for query in queries]
    p = torch.stack([_probabilities(made.logits(query).double(), params) for query in queries])
    pieces = [
        PieceOfWord(query, words.pieces[query], float(row[token]))
        for query, token, row in zip(queries, tokens, p, strict=True)
    ]
    return WordWithChance(words.names[number], exp(log_probability(p.log(), tokens)), pieces)


def _probabilities(
    logits: Float[Tensor, " vocabulary"], params: RequestParams
) -> Float[Tensor, " vocabulary"]:
    """Return the probability of each token after temperature, top_k and top_p; 0 for a token that
    is left out.
    """
    # In the order of generate: temperature, then top_k, then top_p.
    heat = params.decimal("temperature", 1.0)
    share = params.decimal("top_p", 1.0)
    most = params.number("top_k", 0)
    if not 0.01 <= heat <= 100 or not 0 < share <= 1 or most < 0:
        raise bad_parameter(
            "temperature is from 0.01 to 100, top_p above 0 and at most 1, top_k at least 0"
        )
    choices: Choices = temperature(heat)((logits[None], None))
    if most:
        choices = top_k(most)(choices)
    if share < 1:
        choices = top_p(share)(choices)
    kept, ids = choices
    probabilities = kept.softmax(-1)[0]
    # Without top_k and top_p, all tokens are left, in order of ids.
    if ids is None:
        return probabilities
    return torch.zeros_like(logits).scatter(0, ids[0], probabilities)


# ------------------------------------------------------------------------------------------ drawing


class Draw(NamedTuple):
    """A drawn token.

    u      the random number, from 0 up to but not 1
    below  the sum of the probabilities of all likelier tokens: below <= u < below + p
    """

    token: int
    u: float
    below: float


def draw_token(p: Float[Tensor, " vocabulary"], u: float) -> Draw:
    """Return the first token, the likeliest first, at which the sum of probabilities exceeds u."""
    # A stable order: equal probabilities are summed in the order of ids.
    sorted_p, ids = p.sort(descending=True, stable=True)
    sums = sorted_p.cumsum(0)
    # Rounding may leave the sum of all below u: then the last token that can be chosen is drawn.
    last = int((sorted_p > 0).sum()) - 1
    place = min(int((sums <= u).sum()), last)
    return Draw(int(ids[place]), u, float(sums[place] - sorted_p[place]))


def random_number(seed: int, place: int) -> float:
    """Return the `place`-th random number of a seed, from 0 on: the same one however many are
    drawn at once.
    """
    dice = torch.Generator().manual_seed(seed)
    return float(torch.rand(place + 1, generator=dice, dtype=torch.float64)[place])


@dataclass(frozen=True)
class DrawnToken(Answer):
    """A token that was drawn.

    append  the characters that it adds to the text
    p       its probability after temperature, top_k and top_p
    u       the random number, at least `below` and less than `below` + p
    below   the sum of the probabilities of all likelier tokens
    """

    id: int
    text: str
    append: str
    p: float
    u: float
    below: float


@dataclass(frozen=True)
class DrawAnswer(Answer):
    """The token that a seed draws after query i. The same seed draws the same token."""

    # The reader may add the probabilities up to the random number.
    exact = True
    i: int
    seed: int
    drawn: DrawnToken


@dataclass(frozen=True)
class WriteAnswer(Answer):
    """Tokens that a GPT draws one after the other behind its text.

    seed    the k-th token is drawn by the seed's k-th random number, those of `after` counted
    ended   "end" where the model ended the text, "length" where it can read no more; else null
    """

    exact = True
    seed: int
    drawn: Sequence[DrawnToken]
    ended: str | None


@torch.no_grad()
def draw(request: RunRequest) -> DrawAnswer:
    """Answer the token that a seed draws after query i, the last by default, from the distribution
    that `output` shows.
    """
    made = _output_of(request.run)
    i = _query(request, made)
    seed = _seed(request)
    p = _probabilities(made.logits(i).double(), request)
    found = draw_token(p, random_number(seed, 0))
    return DrawAnswer(
        i,
        seed,
        DrawnToken(
            found.token,
            made.name_of(i, found.token),
            made.text_of(i, found.token),
            float(p[found.token]),
            found.u,
            found.below,
        ),
    )


@torch.no_grad()
def write_on(request: RunRequest) -> WriteAnswer:
    """Answer the next tokens that a seed draws behind the text of a GPT and the tokens `after`: at
    most 16.
    """
    made = _output_of(request.run)
    model = made.model
    if not isinstance(model, GPT):
        raise not_kept(
            "a translator writes until its sentence ends, and has done so: draw a token at one of "
            "its pieces instead"
        )
    seed = _seed(request)
    count = request.number("count", MOST_WRITTEN)
    if not 1 <= count <= MOST_WRITTEN:
        raise bad_parameter(
            f"count={count} tokens cannot be drawn at once; 1 to {MOST_WRITTEN} can"
        )
    before = request.parameters.get("after", "")
    if DRAWN_BEFORE.fullmatch(before) is None:
        raise bad_parameter("after= takes at most 512 ids of tokens, such as 12,7,340")
    after = [int(token) for token in before.split(",") if token]
    if any(token >= model.config.vocabulary for token in after):
        raise bad_parameter(f"after= has an id beyond {model.config.vocabulary - 1:,}, the last")

    drawn: list[DrawnToken] = []
    ended = None
    ids = [*made.ids, *after]
    device = next(model.parameters()).device
    while len(drawn) < count and ended is None:
        if len(ids) >= model.longest:
            ended = "length"
            break
        # One model is edited at a time, and this run must not be.
        with EDITING:
            state = model.hidden(torch.tensor([ids], device=device))[:, -1:]
        p = _probabilities(model.logits(state)[0, 0].double(), request)
        found = draw_token(p, random_number(seed, len(ids) - len(made.ids)))
        if found.token in model.special.end:
            ended = "end"
            break
        text = made.added_text(ids, found.token)
        name = made.label(found.token, text)
        drawn.append(
            DrawnToken(found.token, name, text, float(p[found.token]), found.u, found.below)
        )
        ids.append(found.token)
    return WriteAnswer(seed, drawn, ended)


def _seed(request: RunRequest) -> int:
    seed = request.number("seed", 0)
    if not 0 <= seed < MOST_SEEDS:
        raise bad_parameter(f"seed={seed} is none; 0 to {MOST_SEEDS - 1:,} are")
    return seed
