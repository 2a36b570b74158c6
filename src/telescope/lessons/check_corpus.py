"""Checks of the lesson on heads over a corpus: means, changes, and a head that is clipped."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from .calling import Solution, WrongAnswer, call, passed
from .comparing import Case, Cases, compare, exercise
from .material import normal
from .slips import Slips


@exercise(
    "corpus_mean(sums, counts)",
    "sums and counts are added, and divided once: so the order of the texts cannot matter",
)
def corpus_mean() -> Cases:
    """Check corpus_mean(sums, counts): the mean over all queries of a corpus, from the sums of its
    texts.
    """
    # A short text with much, a long one with little, and one without a query that counts.
    sums = torch.tensor([9.0, 1.0, 0.0])
    counts = torch.tensor([10.0, 40.0, 0.0])
    yield Case(
        (sums, counts),
        torch.tensor(0.2),  # (9 + 1) / (10 + 40)
        {
            "a text without a query that counts gives 0 / 0; add first, then divide": torch.nan,
            "this is the mean of the texts' means; a long text has more queries than a short "
            "one": 0.925 / 2,
            "this is the mean of the texts' means, with 0 for an empty text; a long text has more "
            "queries than a short one": 0.925 / 3,
            "this is the sum of the texts' means; a long text has more queries than a short one": (
                0.925
            ),
            "this is the mean of the sums; divide by the number of queries": 10.0 / 3,
            "this is the sum over all queries; divide by their number": 10.0,
            "the quotient is upside down: divide the sums by the counts": 5.0,
            "this is the median of the texts' means; add first, then divide": 0.025,
            "this is the mean of the largest text alone; add first, then divide": 0.9,
            "the number of queries is one too large: 1 is added, or the counts are clamped to 1; a "
            "text without a query adds 0": 10 / 51,
            "the sums are multiplied by the counts; they are sums over the queries already": 2.6,
            "the sum is divided by the mean of the counts; divide by their sum": 0.6,
            "// gives whole numbers; use /": 0.0,
            "these are the means of each text; return one number, over all texts": (
                sums / counts.clamp(min=1)
            ),
            "these are the means of each text, with 0 / 0; return one number, over all texts": (
                sums / counts
            ),
        },
    )


@exercise("changed(before, after)", "below 3, a change may be chance")
def changed() -> Cases:
    """Check changed(before, after): the change of a mean, in units of its standard error."""
    fewer = 0.4 + 0.1 * normal(9)
    more = 0.7 + 0.3 * normal(36, seed=1)
    for before, after in ((fewer, more), (more, fewer)):  # a rise, and a fall
        n = len(before)
        m = len(after)

        def compute(
            error: str = "right",
            centre: str = "mean",
            sign: float = 1.0,
            end: str = "divided",
            correction: int = 1,
            before: Tensor = before,
            after: Tensor = after,
            n: int = n,
            m: int = m,
        ) -> Tensor:
            one, other = (part.var(correction=correction) for part in (before, after))
            errors = {
                "right": (one / n + other / m).sqrt(),
                "spread": (one + other).sqrt(),
                "added": (one / n).sqrt() + (other / m).sqrt(),
                "no root": one / n + other / m,
                "by n": one.sqrt() / n + other.sqrt() / m,
                "before": (one / n).sqrt(),
                "after": (other / m).sqrt(),
                "together": ((one + other) / (n + m)).sqrt(),
                "pooled": (
                    ((n - 1) * one + (m - 1) * other) / (n + m - 2) * (1 / n + 1 / m)
                ).sqrt(),
                "exchanged": (one / m + other / n).sqrt(),
                "squares": (one**2 / n + other**2 / m).sqrt(),
                "deviations": (one.sqrt() / n + other.sqrt() / m).sqrt(),
            }
            means = before.mean(), after.mean()
            if centre == "median":
                means = before.median(), after.median()
            change = sign * (means[1] - means[0])
            change = change.abs() if sign == 0 else change
            ends = {
                "divided": change / errors[error],
                "change": change,
                "ratio": means[1] / means[0],
                "relative": change / means[0],
                "multiplied": change * errors[error],
                "absolute": (change / errors[error]).abs(),
            }
            return ends[end]

        switches: dict[str, dict[str, Any]] = {
            "this is the change; divide it by its standard error": {"end": "change"},
            "this is the ratio of the means; take their difference, in standard errors": {
                "end": "ratio"
            },
            "this is the relative change, a share of the first mean; divide by the standard "
            "error": {"end": "relative"},
            "the change is multiplied by its error; divide": {"end": "multiplied"},
            "the sign is lost: it is after - before": {"end": "absolute"},
            "the sign is exchanged: after - before": {"sign": -1.0},
            "medians are compared; take the means": {"centre": "median"},
            "divided by the spread of the texts; the error of a mean is smaller by √(number of "
            "texts)": {"error": "spread"},
            "the two errors are added; add their squares, and take the root": {"error": "added"},
            "the root is missing: this is divided by the square of the standard error": {
                "error": "no root"
            },
            "σ / n is used; the error of a mean is σ / √n, and errors add as squares, under a "
            "root": {"error": "by n"},
            "only the error of before is used; after has one too": {"error": "before"},
            "only the error of after is used; before has one too": {"error": "after"},
            "both variances are divided by n + m together; each has its own number of texts": {
                "error": "together"
            },
            "the numbers of texts are exchanged; each variance is divided by its own": {
                "error": "exchanged"
            },
            "the variances are squared again; they are squares of σ already": {"error": "squares"},
            "standard deviations stand under the root; take their squares, the variances": {
                "error": "deviations"
            },
        }
        # With and without Bessel's correction: both are right, and so are both in a mistake.
        for correction in (1, 0):
            switches |= {
                f"{sentence} ": {**changes, "correction": correction}
                for sentence, changes in list(switches.items())[:17]
                if correction == 0
            }
        yield Case(
            (before, after),
            compute(),
            Slips(compute, switches),
            tolerance=0.08,  # with or without Bessel's correction
            raises={
                r"\(9\) must match|\(36\) must match": "9 and 36 texts are no pairs, and their "
                "sizes do not fit: compare the means"
            },
        )


def clipped(function: Solution) -> None:
    """Check clipped(W_q, W_k, logit, tau): the matrices of one head whose largest logit becomes
    tau.
    """
    x = normal(6, 4)
    W_q = normal(4, 3, seed=1)
    W_k = normal(4, 3, seed=2)
    largest = float((x @ W_q @ (x @ W_k).mT / sqrt(3)).max())
    # A limit below the largest logit, and one above, which changes nothing.
    for tau in (largest / 4, 2 * largest):
        found = call("clipped(W_q, W_k, logit, tau)", function, W_q, W_k, largest, tau)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongAnswer("clipped should return two matrices: W_q and W_k")
        found = [_in_float32(part) for part in found]
        # Scores have a factor of each matrix: both take the root.
        factor = min(1.0, tau / largest) ** 0.5
        rights = [factor * W for W in (W_q, W_k)]
        if tau > largest and not _are(found, [W_q, W_k]):
            raise WrongAnswer("clipped: a head below the limit is left as it is, whatever tau is")
        for sentence, wrong in _wrong_clips(W_q, W_k, largest, tau).items():
            if tau < largest and _are(found, wrong):
                raise WrongAnswer(f"clipped: {sentence}")
        for name, own, plain in zip(("W_q", "W_k"), found, (W_q, W_k), strict=True):
            if isinstance(own, Tensor) and _is_cut(own, plain):
                raise WrongAnswer(
                    f"clipped: numbers of {name} are cut off (clamp), each by itself; multiply the "
                    "matrix by one factor"
                )
        for name, own, right, plain in zip(("W_q", "W_k"), found, rights, (W_q, W_k), strict=True):
            compare(
                name,
                own,
                right,
                {"the matrix is unchanged": plain},
            )
    passed("clipped", "agrees with ts.qk_clip: the largest logit is tau")


def _in_float32(found: Any) -> Any:
    """Return a tensor of numbers in float32; anything else as it is."""
    if isinstance(found, Tensor) and found.is_floating_point() and not found.is_meta:
        return found.detach().to_dense().cpu().float()
    return found


def _is_cut(found: Tensor, plain: Tensor) -> bool:
    """Return whether a matrix is `plain` with its largest numbers cut off."""
    if found.shape != plain.shape or not found.is_floating_point() or torch.equal(found, plain):
        return False
    cut = plain.clamp(float(found.min()), float(found.max()))
    return torch.allclose(found, cut)


def _are(found: Any, pair: list[Tensor]) -> bool:
    return all(
        isinstance(own, Tensor)
        and own.dtype == right.dtype
        and own.shape == right.shape
        and torch.allclose(own, right, atol=1e-4)
        for own, right in zip(found, pair, strict=True)
    )


def _wrong_clips(W_q: Tensor, W_k: Tensor, logit: float, tau: float) -> dict[str, list[Tensor]]:
    """Return the pairs of matrices that usual mistakes give, for a logit above tau."""
    ratio = tau / logit
    root = ratio**0.5

    def both(factor: float) -> list[Tensor]:
        return [factor * W_q, factor * W_k]

    return {
        "both matrices are multiplied by tau / logit, so that scores shrink by its square; take "
        "the root": both(ratio),
        "the fourth root is taken; take the square root of tau / logit": both(ratio**0.25),
        "the factor is squared; take the square root of tau / logit": both(ratio**2),
        "the quotient is upside down: the factor is the root of tau / logit": both(1 / root),
        "the quotient is upside down, and without its root; the factor is the root of tau / "
        "logit": both(1 / ratio),
        "W_q and W_k are exchanged: return them in the order W_q, W_k": [root * W_k, root * W_q],
        "W_k is unchanged; both matrices have the same factor": [root * W_q, W_k],
        "W_q is unchanged; both matrices have the same factor": [W_q, root * W_k],
        "all of tau / logit is in W_q; both matrices have the same factor, its root": [
            ratio * W_q,
            W_k,
        ],
        "all of tau / logit is in W_k; both matrices have the same factor, its root": [
            W_q,
            ratio * W_k,
        ],
        "both matrices are unchanged; a logit above tau has to become tau: min(1, tau / logit)": [
            W_q,
            W_k,
        ],
    }
