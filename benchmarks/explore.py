"""explore: the explorer on a long text: `telescope serve` as a process, its page in a browser, and
many clients.

A paint or a jump ends when every visible tile of the requested level is there: exact, or marked as
sampled.
"""

import http.client
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, NamedTuple

import torch

import telescope as ts
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall, KeepOptions

from .measure import Row, work_before

D = 64
WORDS = 256
CLIENTS = 64
JUMPS = 20
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
THERE = ".quality[data-exact]:not([data-missing])"
GO = """async ([path, there]) => {
    const began = performance.now();
    history.pushState(null, "", path);
    dispatchEvent(new PopStateEvent("popstate"));
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    await frame(); await frame(); await frame();
    while (!document.querySelector(there)) await frame();
    return [performance.now() - began, document.querySelector(there).dataset.exact === "1"];
}"""


def about(device: torch.device, quick: bool) -> str:
    return f"a causal head of {D}, bfloat16, recorded with the lse of its rows, or without{work_before()}"


def run(device: torch.device, quick: bool) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        for n in (4_096, 16_384) if quick else (131_072, 1_048_576):
            for sums in (True, False):
                yield from _long(n, recorded(n, Path(folder) / "run.telescope", sums=sums), sums)
        with serving(recorded(4_096, Path(folder) / "run.telescope", sums=True)) as server:
            yield from _many(server, 5.0 if quick else 60.0)


def recorded(n: int, place: Path, *, sums: bool) -> Path:
    """Write a recording as `telescope watch` does, of one head without a model; `sums` adds the lse
    of a fused kernel.

    The keys are those of 256 words, so that the lse is quickly computed: from how often each word
    has occurred so far.
    """
    dice = torch.Generator().manual_seed(0)
    words = torch.randn(WORDS, D, generator=dice).bfloat16()
    ids = torch.randint(WORDS, (n,), generator=dice)
    queries = torch.randn(n, D, generator=dice).bfloat16()
    keys = words[ids]
    attention = ts.Attention(mask=ts.causal)
    count = torch.zeros(WORDS)
    parts = []
    for rows in torch.arange(n).split(2**16) if sums else ():
        came = count + torch.nn.functional.one_hot(ids[rows], WORDS).cumsum(0)
        scores = queries[rows].float() @ words.float().T * attention.scale_for(D)
        parts.append(torch.logsumexp(scores + came.log(), -1))
        count = came[-1]
    recording = Recording(
        "Made", ["blocks.0.self"], "queries-keys", KeepOptions(), lambda ids: f"w{ids[0]}"
    )
    ran = AttentionCall(
        queries[None, None],
        keys[None, None],
        keys[None, None, :, :1],
        attention,
        (0,),
        0.0,
        query_ids=ids[None],
    )
    recording._record(
        "blocks.0.self", ran._replace(lse=torch.cat(parts)[None, None] if sums else None)
    )
    recording.save(place, replace=True)
    return place


class Server(NamedTuple):
    process: subprocess.Popen[str]
    link: str

    @property
    def host(self) -> str:
        return self.link.split("/")[2]

    @property
    def token(self) -> str:
        return self.link.rpartition("token=")[2]

    @property
    def mib(self) -> float:
        """The server's private memory in MiB. Pages mapped from a file belong to the recording, and
        can be evicted.
        """
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        result = re.search(r"RssAnon:\s+(\d+)", status)
        return int(result[1]) / 1024 if result else float("nan")

    @property
    def run(self) -> str:
        return self.link.split("/s/")[1].split("/")[0]


@contextmanager
def serving(*places: Path) -> Iterator[Server]:
    """Run `telescope serve` and yield its address once it is printed."""
    command = [sys.executable, "-m", "telescope.cli", "serve", *map(str, places)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            link = process.stdout.readline().strip()
            if not link.startswith("http://"):
                raise RuntimeError(process.stderr.read())
            server = Server(process, link)
            with Client(server) as client:
                client.must_answer()
            yield server
        finally:
            process.kill()


class Client:
    """One connection that stays open, as that of a browser does."""

    def __init__(self, server: Server) -> None:
        self.line = http.client.HTTPConnection(server.host, timeout=60)
        self.headers = {"Authorization": f"Bearer {server.token}"}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *problem: object) -> None:
        self.line.close()

    def get(self, path: str) -> tuple[int, bytes, http.client.HTTPResponse]:
        self.line.request("GET", path, headers=self.headers)
        response = self.line.getresponse()
        return response.status, response.read(), response

    def must_answer(self) -> None:
        for _ in range(500):
            try:
                self.get("/healthz")
            except OSError:
                self.line.close()
                sleep(0.02)
            else:
                return
        raise RuntimeError("the server does not answer")


# ----------------------------------------------------------------------------------------- one page


def _long(n: int, place: Path, sums: bool) -> Iterator[Row]:
    case = f"{n:,}, {'lse' if sums else 'no lse'}"
    began = perf_counter()
    ts.open(place)
    yield Row(case, "ts.open", 1e3 * (perf_counter() - began))
    with serving(place) as server:
        before = server.mib
        with _page(server) as (page, first):
            if page is None:
                yield Row(case, "page", note="there is no chromium here, or no playwright")
                return
            yield Row(case, "first paint", first)
            for name, jump in (("jump anywhere", jumps(n)), ("pan", pans(n))):
                result = [
                    page.evaluate(GO, [f"/s/{server.run}/map?l=0&h=0&{where}", THERE])
                    for where in jump
                ]
                times = [ms for ms, _ in result]
                exact = sum(whole for _, whole in result)
                shown = f"{exact} exact, {len(result) - exact} marked as sampled"
                yield Row(case, f"{name}, median of {len(result)}", median(times), note=shown)
                yield Row(case, f"{name}, slowest", max(times), server.mib - before)


@contextmanager
def _page(server: Server) -> Iterator[tuple[Any, float]]:
    """Yield the map in a browser, and how many milliseconds it took to appear."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield None, 0.0
        return
    if CHROMIUM is None:
        yield None, 0.0
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=False, args=["--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://{server.host}/healthz")  # the browser's own start is not the page's
        began = perf_counter()
        page.goto(server.link.replace("/heads", "/map"))
        page.locator(THERE).wait_for()
        yield page, 1e3 * (perf_counter() - began)
        browser.close()


def jumps(n: int, many: int = JUMPS) -> Iterator[str]:
    """Return random positions below the diagonal, at zooms from the whole map to single cells."""
    dice = Random(n)
    closest = _deepest(n) + 5.6
    for _ in range(many):
        y = dice.uniform(0, n)
        yield f"x={dice.uniform(0, y):.1f}&y={y:.1f}&z={dice.uniform(0.5, closest):.3f}"


def pans(n: int, many: int = 10) -> Iterator[str]:
    """Return positions a third of a view apart along the diagonal, where a pixel is four cells
    wide.
    """
    for step in range(many):
        yield f"x={n / 2 + 800 * step:.1f}&y={n / 2 + 800 * step:.1f}&z={_deepest(n) - 2}"


def _deepest(n: int) -> int:
    return ((n - 1) // 256).bit_length()


# --------------------------------------------------------------------------------------------- many


class Load(NamedTuple):
    """The time of every answer in seconds, sorted; lost or wrong answers; the memory after each
    half, in MiB.
    """

    times: list[float]
    problems: list[str]
    mib: tuple[float, float]

    def quantile(self, share: float) -> float:
        return self.times[min(len(self.times) - 1, int(share * len(self.times)))]


def load(server: Server, seconds: float, paths: Callable[[Random], str]) -> Load:
    """Run many clients at once, each sending its next request after an answer; compare every exact
    answer.
    """
    known: dict[str, bytes] = {}

    def one(number: int) -> tuple[list[float], list[str]]:
        dice = Random(number)
        times = list[float]()
        problems = list[str]()
        with Client(server) as client:
            end = perf_counter() + seconds / 2
            while perf_counter() < end:
                path = paths(dice)
                began = perf_counter()
                try:
                    status, body, response = client.get(path)
                except OSError as problem:
                    problems.append(f"{path}: {problem}")
                    client.line.close()
                    continue
                times.append(perf_counter() - began)
                if status != 200:
                    problems.append(f"{path}: {status} {body[:200]!r}")
                elif (
                    response.headers.get("X-Exact") != "0" and known.setdefault(path, body) != body
                ):
                    problems.append(f"{path}: another answer than before")
        return times, problems if times else [*problems, f"client {number} got no answer"]

    with ThreadPoolExecutor(CLIENTS) as pool:
        first = list(pool.map(one, range(CLIENTS)))
        half = server.mib
        every = first + list(pool.map(one, range(CLIENTS, 2 * CLIENTS)))
    times = sorted(time for some, _ in every for time in some)
    return Load(times, [problem for _, some in every for problem in some], (half, server.mib))


def _many(server: Server, seconds: float) -> Iterator[Row]:
    case = f"{CLIENTS} clients, {seconds:g} s"
    n = 4_096

    def paths(dice: Random) -> str:
        z = dice.randint(0, _deepest(n))
        i = dice.randrange(n)
        x, y = sorted(dice.randrange(2**z) for _ in range(2))
        return f"/api/v1/runs/{server.run}/" + dice.choice(
            [
                f"tiles/{z}/{x}/{y}?l=0&h=0&how={dice.choice(['share', 'max'])}",
                f"cell?l=0&h=0&i={i}&j={dice.randrange(i + 1)}",
                f"tokens?l=0&axis=k&start={i // 256 * 256}&stop={i // 256 * 256 + 256}",
            ]
        )

    result = load(server, seconds, paths)
    note = (
        f"{len(result.times):,} answers, {len(result.problems)} lost or "
        f"wrong{': ' * bool(result.problems)}"
    )
    yield Row(
        case,
        "an answer, median",
        1e3 * median(result.times),
        note=note + "".join(result.problems[:1]),
    )
    yield Row(case, "an answer, p99", 1e3 * result.quantile(0.99))
    grown = result.mib[1] - result.mib[0]
    yield Row(case, "memory", mib=result.mib[1], note=f"{grown:+.1f} MiB in the second half")
