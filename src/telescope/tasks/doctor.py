"""`telescope doctor`: compare every engine on this machine with float64, time it, and report why it
does not run.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import log
from operator import attrgetter
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import __version__
from ..attention import Attention, causal, window
from ..engines import chunked, flex, reference, sdpa
from ..surveys import ENGINES as SURVEYS
from ..surveys import plan_survey, survey
from ..traces import PlainTable, showing_progress

# Batch, heads, positions and features of the check: longer than a kernel's tile, and odd.
SIZE = (1, 4, 261, 64)
# The same of what is timed.
TIMED = {"cpu": (1, 8, 1024, 64), "cuda": (1, 16, 4096, 128)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The largest error allowed, in roundings (eps of the dtype) of the largest number of the result.
ROUNDINGS = {torch.float32: 100, torch.bfloat16: 4, torch.float16: 4}

# The oldest and the newest torch that the tests have passed on. The package also takes newer
# versions of torch 2: docs/decisions/torch-versions.md says why.
TESTED_TORCH = ((2, 11), (2, 15))

PLAIN = Attention(mask=causal)  # which torch's own kernels take
# Beyond what torch's own kernels take: a window and a softcap.
RICH = Attention(mask=causal & window(100), softcap=5.0)

# A function of queries, keys and values.
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EngineCheck:
    """One engine, and how to check it.

    answer  runs the engine on queries, keys and values
    lse     returns the log-sum-exp of each query, where the engine computes it
    truth   the right answer, from the steps of the reference
    """

    name: str
    attention: Attention
    cannot: Callable[[Tensor, Tensor, Tensor], str | None]
    answer: Run
    lse: Run | None = None
    truth: Callable[[reference.AttentionSteps], Tensor] = attrgetter("context")


@dataclass(frozen=True)
class Finding:
    """The result of one check. `missing` and `wrong` are sentences, empty where the engine runs and
    is right.

    missing  why the engine does not run
    errors   the largest absolute error against float64, by dtype
    rows     what rows of exp(score - lse) sum to: "1" where the log-sum-exp is right
    ms       milliseconds of one run at the size of `TIMED`
    wrong    what is wrong with the answer
    """

    name: str
    missing: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    rows: str = ""
    ms: float | None = None
    wrong: str = ""


@dataclass(frozen=True)
class Report:
    """The findings of all engines; `machine` names versions and the GPU, `timed` the size that was
    timed.

    looking   the engine that surveys a causal attention of that size, its time beside a forward
              pass, and what would make it faster
    untested  a sentence if Telescope was not tested on this torch, else empty
    """

    machine: str
    timed: str
    findings: tuple[Finding, ...]
    looking: str = ""
    untested: str = ""

    @property
    def healthy(self) -> bool:
        """Whether no engine is wrong. An engine that does not run is not wrong."""
        return not any(finding.wrong for finding in self.findings)


def check_engines(
    device: torch.device | None = None, *, every: bool = False, progress: bool | None = None
) -> Report:
    """Check every engine on a device, the GPU where there is one.

    `every` includes engines that compile for about half a minute first. `progress` is whether to
    show how far it is, as in `ts.effect`.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    triton = __import__("triton").__version__ if find_spec("triton") else "none"
    checks = [*engine_checks(device, every=every)]
    findings = []
    with showing_progress("doctor", progress) as advance:
        for number, check in enumerate(checks):
            # The survey's cost is one step more.
            advance(number / (len(checks) + 1), " ".join(check.name.split()))
            findings.append(run_check(check, device))
        advance(len(checks) / (len(checks) + 1), "cost of a survey")
        cost = survey_cost(device)
    # Says what the column of times means.
    timed = f"ms at {' x '.join(map(str, TIMED[device.type]))}, {_timed_dtype(device)}"
    return Report(
        f"telescope {__version__}   torch {torch.__version__}   triton {triton}   {gpu}",
        timed.replace("torch.", ""),
        tuple(findings),
        cost,
        untested_torch(torch.__version__),
    )


def untested_torch(version: str) -> str:
    """Return a sentence if a version of torch is outside of the tested ones, else an empty
    string.
    """
    oldest, newest = TESTED_TORCH
    major, minor = version.split(".")[:2]
    if oldest <= (int(major), int(minor)) <= newest:
        return ""
    tested = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return (
        f"torch {version} is untested: telescope {__version__} was tested on {tested}; rely on "
        "the checks below"
    )


def engine_checks(device: torch.device, *, every: bool) -> Iterator[EngineCheck]:
    """Yield a check for each engine of attend and survey; for sdpa, one for each of torch's
    backends.
    """
    # torch chooses one of its backends for each call; each is checked by itself.
    for backend, lse in _backends(device).items():
        name = backend.name.lower().removesuffix("_attention")
        yield EngineCheck(f"attend  sdpa ({name})", PLAIN, _can_run, partial(_sdpa, backend), lse)
    yield EngineCheck(
        "attend  flex",
        RICH,
        partial(_flex_cannot, skip=not every and device.type == "cpu"),
        partial(_attend, flex),
        # On a CPU flex returns no log-sum-exp.
        (lambda q, k, v: flex.lse(q, k, v, RICH)) if device.type == "cuda" else None,
    )
    yield EngineCheck("attend  chunked", RICH, _can_run, partial(_attend, chunked))
    yield EngineCheck("attend  reference", RICH, _can_run, partial(_attend, reference))
    for name in SURVEYS:
        # A survey has no context: its numbers are compared with those of all weights.
        yield EngineCheck(
            f"survey  {name}",
            RICH,
            partial(_survey_cannot, name),
            partial(_survey_numbers, name),
            partial(_survey_lse, name),
            _reference_numbers,
        )


def run_check(check: EngineCheck, device: torch.device) -> Finding:
    """Run one engine in every dtype, compare its answers with float64, and time it."""
    # An engine that cannot run here is reported with the reason, and not as wrong.
    missing = check.cannot(*_inputs(SIZE, device, torch.float32))
    if missing:
        return Finding(check.name, missing)
    errors: dict[str, float] = {}
    wrong = ""
    rows = ""
    refused = ""
    for dtype in DTYPES:
        q, k, v = _inputs(SIZE, device, dtype)
        # An engine need not take every dtype.
        try:
            answer = _without_warnings(check.answer, q, k, v)
            lse = None if check.lse is None else _without_warnings(check.lse, q, k, v)
        except (RuntimeError, ValueError) as problem:
            refused = str(problem).strip().split("\n")[0]
            continue

        # Compare with float64, within the roundings of the dtype.
        steps = reference.steps(q.double(), k.double(), v.double(), check.attention)
        kind = str(dtype).removeprefix("torch.")
        truth = check.truth(steps)
        errors[kind] = float((answer.double() - truth).abs().max())
        allowed = ROUNDINGS[dtype] * torch.finfo(dtype).eps * max(1.0, float(truth.abs().max()))
        if not errors[kind] <= allowed:  # also where the error is NaN
            wrong = f"off by {errors[kind]:.1e} in {kind}"
        if lse is not None:
            rows = row_sums(steps.masked, lse)
            if rows != "1":
                wrong = wrong or f"rows of exp(score - lse) sum to {rows} in {kind}"
    # No dtype was taken: say why.
    if not errors:
        return Finding(check.name, refused or "it takes none of float32, bfloat16 and float16")
    return Finding(check.name, "", errors, rows, _milliseconds(check, device), wrong)


def survey_cost(device: torch.device) -> str:
    """Return a sentence: which engine surveys here, and its time as a multiple of torch's fused
    attention.
    """
    q, k, v = _inputs(TIMED[device.type], device, _timed_dtype(device))
    forward = []
    looking = []
    for _ in range(6):  # in turns, so that a busy machine slows both
        forward.append(_seconds(lambda q, k, v: sdpa.attend(q, k, v, PLAIN), q, k, v))
        looking.append(_seconds(lambda q, k, v: survey(q, k, PLAIN), q, k, v))
    chosen = plan_survey(q, k, PLAIN)
    # Without the first run, which compiles.
    ratio = median(looking[1:]) / median(forward[1:])
    # Advise only on engines that lack a package.
    faster = [SURVEYS[name].cannot(q, k, PLAIN, 8) for name in SURVEYS if name != chosen.engine]
    advice = "; ".join(dict.fromkeys(why for why in faster if why and "pip install" in why))
    return (
        f"a causal survey of that size runs on {chosen.engine} and takes {ratio:.1f} times sdpa's "
        "forward pass" + (f"; a faster engine is missing: {advice}" if advice else "")
    )


def row_sums(masked: Tensor, lse: Tensor) -> str:
    """Return what the rows of exp(masked - lse) sum to: "1" where lse is the natural log-sum-exp of
    each row.

    Otherwise "1 in base 2 only: ..." for a base-2 logarithm, or the sum that is farthest from 1.
    """
    masked = masked.double()
    lse = lse.double().reshape(masked.shape[:-1]).unsqueeze(-1)

    def worst_sum(lse: Tensor) -> float:
        # A NaN counts as infinitely far from 1.
        sums = torch.exp(masked - lse).sum(-1)
        return float(sums.flatten()[(sums - 1.0).abs().nan_to_num(torch.inf).argmax()])

    slack = 0.02  # an lse in half precision is rounded; one in base 2 is off by far more
    if abs(worst_sum(lse) - 1.0) <= slack:
        return "1"
    # A logarithm in base 2, times ln 2, is the natural one.
    if abs(worst_sum(lse * log(2.0)) - 1.0) <= slack:
        return "1 in base 2 only: multiply it by ln 2"
    return f"{worst_sum(lse):.3g}"


def draw(report: Report) -> RenderableType:
    """Return the report as a table for a rich console, a line for each engine."""
    table = PlainTable(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("engine", no_wrap=True)
    # The names of dtypes, without "torch.".
    for title in (*(str(dtype)[6:] for dtype in DTYPES), "rows", "ms"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for finding in report.findings:
        found = (finding.errors.get(str(dtype)[6:]) for dtype in DTYPES)
        errors = ["" if error is None else f"{error:.0e}" for error in found]
        ms = "" if finding.ms is None else f"{finding.ms:.2f}"
        verdict = finding.missing or finding.wrong or "right"
        style = "dim" if finding.missing else "red" if finding.wrong else "green"
        table.add_row(finding.name, *errors, finding.rows[:6], ms, Text(verdict, style))
    legend = (
        "largest error against float64; rows: the sum of exp(score - lse), which should be "
        f"1; {report.timed}"
    )
    head = [Text(report.machine)]
    if report.untested:
        head.append(Text(report.untested, style="yellow"))
    return Group(*head, Text(legend, style="dim"), Text(), table, Text(), Text(report.looking))


# -------------------------------------------------------------------------------------- the engines


def _can_run(queries: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Return None: the engine runs any inputs."""
    return None


def _attend(engine: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return cast(Tensor, engine.attend(queries, keys, values, RICH))


def _sdpa(backend: SDPBackend, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return sdpa.attend(queries, keys, values, PLAIN)


def _backends(device: torch.device) -> dict[SDPBackend, Run | None]:
    """Return torch's backends on this device, each with the operation that returns its
    log-sum-exp.
    """
    aten: Any = torch.ops.aten
    if device.type == "cpu":
        return {
            SDPBackend.FLASH_ATTENTION: lambda q, k, v: (
                aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[1]
            ),
            SDPBackend.MATH: None,
        }
    return {
        SDPBackend.FLASH_ATTENTION: lambda q, k, v: aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, True
        )[1],
        SDPBackend.CUDNN_ATTENTION: lambda q, k, v: aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, True, False
        )[1],
        # Its rows are padded to a multiple of 32.
        SDPBackend.EFFICIENT_ATTENTION: lambda q, k, v: (
            aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[1][
                ..., : q.shape[-2]
            ]
        ),
        SDPBackend.MATH: None,
    }


def _survey_cannot(name: str, queries: Tensor, keys: Tensor, values: Tensor) -> str | None:
    return cast(str | None, SURVEYS[name].cannot(queries, keys, RICH, 8))


def _survey_numbers(name: str, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return what each key receives, and the entropy and the largest weights of each query, as one
    tensor.
    """
    found = survey(queries, keys, RICH, engine=name)
    return torch.cat([found.received, found.entropy, found.top.weights.flatten(2)], -1)


def _survey_lse(name: str, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    found = survey(queries, keys, RICH, engine=name).lse
    assert found is not None  # RICH has a softmax
    return found


def _reference_numbers(steps: reference.AttentionSteps) -> Tensor:
    """Return the numbers of `_survey_numbers`, computed from the matrix of weights."""
    weights = steps.weights
    entropy = -torch.xlogy(weights, weights).sum(-1)
    return torch.cat([weights.sum(-2), entropy, weights.topk(8).values.flatten(2)], -1)


def _flex_cannot(queries: Tensor, keys: Tensor, values: Tensor, *, skip: bool) -> str | None:
    obstacle = flex.cannot(queries, keys, values, RICH)
    if obstacle is None and skip:
        return "not tried, since it compiles for half a minute on a CPU; telescope doctor --all"
    return obstacle


# ------------------------------------------------------------------------------------------ helpers


def _inputs(
    size: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    # Drawn on the CPU, so that every device is given the same numbers.
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(size, generator=generator).to(device, dtype) for _ in range(3))
    return q, k, v


def _timed_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _milliseconds(check: EngineCheck, device: torch.device) -> float | None:
    """Return the median time of five runs after one warm-up; None where the engine refuses this
    size or dtype.
    """
    inputs = _inputs(TIMED[device.type], device, _timed_dtype(device))
    try:
        # The first run warms up, and is not counted.
        times = [_seconds(check.answer, *inputs) for _ in range(6)]
    except (RuntimeError, ValueError):
        return None
    return 1e3 * median(times[1:])


def _seconds(run: Callable[[Tensor, Tensor, Tensor], object], *inputs: Tensor) -> float:
    start = perf_counter()
    _without_warnings(run, *inputs)
    # A GPU runs asynchronously: wait until the engine has finished.
    if inputs[0].is_cuda:
        torch.cuda.synchronize(inputs[0].device)
    return perf_counter() - start


def _without_warnings(run: Callable[..., Any], *inputs: Tensor) -> Any:
    """Run an engine without gradients and without torch's many warnings about backends that refuse
    a dtype.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return run(*inputs)
