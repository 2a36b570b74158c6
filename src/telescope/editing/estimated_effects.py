"""The table of `effect(how="gradient")`: estimates of all edits, of which the largest are run."""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any, SupportsIndex

from ..words import hint, whole_number
from .edits import Edit
from .estimates import Estimate

HOW = ("exact", "gradient")
VERIFY = 20  # of the largest estimates are run, unless the caller says
Verify = int | str
"""How many of the largest estimates are run exactly, or "all"."""
Drops = int | str
"""Of how many blocks the gradient is dropped, or "all"."""
RunExactly = Callable[[Sequence[tuple[Edit, ...]]], list[dict[str, float]]]


def check_how(how: str, verify: Any, drops: Any) -> None:
    """Raise where the options of an estimate are not what they may be, or given without one."""
    if how not in HOW:
        raise ValueError(f'there is no how="{how}"; {hint(str(how), HOW)}')
    for name, given, default in (("verify", verify, VERIFY), ("drops", drops, 0)):
        if isinstance(given, str):
            if given != "all":
                raise ValueError(f'{name}="{given}"; it takes a number, or "all"')
        elif whole_number(name, given) < 0:
            raise ValueError(f'{name}={given}; it takes a number from 0 on, or "all"')
        if how == "exact" and given != default:
            raise ValueError(
                f'{name}={given!r} belongs to how="gradient"; how="exact" runs every edit'
            )


def verified_columns(
    estimate: Estimate,
    rows: Sequence[tuple[Edit, ...]],
    name: str,
    verify: SupportsIndex | str,
    run: RunExactly,
) -> dict[str, list[Any]]:
    """Return the columns of the table, the model as it is first; run the largest estimates exactly.

    name  of the measure
    run   returns the rows of an exact table for some edits
    """
    changes = estimate.changes
    # Of equal estimates the first is run; a NaN cannot be ranked, so that it is run.
    order = sorted(
        range(len(rows)), key=lambda i: -abs(changes[i]) if changes[i] == changes[i] else -1e308
    )
    count = len(rows) if isinstance(verify, str) else min(whole_number("verify", verify), len(rows))
    chosen = sorted(order[:count])
    exact = [estimate.value] + [nan] * len(rows)
    measured = run([rows[i] for i in chosen]) if chosen else []
    for i, found in zip(chosen, measured, strict=True):
        exact[i + 1] = found[name]
    verified = [True] + [i in {*chosen} for i in range(len(rows))]
    values = [estimate.value, *(estimate.value + change for change in changes)]
    return {name: values, "exact": exact, "verified": verified}


def recall_of(columns: Mapping[str, Sequence[Any]], top: Any, among: Any) -> float:
    """Return the share of the `top` exactly largest effects that is `among` the largest
    estimates.
    """
    names = [*columns]
    if "verified" not in columns:
        raise ValueError(
            'recall compares estimates with exact effects; ts.effect(..., how="gradient", '
            'verify="all") has both'
        )
    if not all(columns["verified"]):
        missing = len(columns["verified"]) - sum(columns["verified"])
        raise ValueError(
            f"recall needs the exact effect of every edit, and {missing} were not run; "
            'ts.effect(..., how="gradient", verify="all") runs them'
        )
    numbers = {"top": whole_number("top", top), "among": whole_number("among", among)}
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}={number}; it takes a number from 1 on")
    largest = []
    for name, number in (
        (names[names.index("exact")], numbers["top"]),
        (names[1], numbers["among"]),
    ):
        plain, *values = columns[name]
        order = sorted(range(len(values)), key=lambda i: -abs(values[i] - plain))
        largest.append({*order[:number]})
    exact, estimated = largest
    return len(exact & estimated) / len(exact) if exact else 1.0
