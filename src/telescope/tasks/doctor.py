"""`doctor`: every engine on this machine, held against float64, with its speed and what keeps it from running."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import log
from operator import attrgetter
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import __version__
from ..attention import Attention, causal, window
from ..engines import chunked, flex, reference, sdpa
from ..survey import ENGINES as SURVEYS
from ..survey import Survey, survey

SIZE = (1, 4, 261, 64)  # batch, heads, position, feature: longer than a kernel's tile, and odd
TIMED = {"cpu": (1, 8, 1024, 64), "cuda": (1, 16, 4096, 128)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDINGS = {
    torch.float32: 100,
    torch.bfloat16: 4,
    torch.float16: 4,
}  # of the largest number, that an answer may be off

PLAIN = Attention(mask=causal)
RICH = Attention(mask=causal & window(100), softcap=5.0)

Run = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EngineCheck:
    """An engine: what it computes of queries, keys and values, what that should be, by the steps of the reference, and
    the log-sum-exp of every query if it gives one."""

    name: str
    attention: Attention
    cannot: Callable[[Tensor, Tensor, Tensor], str | None]
    answer: Run
    lse: Run | None = None
    truth: Callable[[reference.AttentionSteps], Tensor] = attrgetter("context")


@dataclass(frozen=True)
class Finding:
    """What was found about one engine; `wrong` says what is wrong with it, `missing` why it does not run."""

    name: str
    missing: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    rows: str = ""
    ms: float | None = None
    wrong: str = ""


@dataclass(frozen=True)
class Report:
    machine: str
    timed: str
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return not any(finding.wrong for finding in self.findings)


def doctor(device: torch.device | None = None, *, every: bool = False) -> Report:
    """Examine every engine; `every` takes in those that compile for half a minute first."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    triton = __import__("triton").__version__ if find_spec("triton") else "none"
    timed = f"ms at {' x '.join(map(str, TIMED[device.type]))}, {_fast(device)}"
    return Report(
        f"telescope {__version__}   torch {torch.__version__}   triton {triton}   {gpu}",
        timed.replace("torch.", ""),
        tuple(examine(patient, device) for patient in patients(device, every=every)),
    )


def patients(device: torch.device, *, every: bool) -> Iterator[EngineCheck]:
    """All engines of attend and survey, sdpa once for each of torch's backends."""
    for backend, lse in _backends(device).items():
        name = backend.name.lower().removesuffix("_attention")
        yield EngineCheck(f"attend  sdpa ({name})", PLAIN, _anything, partial(_sdpa, backend), lse)
    flexes = every or device.type == "cuda"
    yield EngineCheck(
        "attend  flex",
        RICH,
        partial(_flex_cannot, waits=not flexes),
        lambda q, k, v: flex.attend(q, k, v, RICH),
        (lambda q, k, v: flex.lse(q, k, v, RICH)) if device.type == "cuda" else None,
    )
    yield EngineCheck("attend  chunked", RICH, _anything, lambda q, k, v: chunked.attend(q, k, v, RICH))
    yield EngineCheck("attend  reference", RICH, _anything, lambda q, k, v: reference.attend(q, k, v, RICH))
    for name in SURVEYS:
        run = partial(_survey, name)
        yield EngineCheck(
            f"survey  {name}",
            RICH,
            partial(_survey_cannot, name),
            lambda q, k, v, run=run: _told(run(q, k, v)),  # type: ignore[misc]
            lambda q, k, v, run=run: run(q, k, v).lse,  # type: ignore[misc]
            _true,
        )


def examine(patient: EngineCheck, device: torch.device) -> Finding:
    inputs = {dtype: _inputs(SIZE, device, dtype) for dtype in DTYPES}
    missing = patient.cannot(*inputs[torch.float32])
    if missing:
        return Finding(patient.name, missing)
    errors: dict[str, float] = {}
    wrong, rows, refused = "", "", ""
    for dtype, (q, k, v) in inputs.items():
        try:
            answer = _quietly(patient.answer, q, k, v)
            lse = None if patient.lse is None else _quietly(patient.lse, q, k, v)
        except (RuntimeError, ValueError) as problem:
            refused = str(problem).strip().split("\n")[0]
            continue
        steps = reference.steps(q.double(), k.double(), v.double(), patient.attention)
        kind = str(dtype).removeprefix("torch.")
        truth = patient.truth(steps)
        errors[kind] = float((answer.double() - truth).abs().max())
        allowed = ROUNDINGS[dtype] * torch.finfo(dtype).eps * max(1.0, float(truth.abs().max()))
        if not errors[kind] <= allowed:
            wrong = f"off by {errors[kind]:.1e} in {kind}"
        if lse is not None:
            rows = row_sums(steps.masked, lse)
            wrong = wrong or ("" if rows == "1" else f"rows of exp(score - lse) sum to {rows} in {kind}")
    if not errors:
        return Finding(patient.name, refused or "it takes none of float32, bfloat16 and float16")
    return Finding(patient.name, "", errors, rows, _ms(patient, device), wrong)


def row_sums(masked: Tensor, lse: Tensor) -> str:
    """1, if lse is the natural logarithm of each row's sum of exponentials; else what it is, if that can be told."""
    masked, lse = masked.double(), lse.double().reshape(masked.shape[:-1]).unsqueeze(-1)

    def largest_miss(lse: Tensor) -> Tensor:
        sums = torch.exp(masked - lse).sum(-1)
        return sums.flatten()[(sums - 1.0).abs().nan_to_num(torch.inf).argmax()]

    slack = 0.02  # an lse of halves is rounded; one of base 2 is off by far more
    if abs(float(largest_miss(lse)) - 1.0) <= slack:
        return "1"
    if abs(float(largest_miss(lse * log(2.0))) - 1.0) <= slack:
        return "1 in base 2 only: multiply it by ln 2"
    return f"{float(largest_miss(lse)):.3g}"


def draw(report: Report) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("engine", no_wrap=True)
    for head in (*(str(kind)[6:] for kind in DTYPES), "rows", "ms"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for finding in report.findings:
        errors = [_short(finding.errors.get(str(kind)[6:])) for kind in DTYPES]
        ms = "" if finding.ms is None else f"{finding.ms:.2f}"
        verdict = finding.missing or finding.wrong or "right"
        style = "dim" if finding.missing else "red" if finding.wrong else "green"
        table.add_row(finding.name, *errors, finding.rows[:6], ms, Text(verdict, style))
    legend = f"largest error against float64; rows: the sum of exp(score - lse), to be 1; {report.timed}"
    return Group(Text(report.machine), Text(legend, style="dim"), Text(), table)


# ------------------------------------------------------------------------------------------------------ the engines


def _anything(queries: Tensor, keys: Tensor, values: Tensor) -> str | None:
    return None


def _sdpa(backend: SDPBackend, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return sdpa.attend(queries, keys, values, PLAIN)


def _backends(device: torch.device) -> dict[SDPBackend, Run | None]:
    """torch's backends on this device, each with the operation that tells its log-sum-exp."""
    aten: Any = torch.ops.aten
    if device.type == "cpu":
        return {
            SDPBackend.FLASH_ATTENTION: lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, True
            )[1],
            SDPBackend.MATH: None,
        }
    return {
        SDPBackend.FLASH_ATTENTION: lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[1],
        SDPBackend.CUDNN_ATTENTION: lambda q, k, v: aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, True, False
        )[1],
        SDPBackend.EFFICIENT_ATTENTION: lambda q, k, v: aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, True
        )[1][..., : q.shape[-2]],  # its rows are padded to a multiple of 32
        SDPBackend.MATH: None,
    }


def _survey_cannot(name: str, queries: Tensor, keys: Tensor, values: Tensor) -> str | None:
    obstacle: str | None = SURVEYS[name].cannot(queries, keys, RICH, 8)
    return obstacle


def _survey(name: str, queries: Tensor, keys: Tensor, values: Tensor) -> Survey:
    return survey(queries, keys, RICH, engine=name)


def _told(survey: Survey) -> Tensor:
    """What a survey says of every key and query."""
    return torch.cat([survey.received, survey.entropy, survey.top.weights.flatten(2)], -1)


def _true(steps: reference.AttentionSteps) -> Tensor:
    """The same, read off the weights."""
    weights = steps.weights
    entropy = -torch.xlogy(weights, weights).sum(-1)
    return torch.cat([weights.sum(-2), entropy, weights.topk(8).values.flatten(2)], -1)


def _flex_cannot(queries: Tensor, keys: Tensor, values: Tensor, *, waits: bool) -> str | None:
    return flex.cannot(queries, keys, values, RICH) or (
        "not tried, since it compiles for half a minute on a CPU; telescope doctor --all" if waits else None
    )


# ---------------------------------------------------------------------------------------------------------- helpers


def _inputs(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(size, generator=dice).to(device, dtype) for _ in range(3))
    return q, k, v


def _fast(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _ms(patient: EngineCheck, device: torch.device) -> float | None:
    """The median of five runs; None where this size or dtype is none of its own."""
    inputs = _inputs(TIMED[device.type], device, _fast(device))
    times = []
    try:
        for _ in range(6):
            start = perf_counter()
            _quietly(patient.answer, *inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(perf_counter() - start)
    except (RuntimeError, ValueError):
        return None
    return 1e3 * median(times[1:])


def _quietly(run: Run, *inputs: Tensor) -> Tensor:
    """torch explains at length, by warnings, why a backend does not take a dtype."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return run(*inputs)


def _short(error: float | None) -> str:
    return "" if error is None else f"{error:.0e}"
