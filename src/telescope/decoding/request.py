"""What is asked of a model, looked at before anything is computed: if it does not fit, one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..models import GPT, Model, Transformer
from .writers import Prompts, must_start, must_write, read


@dataclass(frozen=True)
class GenerationRequest:
    """The prompts as ids, and what they mean to this model.

    before     what each line of text goes on from: the prompt, or nothing if it is a source
    seen       which tokens have been written when it begins
    forbidden  tokens that mean nothing as text
    """

    prompts: list[list[int]]
    before: list[list[int]]
    seen: list[list[int]]
    vocabulary: int
    end: tuple[int, ...]
    stop: tuple[str, ...]
    forbidden: tuple[int, ...]


def asked(
    model: Model,
    prompts: Prompts,
    max_new_tokens: int,
    end: Sequence[int] | None = None,
    stop: str | Sequence[str] = (),
) -> GenerationRequest:
    must_write(model)
    _count("max_new_tokens", max_new_tokens, least=0)
    goes_on, sizes = isinstance(model, GPT), model.config.to_dict()
    ids = read(model, prompts, sizes["vocabulary"], "prompt" if goes_on else "source")
    _fits(model, ids, max_new_tokens)
    vocabulary = sizes.get("target_vocabulary") or sizes["vocabulary"]
    end = model.special.end if end is None else tuple(end)
    for token in end:
        if not 0 <= token < vocabulary:
            raise ValueError(f"end has the id {token}; the vocabulary is 0 to {vocabulary - 1}")
    pad = model.special.pad
    return GenerationRequest(
        prompts=ids,
        before=ids if goes_on else [[] for _ in ids],
        seen=ids if goes_on else [[must_start(model)] for _ in ids],
        vocabulary=vocabulary,
        end=end,
        stop=_stop(model, stop),
        forbidden=() if pad is None or pad in end or pad >= vocabulary else (pad,),
    )


def _fits(model: Model, prompts: list[list[int]], new: int) -> None:
    """The last token is not read any more, so it needs no position."""
    longest = max(map(len, prompts), default=0)
    if isinstance(model, GPT):
        ends = model.config.positions == "learned" or model.config.attention == "synthesizer"
        if ends and longest + max(new - 1, 0) > model.longest:
            fits = model.longest - longest + 1
            way = f"at most max_new_tokens={fits} fit" if fits > 0 else "shorten it"
            raise ValueError(
                f"a prompt of {longest} tokens and max_new_tokens={new} are too many: "
                f"this model has positions for {model.longest}; {way}"
            )
    if isinstance(model, Transformer) and model.config.positions == "learned":
        most = model.config.max_positions
        if longest > most or new > most:
            raise ValueError(
                f"a source of {longest} tokens and max_new_tokens={new}: this model has positions for {most} of each"
            )


def _stop(model: Model, stop: str | Sequence[str]) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"stop={stop!r} should be texts of at least one character")
    if texts and model.tokenizer is None:
        raise ValueError("stop is text, but the model has no tokenizer; end=[...] stops at ids")
    return texts


def one(prompt: Any) -> None:
    """A text or ids, not several of them."""
    ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if not isinstance(ids, str) and any(not isinstance(i, int) for i in ids):
        raise ValueError("stream writes behind one prompt, a text or a list of ids; generate takes several")


def sampling(*, temperature: float, top_k: int | None, top_p: float, min_p: float) -> None:
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be 0, which is greedy, or a number above")
    if top_k is not None:
        _count("top_k", top_k, least=1)
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p={top_p} is a probability above 0, up to 1, which leaves out nothing")
    if not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p={min_p} is a share from 0, which leaves out nothing, to 1")


def penalty(repetition_penalty: float) -> None:
    if not 0.0 < repetition_penalty < float("inf"):
        raise ValueError(f"repetition_penalty={repetition_penalty} must be above 0; 1 is none")


def searching(*, beams: int, n_best: int, length_penalty: float) -> None:
    _count("beams", beams, least=1)
    _count("n_best", n_best, least=1)
    if n_best > beams:
        raise ValueError(f"n_best={n_best} of beams={beams} are too many; a search finds at most one for each beam")
    if not abs(length_penalty) < float("inf"):
        raise ValueError(f"length_penalty={length_penalty} must be a finite number; 0 is none")


def _count(name: str, number: Any, least: int) -> None:
    if type(number) is not int or number < least:
        raise ValueError(f"{name}={number} must be a whole number, at least {least}")
