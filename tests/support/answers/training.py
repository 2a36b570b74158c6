"""Wrong answers to the checks of a model's loss, and of the answer that needs no model."""

from collections import Counter
from math import log

from torch.nn import functional as F  # noqa: N812

from telescope.lessons import check


def chances(logits, ids):
    """Return the probability of each next token."""
    return logits[:-1].softmax(-1).gather(1, ids[1:, None])


def most(answers):
    return max(answers.count(answer) for answer in answers)


WRONG = {
    check.next_token_loss: [
        ("no shift", F.cross_entropy, r"logits\[:-1\] and ids\[1:\]"),
        ("shifted back", lambda x, ids: F.cross_entropy(x[1:], ids[:-1]), "with the token before"),
        ("rolled", lambda x, ids: F.cross_entropy(x, ids.roll(-1)), "it has no next token"),
        ("sum", lambda x, ids: F.cross_entropy(x[:-1], ids[1:], reduction="sum"), "summed"),
        ("each", lambda x, ids: F.cross_entropy(x[:-1], ids[1:], reduction="none"), "for each place"),
        ("over n", lambda x, ids: F.cross_entropy(x[:-1], ids[1:], reduction="sum") / len(ids), "n - 1 guesses"),
        ("ln p", lambda x, ids: chances(x, ids).log().mean(), "the loss is -ln p"),
        ("softmax twice", lambda x, ids: F.cross_entropy(x[:-1].softmax(-1), ids[1:]), "applied twice"),
        ("no softmax", lambda x, ids: F.nll_loss(x[:-1], ids[1:]), "not normalised"),
        ("bits", lambda x, ids: F.cross_entropy(x[:-1], ids[1:]) / log(2), "in bits"),
        ("probability", lambda x, ids: chances(x, ids).mean(), "mean probability"),
        ("log of the mean", lambda x, ids: -chances(x, ids).mean().log(), "-ln of the mean probability"),
        ("accuracy", lambda x, ids: (x[:-1].argmax(-1) == ids[1:]).float().mean(), "how often the likeliest"),
        ("perplexity", lambda x, ids: F.cross_entropy(x[:-1], ids[1:]).exp(), "perplexity"),
        ("wrong axis", lambda x, ids: -x[:-1].log_softmax(0).gather(1, ids[1:, None]).mean(), "over the places"),
        ("last only", lambda x, ids: F.cross_entropy(x[-2:-1], ids[-1:]), "last guess alone"),
    ],
    check.baseline: [
        ("count", most, "this is a count"),
        ("percent", lambda a: 100 * most(a) / len(a), "in percent"),
        ("blind", lambda a: 1 / len(set(a)), "a blind guess hits 1 of"),
        ("over kinds", lambda a: most(a) / len(set(a)), "not by that of different ones"),
        ("wrong ones", lambda a: 1 - most(a) / len(a), "how often the commonest answer is wrong"),
        ("rarest", lambda a: min(map(a.count, a)) / len(a), "rarest|first"),
        ("first", lambda a: a.count(a[0]) / len(a), "first answer|rarest"),
        ("last", lambda a: a.count(a[-1]) / len(a), "last answer|rarest"),
        ("kinds", lambda a: len(set(a)) / len(a), "how many different"),
        ("upside down", lambda a: len(a) / most(a), "upside down"),
        ("one", lambda a: 1 / len(a), "a single answer|rarest"),
        ("whole division", lambda a: most(a) // len(a), "leaves out the fraction"),
        ("the word", lambda a: max(a, key=a.count), "should return a number"),
        ("a counter", lambda a: Counter(a).most_common(1), "should return a number"),
        ("sorted", lambda a: a.sort() or most(a) / len(a), "in place"),
    ],
}
