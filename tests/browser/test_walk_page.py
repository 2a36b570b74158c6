"""Every number that the screen Walk shows, compared with the formula in float64."""

import math
from functools import cache
from time import sleep

import pytest
import torch

import telescope as ts
from support.browsing import SENTENCES
from support.exploring import recorded
from telescope.explorer import api

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

# after how many milliseconds it is shown that the next head takes its time
WAITED = """() => new Promise((done) => {
  const began = performance.now();
  const shown = () => document.querySelector("[role=progressbar]");
  const look = () => (shown() ? done(performance.now() - began) : requestAnimationFrame(look));
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "]", bubbles: true }));
  look();
})"""


@cache
def traced(looked):
    return looked.call.trace()


def truth(looked, h, i):
    """Return q·k, ÷ √d, masked, e^(s - max), weights and context of one query, in float64."""
    steps = traced(looked)
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


@pytest.mark.parametrize("text", SENTENCES[1:])
def test_every_number_of_every_query(page, served, text):
    run = served.runs[text]
    wanted = [
        {"path": f"/s/{run.name}/walk?l={l}&h={h}&i={i}&pieces=1", "l": l, "h": h, "i": i, "step": "softmax"}
        for l, looked in enumerate(run.views)  # noqa: E741
        for h in looked.call.heads
        for i in range(looked.size[0])
    ]
    tab = page.open("walk", run.name, pieces=1, step="softmax")
    for at, shown in zip(wanted, tab.evaluate(WALK_ALL, wanted), strict=True):
        numbers, context, own = truth(run.views[at["l"]], at["h"], at["i"])
        close(shown, numbers)
        assert abs(sum(row[-1] for row in shown) - 1) < 1e-6
        torch.testing.assert_close(context, own.double(), rtol=1e-5, atol=1e-6)


def test_every_product_of_a_score(page, served):
    looked = served.library.run(served.run).views[0]
    tab = page.open("walk", pieces=1, l=0, h=1, i=2, j=3, step="scores")
    tab.get_by_text("as numbers").click()
    shown = tab.locator(".products li span[title]").evaluate_all(
        "all => all.map(one => Number(one.title.replace('−', '-')))"
    )
    steps = looked.call.trace()
    close(shown, steps.queries[0, 1, 2].double() * steps.keys[0, 1, 3].double())


def test_every_number_of_the_context_by_arrow_keys(page, served):
    _, context, _ = truth(served.library.run(served.run).views[0], 1, 2)
    tab = page.open("walk", pieces=1, l=0, h=1, i=2, step="context")
    strip = tab.get_by_role("slider", name="context")
    strip.focus()
    shown = []
    for _ in range(len(context)):
        output = strip.get_attribute("aria-valuetext")
        assert output.removeprefix(f"number {len(shown)}: ") in tab.locator("output").inner_text()
        shown.append(float(output.split(": ")[1].replace("−", "-")))
        strip.press("ArrowRight")
    close(shown, context)


def test_embedding_query_keys_and_values_by_arrow_keys(page, served):
    """The selected vector is written out: the embedding, the query, and the first keys and values."""
    looked = served.library.run(served.run).views[0]
    steps, output = traced(looked), page.tab.locator("output")

    def read(focused, keys):
        focused.focus()
        numbers = []
        for key in keys:
            numbers.append(float(output.inner_text().split("= ")[1].replace("−", "-")))
            focused.press(key)
        return numbers

    page.open("walk", pieces=1, l=0, h=1, i=2, step="embedding")
    d = looked.call.before.shape[-1]
    close(read(page.tab.get_by_role("slider"), ["ArrowRight"] * d), looked.call.before[0, 2].double())
    tab = page.open("walk", pieces=1, l=0, h=1, i=2, step="qkv")
    query, keys, values = (x[0, 1].double() for x in (steps.queries, steps.keys, steps.values))
    close(read(tab.get_by_role("slider"), ["ArrowRight"] * len(query[2])), query[2])
    there_and_back = ["ArrowRight"] * (keys.shape[1] - 1) + ["ArrowDown"] + ["ArrowLeft"] * keys.shape[1]
    for name, truth in (("keys", keys), ("values", values)):
        matrix = tab.get_by_role("application", name=f"{name}: ")
        close(read(matrix, there_and_back), torch.cat([truth[0], truth[1].flip(0)]))


def test_a_sum_shows_its_products(page, served):
    tab = page.open("walk", pieces=1, l=0, h=0, i=1, step="sum")
    tab.get_by_role("slider", name="context").focus()
    output = tab.locator("output").inner_text()
    assert output.startswith("feature 0")
    assert output.count("×") == 5
    _, context, _ = truth(served.library.run(served.run).views[0], 0, 1)
    assert float(output.rsplit("Σ = ", 1)[1].replace("−", "-")) == pytest.approx(context[0].item(), rel=1e-6)


def test_masked_keys_are_labelled(page, served):
    decoder = next(at for at, looked in enumerate(served.library.run(served.run).views) if looked.kind == "decoder")
    tab = page.open("walk", pieces=1, l=decoder, h=0, i=1, step="mask")
    rows = tab.locator(".ledger tbody tr")
    assert [rows.nth(at).locator("td.hatch").count() > 0 for at in range(4)] == [False, False, True, True]
    assert "−∞" in rows.nth(2).inner_text()


def test_words_and_formulas_are_those_of_the_definition(page, served):
    """An attention with another score, scale and normaliser is not described as softmax(q·k / √d)."""
    additive = ts.additive(torch.randn(16, 5), torch.randn(16, 5), torch.randn(5))
    other = recorded(6, attention=ts.Attention(score=additive, scale=0.3, normalize=ts.by_sum), keep="steps")
    run = served.library.add(other, "other", "1").name
    labels, beside = [], []
    for step in ("scores", "scaled", "softmax"):
        tab = page.open("walk", run, pieces=1, step=step)
        labels.append(tab.locator(".rail [aria-current]").inner_text().split("\n")[-1])
        beside.append(tab.locator("aside").inner_text())
    assert [label.split(maxsplit=1)[1] for label in labels] == ["score", "× 0.300", "by sum"]
    assert "v·tanh(W_q q + W_k k)" in beside[0]
    assert "scores · 0.3" in beside[1]
    assert "by_sum(scaled)" in beside[2]
    assert tab.locator("aside math").count() == 0
    assert "dot product" not in beside[0]
    assert "√" not in beside[1]
    assert "exponential" not in beside[2]


def test_steps_by_keys_and_back(page):
    tab = page.open("walk", pieces=1, l=0, h=0, i=1, step="tokens")
    seen = [tab.locator("aside h2").inner_text()]
    for _ in range(8):
        tab.keyboard.press("ArrowRight")
        page.settled()
        seen.append(tab.locator("aside h2").inner_text())
    assert len(set(seen)) == 9
    assert "step=context" in tab.url
    tab.keyboard.press("ArrowDown")
    tab.wait_for_url("**i=2**")
    for _ in range(9):
        tab.go_back()
    page.settled()
    assert tab.locator("aside h2").inner_text() == seen[0]


def test_a_new_sentence_runs_the_model(page):
    tab = page.open("walk", pieces=1, step="softmax")
    before = tab.url
    tab.get_by_label("a sentence for the model").fill("Morning is here.")
    tab.get_by_role("button", name="Run").click()
    tab.wait_for_url(lambda url: url.split("/walk")[0] != before.split("/walk")[0])
    begins = "(word) => document.querySelector('.words')?.textContent.replaceAll('·', '').startsWith(word)"
    tab.wait_for_function(begins, arg="Morning")
    tab.go_back()
    tab.wait_for_function(begins, arg="The")


def test_another_model_reads_the_sentence(page, served):
    tab = page.open("walk", pieces=1, step="softmax")
    with tab.expect_response("**/api/v1/runs") as answer:
        tab.get_by_label("the model that reads the sentence").select_option("small")
        tab.get_by_label("a sentence for the model").fill("Good morning.")
        tab.get_by_role("button", name="Run").click()
    made = answer.value.json()
    tab.wait_for_url(f"**/{made['run']}/**")
    assert made["model"] == "small"
    assert len(made["attentions"][0]["heads"]) == 2
    page.settled()
    assert tab.get_by_label("the model that reads the sentence").input_value() == "small"


def test_a_slow_request_shows_progress(page, served, monkeypatch):
    """After half a second and no sooner; then the sign disappears."""
    tab = page.open("walk", pieces=1, l=0, h=0, i=1, step="softmax")

    route = api.RUN_ROUTES["trace"]

    def late(request):
        sleep(1.5)
        return route.answer(request)

    monkeypatch.setitem(api.RUN_ROUTES, "trace", route._replace(answer=late))
    assert tab.evaluate(WAITED) >= 490
    waiting = tab.get_by_role("progressbar")
    assert tab.locator('.walk[data-at="0/0/1"]').count() == 1  # what was there stays until then
    tab.locator('.walk[data-at="0/1/1"]').wait_for()
    assert waiting.count() == 0


def test_a_text_that_cannot_be_read_shows_the_error(page):
    """A text that is surely too long is not sent; of another, the server says what is wrong."""
    tab = page.open("walk")
    field = tab.get_by_label("a sentence for the model")
    field.fill("word " * 2000)
    assert tab.get_by_role("button", name="Run").is_disabled()
    field.fill("word" * 400)
    tab.get_by_role("button", name="Run").click()
    tab.locator("p.failure").wait_for()
    assert "can be read at once" in tab.locator("p.failure").inner_text()
    page.complaints.clear()  # the browser itself reports the 422
