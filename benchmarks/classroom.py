"""classroom: forty browsers on one `telescope serve` with the shipped models, five sentences each.

Every browser is a context of one Chromium, with cookies of its own: it opens the link, types a
sentence, looks at what is drawn, thinks, and types the next one. A sentence takes from the submit
until the page has drawn its answer and waits for nothing. Chromium draws for all forty on the same
cores as the server, which a class does not: the second half has clients in place of browsers, which
send what the page sends and draw nothing.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter, sleep
from typing import Any, NamedTuple

import torch

from .explore import Client, Server
from .measure import Row, work_before

STUDENTS = 40
SENTENCES = 5
THINK = 60.0  # seconds between two sentences of a student, on average
CLIENTS_THINK = 20.0  # of a client that draws nothing: three times the load
TOKEN = "orion-3-sirius"
BROWSER = "client-of-the-classroom-{}"  # the id of a client's browser
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MODELS = ("translator-en-de", "shakespeare", "summarizer")
WHO = (
    "The teacher",
    "A student",
    "The man",
    "My brother",
    "The old woman",
    "A girl",
    "The dog",
    "Everybody",
)
DOES = ("reads", "sees", "buys", "likes", "forgets", "loses", "finds", "needs")
WHAT = (
    "a book",
    "the red car",
    "two apples",
    "a green hat",
    "the newspaper",
    "a small house",
    "the train",
)

# Type a sentence as a student does, and return the milliseconds until its answer is drawn.
ASK = """async ([text, model]) => {
  const pause = () => new Promise((done) => setTimeout(done, 40));
  const find = () => document.querySelector("form.sentence, form.own");
  while (!find()?.querySelector("select option")) await pause();
  const form = find();
  const set = (field, value, event) => {
    const kind = Object.getPrototypeOf(field);
    Object.getOwnPropertyDescriptor(kind, "value").set.call(field, value);
    field.dispatchEvent(new Event(event, { bubbles: true }));
  };
  set(form.querySelector("input"), text, "input");
  set(form.querySelector("select"), model, "change");
  await pause();
  const began = performance.now();
  form.requestSubmit();
  const isDrawn = () =>
    new URLSearchParams(location.hash.slice(1)).get("text") === text &&
    document.querySelector("main h2, main svg") &&
    !document.querySelector("main .waiting, main .progress") &&
    window.asking === 0;
  for (let still = 0; still < 2; ) {
    await pause();
    const failure = document.querySelector(".failure");
    if (failure) throw new Error(failure.textContent);
    still = isDrawn() ? still + 1 : 0;
    if (performance.now() - began > 120000) throw new Error("nothing was drawn in two minutes");
  }
  return performance.now() - began - 80;
}"""
# How many requests of the page are under way.
COUNT = """() => {
  window.asking = 0;
  const plain = window.fetch;
  window.fetch = async (...asked) => {
    window.asking += 1;
    try {
      const answer = await plain(...asked);
      await answer.clone().arrayBuffer();
      return answer;
    } finally {
      window.asking -= 1;
    }
  };
}"""
LIST = "async () => (await (await fetch('/api/v1/runs')).json()).runs"


class Plan(NamedTuple):
    """How many students type how many sentences, and how long they think, in seconds."""

    students: int
    sentences: int
    think: float
    models: tuple[str, ...] = MODELS


@dataclass
class Lesson:
    """What a class did: the milliseconds of each sentence, what went wrong, how long all of it took,
    the seconds of one core that the server took and that the browsers took, and the server's peak
    memory in MiB.
    """

    times: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    server: float = float("nan")
    browsers: float = 0.0
    mib: float = float("nan")

    def quantile(self, share: float) -> float:
        times = sorted(self.times) or [float("nan")]
        return times[min(len(times) - 1, int(share * len(times)))]


def about(device: torch.device, quick: bool) -> str:
    plan = plan_of(quick)
    alone = plan_of_clients(quick)
    return (
        f"{plan.students} browsers, {plan.sentences} sentences each, {plan.think:g} s to think "
        f"between them; then clients, {alone.think:g} s; {os.cpu_count()} cores for all"
        f"{work_before()}"
    )


def plan_of(quick: bool) -> Plan:
    return Plan(6, 2, 5.0) if quick else Plan(STUDENTS, SENTENCES, THINK)


def plan_of_clients(quick: bool) -> Plan:
    return Plan(6, 2, 2.0) if quick else Plan(STUDENTS, SENTENCES, CLIENTS_THINK)


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    plan = plan_of(quick)
    if CHROMIUM is None:
        yield Row(f"{plan.students} browsers", "page", note="there is no chromium here")
    else:
        with serving() as server:
            lesson = hold(server, plan)
        yield from _rows(f"{plan.students} browsers", plan, lesson)
    plan = plan_of_clients(quick)
    with serving() as server:
        lesson = hold_without_pages(server, plan)
    yield from _rows(f"{plan.students} clients", plan, lesson)


def _rows(case: str, plan: Plan, lesson: Lesson) -> Iterator[Row]:
    many = max(1, len(lesson.times))
    served = f"{len(lesson.times)} of {plan.students * plan.sentences} served"
    wrong = f"{len(lesson.problems)} problems{': ' * bool(lesson.problems)}"
    wrong += "".join(lesson.problems[:1])
    rate = f"{many / lesson.seconds:.2f} sentences a second"
    yield Row(case, "a sentence, p50", lesson.quantile(0.5), note=served)
    yield Row(case, "a sentence, p95", lesson.quantile(0.95), note=wrong)
    yield Row(case, "a sentence, slowest", lesson.quantile(1.0))
    yield Row(case, "server, CPU per sentence", 1e3 * lesson.server / many, lesson.mib, rate)
    if lesson.browsers:
        yield Row(case, "Chromium, CPU per sentence", 1e3 * lesson.browsers / many)


@contextmanager
def serving(*arguments: str, models: tuple[str, ...] = MODELS) -> Iterator[Server]:
    """Run `telescope serve` with the shipped models, or with others if `arguments` name them, and
    yield its address once all are loaded.
    """
    command = [sys.executable, "-m", "telescope.cli", "serve", "--token", TOKEN, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            server = Server(process, process.stdout.readline().strip())
            with Client(server) as client:
                client.must_answer()
                for model in models:
                    _read(client, "Good morning.", model)
            yield server
        finally:
            process.kill()


def _read(client: Client, text: str, model: str) -> Any:
    """Let a model read a text, and return the facts of the run."""
    headers = client.headers | {"Content-Type": "application/json"}
    body = json.dumps({"text": text, "model": model})
    client.line.request("POST", "/api/v1/runs", body, headers)
    response = client.line.getresponse()
    answer = json.loads(response.read())
    if response.status != 201:
        raise RuntimeError(str(answer))
    return answer


def hold_without_pages(server: Server, plan: Plan) -> Lesson:
    """Let clients send what the page sends for each sentence, without drawing it."""
    lesson = Lesson()
    names: dict[int, dict[str, str]] = {}
    port = server.host.rpartition(":")[2]

    def study(student: int) -> None:
        dice = Random(student)
        sleep(dice.uniform(0, plan.think))
        with Client(server) as client:
            client.headers["Cookie"] = f"telescope-{port}-browser={BROWSER.format(student)}"
            for at, text in enumerate(sentences_of(student, plan)):
                sleep(dice.uniform(0.5, 1.5) * plan.think if at else 0.0)
                began = perf_counter()
                model = plan.models[(student + at) % len(plan.models)]
                run = _read(client, text, model)["run"]
                names.setdefault(student, {})[text] = run
                # The list, the likeliest next tokens or words, and the screen that opens.
                first = f"runs/{run}/output?i=0"
                for path in ("runs", first, f"runs/{run}/start", f"runs/{run}/tokens?l=0&axis=k"):
                    status, body, _ = client.get(f"/api/v1/{path}")
                    if status != 200:
                        raise RuntimeError(body[:200].decode())
                lesson.times.append(1e3 * (perf_counter() - began))
            listed = json.loads(client.get("/api/v1/runs")[1])["runs"]
            if {one["text"] for one in listed} != set(sentences_of(student, plan)):
                lesson.problems.append(f"client {student} has another's list")

    def tried(student: int) -> None:
        try:
            study(student)
        except Exception as problem:
            lesson.problems.append(f"client {student}: {problem}")

    def hold() -> Lesson:
        with ThreadPoolExecutor(plan.students) as pool:
            list(pool.map(tried, range(plan.students)))
        return lesson

    return _measured(server, hold)


def hold(server: Server, plan: Plan) -> Lesson:
    """Let a class type its sentences; return what became of them."""
    return _measured(server, lambda: asyncio.run(_hold(server.link, plan, server.process.pid)))


def _measured(server: Server, hold: Callable[[], Lesson]) -> Lesson:
    """Return the lesson that a function holds, with what it took of the server."""
    pid = server.process.pid
    began = perf_counter()
    before = _seconds_of(pid)
    lesson = hold()
    lesson.seconds = perf_counter() - began
    lesson.server = _seconds_of(pid) - before
    status = Path(f"/proc/{pid}/status")
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    lesson.mib = int(peak[1]) / 1024 if peak else float("nan")
    return lesson


def _seconds_of(pid: int) -> float:
    """Return the seconds of a core that a process has taken; NaN where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int, *, without: int) -> list[int]:
    """Return the processes that a process has started, and these in turn, without one of them."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            parents[int(place.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one and child != without]
    return found[1:]


def sentences_of(student: int, plan: Plan) -> list[str]:
    """Return the sentences of a student, which no other has."""
    every = [f"{who} {does} {what}." for what, does, who in product(WHAT, DOES, WHO)]
    return every[student :: plan.students][: plan.sentences]


async def _hold(link: str, plan: Plan, server: int) -> Lesson:
    from playwright.async_api import async_playwright

    lesson = Lesson()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            chromium_sandbox=False,
            args=["--disable-gpu", "--no-first-run"],
        )
        names: dict[int, Mapping[str, str]] = {}
        pages = await asyncio.gather(
            *(
                _study(browser, link, student, plan, lesson, names)
                for student in range(plan.students)
            )
        )
        # When all are done, each looks at its own list, and at a run of its neighbour.
        for student, page in enumerate(pages):
            if page is not None:
                await _check_list(page, student, plan, names, lesson)
        browsers = _descendants(os.getpid(), without=server)
        lesson.browsers = sum(map(_seconds_of, browsers))
    return lesson


async def _study(
    browser: Any,
    link: str,
    student: int,
    plan: Plan,
    lesson: Lesson,
    names: dict[int, Mapping[str, str]],
) -> Any:
    """Open the link in a browser of its own, and type sentence after sentence."""
    dice = Random(student)
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(180_000)
    await context.add_init_script(f"({COUNT})()")
    page = await context.new_page()
    # Students come one after another, and do not think in step.
    await asyncio.sleep(dice.uniform(0, plan.think))
    try:
        await page.goto(link)
        for at, text in enumerate(sentences_of(student, plan)):
            await asyncio.sleep(dice.uniform(0.5, 1.5) * plan.think if at else 0.0)
            model = plan.models[(student + at) % len(plan.models)]
            lesson.times.append(await page.evaluate(ASK, [text, model]))
        names[student] = {run["text"]: run["run"] for run in await page.evaluate(LIST)}
    except Exception as problem:
        lesson.problems.append(f"student {student}: {str(problem)[:200]}")
        return None
    return page


async def _check_list(
    page: Any, student: int, plan: Plan, names: dict[int, Mapping[str, str]], lesson: Lesson
) -> None:
    """Note as a problem what a student's list has of others, or lacks of its own."""
    listed = {run["text"] for run in await page.evaluate(LIST)}
    own = set(sentences_of(student, plan))
    if listed != own:
        lesson.problems.append(f"student {student} sees {sorted(listed ^ own)}")
    neighbour = names.get((student + 1) % plan.students, {}) if plan.students > 1 else {}
    for name in list(neighbour.values())[:1]:
        status = await page.evaluate(f"async () => (await fetch('/api/v1/runs/{name}')).status")
        if status != 404:
            lesson.problems.append(f"student {student} opens a run of another: {status}")
