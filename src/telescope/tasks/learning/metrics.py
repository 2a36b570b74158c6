"""How good a text is, by the libraries that papers use; every figure is of 100."""

from collections.abc import Sequence
from itertools import zip_longest
from statistics import mean
from typing import Literal

from ...training.processes import needed

Tokens = Literal["13a", "none"]
References = Sequence[Sequence[str]]  # of each text all that are right


def bleu(
    predictions: Sequence[str], references: References, *, lower: bool = False, tokens: Tokens = "13a"
) -> dict[str, float]:
    """sacrebleu (Post 2018). tokens="none" is for words that have spaces between them: then it is multi-bleu's."""
    smooth = "none" if tokens == "none" else "exp"
    metric = needed("sacrebleu").metrics.BLEU(lowercase=lower, tokenize=tokens, smooth_method=smooth, force=True)
    found = metric.corpus_score(list(predictions), _streams(references))
    return {"bleu": found.score, "brevity": found.bp}


def chrf(predictions: Sequence[str], references: References) -> float:
    """sacrebleu's chrF2 (Popović 2015): of letters, so it sees a word that is almost right."""
    found: float = needed("sacrebleu").metrics.CHRF().corpus_score(list(predictions), _streams(references)).score
    return found


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """rouge-score's F1 of words, pairs of words and the longest common subsequence, stemmed (Lin 2004)."""
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = needed("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    found = [
        scorer.score_multi(list(right), prediction) for prediction, right in zip(predictions, references, strict=True)
    ]
    return {kind: 100 * mean(scores[kind].fmeasure for scores in found) for kind in kinds}


def _streams(references: References) -> list[list[str | None]]:
    """The first of each text, the second of each, …: sacrebleu's way, None where there is no more."""
    return [list(stream) for stream in zip_longest(*references)]
