"""The numbers that captions say are those that the library computes, also after a student has changed some."""

import json
import re

import pytest
import torch

import telescope as ts
from support import writers
from support.browsing import Page
from telescope.attention import softmax
from telescope.tasks.explaining.examples import EXAMPLES
from telescope.tasks.explaining.sentence import explain_sentence

JOURNEY = EXAMPLES["journey"](softmax).inputs


@pytest.fixture(scope="module")
def lessons(browser, served):
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    yield page
    page.leave()


def said(lessons, card, at, screen, run, **query):
    tab = lessons.open(screen, run, card=card, at=at, **query)
    tab.wait_for_function("() => !document.querySelector('.caption .pending')")
    return tab.locator(".caption p").first.inner_text()


def short(x):
    return f"{x:#.4g}".replace("-", "−")


def steps(l):  # noqa: E741
    x = JOURNEY["x"][None, None]
    if l == 0:
        return ts.trace(x, x, x, ts.Attention(scale=1.0))
    q, k, v = (x @ JOURNEY[name] for name in ("W_q", "W_k", "W_v"))
    return ts.trace(q, k, v, ts.Attention())


@pytest.mark.parametrize(("card", "at", "l", "step"), [("journey", 3, 0, "sum"), ("qkv", 4, 1, "sum")])
def test_contexts_of_journey(lessons, card, at, l, step):  # noqa: E741
    text = said(lessons, card, at, "walk", "example-journey", l=l, h=0, i=1, step=step)
    context = steps(l).context[0, 0, 1]
    assert ", ".join(short(x) for x in context.tolist()) in text
    lessons.assert_quiet()


def test_a_changed_number_changes_the_caption(lessons):
    """The caption that says the context follows the numbers of the page."""
    said(lessons, "journey", 3, "walk", "example-journey", l=0, h=0, i=1, step="embedding")
    tab = lessons.tab
    cell = tab.get_by_label("x, Your, column 1", exact=True)
    cell.fill("3")
    cell.press("Enter")
    tab.wait_for_url("**/example-journey~*/**")
    lessons.settled()
    x = JOURNEY["x"].clone()[None, None]
    x[0, 0, 0, 0] = 3
    context = ts.trace(x, x, x, ts.Attention(scale=1.0)).context[0, 0, 1]
    assert ", ".join(short(x) for x in context.tolist()) in tab.locator(".caption p").first.inner_text()


def test_scores_and_weights_of_thinking_machines(lessons):
    q, k = torch.ones(1, 1, 1, 64), torch.tensor([1.75, 1.5])[:, None].expand(1, 1, 2, 64)
    values = torch.eye(2)[None, None]
    divided, undivided = (ts.trace(q, k, values, ts.Attention(**how)) for how in ({}, {"scale": 1.0}))
    scores = [f"{x:g}" for x in divided.scores[0, 0, 0].tolist()]
    first = said(lessons, "scale", 0, "walk", "example-thinking-machines", l=0, h=0, i=0, step="scores")
    assert " and ".join(scores) in first
    second = said(lessons, "scale", 1, "walk", "example-thinking-machines", l=0, h=0, i=0, step="softmax")
    weights = divided.weights[0, 0, 0].tolist()
    assert "14 and 12" in second
    assert f"{weights[0]:.2f} to {weights[1]:.2f}" in second
    third = said(lessons, "scale", 2, "walk", "example-thinking-machines", l=0, h=0, i=0, step="softmax", edits="scale")
    small = undivided.weights[0, 0, 0, 1].item()
    shown = re.search(r"([\d.]+)e−(\d+)", third)
    assert float(f"{shown[1]}e-{shown[2]}") == pytest.approx(small, rel=1e-3)
    assert "gone" in third


@pytest.mark.parametrize(("at", "d"), [(3, 4), (4, 512)])
def test_the_spread_of_random_scores(lessons, at, d):
    text = said(lessons, "scale", at, "variance", "example-thinking-machines", d=d)
    found = json.loads(lessons.served.api.answer("GET", "/variance", {"d": str(d)}).body)
    if d == 4:
        assert f"variance is {found['dot']['variance']:.3g}" in " ".join(text.split())
    else:
        assert "≈ 23 times" in text
        assert f"{100 * found['dot']['largest']:.3g} % on average" in text
        assert f"from {found['divided']['gradient']:.2g} to {found['dot']['gradient']:#.2g}" in text


def test_what_later_words_would_take_without_a_mask(lessons):
    text = said(lessons, "mask", 3, "walk", "example-journey", l=2, h=0, i=1, step="softmax", edits="mask")
    later = steps(1).weights[0, 0, 1, 2:].sum().item()
    assert f"{100 * later:.1f} %" in text


def test_the_mixture_of_bank(lessons):
    text = said(lessons, "bank", 2, "walk", "example-bank", l=0, h=0, i=1, step="sum")
    x = torch.tensor([[2.0, 0.0, 0.0], [0.7, 0.7, 1.0]])[None, None]
    money, bank = ts.trace(x, x, x, ts.Attention()).weights[0, 0, 1].tolist()
    assert f"{100 * money:.1f} % money and {100 * bank:.1f} % bank" in text


def test_the_heads_made_by_hand(lessons):
    text = said(lessons, "heads", 0, "heads", "example-telescope", l=0, h=0, i=7, la=0, a=0, lb=0, b=1)
    found = lessons.served.api.ask("/runs/example-telescope/perspectives", l=0, i=7)
    a, b = (max(one["weights"]) for one in found["heads"])
    assert f"A looks at man ({100 * a:.1f} %), B at astronomer ({100 * b:.1f} %)" in text


def test_the_telescope_sentence_says_what_the_command_line_says(lessons):
    """Weights, what each head reads, and the control: those of `telescope explain`, for the same model."""
    api = lessons.served.api
    model = lessons.served.library.models["translator"]
    explained = explain_sentence(model, writers.NOTES, name="translator")
    run = lessons.served.library.read(writers.NOTES, "translator")
    reading = {"l": 0, "word": "with", "between": "saw,astronomer"}
    found = api.ask(f"/runs/{run.name}/readings", **reading)
    assert found["control"] == explained.control.source
    assert found["even"] == pytest.approx(explained.even)
    control = lessons.served.library.read(found["control"], "translator")
    after = api.ask(f"/runs/{control.name}/readings", **reading | {"between": "saw,astronomer,yesterday"})
    assert len(found["heads"]) == len(explained.readings)
    for one, other, head in zip(found["heads"], after["heads"], explained.readings, strict=True):
        assert one["weights"] == pytest.approx(head.weights, rel=1e-5)
        assert (one["reads"], one["habit"]) == (head.reads, head.habit)
        assert other["weights"] == pytest.approx(head.control, rel=1e-5)
    # The pair differs most in these two words, of the heads that are left in.
    able = [one for one in found["heads"] if one["habit"] is None]
    able = able if len(able) > 1 else found["heads"]
    apart = {
        (found["heads"].index(a), found["heads"].index(b)): sum(
            abs(x - y) for x, y in zip(a["weights"], b["weights"], strict=True)
        )
        for at, a in enumerate(able)
        for b in able[at + 1 :]
    }
    assert apart[tuple(found["pair"])] == pytest.approx(max(apart.values()))
    assert found["left"] == len(found["heads"]) - len(able)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"word": "with", "between": "saw"}, 400),
        ({"word": "with"}, 400),
        ({"word": "with", "between": ",".join(["saw"] * 9)}, 400),
        ({"word": "nobody", "between": "saw,astronomer"}, 404),
        ({"between": "saw,astronomer"}, 404),
        ({"word": "with", "between": "saw,nobody"}, 404),
        ({"word": "with", "between": "saw,astronomer", "l": "99"}, 404),
    ],
)
def test_readings_refuse_with_one_sentence(lessons, query, status):
    run = lessons.served.library.read(writers.NOTES, "translator")
    answer = lessons.served.api.answer("GET", f"/runs/{run.name}/readings", {"l": "0"} | query)
    assert answer.status == status
    assert "\n" not in json.loads(answer.body)["error"]["message"]
