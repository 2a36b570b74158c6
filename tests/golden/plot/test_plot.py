"""The pictures of `ts.plot`, compared with golden/plots/: `python tests/golden/plot/test_plot.py` draws these anew."""

import os
import subprocess
import sys
from math import exp, nan
from pathlib import Path

import pytest
import torch
from numpy.random import RandomState

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
from matplotlib.testing.compare import compare_images

import telescope as ts
from telescope.atlases.measure import CLASSES, BatchMeasures, LayerHeads
from telescope.atlases.sums import AtlasSums
from telescope.health import HeadHealth
from telescope.measures import BACK, BUCKETS, OF_QUERIES, OF_TEXTS, ROWS, Head
from telescope.recording.heads import Heads
from telescope.recording.source_question import Segments
from telescope.recording.sources import Sources
from telescope.tasks.explaining.examples import EXAMPLES
from telescope.training import HeadsWatched, Logged, Validated

PLOTS = Path(__file__).parents[1] / "plots"
TOLERANCE = 4.0  # root mean square of 255 levels: other versions of matplotlib place text a fraction of a pixel apart
DPI = 80


def made(*shape):
    """Return normal random numbers; numpy promises that a RandomState gives the same ones in every version."""
    return torch.from_numpy(RandomState(0).randn(*shape))


def masked():
    return EXAMPLES["journey"](ts.softmax).scenes[2].trace


def surveyed(heads=8, n=40):
    return ts.survey(made(2, 1, heads, n, 4)[0], made(2, 1, heads, n, 4)[1], ts.Attention(mask=ts.causal))


def events():
    for step in range(10, 200, 10):
        numbers = {"steps": 200, "epoch": 0, "lr": 1e-3, "norm": None, "tokens_per_second": 1.0, "seconds_left": 1.0}
        yield Logged(step=step, loss=1 + 5 * exp(-step / 80), **numbers)
        if step % 50 == 0:
            yield Validated(step=step, metrics={"loss": 1.2 + 5 * exp(-step / 80)}, best=True)
        names = ("blocks.0.self", "blocks.1.self")
        entropy = {name: tuple(2 - 0.002 * step * head for head in range(4)) for name in names}
        yield HeadsWatched(step, entropy, {name: tuple(2 + 0.02 * step * head for head in range(4)) for name in names})


def heads(kinds=("previous", "first", "mixed")):
    numbers = made(4, 3, 9).sigmoid().tolist()
    return Heads(
        Head(f"blocks.{layer}", number, kinds[number], *shares)
        for layer, row in enumerate(numbers)
        for number, shares in enumerate(row)
    )


def atlas():
    """Return an atlas whose sums are set by hand: four heads, eight texts."""
    sums = AtlasSums([LayerHeads(f"blocks.{layer}.self", (0, 1), False) for layer in range(2)])
    for text, row in enumerate(made(8, len(OF_TEXTS), 4).sigmoid()):
        numbers = row[None]
        zeros = torch.zeros(1, 4, 1)
        sums.add(
            [
                BatchMeasures(
                    heads=slice(0, 4),
                    numerator=10 * numbers,
                    denominator=torch.full_like(numbers, 10.0),
                    known=torch.ones_like(numbers, dtype=torch.bool),
                    queries=dict.fromkeys(OF_QUERIES, zeros),
                    counted=torch.ones_like(zeros, dtype=torch.bool),
                    distances=torch.zeros(1, 4, BUCKETS, dtype=torch.float64),
                    sampled=torch.ones(1, dtype=torch.float64),
                    positions=torch.zeros(1, 4, BACK, dtype=torch.float64),
                    classes=torch.zeros(1, 4, len(CLASSES), dtype=torch.float64),
                    map=torch.zeros(1, 4, ROWS, ROWS, dtype=torch.float64),
                    finite=torch.ones(1, dtype=torch.bool),
                )
            ],
            torch.tensor([[text, 0]]),
            [10],
            torch.zeros(len(CLASSES), dtype=torch.int64),
        )
    return ts.Atlas(sums, {}, {"skipped": {"count": 0, "texts": []}, "evidence": [], "read_texts": 8})


def reports():
    return [
        ts.HealthReport(
            step,
            {
                f"blocks.{layer}.self": HeadHealth(
                    tuple(5.0 + step * head * (1 + layer) / 40 for head in range(3)),
                    tuple(2.0 - step * head / 2000 for head in range(3)),
                    tuple(0.1 + step * layer * head / 2000 for head in range(3)),
                )
                for layer in range(2)
            },
        )
        for step in range(0, 1000, 50)
    ]


def found():
    numbers = made(len(WORDS))
    context = tuple(f" {word}" for word in WORDS)
    tokens = Segments(context, torch.arange(len(context)))
    return Sources("gradient", range(20, 21), tokens, numbers, numbers, context, (" Er", " ging"))


def photograph():
    """Return a picture of 140 x 140 pixels: a disc above a meadow."""
    at = torch.linspace(0, 1, 140, dtype=torch.float64)
    sky = torch.stack([0.5 + 0.3 * at.expand(140, 140), 0.9 - 0.5 * at[:, None].expand(140, 140)])
    disc = ((at - 0.6) ** 2 + (at[:, None] - 0.4) ** 2 < 0.05).double()
    return torch.stack([sky[0] * (1 - disc) + disc, sky[1], 0.2 + 0 * sky[0]])


def looked_at(heads, rows, columns):
    """Return the weights of a class token and of patches that look near themselves."""
    at = torch.tensor([[-9.0, 0.0], *([row, column] for row in range(rows) for column in range(columns))]).double()
    apart = torch.cdist(at, at)
    return torch.stack([(-apart / (head + 1) + 0.5 * made(*apart.shape)).softmax(-1) for head in range(heads)])


def patches(rows=10, columns=10):
    return ts.Grid(rows, columns, before=["[CLS]"])


def two_images():
    tokens = ts.Segments(["What"], ts.Grid(3, 5, name="image 1"), ["or"], ts.Grid(4, 3, name="image 2"), ["?"])
    weights = made(2, len(tokens), len(tokens)).softmax(-1)
    return ts.plot.image(weights, "?", tokens=tokens, image={"image 2": photograph()[:, :, :105]})


SENTENCES = ["Where", "is", "the", "station", "?"], ["Wo", "ist", "der", "Bahnhof", "?"]
EFFECTS = {"edit": [None, *(f"head {i} muted" for i in range(5))], "loss": [2.0, 2.1, 1.9, 3.2, 2.0, 2.6]}
SENTENCE = "The man saw the astronomer with a telescope , and then he went home because it was raining ."
WORDS = SENTENCE.split()

PICTURES = {
    "heatmap": lambda: ts.plot.heatmap(masked(), title="masked self-attention"),
    "heatmap-long": lambda: ts.plot.heatmap(surveyed(1, 600)),
    "heads-grid": lambda: ts.plot.heads_grid(surveyed()),
    "alignment": lambda: ts.plot.alignment((made(5, 5) + 3 * torch.eye(5)).softmax(-1), SENTENCES),
    "geometry": lambda: ts.plot.geometry(masked(), title="values and context"),
    "image": lambda: ts.plot.image(looked_at(2, 10, 10), (3, 5), head=1, image=photograph(), tokens=patches()),
    "image-heads": lambda: ts.plot.image(looked_at(6, 7, 9), "[CLS]", tokens=patches(7, 9), title="six heads"),
    "image-two": two_images,
    "variance": lambda: ts.plot.variance([ts.trace(*made(3, 1, 1, 128, d)) for d in (1, 4, 16, 64, 256)]),
    "received": lambda: ts.plot.received(surveyed()),
    "entropy": lambda: ts.plot.entropy(surveyed(3)),
    "training": lambda: ts.plot.training(events()),
    "scatter": lambda: ts.plot.scatter(heads(), "previous", "first", label="number"),
    "habits": lambda: ts.plot.habits(heads(), "previous"),
    "effects": lambda: ts.plot.effects(EFFECTS),
    "atlas": lambda: ts.plot.scatter(atlas(), "previous", "first", label="head"),
    "health": lambda: ts.plot.health(reports()),
    "health-of-one-step": lambda: ts.plot.health(reports()[-1]),
    "sources": lambda: ts.plot.sources(found(), width="column"),
    "text": lambda: ts.plot.text([f" {word}" for word in WORDS], made(len(WORDS)).abs() ** 3, width="column"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_the_one_that_was_looked_at(name, tmp_path):
    PICTURES[name]().save(tmp_path / f"{name}.png", dpi=DPI)
    difference = compare_images(str(PLOTS / f"{name}.png"), str(tmp_path / f"{name}.png"), TOLERANCE)
    assert difference is None, difference


def test_another_picture_is_found(tmp_path):
    """The comparison would see one head of eight that is wrong, and one line that is missing."""
    wrong = ts.plot.heads_grid(surveyed())
    wrong.axes[5].images[0].set_data(wrong.axes[4].images[0].get_array().T)
    wrong.save(tmp_path / "wrong.png", dpi=DPI)
    assert compare_images(str(PLOTS / "heads-grid.png"), str(tmp_path / "wrong.png"), TOLERANCE)
    missing = ts.plot.entropy(surveyed(3))
    missing.axes[0].lines[1].remove()
    missing.save(tmp_path / "missing.png", dpi=DPI)
    assert compare_images(str(PLOTS / "entropy.png"), str(tmp_path / "missing.png"), TOLERANCE)


@pytest.mark.parametrize(("ending", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files_of_every_kind_are_the_same_each_time(ending, head, tmp_path):
    for name in ("one", "two"):
        ts.plot.heatmap(masked()).save(tmp_path / f"{name}.{ending}")
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one.startswith(head)
    assert one == two
    if ending == "svg":
        assert b">journey<" in one  # text is text, which can be searched


def test_sizes_are_those_of_a_page():
    column, text = (ts.plot.entropy(surveyed(2), width=width).get_figwidth() for width in ("column", "text"))
    assert (column, text) == (3.35, 6.9)
    assert ts.plot.entropy(surveyed(2), width=5).get_figwidth() == 5.0


def test_an_image_shows_the_weights_of_one_query():
    """Every way to the weights draws the same numbers, those of a summary as far as they were kept."""
    model = ts.layers.MultiHeadAttention(8, 2)
    tokens = ts.Grid(2, 3, before=["[CLS]"])
    found = {}
    for keep in ("steps", "queries-keys", "summaries"):
        with torch.no_grad(), ts.watch(model, keep=keep, tokens=tokens) as recording:
            model(made(1, 7, 8).float())
        found[keep] = recording["attention"]
    weights = found["steps"].trace().weights[0].double()
    for seen in (*found.values(), found["steps"].trace(), found["queries-keys"].survey(), weights[None]):
        picture = ts.plot.image(seen, (1, 2), head=1, tokens=tokens)
        drawn = torch.from_numpy(picture.axes[0].images[0].get_array().data)
        torch.testing.assert_close(drawn, weights[1, 6, 1:].view(2, 3), rtol=0, atol=1e-6)
        (frame,) = picture.axes[0].patches  # around the query's own patch
        assert frame.get_xy() == (1.5, 0.5)
        assert picture.axes[0].get_xlabel().startswith(f"[CLS] {float(weights[1, 6, 0]):.2f}")
        received = ts.plot.image(seen, head=0, tokens=tokens).axes[0].images[0].get_array().data
        torch.testing.assert_close(torch.from_numpy(received), weights[0].sum(0)[1:].view(2, 3), rtol=0, atol=1e-5)
    assert ts.plot.image(found["summaries"], 6, head=1).axes[0].get_xlabel().endswith("100% of the weight is known")


def test_an_image_of_a_text_that_reads_it():
    weights = made(2, 4).softmax(-1)
    picture = ts.plot.image(weights, "is", tokens=(["What", "is"], ts.Grid(2, 2)))
    assert (picture.axes[0].images[0].get_array().data == weights[1].view(2, 2).numpy()).all()
    assert not picture.axes[0].patches


@pytest.mark.parametrize("shape", [(140, 140), (140, 140, 3), (3, 140, 140), (140, 140, 4), (137, 140)])
def test_pictures_of_every_shape(shape, tmp_path):
    picture = ts.plot.image(made(4, 4), 0, tokens=ts.Grid(2, 2), image=made(*shape))
    assert [image.get_array().shape for image in picture.axes[0].images][1] == (2, 2)
    ts.plot.heatmap(torch.eye(3), width=2).save(tmp_path / "own.png")
    with pytest.raises(ValueError, match="square patches do not cover"):
        ts.plot.image(made(30, 30), 0, tokens=ts.Grid(10, 3), image=tmp_path / "own.png")


def test_a_notebook_shows_a_picture():
    assert ts.plot.heatmap(masked())._repr_png_().startswith(b"\x89PNG")


def test_every_input_gives_the_same_matrix():
    model = ts.layers.MultiHeadAttention(8, 2, attention=ts.Attention(mask=ts.causal))
    x = made(1, 6, 8).float()
    with torch.no_grad(), ts.watch(model, keep="steps") as steps:
        model(x)
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as pairs:
        model(x)
    with torch.no_grad(), ts.watch(model, map=(6, 6)) as summaries:
        model(x)
    weights = steps["attention"].trace().weights
    for seen in (
        steps["attention"],
        steps["attention"].call,
        weights,
        weights[0],
        pairs["attention"],
        summaries["attention"],
    ):
        drawn = ts.plot.heatmap(seen, head=1).axes[0].images[0].get_array()
        assert torch.allclose(torch.as_tensor(drawn).double(), weights[0, 1].double(), atol=1e-6)
    for seen in (weights, pairs["attention"], summaries["attention"], steps["attention"].trace()):
        drawn = [line.get_ydata() for line in ts.plot.received(seen).axes[0].lines]
        assert torch.allclose(torch.stack([*map(torch.as_tensor, drawn)]), weights[0].sum(-2).double(), atol=1e-6)
        drawn = [line.get_ydata() for line in ts.plot.entropy(seen).axes[0].lines]
        expected = -torch.xlogy(weights[0], weights[0]).sum(-1).double()
        assert torch.allclose(torch.stack([*map(torch.as_tensor, drawn)]), expected, atol=1e-5)
    assert len(ts.plot.heads_grid(steps).axes) == 2
    assert len(ts.plot.geometry(steps["attention"].trace()).axes) == 1


def test_training_is_drawn_from_a_folder_of_logs(tmp_path):
    pytest.importorskip("tensorboard", reason="the train extra is not installed")
    from telescope.training import Finished, Started
    from telescope.training.reports import tensorboard

    report = tensorboard(tmp_path / "training" / "logs")
    report(Started(step=0, steps=200, parameters=1, data="", device="cpu", processes=1))
    for event in (*events(), Finished(step=200, kept=200)):
        report(event)
    drawn, direct = ts.plot.training(tmp_path), ts.plot.training(events())
    for axes, others in zip(drawn.axes, direct.axes, strict=True):
        assert axes.get_title() == others.get_title()
        for line, other in zip(axes.lines, others.lines, strict=True):
            assert torch.allclose(torch.as_tensor(line.get_ydata()), torch.as_tensor(other.get_ydata()), atol=1e-5)


class Frame:
    """The part of a pandas frame that is used."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])

    def to_dict(self, orient):
        assert orient == "records"
        return self.rows


def test_tables_are_taken_in_every_form():
    rows = heads().to_dict()
    points = [len(one.get_offsets()) for one in ts.plot.scatter(rows).axes[0].collections]
    assert points == [4, 4, 4]
    assert len(ts.plot.scatter(Frame(rows)).axes[0].collections) == 3
    assert len(ts.plot.scatter({name: [row[name] for row in rows] for name in rows[0]}).axes[0].collections) == 3
    unknown = [*rows, rows[0] | {"previous": nan}, rows[0] | {"previous": None}]
    assert [len(one.get_offsets()) for one in ts.plot.scatter(unknown).axes[0].collections] == points


def test_an_effect_is_measured_from_the_model_as_it_is():
    labels = [label.get_text() for label in ts.plot.effects(EFFECTS, most=2).axes[0].get_yticklabels()]
    assert labels == ["head 4 muted", "head 2 muted"]  # from below


def test_a_point_of_an_atlas_is_the_mean_of_its_texts():
    picture, shown = ts.plot.scatter(atlas(), "previous", "first"), atlas()
    points = {tuple(point) for one in picture.axes[0].collections for point in one.get_offsets().tolist()}
    expected = {(head.previous, head.first) for head in shown.heads()}
    for point, mean in zip(sorted(points), sorted(expected), strict=True):
        assert point == pytest.approx(mean)
    low, high = picture.axes[0].lines[0].get_xdata()
    spread = shown.statistic("blocks.0.self", 0, "previous")
    assert (low, high) == (spread.quantiles[1], spread.quantiles[3])


def test_the_tokens_of_a_hidden_segment_share_its_score():
    segments, scores = Segments(("a", "b"), torch.tensor([0, 0, 1])), torch.tensor([3.0, -1.0]).double()
    hidden = Sources("hidden", range(3, 4), segments, scores, None, ("x", " y", " z"), ("w",))
    assert [row.share for row in hidden] == [0.75, -0.25]
    assert hidden.token_scores() == [3.0, 3.0, -1.0]
    colours = [piece.get_bbox_patch().get_facecolor() for piece in ts.plot.sources(hidden).axes[0].texts]
    assert colours[0] == colours[1]
    assert colours[0][2] > colours[0][0]  # blue
    assert colours[2][0] > colours[2][2]  # red


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ts.plot.heatmap("text"), "str holds no weights to draw"),
        (lambda: ts.plot.heatmap(torch.zeros(3)), r"shape \(3,\) is no matrix"),
        (lambda: ts.plot.heatmap(torch.eye(3), ["a"]), "tokens name 1 queries and 1 keys; there are 3 queries"),
        (lambda: ts.plot.heatmap(torch.eye(3), "abc"), "tokens is one string"),
        (lambda: ts.plot.heatmap(torch.eye(3), head=1), "there is no head 1"),
        (lambda: ts.plot.heatmap(torch.eye(3), batch=1), "there is no batch 1"),
        (lambda: ts.plot.heatmap(torch.eye(3), width="colum"), 'width="colum" is not known; did you mean "column"'),
        (lambda: ts.plot.heatmap(torch.eye(3), width=0), "width=0 inches is not possible"),
        (lambda: ts.plot.heatmap(torch.eye(3)).save("x.jpg"), r"is not a \.png, \.svg or \.pdf"),
        (lambda: ts.plot.alignment(torch.eye(3)), "at most 48 named tokens"),
        (lambda: ts.plot.alignment(torch.eye(60), ["a"] * 60), "60 queries and 60 keys"),
        (lambda: ts.plot.geometry(torch.eye(3)), "before and after"),
        (lambda: ts.plot.geometry(torch.eye(3), torch.zeros(2, 3)), r"shape \(3, 3\) before and \(2, 3\) after"),
        (lambda: ts.plot.geometry(torch.eye(3), torch.eye(3), ["a"]), "1 tokens for 3 vectors"),
        (lambda: ts.plot.variance([]), "at least one trace"),
        (lambda: ts.plot.received(torch.eye(3), ["a"]), "1 tokens for 3 keys"),
        (lambda: ts.plot.entropy([1]), "list holds no weights"),
        (lambda: ts.plot.training([]), "no losses and no heads"),
        (lambda: ts.plot.training("nowhere"), "no TensorBoard logs in nowhere"),
        (lambda: ts.plot.scatter(heads(), "previos"), 'no column "previos"; did you mean "previous"'),
        (lambda: ts.plot.scatter([]), "no rows"),
        (lambda: ts.plot.scatter(3), "int is no table"),
        (lambda: ts.plot.habits(heads(), "indction"), 'no habit "indction"; did you mean "induction"'),
        (lambda: ts.plot.habits(Heads([])), "no head in this table"),
        (lambda: ts.plot.effects(EFFECTS, "lss"), 'no column "lss"; did you mean "loss"'),
        (lambda: ts.plot.effects({"edit": ["a"]}), "no column with numbers"),
        (lambda: ts.plot.sources([0.5]), "list holds no sources"),
        (lambda: ts.plot.health([]), "health takes what ts.Health"),
        (lambda: ts.plot.scatter(atlas(), "previos"), 'no column "previos"; did you mean "previous"'),
        (lambda: ts.plot.text(["a"], [0.5, 0.5]), "2 shares for 1 tokens"),
        (lambda: ts.plot.text(["a"], [-0.5]), r"shares\[0\] is below 0"),
        (lambda: ts.plot.text([], []), "0 tokens"),
        (lambda: ts.plot.image(made(4, 4)), r"it is not known which tokens are patches: give tokens=ts\.Grid\(rows"),
        (lambda: ts.plot.image(made(4, 4), tokens=["a"] * 4), "tokens=a list of 4 labels has no patches to draw"),
        (
            lambda: ts.plot.image(made(4, 4), tokens=ts.Grid(3, 3)),
            r"tokens=Grid\(3, 3\) has 9 tokens, and there are 4 keys to draw",
        ),
        (lambda: ts.plot.image(made(4, 4), (2, 0), tokens=ts.Grid(2, 2)), r'no query is "\(2, 0\)"; patches are'),
        (
            lambda: ts.plot.image(made(2, 4), "b", tokens=(None, ts.Grid(2, 2))),
            'the queries have no names, so that "b" is none; give its position, from 0 to 1',
        ),
        (
            lambda: ts.plot.image(made(4, 4), 0, tokens=ts.Grid(2, 2), image=made(480, 640)),
            r"image has 640 x 480 pixels \(width x height\), and 2 rows x 2 columns of square patches do not cover "
            "that; give what the model read, such as 480 x 480 pixels of it$",
        ),
        (
            lambda: ts.plot.image(made(4, 4), 0, tokens=ts.Grid(2, 2), image=made(2, 3, 4, 4)),
            r"image has the shape \(2, 3, 4, 4\), which is no picture; \(height, width\)",
        ),
        (
            lambda: ts.plot.image(made(4, 4), 0, tokens=ts.Grid(2, 2), image="no.png"),
            'image="no.png" is no picture: .*No such file',
        ),
        (
            lambda: ts.plot.image(made(4, 4), 0, tokens=ts.Grid(2, 2), image={"left": made(4, 4)}),
            'image has the name "left", which no grid has',
        ),
        (
            lambda: ts.plot.image(
                made(2, 2), tokens=ts.Segments(ts.Grid(1, 1, name="a"), ts.Grid(1, 1, name="b")), image=made(1, 1)
            ),
            "there are 2 images; image= takes a dict from their names to pictures: a, b",
        ),
        (lambda: ts.plot.image("weights", tokens=ts.Grid(2, 2)), "str holds no weights to draw; an attention of a"),
    ],
)
def test_bad_input_is_one_sentence(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError), match=message) as problem:
        call()
    assert "\n" not in str(problem.value)


def test_a_recording_that_kept_no_matrix():
    model = ts.layers.MultiHeadAttention(8, 2)
    with torch.no_grad(), ts.watch(model) as recording:
        model(torch.zeros(1, 4, 8))
    with pytest.raises(ValueError, match=r'kept no map: ts\.watch\(model, keep="queries-keys"\)'):
        ts.plot.heatmap(recording["attention"])
    with ts.watch(model) as empty:
        pass
    with pytest.raises(ValueError, match="was not called while it was watched"):
        ts.plot.heads_grid(empty)


def test_matplotlib_is_imported_at_first_use_and_its_absence_is_one_sentence():
    """`import telescope` must not import it; pyplot, which keeps figures and opens windows, is never imported."""
    code = (
        "import sys, telescope as ts, torch\n"
        "assert 'matplotlib' not in sys.modules\n"
        "ts.plot.heatmap(torch.eye(3))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "drawing = [name for name in sys.modules if name.startswith(('matplotlib', 'telescope.plot'))]\n"
        "for name in drawing: del sys.modules[name]\n"
        "sys.modules['matplotlib'] = None\n"
        "del ts.plot\n"
        "try:\n    ts.plot\n"
        "except ImportError as problem: print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stdout == "ts.plot needs matplotlib: pip install 'telescope-attention[plot]'\n", done.stderr


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw().save(PLOTS / f"{name}.png", dpi=DPI)
