"""The fuzz of numbers finds nothing wrong, and finds faults that are injected on purpose."""

from dataclasses import replace

import pytest
import torch

import telescope as ts
from telescope.engines import chunked as chunked_engine
from telescope.surveys import chunked

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch, on a CPU that has no bfloat16


@pytest.fixture
def fuzz():
    from fuzz.numbers import attentions

    return attentions


@pytest.fixture
def models():
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    from fuzz.numbers import models

    return models


def test_the_fuzz_finds_nothing_wrong(fuzz):
    found = fuzz.hunt(0, 40)
    assert found.wrong == []
    assert found.counts["definitions"] == 40
    assert min(found.counts[f"survey by {name}"] for name in ("chunked", "reference")) > 30
    assert min(found.counts[f"attend by {name}"] for name in ("choice", "chunked", "reference")) > 30
    assert found.counts["backward by chunked"] > 5


def clamp_partial_sums(monkeypatch):
    """Inject a fault: in a map of by_sum, clamp the sums of single blocks at zero."""
    pool = chunked._add_to_map

    def clamped(pooled, *args):
        pooled.copy_(torch.where(pooled < 0, pooled.clamp(min=0.0), pooled).where(pooled.isfinite(), pooled))
        pool(pooled, *args)

    monkeypatch.setattr(chunked, "_add_to_map", clamped)


def weaken_the_last_key(monkeypatch):
    """Inject a fault: the last key of a block of queries counts a thousandth less."""
    block = chunked_engine._block

    def short(queries, keys, values, *args):
        values = values.clone()
        values[:, :, -1:] *= 0.999
        return block(queries, keys, values, *args)

    monkeypatch.setattr(chunked_engine, "_block", short)


@pytest.mark.parametrize(
    ("fault", "kind", "normalize"),
    [(clamp_partial_sums, "survey.map", "ts.by_sum"), (weaken_the_last_key, "attend by chunked", "ts.softmax")],
)
def test_an_injected_fault_is_found_and_shrunk(fault, kind, normalize, fuzz, monkeypatch):
    fault(monkeypatch)
    drawn = fuzz.Case(2, 2, 1, 11, 7, 3, 3, mask=("&", "ts.causal", "ts.window(9)"), scale="0.3", layout="strided")
    cases = (replace(drawn, normalize=normalize, small_blocks=40, seed=seed) for seed in range(60))
    case, wrong = next((case, wrong) for case in cases if (wrong := fuzz.failure(case)) is not None)
    assert wrong.kind.startswith(kind)
    small, problem = fuzz.shrunk(case, wrong)
    assert (small.mask, small.scale, small.layout, small.heads) == ("ts.everyone", "None", "plain", 1)
    assert fuzz.failure(small).kind == problem.kind
    space = {}
    exec(small.script(problem.line), space)  # the printed lines run
    assert isinstance(space["attention"], ts.Attention)


# -------------------------------------------------------------------------------------------------------- whole models


def test_the_fuzz_of_models_finds_nothing_wrong(models):
    found = models.hunt(500, 40)
    assert found.wrong == []
    assert found.counts["models"] == 40
    kinds = ("padding: numbers", "padding: heads", "padding: edits", "endings", "chunks: edits", "shared layers")
    assert min(found.counts[kind] for kind in (*kinds, "bypasses", "null")) > 0


def count_padding(monkeypatch):
    """Inject a fault: queries that are padding count."""
    from telescope.interception import text

    monkeypatch.setattr(text, "find_padding", lambda *args, **options: None)


def boost_too_little(monkeypatch):
    """Inject a fault: a boosted key counts a thousandth less than it should."""
    from telescope import editing

    own = editing.boost
    monkeypatch.setattr(ts, "boost", lambda keys, by, **options: own(keys, 0.999 * by, **options))


def edit_the_first_pass(monkeypatch):
    """Inject a fault: an edit of one pass through a shared layer changes the first one."""
    own = ts.hide

    def hide(*args, layers=None, **options):
        is_pass = isinstance(layers, str) and layers[-1].isdigit()
        return own(*args, layers=f"{layers[:-1]}1" if is_pass else layers, **options)

    monkeypatch.setattr(ts, "hide", hide)


@pytest.mark.parametrize(
    ("fault", "check", "family"),
    [
        (count_padding, "padding", "llama"),
        (count_padding, "padding", "GPT"),
        (boost_too_little, "bypasses", "bert"),
        (edit_the_first_pass, "shared layers", "albert"),
    ],
)
def test_a_fault_in_whole_models_is_found(fault, check, family, models, monkeypatch):
    cases = [(seed, models.drawn(seed)) for seed in range(4000)]
    cases = [(seed, case) for seed, case in cases if (case.check, case.family) == (check, family) and case.is_exact]
    fault(monkeypatch)
    for seed, _ in cases[:20]:
        found = models.hunt(seed, 1)
        if found.wrong:
            break
    ((message, script),) = found.wrong
    assert message.startswith(f"{check} of {family}: ")
    with pytest.raises(models.WrongError):  # the printed lines show the fault
        exec(script, {})
    monkeypatch.undo()
    models.check(models.drawn(seed))  # without it the case is right


def test_errors_that_are_too_small_are_found(models, monkeypatch):
    """The null test counts changes beyond three errors: with errors of a third, far more than the bound."""
    from telescope.atlases import Atlas

    own = Atlas.standard_error
    monkeypatch.setattr(Atlas, "standard_error", lambda self, name: own(self, name) / 3)
    case = models.ModelCase("null", "GPT", models.Sizes())
    counts = models.Counter()
    for seed in range(3):
        counts += models.check(replace(case, seed=seed))
    counts["null"] = models.ENOUGH  # as if it were many draws
    assert [message.split(":")[1] for message, _ in models.judge_null(counts)] == [" changes", " strongest changes"]
