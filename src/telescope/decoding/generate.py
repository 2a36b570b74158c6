"""Greedy decoding and sampling, token by token: one loop for every model, streamed or not."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..layers import OnlyReal, StepsToFollow, step_observers
from ..models import Model
from ..words import suggests
from . import request
from .request import TextLine, Token, Written
from .sampling import Filter, TokenChooser, mark_seen, min_p, temperature, top_k, top_p
from .writers import Prompt, Prompts, Writer, start_writer

# What others call the options, and ours.
GUESSES = {
    "max_tokens": "max_new_tokens=",
    "max_length": "max_new_tokens=",
    "num_beams": "ts.decoding.beam(model, prompts, beams=...)",
    "beams": "ts.decoding.beam(model, prompts, beams=...)",
    "do_sample": "temperature=0 for the likeliest token, or a temperature above",
    "greedy": "temperature=0",
    "stop_strings": "stop=",
    "eos_token_id": "end=",
}


@suggests("generate", **GUESSES)
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
    """Generate a text for each prompt: a GPT continues the prompt, a translator translates it.

    Prompts may differ in length. Each gets the text that it would get alone with its own seed.

    Args:
        model: a GPT, Transformer, LuongTranslator or any model with a registered writer.
        prompts: a text or a list of ids, several of them, or an int64 tensor (batch, n).
        max_new_tokens: longest text, in tokens.
        temperature: logits are divided by it; 0 is greedy: always the likeliest token.
        top_k: sample from the k likeliest tokens only.
        top_p: sample from the fewest tokens whose probabilities sum to p.
        min_p: sample from tokens at least p times as likely as the likeliest.
        repetition_penalty: positive logits of tokens seen before are divided by it, negative ones
            multiplied.
        seed: prompt i is sampled with seed + i.
        stop: texts at which to stop; they are not part of the returned text.
        end: ids that end a text, model.special.end unless given; the id of padding is never chosen.

    Raises:
        ValueError, TypeError: if the model cannot decode, or if a prompt or an option does not fit
            the model.

    Example:
        >>> from telescope.decoding import generate
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(
        ...     GPTConfig(vocabulary=8, max_positions=16, d_model=8, blocks=1, heads=2)
        ... )
        >>> first, second = generate(
        ...     model, [[1, 2, 3], [4]], max_new_tokens=5, temperature=0.0
        ... )
        >>> len(first.ids), first.text, first.why
        (5, None, 'length')
    """
    # The steps write into these lines.
    lines: list[TextLine] = []
    filters = _make_filters(temperature, top_k, top_p, min_p)
    for _ in _start_steps(
        model, prompts, lines, max_new_tokens, filters, repetition_penalty, seed, stop, end
    ):
        pass
    return [line.written() for line in lines]


@suggests("stream", **GUESSES)
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
    """Yield the tokens that `generate` would return for one prompt, each as soon as it is chosen.

    The options and errors are those of `generate`. Errors are raised by the call, not by the first
    token.

    Args:
        model: a GPT, Transformer, LuongTranslator or any model with a registered writer.
        prompt: one text or list of ids.
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, end: as in
            `generate`.

    Yields:
        `Token`s, in the order of the text.

    Example:
        >>> from telescope.decoding import stream
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(
        ...     GPTConfig(vocabulary=8, max_positions=16, d_model=8, blocks=1, heads=2)
        ... )
        >>> len([token.id for token in stream(model, [1, 2, 3], max_new_tokens=5)])
        5
    """
    filters = _make_filters(temperature, top_k, top_p, min_p)
    # Checked in the call, not when the first token is asked for.
    request.check_one_prompt(prompt)
    steps = _start_steps(
        model, prompt, [], max_new_tokens, filters, repetition_penalty, seed, stop, end
    )
    return (tokens[0] for tokens in steps)


def _make_filters(t: float, k: int | None, p: float, least_p: float) -> list[Filter] | None:
    """Check the sampling options and return their filters, in the order of application; None is
    greedy.
    """
    request.check_sampling(temperature=t, top_k=k, top_p=p, min_p=least_p)
    if t == 0.0:
        return None
    # What changes nothing is left out, so that the plain case stays fast.
    filters = [temperature(t)] if t != 1.0 else []
    filters += [top_k(k)] if k is not None else []
    filters += [top_p(p)] if p < 1.0 else []
    return filters + ([min_p(least_p)] if least_p > 0.0 else [])


def _start_steps(
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
    """Check the request, add a line for each prompt to `lines`, and return an iterator over
    decoding steps.

    Each step appends a token to every unfinished line and yields these tokens. The model first runs
    at the first step.
    """
    checked = request.check_request(model, prompts, max_new_tokens, end, stop)
    request.check_repetition_penalty(repetition_penalty)
    lines += [
        TextLine(model.tokenizer, ids, checked.end, checked.stop, max_new_tokens)
        for ids in checked.before
    ]
    # Drawn before the first step, so that no number depends on which rows end.
    noise = draw_noise(len(lines), max_new_tokens, seed)

    def steps() -> Iterator[list[Token]]:
        if not lines or not max_new_tokens:
            return
        with torch.no_grad():
            writer = start_writer(model, checked.prompts, max_new_tokens - 1)
            device = writer.logits.device
            seen = None
            if repetition_penalty != 1.0:
                seen = mark_seen(checked.seen, checked.vocabulary, device)
            chooser = TokenChooser(filters, checked.forbidden, repetition_penalty, seen)
        yield from _run_steps(writer, chooser, lines, noise.to(device))

    return steps()


def _run_steps(
    writer: Writer, chooser: TokenChooser, lines: list[TextLine], noise: Float[Tensor, "rows steps"]
) -> Iterator[list[Token]]:
    """Decode until all lines have ended or the noise is used up; yield the new tokens of each
    step.
    """
    rows = list(lines)  # the line of each row; finished rows are dropped once they are half of all
    with torch.no_grad():
        tokens = chooser(writer.logits, noise[:, 0])
    # With hooks all rows are kept, so that a hook sees one batch from beginning to end.
    observed = has_hooks(writer.model)
    capture = is_worth_capturing(noise.device, noise.shape[1])
    # A graph runs no hooks: capture a step only if what observes the model can do without.
    follower = None
    if capture and observed:
        read = getattr(writer.cache, "length", None)
        if isinstance(read, int):
            real = partial(_unended, rows)
            follower = step_observers.follow(StepsToFollow(writer.model, read, tokens, real))
        capture = follower is not None
    fixed = writer.fix_shapes() if capture else None

    def run_eagerly(
        tokens: Int[Tensor, " rows"], noise: Float[Tensor, " rows"]
    ) -> Int[Tensor, " rows"]:
        # Hooks learn which rows have ended and are only carried along.
        with OnlyReal(_unended(rows, i) if observed else None):
            logits = writer.step(tokens)
        return chooser(logits, noise)

    def run_followed(
        tokens: Int[Tensor, " rows"], noise: Float[Tensor, " rows"]
    ) -> Int[Tensor, " rows"]:
        assert follower is not None
        with follower.running(tokens):
            logits = writer.step(tokens)
        return chooser(logits, noise)

    def choose_step() -> Callable[..., Tensor]:
        if fixed is None or (observed and follower is None):
            return run_eagerly
        state = [*fixed, *chooser.state]
        if follower is None:
            return CapturedFunction(run_eagerly, state)
        return CapturedFunction(
            run_followed, [*state, *follower.state], run_eagerly, follower.count
        )

    step = choose_step()
    changes = step_observers.changes
    try:
        for i in range(1, noise.shape[1] + 1):
            yield [
                line.add(token)
                for line, token in zip(rows, tokens.tolist(), strict=True)
                if line.why is None
            ]
            open_rows = [row for row, line in enumerate(rows) if line.why is None]
            if not open_rows:
                return
            # A block may have been entered or left since the last step.
            if step_observers.changes != changes:
                changes = step_observers.changes
                is_followed = follower is not None and follower.is_current()
                if follower is not None and not is_followed:
                    follower.close()
                    follower = None
                was_observed = observed
                observed = has_hooks(writer.model)
                if not is_followed and (was_observed or observed):
                    tokens = tokens.clone()  # of the graph that goes
                    step = choose_step()
            with torch.no_grad():
                # Dropping rows copies the cache, which pays once half of them have ended.
                if 2 * len(open_rows) <= len(rows) and fixed is None and not observed:
                    kept = torch.tensor(open_rows, device=tokens.device)
                    writer.reorder(kept, kept)
                    # Cache, penalties, tokens and noise follow the rows that are left.
                    chooser.keep_rows(kept)
                    rows = [rows[row] for row in open_rows]
                    tokens = tokens[kept]
                    noise = noise[kept]
                tokens = step(tokens, noise[:, i])
    finally:
        if follower is not None:
            follower.close()


def _unended(rows: Sequence[TextLine], steps: int) -> Bool[Tensor, "rows token"] | None:
    """Return which tokens of each row count after so many steps, from the one before the first that
    was written; None if all do.

    A row that has ended is fed tokens until all have ended.
    """
    # The last token of a row that has ended was written, and never read.
    last = [len(line.ids) - (line.why is not None) for line in rows]
    if min(last) >= steps:
        return None
    return torch.arange(steps + 1) <= torch.tensor(last)[:, None]


def draw_noise(rows: int, steps: int, seed: int) -> Float[Tensor, "rows steps"]:
    """Return uniform numbers in [0, 1), each row from its own seed, so that no row depends on
    another.
    """
    noise = torch.empty(rows, steps)
    for i, row in enumerate(noise):
        # A generator for each row, on the CPU: the same numbers on every device.
        row.copy_(torch.rand(steps, generator=torch.Generator().manual_seed(seed + i)))
    return noise


logger = logging.getLogger(__name__)

# Capturing takes as long as a few eager steps, so more must follow to repay it.
MIN_CAPTURED_STEPS = 16


class CapturedFunction:
    """A function of tensors that runs as a CUDA graph, captured at its first call; all calls have
    the same shapes.

    state   tensors that the function changes besides its cache: CUDA needs a warm-up run, after
            which they are restored
    eager   runs in the place of the function if capturing fails; the function unless given
    ran     called after each run of the graph

    The returned tensor is overwritten by the next call. If capturing fails, `failure` holds the
    reason, which is also logged.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        state: Sequence[Tensor],
        eager: Callable[..., Tensor] | None = None,
        ran: Callable[[], None] | None = None,
    ) -> None:
        self.function = function
        self.state = state
        self.eager = function if eager is None else eager
        self.ran = ran
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failure: str | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.graph is None and self.failure is None:
            self._capture(inputs)
        if self.graph is None:
            return self.eager(*inputs)
        # A graph reads the tensors that it was captured with.
        for graph_input, given in zip(self.inputs, inputs, strict=True):
            graph_input.copy_(given)
        self.graph.replay()
        if self.ran is not None:
            self.ran()
        return self.output

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        before = [tensor.clone() for tensor in self.state]
        self.inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            # CUDA wants one run on another stream before it captures.
            side.wait_stream(current)
            with torch.cuda.stream(side):
                self.function(*self.inputs)
            current.wait_stream(side)
            with torch.cuda.graph(graph):
                self.output = self.function(*self.inputs)
            self.graph = graph
        except RuntimeError as problem:
            # Decoding goes on eagerly: slower, and right.
            current.wait_stream(side)
            self.failure = str(problem).strip().split("\n")[0]
            logger.debug("a decoding step could not be captured and runs eagerly: %s", self.failure)
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)


def is_worth_capturing(device: torch.device, steps: int) -> bool:
    """Return whether to capture steps: on a GPU, if there are many."""
    return device.type == "cuda" and steps >= MIN_CAPTURED_STEPS


def has_hooks(model: nn.Module) -> bool:
    """Return whether hooks observe a module of the model."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
