"""Names of tokens that are no text: patches, frames, segments; in prints, traces, tables and files."""

import pytest
import torch

import telescope as ts
from support.seeing import Captions, Vision, filled, vectors
from telescope.token_kinds import kind_from_json

CLS = ts.Grid(2, 3, before=["[CLS]"], after=["[REG]"])
PAGE = ts.Segments(["<s>", "What"], ts.Grid(1, 2, name="image 1"), ["?"], ts.Frames(2, seconds=1.0))
KEEPS = ("summaries", "queries-keys", "steps")


def test_names_of_a_grid():
    assert CLS.names == ("[CLS]", "(0, 0)", "(0, 1)", "(0, 2)", "(1, 0)", "(1, 1)", "(1, 2)", "[REG]")
    assert len(CLS) == 8
    assert [CLS.find(token) for token in ((1, 2), "[CLS]", -1, "(0, 1)")] == [6, 0, 7, 2]


@pytest.mark.parametrize(
    ("frames", "second", "last"),
    [
        (ts.Frames(1500, seconds=30.0), "0.02 s", "29.98 s"),
        (ts.Frames(3, seconds=30.0), "10 s", "20 s"),
        (ts.Frames(4, seconds=10), "2 s", "8 s"),
        (ts.Frames(3, seconds=1.0, name="sound 2"), "sound 2 0.3 s", "sound 2 0.7 s"),
    ],
)
def test_names_of_frames(frames, second, last):
    assert (frames.names[1], frames.names[-1]) == (second, last)
    assert len({*frames.names}) == len(frames)


def test_names_of_segments():
    assert PAGE.names == ("<s>", "What", "image 1 (0, 0)", "image 1 (0, 1)", "?", "0.0 s", "0.5 s")
    assert PAGE.find(("image 1", 0, 1)) == 3
    assert PAGE.spans == {"text": [0, 1, 4], "image 1": [2, 3], "Frames(2, seconds=1)": [5, 6]}
    assert ts.Segments(ts.Segments(["a"], ["b"]), ["c"]) == ts.Segments(["a"], ["b"], ["c"])


@pytest.mark.parametrize("kind", [CLS, PAGE, ts.Frames(3, 1.5, after=["</s>"], name="x"), ts.Grid(1, 1)])
def test_kinds_are_what_was_written(kind):
    assert kind_from_json(kind.to_json()) == kind
    assert kind_from_json(kind.to_json()).names == kind.names


def test_a_trace_of_patches_prints_rows_and_columns():
    x = torch.eye(4)[None, None]
    steps = ts.trace(x, x, x, ts.Attention(scale=1.0), tokens=ts.Grid(1, 3, before=["[CLS]"]))
    assert steps.query_tokens == ("[CLS]", "(0, 0)", "(0, 1)", "(0, 2)")
    row = steps.row((0, 1))
    assert row.token == "(0, 1)"
    assert str(row).startswith("scores of (0, 1): q·k, product by product\n   [CLS]  0·1 + 0·0 + 1·0 + 0·0 = 0\n")
    assert "[CLS]" in str(steps)


def test_text_that_reads_an_image():
    x = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 6, 4)
    steps = ts.trace(x[0], x[1], x[1], tokens=(["What", "is"], ts.Grid(2, 3)))
    assert steps.query_tokens == ("What", "is")
    assert steps.key_tokens[-1] == "(1, 2)"


@pytest.mark.parametrize("keep", KEEPS)
def test_a_recording_keeps_names_and_distances(keep, tmp_path):
    model = filled(Vision())
    with ts.watch(model, keep=keep, tokens=CLS) as recording:
        model(vectors(8))
    recording.save(tmp_path / "seen")
    opened = ts.open(tmp_path / "seen")
    for one in (recording, opened):
        call = one["blocks.1"].call
        assert call._facts.tokens == (CLS, CLS)
        assert call._all_names("key") == call._all_names("query") == CLS.names
    assert opened.heads().to_dict() == recording.heads().to_dict()
    assert opened.heads()[0].patches > 0
    if keep == "steps":
        assert opened["blocks.0"].trace().row((1, 2)).token == "(1, 2)"
        assert opened["blocks.0"].trace(["x"] * 8).query_tokens[0] == "x"


def test_both_sides_and_patterns(tmp_path):
    model, words = filled(Captions()), ["What", "is", "it"]
    given = {"image": ts.Grid(2, 3), "cross": (words, ts.Grid(2, 3))}
    with ts.watch(model, tokens=given) as recording:
        model(vectors(6), vectors(3, seed=1))
    recording.save(tmp_path / "seen")
    for one in (recording, ts.open(tmp_path / "seen")):
        assert one["text"].call._facts.tokens is None
        assert one["text"].call._all_names("key") is None
        assert one["cross"].call._all_names("query") == tuple(words)
        assert one["cross"].call._all_names("key") == one["image"].call._all_names("query") == ts.Grid(2, 3).names
    with ts.watch(model, tokens=(words, ts.Grid(2, 3))) as pair:
        model(vectors(6), vectors(3, seed=1))
    assert pair["text"].call._all_names("key") == tuple(words)
    with ts.watch(model, tokens=(None, ts.Grid(2, 3))) as half:
        model(vectors(6), vectors(3, seed=1))
    assert half["text"].call._facts.tokens == (None, None)
    assert half["cross"].call._all_names("query") is None


def test_names_of_some_queries():
    model = filled(Vision())
    with ts.watch(model, keep="steps", queries=[0, 6], tokens=CLS) as recording:
        model(vectors(8))
    assert recording["blocks.0"].call._all_names("query") == ("[CLS]", "(1, 2)")
    assert recording["blocks.0"].trace().query_tokens == ("[CLS]", "(1, 2)")


def test_written_tokens_are_named_by_their_positions():
    model = filled(ts.models.GPT(ts.models.GPTConfig(vocabulary=11, d_model=8, blocks=1, heads=2))).eval()
    with ts.watch(model, tokens=ts.Segments(["<s>"], ts.Grid(1, 2))) as recording:
        ts.decoding.generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=3, end=[])
    names = ("<s>", "(0, 0)", "(0, 1)", "3", "4")
    assert recording["blocks.0"].call._all_names("key") == names
    assert recording["blocks.0"].call._all_names("query") == names


class Looks(torch.nn.Module):
    """One head that looks from each patch of a grid at one other: query i is row i of the scores."""

    def __init__(self, where):
        super().__init__()
        self.attend, self.attention = ts.layers.Attend(), ts.Attention(scale=1.0)
        self.scores = torch.zeros(1, 1, len(where), len(where))
        for i, j in enumerate(where):
            self.scores[0, 0, i, j] = 40.0

    def forward(self):
        keys = torch.eye(self.scores.shape[-1])[None, None]
        self.attend(self.scores, keys, keys, self.attention)


@pytest.mark.parametrize(
    ("where", "neighbours", "patches", "kind"),
    [
        # A grid of 3 x 4: each patch looks at the one below, which is 4 tokens on; the last row at itself.
        ([4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11], 1.0, 8 / 12, "neighbours"),
        # Every patch looks at the last one: 2 of 12 rows down and 3 columns right at most.
        ([11] * 12, 4 / 12, sum(((2 - i // 4) ** 2 + (3 - i % 4) ** 2) ** 0.5 for i in range(12)) / 12, "sink"),
        ([*range(12)], 1.0, 0.0, "itself"),
    ],
)
def test_distances_that_a_hand_can_check(where, neighbours, patches, kind):
    model = Looks(where)
    with ts.watch(model, tokens=ts.Grid(3, 4)) as recording:
        model()
    (head,) = recording.heads()
    assert head.neighbours == pytest.approx(neighbours)
    assert head.patches == pytest.approx(patches, abs=1e-6)
    assert head.kind == kind
    assert len(recording.heads().where(kind=kind, neighbours=0.3)) == 1
