"""What a wrong tensor tells about its mistake, whatever the exercise: a missing factor, an axis too
many, a transpose, one row for all.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from math import e, log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from .calling import describe, leaves

TOLERANCE = 1e-4  # relative and absolute: readers may sum in another order
FACTORS = {"ln 2, as between bits and nats": log(2), "ln 10": log(10), "π": pi, "e": e}


def near(found: Tensor, right: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two tensors have one shape and close numbers."""
    if found.shape != right.shape:
        return False
    one = found.detach().double()
    other = right.detach().double()
    # NaN equals NaN: a usual mistake may be known by the NaN that it gives.
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def pattern(
    found: Tensor, right: Tensor, arguments: Mapping[str, Any], factors: Mapping[str, float]
) -> str:
    """Return what is wrong with `found`, as the rest of a sentence that begins with its name: " is
    transposed"; "" where nothing is known.

    arguments  by the names of their parameters
    factors    numbers that are likely to be missing, by name
    """
    found = found.detach().double()
    right = right.detach().double()
    if found.shape != right.shape:
        return _other_shape(found, right)
    if bool(found.isnan().any()):
        return (
            f" has NaN at {place(found.isnan())}: look for 0 / 0, or a softmax over nothing but "
            "-inf"
        )
    if bool(found.isinf().any()) and not bool(right.isinf().any()):
        return (
            f" is infinite at {place(found.isinf())}: look for a division by 0, or exp of a large "
            "number"
        )
    return (
        _turned(found, right)
        or _factor(found, right, {**factors, **_sizes(arguments)})
        or _function(found, right)
        or _of_rows(found, right)
        or _moved(found, right)
        or _region(found, right)
    )


def unchanged(found: Tensor, arguments: Mapping[str, Any]) -> str:
    """Return the name of the argument that an answer is; "" if it is none."""
    for name, part in arguments.items():
        for path, leaf in leaves(part, name):
            if leaf.numel() > 1 and near(found, leaf):
                return path
    return ""


def place(chosen: Tensor) -> str:
    """Return the first place where `chosen` is True: "[1, 2]"."""
    where = chosen.nonzero()[0].tolist()
    # A tensor without axes has no index.
    return f"{where}" if where else "its only number"


# ------------------------------------------------------------------------------------ another shape


def _other_shape(found: Tensor, right: Tensor) -> str:
    shapes = f"has shape {tuple(found.shape)}, and should have {tuple(right.shape)}"
    if near(found.squeeze(), right.squeeze()):
        many = "many" if found.ndim > right.ndim else "few"
        return (
            f" {shapes}: its numbers are right, and there is an axis too {many} (keepdim, [None])"
        )
    for order in permutations(range(found.ndim)) if 1 < found.ndim < 5 else ():
        if near(found.permute(order), right):
            return f" {shapes}; it is transposed"
    if found.numel() == right.numel() and near(found.flatten(), right.flatten()):
        flat = "flat, on one axis" if found.ndim == 1 else "in another shape"
        return f" {shapes}: its numbers are right, and {flat}; reshape it"
    return (
        _part(found, right, shapes)
        or _reduced(found, right, shapes)
        or _mentioned(found, right, shapes)
    )


def _part(found: Tensor, right: Tensor, shapes: str) -> str:
    """Tell a part of the right answer, and an answer that has the right one as a part."""
    for axis, size in enumerate(right.shape):
        for index in range(size):
            if near(found, right.select(axis, index)):
                kind = (
                    "row" if right.ndim > 1 and axis == right.ndim - 2 else f"part of axis {axis}"
                )
                return f" {shapes}: this is only {kind} {index}; return all {size}"
    for axis, (own, size) in enumerate(zip(found.shape, right.shape, strict=False)):
        if found.ndim != right.ndim or own == size:
            continue
        small = min(own, size)
        large = max(own, size)
        for start in (0, large - small):
            if own < size and near(found, right.narrow(axis, start, small)):
                end = "last" if start == 0 else "first"
                return f" {shapes}: the {end} {large - small} of axis {axis} are left out"
            if own > size and near(found.narrow(axis, start, small), right):
                end = "last" if start == 0 else "first"
                return f" {shapes}: the {end} {large - small} of axis {axis} are too many"
    for axis, size in enumerate(found.shape if found.ndim == right.ndim + 1 else ()):
        if any(near(found.select(axis, index), right) for index in range(size)):
            return f" {shapes}: the right numbers are a part of it, along axis {axis}"
    return ""


def _reduced(found: Tensor, right: Tensor, shapes: str) -> str:
    """Tell a sum or a mean that is missing or too many."""
    for axes in _axes(right.ndim):
        for word, reduced in (("sum", right.sum(axes)), ("mean", right.mean(axes))):
            if near(found, reduced):
                over = _named(axes, right.ndim)
                return f" {shapes}: this is the {word} over {over}; return every number"
    for axes in _axes(found.ndim):
        for word, reduced in (
            ("summed", found.sum(axes)),
            ("averaged: take the mean", found.mean(axes)),
        ):
            if near(reduced, right):
                return f" {shapes}: it is not {word} over {_named(axes, found.ndim)} yet"
    return ""


def _axes(ndim: int) -> Iterator[tuple[int, ...]]:
    yield from ((axis,) for axis in range(ndim))
    if ndim > 1:
        yield tuple(range(ndim))


def _named(axes: tuple[int, ...], ndim: int) -> str:
    if len(axes) == ndim and ndim > 1:
        return "all axes"
    if ndim == 2:
        return "the rows, axis 0" if axes == (0,) else "the columns, axis 1"
    return f"axis {axes[0]}"


def _mentioned(found: Tensor, right: Tensor, shapes: str) -> str:
    # The most usual reason of a wrong shape.
    turned = found.ndim >= 2 and found.mT.shape == right.shape
    many = found.ndim - right.ndim
    hint = ""
    if turned:
        hint = "; it looks transposed"
    elif many > 0 and found.shape[-right.ndim :] == right.shape and right.ndim:
        hint = "; it has an axis too many at its beginning"
    elif found.ndim == 1 and found.numel() == right.numel():
        hint = "; it is flat, on one axis: reshape it"
    elif many == 1:
        hint = "; it has an axis too many: one number is wanted where there are several"
    elif many < 0:
        hint = "; it has an axis too few: something was summed, averaged or picked on the way"
    return f" {shapes}{hint}"


# -------------------------------------------------------------------------------- of the same shape


def _turned(found: Tensor, right: Tensor) -> str:
    if right.ndim >= 2 and right.shape[-1] == right.shape[-2] and near(found.mT, right):
        return " is transposed: queries are rows, keys are columns"
    for order in permutations(range(right.ndim)) if 1 < right.ndim < 5 else ():
        if near(found.permute(order), right):
            return " is transposed: its axes are in another order"
    if right.ndim >= 2 and near(found.reshape(right.mT.shape).mT, right):
        return (
            " has the right numbers in the wrong order: they are reshaped where axes should be "
            "exchanged"
        )
    return ""


def _sizes(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Return sizes of the arguments, and their roots, as factors that are likely to be missing."""
    factors: dict[str, float] = {}
    for name, value in arguments.items():
        sizes: dict[str, float] = {}
        if isinstance(value, Tensor):
            sizes = {f"the size of axis {a} of {name}": n for a, n in enumerate(value.shape)}
        elif isinstance(value, int | float) and value > 1:
            sizes = {name: float(value)}
        for said, size in sizes.items():
            factors.setdefault(said, float(size))
            factors.setdefault(f"√{size:g}, the root of {said}", sqrt(size))
    return {said: number for said, number in factors.items() if number > 1}


def _factor(found: Tensor, right: Tensor, factors: Mapping[str, float]) -> str:
    """Tell a missing √d_k, a sum for a mean: all numbers are off by one factor."""
    if not bool((found != 0).any()) and bool((right != 0).any()):
        return " is zero everywhere"
    ratio = constant_ratio(found, right)
    if ratio is not None:
        if abs(ratio + 1) < 1e-3:
            return " has the wrong sign: its numbers are right, times -1"
        if ratio < 0:
            return f" is {ratio:.4g} times what it should be: a sign is wrong"
        many = f"{ratio:.4g} times too large" if ratio > 1 else f"{1 / ratio:.4g} times too small"
        for said, number in {**factors, **FACTORS}.items():
            if abs(max(ratio, 1 / ratio) / number - 1) < 1e-3:
                what = _what_factor(said, ratio)
                return f" is {many} everywhere: that is {said}; {what}"
        return f" is {many} everywhere: a factor is missing or too many"
    offset = (found - right).flatten()
    if found.numel() > 1 and float((offset - offset.mean()).abs().max()) < TOLERANCE:
        return (
            f" is off by {offset.mean():+.4g} everywhere: something is added or subtracted too "
            "often"
        )
    return ""


def _what_factor(said: str, ratio: float) -> str:
    if said.startswith("the size"):
        return "a sum where a mean is wanted" if ratio > 1 else "a mean where a sum is wanted"
    return "divide by it" if ratio > 1 else "do not divide by it"


def constant_ratio(found: Tensor, right: Tensor) -> float | None:
    """Return c where found = c · right everywhere, and c is not 1."""
    # Numbers near zero tell no ratio.
    known = right.abs() > 1e-6
    if known.sum() < 2:  # any number is a multiple of another
        return None
    if bool((found[~known].abs() > 1e-4).any()):
        return None
    ratios = found[known] / right[known]
    ratio = ratios.mean().item()
    spread = (ratios - ratio).abs().max().item()
    # Ratios within a thousandth of their mean are one factor; near 0, the answer is all zeros.
    return ratio if spread <= 1e-3 * abs(ratio) and abs(ratio) > 1e-6 else None


FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("the sign is lost: these are absolute values", torch.abs),
    ("numbers below 0 became 0: a ReLU or clamp too many", torch.relu),
    ("these are the squares: a square too many, or a root is missing", torch.square),
    ("these are the roots: a root too many", lambda right: right.sqrt().nan_to_num(-1.0)),
    ("this is exp of the answer", torch.exp),
    ("this is the logarithm of the answer", lambda right: right.log().nan_to_num(-1.0)),
    ("this is the logarithm without its sign", lambda right: (-right.log()).nan_to_num(-1.0)),
    ("this is 1 - the answer", lambda right: 1 - right),
    ("the quotient is upside down: this is 1 / the answer", lambda right: 1 / right),
    ("this is the angle, whose cosine is asked for", lambda right: right.clamp(-1, 1).acos()),
    ("this is tanh of the answer", torch.tanh),
    ("this is sigmoid of the answer", torch.sigmoid),
    ("softmax is taken of the answer", lambda right: right.softmax(-1) if right.ndim else right),
    (
        "log_softmax, a logarithm, is taken of the answer",
        lambda right: right.log_softmax(-1) if right.ndim else right,
    ),
    (
        "the numbers are summed up one after the other",
        lambda right: right.cumsum(-1) if right.ndim else right,
    ),
    ("the numbers are rounded down to whole numbers, as by //", torch.floor),
    ("the numbers are cut to whole numbers, as by int()", torch.trunc),
    ("the numbers are rounded to whole numbers", torch.round),
    ("the numbers are rounded to one decimal", lambda right: right.round(decimals=1)),
    ("the numbers are rounded to two decimals", lambda right: right.round(decimals=2)),
    ("the numbers are rounded to three decimals", lambda right: right.round(decimals=3)),
)  # fmt: skip


def _function(found: Tensor, right: Tensor) -> str:
    for sentence, function in FUNCTIONS:
        changed = function(right)
        # A tight tolerance: rounded numbers are near the right ones.
        if near(found, changed, 1e-5) and not near(right, changed, 1e-6):
            return f": {sentence}"
    return ""


def _of_rows(found: Tensor, right: Tensor) -> str:
    """Tell rows or columns that are each off by a number or a factor of their own."""
    if right.ndim < 2:
        return ""
    flat = (found - found.flatten()[0]).abs().max()
    if float(flat) < 1e-6:
        return " is one and the same number everywhere"
    if right.shape[-2] > 1 and float((found - found[..., :1, :]).abs().max()) < 1e-6:
        return " has the same numbers in every row: each row is one of its own"
    for axis, word in ((-1, "row"), (-2, "column")):
        if right.shape[axis] < 3:
            continue
        offsets = found - right
        if float((offsets - offsets.mean(axis, keepdim=True)).abs().max()) < TOLERANCE:
            return (
                f" is right but for a number that is added to each {word}: something is subtracted "
                f"or added once for each {word}"
            )
        known = right.abs() > 1e-4
        ratios = torch.where(known, found / right.where(known, torch.ones_like(right)), torch.nan)
        centre = ratios.nanmean(axis, keepdim=True)
        if float((ratios - centre).abs().nan_to_num().max()) < 1e-3 * float(
            centre.abs().nan_to_num().max()
        ):
            return (
                f" is right but for a factor of each {word}: each {word} should be normalised "
                "once, by its own sum or length"
            )
    return ""


def _moved(found: Tensor, right: Tensor) -> str:
    for axis in range(right.ndim):
        what = (
            {0: "rows", 1: "columns"}.get(axis, f"axis {axis}")
            if right.ndim == 2
            else f"axis {axis}"
        )
        if near(found.flip(axis), right):
            return f" has the right numbers in reversed order along {what}"
        size = right.shape[axis]
        for step in (1, -1):
            shifted = right.roll(step, axis)
            # The row that comes in at the end may be anything.
            inner = slice(1, size) if step == 1 else slice(0, size - 1)
            kept = [slice(None)] * axis + [inner]
            if (
                size > 2
                and near(found[tuple(kept)], shifted[tuple(kept)])
                and not near(shifted, right)
            ):
                late = "one place too late" if step == 1 else "one place too early"
                return f" is off by one along {what}: its numbers stand {late}; count from 0"
    if right.numel() > 2 and near(found.flatten().sort().values, right.flatten().sort().values):
        return " has the right numbers in wrong places: a reshape mixed the order of its axes"
    return ""


def _region(found: Tensor, right: Tensor) -> str:
    """Tell where an answer is wrong, if all the rest is right."""
    wrong = (found - right).abs() > 1e-3 * right.abs() + 1e-4
    if not bool(wrong.any()) or right.ndim == 0:
        return ""
    for said, region in _regions(right):
        if bool(region.any()) and not bool((wrong & ~region).any()) and not bool(region.all()):
            index = tuple(wrong.nonzero()[0].tolist())
            return (
                f" is right but for {said}: {found[index]:.4f} at {list(index)} should be "
                f"{right[index]:.4f}"
            )
    return ""


def _regions(right: Tensor) -> Iterator[tuple[str, Tensor]]:
    size = right.shape
    if right.ndim >= 2 and size[-1] == size[-2]:
        square = torch.ones(size[-2:], dtype=torch.bool)
        for said, region in (
            ("the diagonal", torch.eye(size[-1], dtype=torch.bool)),
            ("what stands below the diagonal", square.tril(-1)),
            ("what stands above the diagonal", square.triu(1)),
        ):
            yield said, region.expand(size)
    for axis in range(right.ndim):
        for said, index in (("first", 0), ("last", size[axis] - 1)):
            region = torch.zeros(size, dtype=torch.bool)
            region.select(axis, index).fill_(True)
            what = {(2, 0): "row", (2, 1): "column", (1, 0): "number"}.get(
                (right.ndim, axis), f"part of axis {axis}"
            )
            yield f"its {said} {what}", region
    if right.ndim >= 2 and size[-1] == size[-2]:
        edge = torch.zeros(size, dtype=torch.bool)
        edge[..., -1, :] = True
        edge[..., :, -1] = True
        yield "its last row and column", edge


def no_tensor(found: Any, right: Tensor) -> str:
    """Return what is wrong with an answer that is no tensor and no number."""
    kind = type(found).__name__
    wanted = describe(right)
    if kind == "ndarray":
        return (
            f" should return {wanted}, and returned {describe(found)}: torch.from_numpy makes a "
            "tensor of it"
        )
    if isinstance(found, list | tuple):
        if found and all(isinstance(part, Tensor) for part in found):
            return (
                f" should return {wanted}, and returned a {kind} of {len(found)} tensors: "
                "torch.stack or torch.cat makes one of them"
            )
        return f" should return {wanted}, and returned a {kind}: torch.tensor makes a tensor of it"
    return f" should return {wanted}, and returned {describe(found)}"
