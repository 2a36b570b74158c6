"""The answer about what a model writes next: the likeliest tokens, after temperature, top-k and
top-p.
"""

import re
from math import exp
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..decoding import Choices, largest, temperature, top_k, top_p
from ..traces import Words
from .output import Output, log_probability
from .requests import RequestParams, bad_parameter, not_kept
from .run import Run

SHOWN = 10  # candidates in one answer
DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?", re.ASCII)


def output(run: Run, params: RequestParams) -> dict[str, Any]:
    """Answer GET /runs/{run}/output: the ten likeliest next tokens after a query."""
    made = run.output
    if made is None:
        raise not_kept(
            "this run has no output: a recording keeps attentions, not what the model wrote"
        )
    i = params.index("i", len(made.hidden), "query", len(made.hidden) - 1)
    logits = made.logits(i).double()
    p = _probabilities(logits, params)
    found, tokens = largest(logits[None], SHOWN)
    return {
        "i": i,
        "n": len(made.hidden),
        "kind": made.kind,
        "vocabulary": len(logits),
        "chosen": made.name_of(i, made.written[i]) if made.written else None,
        "word": None if made.words is None else _word(made, made.words, i, params),
        "candidates": [
            {
                "id": token,
                "text": made.name_of(i, token),
                "append": made.text_of(i, token),
                "logit": logit,
                "p": float(p[token]),
            }
            for token, logit in zip(tokens[0].tolist(), found[0].tolist(), strict=True)
        ],
        "kept": int((p > 0).sum()),
    }


def _word(made: Output, words: Words, i: int, params: RequestParams) -> dict[str, Any]:
    """Return the written word of query i, with its probability and those of its tokens, after the
    same settings.
    """
    number = words.word_ids[i]
    queries = words.positions(number)
    tokens = [made.written[query] for query in queries]
    p = torch.stack([_probabilities(made.logits(query).double(), params) for query in queries])
    pieces = zip(queries, tokens, p, strict=True)
    return {
        "name": words.names[number],
        "p": exp(log_probability(p.log(), tokens)),
        "pieces": [
            {"i": query, "text": words.pieces[query], "p": float(row[token])}
            for query, token, row in pieces
        ],
    }


def _probabilities(
    logits: Float[Tensor, " vocabulary"], params: RequestParams
) -> Float[Tensor, " vocabulary"]:
    """Return the probability of each token after temperature, top_k and top_p; 0 for a token that
    is left out.
    """
    kept, ids = _filtered(logits, params)
    probabilities = kept.softmax(-1)[0]
    return (
        probabilities if ids is None else torch.zeros_like(logits).scatter(0, ids[0], probabilities)
    )


def _filtered(logits: Float[Tensor, " vocabulary"], params: RequestParams) -> Choices:
    """Return the logits that temperature, top_k and top_p leave."""
    heat = _decimal(params, "temperature", 1.0)
    share = _decimal(params, "top_p", 1.0)
    most = params.number("top_k", 0)
    if not 0.01 <= heat <= 100 or not 0 < share <= 1 or most < 0:
        raise bad_parameter(
            "temperature is from 0.01 to 100, top_p above 0 and at most 1, top_k at least 0"
        )
    choices: Choices = (logits[None], None)
    for apply in (
        temperature(heat),
        *([top_k(most)] if most else []),
        *([top_p(share)] if share < 1 else []),
    ):
        choices = apply(choices)
    return choices


def _decimal(params: RequestParams, name: str, default: float) -> float:
    text = params.parameters.get(name)
    if text is None:
        return default
    if not DECIMAL.fullmatch(text):
        raise bad_parameter(f'{name}="{text[:40]}" is not a number such as 0.8')
    return float(text)
