"""Every number that the Walk shows, against the formula in float64."""

import math

import pytest
import torch

from browsing import SENTENCES

WALK_ALL = """async (wanted) => {
  const number = (text) => Number(text.replace(/−/g, "-").replace("∞", "Infinity"));
  const shown = [];
  for (const { path, l, h, i, step } of wanted) {
    history.pushState(null, "", path);
    dispatchEvent(new PopStateEvent("popstate"));
    const ready = () => document.querySelector(`.walk[data-at="${l}/${h}/${i}"][data-step="${step}"]`);
    for (let tries = 0; !ready(); tries += 1) {
      if (tries > 2000) throw new Error(`nothing came of ${path}`);
      await new Promise((done) => setTimeout(done, 4));
    }
    shown.push([...document.querySelectorAll(".ledger tbody tr")].map((row) =>
      [...row.querySelectorAll("td[title]")].map((cell) => number(cell.title))));
  }
  return shown;
}"""


def truth(looked, h, i):
    """q·k, ÷ √d, masked, e^(s - max), weights, context of one query, in float64."""
    steps = looked.call.trace()
    q, k, v = (
        tensor[0, h].double() if tensor.shape[1] > h else tensor[0, 0].double()
        for tensor in (steps.queries, steps.keys, steps.values)
    )
    scores = k @ q[i]
    scaled = scores / math.sqrt(len(q[i]))
    causal = looked.kind == "decoder"
    masked = scaled.masked_fill(torch.arange(len(k)) > i, -math.inf) if causal else scaled
    powers = (masked - masked.max()).exp()
    weights = powers / powers.sum()
    columns = [scores, scaled, *([masked] if causal else []), powers, weights]
    return torch.stack(columns, 1), weights @ v, steps.context[0, h, i]


def close(shown, wanted):
    shown = torch.tensor(shown, dtype=torch.float64)
    torch.testing.assert_close(shown, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("text", SENTENCES)
def test_every_number_of_every_query(open_page, served, text):
    run = served.runs[text]
    wanted = [
        {"path": f"/s/{run.name}/walk?l={l}&h={h}&i={i}&step=softmax", "l": l, "h": h, "i": i, "step": "softmax"}
        for l, looked in enumerate(run.looked)  # noqa: E741
        for h in looked.call.heads
        for i in range(looked.size[0])
    ]
    page = open_page("walk", run.name, step="softmax")
    for at, shown in zip(wanted, page.evaluate(WALK_ALL, wanted), strict=True):
        numbers, context, own = truth(run.looked[at["l"]], at["h"], at["i"])
        close(shown, numbers)
        assert abs(sum(row[-1] for row in shown) - 1) < 1e-6
        torch.testing.assert_close(context, own.double(), rtol=1e-5, atol=1e-6)


def test_every_product_of_a_score(open_page, served):
    looked = served.library.run(served.run).looked[0]
    page = open_page("walk", l=0, h=1, i=2, j=3, step="scores")
    page.get_by_text("as numbers").click()
    shown = page.locator(".products li span[title]").evaluate_all(
        "all => all.map(one => Number(one.title.replace('−', '-')))"
    )
    steps = looked.call.trace()
    close(shown, steps.queries[0, 1, 2].double() * steps.keys[0, 1, 3].double())


def test_every_number_of_the_context_by_arrow_keys(open_page, served):
    _, context, _ = truth(served.library.run(served.run).looked[0], 1, 2)
    page = open_page("walk", l=0, h=1, i=2, step="context")
    strip = page.get_by_role("slider", name="context")
    strip.focus()
    shown = []
    for _ in range(len(context)):
        said = strip.get_attribute("aria-valuetext")
        assert said.removeprefix(f"number {len(shown)}: ") in page.locator("output").inner_text()
        shown.append(float(said.split(": ")[1].replace("−", "-")))
        strip.press("ArrowRight")
    close(shown, context)


def test_a_sum_says_its_products(open_page, served):
    page = open_page("walk", l=0, h=0, i=1, step="sum")
    strip = page.get_by_role("slider", name="context")
    strip.focus()
    said = page.locator("output").inner_text()
    assert said.startswith("feature 0")
    assert said.count("×") == 5
    _, context, _ = truth(served.library.run(served.run).looked[0], 0, 1)
    assert float(said.rsplit("Σ = ", 1)[1].replace("−", "-")) == pytest.approx(context[0].item(), rel=1e-6)


def test_what_is_masked_says_so(open_page, served):
    decoder = next(at for at, looked in enumerate(served.library.run(served.run).looked) if looked.kind == "decoder")
    page = open_page("walk", l=decoder, h=0, i=1, step="mask")
    rows = page.locator(".ledger tbody tr")
    assert [rows.nth(at).locator("td.hatch").count() > 0 for at in range(4)] == [False, False, True, True]
    assert "−∞" in rows.nth(2).inner_text()


def test_steps_by_keys_and_back(open_page):
    page = open_page("walk", l=0, h=0, i=1)
    seen = [page.locator("aside h2").inner_text()]
    for _ in range(8):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(30)
        seen.append(page.locator("aside h2").inner_text())
    assert len(set(seen)) == 9
    assert page.url.endswith("step=context")
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(50)
    assert "i=2" in page.url
    for _ in range(9):
        page.go_back()
    assert page.locator("aside h2").inner_text() == seen[0]


def test_a_new_sentence_runs_the_model(open_page):
    page = open_page("walk", step="softmax")
    before = page.url
    page.get_by_label("a sentence for the model").fill("Morning is here.")
    page.get_by_role("button", name="Run").click()
    page.wait_for_url(lambda url: url.split("/walk")[0] != before.split("/walk")[0])
    begins = "(word) => document.querySelector('.words')?.textContent.replaceAll('·', '').startsWith(word)"
    page.wait_for_function(begins, arg="Morning")
    page.go_back()
    page.wait_for_function(begins, arg="The")


def test_what_cannot_be_read_is_said(open_page):
    page = open_page("walk")
    page.get_by_label("a sentence for the model").fill("word " * 200)
    page.get_by_role("button", name="Run").click()
    page.locator("p.failure").wait_for()
    assert "can be read at once" in page.locator("p.failure").inner_text()
    page.page.complaints.clear()  # the browser itself reports the 422
