"""Writing on, token by token: greedy or sampled. One loop for every model, whether it is streamed or not."""

import logging
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..models import Model
from . import request
from .line import TextLine, Token, Written
from .sampling import Chooser, Filter, min_p, seen_in, temperature, top_k, top_p
from .writers import Prompt, Prompts, Writer, start


def generate(
    model: Model,
    prompts: Prompts,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    end: Sequence[int] | None = None,
) -> list[Written]:
    """What the model writes behind each prompt: a GPT goes on, a translator translates.

    prompts      a text or a list of ids, several of them, or a tensor (batch, n)
    temperature  0 is greedy: the likeliest token, every time
    top_k, top_p, min_p, repetition_penalty  see `choose`; what they leave out is never drawn
    seed         prompt i is drawn with seed + i: alone, with that seed, it is written on in the same way
    stop         texts at which to stop; they are not part of what is returned
    end          ids at which to end, model.special.end unless given; the id of padding is never written

    Prompts may differ in length, each gets what it gets alone.
    """
    lines: list[TextLine] = []
    how = _how(temperature, top_k, top_p, min_p)
    for _ in _steps(model, prompts, lines, max_new_tokens, how, repetition_penalty, seed, stop, end):
        pass
    return [line.written() for line in lines]


def stream(
    model: Model,
    prompt: Prompt,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    end: Sequence[int] | None = None,
) -> Iterator[Token]:
    """What `generate` writes behind one prompt, each token as soon as it is there; see there."""
    how = _how(temperature, top_k, top_p, min_p)
    request.one(prompt)
    steps = _steps(model, prompt, [], max_new_tokens, how, repetition_penalty, seed, stop, end)
    return (tokens[0] for tokens in steps)


def _how(t: float, k: int | None, p: float, at_least: float) -> list[Filter] | None:
    """The filters, in this order; None is greedy."""
    request.sampling(temperature=t, top_k=k, top_p=p, min_p=at_least)
    if t == 0.0:
        return None
    filters = [temperature(t)] if t != 1.0 else []
    filters += [top_k(k)] if k is not None else []
    filters += [top_p(p)] if p < 1.0 else []
    return filters + ([min_p(at_least)] if at_least > 0.0 else [])


def _steps(
    model: Model,
    prompts: Prompts,
    lines: list[TextLine],
    max_new_tokens: int,
    filters: list[Filter] | None,
    repetition_penalty: float,
    seed: int,
    stop: str | Sequence[str],
    end: Sequence[int] | None,
) -> Iterator[list[Token]]:
    """Everything is looked at now; then each step writes a token on every line that goes on."""
    asked = request.asked(model, prompts, max_new_tokens, end, stop)
    request.penalty(repetition_penalty)
    lines += [TextLine(model.tokenizer, ids, asked.end, asked.stop, max_new_tokens) for ids in asked.before]
    noise = drawn(len(lines), max_new_tokens, seed)

    def write() -> Iterator[list[Token]]:
        if not lines or not max_new_tokens:
            return
        with torch.no_grad():
            writer = start(model, asked.prompts, max_new_tokens - 1)
            seen = seen_in(asked.seen, asked.vocabulary, writer.logits.device) if repetition_penalty != 1.0 else None
            chooser = Chooser(filters, forbidden=asked.forbidden, repetition_penalty=repetition_penalty, seen=seen)
        yield from _write(writer, chooser, lines, noise.to(writer.logits.device))

    return write()


def _write(
    writer: Writer, chooser: Chooser, lines: list[TextLine], noise: Float[Tensor, "rows steps"]
) -> Iterator[list[Token]]:
    rows = list(lines)  # which line each row writes; one that has ended is carried along until half of them have
    fixed = writer.fix() if worthwhile(writer.model, noise.device, noise.shape[1]) else None

    def plainly(tokens: Int[Tensor, " rows"], noise: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        return chooser(writer.step(tokens), noise)

    step = plainly if fixed is None else CapturedFunction(plainly, [*fixed, *chooser.state])
    with torch.no_grad():
        tokens = chooser(writer.logits, noise[:, 0])
    for i in range(1, noise.shape[1] + 1):
        yield [line.add(token) for line, token in zip(rows, tokens.tolist(), strict=True) if line.why is None]
        open_rows = [row for row, line in enumerate(rows) if line.why is None]
        if not open_rows:
            return
        with torch.no_grad():
            if 2 * len(open_rows) <= len(rows) and fixed is None:
                kept = torch.tensor(open_rows, device=tokens.device)
                writer.reorder(kept, kept)
                chooser.keep(kept)
                rows, tokens, noise = [rows[row] for row in open_rows], tokens[kept], noise[kept]
            tokens = step(tokens, noise[:, i])


def drawn(rows: int, steps: int, seed: int) -> Float[Tensor, "rows steps"]:
    """Numbers from 0 to 1, those of each row from its own seed: what it becomes depends on no other row."""
    noise = torch.empty(rows, steps)
    for i, row in enumerate(noise):
        row.copy_(torch.rand(steps, generator=torch.Generator().manual_seed(seed + i)))
    return noise


logger = logging.getLogger(__name__)

STEPS = 16  # capturing takes as long as a few plain steps, so a few more must follow


class CapturedFunction:
    """The same function, captured when it is first called, with tensors of the same shapes ever after.

    `state` is what it writes into beside its cache: a first run, which CUDA wants, must leave no trace there. What it
    returns is overwritten by the next call. Where capturing fails it runs as it is; `why` then says the reason, and so
    does the log.
    """

    def __init__(self, function: Callable[..., Tensor], state: Sequence[Tensor]) -> None:
        self.function, self.state = function, state
        self.graph: torch.cuda.CUDAGraph | None = None
        self.why: str | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.graph is None and self.why is None:
            self._capture(inputs)
        if self.graph is None:
            return self.function(*inputs)
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        self.graph.replay()
        return self.output

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        before = [tensor.clone() for tensor in self.state]
        self.inputs = [tensor.clone() for tensor in inputs]
        graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                self.function(*self.inputs)
            here.wait_stream(aside)
            with torch.cuda.graph(graph):
                self.output = self.function(*self.inputs)
            self.graph = graph
        except RuntimeError as problem:
            self.why = str(problem).strip().split("\n")[0]
            logger.info("a decoding step could not be captured and runs plainly: %s", self.why)
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)


def worthwhile(model: nn.Module, device: torch.device, steps: int) -> bool:
    """Whether there is a GPU and enough to do. Hooks, which look at every step, run in Python: so must the step."""
    if device.type != "cuda" or steps < STEPS:
        return False
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
