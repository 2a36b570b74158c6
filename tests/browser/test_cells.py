"""In a notebook many of them stand on one page, and ask the kernel by messages."""

import json

WIDGETS = """async ({ start, many }) => {
  const { default: widget } = await import("/explorer.js");
  const tell = async (model, asked) => {
    const query = new URLSearchParams(asked.query ?? {});
    const response = await fetch(`/api/v1/${asked.path}?${query}`);
    if (!response.ok) return model.hear({ id: asked.id, ...(await response.json()) }, []);
    const json = response.headers.get("Content-Type").includes("json");
    if (json) return model.hear({ id: asked.id, body: await response.json() }, []);
    const exact = response.headers.get("X-Exact") === "1";
    return model.hear({ id: asked.id, exact, samples: 1 }, [new DataView(await response.arrayBuffer())]);
  };
  document.body.replaceChildren();
  for (let at = 0; at < many; at += 1) {
    const el = document.createElement("div");
    document.body.append(el);
    const model = {
      get: () => start,
      on: (_, hear) => { model.hear = hear; },
      send: (asked) => tell(model, asked),
    };
    widget.render({ model, el });
  }
}"""


def test_twenty_maps_on_one_page(open_page, served):
    page = open_page("walk")
    start = json.dumps({"run": served.run, "screen": "map", "l": 0, "h": 1})
    page.evaluate(WIDGETS, {"start": start, "many": 20})
    page.wait_for_function("() => document.querySelectorAll('.quality[data-exact=\"1\"]').length === 20")
    painted = page.locator("canvas[data-picture=map]").evaluate_all(
        """all => all.map(canvas => {
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size; })"""
    )
    assert len(painted) == 20
    assert min(painted) > 20


def test_a_key_is_for_the_cell_that_has_the_focus(open_page, served):
    page = open_page("walk")
    page.evaluate(WIDGETS, {"start": json.dumps({"run": served.run, "step": "scores"}), "many": 2})
    page.wait_for_function("() => document.querySelectorAll('.walk').length === 2")
    page.locator(".words button[aria-pressed=true]").first.focus()
    page.keyboard.press("2")
    page.get_by_role("heading", name="All heads").wait_for()
    assert page.locator(".walk").count() == 1
