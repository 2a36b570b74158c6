"""Checks of the lessons on geometry, on masks, and on what one head reads."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..traces import trace
from .calling import Solution, WrongAnswer, call, describe, numbers_of, passed
from .comparing import Case, Cases, compare, exercise
from .material import causal_matrix, normal

# ---------------------------------------------------------------------------------------- geometry


@exercise("cosine(a, b)", "agrees with torch")
def cosine() -> Cases:
    """Check cosine(a, b), of two vectors."""
    for seed in (0, 1):
        a = normal(4, seed=seed)
        # Another length than a's, so that a missing division is noticed.
        b = 3 * normal(4, seed=seed + 5)
        right = torch.nn.functional.cosine_similarity(a, b, dim=0)
        lengths = a.norm() * b.norm()
        mistakes = {
            "this is the dot product; divide it by the lengths of both vectors": a @ b,
            "only one length is divided by, a's; divide by the product of both": a @ b / a.norm(),
            "only one length is divided by, b's; divide by the product of both": a @ b / b.norm(),
            "a @ b / |a| * |b| multiplies by the second length; put parentheses around the product "
            "of both lengths": a @ b / a.norm() * b.norm(),
            "this is the distance": (a - b).norm(),
            "the lengths are squared; take their roots": a @ b / ((a @ a) * (b @ b)),
            "the dot product is divided by the sum of the lengths; divide by their product": (
                a @ b / (a.norm() + b.norm())
            ),
            "the root is taken of the product of the lengths; these are roots already": (
                a @ b / lengths.sqrt()
            ),
            "the products are not summed; a dot product is a sum": a * b / lengths,
            "the mean is subtracted first: this is a correlation": torch.corrcoef(
                torch.stack([a, b])
            )[0, 1],
            "lengths are sums of absolute values here; take the root of the sum of squares": (
                a @ b / (a.norm(p=1) * b.norm(p=1))
            ),
            "the mean of the squares is used for a length; take their sum": a @ b * 4 / lengths,
            "the quotient is upside down: the dot product is divided by the lengths": (
                lengths / (a @ b)
            ),
        }
        yield Case((a, b), right, mistakes)


def towards(x: Tensor) -> None:
    """Check a vector for "bank" that attention moves closer to money than to river."""
    x = numbers_of("bank", x, "a vector of three numbers")
    # Two vectors at right angles, of one length.
    money = torch.tensor([2.0, 0.0, 0.0])
    river = torch.tensor([0.0, 2.0, 0.0])
    if x.shape != (3,):
        raise WrongAnswer(
            f"bank should be a vector of three numbers, and has shape {tuple(x.shape)}"
        )
    # The words themselves are queries, keys and values.
    tokens = torch.stack([money, river, x])[None, None]
    moved = trace(tokens, tokens, tokens).context[0, 0, 2]
    # How far bank is from either word afterwards.
    near, far = ((moved - word).norm().item() for word in (money, river))
    if not near < far:
        hint = "give bank a larger dot product with money than with river"
        if abs(near - far) < 1e-5:
            hint = f"its dot products with both are the same: {hint}"
        elif x[0] < 0:
            hint = f"a negative first feature points away from money: {hint}"
        raise WrongAnswer(
            f"after attention, bank is {near:.3f} from money and {far:.3f} from river; {hint}"
        )
    passed("bank", f"after attention it is {near:.3f} from money and {far:.3f} from river")


# ------------------------------------------------------------------------------------------- masks


def causal_mask(function: Solution) -> None:
    """Check causal_mask(queries, keys): True where a query may see a key; the last query sees the
    last key.
    """
    # A whole text, several new tokens after a cache, and one.
    for queries, keys in ((4, 4), (2, 5), (1, 3)):
        found = call("causal_mask(queries, keys)", function, queries, keys)
        # 0 and 1 would pass the comparison, and fail in ~mask.
        if isinstance(found, Tensor) and found.dtype != torch.bool:
            raise WrongAnswer(
                f"causal_mask holds {found.dtype}; True and False say who may see, so use "
                "torch.bool"
            )
        compare(
            f"causal_mask({queries}, {keys})",
            found,
            causal_matrix(queries, keys),
            _wrong_masks(queries, keys),
        )
    passed("causal_mask", "agrees with ts.causal, also with a cache")


def _wrong_masks(queries: int, keys: int) -> dict[str, Tensor]:
    """Return the masks that usual mistakes give."""
    shift = keys - queries
    ones = torch.ones(queries, keys, dtype=torch.bool)
    right = ones.tril(shift)
    square = torch.ones(keys, keys, dtype=torch.bool).tril()
    return {
        "the diagonal is shifted the wrong way: keys - queries, so that the last query stands at "
        "the last key": ones.tril(-shift),
        "True and False are exchanged: True means that a query may see a key": ~right,
        "no query may see anything: True means that it may": ~ones,
        "a query sees itself and the future, and not the past: use tril, not triu, or is the mask "
        "transposed?": (ones.triu(shift)),
        "a token should see itself too": ones.tril(shift - 1),
        "every query sees all keys, and so the future": ones,
        "each query also sees one token of the future: the diagonal is one too far": (
            ones.tril(shift + 1)
        ),
        "the mask is aligned to the first query; with a cache, the last query is the last key": (
            ones.tril()
        ),
        "the mask is aligned to the first query, and True and False are exchanged": ~ones.tril(),
        "each token sees itself alone; the earlier ones too, please": (
            torch.eye(queries, keys, dtype=torch.bool)
        ),
        "the mask has a row for each key; return the last rows, a row for each query": square,
        "the mask has no column for the keys in the cache; it needs a column for each key": (
            torch.ones(queries, queries, dtype=torch.bool).tril()
        ),
        "this is one row; return a row for each query": right[-1],
        "this is a mask of 4 queries and 4 keys, whatever is asked for: the sizes of an example "
        "are written into it": causal_matrix(4, 4),
    }


@exercise(
    "masked_softmax(scores, mask)", "agrees with ts.attend, also for a query that sees nothing"
)
def masked_softmax() -> Cases:
    """Check masked_softmax(scores, mask): weights 0 where the mask is False, and zeros where a row
    sees nothing.
    """
    raw = normal(4, 4)
    mask = causal_matrix(4, 4)
    right = raw.masked_fill(~mask, -torch.inf).softmax(-1)
    # With the mask exchanged the last query sees nothing, which is NaN in place of zeros.
    exchanged = raw.masked_fill(mask, -torch.inf).softmax(-1).nan_to_num()
    powers = raw.exp() * mask
    zeroed = (raw * mask).softmax(-1)
    hidden = raw.masked_fill(~mask, -torch.inf)
    yield Case(
        (raw, mask),
        right,
        {
            "the mask is exchanged: True means may see": exchanged,
            "the mask is exchanged: True means may see; of both fills": exchanged.masked_fill(
                ~mask, 0.0
            ),
            "the mask is exchanged in the first masked_fill: True means may see": (
                raw.masked_fill(mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
            ),
            "the mask is exchanged: True means may see, and the last query now sees "
            "nothing": raw.masked_fill(mask, -torch.inf).softmax(-1),
            "the weights are set to 0 after softmax, so rows do not sum to 1; put -inf before "
            "it": raw.softmax(-1) * mask,
            "masked scores are 0, and exp(0) = 1 is a weight; use -inf": zeroed,
            "masked scores are 0, and exp(0) = 1 is part of the sum; use -inf": zeroed * mask,
            "the mask is not used": raw.softmax(-1),
            "softmax runs over the queries; use dim=-1": hidden.softmax(0),
            "softmax runs over the queries; use dim=-1 for it": (
                hidden.softmax(0).masked_fill(~mask, 0.0)
            ),
            "these are logarithms: log_softmax instead of softmax": (
                hidden.log_softmax(-1).masked_fill(~mask, 0.0)
            ),
            "these are logarithms: log_softmax instead of softmax, -inf where the mask is "
            "False": hidden.log_softmax(-1),
            "the softmax is missing: these are the masked scores": hidden,
            "the softmax is missing: these are the scores, with 0 where the mask is False": (
                raw * mask
            ),
            "all weights are divided by one sum; each row has its own": powers / powers.sum(),
            "the mask is added to the scores as 0 and 1; add 0 and -inf, or use masked_fill": (
                (raw + mask.float()).softmax(-1)
            ),
            "every weight is NaN: 0 times -inf is NaN, so a mask is no factor of -inf; use "
            "masked_fill(~mask, -inf)": torch.full((4, 4), torch.nan),
            "the mask gets +inf, so that NaN follows; hide with -inf": (
                raw.masked_fill(~mask, torch.inf).softmax(-1)
            ),
            "the mask gets +inf; hide with -inf, whose exp is 0": (
                raw.masked_fill(~mask, torch.inf).softmax(-1).masked_fill(~mask, 0.0)
            ),
            "the scores that may be seen stand on one axis, flat; keep the shape of the scores, "
            "with masked_fill": raw[mask].softmax(-1),
        },
        weights=True,
    )
    # Rows that see nothing: softmax of nothing but -inf is NaN.
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    yield Case(
        (raw, nothing),
        torch.zeros(4, 4),
        {
            "a finite number such as -1e9 makes the weights of a row that sees nothing even, 1/4 "
            "each; use -inf, and set these weights to 0": torch.full((4, 4), 0.25),
            "the mask that is given is not used; here every row sees nothing": right,
        },
        if_nan="a query that sees nothing gives NaN (0 / 0); let its weights be 0",
        what="masked_softmax of a row that sees nothing",
    )


# --------------------------------------------------------------------------- one head, one reading


def two_readings(function: Solution) -> None:
    """Check query_for(target): a query, of the features of the telescope sentence, that reads one
    word.
    """
    # One key for each feature of the sentence.
    features = torch.eye(6)
    for target, name in ((1, "subject"), (3, "object")):
        query = _query(function, target)
        # Attention of one query with d_k = 6.
        weights = (features @ query / sqrt(6)).softmax(-1)
        best = int(weights.argmax())
        if float(weights.max() - weights.min()) < 1e-3:
            raise WrongAnswer(
                f"query_for({target}) gives every feature an even weight of 1/6, as all its "
                f"numbers are the same; the {name}'s number must be larger than the others"
            )
        if best != target:
            hint = ""
            if query[target] < 0:
                hint = ": a negative number hides a feature, so the sign is wrong"
            elif abs(best - target) == 1:
                hint = ": this is the feature next to it, and features are counted from 0"
            elif target == 3:
                hint = ": the query must depend on the target"
            raise WrongAnswer(
                f"query_for({target}) reads feature {best} with weight {weights[best]:.2f}, not "
                f"the {name}{hint}"
            )
        # The largest weight may still be a small one.
        if weights[target] < 0.8:
            raise WrongAnswer(
                f"query_for({target}) gives the {name} {weights[target]:.2f}; make it clearer, "
                "above 0.8, with a larger number"
            )
    passed("query_for", "two queries, two readings")


def _query(function: Solution, target: int) -> Tensor:
    """Return the query of a reader as six finite numbers."""
    found = call("query_for(target)", function, target)
    wanted = "a vector of six numbers, one for each feature"
    if callable(found):
        raise WrongAnswer(f"query_for should return {wanted}, and returned {describe(found)}")
    try:
        query = torch.as_tensor(found).detach().cpu().float()
    except Exception:
        raise WrongAnswer(
            f"query_for should return {wanted}, and returned {describe(found)}"
        ) from None
    if query.shape != (6,):
        raise WrongAnswer(f"query_for should return {wanted}, and returned {describe(found)}")
    if not bool(query.isfinite().all()):
        raise WrongAnswer(
            f"query_for({target}) holds NaN or an infinite number; a large one, such as 12, is "
            "enough"
        )
    return query


READINGS = [
    (([0.5, 0.1], [0.1, 0.1]), 0),
    (([0.1, 0.5], [0.1, 0.1]), 1),
    (([0.3, 0.4], [0.1, 0.3]), 0),  # 3 times even, against 1.3 times
    (([0.2, 0.6], [0.05, 0.4]), 0),  # the difference is larger for the other word
    (([0.2, 0.5], [0.1, 0.1]), 1),  # both above even
    (([0.4, 0.3], [0.3, 0.1]), 1),
    (([0.05, 0.1], [0.1, 0.2]), None),  # both below even
    (([0.15, 0.1], [0.1, 0.2]), 0),  # a little above even is enough
]


def reads(function: Solution) -> None:
    """Check reads(weights, even): which of two words gets more than even, and more so than the
    other; else None.
    """
    # The second list of a case: what each word would get if all tokens got the same.
    answers = []
    for (weights, even), _ in READINGS:
        arguments = torch.tensor(weights), torch.tensor(even)
        found = call("reads(weights, even)", function, *arguments, optional=True)
        # A tensor of one number is a number.
        if isinstance(found, Tensor) and found.numel() == 1:
            found = found.item()
        if found is not None and not isinstance(found, int | float):
            raise WrongAnswer(
                f"reads should return 0, 1 or None: the number of the word, and returned "
                f"{describe(found)}"
            )
        answers.append(found)
    rights = [right for _, right in READINGS]
    for ((weights, even), right), found in zip(READINGS, answers, strict=True):
        # False is 0 for Python, and no number of a word.
        if found != right or isinstance(found, bool):
            hint = _about_readings(answers, rights)
            raise WrongAnswer(f"reads({weights}, {even}) is {found}, and should be {right}{hint}")
    passed("reads", "eight cases agree")


def _about_readings(answers: list[Any], rights: list[int | None]) -> str:
    """Return what a reader's answers to all cases have in common with a usual mistake."""
    if all(answer is None for answer in answers):
        return ": it always returned nothing; is there a `return`?"
    if len({str(answer) for answer in answers}) == 1:
        return ": it always returns the same, whatever the weights are"
    numbers = [answer for answer in answers if answer is not None]
    if any(isinstance(answer, str | float | list) for answer in numbers):
        return "; return 0, 1 or None: the number of the word"
    if any(isinstance(answer, bool) for answer in numbers) or -1 in numbers:
        return "; where neither word gets more than even, return None"
    if 2 in numbers:
        return "; the words are counted from 0"
    for sentence, mistaken in _mistaken_readings().items():
        if answers == mistaken:
            return f"; {sentence}"
    if None in rights and answers[rights.index(None)] is not None:
        return "; neither word gets more than even weights would give it"
    return "; compare each weight with its even share: a long word has several tokens"


def _mistaken_readings() -> dict[str, list[int | None]]:
    """Return the answers that usual mistakes give to all cases."""
    rules: dict[str, Any] = {
        "neither word gets more than even weights would give it": lambda w, e: (w / e).argmax(),
        "compare each weight with its even share: a long word has several tokens": (
            lambda w, e: w.argmax()
        ),
        "this is the word of the larger difference; divide each weight by its even share, and "
        "compare the ratios": lambda w, e: (w - e).argmax() if (w > e).any() else None,
        "the quotient is upside down: divide the weight by its even share": (
            lambda w, e: (e / w).argmax() if (w > e).any() else None
        ),
        "this is the first word above its even share; the other one may be more so": (
            lambda w, e: next((i for i in (0, 1) if w[i] > e[i]), None)
        ),
        "this is the last word above its even share; where both are, compare their ratios": (
            lambda w, e: next((i for i in (1, 0) if w[i] > e[i]), None)
        ),
        "compare each weight with its even share, also where one is above even": (
            lambda w, e: w.argmax() if (w > e).any() else None
        ),
        "this looks at the even shares alone; the weights decide": lambda w, e: e.argmin(),
    }
    cases = [(torch.tensor(weights), torch.tensor(even)) for (weights, even), _ in READINGS]
    answers = {}
    for sentence, rule in rules.items():
        given = [rule(weights, even) for weights, even in cases]
        answers[sentence] = [None if answer is None else int(answer) for answer in given]
    # With a larger limit than 1, a solution returns None too often.
    for limit in (1.5, 2.0, 3.0, 4.0, 5.0):
        answers[f"a ratio above {limit:g} is asked for; more than even, above 1, is enough"] = [
            int((w / e).argmax()) if (w / e).max() > limit else None for w, e in cases
        ]
    return answers
