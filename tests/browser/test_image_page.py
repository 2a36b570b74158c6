"""Image on the page: patches by mouse and keyboard, every head, the picture and one that does not fit."""

from xml.etree import ElementTree

import numpy as np
import pytest

import telescope as ts
from support.browsing import Page, Served
from support.exploring import HOSTILE
from support.seeing import Vision, filled, vectors
from telescope.explorer.library import Library

PIL = pytest.importorskip("PIL.Image", reason="pillow is not installed")

ROWS, COLUMNS = 4, 6
# The weights of the large picture, from the colours of its pixels: the strongest patch is the darkest.
DARKEST = """() => { const c = document.querySelector('canvas[data-picture=image]');
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const light = [...Array(c.width * c.height).keys()].map((at) => d[4 * at] + d[4 * at + 1] + d[4 * at + 2]);
  return light.indexOf(Math.min(...light)); }"""


def seen(tokens, keep="queries-keys"):
    model = filled(Vision())
    with ts.watch(model, keep=keep, tokens=tokens) as recording:
        model(0.3 * vectors(len(tokens)))
    return recording


@pytest.fixture(scope="module")
def recording():
    return seen(ts.Grid(ROWS, COLUMNS, before=["[CLS]"]))


@pytest.fixture(scope="module")
def looking(browser, recording):
    library = Library({})
    served = Served(library)
    served.run = library.add(recording, "patches", "1").name
    served.summary = library.add(seen(ts.Grid(ROWS, COLUMNS, before=["[CLS]"]), "summaries"), "summary", "1").name
    two = ts.Segments(HOSTILE[:3], ts.Grid(2, 3, name=HOSTILE[1]), ts.Grid(3, 2, name="image 2"), ["?"])
    served.two = library.add(seen(two), "two", "1").name
    page = Page(browser, served, reduced_motion="reduce")
    yield page
    page.leave()
    served.stop()


@pytest.fixture
def page(looking):
    yield looking
    looking.assert_quiet()


def click(page, row, column):
    box = page.tab.locator(".patches.large").first.bounding_box()
    x, y = box["width"] * (column + 0.5) / COLUMNS, box["height"] * (row + 0.5) / ROWS
    page.tab.mouse.click(box["x"] + x, box["y"] + y)
    return page.settled()


def picture(tmp_path, width, height):
    path = tmp_path / f"{width}x{height}.png"
    PIL.fromarray(np.random.RandomState(0).randint(0, 255, (height, width, 3), dtype=np.uint8)).save(path)
    return path


def test_a_click_looks_from_the_patch(page, recording):
    tab = page.open("image", l=1, h=1)
    assert tab.locator(".image-and-heads h3 .q").inner_text() == "[CLS]"  # where it begins
    click(page, 2, 4)
    query = 1 + 2 * COLUMNS + 4
    assert f"i={query}" in tab.url
    assert tab.locator(".image-and-heads h3 .q").inner_text() == "(2, 4)"
    weights = recording["blocks.1"].survey().rows([query])[0, :, 0, 1:]
    assert tab.evaluate(DARKEST) == int(weights[1].argmax())
    frame = tab.locator(".patches.large rect.own")
    assert (frame.get_attribute("x"), frame.get_attribute("y")) == ("4", "2")
    # Pointed at, a patch tells its weight with all digits.
    click(page, 0, 3)
    expected = recording["blocks.1"].survey().rows([1 + 3])[0, 1, 0, 1 + 3]
    said = tab.locator(".image-and-heads output").inner_text()
    assert said.startswith("(0, 3) = ")
    assert float(said.split(" = ")[1]) == pytest.approx(float(expected), rel=1e-5)


def test_every_head_is_shown_and_chosen(page):
    tab = page.open("image", l=0, h=0, i=3)
    small = tab.locator(".small-heads button")
    assert small.count() == 2
    assert small.nth(0).get_attribute("aria-pressed") == "true"
    small.nth(1).click()
    page.settled()
    assert "h=1" in tab.url
    assert tab.locator(".image-and-heads h3").first.inner_text().startswith("layer 0, head 1")


def test_by_keyboard(page):
    tab = page.open("image", l=0, h=0, i=1)
    tab.locator(".patches.large").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    page.settled()
    assert f"i={1 + COLUMNS + 2}" in tab.url


def test_all_queries_together_and_the_class_token(page, recording):
    tab = page.open("image", l=1, h=0, i=5)
    tab.get_by_role("button", name="all queries together").click()
    page.settled()
    assert "whose=all" in tab.url
    assert tab.evaluate(DARKEST) == int(recording["blocks.1"].received[0, 0, 1:].argmax())
    tab.get_by_role("button", name="[CLS]").click()
    page.settled()
    assert "whose=all" not in tab.url
    assert tab.locator(".image-and-heads h3 .q").inner_text() == "[CLS]"


def test_a_picture_and_one_that_does_not_fit(page, tmp_path):
    tab = page.open("image", l=0, h=0, i=5)
    tab.locator("input[type=file]").set_input_files(picture(tmp_path, 100, 100))
    assert tab.get_by_role("alert").inner_text() == (
        "This picture has 100 x 100 pixels (width x height), and 4 rows x 6 columns of square patches do not cover "
        "that. Choose what the model read, such as 100 x 67 pixels of it."
    )
    assert tab.locator(".patches .photo").count() == 0
    tab.locator("input[type=file]").set_input_files(picture(tmp_path, 120, 80))
    tab.locator(".patches.large .photo").wait_for()
    assert tab.get_by_role("alert").count() == 0
    assert tab.locator(".patches .photo").count() == 3  # the large one, and one for each head
    click(page, 1, 1)
    assert tab.locator(".patches .photo").count() == 3  # it stays
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    tab.locator("input[type=file]").set_input_files(broken)
    tab.get_by_role("alert").wait_for()
    assert tab.get_by_role("alert").inner_text() == "“broken.png” is no picture that this browser can show."
    tab.get_by_role("button", name="without it").click()
    assert tab.locator(".patches .photo").count() == 0


def test_a_summary_says_how_much_is_known(page):
    tab = page.open("image", page.served.summary, l=0, h=0, i=4)
    assert "Only the largest weights of each query were kept" in tab.locator("main").inner_text()


def test_names_are_text_on_two_images(page):
    tab = page.open("image", page.served.two, l=0, h=0, i=4)
    assert tab.locator(".patches.large").count() == 2
    assert tab.evaluate("window.pwned") is None
    assert HOSTILE[1] in tab.locator(".image-and-heads figcaption").first.inner_text()


def test_it_is_offered_where_there_is_an_image(page, recording):
    tab = page.open("heads", l=0, h=0)
    assert tab.locator(".tabs").get_by_text("Image", exact=True).count() == 1
    assert "neighbours" in tab.locator("table.habits").inner_text()
    assert "patches" in tab.locator("table.habits").inner_text()


def test_a_text_has_no_such_tab(browser, served):
    page = Page(browser, served)
    tab = page.open("walk")
    assert tab.locator(".tabs").get_by_text("Image", exact=True).count() == 0
    page.leave()


def test_it_is_accessible(page):
    page.check_by_axe([page.path("image", l=0, h=0, i=5), page.path("image", page.served.two, l=1, h=1, whose="all")])


def test_it_is_saved_as_a_drawing(page, tmp_path):
    """With the weights of each head and the picture, each as an image within the file."""
    tab = page.open("image", l=0, h=0, i=5)
    tab.locator("input[type=file]").set_input_files(picture(tmp_path, 120, 80))
    tab.locator(".patches.large .photo").wait_for()
    tab.get_by_role("button", name="save this view").click()
    with tab.expect_download() as waited:
        tab.get_by_role("button", name="Drawing").click()
    waited.value.save_as(tmp_path / "view.svg")
    root = ElementTree.parse(tmp_path / "view.svg").getroot()
    images = [*root.iter("{http://www.w3.org/2000/svg}image")]
    assert len(images) == 6
    assert all(image.get("href").startswith("data:image/png") for image in images)
