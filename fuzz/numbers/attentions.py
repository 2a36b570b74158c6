"""Attentions in `fuzz`: random definitions on every engine, in trace and survey, compared with
float64.

A case is kept as lines of Python, not as objects: a case that fails is shrunk by trying simpler
lines, and is printed as a script that shows the failure. The expected weights and contexts are
those of `reference` in float64; the expected survey is computed from these weights by the formulas.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf, isqrt
from time import perf_counter, time
from typing import Any

import torch
from torch import Tensor

import telescope as ts
from telescope.attention.normalizers import ZeroSumError
from telescope.attention.scores import Additive
from telescope.engines import chunked as chunked_engine
from telescope.engines import flex as flex_engine
from telescope.engines import reference
from telescope.engines import sdpa as sdpa_engine
from telescope.engines.dispatch import ENGINES
from telescope.surveys import blocks, chunked
from telescope.surveys import blocks as scores
from telescope.surveys import dispatch as survey_choose

# Sizes of a kind on a GPU, where other sizes mean other kernels, which take seconds to compile.
SIZES = 3
SECONDS = 45  # that a failure is shrunk for, at most
# by_sum divides by a sum: beyond this ratio of Σ|score| to |Σ score| rounding is all there is.
CONDITION = 30.0
FLEX = 0.004  # share of the cases on a GPU that FlexAttention runs, which compiles each for seconds

# ------------------------------------------------------------------------------------------- a case

Tree = str | tuple[Any, ...]  # a mask: a line of Python, ("&", a, b), ("|", a, b) or ("~", a)


@dataclass(frozen=True)
class Case:
    """One attention: sizes, lines of Python that may use them, and what is compared."""

    batch: int = 1
    heads: int = 1
    key_heads: int = 1
    queries: int = 1
    keys: int = 1
    d: int = 1
    d_v: int = 1
    score: str = "ts.dot"
    scale: str = "None"
    bias: str = "None"
    softcap: str = "None"
    sink: str = "None"
    mask: Tree = "ts.everyone"
    normalize: str = "ts.softmax"
    dtype: str = "torch.float32"
    layout: str = "plain"
    size: str = "1.0"
    top: int = 3
    small_blocks: int = 0  # scores that a block may hold; 0 is as many as usual
    backward: bool = False
    seed: int = field(default=0, compare=False)
    device: str = "cpu"

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    def script(self, check: str = "") -> str:
        """Return lines of Python that build the case, and the line that fails."""
        sizes = ("batch", "heads", "key_heads", "queries", "keys", "d", "d_v")
        parts = {
            name: getattr(self, name)
            for name in ("score", "scale", "bias", "softcap", "sink", "normalize")
        }
        usual = {checked.name: checked.default for checked in fields(self)}
        given = [f"{name}={line}" for name, line in parts.items() if line != usual[name]]
        given += [] if self.mask == "ts.everyone" else [f"mask={written(self.mask)}"]
        lines = [
            "import torch, telescope as ts",
            "from fuzz.numbers.attentions import laid_out, numbers, small_blocks",
            f"{', '.join(sizes)} = {', '.join(str(getattr(self, name)) for name in sizes)}",
            f"device, dtype, size = {self.device!r}, {self.dtype}, {self.size}",
            f"q, k, v = (laid_out(numbers(*shape, seed={self.seed} + i, device=device) * size, "
            f"dtype, {self.layout!r})",
            "    for i, shape in enumerate([(batch, heads, queries, d), (batch, key_heads, keys, "
            "d), "
            "(batch, key_heads, keys, d_v)]))",
            f"attention = ts.Attention({', '.join(given)})",
        ]
        if check and self.small_blocks:
            lines += [f"with small_blocks({self.small_blocks}):", f"    {check}"]
        elif check:
            lines.append(check)
        return "\n".join(lines)


def written(mask: Tree) -> str:
    if isinstance(mask, str):
        return mask
    if mask[0] == "~":
        return f"~({written(mask[1])})"
    return f"({written(mask[1])}) {mask[0]} ({written(mask[2])})"


def numbers(*shape: int, seed: int, device: str = "cpu") -> Tensor:
    """Return normally distributed float64 numbers, the same on every device."""
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(device)


def laid_out(tensor: Tensor, dtype: torch.dtype, layout: str) -> Tensor:
    """Return the numbers in another memory layout."""
    tensor = tensor.to(dtype)
    match layout:
        case "transposed":  # as a projection that is split into heads leaves it
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        case "strided":
            return tensor.repeat_interleave(2, dim=-1)[..., ::2]
        case "sliced":  # a part of a larger tensor, as a cache has
            return torch.cat([tensor, tensor], dim=2)[:, :, tensor.shape[2] :]
        case "expanded":
            return tensor[:1].expand_as(tensor)
    return tensor


@contextmanager
def small_blocks(most: int) -> Iterator[None]:
    """Set blocks of at most so many scores, so that a small matrix has several; 0 leaves the usual
    size.
    """
    rows = max(2, isqrt(most))
    sizes: tuple[tuple[Any, str, Any], ...] = (
        (chunked_engine, "SCORES", {"cpu": most, "cuda": most}),
        (chunked_engine, "MIN_ROWS", 2),
        (sdpa_engine, "ROWS", rows),
        (chunked, "SCORES", {"cpu": most, "cuda": most}),
        (blocks, "ROWS", rows),
        *((module, "GROUP", 2) for module in (blocks, chunked, scores)),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
    try:
        for module, name, value in sizes if most else ():
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


# ------------------------------------------------------------------------------------------ drawing

LENGTHS = (1, 1, 2, 3, 5, 7, 11, 17, 33, 70)
ON_GPU = (
    (1,),
    (64, 128, 192),
    (33, 65, 100, 130),
)  # lengths by kind: a kernel is compiled for each


def drawn(seed: int, device: str = "cpu") -> Case:
    """Draw a random case."""
    dice = random.Random(seed)
    pick = dice.choice
    lengths = sum(ON_GPU, ()) if device == "cuda" else LENGTHS
    key_heads = pick((1, 1, 2, 3))
    queries = pick(lengths)
    keys = queries if dice.random() < 0.5 else pick(lengths)
    d = pick((16, 64)) if device == "cuda" else pick((1, 2, 3, 8, 13))
    case = Case(
        batch=pick((1, 1, 2, 3)),
        heads=key_heads * pick((1, 1, 2, 3)),
        key_heads=key_heads,
        queries=queries,
        keys=keys,
        d=d,
        d_v=d if dice.random() < 0.5 else pick((1, 4, 9)),
        score=pick(("ts.dot", "ts.dot", "ts.dot", _general(dice), _additive(dice))),
        scale=pick(("None", "None", "1.0", "0.3", "-0.5", "0.0", "2.0")),
        bias=pick(("None", "None", *_biases(dice))),
        softcap=pick(("None", "None", "None", "2.0", "30.0")),
        sink=pick(("None", "None", "None", "0.5", f"numbers(heads, seed={dice.randrange(10**6)})")),
        mask=_mask(dice, 3),
        dtype=pick(
            ("torch.float64", "torch.float32", "torch.float32", "torch.bfloat16", "torch.float16")
        ),
        layout=pick(("plain", "plain", "transposed", "strided", "sliced", "expanded")),
        size=pick(("1.0", "1.0", "1.0", "0.01", "4.0")),
        top=pick((0, 1, 3, 8)),
        small_blocks=0,
        backward=dice.random() < 0.4,
        seed=dice.randrange(10**6),
        device=device,
    )
    if device == "cuda":
        case = replace(
            case,
            dtype=pick(("torch.float32", "torch.bfloat16")),
            top=pick((0, 8)),
            size=pick(("1.0", "4.0")),
        )
    if dice.random() < 0.5:
        pairs = case.batch * case.heads * queries * keys
        case = replace(case, small_blocks=max(10, pairs // dice.randint(2, 9)))
    if dice.random() < 0.1:
        case = replace(case, normalize="ts.by_sum", sink="None")
    if dice.random() < 0.02:  # an empty axis
        case = replace(case, **{pick(("batch", "queries", "keys")): 0})
    return case


def varied(case: Case, seed: int) -> Case:
    """Return the same kind of case with other numbers, and another of the kind's `SIZES`."""
    dice = random.Random(seed)
    sizes = random.Random(SIZES * case.seed + seed % SIZES)

    def line(text: str) -> str:
        text = re.sub(r"seed=\d+", lambda _: f"seed={dice.randrange(10**6)}", text)
        return re.sub(
            r"(window|prefix)\(\d+", lambda found: f"{found[1]}({dice.randrange(1, 12)}", text
        )

    def tree(mask: Tree) -> Tree:
        return line(mask) if isinstance(mask, str) else (mask[0], *map(tree, mask[1:]))

    lengths = {n: sizes.choice(kind) for kind in ON_GPU for n in kind} | {0: 0}
    queries = lengths[case.queries]
    keys = lengths[case.keys]
    key_heads = sizes.choice((1, 2, 3))
    batch = case.batch and sizes.choice((1, 2, 3))
    heads = key_heads * sizes.choice((1, 2, 3))
    parts = {name: line(getattr(case, name)) for name in ("score", "bias", "sink")}
    blocks = case.small_blocks and max(10, batch * heads * queries * keys // dice.randint(2, 9))
    shape = {
        "batch": batch,
        "heads": heads,
        "key_heads": key_heads,
        "queries": queries,
        "keys": keys,
    }
    return replace(
        case,
        **shape,
        **parts,
        mask=tree(case.mask),
        small_blocks=blocks,
        seed=dice.randrange(10**6),
    )


def _general(dice: random.Random) -> str:
    front = dice.choice(("", "heads, "))
    return f"ts.general(numbers({front}d, d, seed={dice.randrange(10**6)}, device=device) / d**0.5)"


def _additive(dice: random.Random) -> str:
    front = dice.choice(("", "heads, "))
    seed = dice.randrange(10**6)
    sizes = ("d, 3", "d, 3", "3")
    parts = (
        f"numbers({front}{size}, seed={seed + i}, device=device)" for i, size in enumerate(sizes)
    )
    return f"ts.additive({', '.join(parts)})"


def _biases(dice: random.Random) -> tuple[str, ...]:
    seed = dice.randrange(10**6)
    whole = f"numbers(batch, heads, queries, keys, seed={seed}, device=device)"
    return (
        "ts.alibi(heads)",
        f"ts.relative(numbers({dice.choice(('1', 'heads'))}, {2 * dice.randrange(4) + 1}, "
        f"seed={seed}))",
        f"ts.from_additive({whole})",
        f"ts.from_additive({whole}.clamp(max=1.0).where({whole} < 1.0, -torch.inf))",
        "lambda i, j: torch.cos((i + 2.0 * j).double())",
    )


def _mask(dice: random.Random, depth: int) -> Tree:
    roll = dice.random()
    if depth and roll < 0.35:
        return (dice.choice("&&&|"), _mask(dice, depth - 1), _mask(dice, depth - 1))
    if depth and roll < 0.42:
        return ("~", _mask(dice, depth - 1))
    seed = dice.randrange(10**6)
    texts = dice.choice(("1", "batch"))
    ids = f"numbers({texts}, keys, seed={seed}).round().long()"
    asking = f"numbers({texts}, queries, seed={seed + 1}).round().long()"
    return dice.choice(
        (
            "ts.everyone",
            "ts.causal",
            "ts.causal",
            "ts.causal",
            f"ts.window({dice.randrange(1, 12)})",
            f"ts.prefix({dice.randrange(9)})",
            f"ts.padding((numbers(batch, seed={seed}).abs() * keys).long().clamp(max=keys))",
            f"ts.padding(left=(numbers(batch, seed={seed}).abs() * keys / "
            "2).long().clamp(max=keys))",
            f"ts.padding(keep=numbers(batch, keys, seed={seed}) < 0.5)",
            f"ts.from_tensor(numbers(batch, heads, queries, keys, seed={seed}) < 0.5)",
            f"ts.from_forbidden(numbers(1, 1, queries, keys, seed={seed}) > 0.5)",
            f"ts.documents({ids}, queries={asking})",
            f"ts.documents({ids}) if queries <= keys else ts.causal",
        )
    )


# ----------------------------------------------------------------------------------------- checking


class WrongError(Exception):
    """What is wrong, and the line of Python that shows it."""

    def __init__(self, kind: str, message: str, line: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.line = line


@dataclass(frozen=True)
class Checked:
    """A case that was built, its weights in float64, and the rounding that is allowed."""

    case: Case
    attention: ts.Attention
    inputs: tuple[Tensor, Tensor, Tensor]
    truth: reference.AttentionSteps
    score_unit: float

    @property
    def weights(self) -> Tensor:
        return self.truth.weights

    def near(
        self, kind: str, line: str, got: Tensor, exact: Tensor, unit: float = 1.0, of: Any = None
    ) -> None:
        """Raise a WrongError where numbers differ by more than a few roundings of numbers of this
        size.

        `of` is the dtype that rounded, that of the result unless given.
        """
        if got.shape != exact.shape:
            raise WrongError(kind, f"shape {tuple(got.shape)}, not {tuple(exact.shape)}", line)
        if not exact.numel():
            return
        dtype = of or got.dtype
        half = dtype in (torch.float16, torch.bfloat16)
        largest = float(exact.detach().abs().masked_fill(exact.detach().isinf(), 0.0).max())
        bound = (4.0 if half else 16.0) * torch.finfo(dtype).eps * max(largest, unit)
        mine = got.detach().double()
        right = exact.detach().double()
        off = (mine - right).abs().masked_fill(mine == right, 0.0)  # inf - inf
        worst = float(off.nan_to_num(nan=torch.inf).max())
        if not worst <= bound:
            raise WrongError(kind, f"off by {worst:.3g} where rounding explains {bound:.3g}", line)


def names(case: Case) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(case.script(), space)  # our own lines
    return space


def check(case: Case) -> Counter[str]:
    """Compare everything that can run the case with float64, and count the comparisons.

    Raises a WrongError at the first difference, and for any other exception.
    """
    space = names(case)
    q, k, v = (space[name] for name in "qkv")
    attention: ts.Attention = space["attention"]
    counts: Counter[str] = Counter()
    exact = [tensor.double().detach().requires_grad_(case.backward) for tensor in (q, k, v)]
    try:
        truth = reference.steps(*exact, attention)
    except ZeroSumError:
        return Counter({"by_sum of zero, left out": 1})
    finite = truth.masked.detach().masked_fill(truth.masked == -torch.inf, 0.0)
    unit = 1.0 + float(finite.abs().max()) if finite.numel() else 1.0
    unit += abs(attention.scale_for(case.d)) * (
        float(truth.scores.detach().abs().max()) if finite.numel() else 0.0
    )
    if attention.normalize is ts.by_sum and finite.numel():
        condition = (
            (finite.abs().sum(-1) / finite.sum(-1).abs())
            .nan_to_num(nan=1.0, posinf=torch.inf)
            .max()
        )
        if float(condition) > CONDITION:
            return Counter({"by_sum near zero, left out": 1})
        unit *= float(condition) * _largest(truth.weights)
    if isinstance(attention.score, Additive) and finite.numel():
        # the sums inside tanh are rounded relative to their summands
        score = attention.score
        q_, k_ = (exact[0].detach(), exact[1].detach().repeat_interleave(case.group, 1))
        inner = float((q_ @ score.W_q).abs().max() + (k_ @ score.W_k).abs().max())
        unit += (
            max(1.0, abs(attention.scale_for(case.d))) * inner * float(score.v.abs().sum(-1).max())
        )
    checked = Checked(case, attention, (q, k, v), truth, unit)
    with small_blocks(case.small_blocks):
        for name, compare in CHECKS.items():
            try:
                counts += compare(checked)
            except WrongError:
                raise
            except Exception as problem:
                message = (
                    f"{type(problem).__name__}: "
                    f"{str(problem).splitlines()[0] if str(problem) else ''}"
                )
                raise WrongError(name, message, f"pass  # {name}") from problem
    return counts


def check_engines(checked: Checked) -> Counter[str]:
    counts: Counter[str] = Counter()
    unit = _largest(checked.truth.values) * checked.score_unit
    slopes = None
    dice = random.Random(checked.case.seed)
    for name in ("", *ENGINES):
        mine = [tensor.detach().requires_grad_(checked.case.backward) for tensor in checked.inputs]
        if name and ENGINES[name].cannot(*mine, checked.attention) is not None:
            continue
        if name == flex_engine.__name__.rpartition(".")[2] and (
            checked.case.device == "cpu" or dice.random() > FLEX
        ):
            continue
        line = "print(ts.attend(q, k, v, attention" + (f", engine={name!r}" if name else "") + "))"
        context = ts.attend(*mine, checked.attention, engine=name or None)
        checked.near(f"attend by {name or 'choice'}", line, context, checked.truth.context, unit)
        counts[f"attend by {name or 'choice'}"] += 1
        if checked.case.backward and context.numel():
            if slopes is None:
                slopes = _slopes(
                    checked.truth.context,
                    checked.truth.queries,
                    checked.truth.keys,
                    checked.truth.values,
                )
            back = max(unit, *map(_largest, slopes))
            for slope, own in zip(slopes, _slopes(context, *mine), strict=True):
                # each backward step rounds once more, and half precision rounds what the forward
                # pass saved
                checked.near(
                    f"backward by {name or 'choice'}",
                    line,
                    own,
                    slope,
                    8.0 * back,
                    of=context.dtype,
                )
            counts[f"backward by {name or 'choice'}"] += 1
    return counts


def _largest(tensor: Tensor) -> float:
    return max(1.0, float(tensor.detach().abs().max())) if tensor.numel() else 1.0


def _slopes(context: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weighing = numbers(*context.shape, seed=0, device=str(context.device)).to(context.dtype)
    got = torch.autograd.grad(
        (context * weighing).sum(), inputs, allow_unused=True, retain_graph=True
    )
    return tuple(
        torch.zeros_like(one) if slope is None else slope
        for one, slope in zip(inputs, got, strict=True)
    )


def check_trace(checked: Checked) -> Counter[str]:
    line = "print(ts.trace(q, k, v, attention).weights)"
    steps = ts.trace(*(tensor.detach() for tensor in checked.inputs), checked.attention)
    for name in ("scores", "scaled", "masked", "weights", "context"):
        checked.near(
            f"trace.{name}",
            line,
            getattr(steps, name),
            getattr(checked.truth, name),
            _largest(checked.truth.values) * checked.score_unit,
        )
    return Counter(trace=1)


def check_survey(checked: Checked) -> Counter[str]:
    counts: Counter[str] = Counter()
    q, k, _ = (tensor.detach() for tensor in checked.inputs)
    engines = [
        name
        for name, engine in survey_choose.ENGINES.items()
        if engine.cannot(q, k, checked.attention, checked.case.top) is None
    ]
    lse = _lse(checked)
    for name in engines:
        _compare(
            checked, ts.survey(q, k, checked.attention, top=checked.case.top, engine=name), name, ""
        )
        counts[f"survey by {name}"] += 1
        if lse is not None and k.shape[-2] and name != "reference":
            known = lse.to(torch.promote_types(q.dtype, torch.float32))
            _compare(
                checked,
                ts.survey(q, k, checked.attention, top=checked.case.top, engine=name, lse=known),
                name,
                ", lse=...",
            )
            counts[f"survey by {name}, lse given"] += 1
    return counts


def _lse(checked: Checked) -> Tensor | None:
    """Return ln Σ exp(score), the sink included."""
    if checked.attention.normalize is not ts.softmax:
        return None
    masked = checked.truth.masked.detach()
    if checked.attention.sink is not None:
        sink = torch.as_tensor(
            checked.attention.sink, dtype=masked.dtype, device=masked.device
        ).reshape(-1, 1, 1)
        masked = torch.cat(
            [masked, sink.expand(*masked.shape[:1], masked.shape[1], masked.shape[2], 1)], -1
        )
    return masked.logsumexp(-1)


def _compare(checked: Checked, seen: ts.Survey, engine: str, given: str) -> None:
    """Compare every number of a survey with the formulas, from the weights in float64."""
    weights = checked.weights.detach()
    masked = checked.truth.masked.detach()
    _, heads, queries, keys = weights.shape
    unit = checked.score_unit
    line = f"print(ts.survey(q, k, attention, top={checked.case.top}, engine={engine!r}{given}))"
    near = partial(checked.near, line=line)
    lse = _lse(checked)
    if lse is not None and seen.lse is not None:
        near(f"survey.lse by {engine}", got=seen.lse, exact=lse, unit=unit)
    near(
        f"survey.received by {engine}",
        got=seen.received,
        exact=weights.sum(-2),
        unit=unit * max(1, queries),
    )
    signed = (-torch.xlogy(weights, weights)).sum(-1)
    if checked.attention.normalize is ts.softmax:
        near(
            f"survey.entropy by {engine}", got=seen.entropy, exact=signed, unit=unit * max(1, keys)
        )
    ranked = (
        weights.masked_fill(masked == -torch.inf, -torch.inf)
        .sort(dim=-1, descending=True, stable=True)
        .values
    )
    top = checked.case.top
    best = torch.cat([ranked, ranked.new_full((*ranked.shape[:-1], top), -torch.inf)], -1)[
        ..., :top
    ]
    hidden = best == -torch.inf
    near(
        f"survey.top by {engine}",
        got=seen.top.weights,
        exact=best.masked_fill(hidden, 0.0),
        unit=unit,
    )
    if not torch.equal(seen.top.keys < 0, hidden):
        raise WrongError(f"survey.top by {engine}", "key -1 stands in other places", line)
    if keys:
        there = weights.gather(-1, seen.top.keys.clamp(min=0)).masked_fill(hidden, 0.0)
        near(f"survey.top keys by {engine}", got=seen.top.weights, exact=there, unit=unit)
        ordered = seen.top.keys.sort(-1).values
        if bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()):
            raise WrongError(f"survey.top keys by {engine}", "a key stands there twice", line)
    if not weights.numel():
        return
    dice = random.Random(checked.case.seed)
    _compare_maps(checked, seen, engine, line, dice)
    i = dice.randrange(queries)
    j = dice.randrange(keys)
    h = dice.randrange(heads)
    near(f"survey.rows by {engine}", got=seen.rows([i]), exact=weights[:, :, i : i + 1], unit=unit)
    near(f"survey.cell by {engine}", got=seen.cell(i, j), exact=weights[:, :, i, j], unit=unit)
    one = seen.head(h)
    near(
        f"survey.head by {engine}",
        got=one.received,
        exact=weights[:, h : h + 1].sum(-2),
        unit=unit * queries,
    )
    near(
        f"survey.head.rows by {engine}",
        got=one.rows([i]),
        exact=weights[:, h : h + 1, i : i + 1],
        unit=unit,
    )
    if (
        checked.attention._has_no_tensors
        and queries > 1
        and keys >= queries
        and not given
        and dice.random() < 0.3
    ):
        _compare_extended(checked, seen, engine)


def _compare_maps(
    checked: Checked, seen: ts.Survey, engine: str, line: str, dice: random.Random
) -> None:
    weights = checked.weights.detach()
    unit = checked.score_unit
    _, _, queries, keys = weights.shape
    rows = dice.randint(1, queries)
    columns = dice.randint(1, keys)
    of_queries = torch.arange(queries) * rows // queries
    of_keys = torch.arange(keys) * columns // keys
    how = dice.choice(("share", "max", "segments"))
    if how == "segments":
        ids = [
            numbers(size, seed=checked.case.seed).mul(1.5).round().long().abs()
            for size in (queries, keys)
        ]
        exact = _pooled(weights, *ids, "share")
        got = seen.map(segments=tuple(ids))
    else:
        exact = _pooled(weights, of_queries, of_keys, how)
        got = seen.map(rows, columns, how)
    checked.near(f"survey.map {how} by {engine}", line, got, exact, unit * queries)


def _pooled(weights: Tensor, of_queries: Tensor, of_keys: Tensor, how: str) -> Tensor:
    """Return the mean over the queries of a cell of the sum over its keys; with "max" its largest
    weight.
    """
    of_queries = of_queries.to(weights.device)
    of_keys = of_keys.to(weights.device)
    cells = weights.new_zeros(*weights.shape[:2], int(of_queries.max()) + 1, int(of_keys.max()) + 1)
    across = weights.new_zeros(*weights.shape[:3], cells.shape[3])
    if how == "max":  # of cells without a gap: every one has a weight
        across = across.scatter_reduce(
            3, of_keys.expand_as(weights), weights, "amax", include_self=False
        )
        return cells.scatter_reduce(
            2, of_queries[:, None].expand_as(across), across, "amax", include_self=False
        )
    sums = cells.index_add(2, of_queries, across.index_add(3, of_keys, weights))
    return sums / of_queries.bincount().clamp(min=1)[:, None]


def _compare_extended(checked: Checked, seen: ts.Survey, engine: str) -> None:
    q, k, _ = (tensor.detach() for tensor in checked.inputs)
    old = q.shape[-2] - 1
    line = (
        "print(ts.survey(q[:, :, :-1], k[:, :, :-1], attention).extend(q[:, :, -1:], k[:, :, -1:]))"
    )
    grown = ts.survey(
        q[:, :, :old], k[:, :, :-1], checked.attention, top=checked.case.top, engine=engine
    )
    grown = grown.extend(q[:, :, old:], k[:, :, -1:])
    near = partial(checked.near, line=line)
    unit = checked.score_unit
    near(
        "survey.extend received",
        got=grown.received,
        exact=checked.weights.detach().sum(-2),
        unit=unit * q.shape[-2],
    )
    near(
        "survey.extend top", got=grown.top.weights, exact=seen.top.weights.double(), unit=2.0 * unit
    )


CHECKS: dict[str, Callable[[Checked], Counter[str]]] = {
    "attend": check_engines,
    "trace": check_trace,
    "survey": check_survey,
}


# ---------------------------------------------------------------------------------------- shrinking


def failure(case: Case) -> WrongError | None:
    try:
        check(case)
    except WrongError as wrong:
        return wrong
    return None


def shrunk(case: Case, wrong: WrongError) -> tuple[Case, WrongError]:
    """Return the simplest case found that fails in the same check."""
    began = perf_counter()
    while True:
        for simpler in _simpler(case):
            if perf_counter() - began > SECONDS:
                return case, wrong
            found = failure(simpler)
            if found is not None and found.kind == wrong.kind:
                case = simpler
                wrong = found
                break
        else:
            return case, wrong


def _simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one respect."""
    for name in (
        "score",
        "bias",
        "sink",
        "softcap",
        "scale",
        "layout",
        "size",
        "backward",
        "small_blocks",
        "dtype",
    ):
        usual = Case.__dataclass_fields__[name].default
        if getattr(case, name) != usual:
            yield replace(case, **{name: usual})
    for mask in _parts(case.mask):
        yield replace(case, mask=mask)
    if case.key_heads > 1 or case.heads > 1:
        yield replace(case, heads=1, key_heads=1)
        yield replace(case, heads=case.heads // case.key_heads, key_heads=1)
    for name in ("batch", "queries", "keys", "d", "d_v", "top"):
        value = getattr(case, name)
        for less in sorted({1, value // 2, value - 1}):
            if 0 < less < value:
                yield replace(case, **{name: less})
    if case.queries == case.keys > 1:
        for less in sorted({case.queries // 2, case.queries - 1}):
            yield replace(case, queries=less, keys=less)


def _parts(mask: Tree) -> Iterator[Tree]:
    if isinstance(mask, str):
        if mask != "ts.everyone":
            yield "ts.everyone"
        return
    yield from mask[1:]
    for place in range(1, len(mask)):
        for part in _parts(mask[place]):
            yield (*mask[:place], part, *mask[place + 1 :])


# ------------------------------------------------------------------------------------------ hunting


@dataclass(frozen=True)
class Found:
    """What a process reports about some cases."""

    counts: Counter[str]
    wrong: list[tuple[str, str]]


def hunt(first: int, count: int, device: str = "cpu", until: float = inf) -> Found:
    """Draw and check the cases of these seeds until a time in seconds since 1970; shrink those that
    fail.
    """
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    wrong = []
    kind = drawn(first, device)
    for seed in range(first, first + count):
        if time() > until:
            break
        case = varied(kind, seed) if device == "cuda" and seed > first else drawn(seed, device)
        counts["definitions"] += 1
        counts["kinds"] += device == "cuda" and seed == first
        try:
            counts += check(case)
        except WrongError as problem:
            small, problem = shrunk(case, problem)
            wrong.append((f"{problem} (case {seed})", small.script(problem.line)))
    return Found(counts, wrong)
