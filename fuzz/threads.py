"""One model, six threads that enter and leave blocks all the time: two edit, two watch, two run the
model as it is.

A case is one model with some hundred forward passes and a few generated texts, in threads that
Python switches between as often as it can. Each thread draws its own order. What a thread computes
inside its block is what the same block computes alone: the same bits of the output and, of a watch,
the same numbers of the recording. What comes out wrong is any exception, any other number, and a
model that is not as it was when all threads have ended.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread
from traceback import format_exception
from typing import Any

import torch
from torch import Tensor, nn

from .supervisor import Done, WrongError

UNIT = "passes"
SECONDS = 120.0  # that one case may take of a core
HUNG = 300.0  # seconds by the clock, on a machine that has other things to do
BYTES = None

PASSES = 40  # of each thread in a case
ROLES = ("edit", "edit", "watch", "watch", "plain", "plain")
SWITCH = 1e-6  # seconds after which Python may run another thread
LENGTHS = (3, 5, 8)  # of the texts, which differ so that one thread's masks do not fit another's
NEW = 3  # tokens of a generated text


@dataclass(frozen=True)
class Subject:
    """A model, and what can be done with it. A task returns the output of one pass, or the tokens
    of one text.
    """

    model: nn.Module
    tasks: list[Callable[[], Tensor]]
    edits: list[Any]


@dataclass(frozen=True)
class Truth:
    """What each task returns in one thread: as it is, watched with these numbers, and edited by
    each edit.
    """

    plain: list[Tensor]
    numbers: list[list[Tensor]]
    edited: list[list[Tensor]]


def prepare() -> None:
    """Compile what is compiled at first use, and import transformers."""
    for kind in KINDS:
        find_truth(make_subject(kind, Random(0)))


def run(dice: Random, folder: Path) -> Done:
    """Run one case; raise a WrongError if a thread failed or the model was not restored."""
    kind = dice.choice(KINDS)
    subject = make_subject(kind, dice)
    before = settings_of(subject.model)
    truth = find_truth(subject)
    problems: list[BaseException] = []
    with switching_often():
        threads = [
            Thread(target=act, args=(role, subject, truth, Random(dice.random()), problems))
            for role in ROLES
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for problem in problems:
        raise WrongError(f"{kind}: {problem!r}") from problem
    after = settings_of(subject.model)
    if after != before:
        raise WrongError(f"{kind}: the model had {before} and has {after}")
    return Done(kind, units=PASSES * len(ROLES))


@contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# --------------------------------------------------------------------------------------- the models


def make_subject(kind: str, dice: Random) -> Subject:
    return (own_subject if kind == "telescope" else their_subject)(kind, dice)


def own_subject(kind: str, dice: Random) -> Subject:
    """Return a GPT of Telescope, with padding in some texts."""
    from telescope.decoding import generate
    from telescope.models import GPT, GPTConfig

    torch.manual_seed(dice.randrange(1000))
    config = GPTConfig(
        vocabulary=61,
        max_positions=16,
        d_model=16,
        blocks=2,
        heads=4,
        key_heads=2,
        positions="rotary",
    )
    model = GPT(config).eval()
    texts = [draw_ids(dice, length) for length in LENGTHS]
    tasks: list[Callable[[], Tensor]] = [lambda ids=ids: model(ids) for ids in texts]  # type: ignore[misc]
    prompt = texts[0].tolist()

    def write() -> Tensor:
        return torch.tensor(
            [
                text.ids
                for text in generate(model, prompt, max_new_tokens=NEW, temperature=0.0, end=())
            ]
        )

    return Subject(model, [*tasks, write], draw_edits(model, dice))


def their_subject(kind: str, dice: Random) -> Subject:
    """Return a model of transformers, with padding in some texts."""
    from support.watched import FAMILIES

    model: Any = FAMILIES[kind].model(dice.choice(("sdpa", "eager"))).eval()
    tasks: list[Callable[[], Tensor]] = []
    for length in LENGTHS:
        ids = draw_ids(dice, length)
        kept = torch.ones_like(ids)
        if dice.random() < 0.5:
            kept[0, -1 if kind == "bert" else 0] = 0
        tasks.append(lambda ids=ids, kept=kept: model(ids, attention_mask=kept).logits)  # type: ignore[misc]
    if kind != "bert":
        prompt = draw_ids(dice, LENGTHS[0])
        options = {
            "max_new_tokens": NEW,
            "min_new_tokens": NEW,
            "do_sample": False,
            "pad_token_id": 0,
        }
        tasks.append(
            lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        )
    return Subject(model, tasks, draw_edits(model, dice))


def draw_ids(dice: Random, length: int) -> Tensor:
    return torch.tensor([[dice.randrange(1, 61) for _ in range(length)] for _ in range(2)])


def draw_edits(model: nn.Module, dice: Random) -> list[Any]:
    """Return an edit of the context, one of the mask and one of the scores."""
    import telescope as ts

    layer = dice.randrange(2)
    return [
        ts.mute(layer, heads=dice.randrange(3)),
        ts.hide(dice.randrange(LENGTHS[0] - 1), layers=layer),
        ts.boost(0, by=3.0, heads=dice.randrange(3)),
    ]


KINDS = ("telescope", "llama", "gpt2", "bert")


def settings_of(model: nn.Module) -> tuple[Any, ...]:
    """Return what blocks change in a model: its hooks, the attributes of its parts, and its
    settings.
    """
    hooks = [
        kept
        for part in model.modules()
        for name, kept in vars(part).items()
        if "hook" in name and kept
    ]
    names = [sorted(vars(part)) for part in model.modules()]
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    generation = getattr(getattr(model, "generation_config", None), "disable_compile", None)
    return hooks, names, type(implementation), implementation, generation


# ---------------------------------------------------------------------------------- what threads do


@torch.no_grad()
def find_truth(subject: Subject) -> Truth:
    """Run every task in this thread alone: as it is, watched, and edited by each edit."""
    import telescope as ts

    plain = [task().clone() for task in subject.tasks]
    numbers = [watch(subject, task)[1] for task in subject.tasks]
    edited = []
    for edit in subject.edits:
        with ts.edit(subject.model, edit):
            edited.append([task().clone() for task in subject.tasks])
    return Truth(plain, numbers, edited)


def watch(subject: Subject, task: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a watched task, and the numbers of its recording."""
    import telescope as ts

    with ts.watch(subject.model) as recording:
        output = task()
    return output, [
        number
        for one in recording.values()
        for number in (one.received, one.entropy, one.top.weights)
    ]


def act(
    role: str, subject: Subject, truth: Truth, dice: Random, problems: list[BaseException]
) -> None:
    """Run the passes of one thread, in blocks of one to three; put what went wrong into
    `problems`.
    """
    torch.set_num_threads(1)  # threads have settings of their own
    done = 0
    try:
        with torch.no_grad():
            while done < PASSES and not problems:
                tasks = [
                    dice.randrange(len(subject.tasks))
                    for _ in range(min(dice.randint(1, 3), PASSES - done))
                ]
                ACTS[role](subject, truth, tasks, dice)
                done += len(tasks)
    except BaseException as problem:
        problem.add_note("".join(format_exception(problem)))
        problems.append(problem)


def act_plain(subject: Subject, truth: Truth, tasks: list[int], dice: Random) -> None:
    for number in tasks:
        expect_equal("an output of the plain model", subject.tasks[number](), truth.plain[number])


def act_edit(subject: Subject, truth: Truth, tasks: list[int], dice: Random) -> None:
    import telescope as ts

    which = dice.randrange(len(subject.edits))
    with ts.edit(subject.model, subject.edits[which]):
        for number in tasks:
            expect_equal(
                f"an output of {subject.edits[which]}",
                subject.tasks[number](),
                truth.edited[which][number],
            )


def act_watch(subject: Subject, truth: Truth, tasks: list[int], dice: Random) -> None:
    for number in tasks:
        output, numbers = watch(subject, subject.tasks[number])
        expect_equal("an output of the watched model", output, truth.plain[number])
        if len(numbers) != len(truth.numbers[number]):
            raise WrongError(
                f"{len(numbers)} numbers were recorded, not {len(truth.numbers[number])}"
            )
        for one, expected in zip(numbers, truth.numbers[number], strict=True):
            expect_equal("a number of the recording", one, expected)


ACTS = {"plain": act_plain, "edit": act_edit, "watch": act_watch}


def expect_equal(what: str, value: Tensor, expected: Tensor) -> None:
    if value.shape != expected.shape:
        raise WrongError(f"{what} has the shape {tuple(value.shape)}, not {tuple(expected.shape)}")
    if not torch.equal(value, expected):
        raise WrongError(
            f"{what} is off by {(value.double() - expected.double()).abs().max().item():.2g}"
        )
