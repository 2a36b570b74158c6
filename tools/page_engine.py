"""Compare the page's engine with `ts.trace` on random definitions: `python tools/page_engine.py
--cases 10000`.

The page computes worked examples by itself (web/engine/). Each case draws what the page offers:
sizes up to 12 x 12, a score, a scale, a temperature, a mask, hidden keys and a normaliser. Both
compute every step in float64; Python by `ts.trace`, the page's engine under node, one process for
all cases. Printed is the largest difference, of numbers above 1 relative to them.
"""

import json
import math
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch

import telescope as ts
from telescope.attention import ZeroSumError

WEB = Path(__file__).parents[1] / "web"
MOST = 12  # queries, keys and features
AT_ONCE = 500  # cases whose answers are in memory at a time
# The steps of both, by name; a step that a definition lacks equals the step before.
STEPS = ("scores", "scaled", "masked", "weights", "context")


@dataclass(frozen=True)
class Case:
    """One attention: the request for the page's engine, and the same for `ts.trace`."""

    attend: dict[str, Any]
    attention: ts.Attention

    def trace(self) -> dict[str, Any] | None:
        """Return every step as `ts.trace` computes it; None where scores sum to zero."""
        sides = (
            torch.tensor(self.attend[name], dtype=torch.float64)[None, None]
            for name in ("queries", "keys", "values")
        )
        try:
            steps = ts.trace(*sides, self.attention)
        except ZeroSumError:
            return None
        found = {name: getattr(steps, name)[0, 0].tolist() for name in STEPS}
        return found | {"formula": steps.formula}


def draw(dice: Random) -> Case:
    """Return a random case. One in four has whole numbers, so that scores may sum to zero."""
    n_q, n_k, d_q, d_v = (dice.randint(1, MOST) for _ in range(4))
    whole = dice.random() < 0.25
    size = dice.choice((0.1, 1.0, 5.0, 1000.0))

    def number() -> float:
        return float(dice.randint(-2, 2)) if whole else dice.gauss(0.0, size)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[number() for _ in range(columns)] for _ in range(rows)]

    def tensor(rows: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    # A score; only a plain dot product needs queries and keys of one width.
    kind = dice.choice(("dot", "dot", "general", "additive"))
    d_k = d_q if kind == "dot" else dice.randint(1, MOST)
    score: dict[str, Any] = {"kind": kind}
    own: ts.Score = ts.dot
    if kind == "general":
        score["W"] = matrix(d_q, d_k)
        own = ts.general(tensor(score["W"]))
    elif kind == "additive":
        d_a = dice.randint(1, MOST)
        score |= {"W_q": matrix(d_q, d_a), "W_k": matrix(d_k, d_a), "v": matrix(1, d_a)[0]}
        own = ts.additive(tensor(score["W_q"]), tensor(score["W_k"]), tensor(score["v"]))

    # A scale, perhaps at a temperature, as a what-if sets it.
    scale = dice.choice((None, 1.0, dice.uniform(0.05, 3.0)))
    heat = dice.choice((1.0, 1.0, 2.0 ** (dice.randint(-6, 6) / 2)))
    if heat != 1.0:
        scale = (1 / math.sqrt(d_k) if scale is None else scale) / heat

    # A mask, and keys that are hidden beside it; some rows then see nothing.
    causal = dice.random() < 0.4
    window = dice.randint(1, MOST) if dice.random() < 0.3 else None
    hidden = [j for j in range(n_k) if dice.random() < 0.4] if dice.random() < 0.3 else []
    mask: ts.Mask = ts.causal if causal else ts.everyone
    if window is not None:
        mask = mask & ts.window(window) if causal else ts.window(window)
    if hidden:
        kept = torch.tensor([[j not in hidden for j in range(n_k)]])
        mask = ts.padding(keep=kept) if mask == ts.everyone else mask & ts.padding(keep=kept)

    by_sum = dice.random() < 0.5
    definition = {
        **{"score": score, "scale": scale, "causal": causal, "hidden": hidden},
        "normalize": "by_sum" if by_sum else "softmax",
        **({} if window is None else {"window": window}),
    }
    attend = {
        **{"definition": definition, "queries": matrix(n_q, d_q), "keys": matrix(n_k, d_k)},
        "values": matrix(n_k, d_v),
    }
    normalize = ts.by_sum if by_sum else ts.softmax
    attention = ts.Attention(score=own, scale=scale, mask=mask, normalize=normalize)
    return Case(attend, attention)


def unavailable() -> str | None:
    """Return why the page's engine cannot run here, or None."""
    if shutil.which("node") is None:
        return "there is no node here"
    if not (WEB / "node_modules/esbuild").is_dir():
        return "the tools of the page are not installed: npm ci --prefix web"
    return None


def ask_engine(requests: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the answers of the page's engine, by one process of node."""
    done = subprocess.run(
        ["node", "cases.js"],
        cwd=WEB,
        input="".join(f"{json.dumps(one)}\n" for one in requests),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences(found: Any, expected: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield how far each number is from the expected one, at most relative to it, with its path;
    infinity where the two are not of one form.
    """
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for name, part in expected.items():
            yield from differences(found[name], part, f"{path}.{name}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for at, part in enumerate(expected):
            yield from differences(found[at], part, f"{path}[{at}]")
    elif _is_number(found) and _is_number(expected):
        yield path, abs(found - expected) / max(1.0, abs(expected))
    elif _plain(found) != _plain(expected):
        yield f"{path}: {str(found)[:80]!r} instead of {str(expected)[:80]!r}", math.inf


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _plain(x: Any) -> Any:
    # JSON has no infinities, and texts stand for them.
    return str(x) if isinstance(x, float) else x


def compare(cases: Sequence[Case]) -> tuple[str, float]:
    """Return the largest difference between the engine and `ts.trace`, and where it is."""
    worst = ("", 0.0)
    answers = ask_engine([{"attend": case.attend} for case in cases])
    for at, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        expected = case.trace()
        if expected is None:
            # The same refusal, and no numbers.
            code = answer.get("error", {}).get("code")
            here = [] if code == "zero-sum" else [(f"case {at}: no refusal", math.inf)]
        elif "error" in answer:
            here = [(f"case {at}: {answer['error']['message']}", math.inf)]
        else:
            rows = {name: [row[name] for row in answer["rows"]] for name in STEPS}
            here = [
                (f"case {at}{path}", apart)
                for path, apart in differences(rows | {"formula": answer["formula"]}, expected)
            ]
        worst = max([worst, *here], key=lambda one: one[1])
    return worst


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if (why := unavailable()) is not None:
        sys.exit(why)
    dice = Random(given.seed)
    began = perf_counter()
    every = (draw(dice) for _ in range(given.cases))
    worst = ("", 0.0)
    refused = 0
    while some := list(islice(every, AT_ONCE)):
        refused += sum(case.trace() is None for case in some)
        worst = max(worst, compare(some), key=lambda one: one[1])
    seconds = perf_counter() - began
    print(
        f"{given.cases:,} definitions in {seconds:.0f} s, {refused:,} refused by both since scores "
        f"sum to zero; the largest difference is {worst[1]:.1e} ({worst[0]})"
    )
    sys.exit(worst[1] > 1e-6)


if __name__ == "__main__":
    main()
