"""Every number that a screen shows as text is that of Python: five sentences of the shipped translator and five of the
shipped GPT, on Output, Alignment, Heads, Sources, Walk, Geometry, Positions and What if."""

import re
from dataclasses import replace
from math import isclose

import pytest
import torch

import telescope as ts
from support.browsing import Page, Served
from telescope.explorer.library import Library

TRANSLATED = (
    "The man saw the astronomer with a telescope.",
    "The astronomers of the old observatory discovered a new comet.",
    "Two dogs are playing in the snow.",
    "A woman sells oranges at the market.",
    "The lighthouse keeper counted seventeen fishing boats.",
)
READ = (
    "ROMEO: What is fortune's reward?",
    "To be, or not to be",
    "Good night, good night! Parting is such sweet",
    "O Romeo, Romeo, wherefore art thou",
    "All the world's a stage",
)
CELLS = """([rows, cells]) => [...document.querySelectorAll(rows)].map(row =>
    [...row.querySelectorAll(cells)].map(cell => [cell.textContent, cell.title]))"""


@pytest.fixture(scope="module")
def only_page(browser):
    served = Served(Library())
    served.translated = [served.library.read(text, "translator-en-de") for text in TRANSLATED]
    served.read = [served.library.read(text, "shakespeare") for text in READ]
    page = Page(browser, served, reduced_motion="reduce", viewport={"width": 1440, "height": 900})
    page.open("output", served.translated[0].name)
    yield page
    page.leave()
    served.stop()


@pytest.fixture(params=range(10))
def run(request, only_page):
    """Return a run: five translations, then five texts of the GPT."""
    return [*only_page.served.translated, *only_page.served.read][request.param]


def same(shown, x):
    """Check a text such as 0.3127, 31.3 % or 0.00051 % against a number, to half of its last digit."""
    text = shown.replace("−", "-").replace(",", "").strip()
    if text == "> 99.99 %":
        return 0.9999 <= x < 1
    if text == "< 0.000001 %":
        return 0 < x < 1e-8
    percent = text.endswith("%")
    digits = text.removesuffix("%").strip()
    found = re.fullmatch(r"-?\d+(?:\.(\d+))?(?:e[+-]?\d+)?", digits)
    if found is None:
        return False
    power = float(re.search(r"e(.*)|$", digits)[1] or 0)
    half = 0.5 * 10 ** (power - len(found[1] or ""))
    scale = 100 if percent else 1
    # Zeros at the end are left out of percentages: 9 % may stand for 9.0 %.
    half = max(half, 0.0) if not percent else min(half, max(0.05, 0.05 * abs(x * scale)))
    return abs(float(digits) - x * scale) <= half * 1.02 + 1e-9


def check(cell, x, slack=1e-9):
    """Check the text of a cell, and its title, which has seven digits."""
    text, title = cell
    shown = float(title.split(";")[0].replace("−", "-").removesuffix("%"))
    assert isclose(shown, x, rel_tol=4e-6, abs_tol=slack), (cell, x)
    assert same(text, shown), (text, shown)


def cells(tab, rows, columns):
    return tab.evaluate(CELLS, [rows, columns])


def test_the_checker_of_this_file():
    assert same("31.3 %", 0.31271)
    assert same("9 %", 0.0896)
    assert same("0.00051 %", 5.12e-6)
    assert same("−1.204", -1.2044)
    assert not same("31.3 %", 0.3137)
    assert not same("9 %", 0.083)
    assert not same("0.00051 %", 5.2e-6)
    assert not same("0.3127", 0.3129)


def test_output(page, run):
    i = run.describe().output.n - 2
    tab = page.turn("output", run.name, i=i, temperature=1)
    logits = run.output.logits(i).double()
    chances = logits.softmax(-1)
    shown = cells(tab, ".next tbody tr", "td[title]")
    top = logits.topk(10).indices.tolist()
    written = (run.output.written or run.output.ids[1:])[i]
    for (logit, p), token in zip(shown, top if written in top else [*top, written], strict=True):
        check(logit, logits[token].item())
        check(p, chances[token].item())
    if run.output.words is None:
        return
    # The chosen word: its probability is the product of its pieces', each of which has its own.
    number = run.output.words.word_ids[i]
    places = run.output.words.positions(number)
    each = [run.output.logits(at).double().softmax(-1)[run.output.written[at]].item() for at in places]
    (titles,) = cells(tab, "[aria-label='the probability of the word']", "[title]")
    product = 1.0
    for one in each:
        product *= one
    for cell, x in zip(titles, [product, *(each if len(each) > 1 else [])], strict=True):
        check(cell, x)


def test_alignment(page, run):
    layer = len(run.views) - 1
    tab = page.turn("alignment", run.name, l=layer, h=1, of="head", word=1)
    view = run.views[layer]
    exact = view.call.trace().weights[0, 1].double()
    # Words by hand: the mean of a word's queries, the sum of a word's keys.
    rows, columns = (torch.tensor(words.word_ids) for words in (view.rows, view.columns))
    summed = torch.zeros(len(rows), int(columns.max()) + 1, dtype=torch.float64).index_add_(1, columns, exact)
    word = summed[rows == 1].mean(0)
    shown = cells(tab, ".align .pairs tbody tr", "td[title]")
    for (cell,), x in zip(shown, word.sort(descending=True).values[:6].tolist(), strict=True):
        check(cell, x)
    readout = tab.locator(".align .figures b").inner_text()
    assert float(readout) == pytest.approx(word.max().item(), rel=1e-6)
    assert tab.locator(".ribbons path[data-weight]").count() > 0


def test_heads(page, run):
    """Two heads on one query, and the table of habits of the first layer."""
    i = run.views[0].size[0] - 2
    tab = page.turn("heads", run.name, l=0, la=0, a=1, lb=0, b=3, i=i, pieces=1)
    weights = run.views[0].call.trace().weights[0, :, i].double()
    for card, head in ((0, 1), (1, 3)):
        listed = tab.locator(".reading").nth(card).locator("td[title]")
        shown = listed.evaluate_all("all => all.map(one => [one.textContent, one.title])")
        order = weights[head].argsort(descending=True)
        wanted = weights[head][order[:14].sort().values].tolist()
        rest = [weights[head][order[14:]].sum().item()] if len(order) > 14 else []
        for cell, x in zip(shown, [*wanted, *rest][: len(shown)], strict=True):
            check(cell, x)
        assert len(shown) >= min(i, 5)
    names = tab.locator(".habits thead th").all_inner_texts()[2:]
    heads = run.recording if run.output.words is None else record(run)
    table = [head for head in heads.heads() if head.layer == run.views[0].name]
    table.sort(key=lambda head: head.number)
    for row, head in zip(cells(tab, ".habits tbody tr", "td[title]"), table, strict=False):
        for cell, name in zip(row, names, strict=True):
            # The model ran once more, on all tokens at once: float32 rounds in another order.
            check(cell, getattr(head, name), slack=1e-6)
    assert len(table) == len(run.views[0].call.heads)


def exact_trace(call):
    """Return the steps of a recorded attention, computed in float64."""
    queries, keys, values = (one.double() for one in (call.queries, call.keys, call.values))
    return ts.trace(queries, keys, values, call.attention)


def record(run):
    """Run the model of a run again, on the same tokens."""
    with torch.no_grad(), ts.watch(run.output.model, keep="queries-keys", also="norms") as recording:
        run.output.model(*run.output.inputs)
    return recording


@pytest.mark.parametrize("how", ["weights", "carried", "rollout"])
def test_sources(page, run, how):
    end = run.describe().output.n + (0 if run.output.words else 1)
    first = end - 1
    tab = page.turn("sources", run.name, first=first, end=end, via=how, cut="pieces")
    found = record(run).sources((first, end), how)
    shown = cells(tab, ".ranked tbody tr", "td[title]")
    assert len(shown) >= min(len(found.rows), 8)
    for row, source in zip(shown, found.rows, strict=False):
        check(row[-1], source.share)


def test_walk(page, run):
    """The ledger: scores, e to their power, and weights of one query, and their sums."""
    i = run.views[0].size[0] - 2
    tab = page.turn("walk", run.name, l=0, h=2, i=i, step="softmax", pieces=1)
    exact = exact_trace(run.views[0].call)
    one = exact.weights[0, 2, i]
    rows = cells(tab, ".walk .ledger tbody tr", "td[title]")
    for row, x in zip(rows, one.tolist(), strict=False):
        if x > 0:
            check(row[-1], x)
    # A masked key has no row, or the weight 0.
    assert sum(x > 0 for x in one.tolist()) <= len(rows) <= len(one)
    scores = exact.scores[0, 2, i]
    for row, x in zip(rows, scores.tolist(), strict=False):
        check(row[0], x)
    (total,) = cells(tab, ".walk .ledger tfoot tr", "td[title]")
    check(total[-1], 1.0)


def test_geometry(page, run):
    """The cosines of one word with the words that end nearest to it, before attention and after."""
    i = run.views[0].size[0] - 2
    tab = page.turn("geometry", run.name, l=0, i=i, pieces=1)
    call = run.views[0].call
    before, after = (torch.nn.functional.normalize(one[0].double(), dim=-1) for one in (call.before, call.after))
    pairs = list(zip((before @ before[i]).tolist(), (after @ after[i]).tolist(), strict=True))
    del pairs[i]
    shown = cells(tab, ".pairs tbody tr", "td[title]")
    assert len(shown) >= min(len(pairs), 3)
    for row, (old, new) in zip(shown, sorted(pairs, key=lambda pair: -pair[1]), strict=False):
        check(row[0], old)
        check(row[1], new)


def unplaced(run):
    """Return the first attention of a run's model on the same tokens, without positions."""
    model, inputs = run.output.model, run.output.inputs
    with torch.no_grad(), ts.watch(model, layers=run.views[0].name, keep="steps") as recording:
        if run.output.words is None:
            model(*inputs, positions=torch.zeros_like(inputs[0]))  # nothing is rotated
        else:
            # An embedding stays as it is: no sines are added.
            hook = model.source_positions.register_forward_hook(lambda module, given, placed: given[0])
            model(*inputs)
            hook.remove()
    return recording[run.views[0].name].call


def test_positions(page, run):
    """The scaled scores and the weights of one query, without positions and with them."""
    i = run.views[0].size[0] - 2
    tab = page.turn("positions", run.name, l=0, h=1, i=i, pieces=1)
    without, placed = (exact_trace(call) for call in (unplaced(run), run.views[0].call))
    shown = cells(tab, ".compared-rows tbody tr", "td[title]")
    assert len(shown) == run.views[0].size[1]
    for j, row in enumerate(shown):
        for (score, weight), one in zip((row[::2], row[1::2]), (without, placed), strict=True):
            check(weight, one.weights[0, 1, i, j].item(), slack=1e-6)
            if one.weights[0, 1, i, j] > 0:
                check(score, one.scores[0, 1, i, j].item() / 8, slack=1e-5)


@pytest.mark.parametrize(("change", "times"), [("t:2", 0.5), ("scale", 8.0)])
def test_what_if(page, run, change, times):
    """The weights of one query before a change of the scale, 1 / √64, and after it."""
    layer, h, i = len(run.views) - 1, 1, run.views[-1].size[0] - 2
    tab = page.turn("walk", run.name, l=layer, h=h, i=i, edits=change, pieces=1)
    name = run.views[layer].name
    edit = ts.redefine(name, lambda attention: replace(attention, scale=times / 8))
    with torch.no_grad(), ts.edit(run.output.model, edit), ts.watch(run.output.model, keep="steps") as edited:
        run.output.model(*run.output.inputs)
    before = exact_trace(run.views[layer].call).weights[0, h, i]
    after = exact_trace(edited[name].call).weights[0, h, i]
    shown = cells(tab, ".compared .ledger tbody tr", "td[title]")
    assert len(shown) >= 5
    for row, j in zip(shown, range(len(shown)), strict=True):
        check(row[0], before[j].item(), slack=1e-6)
        check(row[1], after[j].item(), slack=1e-6)
